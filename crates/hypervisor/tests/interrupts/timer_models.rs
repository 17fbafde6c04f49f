//! The LAPIC timer under random hosts and random lives, against what a guest may expect.

use proptest::prelude::*;
use stealtime_hypervisor::lapic_timer::advance::{self, Spin};
use stealtime_hypervisor::lapic_timer::arithmetic::{self, Expiration, Rate, SwDeadline};
use stealtime_hypervisor::lapic_timer::{
    Action, Actions, BusCycle, GuestTsc, InvalidTsc, LapicTimer, Now, Observed, TimerEnvironment,
    TimerMode, TimerParameters, TimerPolicy, hv_timer,
};
use stealtime_hypervisor::posted_interrupt::VcpuMode;

const KHZ: u32 = 2_500_000;
const VECTOR: u8 = 0xec;

fn cases(many: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if cfg!(miri) { 4 } else { many })
    }
}

fn now(ns: i64) -> Now {
    Now {
        ns,
        host_tsc: ns as u64 / 2 * 5,
    }
}

/// APICv, and timers that are not posted.
pub(crate) fn not_posted(hv_shift: Option<u32>) -> TimerEnvironment {
    TimerEnvironment {
        pi_inject_timer: false,
        apicv: true,
        mwait_in_guest: false,
        hlt_in_guest: false,
        hv_shift,
        on_housekeeping_cpu: false,
        wants_to_run: true,
    }
}

fn environment() -> impl Strategy<Value = TimerEnvironment> {
    let shift = prop_oneof![Just(None), Just(Some(5)), Just(Some(0))];
    (any::<[bool; 6]>(), shift).prop_map(|(b, hv_shift)| TimerEnvironment {
        pi_inject_timer: b[0],
        apicv: b[1],
        mwait_in_guest: b[2],
        hlt_in_guest: b[3],
        hv_shift,
        on_housekeeping_cpu: b[4],
        wants_to_run: b[5],
    })
}

/// A host and guest around one timer: what it asks for is done, and interrupts are counted.
struct World {
    timer: LapicTimer,
    env: TimerEnvironment,
    ns: i64,
    /// Times at which the guest got the timer's interrupt.
    interrupts: Vec<i64>,
    blocked: bool,
}

impl World {
    fn do_all(&mut self, actions: Actions) {
        let mut at = self.ns;
        for action in actions.iter() {
            match action {
                Action::Spin(Spin::Cycles(cycles)) => at += (cycles * 2).div_ceil(5) as i64,
                Action::Spin(Spin::Ns(ns)) => at += i64::from(ns),
                Action::Inject { .. } | Action::Post { .. } => self.interrupts.push(at),
                _ => {}
            }
        }
    }

    /// Lets time pass to `ns`: the hrtimer and, in guest mode, the preemption timer fire on time.
    fn pass(&mut self, ns: i64) {
        for _ in 0..1000 {
            let hrtimer = self.timer.hrtimer_at().filter(|&at| at <= ns);
            let hv = self
                .timer
                .hv()
                .map(|hv| hv.host_deadline as i64 / 5 * 2 + 2);
            let hv = hv.filter(|&at| at <= ns && !self.blocked);
            let Some(at) = hrtimer.or(hv) else {
                break;
            };
            self.ns = self.ns.max(at);
            let actions = if hrtimer.is_some() {
                let mode = if self.blocked {
                    VcpuMode::OutsideGuest
                } else {
                    VcpuMode::InGuest
                };
                self.timer.hrtimer_fired(now(self.ns), mode, &self.env, &())
            } else {
                self.timer.hv_expired(now(self.ns), &self.env, &())
            };
            self.do_all(actions);
            if !self.blocked {
                self.run();
            }
        }
        self.ns = self.ns.max(ns);
    }

    /// Before an entry what is pending is injected.
    fn run(&mut self) {
        let actions = self.timer.inject_pending();
        self.do_all(actions);
    }

    fn block(&mut self, blocked: bool) {
        if blocked == self.blocked {
            return;
        }
        self.blocked = blocked;
        let at = now(self.ns);
        let actions = if blocked {
            self.timer.begin_blocking(at, &self.env, &())
        } else {
            self.timer.end_blocking(at, &self.env, &())
        };
        self.do_all(actions);
        if !blocked {
            self.run();
        }
    }
}

