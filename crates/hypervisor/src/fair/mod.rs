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

use alloc::vec::Vec;

mod attributes;
mod cfs;
mod check;
mod class;
mod compact;
mod config;
mod digest;
mod eevdf;
mod enqueue;
mod entity;
mod error;
mod features;
mod group;
mod group_cpus;
mod ids;
mod levels;
mod node;
mod preempt;
mod queue;
mod reparent;
mod schedule;
mod task;
pub mod timeline;
mod update;
mod view;
pub mod weights;
mod yields;

pub use cfs::Cfs;
pub use config::{CgroupMode, Config, OtherLoad, PickMode, Preempt};
pub use entity::{Attr, EntityView, Policy, TaskState, TaskView};
pub use error::Error;
pub use features::{Feature, Features, UnknownFeature};
pub use ids::{GroupId, RqId, TaskId};
pub use queue::Resched;
pub use schedule::Picked;
pub use task::{Block, WakeFlags};
pub use view::{Eligibility, GroupView, Member, QueueView};
pub use yields::YieldTo;

use crate::lag_credit::{CreditFault, CreditState, Tokens};
use cfs::BuddyTable;
use entity::Entity;
use group::Group;
pub(crate) use ids::{Arena, Ent, Que};
use levels::{FlatPart, FlatQueue};
use queue::{Queue, Rq};
use timeline::Pool;

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
    pub(crate) cfg: Config,
    pub(crate) ent: Arena<Entity>,
    pub(crate) que: Arena<Queue>,
    pub(crate) rqs: Arena<Rq>,
    /// By run queue; empty without `YIELD_TO_LAG_CREDIT`.
    pub(crate) credits: Arena<CreditState>,
    /// By queue; empty without a guard on lag credits.
    pub(crate) tokens: Arena<Tokens>,
    /// The buddies that only CFS has, by queue.
    buddies: BuddyTable,
    /// By queue: the load of its group on other CPUs, unscaled, as set by
    /// [`Self::set_ext_load`]. Shorter than `que` until a load is set.
    pub(crate) ext_loads: Vec<u64>,
    /// By entity, if a run queue picks flat.
    pub(crate) flat: Arena<FlatPart>,
    /// By queue, if a run queue picks flat.
    pub(crate) flat_queues: Arena<FlatQueue>,
    pub(crate) has_flat: bool,
    pub(crate) groups: Arena<Group>,
    pub(crate) pool: Pool,
    /// Time of the current operation in ns: the clock of each run queue that it acts on.
    pub(crate) now: u64,
    free_tasks: Vec<Ent>,
    /// Unused entities of groups, each with its queue.
    free_group_cpus: Vec<Ent>,
    pub(crate) lean: bool,
    pub(crate) self_check: bool,
    pub(crate) credit_fault: CreditFault,
}

