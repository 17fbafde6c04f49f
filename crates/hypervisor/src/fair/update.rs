//! Accounting of run time, ticks, and requests to reschedule.

use super::config::Preempt;
use super::error::Error;
use super::ids::{Que, RqId};
use super::queue::Resched;
use super::{Actions, Fair};

/// Longest time in ns (68.7 s) between accounts of a current entity: beyond it the weighted sums
/// could leave 64 bits.
pub(crate) const MAX_UNACCOUNTED_NS: u64 = 1 << 36;

impl Fair {
    /// Refuses a time before the clock of `rq`, or too long after the last account.
    #[inline]
    pub(crate) fn check_clock(&mut self, rq: RqId, now_ns: u64) -> Result<(), Error> {
        let r = self.rqs.0.get(rq.0 as usize).ok_or(Error::NoSuchRq(rq))?;
        if now_ns >= r.clock && now_ns <= r.accounted_until_ns {
            return Ok(());
        }
        self.check_unaccounted(rq, now_ns)
    }

    /// Checks each current entity of the chain, and computes until when no further check is needed.
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
            if self.que[self.pick_queue(e)].curr == e {
                oldest = oldest.min(self.ent[e].exec_start);
            }
            e = self.parent(e);
        }
        if now_ns - oldest > MAX_UNACCOUNTED_NS {
            let (ran_ns, max_ns) = (now_ns - oldest, MAX_UNACCOUNTED_NS);
            return Err(Error::TooLongUnaccounted { rq, ran_ns, max_ns });
        }
        // Half the limit: entities that become current later start no earlier than now.
        self.rqs[rq].accounted_until_ns = oldest.saturating_add(MAX_UNACCOUNTED_NS / 2);
        Ok(())
    }

    /// The actions of an operation on `rq`.
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
    pub(crate) fn resched_curr(&mut self, rq: RqId, request: Resched) {
        let r = &mut self.rqs[rq];
        // The idle task always reschedules at once.
        let full = self.cfg.preempt == Preempt::Full || r.curr.is_none();
        let level = if full { Resched::Now } else { request };
        r.resched = r.resched.max(level);
    }

    /// `update_curr`: charges the current entity of `q` for its time since the last account.
    #[inline(always)]
    pub(crate) fn update_curr(&mut self, q: Que) {
        let curr = self.que[q].curr;
        if self.ent.get(curr).is_some_and(|c| self.now > c.exec_start) {
            self.charge(q, curr);
        }
    }

    /// The periodic tick (`sched_tick`, `task_tick_fair`).
    ///
    /// Under [`Preempt::Lazy`] a pending lazy request becomes immediate first. Nothing else
    /// happens while the CPU is idle.
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
        self.tick_levels(rq, false);
        Ok(self.actions(rq))
    }

    /// The slice timer has fired (`hrtick`): it is disarmed, and the request is immediate.
    ///
    /// # Errors
    ///
    /// As [`Self::tick`].
    pub fn hrtick(&mut self, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        self.begin(rq, now_ns)?;
        self.rqs[rq].hrtick = 0;
        self.tick_levels(rq, true);
        Ok(self.actions(rq))
    }

    /// `entity_tick` on each level from the current task upwards.
    fn tick_levels(&mut self, rq: RqId, timer: bool) {
        if self.is_flat(rq) {
            self.flat_tick(rq, timer);
            return;
        }
        let mut e = self.rqs[rq].curr;
        while e.is_some() {
            self.update_curr(self.ent[e].queue);
            self.refresh_weight(e);
            if timer {
                self.resched_curr(rq, Resched::Now);
            } else {
                self.class_entity_tick(self.ent[e].queue, e);
            }
            e = self.parent(e);
        }
    }

    /// Charges the current task in its own queue, and in no other (`update_curr_fair`).
    ///
    /// # Errors
    ///
    /// As [`Self::tick`].
    pub fn account(&mut self, rq: RqId, now_ns: u64) -> Result<Actions, Error> {
        self.begin(rq, now_ns)?;
        let curr = self.rqs[rq].curr;
        if curr.is_some() {
            self.update_curr(self.pick_queue(curr));
        }
        Ok(self.actions(rq))
    }
}