fn world(policy: TimerPolicy, env: TimerEnvironment, lvt: u32) -> World {
    let parameters = TimerParameters {
        policy,
        ..TimerParameters::default()
    };
    let tsc = GuestTsc::new(KHZ, GuestTsc::NEUTRAL, 0).unwrap();
    let mut timer = LapicTimer::new(parameters, tsc);
    let _ = timer.write_lvt(lvt | u32::from(VECTOR));
    World {
        timer,
        env,
        ns: 0,
        interrupts: Vec::new(),
        blocked: false,
    }
}

fn policy() -> impl Strategy<Value = TimerPolicy> {
    (0usize..5).prop_map(|n| TimerPolicy::ALL[n])
}

proptest! {
    #![proptest_config(cases(512))]

    /// Each deadline interrupts exactly once, whichever backends it went through, and not
    /// earlier than the advance that VM entry waits out.
    #[test]
    fn each_deadline_interrupts_exactly_once(
        policy in policy(), env in environment(),
        waits in prop::collection::vec((1_000i64..200_000, any::<[bool; 2]>(), any::<bool>()), 1..30),
    ) {
        let mut w = world(policy, env, 2 << 17);
        for (wait, blocks, moves) in waits {
            w.interrupts.clear();
            let deadline_ns = w.ns + wait;
            let at = now(w.ns);
            let armed = w.timer.write_tscdeadline(deadline_ns as u64 / 2 * 5, at, &w.env, &());
            w.do_all(armed);
            // The exit of the write is over: a deadline within the advance is injected on entry.
            w.run();
            w.pass(w.ns + wait / 3);
            w.block(blocks[0]);
            if moves && !w.blocked {
                let moved = w.timer.cpu_changed(now(w.ns), &w.env, &());
                w.do_all(moved);
                w.run();
            }
            w.pass(w.ns + wait / 3);
            w.block(blocks[1]);
            w.pass(deadline_ns + 10);
            w.block(false);
            prop_assert_eq!(w.interrupts.len(), 1, "{:?}", w.timer);
            let early = deadline_ns - w.interrupts[0];
            prop_assert!(early <= 5_000, "{} ns early", early);
            // Time to take the interrupt.
            let spin = w.timer.wait_at_entry(now(w.ns).host_tsc, true, &());
            prop_assert_eq!(spin, Spin::None);
            prop_assert_eq!(w.timer.read_tscdeadline(), 0);
        }
    }

    /// Posted interrupts are never early, not even within the advance.
    #[test]
    fn posted_deadlines_are_never_early(
        waits in prop::collection::vec(1_500i64..100_000, 1..40), fires_early in 0i64..400,
    ) {
        let env = TimerEnvironment {
            pi_inject_timer: true, apicv: true, mwait_in_guest: true, hlt_in_guest: true,
            hv_shift: Some(5), on_housekeeping_cpu: false, wants_to_run: true,
        };
        let mut w = world(TimerPolicy::ExitsOff, env, 2 << 17);
        for wait in waits {
            w.interrupts.clear();
            let deadline = (w.ns + wait) / 2 * 5;
            let armed = w.timer.write_tscdeadline(deadline as u64, now(w.ns), &env, &());
            w.do_all(armed);
            if let Some(at) = w.timer.hrtimer_at() {
                w.ns = (at + fires_early).max(w.ns);
                let fired = w.timer.hrtimer_fired(now(w.ns), VcpuMode::InGuest, &env, &());
                w.do_all(fired);
                prop_assert_eq!(w.interrupts.len(), 1);
                prop_assert!(w.interrupts[0] * 5 + 5 >= deadline * 2, "{:?}", w.timer);
            }
            w.ns += wait;
        }
    }

    /// A periodic timer keeps its pace, and never fires more often than its floor allows.
    #[test]
    fn periods_keep_their_pace(
        policy in policy(), env in environment(), count in 200_000u32..2_000_000, periods in 1i64..20,
    ) {
        let mut w = world(policy, env, 1 << 17);
        let _ = w.timer.write_tdcr(0b1011, now(0), &w.env, &());
        let start = w.timer.write_tmict(count, now(0), &w.env, &());
        w.do_all(start);
        let period = i64::from(count);
        prop_assert_eq!(w.timer.period_ns(), u64::from(count));
        for n in 1..=periods {
            w.pass(n * period + 5_000);
            let got = w.interrupts.len() as i64;
            prop_assert!(got == n, "{} interrupts in {} periods: {:?}", got, n, w.timer);
        }
    }

    /// No register value, clock or frequency makes the arithmetic panic or the timer hang.
    #[test]
    fn timer_survives_anything(
        policy in policy(), env in environment(), khz in any::<u32>(), ratio in any::<u64>(),
        offset in any::<u64>(), bus_cycle_ns in any::<u32>(), min_period_us in any::<u32>(),
        writes in prop::collection::vec((0u8..9, any::<u64>(), any::<i64>(), any::<u64>()), 0..40),
    ) {
        let tsc = match GuestTsc::new(khz, ratio, offset) {
            Ok(tsc) => tsc,
            Err(e) => {
                prop_assert_eq!(e, InvalidTsc { khz, ratio });
                return Ok(());
            }
        };
        let bus_cycle = BusCycle::new(bus_cycle_ns >> (bus_cycle_ns & 31)).unwrap_or_default();
        let parameters = TimerParameters { policy, bus_cycle, min_period_us, advance: khz & 1 == 0 };
        let mut timer = LapicTimer::new(parameters, tsc);
        for (what, value, ns, host_tsc) in writes {
            let at = Now { ns, host_tsc };
            let _ = match what {
                0 => timer.write_lvt(value as u32),
                1 => timer.write_tmict(value as u32, at, &env, &()),
                2 => timer.write_tdcr(value as u32, at, &env, &()),
                3 => timer.write_tscdeadline(value, at, &env, &()),
                4 => timer.hrtimer_fired(at, VcpuMode::InGuest, &env, &()),
                5 => timer.hv_expired(at, &env, &()),
                6 => timer.begin_blocking(at, &env, &()),
                7 => timer.end_blocking(at, &env, &()),
                _ => timer.restore(value as u32, (value >> 32) as u32, at, &env, &()),
            };
            let _ = timer.read_tmcct(ns);
            let _ = timer.wait_at_entry(host_tsc, true, &());
            let _ = timer.hv_value_at_entry(host_tsc, value as u32, false);
        }
    }

    #[test]
    fn pure_functions_survive_anything(
        khz in 1u32.., ratio in 1u64.., offset in any::<u64>(), ns in any::<i64>(),
        host_tsc in any::<u64>(), deadline in any::<u64>(), advance_ns in any::<u32>(),
        old in any::<(u64, i64)>(), r in any::<[u32; 4]>(), shift in any::<u32>(),
    ) {
        let tsc = GuestTsc::new(khz, ratio, offset).unwrap();
        let at = Now { ns, host_tsc };
        let rate = Rate { bus_cycle_ns: r[0], divisor: r[1], min_period_us: r[2] };
        let old = Expiration { tscdeadline: old.0, target_ns: old.1 };
        for mode in [TimerMode::OneShot, TimerMode::Periodic, TimerMode::TscDeadline] {
            let _ = arithmetic::target_from_start(&tsc, at, mode, &rate, r[3], Some(r[0]));
            let _ = arithmetic::target_from_divisor(&tsc, ns, mode, &rate, r[2], r[3], old);
        }
        let _ = arithmetic::next_period(&tsc, at, deadline, ns);
        let _ = arithmetic::sw_deadline_as_upstream(&tsc, at, advance_ns, deadline);
        if let SwDeadline::At(at_ns) = arithmetic::sw_deadline(&tsc, at, 0, deadline) {
            prop_assert!(at_ns > ns, "never in the past");
        }
        let _ = advance::wait(&tsc, host_tsc, deadline, advance_ns);
        let wait = advance::wait_to_post(&tsc, host_tsc, deadline, advance_ns);
        if let Spin::Ns(spin) = wait.spin {
            prop_assert!(spin <= advance::MAX_NS || spin <= wait.advance_ns);
        }
        let _ = hv_timer::set(&tsc, host_tsc, advance_ns, shift, deadline);
        let divisor = arithmetic::divisor(shift);
        prop_assert!(divisor.is_power_of_two() && divisor <= 128);
    }
}

