//! What the library asks of a VM and its vCPUs: a small trait each, until the usual crates have
//! all of it.
//!
//! Implementations: `kvm_ioctls::{VmFd, VcpuFd}` and raw file descriptors in [`crate::kvm`], and a
//! machine without a device in [`crate::fake`].

use std::os::fd::RawFd;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stealtime_hypervisor::counter::kvm_clock::{KVM_CLOCK_VALID_FLAGS, KvmClockData};
use stealtime_hypervisor::counter::scaling::{ClockMode, HostTsc, RatioFormat};

use crate::error::{Errno, HostError};

/// `IA32_TIME_STAMP_COUNTER` (Intel SDM vol. 4).
pub const MSR_IA32_TSC: u32 = 0x10;
/// `IA32_TSC_ADJUST` (Intel SDM vol. 4).
pub const MSR_IA32_TSC_ADJUST: u32 = 0x3b;
/// `IA32_TSC_DEADLINE` (Intel SDM vol. 3, "TSC-Deadline Mode").
pub const MSR_IA32_TSC_DEADLINE: u32 = 0x6e0;
/// `MSR_KVM_SYSTEM_TIME_NEW`: where a vCPU's kvmclock page lies; bit 0 enables it.
pub const MSR_KVM_SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;

/// A value for a model-specific register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsrValue {
    /// Address of the register.
    pub index: u32,
    /// Its value.
    pub value: u64,
}

/// What moves a guest's TSC on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TscMeans {
    /// The offset attribute `KVM_VCPU_TSC_OFFSET`: exact and idempotent.
    Offsets,
    /// Writes of the TSC's value only: the delay of the writing thread shows in guest time.
    Values,
    /// Nothing: KVM accepts writes and keeps the TSC as it is. Paravirtual KVMs without hardware
    /// offsets do this, and guests with a TSC that is protected from the host.
    Fixed,
}

/// What a host's KVM offers to guests' clocks.
///
/// Made by [`HostFacts::complete`], and changed field by field from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct HostFacts {
    /// Frequency of the host's TSC in kHz, as KVM has it.
    pub tsc_khz: u32,
    /// How the hardware represents TSC ratios.
    pub format: RatioFormat,
    /// Whether it has them (`KVM_CAP_TSC_CONTROL`).
    pub has_scaling: bool,
    /// `kvm.tsc_tolerance_ppm`: guest frequencies this close are not scaled.
    pub tolerance_ppm: u32,
    /// What moves a guest's TSC.
    pub means: TscMeans,
    /// With [`TscMeans::Fixed`]: the offset that every vCPU of this host has, if several of
    /// several VMs were seen to have the same whatever was written.
    pub fixed_offset: Option<u64>,
    /// `KVM_CLOCK_*` flags that `KVM_CHECK_EXTENSION(KVM_CAP_ADJUST_CLOCK)` returns.
    pub clock_flags: u32,
}

impl HostFacts {
    /// A host with everything: scaling in VMX format, offsets, all clock flags.
    #[must_use]
    pub const fn complete(tsc_khz: u32) -> Self {
        Self {
            tsc_khz,
            format: RatioFormat::VMX,
            has_scaling: true,
            tolerance_ppm: stealtime_hypervisor::counter::scaling::TSC_TOLERANCE_PPM,
            means: TscMeans::Offsets,
            fixed_offset: None,
            clock_flags: KVM_CLOCK_VALID_FLAGS,
        }
    }

    /// The same in the terms of the arithmetic.
    #[must_use]
    pub const fn host_tsc(&self) -> HostTsc {
        HostTsc {
            khz: self.tsc_khz,
            format: self.format,
            has_scaling: self.has_scaling,
            tolerance_ppm: self.tolerance_ppm,
            clock_mode: ClockMode::Tsc,
            unstable: false,
        }
    }
}

/// How often a reading that others can interrupt is tried; the narrowest one counts.
pub(crate) const ATTEMPTS: u32 = 8;

/// Wall clock and host TSC read by the process itself, the TSC on both sides of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bracket {
    /// The host's TSC before.
    pub tsc_before: u64,
    /// The host's wall clock, ns since the epoch.
    pub realtime_ns: u64,
    /// The host's TSC after.
    pub tsc_after: u64,
}

impl Bracket {
    /// Cycles between the two readings of the TSC: how far off the wall clock's instant can be.
    #[must_use]
    pub const fn width(&self) -> u64 {
        self.tsc_after.wrapping_sub(self.tsc_before)
    }

