//! The life of a task: creation, fork, wake, sleep, exit, migration.

use super::change;
use super::config::Preempt;
use super::eevdf::place::requeue_delayed;
use super::error::Error;
use super::ids::{GroupId, RqId, TaskId};
use super::rq::Resched;
use super::sched::{Dequeue, Enqueue};
use super::sched_entity::{Attr, Policy, SchedEntity, TaskState};
use super::yield_to::{self, Outcome};
use super::{Actions, Fair};
use crate::lag_credit::Credited;

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

/// Outcome of a pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// The current task; `None` for the idle task.
    pub task: Option<TaskId>,
    /// Whether the CPU has switched to it.
    pub switched: bool,
    /// State of requests and timer.
    pub actions: Actions,
}

/// Outcome of a directed yield (the return value of `yield_to`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YieldTo {
    /// Both CPUs have just one task: nothing changed (`-ESRCH`).
    OnlyOne,
    /// The target is current, sleeps or has a delayed dequeue: nothing changed (0).
    Refused,
    /// The target is nominated and the caller has yielded: the caller must pick (1).
    Yielded {
        /// The target's run queue, which has a request to reschedule, if not the caller's.
        kicked: Option<RqId>,
        /// Run queue from which the target was pulled to the caller's.
        pulled: Option<RqId>,
        /// The credit; none without `YIELD_TO_LAG_CREDIT`.
        credit: Credited,
        /// State of the caller's requests and timer.
        actions: Actions,
    },
}

/// Operations on tasks.
impl Fair {
    /// Creates a task that is on no CPU.
    ///
    /// # Errors
    ///
    /// An unknown group, or attributes out of range.
    pub fn create_task(&mut self, attr: Attr, group: Option<GroupId>) -> Result<TaskId, Error> {
        attr.check()?;
        if let Some(g) = group {
            self.sched.groups.get(g)?;
        }
        let base_slice_ns = self.sched.cfg.base_slice_ns;
        let e = self.sched.tree.alloc_task(|generation| {
            SchedEntity::new_task(&attr, group, generation, base_slice_ns)
        })?;
        self.sched.groups.add_task(group);
        Ok(self.sched.tree[e].task_id(e))
    }

