//! Names of tasks, their processes, and which of them are vCPUs.

use std::fmt::Write;

use stealtime_events::{NameId, Names, Tid, VcpuId};

use crate::tracefs::{Comm, comm_of};

/// Tids of one leaf of the table.
const LEAF: usize = 256;
/// `PID_MAX_LIMIT` of 64-bit kernels: no tid is as large.
const MAX_TIDS: usize = 1 << 22;

/// What was said of a task.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    comm: Comm,
    first: Comm,
    process: i32,
    /// Something was said at all.
    told: bool,
    /// An event has carried the current name.
    carried: bool,
}

/// What was said of the tasks so far: memory is bounded by the largest possible tid.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    leaves: Vec<Option<Box<[Known; LEAF]>>>,
    /// Tids in the order in which they were told of first.
    order: Vec<i32>,
    /// vCPUs with their threads by VM, in the order in which they were told.
    guests: Vec<(String, Vec<(VcpuId, Tid)>)>,
}

impl Tasks {
    /// A task has this name and process (0: not known) from here on.
    pub(super) fn named(&mut self, tid: Tid, process: Tid, name: &str) {
        let Some(at) = usize::try_from(tid.0)
            .ok()
            .filter(|at| (1..MAX_TIDS).contains(at))
        else {
            return;
        };
        if self.leaves.len() <= at / LEAF {
            self.leaves.resize_with(at / LEAF + 1, || None);
        }
        let Some(leaf) = self.leaves.get_mut(at / LEAF) else {
            return;
        };
        let leaf = leaf.get_or_insert_with(|| Box::new([Known::default(); LEAF]));
        let Some(known) = leaf.get_mut(at % LEAF) else {
            return;
        };
        if !known.told {
            known.told = true;
            self.order.push(tid.0);
        }
        if process.0 > 0 {
            known.process = process.0;
        }
        let comm = comm_of(name.as_bytes());
        if comm == Comm::default() || comm == known.comm {
            return;
        }
        if known.first == Comm::default() {
            known.first = comm;
        }
        known.comm = comm;
        known.carried = false;
    }

    /// A thread runs a vCPU of this VM.
    pub(super) fn vcpu(&mut self, tid: Tid, vm: NameId, vcpu: VcpuId, names: &dyn Names) {
        let vm = names.name(vm).split('\0').next().unwrap_or_default();
        let at = match self.guests.iter().position(|(name, _)| name == vm) {
            Some(at) => at,
            None => {
                self.guests.push((vm.to_owned(), Vec::new()));
                self.guests.len() - 1
            }
        };
        if let Some((_, vcpus)) = self.guests.get_mut(at)
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
        let known = usize::try_from(tid).ok().and_then(|at| {
            let leaf = self.leaves.get_mut(at / LEAF)?.as_mut()?;
            leaf.get_mut(at % LEAF)
        });
        match known {
            Some(known) => {
                known.carried = true;
                known.comm
            }
            None => Comm::default(),
        }
    }

    fn known(&self) -> impl Iterator<Item = (i32, &Known)> {
        self.order.iter().filter_map(|tid| {
            let at = usize::try_from(*tid).ok()?;
            let leaf = self.leaves.get(at / LEAF)?.as_ref()?;
            Some((*tid, leaf.get(at % LEAF)?))
        })
    }

    /// `saved_cmdlines`: lines `TID NAME`. A reader takes these for what tasks are called at the
    /// beginning, so a name that events tell later is not here unless none of them did.
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
    for (to, digit) in comm.iter_mut().skip(8).zip(number) {
        *to = *digit;
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
