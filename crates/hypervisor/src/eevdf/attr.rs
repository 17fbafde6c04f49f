//! Changes to a task: nice, policy, slice, group.

use super::Fair;
use super::enqueue::{Dequeue, Enqueue};
use super::entity::{Attr, Marks, Policy};
use super::error::Error;
use super::ids::{Ent, GroupId, RqId, TaskId};
use super::preempt::Arrival;
use super::queue::Resched;
use super::weights::{SLICE_MAX_NS, SLICE_MIN_NS};

/// Where a task was when it was taken off for a change.
struct Bracket {
    queued: bool,
    running: bool,
    /// Priority then.
    prio: i8,
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
            prio: self.ent[e].prio(),
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
    fn prio_changed(&mut self, e: Ent, bracket: &Bracket) {
        if !bracket.queued {
            return;
        }
        let (rq, prio) = (self.ent[e].rq, self.ent[e].prio());
        let root = self.rqs[rq].root;
        if self.que[root].members == 1 {
            return;
        }
        if !bracket.running {
            self.check_preempt(e, Arrival::PLAIN);
        } else if prio > bracket.prio {
            self.request(rq, Resched::Now);
        }
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
        if nice == self.ent[e].nice() {
            return Ok(());
        }
        let bracket = self.take_off(e, false);
        let ent = &mut self.ent[e];
        ent.class = ent.class.with_nice(nice);
        self.set_load_weight(e);
        self.put_back(e, &bracket);
        // In 6.1 `set_user_nice` does not compare priorities, as 7.2 and `sched_setattr` do.
        if self.cfg.cfs.is_some() || nice != bracket.prio {
            self.prio_changed(e, &bracket);
        }
        Ok(())
    }

    /// Changes policy, nice value and slice at once (`sched_setattr`): false if nothing differs
    /// and nothing was done.
    ///
    /// Asking for the base slice is always a change, and an idle task changes only by its policy,
    /// as in the kernel. The new slice counts from the next deadline on. CFS has no slices: they
    /// neither make a change nor are kept.
    ///
    /// A task that becomes idle keeps its nice value, but takes the priority of the one asked for:
    /// the next change compares with that.
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
        let (ent, cfs) = (&self.ent[e], self.cfg.cfs.is_some());
        // 6.1 has no slices to compare.
        let same_slice = cfs || runtime_ns == u64::from(ent.slice);
        let same_rest = policy == Policy::Idle || (nice == ent.nice() && same_slice);
        if policy == ent.policy() && same_rest {
            return Ok(false);
        }
        // Without another priority nothing moves (`DEQUEUE_MOVE`).
        let bracket = self.take_off(e, nice != ent.prio());
        let base = self.cfg.base_slice_ns;
        let ent = &mut self.ent[e];
        ent.class = ent.class.with_policy(policy, nice);
        if policy != Policy::Idle {
            ent.class = ent.class.with_nice(nice);
            ent.marks.set(Marks::CUSTOM_SLICE, runtime_ns != 0 && !cfs);
            let slice_ns = match runtime_ns {
                0 => base,
                _ if cfs => base,
                ns => ns.clamp(SLICE_MIN_NS, SLICE_MAX_NS),
            };
            ent.slice = slice_ns as u32;
        }
        self.set_load_weight(e);
        self.put_back(e, &bracket);
        if nice != bracket.prio {
            self.prio_changed(e, &bracket);
        }
        Ok(true)
    }

    /// The CPUs that a task may use change, and it stays where it is (`do_set_cpus_allowed`). The
    /// set is the caller's; here the task is taken off and put back, by which a delayed or heavy
    /// one is placed anew.
    ///
    /// # Errors
    ///
    /// Those of [`Self::tick`] for the task's run queue.
    pub fn set_cpus_allowed(&mut self, id: TaskId, now_ns: u64) -> Result<(), Error> {
        let e = self.task(id)?;
        self.begin_change(e, now_ns)?;
        let bracket = self.take_off(e, false);
        self.put_back(e, &bracket);
        Ok(())
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
        let sleeps = self.cfs_settle(e);
        self.ent[e].set_group(group);
        self.unhome(e);
        if on_cpu {
            self.rehome(e, rq)?;
        } else if sleeps && self.home(group, rq).is_ok() {
            self.rehome(e, rq)?;
            self.cfs_renormalize(self.ent[e].queue, e);
        }
        self.put_back(e, &bracket);
        if bracket.running {
            self.request(rq, Resched::Now);
        } else if bracket.queued && self.cfg.cfs.is_none() {
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
