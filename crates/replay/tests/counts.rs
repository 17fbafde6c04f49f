//! Hosts with other numbers of VMs and CPUs than recorded.

use std::collections::BTreeSet;

use common::drawn::{ANY, COUPLED, Choices, Drawn};
use common::{extracted, record, replayed};
use stealtime_replay::host::{Assumed, FindsIdle, Policy, as_recorded};
use stealtime_replay::predict::{Times, demand_ns, replay};
use stealtime_replay::{Counted, Counts, OnCpus, RecordedTask, Recording, Release, copy_bytes};
use stealtime_simulator::config::{Config, VmConfig};
use stealtime_simulator::script::{Stall, Step, Until};
use stealtime_simulator::{Collected, run};

use crate::common;

fn counts(list: &[(usize, u32)]) -> Counts {
    let mut counts = Counts::default();
    for &(vm, count) in list {
        counts.set(vm, count);
    }
    counts
}

fn vms(recording: &Recording) -> usize {
    stealtime_replay::host::vms(recording)
}

fn edges(recording: &Recording, reached: bool) -> BTreeSet<u32> {
    let steps = recording.tasks.iter().flat_map(|task| task.steps.iter());
    let edge = |step: &Step| match *step {
        Step::Reach(edge) if reached => Some(edge.0),
        Step::Sleep(
            Until::Edge(edge) | Until::Work { edge, .. } | Until::AfterEdge { edge, .. },
        )
        | Step::Halt(
            Until::Edge(edge) | Until::Work { edge, .. } | Until::AfterEdge { edge, .. },
        ) if !reached => Some(edge.0),
        _ => None,
    };
    steps.filter_map(edge).collect()
}

/// Recordings of random hosts, some with vCPUs that wake each other.
fn recordings() -> impl Iterator<Item = (Config, Recording, Times)> {
    let drawn = |seed| match seed % 2 {
        0 => ANY.scenario(seed),
        _ => COUPLED.scenario(seed),
    };
    (0..10).map(move |seed| {
        let config = drawn(seed);
        let (recording, was) = record(&config);
        (config, recording, was)
    })
}

fn config(recording: &Recording, base: &Config, assumed: &Assumed, seed: u64) -> Config {
    as_recorded(recording, base.knobs.clone(), assumed, seed)
}

#[test]
fn cpus_that_stall_do_not_look_for_tasks() {
    let (mut recording, _) = record(&ANY.scenario(1));
    recording.newidle = Default::default();
    let unknown = FindsIdle::AtChance(recording.newidle);
    assert_eq!(FindsIdle::of_recording(&recording), Some(unknown));
    let stall = Stall {
        step: 0,
        after_ns: 0,
        ns: 1_000_000,
    };
    recording.tasks[0].stalls = vec![stall; 10].into();
    let stalled = FindsIdle::of_recording(&recording);
    assert_eq!(stalled, Some(FindsIdle::Stalled));
    // It shows that they look.
    recording.newidle.pulled = 10;
    let known = FindsIdle::AtChance(recording.newidle);
    assert_eq!(FindsIdle::of_recording(&recording), Some(known));
    // Kernels before 6.0 do not search by utilization, and those before 7.0 look each time.
    for (release, finds_idle) in [
        ("5.19", None),
        ("6.0", Some(FindsIdle::ByUtilization)),
        ("6.19", Some(FindsIdle::ByUtilization)),
        ("7.0", Some(known)),
    ] {
        recording.release = Release::of_uname(release);
        let found = FindsIdle::of_recording(&recording);
        assert_eq!(found, finds_idle, "{release}");
    }
}