/// `start_sw_tscdeadline`: a timer that is due within the advance fires at once.
#[test]
fn a_deadline_within_the_advance_has_expired() {
    let tsc = GuestTsc::new(1_000_000, GuestTsc::NEUTRAL, 0).unwrap();
    let now = Now {
        ns: 5_000,
        host_tsc: 70,
    };
    let deadline = |cycles: u64| arithmetic::sw_deadline(&tsc, now, 1_000, 70 + cycles);
    assert_eq!(deadline(0), SwDeadline::Expired);
    assert_eq!(deadline(1_000), SwDeadline::Expired);
    assert_eq!(deadline(1_001), SwDeadline::At(5_001));
}

#[test]
fn far_deadline_wraps_upstream_and_does_not_here() {
    let tsc = GuestTsc::new(KHZ, GuestTsc::NEUTRAL, 0).unwrap();
    let start = Now { ns: 0, host_tsc: 0 };
    // Three hours; upstream's product of cycles and 10^6 exceeds 64 bits after two.
    let hours_3 = 3 * 3600 * 1000 * u64::from(KHZ);
    let SwDeadline::At(upstream) = arithmetic::sw_deadline_as_upstream(&tsc, start, 0, hours_3)
    else {
        panic!("armed");
    };
    assert!(
        upstream < 3600 * 1_000_000_000,
        "fires within the first hour"
    );
    let ours = arithmetic::sw_deadline(&tsc, start, 0, hours_3);
    assert_eq!(ours, SwDeadline::At(3 * 3600 * 1_000_000_000));
}

