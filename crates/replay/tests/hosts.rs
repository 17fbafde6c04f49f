//! The host of a replay, by what was recorded and by what is assumed.

use common::made::{recording, run, task};
use stealtime_replay::host::{Assumed, FindsIdle, Placement, Policy, as_recorded, knobs};
use stealtime_replay::{Begins, RecordedTask, Recording, Release};
use stealtime_simulator::config::{Config, Costs};
use stealtime_simulator::script::{
    Gaps, Late, Looks, Moves, ScriptConfig, ScriptGroup, SharedGroup, Stall, Step, Then, Ticks,
};

use crate::common;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;
const CPUS: u32 = 4;

fn host(recording: &Recording, assumed: &Assumed) -> Config {
    as_recorded(recording, knobs(recording), assumed, 0)
}

/// The script of a task, on a host with four CPUs.
fn script(task: RecordedTask, assumed: &Assumed) -> ScriptConfig {
    let mut host = host(&recording(S, CPUS, vec![task]), assumed);
    host.scripts.tasks.remove(0)
}

/// A vCPU that has run on CPU 2 so often that it counts as bound, or not.
fn on_cpu_2(is_bound: bool) -> RecordedTask {
    RecordedTask {
        ran_on: vec![2],
        first_cpu: 2,
        switches_in: if is_bound { 20 } else { 19 },
        ..task(7, Some((0, 0)), &[run(MS)])
    }
}

fn pinned(vcpu: (usize, u32), cpus: &[u32]) -> Assumed {
    Assumed {
        pins: vec![(vcpu, cpus.to_vec())],
        ..Assumed::default()
    }
}

/// Where a task may run, and what moves it.
fn place(task: RecordedTask, assumed: &Assumed) -> (Vec<u32>, u32, Moves) {
    let script = script(task, assumed);
    (script.cpus, script.first_cpu, script.moves)
}

const ALL: [u32; 4] = [0, 1, 2, 3];

#[test]
fn the_cpus_of_a_task_are_those_that_the_host_states() {
    let affinity = |cpus: &[u32]| Assumed {
        affinity: [(7, cpus.to_vec())].into(),
        ..Assumed::default()
    };
    for (cpus, found, first_cpu) in [
        (&ALL[..], vec![], 2),
        (&[1, 3], vec![1, 3], 1),
        (&[1, 2], vec![1, 2], 2),
    ] {
        let expected = (found, first_cpu, Moves::Steps);
        assert_eq!(place(on_cpu_2(true), &affinity(cpus)), expected, "{cpus:?}");
    }
}

#[test]
fn a_pin_replaces_the_cpus_of_its_task_alone() {
    let pin = |cpus: &[u32]| place(on_cpu_2(false), &pinned((0, 0), cpus));
    assert_eq!(pin(&[3]), (vec![3], 3, Moves::Steps));
    assert_eq!(pin(&[2, 3]), (vec![2, 3], 2, Moves::Scheduler));
    // A task that is bound to no CPU may use all of them in any case.
    assert_eq!(pin(&ALL), (vec![], 2, Moves::Steps));
    let bound = place(on_cpu_2(true), &pinned((0, 0), &ALL));
    assert_eq!(bound, (ALL.to_vec(), 2, Moves::Scheduler));
    for sibling in [(0, 1), (1, 0)] {
        let unchanged = place(on_cpu_2(false), &pinned(sibling, &[3]));
        assert_eq!(unchanged, (vec![], 2, Moves::Steps));
    }
    let mut twice = pinned((0, 0), &[0]);
    twice.pins.push(((0, 0), vec![1]));
    assert_eq!(place(on_cpu_2(false), &twice).0, [1]);
}

#[test]
fn threads_are_pinned_by_their_ids_and_vcpus_are_not() {
    let assumed = Assumed {
        task_pins: vec![(7, vec![0]), (7, vec![3]), (8, vec![1])],
        ..Assumed::default()
    };
    let thread = RecordedTask {
        vcpu: None,
        ..on_cpu_2(false)
    };
    assert_eq!(place(thread, &assumed).0, [3]);
    assert!(place(on_cpu_2(false), &assumed).0.is_empty());
}

#[test]
fn tasks_move_as_recorded_unless_the_scheduler_places_them() {
    let moves = [(MS, 1), (2 * MS, 0)];
    let moving = RecordedTask {
        moves: moves.into(),
        ..on_cpu_2(false)
    };
    let moved = |placement, timed_moves| {
        let assumed = Assumed {
            placement: Some(placement),
            timed_moves,
            ..Assumed::default()
        };
        script(moving.clone(), &assumed).moves
    };
    let times = Moves::Times(moves.into());
    assert_eq!(moved(Placement::Recorded, true), times);
    assert_eq!(moved(Placement::Recorded, false), Moves::Steps);
    assert_eq!(moved(Placement::Simulated, true), Moves::Scheduler);
}

