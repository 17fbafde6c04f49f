//! Drills: a small guest is saved and restored into new VMs many times, while the VMM's threads are kept
//! from running. One half is restored by value, as by most VMMs, the other by offset, as by this
//! library. The guest looks for steps back; KVM's own instants show the errors of its clocks.

mod late;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod rehearsal;
pub(crate) mod stage;
mod stats;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Instant;

use serde::Serialize;
use stealtime_hypervisor::counter::kvm_clock::{
    KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KvmClockData,
};

use crate::device::{MSR_IA32_TSC, TscMeans, Vcpu, Vm};
use crate::error::{Errno, IoctlError, RestoreError, SaveError};
use crate::explanation::Explanation;
use crate::fake::chance_of;
use crate::plan::Anchor;
use crate::policy::{Options, Policy};
use crate::save::{GuestClocks, cycles_to_ns, of, signed_ns};
use crate::saved::{Saved, State, X86State};
use late::LateVcpu;
use stage::{FakeStage, Stage, Watched, fake_host};

pub use stats::Distribution;

/// How a drill restores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Method {
    /// As most VMMs do: kvmclock and TSCs are computed, and written some time later.
    Value,
    /// As this library does.
    Offset,
}

/// Where drills take place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// `/dev/kvm`.
    Kvm,
    /// No device: the same arithmetic and bookkeeping on a host with time that passes by call.
    Fake,
}

/// What to drill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drill {
    /// Where.
    pub device: Device,
    /// Least vCPUs of a guest.
    pub least_vcpus: usize,
    /// Most vCPUs of a guest; drills go round from the least to the most.
    pub most_vcpus: usize,
    /// How often, by each method.
    pub times: u32,
    /// How often each vCPU reads both clocks before and after.
    pub rounds: u32,
    /// Threads that spin meanwhile, to take the CPU from the VMM's.
    pub load: usize,
    /// The VMM's thread loses up to this many ns before it writes, at random.
    pub most_delay_ns: u64,
    /// It loses this many ns before each vCPU's write but the first, by either method. `None`: by
    /// value at random, up to an eighth of `most_delay_ns`. From a second on KVM no longer takes a
    /// value for that of the vCPU before.
    pub between_ns: Option<u64>,
    /// Of chance.
    pub seed: u64,
}

impl Default for Drill {
    fn default() -> Self {
        Self {
            device: Device::Kvm,
            least_vcpus: 2,
            most_vcpus: 8,
            times: 200,
            rounds: 20,
            load: 2,
            most_delay_ns: 1_000_000,
            between_ns: None,
            seed: 1,
        }
    }
}

/// A drill could not be carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrillError {
    /// A guest of our own.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[error(transparent)]
    Guest(#[from] crate::guest::GuestError),
    /// Saving.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// Restoring.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// An ioctl.
    #[error("drill: {0}")]
    Ioctl(#[from] IoctlError),
    /// The host without a device.
    #[error("drill without a device: {0}")]
    Fake(Errno),
    /// Errors cannot be measured here.
    #[error(
        "KVM_GET_CLOCK gives no instant (flags {flags:#x}): the master clock is off, use the tsc \
         clocksource on the host"
    )]
    NoInstant {
        /// What it gave.
        flags: u32,
    },
    /// No vCPUs, no times, or the wrong way round.
    #[error("{least} to {most} vCPUs, {times} times: give at least 1 of each, least before most")]
    Nothing {
        /// Least vCPUs.
        least: usize,
        /// Most vCPUs.
        most: usize,
        /// Times.
        times: u32,
    },
    /// A thread that takes the CPU from the VMM's was not started.
    #[error("no thread for the load: {0}; raise the limit of threads (pids), or give less load")]
    NoThread(Errno),
    /// No device on this platform.
    #[error("no /dev/kvm for x86-64 guests on this platform: drill without a device")]
    Platform,
}

