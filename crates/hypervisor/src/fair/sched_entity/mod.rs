//! Entities: tasks, and groups on one CPU (`struct sched_entity`).

mod cfs;
mod eevdf;

use super::error::Error;
use super::ids::{Ent, GroupId, Que, RqId, TaskId};
use super::timeline::Keys;
use super::weights::{
    NICE_0_LOAD, NICE_MAX, NICE_MIN, SLICE_MAX_NS, SLICE_MIN_NS, WEIGHT_IDLEPRIO, weight_of_nice,
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
struct Class(u16);

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

/// Flags of a task, in one byte because [`SchedEntity`] is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Marks(u8);

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
/// parent is the owner of its queue ([`super::hierarchy::Hierarchy::parent`]). Flat picking has a
/// table of its own ([`super::flat_levels::FlatLevels`]). There an entity competes in another
/// queue than `queue`, and has another weight on its own level than `weight`.
#[derive(Clone, Debug, Hash)]
#[repr(C, align(16))]
pub(crate) struct SchedEntity {
    vruntime: u64,
    deadline: u64,
    /// Weight at which virtual time advances: `se->load.weight`, or the share of the tree under
    /// flat picking.
    weight: u64,
    /// End of the protected slice, as a virtual time.
    vprot: u64,
    vlag: i64,
    /// Time in ns up to which it is charged.
    exec_start: u64,
    /// Queue of its own level.
    queue: Que,
    on_rq: bool,
    delayed: bool,
    rel_deadline: bool,
    depth: u8,
    /// Requested slice in ns: the longest, 1 s, fits.
    slice: u32,
    /// The group's own queue; none for a task.
    my_q: Que,
    rq: RqId,
    /// The group that it represents, or that the task is in.
    group: u32,
    /// Of a group: attached tasks and groups. Of a task: its generation.
    count: u32,
    class: Class,
    state: TaskState,
    marks: Marks,
}

const _: () = assert!(size_of::<SchedEntity>() == 80 && super::MAX_DEPTH <= u8::MAX as u32);

impl SchedEntity {
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

    /// A new task, on no queue.
    pub(crate) fn new_task(
        attr: &Attr,
        group: Option<GroupId>,
        generation: u32,
        base_slice_ns: u64,
    ) -> Self {
        let mut task = Self::blank(attr.weight());
        task.request_slice(attr.slice_ns, base_slice_ns);
        task.class = Class::new(attr.policy, attr.nice);
        task.set_group(group);
        task.count = generation;
        task.marks.set(Marks::LIVE, true);
        task
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

    /// The keys by which a timeline sorts and searches.
    #[inline]
    pub(crate) fn keys(&self) -> Keys {
        Keys {
            deadline: self.deadline,
            vruntime: self.vruntime,
        }
    }

    /// Virtual runtime.
    #[inline(always)]
    pub(crate) fn vruntime(&self) -> u64 {
        self.vruntime
    }

    /// Virtual deadline; a distance if it is relative.
    #[inline(always)]
    pub(crate) fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Weight at which virtual time advances.
    #[inline(always)]
    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }

    /// Takes over a recorded entity. It is in no tree.
    #[cfg(test)]
    pub(crate) fn set_recorded(&mut self, weight: u64, slice: Option<u32>, times: [u64; 3]) {
        self.weight = weight;
        if let Some(slice) = slice {
            self.follow_slice(slice);
        }
        [self.vruntime, self.deadline, self.vprot] = times;
    }

    /// End of the protected slice.
    #[cfg(test)]
    pub(crate) fn vprot(&self) -> u64 {
        self.vprot
    }

    /// Lag at its last dequeue or reweighting, in virtual ns.
    #[inline(always)]
    pub(crate) fn vlag(&self) -> i64 {
        self.vlag
    }

    /// Time in ns up to which it is charged.
    #[inline(always)]
    pub(crate) fn exec_start(&self) -> u64 {
        self.exec_start
    }

    /// It becomes current at `now`: earlier time is not charged.
    #[inline(always)]
    pub(crate) fn start_exec(&mut self, now: u64) {
        self.exec_start = now;
    }

    /// Queue of its own level.
    #[inline(always)]
    pub(crate) fn queue(&self) -> Que {
        self.queue
    }

    /// Levels above it.
    #[inline(always)]
    pub(crate) fn depth(&self) -> u8 {
        self.depth
    }

    /// The group's own queue; none for a task.
    #[inline(always)]
    pub(crate) fn my_q(&self) -> Que {
        self.my_q
    }

    /// Its run queue, or its last one.
    #[inline(always)]
    pub(crate) fn rq(&self) -> RqId {
        self.rq
    }

    /// Whether it has been on no run queue yet.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        self.rq.0 == u32::MAX
    }

    /// It is queued.
    #[inline(always)]
    pub(crate) fn on_rq(&self) -> bool {
        self.on_rq
    }

    #[inline(always)]
    pub(crate) fn set_on_rq(&mut self, on_rq: bool) {
        self.on_rq = on_rq;
    }

    /// Its dequeue is delayed.
    #[inline(always)]
    pub(crate) fn delayed(&self) -> bool {
        self.delayed
    }

    #[inline]
    pub(crate) fn set_delayed(&mut self, delayed: bool) {
        self.delayed = delayed;
    }

    /// The deadline is a distance.
    pub(crate) fn rel_deadline(&self) -> bool {
        self.rel_deadline
    }

    /// Requested slice in ns.
    #[inline(always)]
    pub(crate) fn slice(&self) -> u32 {
        self.slice
    }

    /// Sets the slice of an entity that is off its queue, or of one in no tree.
    #[inline]
    pub(crate) fn set_slice(&mut self, slice_ns: u32) {
        self.slice = slice_ns;
    }

    /// The slice of a group follows the tasks below.
    #[inline]
    pub(crate) fn follow_slice(&mut self, slice_ns: u32) {
        self.slice = slice_ns;
        self.marks.set(Marks::CUSTOM_SLICE, true);
    }

    /// Sets the slice of a task: the requested one, or the base slice.
    pub(crate) fn request_slice(&mut self, slice_ns: Option<u64>, base_slice_ns: u64) {
        self.slice = slice_ns.unwrap_or(base_slice_ns) as u32;
        self.marks.set(Marks::CUSTOM_SLICE, slice_ns.is_some());
    }

    /// `set_user_nice`: the priority follows.
    pub(crate) fn set_nice(&mut self, nice: i8) {
        self.class = self.class.with_nice(nice);
    }

    /// Sets policy and priority; the nice value stays.
    pub(crate) fn set_policy(&mut self, policy: Policy, prio: i8) {
        self.class = self.class.with_policy(policy, prio);
    }

    /// State of a task.
    #[inline(always)]
    pub(crate) fn state(&self) -> TaskState {
        self.state
    }

    #[inline(always)]
    pub(crate) fn set_state(&mut self, state: TaskState) {
        self.state = state;
    }

    /// A task leaves its run queue for a migration, awake or asleep.
    #[inline]
    pub(crate) fn begin_migration(&mut self) {
        self.marks
            .set(Marks::ASLEEP, self.state == TaskState::Asleep);
        self.state = TaskState::Migrating;
    }

    /// The migration of a task ends: it is awake or asleep as before.
    #[inline]
    pub(crate) fn end_migration(&mut self) {
        debug_assert_eq!(self.state, TaskState::Migrating);
        self.state = if self.marks.has(Marks::ASLEEP) {
            TaskState::Asleep
        } else {
            TaskState::Runnable
        };
    }

    /// Whether a task's queue is its group's queue on its run queue.
    #[inline(always)]
    pub(crate) fn is_attached(&self) -> bool {
        self.marks.has(Marks::RQ_SET)
    }

    /// `set_task_rq`: attaches a task to its group's queue on `rq`.
    pub(crate) fn attach(&mut self, rq: RqId, queue: Que, depth: u8) {
        debug_assert!(!self.on_rq, "still queued");
        (self.queue, self.depth, self.rq) = (queue, depth, rq);
        self.marks.set(Marks::RQ_SET, true);
    }

    /// Detaches a task, and returns whether it was attached.
    pub(crate) fn detach(&mut self) -> bool {
        let attached = self.is_attached();
        self.marks.set(Marks::RQ_SET, false);
        attached
    }

    /// The entity stands for group `g` on `rq`, with `my_q` below it and `queue` above.
    pub(crate) fn init_group(&mut self, g: GroupId, rq: RqId, my_q: Que, queue: Que, depth: u8) {
        (self.my_q, self.rq) = (my_q, rq);
        self.set_group(Some(g));
        self.move_to(queue, depth);
    }

    /// A group's entity, off its queue, moves below another group.
    pub(crate) fn move_to(&mut self, queue: Que, depth: u8) {
        debug_assert!(!self.on_rq, "still queued");
        (self.queue, self.depth) = (queue, depth);
    }

    /// Whether a task has not ended, and `generation` is its own.
    #[inline(always)]
    pub(crate) fn is_live(&self, generation: u32) -> bool {
        self.count == generation && self.marks.has(Marks::LIVE)
    }

    /// The generation of a task's slot.
    pub(crate) fn generation(&self) -> u32 {
        self.count
    }

    /// A task ends. False if its slot has no further generation: an id never names two tasks.
    pub(crate) fn end_task(&mut self) -> bool {
        debug_assert!(!self.on_rq, "still in use");
        self.marks.set(Marks::LIVE, false);
        self.set_group(None);
        match self.count.checked_add(1) {
            Some(generation) => {
                self.count = generation;
                true
            }
            None => false,
        }
    }

    /// Attached tasks and groups, of a group's entity.
    pub(crate) fn users(&self) -> u32 {
        debug_assert!(!self.is_task());
        self.count
    }

    /// A task or a group attaches to a group's entity (1) or detaches from it (-1).
    pub(crate) fn add_users(&mut self, delta: i32) {
        debug_assert!(
            self.count.checked_add_signed(delta).is_some(),
            "more users detach than have attached"
        );
        self.count = self.count.wrapping_add_signed(delta);
    }

    /// The state that outlives the entity of an unused group.
    pub(crate) fn kept(&self) -> Kept {
        Kept {
            vlag: self.vlag,
            deadline: self.deadline,
            vprot: self.vprot,
            weight: self.weight,
            slice: self.slice,
            rel_deadline: self.rel_deadline,
            custom_slice: self.custom_slice(),
        }
    }

    /// Takes over the state of an earlier entity of the group.
    pub(crate) fn restore(&mut self, state: &Kept) {
        (self.slice, self.vlag) = (state.slice, state.vlag);
        (self.deadline, self.rel_deadline) = (state.deadline, state.rel_deadline);
        (self.weight, self.vprot) = (state.weight, state.vprot);
        self.marks.set(Marks::CUSTOM_SLICE, state.custom_slice);
    }
}

/// The state of a group's entity that [`SchedEntity::restore`] takes over.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Kept {
    vlag: i64,
    deadline: u64,
    vprot: u64,
    weight: u64,
    slice: u32,
    rel_deadline: bool,
    custom_slice: bool,
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

impl SchedEntity {
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

#[cfg(test)]
mod tests {
    extern crate std;

    use super::{Class, Policy};

    #[test]
    fn a_class_shows_policy_nice_and_priority() {
        let class = Class::new(Policy::Normal, 5).with_policy(Policy::Batch, -3);
        assert_eq!(std::format!("{class:?}"), "Batch 5 -3");
    }
}
