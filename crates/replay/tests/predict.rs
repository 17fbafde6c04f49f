//! Recordings and replays as numbers that can be compared.

use std::collections::BTreeMap;

use common::extracted;
use common::made::{exit, of_tasks, run, thread, times, vcpu_task};
use stealtime_analysis::answers::{VcpuTime, Vm};
use stealtime_events::ExitReason;
use stealtime_replay::host::Assumed;
use stealtime_replay::predict::{Errors, OtherTimes, Times, VcpuTimes, recorded};
use stealtime_replay::{Begins, RecordedTask};
use stealtime_simulator::NameList;
use stealtime_simulator::script::{Step, Then, Until};

use crate::common;

const MS: u64 = 1_000_000;
const HLT: u32 = 12;
const MSR: u32 = 32;
const IO: u32 = 30;

fn exits<const N: usize>(counts: [(u32, u64); N]) -> BTreeMap<ExitReason, u64> {
    let counts = counts.into_iter();
    counts.map(|(code, n)| (ExitReason::vmx(code), n)).collect()
}

/// Running, ready and halted time.
fn spent<const N: usize>(ns: [u64; 3], counts: [(u32, u64); N]) -> VcpuTimes {
    VcpuTimes {
        run_ns: ns[0],
        ready_ns: ns[1],
        halted_ns: ns[2],
        exits: exits(counts),
        ..VcpuTimes::default()
    }
}

#[test]
fn errors_are_shares_of_the_span_and_of_frequent_exits() {
    let of = |vcpus: [VcpuTimes; 2]| Times {
        vcpus: vcpus.into(),
        ..Times::default()
    };
    let gap = VcpuTimes {
        unknown_ns: 100,
        ..spent([500, 100, 300], [(HLT, 60), (IO, 99), (MSR, 100)])
    };
    let was = of([gap, spent([900, 0, 100], [(HLT, 60)])]);
    // It waits in the gap, and 10 ns longer than recorded.
    let is = of([
        spent([520, 70, 410], [(HLT, 63), (MSR, 99)]),
        spent([890, 10, 100], [(HLT, 45), (IO, 7)]),
    ]);
    let errors = Errors::between(&was, &is, 1_000);
    let sorted = [0, 10_000, 10_000, 10_000, 20_000, 30_000];
    assert_eq!(errors.of_span_ppm, sorted);
    // 108 halts of 120, 99 accesses of 100; less than 100 do not count.
    assert_eq!(errors.of_exits_ppm, [10_000, 100_000]);
    assert_eq!(errors.worst_exits(), 100_000);
    let percentiles = [0, 16, 17, 50, 66, 67, 83, 84, 100].map(|n| errors.percentile(n));
    let expected = [0, 0, 1, 1, 1, 2, 2, 3, 3].map(|n| n * 10_000);
    assert_eq!(percentiles, expected);
    assert_eq!(Errors::default().percentile(50), 0);
    assert_eq!(Errors::default().worst_exits(), 0);
}

#[test]
fn known_time_is_on_a_cpu_or_waiting_for_one_or_asleep() {
    assert_eq!(spent([400, 30, 2], []).known_ns(), 432);
}

/// What is answered of the thread with this id, all as vCPU 0 of a VM named `vm`.
fn answered(tid: i32, on_cpu_ns: u64) -> VcpuTime {
    VcpuTime {
        vm: "vm".to_owned(),
        vcpu: 0,
        tid,
        on_cpu_ns,
        poll_ns: Some(30),
        halt_ns: 4_000,
        preempted_ns: 200,
        wake_wait_ns: 50,
        unknown_ns: 700,
        ..VcpuTime::default()
    }
}

#[test]
fn a_recording_has_the_times_of_its_own_threads() {
    let begins = |is_seen| {
        Some(Begins {
            at_ns: 300,
            is_seen,
        })
    };
    let steps = vec![
        run(800),
        exit(100, HLT),
        Step::Halt(Until::Time(9)),
        exit(7, MSR),
    ];
    let vcpu = |tid, begins| RecordedTask {
        begins,
        exits: [(1, HLT), (3, MSR), (4, MSR)]
            .map(|(step, code)| (step, ExitReason::vmx(code)))
            .into(),
        ..vcpu_task(tid, (0, 0), steps.clone())
    };
    let of_vm = RecordedTask {
        vm: Some(0),
        ..thread(4, vec![run(3_000), Step::Sleep(Until::Time(9)), run(2_000)])
    };
    let tasks = vec![
        // The VM was started again, twice.
        vcpu(1, None),
        vcpu(2, begins(true)),
        vcpu(3, begins(false)),
        of_vm,
        thread(5, vec![run(600)]),
    ];
    let mut recording = of_tasks(tasks, MS);
    let mut answers = extracted(&[], &NameList::default()).1;
    let wakeups = &mut recording.wakeups;
    wakeups.samples.insert(2, vec![9, 4, 6]);
    wakeups.ready_ns.extend([(1, 8), (4, 70), (5, 5)]);
    answers.vms = vec![Vm {
        vm: "vm".to_owned(),
        pid: None,
        vcpus: 1,
        grouped_by: String::new(),
        guessed: false,
    }];
    answers.vcpus = vec![answered(3, 103), answered(2, 102), answered(1, 101)];
    let times = recorded(&recording, &answers);
    let expected = |run_ns, unknown_ns, wakeups: &[u64]| VcpuTimes {
        run_ns,
        ready_ns: 250,
        halted_ns: 4_000,
        unknown_ns,
        poll_ns: 30,
        in_halts_ns: 30,
        host_ns: 107,
        exits: exits([(HLT, 1), (MSR, 2)]),
        wakeups: wakeups.to_vec(),
        done_permille: 1_000,
        ..VcpuTimes::default()
    };
    let vcpus = [
        expected(101, 700, &[]),
        expected(102, 700, &[4, 6, 9]),
        // It was first seen then: its replay begins there too.
        expected(103, 400, &[]),
    ];
    assert_eq!(times.vcpus, vcpus);
    let of = |run_ns, ready_ns| OtherTimes { run_ns, ready_ns };
    assert_eq!(times.others, of(5_600, 75));
    assert_eq!(times.vm_threads, BTreeMap::from([(0, of(5_000, 70))]));
}