/// One method's outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MethodReport {
    /// Which.
    pub method: Method,
    /// kvmclock minus the ideal, ns, right after each restore.
    pub kvmclock: Distribution,
    /// The TSC of the vCPU furthest off, minus the ideal, ns.
    pub tsc: Distribution,
    /// Difference between the vCPUs' TSCs, ns.
    pub between_vcpus: Distribution,
    /// Largest step back of the TSC that any guest saw, in cycles.
    pub guest_tsc_back: u64,
    /// Largest step back of the kvmclock that any guest saw, in ns.
    pub guest_clock_back_ns: u64,
    /// Readings that guests made of both clocks.
    pub guest_readings: u64,
    /// … of which the kvmclock was not marked stable: the master clock was off.
    pub guest_unstable: u64,
    /// Restores that were off by more than was stated, and than the wall clock was steered since; there is no
    /// statement by value.
    pub beyond_bound: u64,
    /// The largest bound that was stated, ns.
    pub largest_bound_ns: u64,
    /// Time that saving took, ns.
    pub save: Distribution,
    /// Time that restoring took, ns; by value with the time that was lost.
    pub restore: Distribution,
}

/// What all drills came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DrillReport {
    /// Where.
    pub device: Device,
    /// What moves TSCs there.
    pub tsc_moves_by: &'static str,
    /// Of the host's TSC.
    pub tsc_khz: u32,
    /// How often, by each method, it was to be.
    pub times: u32,
    /// How often it was: less than `times` if the drill was stopped.
    pub done: u32,
    /// Of chance.
    pub seed: u64,
    /// By value, then by offset.
    pub methods: Vec<MethodReport>,
}

impl DrillReport {
    /// Whether the drill was stopped before its end.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        self.done < self.times
    }

    /// Whether restores by offset kept every promise: no step back, equal vCPUs, within bounds.
    #[must_use]
    pub fn promises_kept(&self) -> bool {
        let by_offset = self.methods.iter().find(|m| m.method == Method::Offset);
        by_offset.is_some_and(|m| {
            m.guest_tsc_back == 0
                && m.guest_clock_back_ns == 0
                && m.between_vcpus.max_abs == 0
                && m.beyond_bound == 0
        })
    }
}

