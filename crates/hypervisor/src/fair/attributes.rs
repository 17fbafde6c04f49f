//! Changes to a task: nice, policy, slice, group.

use super::Fair;
use super::enqueue::{Dequeue, Enqueue};
use super::entity::{Attr, Marks, Policy};
use super::error::Error;
use super::ids::{Ent, GroupId, RqId, TaskId};
use super::queue::Resched;
use super::task::Arrival;
use super::weights::{SLICE_MAX_NS, SLICE_MIN_NS};

/// `struct sched_change_ctx`: the state of a task before a change.
struct ChangeContext {
    queued: bool,
    running: bool,
    prio: i8,
}

impl Fair {
    /// Checks a change to `e` and sets the clock of its run queue, if it is on one.
    fn begin_change(&mut self, e: Ent, now_ns: u64) -> Result<(), Error> {
        let rq = self.ent[e].rq;
        if rq.0 == u32::MAX || !(self.ent[e].on_rq || self.is_running(e)) {
            return Ok(());
        }
        self.begin(rq, now_ns)
    }

    /// `sched_change_begin`: takes a task off its queue and its CPU. `moves`: its virtual runtime
    /// or priority may change (`DEQUEUE_MOVE`).
    fn change_begin(&mut self, e: Ent, moves: bool) -> ChangeContext {
        let context = ChangeContext {
            queued: self.ent[e].on_rq,
            running: self.is_running(e),
            prio: self.ent[e].prio(),
        };
        if context.queued {
            let flags = Dequeue {
                saves: !moves,
                ..Dequeue::default()
            };
            self.dequeue_task(e, flags);
        }
        if context.running {
            self.put_prev(e, Ent::NONE);
        }
        context
    }

    /// `sched_change_end`, without its check for a preemption.
    fn change_end(&mut self, e: Ent, context: &ChangeContext) {
        debug_assert!(!self.ent[e].on_rq, "change_begin has dequeued it");
        if context.queued {
            self.enqueue_task(e, Enqueue::default());
        }
        if context.running {
            self.set_next(e, false);
        }
    }

    /// `prio_changed_fair`.
    fn prio_changed(&mut self, e: Ent, context: &ChangeContext) {
        if !context.queued {
            return;
        }
        let (rq, prio) = (self.ent[e].rq, self.ent[e].prio());
        let root = self.rqs[rq].root;
        if self.que[root].members == 1 {
            return;
        }
        if !context.running {
            self.check_preempt(e, Arrival::PLAIN);
        } else if prio > context.prio {
            self.resched_curr(rq, Resched::Now);
        }
    }

    /// `set_load_weight`, of a task that is off its queue.
    fn set_load_weight(&mut self, e: Ent) {
        let attr = Attr {
            policy: self.ent[e].policy(),
            nice: self.ent[e].nice(),
            slice_ns: None,
        };
        self.set_load(e, attr.weight());
        // Under flat picking the enqueue that follows computes the share of the tree.
        let rq = self.ent[e].rq;
        if rq.0 == u32::MAX || !self.is_flat(rq) {
            self.rescale_entity(e, attr.weight(), false);
        }
    }

