//! Flaws 1 to 11 of the posted patches: seen under the policies that have them, absent from the
//! corrected one.

use std::cell::Cell;

use stealtime_hypervisor::posted_interrupt::{
    Delivery, Entry, Kick, PutReason, Requests, Suppression, kick, vtd,
};

use crate::rig::{IPIV_HOST, PLAIN_APICV_HOST, PREEMPTED, Rig as AnyRig, SLEEPS};
use crate::splits::{Access, Logged, log_of};

type Rig = AnyRig<Cell<u64>>;

/// A vCPU that has looked for interrupts, found none, and is about to sleep.
fn about_to_sleep(policy: Suppression) -> Rig {
    let mut rig = Rig::new(IPIV_HOST, policy);
    rig.run_once();
    rig.begin_blocking();
    assert!(rig.wait());
    rig
}

#[test]
fn posted_interrupts_flaw_01_wakeup_path_tests_pir_not_on() {
    let rig = about_to_sleep(Suppression::AsPostedV1);
    assert!(rig.shared.desc.test_sn());
    vtd::post(&rig.shared.desc, 50, false, &());
    assert!(!rig.put(SLEEPS).self_ipi, "ON is clear: the post is missed");
    // The corrected policy meets a set SN only here, after a preemption.
    let mut rig = about_to_sleep(Suppression::Corrected);
    let _ = rig.put(PREEMPTED);
    vtd::post(&rig.shared.desc, 50, false, &());
    assert!(!rig.shared.desc.test_on());
    rig.load(0);
    assert!(rig.put(SLEEPS).self_ipi);
    // Also if SN was set when NV is switched.
    let rig = about_to_sleep(Suppression::Corrected);
    rig.shared.desc.set_sn();
    vtd::post(&rig.shared.desc, 50, false, &());
    assert!(rig.put(SLEEPS).self_ipi);
}

#[test]
fn posted_interrupts_flaw_02_wakeup_path_sets_on_for_the_handler() {
    let rig = about_to_sleep(Suppression::Corrected);
    rig.shared.desc.set_sn();
    vtd::post(&rig.shared.desc, 50, false, &());
    assert!(rig.put(SLEEPS).self_ipi);
    assert!(rig.shared.desc.test_on());
    assert!(rig.wakeup_irq(0), "the handler looks at ON");
    // Without ON a self-IPI would wake no vCPU.
    let rig = about_to_sleep(Suppression::AsPostedV1);
    vtd::post(&rig.shared.desc, 50, false, &());
    let _ = rig.put(SLEEPS);
    assert!(!rig.wakeup_irq(0));
}

#[test]
fn posted_interrupts_flaw_03_cancelled_entry_suppresses_again() {
    for (policy, sn) in [
        (Suppression::AsPostedV1, false),
        (Suppression::AsPostedV2, true),
        (Suppression::Corrected, true),
    ] {
        let mut rig = Rig::new(IPIV_HOST, policy);
        rig.run_once();
        assert!(rig.shared.desc.test_sn());
        assert_eq!(kick(&rig.shared, Requests::EVENT, false), Kick::Nothing);
        assert_eq!(rig.enter(), Entry::Cancelled);
        assert_eq!(rig.shared.desc.test_sn(), sn, "{policy:?}, before the loop");
        // The second site: a fast-path re-entry that is given up.
        rig.shared.take(Requests::EVENT);
        assert_eq!(rig.enter(), Entry::Run);
        rig.own.vm_exit(&rig.shared, &());
        // A request without a kick: the mode still says "in guest".
        rig.shared.request(Requests::EVENT);
        let again = rig.own.reenter(&rig.shared, &mut rig.lapic, &());
        assert_eq!(again, Entry::Cancelled);
        rig.own.leave(&rig.shared, &());
        assert_eq!(
            rig.shared.desc.test_sn(),
            sn,
            "{policy:?}, after a re-entry"
        );
    }
}

#[test]
fn posted_interrupts_flaw_04_put_suppresses_whoever_does_not_sleep() {
    let irq_blocked = PutReason {
        irq_blocked: true,
        ..SLEEPS
    };
    for policy in [Suppression::Put, Suppression::Corrected] {
        for (blocking, reason) in [(false, SLEEPS), (true, PREEMPTED), (true, irq_blocked)] {
            let mut rig = Rig::new(IPIV_HOST, policy);
            rig.run_once();
            if blocking {
                rig.begin_blocking();
                assert!(rig.wait());
            }
            assert!(!rig.put(reason).armed);
            assert!(
                rig.shared.desc.test_sn(),
                "{policy:?} {blocking} {reason:?}"
            );
        }
        // A blocker that was preempted goes through put again, with a look at PIR.
        let mut rig = about_to_sleep(policy);
        let _ = rig.put(PREEMPTED);
        vtd::post(&rig.shared.desc, 50, false, &());
        rig.load(1);
        let put = rig.put(SLEEPS);
        assert!(put.armed && put.self_ipi, "{policy:?}");
        // The load of `corrected` has woken it already: it looks again itself.
        assert_eq!(rig.wakeup_irq(1), policy == Suppression::Put, "{policy:?}");
        assert!(!rig.wait(), "{policy:?}: the sleep ends");
    }
}

