//! What a recording with other numbers of its VMs has, task by task.

use common::made::{recording, run, task, wait};
use stealtime_events::ExitReason;
use stealtime_replay::host::{Assumed, FindsIdle, Placement, Policy};
use stealtime_replay::{Counted, Counts, Guest, RecordedTask, Recording, VmCopy, copy_bytes};
use stealtime_simulator::script::{Stall, Step, Until};

use crate::common;

const MS: u64 = 1_000_000;
const SPAN: u64 = 10 * MS;
const ARMED: Until = Until::Armed { ns: MS, exit_us: 0 };

/// A vCPU that computes for 1 ms and halts for as long, four times. Timers end the first halts, and times the
/// others.
fn halting(tid: i32, vm: usize, timers: usize) -> RecordedTask {
    let (mut steps, mut waits) = (Vec::new(), Vec::new());
    for turn in 0..4 {
        let ended_ns = (2 * turn + 2) * MS;
        waits.push(wait(2 * turn as u32 + 1, ended_ns - MS, ended_ns));
        let end = match turn < timers as u64 {
            true => ARMED,
            false => Until::Time(ended_ns),
        };
        steps.extend([run(MS), Step::Halt(end)]);
    }
    RecordedTask {
        waits: waits.into(),
        moves: [(MS, 1)].into(),
        ..task(tid, Some((vm, 0)), &steps)
    }
}

/// VM 0 has timers alone, and VM 1 other waits too. A thread works for no VM.
fn host() -> Recording {
    let thread = task(6, None, &[run(MS)]);
    let tasks = vec![halting(7, 0, 4), halting(8, 1, 2), thread];
    let mut host = recording(SPAN, 4, tasks);
    host.limits = [(0, (1, 2)), (1, (3, 4))].into();
    host.never_ran = vec![(0, 7), (1, 7)];
    host
}

fn counts(list: &[(usize, u32)]) -> Counts {
    let mut counts = Counts::default();
    list.iter().for_each(|&(vm, count)| counts.set(vm, count));
    counts
}

fn counted(list: &[(usize, u32)], seed: u64) -> Counted {
    Counted::new(&host(), 2, &counts(list), seed)
}

fn steps_of(recording: &Recording, tid: i32) -> Vec<Step> {
    common::text::task(recording, tid).steps.to_vec()
}

fn at_times(tid: i32, vm: usize) -> Vec<Step> {
    halting(tid, vm, 0).steps.to_vec()
}

#[test]
fn counts_say_which_vms_go_and_come() {
    let mut changed = counts(&[(0, 3), (1, 0)]);
    assert!(!changed.is_as_recorded() && !changed.has_guests());
    changed.set_guest(5, 2);
    assert_eq!(changed.removed().collect::<Vec<_>>(), [1]);
    let copy = |(vm, original, number)| VmCopy {
        vm,
        original,
        number,
    };
    let copies = [(7, 0, 2), (8, 0, 3), (9, 5, 1), (10, 5, 2)].map(copy);
    assert_eq!(changed.copies(7), copies);
    let mut guests = Counts::default();
    guests.set_guest(5, 1);
    assert!(!guests.is_as_recorded() && guests.has_guests());
    assert!(Counts::default().is_as_recorded());
}

#[test]
fn a_copy_takes_the_memory_of_its_own_vm() {
    let mut host = host();
    let steps = |count| vec![run(1); count];
    host.tasks[0].steps = steps(300).into();
    host.tasks[1].steps = steps(100).into();
    let more = copy_bytes(&host, 0) - copy_bytes(&host, 1);
    assert_eq!(more, 200 * 2 * size_of::<Step>() as u64);
    host.tasks[1].steps = steps(0).into();
    let single = copy_bytes(&host, 1);
    assert_eq!(single, size_of::<RecordedTask>() as u64);
    host.tasks[1].exits = vec![(0, ExitReason::vmx(1)); 50];
    let exits = copy_bytes(&host, 1) - single;
    assert_eq!(exits, 50 * size_of::<(usize, ExitReason)>() as u64);
    let copies = counts(&[(0, 3), (1, 0)]).bytes(&host);
    assert_eq!(copies, 2 * copy_bytes(&host, 0));
}

#[test]
fn a_vm_that_goes_takes_what_is_known_of_it_along() {
    let changed = counted(&[(1, 0)], 1).recording;
    let tids: Vec<i32> = changed.tasks.iter().map(|task| task.tid).collect();
    assert_eq!(tids, [7, 6]);
    assert_eq!(changed.limits, [(0, (1, 2))].into());
    assert_eq!(changed.never_ran, [(0, 7)]);
    let copied = counted(&[(0, 2)], 1).recording;
    let limits = [(0, (1, 2)), (1, (3, 4)), (2, (1, 2))];
    assert_eq!(copied.limits, limits.into());
}