#[test]
fn a_script_is_its_task_with_stalls_and_calls_where_they_are_assumed() {
    let stall = Stall {
        step: 0,
        after_ns: 1,
        ns: 2,
    };
    let recorded = RecordedTask {
        nice: 5,
        begins: Some(Begins {
            at_ns: 3 * MS,
            is_seen: true,
        }),
        then: Then::Compute,
        alarm_ns: 77,
        ticks: Some(Ticks {
            phase_ns: 1,
            period_ns: 2,
        }),
        stalls: [stall].into(),
        called: Late([(1, 2)].into()),
        ..task(7, Some((1, 3)), &[run(MS), Step::Arm])
    };
    let plain = script(recorded.clone(), &Assumed::default());
    let expected = ScriptConfig {
        preempted: Default::default(),
        name: "task 7".to_owned(),
        nice: 5,
        policy: Policy::Normal,
        cpus: Vec::new(),
        first_cpu: 0,
        starts_ns: 3 * MS,
        vm: Some(1),
        vcpu: Some(3),
        moves: Moves::Steps,
        then: Then::Compute,
        alarm_ns: 77,
        ticks: recorded.ticks,
        steps: recorded.steps.clone(),
        called: Late::default(),
        stalls: [].into(),
    };
    assert_eq!(plain, expected);
    let assumed = Assumed {
        stalls: true,
        finds_idle: Some(FindsIdle::ByUtilization),
        policies: [(7, Policy::Batch)].into(),
        ..Assumed::default()
    };
    let expected = ScriptConfig {
        policy: Policy::Batch,
        called: recorded.called.clone(),
        stalls: recorded.stalls.clone(),
        ..expected
    };
    assert_eq!(script(recorded, &assumed), expected);
}

/// Three VMs: the second one has a limit.
fn three_vms() -> Recording {
    let vcpu = |vm| task(7 + vm as i32, Some((vm, 0)), &[run(MS)]);
    let mut recording = recording(S, CPUS, (0..3).map(vcpu).collect());
    recording.limits = [(1, (20 * MS, 100 * MS))].into();
    recording
}

#[test]
fn vms_have_cgroups_where_these_are_assumed_or_limited() {
    let group = |cpu_weight, cpu_max_ns| {
        Some(ScriptGroup {
            cpu_weight,
            cpu_max_ns,
        })
    };
    let limit = Some((20 * MS, 100 * MS));
    let layout = |assumed: &Assumed| {
        let scripts = host(&three_vms(), assumed).scripts;
        (scripts.groups, scripts.slice, scripts.vcpu_groups)
    };
    let mut assumed = Assumed {
        own_group: [2].into(),
        weights: [(2, 300)].into(),
        ..Assumed::default()
    };
    let some = vec![None, group(100, limit), group(300, None)];
    assert_eq!(layout(&assumed), (some, false, false));
    assumed.groups = Some(true);
    assumed.vcpu_groups = Some(true);
    let all = vec![group(100, None), group(100, limit), group(300, None)];
    assert_eq!(layout(&assumed), (all.clone(), true, true));
    assumed.slice = Some(false);
    assert_eq!(layout(&assumed), (all, false, true));
}

