//! Changes to a task: nice, policy, slice, group.

use super::Fair;
use super::enqueue::{Dequeue, Enqueue};
use super::entity::{Attr, Class, Policy};
use super::error::Error;
use super::ids::{Ent, GroupId, RqId, TaskId};
use super::preempt::Arrival;
use super::queue::Resched;
use super::weights::{SLICE_MAX_NS, SLICE_MIN_NS};

/// Where a task was when it was taken off for a change.
struct Bracket {
    queued: bool,
    running: bool,
}

impl Fair {
    /// Checks a change to `e` and sets its run queue's clock. A task on no CPU has none.
    fn begin_change(&mut self, e: Ent, now_ns: u64) -> Result<(), Error> {
        let rq = self.ent[e].rq;
        if rq.0 == u32::MAX || !(self.ent[e].on_rq || self.is_running(e)) {
            return Ok(());
        }
        self.begin(rq, now_ns)
    }

    /// `sched_change_begin`: off the queue, and off the CPU, to come back to where it was or to `move`.
    fn take_off(&mut self, e: Ent, moves: bool) -> Bracket {
        let bracket = Bracket {
            queued: self.ent[e].on_rq,
            running: self.is_running(e),
        };
        if bracket.queued {
            let flags = Dequeue {
                saves: !moves,
                ..Dequeue::default()
            };
            self.dequeue_task(e, flags);
        }
        if bracket.running {
            self.put_prev(e, Ent::NONE);
        }
        bracket
    }

    /// `sched_change_end`, without its last check.
    fn put_back(&mut self, e: Ent, bracket: &Bracket) {
        if bracket.queued {
            self.enqueue_task(e, Enqueue::default());
        }
        if bracket.running {
            self.set_next(e, false);
        }
    }

    /// `prio_changed_fair`.
    fn prio_changed(&mut self, e: Ent, bracket: &Bracket, old_nice: i8) {
        let nice = self.ent[e].nice();
        if !bracket.queued || nice == old_nice {
            return;
        }
        let rq = self.ent[e].rq;
        let root = self.rqs[rq].root;
        if self.que[root].members == 1 {
            return;
        }
        if !bracket.running {
            self.check_preempt(e, Arrival::PLAIN);
        } else if nice > old_nice {
            self.request(rq, Resched::Now);
        }
    }

    fn note_nice(&mut self, e: Ent, nice: i8) {
        let ent = &mut self.ent[e];
        ent.class = Class::new(ent.policy(), nice);
    }

    /// Gives a task that is off the queue the weight of its policy and nice value.
    fn set_load_weight(&mut self, e: Ent) {
        let attr = Attr {
            policy: self.ent[e].policy(),
            nice: self.ent[e].nice(),
            slice_ns: None,
        };
        self.set_load(e, attr.weight());
        // Under flat picking the share of the tree follows in one step when it is queued again.
        let rq = self.ent[e].rq;
        if rq.0 == u32::MAX || !self.is_flat(rq) {
            self.rescale(e, attr.weight(), false);
        }
    }

    /// Changes a task's nice value (`set_user_nice`). Nothing happens if it is the same.
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
        let old = self.ent[e].nice();
        if nice == old {
            return Ok(());
        }
        let bracket = self.take_off(e, false);
        self.note_nice(e, nice);
        self.set_load_weight(e);
        self.put_back(e, &bracket);
        self.prio_changed(e, &bracket, old);
        Ok(())
    }

    /// Changes policy, nice value and slice at once (`sched_setattr`): false if nothing differs
    /// and nothing was done.
    ///
    /// Asking for the base slice is always a change, and an idle task changes only by its policy,
    /// as in the kernel. The new slice counts from the next deadline on.
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
        let ent = &self.ent[e];
        let old = ent.nice();
        let same_rest =
            policy == Policy::Idle || (nice == old && runtime_ns == u64::from(ent.slice));
        if policy == ent.policy() && same_rest {
            return Ok(false);
        }
        let bracket = self.take_off(e, false);
        let base = self.cfg.base_slice_ns;
        let ent = &mut self.ent[e];
        ent.class = Class::new(policy, old);
        if policy != Policy::Idle {
            ent.class = Class::new(policy, nice);
            ent.custom_slice = runtime_ns != 0;
            let slice_ns = match runtime_ns {
                0 => base,
                ns => ns.clamp(SLICE_MIN_NS, SLICE_MAX_NS),
            };
            ent.slice = slice_ns as u32;
        }
        self.set_load_weight(e);
        self.put_back(e, &bracket);
        // The priority that counts is the nice value asked for, under any policy.
        self.prio_changed_to(e, &bracket, old, nice);
        Ok(true)
    }

    fn prio_changed_to(&mut self, e: Ent, bracket: &Bracket, old: i8, asked: i8) {
        let kept = self.ent[e].nice();
        self.note_nice(e, asked);
        self.prio_changed(e, bracket, old);
        self.note_nice(e, kept);
    }

    /// Moves a task to another group (`sched_move_task`).
    ///
    /// A sleeper keeps its lag. A running task is asked to reschedule at once.
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
            self.home(group, rq)?;
        }
        self.begin_change(e, now_ns)?;
        if group == self.ent[e].group() {
            return Ok(());
        }
        let bracket = self.take_off(e, true);
        if let Some(g) = self.ent[e].group() {
            self.groups[g].tasks -= 1;
        }
        if let Some(g) = group {
            self.groups[g].tasks += 1;
        }
        self.ent[e].set_group(group);
        self.unhome(e);
        if on_cpu {
            self.rehome(e, rq)?;
        }
        self.put_back(e, &bracket);
        if bracket.running {
            self.request(rq, Resched::Now);
        } else if bracket.queued {
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
