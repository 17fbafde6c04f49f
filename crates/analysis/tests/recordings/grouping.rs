//! Threads become the right VMs, or the answer says that it guesses.

use std::collections::BTreeMap;

use stealtime_analysis::Options;

use super::common::{answers, threads, traces};

/// Recordings, their files, and whether every VM is known without a guess.
const RECORDINGS: [(&str, &str, bool); 10] = [
    (
        "svm-perf-kvm-stat-hackbench-tlb-burst",
        "perf.data.zst",
        true,
    ),
    ("svm-lost-events-hackbench-hog-timer", "perf.data.zst", true),
    (
        "svm-lost-events-hackbench-hog-timer",
        "trace.dat.zst",
        false,
    ),
    ("svm-hackbench-cyclictest-hog", "trace.dat.zst", true),
    ("svm-membarrier-mutex-quota", "trace.dat", true),
    ("svm-pause-exits-hackbench-tlb", "trace.dat", false),
    ("pair-halt-poll", "A1/trace.dat.zst", true),
    ("pair-pinning", "B2/trace.dat.zst", true),
    ("pair-pinning-by-vm", "A2/trace.dat.zst", true),
    ("pair-wakeup-preemption", "B1/trace.dat.zst", false),
];

#[test]
fn certain_groups_are_right() {
    let Some(traces) = traces() else {
        return;
    };
    for (name, file, is_certain) in RECORDINGS {
        let truth: BTreeMap<i32, String> = threads(&traces.join(name))
            .into_iter()
            .map(|(vm, tid)| (tid, vm))
            .collect();
        let answers = answers(&traces.join(name).join(file), Options::default());
        let mut right = 0;
        for vm in &answers.vms {
            let vcpus = answers.vcpus.iter().filter(|vcpu| vcpu.vm == vm.vm);
            let true_vms: Vec<&String> = vcpus.map(|vcpu| &truth[&vcpu.tid]).collect();
            let is_right = true_vms.windows(2).all(|pair| pair[0] == pair[1])
                && truth.values().filter(|vm| *vm == true_vms[0]).count() == true_vms.len();
            right += usize::from(is_right);
            assert!(
                is_right || vm.grouped_by == "order",
                "{name}: {vm:?} {true_vms:?}"
            );
        }
        println!("{name}/{file}: {right} of {} VMs right", answers.vms.len());
        let is_guessed = answers.vms.iter().any(|vm| vm.grouped_by == "order");
        assert_eq!(!is_guessed, is_certain, "{name}/{file}: {:?}", answers.vms);
    }
}
