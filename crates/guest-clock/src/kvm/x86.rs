//! x86: kvmclock, TSC offsets, registers.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use kvm_ioctls::{VcpuFd, VmFd};
use stealtime_hypervisor::counter::kvm_clock::{
    KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KvmClockData,
};

use super::ioctl::{
    self, ClockData, DeviceAttr, MsrEntry, OneMsr, TwoMsrs, by_number, by_structure,
};
use super::{frequency, host, identity, real_ns};
use crate::device::{Bracket, HostFacts, MsrValue, NoAnswer, Stopping, Vcpu, VcpuIdentity, Vm};
use crate::error::{Errno, HostError};

/// `KVM_VCPU_TSC_CTRL`.
const TSC_CTRL: u32 = 0;
/// `KVM_VCPU_TSC_OFFSET`.
const TSC_OFFSET: u64 = 0;

/// A VM by its descriptor.
#[derive(Clone, Copy, Debug)]
pub struct RawVm<'fd>(BorrowedFd<'fd>);

/// A vCPU by its descriptor.
#[derive(Clone, Copy, Debug)]
pub struct RawVcpu<'fd>(BorrowedFd<'fd>);

impl<'fd> RawVm<'fd> {
    /// A VM of this process.
    #[must_use]
    pub const fn new(fd: BorrowedFd<'fd>) -> Self {
        Self(fd)
    }
}

impl<'fd> RawVcpu<'fd> {
    /// A vCPU of this process, stopped. (A running one is reported, after a moment's patience.)
    #[must_use]
    pub const fn new(fd: BorrowedFd<'fd>) -> Self {
        Self(fd)
    }
}

pub(super) fn borrow<T: AsRawFd>(owner: &T) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as its owner lives, and the borrow ends with the
    // owner's. Needed: `kvm-ioctls`' types have no `AsFd`.
    unsafe { BorrowedFd::borrow_raw(owner.as_raw_fd()) }
}

