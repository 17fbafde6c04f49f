//! Counts of the timer when the guest's TSC is written or scaled anew: they are times, not deadlines.

use stealtime_hypervisor::lapic_timer::advance::Spin;
use stealtime_hypervisor::lapic_timer::{
    Action, Actions, GuestTsc, LapicTimer, Now, TimerEnvironment, TimerParameters, TimerPolicy,
};

use crate::timer_models::not_posted;

const KHZ: u32 = 2_500_000;
const LVT_ONE_SHOT: u32 = 0xec;
const LVT_PERIODIC: u32 = 1 << 17 | 0xec;
const DIVIDE_BY_1: u32 = 0b1011;

fn us(us: u64) -> Now {
    Now {
        ns: (us * 1000) as i64,
        host_tsc: us * 2500,
    }
}

fn tsc(khz: u32, ratio: u64, offset: u64) -> GuestTsc {
    GuestTsc::new(khz, ratio, offset).unwrap()
}

fn timer(lvt: u32, advance: bool) -> LapicTimer {
    let parameters = TimerParameters {
        policy: TimerPolicy::Off,
        advance,
        ..TimerParameters::default()
    };
    let mut timer = LapicTimer::new(parameters, tsc(KHZ, GuestTsc::NEUTRAL, 0));
    let _ = timer.write_lvt(lvt);
    let _ = timer.write_tdcr(DIVIDE_BY_1, us(0), &not_posted(None), &());
    timer
}

/// The host times in us at which interrupts come, up to `end`.
fn interrupts(timer: &mut LapicTimer, env: &TimerEnvironment, end: u64) -> Vec<u64> {
    let mut times = Vec::new();
    loop {
        let hv = timer.hv().map(|hv| hv.host_deadline / 2500);
        let hrtimer = timer.hrtimer_at().map(|ns| ns as u64 / 1000);
        let Some(at) = hv.or(hrtimer).filter(|&at| at <= end) else {
            return times;
        };
        let actions: Actions = if hv.is_some() {
            timer.hv_expired(us(at), env, &())
        } else {
            panic!("back on the preemption timer by now")
        };
        let injected = actions
            .iter()
            .filter(|a| matches!(a, Action::Inject { .. }));
        times.extend(injected.map(|_| at));
    }
}

/// Arms a count of 1 ms, changes the TSC at 200 us, blocks and runs again, which arms the preemption
/// timer anew. Returns the times of the interrupts within 3.5 ms.
fn after_a_change(lvt: u32, to: GuestTsc, upstream: bool) -> Vec<u64> {
    let env = not_posted(Some(5));
    let mut timer = timer(lvt, false);
    let _ = timer.write_tmict(1_000_000, us(0), &env, &());
    assert!(timer.hv().is_some());
    let mut prepared = timer.prepare_tsc(to);
    let changed = if upstream {
        timer.tsc_changed_as_upstream(&mut prepared, us(200), &env, &())
    } else {
        timer.tsc_changed(&mut prepared, us(200), &env, &())
    };
    assert!(changed.is_empty(), "the host time stays: {changed:?}");
    let _ = timer.begin_blocking(us(300), &env, &());
    assert_eq!(timer.hrtimer_at(), Some(1_000_000));
    let _ = timer.end_blocking(us(400), &env, &());
    let mut times = interrupts(&mut timer, &env, 3_500);
    // A vCPU that moves arms it anew as well.
    let moved = timer.cpu_changed(us(3_500), &env, &());
    assert_eq!(moved.is_empty(), lvt == LVT_ONE_SHOT);
    times.dedup();
    times
}

#[test]
fn a_count_keeps_its_time_when_the_tsc_is_written() {
    // Ahead by 300 us, behind by 150 us (of its 400), and half as fast.
    let ahead = tsc(KHZ, GuestTsc::NEUTRAL, 300 * 2500);
    let behind = tsc(KHZ, GuestTsc::NEUTRAL, (150 * 2500u64).wrapping_neg());
    let slower = tsc(KHZ / 2, GuestTsc::NEUTRAL / 2, 0);
    for to in [ahead, behind, slower] {
        assert_eq!(after_a_change(LVT_ONE_SHOT, to, false), [1000], "{to:?}");
        let periods = after_a_change(LVT_PERIODIC, to, false);
        assert_eq!(periods, [1000, 2000, 3000], "{to:?}");
    }
}

#[test]
fn upstream_is_off_by_the_whole_change() {
    let ahead = tsc(KHZ, GuestTsc::NEUTRAL, 300 * 2500);
    assert_eq!(after_a_change(LVT_ONE_SHOT, ahead, true), [700]);
    let behind = tsc(KHZ, GuestTsc::NEUTRAL, (150 * 2500u64).wrapping_neg());
    assert_eq!(after_a_change(LVT_ONE_SHOT, behind, true), [1150]);
    assert_eq!(after_a_change(LVT_PERIODIC, ahead, true)[0], 700);
}

#[test]
fn a_count_that_is_over_stays_over() {
    let env = not_posted(Some(5));
    let mut timer = timer(LVT_ONE_SHOT, false);
    let _ = timer.write_tmict(1_000_000, us(0), &env, &());
    assert_eq!(interrupts(&mut timer, &env, 2_000), [1000]);
    let mut prepared = timer.prepare_tsc(tsc(KHZ, GuestTsc::NEUTRAL, 77));
    let changed = timer.tsc_changed(&mut prepared, us(2_000), &env, &());
    assert!(changed.is_empty());
    let moved = timer.cpu_changed(us(2_100), &env, &());
    assert!(moved.is_empty() && timer.hv().is_none(), "{moved:?}");
}