    /// Ends a task that is not queued. The current task of a CPU ends by [`Block::Exit`].
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyQueued`] while it is on a run queue, delayed or not.
    pub fn destroy_task(&mut self, id: TaskId) -> Result<(), Error> {
        let e = self.sched.tree.task(id)?;
        // It may be off its queue and still the current entity of a CPU.
        if self.sched.tree[e].on_rq() || self.sched.is_running(e) {
            let rq = self.sched.tree[e].rq();
            return Err(Error::AlreadyQueued { task: id, rq });
        }
        self.sched.free_task(e);
        Ok(())
    }

    /// Enqueues a new task (`wake_up_new_task`).
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyForked`], a group without a part on `rq`, or those of [`Self::tick`].
    pub fn fork(&mut self, id: TaskId, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        let e = self.sched.tree.task(id)?;
        if self.sched.tree[e].state() != TaskState::New {
            return Err(Error::AlreadyForked(id));
        }
        self.sched.begin_check(rq, now_ns)?;
        self.sched.set_task_rq(e, rq)?;
        self.sched.set_clock(rq, now_ns);
        self.sched.tree[e].set_state(TaskState::Runnable);
        self.sched.enqueue_task(
            e,
            Enqueue {
                initial: true,
                wakeup: false,
            },
        );
        self.sched.wakeup_preempt(rq, e, Arrival::FORK);
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
        let e = self.sched.tree.task(id)?;
        match self.sched.tree[e].state() {
            TaskState::Asleep => {}
            TaskState::Runnable | TaskState::Throttled | TaskState::Exiting => {
                return Err(Error::NotAsleep(id));
            }
            TaskState::New | TaskState::Migrating => return Err(Error::NotAttached(id)),
        }
        let queued_on = self.sched.tree[e].rq();
        self.sched.begin_check(rq, now_ns)?;
        if self.sched.is_running(e) {
            return Err(Error::PickDue(queued_on));
        }
        if self.sched.tree[e].on_rq() {
            if queued_on != rq {
                return Err(Error::DelayedElsewhere {
                    task: id,
                    queued_on,
                    requested: rq,
                });
            }
            self.sched.set_clock(rq, now_ns);
            requeue_delayed(&mut self.sched, e);
        } else {
            self.sched.set_task_rq(e, rq)?;
            self.sched.set_clock(rq, now_ns);
            self.sched.enqueue_task_inline(
                e,
                Enqueue {
                    initial: false,
                    wakeup: true,
                },
            );
        }
        self.sched.tree[e].set_state(TaskState::Runnable);
        self.sched
            .wakeup_preempt_inline(rq, e, Arrival::woken(flags));
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
        let e = self.sched.tree.task(id)?;
        if self.sched.tree[e].state() != TaskState::Throttled {
            return Err(Error::NotThrottled(id));
        }
        let rq = self.sched.tree[e].rq();
        self.sched.begin_check(rq, now_ns)?;
        self.sched.set_task_rq(e, rq)?;
        self.sched.set_clock(rq, now_ns);
        self.sched.enqueue_task(
            e,
            Enqueue {
                initial: false,
                wakeup: true,
            },
        );
        self.sched.tree[e].set_state(TaskState::Runnable);
        if self.sched.rqs[rq].curr().is_none() {
            self.sched.resched_curr(rq, Resched::Now);
        }
        Ok(self.actions(rq))
    }

    /// Run queue of a sleeper with a delayed dequeue.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTask`].
    pub fn delayed_on(&self, id: TaskId) -> Result<Option<RqId>, Error> {
        let ent = &self.sched.tree[self.sched.tree.task(id)?];
        let delayed = ent.on_rq() && ent.state() == TaskState::Asleep;
        Ok(delayed.then_some(ent.rq()))
    }

    /// The current task blocks (`try_to_block_task`). The next operation on the run queue must be
    /// a pick: both are halves of one `schedule()`.
    ///
    /// # Errors
    ///
    /// [`Error::Idle`], or those of [`Self::tick`].
    pub fn block(&mut self, rq: RqId, block: Block, now_ns: u64) -> Result<Actions, Error> {
        self.sched.begin_check(rq, now_ns)?;
        let curr = self.sched.rqs[rq].curr();
        if curr.is_none() {
            return Err(Error::Idle(rq));
        }
        self.sched.set_clock(rq, now_ns);
        self.sched.dequeue_task_inline(
            curr,
            Dequeue {
                sleep: true,
                special: matches!(block, Block::Special | Block::Exit),
                throttle: block == Block::Throttle,
                ..Dequeue::default()
            },
        );
        self.sched.tree[curr].set_state(match block {
            Block::Sleep | Block::Special => TaskState::Asleep,
            Block::Throttle => TaskState::Throttled,
            Block::Exit => TaskState::Exiting,
        });
        if block == Block::Throttle {
            self.sched.resched_curr(rq, Resched::Now);
        }
        self.sched.rqs[rq].set_pick_due();
        Ok(self.actions(rq))
    }

    /// Dequeues a task for a migration (`detach_task`). It may be a delayed sleeper. It keeps its
    /// lag and its distance to the deadline.
    ///
    /// # Errors
    ///
    /// [`Error::NotQueued`], [`Error::Running`], or those of [`Self::tick`].
    pub fn detach(&mut self, id: TaskId, now_ns: u64) -> Result<Actions, Error> {
        let e = self.sched.tree.task(id)?;
        if !self.sched.tree[e].on_rq() {
            return Err(Error::NotQueued(id));
        }
        if self.sched.is_running(e) {
            return Err(Error::Running(id));
        }
        let rq = self.sched.tree[e].rq();
        self.sched.begin(rq, now_ns)?;
        self.sched.dequeue_task_inline(e, Dequeue::default());
        self.sched.tree[e].begin_migration();
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
        let Some(e) = self.sched.tree.task_in(id, TaskState::Migrating) else {
            self.sched.tree.task(id)?;
            return Err(Error::NotAttached(id));
        };
        self.sched.check_clock(rq, now_ns)?;
        self.sched.set_task_rq(e, rq)?;
        self.sched.set_clock(rq, now_ns);
        self.sched.tree[e].end_migration();
        self.sched.enqueue_task_inline(e, Enqueue::default());
        self.sched.wakeup_preempt_inline(rq, e, Arrival::PLAIN);
        Ok(self.actions(rq))
    }

    /// The periodic tick (`sched_tick`, `task_tick_fair`).
    ///
    /// Under [`Preempt::Lazy`] a pending lazy request becomes immediate first. Nothing else
    /// happens while the CPU is idle.
    ///
    /// # Errors
    ///
    /// An unknown run queue, a clock that goes back or too far, or a pick that is due.
    pub fn tick(&mut self, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        self.sched.begin(rq, now_ns)?;
        if self.sched.cfg.preempt == Preempt::Lazy {
            self.sched.rqs[rq].promote_lazy();
        }
        self.sched.tick_levels(rq, false);
        Ok(self.actions(rq))
    }

    /// The slice timer has fired (`hrtick`): it is disarmed, and the request is immediate.
    ///
    /// # Errors
    ///
    /// As [`Self::tick`].
    pub fn hrtick(&mut self, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        self.sched.begin(rq, now_ns)?;
        self.sched.rqs[rq].clear_hrtick();
        self.sched.tick_levels(rq, true);
        Ok(self.actions(rq))
    }

    /// Charges the current task in its own queue, and in no other (`update_curr_fair`).
    ///
    /// # Errors
    ///
    /// As [`Self::tick`].
    pub fn account(&mut self, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        self.sched.begin(rq, now_ns)?;
        let curr = self.sched.rqs[rq].curr();
        if curr.is_some() {
            self.sched.update_curr(self.sched.tree.pick_queue(curr));
        }
        Ok(self.actions(rq))
    }

    /// Picks the next task and switches to it (`schedule`: `pick_next_task_fair`,
    /// `put_prev_task_fair`, `set_next_task_fair`).
    ///
    /// Clears pending requests. If the current task is picked again, nothing else changes: its
    /// protected slice stays.
    ///
    /// # Errors
    ///
    /// An unknown run queue, or a clock that goes back or too far.
    pub fn pick(&mut self, rq: RqId, now_ns: u64) -> Result<Picked, Error> {
        self.sched.check_clock(rq, now_ns)?;
        self.sched.set_clock(rq, now_ns);
        let (next, switched) = self.sched.schedule(rq);
        let task = next.is_some().then(|| self.sched.tree[next].task_id(next));
        Ok(Picked {
            task,
            switched,
            actions: self.actions(rq),
        })
    }

    /// The current task yields (`do_sched_yield`). The caller must pick.
    ///
    /// # Errors
    ///
    /// As [`Self::tick`], and [`Error::Idle`] while the idle task runs.
    pub fn yield_task(&mut self, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        self.sched.begin_check(rq, now_ns)?;
        if self.sched.rqs[rq].curr().is_none() {
            return Err(Error::Idle(rq));
        }
        self.sched.set_clock(rq, now_ns);
        self.sched.yield_step(rq);
        Ok(self.actions(rq))
    }

    /// The current task of `rq` yields in favour of `target` (`yield_to`).
    ///
    /// The target becomes the buddy on each level of its chain and the caller yields. Nothing else
    /// is transferred, so that the hint has an effect only where the target is eligible. The feature
    /// `YIELD_TO_LAG_CREDIT` makes it eligible: see [`crate::lag_credit`]. After
    /// [`YieldTo::Yielded`] the caller must pick.
    ///
    /// # Errors
    ///
    /// As [`Self::yield_task`], and [`Error::NoSuchTask`].
    pub fn yield_to(&mut self, rq: RqId, target: TaskId, now_ns: u64) -> Result<YieldTo, Error> {
        self.yield_to_pulling(rq, target, false, now_ns)
    }

    /// [`Self::yield_to`]. With [`crate::lag_credit::LagCredit::across_run_queues`] a
    /// target on another run queue first moves to `rq`. Its affinity must allow that
    /// (`may_run_here`), and its group must have a part there.
    ///
    /// # Errors
    ///
    /// As [`Self::yield_to`].
    pub fn yield_to_pulling(
        &mut self,
        rq: RqId,
        target: TaskId,
        may_run_here: bool,
        now_ns: u64,
    ) -> Result<YieldTo, Error> {
        let p = self.sched.tree.task(target)?;
        self.sched.begin_check(rq, now_ns)?;
        if self.sched.rqs[rq].curr().is_none() {
            return Err(Error::Idle(rq));
        }
        match yield_to::yield_to(&mut self.sched, rq, p, may_run_here, now_ns)? {
            Outcome::OnlyOne => Ok(YieldTo::OnlyOne),
            Outcome::Refused => Ok(YieldTo::Refused),
            Outcome::Yielded {
                kicked,
                pulled,
                credit,
            } => Ok(YieldTo::Yielded {
                kicked,
                pulled,
                credit,
                actions: self.actions(rq),
            }),
        }
    }

    /// Changes a task's nice value (`set_user_nice`). Nothing happens if it is equal.
    ///
    /// # Errors
    ///
    /// [`Error::NiceOutOfRange`], or those of [`Self::tick`] for the task's run queue.
    pub fn set_nice(&mut self, id: TaskId, nice: i8, now_ns: u64) -> Result<(), Error> {
        let e = self.sched.tree.task(id)?;
        Attr {
            nice,
            ..Attr::default()
        }
        .check()?;
        change::check(&mut self.sched, e, now_ns)?;
        change::set_user_nice(&mut self.sched, e, nice);
        Ok(())
    }

    /// Changes policy, nice value and slice at once (`sched_setattr`). False if nothing differs.
    ///
    /// As in the kernel, a request of the base slice is always a change, and an idle task changes
    /// only by its policy. The new slice counts from the next deadline on. CFS ignores slices.
    ///
    /// A task that becomes idle keeps its nice value, but takes the priority of the requested one,
    /// with which the next change compares.
    ///
    /// # Errors
    ///
    /// Attributes out of range, or those of [`Self::tick`] for the task's run queue.
    pub fn set_attr(&mut self, id: TaskId, attr: Attr, now_ns: u64) -> Result<bool, Error> {
        attr.check()?;
        self.sched_setattr(
            id,
            attr.policy,
            attr.nice,
            attr.slice_ns.unwrap_or(0),
            now_ns,
        )
    }

    /// [`Self::set_attr`] with the system call's slice: 0 is the base slice, others are clamped to
    /// [[`SLICE_MIN_NS`], [`SLICE_MAX_NS`]] after the comparison with the current one.
    ///
    /// # Errors
    ///
    /// As [`Self::set_attr`], but for the slice.
    ///
    /// [`SLICE_MIN_NS`]: super::weights::SLICE_MIN_NS
    /// [`SLICE_MAX_NS`]: super::weights::SLICE_MAX_NS
    pub fn sched_setattr(
        &mut self,
        id: TaskId,
        policy: Policy,
        nice: i8,
        runtime_ns: u64,
        now_ns: u64,
    ) -> Result<bool, Error> {
        let e = self.sched.tree.task(id)?;
        Attr {
            policy,
            nice,
            slice_ns: None,
        }
        .check()?;
        change::check(&mut self.sched, e, now_ns)?;
        Ok(change::sched_setattr(
            &mut self.sched,
            e,
            policy,
            nice,
            runtime_ns,
        ))
    }

    /// Changes the affinity of a task that stays on its CPU (`do_set_cpus_allowed`). The caller
    /// keeps the set. Here the task is dequeued and enqueued again, which places a delayed or
    /// heavy one anew.
    ///
    /// # Errors
    ///
    /// Those of [`Self::tick`] for the task's run queue.
    pub fn set_cpus_allowed(&mut self, id: TaskId, now_ns: u64) -> Result<(), Error> {
        let e = self.sched.tree.task(id)?;
        change::check(&mut self.sched, e, now_ns)?;
        change::set_cpus_allowed(&mut self.sched, e);
        Ok(())
    }

    /// Moves a task to another group (`sched_move_task`).
    ///
    /// A sleeper keeps its lag. The current task gets a request to reschedule now.
    ///
    /// # Errors
    ///
    /// An unknown group, one without a part on the task's CPU, or those of [`Self::tick`].
    pub fn move_task(
        &mut self,
        id: TaskId,
        group: Option<GroupId>,
        now_ns: u64,
    ) -> Result<(), Error> {
        let e = self.sched.tree.task(id)?;
        if let Some(g) = group {
            self.sched.groups.get(g)?;
        }
        change::sched_move_task(&mut self.sched, e, group, now_ns)
    }
}
