//! What to set for a finding of `analyze`: the knobs, and with the host's snapshot the commands.
//!
//! Where `doctor` finds the same by counters, its commands stand. Else the value is doctor's, from the value
//! that the snapshot has. What vCPUs wait for in the recording decides on weights and on CPUs.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use stealtime_analysis::Answers;
use stealtime_analysis::answers::{Finding, VcpuTime};
use stealtime_doctor::{
    Change, Diagnosis, diagnose, limit, more_weight, own_cpus, present_text, vendor,
};
use stealtime_host::{Snapshot, Vm, cpulist};
use stealtime_lab::knobs::{self, vm_knob};

/// What to set for a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// The place of the finding among the answers'.
    #[serde(skip)]
    pub finding: usize,
    /// The knob, as `whatif --set` takes it; `None`: a setting without a knob.
    pub knob: Option<String>,
    /// The commands that change it on this host; none without a snapshot of the host, or where it shows
    /// that the setting is so already.
    pub changes: Vec<Change>,
}

/// A finding of `analyze` that a setting remedies.
struct Rule {
    /// Of the finding.
    id: &'static str,
    knob: Knob,
    /// The finding of `doctor` that is about the same.
    of_doctor: &'static str,
}

#[derive(Clone, Copy)]
enum Knob {
    /// A knob of the host, with the value to set.
    Host(&'static str, &'static str),
    /// `cpu_max` of the VM.
    Limit,
    /// The weight of the VM's group, with a snapshot.
    Weight,
    /// CPUs of its own for each vCPU, with a snapshot.
    OwnCpus,
    /// A setting that is no knob.
    Other,
}

/// Sleep of a VM, in per mille of its vCPUs' time, from which on its demand has an end. Below that a VM
/// computes for as long as it may, and takes what others need.
const SLEEPS_PER_MILLE: u128 = 50;

/// Waiting of a VM, in per mille, from which on one cause is most of it.
const MOST_PER_MILLE: u128 = 500;

const RULES: [Rule; 7] = [
    Rule {
        id: "steal",
        knob: Knob::Weight,
        of_doctor: "",
    },
    Rule {
        id: "vcpus_stacked",
        knob: Knob::OwnCpus,
        of_doctor: "",
    },
    // The holder of a lock cannot run while a quota is used up.
    Rule {
        id: "spinning",
        knob: Knob::OwnCpus,
        of_doctor: "throttled",
    },
    Rule {
        id: "polls_wasted",
        knob: Knob::Host("kvm.halt_poll_ns", "50000"),
        of_doctor: "polls_wasted",
    },
    Rule {
        id: "timer_exits",
        knob: Knob::Host("kvm.pi_inject_timer", "1"),
        of_doctor: "timers_not_posted",
    },
    Rule {
        id: "throttled",
        knob: Knob::Limit,
        of_doctor: "throttled",
    },
    Rule {
        id: "master_clock_off",
        knob: Knob::Other,
        of_doctor: "clocksource",
    },
];

/// What to set for each finding that a setting remedies, in the order of the findings. A setting without a
/// knob is left out if the snapshot has no command for it.
#[must_use]
pub fn remedies(answers: &Answers, snapshot: Option<&Snapshot>) -> Vec<Remedy> {
    let diagnosis = snapshot.map(diagnose);
    let findings = answers.findings.iter().enumerate();
    // A CPU is offered to one VM.
    let mut offered = BTreeSet::new();
    let found = findings.filter_map(|(index, finding)| {
        let rule = RULES.iter().find(|rule| rule.id == finding.id)?;
        let knob = match rule.knob {
            Knob::Host(name, _) => Some(name.to_owned()),
            Knob::Limit => Some(vm_knob(&finding.vm, "cpu_max")),
            Knob::Weight | Knob::OwnCpus | Knob::Other => None,
        };
        let host = snapshot.zip(diagnosis.as_ref());
        let changes = host.map_or_else(Vec::new, |(snapshot, diagnosis)| {
            let diagnosed = diagnosed(rule, finding, diagnosis);
            match diagnosed.is_empty() {
                true => {
                    let case = Case {
                        answers,
                        finding,
                        snapshot,
                    };
                    case.change(rule.knob, &mut offered).into_iter().collect()
                }
                false => diagnosed,
            }
        });
        (knob.is_some() || !changes.is_empty()).then_some(Remedy {
            finding: index,
            knob,
            changes,
        })
    });
    found.collect()
}

