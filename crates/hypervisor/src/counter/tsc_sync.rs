//! TSC synchronisation: which writes of a vCPU's TSC mean "the same as the others".
//!
//! KVM guesses. A VMM may restore several vCPUs one after the other. So a value within a second of
//! what the last written vCPU reads snaps to the *generation*'s offset. An offset written equal to
//! the last one is a match without guessing. Kernel: `kvm_synchronize_tsc`,
//! `__kvm_synchronize_tsc`, `kvm_arch_tsc_set_attr`.
//!
//! ```text
//!  write ──matches?──no──▶ a new generation opens: cur_* := this write, no vCPU has matched
//!            │
//!            yes ─▶ the vCPU joins the generation (counted once); when all others have joined,
//!                   the master clock can be used
//! ```
//!
//! ```
//! use stealtime_hypervisor::counter::scaling::{ClockMode, HostTsc, RatioFormat};
//! use stealtime_hypervisor::counter::tsc_sync::{HostInstant, VmTsc};
//!
//! let mut host = HostTsc {
//!     khz: 2_500_000,
//!     format: RatioFormat::VMX,
//!     has_scaling: true,
//!     tolerance_ppm: 250,
//!     clock_mode: ClockMode::Tsc,
//!     unstable: false,
//! };
//! let now = HostInstant { ns: 1_000, tsc: 2_500, real_ns: 0 };
//! let mut vm = VmTsc::new(&host, &now);
//! let (mut first, _) = vm.create_vcpu(&mut host, &now, 0, 2_500_000, false);
//! let (mut second, _) = vm.create_vcpu(&mut host, &now, 1, 2_500_000, false);
//! // One offset for both: the second write matches the first, whenever it comes.
//! vm.set_offset(&mut first, &host, &now, 77);
//! let later = HostInstant { ns: 9_000_000_000, tsc: 22_500_000_000, real_ns: 0 };
//! assert!(vm.set_offset(&mut second, &host, &later, 77).matched);
//! assert!(vm.all_vcpus_matched());
//! ```

use super::pvclock::PvclockTime;
use super::scaling::{HostTsc, SetTscKhzError, TscRate};

/// One instant of the host; time stands still during an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HostInstant {
    /// Raw monotonic clock plus boot offset, in ns.
    pub ns: u64,
    /// The host's TSC.
    pub tsc: u64,
    /// The wall clock, in ns since the epoch.
    pub real_ns: u64,
}

/// A VM's counter state. Names are the kernel's (`struct kvm_arch`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VmTsc {
    /// vCPUs that exist.
    pub online_vcpus: u32,
    /// Of the last write: when.
    pub last_tsc_nsec: u64,
    /// … which value.
    pub last_tsc_write: u64,
    /// … by a vCPU of which frequency, in kHz.
    pub last_tsc_khz: u32,
    /// … which offset.
    pub last_tsc_offset: u64,
    /// The current generation.
    pub cur_tsc_generation: u64,
    /// Of the write that opened it: when.
    pub cur_tsc_nsec: u64,
    /// … which value.
    pub cur_tsc_write: u64,
    /// … which offset.
    pub cur_tsc_offset: u64,
    /// vCPUs that joined the generation, without the one that opened it.
    pub nr_vcpus_matched_tsc: u32,
    /// The VMM has set a TSC or an offset once; never cleared.
    pub user_set_tsc: bool,
    /// All vCPUs share one pair of host instants.
    pub use_master_clock: bool,
    /// That pair: the host's ns.
    pub master_kernel_ns: u64,
    /// That pair: the host's TSC.
    pub master_cycle_now: u64,
    /// Guest's kvmclock minus host's ns; wraps, read it as signed.
    pub kvmclock_offset: u64,
    /// How often that pair or the offset changed: each time every vCPU's page became old.
    pub(super) clock_changes: u64,
    /// A TSC was seen going backwards over a suspend.
    pub backwards_tsc_observed: bool,
    /// The boot vCPU uses the old kvmclock MSR.
    pub boot_vcpu_runs_old_kvmclock: bool,
}

