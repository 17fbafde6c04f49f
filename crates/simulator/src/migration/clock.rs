//! The clocks of a guest that will be migrated, and what it sees of them.

use stealtime_hypervisor::counter::arm64::Counter;
use stealtime_hypervisor::counter::scaling::{HostTsc, RatioFormat};
use stealtime_hypervisor::counter::tsc_sync::{HostInstant, VcpuTsc, VmTsc};

use super::arm64::Counters;
use crate::config::{ConfigError, HostClock, MigrationConfig};
use crate::scale::mul_div;

/// An arbitrary date: wall clocks do not start at 0.
const EPOCH_NS: u64 = 1_700_000_000_000_000_000;

/// What a guest saw of its clocks, and what the migration did to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOutcome {
    /// Readings.
    pub reads: u64,
    /// Of them: below one that another vCPU, or the same, had made before.
    pub steps_back: u64,
    /// The largest such step, in ns.
    pub largest_step_back_ns: u64,
    /// Largest difference between two vCPUs' counters at one instant after the restore, in ns.
    pub difference_ns: u64,
    /// The largest error of a vCPU's counter against that of a guest that was not moved, in ns;
    /// negative is behind.
    pub error_ns: i64,
    /// arm64: the same of the physical counter, which a VMM that knows values alone cannot carry over.
    pub physical_error_ns: i64,
    /// kvmclock pages that were brought up to date before a vCPU read its clocks
    /// (`KVM_REQ_CLOCK_UPDATE`).
    pub clock_updates: u64,
    /// What the method itself gives as the bound of that, in ns; 0 for none.
    pub bound_ns: u64,
    /// Time that the guest stood still, in ns.
    pub blackout_ns: u64,
    /// All vCPUs share one clock afterwards (`use_master_clock`).
    pub master_clock: bool,
}

/// The clocks of a guest.
#[derive(Debug)]
pub(crate) struct GuestClock {
    /// Where the guest is: on the source or on the destination.
    pub(super) host: HostTsc,
    pub(super) real: HostClock,
    pub(super) vm: VmTsc,
    pub(super) vcpus: Vec<VcpuTsc>,
    pub(super) khz: u32,
    /// Of an arm64 guest, which has neither TSC nor kvmclock.
    pub(super) arm64: Option<Counters>,
    /// The TSC that the guest would show now is this function of the first host's.
    first: HostClock,
    first_offset: u64,
    /// arm64: so is its physical counter.
    first_physical: u64,
    /// The highest reading so far, in cycles.
    highest: u64,
    pub(super) seen: ClockOutcome,
}

impl HostClock {
    /// This host at `now`.
    pub(super) fn instant(&self, now: u64) -> HostInstant {
        let ideal = u128::from(now) * u128::from(self.tsc_khz);
        let drift = ideal as i128 * i128::from(self.drift_ppb) / 1_000_000_000;
        let cycles = (ideal as i128 + drift) / 1_000_000;
        HostInstant {
            ns: now,
            tsc: self.tsc_at_start.wrapping_add(cycles as u64),
            real_ns: (EPOCH_NS + now).saturating_add_signed(self.realtime_skew_ns),
        }
    }
}

/// A VM that is created on the host `key` of the migration at `now`; `khz` is what its guest sees.
fn vm_on(
    key: &str,
    clock: &HostClock,
    now: u64,
    vcpus: u32,
    khz: u32,
) -> Result<(HostTsc, VmTsc, Vec<VcpuTsc>), ConfigError> {
    let mut host = HostTsc::new(clock.tsc_khz, RatioFormat::VMX);
    let instant = clock.instant(now);
    let mut vm = VmTsc::new(&host, &instant);
    let mut vcpus_made = Vec::new();
    for n in 0..vcpus {
        let (vcpu, rate) = vm.create_vcpu(&mut host, &instant, n, khz, false);
        rate.map_err(|error| ConfigError {
            key: format!("migration.{key}.tsc_khz"),
            problem: error.to_string(),
        })?;
        vcpus_made.push(vcpu);
    }
    Ok((host, vm, vcpus_made))
}

impl GuestClock {
    /// A guest that boots at 0 on the source.
    /// `physical_offset`: an arm64 machine, and what the VMM has set the physical counter back by.
    pub(crate) fn new(
        cfg: &MigrationConfig,
        vcpus: u32,
        physical_offset: Option<u64>,
    ) -> Result<Self, ConfigError> {
        let khz = cfg.source.tsc_khz;
        let (host, mut vm, vcpus) = vm_on("source", &cfg.source, 0, vcpus, khz)?;
        vm.refresh_master_clock(&host, &cfg.source.instant(0));
        let booted = cfg.source.instant(0).tsc;
        let arm64 = physical_offset.map(|offset| {
            let mut counters = Counters::created(vcpus.len(), booted);
            counters.write(0, Counter::Physical, offset);
            counters
        });
        let first_offset = match &arm64 {
            Some(_) => booted.wrapping_neg(),
            None => vcpus.first().map_or(0, |vcpu| vcpu.l1_tsc_offset),
        };
        Ok(Self {
            arm64,
            first_physical: physical_offset.unwrap_or(0).wrapping_neg(),
            host,
            real: cfg.source,
            vm,
            vcpus,
            khz,
            first: cfg.source,
            first_offset,
            highest: 0,
            seen: ClockOutcome::default(),
        })
    }