/// What doctor offers for the same.
fn diagnosed(rule: &Rule, finding: &Finding, diagnosis: &Diagnosis) -> Vec<Change> {
    let diagnosed = diagnosis.findings.iter().filter(|diagnosed| {
        let is_about = diagnosed.vms.is_empty() || diagnosed.vms.contains(&finding.vm);
        diagnosed.id == rule.of_doctor && (finding.vm.is_empty() || is_about)
    });
    diagnosed.flat_map(|found| found.changes.clone()).collect()
}

/// A finding on a host.
struct Case<'a> {
    answers: &'a Answers,
    finding: &'a Finding,
    snapshot: &'a Snapshot,
}

impl Case<'_> {
    fn change(&self, knob: Knob, offered: &mut BTreeSet<u32>) -> Option<Change> {
        match knob {
            Knob::Host(name, value) => of_host(self.snapshot, name, value),
            Knob::Limit => no_limit(self.snapshot, &self.finding.vm),
            Knob::Weight => self.weight(),
            Knob::OwnCpus => self.own_cpus(offered),
            Knob::Other => None,
        }
    }

    fn vm(&self, name: &str) -> Option<&Vm> {
        self.snapshot.vms.iter().find(|vm| vm.name == name)
    }

    /// More weight for a VM that mostly waits for vCPUs of another one, which waits less. The other way
    /// round the same finding would take the time back. A VM that never sleeps has no end of its demand.
    fn weight(&self) -> Option<Change> {
        let vm = self.finding.vm.as_str();
        let rows = || self.answers.ready.iter().filter(|row| row.vm == vm);
        let waited: u128 = rows().map(|row| u128::from(row.ns)).sum();
        let mut rivals = BTreeMap::<&str, u128>::new();
        for row in rows().filter(|row| row.cause == "vcpu_other_vm") {
            *rivals.entry(&row.who).or_default() += u128::from(row.ns);
        }
        let by_others: u128 = rivals.values().sum();
        let (rival, _) = rivals.into_iter().max_by_key(|(_, ns)| *ns)?;
        let is_most = by_others * 1000 >= waited * MOST_PER_MILLE;
        // Its quota is used up with any weight.
        let is_throttled = |finding: &Finding| finding.id == "throttled" && finding.vm == vm;
        if self.answers.findings.iter().any(is_throttled) {
            return None;
        }
        let waits_more = self.waited_per_mille(vm) > self.waited_per_mille(rival);
        let sleeps = self.per_mille(vm, |vcpu| vcpu.halt_ns) >= SLEEPS_PER_MILLE;
        (is_most && waits_more && sleeps)
            .then(|| more_weight(self.vm(vm)?, self.vm(rival)?, self.snapshot))?
    }

    /// Waiting of a VM for CPUs in per mille of its vCPUs' time.
    fn waited_per_mille(&self, vm: &str) -> u128 {
        self.per_mille(vm, |vcpu| {
            vcpu.preempted_ns.saturating_add(vcpu.wake_wait_ns)
        })
    }

    /// A part of a VM's time in per mille of its vCPUs' time.
    fn per_mille(&self, vm: &str, part_ns: impl Fn(&VcpuTime) -> u64) -> u128 {
        let vcpus = self.answers.vcpus.iter().filter(|vcpu| vcpu.vm == vm);
        let (part, lived) = vcpus.fold((0_u128, 0_u128), |sum, vcpu| {
            (
                sum.0 + u128::from(part_ns(vcpu)),
                sum.1 + u128::from(vcpu.span_ns),
            )
        });
        part * 1000 / lived.max(1)
    }

    /// CPUs of its own for a VM that waits for itself. Its yields do not help where its vCPUs, of which
    /// some spin, have fewer CPUs than they are.
    fn own_cpus(&self, offered: &mut BTreeSet<u32>) -> Option<Change> {
        let vm = self.vm(&self.finding.vm)?;
        let lists = vm.vcpus().filter_map(|vcpu| vcpu.affinity.as_deref());
        let cpus: BTreeSet<u32> = lists.filter_map(cpulist::parse).flatten().collect();
        let is_confined = cpus.len() < vm.vcpus().count();
        let is_stacked = self.finding.id == "vcpus_stacked";
        (is_stacked || is_confined).then(|| own_cpus(vm, self.snapshot, offered))?
    }
}

