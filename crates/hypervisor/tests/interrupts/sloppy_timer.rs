//! Items 1 to 15 of the specification of the LAPIC timer.

use std::cell::Cell;

use stealtime_hypervisor::events::Events;
use stealtime_hypervisor::lapic_timer::advance::{self, Spin};
use stealtime_hypervisor::lapic_timer::{
    Action, Actions, BusCycle, BusCycleOutOfRange, CpuTimers, GuestTsc, LapicTimer, NoSuchCpu, Now,
    Placement, TimerEnvironment, TimerMode, TimerParameters, TimerPolicy, TimerRequest, hv_timer,
    place_hrtimer,
};
use stealtime_hypervisor::posted_interrupt::VcpuMode;

/// 2.5 GHz: five cycles are two nanoseconds.
const KHZ: u32 = 2_500_000;
const VECTOR: u8 = 0xec;
const LVT_DEADLINE: u32 = 2 << 17 | VECTOR as u32;
const LVT_PERIODIC: u32 = 1 << 17 | VECTOR as u32;
const LVT_ONE_SHOT: u32 = VECTOR as u32;
const LVT_MASKED: u32 = 1 << 16;

/// A host that isolates CPUs, a VM that idles in the guest.
const DEDICATED: TimerEnvironment = TimerEnvironment {
    pi_inject_timer: true,
    apicv: true,
    mwait_in_guest: false,
    hlt_in_guest: true,
    hv_shift: Some(5),
    on_housekeeping_cpu: false,
    wants_to_run: true,
};

/// A VM that leaves the guest to idle.
const SHARED: TimerEnvironment = TimerEnvironment {
    hlt_in_guest: false,
    ..DEDICATED
};

fn tsc() -> GuestTsc {
    GuestTsc::new(KHZ, GuestTsc::NEUTRAL, 0).unwrap()
}

fn at_us(us: i64) -> Now {
    Now {
        ns: us * 1000,
        host_tsc: us as u64 * 2500,
    }
}

fn timer(lvt: u32) -> LapicTimer {
    let mut timer = LapicTimer::new(TimerParameters::default(), tsc());
    assert!(timer.write_lvt(lvt).is_empty());
    timer
}

/// Arms a deadline at `us`, at time 0.
fn armed(us: u64, env: &TimerEnvironment) -> LapicTimer {
    let mut timer = timer(LVT_DEADLINE);
    let _ = timer.write_tscdeadline(us * 2500, at_us(0), env, &());
    timer
}

fn list(actions: Actions) -> Vec<Action> {
    actions.iter().collect()
}

const INJECT: Action = Action::Inject { vector: VECTOR };
const POST: Action = Action::Post { vector: VECTOR };

#[test]
fn lapic_timer_sloppy_01_posts_only_into_guest_mode() {
    for mode in [
        VcpuMode::InGuest,
        VcpuMode::ExitingGuest,
        VcpuMode::OutsideGuest,
        VcpuMode::ReadingShadowPageTables,
    ] {
        let mut timer = armed(100, &DEDICATED);
        assert_eq!(timer.hrtimer_at(), Some(99_000), "the advance off");
        let actions = list(timer.hrtimer_fired(at_us(100), mode, &DEDICATED, &()));
        if mode == VcpuMode::InGuest {
            assert_eq!(actions, [POST]);
            assert_eq!(timer.pending(), 0);
        } else {
            assert_eq!(actions, [Action::Unblock, Action::Kick], "{mode:?}");
            assert_eq!(timer.pending(), 1);
            assert_eq!(list(timer.inject_pending()), [INJECT]);
            assert_eq!(timer.pending(), 0);
        }
    }
}

