//! The timer of one vCPU: arming, expiry, injection.

use super::actions::{Action, Actions};
use super::advance::{self, Spin, Wait};
use super::arithmetic::{self, BusCycle, Rate, SwDeadline};
use super::hv_timer::{self, Armed};
use super::observed::Observed;
use super::policy::{TimerEnvironment, TimerPolicy};
use super::tsc::GuestTsc;
use crate::events::Events;
use crate::posted_interrupt::VcpuMode;

/// The same instant on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Now {
    /// Host monotonic clock, in ns.
    pub ns: i64,
    /// Host TSC, in cycles.
    pub host_tsc: u64,
}

/// LVT timer mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TimerMode {
    /// Counts down once.
    OneShot = 0,
    /// Counts down again and again.
    Periodic = 1,
    /// Waits for a value of the guest's TSC.
    TscDeadline = 2,
}

/// What does not change while a timer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerParameters {
    /// Rule by which expiries are posted.
    pub policy: TimerPolicy,
    /// Length of a bus cycle (`apic_bus_cycle_ns`).
    pub bus_cycle: BusCycle,
    /// Shortest period in µs (`kvm.min_timer_period_us`).
    pub min_period_us: u32,
    /// Whether deadlines fire in advance (`kvm.lapic_timer_advance`).
    pub advance: bool,
}

impl Default for TimerParameters {
    fn default() -> Self {
        Self {
            policy: TimerPolicy::default(),
            bus_cycle: BusCycle::default(),
            min_period_us: 200,
            advance: true,
        }
    }
}

/// What noticed an expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// The hrtimer's callback, on any CPU, which saw this mode of the vCPU.
    Hrtimer(VcpuMode),
    /// The vCPU's own thread: at an exit of the preemption timer, or while arming.
    VcpuThread,
}

/// No time at all; an hrtimer of that time is started one ns later.
const NOT_STARTED: i64 = i64::MIN;

/// What the timers of a VM have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Common {
    pub(super) parameters: TimerParameters,
    pub(super) tsc: GuestTsc,
}

/// Kept once for all timers of a VM; without memory of its own each timer has a copy.
#[cfg(feature = "alloc")]
pub(super) type CommonRef = alloc::sync::Arc<Common>;
#[cfg(not(feature = "alloc"))]
pub(super) type CommonRef = Common;

/// A guest TSC that one timer can take on without allocating or freeing memory.
///
/// The TSC changes under a spinlock with interrupts off (`tsc_write_lock`): make this before the
/// lock is taken, and drop it after that.
#[derive(Debug)]
pub struct PreparedTsc {
    /// The new one; after the change the old one.
    pub(super) common: CommonRef,
}

/// The timer of one vCPU. Its owner serializes the calls: the hrtimer's callback runs on another
/// CPU, but never during a call of the vCPU's thread that cancels it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LapicTimer {
    pub(super) common: CommonRef,
    pub(super) mode: TimerMode,
    pub(super) vector: u8,
    pub(super) masked: bool,
    pub(super) tmict: u32,
    pub(super) divisor: u32,
    pub(super) period_ns: u64,
    pub(super) target_ns: i64,
    pub(super) tscdeadline: u64,
    expired_tscdeadline: u64,
    advance_ns: u32,
    /// Expiries not yet injected.
    pending: u32,
    hv: Option<Armed>,
    soft_disabled: bool,
    /// When the hrtimer expires, or [`NOT_STARTED`].
    hrtimer_at: i64,
    /// Blocking took the preemption timer away: it comes back afterwards.
    pub(super) hv_lent: bool,
    observed: Observed,
}

impl LapicTimer {
    /// A timer after reset: one-shot, masked, nothing armed.
    #[must_use]
    pub fn new(parameters: TimerParameters, tsc: GuestTsc) -> Self {
        Self::with(CommonRef::from(Common { parameters, tsc }))
    }

    fn with(common: CommonRef) -> Self {
        let parameters = common.parameters;
        Self {
            common,
            mode: TimerMode::OneShot,
            vector: 0,
            masked: true,
            tmict: 0,
            divisor: arithmetic::divisor(0),
            period_ns: 0,
            target_ns: 0,
            tscdeadline: 0,
            expired_tscdeadline: 0,
            advance_ns: if parameters.advance {
                advance::START_NS
            } else {
                0
            },
            pending: 0,
            hv: None,
            soft_disabled: false,
            hrtimer_at: NOT_STARTED,
            hv_lent: false,
            observed: Observed::default(),
        }
    }

