//! A replay's events, told as if the recorded threads had done what happens.

use std::collections::BTreeMap;

use stealtime_events::exit_reason::Class;
use stealtime_events::{Event, ExitReason, Kind, Tid, VcpuId};
use stealtime_simulator::config::Config;
use stealtime_simulator::{Fault, NameList, Sink, run};
use stealtime_track::SwitchOut;

use crate::recording::{RecordedTask, Recording};

/// Replays, and gives every event to `sink` with the thread ids and at the times of the recording,
/// which began at `first_ns`.
///
/// vCPUs' entries and exits are told too. Where the host takes a CPU from a guest, the exit that this
/// takes and the entry afterwards are added, at the times of the switches.
///
/// # Errors
///
/// The simulator's.
pub fn retold(
    recording: &Recording,
    config: &Config,
    first_ns: u64,
    sink: &mut dyn Sink,
) -> Result<(), Fault> {
    let mut config = config.clone();
    // Only a run tells which thread id a script gets.
    let scripts = run(&config, &mut ())?.scripts;
    config.scripts.tell = true;
    // Which process a thread is of is not known: a VM's vCPUs are put into one, so that they are
    // found to be one VM.
    let mut first = BTreeMap::new();
    for task in &recording.tasks {
        if let Some((vm, _)) = task.vcpu {
            first.entry(vm).or_insert(Tid(task.tid));
        }
    }
    let threads = recording.tasks.iter().zip(&scripts);
    let threads = threads.map(|(task, script)| {
        let process = task.vcpu.and_then(|(vm, _)| first.get(&vm).copied());
        (script.tid, Thread::of(task, process))
    });
    let mut retold = Retold {
        threads: threads.collect(),
        first_ns,
        sink,
    };
    run(&config, &mut retold).map(|_| ())
}

/// A recorded thread, in a replay.
struct Thread {
    tid: Tid,
    process: Tid,
    vcpu: Option<VcpuId>,
    /// Its exits, by their numbers.
    exits: BTreeMap<u32, ExitReason>,
    /// What takes it out of the guest when it is preempted.
    interrupt: ExitReason,
    in_guest: bool,
}

impl Thread {
    fn of(task: &RecordedTask, process: Option<Tid>) -> Self {
        let reasons = task.exits.iter().map(|exit| exit.1);
        let exits: BTreeMap<u32, ExitReason> =
            reasons.map(|reason| (reason.code, reason)).collect();
        let mut interrupts = exits.values();
        let interrupt = interrupts.find(|reason| reason.class() == Class::HostInterrupt);
        // EXTERNAL_INTERRUPT
        let interrupt = interrupt.copied().unwrap_or(ExitReason::vmx(1));
        Self {
            tid: Tid(task.tid),
            process: process.unwrap_or(Tid(task.tid)),
            vcpu: task.vcpu.map(|(_, number)| VcpuId(number)),
            exits,
            interrupt,
            in_guest: false,
        }
    }
}

struct Retold<'s> {
    threads: BTreeMap<Tid, Thread>,
    first_ns: u64,
    sink: &'s mut dyn Sink,
}

impl Retold<'_> {
    fn tid_of(&self, tid: Tid) -> Tid {
        self.threads.get(&tid).map_or(tid, |thread| thread.tid)
    }

    /// An entry or exit at a switch.
    fn at_switch(&mut self, event: &Event, thread: Tid, enters: bool) {
        let Some(thread) = self.threads.get(&thread).filter(|thread| thread.in_guest) else {
            return;
        };
        let vcpu = thread.vcpu.unwrap_or(VcpuId::UNKNOWN);
        let kind = match enters {
            true => Kind::KvmEntry { vcpu },
            false => Kind::KvmExit {
                reason: thread.interrupt,
                vcpu,
                intr_vector: None,
                info1: 0,
            },
        };
        let tid = thread.tid;
        self.sink.event(&Event {
            tid,
            kind,
            ..*event
        });
    }
}

impl Sink for Retold<'_> {
    fn begin(&mut self, names: &NameList, cpus: u32) {
        self.sink.begin(names, cpus);
    }

    fn event(&mut self, event: &Event) {
        let by = event.tid;
        let mut event = *event;
        event.time_ns = event.time_ns.saturating_add(self.first_ns);
        event.tid = self.tid_of(by);
        match &mut event.kind {
            Kind::SchedSwitch {
                prev,
                next,
                prev_state,
                ..
            } => {
                let (was, will) = (*prev, *next);
                let preempted = SwitchOut::from_prev_state(*prev_state).is_runnable();
                (*prev, *next) = (self.tid_of(was), self.tid_of(will));
                let switch = event;
                if preempted {
                    self.at_switch(&switch, was, false);
                }
                self.sink.event(&switch);
                self.at_switch(&switch, will, true);
                return;
            }
            Kind::SchedWaking { tid, .. }
            | Kind::SchedWakeup { tid, .. }
            | Kind::SchedWakeupNew { tid, .. }
            | Kind::SchedMigrateTask { tid, .. } => *tid = self.tid_of(*tid),
            Kind::Task { tid, process, .. } => {
                if let Some(thread) = self.threads.get(tid) {
                    (*tid, *process) = (thread.tid, thread.process);
                }
            }
            Kind::KvmEntry { vcpu } => {
                if let Some(thread) = self.threads.get_mut(&by) {
                    thread.in_guest = true;
                    *vcpu = thread.vcpu.unwrap_or(*vcpu);
                }
            }
            Kind::KvmExit { vcpu, reason, .. } => {
                if let Some(thread) = self.threads.get_mut(&by) {
                    thread.in_guest = false;
                    *vcpu = thread.vcpu.unwrap_or(*vcpu);
                    *reason = thread.exits.get(&reason.code).copied().unwrap_or(*reason);
                }
            }
            _ => {}
        }
        self.sink.event(&event);
    }
}