/// Where VMs go, those that timers drive have their timers at their recorded times, and rest at the end.
#[test]
fn timers_expire_at_recorded_times_where_they_drive_a_vm_or_more_vms_come() {
    let rest = |permille| Step::Sleep(Until::Rest { permille });
    for (seed, permille) in [(1, 667), (2, 334)] {
        let fewer = counted(&[(1, 0)], seed).recording;
        let rests = [at_times(7, 0), vec![rest(permille)]].concat();
        assert_eq!(steps_of(&fewer, 7), rests);
    }
    let others = counted(&[(0, 0)], 1).recording;
    assert_eq!(steps_of(&others, 8), halting(8, 1, 2).steps.to_vec());
    let more = counted(&[(0, 2)], 1).recording;
    assert_eq!(steps_of(&more, 7), at_times(7, 0));
    assert_eq!(steps_of(&more, 8), at_times(8, 1));
    let same = counted(&[], 1).recording;
    for tid in [7, 8] {
        assert_eq!(steps_of(&same, tid), steps_of(&host(), tid));
    }
}

#[test]
fn a_copy_that_goes_is_no_vm_that_is_lost() {
    let more = counted(&[(0, 2)], 1);
    let again = Counted::new(&more.recording, 3, &counts(&[(2, 0)]), 1);
    assert_eq!(steps_of(&again.recording, 7), at_times(7, 0));
    // A VM that has gone stays so where a copy comes.
    let fewer = counted(&[(1, 0)], 1);
    let copied = Counted::new(&fewer.recording, 2, &counts(&[(0, 2)]), 2);
    let rests = Step::Sleep(Until::Rest { permille: 334 });
    let expected = [at_times(7, 0), vec![rests]].concat();
    assert_eq!(steps_of(&copied.recording, 7), expected);
}

/// Work of 3 ms in a row is divided where most pieces have 1 ms.
#[test]
fn exits_and_stalls_stay_with_their_steps_where_halts_come_between() {
    let (mut steps, mut waits) = (Vec::new(), Vec::new());
    for turn in 0..9 {
        waits.push(wait(steps.len() as u32 + 1, turn * MS + 1, (turn + 1) * MS));
        steps.extend([run(MS), Step::Halt(ARMED)]);
    }
    steps.extend([run(MS), run(MS), run(MS), Step::Halt(ARMED)]);
    waits.push(wait(21, 9 * MS, SPAN));
    let exit = |(step, code)| (step, ExitReason::vmx(code));
    let stall = |step| Stall {
        step,
        after_ns: 3,
        ns: 4,
    };
    let mut host = host();
    host.tasks[0] = RecordedTask {
        waits: waits.into(),
        exits: [(0, 1), (19, 2), (20, 3), (22, 4)].map(exit).into(),
        stalls: [1, 20].map(stall).into(),
        ..task(7, Some((0, 0)), &steps)
    };
    let fewer = Counted::new(&host, 2, &counts(&[(1, 0)]), 1).recording;
    let divided = &fewer.tasks[0];
    let added = divided
        .steps
        .iter()
        .enumerate()
        .filter_map(|(place, step)| {
            let is_added = matches!(step, Step::Halt(Until::Sooner { .. }));
            is_added.then_some(place)
        });
    // After each of the two first pieces, with the end of its sleep.
    assert_eq!(added.collect::<Vec<_>>(), [19, 22]);
    let moved = [(0, 1), (21, 2), (24, 3), (26, 4)].map(exit);
    assert_eq!(divided.exits, moved);
    assert_eq!(divided.stalls[..], [1, 24].map(stall));
    let last = divided.waits.last().map(|wait| wait.step);
    assert_eq!((divided.waits.len(), last), (10, Some(25)));
}

/// The begins of the copies of a VM, in ns of the recording. A copy returns to its first CPU when the
/// recording begins again.
fn phases(counted: &Counted, original: usize) -> Vec<u64> {
    let copies = counted.copies.iter();
    let phase = |copy: &VmCopy| {
        let mut tasks = counted.recording.tasks.iter();
        let task = tasks.find(|task| task.vm == Some(copy.vm)).expect("a copy");
        let mut moves = task.moves.iter();
        let (time_ns, _) = moves.find(|entry| entry.1 == 0).expect("it returns");
        SPAN - time_ns
    };
    let copies = copies.filter(|copy| copy.original == original);
    copies.map(phase).collect()
}

#[test]
fn copies_of_a_vm_are_apart_from_each_other_whatever_else_is_copied() {
    for seed in 1..30 {
        let alone = phases(&counted(&[(1, 5)], seed), 1);
        assert_eq!(alone, phases(&counted(&[(0, 6), (1, 5)], seed), 1));
        assert_eq!(alone.len(), 4);
        for (place, phase) in alone.iter().enumerate() {
            let others = alone[..place].iter().chain([&0, &SPAN]);
            for other in others {
                let apart_ns = phase.abs_diff(*other);
                assert!(apart_ns >= SPAN / 20, "{seed}: {alone:?}");
            }
        }
    }
}

