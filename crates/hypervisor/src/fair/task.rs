//! The life of a task: creation, fork, wake, sleep, exit, migration.

use super::enqueue::{Dequeue, Enqueue};
use super::entity::{Attr, Class, Entity, Marks, TaskState, TaskView};
use super::error::Error;
use super::ids::{Ent, GroupId, Que, RqId, TaskId};
use super::queue::Resched;
use super::weights::{NICE_0_LOAD, SLICE_MAX_NS, SLICE_MIN_NS};
use super::{Actions, Fair};

/// The reason for which the current task blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// An ordinary sleep: a task with debt stays queued until that is paid.
    Sleep,
    /// A sleep that must not see spurious wakeups, as of a stopped task: never delayed.
    Special,
    /// Its group has used up its quota (`throttle_cfs_rq_work`): no level is delayed, and each
    /// keeps its lag. [`Fair::unthrottle`] enqueues it again.
    Throttle,
    /// It ends; its id is void after the next pick.
    Exit,
}

/// Flags of a wakeup (`WF_*`). Only `NEXT_BUDDY` reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WakeFlags {
    /// The waker is about to sleep (`WF_SYNC`).
    pub sync: bool,
    /// The CPU of the woken task was selected among several (`WF_RQ_SELECTED`).
    pub rq_selected: bool,
}

/// Flags of an arrival on a run queue, for `wakeup_preempt` (`WF_*`).
#[derive(Clone, Copy)]
pub(crate) struct Arrival(u8);

impl Arrival {
    /// A migration or a change of attributes.
    pub(crate) const PLAIN: Self = Self(0);
    /// A new task (`WF_FORK`).
    pub(crate) const FORK: Self = Self(1);
    const SYNC: u8 = 2;
    const RQ_SELECTED: u8 = 4;

    pub(crate) fn woken(flags: WakeFlags) -> Self {
        let mut bits = 0;
        if flags.sync {
            bits |= Self::SYNC;
        }
        if flags.rq_selected {
            bits |= Self::RQ_SELECTED;
        }
        Self(bits)
    }

    pub(crate) fn is_fork(self) -> bool {
        self.has(Self::FORK.0)
    }

    pub(crate) fn is_sync(self) -> bool {
        self.has(Self::SYNC)
    }

    pub(crate) fn is_rq_selected(self) -> bool {
        self.has(Self::RQ_SELECTED)
    }

    #[inline]
    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

impl Fair {
    /// Slot of a task that is not exiting.
    pub(crate) fn task(&self, id: TaskId) -> Result<Ent, Error> {
        let e = self.live_task(id)?;
        if self.ent[e].state == TaskState::Exiting {
            return Err(Error::NoSuchTask(id));
        }
        Ok(e)
    }

    /// Slot of a task in a given state: one comparison for most calls.
    #[inline(always)]
    fn task_in(&self, id: TaskId, state: TaskState) -> Option<Ent> {
        let ent = self.ent.0.get(id.index as usize)?;
        let live = ent.marks.has(Marks::LIVE);
        let found = ent.count == id.generation && ent.state == state && live;
        found.then_some(Ent(id.index))
    }

    /// Slot of a task that may be exiting.
    fn live_task(&self, id: TaskId) -> Result<Ent, Error> {
        match self.ent.0.get(id.index as usize) {
            Some(ent) if ent.marks.has(Marks::LIVE) && ent.count == id.generation => {
                Ok(Ent(id.index))
            }
            _ => Err(Error::NoSuchTask(id)),
        }
    }