    /// A new VM with as many vCPUs on the destination, created at `now`.
    pub(super) fn created_on(&self, clock: &HostClock, now: u64) -> Result<Self, ConfigError> {
        let vcpus = self.vcpus.len() as u32;
        let (host, vm, vcpus) = vm_on("destination", clock, now, vcpus, self.khz)?;
        let created = |_| Counters::created(vcpus.len(), clock.instant(now).tsc);
        Ok(Self {
            arm64: self.arm64.as_ref().map(created),
            first_physical: self.first_physical,
            host,
            real: *clock,
            vm,
            vcpus,
            khz: self.khz,
            first: self.first,
            first_offset: self.first_offset,
            highest: self.highest,
            seen: self.seen,
        })
    }

    /// The wall clock of the guest's host steps.
    pub(crate) fn step_wall_clock(&mut self, ns: i64) {
        self.real.realtime_skew_ns += ns;
    }

    /// What the guest saw.
    pub(crate) fn seen(&self) -> ClockOutcome {
        self.seen
    }

    /// What a vCPU's TSC shows at `now`.
    pub(super) fn tsc(&self, vcpu: usize, now: u64) -> u64 {
        let instant = self.real.instant(now);
        if let Some(counters) = &self.arm64 {
            return counters.count(vcpu, Counter::Virtual, instant.tsc);
        }
        self.vcpus
            .get(vcpu)
            .map_or(0, |vcpu| vcpu.read(&self.host, &instant))
    }

    /// arm64: the offset of the physical counter, and the host's count at `now`.
    pub(crate) fn physical(&self, vcpu: usize, now: u64) -> Option<(u64, u64)> {
        let counters = self.arm64.as_ref()?;
        let offset = counters.offset(vcpu, Counter::Physical);
        Some((offset, self.real.instant(now).tsc))
    }

    /// A vCPU brings an old page up to date before it enters the guest.
    fn update_page(&mut self, vcpu: usize, now: u64) {
        let Some(vcpu) = self.vcpus.get_mut(vcpu) else {
            debug_assert!(false, "vCPU {vcpu} has no clock");
            return;
        };
        if self.arm64.is_some() || !self.vm.needs_clock_update(vcpu) {
            return;
        }
        let instant = self.real.instant(now);
        // A frequency without a scale was refused when the vCPU was made.
        let updated = self.vm.guest_time_update(vcpu, &self.host, &instant, false);
        self.seen.clock_updates += u64::from(updated.is_ok());
    }

    fn ns(&self, cycles: u64) -> u64 {
        mul_div(cycles, 1_000_000, u64::from(self.khz.max(1)))
    }

    fn signed_ns(&self, cycles: i64) -> i64 {
        let ns = i64::try_from(self.ns(cycles.unsigned_abs())).unwrap_or(i64::MAX);
        if cycles < 0 { -ns } else { ns }
    }

    /// A vCPU reads its clock: in ns.
    pub(crate) fn read(&mut self, vcpu: usize, now: u64) -> u64 {
        self.update_page(vcpu, now);
        let cycles = self.tsc(vcpu, now);
        self.seen.reads += 1;
        if cycles < self.highest {
            let back_ns = self.ns(self.highest - cycles);
            self.seen.steps_back += 1;
            self.seen.largest_step_back_ns = self.seen.largest_step_back_ns.max(back_ns);
        }
        self.highest = self.highest.max(cycles);
        self.ns(cycles)
    }

    /// After a restore: how far all vCPUs are off and from each other.
    pub(super) fn judge(&mut self, now: u64) {
        // Where the counter of a guest that had stayed would be.
        let ideal = self.first.instant(now).tsc.wrapping_add(self.first_offset);
        let errors: Vec<i64> = (0..self.vcpus.len())
            .map(|vcpu| self.tsc(vcpu, now).wrapping_sub(ideal) as i64)
            .collect();
        let (least, maximum) = (errors.iter().min().copied(), errors.iter().max().copied());
        if let (Some(least), Some(maximum)) = (least, maximum) {
            self.seen.difference_ns = self.ns(maximum.abs_diff(least));
            let worst = if maximum.unsigned_abs() > least.unsigned_abs() {
                maximum
            } else {
                least
            };
            self.seen.error_ns = self.signed_ns(worst);
        }
        if let Some((offset, count)) = self.physical(0, now) {
            let ideal = self
                .first
                .instant(now)
                .tsc
                .wrapping_add(self.first_physical);
            let error = count.wrapping_sub(offset).wrapping_sub(ideal) as i64;
            self.seen.physical_error_ns = self.signed_ns(error);
        }
        self.seen.master_clock = self.vm.use_master_clock;
    }
}