#[test]
fn a_host_has_for_a_copy_what_it_has_for_the_vm() {
    let assumed = Assumed {
        timed_moves: true,
        own_group: [0].into(),
        weights: [(0, 300)].into(),
        shared_by_vm: [(0, 1)].into(),
        pins: vec![((0, 0), vec![1]), ((1, 0), vec![0])],
        policies: [(7, Policy::Batch)].into(),
        affinity: [(7, vec![2])].into(),
        task_pins: vec![(7, vec![3]), (8, vec![1])],
        ..Assumed::default()
    };
    let changed = counted(&[(0, 2)], 1);
    let every_cpu = || vec![0, 1, 2, 3];
    let expected = Assumed {
        placement: Some(Placement::Simulated),
        timed_moves: false,
        other_load: true,
        finds_idle: FindsIdle::of_recording(&changed.recording),
        own_group: [0, 2].into(),
        weights: [(0, 300), (2, 300)].into(),
        shared_by_vm: [(0, 1), (2, 1)].into(),
        pins: vec![((0, 0), vec![1]), ((1, 0), vec![0]), ((2, 0), vec![1])],
        policies: [(7, Policy::Batch), (9, Policy::Batch)].into(),
        affinity: [(7, vec![2]), (8, every_cpu()), (9, vec![2])].into(),
        task_pins: vec![(7, vec![3]), (8, vec![1]), (9, vec![3])],
        ..Assumed::default()
    };
    assert!(expected.finds_idle.is_some());
    assert_eq!(changed.assumed(&assumed), expected);
}

/// VM 3 of another host, with three tasks, where computing takes so many thousandths.
fn guest(cost_permille: u64) -> Guest {
    let stall = Stall {
        step: 0,
        after_ns: 0,
        ns: 1,
    };
    let vcpu = RecordedTask {
        stalls: [stall].into(),
        first_cpu: 3,
        ..halting(50, 3, 4)
    };
    let second = RecordedTask {
        tid: 51,
        ..vcpu.clone()
    };
    let mut thread = task(52, None, &[run(1_001), Step::Slept(500)]);
    thread.vm = Some(3);
    let tasks = vec![vcpu, second, thread, halting(60, 2, 4)];
    Guest::new(&recording(SPAN, 4, tasks), 3, cost_permille)
}

#[test]
fn a_guest_is_one_vm_that_computes_for_what_it_costs() {
    for (cost_permille, ran_ns, slept_ns) in [(1_000, 1_001, 500), (1_500, 1_501, 750)] {
        let guest = guest(cost_permille);
        assert_eq!(guest.vm(), 3);
        let tasks = &guest.recording().tasks;
        let tids: Vec<i32> = tasks.iter().map(|task| task.tid).collect();
        assert_eq!(tids, [50, 51, 52]);
        assert!(tasks.iter().all(|task| task.stalls.is_empty()));
        let expected = [run(ran_ns), Step::Slept(slept_ns)];
        assert_eq!(tasks[2].steps[..], expected);
        // Clients ask at their times.
        assert_eq!(tasks[0].steps[1], Step::Halt(Until::Time(2 * MS)));
    }
}

#[test]
fn guests_come_with_their_own_tasks_on_cpus_in_turn() {
    let mut host = host();
    host.cpus = 2;
    let mut counts = Counts::default();
    counts.set_guest(2, 2);
    let guest = guest(1_000);
    let changed = Counted::with_guests(&host, 2, &[&guest], &counts, 1);
    let copies = changed.copies.iter();
    let copies = copies.map(|copy| (copy.vm, copy.original, copy.number));
    assert_eq!(copies.collect::<Vec<_>>(), [(3, 2, 1), (4, 2, 2)]);
    let tasks = changed.recording.tasks.iter();
    let guests = tasks.filter(|task| task.vm >= Some(3));
    let guests: Vec<&RecordedTask> = guests.collect();
    let places = guests
        .iter()
        .map(|task| (task.tid, task.vm, task.first_cpu));
    let expected = [
        (9, Some(3), 0),
        (10, Some(3), 1),
        (11, Some(3), 0),
        (12, Some(4), 0),
        (13, Some(4), 1),
        (14, Some(4), 0),
    ];
    assert_eq!(places.collect::<Vec<_>>(), expected);
    let unplaced = |task: &&RecordedTask| task.ran_on.is_empty() && task.moves.is_empty();
    assert!(guests.iter().all(unplaced));
    // The host's own VMs have room to rest too.
    let rests = Step::Sleep(Until::Rest { permille: 667 });
    assert_eq!(steps_of(&changed.recording, 7).last(), Some(&rests));
}
