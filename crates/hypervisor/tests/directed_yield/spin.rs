//! The loop: items 1–6, 17 and 18.

use std::sync::atomic::AtomicU64;

use stealtime_hypervisor::directed_yield::ple::{PleKnobs, PleVendor, PleWindow, spins_in_kernel};
use stealtime_hypervisor::directed_yield::{
    Reason, SchedOut, SpinOutcome, YieldFlags, YieldKnobs, YieldState, YieldTo,
};
use stealtime_hypervisor::ipi_tracking::NoSuchVcpu;

use crate::vm::{Vm, named};

/// All preempted in kernel mode but vCPU 0.
fn crowded(vcpus: usize, knobs: YieldKnobs) -> Vm {
    let mut vm = Vm::new(vcpus, knobs);
    for vcpu in 1..vcpus {
        vm.preempt(vcpu, true);
    }
    vm
}

fn strict() -> YieldKnobs {
    YieldKnobs {
        enable_relaxed_boost: false,
        ..YieldKnobs::default()
    }
}

#[test]
fn a_spinner_is_seen_as_one_until_it_ends() {
    let state = YieldState::<AtomicU64>::new();
    state.begin_spin();
    assert_eq!(state.flags(), YieldFlags::IN_SPIN_LOOP);
    state.end_spin();
    assert_eq!(state.flags(), YieldFlags::default());
}

#[test]
fn a_union_of_flags_keeps_what_both_have() {
    let flags = YieldFlags::READY.with(YieldFlags::PREEMPTED);
    assert_eq!(flags.with(YieldFlags::READY), flags);
}

#[test]
fn yield_sloppy_01_asking_a_spinner_flips_its_answer() {
    let mut vm = crowded(2, YieldKnobs::upstream());
    vm.spins_too(1);
    // Refused, accepted, refused, accepted.
    for round in 0..4 {
        let boosted = vm.spin(0, true).boosted;
        assert_eq!(boosted.is_some(), round % 2 == 1, "round {round}");
        assert_eq!(vm.eligible(1), round % 2 == 0);
    }
    // The spinner itself is left clean, whoever asked it meanwhile.
    let flags = vm.vcpus[0].state.flags();
    vm.vcpus[0]
        .state
        .restore(flags.with(YieldFlags::DY_ELIGIBLE));
    vm.spin(0, true);
    let flags = vm.vcpus[0].state.flags();
    assert!(!flags.has(YieldFlags::IN_SPIN_LOOP) && !flags.has(YieldFlags::DY_ELIGIBLE));
}

#[test]
fn yield_sloppy_02_three_times_esrch_ends_it() {
    use YieldTo::{BothAlone, Declined, Yielded};
    let mut vm = crowded(9, YieldKnobs::upstream());
    vm.answers = vec![BothAlone, BothAlone, Yielded];
    let outcome = vm.spin(0, true);
    assert_eq!(
        (outcome.boosted.map(|b| b.vcpu), outcome.yields),
        (Some(3), 3)
    );
    vm.answers = vec![BothAlone; 9];
    let outcome = vm.spin(0, true);
    assert_eq!((outcome.boosted, vm.asked.len()), (None, 3));
    // 0 neither counts nor ends.
    vm.answers = vec![Declined, BothAlone, Declined, BothAlone, Declined, Yielded];
    assert_eq!(vm.spin(0, true).yields, 6);
}

#[test]
fn yield_sloppy_03_the_scan_starts_after_the_last_boosted() {
    let mut vm = crowded(5, YieldKnobs::upstream());
    let mut order = Vec::new();
    for _ in 0..6 {
        order.push(vm.spin(0, true).boosted.unwrap().vcpu);
    }
    assert_eq!(order, [1, 2, 3, 4, 1, 2]);
    vm.answers = vec![YieldTo::Declined; 9];
    vm.spin(0, true);
    assert_eq!(vm.asked, [3, 4, 1, 2], "wraps and leaves out the spinner");
    assert_eq!(vm.yields.last_boosted_vcpu(), 2, "changes by success only");
    vm.answers.clear();
    vm.preempt(0, true);
    assert_eq!(vm.spin(3, true).boosted.unwrap().vcpu, 4);
}

#[test]
fn yield_sloppy_04_a_halted_vcpu_needs_something_to_do() {
    for knobs in [YieldKnobs::upstream(), YieldKnobs::default()] {
        let mut vm = crowded(2, knobs);
        vm.vcpus[1].blocking = true;
        assert_eq!(vm.boosted(0), None);
        vm.vcpus[1].pending = true;
        assert!(vm.boosted(0).is_some());
        vm.vcpus[1].pending = false;
        vm.vcpus[1].runnable = true;
        assert!(vm.boosted(0).is_some());
    }
}

#[test]
fn yield_sloppy_05_a_declined_yield_costs_nothing_and_boosts_no_vcpu() {
    let mut vm = crowded(4, strict());
    vm.answers = vec![YieldTo::Declined; 3];
    let outcome = vm.spin(0, true);
    let expected = SpinOutcome {
        yields: 3,
        looked_at: 3,
        ..SpinOutcome::default()
    };
    assert_eq!(outcome, expected);
    assert_eq!(vm.yields.last_boosted_vcpu(), 0);
}