/// `limit_periodic_timer_frequency`: the floor is for periodic timers, and for those that count.
#[test]
fn the_shortest_period_is_for_periodic_timers_that_count() {
    let mut counts = timer(LVT_ONE_SHOT);
    let _ = counts.write_tmict(1000, at_us(1), &SHARED, &());
    assert_eq!(counts.period_ns(), 2_000);
    for (lvt, period_ns) in [
        (LVT_ONE_SHOT | LVT_MASKED, 2_000),
        (LVT_PERIODIC, 200_000),
        (LVT_ONE_SHOT, 200_000),
    ] {
        let _ = counts.write_lvt(lvt);
        assert_eq!(counts.period_ns(), period_ns);
    }
    let mut idle = timer(LVT_ONE_SHOT);
    let _ = idle.write_lvt(LVT_PERIODIC);
    assert_eq!(idle.period_ns(), 0);
}

/// `ktime_after` in `start_sw_period`: what expires at this very instant is left to the hrtimer.
#[test]
fn an_expiry_at_this_instant_is_the_hrtimers() {
    let env = TimerEnvironment {
        hv_shift: None,
        ..SHARED
    };
    let mut timer = timer(LVT_ONE_SHOT);
    // Nothing is left of the saved count.
    let started = timer.restore(1000, 0, at_us(1), &env, &());
    assert_eq!(list(started), [Action::StartHrtimer { at_ns: 1_000 }]);
    // Also at the earliest instant.
    let earliest = Now {
        ns: i64::MIN,
        host_tsc: 0,
    };
    let _ = timer.restore(1000, 0, earliest, &env, &());
    assert_eq!(timer.hrtimer_at(), Some(i64::MIN + 1));
}

/// `update_target_expiration`: what is left of a count takes as much longer as the divisor is larger.
#[test]
fn another_divisor_moves_the_expiry() {
    let env = TimerEnvironment {
        hv_shift: None,
        ..SHARED
    };
    let mut timer = timer(LVT_ONE_SHOT);
    assert!(timer.write_tdcr(0b0011, at_us(0), &env, &()).is_empty());
    assert!(timer.write_tdcr(0b0000, at_us(0), &env, &()).is_empty());
    let _ = timer.write_tmict(1000, at_us(1), &env, &());
    assert_eq!(timer.hrtimer_at(), Some(3_000));
    assert!(timer.write_tdcr(0b0000, at_us(2), &env, &()).is_empty());
    let _ = timer.write_tdcr(0b0001, at_us(2), &env, &());
    assert_eq!(timer.hrtimer_at(), Some(4_000));
    assert_eq!(timer.period_ns(), 4_000);
}

#[test]
fn lapic_timer_sloppy_02_pending_swallows_further_expiries() {
    let mut timer = timer(LVT_PERIODIC);
    let _ = timer.write_tmict(500_000, at_us(0), &DEDICATED, &());
    let outside = VcpuMode::OutsideGuest;
    let first = list(timer.hrtimer_fired(at_us(1000), outside, &DEDICATED, &()));
    assert_eq!(first.len(), 3, "{first:?}");
    for us in [2000, 3000, 4000] {
        let mode = VcpuMode::InGuest;
        let again = list(timer.hrtimer_fired(at_us(us), mode, &DEDICATED, &()));
        let at_ns = (us + 1000) * 1000;
        assert_eq!(
            again,
            [Action::StartHrtimer { at_ns }],
            "only the next period"
        );
        assert_eq!(timer.pending(), 1);
    }
    assert_eq!(list(timer.inject_pending()), [INJECT]);
    assert_eq!(list(timer.inject_pending()), []);
}

/// Missed periods that were counted, with the number of calls.
#[derive(Default)]
struct Dropped(Cell<(u64, u64)>);

impl Events for Dropped {
    fn timer_periods_dropped(&self, periods: u64) {
        let (sum, calls) = self.0.get();
        self.0.set((sum + periods, calls + 1));
    }
}

#[test]
fn whole_periods_that_a_late_timer_missed_are_counted() {
    for (us, counted) in [
        (1000, (0, 0)),
        (2999, (0, 0)),
        (3000, (1, 1)),
        (5500, (3, 1)),
    ] {
        let (mut timer, dropped) = (timer(LVT_PERIODIC), Dropped::default());
        let _ = timer.write_tmict(500_000, at_us(0), &DEDICATED, &dropped);
        let _ = timer.hrtimer_fired(at_us(us), VcpuMode::InGuest, &DEDICATED, &dropped);
        assert_eq!(dropped.0.get(), counted, "at {us} us");
    }
}

