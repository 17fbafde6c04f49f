//! Saving and restoring on a host without a device: exactness, idempotence, order, refusals.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use guest_clock::device::{MSR_IA32_TSC, MSR_IA32_TSC_DEADLINE, TscMeans, Vcpu, Vm};
use guest_clock::fake::{Disturbance, FakeHost, FakeVcpu, FakeVm};
use guest_clock::{
    Errno, Explanation, GuestClocks, Inexact, Options, PlanError, Policy, Reason, RestoreError,
    SaveError, Saved, State, Unequal, Written,
};

const KHZ: u32 = 2_500_000;

fn saved_after(host: &FakeHost, vcpus: usize, ns: u64) -> (Saved, Vec<FakeVcpu>) {
    let (vm, vcpus) = host.vm(vcpus);
    // The first entry engages the master clock.
    vm.set_clock(&Default::default()).unwrap();
    host.pass(ns);
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    (saved, vcpus)
}

fn offsets(vcpus: &[FakeVcpu]) -> Vec<u64> {
    vcpus.iter().map(|v| v.tsc_offset().unwrap()).collect()
}

fn x86(saved: &Saved) -> guest_clock::X86State {
    match saved.state() {
        State::X86(x86) => x86.clone(),
        other => panic!("{other:?}"),
    }
}

fn fresh(host: &FakeHost, vcpus: usize) -> (FakeVm, Vec<FakeVcpu>) {
    let made = host.vm(vcpus);
    let _ = host.calls();
    made
}

#[test]
fn within_a_host_the_same_offsets_come_back() {
    let host = FakeHost::new(KHZ);
    let (saved, old) = saved_after(&host, 4, 5_000_000_000);
    host.pass(3_600_000_000_000);
    let (vm, vcpus) = fresh(&host, 4);
    let done = saved.restore(&vm, &vcpus, Policy::ELAPSED).unwrap();
    assert!(done.is_exact() && done.master_clock, "{done}");
    // The ideal is the offset that it had: the cycle that rounding may take is all that is lost.
    for (new, old) in offsets(&vcpus).iter().zip(offsets(&old)) {
        assert!(old.wrapping_sub(*new) <= 1, "{new:#x} {old:#x}");
    }
    assert_eq!(done.advanced_ns as i128, done.elapsed_ns);
}

#[test]
fn a_guest_without_kvmclock_is_not_notified_of_the_pause() {
    let host = FakeHost::new(KHZ);
    let (saved, _) = saved_after(&host, 3, 1_000_000);
    let (vm, vcpus) = fresh(&host, 3);
    vcpus[1].disable_kvmclock();
    let done = saved.restore(&vm, &vcpus, Policy::Stopped).unwrap();
    let unnotified = Reason::NotToldOfPause { vcpus: 1 };
    assert!(done.reasons.contains(&unnotified), "{done}");
}

#[test]
fn a_wall_clock_that_is_slewed_is_not_one_that_stepped() {
    // As much as the kernel ever slews.
    for ppb in [-500_000, 500_000] {
        let host = FakeHost::new(KHZ);
        host.slew_wall_clock(ppb);
        let (saved, _) = saved_after(&host, 2, 1_000_000);
        let (vm, vcpus) = fresh(&host, 2);
        let options = Options::new(Policy::Stopped);
        let plan = saved.plan(&vm, &vcpus, &options).unwrap();
        host.pass(1_000_000_000);
        let done = plan.carry_out(&vm, &vcpus);
        assert!(done.is_ok(), "{ppb}: {:?}", done.err());
    }
}

#[test]
fn repeating_and_any_delay_change_nothing() {
    let host = FakeHost::new(KHZ);
    let (saved, _) = saved_after(&host, 3, 1_000_000);
    let (vm, vcpus) = fresh(&host, 3);
    let plan = saved
        .plan(&vm, &vcpus, &Options::new(Policy::Stopped))
        .unwrap();
    plan.carry_out(&vm, &vcpus).unwrap();
    let first = offsets(&vcpus);
    for delay in [1, 999_999_999, 1_000_000_001, 60_000_000_000] {
        host.disturb(
            Disturbance {
                one_in: 1,
                most_ns: 40_000_000,
            },
            delay,
        );
        host.pass(delay);
        plan.carry_out(&vm, &vcpus).unwrap();
        assert_eq!(offsets(&vcpus), first, "after {delay} ns");
        host.disturb(Disturbance::default(), 1);
        let (clock, anchor) = (vm.get_clock().unwrap(), plan.anchor());
        let since = clock.realtime_ns - anchor.realtime_ns;
        let planned = plan.clock_ns() + since;
        assert!(
            clock.clock_ns.abs_diff(planned) <= 200,
            "{clock:?} {planned}"
        );
    }
}

