//! What is chosen when a scheduler is made.

use super::cfs::Cfs;
use super::error::Error;
use super::features::{Feature, Features};
use super::weights::{NORMALIZED_BASE_SLICE_NS, base_slice_ns};
use crate::lag_credit::LagCredit;

/// How a request to reschedule is made (`preempt=` on the kernel's command line).
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
/// With S the shares, L the load of the group's queue here and T that on all CPUs, M the group's
/// runnable tasks on all CPUs (at least 1) and N the CPUs on which the group has a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CgroupMode {
    /// S, whatever is on other CPUs.
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

/// Where the part of a group's load comes from that is not on the CPU at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OtherLoad {
    /// Only what [`super::Fair::set_ext_load`] says.
    #[default]
    External,
    /// That, and the loads of the group's other queues as they are now. The kernel uses decaying
    /// averages; this is their limit for a steady load.
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
    /// Slice of a task without one of its own, in ns, [100 000, 1 000 000 000].
    pub base_slice_ns: u64,
    /// Protected time with RUN_TO_PARITY off, in ns, same range.
    pub normalized_base_slice_ns: u64,
    /// Time in ns that a waker has to have run before a synchronous wakeup preempts it, with
    /// NEXT_BUDDY on (`sysctl_sched_migration_cost`).
    pub migration_cost_ns: u64,
    /// How a group's load on other CPUs is found.
    pub other_load: OtherLoad,
    /// What a group's shares mean on one CPU.
    pub cgroup_mode: CgroupMode,
    /// A yield moves an eligible yielder to its deadline (Linux 6.19, commit 79104becf42b). Before,
    /// it only put the deadline off by a slice, and the yielder stayed eligible.
    pub yield_forfeits: bool,
    /// CFS, with these tunables, as before Linux 6.6; `None` for EEVDF. Of the features
    /// `WAKEUP_PREEMPTION` and `NEXT_BUDDY` act then; slices do not.
    pub cfs: Option<Cfs>,
    /// How directed yield credits lag, with `YIELD_TO_LAG_CREDIT` on.
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
