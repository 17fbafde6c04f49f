//! Master clock, kvmclock ioctls, and the update of a guest's clock page.
//!
//! With the master clock in use every vCPU's page is computed from *one* pair of host instants
//! (TSC and ns), and the pages agree ([`PVCLOCK_TSC_STABLE`]). Without it each page is computed
//! from the instant of its update. Kernel: `pvclock_update_vm_gtod_copy`, `get_kvmclock`,
//! `kvm_vm_ioctl_set_clock`, `kvm_guest_time_update`.

use super::arith::{TimeScale, TimeScaleError};
use super::pvclock::{PVCLOCK_GUEST_STOPPED, PVCLOCK_TSC_STABLE, PvclockTime};
use super::scaling::HostTsc;
use super::tsc_sync::{HostInstant, VcpuTsc, VmTsc};

/// `KVM_CLOCK_TSC_STABLE`: the clock is computed from the master clock.
pub const KVM_CLOCK_TSC_STABLE: u32 = 2;
/// `KVM_CLOCK_REALTIME`: [`KvmClockData::realtime_ns`] is valid.
pub const KVM_CLOCK_REALTIME: u32 = 4;
/// `KVM_CLOCK_HOST_TSC`: [`KvmClockData::host_tsc`] was read at the same instant.
pub const KVM_CLOCK_HOST_TSC: u32 = 8;
/// The flags that `KVM_CHECK_EXTENSION(KVM_CAP_ADJUST_CLOCK)` returns.
pub const KVM_CLOCK_VALID_FLAGS: u32 =
    KVM_CLOCK_TSC_STABLE | KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC;

/// `struct kvm_clock_data`, without its padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KvmClockData {
    /// The guest's kvmclock, in ns.
    pub clock_ns: u64,
    /// `KVM_CLOCK_*`.
    pub flags: u32,
    /// The wall clock at the same instant, in ns; valid with [`KVM_CLOCK_REALTIME`].
    pub realtime_ns: u64,
    /// The host's TSC; taken at the same instant with [`KVM_CLOCK_HOST_TSC`].
    pub host_tsc: u64,
}

/// `KVM_SET_CLOCK` was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnknownClockFlags {
    /// The flags given.
    pub flags: u32,
    /// The flags known.
    pub known: u32,
}

impl core::fmt::Display for UnknownClockFlags {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "KVM_SET_CLOCK with flags {:#x}: clear those outside {:#x}",
            self.flags, self.known
        )
    }
}

impl core::error::Error for UnknownClockFlags {}

/// What `KVM_SET_CLOCK` did to the guest's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClockSet {
    /// The guest's kvmclock right after.
    pub clock_ns: u64,
    /// What the wall clock added: the blackout, never negative.
    pub added_ns: u64,
    /// How many vCPUs must bring their page up to date (`KVM_REQ_CLOCK_UPDATE`) before they enter the
    /// guest: all there are. [`VmTsc::needs_clock_update`] says it of each.
    pub vcpus_to_update: u32,
}

impl VmTsc {
    /// Takes a new pair of host instants and decides whether all vCPUs may share it. Every vCPU's page
    /// is old afterwards (`kvm_end_pvclock_update`).
    pub fn refresh_master_clock(&mut self, host: &HostTsc, now: &HostInstant) {
        self.clock_changes = self.clock_changes.wrapping_add(1);
        let tsc_based = host.clock_is_tsc_based();
        if tsc_based {
            self.master_kernel_ns = now.ns;
            self.master_cycle_now = now.tsc;
        }
        self.use_master_clock = tsc_based
            && self.all_vcpus_matched()
            && !self.backwards_tsc_observed
            && !self.boot_vcpu_runs_old_kvmclock;
    }

    /// Whether a vCPU's page is older than the VM's clock: it must not enter the guest before
    /// [`VmTsc::guest_time_update`] (`KVM_REQ_CLOCK_UPDATE`).
    #[must_use]
    pub const fn needs_clock_update(&self, vcpu: &VcpuTsc) -> bool {
        vcpu.page_changes != self.clock_changes
    }

    /// Serves a vCPU's request to refresh the master clock; false if there was none.
    pub fn handle_masterclock_request(
        &mut self,
        vcpu: &mut VcpuTsc,
        host: &HostTsc,
        now: &HostInstant,
    ) -> bool {
        let requested = core::mem::replace(&mut vcpu.masterclock_request, false);
        if requested {
            self.refresh_master_clock(host, now);
        }
        requested
    }