#[test]
fn yield_sloppy_06_both_alone_counts_though_the_target_is_valid() {
    let mut vm = crowded(6, strict());
    vm.answers = vec![YieldTo::BothAlone; 5];
    assert_eq!(vm.spin(0, true).yields, 3);
}

#[test]
fn yield_sloppy_17_the_relaxed_pass_needs_preempted_only() {
    let mut vm = Vm::new(3, YieldKnobs::default());
    // In user mode, which the strict pass refuses to a spinner in the kernel.
    vm.preempt(1, false);
    // Woken and waiting, but never preempted: 7.2 takes it, the series does not.
    vm.vcpus[2].state.wake_up(true);
    let outcome = vm.spin(0, true);
    assert_eq!(named(outcome.boosted), Some((1, Reason::Relaxed)));
    assert!(outcome.relaxed);
    vm.vcpus[1].state.sched_in();
    assert_eq!(vm.boosted(0), None);
    vm.knobs = YieldKnobs::upstream();
    assert_eq!(vm.boosted(0), Some((2, Reason::Preempted)));
    vm.knobs = strict();
    vm.preempt(1, false);
    assert_eq!(vm.boosted(0), None, "the knob is off");
    // A spinner in user mode needs no relaxed pass for it.
    assert_eq!(
        named(vm.spin(0, false).boosted),
        Some((1, Reason::Preempted))
    );
}

#[test]
fn yield_sloppy_17_tries_are_not_refilled_and_spinners_are_asked_again() {
    let mut vm = crowded(6, YieldKnobs::default());
    vm.answers = vec![YieldTo::BothAlone; 9];
    let outcome = vm.spin(0, true);
    // Three strict; the first further failure ends the relaxed pass.
    assert_eq!((outcome.yields, outcome.relaxed), (4, true));
    vm.answers = [YieldTo::Declined; 5].to_vec();
    assert!(
        vm.spin(0, true).boosted.is_some(),
        "declined ones get a second chance"
    );
    // A fellow spinner refused in the first pass is eligible in the second.
    let mut vm = crowded(2, YieldKnobs::default());
    vm.spins_too(1);
    assert_eq!(vm.boosted(0), Some((1, Reason::Relaxed)));
    let spinner = vm.vcpus[0].state.flags();
    assert!(!spinner.has(YieldFlags::IN_SPIN_LOOP));
}

#[test]
fn yield_sloppy_18_the_window_grows_and_is_reset() {
    let mut window = PleWindow::new(&PleKnobs::VMX);
    assert_eq!(window.enter(), Some(4096));
    let mut seen = Vec::new();
    for _ in 0..3 {
        window.grow(&PleKnobs::VMX);
        seen.push(window.window());
    }
    assert_eq!(seen, [8192, 16384, 32768]);
    assert_eq!((window.enter(), window.enter()), (Some(32768), None));
    window.shrink(&PleKnobs::VMX);
    assert_eq!(window.enter(), Some(4096));
    window.shrink(&PleKnobs::VMX);
    assert_eq!(window.enter(), None, "unchanged: nothing to write");
    for _ in 0..40 {
        window.grow(&PleKnobs::VMX);
    }
    assert_eq!(window.window(), u32::MAX);
    let mut window = PleWindow::new(&PleKnobs::SVM);
    for _ in 0..9 {
        window.grow(&PleKnobs::SVM);
    }
    assert_eq!(window.window(), 65535);
}

#[test]
fn kernel_mode_is_known_by_vendor_and_privilege() {
    assert!(spins_in_kernel(PleVendor::Vmx, 0, false));
    assert!(spins_in_kernel(PleVendor::Svm, 0, false));
    assert!(!spins_in_kernel(PleVendor::Svm, 3, false));
    assert!(!spins_in_kernel(PleVendor::Svm, 0, true));
}

#[test]
fn fewer_than_two_vcpus_and_strangers() {
    let mut vm = Vm::new(1, YieldKnobs::default());
    assert_eq!(vm.spin(0, true), SpinOutcome::default());
    let mut vm = Vm::new(2, YieldKnobs::default());
    let yields = vm.yields.clone();
    let knobs = vm.knobs;
    for me in [2, u32::MAX] {
        let refused = yields.on_spin(&mut vm, &knobs, me, true, 0, &());
        assert_eq!(refused, Err(NoSuchVcpu { vcpu: me, vcpus: 2 }));
    }
}

#[test]
fn leaving_the_cpu_sets_what_upstream_sets() {
    let mut vm = Vm::new(1, YieldKnobs::default());
    let state = &mut vm.vcpus[0].state;
    let out = |runnable, wants_to_run, in_kernel| SchedOut {
        runnable,
        wants_to_run,
        in_kernel,
    };
    for (runnable, wants) in [(false, true), (true, false), (false, false)] {
        state.sched_out(out(runnable, wants, true));
        assert_eq!(state.flags(), YieldFlags::default());
    }
    assert!(!state.wake_up(false) && !state.flags().has(YieldFlags::READY));
    state.sched_out(out(true, true, true));
    state.sched_in();
    // Where it was preempted stays on record until it is preempted again.
    assert_eq!(state.flags(), YieldFlags::PREEMPTED_IN_KERNEL);
    state.sched_out(out(true, true, false));
    let ready = YieldFlags::READY.with(YieldFlags::PREEMPTED);
    assert_eq!(state.flags(), ready);
}
