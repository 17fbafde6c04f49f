//! Scripts of copies that are cut in their middle.

use super::tests::{computes, copied, halts};
use super::*;
use crate::clocked::tests::{ARMED, MS, recording, task};

/// In order of time: a copy from 20 ms on begins with step 10.
fn waits_of_all_kinds() -> Vec<(Option<(u64, u64)>, Step)> {
    let run = |ms| {
        let spent = stealtime_simulator::script::Spent::Guest;
        let ns = ms * MS;
        (None, Step::Run { ns, spent })
    };
    let waits = |began, ended, step| (Some((began, ended)), step);
    let armed = |ms| {
        Step::Halt(Until::Armed {
            ns: ms * MS,
            exit_us: 0,
        })
    };
    let called = |ms, waker| Step::Halt(called(ms * MS, Some(waker)));
    let answered = |waker| {
        Step::Halt(Until::AfterEdge {
            edge: Edge(9),
            ns: MS as u32 / 2,
            exit_us: 3,
            waker,
        })
    };
    vec![
        run(5),
        (None, Step::Arm),
        (None, Step::Alarm(Until::Time(7 * MS))),
        waits(5, 7, armed(2)),
        run(3),
        waits(10, 13, Step::Sleep(grid(MS))),
        run(2),
        waits(15, 18, called(18, 2)),
        (None, Step::Slept(9)),
        run(4),
        waits(22, 25, armed(3)),
        run(1),
        (None, Step::Arm),
        waits(26, 29, armed(3)),
        run(1),
        waits(30, 33, Step::Sleep(grid(MS))),
        run(1),
        waits(34, 35, called(35, 1)),
        (None, Step::Reach(Edge(2))),
        waits(35, 36, Step::Halt(Until::Edge(Edge(9)))),
        waits(36, 37, answered(Some(2))),
        waits(37, 38, answered(None)),
        (None, Step::Alarm(Until::Time(u64::MAX))),
        waits(
            38,
            39,
            Step::Halt(Until::Work {
                edge: Edge(8),
                ns: 5,
                busy: true,
            }),
        ),
        waits(39, 41, Step::Sleep(Until::Time(u64::MAX))),
    ]
}

/// A point of a grid of 3 ms.
fn grid(phase_ns: u64) -> Until {
    Until::Grid {
        phase_ns: phase_ns as u32,
        period_ns: 3 * MS as u32,
        nth: 1,
        late_us: 0,
    }
}

fn with_all_kinds() -> RecordedTask {
    let (mut steps, mut waits) = (Vec::new(), Vec::new());
    for (wait, step) in waits_of_all_kinds() {
        waits.extend(wait.map(|(began, ended)| Wait {
            step: steps.len() as u32,
            began_ns: began * MS,
            ended_ns: ended * MS,
            late_us: 0,
            caller: None,
        }));
        steps.push(step);
    }
    let reason = stealtime_events::ExitReason::vmx;
    let stall = |step| Stall {
        step,
        after_ns: 7,
        ns: 8,
    };
    RecordedTask {
        waits: waits.into(),
        steps: steps.into(),
        exits: vec![
            (1, reason(1)),
            (10, reason(10)),
            (12, reason(12)),
            (25, reason(25)),
        ],
        stalls: [stall(9), stall(10), stall(11)].into(),
        ticks: Some(Ticks {
            phase_ns: 5 * MS as u32,
            period_ns: 3 * MS as u32,
        }),
        ..task(ARMED)
    }
}

