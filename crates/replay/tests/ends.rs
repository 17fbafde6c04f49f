//! What tasks do at the end of a recording, and which tasks it has.

use std::collections::BTreeMap;

use common::Log;
use common::kinds::{switch, waking};
use common::text::task;
use stealtime_analysis::{Analysis, Options};
use stealtime_events::{ExitReason, Kind, Tid, VcpuId};
use stealtime_replay::{Extractor, Recording, Unseen};
use stealtime_simulator::script::{Spent, Step, Then, Until};

use crate::common;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const HLT: u32 = 12;
const PAUSE: u32 = 40;
const EXITED: u32 = 0x10;

/// Tasks, each on the CPU of its number.
#[derive(Clone, Copy)]
struct Life {
    cpu: u16,
    /// It is a vCPU.
    enters: bool,
    begins_ns: u64,
    /// Exits after 50 ms from its begin, and is in its guest again 10 ms later.
    exits: Option<u32>,
    /// Sleeps meanwhile, or is gone with this state.
    leaves: Option<u32>,
}

impl Life {
    fn tid(self) -> i32 {
        10 + i32::from(self.cpu)
    }

    fn add(self, log: &mut Log) {
        let (cpu, tid, begin) = (self.cpu, self.tid(), self.begins_ns);
        let vcpu = VcpuId(cpu.into());
        if begin > 0 {
            let (parent, child) = (Tid(1), Tid(tid));
            log.add(begin, cpu, 0, Kind::SchedProcessFork { parent, child });
        }
        log.add(begin + US, cpu, 0, switch(0, tid, 0));
        if self.enters {
            log.add(begin + 2 * US, cpu, tid, Kind::KvmEntry { vcpu });
        }
        if let Some(code) = self.exits {
            let exit = Kind::KvmExit {
                reason: ExitReason::vmx(code),
                vcpu,
                intr_vector: None,
                info1: 0,
            };
            log.add(begin + 50 * MS, cpu, tid, exit);
        }
        if let Some(state) = self.leaves {
            log.add(begin + 50 * MS + US, cpu, tid, switch(tid, 0, state));
            if state == EXITED {
                return;
            }
            log.add(begin + 60 * MS, cpu, 0, switch(0, tid, 0));
        }
        if self.enters {
            log.add(begin + 60 * MS + US, cpu, tid, Kind::KvmEntry { vcpu });
        }
    }
}

const LIFE: Life = Life {
    cpu: 0,
    enters: true,
    begins_ns: 0,
    exits: None,
    leaves: None,
};

/// Tasks with these lives, from 0 to 100 ms.
fn lived(lives: &[Life]) -> Log {
    let mut log = Log::default();
    // Another CPU is there all the time.
    log.add(0, 30, 0, waking(99, 0));
    for (cpu, life) in (0..).zip(lives) {
        Life { cpu, ..*life }.add(&mut log);
    }
    log.add(100 * MS, 30, 0, waking(99, 0));
    log.events.sort_by_key(|event| event.time_ns);
    log
}

fn then(life: Life) -> Then {
    let recording = lived(&[life]).extracted();
    let task = task(&recording, 10);
    assert_eq!(task.vcpu.is_some(), life.enters);
    assert_eq!(task.begins.is_some(), life.begins_ns > 0);
    assert_eq!(task.ends_ns.is_some(), life.leaves == Some(EXITED));
    task.then
}

#[test]
fn vcpus_go_on_where_the_recording_ends_and_others_do_not() {
    let halts = Life {
        exits: Some(HLT),
        leaves: Some(1),
        ..LIFE
    };
    let spins = Life {
        exits: Some(PAUSE),
        ..LIFE
    };
    let dies = Life {
        leaves: Some(EXITED),
        ..LIFE
    };
    let thread = |life| Life {
        enters: false,
        exits: None,
        ..life
    };
    let later = |life| Life {
        begins_ns: 20 * MS,
        ..life
    };
    // One that spins does so again; one that never waits computes.
    let of_vcpus = [halts, spins, LIFE, dies].map(then);
    assert_eq!(
        of_vcpus,
        [Then::Repeat, Then::Repeat, Then::Compute, Then::End]
    );
    let of_threads = [halts, LIFE, dies].map(thread).map(then);
    assert_eq!(of_threads, [Then::End; 3]);
    // What a vCPU does that has begun in the middle may be its begin alone.
    let of_later = [halts, spins, LIFE].map(later).map(then);
    assert_eq!(of_later, [Then::End, Then::Compute, Then::Compute]);
}