#[test]
fn lapic_timer_sloppy_03_out_of_range_falls_back_to_an_hrtimer_until_rearmed() {
    // 2^37 cycles are 54.9 s.
    let mut timer = armed(60_000_000, &SHARED);
    assert_eq!(timer.hv(), None);
    assert_eq!(timer.hrtimer_at(), Some(59_999_999_000));
    // Ten seconds later it would fit, but is not tried again.
    let later = at_us(10_000_000);
    assert!(timer.begin_blocking(later, &SHARED, &()).is_empty());
    assert!(timer.end_blocking(later, &SHARED, &()).is_empty());
    assert_eq!(timer.hv(), None);
    let again = timer.write_tscdeadline(60_000_000 * 2500, later, &SHARED, &());
    assert!(timer.hv().is_some(), "{again:?}");
    assert!(again.contains(Action::CancelHrtimer));
}

#[test]
fn lapic_timer_sloppy_04_scaled_guest_converts_before_the_range_check() {
    // A guest at half the host's rate: its cycles are two of the host's.
    let half = GuestTsc::new(KHZ / 2, GuestTsc::NEUTRAL / 2, 0).unwrap();
    let limit: u64 = 1 << 36;
    assert!(hv_timer::set(&half, 0, 0, 5, limit - 1).is_ok());
    let refused = hv_timer::set(&half, 0, 0, 5, limit).unwrap_err();
    assert_eq!(
        (refused.guest_cycles, refused.host_cycles),
        (1 << 36, Some(1 << 37))
    );
    assert!(
        hv_timer::set(&tsc(), 0, 0, 5, limit).is_ok(),
        "not scaled it fits"
    );
    // A guest at twice the rate reaches twice as far.
    let twice = GuestTsc::new(KHZ * 2 - 1, GuestTsc::NEUTRAL * 2, 0).unwrap();
    let armed = hv_timer::set(&twice, 0, 0, 5, (1 << 38) - 2).unwrap();
    assert_eq!(armed.host_deadline, (1 << 37) - 1);
    // The advance counts in guest cycles.
    let armed = hv_timer::set(&half, 1000, 1000, 5, 500 + 1250 + 10).unwrap();
    assert_eq!(armed.host_deadline, 1000 + 20);
}

#[test]
fn lapic_timer_sloppy_05_blocking_borrows_an_hrtimer_and_interrupts_once() {
    // Nothing happens while blocked: back to the preemption timer.
    let mut timer = armed(100, &SHARED);
    let hv = timer.hv().unwrap();
    let lent = list(timer.begin_blocking(at_us(10), &SHARED, &()));
    assert_eq!(
        lent,
        [Action::CancelHv, Action::StartHrtimer { at_ns: 99_000 }]
    );
    let back = list(timer.end_blocking(at_us(50), &SHARED, &()));
    let host_deadline = hv.host_deadline;
    assert_eq!(
        back,
        [Action::CancelHrtimer, Action::ArmHv { host_deadline }]
    );
    let exit = list(timer.hv_expired(at_us(99), &SHARED, &()));
    assert_eq!(exit, [INJECT, Action::CancelHv]);
    assert!(
        timer.hv_expired(at_us(99), &SHARED, &()).is_empty(),
        "spurious: eaten"
    );
    // It fires while blocked: pending, and the preemption timer stays off.
    let mut timer = armed(100, &SHARED);
    let _ = timer.begin_blocking(at_us(10), &SHARED, &());
    let fired = timer.hrtimer_fired(at_us(99), VcpuMode::OutsideGuest, &SHARED, &());
    assert_eq!(list(fired), [Action::Unblock, Action::Kick]);
    assert!(timer.end_blocking(at_us(100), &SHARED, &()).is_empty());
    assert_eq!(timer.hv(), None);
    assert_eq!(list(timer.inject_pending()), [INJECT]);
    assert!(timer.inject_pending().is_empty());
    // It fires in the last moment before the switch back cancels it: nothing more.
    assert!(
        timer
            .hrtimer_fired(at_us(101), VcpuMode::InGuest, &SHARED, &())
            .is_empty()
    );
}

