//! The configuration of a scheduler.

use super::cfs::Cfs;
use super::error::Error;
use super::features::{Feature, Features};
use super::weights::{NORMALIZED_BASE_SLICE_NS, base_slice_ns};
use crate::lag_credit::LagCredit;

/// Preemption model (`preempt=` on the kernel's command line).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Preempt {
    /// Requests from the fair class wait for the tick or the return to user space.
    #[default]
    Lazy,
    /// All requests are immediate.
    Full,
}

/// How a run queue picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PickMode {
    /// Level by level from the root (Linux 7.2).
    #[default]
    Hierarchical,
    /// One queue of tasks, groups count by weight only (merged for Linux 7.3).
    Flat,
}

/// What a group's shares mean on one CPU (`cgroup_mode` of 7.3's debugfs).
///
/// S is the group's shares. L is the load of its queue on this CPU, and T that on all CPUs. M is
/// its runnable tasks on all CPUs, at least 1, and N the CPUs on which it has a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CgroupMode {
    /// S, regardless of other CPUs.
    Up,
    /// `S * L / T`, at most S: the rule of 7.2.
    #[default]
    Smp,
    /// `n * S * L / T` with n the lesser of M and N: S on each active CPU. The default of 7.3.
    Concur,
    /// `N * S * L / T`, at most the weight of nice -20.
    Max,
    /// `M * S * L / T`: S for each task on average.
    Tasks,
}

impl CgroupMode {
    /// All modes, in the kernel's order.
    pub const ALL: [Self; 5] = [Self::Up, Self::Smp, Self::Concur, Self::Max, Self::Tasks];

    /// The name that is written to the kernel's file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Smp => "smp",
            Self::Concur => "concur",
            Self::Max => "max",
            Self::Tasks => "tasks",
        }
    }
}

/// Source of a group's load on other CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OtherLoad {
    /// [`super::Fair::set_ext_load`] only.
    #[default]
    External,
    /// [`super::Fair::set_ext_load`], and the current loads of the group's other queues. The kernel
    /// uses decaying averages, which approach these under a steady load.
    Instantaneous,
}

/// Constants and switches of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Features that are on.
    pub features: Features,
    /// Preemption model.
    pub preempt: Preempt,
    /// Length of a tick in ns, [100 000, 100 000 000]: 10^9 / HZ.
    pub tick_ns: u64,
    /// Slice of a task that requests none, in ns, [100 000, 1 000 000 000].
    pub base_slice_ns: u64,
    /// Protected slice with RUN_TO_PARITY off, in ns, same range.
    pub normalized_base_slice_ns: u64,
    /// Run time in ns of a waker from which a synchronous wakeup preempts it, with NEXT_BUDDY on
    /// (`sysctl_sched_migration_cost`).
    pub migration_cost_ns: u64,
    /// Source of a group's load on other CPUs.
    pub other_load: OtherLoad,
    /// Meaning of a group's shares on one CPU.
    pub cgroup_mode: CgroupMode,
    /// A yield moves an eligible yielder to its deadline (from Linux 6.19 on, commit 79104becf42b).
    /// Up to 6.18 it moves the deadline by a slice, and the yielder stays eligible.
    pub yield_forfeits: bool,
    /// CFS with these tunables, as up to Linux 6.5; `None` for EEVDF. CFS has the features
    /// `WAKEUP_PREEMPTION` and `NEXT_BUDDY`, and no slices.
    pub cfs: Option<Cfs>,
    /// The lag credit of directed yields, with `YIELD_TO_LAG_CREDIT` on.
    pub lag_credit: LagCredit,
}

impl Config {
    /// Linux 7.2 on x86-64 with HZ=250 (the default of Kconfig and of Debian) and `cpus` CPUs.
    pub fn linux_7_2(cpus: u32) -> Self {
        Self {
            features: Features::LINUX_7_2,
            preempt: Preempt::Lazy,
            tick_ns: 4_000_000,
            base_slice_ns: base_slice_ns(cpus),
            normalized_base_slice_ns: NORMALIZED_BASE_SLICE_NS,
            migration_cost_ns: 500_000,
            other_load: OtherLoad::External,
            cgroup_mode: CgroupMode::Smp,
            yield_forfeits: true,
            cfs: None,
            lag_credit: LagCredit::SERIES_V3,
        }
    }

    /// # Errors
    ///
    /// [`Error::BadConfig`] names the first field out of range; [`Error::NotWithCfs`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        let bounded = |field, value, min, max| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(Error::BadConfig {
                    field,
                    value,
                    min,
                    max,
                })
            }
        };
        bounded("tick_ns", self.tick_ns, 100_000, 100_000_000)?;
        bounded("base_slice_ns", self.base_slice_ns, 100_000, 1_000_000_000)?;
        let normalized = self.normalized_base_slice_ns;
        bounded(
            "normalized_base_slice_ns",
            normalized,
            100_000,
            1_000_000_000,
        )?;
        if let Some(cfs) = self.cfs {
            bounded("latency_ns", cfs.latency_ns, 100_000, 1_000_000_000)?;
            let least = cfs.min_granularity_ns;
            bounded("min_granularity_ns", least, 100_000, 1_000_000_000)?;
            let wakeup = cfs.wakeup_granularity_ns;
            bounded("wakeup_granularity_ns", wakeup, 0, 1_000_000_000)?;
            if self.features.has(Feature::YieldToLagCredit) {
                return Err(Error::NotWithCfs(Feature::YieldToLagCredit.name()));
            }
        }
        self.lag_credit.check()
    }
}
