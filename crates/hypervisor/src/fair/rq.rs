//! Run queues (`struct rq`): a CPU's clock, its current task, and what is pending on it.

use super::config::{PickMode, Preempt};
use super::ids::{Ent, Que};

/// Request to reschedule, pending on the current task of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Resched {
    /// None.
    #[default]
    None,
    /// At the next tick or return to user space (`TIF_NEED_RESCHED_LAZY`).
    Lazy,
    /// Now (`TIF_NEED_RESCHED`).
    Now,
}

/// The run queue of a CPU.
#[derive(Clone, Debug, Hash)]
#[repr(C)]
pub(crate) struct Rq {
    clock: u64,
    /// Until this time in ns no current entity can exceed `MAX_UNACCOUNTED_NS`.
    accounted_until_ns: u64,
    /// Expiry of the slice timer in ns; 0 for not armed.
    hrtick: u64,
    root: Que,
    /// Current task; none while idle.
    curr: Ent,
    mode: PickMode,
    resched: Resched,
    /// The current task has blocked.
    pick_due: bool,
}

const _: () = assert!(size_of::<Rq>() == 40);

impl Rq {
    /// Idle, with its clock at 0.
    pub(crate) fn new(mode: PickMode, root: Que) -> Self {
        Self {
            mode,
            root,
            clock: 0,
            accounted_until_ns: 0,
            curr: Ent::NONE,
            resched: Resched::None,
            hrtick: 0,
            pick_due: false,
        }
    }

    /// Time in ns of the last operation.
    #[inline]
    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    /// The queue of the root group.
    #[inline]
    pub(crate) fn root(&self) -> Que {
        self.root
    }

    /// Current task; none while idle.
    #[inline]
    pub(crate) fn curr(&self) -> Ent {
        self.curr
    }

    #[inline]
    pub(crate) fn mode(&self) -> PickMode {
        self.mode
    }

    #[inline]
    pub(crate) fn is_flat(&self) -> bool {
        self.mode == PickMode::Flat
    }

    /// The request that is pending on the current task.
    #[inline]
    pub(crate) fn resched(&self) -> Resched {
        self.resched
    }

    /// Whether the current task has blocked, so that a pick must follow.
    #[inline]
    pub(crate) fn is_pick_due(&self) -> bool {
        self.pick_due
    }

    /// Whether the clock may advance to `now_ns` without a look at the current entities.
    #[inline]
    pub(crate) fn may_advance_to(&self, now_ns: u64) -> bool {
        now_ns >= self.clock && now_ns <= self.accounted_until_ns
    }

    /// No current entity exceeds the longest time without an account until `time_ns`.
    pub(crate) fn set_accounted_until(&mut self, time_ns: u64) {
        self.accounted_until_ns = time_ns;
    }

    /// `update_rq_clock`.
    #[inline]
    pub(crate) fn set_clock(&mut self, now_ns: u64) {
        debug_assert!(now_ns >= self.clock, "the clock goes back");
        self.clock = now_ns;
    }

    /// `resched_curr_lazy`, `resched_curr`: a lower request never replaces a higher one.
    #[inline]
    pub(crate) fn resched_curr(&mut self, preempt: Preempt, request: Resched) {
        // The idle task always reschedules at once.
        let full = preempt == Preempt::Full || self.curr.is_none();
        let level = if full { Resched::Now } else { request };
        self.resched = self.resched.max(level);
    }

    /// The periodic tick makes a lazy request immediate.
    pub(crate) fn promote_lazy(&mut self) {
        if self.resched == Resched::Lazy {
            self.resched = Resched::Now;
        }
    }

    /// The current task has blocked.
    pub(crate) fn set_pick_due(&mut self) {
        self.pick_due = true;
    }

    /// The CPU has switched to `next`, which clears all requests.
    #[inline]
    pub(crate) fn picked(&mut self, next: Ent) {
        self.curr = next;
        if next.is_none() {
            self.hrtick = 0;
        }
        self.resched = Resched::None;
        self.pick_due = false;
    }

    /// Expiry of the slice timer in ns; `None` if it is not armed.
    #[inline]
    pub(crate) fn hrtick(&self) -> Option<u64> {
        (self.hrtick != 0).then_some(self.hrtick)
    }

    /// `hrtick_start`: arms the slice timer after `delay_ns`. It arms for at least 10 us, and leaves
    /// an expiry that differs by at most 5 us.
    #[inline]
    pub(crate) fn start_hrtick(&mut self, delay_ns: u64) {
        const FLOOR_NS: u64 = 10_000;
        const TOLERANCE_NS: u64 = 5_000;
        let expiry = self.clock.saturating_add(delay_ns.max(FLOOR_NS));
        if self.hrtick == 0 || self.hrtick.abs_diff(expiry) > TOLERANCE_NS {
            self.hrtick = expiry;
        }
    }

    /// The slice timer has fired.
    pub(crate) fn clear_hrtick(&mut self) {
        self.hrtick = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_timer_stays_where_it_would_move_by_5_us_at_most() {
        let mut rq = Rq::new(PickMode::Hierarchical, Que::NONE);
        rq.start_hrtick(3);
        assert_eq!(rq.hrtick(), Some(10_000), "10 us at least");
        for (delay_ns, expiry) in [(15_000, 10_000), (15_001, 15_001), (10_001, 15_001)] {
            rq.start_hrtick(delay_ns);
            assert_eq!(rq.hrtick(), Some(expiry), "after {delay_ns} ns");
        }
    }
}
