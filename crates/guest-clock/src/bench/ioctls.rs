//! How long KVM takes to save and restore a guest's clocks, apart from this library's own work.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;
use stealtime_hypervisor::counter::kvm_clock::KvmClockData;

use crate::device::Vm;
use crate::drill::{Distribution, DrillError};
use crate::error::RestoreError;
use crate::guest::Guest;
use crate::observed::{Action, Observed, Observer};
use crate::policy::{Options, Policy};
use crate::save::{GuestClocks, of};

/// What one operation cost, over all repetitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Cost {
    /// ioctls of one operation.
    pub calls: u64,
    /// Least time in them, ns.
    pub ioctl_least_ns: u64,
    /// Median time in them, ns.
    pub ioctl_median_ns: u64,
    /// Median time from beginning to end, ns.
    pub whole_median_ns: u64,
}

/// What saving and restoring cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct IoctlTimes {
    /// vCPUs of the guest.
    pub vcpus: usize,
    /// How often each was done.
    pub repetitions: u32,
    /// [`GuestClocks::save`].
    pub save: Cost,
    /// [`Saved::restore`](crate::Saved::restore), planning included.
    pub restore: Cost,
}

impl fmt::Display for IoctlTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| format!("{}.{}", ns / 1000, ns % 1000 / 100);
        writeln!(
            f,
            "{:<28}{:>8}{:>14}{:>14}{:>14}",
            format!("{} vCPUs, {} times", self.vcpus, self.repetitions),
            "ioctls",
            "in them, us",
            "least",
            "altogether"
        )?;
        for (at, (name, cost)) in [("save", &self.save), ("restore", &self.restore)]
            .iter()
            .enumerate()
        {
            let end = if at == 0 { "\n" } else { "" };
            write!(
                f,
                "{name:<28}{:>8}{:>14}{:>14}{:>14}{end}",
                cost.calls,
                us(cost.ioctl_median_ns),
                us(cost.ioctl_least_ns),
                us(cost.whole_median_ns)
            )?;
        }
        Ok(())
    }
}

/// Time and number of calls so far.
#[derive(Debug, Default)]
struct Meter {
    ns: Cell<u64>,
    calls: Cell<u64>,
}

impl Observer for Meter {
    fn call<R>(&self, _: usize, _: Action<'_>, perform: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        let result = perform();
        self.ns.set(self.ns.get() + nanoseconds(begin.elapsed()));
        self.calls.set(self.calls.get() + 1);
        result
    }
}

impl Meter {
    fn take(&self) -> (u64, u64) {
        (self.calls.take(), self.ns.take())
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Default)]
struct Sum {
    calls: u64,
    ioctls: Vec<i64>,
    whole: Vec<i64>,
}

impl Sum {
    fn add(&mut self, meter: &Meter, whole: Duration) {
        let (calls, ns) = meter.take();
        self.calls = self.calls.max(calls);
        self.ioctls.push(ns.cast_signed());
        self.whole.push(nanoseconds(whole).cast_signed());
    }

    fn cost(&self) -> Cost {
        let ioctls = Distribution::of(&self.ioctls);
        Cost {
            calls: self.calls,
            ioctl_least_ns: ioctls.least.unsigned_abs(),
            ioctl_median_ns: ioctls.median_abs,
            whole_median_ns: Distribution::of(&self.whole).median_abs,
        }
    }
}

/// Saves a guest of this many vCPUs and restores it into another VM, so many times.
///
/// # Errors
/// [`DrillError`] where there is no guest to be had.
pub fn ioctls(vcpus: usize, repetitions: u32) -> Result<IoctlTimes, DrillError> {
    let mut source = Guest::new(vcpus)?;
    source.run(1)?;
    let target = Guest::new(vcpus)?;
    // The first call refreshes the master clock of a VM that has never run.
    Vm::set_clock(&target.vm, &KvmClockData::default()).map_err(of("KVM_SET_CLOCK", None))?;
    let (meter, options) = (Meter::default(), Options::new(Policy::ELAPSED));
    let source_vm = Observed::new(&source.vm, &meter);
    let source_vcpus = Observed::each(&source.vcpus, &meter);
    let target_vm = Observed::new(&target.vm, &meter);
    let target_vcpus = Observed::each(&target.vcpus, &meter);
    let (mut save, mut restore) = (Sum::default(), Sum::default());
    for _ in 0..repetitions.max(1) {
        let begin = Instant::now();
        let saved = GuestClocks::save(&source_vm, &source_vcpus)?;
        save.add(&meter, begin.elapsed());
        let begin = Instant::now();
        let plan = saved.plan(&target_vm, &target_vcpus, &options);
        let plan = plan.map_err(RestoreError::Refused)?;
        plan.carry_out(&target_vm, &target_vcpus)?;
        restore.add(&meter, begin.elapsed());
    }
    Ok(IoctlTimes {
        vcpus,
        repetitions: repetitions.max(1),
        save: save.cost(),
        restore: restore.cost(),
    })
}