#[test]
fn lapic_timer_sloppy_06_deadline_in_the_past_expires_at_once() {
    for env in [SHARED, DEDICATED] {
        for deadline in [1, 2500 * 100, 2500 * 100 + 1] {
            let mut timer = timer(LVT_DEADLINE);
            let actions = timer.write_tscdeadline(deadline, at_us(100), &env, &());
            assert!(actions.contains(INJECT), "{deadline}: {actions:?}");
            assert_eq!((timer.hv(), timer.hrtimer_at()), (None, None));
            assert_eq!(timer.read_tscdeadline(), 0);
        }
    }
}

#[test]
fn lapic_timer_sloppy_07_deadline_of_0_disarms() {
    for (env, disarmed) in [
        (SHARED, Action::CancelHv),
        (DEDICATED, Action::CancelHrtimer),
    ] {
        let mut timer = armed(100, &env);
        let actions = list(timer.write_tscdeadline(0, at_us(10), &env, &()));
        assert_eq!(actions, [disarmed]);
        assert_eq!((timer.hv(), timer.hrtimer_at()), (None, None));
        let late = timer.hrtimer_fired(at_us(100), VcpuMode::InGuest, &env, &());
        assert!(late.is_empty() && timer.hv_expired(at_us(100), &env, &()).is_empty());
    }
}

/// `cancel_apic_timer` forgets an expiry that was not injected yet: the new mode's interrupt is not
/// the old one's.
#[test]
fn a_switch_of_modes_forgets_a_pending_expiry() {
    let outside = VcpuMode::OutsideGuest;
    let other = 0x41;
    for (from, to) in [
        (LVT_DEADLINE, 1 << 17 | other),
        (LVT_DEADLINE, other),
        (LVT_ONE_SHOT, 2 << 17 | other),
        (LVT_PERIODIC, 2 << 17 | other),
    ] {
        let mut timer = timer(from);
        let _ = timer.write_tscdeadline(250_000, at_us(0), &DEDICATED, &());
        let _ = timer.write_tmict(100_000, at_us(0), &DEDICATED, &());
        let _ = timer.hrtimer_fired(at_us(200), outside, &DEDICATED, &());
        assert_eq!(timer.pending(), 1);
        let _ = timer.write_lvt(to);
        assert_eq!(timer.pending(), 0, "{from:#x} to {to:#x}");
        assert!(timer.inject_pending().is_empty());
    }
    // Between one-shot and periodic, and with a new vector, nothing is forgotten.
    let mut timer = timer(LVT_ONE_SHOT);
    let _ = timer.write_tmict(100_000, at_us(0), &DEDICATED, &());
    let _ = timer.hrtimer_fired(at_us(200), outside, &DEDICATED, &());
    let _ = timer.write_lvt(1 << 17 | other);
    let vector = other as u8;
    assert_eq!(list(timer.inject_pending()), [Action::Inject { vector }]);
}

/// KVM refuses both ends: a timer that never fires, and a count with a length that wraps.
#[test]
fn bus_cycles_that_cannot_be_counted_are_refused() {
    for ns in [0, BusCycle::MAX_NS + 1, u32::MAX] {
        assert_eq!(BusCycle::new(ns), Err(BusCycleOutOfRange { ns }));
    }
    let longest = BusCycle::new(BusCycle::MAX_NS).unwrap();
    let parameters = TimerParameters {
        bus_cycle: longest,
        ..TimerParameters::default()
    };
    let mut timer = LapicTimer::new(parameters, tsc());
    let _ = timer.write_tdcr(0b1010, at_us(0), &SHARED, &()); // by 128
    let _ = timer.write_lvt(LVT_ONE_SHOT);
    let _ = timer.write_tmict(u32::MAX, at_us(0), &SHARED, &());
    let expected = u128::from(u32::MAX) * 128 * u128::from(longest.ns());
    assert_eq!(u128::from(timer.period_ns()), expected);
}

