//! Which VM a vCPU is of, and what a CPU did while a vCPU waited for it.

use std::collections::{BTreeMap, BTreeSet};

use stealtime_events::{NameId, Names, Tid};
use stealtime_track::names::{is_kernel_name, is_vmm_name, served_process, vcpu_in_name};
use stealtime_track::{Cause, Thread, ThreadIndex, Tracker, VcpuIndex};

use crate::meter::Meter;

/// `kthreadd`, which all threads of the kernel descend from.
const KTHREADD: i32 = 2;

/// A VM that the host knows by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownVm {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: i32,
    /// Ids of its threads, vCPUs and others.
    pub threads: Vec<i32>,
}

/// What a CPU did while a vCPU waited for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Occupant {
    /// A name of [`crate::Ready`].
    pub(crate) cause: &'static str,
    /// The task, the VM or the softirq; empty for causes without a name.
    pub(crate) name: String,
}

/// What makes vCPUs one VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VmKey {
    /// The name in the recording.
    Recorded(NameId),
    /// Their process.
    Process(i32),
    /// One of them interrupts another.
    Linked(VcpuIndex),
}

impl VmKey {
    /// The VM's process.
    pub(crate) const fn process(self) -> Option<i32> {
        match self {
            Self::Process(pid) => Some(pid),
            _ => None,
        }
    }
}

/// Names of VMs by process, and processes by thread.
#[derive(Debug, Default)]
pub(crate) struct KnownVms {
    names: BTreeMap<i32, String>,
    processes: BTreeMap<i32, i32>,
    /// Processes with vCPUs, as of the latest sample.
    pub(crate) running: BTreeSet<i32>,
}

impl KnownVms {
    /// What the host knows of its VMs. One that has ended since the latest sample is in the next one yet.
    pub(crate) fn set(&mut self, vms: &[KnownVm]) {
        let running = &self.running;
        self.names.retain(|process, _| running.contains(process));
        self.processes
            .retain(|_, process| running.contains(process));
        for vm in vms {
            self.names.insert(vm.pid, vm.name.clone());
            let threads = vm.threads.iter().map(|&tid| (tid, vm.pid));
            self.processes.extend(threads);
        }
    }

    /// Whether the process has a name.
    pub(crate) fn has_name(&self, process: i32) -> bool {
        self.names.contains_key(&process)
    }

    /// The VM of a vCPU.
    pub(crate) fn key(&self, tracker: &Tracker<Meter>, vcpu: VcpuIndex) -> VmKey {
        if let Some(name) = tracker.vcpu(vcpu).recorded_vm() {
            return VmKey::Recorded(name);
        }
        let thread = tracker.thread_of(vcpu);
        if thread.process.0 > 0 {
            return VmKey::Process(thread.process.0);
        }
        match self.processes.get(&thread.tid.0) {
            Some(&process) => VmKey::Process(process),
            None => VmKey::Linked(tracker.links().root(vcpu)),
        }
    }

    /// Whether a thread with the name of a vCPU is one. KVM's events were seen in its context, or the host
    /// has it as a thread of a VM. A kernel without entries and exits traces no guest that only computes.
    pub(crate) fn is_shown(&self, tracker: &Tracker<Meter>, vcpu: VcpuIndex) -> bool {
        let state = tracker.vcpu(vcpu);
        let tid = tracker.thread_of(vcpu).tid.0;
        state.is_seen() || state.is_present() && self.processes.contains_key(&tid)
    }

    /// The vCPU that a task runs.
    fn vcpu_of(&self, thread: &Thread, tracker: &Tracker<Meter>) -> Option<VcpuIndex> {
        thread.vcpu.filter(|&vcpu| self.is_shown(tracker, vcpu))
    }

