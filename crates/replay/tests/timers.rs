//! Timers that end waits: on a grid in time, or relative to what their tasks did.

use common::Log;
use common::text::{steps, task, trace};
use stealtime_replay::Recording;
use stealtime_simulator::script::Ticks;

use crate::common;

/// A daemon that sleeps until each of these times, in us, as it has worked for 50 us since the one before.
fn sleeper(expiries: &[u64]) -> Recording {
    let mut log = trace("0 2 0 switch 0 20");
    let mut woken = 0;
    for &due in expiries {
        let set = woken + 50;
        sleeps(&mut log, set, due);
        woken = due + 4;
    }
    log.append(&format!("{} 2 20 canceltimer 9", woken + 10));
    log.extracted()
}

/// It sets a timer for `due` and sleeps.
fn sleeps(log: &mut Log, set: u64, due: u64) {
    let lines = [
        (set, format!("2 20 settimer 7 hrtimer_wakeup {due}")),
        (set + 1, "2 20 switch 20 0 sleeps".to_owned()),
        (due, format!("2 0! expiretimer 7 hrtimer_wakeup {due}")),
        (due + 1, "2 0! waking 20 2".to_owned()),
        (due + 4, "2 0 switch 0 20".to_owned()),
    ];
    for (us, line) in lines {
        log.append(&format!("{us} {line}"));
    }
}

/// What the sleeps of the daemon wait for.
fn ends(recording: &Recording) -> Vec<String> {
    let steps = steps(recording, 20);
    let sleeps = steps
        .split(", ")
        .filter_map(|step| step.strip_prefix("sleep "));
    sleeps.map(str::to_owned).collect()
}

/// From a timer's set to its wakeup, where it is relative.
fn armed(expiries: &[u64]) -> Vec<String> {
    let begins = [0]
        .into_iter()
        .chain(expiries.iter().map(|expires| expires + 4));
    let pairs = expiries.iter().zip(begins);
    pairs
        .map(|(expires, begin)| format!("armed {}", expires + 1 - (begin + 50)))
        .collect()
}

#[test]
fn a_program_that_wakes_at_fixed_times_has_its_cycle() {
    // Each 1.5 ms or a little sooner, and twice at another time in between.
    let cycle = (5..25).map(|n| 1_500 * n + 600 - n % 7);
    let mut expiries: Vec<u64> = cycle.chain([14_400, 20_400]).collect();
    expiries.sort_unstable();
    let recording = sleeper(&expiries);
    let relative = armed(&expiries);
    let expected = expiries
        .iter()
        .zip(relative)
        .map(|(&expires, armed)| match expires {
            14_400 | 20_400 => armed,
            // The first one passes other points before.
            _ => {
                let nth = if expires < 9_000 { 6 } else { 1 };
                format!("grid {} of 1500 nth {nth} late 1", expires % 1_500)
            }
        });
    assert_eq!(ends(&recording), expected.collect::<Vec<String>>());
}

#[test]
fn timers_that_keep_no_phase_are_relative() {
    // The phase changes half way; and a program that wakes too often for a cycle.
    let shifted = (5..25).map(|n| 1_500 * n + 600 + if n < 15 { 0 } else { 250 });
    let often = (5..40).map(|n| 200 * n);
    for expiries in [shifted.collect::<Vec<u64>>(), often.collect()] {
        assert_eq!(ends(&sleeper(&expiries)), armed(&expiries));
    }
}

#[test]
fn of_a_kernels_timers_those_on_ticks_are_on_their_grid() {
    let ticks = [1, 2, 4, 7, 8, 11, 13, 14, 17, 20, 22, 23].map(|n| 4_000 * n + 300);
    let others = [
        10_137, 18_711, 23_490, 34_869, 42_050, 50_410, 61_600, 74_790,
    ];
    let mut expiries = [&ticks[..], &others].concat();
    expiries.sort_unstable();
    let recording = sleeper(&expiries);
    let relative = armed(&expiries);
    let found = ends(&recording);
    for ((expires, armed), end) in expiries.iter().zip(relative).zip(found) {
        match ticks.contains(expires) {
            true => assert!(end.starts_with("grid 300 of 4000 "), "{expires} {end}"),
            false => assert_eq!(end, armed, "{expires}"),
        }
    }
}

/// vCPUs 0 and 1 of a VM compute on the CPUs of their numbers.
const GUEST: &str = "
      0 0  0 name 10 10
      0 0  0 name 11 10
      0 0  0 switch 0 10
      0 1  0 switch 0 11
      5 0 10 entry 0
      5 1 11 entry 1
";

fn add(log: &mut Log, begin: u64, lines: &[(u64, &str)]) {
    for (us, line) in lines {
        log.append(&format!("{} {line}", begin + us));
    }
}

