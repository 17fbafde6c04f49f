//! Recordings without switches of some threads: events on a CPU show its current task.

use common::Log;
use common::kinds::{switch, switch_at, waking};
use common::text::{steps, task, trace};
use stealtime_replay::Recording;
use stealtime_replay::predict::demand_ns;

use crate::common;

const MS: u64 = 1_000_000;
const NICED: i32 = 5;
const OTHER: i32 = 6;

/// On CPU 0 one task runs for 1 ms, and another one for 1 ms to its last event. The next event of the CPU
/// comes 3 ms later, and is of the task with this id.
fn recorded(found: i32) -> Recording {
    let mut log = Log::default();
    log.add(0, 0, 0, switch_at(0, NICED, 0, 125));
    log.add(MS, 0, NICED, switch(NICED, 0, 1));
    log.add(2 * MS, 0, 0, switch(0, OTHER, 0));
    log.add(3 * MS, 0, OTHER, waking(9, 1));
    log.add(5 * MS, 0, found, waking(9, 1));
    log.add(7 * MS, 0, found, waking(9, 1));
    log.extracted()
}

#[test]
fn a_task_that_another_is_found_to_follow_has_its_cpu_to_its_last_event() {
    for found in [0, NICED] {
        let recording = recorded(found);
        assert_eq!(recording.resolved.hidden_switches, 1);
        let ran_ms = recording.tasks.iter().filter_map(|task| {
            let is_known = [NICED, OTHER].contains(&task.tid);
            is_known.then_some((task.tid, demand_ns(task) / MS))
        });
        let again_ms = if found == NICED { 4 } else { 0 };
        let expected = [(NICED, 1 + again_ms), (OTHER, 1)];
        assert_eq!(ran_ms.collect::<Vec<_>>(), expected, "{found}");
    }
}

#[test]
fn a_task_that_is_found_on_a_cpu_keeps_its_nice_value() {
    let nice = |found| {
        let recording = recorded(found);
        let niced = recording.tasks.iter().find(|task| task.tid == NICED);
        niced.map(|task| task.nice)
    };
    assert_eq!([0, NICED].map(nice), [Some(5); 2]);
}

/// `perf` has no id of a task that exits. The task has its CPU until it is switched out.
#[test]
fn events_without_a_task_hide_no_switch() {
    let log = trace(
        "
      0 0  0 switch 0 5
    100 0 -1 canceltimer 1
    200 0  5 canceltimer 1
    300 0  5 switch 5 0 ends
",
    );
    let recording = log.extracted();
    assert_eq!(recording.resolved.hidden_switches, 0);
    assert_eq!(steps(&recording, 5), "host 300");
}

/// As on isolated CPUs: a vCPU and a thread that keep their CPUs are in the recording without a switch.
#[test]
fn tasks_that_keep_their_cpus_need_no_switch() {
    let log = trace(
        "
      0 1  0 name 20 20
      0 2  0 switch 0 30
     10 1 20 entry 0
     50 2 30 switch 30 0 sleeps
    100 1 20 exit 0 48
    110 1 20 entry 0
    200 3 40 waking 30 2
    210 2  0 switch 0 30
    300 1 20 exit 0 48
",
    );
    let recording = log.extracted();
    assert!(recording.never_ran.is_empty());
    let guest = task(&recording, 20);
    assert_eq!((guest.vcpu, &guest.ran_on[..]), (Some((0, 0)), &[1][..]));
    assert_eq!(
        steps(&recording, 20),
        "host 10, guest 90, exit48 10, guest 190"
    );
    // What the thread on CPU 3 wakes waits for it.
    assert_eq!(steps(&recording, 30), "host 50, sleep for 0, host 90");
    assert_eq!(steps(&recording, 40), "host 200, reach 0, host 100");
}

/// A task that exits wakes another one, and no script of a replay would have that point.
#[test]
fn a_task_that_one_without_an_id_wakes_sleeps_until_a_time() {
    let log = trace(
        "
      0 0  0 switch 0 5
      0 1  0 switch 0 6
     50 1  6 switch 6 0 sleeps
    100 0 -1 waking 6 1
    110 1  0 switch 0 6
    300 0  5 switch 5 0 ends
",
    );
    let recording = log.extracted();
    assert_eq!(steps(&recording, 6), "host 50, sleep to 100, host 190");
    assert_eq!(recording.edges, 0);
}
