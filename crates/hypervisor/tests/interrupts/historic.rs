//! Faults of released hypervisors: switched on they show, switched off they do not.

use std::cell::Cell;

use stealtime_hypervisor::posted_interrupt::{
    Capabilities, Delivery, Entry, Fault, Kick, PostedVcpu, PutReason, Suppression, vtd,
};

use crate::rig::{IPIV_HOST, PREEMPTED, Rig as AnyRig, SLEEPS};

type Rig = AnyRig<Cell<u64>>;

fn rig(fault: Fault) -> Rig {
    Rig::with_fault(IPIV_HOST, Suppression::Put, fault)
}

#[test]
fn posted_interrupts_historic_01_on_is_recomputed_when_sn_is_cleared() {
    // Linux c112b5f50232.
    for (fault, noticed) in [(Fault::OnNotRecomputed, false), (Fault::None, true)] {
        for cpu in [0, 1] {
            let mut rig = rig(fault);
            rig.run_once();
            let _ = rig.put(PREEMPTED);
            vtd::post(&rig.shared.desc, 50, false, &());
            rig.load(cpu);
            assert_eq!(rig.enter(), Entry::Run);
            assert_eq!(
                rig.take_interrupts() == [50],
                noticed,
                "{fault:?} CPU {cpu}"
            );
        }
    }
}

#[test]
fn posted_interrupts_historic_02_blocked_vcpus_learn_of_an_assigned_device() {
    // Linux a2486020a82e.
    let host = Capabilities {
        ipiv: false,
        ..IPIV_HOST
    };
    let no_device = PutReason {
        device_assigned: false,
        ..SLEEPS
    };
    for fault in [Fault::BlockedNotKicked, Fault::None] {
        let mut rig = Rig::new(host, Suppression::Put);
        rig.run_once();
        rig.begin_blocking();
        assert!(rig.wait());
        assert!(!rig.put(no_device).armed, "no device yet");
        let kick = PostedVcpu::device_assigned(&rig.shared, fault);
        if fault == Fault::None {
            assert_eq!(kick, Kick::Wake);
            rig.load(0);
            assert!(!rig.wait(), "the wait is over");
            assert!(rig.wait(), "and starts anew");
            assert!(rig.put(SLEEPS).armed);
            assert!(vtd::post(&rig.shared.desc, 50, false, &()).is_some());
            assert!(rig.wakeup_irq(0));
        } else {
            assert_eq!(kick, Kick::Nothing);
            vtd::post(&rig.shared.desc, 50, false, &());
            assert!(
                !rig.wakeup_irq(0),
                "the notification went to a vector that no vCPU waits for"
            );
            assert_eq!(
                rig.deliver(51),
                Delivery::OnAlreadySet,
                "and silences all others"
            );
            assert!(rig.shared.still_waiting());
        }
    }
}

#[test]
fn posted_interrupts_historic_03_load_takes_the_vcpu_off_its_list() {
    // Linux 8b306e2f3c41.
    for (fault, listed) in [(Fault::NotUnlinked, 2), (Fault::None, 1)] {
        let mut rig = rig(fault);
        for _ in 0..2 {
            rig.begin_blocking();
            assert!(rig.wait());
            assert!(rig.put(SLEEPS).armed);
            rig.load(0);
            rig.own.end_blocking(&rig.shared, &());
        }
        rig.begin_blocking();
        let mine = |rig: &Rig| rig.lists.of(0).unwrap().vcpus().len();
        assert_eq!(
            mine(&rig),
            listed - if fault == Fault::None { 1 } else { 0 }
        );
    }
}

#[test]
fn posted_interrupts_historic_04_self_ipi_is_not_lost_with_on_set() {
    // ACRN 4978.
    for (fault, woken) in [(Fault::SelfIpiLost, false), (Fault::None, true)] {
        let mut rig = rig(fault);
        rig.begin_blocking();
        assert!(rig.wait());
        // To the old vector, just before the switch.
        assert!(vtd::post(&rig.shared.desc, 50, false, &()).is_some());
        let put = rig.put(SLEEPS);
        assert_eq!(put.self_ipi && rig.wakeup_irq(0), woken, "{fault:?}");
        assert!(rig.shared.desc.test_on());
        // With ON set no poster sends a notification again.
        assert_eq!(vtd::post(&rig.shared.desc, 51, false, &()), None);
        assert_eq!(rig.shared.still_waiting(), !woken, "{fault:?}");
    }
}

/// `vmx_vcpu_pi_put` up to 2024: a vCPU that is preempted while it blocks is on the wakeup list as well. SN
/// is set for a preempted one alone.
#[test]
fn a_vcpu_that_is_preempted_while_it_blocks_is_put_by_the_rules_of_its_time() {
    for (policy, both) in [(Suppression::Off, true), (Suppression::Put, false)] {
        let mut rig = Rig::new(IPIV_HOST, policy);
        rig.begin_blocking();
        assert_eq!(rig.put(PREEMPTED).armed, both, "{policy:?}");
        assert!(rig.shared.desc.test_sn(), "{policy:?}");
    }
    let mut rig = Rig::new(IPIV_HOST, Suppression::Off);
    rig.begin_blocking();
    assert!(rig.put(SLEEPS).armed);
    assert!(!rig.shared.desc.test_sn());
}

/// A vCPU that comes back to its CPU is in the host, where no notification is to reach it.
#[test]
fn a_load_on_the_same_cpu_suppresses_by_the_corrected_policy_alone() {
    for (policy, suppressed) in [
        (Suppression::Put, false),
        (Suppression::AsPostedV1, false),
        (Suppression::Corrected, true),
    ] {
        let mut rig = Rig::new(IPIV_HOST, policy);
        rig.shared.desc.clear_sn();
        rig.load(0);
        assert_eq!(rig.shared.desc.test_sn(), suppressed, "{policy:?}");
    }
}
