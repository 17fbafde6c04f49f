//! What seeds move: times that the recording does not explain, and computing a little.

use std::collections::BTreeSet;

use common::made::{recording, run, task};
use stealtime_replay::Recording;
use stealtime_replay::host::{Assumed, as_recorded, knobs};
use stealtime_simulator::script::{Edge, Step, Until};

use crate::common;

const MS: u64 = 1_000_000;

/// The steps of each task in a replay.
fn replayed(recording: &Recording, seed: u64) -> Vec<Vec<Step>> {
    let host = as_recorded(recording, knobs(recording), &Assumed::default(), seed);
    let tasks = host.scripts.tasks.iter();
    tasks.map(|task| task.steps.to_vec()).collect()
}

fn of_steps(steps: &[Step]) -> Recording {
    recording(10 * MS, 1, vec![task(7, Some((0, 0)), steps)])
}

/// All times that 10,000 steps are moved to.
fn moved(step: Step, time_of: fn(Step) -> u64) -> BTreeSet<u64> {
    let recording = of_steps(&vec![step; 10_000]);
    let steps = replayed(&recording, 1).concat();
    steps.into_iter().map(time_of).collect()
}

fn ran(step: Step) -> u64 {
    match step {
        Step::Run { ns, .. } => ns,
        step => panic!("{step:?}"),
    }
}

fn waits_for(step: Step) -> u64 {
    match step {
        Step::Sleep(end) | Step::Halt(end) | Step::Alarm(end) => match end {
            Until::Time(ns) | Until::Armed { ns, exit_us: 70 } => ns,
            Until::Called { time_ns, waker: 3 } => time_ns,
            end => panic!("{end:?}"),
        },
        step => panic!("{step:?}"),
    }
}

/// As far up as down, to the limit. What is shorter than the limit becomes nothing, or twice as long.
#[test]
fn computing_takes_up_to_a_hundredth_or_100_ns_more_or_less() {
    let all = |least, most| (least..=most).collect::<BTreeSet<u64>>();
    assert_eq!(moved(run(40_000), ran), all(39_900, 40_100));
    assert_eq!(moved(run(1_999), ran), all(1_980, 2_018));
    assert_eq!(moved(run(99), ran), all(99, 99));
    assert_eq!(moved(Step::Halt(Until::Time(20)), waits_for), all(0, 40));
}

#[test]
fn waits_for_times_and_timers_move_each_by_its_limit() {
    let (time_ns, waker) = (5 * MS, 3);
    let (ns, exit_us) = (time_ns, 70);
    let unknown = [Until::Time(time_ns), Until::Called { time_ns, waker }];
    let timer = Until::Armed { ns, exit_us };
    let ends = unknown.map(|end| (end, MS / 2)).into_iter();
    for (end, limit_ns) in ends.chain([(timer, MS / 20)]) {
        for step in [Step::Sleep(end), Step::Halt(end), Step::Alarm(end)] {
            let moved = moved(step, waits_for);
            let (Some(first), Some(last)) = (moved.first(), moved.last()) else {
                panic!("10,000 steps: {step:?}");
            };
            // Of 10,000 the first and the last are near the limits.
            for (found, limit) in [(first, time_ns - limit_ns), (last, time_ns + limit_ns)] {
                let off = found.abs_diff(limit);
                assert!(off < limit_ns / 100, "{step:?}: {first} {last}");
            }
            assert!(*first >= time_ns - limit_ns && *last <= time_ns + limit_ns);
        }
    }
}

#[test]
fn what_is_known_does_not_move() {
    let known = [
        Step::Sleep(Until::Time(u64::MAX)),
        Step::Halt(Until::Edge(Edge(0))),
        Step::Alarm(Until::After(MS)),
        Step::Reach(Edge(0)),
        Step::Slept(40_000),
        Step::Arm,
    ];
    let recording = of_steps(&known);
    for seed in 1..20 {
        assert_eq!(replayed(&recording, seed), [known]);
    }
    // The first replay has all as recorded.
    let unknown = of_steps(&[run(40_000), Step::Sleep(Until::Time(MS))]);
    assert_eq!(replayed(&unknown, 0), [unknown.tasks[0].steps.to_vec()]);
}

#[test]
fn tasks_move_apart_from_each_other() {
    let steps = [Step::Sleep(Until::Time(5 * MS))];
    let tasks = (1..=64).map(|tid| task(tid, None, &steps));
    let recording = recording(10 * MS, 1, tasks.collect());
    let times = replayed(&recording, 1).concat().into_iter().map(waits_for);
    assert_eq!(times.collect::<BTreeSet<u64>>().len(), 64);
}