/// `apic_timer_expired` keeps the deadline that expired in deadline mode and for the preemption
/// timer in any mode: both fire in advance, and entry waits for the rest. An hrtimer of a count
/// fires on time.
#[test]
fn an_expired_count_is_waited_for_on_the_preemption_timer_only() {
    for lvt in [LVT_ONE_SHOT, LVT_PERIODIC] {
        let hv = not_posted(Some(5));
        let mut on_hv = timer(lvt, true);
        let _ = on_hv.write_tmict(1_000_000, us(0), &hv, &());
        // In advance by 1 us.
        assert_eq!(on_hv.hv().map(|hv| hv.host_deadline), Some(999 * 2500));
        let _ = on_hv.hv_expired(us(999), &hv, &());
        // The vector of another interrupt is the one to be taken.
        assert_eq!(on_hv.wait_at_entry(999 * 2500, false, &()), Spin::None);
        let spin = on_hv.wait_at_entry(999 * 2500, true, &());
        // 1 us early: the advance is an eighth smaller from now on.
        assert_eq!(spin, Spin::Cycles(875 * 5 / 2), "{lvt:#x}");
        assert_eq!(on_hv.advance_ns(), 875);

        let sw = not_posted(None);
        let mut on_hrtimer = timer(lvt, true);
        let _ = on_hrtimer.write_tmict(1_000_000, us(0), &sw, &());
        assert_eq!(on_hrtimer.hrtimer_at(), Some(1_000_000));
        let mode = stealtime_hypervisor::posted_interrupt::VcpuMode::OutsideGuest;
        let _ = on_hrtimer.hrtimer_fired(us(1_000), mode, &sw, &());
        let _ = on_hrtimer.inject_pending();
        let spin = on_hrtimer.wait_at_entry(999 * 2500, true, &());
        assert_eq!((spin, on_hrtimer.advance_ns()), (Spin::None, 1000));
    }
}

#[test]
fn a_jump_of_the_tsc_is_no_measure_of_the_advance() {
    let env = not_posted(Some(5));
    for upstream in [false, true] {
        let mut timer = timer(2 << 17 | 0xec, true);
        let _ = timer.write_tscdeadline(1_000 * 2500, us(0), &env, &());
        let _ = timer.hv_expired(us(999), &env, &());
        // Exactly at the deadline, but the TSC is 2 us ahead now.
        let mut prepared = timer.prepare_tsc(tsc(KHZ, GuestTsc::NEUTRAL, 5_000));
        let _ = if upstream {
            timer.tsc_changed_as_upstream(&mut prepared, us(1_000), &env, &())
        } else {
            timer.tsc_changed(&mut prepared, us(1_000), &env, &())
        };
        assert_eq!(timer.wait_at_entry(1_000 * 2500, true, &()), Spin::None);
        assert_eq!(timer.advance_ns(), if upstream { 1_250 } else { 1_000 });
    }
}

/// SVM has no preemption timer and ratios with 32 fraction bits; the deadline's hrtimer is the same.
#[test]
fn svm_ratios_are_exact() {
    use stealtime_hypervisor::counter::scaling::RatioFormat;
    use stealtime_hypervisor::lapic_timer::InvalidTsc;

    for guest_khz in [800_000, 2_499_999, 2_500_000, 4_321_987] {
        let svm = RatioFormat::SVM;
        let ratio = svm.ratio(guest_khz, KHZ).unwrap();
        let tsc = GuestTsc::on_svm(guest_khz, ratio, 99).unwrap();
        assert_eq!(tsc.is_scaled(), guest_khz != KHZ);
        for host in [0, 1, 12_345_678_901, u64::MAX] {
            assert_eq!(
                tsc.at(host),
                svm.read_l1(ratio, 99, host),
                "{guest_khz} {host}"
            );
        }
        // 1 ms of the guest's TSC is 1 ms of the host's time.
        let env = not_posted(None);
        let mut timer = LapicTimer::new(TimerParameters::default(), tsc);
        let _ = timer.write_lvt(2 << 17 | 0xec);
        let at = us(500);
        let deadline = tsc.at(at.host_tsc) + u64::from(guest_khz);
        let _ = timer.write_tscdeadline(deadline, at, &env, &());
        assert!(timer.hv().is_none());
        assert_eq!(timer.hrtimer_at(), Some(at.ns + 1_000_000 - 1_000));
    }
    for ratio in [0, 1 << 40] {
        let refused = GuestTsc::on_svm(KHZ, ratio, 0);
        assert_eq!(refused, Err(InvalidTsc { khz: KHZ, ratio }));
    }
}

/// An entry without an expired deadline measures no advance, also where the guest TSC is next to 0.
#[test]
fn an_entry_without_an_expired_deadline_adapts_nothing() {
    let mut timer = timer(2 << 17 | 0xec, true);
    for host_tsc in [5_000, 5_000u64.wrapping_neg()] {
        assert_eq!(timer.wait_at_entry(host_tsc, true, &()), Spin::None);
        assert_eq!(timer.advance_ns(), 1_000);
    }
}