    /// Creates a task that is on no CPU.
    ///
    /// # Errors
    ///
    /// An unknown group, or attributes out of range.
    pub fn create_task(&mut self, attr: Attr, group: Option<GroupId>) -> Result<TaskId, Error> {
        attr.check()?;
        if let Some(g) = group {
            self.group(g)?;
        }
        let e = match self.free_tasks.pop() {
            Some(e) => e,
            None => self.new_entity(NICE_0_LOAD)?,
        };
        let generation = self.ent[e].count;
        let mut ent = Entity::blank(attr.weight());
        ent.slice = attr.slice_ns.unwrap_or(self.cfg.base_slice_ns) as u32;
        ent.class = Class::new(attr.policy, attr.nice);
        ent.set_group(group);
        ent.count = generation;
        ent.marks = Marks::LIVE;
        ent.marks.set(Marks::CUSTOM_SLICE, attr.slice_ns.is_some());
        self.ent[e] = ent;
        self.set_load(e, attr.weight());
        self.set_pick_queue(e, Que::NONE);
        if let Some(g) = group {
            self.groups[g].tasks += 1;
        }
        Ok(self.ent[e].task_id(e))
    }

    /// Ends a task that is not queued. The current task of a CPU ends by [`Block::Exit`].
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyQueued`] while it is on a run queue, delayed or not.
    pub fn destroy_task(&mut self, id: TaskId) -> Result<(), Error> {
        let e = self.task(id)?;
        self.check_off(e, id)?;
        self.free_task(e);
        Ok(())
    }

    /// Refuses a task that is queued, or still the current entity of a CPU.
    fn check_off(&self, e: Ent, task: TaskId) -> Result<(), Error> {
        if self.ent[e].on_rq || self.is_running(e) {
            return Err(Error::AlreadyQueued {
                task,
                rq: self.ent[e].rq,
            });
        }
        Ok(())
    }

    pub(crate) fn free_task(&mut self, e: Ent) {
        debug_assert!(!self.ent[e].on_rq && !self.is_running(e), "still in use");
        self.clear_task_rq(e);
        let task = &mut self.ent[e];
        task.marks.set(Marks::LIVE, false);
        if let Some(g) = task.group() {
            task.set_group(None);
            self.groups[g].tasks -= 1;
        }
        let task = &mut self.ent[e];
        // The last generation retires the slot: an id never names two tasks.
        if let Some(generation) = task.count.checked_add(1) {
            task.count = generation;
            self.free_tasks.push(e);
        }
    }

    /// `set_task_rq`: sets the queue and the parent of a task that is off its queue, on `rq`.
    #[inline(always)]
    pub(crate) fn set_task_rq(&mut self, e: Ent, rq: RqId) -> Result<(), Error> {
        let ent = &self.ent[e];
        debug_assert!(!ent.on_rq, "still queued");
        // Most tasks return to their last CPU.
        if ent.rq == rq && ent.marks.has(Marks::RQ_SET) {
            return Ok(());
        }
        self.set_task_rq_slow(e, rq)
    }

    #[inline(never)]
    fn set_task_rq_slow(&mut self, e: Ent, rq: RqId) -> Result<(), Error> {
        let (parent, queue) = self.group_cfs_rq(self.ent[e].group(), rq)?;
        let depth = if parent.is_some() {
            self.ent[parent].depth + 1
        } else {
            0
        };
        let pick_queue = if self.is_flat(rq) {
            self.rqs[rq].root
        } else {
            queue
        };
        self.clear_task_rq(e);
        self.add_users(parent, 1);
        let ent = &mut self.ent[e];
        (ent.queue, ent.depth, ent.rq) = (queue, depth, rq);
        ent.marks.set(Marks::RQ_SET, true);
        self.set_pick_queue(e, pick_queue);
        let load = self.load(e);
        if !self.is_flat(rq) && self.ent[e].weight != load {
            self.rescale_entity(e, load, false);
        }
        Ok(())
    }

    /// Enqueues a new task (`wake_up_new_task`).
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyForked`], a group without a part on `rq`, or those of [`Self::tick`].
    pub fn fork(&mut self, id: TaskId, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        let e = self.task(id)?;
        if self.ent[e].state != TaskState::New {
            return Err(Error::AlreadyForked(id));
        }
        self.begin_check(rq, now_ns)?;
        self.set_task_rq(e, rq)?;
        self.set_clock(rq, now_ns);
        self.ent[e].state = TaskState::Runnable;
        self.enqueue_task(
            e,
            Enqueue {
                initial: true,
                wakeup: false,
            },
        );
        self.check_preempt(e, Arrival::FORK);
        Ok(self.actions(rq))
    }