/// Times are so much earlier in what follows the cut at 20 ms, and 21 ms later in what precedes it.
#[test]
fn a_copy_waits_at_its_own_times() {
    let [copy] = &copied(vec![with_all_kinds()], 20 * MS)[..] else {
        panic!("one task");
    };
    let recorded: Vec<Step> = waits_of_all_kinds()
        .into_iter()
        .map(|step| step.1)
        .collect();
    let mut expected = [&recorded[10..], &recorded[..10]].concat();
    let time = |ns| Step::Halt(Until::Time(ns));
    let answered_ns = 7 * MS + MS * 3 / 4;
    for (index, step) in [
        // Its timer was set before the cut.
        (0, time(5 * MS)),
        (5, Step::Sleep(grid(2 * MS))),
        (7, Step::Halt(called(15 * MS, Some(1)))),
        // Other tasks than those of the VM reach these points: at 27.25 ms and at 24.25 ms.
        (9, time(7 * MS + MS / 4)),
        (10, Step::Halt(called(answered_ns, Some(2)))),
        (11, time(answered_ns)),
        (13, time(4 * MS + MS / 4)),
        (14, Step::Sleep(Until::Time(21 * MS))),
        (17, Step::Alarm(Until::Time(28 * MS))),
        (20, Step::Sleep(grid(2 * MS))),
        (22, Step::Halt(called(39 * MS, Some(2)))),
    ] {
        expected[index] = step;
    }
    // No task waits for it.
    assert_eq!(expected.remove(8), Step::Reach(Edge(2)));
    assert_eq!(copy.steps[..], expected);
    let exits: Vec<(usize, u32)> = copy
        .exits
        .iter()
        .map(|exit| (exit.0, exit.1.code))
        .collect();
    assert_eq!(exits, [(0, 10), (2, 12), (14, 25), (15, 1)]);
    let stalls: Vec<u32> = copy.stalls.iter().map(|stall| stall.step).collect();
    assert_eq!(stalls, [0, 1, 23]);
    let ticks = copy.ticks.map(|ticks| (ticks.phase_ns, ticks.period_ns));
    assert_eq!(ticks, Some((0, 3 * MS as u32)));
    assert_eq!((copy.tid, copy.vm, copy.vcpu), (100, Some(1), Some((1, 0))));
    assert!(copy.waits.is_empty() && copy.begins.is_none() && copy.ends_ns.is_none());
}

#[test]
fn a_copy_that_begins_in_a_wait_for_an_answer_is_called_at_its_end() {
    let all = with_all_kinds();
    let first = |phase_ns| copied(vec![all.clone()], phase_ns)[0].steps[0];
    let rest = |waker| Step::Halt(called(MS / 2, waker));
    assert_eq!(first(36 * MS + MS / 2), rest(Some(2)));
    assert_eq!(first(37 * MS + MS / 2), rest(None));
    assert_eq!(first(17 * MS), Step::Halt(called(MS, Some(2))));
    assert_eq!(first(11 * MS), Step::Sleep(Until::Time(2 * MS)));
}

/// A task that ends is there again from where it began, after one span.
#[test]
fn a_copy_sleeps_until_a_task_begins_that_has_ended() {
    let begins = Begins {
        at_ns: 3 * MS,
        is_seen: false,
    };
    let partial = |begins, ends_ns| RecordedTask {
        begins,
        ends_ns,
        ..with_all_kinds()
    };
    for (begins, ends_ns, sleeps_ms) in [
        (Some(begins), None, Some(24)),
        (None, Some(41 * MS), Some(21)),
        (None, None, None),
    ] {
        let copies = copied(vec![partial(begins, ends_ns)], 20 * MS);
        let expected = sleeps_ms.map(|ms| Step::Sleep(Until::Time(ms * MS)));
        let added = Some(copies[0].steps[14]).filter(|step| *step != with_all_kinds().steps[0]);
        assert_eq!(added, expected);
        assert_eq!((copies[0].begins, copies[0].ends_ns), (None, None));
    }
    // It has ended before, or begins at once.
    let ended = copied(vec![partial(Some(begins), Some(19 * MS))], 20 * MS);
    let later = ended[0].begins.map(|begins| (begins.at_ns, begins.is_seen));
    assert_eq!(
        (later, ended[0].ends_ns),
        (Some((24 * MS, false)), Some(40 * MS))
    );
    let begun = copied(vec![partial(Some(begins), Some(19 * MS))], 3 * MS);
    assert_eq!((begun[0].begins, begun[0].ends_ns), (None, Some(16 * MS)));
}

