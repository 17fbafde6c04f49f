//! What tasks of small traces do, step by step.

use common::text::{late, steps, task, trace, waits};
use stealtime_replay::Resolved;
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

#[test]
fn a_host_timer_is_a_guests_where_its_writes_are_not_recorded() {
    let mut log = trace(GUEST);
    // In an exit; in a halt, where KVM sets it anew; by an interrupt; and a timer of the daemon.
    log.append(
        "
    105 0 10 exit 0 32
    106 0 10 settimer 1 apic_timer_fn 5000
    108 0 10 entry 0
    200 0 10 exit 0 12
    202 0 10 settimer 1 apic_timer_fn 5000
    204 0 10 entry 0
    250 2 20 settimer 2 hrtimer_wakeup 9000
    300 0 10! settimer 3 hrtimer_wakeup 9000
    400 0 10 exit 0 30
",
    );
    let recording = log.extracted();
    assert_eq!(
        steps(&recording, 10),
        "host 5, guest 100, exit32 1, arm, exit32 2, guest 92, halt12 4, guest 196"
    );
    assert_eq!(steps(&recording, 20), "host 250, arm, host 150");
}

/// A poll that a sibling ends, and sleeps that the daemon, a timer and nothing end.
#[test]
fn halts_end_by_what_came_first() {
    let mut log = trace(GUEST);
    log.append(
        "
    100 0 10 exit 0 12
    150 1 11 exit 1 56
    151 1 11 accepts 0
    152 1 11 accepts-by-hardware 0
    153 1 11 entry 1
    154 0 10 halted 53
    156 0 10 entry 0
    160 1 11 accepts 0
",
    );
    log.append(
        "
    200 0 10 exit 0 12
    203 0 10 switch 10 0 sleeps
    300 2 20 waking 10 0
    301 2 20 wakeup 10 0
    310 0  0 switch 0 10
    314 0 10 halted 112 slept
    315 0 10 entry 0
",
    );
    log.append(
        "
    320 0 10 exit 0 32
    321 0 10 settimer 1 apic_timer_fn 500
    323 0 10 entry 0
    330 0 10 exit 0 12
    334 0 10 switch 10 0 sleeps
    501 0  0! expiretimer 1 apic_timer_fn 501
    507 0  0! waking 10 0
    508 0  0! wakeup 10 0
    516 0  0 switch 0 10
    518 0 10 halted 187 slept
    520 0 10 entry 0
    600 0 10 exit 0 12
    603 0 10 switch 10 0 sleeps
    700 0  0 switch 0 10
    702 0 10 halted 101 slept
    703 0 10 entry 0
    800 0 10 exit 0 12
    803 0 10 switch 10 0 sleeps
    900 2 20 switch 20 0 sleeps
",
    );
    let recording = log.extracted();
    assert_eq!(
        steps(&recording, 10),
        "host 5, guest 95, halt12 1, halt for 0 or work 50 busy, slept 2, halt12 2, guest 44, \
         halt12 2, halt for 2, slept 4, halt12 1, guest 5, exit32 1, arm, exit32 2, guest 7, \
         halt12 1, halt armed 186, slept 2, halt12 2, guest 80, halt12 1, halt to 700, slept 2, \
         halt12 1, guest 97, halt12 3, halt after 97, slept 2"
    );
    assert_eq!(
        waits(&recording, 10),
        "3: 101-151, 8: 202-300 by 2, 17: 331-507 late 7, 22: 601-700, 27: 803-900"
    );
    assert_eq!(
        steps(&recording, 11),
        "host 5, guest 145, exit56 1, reach 0, exit56 1, reach 1, exit56 1, guest 747"
    );
    assert_eq!(
        steps(&recording, 20),
        "host 300, reach 2, host 600, sleep forever"
    );
    assert_eq!(*recording.edge_ns, [151_000, 152_000, 300_000]);
    let resolved = Resolved {
        edges: 3,
        timers: 1,
        unknown: 1,
        ..Resolved::default()
    };
    assert_eq!(recording.resolved, resolved);
    assert_eq!((recording.halts, recording.halts_told), (5, 4));
    assert_eq!(late(&recording.poll_called), "151+3 |  | ");
    assert_eq!(late(&recording.idle_called), "300+10 |  | ");
    assert_eq!(late(&recording.without_stalls.idle_called), "300+10 |  | ");
    assert_eq!(late(&recording.idle_late), "507+9 |  | ");
    assert_eq!(late(&[task(&recording, 10).called.clone()]), "300+10");
}