#[test]
fn copies_of_the_hosts_vms_take_memory() {
    let (recording, _) = record(&ANY.scenario(1));
    let copy = copy_bytes(&recording, 0);
    let tasks = recording.tasks.iter().filter(|task| task.vm == Some(0));
    // A replay has the recorded script and one with other times.
    let least = tasks.map(|task| 2 * size_of_val(&task.steps[..]) + size_of_val(&task.exits[..]));
    let least = least.sum::<usize>() as u64;
    assert!((least..2 * least).contains(&copy), "{least} {copy}");
    for (count, bytes) in [(0, 0), (1, 0), (2, copy), (4, 3 * copy)] {
        assert_eq!(counts(&[(0, count)]).bytes(&recording), bytes, "{count}");
    }
}

#[test]
fn one_of_each_is_the_recording() {
    for (_, recording, was) in recordings().take(4) {
        let (assumed, base, _) = replayed(&recording, &was);
        let unchanged = Counted::new(&recording, vms(&recording), &counts(&[(0, 1)]), 5);
        assert_eq!(
            config(&unchanged.recording, &base, &assumed, 5),
            config(&recording, &base, &assumed, 5)
        );
    }
}

#[test]
fn a_removed_vm_leaves_no_reference() {
    for (_, recording, was) in recordings() {
        let (assumed, base, _) = replayed(&recording, &was);
        let changed = Counted::new(&recording, vms(&recording), &counts(&[(0, 0)]), 1);
        let rest = &changed.recording;
        assert!(rest.tasks.iter().all(|task| task.vm != Some(0)));
        let awaited = edges(rest, false);
        assert!(awaited.is_subset(&edges(rest, true)));
        let times = replay(rest, &config(rest, &base, &changed.assumed(&assumed), 1));
        let times = times.expect("it can be replayed");
        assert!(times.vcpus.iter().all(|vcpu| vcpu.vm != 0));
        // Others wait less or as long, within what chance moves.
        let ready = |times: &Times| {
            let vcpus = times.vcpus.iter().filter(|vcpu| vcpu.vm != 0);
            vcpus.map(|vcpu| vcpu.ready_ns).sum::<u64>()
        };
        assert!(ready(&times) <= ready(&was) + recording.span_ns / 20);
    }
}

fn of_vm(recording: &Recording, vm: usize) -> Vec<&RecordedTask> {
    let tasks = recording.tasks.iter();
    tasks.filter(|task| task.vm == Some(vm)).collect()
}

#[test]
fn a_copy_does_the_same_work_from_another_phase() {
    for (_, recording, _) in recordings() {
        let first = vms(&recording);
        let changed = Counted::new(&recording, first, &counts(&[(0, 3)]), 7);
        assert_eq!(changed.copies.len(), 2);
        let rest = &changed.recording;
        let awaited = edges(rest, false);
        assert!(awaited.is_subset(&edges(rest, true)));
        assert!(awaited.iter().all(|&edge| edge < rest.edges));
        let mut tids = BTreeSet::new();
        assert!(rest.tasks.iter().all(|task| tids.insert(task.tid)));
        for copy in &changed.copies {
            let pairs = of_vm(&recording, 0);
            let copied = of_vm(rest, copy.vm);
            assert_eq!(pairs.len(), copied.len());
            for (task, copied) in pairs.iter().zip(copied) {
                assert_eq!(demand_ns(task), demand_ns(copied));
                assert_eq!(task.exits.len(), copied.exits.len());
                assert!(copied.exits.is_sorted_by_key(|exit| exit.0));
                assert_eq!(task.stalls.len(), copied.stalls.len());
                if task.steps.len() > 100 {
                    assert_ne!(task.steps, copied.steps);
                }
            }
        }
        // Phases do not depend on how many there are.
        let two = Counted::new(&recording, first, &counts(&[(0, 2)]), 7);
        let steps = |recording: &Recording| {
            let tasks = of_vm(recording, first).into_iter();
            tasks.map(|task| task.steps.clone()).collect::<Vec<_>>()
        };
        assert_eq!(steps(&two.recording), steps(rest));
    }
}