    /// Changes a task's nice value (`set_user_nice`). Nothing happens if it is equal.
    ///
    /// # Errors
    ///
    /// [`Error::NiceOutOfRange`], or those of [`Self::tick`] for the task's run queue.
    pub fn set_nice(&mut self, id: TaskId, nice: i8, now_ns: u64) -> Result<(), Error> {
        let e = self.task(id)?;
        Attr {
            nice,
            ..Attr::default()
        }
        .check()?;
        self.begin_change(e, now_ns)?;
        if nice == self.ent[e].nice() {
            return Ok(());
        }
        let context = self.change_begin(e, false);
        let ent = &mut self.ent[e];
        ent.class = ent.class.with_nice(nice);
        self.set_load_weight(e);
        self.change_end(e, &context);
        if self.cfg.rules().set_nice_always_checks || nice != context.prio {
            self.prio_changed(e, &context);
        }
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
    pub fn sched_setattr(
        &mut self,
        id: TaskId,
        policy: Policy,
        nice: i8,
        runtime_ns: u64,
        now_ns: u64,
    ) -> Result<bool, Error> {
        let e = self.task(id)?;
        Attr {
            policy,
            nice,
            slice_ns: None,
        }
        .check()?;
        self.begin_change(e, now_ns)?;
        let (ent, slices) = (&self.ent[e], self.cfg.rules().custom_slices);
        let same_slice = !slices || runtime_ns == u64::from(ent.slice);
        let same_rest = policy == Policy::Idle || (nice == ent.nice() && same_slice);
        if policy == ent.policy() && same_rest {
            return Ok(false);
        }
        // Without another priority nothing moves (`DEQUEUE_MOVE`).
        let context = self.change_begin(e, nice != ent.prio());
        let base = self.cfg.base_slice_ns;
        let ent = &mut self.ent[e];
        ent.class = ent.class.with_policy(policy, nice);
        if policy != Policy::Idle {
            ent.class = ent.class.with_nice(nice);
            ent.marks
                .set(Marks::CUSTOM_SLICE, runtime_ns != 0 && slices);
            let slice_ns = match runtime_ns {
                0 => base,
                _ if !slices => base,
                ns => ns.clamp(SLICE_MIN_NS, SLICE_MAX_NS),
            };
            ent.slice = slice_ns as u32;
        }
        self.set_load_weight(e);
        self.change_end(e, &context);
        if nice != context.prio {
            self.prio_changed(e, &context);
        }
        Ok(true)
    }

    /// Changes the affinity of a task that stays on its CPU (`do_set_cpus_allowed`). The caller
    /// keeps the set. Here the task is dequeued and enqueued again, which places a delayed or
    /// heavy one anew.
    ///
    /// # Errors
    ///
    /// Those of [`Self::tick`] for the task's run queue.
    pub fn set_cpus_allowed(&mut self, id: TaskId, now_ns: u64) -> Result<(), Error> {
        let e = self.task(id)?;
        self.begin_change(e, now_ns)?;
        let context = self.change_begin(e, false);
        self.change_end(e, &context);
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
        let e = self.task(id)?;
        if let Some(g) = group {
            self.group(g)?;
        }
        let rq = self.ent[e].rq;
        let on_cpu = self.ent[e].on_rq || self.is_running(e);
        if on_cpu {
            self.group_cfs_rq(group, rq)?;
        }
        self.begin_change(e, now_ns)?;
        if group == self.ent[e].group() {
            return Ok(());
        }
        let context = self.change_begin(e, true);
        if let Some(g) = self.ent[e].group() {
            self.groups[g].tasks -= 1;
        }
        if let Some(g) = group {
            self.groups[g].tasks += 1;
        }
        let sleeps = self.detach_sleeper(e);
        self.ent[e].set_group(group);
        self.clear_task_rq(e);
        if on_cpu {
            self.set_task_rq(e, rq)?;
        } else if sleeps && self.group_cfs_rq(group, rq).is_ok() {
            self.set_task_rq(e, rq)?;
            self.attach_sleeper(e);
        }
        self.change_end(e, &context);
        if context.running {
            self.resched_curr(rq, Resched::Now);
        } else if context.queued && self.cfg.rules().move_checks_preempt {
            self.check_preempt(e, Arrival::PLAIN);
        }
        Ok(())
    }

    /// Request pending and slice timer of a run queue, as after the last operation.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRq`].
    pub fn pending(&self, rq: RqId) -> Result<super::Actions, Error> {
        self.rqs.0.get(rq.0 as usize).ok_or(Error::NoSuchRq(rq))?;
        Ok(self.actions(rq))
    }
}