#[test]
fn lapic_timer_sloppy_08_advance_adapts_within_bounds_only() {
    // 2500 cycles are 1000 ns, of which an eighth is taken.
    assert_eq!(advance::adjust(KHZ, 1000, -2500), 875);
    assert_eq!(advance::adjust(KHZ, 1000, 2500), 1125);
    for ignored in [0, 99, -99, 10_001, -10_001, i64::MIN, i64::MAX] {
        assert_eq!(advance::adjust(KHZ, 1000, ignored), 1000, "{ignored}");
    }
    assert_eq!(advance::adjust(KHZ, 1000, 100), 1005);
    assert_eq!(advance::adjust(KHZ, 4900, 2000), 5000, "the largest");
    assert_eq!(
        advance::adjust(KHZ, 4900, 2020),
        1000,
        "beyond 5000: start over"
    );
    assert_eq!(advance::adjust(KHZ, 100, -10_000), 1000, "below 0 as well");
    assert_eq!(
        advance::adjust(0, 1234, 5000),
        1234,
        "no frequency, no measure"
    );
}

#[test]
fn lapic_timer_sloppy_09_posted_interrupt_is_never_early() {
    let mut timer = armed(100, &DEDICATED);
    // The hrtimer fires 1 µs early, by the advance: the whole microsecond is waited for.
    let early = timer.hrtimer_fired(at_us(99), VcpuMode::InGuest, &DEDICATED, &());
    assert_eq!(list(early), [Action::Spin(Spin::Cycles(2500)), POST]);
    assert_eq!(timer.advance_ns(), 875);
    // Upstream waits for the advance that it has just made smaller.
    let upstream = advance::wait(&tsc(), at_us(99).host_tsc, 250_000, 1000);
    assert_eq!(upstream.spin, Spin::Cycles(2187));
    // A scaled guest waits in nanoseconds, rounded up.
    let half = GuestTsc::new(KHZ / 2, GuestTsc::NEUTRAL / 2, 0).unwrap();
    let wait = advance::wait_to_post(&half, 2_000, 1_999, 1000);
    assert_eq!(wait.spin, Spin::Ns(800), "999 cycles are 799.2 ns");
    // Late or on time: no wait.
    assert_eq!(
        advance::wait_to_post(&half, 4_000, 1_999, 1000).spin,
        Spin::None
    );
}

/// CPU 0 keeps house and is as given; CPU 1 is isolated.
fn place(
    at_us: i64,
    next_event_us: Option<i64>,
    queued_on: Option<usize>,
    events: &impl Events,
) -> Placement {
    let cpus = [
        CpuTimers {
            housekeeping: true,
            idle: false,
            next_event_ns: next_event_us.map(|us| us * 1000),
        },
        CpuTimers {
            housekeeping: false,
            idle: false,
            next_event_ns: None,
        },
    ];
    let request = TimerRequest {
        at_ns: at_us * 1000,
        from: 1,
        queued_on,
        first_in_queue: queued_on.is_some(),
        pinned: false,
        callback_running: false,
        migration: true,
    };
    place_hrtimer(&request, &cpus, &[0], events).unwrap()
}

/// Counts hrtimers by where they land.
#[derive(Default)]
struct Landed {
    moved: Cell<u32>,
    refused: Cell<u32>,
}

impl Events for Landed {
    fn hrtimer_moved(&self) {
        self.moved.set(self.moved.get() + 1);
    }
    fn hrtimer_refused(&self) {
        self.refused.set(self.refused.get() + 1);
    }
}

