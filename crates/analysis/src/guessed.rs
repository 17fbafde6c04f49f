//! Marks on what rests on a guess of which threads are one VM.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::answers::{
    Answers, Bucket, Finding, HaltPolls, Interrupts, KeyRow, Latency, Ready, Stall, VcpuTime,
    VmOverTime, VmState, VmmThreads, Waits, Yields,
};

/// A VM's name as people read it: with a `?` where its threads were guessed.
#[must_use]
pub fn shown_vm(name: &str, guessed: bool) -> Cow<'_, str> {
    match guessed {
        true => Cow::Owned(format!("{name}?")),
        false => Cow::Borrowed(name),
    }
}

/// A row that names a VM.
trait OfVm {
    fn vm(&mut self) -> (&mut String, &mut bool);
}

macro_rules! of_vm {
    ($($row:ty),*) => {
        $(impl OfVm for $row {
            fn vm(&mut self) -> (&mut String, &mut bool) {
                (&mut self.vm, &mut self.vm_guessed)
            }
        })*
    };
}

of_vm!(
    Bucket, Finding, HaltPolls, Interrupts, KeyRow, Latency, Ready, Stall, VcpuTime, VmOverTime,
    VmState, VmmThreads, Waits, Yields
);

impl Answers {
    /// Names of the VMs that are guesses.
    fn guesses(&self) -> BTreeSet<String> {
        let guessed = self.vms.iter().filter(|vm| vm.guessed);
        guessed.map(|vm| vm.vm.clone()).collect()
    }

    /// Sets `vm_guessed` of every row, from [`Vm::guessed`](crate::answers::Vm::guessed).
    pub(crate) fn flag_guesses(&mut self) {
        let guesses = self.guesses();
        if !guesses.is_empty() {
            self.rows(&mut |row| {
                let (name, guessed) = row.vm();
                *guessed = guesses.contains(name);
            });
        }
    }

    /// As people read it: guessed VMs have a `?` behind their names, wherever they are named. The
    /// names in JSON and those that options take are without it.
    #[must_use]
    pub fn with_guesses_shown(&self) -> Cow<'_, Self> {
        let guesses = self.guesses();
        if guesses.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut shown = self.clone();
        for finding in &mut shown.findings {
            if finding.vm_guessed {
                finding.what = shown_vm_in(&finding.what, &finding.vm);
            }
        }
        for row in &mut shown.ready {
            if row.cause == "vcpu_other_vm" && guesses.contains(&row.who) {
                row.who.push('?');
            }
        }
        for stall in &mut shown.stalls {
            if stall.cause == "vcpu_other_vm" && guesses.contains(&stall.who) {
                stall.who.push('?');
            }
        }
        for vm in shown.vms.iter_mut().filter(|vm| vm.guessed) {
            vm.vm.push('?');
        }
        shown.rows(&mut |row| {
            let (name, guessed) = row.vm();
            if *guessed {
                name.push('?');
            }
        });
        Cow::Owned(shown)
    }

    fn rows(&mut self, visit: &mut dyn FnMut(&mut dyn OfVm)) {
        fn visit_rows<T: OfVm>(rows: &mut [T], visit: &mut dyn FnMut(&mut dyn OfVm)) {
            for row in rows {
                visit(row);
            }
        }
        let keys = [
            &mut self.exits,
            &mut self.exit_totals,
            &mut self.msr,
            &mut self.ioport,
            &mut self.mmio,
        ];
        for rows in keys {
            visit_rows(rows, visit);
        }
        visit_rows(&mut self.stalls, visit);
        visit_rows(&mut self.waits, visit);
        visit_rows(&mut self.vm_states, visit);
        visit_rows(&mut self.vmm_threads, visit);
        visit_rows(&mut self.over_time.vms, visit);
        visit_rows(&mut self.vcpus, visit);
        visit_rows(&mut self.ready, visit);
        visit_rows(&mut self.latencies, visit);
        visit_rows(&mut self.yields, visit);
        visit_rows(&mut self.halt_polls, visit);
        visit_rows(&mut self.interrupts, visit);
        visit_rows(&mut self.findings, visit);
        visit_rows(&mut self.histograms, visit);
    }
}

/// A text with a `?` behind each word that is `name`, a VM with guessed threads.
#[must_use]
pub fn shown_vm_in(text: &str, name: &str) -> String {
    let mut marked = String::with_capacity(text.len() + 1);
    let mut rest = text;
    while let Some(position) = rest.find(name).filter(|_| !name.is_empty()) {
        let (head, found) = rest.split_at(position);
        let tail = &found[name.len()..];
        let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        marked.push_str(head);
        let is_start = !is_word(marked.chars().last());
        marked.push_str(name);
        if is_start && !is_word(tail.chars().next()) {
            marked.push('?');
        }
        rest = tail;
    }
    marked + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_marked_as_a_word() {
        assert_eq!(
            shown_vm_in("vm1 and vm10 of vm1.", "vm1"),
            "vm1? and vm10 of vm1?."
        );
        assert_eq!(shown_vm_in("no name", ""), "no name");
        assert_eq!(shown_vm("vm0", true), "vm0?");
        assert_eq!(shown_vm("vm0", false), "vm0");
    }
}