/// The host's TSC, after all earlier instructions.
#[must_use]
pub fn rdtsc() -> u64 {
    // SAFETY: both instructions are part of every x86-64 CPU and touch nothing but registers. Where
    // prctl forbids RDTSC, the kernel ends the process (`PR_TSC_SIGSEGV`). Needed: an intrinsic.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

/// Wall clock between two readings of the TSC.
#[must_use]
pub fn bracket() -> Bracket {
    let tsc_before = rdtsc();
    Bracket {
        tsc_before,
        realtime_ns: real_ns(),
        tsc_after: rdtsc(),
    }
}

fn get_clock(fd: BorrowedFd<'_>) -> Result<KvmClockData, Errno> {
    let mut data = ClockData::default();
    by_structure(fd, ioctl::GET_CLOCK, &mut data)?;
    Ok(KvmClockData {
        clock_ns: data.clock,
        flags: data.flags,
        realtime_ns: data.realtime,
        host_tsc: data.host_tsc,
    })
}

fn set_clock(fd: BorrowedFd<'_>, data: &KvmClockData) -> Result<(), Errno> {
    let mut data = ClockData {
        clock: data.clock_ns,
        flags: data.flags,
        realtime: data.realtime_ns,
        host_tsc: data.host_tsc,
        ..ClockData::default()
    };
    by_structure(fd, ioctl::SET_CLOCK, &mut data).map(|_| ())
}

pub(super) fn instant(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let needed = KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC;
    let data = get_clock(fd).ok()?;
    (data.flags & needed == needed).then_some((data.realtime_ns, data.host_tsc))
}

fn tsc_offset(fd: BorrowedFd<'_>, request: u64, offset: &mut u64) -> Result<(), Errno> {
    let mut attr = DeviceAttr {
        flags: 0,
        group: TSC_CTRL,
        attr: TSC_OFFSET,
        addr: std::ptr::from_mut(offset).expose_provenance() as u64,
    };
    by_structure(fd, request, &mut attr).map(|_| ())
}

fn msr(fd: BorrowedFd<'_>, request: u64, index: u32, data: u64) -> Result<Option<u64>, Errno> {
    let mut register = OneMsr {
        count: 1,
        index,
        data,
        ..OneMsr::default()
    };
    let accepted = by_structure(fd, request, &mut register)?;
    Ok((accepted == 1).then_some(register.data))
}

fn two_msrs(fd: BorrowedFd<'_>, indices: [u32; 2]) -> Result<[Option<u64>; 2], Errno> {
    let mut two = TwoMsrs {
        count: 2,
        entries: indices.map(|index| MsrEntry {
            index,
            ..MsrEntry::default()
        }),
        ..TwoMsrs::default()
    };
    if by_structure(fd, ioctl::GET_MSRS, &mut two)? == 2 {
        return Ok(two.entries.map(|entry| Some(entry.data)));
    }
    // One is unknown here, and KVM stops at the first of those.
    let [first, second] = indices.map(|index| msr(fd, ioctl::GET_MSRS, index, 0));
    Ok([first?, second?])
}

fn set_two_msrs(fd: BorrowedFd<'_>, registers: [MsrValue; 2]) -> Result<usize, Errno> {
    let mut two = TwoMsrs {
        count: 2,
        entries: registers.map(|register| MsrEntry {
            index: register.index,
            data: register.value,
            ..MsrEntry::default()
        }),
        ..TwoMsrs::default()
    };
    by_structure(fd, ioctl::SET_MSRS, &mut two).map(|accepted| accepted.unsigned_abs() as usize)
}

macro_rules! vm_by_descriptor {
    ($name:ty, $fd:expr) => {
        impl Vm for $name {
            fn host(&self) -> Result<HostFacts, HostError> {
                host().map(|h| h.facts())
            }
            fn get_clock(&self) -> Result<KvmClockData, Errno> {
                get_clock($fd(self))
            }
            fn set_clock(&self, data: &KvmClockData) -> Result<(), Errno> {
                set_clock($fd(self), data)
            }
            fn host_instant(&self) -> Option<(u64, u64)> {
                instant($fd(self)).or_else(|| host().ok()?.instant())
            }
            fn bracket(&self) -> Bracket {
                bracket()
            }
            fn another_vcpu(&self, identity: u64, ids: &[u32]) -> Option<u32> {
                identity::another_of(identity, ids)
            }
        }
    };
}

vm_by_descriptor!(VmFd, borrow);
vm_by_descriptor!(RawVm<'_>, |vm: &Self| vm.0);

macro_rules! vcpu_by_descriptor {
    ($name:ty, $fd:expr $(, $frequencies:item)?) => {
        impl Vcpu for $name {
            fn tsc_offset(&self) -> Result<u64, Errno> {
                let mut offset = 0;
                tsc_offset($fd(self), ioctl::GET_DEVICE_ATTR, &mut offset)?;
                Ok(offset)
            }
            fn set_tsc_offset(&self, offset: u64) -> Result<(), Errno> {
                let mut offset = offset;
                tsc_offset($fd(self), ioctl::SET_DEVICE_ATTR, &mut offset)
            }
            fn tsc_khz(&self) -> Result<u32, Errno> {
                by_number($fd(self), ioctl::GET_TSC_KHZ, 0).map(i32::cast_unsigned)
            }
            fn set_tsc_khz(&self, khz: u32) -> Result<(), Errno> {
                by_number($fd(self), ioctl::SET_TSC_KHZ, u64::from(khz)).map(|_| ())
            }
            fn msr(&self, index: u32) -> Result<Option<u64>, Errno> {
                msr($fd(self), ioctl::GET_MSRS, index, 0)
            }
            fn two_msrs(&self, indices: [u32; 2]) -> Result<[Option<u64>; 2], Errno> {
                two_msrs($fd(self), indices)
            }
            fn set_msr(&self, index: u32, value: u64) -> Result<bool, Errno> {
                msr($fd(self), ioctl::SET_MSRS, index, value).map(|accepted| accepted.is_some())
            }
            fn set_two_msrs(&self, registers: [MsrValue; 2]) -> Result<usize, Errno> {
                set_two_msrs($fd(self), registers)
            }
            fn kvmclock_ctrl(&self) -> Result<(), Errno> {
                by_number($fd(self), ioctl::KVMCLOCK_CTRL, 0).map(|_| ())
            }
            fn descriptor(&self) -> Option<RawFd> {
                Some($fd(self).as_raw_fd())
            }
            fn identity(&self) -> Option<VcpuIdentity> {
                identity::of($fd(self))
            }
            $($frequencies)?
        }
    };
}

vcpu_by_descriptor!(VcpuFd, borrow);
vcpu_by_descriptor!(
    RawVcpu<'_>,
    |vcpu: &Self| vcpu.0,
    fn frequencies(vcpus: &[Self], stopping: Stopping) -> Result<Vec<u32>, NoAnswer> {
        let fds: Vec<BorrowedFd<'_>> = vcpus.iter().map(|vcpu| vcpu.0).collect();
        frequency::frequencies(&fds, stopping)
    }
);

/// `KVM_CHECK_EXTENSION` of a VM.
pub(crate) fn check_extension<T: AsRawFd>(vm: &T, capability: u32) -> i32 {
    by_number(borrow(vm), ioctl::CHECK_EXTENSION, u64::from(capability)).unwrap_or(0)
}