    /// Wakes a sleeper on `rq` (`try_to_wake_up`). While its dequeue is delayed it can wake only on
    /// its run queue: see [`Self::delayed_on`].
    ///
    /// # Errors
    ///
    /// [`Error::NotAsleep`], [`Error::DelayedElsewhere`], [`Error::NotAttached`], a group without
    /// a part on `rq`, or those of [`Self::tick`].
    pub fn wake(&mut self, id: TaskId, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        self.wake_with(id, rq, WakeFlags::default(), now_ns)
    }

    /// [`Self::wake`] with flags.
    ///
    /// # Errors
    ///
    /// As [`Self::wake`].
    pub fn wake_with(
        &mut self,
        id: TaskId,
        rq: RqId,
        flags: WakeFlags,
        now_ns: u64,
    ) -> Result<Actions, Error> {
        let e = self.task(id)?;
        match self.ent[e].state {
            TaskState::Asleep => {}
            TaskState::Runnable | TaskState::Throttled | TaskState::Exiting => {
                return Err(Error::NotAsleep(id));
            }
            TaskState::New | TaskState::Migrating => return Err(Error::NotAttached(id)),
        }
        let queued_on = self.ent[e].rq;
        self.begin_check(rq, now_ns)?;
        if self.is_running(e) {
            return Err(Error::PickDue(queued_on));
        }
        if self.ent[e].on_rq {
            if queued_on != rq {
                return Err(Error::DelayedElsewhere {
                    task: id,
                    queued_on,
                    requested: rq,
                });
            }
            self.set_clock(rq, now_ns);
            self.requeue_delayed(e);
        } else {
            self.set_task_rq(e, rq)?;
            self.set_clock(rq, now_ns);
            self.enqueue_task_inline(
                e,
                Enqueue {
                    initial: false,
                    wakeup: true,
                },
            );
        }
        self.ent[e].state = TaskState::Runnable;
        self.check_preempt_inline(e, Arrival::woken(flags));
        Ok(self.actions(rq))
    }

    /// Enqueues a throttled task on its run queue (`tg_unthrottle_up`). It preempts no task: only an
    /// idle CPU gets a request to reschedule.
    ///
    /// The kernel enqueues the tasks of a group on a CPU in the reverse order of their throttling,
    /// those of its subgroups first.
    ///
    /// # Errors
    ///
    /// [`Error::NotThrottled`], or those of [`Self::tick`].
    pub fn unthrottle(&mut self, id: TaskId, now_ns: u64) -> Result<Actions, Error> {
        let e = self.task(id)?;
        if self.ent[e].state != TaskState::Throttled {
            return Err(Error::NotThrottled(id));
        }
        let rq = self.ent[e].rq;
        self.begin_check(rq, now_ns)?;
        self.set_task_rq(e, rq)?;
        self.set_clock(rq, now_ns);
        self.enqueue_task(
            e,
            Enqueue {
                initial: false,
                wakeup: true,
            },
        );
        self.ent[e].state = TaskState::Runnable;
        if self.rqs[rq].curr.is_none() {
            self.resched_curr(rq, Resched::Now);
        }
        Ok(self.actions(rq))
    }

    /// Run queue of a sleeper with a delayed dequeue.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTask`].
    pub fn delayed_on(&self, id: TaskId) -> Result<Option<RqId>, Error> {
        let ent = &self.ent[self.task(id)?];
        let delayed = ent.on_rq && ent.state == TaskState::Asleep;
        Ok(delayed.then_some(ent.rq))
    }