#[test]
fn a_new_vm_and_host_with_another_tsc_and_frequency_see_the_same_guest_time() {
    for (khz, base) in [(KHZ, 0), (2_000_000, u64::MAX - 1000), (3_100_000, 1 << 63)] {
        let source = FakeHost::new(KHZ);
        let (saved, _) = saved_after(&source, 2, 10_000_000_000);
        let target = FakeHost::new(khz);
        target.set_tsc_base(base);
        target.pass(30_000_000_000);
        let (vm, vcpus) = fresh(&target, 2);
        let done = saved.restore(&vm, &vcpus, Policy::ELAPSED).unwrap();
        assert_eq!(offsets(&vcpus)[0], offsets(&vcpus)[1]);
        let a = vcpus[0].read_clocks().unwrap();
        let b = vcpus[1].read_clocks().unwrap();
        let at_save = done.vcpus[0].tsc_at_save;
        assert!(
            a.tsc > at_save && b.tsc >= a.tsc && a.stable && a.stopped,
            "{done}"
        );
        assert!(b.kvmclock_ns >= a.kvmclock_ns);
        let x86 = x86(&saved);
        // Guest cycles and guest ns advanced alike.
        let ns = a.kvmclock_ns - x86.instant.clock_ns;
        let cycles = a.tsc - at_save;
        let off = (i128::from(ns) * i128::from(KHZ) / 1_000_000 - i128::from(cycles)).abs();
        assert!(off < 3 * i128::from(KHZ) / 1000, "{khz}: {off} cycles");
        assert_eq!(vcpus[0].tsc_khz().unwrap(), KHZ);
    }
}

/// From a host that scales the guest on to another: the guest's clock there runs ahead of the one that KVM
/// saves. The restore sets it back by the difference, which the bound must include, with or without a
/// known duration.
#[test]
fn a_scaled_guests_clock_stays_within_its_bound() {
    for (known_ns, scale_khz) in [(0, 3_100_000), (86_400_000_000_000, 2_100_000)] {
        let (saved, _) = saved_after(&FakeHost::new(KHZ), 2, 10_000_000_000);
        let source = FakeHost::new(scale_khz);
        source.pass(20_000_000_000);
        let (vm, vcpus) = fresh(&source, 2);
        saved.restore(&vm, &vcpus, Policy::ELAPSED).unwrap();
        // The guest runs: requests for a new master clock are served before its first entry.
        for vcpu in &vcpus {
            vcpu.read_clocks().unwrap();
        }
        source.pass(86_400_000_000_000);
        let before = vcpus[0].read_clocks().unwrap().kvmclock_ns;
        let at = source.now().real_ns;
        let saved = GuestClocks::save(&vm, &vcpus).unwrap();
        let target = FakeHost::new(KHZ);
        target.pass(source.now().ns);
        let (vm, vcpus) = fresh(&target, 2);
        let mut how = Options::new(Policy::ELAPSED);
        how.uncertainty.master_clock_age_ns = known_ns;
        let done = saved.restore(&vm, &vcpus, how).unwrap();
        let after = vcpus[0].read_clocks().unwrap().kvmclock_ns;
        let elapsed = i128::from(target.now().real_ns) - i128::from(at);
        let off = i128::from(after) - i128::from(before) - elapsed;
        assert!(off < -10_000_000, "{off} ns: it drifted");
        assert!(
            off.unsigned_abs() <= u128::from(done.kvmclock_against_real_ns) + 2000,
            "{off} {done}"
        );
        let drifts =
            |r: &Reason| matches!(r, Reason::PageDrift { age_ns } if *age_ns >= 86_400_000_000_000);
        assert!(
            done.reasons.iter().any(drifts) && !done.is_exact(),
            "{done}"
        );
    }
}

