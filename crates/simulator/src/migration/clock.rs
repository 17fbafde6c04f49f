//! The clocks of a guest that will be migrated, and what it sees of them.

use stealtime_hypervisor::counter::scaling::{HostTsc, RatioFormat};
use stealtime_hypervisor::counter::tsc_sync::{HostInstant, VcpuTsc, VmTsc};

use crate::config::{ConfigError, HostClock, MigrationConfig};
use crate::ids::VcpuNr;
use crate::machine::Machine;
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
    /// How far the vCPU that is most off is from where its counter would be had the guest not
    /// been moved, in ns; negative is behind.
    pub error_ns: i64,
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
    /// The TSC that the guest would show now is this function of the first host's.
    first: HostClock,
    first_offset: u64,
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
    let mut all = Vec::new();
    for n in 0..vcpus {
        let (vcpu, rate) = vm.create_vcpu(&mut host, &instant, n, khz, false);
        rate.map_err(|error| ConfigError {
            key: format!("migration.{key}.tsc_khz"),
            problem: error.to_string(),
        })?;
        all.push(vcpu);
    }
    Ok((host, vm, all))
}

impl GuestClock {
    /// A guest that boots at 0 on the source.
    pub(crate) fn new(cfg: &MigrationConfig, vcpus: u32) -> Result<Self, ConfigError> {
        let khz = cfg.source.tsc_khz;
        let (host, mut vm, vcpus) = vm_on("source", &cfg.source, 0, vcpus, khz)?;
        vm.refresh_master_clock(&host, &cfg.source.instant(0));
        let first_offset = vcpus.first().map_or(0, |vcpu| vcpu.l1_tsc_offset);
        Ok(Self {
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
        Ok(Self {
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

    /// What the guest saw.
    pub(crate) fn seen(&self) -> ClockOutcome {
        self.seen
    }

    /// What a vCPU's TSC shows at `now`.
    pub(super) fn tsc(&self, vcpu: usize, now: u64) -> u64 {
        let instant = self.real.instant(now);
        self.vcpus
            .get(vcpu)
            .map_or(0, |vcpu| vcpu.read(&self.host, &instant))
    }

    fn ns(&self, cycles: u64) -> u64 {
        mul_div(cycles, 1_000_000, u64::from(self.khz.max(1)))
    }

    /// A vCPU reads its clock: in ns.
    pub(crate) fn read(&mut self, vcpu: usize, now: u64) -> u64 {
        let cycles = self.tsc(vcpu, now);
        self.seen.reads += 1;
        if cycles < self.highest {
            let back = self.ns(self.highest - cycles);
            self.seen.steps_back += 1;
            self.seen.largest_step_back_ns = self.seen.largest_step_back_ns.max(back);
        }
        self.highest = self.highest.max(cycles);
        self.ns(cycles)
    }

    /// After a restore: how far all vCPUs are off and from each other.
    pub(super) fn judge(&mut self, now: u64) {
        // Where the counter of a guest that had stayed would be.
        let ideal = self.first.instant(now).tsc.wrapping_add(self.first_offset);
        let all: Vec<i64> = (0..self.vcpus.len())
            .map(|vcpu| self.tsc(vcpu, now).wrapping_sub(ideal) as i64)
            .collect();
        let (least, most) = (all.iter().min().copied(), all.iter().max().copied());
        if let (Some(least), Some(most)) = (least, most) {
            self.seen.difference_ns = self.ns(most.abs_diff(least));
            let worst = if most.unsigned_abs() > least.unsigned_abs() {
                most
            } else {
                least
            };
            let ns = self.ns(worst.unsigned_abs()) as i64;
            self.seen.error_ns = if worst < 0 { -ns } else { ns };
        }
        self.seen.master_clock = self.vm.use_master_clock;
    }
}

impl Machine<'_> {
    /// A guest's thread reads the clock on this vCPU: in ns.
    pub(crate) fn read_guest_clock(&mut self, vcpu: VcpuNr) -> u64 {
        let v = &self.vcpus[vcpu];
        let (now, index) = (self.now, v.index as usize);
        match &mut self.vms[v.vm].clock {
            Some(clock) => clock.read(index, now),
            None => now,
        }
    }
}