/// What the host has for tasks of a VM it has for those of its copies, and for no others.
#[test]
fn copies_have_policies_and_cpus_of_their_originals() {
    let (recording, _) = record(&COUPLED.scenario(1));
    let of_tid = |tid: i32| (tid % 2 == 0).then_some(Policy::Batch);
    let tids = || recording.tasks.iter().map(|task| task.tid);
    let assumed = Assumed {
        policies: tids().filter_map(|tid| Some((tid, of_tid(tid)?))).collect(),
        affinity: tids().map(|tid| (tid, vec![tid as u32])).collect(),
        task_pins: tids().map(|tid| (tid, vec![tid as u32 + 1])).collect(),
        ..Assumed::default()
    };
    let changed = Counted::new(&recording, vms(&recording), &counts(&[(1, 3)]), 7);
    let assumed = changed.assumed(&assumed);
    for copy in &changed.copies {
        let originals = of_vm(&recording, 1);
        let copies = of_vm(&changed.recording, copy.vm);
        assert_eq!(originals.len(), copies.len());
        for (original, copied) in originals.iter().zip(copies) {
            let tid = original.tid;
            let policy = assumed.policies.get(&copied.tid).copied();
            assert_eq!(policy, of_tid(tid));
            assert_eq!(assumed.affinity[&copied.tid], [tid as u32]);
            let pins = assumed.task_pins.iter().filter(|pin| pin.0 == copied.tid);
            let pins: Vec<_> = pins.map(|pin| pin.1.clone()).collect();
            assert_eq!(pins, [[tid as u32 + 1]]);
        }
    }
}

/// One more copy of a VM takes time from the others, or none.
#[test]
fn others_wait_no_less_with_more_of_a_vm() {
    const SEEDS: u64 = 2;
    for (_, recording, was) in recordings().take(5) {
        let (assumed, base, _) = replayed(&recording, &was);
        let ready = |count: u32| {
            let of_seed = |seed| {
                let changed =
                    Counted::new(&recording, vms(&recording), &counts(&[(0, count)]), seed);
                let host = config(&changed.recording, &base, &changed.assumed(&assumed), seed);
                let times = replay(&changed.recording, &host).expect("it can be replayed");
                let recorded = 1..vms(&recording);
                let vcpus = times
                    .vcpus
                    .iter()
                    .filter(|vcpu| recorded.contains(&vcpu.vm));
                vcpus.map(|vcpu| vcpu.ready_ns).sum::<u64>()
            };
            (1..=SEEDS).map(of_seed).sum::<u64>() / SEEDS
        };
        let (crowded, more) = (ready(2), ready(4));
        assert!(more + recording.span_ns / 20 >= crowded, "{more} {crowded}");
    }
}

/// With a CPU for each vCPU a copy gets done what its VM did, and takes nothing from others.
#[test]
fn a_copy_with_cpus_of_its_own_does_what_its_vm_did() {
    for seed in 0..6 {
        let mut host = ANY.scenario(seed);
        host.host.topology = stealtime_simulator::config::Topology::flat(16);
        let (recording, was) = record(&host);
        let (assumed, base, _) = replayed(&recording, &was);
        let changed = Counted::new(&recording, vms(&recording), &counts(&[(0, 2)]), 1);
        let rest = &changed.recording;
        let host = config(rest, &base, &changed.assumed(&assumed), 1);
        let times = replay(rest, &host).expect("it can be replayed");
        let run = |vm| {
            let vcpus = times.vcpus.iter().filter(|vcpu| vcpu.vm == vm);
            vcpus.map(|vcpu| vcpu.run_ns).sum::<u64>()
        };
        let copy = changed.copies[0].vm;
        let (original, copied) = (run(0), run(copy));
        assert!(
            original.abs_diff(copied) < original / 10 + recording.span_ns / 100,
            "seed {seed}: {original} {copied}"
        );
    }
}

