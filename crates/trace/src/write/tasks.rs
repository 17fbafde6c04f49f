//! Names of tasks, their processes, and which of them are vCPUs.

use std::fmt::Write;

use stealtime_events::{NameId, Names, Tid, VcpuId};

use crate::tracefs::{Comm, TidTable, comm_of};

/// Name and process of a task.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    comm: Comm,
    /// The first name, zeros as long as there is none.
    first: Comm,
    process: i32,
    /// Whether the tid is in [`Tasks::order`].
    listed: bool,
    /// Whether an event carries the current name.
    carried: bool,
}

impl Known {
    /// Sets process and name, where these are known.
    fn set(&mut self, process: Tid, name: &str) {
        if process.0 > 0 {
            self.process = process.0;
        }
        let comm = comm_of(name.as_bytes());
        if comm == Comm::default() || comm == self.comm {
            return;
        }
        if self.first == Comm::default() {
            self.first = comm;
        }
        self.comm = comm;
        self.carried = false;
    }
}

/// Names, processes and vCPUs of the tasks so far.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    known: TidTable<Known>,
    /// Tids in the order of their first names.
    order: Vec<i32>,
    /// vCPUs with their threads by VM, in the order of the events.
    guests: Vec<(String, Vec<(VcpuId, Tid)>)>,
}

impl Tasks {
    /// Sets the name and process (0: not known) of a task, from the next event on.
    pub(super) fn named(&mut self, tid: Tid, process: Tid, name: &str) {
        // A trace.dat has no names for idle tasks and none for tids that no kernel gives.
        if let Some(known) = self.known.entry(tid.0) {
            if !known.listed {
                known.listed = true;
                self.order.push(tid.0);
            }
            known.set(process, name);
        }
    }

    /// Adds a thread that runs a vCPU of this VM.
    pub(super) fn vcpu(&mut self, tid: Tid, vm: NameId, vcpu: VcpuId, names: &dyn Names) {
        let vm = names.name(vm).split('\0').next().unwrap_or_default();
        let index = match self.guests.iter().position(|(name, _)| name == vm) {
            Some(index) => index,
            None => {
                self.guests.push((vm.to_owned(), Vec::new()));
                self.guests.len() - 1
            }
        };
        if let Some((_, vcpus)) = self.guests.get_mut(index)
            && !vcpus.contains(&(vcpu, tid))
        {
            vcpus.push((vcpu, tid));
        }
    }

    /// The name that an event carries for a task; the idle task has one for each CPU.
    #[inline]
    pub(super) fn comm(&mut self, tid: i32, cpu: u16) -> Comm {
        if tid == 0 {
            return idle(cpu);
        }
        match self.known.get_mut(tid) {
            Some(known) => {
                known.carried = true;
                known.comm
            }
            None => Comm::default(),
        }
    }

    fn known(&self) -> impl Iterator<Item = (i32, &Known)> {
        let order = self.order.iter();
        order.filter_map(|tid| Some((*tid, self.known.get(*tid)?)))
    }

    /// `saved_cmdlines`: lines `TID NAME`. For a reader these are the names at the beginning. So a later
    /// name is listed only if no event carries it.
    pub(super) fn cmdlines(&self) -> String {
        let mut text = String::new();
        for (tid, known) in self.known() {
            let comm = if known.carried {
                known.first
            } else {
                known.comm
            };
            let end = comm.iter().position(|byte| *byte == 0);
            let name =
                String::from_utf8_lossy(comm.get(..end.unwrap_or(comm.len())).unwrap_or(&[]));
            let name = name.replace(['\n', '\r'], "?");
            if !name.is_empty() {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{tid} {name}");
            }
        }
        text
    }

    /// `saved_tgids`: lines `TID TGID`.
    pub(super) fn tgids(&self) -> String {
        let mut text = String::new();
        for (tid, known) in self.known().filter(|(_, known)| known.process > 0) {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{tid} {}", known.process);
        }
        text
    }

    /// VMs with their vCPUs' threads.
    pub(super) fn guests(&self) -> &[(String, Vec<(VcpuId, Tid)>)] {
        &self.guests
    }
}

/// `swapper/N`.
fn idle(cpu: u16) -> Comm {
    let mut comm = *b"swapper/\0\0\0\0\0\0\0\0";
    let mut digits = [0; 5];
    let mut rest = cpu;
    let mut count = 0;
    for digit in &mut digits {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
        if rest == 0 {
            break;
        }
    }
    let number = digits.iter().take(count).rev();
    for (letter, digit) in comm.iter_mut().skip(8).zip(number) {
        *letter = *digit;
    }
    comm
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NameTable;

    #[test]
    fn the_first_name_is_listed_unless_a_later_one_would_be_lost() {
        let mut tasks = Tasks::default();
        tasks.named(Tid(300), Tid(0), "bash");
        tasks.named(Tid(300), Tid(290), "ls");
        tasks.named(Tid(77), Tid(70), "qemu");
        tasks.named(Tid(77), Tid(0), "CPU 0/KVM");
        tasks.named(Tid(-1), Tid(0), "x");
        tasks.named(Tid(i32::MAX), Tid(0), "x");
        assert_eq!(tasks.comm(77, 0), comm_of(b"CPU 0/KVM"));
        assert_eq!(tasks.comm(-1, 0), Comm::default());
        assert_eq!(tasks.cmdlines(), "300 ls\n77 qemu\n");
        assert_eq!(tasks.tgids(), "300 290\n77 70\n");
    }

    #[test]
    fn each_cpu_has_its_idle_task() {
        for (cpu, name) in [
            (0, "swapper/0"),
            (17, "swapper/17"),
            (65535, "swapper/65535"),
        ] {
            assert_eq!(idle(cpu), comm_of(name.as_bytes()));
        }
    }

    #[test]
    fn vcpus_are_kept_by_vm() {
        let mut names = NameTable::default();
        let (a, b) = (names.intern("a"), names.intern("b"));
        let mut tasks = Tasks::default();
        for (tid, vm, vcpu) in [(5, a, 0), (9, b, 0), (6, a, 1), (5, a, 0)] {
            tasks.vcpu(Tid(tid), vm, VcpuId(vcpu), &names);
        }
        let of_a = vec![(VcpuId(0), Tid(5)), (VcpuId(1), Tid(6))];
        let of_b = vec![(VcpuId(0), Tid(9))];
        assert_eq!(
            tasks.guests(),
            [("a".to_owned(), of_a), ("b".to_owned(), of_b)]
        );
    }
}
