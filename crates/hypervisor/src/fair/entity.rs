//! Entities: tasks, and groups on one CPU (`struct sched_entity`).

use super::error::Error;
use super::ids::{Ent, GroupId, Que, RqId, TaskId};
use super::weights::{
    NICE_0_LOAD, NICE_MAX, NICE_MIN, SLICE_MAX_NS, SLICE_MIN_NS, WEIGHT_IDLEPRIO, calc_delta_fair,
    weight_of_nice,
};

/// Scheduling policy of a fair task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// `SCHED_OTHER`.
    #[default]
    Normal,
    /// `SCHED_BATCH`: its wakeups preempt no task.
    Batch,
    /// `SCHED_IDLE`: the weight of [`WEIGHT_IDLEPRIO`] whatever the nice value.
    Idle,
}

/// Attributes of a task (`struct sched_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Attr {
    /// Policy.
    pub policy: Policy,
    /// Nice value, [-20, 19].
    pub nice: i8,
    /// Requested slice in ns, [[`SLICE_MIN_NS`], [`SLICE_MAX_NS`]]; `None` for the base slice.
    pub slice_ns: Option<u64>,
}

impl Attr {
    /// Weight that the policy and the nice value give (`set_load_weight`).
    pub fn weight(&self) -> u64 {
        match self.policy {
            Policy::Idle => WEIGHT_IDLEPRIO,
            Policy::Normal | Policy::Batch => weight_of_nice(self.nice),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(NICE_MIN..=NICE_MAX).contains(&self.nice) {
            return Err(Error::NiceOutOfRange(self.nice));
        }
        match self.slice_ns {
            Some(slice_ns) if !(SLICE_MIN_NS..=SLICE_MAX_NS).contains(&slice_ns) => {
                let (min_ns, max_ns) = (SLICE_MIN_NS, SLICE_MAX_NS);
                Err(Error::SliceOutOfRange {
                    slice_ns,
                    min_ns,
                    max_ns,
                })
            }
            _ => Ok(()),
        }
    }
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// Created, not forked.
    New,
    /// Runnable: current, or waiting for its CPU.
    Runnable,
    /// Blocked. It may still be queued: see [`TaskView::delayed`].
    Asleep,
    /// Off the queue until its group has runtime again ([`Block::Throttle`](super::Block::Throttle)).
    Throttled,
    /// Detached from its run queue for a migration.
    Migrating,
    /// Exiting: the next pick frees it.
    Exiting,
}

/// Policy, nice value and priority of a task.
///
/// Nice (`static_prio`) gives the weight. The priority (`p->prio`, here as the nice value that it
/// stands for) decides what a change requests. A `sched_setattr` to the idle policy sets the
/// priority alone, so each is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Class(u16);

impl Class {
    /// With the priority of its nice value.
    pub(crate) const fn new(policy: Policy, nice: i8) -> Self {
        Self((policy as u16) << 12).with_nice(nice)
    }

    /// `set_user_nice`: the priority follows.
    pub(crate) const fn with_nice(self, nice: i8) -> Self {
        debug_assert!(nice >= NICE_MIN && nice <= NICE_MAX);
        let nice_bits = (nice - NICE_MIN) as u16;
        Self(self.0 & !63 | nice_bits).with_prio(nice)
    }

    /// With another policy and priority, and nice as it is.
    pub(crate) const fn with_policy(self, policy: Policy, prio: i8) -> Self {
        Self(self.0 & 0xFFF | (policy as u16) << 12).with_prio(prio)
    }

    const fn with_prio(self, prio: i8) -> Self {
        let prio_bits = (prio - NICE_MIN) as u16;
        Self(self.0 & !(63 << 6) | prio_bits << 6)
    }

    #[inline]
    pub(crate) const fn policy(self) -> Policy {
        match self.0 >> 12 {
            0 => Policy::Normal,
            1 => Policy::Batch,
            _ => Policy::Idle,
        }
    }

    #[inline]
    pub(crate) const fn nice(self) -> i8 {
        (self.0 & 63) as i8 + NICE_MIN
    }

    #[inline]
    pub(crate) const fn prio(self) -> i8 {
        (self.0 >> 6 & 63) as i8 + NICE_MIN
    }
}

impl core::fmt::Debug for Class {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?} {} {}", self.policy(), self.nice(), self.prio())
    }
}

/// Flags of a task, in one byte because [`Entity`] is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Marks(u8);

impl Marks {
    /// The task has not ended.
    pub(crate) const LIVE: Self = Self(1);
    /// The task sleeps while it migrates: it was detached with its dequeue delayed.
    pub(crate) const ASLEEP: Self = Self(2);
    /// The task's queue is its group's queue on its run queue.
    pub(crate) const RQ_SET: Self = Self(4);
    /// The slice was requested, or follows the tasks below (`custom_slice`).
    pub(crate) const CUSTOM_SLICE: Self = Self(8);

    #[inline]
    pub(crate) const fn has(self, mark: Self) -> bool {
        self.0 & mark.0 != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, mark: Self, value: bool) {
        self.0 = if value {
            self.0 | mark.0
        } else {
            self.0 & !mark.0
        };
    }
}

/// The number of no group.
pub(super) const NO_GROUP: u32 = u32::MAX;

