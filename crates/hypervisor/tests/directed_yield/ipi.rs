//! IPI tracking: items 11–16, guest hints, and bad input.

use std::cell::Cell;

use proptest::prelude::*;
use stealtime_hypervisor::ipi_tracking::{
    Awaited, Delivery, EoiRule, HintSource, IpiContext, IpiKnobs, NoSuchVcpu, NotRecorded, Unicast,
    confirmed_receiver, eoi, forget, guest_hint, is_ipi_receiver, record, withdraw_hint,
};

type Contexts = Vec<IpiContext<Cell<u64>>>;

const KNOBS: IpiKnobs = IpiKnobs {
    ipi_tracking_enabled: true,
    ipi_window_ns: 50_000_000,
    eoi_rule: EoiRule::VectorMatched,
    guest_yield_hint: false,
};
const V2: IpiKnobs = IpiKnobs {
    eoi_rule: EoiRule::AnyVector,
    ..KNOBS
};
const NOW: u64 = 7_000_000_000;

fn contexts(n: usize) -> Contexts {
    (0..n).map(|_| IpiContext::new()).collect()
}

fn send(contexts: &Contexts, sender: u32, receiver: u32, vector: u8, now: u64) {
    record(contexts, &KNOBS, &ipi(sender, receiver, vector), now, &()).unwrap();
}

fn ipi(sender: u32, receiver: u32, vector: u8) -> Unicast {
    Unicast {
        sender,
        receiver,
        vector,
    }
}

fn waits(contexts: &Contexts, sender: u32, now: u64) -> Option<u32> {
    confirmed_receiver(contexts, &KNOBS, sender, now).map(|a| a.receiver)
}

fn ends(contexts: &Contexts, knobs: &IpiKnobs, receiver: u32, vector: u8) -> bool {
    eoi(contexts, knobs, receiver, Some(vector), NOW, &()).unwrap()
}

#[test]
fn yield_sloppy_11_the_window_is_inclusive() {
    let c = contexts(3);
    send(&c, 0, 1, 0xfb, NOW);
    for (age, believed) in [(0, true), (50_000_000, true), (50_000_001, false)] {
        assert_eq!(is_ipi_receiver(&c, &KNOBS, 0, 1, NOW + age), believed);
        assert!(!is_ipi_receiver(&c, &KNOBS, 0, 2, NOW + age));
    }
    // A time in the future is stale, not recent.
    assert_eq!(waits(&c, 0, NOW - 1), None);
    // One slot: a later IPI to another vCPU replaces it.
    send(&c, 0, 2, 0xfb, NOW);
    assert_eq!(waits(&c, 0, NOW), Some(2));
}

/// ICR low half: delivery mode, shorthand, vector.
fn icr(mode: u32, shorthand: u32, vector: u32) -> u32 {
    shorthand << 18 | mode << 8 | vector
}

fn delivered(sender: Option<u32>, icr_low: u32, results: &[(u32, i32)]) -> Result<(), NotRecorded> {
    let c = contexts(4);
    let mut delivery = Delivery::new(sender, icr_low);
    for &(vcpu, result) in results {
        delivery.destination(vcpu, result);
    }
    let recorded = delivery.finish(&c, &KNOBS, NOW, &());
    let awaited = waits(&c, sender.unwrap_or(0), NOW);
    assert_eq!(awaited.is_some(), recorded.is_ok());
    recorded
}

#[test]
fn yield_sloppy_12_only_unicast_fixed_ipis_are_recorded() {
    let fixed = icr(0, 0, 0xfb);
    for icr_low in [fixed, icr(0, 0, 16)] {
        assert_eq!(delivered(Some(0), icr_low, &[(2, 1)]), Ok(()));
    }
    let several = [(1, 1), (2, 1)];
    let cases = [
        (Some(0), fixed, &several[..], NotRecorded::SeveralReceivers),
        (Some(0), fixed, &[(0, 1)], NotRecorded::ToSelf),
        (Some(0), fixed, &[(1, 0)], NotRecorded::NoReceiver),
        (Some(0), fixed, &[(1, -1)], NotRecorded::NoReceiver),
        (None, fixed, &[(1, 1)], NotRecorded::NoSender),
        (Some(0), icr(1, 0, 0xfb), &[(1, 1)], NotRecorded::NotFixed),
        (Some(0), icr(4, 0, 0xfb), &[(1, 1)], NotRecorded::NotFixed),
        (Some(0), icr(0, 1, 0xfb), &[(0, 1)], NotRecorded::Shorthand),
        (Some(0), icr(0, 3, 0xfb), &[(1, 1)], NotRecorded::Shorthand),
        (
            Some(0),
            icr(0, 0, 15),
            &[(1, 1)],
            NotRecorded::IllegalVector,
        ),
    ];
    for (sender, icr_low, results, why) in cases {
        assert_eq!(
            delivered(sender, icr_low, results),
            Err(why),
            "{icr_low:#x}"
        );
    }
}