/// A vCPU's counter state. Names are the kernel's (`struct kvm_vcpu_arch`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VcpuTsc {
    /// Frequency, ratio, catch-up.
    pub rate: TscRate,
    /// Guest's TSC minus the scaled host's.
    pub l1_tsc_offset: u64,
    /// The generation that it opened or joined last.
    pub this_tsc_generation: u64,
    /// That generation's start.
    pub this_tsc_nsec: u64,
    /// That generation's value.
    pub this_tsc_write: u64,
    /// What the guest is known to have read last.
    pub last_guest_tsc: u64,
    /// `IA32_TSC_ADJUST`; wraps, read it as signed.
    pub ia32_tsc_adjust: u64,
    /// The counter is pushed forward to where the elapsed time says it should be.
    pub tsc_catchup: bool,
    /// The host's TSC when the vCPU was put last; 0 if never.
    pub last_host_tsc: u64,
    /// The CPU it was loaded on last.
    pub cpu: Option<u32>,
    /// A refresh of the master clock is requested (`KVM_REQ_MASTERCLOCK_UPDATE`).
    pub masterclock_request: bool,
    /// Hardware protects its TSC from the host: offsets cannot be written.
    pub guest_tsc_protected: bool,
    /// What its kvmclock page was last made of.
    pub(super) page_khz: u64,
    pub(super) page: PvclockTime,
    /// Changes of the VM's clock that are in its page.
    pub(super) page_changes: u64,
}

impl VcpuTsc {
    /// A vCPU before its creation completes: all zero.
    #[must_use]
    pub fn zeroed(guest_tsc_protected: bool) -> Self {
        Self {
            rate: TscRate::default(),
            l1_tsc_offset: 0,
            this_tsc_generation: 0,
            this_tsc_nsec: 0,
            this_tsc_write: 0,
            last_guest_tsc: 0,
            ia32_tsc_adjust: 0,
            tsc_catchup: false,
            last_host_tsc: 0,
            cpu: None,
            masterclock_request: false,
            guest_tsc_protected,
            page_khz: 0,
            page: PvclockTime::default(),
            page_changes: 0,
        }
    }

    /// What the guest reads now (also what the VMM reads from the TSC MSR).
    #[must_use]
    pub fn read(&self, host: &HostTsc, now: &HostInstant) -> u64 {
        host.format
            .read_l1(self.rate.ratio, self.l1_tsc_offset, now.tsc)
    }

    fn scaled(&self, host: &HostTsc, now: &HostInstant) -> u64 {
        host.format.scale(now.tsc, self.rate.ratio)
    }

    fn write_offset(&mut self, offset: u64) {
        if !self.guest_tsc_protected {
            self.l1_tsc_offset = offset;
        }
    }

    pub(super) fn push_forward(&mut self, cycles: u64) {
        self.write_offset(self.l1_tsc_offset.wrapping_add(cycles));
    }

    /// The guest writes its TSC: offset and `IA32_TSC_ADJUST` move by the same amount, no
    /// generation is touched.
    pub fn guest_write(&mut self, host: &HostTsc, now: &HostInstant, value: u64) {
        if self.guest_tsc_protected {
            return;
        }
        let wanted = value.wrapping_sub(self.scaled(host, now));
        let cycles = wanted.wrapping_sub(self.l1_tsc_offset);
        self.push_forward(cycles);
        self.ia32_tsc_adjust = self.ia32_tsc_adjust.wrapping_add(cycles);
    }

    /// `IA32_TSC_ADJUST` is written: by the guest it moves the counter, by the VMM it does not.
    pub fn write_tsc_adjust(&mut self, by_host: bool, value: u64) {
        if !by_host {
            self.push_forward(value.wrapping_sub(self.ia32_tsc_adjust));
        }
        self.ia32_tsc_adjust = value;
    }

    /// `KVM_SET_TSC_KHZ` of this vCPU; 0 means the host's frequency.
    ///
    /// # Errors
    /// [`SetTscKhzError`]; where the ratio is refused, the frequency was set nevertheless.
    pub fn set_tsc_khz(&mut self, host: &HostTsc, user_khz: u32) -> Result<(), SetTscKhzError> {
        let max_guest_khz = host.max_guest_khz();
        if self.guest_tsc_protected {
            return Err(SetTscKhzError::Protected { user_khz });
        }
        if host.has_scaling && user_khz >= max_guest_khz {
            return Err(SetTscKhzError::AboveMaximum {
                user_khz,
                max_guest_khz,
            });
        }
        let khz = if user_khz == 0 { host.khz } else { user_khz };
        self.apply_khz(host, khz)
    }