impl Drill {
    /// Carries the drills out. `progress` gets how many are done, of how many, before each; where
    /// it breaks, the report is of those that were done.
    ///
    /// # Errors
    /// [`DrillError`]; what was lost by value is no error.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<DrillReport, DrillError> {
        if self.least_vcpus == 0 || self.least_vcpus > self.most_vcpus || self.times == 0 {
            return Err(DrillError::Nothing {
                least: self.least_vcpus,
                most: self.most_vcpus,
                times: self.times,
            });
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let spin = || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            let started = (0..self.load).try_for_each(|_| {
                Builder::new().spawn_scoped(scope, spin)?;
                Ok(())
            });
            let errno = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN));
            let started = started.map_err(|error| DrillError::NoThread(errno(error)));
            let report = started.and_then(|()| self.both_methods(progress));
            stop.store(true, Ordering::Relaxed);
            report
        })
    }

    fn both_methods(&self, progress: &mut Progress<'_>) -> Result<DrillReport, DrillError> {
        let host = fake_host(TscMeans::Offsets, self.seed);
        match self.device {
            Device::Fake => self.on(progress, |vcpus| Ok(FakeStage::new(&host, vcpus))),
            #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
            Device::Kvm => self.on(progress, |vcpus| Ok(crate::guest::Guest::new(vcpus)?)),
            #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
            Device::Kvm => Err(DrillError::Platform),
        }
    }

    fn on<S: Stage>(
        &self,
        progress: &mut Progress<'_>,
        create: impl Fn(usize) -> Result<S, DrillError>,
    ) -> Result<DrillReport, DrillError> {
        let probe = create(1)?;
        let facts = probe.vm().host().map_err(SaveError::Host)?;
        let khz = facts.tsc_khz;
        let mut tallies = [Method::Value, Method::Offset].map(|method| Tally::new(method, khz));
        let mut chance = Chance(chance_of(self.seed));
        let sizes = self.least_vcpus..=self.most_vcpus;
        let mut completed = 0;
        for vcpus in sizes.cycle().take(self.times as usize) {
            if progress(completed, self.times).is_break() {
                break;
            }
            for tally in &mut tallies {
                let guest = create(vcpus)?;
                self.once(guest, tally, &mut chance)?;
            }
            completed += 1;
        }
        Ok(DrillReport {
            device: self.device,
            tsc_moves_by: match facts.means {
                TscMeans::Offsets => "offsets",
                TscMeans::Values => "values",
                TscMeans::Fixed => "nothing",
            },
            tsc_khz: facts.tsc_khz,
            times: self.times,
            done: completed,
            seed: self.seed,
            methods: tallies.into_iter().map(Tally::report).collect(),
        })
    }

    /// One guest: runs, is saved, restored into a new VM, measured, and runs again.
    fn once<S: Stage>(
        &self,
        mut guest: S,
        tally: &mut Tally,
        chance: &mut Chance,
    ) -> Result<(), DrillError> {
        guest.run(self.rounds)?;
        let begin = Instant::now();
        let saved = GuestClocks::save(guest.vm(), guest.vcpus())?;
        tally.save.push(elapsed_ns(begin));
        let State::X86(x86) = saved.state() else {
            return Err(DrillError::Platform);
        };
        let mut next = guest.next()?;
        // Memory is the new VM's now.
        drop(guest);
        next.lose_time(chance.below(self.most_delay_ns));
        let begin = Instant::now();
        let stated = match tally.method {
            Method::Value => {
                self.by_value(&next, x86, chance)?;
                None
            }
            Method::Offset => Some(self.by_offset(&next, &saved, chance)?),
        };
        tally.restore.push(elapsed_ns(begin));
        tally.measure(next.vm(), next.vcpus(), x86, stated.as_ref())?;
        next.run(self.rounds)?;
        tally.watched(&next.watched());
        Ok(())
    }

    /// The plan is made, time is lost, and it is carried out; in one of four cases twice.
    fn by_offset<S: Stage>(
        &self,
        guest: &S,
        saved: &Saved,
        chance: &mut Chance,
    ) -> Result<Stated, DrillError> {
        let options = Options::new(Policy::ELAPSED);
        let plan = saved.plan(guest.vm(), guest.vcpus(), &options);
        let plan = plan.map_err(RestoreError::Refused)?;
        if chance.below(4) == 0 {
            plan.carry_out(guest.vm(), guest.vcpus())?;
        }
        guest.lose_time(chance.below(self.most_delay_ns));
        let vcpus = LateVcpu::all(guest, self.between_ns.unwrap_or(0));
        Ok(Stated {
            explanation: plan.carry_out(guest.vm(), &vcpus)?,
            anchor: plan.anchor(),
        })
    }

    /// As VMMs without offsets do it: values computed once, each written when its turn comes.
    fn by_value<S: Stage>(
        &self,
        guest: &S,
        saved: &X86State,
        chance: &mut Chance,
    ) -> Result<(), DrillError> {
        let now = guest.vm().bracket();
        let elapsed = now.realtime_ns.saturating_sub(saved.instant.realtime_ns);
        let data = KvmClockData {
            clock_ns: saved.instant.clock_ns.saturating_add(elapsed),
            ..KvmClockData::default()
        };
        let cycles = u128::from(elapsed) * u128::from(saved.tsc_khz) / 1_000_000;
        let scaled = saved.scaled(saved.instant.host_tsc);
        guest.lose_time(chance.below(self.most_delay_ns));
        for (index, (vcpu, state)) in guest.vcpus().iter().zip(&saved.vcpus).enumerate() {
            if index > 0 {
                guest.lose_time(self.between_ns.unwrap_or(0));
            }
            let value = state.tsc_offset.wrapping_add(scaled);
            let value = value.wrapping_add(cycles as u64);
            let set = vcpu.set_msr(MSR_IA32_TSC, value);
            set.map_err(of("KVM_SET_MSRS(IA32_TSC)", Some(index)))?;
            let random_ns = chance.below(self.most_delay_ns / 8);
            if self.between_ns.is_none() {
                guest.lose_time(random_ns);
            }
        }
        let set = guest.vm().set_clock(&data);
        Ok(set.map_err(of("KVM_SET_CLOCK", None))?)
    }
}

