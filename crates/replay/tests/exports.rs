//! What an export says of threads: those of the recording, with their exits.

use std::collections::{BTreeMap, BTreeSet};

use common::made::{recording, task};
use stealtime_events::{Event, ExitReason, Kind, Tid, VcpuId};
use stealtime_replay::host::{Assumed, as_recorded, knobs};
use stealtime_replay::{RecordedTask, export_events};
use stealtime_simulator::Collected;
use stealtime_simulator::script::{Spent, Step, Until};

use crate::common;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const FIRST_NS: u64 = 7_000 * MS;

/// Of AMD's CPUs: a fault, an interrupt of the host, and a halt. `INTR` is not the first.
const FAULT: u32 = 0x4e;
const INTR: u32 = 0x60;
const HLT: u32 = 0x78;

/// A vCPU that computes, exits, and halts to the next multiple of 10 ms.
fn vcpu(tid: i32, vm: usize, number: u32) -> RecordedTask {
    let mut steps = Vec::new();
    let mut exits = Vec::new();
    for turn in 1..=10 {
        for (ns, code) in [(1_500 * US, FAULT), (250 * US, INTR), (250 * US, HLT)] {
            let spent = Spent::Guest;
            steps.push(Step::Run { ns, spent });
            exits.push((steps.len(), ExitReason::svm(code)));
            let spent = match code {
                INTR => Spent::Interrupt(code),
                HLT => Spent::Halt(code),
                _ => Spent::Exit(code),
            };
            steps.push(Step::Run { ns: 3 * US, spent });
        }
        steps.push(Step::Halt(Until::Time(turn * 10 * MS)));
    }
    RecordedTask {
        exits,
        ..task(tid, Some((vm, number)), &steps)
    }
}

/// Two vCPUs and a thread of one VM and a vCPU of another one, all on one CPU.
fn exported() -> Collected {
    let computes = Step::Run {
        ns: 200 * US,
        spent: Spent::Host,
    };
    let sleeps = Step::Sleep(Until::After(MS));
    let mut thread = task(90, None, &[computes, sleeps].repeat(80));
    thread.vm = Some(0);
    let tasks = vec![vcpu(70, 0, 0), vcpu(73, 0, 1), vcpu(81, 1, 0), thread];
    let recording = recording(100 * MS, 1, tasks);
    let host = as_recorded(&recording, knobs(&recording), &Assumed::default(), 0);
    let mut export = Collected::default();
    export_events(&recording, &host, FIRST_NS, &mut export).expect("a replay");
    export
}

#[test]
fn an_export_has_the_threads_of_the_recording_in_processes_by_vm() {
    let export = exported();
    assert_eq!(export.cpus, 1);
    let processes = export.events.iter().filter_map(|event| match event.kind {
        Kind::Task { tid, process, .. } => Some((tid.0, process.0)),
        _ => None,
    });
    let processes: BTreeMap<i32, i32> = processes.collect();
    let expected = [(70, 70), (73, 70), (81, 81), (90, 90)];
    assert_eq!(processes, BTreeMap::from(expected));
    let known = [0, 70, 73, 81, 90].map(Tid);
    let (mut woken, mut switched) = (BTreeSet::new(), BTreeSet::new());
    for event in &export.events {
        assert!(known.contains(&event.tid), "{event:?}");
        match event.kind {
            Kind::SchedWaking { tid, .. } | Kind::SchedWakeup { tid, .. } => {
                woken.insert(tid);
            }
            Kind::SchedSwitch { prev, next, .. } => switched.extend([prev, next]),
            _ => {}
        }
    }
    assert_eq!(woken, known[1..].iter().copied().collect());
    assert_eq!(switched, known.into());
}

/// A vCPU leaves its guest for what the recorded host's interrupts are, where it is preempted there.
#[test]
fn exits_of_an_export_are_those_of_the_recorded_cpus() {
    let export = exported();
    let mut counts: BTreeMap<(i32, ExitReason), u64> = BTreeMap::new();
    let mut added = 0;
    for pair in export.events.windows(2) {
        let [Event { kind, tid, .. }, next] = pair else {
            continue;
        };
        let number = VcpuId(u32::from(tid.0 == 73));
        match *kind {
            Kind::KvmExit { reason, vcpu, .. } => {
                assert_eq!(vcpu, number, "{pair:?}");
                *counts.entry((tid.0, reason)).or_default() += 1;
                if let Kind::SchedSwitch { prev, .. } = next.kind
                    && next.time_ns == pair[0].time_ns
                    && prev == *tid
                {
                    assert_eq!(reason, ExitReason::svm(INTR), "{pair:?}");
                    added += 1;
                }
            }
            Kind::KvmEntry { vcpu } => assert_eq!(vcpu, number, "{pair:?}"),
            _ => {}
        }
    }
    let [fault, halt, interrupt] = [FAULT, HLT, INTR].map(ExitReason::svm);
    let found: BTreeSet<ExitReason> = counts.keys().map(|key| key.1).collect();
    assert_eq!(found, [fault, halt, interrupt].into());
    assert!(added > 10, "{added}");
    let faults = [70, 73, 81].map(|tid| counts.get(&(tid, fault)).copied());
    assert_eq!(faults, [Some(10); 3]);
}
