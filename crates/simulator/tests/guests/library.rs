//! The library of workloads: each runs everywhere, alike for equal seeds, and scales.

use stealtime_simulator::config::Hypervisor;
use stealtime_simulator::workload::LIBRARY;

use super::{MS, config, done, latency, named, run, with};

/// Workloads that report nothing.
const SILENT: &[&str] = &["idle"];

/// A second of the light ones, less of those that do a million things in it.
fn duration_ns(workload: &str) -> u64 {
    match workload {
        "counter-read" | "cpuid-loop" | "dbench" | "hackbench" | "sched-pipe" => 30 * MS,
        "dedup" => 100 * MS,
        "redis" | "vips" => 200 * MS,
        _ => 1000 * MS,
    }
}

fn runs_to_the_end(hypervisor: Hypervisor) {
    for workload in LIBRARY {
        for (vcpus, cpus) in [(1, 1), (1, 2), (4, 2), (4, 8), (16, 4), (16, 16)] {
            let mut config = config(1, vcpus, cpus, named(workload.name));
            config.host.hypervisor = hypervisor;
            config.run.duration_ns = duration_ns(workload.name);
            let outcome = run(&config);
            let did = done(&outcome) > 0;
            let silent = SILENT.contains(&workload.name);
            assert_eq!(
                did, !silent,
                "{} on {vcpus} vCPUs and {cpus} CPUs",
                workload.name
            );
        }
    }
}

#[test]
fn every_workload_runs_on_few_and_many_cpus() {
    runs_to_the_end(Hypervisor::Kvm);
}

#[test]
fn every_workload_runs_on_xen() {
    runs_to_the_end(Hypervisor::Xen);
}

#[test]
fn equal_seeds_give_equal_numbers_and_others_do_not() {
    for workload in LIBRARY {
        let mut config = config(2, 4, 4, named(workload.name));
        config.run.duration_ns = duration_ns(workload.name) / 2;
        let of = |config: &_| {
            let outcome = run(config);
            let vcpus: Vec<_> = outcome.vms.into_iter().flat_map(|vm| vm.vcpus).collect();
            (vcpus, outcome.stats.meters, outcome.stats.events)
        };
        let first = of(&config);
        assert_eq!(first, of(&config), "{}", workload.name);
        let draws = ["dbench", "dedup", "kernel-build", "redis", "ticks", "vips"];
        config.run.seed += 1;
        if draws.contains(&workload.name) {
            assert_ne!(first.2, of(&config).2, "{}", workload.name);
        }
    }
}

/// Alone on a host with as many CPUs, four times the vCPUs complete about four times as much, unless the
/// workload has a serial part.
#[test]
fn throughput_scales_where_nothing_is_shared() {
    for (workload, least_percent) in [
        (named("busy"), 395),
        (named("cpuid-loop"), 395),
        (named("kernel-build"), 380),
        (named("vips"), 320),
        (with("dedup", &[("fragment_ns", 100), ("queue", 1)]), 330),
        (with("dbench", &[("flush_ns", 1000)]), 250),
        (with("hackbench", &[("groups", 4), ("loops", 10)]), 280),
    ] {
        let on = |vcpus| {
            let mut config = config(1, vcpus, vcpus, workload.clone());
            config.run.duration_ns = duration_ns(&workload.name).min(400 * MS);
            done(&run(&config))
        };
        let (one, four) = (on(1), on(4));
        let percent = four * 100 / one;
        assert!(percent >= least_percent, "{}: {percent} %", workload.name);
        assert!(percent <= 500, "{}: {percent} %", workload.name);
    }
}

/// Two guests that both want the whole host get half of it each.
#[test]
fn guests_share_the_host() {
    for workload in ["busy", "cpuid-loop", "kernel-build"] {
        let alone = done(&run(&config(1, 4, 4, named(workload))));
        let shared = run(&config(2, 4, 4, named(workload)));
        let each: Vec<u64> = shared
            .vms
            .iter()
            .map(|vm| shared.stats.meters[vm.meter].done)
            .collect();
        for part in each {
            let percent = part * 100 / alone;
            assert!((35..=60).contains(&percent), "{workload}: {percent} %");
        }
    }
}

/// A closed loop of clients: the server is never asked more than they can, and latency is theirs
/// to feel (Little's law: clients = throughput × (latency + thinking)).
#[test]
fn redis_obeys_littles_law() {
    for clients in [1, 10, 50] {
        let mut config = config(1, 2, 4, with("redis", &[("clients", clients)]));
        config.run.duration_ns = 1000 * MS;
        config.run.warmup_ns = 50 * MS;
        let outcome = run(&config);
        // From the answer's system call to the moment the host has it, and back.
        let cycle = latency(&outcome) + 100_000;
        // In thousandths of a client.
        let product = done(&outcome) * cycle / 1_000_000;
        let error = product.abs_diff(clients as u64 * 1000) / clients as u64 / 10;
        assert!(error <= 6, "{clients} clients: {product}");
    }
}

/// The latency of a whole run goes with the number of its loops.
#[test]
fn hackbench_runs_take_as_long_as_their_loops() {
    let of = |loops| {
        let workload = with("hackbench", &[("groups", 2), ("fds", 8), ("loops", loops)]);
        let mut config = config(1, 4, 4, workload);
        config.run.warmup_ns = 50 * MS;
        latency(&run(&config))
    };
    let (ten, forty) = (of(10), of(40));
    let percent = forty * 100 / ten;
    assert!((330..=480).contains(&percent), "{percent} %");
}