#[test]
fn lapic_timer_sloppy_10_housekeeping_cpu_refuses_its_first_event() {
    let landed = Landed::default();
    let place = |at_us, next_event_us, queued_on| place(at_us, next_event_us, queued_on, &landed);
    let moved = |cpu, refused| Placement { cpu, refused };
    assert_eq!(place(100, Some(50), None), moved(0, false));
    assert_eq!(place(100, Some(100), None), moved(0, false));
    assert_eq!(place(100, Some(101), None), moved(1, true));
    assert_eq!(
        place(100, None, None),
        moved(1, true),
        "a quiet one refuses all"
    );
    assert_eq!(
        place(100, Some(50), Some(1)),
        moved(1, false),
        "local and first stays"
    );
    assert_eq!((landed.moved.get(), landed.refused.get()), (2, 2));
}

#[test]
fn hrtimers_go_to_the_nearest_busy_housekeeping_cpu() {
    let cpu = |housekeeping, idle| CpuTimers {
        housekeeping,
        idle,
        next_event_ns: Some(0),
    };
    let request = |from| TimerRequest {
        at_ns: 100,
        from,
        queued_on: None,
        first_in_queue: false,
        pinned: false,
        callback_running: false,
        migration: true,
    };
    let cpus = [
        cpu(true, true),
        cpu(true, false),
        cpu(true, false),
        cpu(false, false),
    ];
    let at = |request: &TimerRequest, near: &[usize]| {
        place_hrtimer(request, &cpus, near, &()).map(|p| p.cpu)
    };
    assert_eq!(at(&request(3), &[2, 1, 0]), Ok(2));
    assert_eq!(
        at(&request(3), &[0, 1, 2]),
        Ok(1),
        "an idle one is passed over"
    );
    assert_eq!(
        at(&request(3), &[0]),
        Ok(0),
        "unless there is no other: any"
    );
    assert_eq!(
        at(&request(1), &[2]),
        Ok(1),
        "busy and keeping house itself"
    );
    assert_eq!(
        at(&request(0), &[3]),
        Ok(0),
        "idle, but no other CPU is busy"
    );
    let pinned = TimerRequest {
        pinned: true,
        ..request(3)
    };
    assert_eq!(at(&pinned, &[1]), Ok(3));
    let running = TimerRequest {
        callback_running: true,
        queued_on: Some(2),
        ..request(3)
    };
    assert_eq!(at(&running, &[1]), Ok(2));
    for (queued_on, first_in_queue, cpu) in [(3, true, 3), (3, false, 2), (1, true, 2)] {
        let queued = TimerRequest {
            queued_on: Some(queued_on),
            first_in_queue,
            ..request(3)
        };
        assert_eq!(at(&queued, &[2]), Ok(cpu), "stays if its CPU fires next");
    }
    let fixed = TimerRequest {
        migration: false,
        ..request(3)
    };
    assert_eq!(at(&fixed, &[1]), Ok(3));
    let beyond = NoSuchCpu { cpu: 9, cpus: 4 };
    assert_eq!(at(&request(9), &[1]), Err(beyond));
    assert_eq!(at(&request(3), &[9]), Err(beyond));
}

#[test]
fn lapic_timer_sloppy_11_masked_lvt_interrupts_no_vcpu_but_the_deadline_is_over() {
    let mut timer = timer(LVT_DEADLINE | LVT_MASKED);
    let _ = timer.write_tscdeadline(250_000, at_us(0), &DEDICATED, &());
    assert_eq!(timer.read_tscdeadline(), 250_000);
    let fired = timer.hrtimer_fired(at_us(100), VcpuMode::InGuest, &DEDICATED, &());
    assert!(fired.is_empty(), "{fired:?}");
    assert_eq!(timer.read_tscdeadline(), 0);
    let _ = timer.write_tscdeadline(250_000, at_us(0), &SHARED, &());
    assert_eq!(
        list(timer.hv_expired(at_us(100), &SHARED, &())),
        [Action::CancelHv]
    );
    assert_eq!(timer.read_tscdeadline(), 0);
}