impl Fair {
    /// A host without CPUs.
    ///
    /// # Errors
    ///
    /// [`Error::BadConfig`], [`Error::NotWithCfs`].
    pub fn new(cfg: Config) -> Result<Self, Error> {
        cfg.check()?;
        Ok(Self {
            cfg,
            ent: Arena(Vec::new()),
            que: Arena(Vec::new()),
            rqs: Arena(Vec::new()),
            credits: Arena(Vec::new()),
            tokens: Arena(Vec::new()),
            buddies: BuddyTable::default(),
            ext_loads: Vec::new(),
            flat: Arena(Vec::new()),
            flat_queues: Arena(Vec::new()),
            has_flat: false,
            groups: Arena(Vec::new()),
            pool: Pool::default(),
            now: 0,
            free_tasks: Vec::new(),
            free_group_cpus: Vec::new(),
            lean: false,
            self_check: true,
            credit_fault: CreditFault::None,
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

    /// Allocates memory as it is used, with at most a sixteenth in reserve; operations allocate
    /// then. For hosts of thousands of CPUs, where the reserves are large.
    pub fn set_lean(&mut self) {
        self.lean = true;
        self.pool.set_lean();
    }

    /// Makes room for another entry in a table.
    pub(crate) fn make_room<T>(lean: bool, table: &mut Vec<T>) {
        if lean && table.len() == table.capacity() {
            // A sixteenth keeps growth linear overall, where doubling leaves half unused.
            table.reserve_exact((table.len() / 16).max(1));
        }
    }

    /// Injects a fault into the lag credit, for a checker to find.
    pub fn set_credit_fault(&mut self, fault: CreditFault) {
        self.credit_fault = fault;
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.cfg
    }

    /// Adds a CPU, idle, with its clock at 0.
    ///
    /// # Errors
    ///
    /// [`Error::Full`], or [`Error::NotWithCfs`] for flat picking under CFS.
    pub fn create_rq(&mut self, mode: PickMode) -> Result<RqId, Error> {
        if mode == PickMode::Flat && self.cfg.cfs.is_some() {
            return Err(Error::NotWithCfs("flat picking"));
        }
        let rq = RqId(u32::try_from(self.rqs.0.len()).map_err(|_| Error::Full("run queues"))?);
        let root = Que(u32::try_from(self.que.0.len()).map_err(|_| Error::Full("queues"))?);
        self.push_queue(Ent::NONE);
        if mode == PickMode::Flat {
            self.extend_flat();
        }
        self.rqs.0.push(Rq {
            mode,
            root,
            clock: 0,
            accounted_until_ns: 0,
            curr: Ent::NONE,
            resched: Resched::None,
            announced: false,
            hrtick: 0,
            pick_due: false,
        });
        if self.cfg.features.has(Feature::YieldToLagCredit) {
            self.credits.0.push(CreditState::default());
        }
        Ok(rq)
    }

    /// Adds an empty queue that belongs to `owner`, with the next free number.
    fn push_queue(&mut self, owner: Ent) {
        Self::make_room(self.lean, &mut self.que.0);
        self.que.0.push(Queue::new(owner));
        if self.has_flat {
            self.extend_flat();
        }
        let credited = self.cfg.features.has(Feature::YieldToLagCredit);
        if credited && self.cfg.lag_credit.guard.is_some() {
            Self::make_room(self.lean, &mut self.tokens.0);
            self.tokens.0.push(Tokens::default());
        }
        self.class_new_queue();
    }

    /// `parent_entity`: the entity of the group that `e` is in; none in the root's queue.
    #[inline]
    pub(crate) fn parent(&self, e: Ent) -> Ent {
        // An entity on no queue has no parent either: `Que::NONE` is beyond the table.
        let queue = self.que.0.get(self.ent[e].queue.0 as usize);
        queue.map_or(Ent::NONE, |queue| queue.owner)
    }

    fn new_entity(&mut self, load: u64) -> Result<Ent, Error> {
        let index = u32::try_from(self.ent.0.len()).map_err(|_| Error::Full("entities"))?;
        if index as usize >= timeline::MAX_ENTITIES {
            return Err(Error::Full("entities"));
        }
        Self::make_room(self.lean, &mut self.ent.0);
        self.ent.0.push(Entity::blank(load));
        if self.has_flat {
            Self::make_room(self.lean, &mut self.flat.0);
            self.extend_flat();
        }
        // Room for all entities that `ent` can hold: inserting into a tree never allocates.
        self.pool.grow(self.ent.0.capacity());
        if self.lean {
            return Ok(Ent(index));
        }
        let spare = self.ent.0.len().saturating_sub(self.free_tasks.len());
        self.free_tasks.reserve(spare);
        Ok(Ent(index))
    }

    /// Refuses an operation on `rq` at a time out of range, or where a pick is due.
    #[inline]
    pub(crate) fn begin_check(&mut self, rq: RqId, now_ns: u64) -> Result<(), Error> {
        self.check_clock(rq, now_ns)?;
        if self.rqs[rq].pick_due {
            return Err(Error::PickDue(rq));
        }
        Ok(())
    }

    /// [`Self::begin_check`], then sets the clock.
    pub(crate) fn begin(&mut self, rq: RqId, now_ns: u64) -> Result<(), Error> {
        self.begin_check(rq, now_ns)?;
        self.set_clock(rq, now_ns);
        Ok(())
    }

    /// `update_rq_clock`.
    #[inline]
    pub(crate) fn set_clock(&mut self, rq: RqId, now_ns: u64) {
        debug_assert!(now_ns >= self.rqs[rq].clock, "the clock goes back");
        self.rqs[rq].clock = now_ns;
        self.now = now_ns;
    }

    #[inline]
    pub(crate) fn is_flat(&self, rq: RqId) -> bool {
        self.rqs[rq].mode == PickMode::Flat
    }
}