    /// The host's TSC in the middle: that of the wall clock's instant, within half the width.
    pub(crate) const fn tsc(&self) -> u64 {
        self.tsc_before.wrapping_add(self.width() / 2)
    }

    /// The narrowest of [`ATTEMPTS`] readings.
    pub(crate) fn narrowest(mut read: impl FnMut() -> Self) -> Self {
        let mut best = read();
        for _ in 1..ATTEMPTS {
            let next = read();
            if next.width() < best.width() {
                best = next;
            }
        }
        best
    }
}

/// Whether vCPUs may still be in `KVM_RUN`, where they answer no ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stopping {
    /// The caller has stopped all of them. They are asked directly and no thread is started; a vCPU
    /// that runs nevertheless holds the call up until it leaves.
    Done,
    /// They leave within this time. A helper thread asks; a vCPU that has not left when it is over
    /// is reported as busy.
    Within(Duration),
}

impl Default for Stopping {
    /// Half a second: a vCPU that is on its way out takes microseconds, a busy host's milliseconds.
    fn default() -> Self {
        Self::Within(Duration::from_millis(500))
    }
}

/// Which vCPU this is, among all of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VcpuIdentity {
    /// Its VM: equal for the vCPUs of one VM, different for those of two.
    pub vm: u64,
    /// `KVM_CREATE_VCPU`'s id.
    pub id: u32,
}

/// A VM as far as its clocks are concerned.
pub trait Vm {
    /// What the host's KVM offers.
    ///
    /// # Errors
    /// [`HostError`] where it could not be found out.
    fn host(&self) -> Result<HostFacts, HostError>;

    /// `KVM_GET_CLOCK`.
    ///
    /// # Errors
    /// The ioctl's.
    fn get_clock(&self) -> Result<KvmClockData, Errno>;

    /// `KVM_SET_CLOCK`.
    ///
    /// # Errors
    /// The ioctl's; `EINVAL` for flags that this KVM does not know.
    fn set_clock(&self, data: &KvmClockData) -> Result<(), Errno>;

    /// Wall clock (ns since the epoch) and host TSC of one instant, if KVM can read them together. Any
    /// VM's master clock on this host will do.
    fn host_instant(&self) -> Option<(u64, u64)>;

    /// Wall clock and host TSC without KVM's help.
    fn bracket(&self) -> Bracket;

    /// Its [`VcpuIdentity::vm`], if it can be found out. KVM has no call for it.
    fn identity(&self) -> Option<u64> {
        None
    }

    /// The id of a vCPU that the VM `identity` is known to have and that is none of `ids`.
    fn another_vcpu(&self, identity: u64, ids: &[u32]) -> Option<u32> {
        let _ = (identity, ids);
        None
    }
}

/// A vCPU as far as its clocks are concerned. It must not be running.
pub trait Vcpu {
    /// The offset attribute (`KVM_VCPU_TSC_CTRL`, `KVM_VCPU_TSC_OFFSET`), in cycles, wrapping.
    ///
    /// # Errors
    /// `ENXIO` where there is no such attribute (Linux before 5.16).
    fn tsc_offset(&self) -> Result<u64, Errno>;

    /// Writes the offset attribute.
    ///
    /// # Errors
    /// As [`Vcpu::tsc_offset`].
    fn set_tsc_offset(&self, offset: u64) -> Result<(), Errno>;

    /// `KVM_GET_TSC_KHZ`: the guest's frequency.
    ///
    /// # Errors
    /// The ioctl's.
    fn tsc_khz(&self) -> Result<u32, Errno>;

    /// `KVM_SET_TSC_KHZ`.
    ///
    /// # Errors
    /// `EINVAL` for a frequency that the host cannot give.
    fn set_tsc_khz(&self, khz: u32) -> Result<(), Errno>;

    /// `KVM_GET_MSRS` of one register; `None` if KVM does not know it.
    ///
    /// # Errors
    /// The ioctl's.
    fn msr(&self, index: u32) -> Result<Option<u64>, Errno>;

    /// `KVM_GET_MSRS` of two registers, in one call where that works.
    ///
    /// # Errors
    /// The ioctl's.
    fn two_msrs(&self, indices: [u32; 2]) -> Result<[Option<u64>; 2], Errno> {
        let [first, second] = indices;
        Ok([self.msr(first)?, self.msr(second)?])
    }