/// The versions of the series leave SN to the next entry.
#[test]
fn a_load_on_the_same_cpu_clears_sn_without_the_series_alone() {
    for policy in Suppression::ALL {
        let mut rig = Rig::new(IPIV_HOST, policy);
        rig.shared.desc.set_sn();
        rig.load(0);
        let is_cleared = matches!(policy, Suppression::Off | Suppression::Put);
        assert_eq!(rig.shared.desc.test_sn(), !is_cleared, "{policy:?}");
    }
}

#[test]
fn posted_interrupts_flaw_05_software_post_ignores_sn() {
    for policy in Suppression::ALL {
        let mut rig = Rig::new(PLAIN_APICV_HOST, policy);
        rig.run_once();
        rig.begin_blocking();
        assert!(rig.wait());
        let _ = rig.put(SLEEPS);
        rig.shared.desc.set_sn();
        let expected = if matches!(policy, Suppression::AsPostedV1 | Suppression::AsPostedV2) {
            Delivery::DroppedBySn
        } else {
            Delivery::Wake
        };
        assert_eq!(rig.deliver(50), expected, "{policy:?}");
        assert_eq!(rig.shared.desc.test_on(), expected == Delivery::Wake);
    }
}

#[test]
fn posted_interrupts_flaw_06_fast_path_reentry_does_not_toggle() {
    for (policy, toggles) in [
        (Suppression::AsPostedV1, 2),
        (Suppression::AsPostedV2, 2),
        (Suppression::Corrected, 0),
    ] {
        let mut rig = Rig::new(IPIV_HOST, policy);
        assert_eq!(rig.enter(), Entry::Run);
        let before = rig.counts.sn_toggles.get();
        rig.own.vm_exit(&rig.shared, &rig.counts);
        let again = rig.own.reenter(&rig.shared, &mut rig.lapic, &rig.counts);
        assert_eq!(again, Entry::Run);
        assert_eq!(rig.counts.sn_toggles.get() - before, toggles, "{policy:?}");
    }
}

#[test]
fn posted_interrupts_flaw_07_polling_sees_posts_made_under_sn() {
    for policy in Suppression::ALL {
        let mut rig = Rig::new(IPIV_HOST, policy);
        rig.run_once();
        // Halt polling comes before blocking: SN is as the exit left it.
        vtd::post(&rig.shared.desc, 50, false, &());
        let source = rig.own.source(&rig.shared, &());
        assert_eq!(rig.lapic.has_interrupt(&source), Some(50), "{policy:?}");
    }
}

#[test]
fn posted_interrupts_flaw_08_load_unsuppresses_a_blocker() {
    for cpu in [0, 1] {
        let mut rig = about_to_sleep(Suppression::Corrected);
        let _ = rig.put(PREEMPTED);
        assert!(rig.shared.desc.test_sn());
        rig.load(cpu);
        assert!(!rig.shared.desc.test_sn());
        assert!(!rig.put(SLEEPS).sn_was_set);
        let mut rig = about_to_sleep(Suppression::AsPostedV3);
        let _ = rig.put(PREEMPTED);
        rig.load(cpu);
        assert!(rig.put(SLEEPS).sn_was_set, "the kernel would warn");
        assert_eq!(rig.counts.sn_warnings.get(), 1);
    }
    // Whoever does not block stays suppressed.
    let mut rig = Rig::new(IPIV_HOST, Suppression::Corrected);
    rig.run_once();
    for cpu in [0, 1] {
        rig.load(cpu);
        assert!(rig.shared.desc.test_sn(), "CPU {cpu}");
    }
}

#[test]
fn posted_interrupts_flaw_09_cancel_path_is_not_forgotten() {
    for (policy, sn) in [
        (Suppression::AsPostedV3, false),
        (Suppression::Corrected, true),
    ] {
        let mut rig = Rig::new(IPIV_HOST, policy);
        kick(&rig.shared, Requests::EVENT, false);
        assert_eq!(rig.enter(), Entry::Cancelled);
        assert_eq!(rig.shared.desc.test_sn(), sn, "{policy:?}");
    }
}

/// The locked operations of a round trip through the host, beyond those without suppression.
fn locked_per_round_trip(policy: Suppression) -> usize {
    let mut rig = AnyRig::<Logged>::new(IPIV_HOST, policy);
    rig.run_once();
    let log = log_of(|| rig.run_once());
    log.iter().filter(|a| matches!(a, Access::Rmw(_))).count()
}

#[test]
fn posted_interrupts_flaw_10_suppression_costs_two_locked_operations_a_round_trip() {
    assert_eq!(locked_per_round_trip(Suppression::Off), 0);
    assert_eq!(locked_per_round_trip(Suppression::Put), 0);
    assert_eq!(locked_per_round_trip(Suppression::Corrected), 2);
    assert_eq!(
        locked_per_round_trip(Suppression::AsPostedV1),
        3,
        "and clears ON"
    );
    assert_eq!(locked_per_round_trip(Suppression::AsPostedV2), 3, "as well");
}

#[test]
fn posted_interrupts_flaw_11_suppression_does_not_depend_on_apicv_being_active() {
    for (policy, sn) in [
        (Suppression::AsPostedV1, false),
        (Suppression::Corrected, true),
    ] {
        let mut rig = Rig::new(IPIV_HOST, policy);
        rig.run_once();
        rig.shared.set_apicv(false);
        rig.lapic.set_apicv(false, &rig.shared.irr);
        assert_eq!(rig.enter(), Entry::Run);
        assert!(!rig.shared.desc.test_sn(), "cleared on each entry");
        rig.leave();
        assert_eq!(rig.shared.desc.test_sn(), sn, "{policy:?}");
    }
}
