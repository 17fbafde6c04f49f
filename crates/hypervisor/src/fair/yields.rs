//! Yield and directed yield, and the nomination of buddies.

use super::enqueue::{Dequeue, Enqueue};
use super::entity::TaskState;
use super::error::Error;
use super::features::Feature;
use super::ids::{Ent, Que, RqId, TaskId};
use super::queue::Resched;
use super::{Actions, Fair};
use crate::lag_credit::Credited;

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

    /// `__clear_buddies_next`: clears `e` as the buddy of `q`, and its nominated ancestors.
    #[inline(always)]
    pub(crate) fn clear_next_buddy(&mut self, q: Que, e: Ent) {
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

    /// `yield_task_fair`.
    pub(crate) fn yield_step(&mut self, rq: RqId) {
        let r = &self.rqs[rq];
        let (curr, root) = (r.curr, r.root);
        if self.que[root].h_nr_queued == 1 {
            return;
        }
        self.class_yield_task(curr);
    }

    /// The current task yields (`do_sched_yield`). The caller must pick.
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
        // `task_rq` of a sleeper is its last run queue; a task without one counts for `rq`.
        let target_rq = if p_rq.0 == u32::MAX { rq } else { p_rq };
        if self.nr_queued(rq) == 1 && self.nr_queued(target_rq) == 1 {
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
        let mut credited = Credited::default();
        if credit {
            credited = self.credit_yield(rq, p);
        } else {
            self.yield_step(rq);
        }
        debug_assert!(self.ent[p].on_rq, "a yield dequeues no target");
        let target_rq = self.ent[p].rq;
        let kicked = (target_rq != rq).then_some(target_rq);
        if let Some(kicked) = kicked {
            self.resched_curr(kicked, Resched::Now);
        }
        Ok(YieldTo::Yielded {
            kicked,
            pulled,
            credit: credited,
            actions: self.actions(rq),
        })
    }

    /// Moves a queued task to `rq`, if its group has a part there, and returns its old run queue.
    fn pull(&mut self, p: Ent, rq: RqId) -> Result<Option<RqId>, Error> {
        let source = self.ent[p].rq;
        if self.group_cfs_rq(self.ent[p].group(), rq).is_err() {
            return Ok(None);
        }
        self.dequeue_task(p, Dequeue::default());
        self.set_task_rq(p, rq)?;
        self.enqueue_task(p, Enqueue::default());
        Ok(Some(source))
    }

    /// Nominates `p`, a task or a group, as buddy: from its level up, or in the root's queue under
    /// flat picking.
    pub(crate) fn nominate(&mut self, p: Ent) {
        if !self.is_flat(self.ent[p].rq) {
            self.set_next_buddy(p);
        } else if !self.is_idle(p) {
            let q = self.pick_queue(p);
            self.que[q].next = p;
        }
    }

    /// Tasks on a run queue, delayed ones included (`rq->nr_running`).
    pub(crate) fn nr_queued(&self, rq: RqId) -> u32 {
        self.que[self.rqs[rq].root].h_nr_queued
    }

    /// Whether `p` is the current task of its run queue.
    pub(crate) fn is_running(&self, p: Ent) -> bool {
        self.rqs
            .0
            .get(self.ent[p].rq.0 as usize)
            .is_some_and(|r| r.curr == p)
    }
}