/// Where the guest was saved, its TSC ran at the host's frequency. That differs from the nominal one, which
/// the guest knows and which its pause is counted with.
#[test]
fn the_rate_of_a_guest_within_tolerance_is_in_its_bound() {
    for source_khz in [2_500_400, 2_499_500] {
        let (saved, _) = saved_after(&FakeHost::new(KHZ), 2, 10_000_000_000);
        let host = FakeHost::new(source_khz);
        host.pass(20_000_000_000);
        let (vm, old) = fresh(&host, 2);
        saved.restore(&vm, &old, Policy::ELAPSED).unwrap();
        let saved = GuestClocks::save(&vm, &old).unwrap();
        host.pass(60_000_000_000);
        let (vm, vcpus) = fresh(&host, 2);
        let done = saved.restore(&vm, &vcpus, Policy::ELAPSED).unwrap();
        let off = offsets(&vcpus)[0].wrapping_sub(offsets(&old)[0]) as i64;
        let off_ns = off.unsigned_abs() * 1_000_000 / u64::from(KHZ);
        assert!(off_ns > 9_000_000, "{off_ns} ns: its rate differs");
        assert!(off_ns <= done.tsc_against_its_rate_ns, "{off_ns} {done}");
        let named = |r: &Reason| matches!(r, Reason::RanWithinTolerance { off_ns: ns, .. } if off_ns.abs_diff(*ns) < 10);
        assert!(done.reasons.iter().any(named), "{done}");
    }
}

#[test]
fn policies_say_how_far_guest_time_goes() {
    let host = FakeHost::new(KHZ);
    let (saved, _) = saved_after(&host, 2, 1_000_000);
    host.pass(10_000_000_000);
    let advanced = |options: Options| -> Result<Explanation, RestoreError> {
        let (vm, vcpus) = fresh(&host, 2);
        saved.restore(&vm, &vcpus, options)
    };
    assert_eq!(advanced(Policy::Stopped.into()).unwrap().advanced_ns, 0);
    let most = advanced(Policy::AtMost { max_ns: 7 }.into()).unwrap();
    assert_eq!(most.advanced_ns, 7);
    assert!(
        most.reasons
            .iter()
            .any(|r| matches!(r, Reason::Capped { max_ns: 7, .. }))
    );
    assert!(advanced(Policy::ELAPSED.into()).unwrap().advanced_ns > 10_000_000_000);
    let refused = Policy::Elapsed {
        refuse_above_ns: 1_000_000_000,
    };
    let error = advanced(refused.into()).unwrap_err();
    let RestoreError::Refused(PlanError::Jump(jump)) = error else {
        panic!("{error}");
    };
    assert!(jump.elapsed_ns > 10_000_000_000 && jump.allowed_ns == 1_000_000_000);
}

#[test]
fn a_wall_clock_behind_is_refused_and_on_demand_stops_guest_time() {
    let host = FakeHost::new(KHZ);
    let (saved, _) = saved_after(&host, 2, 1_000_000);
    host.step_wall_clock(-3_600_000_000_000);
    let (vm, vcpus) = fresh(&host, 2);
    for policy in [Policy::ELAPSED, Policy::AtMost { max_ns: 1 << 40 }] {
        let refused = saved.restore(&vm, &vcpus, policy).unwrap_err();
        let RestoreError::Refused(PlanError::WallClockBehind(behind)) = refused else {
            panic!("{refused}");
        };
        assert!(
            (3_599_000_000_000..3_600_000_000_000).contains(&behind.by_ns),
            "{behind}"
        );
    }
    // Whoever lets guest time stand still anyway needs no wall clock.
    let stopped = saved.restore(&vm, &vcpus, Policy::Stopped).unwrap();
    assert!(stopped.is_exact(), "{stopped}");
    let how = Options::new(Policy::ELAPSED).accept_inexact();
    let done = saved.restore(&vm, &vcpus, how).unwrap();
    assert_eq!(done.advanced_ns, 0);
    assert!(!done.is_exact(), "{done}");
    assert_eq!(done.kvmclock_against_real_ns, u64::MAX);
    assert!(
        done.to_string()
            .contains("kvmclock against real time unknown"),
        "{done}"
    );
    // Behind by no more than the skew that is stated: in the bound, and marked.
    let mut how = Options::new(Policy::ELAPSED);
    how.uncertainty.realtime_skew_ns = 3_600_000_000_000;
    let within = saved.restore(&vm, &vcpus, how).unwrap();
    assert!(
        !within.is_exact() && within.kvmclock_against_real_ns < 4_000_000_000_000,
        "{within}"
    );
    assert!(
        done.reasons
            .iter()
            .any(|r| matches!(r, Reason::WallClockBehind { .. }))
    );
    assert!(vcpus[0].read_clocks().unwrap().tsc >= done.vcpus[0].tsc_at_save);
}

