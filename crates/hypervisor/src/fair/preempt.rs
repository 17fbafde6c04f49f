//! Preemption by a task that became runnable (`wakeup_preempt`).

use super::Fair;
use super::entity::Policy;
use super::ids::Ent;
use super::queue::Resched;
use super::task::Arrival;

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
    pub(crate) fn check_preempt(&mut self, p: Ent, arrival: Arrival) {
        self.check_preempt_inline(p, arrival);
    }

    /// [`Self::check_preempt`], compiled into its caller.
    #[inline(always)]
    pub(crate) fn check_preempt_inline(&mut self, p: Ent, arrival: Arrival) {
        let rq = self.ent[p].rq;
        let r = &mut self.rqs[rq];
        let curr = r.curr;
        if self.ent.get(curr).is_none() {
            // `wakeup_preempt`: the first fair task preempts the idle task, once.
            if !core::mem::replace(&mut r.announced, true) {
                self.resched_curr(rq, Resched::Now);
            }
        } else if p != curr {
            self.class_check_preempt(rq, curr, p, arrival);
        }
    }
}