    fn apply_khz(&mut self, host: &HostTsc, khz: u32) -> Result<(), SetTscKhzError> {
        let result = self.rate.set_khz(host, khz);
        self.tsc_catchup |= self.rate.catchup;
        result
    }

    /// The vCPU is loaded on `cpu` (`kvm_arch_vcpu_load`). A non-zero `suspend_adjust` is what
    /// the host's TSC lost over a suspend. May find the host's TSC unstable.
    pub fn load(&mut self, host: &mut HostTsc, now: &HostInstant, cpu: u32, suspend_adjust: u64) {
        if suspend_adjust != 0 {
            self.push_forward(host.format.scale(suspend_adjust, self.rate.ratio));
        }
        if self.cpu == Some(cpu) && !host.tsc_unstable() {
            return;
        }
        let elapsed = now.tsc.wrapping_sub(self.last_host_tsc) as i64;
        if self.last_host_tsc != 0 && elapsed < 0 {
            host.unstable = true;
        }
        if host.tsc_unstable() {
            let offset = self.last_guest_tsc.wrapping_sub(self.scaled(host, now));
            self.write_offset(offset);
            self.tsc_catchup |= !self.guest_tsc_protected;
        }
        self.cpu = Some(cpu);
    }

    /// The vCPU is put (`kvm_arch_vcpu_put`).
    pub fn put(&mut self, now: &HostInstant) {
        self.last_host_tsc = now.tsc;
    }
}

/// Whether a write opened a generation, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TscWrite {
    /// The write was taken for "the same as the others".
    pub matched: bool,
    /// The offset in effect (unchanged for a protected vCPU).
    pub offset: u64,
    /// The generation that the vCPU belongs to now.
    pub generation: u64,
}

impl VmTsc {
    /// A VM that is created now: its kvmclock starts at 0.
    #[must_use]
    pub fn new(host: &HostTsc, now: &HostInstant) -> Self {
        let mut vm = Self {
            online_vcpus: 0,
            last_tsc_nsec: 0,
            last_tsc_write: 0,
            last_tsc_khz: 0,
            last_tsc_offset: 0,
            cur_tsc_generation: 0,
            cur_tsc_nsec: 0,
            cur_tsc_write: 0,
            cur_tsc_offset: 0,
            nr_vcpus_matched_tsc: 0,
            user_set_tsc: false,
            use_master_clock: false,
            master_kernel_ns: 0,
            master_cycle_now: 0,
            kvmclock_offset: now.ns.wrapping_neg(),
            clock_changes: 0,
            backwards_tsc_observed: false,
            boot_vcpu_runs_old_kvmclock: false,
        };
        vm.refresh_master_clock(host, now);
        vm
    }

    /// Whether all vCPUs belong to the current generation. The one that opened it is not among
    /// the counted.
    #[must_use]
    pub fn all_vcpus_matched(&self) -> bool {
        self.nr_vcpus_matched_tsc.checked_add(1) == Some(self.online_vcpus)
    }

    /// Creates a vCPU on `cpu`, with a TSC that starts at 0 or joins the others.
    ///
    /// Returns it with what setting the default frequency gave, which creation ignores.
    pub fn create_vcpu(
        &mut self,
        host: &mut HostTsc,
        now: &HostInstant,
        cpu: u32,
        default_khz: u32,
        guest_tsc_protected: bool,
    ) -> (VcpuTsc, Result<(), SetTscKhzError>) {
        let mut vcpu = VcpuTsc::zeroed(guest_tsc_protected);
        vcpu.load(host, now, cpu, 0);
        let khz = vcpu.apply_khz(host, default_khz);
        vcpu.put(now);
        self.online_vcpus = self.online_vcpus.saturating_add(1);
        vcpu.load(host, now, cpu, 0);
        self.synchronize(&mut vcpu, host, now, None);
        vcpu.put(now);
        (vcpu, khz)
    }

    /// The VMM writes the TSC MSR.
    pub fn host_write(
        &mut self,
        vcpu: &mut VcpuTsc,
        host: &HostTsc,
        now: &HostInstant,
        value: u64,
    ) -> TscWrite {
        self.synchronize(vcpu, host, now, Some(value))
    }