/// Wakeups of the daemon from idle CPUs, from interrupts and on its way to sleep; and moves.
#[test]
fn sleeps_end_by_waker_and_place() {
    let mut log = trace(GUEST);
    // On the CPU where it slept; from another one that is idle; from an interrupt on one that is not.
    log.append(
        "
    100 2 20 switch 20 0 sleeps
    150 2  0! waking 20 2
    151 2  0! wakeup 20 2
    153 2  0 switch 0 20
    200 2 20 switch 20 0 sleeps
    250 3  0! waking 20 2
    251 3  0! wakeup 20 2
    258 2  0 switch 0 20
    300 2 20 switch 20 0 sleeps
    350 1 11! waking 20 2
    351 1 11! wakeup 20 2
    353 2  0 switch 0 20
",
    );
    // For another CPU, by a vCPU; then it moves on before it runs.
    log.append(
        "
    400 2 20 switch 20 0 sleeps
    450 1 11 waking 20 3
    451 1 11 wakeup 20 3
    456 3  0 switch 0 20
    500 3 20 switch 20 0 sleeps
    550 1 11 waking 20 3
    551 1 11 wakeup 20 3
    552 1 11 moves 20 2
    560 2  0 switch 0 20
    600 2 20 switch 20 0
    610 2  0 moves 20 1
    620 1 11 switch 11 20
    630 1 20 switch 20 11 sleeps
    700 1 11 switch 11 20
    710 1 20 switch 20 11
    720 0 10 switch 10 0 sleeps
",
    );
    let recording = log.extracted();
    assert_eq!(
        steps(&recording, 20),
        "host 100, sleep to 150, host 47, sleep to 250, host 42, sleep to 350, host 47, \
         sleep for 0, move 3, host 44, sleep for 1, move 2, host 40, move 1, host 10, \
         sleep to 700, host 10"
    );
    assert_eq!(
        waits(&recording, 20),
        "1: 100-150, 3: 200-250 by idle 3, 5: 300-350 by 1, 7: 400-450 by 1, 10: 500-550 by 1, \
         15: 630-700"
    );
    let moves: Vec<(u64, u32)> = task(&recording, 20).moves.to_vec();
    assert_eq!(moves, [(456_000, 3), (552_000, 2), (610_000, 1)]);
    assert_eq!(task(&recording, 20).ran_on, [1, 2, 3]);
    assert_eq!(task(&recording, 20).first_cpu, 2);
    let resolved = Resolved {
        edges: 2,
        unknown: 4,
        ..Resolved::default()
    };
    assert_eq!(recording.resolved, resolved);
    assert_eq!(late(&recording.idle_late), " |  | 150+3 | ");
    let called = "250+8 350+3 550+10";
    assert_eq!(late(&recording.idle_called), format!(" |  | {called} | "));
    assert_eq!(late(&[task(&recording, 20).called.clone()]), called);
    // The last call was for CPU 3, which has not switched since.
    let first = &recording.without_stalls.idle_called;
    assert_eq!(late(first), " |  | 250+8 350+3 | ");
}

