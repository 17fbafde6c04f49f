//! Scan order as implemented upstream, and true priority order.

use stealtime_hypervisor::directed_yield::{
    CandidateOrder, LastBoosted, Reason, YieldKnobs, YieldTo,
};
use stealtime_hypervisor::ipi_tracking::{IpiKnobs, NoSuchVcpu, guest_hint};

use crate::vm::{Vm, named};

fn priority() -> YieldKnobs {
    YieldKnobs {
        order: CandidateOrder::Priority,
        ..YieldKnobs::default()
    }
}

/// vCPU 1 was preempted, 2 has an interrupt pending, 3 is the receiver of 0's IPI.
fn three_reasons(knobs: YieldKnobs) -> Vm {
    let mut vm = Vm::new(5, knobs);
    vm.preempt(1, true);
    for vcpu in [2, 3] {
        vm.vcpus[vcpu].state.wake_up(true);
    }
    vm.vcpus[2].pending = true;
    vm.ipi(0, 3);
    vm
}

#[test]
fn the_scan_takes_whoever_comes_first() {
    let mut vm = three_reasons(YieldKnobs::default());
    assert_eq!(vm.boosted(0), Some((1, Reason::Preempted)));
    assert_eq!(vm.boosted(0), Some((2, Reason::PendingInterrupt)));
    assert_eq!(vm.boosted(0), Some((3, Reason::Confirmed)));
}

/// Linux up to 6.18 kept the loop's counter in place of the index: some are boosted again and again.
#[test]
fn a_counter_for_an_index_goes_round_no_more() {
    let boosted = |last_boosted| {
        let mut vm = Vm::new(
            6,
            YieldKnobs {
                last_boosted,
                ..YieldKnobs::upstream()
            },
        );
        for vcpu in 1..6 {
            vm.preempt(vcpu, true);
        }
        let spins = (0..7).map(|_| vm.boosted(0).map(|(vcpu, _)| vcpu));
        spins.collect::<Option<Vec<u32>>>().unwrap()
    };
    assert_eq!(boosted(LastBoosted::Index), [1, 2, 3, 4, 5, 1, 2]);
    assert_eq!(boosted(LastBoosted::Steps), [1; 7]);
    // A search that begins behind its first candidate and comes to it in the end has looked past all.
    let mut vm = Vm::new(
        6,
        YieldKnobs {
            last_boosted: LastBoosted::Steps,
            ..YieldKnobs::upstream()
        },
    );
    vm.preempt(4, true);
    let last = |vm: &mut Vm| (vm.boosted(0), vm.yields.last_boosted_vcpu()).1;
    // From 1: three steps to 4. From 4: none. From 1 again.
    assert_eq!([0; 4].map(|_| last(&mut vm)), [3, 0, 3, 0]);
    vm.vcpus[4].state.sched_in();
    vm.preempt(2, true);
    // From 1: one step to 2; from 2: none.
    assert_eq!([0; 3].map(|_| last(&mut vm)), [1, 0, 1]);
    // Around the end of the array: from 4 to 2 are four steps, and from 5 three.
    vm.vcpus[2].state.sched_in();
    vm.preempt(5, true);
    assert_eq!(last(&mut vm), 3);
    vm.vcpus[5].state.sched_in();
    vm.preempt(2, true);
    assert_eq!([0; 3].map(|_| last(&mut vm)), [4, 3, 4]);
}

/// A vCPU that is created, but not online: it cannot spin, and the search does not come to it.
#[test]
fn vcpus_that_are_not_online_neither_spin_nor_run() {
    let mut vm = Vm::new(4, priority());
    vm.ipi(0, 3);
    vm.preempt(3, true);
    vm.offline = 1;
    assert_eq!(vm.boosted(0), None);
    vm.preempt(1, true);
    assert_eq!(vm.boosted(0), Some((1, Reason::Preempted)));
    let (yields, knobs) = (vm.yields.clone(), vm.knobs);
    let refused = yields.on_spin(&mut vm, &knobs, 3, true, 0, &());
    assert_eq!(refused, Err(NoSuchVcpu { vcpu: 3, vcpus: 3 }));
}

