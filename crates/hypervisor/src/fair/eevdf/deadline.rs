//! Requests and their virtual deadlines: renewal, forfeit, and the timer at the end of a slice.

use crate::fair::Fair;
use crate::fair::features::Feature;
use crate::fair::ids::{Ent, Que, RqId};
use crate::fair::queue::Resched;
use crate::fair::weights::before;

/// `yield_task_fair`: moves an eligible entity to the end of its request. An entity that is not
/// eligible stays. Up to 6.18 the deadline of any entity moves by a slice instead.
pub(super) fn forfeit(fair: &mut Fair, q: Que, e: Ent) {
    if !fair.cfg.yield_forfeits {
        let ent = &mut fair.ent[e];
        ent.deadline = ent.deadline.wrapping_add(ent.vtime(ent.slice.into()));
    } else if fair.eligible(q, e) {
        fair.ent[e].vruntime = fair.ent[e].deadline;
        fair.update_deadline(q, e);
    }
}

impl Fair {
    /// `update_deadline`: starts a new request if the deadline is reached, and returns whether.
    #[inline(always)]
    pub(crate) fn update_deadline(&mut self, q: Que, e: Ent) -> bool {
        let base = self.cfg.base_slice_ns;
        let ent = &mut self.ent[e];
        if before(ent.vruntime, ent.deadline) {
            return false;
        }
        if !ent.custom_slice() {
            ent.slice = base as u32;
        }
        ent.deadline = ent.vruntime.wrapping_add(ent.vtime(u64::from(ent.slice)));
        self.avg_vruntime(q);
        true
    }

    /// `hrtick_start_fair` for task entity `e`, with `hrtick_start`'s floor and tolerance.
    pub(crate) fn arm_hrtick(&mut self, rq: RqId, e: Ent) {
        // `hrtick_start` arms for at least 10 us, and leaves an expiry that differs by at most 5 us.
        const FLOOR_NS: u64 = 10_000;
        const TOLERANCE_NS: u64 = 5_000;
        let r = &self.rqs[rq];
        if self.que[r.root].h_nr_queued < 2 || !self.cfg.rules().hrtick {
            return;
        }
        let ent = &self.ent[e];
        let ahead = ent.deadline.wrapping_sub(ent.vruntime) as i64;
        if ahead < 0 {
            // Late after a change of weight. During a pick `e` is not the current task yet.
            if r.curr == e {
                self.resched_curr(rq, Resched::Now);
            }
            return;
        }
        let real = (u128::from(ent.weight) * ahead as u128) >> 20;
        let real = u64::try_from(real).unwrap_or(u64::MAX).max(FLOOR_NS);
        let expiry = r.clock.saturating_add(real);
        if r.hrtick == 0 || r.hrtick.abs_diff(expiry) > TOLERANCE_NS {
            self.rqs[rq].hrtick = expiry;
        }
    }

    /// `hrtick_update`: an enqueue arms the timer for the current task, unless it is armed.
    #[inline]
    pub(crate) fn hrtick_update(&mut self, rq: RqId) {
        if !self.cfg.features.has(Feature::Hrtick) {
            return;
        }
        let r = &self.rqs[rq];
        if r.hrtick == 0 && r.curr.is_some() {
            self.arm_hrtick(rq, r.curr);
        }
    }
}