#[test]
fn a_deadline_follows_the_guests_tsc_when_that_is_written() {
    for hv_shift in [None, Some(5)] {
        let env = not_posted(hv_shift);
        let mut w = world(TimerPolicy::Off, env, 2 << 17);
        let cycles = |ns: u64| ns / 2 * 5;
        let armed = w
            .timer
            .write_tscdeadline(cycles(100_000), now(0), &env, &());
        w.do_all(armed);
        w.pass(10_000);
        // It is 40 us ahead from now on, and reaches the deadline so much sooner.
        let tsc = GuestTsc::new(KHZ, GuestTsc::NEUTRAL, cycles(40_000)).unwrap();
        let mut prepared = w.timer.prepare_tsc(tsc);
        let again = w.timer.tsc_changed(&mut prepared, now(w.ns), &env, &());
        w.do_all(again);
        w.pass(200_000);
        let [at] = w.interrupts[..] else {
            panic!("{hv_shift:?}: {:?}", w.interrupts);
        };
        // An hrtimer fires 1 us ahead, before it is known how long an entry takes.
        assert!((59_000..60_100).contains(&at), "{hv_shift:?}: {at}");
    }
}

#[test]
fn adaptive_policy_learns_per_vcpu() {
    let env = |hlt_in_guest| TimerEnvironment {
        pi_inject_timer: true,
        apicv: true,
        mwait_in_guest: false,
        hlt_in_guest,
        hv_shift: Some(5),
        on_housekeeping_cpu: false,
        wants_to_run: true,
    };
    // A vCPU that is always in guest mode: the preemption timer at first, then posting, though
    // HLT exits are on, which upstream's rule would not allow.
    let mut w = world(TimerPolicy::Adaptive, env(false), 2 << 17);
    let arm = |w: &mut World| {
        let deadline = (w.ns + 50_000) as u64 / 2 * 5;
        let armed = w.timer.write_tscdeadline(deadline, now(w.ns), &w.env, &());
        w.do_all(armed);
    };
    for n in 0..20 {
        arm(&mut w);
        assert_eq!(w.timer.hv().is_some(), n < 8, "arming {n}");
        w.pass(w.ns + 50_010);
        assert_eq!(w.interrupts.len(), n + 1);
    }
    // Its timers are refused: back to the preemption timer for a while.
    for _ in 0..4 {
        w.timer.note_placement(true, &w.env);
    }
    arm(&mut w);
    assert!(w.timer.hv().is_some());
    w.pass(w.ns + 50_010);
    // Before the first expiry and while it blocks, an hrtimer that is refused is not one that was to be
    // posted: the next eight expiries in guest mode still make it post.
    let mut w = world(TimerPolicy::Adaptive, env(false), 2 << 17);
    for n in 0..9 {
        for _ in 0..8 * usize::from(n < 8) {
            w.timer.note_placement(true, &w.env);
        }
        arm(&mut w);
        assert_eq!(w.timer.hv().is_some(), n < 8, "arming {n}");
        w.pass(w.ns + 50_010);
    }
    // A vCPU that blocks before each expiry never posts, though HLT exits are off.
    let mut w = world(TimerPolicy::Adaptive, env(true), 2 << 17);
    for _ in 0..40 {
        arm(&mut w);
        assert!(w.timer.hv().is_some());
        w.block(true);
        w.pass(w.ns + 50_010);
        w.block(false);
    }
    assert_eq!(w.interrupts.len(), 40);
}

