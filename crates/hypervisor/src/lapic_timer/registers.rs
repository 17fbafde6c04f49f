//! What the guest does to its timer, and what the vCPU's thread does: block and move.

use super::actions::Actions;
use super::arithmetic;
use super::policy::TimerEnvironment;
use super::timer::{LapicTimer, Now, PreparedTsc, TimerMode};
use crate::events::Events;

/// LVT bit "masked".
const LVT_MASKED: u32 = 1 << 16;

impl TimerMode {
    /// From bits 18:17 of the LVT timer register; the reserved combination is one-shot.
    #[must_use]
    pub const fn from_lvt(lvt: u32) -> Self {
        match lvt >> 17 & 3 {
            1 => Self::Periodic,
            2 => Self::TscDeadline,
            _ => Self::OneShot,
        }
    }
}

impl LapicTimer {
    /// Writes the LVT timer register. A switch to or from TSC-deadline mode disarms the timer
    /// and forgets count, period, deadline, and an expiry that was not injected yet
    /// (`cancel_apic_timer`).
    pub fn write_lvt(&mut self, lvt: u32) -> Actions {
        let mut actions = Actions::NONE;
        let mode = TimerMode::from_lvt(lvt);
        self.vector = lvt as u8;
        self.masked = lvt & LVT_MASKED != 0;
        let deadline = |mode| mode == TimerMode::TscDeadline;
        if deadline(mode) != deadline(self.mode) {
            self.cancel_hrtimer(&mut actions);
            self.cancel_hv(&mut actions);
            self.clear_pending();
            self.tmict = 0;
            self.period_ns = 0;
            self.tscdeadline = 0;
        }
        self.mode = mode;
        if mode == TimerMode::Periodic && self.period_ns != 0 {
            let floor = u64::from(self.common.parameters.min_period_us) * 1000;
            self.period_ns = self.period_ns.max(floor);
        }
        actions
    }

    /// Writes the initial count; ignored in TSC-deadline mode. 0 stops the timer.
    pub fn write_tmict(
        &mut self,
        tmict: u32,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
    ) -> Actions {
        let mut actions = Actions::NONE;
        if self.mode == TimerMode::TscDeadline {
            return actions;
        }
        self.cancel_hrtimer(&mut actions);
        self.cancel_hv(&mut actions);
        self.tmict = tmict;
        self.start(None, now, env, events, &mut actions);
        actions
    }

    /// Restores a timer that was saved with `tmcct` left of its count.
    pub fn restore(
        &mut self,
        tmict: u32,
        tmcct: u32,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
    ) -> Actions {
        let mut actions = Actions::NONE;
        self.cancel_hrtimer(&mut actions);
        self.cancel_hv(&mut actions);
        self.tmict = tmict;
        self.start(Some(tmcct), now, env, events, &mut actions);
        actions
    }

    /// `start_apic_timer`.
    fn start(
        &mut self,
        tmcct: Option<u32>,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
        actions: &mut Actions,
    ) {
        self.clear_pending();
        if self.mode != TimerMode::TscDeadline {
            let rate = self.rate();
            let tsc = self.common.tsc;
            let start =
                arithmetic::target_from_start(&tsc, now, self.mode, &rate, self.tmict, tmcct);
            let Some(target) = start else {
                self.period_ns = 0;
                self.tscdeadline = 0;
                return;
            };
            self.period_ns = target.period_ns;
            self.tscdeadline = target.tscdeadline;
            self.target_ns = target.target_ns;
        }
        self.restart(now, env, events, actions);
    }

    /// Writes the divide configuration; what is left of a running count runs at the new rate.
    pub fn write_tdcr(
        &mut self,
        tdcr: u32,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
    ) -> Actions {
        let mut actions = Actions::NONE;
        let old = self.divisor;
        self.divisor = arithmetic::divisor(tdcr);
        if self.divisor == old || self.period_ns == 0 {
            return actions;
        }
        self.cancel_hrtimer(&mut actions);
        let rate = self.rate();
        let target = arithmetic::target_from_divisor(
            &self.common.tsc,
            now.ns,
            self.mode,
            &rate,
            old,
            self.tmict,
            arithmetic::Expiration {
                tscdeadline: self.tscdeadline,
                target_ns: self.target_ns,
            },
        );
        self.period_ns = target.period_ns;
        self.tscdeadline = target.tscdeadline;
        self.target_ns = target.target_ns;
        self.restart(now, env, events, &mut actions);
        actions
    }

