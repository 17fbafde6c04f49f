//! The fair class of Linux 7.2, exact to the bit, as a data structure.
//!
//! [`Fair`] holds the run queues of a host: tasks, groups with an entity on each CPU, and one
//! queue per group and CPU. It has no clock and wakes nobody: each operation is given the time
//! and returns what a kernel would act on. Operations answer to the kernel's functions, which
//! their documentation names; arithmetic, order of operations and oddities are the kernel's, as
//! recorded vectors check.
//!
//! Two ways to pick are there, chosen when a run queue is made ([`PickMode`]): level by level as
//! in 7.2, and flat, with all tasks in one queue and groups for weight only. With [`Config::cfs`] it
//! is the class that came before, CFS, as in 6.1.
//!
//! Nothing is allocated but by `new`, `create_*`, `extend_group` and `set_ext_load`, unless
//! [`Fair::set_lean`] says otherwise.
//!
//! # Example
//!
//! ```
//! use stealtime_hypervisor::eevdf::{Attr, Config, Fair, PickMode};
//!
//! let mut fair = Fair::new(Config::linux_7_2(16))?;
//! let cpu = fair.create_rq(PickMode::Hierarchical)?;
//! let task = fair.create_task(Attr::default(), None)?;
//! let actions = fair.fork(task, cpu, 1_000)?;
//! assert_eq!(actions.resched, stealtime_hypervisor::eevdf::Resched::Now);
//! assert_eq!(fair.pick(cpu, 1_000)?.task, Some(task));
//! # Ok::<(), stealtime_hypervisor::eevdf::Error>(())
//! ```

use alloc::vec::Vec;

mod ahead;
mod attr;
mod cfs;
mod check;
mod config;
mod digest;
mod enqueue;
mod entity;
mod error;
mod features;
mod flat;
mod fold;
mod group;
mod ids;
mod memory;
mod parts;
mod pick;
mod place;
mod preempt;
mod queue;
mod reparent;
mod task;
pub mod timeline;
mod update;
mod view;
pub mod weights;
mod yields;

pub use ahead::Climb;
pub use cfs::Cfs;
pub use config::{CgroupMode, Config, OtherLoad, PickMode, Preempt};
pub use entity::{Attr, EntityView, Policy, TaskState, TaskView};
pub use error::Error;
pub use features::{Feature, Features, UnknownFeature};
pub use ids::{GroupId, RqId, TaskId};
pub use pick::Picked;
pub use queue::Resched;
pub use task::{Block, WakeFlags};
pub use view::{GroupView, Member, QueueView};
pub use yields::YieldTo;

use crate::lag_credit::{CreditFault, CreditState, Tokens};
use cfs::Buddies;
use entity::Entity;
use flat::{FlatPart, FlatQueue};
use group::Group;
pub(crate) use ids::{Arena, Ent, Que};
use queue::{Queue, Rq};
use timeline::Pool;

/// Levels that groups may nest.
pub const MAX_DEPTH: u32 = 32;