#[test]
fn lapic_timer_sloppy_12_toggling_pi_inject_timer_affects_later_decisions_only() {
    let off = TimerEnvironment {
        pi_inject_timer: false,
        ..DEDICATED
    };
    // Armed on an hrtimer; switched off, it stays there, but is no longer posted.
    let mut timer = armed(100, &DEDICATED);
    assert!(timer.hrtimer_at().is_some());
    let fired = timer.hrtimer_fired(at_us(100), VcpuMode::InGuest, &off, &());
    assert_eq!(list(fired), [Action::Unblock, Action::Kick]);
    let _ = timer.inject_pending();
    let _ = timer.write_tscdeadline(500_000, at_us(100), &off, &());
    assert!(
        timer.hv().is_some(),
        "the next one uses the preemption timer"
    );
    // Switched on, that one stays where it is.
    let exit = timer.hv_expired(at_us(200), &DEDICATED, &());
    assert_eq!(list(exit), [INJECT, Action::CancelHv]);
    let _ = timer.write_tscdeadline(750_000, at_us(200), &DEDICATED, &());
    assert!(timer.hrtimer_at().is_some());
}

#[test]
fn lapic_timer_sloppy_13_mwait_in_guest_alone_rules_out_the_preemption_timer() {
    for policy in TimerPolicy::ALL {
        for (pi_inject_timer, hlt_in_guest) in [(false, false), (false, true), (true, false)] {
            let env = TimerEnvironment {
                pi_inject_timer,
                hlt_in_guest,
                mwait_in_guest: true,
                ..DEDICATED
            };
            let parameters = TimerParameters {
                policy,
                ..TimerParameters::default()
            };
            let timer = LapicTimer::new(parameters, tsc());
            assert!(!timer.can_use_hv(&env), "{policy:?} {env:?}");
            if !pi_inject_timer {
                assert!(!timer.can_post(&env));
            }
        }
    }
    // HLT is C1-like and harmless.
    let hlt = TimerEnvironment {
        pi_inject_timer: false,
        ..DEDICATED
    };
    assert!(timer(LVT_DEADLINE).can_use_hv(&hlt));
}

#[test]
fn lapic_timer_sloppy_14_posted_timer_does_not_follow_the_vcpu() {
    let mut timer = armed(100, &DEDICATED);
    assert!(timer.cpu_changed(at_us(10), &DEDICATED, &()).is_empty());
    assert_eq!(timer.hrtimer_at(), Some(99_000));
    let unposted = TimerEnvironment {
        hv_shift: None,
        ..SHARED
    };
    let mut timer = armed(100, &unposted);
    let moved = list(timer.cpu_changed(at_us(10), &unposted, &()));
    let at_ns = 99_000;
    assert_eq!(
        moved,
        [Action::CancelHrtimer, Action::StartHrtimer { at_ns }]
    );
    // The preemption timer is the new CPU's from now on.
    let mut timer = armed(100, &SHARED);
    let host_deadline = 99 * 2500;
    let moved = list(timer.cpu_changed(at_us(10), &SHARED, &()));
    assert_eq!(moved, [Action::ArmHv { host_deadline }]);
    // Preempted and run again on the same CPU: the entry computes the value anew.
    assert_eq!(
        timer.hv_value_at_entry(98 * 2500, 5, false),
        Some(2500 >> 5)
    );
    assert_eq!(timer.hv_value_at_entry(200 * 2500, 5, false), Some(0));
    assert_eq!(timer.hv_value_at_entry(0, 5, true), Some(0));
}

