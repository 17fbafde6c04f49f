//! The fair class of Linux 7.2, exact to the bit, as a data structure.
//!
//! [`Fair`] holds the run queues of a host: tasks, groups with an entity on each CPU, and one
//! queue per group and CPU. It has no clock and wakes no task. The caller passes the time, and an
//! operation returns what a kernel acts on. Each operation names its kernel function. Arithmetic,
//! order of operations and oddities are the kernel's, as recorded vectors check.
//!
//! A run queue picks in one of two modes ([`PickMode`]). Hierarchical, as in 7.2, goes level by
//! level. Flat has all tasks in one queue, and groups for weight only. With [`Config::cfs`] the
//! class is CFS, as in 6.1.
//!
//! [`Fair`] looks up ids, checks arguments and returns actions. Below it, each part keeps one
//! invariant in private fields:
//!
//! | part | kernel | invariant |
//! |---|---|---|
//! | `CfsRq` | `struct cfs_rq` | sums and counters agree with the timeline |
//! | `SchedEntity` | `struct sched_entity` | virtual times change together |
//! | `Hierarchy` | `for_each_sched_entity` | an entity is linked where its queue counts it |
//! | `TaskGroups` | `struct task_group` | totals over all CPUs, the tree of groups |
//! | `Rq` | `struct rq` | the clock never goes back; a request never falls |
//! | `Sched` | `fair_sched_class` | walks up the chain of entities, over all parts |
//! | `Eevdf`, `CfsClass` | `fair.c` of 7.2, of 6.1 | none: the rules of each class |
//!
//! Only `new`, `create_*`, `extend_group` and `set_ext_load` allocate, except after
//! [`Fair::set_lean`].
//!
//! # Example
//!
//! ```
//! use stealtime_hypervisor::fair::{Attr, Config, Fair, PickMode};
//!
//! let mut fair = Fair::new(Config::linux_7_2(16))?;
//! let cpu = fair.create_rq(PickMode::Hierarchical)?;
//! let task = fair.create_task(Attr::default(), None)?;
//! let actions = fair.fork(task, cpu, 1_000)?;
//! assert_eq!(actions.resched, stealtime_hypervisor::fair::Resched::Now);
//! assert_eq!(fair.pick(cpu, 1_000)?.task, Some(task));
//! # Ok::<(), stealtime_hypervisor::fair::Error>(())
//! ```

mod cfs;
mod cfs_rq;
mod change;
mod compact;
mod config;
mod digest;
mod eevdf;
mod error;
mod features;
mod flat_levels;
mod group_cpus;
mod group_entities;
mod hierarchy;
mod ids;
mod node;
mod rq;
mod sched;
mod sched_entity;
mod task;
mod task_groups;
pub mod timeline;
mod view;
pub mod weights;
mod yield_to;

pub use cfs::Cfs;
pub use config::{CgroupMode, Config, OtherLoad, PickMode, Preempt};
pub use error::Error;
pub use features::{Feature, Features, UnknownFeature};
pub use ids::{GroupId, RqId, TaskId};
pub use rq::Resched;
pub use sched_entity::{Attr, EntityView, Policy, TaskState, TaskView};
pub use task::{Block, Picked, WakeFlags, YieldTo};
pub use view::{Eligibility, GroupView, Member, QueueView};

pub(crate) use eevdf::lag::lag_bound;
pub(crate) use eevdf::place::requeue_entity;
pub(crate) use ids::{Arena, Ent, Que};
pub(crate) use sched::Sched;

use crate::lag_credit::CreditFault;
use weights::{SHARES_MAX, SHARES_MIN};

/// Levels that groups may nest.
pub const MAX_DEPTH: u32 = 32;

/// What a caller has to act on after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions {
    /// Request that is pending on the current task; [`Fair::pick`] clears it.
    pub resched: Resched,
    /// When to call [`Fair::hrtick`]: a time in ns on the run queue's clock, not a distance; `None`
    /// for no timer. It replaces the last one.
    pub hrtick: Option<u64>,
}

/// The fair class of a host.
#[derive(Clone, Debug)]
pub struct Fair {
    sched: Sched,
    self_check: bool,
}

/// The host: its CPUs and groups.
impl Fair {
    /// A host without CPUs.
    ///
    /// # Errors
    ///
    /// [`Error::BadConfig`], [`Error::NotWithCfs`].
    pub fn new(cfg: Config) -> Result<Self, Error> {
        cfg.check()?;
        Ok(Self {
            sched: Sched::new(cfg),
            self_check: true,
        })
    }

    /// Sets whether debug builds check all invariants of a run queue after each operation on it
    /// (the default).
    ///
    /// The check is linear in the entities, too slow for debug builds of large simulations.
    /// Release builds never check.
    pub fn set_self_check(&mut self, enabled: bool) {
        self.self_check = enabled;
    }

    /// Allocates memory as it is used, with a sixteenth in reserve, and an eighth in timelines. Operations
    /// allocate then. For hosts of thousands of CPUs, where the reserves are large.
    pub fn set_lean(&mut self) {
        self.sched.tree.set_lean();
    }

    /// Injects a fault into the lag credit, for a checker to find.
    pub fn set_credit_fault(&mut self, fault: CreditFault) {
        self.sched.credits.set_fault(fault);
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.sched.cfg
    }

    /// Adds a CPU, idle, with its clock at 0.
    ///
    /// # Errors
    ///
    /// [`Error::Full`], or [`Error::NotWithCfs`] for flat picking under CFS.
    pub fn create_rq(&mut self, mode: PickMode) -> Result<RqId, Error> {
        if mode == PickMode::Flat && self.sched.cfg.cfs.is_some() {
            return Err(Error::NotWithCfs("flat picking"));
        }
        self.sched.create_rq(mode)
    }

