//! CPUs that run out of tasks while one waits elsewhere.

use common::Log;
use common::kinds::{switch, wakeup};
use stealtime_events::{Kind, Tid};
use stealtime_replay::NewIdle;

use crate::common;

const MS: u64 = 1_000_000;
/// Task 5 has not run for long then.
const LATER: u64 = 3 * MS;

fn moves(tid: i32, dest_cpu: u32) -> Kind {
    Kind::SchedMigrateTask {
        tid: Tid(tid),
        prio: 120,
        orig_cpu: 1 - dest_cpu,
        dest_cpu,
    }
}

/// Task 5 has run on CPU 0 and waits behind task 6 on CPU 1, while task 7 runs on CPU 0. Then come these
/// events: their times, CPUs and kinds.
fn found(events: &[(u64, u16, Kind)]) -> (u64, u64) {
    let mut log = Log::default();
    log.add(0, 0, 0, switch(0, 5, 0));
    log.add(MS, 0, 5, switch(5, 7, 1));
    log.add(MS, 1, 0, switch(0, 6, 0));
    log.add(MS + 1, 1, 6, wakeup(5, 1));
    for &(time_ns, cpu, kind) in events {
        log.add(time_ns, cpu, 7 - i32::from(cpu), kind);
    }
    let NewIdle { pulled, skipped } = log.extracted().newidle;
    (pulled, skipped)
}

#[test]
fn a_cpu_that_looks_runs_what_it_took() {
    let takes = (LATER, 0, moves(5, 0));
    assert_eq!(found(&[takes, (LATER + 1, 0, switch(7, 5, 1))]), (1, 0));
    assert_eq!(found(&[(LATER, 0, switch(7, 0, 1))]), (0, 1));
    // It lost the task again, and goes idle.
    let loses = (LATER + 1, 1, moves(5, 1));
    assert_eq!(
        found(&[takes, loses, (LATER + 2, 0, switch(7, 0, 1))]),
        (0, 0)
    );
    // A task comes that was not seen to wait.
    assert_eq!(found(&[(LATER, 0, switch(7, 8, 1))]), (0, 0));
}

#[test]
fn a_cpu_with_tasks_does_not_look_for_more() {
    let events = [
        (2 * MS, 0, wakeup(8, 0)),
        (LATER, 0, moves(5, 0)),
        (LATER + 1, 1, moves(8, 1)),
        (LATER + 2, 0, switch(7, 5, 1)),
    ];
    assert_eq!(found(&events), (0, 0));
}

/// A task that has just run stays where it is. Where a CPU takes one nevertheless, the others would not show
/// how often it looks.
#[test]
fn what_is_not_sure_to_be_found_does_not_count() {
    let soon = MS + 100_000;
    let events = [(soon, 0, moves(5, 0)), (soon + 1, 0, switch(7, 5, 1))];
    assert_eq!(found(&events), (0, 0));
}

#[test]
fn after_a_loss_of_events_no_task_is_known_to_wait() {
    let lost = (2 * MS, 0, Kind::Lost { count: 1 });
    assert_eq!(found(&[lost, (LATER, 0, switch(7, 0, 1))]), (0, 0));
}
