//! Whether a task that became runnable takes the CPU (`wakeup_preempt`).

use super::Fair;
use super::entity::Policy;
use super::features::Feature;
use super::ids::{Ent, Que, RqId};
use super::pick::FINAL;
use super::queue::Resched;
use super::task::WakeFlags;
use super::weights::before;

/// How the task that is to be checked came (`WF_*`).
#[derive(Clone, Copy)]
pub(crate) struct Arrival(u8);

impl Arrival {
    /// By a migration or a change.
    pub(crate) const PLAIN: Self = Self(0);
    /// For the first time.
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

    #[inline]
    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

impl Fair {
    /// `se_is_idle`: a task with the idle policy, or an idle group.
    #[inline]
    pub(crate) fn is_idle(&self, e: Ent) -> bool {
        let ent = &self.ent[e];
        if ent.is_task() {
            ent.policy() == Policy::Idle
        } else {
            self.que[ent.my_q].is_idle()
        }
    }

    /// `wakeup_preempt` and `check_preempt_wakeup_fair` for task `p` on its run queue.
    #[inline(never)]
    pub(crate) fn check_preempt(&mut self, p: Ent, how: Arrival) {
        self.check_here(p, how);
    }

    /// [`Self::check_preempt`], compiled into its caller.
    #[inline(always)]
    pub(crate) fn check_here(&mut self, p: Ent, how: Arrival) {
        let rq = self.ent[p].rq;
        let r = &mut self.rqs[rq];
        let curr = r.curr;
        let Some(c) = self.ent.at(curr) else {
            if !core::mem::replace(&mut r.announced, true) {
                self.request(rq, Resched::Now);
            }
            return;
        };
        if let Some(cfs) = self.cfg.cfs.filter(|_| p != curr) {
            self.cfs_check_preempt(&cfs, curr, p, how);
            return;
        }
        if p == curr || r.resched == Resched::Now {
            return;
        }
        if !self.cfg.features.has(Feature::WakeupPreemption) {
            return;
        }
        let (q, pe) = (self.arena(curr), &self.ent[p]);
        // Under flat picking this is always so: the tasks themselves compete. The queue has been
        // charged when the task joined it.
        if q == self.arena(p) {
            let (se_idle, policy) = (c.policy() == Policy::Idle, pe.policy());
            if se_idle && policy != Policy::Idle {
                self.preempt_short(rq, q, curr);
            } else if policy == Policy::Normal {
                self.contest(rq, q, curr, p, how);
            }
            return;
        }
        self.check_preempt_cousin(rq, curr, p, how);
    }

    /// [`Self::check_preempt`] where the tasks are in different groups: their ancestors compete.
    #[inline(never)]
    fn check_preempt_cousin(&mut self, rq: RqId, curr: Ent, p: Ent, how: Arrival) {
        let (se, pse) = self.siblings(curr, p);
        let (se_idle, pse_idle) = (self.is_idle(se), self.is_idle(pse));
        if se_idle && !pse_idle {
            // The kernel looks for the buddy in the running task's own queue here.
            let buddy_queue = self.arena(curr);
            self.preempt_short(rq, buddy_queue, se);
            return;
        }
        if se_idle != pse_idle || self.ent[p].policy() != Policy::Normal {
            return;
        }
        let q = self.arena(se);
        self.update_curr(q);
        self.contest(rq, q, se, pse, how);
    }

    /// Whether `pse` is picked in `q`, where `se` runs and is charged.
    #[inline(always)]
    fn contest(&mut self, rq: RqId, q: Que, se: Ent, pse: Ent, how: Arrival) {
        let (slice, pe) = (self.ent[se].slice, &self.ent[pse]);
        let short = pe.slice < slice && self.cfg.features.has(Feature::PreemptShort);
        if !short && (how.is_fork() || pe.delayed) {
            return;
        }
        if !short && self.cfg.features.has(Feature::NextBuddy) && self.next_buddy(q, se, pse, how) {
            return;
        }
        if self.pick_settled(q, !short) != pse {
            if self.cfg.features.has(Feature::RunToParity) {
                self.update_protect(q, se);
            }
        } else if short {
            self.preempt_short(rq, q, se);
        } else {
            self.request(rq, Resched::Lazy);
        }
    }

    /// `set_preempt_buddy` and `preempt_sync`: nominates `pse`, unless the buddy that is there has
    /// the earlier deadline. True if that decides: a synchronous wakeup preempts by the time that
    /// the waker has run, or not at all.
    ///
    /// The kernel asks just after it has charged the waker, when that time is 0: such a wakeup
    /// preempts only at a cost of migration of 0.
    #[inline(never)]
    fn next_buddy(&mut self, q: Que, se: Ent, pse: Ent, how: Arrival) -> bool {
        let deadline = self.ent[pse].deadline;
        let buddy = self.ent.at(self.que[q].next);
        if buddy.is_some_and(|b| before(b.deadline, deadline)) {
            return false;
        }
        self.nominate(pse);
        if !how.has(Arrival::SYNC) {
            return false;
        }
        let shift = if how.has(Arrival::RQ_SELECTED) { 2 } else { 0 };
        let (se, rq) = (&self.ent[se], self.ent[pse].rq);
        let ran = self.now.saturating_sub(se.exec_start);
        if before(deadline, se.deadline) && ran >= self.cfg.migration_cost_ns >> shift {
            self.request(rq, Resched::Lazy);
        }
        true
    }

    /// Picks in `q`, dequeueing what was delayed, until something that runs is found.
    #[inline(always)]
    fn pick_settled(&mut self, q: Que, protect: bool) -> Ent {
        loop {
            let e = self.pick_eevdf(q, protect);
            if !self.ent[e].delayed {
                return e;
            }
            self.dequeue_task(e, FINAL);
            if self.que[q].members == 0 {
                return Ent::NONE;
            }
        }
    }

    /// Preempts `se` although its protected period is not over.
    #[inline(never)]
    fn preempt_short(&mut self, rq: RqId, buddy_queue: Que, se: Ent) {
        self.ent[se].cancel_protect();
        self.clear_buddies(buddy_queue, se);
        self.request(rq, Resched::Lazy);
    }
}