/// A vCPU that computes, halts until 20 ms, and computes again: 8 ms of 10 are the guest's.
fn twice() -> RecordedTask {
    let steps = vec![
        run(3 * MS),
        exit(MS, IO),
        Step::Halt(Until::Time(20 * MS)),
        exit(MS, IO),
        run(5 * MS),
    ];
    RecordedTask {
        exits: [(1, IO), (2, HLT), (3, IO), (4, MSR)]
            .map(|(step, code)| (step, ExitReason::vmx(code)))
            .into(),
        ..vcpu_task(0, (0, 0), steps)
    }
}

/// Its replay in so long.
fn replayed(task: RecordedTask, span_ns: u64) -> VcpuTimes {
    let recording = of_tasks(vec![task], span_ns);
    let times = times(&recording, &Assumed::default());
    times.vcpus[0].clone()
}

/// Work in permille, the host's part of it in ms, and exits by IO, HLT and MSR accesses.
fn done(then: Then, span_ms: u64) -> (u64, f64, [u64; 3]) {
    let times = replayed(RecordedTask { then, ..twice() }, span_ms * MS);
    let count = |code| times.exits.get(&ExitReason::vmx(code)).copied();
    let counts = [IO, HLT, MSR].map(|code| count(code).unwrap_or(0));
    (times.done_permille, times.host_ns as f64 / 1e6, counts)
}

#[test]
fn a_replay_counts_the_steps_that_scripts_began() {
    // It halts since 4 ms, has done all after 26 ms, or begins again, to halt for 20 ms from 30 ms on.
    for then in [Then::End, Then::Repeat] {
        assert_eq!(done(then, 10), (400, 1.0, [1, 1, 0]));
    }
    assert_eq!(done(Then::End, 26), (1_000, 2.0, [2, 1, 1]));
    assert_eq!(done(Then::End, 100), (1_000, 2.0, [2, 1, 1]));
    // Exits of repeated work are at the recording's average rate.
    assert_eq!(done(Then::Repeat, 30), (1_400, 3.0, [3, 1, 1]));
    assert_eq!(done(Then::Repeat, 60), (2_400, 5.0, [5, 2, 2]));
    assert_eq!(done(Then::Repeat, 100), (4_000, 8.0, [8, 4, 4]));
}

#[test]
fn a_vcpu_that_computes_on_does_as_much_as_it_runs() {
    assert_eq!(done(Then::Compute, 10), (400, 0.8, [1, 1, 0]));
    assert_eq!(done(Then::Compute, 30), (1_400, 2.8, [3, 1, 1]));
    assert_eq!(done(Then::Compute, 44), (2_800, 5.6, [6, 3, 3]));
}

#[test]
fn the_ways_to_sleep_and_back_are_part_of_halts() {
    let mut steps = twice().steps.to_vec();
    steps.insert(3, Step::Slept(20_000));
    let mut recording = of_tasks(vec![vcpu_task(0, (0, 0), steps)], 100 * MS);
    recording.block_ns = 30_000;
    // Of 5 us it takes the woken vCPU 2 us to compete for the CPU, which leaves its idle state meanwhile.
    (recording.idle_wake_ns, recording.wake_ns) = (Some(5_000), Some(2_000));
    let times = times(&recording, &Assumed::default());
    let vcpu = &times.vcpus[0];
    assert_eq!(vcpu.in_halts_ns - vcpu.poll_ns, 50_000, "{vcpu:?}");
    assert_eq!(vcpu.run_ns, 10 * MS + 50_000, "{vcpu:?}");
    assert_eq!(vcpu.wakeups, [5_000]);
}

/// Two threads share a CPU, one of which works for the VM.
#[test]
fn a_replay_has_times_of_other_threads() {
    let of_vm = RecordedTask {
        vm: Some(0),
        ..thread(1, vec![run(2 * MS)])
    };
    let other = RecordedTask {
        ran_on: vec![1],
        first_cpu: 1,
        ..thread(2, vec![run(3 * MS)])
    };
    let recording = of_tasks(vec![twice(), of_vm, other], 100 * MS);
    let times = times(&recording, &Assumed::default());
    assert_eq!(times.vcpus.len(), 1);
    let (others, of_vm) = (times.others, times.vm_threads[&0]);
    assert_eq!((others.run_ns, of_vm.run_ns), (5 * MS, 2 * MS));
    // The last of the two waits for the other one, and the first one for at most as long.
    assert!((2 * MS..=5 * MS).contains(&others.ready_ns), "{others:?}");
    assert!(of_vm.ready_ns <= 3 * MS, "{of_vm:?}");
}
