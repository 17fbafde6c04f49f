//! What the analysis says of a run's events is what the simulator's own books say.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;

use stealtime_analysis::{Analysis, Answers, Options};
use stealtime_simulator::config::{
    Config, HostConfig, Knobs, RunConfig, TaskConfig, Topology, VmConfig, WorkloadConfig,
};
use stealtime_simulator::{Collected, Outcome, run};

fn config(vms: u32, vcpus: u32, cpus: u32, workload: &str) -> Config {
    Config {
        host: HostConfig {
            tasks: vec![TaskConfig {
                name: "other".to_owned(),
                workload: WorkloadConfig::named("ticks"),
                count: 2,
                nice: 0,
                cpus: Vec::new(),
            }],
            ..HostConfig::generic(Topology::flat(cpus))
        },
        vms: (0..vms)
            .map(|n| VmConfig {
                name: format!("vm{n}"),
                vcpus,
                workload: WorkloadConfig::named(workload),
                ..VmConfig::default()
            })
            .collect(),
        scripts: Default::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: 200_000_000,
            warmup_ns: 0,
            seed: 3,
        },
    }
}

fn analyzed(config: &Config) -> (Outcome, Answers) {
    let mut sink = Collected::default();
    let outcome = run(config, &mut sink).unwrap();
    let mut analysis = Analysis::new(Options::default());
    for event in &sink.events {
        analysis.event(event, &sink.names);
    }
    (outcome, analysis.finish(&sink.names))
}

fn check(config: &Config) {
    let (outcome, answers) = analyzed(config);
    let mut exits: BTreeMap<String, u64> = BTreeMap::new();
    let mut seen = 0;
    for time in &answers.vcpus {
        let all = outcome
            .vms
            .iter()
            .flat_map(|vm| vm.vcpus.iter().map(move |v| (vm, v)));
        let (vm, vcpu) = all.into_iter().find(|(_, v)| v.tid.0 == time.tid).unwrap();
        assert_eq!(time.vcpu, vcpu.index);
        let books = (
            vcpu.task.run_ns,
            vcpu.task.sleep_ns,
            vcpu.task.preempted_ns,
            vcpu.task.wait_ns - vcpu.task.preempted_ns,
            Some(vcpu.vcpu.guest_ns),
        );
        let from_events = (
            time.on_cpu_ns,
            time.halt_ns,
            time.preempted_ns,
            time.wake_wait_ns,
            time.guest_ns,
        );
        assert_eq!(from_events, books, "{} of {}", time.task, vm.name);
        assert_eq!(time.span_ns, outcome.measured_ns);
        for (&reason, &count) in &vcpu.vcpu.exits {
            let name = stealtime_events::ExitReason::vmx(reason)
                .name()
                .unwrap()
                .to_owned();
            *exits.entry(name).or_default() += count;
        }
        seen += 1;
    }
    assert_eq!(seen, config.vms.iter().map(|vm| vm.vcpus).sum::<u32>());
    let counted = answers
        .events
        .iter()
        .find(|row| row.name == "kvm_exit")
        .map_or(0, |row| row.count);
    assert_eq!(counted, exits.values().sum::<u64>());
}

#[test]
fn computing_guests() {
    check(&config(2, 4, 3, "busy"));
}

#[test]
fn ticking_guests() {
    check(&config(2, 4, 3, "ticks"));
    check(&config(1, 4, 8, "ticks"));
}
