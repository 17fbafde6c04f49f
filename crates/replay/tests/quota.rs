//! Limits (`cpu.max`) that VMs of a recording have, where the truth is known: how often each is hit hangs on
//! what the guest happens to do.

use common::kinds::{switch, wakeup, waking};
use common::{Log, host, record};
use stealtime_events::{ExitReason, Kind, VcpuId};
use stealtime_simulator::config::{Config, ParamValue, VmConfig, WorkloadConfig};

use crate::common;

const DURATION_NS: u64 = 5_000_000_000;
const PERIOD_NS: u64 = 100_000_000;
const MS: u64 = 1_000_000;

/// A VM with threads that sleep for 4 ms and then compute for a random time, 2 ms on average.
fn ticks(n: u32, vcpus: u32, quota_ns: Option<u64>) -> VmConfig {
    let workload = WorkloadConfig::named("ticks")
        .with("period_ns", ParamValue::Int(4_000_000))
        .with("work_ns", ParamValue::Int(2_000_000));
    VmConfig {
        name: format!("vm{n}"),
        vcpus,
        workload,
        cpu_max_ns: quota_ns.map(|quota| (quota, PERIOD_NS)),
        ..VmConfig::default()
    }
}

fn busy(n: u32, vcpus: u32) -> VmConfig {
    VmConfig {
        workload: WorkloadConfig::named("busy"),
        ..ticks(n, vcpus, None)
    }
}

/// The limits that are found, VM by VM, in ms.
fn found(config: &Config) -> Vec<Option<u64>> {
    let (recording, _) = record(config);
    let of_vm = |vm| {
        let &(quota, period) = recording.limits.get(&vm)?;
        assert_eq!(period, PERIOD_NS);
        Some(quota / MS)
    };
    (0..config.vms.len()).map(of_vm).collect()
}

#[test]
fn a_limit_that_is_hit_now_and_then_is_found() {
    // One that is hit less than three times is not known.
    for (vcpus, quota, least) in [(1, 34, 4), (1, 38, 2), (2, 70, 4)] {
        let mut times = 0;
        for seed in 1..6 {
            let vms = vec![ticks(0, vcpus, Some(quota * MS)), ticks(1, 1, None)];
            let found = found(&host(3, vms, DURATION_NS, seed));
            println!("{vcpus} {quota} seed {seed}: {found:?}");
            assert_eq!(found[1], None);
            if let Some(ms) = found[0] {
                // What CPUs keep of a period's runtime makes some of the difference.
                assert!(
                    ms.abs_diff(quota) * 10 <= quota,
                    "{ms} of {quota}, seed {seed}"
                );
                times += 1;
            }
        }
        assert!(times >= least, "{vcpus} {quota}: {times}");
    }
}

/// On an overcommitted host, next to a VM with a running period timer, waits are for other tasks.
#[test]
fn a_vm_that_waits_for_others_has_no_limit() {
    for seed in 1..25 {
        let cpus = 1 + (seed % 3) as u32;
        let limited = ticks(0, 1, Some(20 * MS));
        let mut vms = vec![limited, ticks(1, 2, None), busy(2, cpus)];
        if seed % 2 == 0 {
            vms.push(ticks(3, 1, None));
        }
        let found = found(&host(cpus, vms, DURATION_NS / 2, seed));
        assert!(found[1..].iter().all(Option::is_none), "{seed}: {found:?}");
    }
}

#[test]
fn a_limit_that_is_never_hit_is_none() {
    for seed in 1..6 {
        let vms = vec![ticks(0, 1, Some(90 * MS)), ticks(1, 1, None)];
        assert_eq!(found(&host(2, vms, DURATION_NS, seed)), [None, None]);
    }
}

/// A vCPU that runs for the first 20 ms of each period of a timer and leaves its CPU idle until the next one:
/// preempted there, or asleep and woken in the middle.
fn stands_still(is_woken: bool) -> Option<(u64, u64)> {
    let mut log = Log::default();
    let function = log.names.add("sched_cfs_period_timer");
    let vcpu = VcpuId(0);
    let halts = Kind::KvmExit {
        reason: ExitReason::vmx(12),
        vcpu,
        intr_vector: None,
        info1: 0,
    };
    log.add(0, 1, 0, switch(0, 9, 0));
    for period in 0..20 {
        let begin = period * PERIOD_NS;
        let expires = Kind::HrtimerExpireEntry {
            hrtimer: 1,
            now_ns: begin + 1000,
            function,
        };
        log.interrupt(begin + 1000, 1, 9, expires);
        let over = Kind::HrtimerExpireExit { hrtimer: 1 };
        log.interrupt(begin + 2000, 1, 9, over);
        log.add(begin + 50_000, 0, 0, switch(0, 7, 0));
        log.add(begin + 51_000, 0, 7, Kind::KvmEntry { vcpu });
        log.add(begin + 20 * MS, 0, 7, halts);
        let state = u32::from(is_woken);
        log.add(begin + 20 * MS + 1000, 0, 7, switch(7, 0, state));
        if is_woken {
            log.add(begin + 60 * MS, 1, 9, waking(7, 0));
            log.add(begin + 60 * MS + 1000, 1, 9, wakeup(7, 0));
        }
    }
    log.extracted().limits.get(&0).copied()
}

/// A limit takes the CPU from a thread that runs: what waits since it was woken waits for something else.
#[test]
fn a_wait_that_begins_with_a_wakeup_is_no_limit() {
    assert_eq!(stands_still(false), Some((20 * MS, PERIOD_NS)));
    assert_eq!(stands_still(true), None);
}
