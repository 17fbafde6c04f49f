//! Weights (`cpu.weight`) of the VMs of a recording, where the truth is known.

use common::{host, record, replayed};
use stealtime_replay::fit::fit;
use stealtime_replay::host::Assumed;
use stealtime_replay::predict::Errors;
use stealtime_simulator::Fault;
use stealtime_simulator::config::{Config, ParamValue, VmConfig, WorkloadConfig};

use crate::common;

const DURATION_NS: u64 = 1_000_000_000;

/// Workloads of the guests: compute; wake at random and compute for 2 ms on average; wake periodically; wake
/// each other.
const WORKLOADS: [&str; 4] = ["busy", "ticks", "cyclictest", "hackbench"];

/// VM `n` with a workload, so many vCPUs and a weight.
fn vm((n, &(workload, vcpus, cpu_weight)): (usize, &(&str, u32, u32))) -> VmConfig {
    let named = WorkloadConfig::named(workload);
    let int = ParamValue::Int;
    let workload = match workload {
        "ticks" => named
            .with("period_ns", int(4_000_000))
            .with("work_ns", int(2_000_000)),
        "hackbench" => named.with("groups", int(1)).with("fds", int(2)),
        _ => named,
    };
    VmConfig {
        name: format!("vm{n}"),
        vcpus,
        workload,
        cpu_weight,
        ..VmConfig::default()
    }
}

fn config(cpus: u32, vms: &[(&str, u32, u32)], seed: u64) -> Config {
    let vms = vms.iter().enumerate().map(vm).collect();
    host(cpus, vms, DURATION_NS, seed)
}

/// The weights that are taken for the VMs of a recorded host.
fn weights(assumed: &Assumed, vms: usize) -> Vec<u32> {
    let weight = |vm| assumed.weights.get(&vm).copied().unwrap_or(100);
    (0..vms).map(weight).collect()
}

#[test]
fn unequal_weights_are_found() {
    for (cpus, vms) in [
        (1, vec![("busy", 1, 100), ("busy", 1, 300)]),
        (1, vec![("ticks", 2, 300), ("busy", 2, 100)]),
        (2, vec![("ticks", 2, 100), ("busy", 2, 1000)]),
        (
            1,
            vec![("ticks", 2, 100), ("ticks", 2, 100), ("busy", 1, 25)],
        ),
        (
            2,
            vec![("ticks", 2, 100), ("cyclictest", 2, 100), ("busy", 2, 300)],
        ),
        (
            1,
            vec![("busy", 1, 100), ("hackbench", 1, 200), ("ticks", 3, 100)],
        ),
        (
            1,
            vec![("ticks", 2, 100), ("busy", 1, 400), ("ticks", 1, 200)],
        ),
    ] {
        let (recording, was) = record(&config(cpus, &vms, 1));
        let (assumed, _, times) = replayed(&recording, &was);
        let errors = Errors::between(&was, &times, recording.span_ns);
        let (median, p90) = (errors.percentile(50), errors.percentile(90));
        let found = weights(&assumed, vms.len());
        let what = format!("{cpus} CPUs, {vms:?}: {found:?}, {median} {p90} ppm");
        println!("{what}");
        assert_eq!(assumed.groups, Some(true), "{what}");
        for (found, vm) in found.iter().zip(&vms) {
            // A VM that hardly waits gets nearly the CPU time that it needs with any weight.
            let one_in = if vm.0 == "cyclictest" { 2 } else { 5 };
            assert!(found.abs_diff(vm.2) * one_in <= vm.2, "{what}");
            // Where some weights are set, the others are the kernel's 100.
            assert!(one_in == 2 || vm.2 != 100 || *found == 100, "{what}");
        }
        assert!(median <= 10_000, "{what}");
    }
}

/// Hosts of 1 to 3 CPUs with 2 to 4 VMs: noise makes no weights.
#[test]
fn equal_weights_stay_equal() {
    let mut unequal = Vec::new();
    for seed in 0..48 {
        let digit = |at: u32| (seed * 7 + 3) * 31_u64.pow(at + 1) / 11;
        let vm = |n| {
            let workload = WORKLOADS[(digit(n) % 4) as usize];
            (workload, 1 + (digit(n + 4) % 3) as u32, 100)
        };
        let vms: Vec<_> = (0..2 + (seed % 3) as u32).map(vm).collect();
        let (recording, was) = record(&config(1 + (seed / 3 % 3) as u32, &vms, seed));
        let (assumed, _, _) = replayed(&recording, &was);
        if !assumed.weights.is_empty() {
            unequal.push((seed, vms, assumed.weights));
        }
    }
    assert!(unequal.is_empty(), "{unequal:?}");
}

#[test]
fn weights_that_are_given_are_not_fitted() {
    let (recording, was) = record(&config(1, &[("busy", 1, 100), ("busy", 1, 300)], 1));
    let weight = |config: &Config, vm: usize| {
        let groups = &config.scripts.groups;
        groups[vm].as_ref().map(|group| group.cpu_weight)
    };
    for given in [100, 200] {
        let tell = |config: &mut Config| {
            let group = config.scripts.groups[1].get_or_insert_default();
            group.cpu_weight = given;
            Ok::<(), Fault>(())
        };
        let fitted = fit(&recording, &was, &Assumed::default(), tell).expect("it can be replayed");
        let assumed = &fitted.assumed;
        assert!(assumed.weights.is_empty(), "{given}: {assumed:?}");
        assert!(fitted.weights_stated);
        assert_eq!(weight(&fitted.config, 1), Some(given));
    }
    let given = Assumed {
        groups: Some(false),
        ..Assumed::default()
    };
    let none_given = |_: &mut Config| Ok::<(), Fault>(());
    let fitted = fit(&recording, &was, &given, none_given).expect("it can be replayed");
    assert!(fitted.assumed.weights.is_empty() && weight(&fitted.config, 1).is_none());
}

/// The user's settings change the cgroups that a host has, and make none.
#[test]
fn weights_of_the_cgroups_that_there_are_are_stated() {
    let (recording, was) = record(&config(1, &[("busy", 1, 100), ("busy", 1, 300)], 1));
    let equal = |config: &mut Config| {
        for group in config.scripts.groups.iter_mut().flatten() {
            group.cpu_weight = 100;
        }
        Ok::<(), Fault>(())
    };
    let fitted = fit(&recording, &was, &Assumed::default(), equal).expect("it can be replayed");
    assert!(fitted.weights_stated && fitted.assumed.weights.is_empty());
}
