//! Yielding, directed yield, and the buddies it nominates.

use super::enqueue::{Dequeue, Enqueue};
use super::entity::TaskState;
use super::error::Error;
use super::features::Feature;
use super::ids::{Ent, Que, RqId, TaskId};
use super::queue::Resched;
use super::{Actions, Fair};
use crate::lag_credit::Credited;

/// What became of a directed yield (the return value of `yield_to`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YieldTo {
    /// Both CPUs have just one task: nothing was done (`-ESRCH`).
    OnlyOne,
    /// The target runs, sleeps or has a delayed dequeue: nothing was done (0).
    Refused,
    /// The target is nominated and the caller has yielded: the caller must pick (1).
    Yielded {
        /// Run queue of the target that was asked to reschedule, if not the caller's.
        kicked: Option<RqId>,
        /// Run queue from which the target was pulled to the caller's.
        pulled: Option<RqId>,
        /// What was done beyond the nomination; nothing without `YIELD_TO_LAG_CREDIT`.
        credit: Credited,
        /// State of the caller's requests and timer.
        actions: Actions,
    },
}

impl Fair {
    /// `set_next_buddy`: nominates `e` and its ancestors, up to an idle one.
    pub(crate) fn set_next_buddy(&mut self, mut e: Ent) {
        while e.is_some() {
            if !self.ent[e].on_rq || self.is_idle(e) {
                return;
            }
            let q = self.ent[e].queue;
            self.que[q].next = e;
            e = self.parent(e);
        }
    }

    /// `clear_buddies`: if `e` is the buddy of `q`, neither it nor its nominated ancestors are.
    #[inline(always)]
    pub(crate) fn clear_buddies(&mut self, q: Que, e: Ent) {
        if self.que[q].next == e {
            self.clear_buddies_up(q, e);
        }
    }

    #[inline(never)]
    fn clear_buddies_up(&mut self, q: Que, e: Ent) {
        self.que[q].next = Ent::NONE;
        let mut e = self.parent(e);
        while e.is_some() {
            let q = self.ent[e].queue;
            if self.que[q].next != e {
                return;
            }
            self.que[q].next = Ent::NONE;
            e = self.parent(e);
        }
    }

    /// `yield_task_fair`: the running task, if eligible, gives up the rest of its request.
    pub(crate) fn yield_step(&mut self, rq: RqId) {
        let r = &self.rqs[rq];
        let (curr, root) = (r.curr, r.root);
        if self.que[root].h_nr_queued == 1 {
            return;
        }
        if self.cfg.cfs.is_some() {
            self.cfs_yield(curr);
            return;
        }
        let q = self.arena(curr);
        self.clear_buddies(q, curr);
        self.update_curr(q);
        self.forfeit(q, curr);
    }

    /// Moves an eligible entity to the end of its request; one that is not loses nothing. Before 6.19
    /// any has its deadline put off by a slice.
    fn forfeit(&mut self, q: Que, e: Ent) {
        if !self.cfg.yield_forfeits {
            let ent = &mut self.ent[e];
            ent.deadline = ent.deadline.wrapping_add(ent.vtime(ent.slice.into()));
        } else if self.eligible(q, e) {
            self.ent[e].vruntime = self.ent[e].deadline;
            self.update_deadline(q, e);
        }
    }

    /// The running task yields (`do_sched_yield`). The caller picks next.
    ///
    /// # Errors
    ///
    /// As [`Self::tick`], and [`Error::Idle`] while the idle task runs.
    pub fn yield_task(&mut self, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        self.begin_check(rq, now_ns)?;
        if self.rqs[rq].curr.is_none() {
            return Err(Error::Idle(rq));
        }
        self.set_clock(rq, now_ns);
        self.yield_step(rq);
        Ok(self.actions(rq))
    }

    /// The running task of `rq` yields in favour of `target` (`yield_to`).
    ///
    /// The target becomes the buddy on each level of its chain and the caller yields; nothing
    /// else is transferred, so the hint holds only where the target is eligible. With
    /// `YIELD_TO_LAG_CREDIT` on it is made so: see [`crate::lag_credit`]. After
    /// [`YieldTo::Yielded`] the caller picks.
    ///
    /// # Errors
    ///
    /// As [`Self::yield_task`], and [`Error::NoSuchTask`].
    pub fn yield_to(&mut self, rq: RqId, target: TaskId, now_ns: u64) -> Result<YieldTo, Error> {
        self.yield_to_pulling(rq, target, false, now_ns)
    }

    /// [`Self::yield_to`], and with [`crate::lag_credit::LagCredit::across_run_queues`] a target
    /// on another run queue comes to `rq` first if `may_run_here`: its affinity allows it. A target
    /// whose group has no part on `rq` stays.
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
        let p = self.task(target)?;
        self.begin_check(rq, now_ns)?;
        if self.rqs[rq].curr.is_none() {
            return Err(Error::Idle(rq));
        }
        let (queued, p_rq) = (self.ent[p].on_rq, self.ent[p].rq);
        if queued && p_rq != rq {
            self.check_clock(p_rq, now_ns)?;
        }
        self.set_clock(rq, now_ns);
        // A sleeper's run queue is the one that it was on last (`task_rq`).
        let other = if p_rq.0 == u32::MAX { rq } else { p_rq };
        if self.nr_queued(rq) == 1 && self.nr_queued(other) == 1 {
            return Ok(YieldTo::OnlyOne);
        }
        if !queued || self.is_running(p) || self.ent[p].state != TaskState::Runnable {
            return Ok(YieldTo::Refused);
        }
        self.set_clock(p_rq, now_ns);
        let credit = self.cfg.features.has(Feature::YieldToLagCredit);
        let pull = credit && self.cfg.lag_credit.across_run_queues && may_run_here && p_rq != rq;
        let pulled = if pull { self.pull(p, rq)? } else { None };
        self.nominate(p);
        let mut done = Credited::default();
        if credit {
            done = self.credit_yield(rq, p);
        } else {
            self.yield_step(rq);
        }
        let now_on = self.ent[p].rq;
        let kicked = (now_on != rq).then_some(now_on);
        if let Some(kicked) = kicked {
            self.request(kicked, Resched::Now);
        }
        Ok(YieldTo::Yielded {
            kicked,
            pulled,
            credit: done,
            actions: self.actions(rq),
        })
    }

    /// Moves a queued task to another run queue, if its group has a part there.
    fn pull(&mut self, p: Ent, to: RqId) -> Result<Option<RqId>, Error> {
        let from = self.ent[p].rq;
        if self.home(self.ent[p].group(), to).is_err() {
            return Ok(None);
        }
        self.dequeue_task(p, Dequeue::default());
        self.rehome(p, to)?;
        self.enqueue_task(p, Enqueue::default());
        Ok(Some(from))
    }

    /// Makes `p`, a task or a group, the buddy: from its level up, or under flat picking in the one queue.
    pub(crate) fn nominate(&mut self, p: Ent) {
        if !self.is_flat(self.ent[p].rq) {
            self.set_next_buddy(p);
        } else if !self.is_idle(p) {
            let q = self.arena(p);
            self.que[q].next = p;
        }
    }

    /// Tasks on a run queue, delayed ones counted (`rq->nr_running`).
    pub(crate) fn nr_queued(&self, rq: RqId) -> u32 {
        self.que[self.rqs[rq].root].h_nr_queued
    }

    /// Whether `p` is the running task of its run queue.
    pub(crate) fn is_running(&self, p: Ent) -> bool {
        self.rqs
            .0
            .get(self.ent[p].rq.0 as usize)
            .is_some_and(|r| r.curr == p)
    }
}