/// What a caller has to act on after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions {
    /// Request now pending on the running task; [`Fair::pick`] clears it.
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
    /// By run queue, if lag credits are given.
    pub(crate) credits: Arena<CreditState>,
    /// By queue, if lag credits are given and guarded.
    pub(crate) tokens: Arena<Tokens>,
    /// By queue, under CFS.
    pub(crate) buddies: Arena<Buddies>,
    /// Load on other CPUs that the caller has told of the groups that queues belong to, unscaled:
    /// by queue, as far as any was told.
    pub(crate) ext_loads: Vec<u64>,
    /// By entity, if a run queue picks flat.
    pub(crate) flat: Arena<FlatPart>,
    /// By queue, likewise.
    pub(crate) flat_queues: Arena<FlatQueue>,
    pub(crate) keeps_flat: bool,
    pub(crate) groups: Arena<Group>,
    pub(crate) pool: Pool,
    /// Time of the operation at hand: the clock of each run queue that it acts on.
    pub(crate) now: u64,
    free_tasks: Vec<Ent>,
    /// Entities of groups, each with its queue.
    free_parts: Vec<Ent>,
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
            buddies: Arena(Vec::new()),
            ext_loads: Vec::new(),
            flat: Arena(Vec::new()),
            flat_queues: Arena(Vec::new()),
            keeps_flat: false,
            groups: Arena(Vec::new()),
            pool: Pool::default(),
            now: 0,
            free_tasks: Vec::new(),
            free_parts: Vec::new(),
            lean: false,
            self_check: true,
            credit_fault: CreditFault::None,
        })
    }

    /// Whether debug builds check all invariants of a run queue after each operation on it.
    ///
    /// They do unless switched off here: the check is linear in the entities, which a debug build
    /// of a large simulation may not want. Release builds never check.
    pub fn set_self_check(&mut self, on: bool) {
        self.self_check = on;
    }

    /// From here on memory is allocated as it is used: by operations too, and with a sixteenth
    /// in reserve at most. For hosts of thousands of CPUs, where what is allocated ahead is much.
    pub fn set_lean(&mut self) {
        self.lean = true;
        self.pool.set_lean();
    }

    /// Room for one more in a table.
    pub(crate) fn make_room<T>(lean: bool, table: &mut Vec<T>) {
        if lean && table.len() == table.capacity() {
            table.reserve_exact((table.len() / 16).max(1));
        }
    }

    /// With a fault in its lag credit, for a checker to find.
    pub fn set_credit_fault(&mut self, fault: CreditFault) {
        self.credit_fault = fault;
    }

    /// The configuration that it was made with.
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
            self.begin_flat();
        }
        self.rqs.0.push(Rq {
            mode,
            root,
            clock: 0,
            unasked_until: 0,
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

    /// An empty queue that belongs to `owner`, behind all others.
    fn push_queue(&mut self, owner: Ent) {
        Self::make_room(self.lean, &mut self.que.0);
        self.que.0.push(Queue::new(owner));
        if self.keeps_flat {
            self.begin_flat();
        }
        let credited = self.cfg.features.has(Feature::YieldToLagCredit);
        if credited && self.cfg.lag_credit.guard.is_some() {
            Self::make_room(self.lean, &mut self.tokens.0);
            self.tokens.0.push(Tokens::default());
        }
        if self.cfg.cfs.is_some() {
            self.push_buddies();
        }
    }

    /// The entity of the group above an entity; none below the root.
    #[inline]
    pub(crate) fn parent(&self, e: Ent) -> Ent {
        let queue = self.que.0.get(self.ent[e].queue.0 as usize);
        queue.map_or(Ent::NONE, |queue| queue.owner)
    }

    fn new_entity(&mut self, load: u64) -> Result<Ent, Error> {
        let index = u32::try_from(self.ent.0.len()).map_err(|_| Error::Full("entities"))?;
        if index as usize >= timeline::MOST {
            return Err(Error::Full("entities"));
        }
        Self::make_room(self.lean, &mut self.ent.0);
        self.ent.0.push(Entity::blank(load));
        if self.keeps_flat {
            Self::make_room(self.lean, &mut self.flat.0);
            self.begin_flat();
        }
        // As much as the entities have: the pool must never allocate while tasks run.
        self.pool.grow(self.ent.0.capacity());
        if self.lean {
            return Ok(Ent(index));
        }
        let spare = self.ent.0.len().saturating_sub(self.free_tasks.len());
        self.free_tasks.reserve(spare);
        Ok(Ent(index))
    }

    /// Checks that an operation on `rq` at `now_ns` may go on.
    #[inline]
    pub(crate) fn begin_check(&mut self, rq: RqId, now_ns: u64) -> Result<(), Error> {
        self.check_clock(rq, now_ns)?;
        if self.rqs[rq].pick_due {
            return Err(Error::PickDue(rq));
        }
        Ok(())
    }

    /// [`Self::begin_check`], and the clock is set.
    pub(crate) fn begin(&mut self, rq: RqId, now_ns: u64) -> Result<(), Error> {
        self.begin_check(rq, now_ns)?;
        self.set_clock(rq, now_ns);
        Ok(())
    }

    /// `update_rq_clock`.
    #[inline]
    pub(crate) fn set_clock(&mut self, rq: RqId, now_ns: u64) {
        self.rqs[rq].clock = now_ns;
        self.now = now_ns;
    }

    #[inline]
    pub(crate) fn is_flat(&self, rq: RqId) -> bool {
        self.rqs[rq].mode == PickMode::Flat
    }
}