#[test]
fn priority_takes_the_strongest_reason() {
    let mut vm = three_reasons(priority());
    assert_eq!(vm.boosted(0), Some((3, Reason::Confirmed)));
    assert_eq!(
        vm.boosted(0),
        Some((3, Reason::Confirmed)),
        "as long as it is true"
    );
    vm.answers = vec![YieldTo::Declined; 9];
    vm.spin(0, true);
    // Each has one turn in the strict passes; the relaxed one asks the preempted again.
    assert_eq!(vm.asked, [3, 2, 1, 1]);
    vm.answers.clear();
    vm.vcpus[3].state.sched_in();
    assert_eq!(vm.boosted(0), Some((2, Reason::PendingInterrupt)));
    vm.vcpus[2].state.sched_in();
    assert_eq!(vm.boosted(0), Some((1, Reason::Preempted)));
    // Another spinner has no confirmed receiver.
    vm.vcpus[3].state.wake_up(true);
    assert_eq!(vm.boosted(4), Some((1, Reason::Preempted)));
}

#[test]
fn a_known_receiver_costs_the_same_in_any_crowd() {
    for vcpus in [8, 64, 1024] {
        let mut vm = Vm::new(vcpus, priority());
        for vcpu in 1..vcpus {
            vm.preempt(vcpu, true);
        }
        let receiver = vcpus as u32 - 1;
        vm.ipi(0, receiver);
        let outcome = vm.spin(0, true);
        assert_eq!(named(outcome.boosted), Some((receiver, Reason::Confirmed)));
        assert_eq!((outcome.looked_at, outcome.yields), (1, 1), "{vcpus} vCPUs");
    }
}

#[test]
fn a_guests_hint_is_taken_like_a_confirmed_receiver() {
    for order in [CandidateOrder::Scan, CandidateOrder::Priority] {
        let mut knobs = YieldKnobs {
            order,
            enable_relaxed_boost: false,
            ..YieldKnobs::default()
        };
        let mut vm = Vm::new(4, knobs);
        // The lock holder runs in user mode: the heuristic would not have it.
        vm.preempt(2, false);
        assert_eq!(vm.boosted(0), None);
        knobs.ipi = IpiKnobs {
            guest_yield_hint: true,
            ..IpiKnobs::default()
        };
        vm.knobs = knobs;
        assert_eq!(
            guest_hint(&vm.contexts, &knobs.ipi, 0, 2, vm.now_ns, &()),
            Ok(true)
        );
        assert_eq!(vm.boosted(0), Some((2, Reason::Confirmed)), "{order:?}");
        // The slot is the waiter's own, and it ages.
        assert_eq!(vm.boosted(1), None);
        vm.now_ns += 50_000_001;
        assert_eq!(vm.boosted(0), None);
    }
}

#[test]
fn a_receiver_that_cannot_be_taken_does_not_stop_the_search() {
    for order in [CandidateOrder::Scan, CandidateOrder::Priority] {
        let mut vm = three_reasons(YieldKnobs {
            order,
            ..YieldKnobs::default()
        });
        // Halted with nothing to do: the interrupt was taken and handled.
        vm.vcpus[3].blocking = true;
        let boosted = vm.boosted(0).unwrap().0;
        assert_ne!(boosted, 3);
        // A fellow spinner is asked, and answers every second time.
        vm.vcpus[3].blocking = false;
        vm.vcpus[1].state.sched_in();
        vm.vcpus[2].state.sched_in();
        vm.spins_too(3);
        vm.knobs.enable_relaxed_boost = false;
        let rounds: Vec<_> = (0..4).map(|_| vm.boosted(0).is_some()).collect();
        assert_eq!(rounds, [false, true, false, true], "{order:?}");
    }
}