/// The idle task wakes others as a CPU leaves its idle state, and a task may be woken by itself on its way.
#[test]
fn neither_idle_tasks_nor_the_task_itself_reach_a_point() {
    let mut log = trace(GUEST);
    log.append(
        "
    100 2 20 switch 20 0 sleeps
    150 3  0 waking 20 2
    151 3  0 wakeup 20 2
    158 2  0 switch 0 20
    199 2 20 waking 20 2
    200 2 20 switch 20 0 sleeps
    210 2  0 switch 0 20
    300 2 20 switch 20 0 sleeps
",
    );
    // `sched_wakeup` is recorded: a wakeup without it was not over as the task left its CPU.
    let recording = log.extracted();
    assert_eq!(
        steps(&recording, 20),
        "host 100, sleep to 150, host 42, sleep to 200, host 90, sleep forever"
    );
    assert_eq!((recording.edges, recording.resolved.unknown), (0, 2));
}

/// Threads work for the VM that they wake or that wakes them; a vCPU of another VM is no sibling.
#[test]
fn a_thread_works_for_the_vm_that_it_wakes_or_that_wakes_it() {
    let mut log = trace(GUEST);
    log.append(
        "
     90 4  0 name 40 40
     91 4  0 switch 0 40
     92 4 40 entry 0
",
    );
    for round in 1..=10 {
        let place = |us: u64| round * 1_000 + us;
        let lines = [
            // Thread 30 wakes vCPU 0 of the first VM, which wakes thread 31.
            (place(0), "0 10 exit 0 12"),
            (place(1), "0 10 switch 10 0 sleeps"),
            (place(100), "2 20 switch 20 30"),
            (place(101), "2 30 waking 10 0"),
            (place(105), "2 30 switch 30 20 sleeps"),
            (place(110), "0 0 switch 0 10"),
            (place(112), "0 10 halted 112 slept"),
            (place(113), "0 10 entry 0"),
            (place(200), "0 10 exit 0 30"),
            (place(201), "0 10 waking 31 3"),
            (place(202), "0 10 entry 0"),
            (place(203), "3 0 switch 0 31"),
            (place(204), "3 31 switch 31 0 sleeps"),
            // The daemon wakes thread 32.
            (place(300), "2 20 waking 32 3"),
            (place(303), "3 0 switch 0 32"),
            (place(304), "3 32 switch 32 0 sleeps"),
        ];
        for (us, line) in lines {
            log.append(&format!("{us} {line}"));
        }
    }
    log.append(
        "
  20000 0 10 exit 0 12
  20001 0 10 switch 10 0 sleeps
  20100 4 40 exit 0 56
  20101 4 40 waking 10 0
  20102 4 40 entry 0
  20110 0  0 switch 0 10
  20112 0 10 halted 112 slept
",
    );
    let recording = log.extracted();
    let vms = [10, 40, 20, 30, 31, 32].map(|tid| task(&recording, tid).vm);
    assert_eq!(vms, [Some(0), Some(1), None, Some(0), Some(0), None]);
    let ends = steps(&recording, 10);
    assert!(ends.ends_with("halt for 30, slept 2"), "{ends}");
}

/// What a VM computes while one of its vCPUs halts is that of all siblings, but for their halts.
#[test]
fn a_halt_lasts_as_long_as_its_vm_works() {
    let mut log = trace(GUEST);
    log.append(
        "
    100 0 10 exit 0 12
    101 0 10 switch 10 0 sleeps
    130 1 11 exit 1 12
    131 1 11 switch 11 0 sleeps
    150 2 20 waking 11 1
    160 1  0 switch 0 11
    162 1 11 halted 32 slept
    163 1 11 entry 1
    170 1 11 switch 11 20
    180 1 20 switch 20 11
    200 1 11 exit 1 56
    201 1 11 waking 10 0
    202 1 11 entry 1
    210 0  0 switch 0 10
    212 0 10 halted 112 slept
    213 0 10 entry 0
    300 0 10 exit 0 30
",
    );
    let recording = log.extracted();
    // Until 130, from 162 to 170 and from 180 on.
    assert_eq!(
        steps(&recording, 10),
        "host 5, guest 95, halt for 1 or work 59, slept 2, halt12 1, guest 87"
    );
}