/// It computes, and halts until its timer is due at `due`: the next multiple of 4 ms.
fn halts_to(log: &mut Log, begin: u64, due: u64) {
    let set = format!("0 10 settimer 1 apic_timer_fn {due}");
    let lines = [
        (0, "0 10 exit 0 32"),
        (1, &set),
        (3, "0 10 entry 0"),
        (8, "0 10 exit 0 12"),
        (9, "0 10 switch 10 0 sleeps"),
    ];
    add(log, begin, &lines);
}

#[test]
fn a_timer_that_finds_nothing_to_do_takes_as_little_as_any() {
    let mut log = trace(GUEST);
    halts_to(&mut log, 1_000, 4_000);
    for round in 1..=12 {
        let due = 4_000 * round;
        let expires = format!("0 0! expiretimer 1 apic_timer_fn {due}");
        let halted = format!("0 10 halted {} slept", 100);
        let lines = [
            (0, expires.as_str()),
            (1, "0 0! waking 10 0"),
            (5, "0 0 switch 0 10"),
            (7, &halted),
            (8, "0 10 entry 0"),
        ];
        add(&mut log, due, &lines);
        // The work of a round is longer the sooner it is.
        halts_to(&mut log, due + 208 - 10 * round, due + 4_000);
    }
    // The sibling ends these halts: one well before the timer is due, one when it is.
    let wakes = [
        (0, "1 11 exit 1 56"),
        (1, "1 11 waking 10 0"),
        (2, "1 11 entry 1"),
        (5, "0 0 switch 0 10"),
        (7, "0 10 halted 100 slept"),
        (8, "0 10 entry 0"),
    ];
    add(&mut log, 50_000, &wakes);
    halts_to(&mut log, 51_000, 56_000);
    add(&mut log, 55_999, &wakes);
    let recording = log.extracted();
    // Of twelve times the second: 3 us to the guest, 90 us there, 8 us until it halts, and 1 us to sleep.
    assert_eq!(task(&recording, 10).alarm_ns, 102_000);
    let steps = steps(&recording, 10);
    let last: Vec<&str> = steps
        .split(", ")
        .filter(|step| step.starts_with("alarm") || step.starts_with("halt "))
        .skip(12)
        .collect();
    let expected = [
        "alarm grid 0 of 4000 nth 1 late 0",
        "halt for 0 or work 94 busy",
        // As it was due the wait was over.
        "alarm forever",
        "halt for 1 or work 94 busy",
    ];
    assert_eq!(last, expected);
}

#[test]
fn exits_for_ticks_at_work_are_interrupts() {
    let mut log = trace(GUEST);
    add(
        &mut log,
        1_000,
        &[
            (0, "0 10 exit 0 32"),
            (1, "0 10 settimer 1 apic_timer_fn 4000"),
            (3, "0 10 entry 0"),
        ],
    );
    for round in 1..=10 {
        let due = 4_000 * round;
        let expires = format!("0 10! expiretimer 1 apic_timer_fn {due}");
        let sets = format!("0 10 settimer 1 apic_timer_fn {}", due + 4_000);
        // The exits of vCPU 0 by 48 after 10 us are for the tick, and not those after 300 us.
        let lines = [
            (0, expires.as_str()),
            (1, "0 10 exit 0 1"),
            (3, "0 10 entry 0"),
            (10, "0 10 exit 0 48"),
            (12, "0 10 entry 0"),
            (300, "0 10 exit 0 48"),
            (302, "0 10 entry 0"),
            (400, "0 10 exit 0 32"),
            (401, &sets),
            (403, "0 10 entry 0"),
        ];
        add(&mut log, due, &lines);
        // vCPU 1 has its ticks by the preemption timer.
        let lines = [
            (1_000, "1 11 exit 1 52"),
            (1_004, "1 11 entry 1"),
            (1_500, "1 11 exit 1 48"),
            (1_502, "1 11 entry 1"),
        ];
        add(&mut log, due, &lines);
    }
    let recording = log.extracted();
    let ticks = |tid| task(&recording, tid).ticks;
    let every_4_ms = |phase_us: u32| Ticks {
        phase_ns: phase_us * 1_000,
        period_ns: 4_000_000,
    };
    assert_eq!(ticks(10), Some(every_4_ms(15)));
    assert_eq!(ticks(11), Some(every_4_ms(1_015)));
    let round = "interrupt1 2, guest 7, interrupt48 2, guest 288, exit48 2, guest 98, exit32 1, \
                 arm, exit32 2, guest 3598";
    let begin = "host 5, guest 995, exit32 1, arm, exit32 2, guest 2998";
    let rounds = [begin].into_iter().chain([round; 9]);
    let rounds: Vec<&str> = rounds.collect();
    assert!(
        steps(&recording, 10).starts_with(&rounds.join(", ")),
        "{}",
        steps(&recording, 10)
    );
    let round = "interrupt52 4, guest 496, exit48 2, guest 3498";
    let rounds = ["host 5, guest 4995"].into_iter().chain([round; 9]);
    let rounds: Vec<&str> = rounds.collect();
    assert!(
        steps(&recording, 11).starts_with(&rounds.join(", ")),
        "{}",
        steps(&recording, 11)
    );
}