#[test]
fn adding_and_removing_gives_the_recording_back() {
    for (_, recording, was) in recordings().take(6) {
        let (assumed, base, _) = replayed(&recording, &was);
        let first = vms(&recording);
        let counts = counts(&[(0, 3), (1, 0), (0, 1), (1, 1)]);
        let restored = Counted::new(&recording, first, &counts, 3);
        assert_eq!(
            config(&restored.recording, &base, &assumed, 3),
            config(&recording, &base, &assumed, 3)
        );
        // Copies that are taken away leave what they were added to.
        let two = self::counts(&[(0, 2), (1, 2)]);
        let larger = Counted::new(&recording, first, &two, 3);
        let single = Counted::new(&recording, first, &self::counts(&[(0, 2)]), 3);
        let copy = larger.copies[1].vm;
        let smaller = self::counts(&[(copy, 0)]);
        let smaller = Counted::new(&larger.recording, first + 2, &smaller, 3);
        let times = |counted: &Counted| {
            let assumed = counted.assumed(&assumed);
            let host = config(&counted.recording, &base, &assumed, 3);
            replay(&counted.recording, &host).expect("it can be replayed")
        };
        assert_eq!(times(&smaller).vcpus, times(&single).vcpus);
    }
}

/// What is added where VMs are gone is added once.
#[test]
fn counting_again_is_counting_once() {
    let with_three = |host: &(Config, Recording, Times)| vms(&host.1) >= 3;
    let mut hosts = recordings().filter(with_three).take(4).peekable();
    assert!(hosts.peek().is_some());
    for (_, recording, was) in hosts {
        let (assumed, base, _) = replayed(&recording, &was);
        let first = vms(&recording);
        let count = |recording: &Recording, list: &[(usize, u32)]| {
            Counted::new(recording, first, &counts(list), 3).recording
        };
        let config = |counted: &Recording| config(counted, &base, &assumed, 3);
        let together = count(&recording, &[(0, 0), (1, 0)]);
        let each = count(&count(&recording, &[(0, 0)]), &[(1, 0)]);
        assert_eq!(config(&each), config(&together));
        let together = count(&recording, &[(0, 0), (1, 2)]);
        let each = count(&count(&recording, &[(0, 0)]), &[(1, 2)]);
        assert_eq!(config(&each), config(&together));
    }
}

#[test]
fn a_host_with_other_cpus_has_all_tasks_that_can_run() {
    for (host, recording, was) in recordings() {
        let (assumed, base, _) = replayed(&recording, &was);
        let cpus = host.host.topology.cpus();
        for list in [vec![0], (0..2 * cpus).map(|cpu| cpu % cpus).collect()] {
            let changed = OnCpus::new(&recording, list.clone());
            let assumed = changed.assumed(&assumed).expect("no task is bound");
            let rest = &changed.recording;
            assert_eq!(rest.cpus as usize, list.len());
            assert_eq!(of_vm(rest, 0).len(), of_vm(&recording, 0).len());
            let times = replay(rest, &config(rest, &base, &assumed, 1));
            let ran: u64 = times
                .expect("it can be replayed")
                .vcpus
                .iter()
                .map(|vcpu| vcpu.run_ns)
                .sum();
            assert!(ran <= recording.span_ns * list.len() as u64);
        }
        let mut bound = assumed.clone();
        let mut tasks = recording.tasks.iter();
        let task = tasks.find(|task| task.vcpu == Some((0, 0)));
        let task = task.expect("it ran");
        bound.affinity.insert(task.tid, vec![0]);
        if cpus > 1 {
            let changed = OnCpus::new(&recording, vec![1]);
            let error = changed.assumed(&bound).expect_err("bound");
            assert_eq!(error.tid, task.tid);
            // A pin replaces what the host has.
            bound.pins.push(((0, 0), vec![0, 1]));
            let pinned = changed.assumed(&bound).expect("it can run on CPU 1");
            assert_eq!(pinned.pins.last().expect("a pin").1, [0]);
        }
    }
}

/// A simulated host with more of its first VM: the truth.
fn with_more(config: &Config, count: u32) -> Config {
    let mut larger = config.clone();
    let first = larger.vms[0].clone();
    let copy = |number| VmConfig {
        name: format!("copy{number}"),
        ..first.clone()
    };
    larger.vms.extend((2..=count).map(copy));
    larger
}