    /// Makes a group under `parent` (`None`: the root group), on no CPU yet.
    ///
    /// # Errors
    ///
    /// An unknown parent, or [`Error::TooDeep`].
    pub fn create_group(&mut self, parent: Option<GroupId>) -> Result<GroupId, Error> {
        let lean = self.sched.tree.is_lean();
        self.sched.groups.create(lean, parent)
    }

    /// Makes the entity and queue of a group and its ancestors on a CPU
    /// (`alloc_fair_sched_group`, of one CPU). Nothing happens where they exist.
    ///
    /// # Errors
    ///
    /// An unknown group or run queue.
    pub fn extend_group(&mut self, g: GroupId, rq: RqId) -> Result<(), Error> {
        group_entities::extend(&mut self.sched, g, rq)
    }

    /// [`Self::extend_group`] of the group of a task.
    ///
    /// # Errors
    ///
    /// An unknown task or run queue.
    pub fn extend_for(&mut self, task: TaskId, rq: RqId) -> Result<(), Error> {
        let ent = &self.sched.tree[self.sched.tree.task(task)?];
        match ent.group() {
            Some(_) if ent.rq() == rq && ent.is_attached() => Ok(()),
            Some(group) => self.extend_group(group, rq),
            None => Ok(()),
        }
    }

    /// Compacts the group of a task, and groups above it, on CPUs that neither the task nor
    /// anything else uses. Lag is kept: [`Self::extend_group`] restores it.
    ///
    /// # Errors
    ///
    /// An unknown task.
    pub fn compact_group(&mut self, task: TaskId) -> Result<(), Error> {
        let e = self.sched.tree.task(task)?;
        // A task of the root group: the root's queues stay.
        if let Some(g) = self.sched.tree[e].group() {
            compact::compact_group(&mut self.sched, g);
        }
        Ok(())
    }

    /// Moves a group without tasks and groups under `parent` (`None`: the root group).
    ///
    /// Kernels cannot move cgroups. Readers of a host description, which lists groups one by one,
    /// may have to.
    ///
    /// # Errors
    ///
    /// [`Error::GroupUnderItself`], [`Error::GroupBusy`] while something is in it or its entity
    /// is still queued, [`Error::TooDeep`], or a parent without a part where the group has one.
    pub fn reparent_group(&mut self, g: GroupId, parent: Option<GroupId>) -> Result<(), Error> {
        group_entities::reparent(&mut self.sched, g, parent)
    }

    /// Sets a group's shares (`sched_group_set_shares`), clamped to
    /// [[`SHARES_MIN`], [`SHARES_MAX`]], and refreshes its weights and those above it.
    ///
    /// # Errors
    ///
    /// [`Error::IdleGroupShares`] for an idle group, [`Error::ZeroWeight`], an unknown group, or
    /// the clock of a run queue that has a part of the group.
    pub fn set_shares(&mut self, g: GroupId, shares: u64, now_ns: u64) -> Result<(), Error> {
        if shares == 0 {
            return Err(Error::ZeroWeight);
        }
        if self.sched.groups.get(g)?.is_idle() {
            return Err(Error::IdleGroupShares(g));
        }
        group_entities::check_clocks(&mut self.sched, g, now_ns)?;
        let shares = shares.clamp(SHARES_MIN, SHARES_MAX);
        group_entities::set_shares(&mut self.sched, g, shares, now_ns);
        Ok(())
    }

    /// Sets the load that a group has on CPUs other than `rq`, in unscaled weight (1024 is one
    /// nice-0 task). Weights follow at their next refresh.
    ///
    /// # Errors
    ///
    /// An unknown group, one without a part on `rq`, or a load above 2^40.
    pub fn set_ext_load(&mut self, g: GroupId, rq: RqId, load: u64) -> Result<(), Error> {
        const MAX: u64 = 1 << 40;
        if load > MAX {
            return Err(Error::LoadOutOfRange { load, max: MAX });
        }
        let (_, q) = self.sched.group_cfs_rq(Some(g), rq)?;
        let queues = self.sched.tree.queue_count();
        self.sched.groups.set_ext_load(q, queues, load);
        Ok(())
    }

    /// Makes a group idle or normal (`sched_group_set_idle`, `cpu.idle`). Its shares become those
    /// of the idle policy, or the default.
    ///
    /// # Errors
    ///
    /// An unknown group, or the clock of a run queue that has a part of it.
    pub fn set_idle(&mut self, g: GroupId, idle: bool, now_ns: u64) -> Result<(), Error> {
        if self.sched.groups.get(g)?.is_idle() == idle {
            return Ok(());
        }
        group_entities::check_clocks(&mut self.sched, g, now_ns)?;
        group_entities::set_idle(&mut self.sched, g, idle, now_ns);
        Ok(())
    }

    /// The actions of an operation on `rq`.
    #[inline]
    fn actions(&self, rq: RqId) -> Actions {
        debug_assert!(!self.self_check || sched::check::rq(&self.sched, rq));
        let r = &self.sched.rqs[rq];
        Actions {
            resched: r.resched(),
            hrtick: r.hrtick(),
        }
    }

    /// The parts, for tests that look at single levels.
    #[cfg(test)]
    pub(crate) fn sched(&self) -> &Sched {
        &self.sched
    }

    #[cfg(test)]
    pub(crate) fn sched_mut(&mut self) -> &mut Sched {
        &mut self.sched
    }
}