#[test]
fn yield_sloppy_13_a_logical_ipi_that_one_vcpu_takes_is_recorded() {
    let logical = icr(0, 0, 0xfb) | 1 << 11;
    // The mask names three; two LAPICs are disabled.
    assert_eq!(
        delivered(Some(0), logical, &[(1, 0), (2, 1), (3, 0)]),
        Ok(())
    );
}

#[test]
fn yield_sloppy_14_another_vectors_eoi_does_not_clear() {
    let c = contexts(2);
    send(&c, 0, 1, 0xfb, NOW);
    assert!(!ends(&c, &KNOBS, 1, 0xec), "the timer's");
    assert_eq!(eoi(&c, &KNOBS, 1, None, NOW, &()), Ok(false));
    assert_eq!(waits(&c, 0, NOW), Some(1));
    assert!(ends(&c, &KNOBS, 1, 0xfb));
    assert_eq!(waits(&c, 0, NOW), None);
    assert_eq!(c[1].last_sender(), None);
    assert!(!ends(&c, &KNOBS, 1, 0xfb), "once");
    // Version 2: any vector will do.
    send(&c, 0, 1, 0xfb, NOW);
    assert!(ends(&c, &V2, 1, 0xec));
    assert_eq!(waits(&c, 0, NOW), None);
}

#[test]
fn yield_sloppy_15_the_receivers_own_ipi_survives_its_eoi() {
    let c = contexts(3);
    send(&c, 0, 1, 0xfb, NOW);
    send(&c, 1, 2, 0xfb, NOW);
    assert!(ends(&c, &KNOBS, 1, 0xfb));
    assert_eq!((waits(&c, 0, NOW), waits(&c, 1, NOW)), (None, Some(2)));
    // Version 2 wipes it.
    send(&c, 0, 1, 0xfb, NOW);
    assert!(ends(&c, &V2, 1, 0xfb));
    assert_eq!((waits(&c, 0, NOW), waits(&c, 1, NOW)), (None, None));
    // A sender that has moved on keeps what it waits for now.
    send(&c, 0, 1, 0xfb, NOW);
    send(&c, 0, 2, 0xfb, NOW);
    assert!(!ends(&c, &KNOBS, 1, 0xfb));
    assert_eq!(waits(&c, 0, NOW), Some(2));
}

#[test]
fn yield_sloppy_16_switching_tracking_off_takes_effect_at_once() {
    let c = contexts(2);
    send(&c, 0, 1, 0xfb, NOW);
    let off = IpiKnobs {
        ipi_tracking_enabled: false,
        ..KNOBS
    };
    assert!(!is_ipi_receiver(&c, &off, 0, 1, NOW));
    let refused = record(&c, &off, &ipi(1, 0, 0xfb), NOW, &());
    assert_eq!(refused, Err(NotRecorded::Disabled));
    assert!(is_ipi_receiver(&c, &KNOBS, 0, 1, NOW), "and back on");
    // At INIT too.
    c[0].reset();
    assert_eq!((waits(&c, 0, NOW), c[0].awaited()), (None, None));
}

#[test]
fn a_guests_hint_enters_the_same_slot() {
    let c = contexts(3);
    let on = IpiKnobs {
        guest_yield_hint: true,
        ipi_tracking_enabled: false,
        ..KNOBS
    };
    assert_eq!(
        guest_hint(&c, &KNOBS, 0, 2, NOW, &()),
        Ok(false),
        "off by default"
    );
    assert_eq!(guest_hint(&c, &on, 0, 2, NOW, &()), Ok(true));
    let expected = Awaited {
        receiver: 2,
        source: HintSource::Guest,
        time_ns: NOW,
    };
    assert_eq!(confirmed_receiver(&c, &on, 0, NOW), Some(expected));
    assert_eq!(waits(&c, 0, NOW), None, "no knob, no hint");
    // An EOI ends interrupts, not hints.
    send(&c, 1, 2, 0xfb, NOW);
    assert!(ends(&c, &on, 2, 0xfb));
    assert!(!ends(&c, &on, 2, 0));
    // Not even where the waiter had sent an IPI before, and the numbers happen to match.
    send(&c, 0, 2, 0xfb, NOW);
    assert_eq!(guest_hint(&c, &on, 0, 2, NOW, &()), Ok(true));
    assert_eq!(c[2].last_sender(), Some(0));
    assert!(!ends(&c, &on, 2, 0));
    assert!(is_ipi_receiver(&c, &on, 0, 2, NOW + 50_000_000));
    assert!(!is_ipi_receiver(&c, &on, 0, 2, NOW + 50_000_001));
    assert_eq!(withdraw_hint(&c, 0), Ok(true));
    assert_eq!(withdraw_hint(&c, 0), Ok(false));
    assert_eq!(confirmed_receiver(&c, &on, 0, NOW), None);
    // A record of an IPI is not the guest's to withdraw.
    send(&c, 0, 1, 0xfb, NOW);
    assert_eq!(withdraw_hint(&c, 0), Ok(false));
    assert_eq!(waits(&c, 0, NOW), Some(1));
}