/// Before each drill: how many are done, of how many. Whether to go on.
pub type Progress<'a> = dyn FnMut(u32, u32) -> ControlFlow<()> + 'a;

fn elapsed_ns(start: Instant) -> i64 {
    i64::try_from(start.elapsed().as_nanos()).unwrap_or(i64::MAX)
}

struct Chance(u64);

impl Chance {
    /// xorshift64.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % limit.max(1)
    }
}

/// What a restore by offset says of its errors, and since when it holds.
struct Stated {
    explanation: Explanation,
    anchor: Anchor,
}

impl Stated {
    /// How far the wall clock was steered away from the TSC since the anchor, in ns. No restore can know it.
    fn steered_ns(&self, realtime_ns: u64, host_tsc: u64, host_khz: u32) -> u64 {
        let cycles = host_tsc.wrapping_sub(self.anchor.host_tsc);
        let real_ns = realtime_ns.saturating_sub(self.anchor.realtime_ns);
        real_ns.abs_diff(cycles_to_ns(cycles, host_khz))
    }
}

struct Tally {
    method: Method,
    /// Of the host's TSC.
    host_khz: u32,
    clock: Vec<i64>,
    tsc: Vec<i64>,
    between: Vec<i64>,
    save: Vec<i64>,
    restore: Vec<i64>,
    observed: Watched,
    beyond_bound: u64,
    largest_bound_ns: u64,
}

impl Tally {
    fn new(method: Method, host_khz: u32) -> Self {
        Self {
            method,
            host_khz,
            clock: Vec::new(),
            tsc: Vec::new(),
            between: Vec::new(),
            save: Vec::new(),
            restore: Vec::new(),
            observed: Watched::default(),
            beyond_bound: 0,
            largest_bound_ns: 0,
        }
    }

    /// How far off the clocks are, by KVM's own instants on both sides.
    fn measure<V: Vm, C: Vcpu>(
        &mut self,
        vm: &V,
        vcpus: &[C],
        saved: &X86State,
        stated: Option<&Stated>,
    ) -> Result<(), DrillError> {
        let mut now = vm.get_clock().map_err(of("KVM_GET_CLOCK", None))?;
        let needed = KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC;
        if now.flags & needed != needed {
            // By value the vCPUs may have come apart: the host's instants are still there.
            let instant = vm.host_instant();
            let (real, tsc) = instant.ok_or(DrillError::NoInstant { flags: now.flags })?;
            (now.realtime_ns, now.host_tsc) = (real, tsc);
        }
        let elapsed = i128::from(now.realtime_ns) - i128::from(saved.instant.realtime_ns);
        let ideal = i128::from(saved.instant.clock_ns) + elapsed;
        let clock = small(i128::from(now.clock_ns) - ideal);
        // Floored, as guests' cycles are.
        let cycles = (elapsed * i128::from(saved.tsc_khz)).div_euclid(1_000_000);
        let (scaled_at_save, scaled_now) = (
            saved.scaled(saved.instant.host_tsc),
            saved.scaled(now.host_tsc),
        );
        let (mut worst, mut lowest, mut highest) = (0i64, i64::MAX, i64::MIN);
        for (index, (vcpu, state)) in vcpus.iter().zip(&saved.vcpus).enumerate() {
            let offset = vcpu.tsc_offset();
            let offset = offset.map_err(of("KVM_GET_DEVICE_ATTR", Some(index)))?;
            let ideal = state
                .tsc_offset
                .wrapping_add(scaled_at_save)
                .wrapping_add(cycles as u64);
            let error = offset.wrapping_add(scaled_now).wrapping_sub(ideal) as i64;
            (lowest, highest) = (lowest.min(error), highest.max(error));
            if error.unsigned_abs() >= worst.unsigned_abs() {
                worst = error;
            }
        }
        let tsc_error_ns = signed_ns(worst, saved.tsc_khz);
        self.clock.push(clock);
        self.tsc.push(tsc_error_ns);
        self.between
            .push(signed_ns(highest.saturating_sub(lowest), saved.tsc_khz));
        if let Some(stated) = stated {
            let e = &stated.explanation;
            let real_ns = e.kvmclock_against_real_ns;
            let tsc_ns = e.tsc_against_kvmclock_ns.saturating_add(real_ns);
            self.largest_bound_ns = self.largest_bound_ns.max(tsc_ns);
            let steered_ns = stated.steered_ns(now.realtime_ns, now.host_tsc, self.host_khz);
            let beyond = clock.unsigned_abs() > real_ns.saturating_add(steered_ns)
                || tsc_error_ns.unsigned_abs() > tsc_ns.saturating_add(steered_ns);
            self.beyond_bound += u64::from(beyond);
        }
        Ok(())
    }

