//! Recordings with a summary that was made from their scheduler and KVM events by other code.

use serde_json::Value;
use stealtime_analysis::Options;

use super::common::{answers, check, traces};

const PAIRS: [&str; 5] = [
    "pair-halt-poll",
    "pair-pinning",
    "pair-pinning-by-vm",
    "pair-wakeup-preemption",
    "pair-wakeup-preemption-2",
];

/// The names that trace-cmd gives to exits, by the kernel's.
const NAMES: [(&str, &str); 12] = [
    ("msr", "EXIT_MSR"),
    ("interrupt", "EXIT_INTR"),
    ("vintr", "EXIT_VINTR"),
    ("hlt", "EXIT_HLT"),
    ("PF excp", "EXIT_EXCP_PF"),
    ("invlpg", "EXIT_INVLPG"),
    ("write_cr3", "EXIT_WRITE_CR3"),
    ("read_cr3", "EXIT_READ_CR3"),
    ("hypercall", "EXIT_VMMCALL"),
    ("cpuid", "EXIT_CPUID"),
    ("io", "EXIT_IOIO"),
    ("npf", "EXIT_NPF"),
];

/// Whether a time in ns is that of the summary, which has whole microseconds.
fn same(ns: u64, value: &Value) -> bool {
    let seconds = value.as_f64().unwrap();
    (ns as f64 / 1e9 - seconds).abs() < 0.000_001_1
}

#[test]
fn time_of_each_vcpu_is_the_summarys() {
    let Some(traces) = traces() else {
        return;
    };
    let mut compared = 0;
    for pair in PAIRS {
        for run in ["A1", "A2", "B1", "B2"] {
            let folder = traces.join(pair).join(run);
            let answers = answers(&folder.join("trace.dat.zst"), Options::default());
            check(&answers);
            let text = std::fs::read_to_string(folder.join("reference/summary.json")).unwrap();
            let summary: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(answers.source.events, summary["events"].as_u64().unwrap());
            for wanted in summary["vcpus"].as_array().unwrap() {
                let tid = wanted["tid"].as_i64().unwrap();
                let vcpu = answers.vcpus.iter().find(|vcpu| i64::from(vcpu.tid) == tid);
                let Some(vcpu) = vcpu else {
                    // A vCPU without a single KVM event in the recording.
                    assert_eq!(wanted["entries"].as_u64(), Some(0), "{pair} {run} {tid}");
                    continue;
                };
                compare(vcpu, wanted, &format!("{pair}/{run} {tid}"));
                compared += 1;
            }
        }
    }
    assert!(compared > 80, "{compared}");
}

fn compare(vcpu: &stealtime_analysis::answers::VcpuTime, wanted: &Value, place: &str) {
    let waited = vcpu.preempted_ns + vcpu.wake_wait_ns;
    assert!(
        same(vcpu.on_cpu_ns, &wanted["running_s"]),
        "{place} {vcpu:?} {wanted}"
    );
    assert!(
        same(waited, &wanted["runnable_waiting_s"]),
        "{place} {vcpu:?} {wanted}"
    );
    assert!(
        same(vcpu.halt_ns, &wanted["sleeping_s"]),
        "{place} {vcpu:?} {wanted}"
    );
    assert!(
        same(vcpu.unknown_ns, &wanted["unknown_at_start_s"]),
        "{place} {vcpu:?} {wanted}"
    );
    if wanted["entries"] == wanted["exits_total"] {
        let guest = vcpu.guest_ns.unwrap();
        assert!(
            same(guest, &wanted["in_guest_s"]),
            "{place} {vcpu:?} {wanted}"
        );
    }
    for reason in vcpu
        .exit_ns_by_reason
        .iter()
        .filter(|reason| reason.count > 0)
    {
        let name = NAMES.iter().find(|name| name.0 == reason.reason);
        let name = name
            .unwrap_or_else(|| panic!("{place}: {}", reason.reason))
            .1;
        assert_eq!(
            Some(reason.count),
            wanted["exits"][name].as_u64(),
            "{place} {name}"
        );
    }
}

#[test]
fn polls_are_the_summarys() {
    let Some(traces) = traces() else {
        return;
    };
    for run in ["A1", "A2", "B1", "B2"] {
        let folder = traces.join("pair-halt-poll").join(run);
        let answers = answers(&folder.join("trace.dat.zst"), Options::default());
        let text = std::fs::read_to_string(folder.join("reference/summary.json")).unwrap();
        let summary: Value = serde_json::from_str(&text).unwrap();
        let sum = |key: &str| -> u64 {
            let vms = summary["vms"].as_object().unwrap();
            vms.values().map(|vm| vm[key].as_u64().unwrap_or(0)).sum()
        };
        let polls = answers.halt_polls.iter();
        let counted = polls.fold((0, 0), |sum, row| {
            (sum.0 + row.poll_success, sum.1 + row.poll_success_ns)
        });
        assert_eq!(counted, (sum("poll_count"), sum("poll_ns")), "{run}");
    }
}
