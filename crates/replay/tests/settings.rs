//! What small traces show of how their host is set.

use std::collections::BTreeMap;

use common::Log;
use common::text::{steps, task, trace};
use stealtime_replay::{Recording, SliceTimers};
use stealtime_simulator::script::Then;

use crate::common;

/// Slice timers that are set for so long, in ns.
fn slices(times: impl IntoIterator<Item = u64>) -> SliceTimers {
    let mut log = trace("0 0 0 switch 0 20");
    // An expiry shows the clock of timers.
    log.append("1 0 20! expiretimer 100 hrtick 1");
    for (number, ns) in (1..).zip(times) {
        log.append(&format!("{} 0 20 settimer 200 hrtick 0", number * 10));
        let event = log.events.last_mut().expect("a timer");
        let set_ns = event.time_ns;
        if let stealtime_events::Kind::HrtimerStart { expires_ns, .. } = &mut event.kind {
            *expires_ns = set_ns + ns;
        }
    }
    log.extracted().slices
}

/// How many of a hundred timers would have to be set otherwise, in permille.
fn apart(first_ns: u64, second_ns: u64) -> Option<u64> {
    let [first, second] = [first_ns, second_ns].map(|ns| slices([ns; 100]));
    first.apart_permille(&second)
}

#[test]
fn slices_are_alike_within_a_quarter_of_a_doubling() {
    for edge_ns in [512_000, 640_000, 768_000, 896_000, 1_024_000, 1_280_000] {
        assert_eq!(apart(edge_ns - 1, edge_ns), Some(1_000), "{edge_ns}");
        assert_eq!(apart(edge_ns, edge_ns + 100_000), Some(0), "{edge_ns}");
    }
    // One doubling and its next quarters.
    let [one, two] = [600_000, 1_200_000];
    assert_eq!(apart(one, two), Some(1_000));
    assert_eq!(apart(650_000, two), Some(1_000));
}

#[test]
fn a_whole_slice_is_what_most_timers_are_set_for() {
    let whole = |times: &[(u64, usize)]| {
        let times = times.iter();
        let times = times.flat_map(|&(ns, count)| std::iter::repeat_n(ns, count));
        slices(times).whole_ns()
    };
    // What passed of a slice is a twentieth at most.
    let near = [(1_900_000, 30), (2_000_000, 30), (700_000, 50)];
    assert_eq!(whole(&near), Some(2_000_000));
    let apart = [(1_899_000, 30), (2_000_000, 30), (700_000, 50)];
    assert_eq!(whole(&apart), Some(700_000));
    // Of as many the shorter ones count.
    assert_eq!(whole(&[(700_000, 50), (2_000_000, 50)]), Some(700_000));
    // No slice is as long as half a second.
    assert_eq!(whole(&[(500_000_000, 200)]), None);
    assert_eq!(whole(&[(499_999_000, 200)]), Some(499_999_000));
}

/// A vCPU's window of halt polling changes, for each of these new and old windows in us.
fn polling(changes: &[(i32, u32, u32)]) -> Recording {
    let mut log = Log::default();
    for (number, (tid, new, old)) in (1..).zip(changes) {
        log.append(&format!("{} {tid} {tid} window 0 {new} {old}", number * 10));
    }
    log.extracted()
}

#[test]
fn polling_is_what_windows_were_cut_to() {
    // A window of 800 us was cut to 400 us by the halt.
    let cut = [(1, 800, 400), (1, 0, 400), (2, 300, 100)];
    assert_eq!(polling(&cut).halt_poll_ns, Some(400_000));
    // A window of 400 us was cut, but another halt began with as much.
    let longest = [(1, 400, 200), (1, 0, 200), (2, 800, 400)];
    assert_eq!(polling(&longest).halt_poll_ns, Some(800_000));
    // An idle task has none.
    assert_eq!(polling(&[(0, 800, 400)]).halt_poll_ns, None);
}

/// A CPU has ticks, and a task gets it again and again.
fn hrtick(switches: [&str; 2]) -> Option<bool> {
    let mut log = trace("0 0 20 settimer 100 tick_nohz_handler 4000");
    for round in 1..=20 {
        let [first, second] = switches;
        log.append(&format!("{} 0 {first}", round * 100));
        log.append(&format!("{} 0 {second}", round * 100 + 50));
    }
    log.extracted().hrtick
}

#[test]
fn without_slice_timers_only_preemption_of_fair_tasks_shows_that() {
    let competing = ["20 switch 20 21", "21 switch 21 20"];
    assert_eq!(hrtick(competing), Some(false));
    let sleeping = ["20 switch 20 21 sleeps", "21 switch 21 20 sleeps"];
    assert_eq!(hrtick(sleeping), None);
    let alone = ["20 switch 20 0 sleeps", "0 switch 0 20"];
    assert_eq!(hrtick(alone), None);
    let urgent = ["20 switch 20 21 real-time", "21 switch 21 20 sleeps"];
    assert_eq!(hrtick(urgent), None);
    let stopped = ["20 switch 20 0", "0 switch 0 20"];
    assert_eq!(hrtick(stopped), None);
}

/// A vCPU that never waits computes on; whether it does must show to the end.
#[test]
fn a_vcpu_goes_on_to_compute_where_it_is_seen_to_the_end() {
    let begins = |lines: &str| {
        let mut log = trace(
            "
      0 0  0 name 10 10
      5 0 10 entry 0
    100 0 10 exit 0 1
",
        );
        log.append(lines);
        let recording = log.extracted();
        (task(&recording, 10).then, steps(&recording, 10))
    };
    // It gets its CPU at the end, and had none for long.
    let (then, done) = begins("101 0 10 switch 10 20\n1000 0 20 switch 20 10");
    let ran = "guest 95, interrupt1 1";
    assert_eq!((then, done.as_str()), (Then::Compute, ran));
    // It does not.
    let (then, _) = begins("101 0 10 switch 10 20\n1000 0 20 switch 20 21");
    assert_eq!(then, Then::Repeat);
    // It is preempted at the end, and was not seen to get its CPU.
    let (then, _) = begins("1000 0 10 switch 10 20");
    assert_eq!(then, Then::Repeat);
}

/// A VM stops in one of three periods after 30 or 32 ms, and its CPU goes to this task until the next one.
fn limits(next: i32) -> BTreeMap<usize, (u64, u64)> {
    let mut log = trace(
        "
      0 0 10 name 10 10
      0 0  0 switch 0 10
      1 0 10 entry 0
    100 0 10 switch 10 0 sleeps
",
    );
    let mut current = 0;
    for period in 1..=13 {
        let begin = period * 100_000;
        let mut add = |after: u64, line: &str| log.append(&format!("{} {line}", begin + after));
        add(0, "1 0! expiretimer 9 sched_cfs_period_timer 0");
        let has_stopped = period % 3 == 1 && period > 1;
        if !has_stopped {
            add(100, "1 0! waking 10 0");
        }
        add(200, &format!("0 {current} switch {current} 10"));
        match period % 3 {
            0 => {
                current = next;
                let ran = 30_000 + period % 2 * 2_000;
                add(200 + ran, &format!("0 10 switch 10 {next}"));
            }
            _ => {
                current = 0;
                add(10_200, "0 10 switch 10 0 sleeps");
            }
        }
    }
    log.extracted().limits
}

#[test]
fn a_limit_stops_a_vm_though_its_cpu_is_idle() {
    assert_eq!(limits(0), [(0, (32_000_000, 100_000_000))].into());
    assert_eq!(limits(20), BTreeMap::new());
}