    /// The VMM writes the offset attribute (`KVM_VCPU_TSC_OFFSET`).
    ///
    /// The comparison is with the *last* written offset. Writing one offset to all vCPUs in turn
    /// opens one generation that all join, however long it takes. It may be repeated.
    pub fn set_offset(
        &mut self,
        vcpu: &mut VcpuTsc,
        host: &HostTsc,
        now: &HostInstant,
        offset: u64,
    ) -> TscWrite {
        let khz = vcpu.rate.virtual_khz;
        let matched = khz != 0 && self.last_tsc_khz == khz && self.last_tsc_offset == offset;
        let value = vcpu.scaled(host, now).wrapping_add(offset);
        self.record(
            vcpu,
            host,
            now,
            Written {
                offset,
                value,
                matched,
                by_user: true,
            },
        )
    }

    fn synchronize(
        &mut self,
        vcpu: &mut VcpuTsc,
        host: &HostTsc,
        now: &HostInstant,
        user_value: Option<u64>,
    ) -> TscWrite {
        let mut value = user_value.unwrap_or(0);
        let scaled = vcpu.scaled(host, now);
        let mut offset = value.wrapping_sub(scaled);
        let elapsed_ns = now.ns.wrapping_sub(self.last_tsc_nsec);
        let matched = self.synchronizing(vcpu, value, elapsed_ns)
            && vcpu.rate.virtual_khz == self.last_tsc_khz;
        if matched {
            if host.tsc_unstable() {
                value = value.wrapping_add(vcpu.rate.ns_to_cycles.scale(elapsed_ns));
                offset = value.wrapping_sub(scaled);
            } else {
                offset = self.cur_tsc_offset;
            }
        }
        let by_user = user_value.is_some();
        self.record(
            vcpu,
            host,
            now,
            Written {
                offset,
                value,
                matched,
                by_user,
            },
        )
    }

    /// Whether `value` looks like an attempt to set this vCPU to what the others have.
    fn synchronizing(&self, vcpu: &VcpuTsc, value: u64, elapsed_ns: u64) -> bool {
        if vcpu.rate.virtual_khz == 0 {
            return false;
        }
        if value == 0 {
            return true;
        }
        // Before the VMM has set a TSC, a small value is a restored young guest, not a sibling.
        if !self.user_set_tsc {
            return false;
        }
        let elapsed = vcpu.rate.ns_to_cycles.scale(elapsed_ns);
        let expected = self.last_tsc_write.wrapping_add(elapsed);
        let second = u64::from(vcpu.rate.virtual_khz) * 1000;
        value < expected.wrapping_add(second) && value.wrapping_add(second) > expected
    }

    fn record(
        &mut self,
        vcpu: &mut VcpuTsc,
        host: &HostTsc,
        now: &HostInstant,
        written: Written,
    ) -> TscWrite {
        let Written {
            offset,
            value,
            matched,
            by_user,
        } = written;
        if !vcpu.guest_tsc_protected {
            self.user_set_tsc |= by_user;
            self.last_tsc_nsec = now.ns;
            self.last_tsc_write = value;
            self.last_tsc_khz = vcpu.rate.virtual_khz;
            self.last_tsc_offset = offset;
            vcpu.last_guest_tsc = value;
            vcpu.write_offset(offset);
            self.join(vcpu, now, written);
            let wish = self.all_vcpus_matched() && host.clock_is_tsc_based();
            if (self.use_master_clock && !matched) || self.use_master_clock != wish {
                vcpu.masterclock_request = true;
            }
        }
        TscWrite {
            matched,
            offset: vcpu.l1_tsc_offset,
            generation: vcpu.this_tsc_generation,
        }
    }

    fn join(&mut self, vcpu: &mut VcpuTsc, now: &HostInstant, written: Written) {
        if !written.matched {
            self.cur_tsc_generation = self.cur_tsc_generation.wrapping_add(1);
            self.cur_tsc_nsec = now.ns;
            self.cur_tsc_write = written.value;
            self.cur_tsc_offset = written.offset;
            self.nr_vcpus_matched_tsc = 0;
        } else if vcpu.this_tsc_generation != self.cur_tsc_generation {
            self.nr_vcpus_matched_tsc = self.nr_vcpus_matched_tsc.saturating_add(1);
        }
        vcpu.this_tsc_generation = self.cur_tsc_generation;
        vcpu.this_tsc_nsec = self.cur_tsc_nsec;
        vcpu.this_tsc_write = self.cur_tsc_write;
    }
}

/// One write, as the bookkeeping sees it.
#[derive(Clone, Copy)]
struct Written {
    offset: u64,
    value: u64,
    matched: bool,
    by_user: bool,
}