#[test]
fn a_script_is_cut_where_the_recording_was() {
    let all = with_all_kinds();
    let cut = |phase_ns| {
        let cut = Cut::find(&all, phase_ns, 41 * MS);
        (cut.step, cut.is_in_wait, cut.whole)
    };
    assert_eq!(cut(0), (0, false, Some(Side::Tail)));
    assert_eq!(cut(41 * MS), (25, false, Some(Side::Head)));
    // Waits last from their begin to before their end.
    assert_eq!(cut(5 * MS), (3, true, None));
    assert_eq!(cut(7 * MS - 1), (3, true, None));
    assert_eq!(cut(7 * MS), (4, false, None));
    assert_eq!(cut(7 * MS + 1), (5, false, None));
    assert_eq!(cut(40 * MS), (24, true, None));
    // Its first work has 5 ms, and takes the time to its first wait.
    assert_eq!(cut(1), (1, false, None));
    // A stretch that takes longer than it computes is cut by the share that has passed.
    let slow = [waits_of_all_kinds()[0].1; 3];
    assert_eq!(steps_after(&slow, 0, 30), 0);
    assert_eq!(steps_after(&slow, 10, 30), 1);
    assert_eq!(steps_after(&slow, 11, 30), 2);
    assert_eq!(steps_after(&slow, 40, 30), 3);
    assert_eq!(steps_after(&[], 1, 0), 0);
}

#[test]
fn a_grid_without_a_period_is_no_wait() {
    let none = Until::Grid {
        phase_ns: 77,
        period_ns: 0,
        nth: 1,
        late_us: 0,
    };
    let mut recorded = with_all_kinds();
    let mut steps = recorded.steps.to_vec();
    steps[15] = Step::Sleep(none);
    recorded.steps = steps.into();
    let copies = copied(vec![recorded], 20 * MS);
    assert_eq!(copies[0].steps[5], Step::Sleep(none));
}

#[test]
fn points_of_a_copy_follow_those_that_are_there() {
    let reaches = [1, 2, 3, 5].map(|edge| (MS, Step::Reach(Edge(edge))));
    let waits = [3, 1, 2, 1, 7].map(|edge| (MS, Step::Halt(Until::Edge(Edge(edge)))));
    let tasks = vec![computes(&reaches), computes(&waits)];
    let recording = Recording {
        edges: 10,
        edge_ns: [MS; 10].into(),
        ..recording(tasks)
    };
    let copier = Copier::new(&recording, 0, 0, 100);
    assert_eq!(copier.edges(), 103);
    let copies = copier.tasks(1, 100);
    let edge = |number| Until::Edge(Edge(number));
    let expected = [edge(100), edge(101), edge(102), edge(101), Until::Time(MS)];
    assert_eq!(halts(&copies[1]), expected);
    let reached = copies[0].steps.iter().filter_map(|step| match *step {
        Step::Reach(edge) => Some(edge.0),
        _ => None,
    });
    assert_eq!(reached.collect::<Vec<u32>>(), [101, 102, 100]);
}

#[test]
fn a_copy_begins_on_the_cpu_where_its_task_was() {
    let moving = RecordedTask {
        first_cpu: 3,
        moves: Arc::from([(10 * MS, 5), (20 * MS, 2)]),
        ..task(ARMED)
    };
    let first_cpu = |phase_ns| copied(vec![moving.clone()], phase_ns)[0].first_cpu;
    let times = [1, 10 * MS - 1, 10 * MS, 19 * MS, 20 * MS, 30 * MS];
    assert_eq!(times.map(first_cpu), [3, 3, 5, 5, 2, 2]);
}
