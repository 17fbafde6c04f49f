//! A simulated run is a recording too: replayed, it gives its own times back.

use stealtime_analysis::{Analysis, Options};
use stealtime_replay::host::Assumed;
use stealtime_replay::predict::{Errors, nearest, recorded};
use stealtime_replay::{Extractor, Recording};
use stealtime_simulator::config::{
    Config, HostConfig, Hypervisor, IdleMethod, Knobs, Profile, RunConfig, Topology, VmConfig,
    WorkloadConfig,
};
use stealtime_simulator::{Collected, Fault, run};

fn config(workload: &str, cpus: u32, seed: u64) -> Config {
    let vm = |n| VmConfig {
        name: format!("vm{n}"),
        vcpus: 2,
        workload: WorkloadConfig::named(workload),
        ..VmConfig::default()
    };
    Config {
        host: HostConfig {
            profile: Profile::generic(),
            topology: Topology::flat(cpus),
            hypervisor: Hypervisor::Kvm,
            idle: IdleMethod::Mwait,
            tasks: Vec::new(),
        },
        vms: (0..3).map(vm).collect(),
        scripts: Default::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: 500_000_000,
            warmup_ns: 0,
            seed,
        },
    }
}

/// Errors of the replay of a simulated run.
fn round_trip(config: &Config) -> (Recording, Errors) {
    let mut sink = Collected::default();
    run(config, &mut sink).expect("a good configuration");
    let mut analysis = Analysis::new(Options::default());
    for event in &sink.events {
        analysis.event(event, &sink.names);
    }
    let answers = analysis.finish(&sink.names);
    let mut extractor = Extractor::new(&answers);
    for event in &sink.events {
        extractor.event(event, &sink.names);
    }
    let recording = extractor.finish();
    let was = recorded(&recording, &answers);
    assert_eq!(was.vcpus.len(), 6);
    let untold = |_: &mut Config| Ok::<(), Fault>(());
    let (_, _, times) =
        nearest(&recording, &was, &Assumed::default(), untold).expect("it can be replayed");
    let errors = Errors::between(&was, &times, recording.span_ns);
    (recording, errors)
}

#[test]
fn runs_give_their_own_times_back() {
    for (workload, cpus) in [("busy", 2), ("ticks", 2), ("ticks", 3), ("cyclictest", 2)] {
        for seed in 1..4 {
            let (recording, errors) = round_trip(&config(workload, cpus, seed));
            let median = errors.percentile(50);
            let p90 = errors.percentile(90);
            let what = format!("{workload} on {cpus}, seed {seed}: {median} {p90} ppm");
            println!("{what} {:?}", recording.resolved);
            assert!(median <= 10_000 && p90 <= 30_000, "{what}");
            // vCPUs that never wait compute on at the end: an exit more.
            assert!(
                errors.worst_exits() <= 5_000,
                "{what}: {}",
                errors.worst_exits()
            );
        }
    }
}

#[test]
fn without_switches_there_is_nothing_to_replay() {
    let recording =
        Extractor::new(&Analysis::new(Options::default()).finish(&Collected::default().names));
    let recording = recording.finish();
    assert!(recording.tasks.is_empty());
    assert_eq!(recording.span_ns, 0);
}
