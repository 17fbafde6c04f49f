//! Tasks that begin and end, as small traces show it.

use common::text::{steps, task, trace};
use stealtime_replay::{Begins, RecordedTask, Recording};

use crate::common;

/// Task 20 computes on CPU 2.
const HOST: &str = "
      0 0  0 switch 0 10
      0 2  0 switch 0 20
";

fn begins(task: &RecordedTask) -> Option<(u64, bool)> {
    let begins = task.begins;
    begins.map(|Begins { at_ns, is_seen }| (at_ns / 1_000, is_seen))
}

fn ends_us(task: &RecordedTask) -> Option<u64> {
    task.ends_ns.map(|ns| ns / 1_000)
}

#[test]
fn a_task_ends_as_it_leaves_its_cpu_for_good() {
    let mut log = trace(HOST);
    // As the state says; as its exit says, where its state is not known; and one that only stops.
    log.append(
        "
    100 2 20 switch 20 50
    110 2 50 switch 50 51 ends
    120 2 51 exits 51
    121 2 51 switch 51 52 stops
    130 2 52 switch 52 20 stops
    150 2 20 waking 52 2
    160 2 20 switch 20 52
    170 2 52 switch 52 20 sleeps
    200 2 20 waking 99 2
",
    );
    let recording = log.extracted();
    let ends = [50, 51, 52, 20].map(|tid| ends_us(task(&recording, tid)));
    assert_eq!(ends, [Some(110), Some(121), None, None]);
    let done = [50, 51, 52].map(|tid| steps(&recording, tid));
    assert_eq!(
        done,
        [
            "host 10",
            "host 11",
            "host 9, sleep for 0, host 10, sleep forever"
        ]
    );
}

/// A child's first CPU is that of its first wakeup, unless it is known to have run before.
#[test]
fn a_child_begins_where_it_is_woken_first() {
    let mut log = trace(HOST);
    log.append(
        "
    100 2 20 fork 20 60
    101 2 20 new 60 3
    102 2 20 moves 60 1
    105 1  0 switch 0 60
    115 1 60 switch 60 0 sleeps
    200 2 20 fork 20 61
    205 0 10 switch 10 61
    206 2 20 new 61 3
    215 0 61 switch 61 10 ends
    300 2 20 new 10 3
",
    );
    let recording = log.extracted();
    let tasks = [60, 61, 10].map(|tid| task(&recording, tid));
    assert_eq!(tasks.map(|task| task.first_cpu), [3, 0, 0]);
    let births = [Some((100, true)), Some((200, true)), None];
    assert_eq!(tasks.map(begins), births);
    assert_eq!(tasks.map(ends_us), [None, Some(215), None]);
    assert_eq!(steps(&recording, 60), "move 1, host 10, sleep forever");
    assert_eq!(steps(&recording, 61), "host 10");
}

/// Where forks are not recorded, a task that an idle CPU takes late is new, unless it has been moved there.
#[test]
fn a_task_that_is_seen_late_is_new_where_it_cannot_have_waited() {
    let late = |us: u64, line: &str| format!("{} {line}\n", 10_000 + us);
    let mut log = trace(HOST);
    log.append(
        "
      0 4 40 waking 99 4
    100 3  0 switch 0 30
    110 3 30 switch 30 0 sleeps
    120 3  0 switch 0 70
    130 3 70 switch 70 0 sleeps
",
    );
    let lines = [
        (0, "4 40 switch 40 71"),
        (10, "4 71 switch 71 40 sleeps"),
        (20, "2 20 moves 72 3"),
        (30, "3 0 switch 0 72"),
        (40, "3 72 switch 72 0 sleeps"),
        (50, "3 0 switch 0 73"),
        (60, "3 73 switch 73 0 sleeps"),
    ];
    for (us, line) in lines {
        log.append(&late(us, line));
    }
    let recording = log.extracted();
    let begun = [70, 71, 72, 73].map(|tid| begins(task(&recording, tid)));
    assert_eq!(begun, [None, None, None, Some((10_050, false))]);
}

#[test]
fn tasks_have_their_names_and_those_that_do_nothing_are_listed() {
    let mut log = trace(HOST);
    log.append(
        "
      1 2 20 name 20 20 daemon
      1 2 20 name 81 80 helper
      1 2 20 name 82 80 worker
    100 2 20 switch 20 82
    110 2 82 name 82 80 pool
    120 2 82 switch 82 20 sleeps
",
    );
    let recording = log.extracted();
    let names = [10, 20, 82].map(|tid| task(&recording, tid).name.as_str());
    assert_eq!(names, ["", "daemon", "pool"]);
    let unseen = recording.unseen.iter();
    let unseen: Vec<(i32, i32, &str)> = unseen
        .map(|thread| (thread.tid, thread.process, thread.name.as_str()))
        .collect();
    assert_eq!(unseen, [(81, 80, "helper")]);
}

/// A vCPU's thread has ended, and its id is another one's as its last switch comes, or that is lost.
fn given_out_again(last: &str) -> Recording {
    let mut log = trace(HOST);
    log.append(
        "
    100 0 10 entry 0
    200 0 10 exit 0 48
    210 0 10 exits 10
    300 2 20 fork 20 10
    301 2 20 new 10 1
",
    );
    log.append(last);
    log.append(
        "
    320 1  0 switch 0 10
    330 1 10 entry 0
    430 1 10 exit 0 48
    440 1 10 switch 10 0 ends
    500 2 20 waking 99 2
",
    );
    log.extracted()
}

#[test]
fn an_id_can_be_another_tasks_before_the_last_switch_of_the_one_before() {
    for last in ["", "310 0 10 switch 10 0 ends"] {
        let recording = given_out_again(last);
        let vcpus = recording.tasks.iter().filter(|task| task.vcpu.is_some());
        let lives: Vec<_> = vcpus.map(|task| (begins(task), ends_us(task))).collect();
        let expected = [(None, Some(300)), (Some((300, true)), Some(440))];
        assert_eq!(lives, expected, "{last}");
    }
}