/// How many expiries in guest mode it takes until these placements allow posting again.
fn pause_after(seen: &mut Observed, refusals: &[bool]) -> usize {
    for &refused in refusals {
        assert!(seen.favours_posting());
        seen.placement(refused);
    }
    let expiries = (0..9_999).take_while(|_| {
        seen.expiry(true);
        !seen.favours_posting()
    });
    1 + expiries.count()
}

#[test]
fn eight_timers_taken_in_a_row_make_the_next_pause_short_again() {
    let mut seen = Observed::default();
    (0..8).for_each(|_| seen.expiry(true));
    assert_eq!(pause_after(&mut seen, &[true; 4]), 64);
    let mostly = [true, false, true, true, true];
    assert_eq!(pause_after(&mut seen, &mostly), 128);
    let first = [false, true, true, true, true];
    assert_eq!(pause_after(&mut seen, &first), 256);
    let calm = |number: usize| [&vec![false; number][..], &[true; 4]].concat();
    assert_eq!(pause_after(&mut seen, &calm(7)), 512);
    assert_eq!(pause_after(&mut seen, &calm(8)), 64);
}

#[test]
fn isolated_only_changes_its_mind_between_arming_and_expiry() {
    let env = |on_housekeeping_cpu| TimerEnvironment {
        pi_inject_timer: true,
        apicv: true,
        mwait_in_guest: false,
        hlt_in_guest: true,
        hv_shift: Some(5),
        on_housekeeping_cpu,
        wants_to_run: true,
    };
    for (policy, posted) in [
        (TimerPolicy::IsolatedOnly, false),
        (TimerPolicy::ExitsOff, true),
    ] {
        // Armed to be posted; then the vCPU moves to a housekeeping CPU.
        let mut w = world(policy, env(false), 2 << 17);
        let _ = w.timer.write_tscdeadline(250_000, now(0), &w.env, &());
        assert!(w.timer.hrtimer_at().is_some());
        let fired = w
            .timer
            .hrtimer_fired(now(100_000), VcpuMode::InGuest, &env(true), &());
        let vector = VECTOR;
        assert_eq!(
            fired.contains(Action::Post { vector }),
            posted,
            "{policy:?}"
        );
        assert_eq!(fired.contains(Action::Kick), !posted, "{policy:?}");
    }
}

#[test]
fn timer_policies_are_known_by_name() {
    for policy in TimerPolicy::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
    }
    assert_eq!(
        "on".parse::<TimerPolicy>().unwrap_err().to_string(),
        "no such timer policy; there are off, always, isolated-only, exits-off, adaptive"
    );
}

#[test]
fn each_policy_has_its_rule() {
    let base = TimerEnvironment {
        pi_inject_timer: true,
        apicv: true,
        mwait_in_guest: false,
        hlt_in_guest: false,
        hv_shift: Some(5),
        on_housekeeping_cpu: true,
        wants_to_run: true,
    };
    let isolated = TimerEnvironment {
        on_housekeeping_cpu: false,
        ..base
    };
    let hlt = TimerEnvironment {
        hlt_in_guest: true,
        ..base
    };
    let mwait = TimerEnvironment {
        mwait_in_guest: true,
        ..base
    };
    let can = |policy, env: &TimerEnvironment| {
        let timer = world(policy, *env, 0).timer;
        (timer.can_post(env), timer.can_use_hv(env))
    };
    let hv = (false, true);
    let posts = (true, false);
    for (policy, expected) in [
        (TimerPolicy::Off, [hv, hv, hv, (false, false)]),
        (TimerPolicy::Always, [posts, posts, posts, posts]),
        (TimerPolicy::IsolatedOnly, [hv, posts, hv, (false, false)]),
        (TimerPolicy::ExitsOff, [hv, hv, posts, posts]),
    ] {
        let got = [base, isolated, hlt, mwait].map(|env| can(policy, &env));
        assert_eq!(got, expected, "{policy:?}");
        let no_apicv = TimerEnvironment {
            apicv: false,
            ..hlt
        };
        assert!(!can(policy, &no_apicv).0);
    }
}

#[test]
fn a_bus_cycle_is_as_long_as_it_is_set() {
    assert_eq!(BusCycle::new(40).unwrap().ns(), 40);
    assert_eq!(BusCycle::default().ns(), 1);
    assert_eq!(BusCycle::MAX_NS, 1 << 25);
}

