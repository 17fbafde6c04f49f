//! The end of the pass: threads become VMs, counts become answers.

use std::collections::BTreeMap;

use stealtime_events::Names;

use crate::answers::{Answers, Source, Vm};
use crate::tables::Tables;
use crate::vms::{Group, ORDER};
use crate::{Analysis, findings};

impl Analysis {
    /// The answers. Of [`Answers::source`] only what events themselves tell is filled in: counts,
    /// times, losses, CPUs.
    #[must_use]
    pub fn finish(mut self, names: &dyn Names) -> Answers {
        self.tracker.close();
        self.tracker.observer_mut().close();
        let groups = self.group(names);
        let vmm = self.vmm_threads(&groups, names);
        let mut vm_of = BTreeMap::new();
        for (vm, group) in groups.iter().enumerate() {
            vm_of.extend(group.vcpus.iter().map(|&vcpu| (vcpu, vm)));
        }
        let tables = Tables {
            analysis: &self,
            names,
            groups: &groups,
            vmm: &vmm,
            vm_of: &vm_of,
        };
        let (exits, exit_totals) = tables.exits();
        let [msr, ioport, mmio] = tables.all_keys();
        let vms = tables.selected().map(|group| Vm {
            vm: group.name.clone(),
            pid: group.pid,
            vcpus: u32::try_from(group.vcpus.len()).unwrap_or(u32::MAX),
            grouped_by: group.grouped_by.to_owned(),
            // With one VM there is nothing to mistake it for.
            guessed: group.grouped_by == ORDER && groups.len() > 1,
        });
        let mut answers = Answers {
            source: Source {
                notes: self.notes_on_groups(&groups),
                ..self.source()
            },
            events: self.sums().counts.table(names),
            vms: vms.collect(),
            host: tables.host(),
            stalls: tables.stalls(),
            waits: tables.waits(),
            vm_states: tables.vm_states(),
            vmm_threads: tables.vmm_threads(),
            over_time: tables.over_time(),
            exits,
            exit_totals,
            msr,
            ioport,
            mmio,
            vcpus: tables.vcpus(),
            ready: tables.ready(),
            latencies: tables.latencies(),
            yields: tables.yields(),
            scheduler: self.sums().options.scheduler.clone(),
            halt_polls: tables.halt_polls(),
            interrupts: tables.interrupts(),
            findings: Vec::new(),
            histograms: tables.histograms(),
        };
        answers.findings = findings::all(&tables, &answers);
        answers.flag_guesses();
        answers
    }

    /// Contradictions between the user's VMs and the recording.
    fn notes_on_groups(&self, groups: &[Group]) -> Vec<String> {
        let mut notes = Vec::new();
        let vcpus = || groups.iter().flat_map(|group| &group.vcpus);
        let tid = |vcpu| self.thread_of(vcpu).tid.0;
        for (configured, vm) in &self.sums().options.groups {
            if !vcpus().any(|&vcpu| tid(vcpu) == *configured) {
                notes.push(format!(
                    "thread {configured}, given as one of {vm}, is no vCPU of this recording"
                ));
            }
        }
        for (process, vm) in &self.sums().options.processes {
            let is_of = |vcpu| {
                let thread = self.thread_of(vcpu);
                thread.process.0 == *process || thread.tid.0 == *process
            };
            let is_named = |group: &&Group| group.name == *vm && group.pid == Some(*process);
            if !vcpus().any(|&vcpu| is_of(vcpu)) && !groups.iter().any(|group| is_named(&group)) {
                notes.push(format!(
                    "process {process}, given as {vm}, has no vCPU in this recording, or the recording \
                     does not know the processes of threads"
                ));
            }
        }
        for group in groups.iter().filter(|group| group.grouped_by == "user") {
            let mut tids: BTreeMap<u32, i32> = BTreeMap::new();
            for &vcpu in &group.vcpus {
                let (id, tid) = (self.id(vcpu), tid(vcpu));
                if let Some(first) = tids.insert(id, tid) {
                    notes.push(format!(
                        "threads {first} and {tid}, given as ones of {}, are both vCPU {id}: one VM \
                         cannot have both",
                        group.name
                    ));
                }
            }
        }
        let untracked = self.tracker.untracked();
        if untracked > 0 {
            notes.push(format!(
                "{untracked} entries and exits are of threads past the limit of vCPUs: no answer has them"
            ));
        }
        notes
    }

    fn source(&self) -> Source {
        let (sums, tracker) = (self.sums(), &self.tracker);
        Source {
            clock_unit: "ns".to_owned(),
            cpus: u32::try_from(tracker.cpu_count()).unwrap_or(u32::MAX),
            events: sums.events,
            lost: sums.lost,
            lost_gaps: sums.lost_gaps,
            out_of_order: tracker.out_of_order(),
            first_ns: tracker.first(),
            last_ns: tracker.now(),
            span_ns: tracker.now() - tracker.first(),
            ..Source::default()
        }
    }
}