#[test]
fn vcpus_that_do_not_exist_are_named() {
    let c = contexts(2);
    let on = IpiKnobs {
        guest_yield_hint: true,
        ..KNOBS
    };
    for vcpu in [2, 1 << 24, u32::MAX] {
        let refused = NoSuchVcpu { vcpu, vcpus: 2 };
        for ipi in [ipi(vcpu, 0, 99), ipi(0, vcpu, 99)] {
            let recorded = record(&c, &KNOBS, &ipi, NOW, &());
            assert_eq!(recorded, Err(NotRecorded::NoSuchVcpu(refused)));
        }
        assert_eq!(guest_hint(&c, &on, 0, vcpu, NOW, &()), Err(refused));
        assert_eq!(eoi(&c, &KNOBS, vcpu, Some(99), NOW, &()), Err(refused));
        assert_eq!(waits(&c, vcpu, NOW), None);
    }
    let low = record(&c, &KNOBS, &ipi(0, 1, 15), NOW, &());
    assert_eq!(low, Err(NotRecorded::IllegalVector));
}

/// The rules in plain data: `(receiver, vector, pending, time)` and `sender` for each vCPU.
#[derive(Clone, Default)]
struct Plain {
    outgoing: Option<(u32, u8, bool, u64)>,
    sender: Option<u32>,
}

impl Plain {
    fn eoi(all: &mut [Self], receiver: u32, vector: u8) {
        let own = receiver as usize;
        let Some(sender) = all[own].sender else {
            return;
        };
        if let Some((to, v, pending, _)) = &mut all[sender as usize].outgoing
            && (*to, *v, *pending) == (receiver, vector, true)
        {
            *pending = false;
            all[own].sender = None;
        }
    }
}

proptest! {
    #[test]
    fn tracking_follows_its_rules(
        steps in prop::collection::vec((0u8..3, 0u32..4, 0u32..4, 16u8..19, 0u64..40_000_000), 0..60)
    ) {
        let c = contexts(4);
        let mut plain = vec![Plain::default(); 4];
        let mut now = NOW;
        for (what, a, b, vector, passes) in steps {
            now += passes;
            match what {
                0 if a != b => {
                    send(&c, a, b, vector, now);
                    plain[a as usize].outgoing = Some((b, vector, true, now));
                    plain[b as usize].sender = Some(a);
                }
                1 => {
                    eoi(&c, &KNOBS, a, Some(vector), now, &()).unwrap();
                    Plain::eoi(&mut plain, a, vector);
                }
                _ => {}
            }
            for sender in 0..4 {
                let expected = plain[sender as usize].outgoing.filter(|&(_, _, pending, time)| {
                    pending && now - time <= 50_000_000
                });
                let expected = expected.map(|(receiver, vector, _, time_ns)| Awaited {
                    receiver,
                    source: HintSource::Ipi { vector },
                    time_ns,
                });
                prop_assert_eq!(confirmed_receiver(&c, &KNOBS, sender, now), expected);
            }
        }
    }
}

/// At a time with low bits of 0, as in the record of vCPU 0.
#[test]
fn a_settled_record_is_none() {
    let (c, now) = (contexts(3), 1 << 30);
    send(&c, 0, 1, 0xfb, now);
    assert_eq!(eoi(&c, &KNOBS, 1, Some(0xfb), now, &()), Ok(true));
    assert_eq!((c[0].awaited(), withdraw_hint(&c, 0)), (None, Ok(false)));
}

#[test]
fn version_2_asks_for_the_receiver_and_the_age() {
    let c = contexts(3);
    send(&c, 0, 1, 0xfb, NOW);
    send(&c, 0, 2, 0xfb, NOW);
    assert!(!ends(&c, &V2, 1, 0xfb), "it waits for another one");
    assert_eq!(waits(&c, 0, NOW), Some(2));
    let window_ns = KNOBS.ipi_window_ns;
    for (age_ns, settles) in [(window_ns, true), (window_ns + 1, false)] {
        send(&c, 0, 1, 0xfb, NOW - age_ns);
        assert_eq!(ends(&c, &V2, 1, 0xfb), settles);
    }
}

#[test]
fn no_record_names_a_vcpu_that_is_gone() {
    let all = contexts(4);
    send(&all, 0, 2, 0x41, NOW);
    send(&all, 1, 3, 0x42, NOW);
    send(&all, 2, 3, 0x43, NOW);
    forget(&all, 2).unwrap();
    assert_eq!(waits(&all, 0, NOW), None);
    assert_eq!(waits(&all, 1, NOW), Some(3), "another's stays");
    assert_eq!(waits(&all, 2, NOW), None);
    assert_eq!(all[3].last_sender(), None, "it sent the last one");
    assert_eq!(forget(&all, 4), Err(NoSuchVcpu { vcpu: 4, vcpus: 4 }));
}

/// A context names a vCPU in 24 bits.
#[test]
fn a_context_names_up_to_2_to_the_24_vcpus() {
    assert_eq!(stealtime_hypervisor::ipi_tracking::MAX_VCPUS, 0xff_ffff);
}