    /// Writes IA32_TSC_DEADLINE; ignored in the other modes. 0 disarms, a deadline in the past
    /// expires at once.
    pub fn write_tscdeadline(
        &mut self,
        deadline: u64,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
    ) -> Actions {
        let mut actions = Actions::NONE;
        if self.mode != TimerMode::TscDeadline {
            return actions;
        }
        self.cancel_hrtimer(&mut actions);
        self.tscdeadline = deadline;
        self.start(None, now, env, events, &mut actions);
        actions
    }

    /// Reads IA32_TSC_DEADLINE: 0 in the other modes, and once it has expired.
    #[must_use]
    pub fn read_tscdeadline(&self) -> u64 {
        if self.mode == TimerMode::TscDeadline {
            self.tscdeadline
        } else {
            0
        }
    }

    /// Reads the current count at host time `now_ns`.
    #[must_use]
    pub fn read_tmcct(&self, now_ns: i64) -> u32 {
        let remaining = self.target_ns.saturating_sub(now_ns).max(0).unsigned_abs();
        let in_period = remaining.checked_rem(self.period_ns).unwrap_or(0);
        let count = in_period.checked_div(self.rate().ns(1)).unwrap_or(0);
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The guest's TSC was written or scaled anew. A TSC deadline is armed again, since it now
    /// comes at another time. A count keeps its time; the guest TSC at which it ends is computed
    /// anew, because the preemption timer is armed by it.
    ///
    /// How late an earlier deadline was is forgotten: a jump of the TSC is no measure for the
    /// advance.
    pub fn tsc_changed(
        &mut self,
        prepared: &mut PreparedTsc,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
    ) -> Actions {
        self.forget_expired_deadline();
        if self.mode != TimerMode::TscDeadline && self.tscdeadline != 0 {
            let remaining = self.target_ns.saturating_sub(now.ns).max(0).unsigned_abs();
            let tsc = &prepared.common.tsc;
            self.tscdeadline = tsc.at(now.host_tsc).wrapping_add(tsc.cycles(remaining));
        }
        self.tsc_changed_as_upstream(prepared, now, env, events)
    }

    /// The same as Linux 7.2 does it. A count keeps the guest TSC at which it was to end. Armed on
    /// the preemption timer again, after blocking or on another CPU, it is off by the whole change.
    pub fn tsc_changed_as_upstream(
        &mut self,
        prepared: &mut PreparedTsc,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
    ) -> Actions {
        let mut actions = Actions::NONE;
        debug_assert_eq!(
            self.common.parameters, prepared.common.parameters,
            "prepared for another timer"
        );
        core::mem::swap(&mut self.common, &mut prepared.common);
        if self.mode == TimerMode::TscDeadline && self.tscdeadline != 0 {
            self.cancel_hrtimer(&mut actions);
            self.restart(now, env, events, &mut actions);
        }
        actions
    }

    /// The vCPU blocks: an hrtimer takes over from the preemption timer, which counts only in
    /// guest mode. To be called before halt polling, which looks for the expiry.
    pub fn begin_blocking(
        &mut self,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
    ) -> Actions {
        let mut actions = Actions::NONE;
        self.hv_lent = self.hv().is_some();
        if self.hv_lent {
            events.timer_switched_to_sw();
            self.start_sw(now, env, events, &mut actions);
        }
        actions
    }

    /// The vCPU runs again: back to the preemption timer if it was in use. The hrtimer may have
    /// fired meanwhile; then its expiry is pending and nothing is armed.
    pub fn end_blocking(
        &mut self,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
    ) -> Actions {
        let mut actions = Actions::NONE;
        if core::mem::take(&mut self.hv_lent) {
            events.timer_switched_to_hv();
            self.restart(now, env, events, &mut actions);
        }
        actions
    }

    /// The vCPU was loaded on another CPU. A preemption timer is armed anew; an hrtimer follows,
    /// unless it is to be posted: then it deliberately stays where it is.
    ///
    /// A vCPU that was preempted and stays on its CPU needs nothing: the absolute deadline is
    /// looked at again at the next entry.
    pub fn cpu_changed(
        &mut self,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
    ) -> Actions {
        let mut actions = Actions::NONE;
        if self.hv().is_some() {
            self.restart(now, env, events, &mut actions);
        }
        if let Some(at_ns) = self.hrtimer_at()
            && !self.can_post(env)
        {
            self.move_hrtimer(at_ns, &mut actions);
        }
        actions
    }
}