    /// The name of a VM; `None` for one without any.
    pub(crate) fn name(
        &self,
        key: VmKey,
        tracker: &Tracker<Meter>,
        names: &dyn Names,
    ) -> Option<String> {
        match key {
            VmKey::Recorded(name) => Some(names.name(name).to_owned()),
            VmKey::Process(pid) => {
                let known = self.names.get(&pid).cloned();
                let name = known.or_else(|| leader_name(pid, tracker, names));
                Some(name.unwrap_or_else(|| format!("pid{pid}")))
            }
            VmKey::Linked(_) => None,
        }
    }

    /// What a CPU did while a vCPU of the VM `waiting` waited for it: a name of [`crate::Ready`].
    pub(crate) fn cause(
        &self,
        cause: Cause,
        waiting: VmKey,
        tracker: &Tracker<Meter>,
        names: &dyn Names,
    ) -> &'static str {
        if cause.softirq_name().is_some() {
            return "irq";
        }
        match (cause, cause.thread()) {
            (Cause::HARDIRQ, _) => "irq",
            (Cause::THROTTLED, _) => "throttled",
            (Cause::OTHERS, _) => "host_task",
            (_, Some(ThreadIndex::IDLE)) => "idle",
            (_, Some(thread)) => self.task(tracker.threads().get(thread), waiting, tracker, names),
            (_, None) => "unknown",
        }
    }

    /// The same with the name of the task, the VM or the softirq.
    pub(crate) fn occupant(
        &self,
        cause: Cause,
        waiting: VmKey,
        tracker: &Tracker<Meter>,
        names: &dyn Names,
    ) -> Occupant {
        let name = match (cause, cause.softirq_name(), cause.thread()) {
            (_, Some(softirq), _) => softirq.to_owned(),
            (Cause::HARDIRQ, ..) => "hardirq".to_owned(),
            (Cause::OTHERS, ..) => "(others)".to_owned(),
            (Cause::THROTTLED, ..) | (_, _, None | Some(ThreadIndex::IDLE)) => String::new(),
            (_, _, Some(thread)) => {
                let thread = tracker.threads().get(thread);
                let vm = self
                    .vcpu_of(thread, tracker)
                    .map(|vcpu| self.key(tracker, vcpu));
                let vm = vm.filter(|vm| *vm != waiting);
                let name = vm.and_then(|vm| self.name(vm, tracker, names));
                name.unwrap_or_else(|| shown_name(thread, names))
            }
        };
        Occupant {
            cause: self.cause(cause, waiting, tracker, names),
            name,
        }
    }

    fn task(
        &self,
        thread: &Thread,
        waiting: VmKey,
        tracker: &Tracker<Meter>,
        names: &dyn Names,
    ) -> &'static str {
        if let Some(vcpu) = self.vcpu_of(thread, tracker) {
            return match self.key(tracker, vcpu) == waiting {
                true => "vcpu_same_vm",
                false => "vcpu_other_vm",
            };
        }
        let name = names.name(thread.name);
        let serves = |pid: i32| self.running.contains(&pid);
        let is_of_vmm = is_vmm_name(name)
            || serves(thread.process.0)
            || served_process(name).is_some_and(|pid| serves(pid.0))
            || self.processes.contains_key(&thread.tid.0);
        if is_of_vmm {
            "vmm_thread"
        } else if thread.parent.0 == KTHREADD || is_kernel_name(name) {
            "kernel_thread"
        } else {
            "host_task"
        }
    }
}

/// The name of a process that has one of its own (QEMU's `-name web,process=web`).
fn leader_name(pid: i32, tracker: &Tracker<Meter>, names: &dyn Names) -> Option<String> {
    let leader = tracker.threads().with_tid(Tid(pid))?;
    let name = names.name(leader.name);
    let says_nothing = is_vmm_name(name) || is_kernel_name(name) || vcpu_in_name(name).is_some();
    (!name.is_empty() && leader.vcpu.is_none() && !says_nothing).then(|| name.to_owned())
}

/// A task's name, or its id where it has none.
fn shown_name(thread: &Thread, names: &dyn Names) -> String {
    match names.name(thread.name) {
        "" => format!("tid {}", thread.tid.0),
        name => name.to_owned(),
    }
}
