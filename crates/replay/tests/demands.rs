//! What tasks of small traces do, step by step.

use common::text::{late, steps, task, trace, waits};
use stealtime_simulator::script::Then;

use crate::common;

/// vCPUs 0 and 1 of a VM compute on the CPUs of their numbers, and a daemon on CPU 2.
const GUEST: &str = "
      0 0  0 name 10 10
      0 0  0 name 11 10
      0 0  0 name 20 20
      0 0  0 switch 0 10
      0 1  0 switch 0 11
      0 2  0 switch 0 20
      5 0 10 entry 0
      5 1 11 entry 1
";

#[test]
fn time_is_spent_on_what_the_last_exit_was_for() {
    let mut log = trace(GUEST);
    log.append(
        "
    105 0 10 exit 0 48
    110 0 10 entry 0
    200 0 10 exit 0 1
    202 0 10 entry 0
    300 0 10 exit 0 1
    303 0 10 switch 10 0
    350 0  0 switch 0 10
    352 0 10 entry 0
    400 0 10 exit 0 12
    401 0 10 entry 0
    403 0 10 exit 0 12
    404 0 10 entry 0
    500 0 10 exit 0 30
",
    );
    let recording = log.extracted();
    assert_eq!(
        steps(&recording, 10),
        "host 5, guest 100, exit48 5, guest 90, interrupt1 2, guest 98, interrupt1 5, guest 48, \
         halt12 1, guest 2, halt12 1, guest 96"
    );
    // Before which steps the exits are.
    let exits = &task(&recording, 10).exits;
    let exits: Vec<(usize, u32)> = exits.iter().map(|exit| (exit.0, exit.1.code)).collect();
    let codes = [(2, 48), (4, 1), (6, 1), (8, 12), (10, 12), (12, 30)];
    assert_eq!(exits, codes);
    // The sibling and the daemon have no other events.
    assert_eq!(steps(&recording, 11), "host 5, guest 495");
    assert_eq!(steps(&recording, 20), "host 500");
    assert_eq!((recording.halts, recording.halts_told), (2, 0));
    let ran = [10, 11, 20].map(|tid| task(&recording, tid).switches_in);
    assert_eq!(ran, [2, 1, 1]);
}

#[test]
fn what_a_guest_asks_for_is_done_at_the_end_of_its_exit() {
    let mut log = trace(GUEST);
    // It spins, and asks for vCPU 1 to run: by the hypercalls for that, and by another one that does not.
    log.append(
        "
    105 0 10 exit 0 40
    109 0 10 entry 0
    200 0 10 exit 0 18
    201 0 10 hypercall 11 1 7
    204 0 10 entry 0
    300 0 10 exit 0 18
    301 0 10 hypercall 5 7 1
    303 0 10 entry 0
    400 0 10 exit 0 18
    401 0 10 hypercall 9 1 1
    402 0 10 entry 0
",
    );
    // It loses its CPU as it spins, and again on the way back.
    log.append(
        "
    500 0 10 exit 0 40
    505 0 10 switch 10 0
    600 0  0 switch 0 10
    602 0 10 switch 10 0
    610 0  0 switch 0 10
    611 0 10 entry 0
    700 0 10 exit 0 10
",
    );
    let recording = log.extracted();
    assert_eq!(
        steps(&recording, 10),
        "host 5, guest 100, exit40 4, spin, guest 91, exit18 4, yield to 1, guest 96, exit18 3, \
         yield to 1, guest 97, exit18 2, guest 98, exit40 5, spin, exit40 3, guest 89"
    );
    assert_eq!(recording.yields, 4);
    // It goes on to spin.
    assert_eq!(task(&recording, 10).then, Then::Repeat);
    assert_eq!(task(&recording, 11).then, Then::Compute);
    assert_eq!(task(&recording, 20).then, Then::End);
}

/// Where the guest's writes of its LAPIC's timer are recorded, they alone set it.
#[test]
fn a_guest_sets_its_timer_by_writes_of_its_own() {
    let mut log = trace(GUEST);
    log.append(
        "
    105 0 10 exit 0 32
    106 0 10 settimer 1 apic_timer_fn 5000
    108 0 10 entry 0
    200 0 10 exit 0 32
    201 0 10 writes-msr 0x6e0
    202 0 10 settimer 1 apic_timer_fn 5000
    204 0 10 entry 0
    300 0 10 exit 0 32
    301 0 10 writes-msr 0x10
    302 0 10 reads-msr 0x6e0
    304 0 10 entry 0
    400 0 10 exit 0 56
    401 0 10 writes-apic 0x380
    403 0 10 entry 0
    500 0 10 exit 0 56
    501 0 10 writes-apic 0x300
    502 0 10 writes-msr 0x838
    505 0 10 entry 0
",
    );
    let recording = log.extracted();
    assert_eq!(
        steps(&recording, 10),
        "host 5, guest 100, exit32 1, arm, exit32 2, guest 92, exit32 1, arm, exit32 3, guest 96, \
         exit32 4, guest 96, exit56 1, arm, exit56 2, guest 97, exit56 2, arm, exit56 3"
    );
}