/// A schedulable entity. Virtual times wrap: compare them by the sign of the difference.
///
/// A large host has several entities for each vCPU, so that no derived value is kept here. The
/// parent is the owner of its queue ([`Fair::parent`](super::Fair::parent)). Flat picking has a
/// table of its own ([`FlatPart`](super::levels::FlatPart)). There an entity competes in another
/// queue than `queue`, and has another weight on its own level than `weight`.
#[derive(Clone, Debug, Hash)]
#[repr(C, align(16))]
pub(crate) struct Entity {
    pub(crate) vruntime: u64,
    pub(crate) deadline: u64,
    /// Weight at which virtual time advances: `se->load.weight`, or the share of the tree under
    /// flat picking.
    pub(crate) weight: u64,
    /// End of the protected slice, as a virtual time.
    pub(crate) vprot: u64,
    pub(crate) vlag: i64,
    /// Time in ns up to which it is charged.
    pub(crate) exec_start: u64,
    /// Queue of its own level.
    pub(crate) queue: Que,
    pub(crate) on_rq: bool,
    pub(crate) delayed: bool,
    pub(crate) rel_deadline: bool,
    pub(crate) depth: u8,
    /// Requested slice in ns: the longest, 1 s, fits.
    pub(crate) slice: u32,
    /// The group's own queue; none for a task.
    pub(crate) my_q: Que,
    pub(crate) rq: RqId,
    /// The group that it represents, or that the task is in.
    group: u32,
    /// Of a group: attached tasks and groups. Of a task: its generation.
    pub(crate) count: u32,
    pub(crate) class: Class,
    pub(crate) state: TaskState,
    pub(crate) marks: Marks,
}

const _: () = assert!(size_of::<Entity>() == 80 && super::MAX_DEPTH <= u8::MAX as u32);

impl Entity {
    /// An entity with all zero but the weight, on no queue.
    pub(crate) fn blank(load: u64) -> Self {
        Self {
            vruntime: 0,
            deadline: 0,
            weight: load,
            vprot: 0,
            vlag: 0,
            exec_start: 0,
            queue: Que::NONE,
            on_rq: false,
            delayed: false,
            rel_deadline: false,
            depth: 0,
            slice: 0,
            my_q: Que::NONE,
            rq: RqId(u32::MAX),
            group: NO_GROUP,
            count: 0,
            class: Class::new(Policy::Normal, 0),
            state: TaskState::New,
            marks: Marks::default(),
        }
    }

    /// The group that it represents, or that the task is in; none for the root group.
    #[inline]
    pub(crate) fn group(&self) -> Option<GroupId> {
        (self.group != NO_GROUP).then_some(GroupId(self.group))
    }

    pub(crate) fn set_group(&mut self, group: Option<GroupId>) {
        self.group = group.map_or(NO_GROUP, |g| g.0);
    }

    #[inline]
    pub(crate) fn policy(&self) -> Policy {
        self.class.policy()
    }

    #[inline]
    pub(crate) fn nice(&self) -> i8 {
        self.class.nice()
    }

    #[inline]
    pub(crate) fn prio(&self) -> i8 {
        self.class.prio()
    }

    #[inline]
    pub(crate) fn custom_slice(&self) -> bool {
        self.marks.has(Marks::CUSTOM_SLICE)
    }

    #[inline]
    pub(crate) fn is_task(&self) -> bool {
        !self.my_q.is_some()
    }

    /// `calc_delta_fair` for this entity.
    #[inline]
    pub(crate) fn vtime(&self, delta_ns: u64) -> u64 {
        calc_delta_fair(delta_ns, self.weight)
    }
}

/// A copy of a task's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskView {
    /// Its state.
    pub state: TaskState,
    /// Policy, nice value and requested slice.
    pub attr: Attr,
    /// Its group; `None` for the root group.
    pub group: Option<GroupId>,
    /// Its run queue, or its last one; `None` before the first.
    pub rq: Option<RqId>,
    /// It is the current task of its run queue.
    pub running: bool,
    /// It sleeps, but stays queued until its debt is paid (`sched_delayed`).
    pub delayed: bool,
    /// Its entity.
    pub entity: EntityView,
}

/// A copy of an entity's state. Virtual times are in ns at nice 0 and wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntityView {
    /// Virtual runtime.
    pub vruntime: u64,
    /// Virtual deadline; a distance from `vruntime` if `rel_deadline`.
    pub deadline: u64,
    /// Lag at its last dequeue or reweighting, in virtual ns.
    pub vlag: i64,
    /// It is queued.
    pub on_rq: bool,
    /// Its dequeue is delayed.
    pub delayed: bool,
    /// End of its protected slice.
    pub vprot: u64,
    /// Slice in ns.
    pub slice_ns: u64,
    /// Weight on its own level ([`NICE_0_LOAD`] for nice 0).
    pub load: u64,
    /// Weight at which its virtual time advances: differs from `load` only under flat picking.
    pub weight: u64,
    /// `deadline` is a distance.
    pub rel_deadline: bool,
}

impl Entity {
    /// A copy for callers; `load` is its weight on its own level.
    pub(crate) fn view(&self, load: u64) -> EntityView {
        EntityView {
            vruntime: self.vruntime,
            deadline: self.deadline,
            vlag: self.vlag,
            on_rq: self.on_rq,
            delayed: self.delayed,
            vprot: self.vprot,
            slice_ns: u64::from(self.slice),
            load,
            weight: self.weight,
            rel_deadline: self.rel_deadline,
        }
    }

    pub(crate) fn task_id(&self, e: Ent) -> TaskId {
        TaskId {
            index: e.0,
            generation: self.count,
        }
    }
}

/// Load of a new group's entity before its first enqueue.
pub(crate) const NEW_GROUP_LOAD: u64 = NICE_0_LOAD;
