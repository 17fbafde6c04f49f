//! What to set for a finding of `analyze`: the knobs, and with the host's snapshot the commands.
//!
//! Where `doctor` finds the same by counters, its commands stand. Else the value is doctor's, from the value
//! that the snapshot has.

use serde::Serialize;
use stealtime_analysis::Answers;
use stealtime_analysis::answers::Finding;
use stealtime_doctor::{Change, Diagnosis, diagnose, limit, present_text, vendor};
use stealtime_host::Snapshot;
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
    /// A setting that is no knob.
    Other,
}

const RULES: [Rule; 4] = [
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
    let found = findings.filter_map(|(index, finding)| {
        let rule = RULES.iter().find(|rule| rule.id == finding.id)?;
        let knob = match rule.knob {
            Knob::Host(name, _) => Some(name.to_owned()),
            Knob::Limit => Some(vm_knob(&finding.vm, "cpu_max")),
            Knob::Other => None,
        };
        let host = snapshot.zip(diagnosis.as_ref());
        let changes = host.map(|(snapshot, diagnosis)| changes(rule, finding, snapshot, diagnosis));
        let changes = changes.unwrap_or_default();
        (knob.is_some() || !changes.is_empty()).then_some(Remedy {
            finding: index,
            knob,
            changes,
        })
    });
    found.collect()
}

fn changes(
    rule: &Rule,
    finding: &Finding,
    snapshot: &Snapshot,
    diagnosis: &Diagnosis,
) -> Vec<Change> {
    let diagnosed = diagnosis.findings.iter().filter(|diagnosed| {
        let is_about = diagnosed.vms.is_empty() || diagnosed.vms.contains(&finding.vm);
        diagnosed.id == rule.of_doctor && (finding.vm.is_empty() || is_about)
    });
    let changes: Vec<Change> = diagnosed.flat_map(|found| found.changes.clone()).collect();
    if !changes.is_empty() {
        return changes;
    }
    let change = match rule.knob {
        Knob::Host(name, value) => of_host(snapshot, name, value),
        Knob::Limit => no_limit(snapshot, &finding.vm),
        Knob::Other => None,
    };
    change.into_iter().collect()
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
}