    /// The current task blocks (`try_to_block_task`). The next operation on the run queue must be
    /// a pick: both are halves of one `schedule()`.
    ///
    /// # Errors
    ///
    /// [`Error::Idle`], or those of [`Self::tick`].
    pub fn block(&mut self, rq: RqId, block: Block, now_ns: u64) -> Result<Actions, Error> {
        self.begin_check(rq, now_ns)?;
        let curr = self.rqs[rq].curr;
        if curr.is_none() {
            return Err(Error::Idle(rq));
        }
        self.set_clock(rq, now_ns);
        self.dequeue_task_inline(
            curr,
            Dequeue {
                sleep: true,
                special: matches!(block, Block::Special | Block::Exit),
                throttle: block == Block::Throttle,
                ..Dequeue::default()
            },
        );
        self.ent[curr].state = match block {
            Block::Sleep | Block::Special => TaskState::Asleep,
            Block::Throttle => TaskState::Throttled,
            Block::Exit => TaskState::Exiting,
        };
        if block == Block::Throttle {
            self.resched_curr(rq, Resched::Now);
        }
        self.rqs[rq].pick_due = true;
        Ok(self.actions(rq))
    }

    /// Dequeues a task for a migration (`detach_task`). It may be a delayed sleeper. It keeps its
    /// lag and its distance to the deadline.
    ///
    /// # Errors
    ///
    /// [`Error::NotQueued`], [`Error::Running`], or those of [`Self::tick`].
    pub fn detach(&mut self, id: TaskId, now_ns: u64) -> Result<Actions, Error> {
        let e = self.task(id)?;
        if !self.ent[e].on_rq {
            return Err(Error::NotQueued(id));
        }
        if self.is_running(e) {
            return Err(Error::Running(id));
        }
        let rq = self.ent[e].rq;
        self.begin(rq, now_ns)?;
        self.dequeue_task_inline(e, Dequeue::default());
        let task = &mut self.ent[e];
        let asleep = task.state == TaskState::Asleep;
        task.marks.set(Marks::ASLEEP, asleep);
        task.state = TaskState::Migrating;
        Ok(self.actions(rq))
    }

    /// Enqueues a detached task on the target of its migration (`attach_task`).
    ///
    /// It may come between [`Self::block`] and [`Self::pick`], from newly idle balancing: the
    /// blocked task and the groups above it are still current then.
    ///
    /// # Errors
    ///
    /// [`Error::NotAttached`] if it was not detached, a group without a part on `rq`, or those of
    /// [`Self::tick`].
    pub fn attach(&mut self, id: TaskId, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        let Some(e) = self.task_in(id, TaskState::Migrating) else {
            self.task(id)?;
            return Err(Error::NotAttached(id));
        };
        self.check_clock(rq, now_ns)?;
        self.set_task_rq(e, rq)?;
        self.set_clock(rq, now_ns);
        let task = &mut self.ent[e];
        task.state = if task.marks.has(Marks::ASLEEP) {
            TaskState::Asleep
        } else {
            TaskState::Runnable
        };
        self.enqueue_task_inline(e, Enqueue::default());
        self.check_preempt_inline(e, Arrival::PLAIN);
        Ok(self.actions(rq))
    }

    /// A copy of a task's state.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTask`].
    pub fn view(&self, id: TaskId) -> Result<TaskView, Error> {
        let e = self.live_task(id)?;
        let ent = &self.ent[e];
        let slice_ns = u64::from(ent.slice);
        let ranged = (SLICE_MIN_NS..=SLICE_MAX_NS).contains(&slice_ns);
        let slice_ns = (ent.custom_slice() && ranged).then_some(slice_ns);
        Ok(TaskView {
            state: ent.state,
            attr: Attr {
                policy: ent.policy(),
                nice: ent.nice(),
                slice_ns,
            },
            group: ent.group(),
            rq: (ent.rq.0 != u32::MAX).then_some(ent.rq),
            running: self.is_running(e),
            delayed: ent.delayed,
            entity: ent.view(self.load(e)),
        })
    }
}