/// Nothing is written when a plan is refused.
#[test]
fn refusals_write_nothing_and_name_their_operands() {
    let host = FakeHost::new(KHZ);
    let (saved, old) = saved_after(&host, 2, 1_000_000);
    let (vm, vcpus) = fresh(&host, 3);
    let error = saved.restore(&vm, &vcpus, Policy::Stopped).unwrap_err();
    let expected = PlanError::VcpuCount { saved: 2, given: 3 };
    assert_eq!(error, RestoreError::Refused(expected));

    let mut state = x86(&saved);
    state.vcpus[1].tsc_offset = state.vcpus[1].tsc_offset.wrapping_sub(1000);
    let forged = Saved::new(State::X86(state)).unwrap();
    let (vm, vcpus) = fresh(&host, 2);
    let error = forged.restore(&vm, &vcpus, Policy::Stopped).unwrap_err();
    let RestoreError::Refused(PlanError::OffsetsDiffer {
        vcpu: 1,
        cycles: -1000,
        ns: -400,
        ..
    }) = error
    else {
        panic!("{error}");
    };
    vcpus[1].set_running(true);
    let error = saved.restore(&vm, &vcpus, Policy::Stopped).unwrap_err();
    assert_eq!(error, RestoreError::Refused(PlanError::Busy { vcpu: 1 }));
    assert_eq!(
        GuestClocks::save(&vm, &vcpus),
        Err(SaveError::Busy { vcpu: 1 })
    );
    let writes = host.calls().into_iter().filter(|c| c.contains("SET"));
    assert_eq!(writes.count(), 0);
    drop(old);
}

#[test]
fn offsets_that_differ_are_raised_to_the_highest_or_refused_where_one_would_go_back() {
    let host = FakeHost::new(KHZ);
    let (saved, _) = saved_after(&host, 2, 1_000_000);
    let mut state = x86(&saved);
    state.vcpus[1].tsc_offset = state.vcpus[0].tsc_offset.wrapping_add(5_000_000_000);
    let unequal = Saved::new(State::X86(state.clone())).unwrap();
    let restore = |how| {
        let (vm, vcpus) = fresh(&host, 2);
        let options = Options::new(Policy::Stopped).unequal(how);
        unequal
            .restore(&vm, &vcpus, options)
            .map(|done| (done, offsets(&vcpus)))
    };
    let (done, new) = restore(Unequal::Highest).unwrap();
    assert_eq!(new[0], new[1]);
    assert!(done.master_clock && done.is_exact());
    let error = restore(Unequal::First).unwrap_err();
    let RestoreError::Refused(PlanError::Backwards {
        vcpu: 1, cycles, ..
    }) = error
    else {
        panic!("{error}");
    };
    assert_eq!(cycles, 5_000_000_000);
    let (done, new) = restore(Unequal::Keep).unwrap();
    assert_eq!(new[1].wrapping_sub(new[0]), 5_000_000_000);
    assert!(!done.master_clock && !done.is_exact());
}

#[test]
fn frequencies_out_of_reach_are_refused_and_near_ones_stated() {
    let source = FakeHost::new(KHZ);
    let (saved, _) = saved_after(&source, 1, 1_000_000);
    let mut facts = guest_clock::device::HostFacts::complete(KHZ + 600);
    facts.has_scaling = false;
    let near = FakeHost::with(facts);
    let (vm, vcpus) = fresh(&near, 1);
    let done = saved.restore(&vm, &vcpus, Policy::Stopped).unwrap();
    let drift = done.reasons.iter().find_map(|r| match r {
        Reason::WithinTolerance { drift_ppb, .. } => Some(*drift_ppb),
        _ => None,
    });
    assert_eq!(drift, Some(240_000));
    for khz in [2_000_000, 3_000_000] {
        facts.tsc_khz = khz;
        let (vm, vcpus) = fresh(&FakeHost::with(facts), 1);
        let error = saved.restore(&vm, &vcpus, Policy::Stopped).unwrap_err();
        let expected = PlanError::Frequency {
            guest_khz: KHZ,
            host_khz: khz,
            tolerance_ppm: 250,
            has_scaling: false,
        };
        assert_eq!(error, RestoreError::Refused(expected));
    }
}