#[test]
fn lapic_timer_sloppy_15_missed_periods_are_dropped() {
    for env in [SHARED, DEDICATED] {
        let mut timer = timer(LVT_PERIODIC);
        let _ = timer.write_tmict(500_000, at_us(0), &env, &());
        assert_eq!(timer.period_ns(), 1_000_000);
        // A stop of ten seconds: one interrupt, and the next is not a burst of ten thousand.
        let now = at_us(10_000_000);
        let (mut interrupts, mut next) = (0, 0);
        while next <= 10_000_000 {
            let actions = if timer.hv().is_some() {
                timer.hv_expired(now, &env, &())
            } else {
                timer.hrtimer_fired(now, VcpuMode::InGuest, &env, &())
            };
            interrupts += actions.iter().filter(|&a| a == INJECT || a == POST).count();
            let hrtimer = timer.hrtimer_at().map(|ns| ns / 1000);
            let hv = timer.hv().map(|hv| hv.host_deadline as i64 / 2500);
            next = hrtimer.or(hv).unwrap();
        }
        // The period that was due, then one that is forced to "now"; ten thousand are dropped.
        assert_eq!(interrupts, 2);
        assert!(
            (10_000_999..=10_001_000).contains(&next),
            "from now on: {next}"
        );
    }
}

#[test]
fn mode_switch_to_or_from_deadline_disarms() {
    let mut timer = armed(100, &SHARED);
    assert_eq!(list(timer.write_lvt(LVT_ONE_SHOT)), [Action::CancelHv]);
    assert_eq!(
        (timer.mode(), timer.read_tscdeadline()),
        (TimerMode::OneShot, 0)
    );
    assert!(
        timer
            .write_tscdeadline(1, at_us(0), &SHARED, &())
            .is_empty(),
        "ignored"
    );
    let _ = timer.write_tmict(1000, at_us(0), &SHARED, &());
    assert!(timer.hv().is_some());
    assert_eq!(timer.read_tmcct(1000), 500);
    assert_eq!(list(timer.write_lvt(LVT_DEADLINE)), [Action::CancelHv]);
    assert!(
        timer.write_tmict(1000, at_us(0), &SHARED, &()).is_empty(),
        "ignored"
    );
    assert_eq!(timer.read_tmcct(0), 0);
}

/// A one-shot timer has a length too, and starts once.
#[test]
fn a_one_shot_timer_fires_once() {
    let mut timer = timer(LVT_ONE_SHOT);
    let _ = timer.write_tmict(500_000, at_us(0), &DEDICATED, &());
    assert!(timer.hrtimer_at().is_some());
    let fired = timer.hrtimer_fired(at_us(1000), VcpuMode::InGuest, &DEDICATED, &());
    assert_eq!(list(fired), [POST]);
    assert_eq!(timer.hrtimer_at(), None);
}

/// An advance that is off stays off, and a timer without a deadline says nothing about it.
#[test]
fn posting_tunes_the_advance_by_deadlines_alone() {
    let parameters = TimerParameters {
        advance: false,
        ..TimerParameters::default()
    };
    let mut off = LapicTimer::new(parameters, tsc());
    assert!(off.write_lvt(LVT_DEADLINE).is_empty());
    let _ = off.write_tscdeadline(250_000, at_us(0), &DEDICATED, &());
    // 1 us late, which would correct an advance.
    let fired = off.hrtimer_fired(at_us(101), VcpuMode::InGuest, &DEDICATED, &());
    assert_eq!((list(fired), off.advance_ns()), (vec![POST], 0));
    let mut once = timer(LVT_ONE_SHOT);
    let advance_ns = once.advance_ns();
    assert_ne!(advance_ns, 0);
    let _ = once.write_tmict(500, at_us(0), &DEDICATED, &());
    // Soon after cycle 0, which is no deadline.
    let fired = once.hrtimer_fired(at_us(2), VcpuMode::InGuest, &DEDICATED, &());
    assert_eq!((list(fired), once.advance_ns()), (vec![POST], advance_ns));
}

#[test]
fn soft_disabled_preemption_timer_is_written_once() {
    let mut timer = timer(LVT_DEADLINE);
    assert_eq!(timer.hv_value_at_entry(0, 5, false), Some(u32::MAX));
    assert_eq!(timer.hv_value_at_entry(0, 5, false), None);
    assert_eq!(timer.hv_value_at_entry(0, 5, true), Some(0));
    assert_eq!(timer.hv_value_at_entry(0, 5, false), Some(u32::MAX));
}
