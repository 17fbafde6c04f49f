//! Accounting of run time, ticks, and requests to reschedule.

use super::config::Preempt;
use super::error::Error;
use super::features::Feature;
use super::ids::{Ent, Que, RqId};
use super::queue::Resched;
use super::weights::before;
use super::{Actions, Fair};

/// A running entity must be accounted for within this time (68.7 s): beyond, the weighted sums
/// could leave 64 bits.
pub(crate) const MAX_UNACCOUNTED_NS: u64 = 1 << 36;

impl Fair {
    /// Checks that `now` can be the time of the next operation on `rq`.
    #[inline]
    pub(crate) fn check_clock(&mut self, rq: RqId, now_ns: u64) -> Result<(), Error> {
        let r = self.rqs.0.get(rq.0 as usize).ok_or(Error::NoSuchRq(rq))?;
        if now_ns >= r.clock && now_ns <= r.unasked_until {
            return Ok(());
        }
        self.check_unaccounted(rq, now_ns)
    }

    /// Looks at each running entity of the chain, and remembers how long that need not be done.
    #[cold]
    #[inline(never)]
    fn check_unaccounted(&mut self, rq: RqId, now_ns: u64) -> Result<(), Error> {
        let clock_ns = self.rqs[rq].clock;
        if now_ns < clock_ns {
            return Err(Error::ClockBack {
                rq,
                clock_ns,
                now_ns,
            });
        }
        let mut oldest = now_ns;
        let mut e = self.rqs[rq].curr;
        while e.is_some() {
            if self.que[self.arena(e)].curr == e {
                oldest = oldest.min(self.ent[e].exec_start);
            }
            e = self.parent(e);
        }
        if now_ns - oldest > MAX_UNACCOUNTED_NS {
            let (ran_ns, max_ns) = (now_ns - oldest, MAX_UNACCOUNTED_NS);
            return Err(Error::TooLongUnaccounted { rq, ran_ns, max_ns });
        }
        self.rqs[rq].unasked_until = oldest.saturating_add(MAX_UNACCOUNTED_NS / 2);
        Ok(())
    }

    /// What the caller has to act on after an operation.
    #[inline]
    pub(crate) fn actions(&self, rq: RqId) -> Actions {
        debug_assert!(!self.self_check || self.check_rq(rq));
        let r = &self.rqs[rq];
        Actions {
            resched: r.resched,
            hrtick: (r.hrtick != 0).then_some(r.hrtick),
        }
    }

    /// `resched_curr_lazy`, `resched_curr`: a lower request never replaces a higher one.
    pub(crate) fn request(&mut self, rq: RqId, wanted: Resched) {
        let r = &mut self.rqs[rq];
        let full = self.cfg.preempt == Preempt::Full || r.curr.is_none();
        let level = if full { Resched::Now } else { wanted };
        r.resched = r.resched.max(level);
    }

    /// `update_deadline`: true if the deadline was reached and a new one set.
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

    /// `update_curr`: charges the running entity of `q` for its time since the last account.
    #[inline(always)]
    pub(crate) fn update_curr(&mut self, q: Que) {
        let curr = self.que[q].curr;
        if self.ent.at(curr).is_some_and(|c| self.now > c.exec_start) {
            self.charge(q, curr);
        }
    }

    #[inline(never)]
    pub(crate) fn charge(&mut self, q: Que, curr: Ent) {
        if self.cfg.cfs.is_some() {
            self.cfs_charge(q, curr);
            return;
        }
        let c = &mut self.ent[curr];
        let (delta, rq) = (self.now - c.exec_start, c.rq);
        c.exec_start = self.now;
        c.vruntime = c.vruntime.wrapping_add(c.vtime(delta));
        let (runs_on, protected) = (before(c.vruntime, c.deadline), c.protected());
        let expired = !runs_on && self.update_deadline(q, curr);
        let queue = &self.que[q];
        if queue.members != 1 && (expired || !protected) {
            self.request(rq, Resched::Lazy);
            self.clear_buddies(q, curr);
        }
    }

    /// The periodic tick (`sched_tick`, `task_tick_fair`).
    ///
    /// Under [`Preempt::Lazy`] a pending lazy request becomes immediate first. Nothing else
    /// happens while the idle task runs.
    ///
    /// # Errors
    ///
    /// An unknown run queue, a clock that goes back or too far, or a pick that is due.
    pub fn tick(&mut self, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        self.begin(rq, now_ns)?;
        let r = &mut self.rqs[rq];
        if self.cfg.preempt == Preempt::Lazy && r.resched == Resched::Lazy {
            r.resched = Resched::Now;
        }
        self.tick_walk(rq, false);
        Ok(self.actions(rq))
    }

    /// The slice timer has fired (`hrtick`): it is unarmed, and a request is immediate.
    ///
    /// # Errors
    ///
    /// As [`Self::tick`].
    pub fn hrtick(&mut self, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        self.begin(rq, now_ns)?;
        self.rqs[rq].hrtick = 0;
        self.tick_walk(rq, true);
        Ok(self.actions(rq))
    }

    /// `entity_tick` on each level from the running task upwards.
    fn tick_walk(&mut self, rq: RqId, timer: bool) {
        if self.is_flat(rq) {
            self.flat_tick(rq, timer);
            return;
        }
        let mut e = self.rqs[rq].curr;
        while e.is_some() {
            self.update_curr(self.ent[e].queue);
            self.refresh_weight(e);
            if timer {
                self.request(rq, Resched::Now);
            } else if self.cfg.cfs.is_some() {
                self.cfs_tick(self.ent[e].queue, e);
            }
            e = self.parent(e);
        }
    }

    /// Brings the running task's own queue up to date, and no other (`update_curr_fair`).
    ///
    /// # Errors
    ///
    /// As [`Self::tick`].
    pub fn account(&mut self, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        self.begin(rq, now_ns)?;
        let curr = self.rqs[rq].curr;
        if curr.is_some() {
            self.update_curr(self.arena(curr));
        }
        Ok(self.actions(rq))
    }

    /// `hrtick_start_fair` for task entity `e`, with `hrtick_start`'s floor and tolerance.
    pub(crate) fn arm_hrtick(&mut self, rq: RqId, e: Ent) {
        const FLOOR_NS: u64 = 10_000;
        const TOLERANCE_NS: u64 = 5_000;
        let r = &self.rqs[rq];
        if self.que[r.root].h_nr_queued < 2 || self.cfg.cfs.is_some() {
            return;
        }
        let ent = &self.ent[e];
        let ahead = ent.deadline.wrapping_sub(ent.vruntime) as i64;
        if ahead < 0 {
            // Late already, after a change of weight. The one that is being picked runs not yet.
            if r.curr == e {
                self.request(rq, Resched::Now);
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

    /// `hrtick_update`: at an enqueue, for the running task, unless armed already.
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
