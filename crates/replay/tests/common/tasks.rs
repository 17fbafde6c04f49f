//! Recordings of tasks that a test makes.

use std::sync::Arc;

use stealtime_analysis::Answers;
use stealtime_replay::{RecordedTask, Recording};
use stealtime_simulator::NameList;
use stealtime_simulator::script::{Late, Spent, Step, Then};

/// A vCPU that begins on the CPU of its thread id.
pub fn vcpu_task(tid: i32, vcpu: (usize, u32), steps: Vec<Step>) -> RecordedTask {
    RecordedTask {
        vcpu: Some(vcpu),
        vm: Some(vcpu.0),
        ..thread(tid, steps)
    }
}

/// A task of the host on the CPU of its thread id.
pub fn thread(tid: i32, steps: Vec<Step>) -> RecordedTask {
    RecordedTask {
        tid,
        name: format!("task {tid}"),
        vcpu: None,
        vm: None,
        nice: 0,
        ran_on: vec![tid as u16],
        first_cpu: tid as u16,
        begins: None,
        ends_ns: None,
        switches_in: 1,
        moves: Arc::default(),
        exits: Vec::new(),
        then: Then::End,
        alarm_ns: 0,
        ticks: None,
        waits: Arc::default(),
        stalls: Arc::default(),
        called: Late::default(),
        steps: Arc::from(steps),
    }
}

/// Their recording, with a CPU for each thread id, and what is answered of an empty one.
pub fn of_tasks(tasks: Vec<RecordedTask>, span_ns: u64) -> (Recording, Answers) {
    let (mut recording, answers) = super::extracted(&[], &NameList::default());
    recording.span_ns = span_ns;
    recording.cpus = tasks
        .iter()
        .map(|task| task.tid as u32 + 1)
        .max()
        .unwrap_or(1);
    recording.tasks = tasks;
    (recording, answers)
}

/// Computing in the guest.
pub const fn guest(ns: u64) -> Step {
    let spent = Spent::Guest;
    Step::Run { ns, spent }
}

/// Computing in an exit for this reason.
pub const fn exit(ns: u64, reason: u32) -> Step {
    let spent = Spent::Exit(reason);
    Step::Run { ns, spent }
}
