//! VMs with demand that comes with time, on hosts that have lost VMs.

use common::made::{of_tasks, run, thread, vcpu_task, wait};
use stealtime_replay::{Counted, Counts, RecordedTask, Recording};
use stealtime_simulator::script::{Edge, Step, Then, Until};

use crate::common;

const MS: u64 = 1_000_000;
const TIMER: Until = Until::Armed { ns: MS, exit_us: 0 };

/// What a vCPU does.
#[derive(Clone, Copy)]
struct Served {
    /// How often it waits, in each 3 ms, to compute for 2 ms then.
    turns: u64,
    /// For how long it waits, in ns.
    wait_ns: u64,
    /// How long it takes from sleep to computing, in ns, where it did not poll: in each third turn.
    slept_ns: u32,
}

const USUAL: Served = Served {
    turns: 10,
    wait_ns: MS,
    slept_ns: 10_000,
};

/// The vCPU 0 of VM 0. It computes for 6 ms in the last turn and waits again at 40 ms.
fn serves(what: Served, end: Until) -> RecordedTask {
    let (mut steps, mut waits) = (Vec::new(), Vec::new());
    for turn in 0..what.turns {
        let began_ns = turn * 3 * MS;
        waits.push(wait(steps.len() as u32, began_ns, began_ns + what.wait_ns));
        let slept_ns = match turn % 3 {
            0 => what.slept_ns,
            _ => 0,
        };
        steps.extend([Step::Halt(end), Step::Slept(slept_ns), run(2 * MS)]);
    }
    steps.extend([run(2 * MS), run(2 * MS)]);
    waits.push(wait(steps.len() as u32, 40 * MS, 40 * MS + what.wait_ns));
    steps.push(Step::Halt(end));
    RecordedTask {
        then: Then::Repeat,
        waits: waits.into(),
        ..vcpu_task(0, (0, 0), steps)
    }
}

/// The recording of these tasks and of vCPUs of VMs 1 and 3 that compute.
fn among(mut tasks: Vec<RecordedTask>) -> Recording {
    let busy = |tid: i32| vcpu_task(tid, (tid as usize, 0), vec![run(MS)]);
    tasks.extend([1, 3].map(busy));
    of_tasks(tasks, 41 * MS)
}

/// The recording without these VMs.
fn without(recording: &Recording, vms: &[usize]) -> Recording {
    let mut counts = Counts::default();
    for &vm in vms {
        counts.set(vm, 0);
    }
    Counted::new(recording, 4, &counts, 1).recording
}

/// Steps that were added to the first task's: halts with the time of the recording, what its end takes, and
/// the rest at the end.
fn added(recording: &Recording) -> Vec<Step> {
    let steps = &recording.tasks[0].steps;
    let is_sooner = |step: Option<&Step>| matches!(step, Some(Step::Halt(Until::Sooner { .. })));
    let is_added = |&(index, step): &(usize, &Step)| {
        let follows = index > 0 && is_sooner(steps.get(index - 1));
        follows || is_sooner(Some(step)) || matches!(step, Step::Sleep(Until::Rest { .. }))
    };
    let added = steps.iter().enumerate().filter(is_added);
    added.map(|(_, step)| *step).collect()
}

const fn sooner(ms: u64) -> Step {
    Step::Halt(Until::Sooner {
        time_ns: ms * MS,
        after_us: 1_000,
    })
}

/// Of the time that is left with the first seed.
const REST: Step = Step::Sleep(Until::Rest { permille: 667 });

#[test]
fn a_server_with_more_cpu_time_halts_between_requests_and_rests_when_it_is_through() {
    let halts = |ms| [sooner(ms), Step::Slept(10_000)];
    let fewer = without(&among(vec![serves(USUAL, TIMER)]), &[1]);
    assert_eq!(
        added(&fewer),
        [&halts(32)[..], &halts(36), &[REST]].concat()
    );
    // It waits for others, or does not begin again.
    let edges = without(&among(vec![serves(USUAL, Until::Edge(Edge(0)))]), &[1]);
    assert_eq!(added(&edges), []);
    let once = RecordedTask {
        then: Then::End,
        ..serves(USUAL, TIMER)
    };
    let once = without(&among(vec![once]), &[1]);
    assert_eq!(added(&once), [halts(32), halts(36)].concat());
}

#[test]
fn too_few_waits_or_none_for_a_time_show_nothing_usual() {
    let halts = |served| added(&without(&among(vec![serves(served, TIMER)]), &[1])).len() / 2;
    let waits = |turns| Served { turns, ..USUAL };
    // There is one more at the end.
    assert_eq!([5, 6, 7, 8].map(waits).map(halts), [0, 0, 2, 2]);
    let no_time = Served {
        wait_ns: 0,
        ..USUAL
    };
    assert_eq!(halts(no_time), 0);
}

#[test]
fn losing_one_vm_after_another_halts_as_losing_both_does() {
    let recording = among(vec![serves(USUAL, TIMER)]);
    let both = without(&recording, &[1, 3]);
    let again = without(&without(&recording, &[1]), &[3]);
    assert_eq!(added(&both).len(), 5);
    for (one, other) in both.tasks.iter().zip(&again.tasks) {
        assert_eq!((&one.steps, &one.waits), (&other.steps, &other.waits));
    }
}

/// What comes with time comes when it did. A VM of which no vCPU waits is not known to have such demand.
#[test]
fn timers_of_threads_are_those_of_the_recording_if_their_vm_has_demand_with_time() {
    let sleeps = |tid, vm| RecordedTask {
        vm: Some(vm),
        waits: [wait(1, 4 * MS, 5 * MS)].into(),
        ..thread(tid, vec![run(MS), Step::Sleep(TIMER), run(MS)])
    };
    let computes = RecordedTask {
        then: Then::Compute,
        ..vcpu_task(2, (2, 0), vec![run(30 * MS)])
    };
    let tasks = vec![serves(USUAL, TIMER), computes, sleeps(4, 0), sleeps(5, 2)];
    let fewer = without(&among(tasks), &[1]);
    let end = |tid| {
        let task = fewer.tasks.iter().find(|task| task.tid == tid);
        task.expect("a thread").steps[1]
    };
    assert_eq!(end(4), Step::Sleep(Until::Time(5 * MS)));
    assert_eq!(end(5), Step::Sleep(TIMER));
}