/// A knob of the host; `None` if the snapshot does not have its value, or has this one.
fn of_host(snapshot: &Snapshot, name: &str, value: &str) -> Option<Change> {
    let former = present_text(snapshot, knobs::find(name)?)?;
    Change::knob(vendor(snapshot), name, value, former)
}

/// Lifts the tightest limit of the VM's control groups.
fn no_limit(snapshot: &Snapshot, vm: &str) -> Option<Change> {
    let vm = snapshot.vms.iter().find(|known| known.name == vm)?;
    let limited = snapshot
        .groups_above(vm.cgroup.as_deref()?)
        .filter_map(|group| Some((group, group.limit_cpus()?)));
    let (group, _) = limited.min_by(|a, b| a.1.total_cmp(&b.1))?;
    limit(vm, snapshot, group, None)
}

#[cfg(test)]
mod tests {
    use stealtime_analysis::answers::Ready;
    use stealtime_host::Cgroup;

    use super::*;

    #[test]
    fn commands_come_with_a_snapshot_that_has_another_value() {
        let mut answers = Answers::default();
        for id in ["steal", "polls_wasted"] {
            answers.findings.push(Finding {
                id: id.to_owned(),
                vm: "web".to_owned(),
                vm_guessed: false,
                what: String::new(),
                evidence: String::new(),
                next: String::new(),
            });
        }
        let [remedy] = &remedies(&answers, None)[..] else {
            panic!("one of the findings has a setting");
        };
        assert_eq!(
            (remedy.finding, remedy.knob.as_deref()),
            (1, Some("kvm.halt_poll_ns"))
        );
        assert!(remedy.changes.is_empty(), "{remedy:?}");
        let mut snapshot = Snapshot::default();
        let kvm = snapshot.kvm.modules.entry("kvm".to_owned()).or_default();
        kvm.insert("halt_poll_ns".to_owned(), "200000".to_owned());
        let changes = &remedies(&answers, Some(&snapshot))[0].changes;
        let file = "/sys/module/kvm/parameters/halt_poll_ns";
        assert_eq!(changes[0].set, [format!("echo 50000 > {file}")]);
        assert_eq!(changes[0].undo, [format!("echo 200000 > {file}")]);
        let kvm = snapshot.kvm.modules.entry("kvm".to_owned()).or_default();
        kvm.insert("halt_poll_ns".to_owned(), "50000".to_owned());
        assert!(remedies(&answers, Some(&snapshot))[0].changes.is_empty());
    }

    #[test]
    fn weight_is_offered_to_a_vm_that_sleeps_and_waits_more() {
        let vcpu = |vm: &str, preempted_ns, halt_ns| VcpuTime {
            vm: vm.to_owned(),
            span_ns: 1000,
            preempted_ns,
            halt_ns,
            ..VcpuTime::default()
        };
        let answers = |sleeps_ns| Answers {
            vcpus: vec![vcpu("web", 300, sleeps_ns), vcpu("batch", 200, 0)],
            ready: vec![Ready {
                vm: "web".to_owned(),
                cause: "vcpu_other_vm".to_owned(),
                who: "batch".to_owned(),
                ns: 300,
                ..Ready::default()
            }],
            findings: vec![Finding {
                id: "steal".to_owned(),
                vm: "web".to_owned(),
                vm_guessed: false,
                what: String::new(),
                evidence: String::new(),
                next: String::new(),
            }],
            ..Answers::default()
        };
        let vm = |name: &str| Vm {
            name: name.to_owned(),
            cgroup: Some(format!("/{name}")),
            ..Vm::default()
        };
        let group = |path: &str| Cgroup {
            path: path.to_owned(),
            weight: Some(100),
            ..Cgroup::default()
        };
        let snapshot = Snapshot {
            vms: vec![vm("web"), vm("batch")],
            cgroups: vec![group("/web"), group("/batch")],
            ..Snapshot::default()
        };
        let sleeps = remedies(&answers(60), Some(&snapshot));
        // The default of a snapshot is cgroup v1.
        let set = "echo 3072 > /sys/fs/cgroup/web/cpu.shares";
        assert_eq!(sleeps[0].changes[0].set, [set]);
        // It computes for as long as it may.
        assert!(remedies(&answers(40), Some(&snapshot)).is_empty());
    }
}