    fn watched(&mut self, watched: &Watched) {
        let sums = &mut self.observed;
        sums.rounds += watched.rounds;
        sums.unstable += watched.unstable;
        sums.tsc_back = sums.tsc_back.max(watched.tsc_back);
        sums.clock_back_ns = sums.clock_back_ns.max(watched.clock_back_ns);
    }

    fn report(self) -> MethodReport {
        MethodReport {
            method: self.method,
            kvmclock: Distribution::of(&self.clock),
            tsc: Distribution::of(&self.tsc),
            between_vcpus: Distribution::of(&self.between),
            guest_tsc_back: self.observed.tsc_back,
            guest_clock_back_ns: self.observed.clock_back_ns,
            guest_readings: self.observed.rounds,
            guest_unstable: self.observed.unstable,
            beyond_bound: self.beyond_bound,
            largest_bound_ns: self.largest_bound_ns,
            save: Distribution::of(&self.save),
            restore: Distribution::of(&self.restore),
        }
    }
}

fn small(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(mut drill: Drill) -> DrillReport {
        drill.device = Device::Fake;
        (drill.times, drill.load) = (20, 0);
        let report = drill.run(&mut |_, _| ControlFlow::Continue(()));
        report.expect("no device is needed")
    }

    #[test]
    fn each_seed_has_delays_of_its_own() {
        let mut clocks = std::collections::BTreeSet::new();
        for seed in 0..6 {
            let report = report(Drill {
                seed,
                ..Drill::default()
            });
            clocks.insert(report.methods[0].kvmclock.mean);
        }
        assert_eq!(clocks.len(), 6, "{clocks:?}");
    }

    /// One vCPU has no other to wait for.
    #[test]
    fn a_delay_between_vcpus_is_none_after_the_last() {
        for vcpus in 1..=3 {
            let report = report(Drill {
                least_vcpus: vcpus,
                most_vcpus: vcpus,
                most_delay_ns: 0,
                between_ns: Some(10_000_000),
                ..Drill::default()
            });
            let late = report.methods[0].kvmclock.median_abs;
            let delays = late / 10_000_000;
            assert_eq!(delays, vcpus as u64 - 1, "{vcpus} vCPUs: {late} ns");
        }
    }

    #[test]
    fn a_wall_clock_that_is_steered_meanwhile_breaks_no_bound() {
        let drill = Drill::default();
        for ppb in [-500_000, 500_000] {
            let host = fake_host(TscMeans::Offsets, drill.seed);
            host.slew_wall_clock(ppb);
            let stage = |vcpus| Ok(FakeStage::new(&host, vcpus));
            let report = drill.on(&mut |_, _| ControlFlow::Continue(()), stage);
            assert_eq!(report.unwrap().methods[1].beyond_bound, 0, "{ppb}");
        }
    }
}
