//! arm64's counter on a host without a device.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use guest_clock::arm64::{Arm64Error, Arm64Vm};
use guest_clock::device::TscMeans;
use guest_clock::fake::{Disturbance, FakeArm64Vm, FakeHost};
use guest_clock::{GuestClocks, Options, PlanError, Policy, RestoreError, WallClocksDiffer};

const SECOND: u64 = 1_000_000_000;

/// A counter of 1 GHz, as Armv8.6 has it.
fn host() -> FakeHost {
    FakeHost::new(1_000_000)
}

#[test]
fn a_known_offset_comes_back_exactly() {
    let source = host();
    let vm = FakeArm64Vm::new(&source, 4);
    vm.set_counter_offset(1 << 40).unwrap();
    source.pass(5 * SECOND);
    let saved = GuestClocks::save_arm64(&vm, Some(1 << 40)).unwrap();
    let target = host();
    target.set_tsc_base(u64::MAX - 5);
    target.pass(60 * SECOND);
    let vm = FakeArm64Vm::new(&target, 4);
    let done = saved.restore_arm64(&vm, Policy::ELAPSED).unwrap();
    assert_eq!(
        done.count_at_anchor.wrapping_sub(done.count_at_save),
        done.advanced_ns
    );
    assert!(vm.virtual_count().wrapping_sub(done.count_at_anchor) < 10_000);
    // Registers written later change nothing any more.
    vm.write_virtual_counter(0);
    assert!(vm.virtual_count().wrapping_sub(done.count_at_anchor) < 10_000);
    let again = saved.restore_arm64(&vm, Policy::ELAPSED).unwrap();
    let moved = again.offset_to.wrapping_sub(done.offset_to) as i64;
    assert!(
        moved.unsigned_abs() <= done.bound_ns + again.bound_ns,
        "{moved}"
    );
}

#[test]
fn an_unknown_offset_has_a_bound_that_holds() {
    let source = host();
    let vm = FakeArm64Vm::new(&source, 2);
    source.pass(SECOND);
    let saved = GuestClocks::save_arm64(&vm, None).unwrap();
    let refused = saved.restore_arm64(&vm, Policy::Stopped).unwrap_err();
    assert!(
        matches!(refused, Arm64Error::Inexact { bound_ns: 1.. }),
        "{refused}"
    );
    let accept = Options::new(Policy::ELAPSED).accept_inexact();
    let before = vm.virtual_count().wrapping_sub(source.now().tsc);
    let done = saved.restore_arm64(&vm, accept).unwrap();
    let after = vm.virtual_count().wrapping_sub(source.now().tsc);
    let off = after.wrapping_sub(before) as i64;
    assert!(
        off.unsigned_abs() <= done.bound_ns,
        "{off} {}",
        done.bound_ns
    );
}

/// The thread that saves loses the CPU each time between the two clocks, the one that restores does
/// not: what the first reading is off by must be in the bound as well.
#[test]
fn the_bound_has_both_hosts_readings_in_it() {
    for seed in 1..40 {
        let source = host();
        let vm = FakeArm64Vm::new(&source, 2);
        vm.set_counter_offset(7).unwrap();
        let before = source.now();
        let behind = |count: u64, now: u64| now.wrapping_sub(count) as i64;
        let was = behind(vm.virtual_count(), before.real_ns);
        let late = Disturbance {
            one_in: 1,
            most_ns: 1_000_000,
        };
        source.disturb(late, seed);
        let saved = GuestClocks::save_arm64(&vm, Some(7)).unwrap();
        source.disturb(Disturbance::default(), seed);
        let vm = FakeArm64Vm::new(&source, 2);
        let done = saved.restore_arm64(&vm, Policy::ELAPSED).unwrap();
        let off = behind(vm.virtual_count(), source.now().real_ns) - was;
        assert!(
            off.unsigned_abs() <= done.bound_ns,
            "seed {seed}: {off} ns off, bound {} ns",
            done.bound_ns
        );
        assert!(off.unsigned_abs() > 1000, "seed {seed}: nothing was shown");
    }
}