    /// `KVM_SET_MSRS` of one register; false if KVM did not take it.
    ///
    /// # Errors
    /// The ioctl's.
    fn set_msr(&self, index: u32, value: u64) -> Result<bool, Errno>;

    /// `KVM_SET_MSRS` of two registers in this order, in one call where that works. Returns the number
    /// that KVM accepted, 0 to 2: it stops at the first that it refuses.
    ///
    /// # Errors
    /// The ioctl's.
    fn set_two_msrs(&self, registers: [MsrValue; 2]) -> Result<usize, Errno> {
        for (accepted, register) in registers.into_iter().enumerate() {
            if !self.set_msr(register.index, register.value)? {
                return Ok(accepted);
            }
        }
        Ok(registers.len())
    }

    /// `KVM_KVMCLOCK_CTRL`: tells the guest that it was stopped, so that its watchdogs hold.
    ///
    /// # Errors
    /// `EINVAL` where the guest has not enabled its kvmclock.
    fn kvmclock_ctrl(&self) -> Result<(), Errno>;

    /// Its descriptor, if it is a vCPU of KVM's.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    /// The identity of the vCPU, if it can be found out.
    fn identity(&self) -> Option<VcpuIdentity> {
        None
    }

    /// The frequency of each vCPU in kHz. One in `KVM_RUN` does not answer; `stopping` is the time to wait
    /// for it. Types that keep a vCPU from running meanwhile need no wait.
    ///
    /// # Errors
    /// [`NoAnswer`], for the first vCPU that gave none.
    fn frequencies(vcpus: &[Self], stopping: Stopping) -> Result<Vec<u32>, NoAnswer>
    where
        Self: Sized,
    {
        let _ = stopping;
        each_frequency(vcpus)
    }
}

/// The frequency of each vCPU in kHz, without a wait.
pub(crate) fn each_frequency<C: Vcpu>(vcpus: &[C]) -> Result<Vec<u32>, NoAnswer> {
    let query = |(vcpu, device): (usize, &C)| {
        let khz = device.tsc_khz();
        khz.map_err(|errno| NoAnswer::Failed { vcpu, errno })
    };
    vcpus.iter().enumerate().map(query).collect()
}

/// A vCPU did not report its frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoAnswer {
    /// It is running: `KVM_RUN` holds it.
    Busy {
        /// Its position.
        vcpu: usize,
    },
    /// The ioctl failed.
    Failed {
        /// Its position.
        vcpu: usize,
        /// What the kernel said.
        errno: Errno,
    },
    /// The helper thread was not started: a limit on threads, or a seccomp filter.
    NoThread {
        /// What the kernel said.
        errno: Errno,
    },
}

/// For VMMs that keep their vCPUs elsewhere. Descriptors are better passed by value
/// (`RawVcpu` is `Copy`): of references each is asked by itself, and one that runs is waited for.
impl<T: Vcpu> Vcpu for &T {
    fn tsc_offset(&self) -> Result<u64, Errno> {
        (**self).tsc_offset()
    }
    fn set_tsc_offset(&self, offset: u64) -> Result<(), Errno> {
        (**self).set_tsc_offset(offset)
    }
    fn tsc_khz(&self) -> Result<u32, Errno> {
        (**self).tsc_khz()
    }
    fn set_tsc_khz(&self, khz: u32) -> Result<(), Errno> {
        (**self).set_tsc_khz(khz)
    }
    fn msr(&self, index: u32) -> Result<Option<u64>, Errno> {
        (**self).msr(index)
    }
    fn two_msrs(&self, indices: [u32; 2]) -> Result<[Option<u64>; 2], Errno> {
        (**self).two_msrs(indices)
    }
    fn set_msr(&self, index: u32, value: u64) -> Result<bool, Errno> {
        (**self).set_msr(index, value)
    }
    fn set_two_msrs(&self, registers: [MsrValue; 2]) -> Result<usize, Errno> {
        (**self).set_two_msrs(registers)
    }
    fn kvmclock_ctrl(&self) -> Result<(), Errno> {
        (**self).kvmclock_ctrl()
    }
    fn descriptor(&self) -> Option<RawFd> {
        (**self).descriptor()
    }
    fn identity(&self) -> Option<VcpuIdentity> {
        (**self).identity()
    }
}