    /// `KVM_GET_CLOCK`. `wall_readable`: wall clock and TSC could be read as one.
    ///
    /// # Errors
    /// [`TimeScaleError`] on a host with a TSC frequency of 0.
    pub fn get_clock(
        &self,
        host: &HostTsc,
        now: &HostInstant,
        wall_readable: bool,
    ) -> Result<KvmClockData, TimeScaleError> {
        if !self.use_master_clock {
            return Ok(KvmClockData {
                clock_ns: now.ns.wrapping_add(self.kvmclock_offset),
                ..KvmClockData::default()
            });
        }
        let page = PvclockTime {
            tsc_timestamp: self.master_cycle_now,
            system_time_ns: self.master_kernel_ns.wrapping_add(self.kvmclock_offset),
            scale: TimeScale::cycles_to_ns(u64::from(host.khz))?,
            flags: PVCLOCK_TSC_STABLE,
        };
        let mut data = KvmClockData {
            clock_ns: page.at(now.tsc),
            flags: KVM_CLOCK_TSC_STABLE,
            realtime_ns: 0,
            host_tsc: now.tsc,
        };
        if wall_readable && host.clock_is_tsc_based() {
            data.realtime_ns = now.real_ns;
            data.flags |= KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC;
        }
        Ok(data)
    }

    /// `KVM_SET_CLOCK`: with [`KVM_CLOCK_REALTIME`] the time since `data.realtime_ns` is added
    /// if it is positive; the clock never steps back. The other known flags are ignored.
    ///
    /// # Errors
    /// [`UnknownClockFlags`]; nothing was done.
    pub fn set_clock(
        &mut self,
        host: &HostTsc,
        now: &HostInstant,
        data: &KvmClockData,
    ) -> Result<ClockSet, UnknownClockFlags> {
        if data.flags & !KVM_CLOCK_VALID_FLAGS != 0 {
            return Err(UnknownClockFlags {
                flags: data.flags,
                known: KVM_CLOCK_VALID_FLAGS,
            });
        }
        self.refresh_master_clock(host, now);
        let added_ns = if data.flags & KVM_CLOCK_REALTIME == 0 {
            0
        } else {
            now.real_ns.saturating_sub(data.realtime_ns)
        };
        let clock_ns = data.clock_ns.wrapping_add(added_ns);
        // With the master clock the offset must fit the snapshot just taken, not a later "now".
        let base_ns = if self.use_master_clock {
            self.master_kernel_ns
        } else {
            now.ns
        };
        self.kvmclock_offset = clock_ns.wrapping_sub(base_ns);
        Ok(ClockSet {
            clock_ns,
            added_ns,
            vcpus_to_update: self.online_vcpus,
        })
    }

    /// Computes what a vCPU's clock page must say now; publish it in the guest's
    /// [`PvclockPage`](super::pvclock::PvclockPage). `stopped`: the host had stopped the guest.
    ///
    /// # Errors
    /// [`TimeScaleError`] where the guest's frequency has no scale; the page is unchanged.
    pub fn guest_time_update(
        &self,
        vcpu: &mut VcpuTsc,
        host: &HostTsc,
        now: &HostInstant,
        stopped: bool,
    ) -> Result<PvclockTime, TimeScaleError> {
        let (tsc, ns) = if self.use_master_clock {
            (self.master_cycle_now, self.master_kernel_ns)
        } else {
            (now.tsc, now.ns)
        };
        let mut khz = u64::from(host.khz);
        if host.has_scaling {
            khz = host.format.scale(khz, vcpu.rate.ratio).max(1);
        }
        if khz != vcpu.page_khz || vcpu.page_khz == 0 {
            vcpu.page.scale = TimeScale::cycles_to_ns(khz)?;
            vcpu.page_khz = khz;
        }
        let mut stamp = host
            .format
            .read_l1(vcpu.rate.ratio, vcpu.l1_tsc_offset, tsc);
        if vcpu.tsc_catchup {
            let due = vcpu.compute_guest_tsc(ns);
            if due > stamp {
                vcpu.push_forward(due.wrapping_sub(stamp));
                stamp = due;
            }
        }
        vcpu.last_guest_tsc = stamp;
        vcpu.page_changes = self.clock_changes;
        vcpu.page = PvclockTime {
            tsc_timestamp: stamp,
            system_time_ns: ns.wrapping_add(self.kvmclock_offset),
            scale: vcpu.page.scale,
            flags: page_flags(self.use_master_clock, stopped),
        };
        Ok(vcpu.page)
    }
}

fn page_flags(stable: bool, stopped: bool) -> u8 {
    let mut flags = 0;
    if stable {
        flags |= PVCLOCK_TSC_STABLE;
    }
    if stopped {
        flags |= PVCLOCK_GUEST_STOPPED;
    }
    flags
}

impl VcpuTsc {
    /// Where the guest's TSC should be at the host's `kernel_ns`, going by its nominal
    /// frequency since its generation began (`compute_guest_tsc`).
    #[must_use]
    pub fn compute_guest_tsc(&self, kernel_ns: u64) -> u64 {
        let elapsed = kernel_ns.wrapping_sub(self.this_tsc_nsec);
        self.this_tsc_write
            .wrapping_add(self.rate.ns_to_cycles.scale(elapsed))
    }
}
