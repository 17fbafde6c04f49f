//! Memory and set-up time of large hosts: bytes per CPU, per part of a group, and per task.
//!
//! `cargo run --release -p stealtime-hypervisor --example eevdf_memory`; needs Linux's `/proc`.
#![allow(clippy::unwrap_used, reason = "an example may fail")]

use std::time::Instant;

use stealtime_hypervisor::fair::{Attr, Config, Fair, GroupId, PickMode, RqId, TaskId};

const CPUS: usize = 4096;
const GROUPS: usize = 64;
const TASKS: usize = 100_000;

/// Bytes of this process: address space, resident.
fn bytes() -> [usize; 2] {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let mut pages = statm.split(' ').map(|n| n.parse::<usize>().unwrap());
    [0; 2].map(|_| pages.next().unwrap() * 4096)
}

/// Runs one stage and prints what each of its `count` things took.
fn stage<T>(what: &str, count: usize, run: impl FnOnce() -> T) -> T {
    let (before, start) = (bytes(), Instant::now());
    let made = run();
    let ns = start.elapsed().as_nanos() as usize / count;
    let [reserved, resident] = [0, 1].map(|i| bytes()[i].saturating_sub(before[i]) / count);
    println!("{what}: {resident} bytes resident, {reserved} of address space, {ns} ns");
    made
}

fn main() {
    let mut fair = Fair::new(Config::linux_7_2(16)).unwrap();
    fair.set_self_check(false);
    let fair = &mut fair;
    let rqs: Vec<RqId> = stage("idle CPU", CPUS, || {
        (0..CPUS)
            .map(|_| fair.create_rq(PickMode::Hierarchical).unwrap())
            .collect()
    });
    let groups: Vec<GroupId> = (0..GROUPS)
        .map(|_| fair.create_group(None).unwrap())
        .collect();
    stage("group's part on a CPU", GROUPS * CPUS, || {
        for (group, rq) in groups
            .iter()
            .flat_map(|g| rqs.iter().map(move |rq| (*g, *rq)))
        {
            fair.extend_group(group, rq).unwrap();
        }
    });
    let tasks: Vec<TaskId> = stage("task off the CPUs", TASKS, || {
        (0..TASKS)
            .map(|n| {
                let group = groups[n % GROUPS];
                fair.create_task(Attr::default(), Some(group)).unwrap()
            })
            .collect()
    });
    stage("task joining, a queue per 24", TASKS, || {
        for (n, task) in tasks.iter().enumerate() {
            fair.fork(*task, rqs[n % CPUS], 1).unwrap();
        }
    });
}