#[test]
fn a_known_difference_of_the_wall_clocks_is_taken_off_and_an_untrusted_one_refused() {
    let source = host();
    let vm = FakeArm64Vm::new(&source, 2);
    vm.set_counter_offset(7).unwrap();
    let saved = GuestClocks::save_arm64(&vm, Some(7)).unwrap();
    source.pass(10 * SECOND);
    source.step_wall_clock(5_000_000_000);
    let stated = |policy, at_most_ns| Options::new(policy).wall_clocks(5_000_000_000, at_most_ns);
    let done = saved.restore_arm64(&vm, stated(Policy::ELAPSED, 10 * SECOND));
    let done = done.unwrap();
    // The calls take microseconds.
    assert!(done.advanced_ns.abs_diff(10 * SECOND) < 100_000, "{done:?}");
    let guest = done.for_guest;
    assert_eq!(guest.wall_clock_late_ns, 5_000_000_000);
    assert_eq!(guest.vmclock_counter, done.count_at_anchor);
    assert!(guest.vmclock_max_error_ns <= done.bound_ns, "{done:?}");
    let refused = saved.restore_arm64(&vm, stated(Policy::ELAPSED, SECOND));
    let expected = WallClocksDiffer {
        ahead_ns: 5_000_000_000,
        at_most_ns: SECOND,
    };
    assert_eq!(refused, Err(expected.into()));
    // Stopped guest time needs no wall clock.
    let stopped = saved.restore_arm64(&vm, stated(Policy::Stopped, SECOND));
    assert!(stopped.unwrap().for_guest.wall_clock_late_ns >= 15_000_000_000);
}

#[test]
fn refusals() {
    let source = host();
    let mut vm = FakeArm64Vm::new(&source, 2);
    vm.set_counter_offset(7).unwrap();
    let saved = GuestClocks::save_arm64(&vm, Some(7)).unwrap();
    let other = FakeArm64Vm::new(&source, 3);
    let error = saved.restore_arm64(&other, Policy::Stopped).unwrap_err();
    assert_eq!(error, Arm64Error::VcpuCount { saved: 2, given: 3 });
    let slow = FakeArm64Vm::new(&FakeHost::new(25_000), 2);
    let error = saved.restore_arm64(&slow, Policy::Stopped).unwrap_err();
    assert!(matches!(error, Arm64Error::Arithmetic(_)), "{error}");
    vm.set_busy(Some(1));
    let error = saved.restore_arm64(&vm, Policy::Stopped).unwrap_err();
    assert!(error.to_string().contains("stop all vCPUs"), "{error}");
    source.pass(2 * SECOND);
    let limit = Policy::Elapsed {
        refuse_above_ns: SECOND,
    };
    let error = saved.restore_arm64(&vm, limit).unwrap_err();
    let Arm64Error::Jump(jump) = error else {
        panic!("{error}");
    };
    assert!(jump.elapsed_ns >= 2 * SECOND && jump.allowed_ns == SECOND);
    let (x86, vcpus) = source.vm(2);
    let state = GuestClocks::save(&x86, &vcpus).unwrap();
    assert_eq!(
        state.restore_arm64(&vm, Policy::Stopped),
        Err(Arm64Error::Architecture)
    );
    assert_eq!(
        saved.restore(&x86, &vcpus, Policy::Stopped),
        Err(RestoreError::Refused(PlanError::Architecture {
            saved: "arm64",
            here: "x86",
        }))
    );
}

#[test]
fn a_plan_repeated_is_the_very_same_after_any_delay() {
    let source = host();
    let vm = FakeArm64Vm::new(&source, 2);
    vm.set_counter_offset(9).unwrap();
    let saved = GuestClocks::save_arm64(&vm, Some(9)).unwrap();
    let vm = FakeArm64Vm::new(&source, 2);
    let options = Options::new(Policy::ELAPSED);
    let plan = saved.plan_arm64(&vm, &options).unwrap();
    let offset = |vm: &FakeArm64Vm| source.now().tsc.wrapping_sub(vm.virtual_count());
    let first = plan.carry_out(&vm).unwrap();
    let written = offset(&vm);
    for delay in [1, SECOND, 3600 * SECOND] {
        source.pass(delay);
        assert_eq!(plan.carry_out(&vm), Ok(first));
        assert_eq!(offset(&vm), written);
    }
    assert_eq!(&first, plan.explanation());
}

#[test]
fn a_kvm_without_offsets_is_refused_and_one_that_ignores_them_found_out() {
    let source = host();
    let mut vm = FakeArm64Vm::new(&source, 2);
    let saved = GuestClocks::save_arm64(&vm, Some(1 << 50)).unwrap();
    vm.set_means(TscMeans::Values);
    let error = saved.restore_arm64(&vm, Policy::ELAPSED).unwrap_err();
    assert_eq!(error, Arm64Error::NoOffset);
    vm.set_means(TscMeans::Fixed);
    let error = saved.restore_arm64(&vm, Policy::ELAPSED).unwrap_err();
    assert!(
        matches!(error, Arm64Error::OffsetNotTaken { .. }),
        "{error}"
    );
    vm.set_means(TscMeans::Offsets);
    assert!(saved.restore_arm64(&vm, Policy::ELAPSED).is_ok());
}
