//! The life of a task: creation, fork, wake, sleep, exit, migration.

use super::enqueue::{Dequeue, Enqueue};
use super::entity::{Attr, Class, Entity, Marks, TaskState, TaskView};
use super::error::Error;
use super::ids::{Ent, GroupId, Que, RqId, TaskId};
use super::preempt::Arrival;
use super::queue::Resched;
use super::weights::{NICE_0_LOAD, SLICE_MAX_NS, SLICE_MIN_NS};
use super::{Actions, Fair};

/// How the running task blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// An ordinary sleep: with debt it stays queued for a while.
    Sleep,
    /// A sleep that must not see spurious wakeups, as of a stopped task: never delayed.
    Special,
    /// Its group has used up its quota (`throttle_cfs_rq_work`): no level is delayed, each leaves
    /// with its lag. [`Fair::unthrottle`] brings it back.
    Throttle,
    /// It ends; its id is void after the next pick.
    Exit,
}

/// What a waker says of a wakeup. Only `NEXT_BUDDY` reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WakeFlags {
    /// The waker is about to sleep (`WF_SYNC`).
    pub sync: bool,
    /// Both are on one CPU although the woken task could be elsewhere (`WF_RQ_SELECTED`).
    pub rq_selected: bool,
}

impl Fair {
    /// Slot of a task that can still be operated on.
    pub(crate) fn task(&self, id: TaskId) -> Result<Ent, Error> {
        let e = self.live_task(id)?;
        if self.ent[e].state == TaskState::Exiting {
            return Err(Error::NoSuchTask(id));
        }
        Ok(e)
    }

    /// Slot of a task in a given state: one look answers for most calls.
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

    /// Makes a task that is on no CPU yet.
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
        self.set_arena(e, Que::NONE);
        if let Some(g) = group {
            self.groups[g].tasks += 1;
        }
        Ok(self.ent[e].task_id(e))
    }

    /// Ends a task that is not on a run queue. A running task ends by [`Block::Exit`].
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

    /// A task may not be queued, nor still be the running entity of a CPU.
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
        self.unhome(e);
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

    /// Points a task that is off the queues at its place on `rq` (`set_task_rq`).
    #[inline(always)]
    pub(crate) fn rehome(&mut self, e: Ent, rq: RqId) -> Result<(), Error> {
        let ent = &self.ent[e];
        // Most tasks come back to where they were.
        if ent.rq == rq && ent.marks.has(Marks::HOMED) {
            return Ok(());
        }
        self.rehome_anew(e, rq)
    }

    #[inline(never)]
    fn rehome_anew(&mut self, e: Ent, rq: RqId) -> Result<(), Error> {
        let (parent, queue) = self.home(self.ent[e].group(), rq)?;
        let depth = if parent.is_some() {
            self.ent[parent].depth + 1
        } else {
            0
        };
        let arena = if self.is_flat(rq) {
            self.rqs[rq].root
        } else {
            queue
        };
        self.unhome(e);
        self.used(parent, 1);
        let ent = &mut self.ent[e];
        (ent.queue, ent.depth, ent.rq) = (queue, depth, rq);
        ent.marks.set(Marks::HOMED, true);
        self.set_arena(e, arena);
        let load = self.load(e);
        if !self.is_flat(rq) && self.ent[e].weight != load {
            self.rescale(e, load, false);
        }
        Ok(())
    }

    /// A new task joins a run queue (`wake_up_new_task`).
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
        self.rehome(e, rq)?;
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

    /// A sleeper wakes on `rq` (`try_to_wake_up`). If its dequeue is delayed it can only wake
    /// where it still is: see [`Self::delayed_on`].
    ///
    /// # Errors
    ///
    /// [`Error::NotAsleep`], [`Error::DelayedElsewhere`], [`Error::NotAttached`], a group without
    /// a part on `rq`, or those of [`Self::tick`].
    pub fn wake(&mut self, id: TaskId, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        self.wake_with(id, rq, WakeFlags::default(), now_ns)
    }

    /// [`Self::wake`] with what the waker says of it.
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
                    asked: rq,
                });
            }
            self.set_clock(rq, now_ns);
            self.requeue_delayed(e);
        } else {
            self.rehome(e, rq)?;
            self.set_clock(rq, now_ns);
            self.enqueue_here(
                e,
                Enqueue {
                    initial: false,
                    wakeup: true,
                },
            );
        }
        self.ent[e].state = TaskState::Runnable;
        self.check_here(e, Arrival::woken(flags));
        Ok(self.actions(rq))
    }

    /// A throttled task is queued again where it was (`tg_unthrottle_up`). It preempts nothing: only
    /// an idle CPU is asked to reschedule.
    ///
    /// The kernel queues the tasks of a group on a CPU in the reverse of the order in which they
    /// were throttled, those of groups below it first.
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
        self.rehome(e, rq)?;
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
            self.request(rq, Resched::Now);
        }
        Ok(self.actions(rq))
    }

    /// Run queue on which a sleeper is still queued.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTask`].
    pub fn delayed_on(&self, id: TaskId) -> Result<Option<RqId>, Error> {
        let ent = &self.ent[self.task(id)?];
        let delayed = ent.on_rq && ent.state == TaskState::Asleep;
        Ok(delayed.then_some(ent.rq))
    }

    /// The running task blocks (`try_to_block_task`). The next operation on the run queue must be
    /// a pick: both are halves of one `schedule()`.
    ///
    /// # Errors
    ///
    /// [`Error::Idle`], or those of [`Self::tick`].
    pub fn block(&mut self, rq: RqId, how: Block, now_ns: u64) -> Result<Actions, Error> {
        self.begin_check(rq, now_ns)?;
        let curr = self.rqs[rq].curr;
        if curr.is_none() {
            return Err(Error::Idle(rq));
        }
        self.set_clock(rq, now_ns);
        self.dequeue_here(
            curr,
            Dequeue {
                sleep: true,
                special: matches!(how, Block::Special | Block::Exit),
                throttle: how == Block::Throttle,
                ..Dequeue::default()
            },
        );
        self.ent[curr].state = match how {
            Block::Sleep | Block::Special => TaskState::Asleep,
            Block::Throttle => TaskState::Throttled,
            Block::Exit => TaskState::Exiting,
        };
        if how == Block::Throttle {
            self.request(rq, Resched::Now);
        }
        self.rqs[rq].pick_due = true;
        Ok(self.actions(rq))
    }

    /// A queued task leaves its run queue as a migration source does (`detach_task`). It may be
    /// a delayed sleeper. Lag and distance to the deadline travel with it.
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
        self.dequeue_here(e, Dequeue::default());
        let task = &mut self.ent[e];
        let asleep = task.state == TaskState::Asleep;
        task.marks.set(Marks::ASLEEP, asleep);
        task.state = TaskState::Migrating;
        Ok(self.actions(rq))
    }

    /// A detached task joins a run queue as a migration target does (`attach_task`).
    ///
    /// It may come between [`Self::block`] and [`Self::pick`], as newly idle balancing brings it:
    /// what has blocked is still current then, and so are the groups above it.
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
        self.rehome(e, rq)?;
        self.set_clock(rq, now_ns);
        let task = &mut self.ent[e];
        task.state = if task.marks.has(Marks::ASLEEP) {
            TaskState::Asleep
        } else {
            TaskState::Runnable
        };
        self.enqueue_here(e, Enqueue::default());
        self.check_here(e, Arrival::PLAIN);
        Ok(self.actions(rq))
    }

    /// A task as it is.
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
