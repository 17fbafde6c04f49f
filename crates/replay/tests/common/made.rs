//! Recordings that tests make without events.

use std::sync::Arc;

use stealtime_replay::host::{Assumed, as_recorded, knobs};
use stealtime_replay::predict::{Times, replay};
use stealtime_replay::{RecordedTask, Recording, Wait};
use stealtime_simulator::script::{Late, Spent, Step, Then};

use super::Log;

/// Computing in the guest, for so long in ns.
pub const fn run(ns: u64) -> Step {
    let spent = Spent::Guest;
    Step::Run { ns, spent }
}

/// Computing in an exit for this reason.
pub const fn exit(ns: u64, reason: u32) -> Step {
    let spent = Spent::Exit(reason);
    Step::Run { ns, spent }
}

/// A task with these steps, on CPU 0 and on no other one. It is a vCPU if it has a VM's index and a number.
pub fn task(tid: i32, vcpu: Option<(usize, u32)>, steps: &[Step]) -> RecordedTask {
    RecordedTask {
        tid,
        name: format!("task {tid}"),
        vcpu,
        vm: vcpu.map(|vcpu| vcpu.0),
        nice: 0,
        ran_on: vec![0],
        first_cpu: 0,
        begins: None,
        ends_ns: None,
        switches_in: 1,
        moves: Arc::default(),
        exits: Vec::new(),
        then: Then::Repeat,
        alarm_ns: 0,
        ticks: None,
        waits: Arc::default(),
        stalls: Arc::default(),
        called: Late::default(),
        steps: Arc::from(steps),
    }
}

/// A wait at a step, in ns of the recording.
pub const fn wait(step: u32, began_ns: u64, ended_ns: u64) -> Wait {
    Wait {
        step,
        began_ns,
        ended_ns,
        late_us: 0,
        caller: None,
    }
}

/// A recording of so many ns, and these tasks.
pub fn recording(span_ns: u64, cpus: u32, tasks: Vec<RecordedTask>) -> Recording {
    let mut recording = Log::default().extracted();
    recording.span_ns = span_ns;
    recording.cpus = cpus;
    recording.tasks = tasks;
    recording
}

/// A vCPU that ends with its steps, on the CPU of its thread id.
pub fn vcpu_task(tid: i32, vcpu: (usize, u32), steps: Vec<Step>) -> RecordedTask {
    RecordedTask {
        vcpu: Some(vcpu),
        vm: Some(vcpu.0),
        ..thread(tid, steps)
    }
}

/// A task of the host that ends with its steps, on the CPU of its thread id.
pub fn thread(tid: i32, steps: Vec<Step>) -> RecordedTask {
    RecordedTask {
        ran_on: vec![tid as u16],
        first_cpu: tid as u16,
        then: Then::End,
        ..task(tid, None, &steps)
    }
}

/// Their recording, with a CPU for each thread id.
pub fn of_tasks(tasks: Vec<RecordedTask>, span_ns: u64) -> Recording {
    let cpus = tasks.iter().map(|task| task.tid as u32 + 1).max();
    recording(span_ns, cpus.unwrap_or(1), tasks)
}

/// Times of its replay on a host that has what is assumed.
pub fn times(recording: &Recording, assumed: &Assumed) -> Times {
    let config = as_recorded(recording, knobs(recording), assumed, 0);
    replay(recording, &config).expect("it can be replayed")
}
