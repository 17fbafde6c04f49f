//! Event export: a replay's events with the thread ids and times of the recording.

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
/// Entries and exits of vCPUs are included. Where a vCPU is preempted in its guest, the exit before and the
/// entry after are added, at the times of the switches.
///
/// # Errors
///
/// The simulator's.
pub fn export_events(
    recording: &Recording,
    config: &Config,
    first_ns: u64,
    sink: &mut dyn Sink,
) -> Result<(), Fault> {
    let mut config = config.clone();
    // The simulator assigns thread ids to scripts in a run.
    let scripts = run(&config, &mut ())?.scripts;
    config.scripts.tell = true;
    // The recording may lack processes: a VM's vCPUs are put into one, so that the analysis of the export
    // takes them for one VM.
    let mut first = BTreeMap::new();
    for task in &recording.tasks {
        if let Some((vm, _)) = task.vcpu {
            first.entry(vm).or_insert(Tid(task.tid));
        }
    }
    let threads = recording.tasks.iter().zip(&scripts);
    let threads = threads.map(|(task, script)| {
        let process = task.vcpu.and_then(|(vm, _)| first.get(&vm).copied());
        (script.tid, Thread::new(task, process))
    });
    let mut exporter = Exporter {
        threads: threads.collect(),
        first_ns,
        sink,
    };
    run(&config, &mut exporter).map(|_| ())
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
    fn new(task: &RecordedTask, process: Option<Tid>) -> Self {
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

struct Exporter<'s> {
    threads: BTreeMap<Tid, Thread>,
    first_ns: u64,
    sink: &'s mut dyn Sink,
}

impl Exporter<'_> {
    fn recorded_tid(&self, tid: Tid) -> Tid {
        self.threads.get(&tid).map_or(tid, |thread| thread.tid)
    }

    /// An entry or exit at a switch.
    fn add_at_switch(&mut self, event: &Event, thread: Tid, enters: bool) {
        // Other threads are no vCPUs, or outside of their guests already.
        let thread = self.threads.get(&thread);
        if let Some(thread) = thread.filter(|thread| thread.in_guest) {
            let switch = thread.at_switch(event, enters);
            self.sink.event(&switch);
        }
    }
}

impl Thread {
    fn at_switch(&self, event: &Event, enters: bool) -> Event {
        let vcpu = self.vcpu.unwrap_or(VcpuId::UNKNOWN);
        let kind = match enters {
            true => Kind::KvmEntry { vcpu },
            false => Kind::KvmExit {
                reason: self.interrupt,
                vcpu,
                intr_vector: None,
                info1: 0,
            },
        };
        Event {
            tid: self.tid,
            kind,
            ..*event
        }
    }
}

impl Sink for Exporter<'_> {
    fn begin(&mut self, names: &NameList, cpus: u32) {
        self.sink.begin(names, cpus);
    }

    fn event(&mut self, event: &Event) {
        let simulated = event.tid;
        let mut event = *event;
        event.time_ns = event.time_ns.saturating_add(self.first_ns);
        event.tid = self.recorded_tid(simulated);
        match &mut event.kind {
            Kind::SchedSwitch {
                prev,
                next,
                prev_state,
                ..
            } => {
                let (leaves, enters) = (*prev, *next);
                let preempted = SwitchOut::from_prev_state(*prev_state).is_runnable();
                (*prev, *next) = (self.recorded_tid(leaves), self.recorded_tid(enters));
                let switch = event;
                if preempted {
                    self.add_at_switch(&switch, leaves, false);
                }
                self.sink.event(&switch);
                self.add_at_switch(&switch, enters, true);
                return;
            }
            Kind::SchedWaking { tid, .. }
            | Kind::SchedWakeup { tid, .. }
            | Kind::SchedWakeupNew { tid, .. }
            | Kind::SchedMigrateTask { tid, .. } => *tid = self.recorded_tid(*tid),
            Kind::Task { tid, process, .. } => {
                if let Some(thread) = self.threads.get(tid) {
                    (*tid, *process) = (thread.tid, thread.process);
                }
            }
            Kind::KvmEntry { vcpu } => {
                if let Some(thread) = self.threads.get_mut(&simulated) {
                    thread.in_guest = true;
                    *vcpu = thread.vcpu.unwrap_or(*vcpu);
                }
            }
            Kind::KvmExit { vcpu, reason, .. } => {
                if let Some(thread) = self.threads.get_mut(&simulated) {
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
