//! Which thread is which vCPU, from the answers of the same recording.

use std::collections::{BTreeSet, HashMap};

use stealtime_analysis::{Answers, shown_vm};
use stealtime_events::{Tid, VcpuId};

/// A VM.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) name: String,
    /// The name of its track: with a `?` where its threads were guessed.
    pub(super) shown: String,
    /// The VMM's process, where it is known and of this VM alone.
    pub(super) pid: Option<i32>,
}

/// A vCPU's thread.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) tid: Tid,
    /// The VM's place in [`Roster::vms`].
    pub(super) vm: u32,
    pub(super) vcpu: VcpuId,
    pub(super) task: String,
    /// The track's name: `vCPU 0 (CPU 0/KVM, tid 357)`.
    pub(super) label: String,
    /// The name of its slices on a host CPU's track: `vm-hb vCPU 0`.
    pub(super) running: String,
    /// Whether its polling window is above 0 before the window's first change.
    pub(super) polls_at_first: bool,
}

impl Thread {
    /// Its place among the VM's tracks.
    pub(super) fn rank(&self) -> u32 {
        self.vcpu.0.min(i32::MAX.cast_unsigned())
    }
}

/// The rows of vCPU threads with the same id, one after the other.
#[derive(Debug, Default)]
struct Rows {
    list: Vec<u32>,
    /// Threads with this id that have shown.
    claimed: usize,
}

/// VMs and vCPUs, each with a place that its track's id is made of.
#[derive(Debug)]
pub(super) struct Roster {
    pub(super) vms: Vec<Machine>,
    pub(super) threads: Vec<Thread>,
    by_tid: HashMap<Tid, Rows>,
}

impl Roster {
    /// Of these answers, in their order.
    pub(super) fn new(answers: &Answers) -> Self {
        let mut roster = Self {
            vms: Vec::new(),
            threads: Vec::new(),
            by_tid: HashMap::new(),
        };
        for vcpu in &answers.vcpus {
            let vm = roster.vm(&vcpu.vm, answers);
            let number = if vcpu.vcpu == VcpuId::UNKNOWN.0 {
                "?".to_owned()
            } else {
                vcpu.vcpu.to_string()
            };
            let place = u32::try_from(roster.threads.len()).unwrap_or(u32::MAX);
            let rows = roster.by_tid.entry(Tid(vcpu.tid)).or_default();
            rows.list.push(place);
            roster.threads.push(Thread {
                tid: Tid(vcpu.tid),
                vm,
                vcpu: VcpuId(vcpu.vcpu),
                task: vcpu.task.clone(),
                label: format!("vCPU {number} ({}, tid {})", vcpu.task, vcpu.tid),
                polls_at_first: vcpu.polls_at_first,
                running: format!("{} vCPU {number}", shown_vm(&vcpu.vm, vcpu.vm_guessed)),
            });
        }
        let mut pids = BTreeSet::new();
        for vm in &mut roster.vms {
            vm.pid = vm.pid.filter(|pid| pids.insert(*pid));
        }
        roster
    }

    fn vm(&mut self, name: &str, answers: &Answers) -> u32 {
        let known = self.vms.iter().position(|vm| vm.name == name);
        let place = known.unwrap_or_else(|| {
            let found = answers.vms.iter().find(|vm| vm.vm == name);
            let guessed = found.is_some_and(|vm| vm.guessed);
            self.vms.push(Machine {
                name: name.to_owned(),
                shown: shown_vm(name, guessed).into_owned(),
                pid: found.and_then(|vm| vm.pid),
            });
            self.vms.len() - 1
        });
        u32::try_from(place).unwrap_or(u32::MAX)
    }

    /// The row of the vCPU that the thread with this id runs.
    pub(super) fn find(&self, tid: Tid) -> Option<u32> {
        let rows = self.by_tid.get(&tid)?;
        let index = rows.claimed.saturating_sub(1).min(rows.list.len() - 1);
        rows.list.get(index).copied()
    }

    /// The row of a vCPU thread that shows. Where an id is given out again, the answers have a row
    /// for each thread.
    pub(super) fn claim(&mut self, tid: Tid) -> Option<u32> {
        self.by_tid.get_mut(&tid)?.claimed += 1;
        self.find(tid)
    }

    /// A thread by its place.
    pub(super) fn thread(&self, place: u32) -> Option<&Thread> {
        self.threads.get(place as usize)
    }

    /// A VM by its place.
    pub(super) fn machine(&self, place: u32) -> Option<&Machine> {
        self.vms.get(place as usize)
    }

    /// The vCPU of the same VM as `sender` that has this APIC id. KVM gives a vCPU its number as its
    /// first APIC id.
    pub(super) fn by_apic(&self, sender: u32, apicid: u32) -> Option<u32> {
        let vm = self.thread(sender)?.vm;
        let found = self.threads.iter().position(|thread| {
            thread.vm == vm && thread.vcpu.0 == apicid && thread.vcpu != VcpuId::UNKNOWN
        });
        found.and_then(|place| u32::try_from(place).ok())
    }
}

/// The kernel's release in a `uname`: its first word that looks like a version.
pub(super) fn release(uname: &str) -> Option<&str> {
    uname
        .split_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_found_in_a_uname() {
        let uname = "Linux 10.0-host 7.2.13+deb14-amd64 #1 SMP x86_64";
        assert_eq!(
            release("Linux host 7.2.13+deb14-amd64 #1"),
            Some("7.2.13+deb14-amd64")
        );
        assert_eq!(release("6.1.0"), Some("6.1.0"));
        assert_eq!(release("Linux"), None);
        assert_eq!(release(uname), Some("10.0-host"));
    }
}