#[test]
fn failures_on_the_way_name_what_was_written_and_can_be_repeated() {
    let host = FakeHost::new(KHZ);
    let (saved, _) = saved_after(&host, 2, 1_000_000);
    let (vm, vcpus) = fresh(&host, 2);
    let restore = || saved.restore(&vm, &vcpus, Policy::Stopped);
    host.fail("KVM_SET_DEVICE_ATTR", 1, 5);
    let RestoreError::Partial { failed, written } = restore().unwrap_err() else {
        panic!();
    };
    assert_eq!(written, [Written::Counter(0)]);
    assert_eq!((failed.vcpu, failed.errno), (Some(1), Errno(5)));
    host.heal();
    host.fail("KVM_SET_CLOCK", 0, 22);
    let error = restore().unwrap_err();
    assert!(
        error.to_string().contains("TSC of vCPU 0, TSC of vCPU 1"),
        "{error}"
    );
    host.heal();
    host.fail("KVM_KVMCLOCK_CTRL", 0, 9);
    let RestoreError::Partial { written, .. } = restore().unwrap_err() else {
        panic!();
    };
    assert!(written.contains(&Written::Clock));
    host.heal();
    assert!(restore().unwrap().is_exact());
}

#[test]
fn without_the_attribute_the_value_is_written_equal_on_all_and_its_bound_stated() {
    let host = FakeHost::new(KHZ);
    let (saved, _) = saved_after(&host, 4, 1_000_000);
    host.set_means(TscMeans::Values);
    let (vm, vcpus) = fresh(&host, 4);
    let refused = saved.restore(&vm, &vcpus, Policy::ELAPSED).unwrap_err();
    assert_eq!(refused, RestoreError::Refused(PlanError::NoOffsets));
    host.disturb(
        Disturbance {
            one_in: 2,
            most_ns: 400_000,
        },
        5,
    );
    let accept = Options::new(Policy::ELAPSED).accept_inexact();
    let done = saved.restore(&vm, &vcpus, accept).unwrap();
    let bound_ns = done.reasons.iter().find_map(|r| match r {
        Reason::ByValue { bound_ns } => Some(*bound_ns),
        _ => None,
    });
    host.set_means(TscMeans::Offsets);
    let made = offsets(&vcpus);
    assert!(made.iter().all(|o| *o == made[0]), "{made:?}");
    let off = made[0].wrapping_sub(done.vcpus[0].offset_to) as i64;
    let off_ns = off.unsigned_abs() * 1_000_000 / u64::from(KHZ);
    assert!(off_ns <= bound_ns.unwrap(), "{off_ns} {bound_ns:?}");
    assert!(done.master_clock && !done.is_exact());
}

#[test]
fn a_kvm_that_ignores_offsets_is_found_out() {
    let host = FakeHost::new(KHZ);
    let (saved, _) = saved_after(&host, 2, 1_000_000);
    host.set_means(TscMeans::Fixed);
    let (vm, vcpus) = fresh(&host, 2);
    let error = saved.restore(&vm, &vcpus, Policy::Stopped).unwrap_err();
    let RestoreError::Refused(PlanError::TscFixed {
        vcpu: 0, fixed: 0, ..
    }) = error
    else {
        panic!("{error}");
    };
    // Such a KVM's own guests go on where the host's TSC is.
    vm.set_clock(&Default::default()).unwrap();
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    host.pass(1_000_000_000);
    let (vm, vcpus) = fresh(&host, 2);
    let done = saved.restore(&vm, &vcpus, Policy::ELAPSED).unwrap();
    assert!(
        done.reasons
            .iter()
            .any(|r| matches!(r, Reason::TscFixed { off_ns: 0..=2 }))
    );
    let stopped = saved.restore(&vm, &vcpus, Options::new(Policy::Stopped).accept_inexact());
    let off = stopped.unwrap().reasons.iter().find_map(|r| match r {
        Reason::TscFixed { off_ns } => Some(*off_ns),
        _ => None,
    });
    assert!(off.unwrap() > 1_000_000_000);
}

