//! Halt polling: the window over typical guests, caps, and knobs that change meanwhile.
//! (Every decision is held by the golden family `halt-poll`.)

use std::cell::Cell;

use stealtime_hypervisor::events::Events;
use stealtime_hypervisor::halt_poll::{Adaptation, HaltEnd, HaltPoll, HaltPollKnobs, PollTurn};

const KNOBS: HaltPollKnobs = HaltPollKnobs {
    halt_poll_ns: 200_000,
    grow: 2,
    grow_start_ns: 10_000,
    shrink: 2,
    vm_max_ns: None,
};

fn slept(halt_ns: u64) -> HaltEnd {
    HaltEnd {
        waited: true,
        halt_ns,
        poll_ns: 0,
        valid_wakeup: true,
    }
}

fn halts(vcpu: &mut HaltPoll, knobs: &HaltPollKnobs, end: &HaltEnd) -> (Adaptation, u32) {
    let halt = vcpu.begin(knobs, true);
    let adaptation = vcpu.end(knobs, &halt, end, &());
    (adaptation, vcpu.own_ns())
}

#[test]
fn short_sleeps_grow_and_long_ones_shrink() {
    assert_eq!(HaltPollKnobs::default(), KNOBS);
    let mut vcpu = HaltPoll::default();
    let short = slept(150_000);
    let grown: Vec<u32> = (0..6).map(|_| halts(&mut vcpu, &KNOBS, &short).1).collect();
    assert_eq!(grown, [10_000, 20_000, 40_000, 80_000, 160_000, 160_000]);
    let long = slept(1_000_000);
    let shrunk: Vec<u32> = (0..6).map(|_| halts(&mut vcpu, &KNOBS, &long).1).collect();
    assert_eq!(shrunk, [80_000, 40_000, 20_000, 10_000, 0, 0]);
    assert_eq!(halts(&mut vcpu, &KNOBS, &long).0, Adaptation::Kept);
}

/// `kvm_vcpu_halt` shrinks above the cap, and grows below it.
#[test]
fn a_sleep_as_long_as_the_cap_changes_nothing() {
    let mut vcpu = HaltPoll::default();
    halts(&mut vcpu, &KNOBS, &slept(150_000));
    for (halt_ns, after) in [
        (200_000, (Adaptation::Kept, 10_000)),
        (200_001, (Adaptation::Shrunk, 0)),
        (200_000, (Adaptation::Kept, 0)),
        (199_999, (Adaptation::Grown, 10_000)),
    ] {
        assert_eq!(halts(&mut vcpu, &KNOBS, &slept(halt_ns)), after);
    }
}

#[derive(Default)]
struct Invalid(Cell<u32>);

impl Events for Invalid {
    fn halt_poll_invalid(&self) {
        self.0.set(self.0.get() + 1);
    }
}

/// `halt_poll_invalid` counts polls that end for another vCPU.
#[test]
fn an_invalid_wakeup_counts_where_polling_saw_it() {
    for (polls, waited, valid_wakeup, count) in [
        (true, false, false, 1),
        (true, true, false, 0),
        (true, false, true, 0),
        (true, true, true, 0),
        (false, false, false, 0),
    ] {
        let mut vcpu = HaltPoll::default();
        if polls {
            halts(&mut vcpu, &KNOBS, &slept(150_000));
        }
        let halt = vcpu.begin(&KNOBS, true);
        let end = HaltEnd {
            waited,
            valid_wakeup,
            ..slept(5_000)
        };
        let invalid = Invalid::default();
        let _ = vcpu.end(&KNOBS, &halt, &end, &invalid);
        assert_eq!(invalid.0.get(), count, "{polls} {waited} {valid_wakeup}");
    }
}

#[test]
fn growth_beyond_the_cap_is_cut_at_the_next_halt() {
    let mut vcpu = HaltPoll::default();
    let knobs = HaltPollKnobs { grow: 30, ..KNOBS };
    for _ in 0..2 {
        halts(&mut vcpu, &knobs, &slept(150_000));
    }
    assert_eq!(vcpu.own_ns(), 300_000);
    assert_eq!(vcpu.begin(&knobs, true).poll_ns(), 200_000);
    let vm = HaltPollKnobs {
        vm_max_ns: Some(50_000),
        ..knobs
    };
    assert_eq!(vcpu.begin(&vm, true).poll_ns(), 50_000);
    // Switched off while the vCPU sleeps: noticed at its end.
    let halt = vcpu.begin(&KNOBS, true);
    let off = HaltPollKnobs {
        halt_poll_ns: 0,
        ..KNOBS
    };
    let ended = vcpu.end(&off, &halt, &slept(1), &());
    assert_eq!((ended, vcpu.own_ns()), (Adaptation::Disabled, 0));
}

#[test]
fn polling_ends_for_others_and_for_the_guests_wish() {
    let mut vcpu = HaltPoll::default();
    halts(&mut vcpu, &KNOBS, &slept(150_000));
    let halt = vcpu.begin(&KNOBS, true);
    let turn = PollTurn {
        elapsed_ns: 9_999,
        alone: true,
        need_resched: false,
    };
    assert!(halt.keeps_polling(&turn));
    let ends = [
        PollTurn {
            elapsed_ns: 10_000,
            ..turn
        },
        PollTurn {
            alone: false,
            ..turn
        },
        PollTurn {
            need_resched: true,
            ..turn
        },
    ];
    assert!(ends.iter().all(|turn| !halt.keeps_polling(turn)));
    let forbidden = vcpu.begin(&KNOBS, false);
    assert!(!forbidden.polls() && !forbidden.keeps_polling(&turn));
    let kept = vcpu.end(&KNOBS, &forbidden, &slept(1_000_000), &());
    assert_eq!((kept, vcpu.own_ns()), (Adaptation::Kept, 10_000));
    let invalid = HaltEnd {
        valid_wakeup: false,
        ..slept(1)
    };
    assert_eq!(halts(&mut vcpu, &KNOBS, &invalid), (Adaptation::Shrunk, 0));
}