/// Ready and running time of each VM in ppm of its vCPUs' time; VMs in the order of the truth's.
fn shares(times: &Times, order: &[usize], span_ns: u64) -> Vec<[i64; 2]> {
    let share = |&vm: &usize| {
        let vcpus: Vec<_> = times.vcpus.iter().filter(|vcpu| vcpu.vm == vm).collect();
        let whole = span_ns as i64 / 1_000 * vcpus.len().max(1) as i64;
        let ready: u64 = vcpus.iter().map(|vcpu| vcpu.ready_ns).sum();
        let run: u64 = vcpus.iter().map(|vcpu| vcpu.run_ns).sum();
        [ready as i64 * 1_000 / whole, run as i64 * 1_000 / whole]
    };
    order.iter().map(share).collect()
}

/// How many of all shares of waiting and running are predicted within 5 % of the span.
fn predicted(drawn: Drawn, seeds: core::ops::Range<u64>) -> (usize, usize) {
    const SEEDS: u64 = 3;
    let (mut near, mut total) = (0, 0);
    for seed in seeds {
        let host = drawn.scenario(seed);
        let count = 2 + Choices(seed ^ 0xc0de).below(2) as u32;
        let (recording, was) = record(&host);
        let (assumed, base, _) = replayed(&recording, &was);
        let first = vms(&recording);
        let mut sink = Collected::default();
        run(&with_more(&host, count), &mut sink).expect("a good configuration");
        let (truth, answers) = extracted(&sink.events, &sink.names);
        let truth = stealtime_replay::predict::recorded(&truth, &answers);
        let name = |vm: usize| host.vms.get(vm).map(|vm| vm.name.clone());
        let index = |name: &str| answers.vms.iter().position(|vm| vm.vm == name);
        let order: Vec<usize> = (0..first)
            .chain(first..first + count as usize - 1)
            .collect();
        let true_order = order.iter().map(|&vm| {
            let copy = || format!("copy{}", vm - first + 2);
            index(&name(vm).unwrap_or_else(copy)).unwrap_or(vm)
        });
        let true_order: Vec<usize> = true_order.collect();
        let seen = shares(&truth, &true_order, recording.span_ns);
        let mut sums = vec![[0i64; 2]; order.len()];
        for seed in 1..=SEEDS {
            let changed = Counted::new(&recording, first, &counts(&[(0, count)]), seed);
            // The host is no kernel of today: its CPUs look for tasks each time.
            let assumed = Assumed {
                finds_idle: None,
                ..changed.assumed(&assumed)
            };
            let host = config(&changed.recording, &base, &assumed, seed);
            let times = replay(&changed.recording, &host).expect("it can be replayed");
            for (sum, share) in sums
                .iter_mut()
                .zip(shares(&times, &order, recording.span_ns))
            {
                sum[0] += share[0];
                sum[1] += share[1];
            }
        }
        for (sum, seen) in sums.iter().zip(&seen) {
            for n in 0..2 {
                let mean = sum[n] / SEEDS as i64;
                let is_near = mean.abs_diff(seen[n]) <= 50_000;
                near += usize::from(is_near);
                total += 1;
            }
        }
        println!("seed {seed} x{count}: {sums:?} (of {SEEDS}) seen {seen:?}");
    }
    println!("{near} of {total} within 5 %");
    (near, total)
}

#[test]
fn copies_wait_as_more_guests_do() {
    let (near, total) = predicted(ANY, 0..8);
    assert!(near * 10 >= total * 8, "{near} of {total}");
}

#[test]
#[ignore = "a hundred runs: for docs/replay-accuracy.md"]
fn copies_wait_as_more_guests_do_on_a_hundred_hosts() {
    for drawn in [ANY, COUPLED] {
        let (near, total) = predicted(drawn, 100..150);
        assert!(near * 10 >= total * 7, "{near} of {total}");
    }
}