/// `set_target_expiration` with a count that was saved: what is left of 1 ms at 2 ns a count.
#[test]
fn a_saved_count_is_what_is_left_of_the_period() {
    use TimerMode::{OneShot, Periodic, TscDeadline};
    let rate = Rate {
        bus_cycle_ns: 1,
        divisor: 2,
        min_period_us: 200,
    };
    let tsc = GuestTsc::new(KHZ, GuestTsc::NEUTRAL, 77).unwrap();
    for (mode, tmcct, remaining_ns, clear_tmcct) in [
        (OneShot, None, 1_000_000, false),
        (OneShot, Some(200_000), 400_000, false),
        (OneShot, Some(0), 0, false),
        (OneShot, Some(500_000), 1_000_000, false),
        (OneShot, Some(500_001), 1_000_000, true),
        (Periodic, Some(200_000), 400_000, false),
        (Periodic, Some(0), 1_000_000, false),
        (TscDeadline, Some(200_000), 1_000_000, false),
    ] {
        let start = arithmetic::target_from_start(&tsc, now(5_000), mode, &rate, 500_000, tmcct);
        let start = start.unwrap();
        assert_eq!(start.period_ns, 1_000_000, "{mode:?} {tmcct:?}");
        assert_eq!(start.target_ns, 5_000 + remaining_ns, "{mode:?} {tmcct:?}");
        let cycles = tsc.cycles(remaining_ns.unsigned_abs());
        assert_eq!(start.tscdeadline, 12_500 + 77 + cycles);
        assert_eq!(start.clear_tmcct, clear_tmcct, "{mode:?} {tmcct:?}");
    }
    let period_ns = |mode, tmict| {
        let start = arithmetic::target_from_start(&tsc, now(5_000), mode, &rate, tmict, None);
        start.map(|start| start.period_ns)
    };
    assert_eq!(period_ns(OneShot, 0), None);
    assert_eq!(period_ns(OneShot, 1000), Some(2_000));
    assert_eq!(period_ns(Periodic, 1000), Some(200_000), "the shortest");
}

/// On a preempted vCPU the deadline passes unseen: the preemption timer counts in guest mode alone.
#[test]
fn a_one_shot_that_expired_unseen_starts_no_other_period_as_the_vcpu_blocks() {
    let env = not_posted(Some(5));
    let mut w = world(TimerPolicy::Off, env, 0);
    let _ = w.timer.write_tdcr(0b1011, now(0), &env, &());
    let armed = w.timer.write_tmict(100_000, now(0), &env, &());
    w.do_all(armed);
    assert!(w.timer.hv().is_some());
    w.ns = 150_000;
    w.block(true);
    assert_eq!(w.timer.hrtimer_at(), None);
    assert_eq!(w.interrupts, [150_000]);
    w.pass(1_000_000);
    assert_eq!(w.interrupts, [150_000], "while it blocks");
}

/// APICv may be inhibited between arming and expiry.
#[test]
fn the_adaptive_policy_posts_with_apicv_alone() {
    for apicv in [true, false] {
        let env = TimerEnvironment {
            pi_inject_timer: true,
            apicv,
            mwait_in_guest: false,
            hlt_in_guest: false,
            hv_shift: None,
            on_housekeeping_cpu: false,
            wants_to_run: true,
        };
        let mut w = world(TimerPolicy::Adaptive, env, 2 << 17);
        let _ = w.timer.write_tscdeadline(250_000, now(0), &env, &());
        let fired = w
            .timer
            .hrtimer_fired(now(100_000), VcpuMode::InGuest, &env, &());
        let posts = fired.iter().any(|a| matches!(a, Action::Post { .. }));
        assert_eq!((posts, w.timer.pending()), (apicv, u32::from(!apicv)));
    }
}

/// The vCPU's thread injects the interrupt itself if it runs the guest with APICv. Otherwise the interrupt is
/// pending.
#[test]
fn the_vcpus_thread_injects_with_apicv_before_it_runs_the_guest() {
    for (apicv, wants_to_run) in [(true, true), (true, false), (false, true)] {
        let env = TimerEnvironment {
            apicv,
            wants_to_run,
            ..not_posted(Some(5))
        };
        let mut w = world(TimerPolicy::Off, env, 2 << 17);
        let _ = w.timer.write_tscdeadline(250_000, now(0), &env, &());
        assert!(w.timer.hv().is_some());
        let expired = w.timer.hv_expired(now(100_000), &env, &());
        let injects = expired.iter().any(|a| matches!(a, Action::Inject { .. }));
        let is_direct = apicv && wants_to_run;
        assert_eq!(
            (injects, w.timer.pending()),
            (is_direct, u32::from(!is_direct))
        );
    }
}
