//! What a vCPU takes in memory, and that idle ones make nothing happen.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "common/counting.rs"]
mod counting;

use counting::held;
use stealtime_simulator::Machine;
use stealtime_simulator::config::{
    Config, HostConfig, Knobs, Pinning, RunConfig, Topology, VmConfig, WorkloadConfig,
};

/// Guests of 16 vCPUs without threads, each on 16 CPUs that it shares with its neighbours.
fn idle(cpus: u32, vms: u32, ms: u64) -> Config {
    let topology = Topology {
        sockets: cpus / 128,
        llcs_per_socket: 8,
        cores_per_llc: 8,
        threads_per_core: 2,
    };
    Config {
        host: HostConfig::generic(topology),
        vms: (0..vms)
            .map(|n| {
                let first = n % (cpus / 16) * 16;
                VmConfig {
                    name: format!("vm{n}"),
                    vcpus: 16,
                    workload: WorkloadConfig::named("idle"),
                    pinning: Pinning::Pool((first..first + 16).collect()),
                    ..VmConfig::default()
                }
            })
            .collect(),
        scripts: stealtime_simulator::script::Scripts::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: ms * 1_000_000,
            warmup_ns: 0,
            seed: 1,
        },
    }
}

/// What the machine holds when it has run, and the events that it took.
fn run(config: &Config) -> (usize, u64) {
    let before = held();
    let mut sink = ();
    let mut machine = Machine::new(config, &mut sink).unwrap();
    machine.set_checks(false);
    let events = machine.run(&|| false).unwrap().stats.events;
    (held() - before, events)
}

/// What each vCPU of a large host takes beyond its threads, with its guest's kernel (docs/simulator.md
/// says what of it is what).
const MOST_BYTES: usize = 2048;

/// One test, so that nothing else allocates meanwhile.
#[test]
fn a_vcpu_is_small_and_an_idle_one_does_nothing() {
    let (bare, _) = run(&idle(1024, 1, 50));
    let (full, _) = run(&idle(1024, 512, 50));
    let each = (full - bare) / (8192 - 16);
    println!("{each} bytes a vCPU");
    assert!(each <= MOST_BYTES, "{each} bytes a vCPU");

    // After the start the emulators' main loops wake once a second, and nothing else happens.
    let mut wide = idle(128, 63, 800);
    let (_, start) = run(&wide);
    wide.run.duration_ns = 2_500_000_000;
    let (_, long) = run(&wide);
    let each = (long - start) / 63 / 2;
    println!("{each} events a wakeup of a main loop");
    assert!((1..20).contains(&each), "{start} and {long} events");
}