#[test]
fn latencies_of_a_host_are_those_of_its_recording() {
    let late = |time_ns| vec![Late([(time_ns, 1)].into())];
    let mut recorded = three_vms();
    recorded.edges = 9;
    recorded.block_ns = 33;
    (recorded.late, recorded.tick_late) = (late(1), late(5 * MS));
    (recorded.idle_late, recorded.idle_called) = (late(3), late(4));
    recorded.poll_called = late(5);
    recorded.gaps = vec![Gaps([(1, 2)].into())];
    let without = &mut recorded.without_stalls;
    (without.late, without.tick_late) = (late(6), late(7 * MS));
    without.idle_called = late(8);
    let shared = SharedGroup {
        parent: None,
        group: ScriptGroup::default(),
    };
    let mut assumed = Assumed {
        shared_groups: vec![shared],
        shared_by_vm: [(1, 0)].into(),
        balanced: Some(true),
        other_load: true,
        ..Assumed::default()
    };
    let plain = host(&recorded, &assumed);
    assert_eq!(plain.host.profile.costs, Costs::FREE);
    assert_eq!(plain.host.topology.cpus(), CPUS);
    assert_eq!((plain.run.duration_ns, plain.run.warmup_ns), (S, 0));
    let scripts = plain.scripts;
    assert_eq!((scripts.edges, scripts.block_ns), (9, 33));
    assert_eq!((scripts.late, scripts.tick_late), (late(1), late(5 * MS)));
    // Ticks of 4 ms.
    assert_eq!(scripts.tick_phase_ns, MS);
    assert_eq!((scripts.idle_late, scripts.idle_called), (late(3), late(4)));
    assert_eq!(
        (scripts.poll_called, scripts.gaps),
        (late(5), recorded.gaps.clone())
    );
    assert_eq!(scripts.shared_groups, assumed.shared_groups);
    assert_eq!(scripts.shared_by_vm, assumed.shared_by_vm);
    assert!(scripts.balanced && scripts.skips_halts && !scripts.tell);
    assert!(!scripts.idle_takes && !scripts.searches_by_utilization);
    assumed.stalls = true;
    let stalling = host(&recorded, &assumed).scripts;
    assert_eq!((stalling.late, stalling.tick_late), (late(6), late(7 * MS)));
    assert_eq!(
        (stalling.tick_phase_ns, stalling.idle_called),
        (MS, late(8))
    );
    // With lost events not all ticks and moves are known.
    recorded.is_lossy = true;
    let lossy = host(&recorded, &assumed).scripts;
    assert!(lossy.idle_takes && lossy.tick_late.is_empty());
    assert_eq!(lossy.tick_phase_ns, 0);
}

#[test]
fn an_idle_cpu_takes_what_its_wakeups_took_beyond_those_of_busy_ones() {
    let mut recorded = recording(S, 1, Vec::new());
    for (idle_ns, busy_ns, wake_ns, exit_ns) in [
        (Some(50_000), Some(8_000), 8_000, 42_000),
        (Some(3_000), Some(8_000), 3_000, 0),
        (Some(3_000), None, 0, 3_000),
        (None, Some(500), 500, 1_500),
        (None, Some(2 * MS), 1_000_000, 0),
        (Some(5 * MS), Some(2 * MS), 1_000_000, 1_000_000),
    ] {
        (recorded.idle_wake_ns, recorded.wake_ns) = (idle_ns, busy_ns);
        let host = host(&recorded, &Assumed::default());
        let exits = host.host.profile.cstates.iter();
        let exits: Vec<u64> = exits.map(|state| state.exit_latency_ns.into()).collect();
        assert_eq!(
            (host.scripts.wake_ns, exits),
            (wake_ns, vec![exit_ns]),
            "{idle_ns:?}"
        );
    }
}

#[test]
fn knobs_are_what_the_recording_shows() {
    let mut recorded = recording(S, CPUS, Vec::new());
    let usual = knobs(&recorded);
    recorded.halt_poll_ns = Some(77_000);
    recorded.hz = Some(300);
    let shown = knobs(&recorded);
    assert_eq!(
        (shown.kvm.halt_poll.halt_poll_ns, shown.sched.hz),
        (77_000, 300)
    );
    let mut expected = usual;
    (expected.kvm.halt_poll.halt_poll_ns, expected.sched.hz) = (77_000, 300);
    assert_eq!(shown, expected);
}

/// One stall a second is often.
#[test]
fn cpus_look_for_tasks_as_the_recorded_kernel_does() {
    let stall = Stall {
        step: 0,
        after_ns: 0,
        ns: MS,
    };
    let looks = |stalls, span_ns, release: Option<&str>| {
        let mut stalled = task(7, None, &[run(MS)]);
        stalled.stalls = vec![stall; stalls].into();
        let mut recorded = recording(span_ns, CPUS, vec![stalled]);
        recorded.release = release.and_then(Release::of_uname);
        let finds_idle = FindsIdle::of_recording(&recorded);
        let assumed = Assumed {
            finds_idle,
            ..Assumed::default()
        };
        let scripts = host(&recorded, &assumed).scripts;
        (scripts.looks, scripts.searches_by_utilization)
    };
    assert_eq!(looks(2, 2 * S, None), (Looks::Never, true));
    let learned = (Looks::Learned(None), true);
    assert_eq!(looks(2, 2 * S + 1, None), learned);
    assert_eq!(looks(0, S, None), learned);
    assert_eq!(looks(0, S, Some("7.0")), learned);
    assert_eq!(looks(2, 2 * S, Some("6.1")), (Looks::Each, true));
    assert_eq!(looks(2, 2 * S, Some("5.19")), (Looks::Each, false));
}