fn named(log: &mut Log, tid: i32, process: i32, name: &str) {
    let name = log.names.add(name);
    let (tid, process) = (Tid(tid), Tid(process));
    log.add(0, 0, 0, Kind::Task { tid, process, name });
    let last = log.events.len() - 1;
    log.events[..=last].rotate_right(1);
}

#[test]
fn threads_that_only_have_a_name_are_no_tasks() {
    let mut log = lived(&[LIFE, LIFE]);
    named(&mut log, 10, 10, "CPU 0/KVM");
    named(&mut log, 70, 69, "idler");
    let recording = log.extracted();
    let idler = Unseen {
        tid: 70,
        process: 69,
        name: "idler".to_owned(),
    };
    assert_eq!(recording.unseen, [idler]);
    let names = recording.tasks.iter();
    let names: Vec<(i32, &str)> = names.map(|task| (task.tid, task.name.as_str())).collect();
    assert_eq!(names, [(10, "CPU 0/KVM"), (11, "")]);
    // Both of them ran.
    assert!(recording.never_ran.is_empty(), "{:?}", recording.never_ran);
    // Each CPU has its latencies, also if there are none.
    let cpus = recording.cpus as usize;
    let without = &recording.without_stalls;
    assert_eq!((without.late.len(), without.tick_late.len()), (cpus, cpus));
}

#[test]
fn a_thread_works_for_the_vm_that_the_host_states() {
    let thread = Life {
        enters: false,
        ..LIFE
    };
    let log = lived(&[LIFE, thread]);
    let mut analysis = Analysis::new(Options::default());
    analysis.events(&log.events, &log.names);
    let answers = analysis.finish(&log.names);
    let vm = |threads: BTreeMap<i32, usize>| {
        let mut extractor = Extractor::new(&answers);
        extractor.set_vmm_threads(threads);
        extractor.events(&log.events, &log.names);
        task(&extractor.finish(), 11).vm
    };
    assert_eq!(vm([(11, 0)].into()), Some(0));
    assert_eq!(vm(BTreeMap::new()), None);
}

/// The steps of a task, without the points at which it wakes others.
fn steps(recording: &Recording, tid: i32) -> Vec<Step> {
    let steps = task(recording, tid).steps.iter().copied();
    steps
        .filter(|step| !matches!(step, Step::Reach(_)))
        .collect()
}

const fn ran(ms: u64) -> Step {
    Step::Run {
        ns: ms * MS,
        spent: Spent::Host,
    }
}

const fn sleeps_to(ms: u64) -> Step {
    Step::Sleep(Until::Time(ms * MS))
}

/// Threads 10 and 11 run on CPUs 0 and 1 from the begin on.
fn two_run() -> Log {
    let mut log = Log::default();
    log.add(0, 0, 0, switch(0, 10, 0));
    log.add(0, 1, 0, switch(0, 11, 0));
    log.add(30 * MS, 0, 10, waking(99, 0));
    log
}

#[test]
fn a_loss_hides_what_the_tasks_of_its_cpu_do_until_they_are_seen() {
    let mut log = two_run();
    log.add(50 * MS, 0, 10, Kind::Lost { count: 1 });
    log.add(60 * MS, 0, 10, waking(99, 0));
    log.add(100 * MS, 1, 11, waking(99, 0));
    let recording = log.extracted();
    assert_eq!(steps(&recording, 10), [ran(30), sleeps_to(60), ran(40)]);
    assert_eq!(steps(&recording, 11), [ran(100)]);
}

#[test]
fn a_task_that_is_seen_elsewhere_has_left_its_cpu() {
    let mut log = two_run();
    log.add(40 * MS, 1, 11, switch(11, 0, 1));
    log.add(50 * MS, 1, 0, switch(0, 10, 0));
    log.add(70 * MS, 0, 0, waking(99, 0));
    log.add(100 * MS, 1, 10, waking(99, 0));
    let recording = log.extracted();
    assert_eq!(recording.resolved.hidden_switches, 0);
    let expected = [ran(30), sleeps_to(50), Step::Move(1), ran(50)];
    assert_eq!(steps(&recording, 10), expected);
}