/// Offsets that are taken and not had, on a KVM that was not probed.
#[test]
fn an_offset_that_was_not_taken_is_named() {
    let host = FakeHost::new(KHZ);
    let (saved, _) = saved_after(&host, 2, 1_000_000);
    let (vm, vcpus) = fresh(&host, 2);
    let plan = saved
        .plan(&vm, &vcpus, &Options::new(Policy::Stopped))
        .unwrap();
    host.set_means(TscMeans::Fixed);
    let error = plan.carry_out(&vm, &vcpus).unwrap_err();
    let RestoreError::OffsetNotTaken {
        vcpu: 0,
        read: 0,
        written,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(written, [Written::Counter(0), Written::Counter(1)]);
}

#[test]
fn without_the_master_clock_there_is_a_bound_or_a_refusal() {
    let host = FakeHost::new(KHZ);
    host.leave_tsc_clocksource();
    let (vm, vcpus) = host.vm(2);
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    let bound = x86(&saved).instant.bound_ns;
    assert!((1..10_000).contains(&bound), "{bound}");
    let (vm, vcpus) = fresh(&host, 2);
    let error = saved.restore(&vm, &vcpus, Policy::ELAPSED).unwrap_err();
    let expected = PlanError::NoInstant {
        at_save: true,
        bound_ns: bound,
    };
    assert_eq!(error, RestoreError::Refused(expected));
    let accept = Options::new(Policy::ELAPSED).accept_inexact();
    let done = saved.restore(&vm, &vcpus, accept).unwrap();
    assert!(!done.master_clock && done.tsc_against_kvmclock_ns >= bound);
}

#[test]
fn a_wall_clock_that_steps_meanwhile_is_noticed() {
    let host = FakeHost::new(KHZ);
    let (saved, _) = saved_after(&host, 1, 1_000_000);
    let (vm, vcpus) = fresh(&host, 1);
    let plan = saved
        .plan(&vm, &vcpus, &Options::new(Policy::ELAPSED))
        .unwrap();
    host.step_wall_clock(3_600_000_000_000);
    let error = plan.carry_out(&vm, &vcpus).unwrap_err();
    let RestoreError::ClockStepped { off_ns, .. } = error else {
        panic!("{error}");
    };
    assert!(off_ns.abs_diff(3_600_000_000_000) < 10_000, "{off_ns}");
}

#[test]
fn deadlines_mean_the_same_instant_afterwards() {
    let host = FakeHost::new(KHZ);
    let (vm, vcpus) = host.vm(1);
    vm.set_clock(&Default::default()).unwrap();
    let now = vcpus[0].msr(MSR_IA32_TSC).unwrap().unwrap();
    vcpus[0]
        .set_msr(MSR_IA32_TSC_DEADLINE, now + 25_000_000_000)
        .unwrap();
    let saved = GuestClocks::save(&vm, &vcpus).unwrap();
    let (vm, vcpus) = fresh(&host, 1);
    let done = saved.restore(&vm, &vcpus, Policy::Stopped).unwrap();
    assert_eq!(
        vcpus[0].msr(MSR_IA32_TSC_DEADLINE).unwrap(),
        Some(now + 25_000_000_000)
    );
    assert_eq!(done.vcpus[0].tsc_deadline, Some(now + 25_000_000_000));
    // Twenty seconds later it has expired: it fires at once, and that is said.
    host.pass(20_000_000_000);
    let done = saved.restore(&vm, &vcpus, Policy::ELAPSED).unwrap();
    assert!(
        done.reasons
            .contains(&Reason::DeadlinesNotArmed { vcpus: 1 })
    );
}

#[test]
fn a_plan_can_be_accepted_or_not_but_not_in_the_wrong_order() {
    let host = FakeHost::new(KHZ);
    let (saved, _) = saved_after(&host, 1, 1_000_000);
    let (vm, vcpus) = fresh(&host, 1);
    let plan = saved
        .plan(&vm, &vcpus, &Options::new(Policy::Stopped))
        .unwrap();
    let counters = plan.write_counters(&vm, &vcpus).unwrap();
    let clock = counters.write_clock(&vm).unwrap();
    let done = clock.arm_timers(&vcpus).unwrap().finish();
    assert!(done.is_exact());
    let order = host.calls();
    let at = |name| order.iter().position(|c| *c == name);
    assert!(at("KVM_SET_DEVICE_ATTR") < at("KVM_SET_CLOCK"));
    assert!(at("KVM_SET_CLOCK") < at("KVM_KVMCLOCK_CTRL"));
    assert_eq!(Options::from(Policy::Stopped).inexact, Inexact::Refuse);
}