    /// A new timer with the parameters and the TSC of another: both are kept once, as a VM's are the
    /// same.
    #[must_use]
    pub fn like(model: &Self) -> Self {
        Self::with(CommonRef::clone(&model.common))
    }

    /// Prepares a change of the guest's TSC, for this timer.
    #[must_use]
    pub fn prepare_tsc(&self, tsc: GuestTsc) -> PreparedTsc {
        let parameters = self.common.parameters;
        PreparedTsc {
            common: CommonRef::from(Common { parameters, tsc }),
        }
    }

    /// LVT timer mode.
    #[must_use]
    pub fn mode(&self) -> TimerMode {
        self.mode
    }
    /// Expiries that wait for injection (`kvm_cpu_has_pending_timer`).
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.pending
    }
    /// The advance, in ns; 0: off.
    #[must_use]
    pub fn advance_ns(&self) -> u32 {
        self.advance_ns
    }
    /// The preemption timer, if it is in use.
    #[must_use]
    pub fn hv(&self) -> Option<Armed> {
        self.hv
    }
    /// When the hrtimer fires, if it is active.
    #[must_use]
    pub fn hrtimer_at(&self) -> Option<i64> {
        (self.hrtimer_at != NOT_STARTED).then_some(self.hrtimer_at)
    }
    /// Length of a period in ns; 0: no period.
    #[must_use]
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }
    /// What the adaptive policy has seen.
    #[must_use]
    pub fn observed(&self) -> &Observed {
        &self.observed
    }
    /// An hrtimer of this timer was placed. One that is not to be posted, while the vCPU blocks for
    /// one, says nothing about posting and is not counted.
    pub fn note_placement(&mut self, refused: bool, env: &TimerEnvironment) {
        if self.can_post(env) {
            self.observed.placement(refused);
        }
    }

    /// Whether expiries may be posted.
    #[must_use]
    pub fn can_post(&self, env: &TimerEnvironment) -> bool {
        self.common.parameters.policy.can_post(env, &self.observed)
    }

    /// Whether the preemption timer may be used (`kvm_can_use_hv_timer`).
    #[must_use]
    pub fn can_use_hv(&self, env: &TimerEnvironment) -> bool {
        // The countdown works in C0 to C2 only (SDM, "VMX-Preemption Timer"). A guest with MWAIT
        // may use deeper states.
        env.hv_shift.is_some() && !env.mwait_in_guest && !self.can_post(env)
    }

    pub(super) fn rate(&self) -> Rate {
        Rate {
            bus_cycle_ns: self.common.parameters.bus_cycle.ns(),
            divisor: self.divisor,
            min_period_us: self.common.parameters.min_period_us,
        }
    }

    fn is_periodic(&self) -> bool {
        self.mode == TimerMode::Periodic
    }

    /// Arms whatever is to be waited for (`restart_apic_timer`).
    pub(super) fn restart(
        &mut self,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
        actions: &mut Actions,
    ) {
        if !self.is_periodic() && self.pending != 0 {
            return;
        }
        if !self.start_hv(now, env, events, actions) {
            self.start_sw(now, env, events, actions);
        }
    }

    /// `start_hv_timer`. Whether the preemption timer took over.
    fn start_hv(
        &mut self,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
        actions: &mut Actions,
    ) -> bool {
        let Some(shift) = env.hv_shift.filter(|_| self.can_use_hv(env)) else {
            return false;
        };
        if self.tscdeadline == 0 {
            return false;
        }
        let set = hv_timer::set(
            &self.common.tsc,
            now.host_tsc,
            self.advance_ns,
            shift,
            self.tscdeadline,
        );
        let Ok(armed) = set else {
            events.timer_out_of_hv_range();
            return false;
        };
        self.hv = Some(armed);
        self.cancel_hrtimer(actions);
        actions.push(Action::ArmHv {
            host_deadline: armed.host_deadline,
        });
        events.timer_armed_hv();
        if self.is_periodic() {
            // Stays armed even if expired, so that the exit computes the next period.
            return true;
        }
        if self.pending != 0 {
            // The hrtimer fired before it could be cancelled.
            self.cancel_hv(actions);
        } else if armed.expired {
            self.expire(Expiry::VcpuThread, now, env, events, actions);
            self.cancel_hv(actions);
        }
        true
    }

    /// `start_sw_timer`.
    pub(super) fn start_sw(
        &mut self,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
        actions: &mut Actions,
    ) {
        self.cancel_hv(actions);
        if !self.is_periodic() && self.pending != 0 {
            return;
        }
        if self.mode == TimerMode::TscDeadline {
            match arithmetic::sw_deadline(&self.common.tsc, now, self.advance_ns, self.tscdeadline)
            {
                SwDeadline::Disarmed => {}
                SwDeadline::At(at_ns) => self.start_hrtimer(at_ns, events, actions),
                SwDeadline::Expired => self.expire(Expiry::VcpuThread, now, env, events, actions),
            }
            return;
        }
        if self.period_ns == 0 {
            return;
        }
        // `ktime_after` in `start_sw_period`: an expiry at this very instant is left to the
        // hrtimer.
        if now.ns > self.target_ns {
            self.expire(Expiry::VcpuThread, now, env, events, actions);
            if self.mode == TimerMode::OneShot {
                return;
            }
            self.advance_period(now, events);
        }
        self.start_hrtimer(self.target_ns, events, actions);
    }

    fn start_hrtimer(&mut self, at_ns: i64, events: &impl Events, actions: &mut Actions) {
        self.hrtimer_at = at_ns.max(NOT_STARTED + 1);
        actions.push(Action::StartHrtimer { at_ns });
        events.timer_armed_sw();
    }

    pub(super) fn move_hrtimer(&mut self, at_ns: i64, actions: &mut Actions) {
        self.cancel_hrtimer(actions);
        self.hrtimer_at = at_ns.max(NOT_STARTED + 1);
        actions.push(Action::StartHrtimer { at_ns });
    }

    /// The hrtimer is no longer started. Whether it was.
    fn take_hrtimer(&mut self) -> bool {
        core::mem::replace(&mut self.hrtimer_at, NOT_STARTED) != NOT_STARTED
    }

    pub(super) fn cancel_hrtimer(&mut self, actions: &mut Actions) {
        if self.take_hrtimer() {
            actions.push(Action::CancelHrtimer);
        }
    }

    pub(super) fn cancel_hv(&mut self, actions: &mut Actions) {
        if self.hv.take().is_some() {
            actions.push(Action::CancelHv);
        }
    }

    pub(super) fn clear_pending(&mut self) {
        self.pending = 0;
    }

    pub(super) fn forget_expired_deadline(&mut self) {
        self.expired_tscdeadline = 0;
    }

    fn advance_period(&mut self, now: Now, events: &impl Events) {
        // Counts only. `advance_periodic_target_expiration` drops missed periods without a count.
        let due = self.target_ns.saturating_add_unsigned(self.period_ns);
        let (deadline, target) =
            arithmetic::next_period(&self.common.tsc, now, self.period_ns, self.target_ns);
        let late = now.ns.saturating_sub(due).max(0).unsigned_abs();
        if let Some(dropped) = late.checked_div(self.period_ns).filter(|&n| n > 0) {
            events.timer_periods_dropped(dropped);
        }
        self.tscdeadline = deadline;
        self.target_ns = target;
    }

    /// `apic_timer_expired`.
    fn expire(
        &mut self,
        noticed: Expiry,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
        actions: &mut Actions,
    ) {
        events.timer_expired();
        if self.pending != 0 {
            // The IRR has one bit for the vector, so that a second expiry adds nothing.
            events.timer_coalesced();
            return;
        }
        if self.mode == TimerMode::TscDeadline || self.hv.is_some() {
            self.expired_tscdeadline = self.tscdeadline;
        }
        let mode = match noticed {
            Expiry::VcpuThread if env.apicv && env.wants_to_run => {
                events.timer_injected_directly();
                self.inject(actions);
                return;
            }
            Expiry::VcpuThread => None,
            Expiry::Hrtimer(mode) => Some(mode),
        };
        if mode == Some(VcpuMode::InGuest) && self.posts_now(env) {
            self.post(now, events, actions);
            return;
        }
        self.pending = self.pending.saturating_add(1);
        events.timer_pended();
        actions.push(Action::Unblock);
        // Only a callback on another CPU has to kick: the vCPU's own thread is outside the guest.
        if mode.is_some() {
            actions.push(Action::Kick);
        }
    }

    /// An hrtimer found the vCPU in guest mode. Ours asks no more than that: that an hrtimer is
    /// in use was decided when it was armed.
    fn posts_now(&self, env: &TimerEnvironment) -> bool {
        if self.common.parameters.policy == TimerPolicy::Adaptive {
            env.pi_inject_timer && env.apicv
        } else {
            self.can_post(env)
        }
    }

    fn post(&mut self, now: Now, events: &impl Events, actions: &mut Actions) {
        if self.expired_tscdeadline != 0 && self.advance_ns != 0 {
            let deadline = self.expired_tscdeadline;
            let wait =
                advance::wait_to_post(&self.common.tsc, now.host_tsc, deadline, self.advance_ns);
            let spin = self.adapt(wait, events);
            if spin != Spin::None {
                actions.push(Action::Spin(spin));
            }
        }
        events.timer_posted();
        let vector = self.vector;
        if !self.masked {
            actions.push(Action::Post { vector });
        }
        self.injected();
    }

    fn adapt(&mut self, wait: Wait, events: &impl Events) -> Spin {
        if wait.advance_ns != self.advance_ns {
            events.timer_advance_changed(self.advance_ns, wait.advance_ns);
            self.advance_ns = wait.advance_ns;
        }
        self.expired_tscdeadline = 0;
        wait.spin
    }

    /// Local delivery of the LVT timer: nothing if it is masked; the deadline is over either way.
    fn inject(&mut self, actions: &mut Actions) {
        let vector = self.vector;
        if !self.masked {
            actions.push(Action::Inject { vector });
        }
        self.injected();
    }

    fn injected(&mut self) {
        if !self.is_periodic() {
            self.tscdeadline = 0;
        }
        if self.mode == TimerMode::OneShot {
            self.target_ns = 0;
        }
    }

    /// The hrtimer fired. `mode` is the vCPU's, as the callback's CPU reads it.
    pub fn hrtimer_fired(
        &mut self,
        now: Now,
        mode: VcpuMode,
        env: &TimerEnvironment,
        events: &impl Events,
    ) -> Actions {
        let mut actions = Actions::NONE;
        if !self.take_hrtimer() {
            // Cancelled at the last moment.
            return actions;
        }
        self.observed.expiry(mode == VcpuMode::InGuest);
        self.expire(Expiry::Hrtimer(mode), now, env, events, &mut actions);
        if self.is_periodic() && self.period_ns != 0 {
            self.advance_period(now, events);
            self.start_hrtimer(self.target_ns, events, &mut actions);
        }
        actions
    }

    /// A VM exit by the preemption timer (reason 52), handled without enabling interrupts. One
    /// that comes while the timer is disarmed is eaten.
    pub fn hv_expired(
        &mut self,
        now: Now,
        env: &TimerEnvironment,
        events: &impl Events,
    ) -> Actions {
        let mut actions = Actions::NONE;
        if self.hv.is_none() {
            return actions;
        }
        self.observed.expiry(true);
        self.expire(Expiry::VcpuThread, now, env, events, &mut actions);
        self.cancel_hv(&mut actions);
        if self.is_periodic() && self.period_ns != 0 {
            self.advance_period(now, events);
            self.restart(now, env, events, &mut actions);
        }
        actions
    }

    /// Before an entry, in the vCPU's thread: injects what is pending.
    pub fn inject_pending(&mut self) -> Actions {
        let mut actions = Actions::NONE;
        if self.pending != 0 {
            self.inject(&mut actions);
            self.pending = 0;
        }
        actions
    }

    /// The preemption-timer value to write at a VM entry, `None`: leave it. `shift` as in
    /// [`TimerEnvironment::hv_shift`].
    pub fn hv_value_at_entry(
        &mut self,
        host_tsc: u64,
        shift: u32,
        force_immediate_exit: bool,
    ) -> Option<u32> {
        let deadline = self.hv.map_or(hv_timer::UNARMED, |hv| hv.host_deadline);
        hv_timer::value_at_entry(
            deadline,
            host_tsc,
            shift,
            force_immediate_exit,
            &mut self.soft_disabled,
        )
    }

    /// Just before VM entry, when the timer's vector is requested (IRR with APICv, else ISR):
    /// how long to wait until the deadline (`kvm_wait_lapic_expire`).
    pub fn wait_at_entry(
        &mut self,
        host_tsc: u64,
        vector_requested: bool,
        events: &impl Events,
    ) -> Spin {
        let deadline = self.expired_tscdeadline;
        if deadline == 0 || self.advance_ns == 0 || !vector_requested {
            return Spin::None;
        }
        let wait = advance::wait(&self.common.tsc, host_tsc, deadline, self.advance_ns);
        self.adapt(wait, events)
    }
}
