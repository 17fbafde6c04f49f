//! Recordings in which events were lost.

use common::text::{steps, trace};
use common::{extracted, host, vcpu};
use stealtime_events::{CpuId, Event, Kind};
use stealtime_replay::predict::recorded;
use stealtime_simulator::script::{ScriptConfig, Scripts, Spent, Step, Until};
use stealtime_simulator::{Collected, run};

use crate::common;

const MS: u64 = 1_000_000;
/// The vCPU begins to compute at each multiple of it.
const ROUND: u64 = 10 * MS;
const ROUNDS: u64 = 20;

/// A vCPU that computes for 2 ms in 10 and moves to the other one of two CPUs when it halts.
fn wanderer() -> ScriptConfig {
    let mut steps = Vec::new();
    for round in 1..=ROUNDS {
        let (ns, spent) = (2 * MS, Spent::Guest);
        steps.push(Step::Run { ns, spent });
        let (ns, spent) = (10_000, Spent::Exit(12));
        steps.push(Step::Run { ns, spent });
        steps.push(Step::Halt(Until::Time(round * ROUND)));
        steps.push(Step::Move((round % 2) as u32));
    }
    vcpu(0, 0, steps)
}

/// Takes a CPU's events from `from` to `to` out of a recording, and says so at `to`.
fn lose(events: &mut Vec<Event>, cpu: u16, from: u64, to: u64) {
    let gone = |event: &Event| event.cpu == CpuId(cpu) && (from..to).contains(&event.time_ns);
    let count = events.iter().filter(|event| gone(event)).count() as u64;
    let last = events.iter().rev().find(|event| gone(event)).copied();
    let last = last.expect("events to lose");
    events.retain(|event| !gone(event));
    let at = events.partition_point(|event| event.time_ns < to);
    let (time_ns, kind) = (to, Kind::Lost { count });
    let lost = Event {
        time_ns,
        kind,
        ..last
    };
    events.insert(at, lost);
}

/// A recording of it.
fn wandering() -> Collected {
    let mut config = host(2, Vec::new(), ROUNDS * ROUND, 1);
    config.scripts = Scripts {
        tasks: vec![wanderer()],
        tell: true,
        ..Scripts::default()
    };
    let mut sink = Collected::default();
    run(&config, &mut sink).expect("a good configuration");
    sink
}

fn is_move(event: &Event) -> bool {
    matches!(event.kind, Kind::SchedMigrateTask { .. })
}

/// Where a script moves to, in order.
fn moved_to(steps: &[Step]) -> Vec<u32> {
    let to = steps.iter().filter_map(|step| match *step {
        Step::Move(to) => Some(to),
        _ => None,
    });
    to.collect()
}

/// Where they are recorded, a task moves when they say so, while it sleeps too.
#[test]
fn moves_are_those_of_the_events() {
    let sink = wandering();
    let first_ns = sink.events.first().map_or(0, |event| event.time_ns);
    let moves = sink.events.iter().filter_map(|event| match event.kind {
        Kind::SchedMigrateTask { dest_cpu, .. } => Some((event.time_ns - first_ns, dest_cpu)),
        _ => None,
    });
    let moves: Vec<(u64, u32)> = moves.collect();
    let (recording, _) = extracted(&sink.events, &sink.names);
    assert_eq!(recording.tasks[0].moves.to_vec(), moves);
    assert_eq!(recording.migrations, moves.len() as u64);
    assert_eq!(moved_to(&recording.tasks[0].steps).len(), moves.len());
}

/// Without `sched_migrate_task` a move shows where the task gets another CPU than it left, also where its
/// leaving is the first that is seen of it.
#[test]
fn moves_show_where_they_are_not_recorded() {
    let mut sink = wandering();
    let leaves =
        |event: &Event| matches!(event.kind, Kind::SchedSwitch { prev, .. } if prev.0 != 0);
    let first = sink.events.iter().position(leaves).expect("it halts");
    let mut events = sink.events.split_off(first);
    let moves = events.iter().filter(|event| is_move(event)).count();
    events.retain(|event| !is_move(event));
    let (recording, _) = extracted(&events, &sink.names);
    let to = moved_to(&recording.tasks[0].steps);
    assert_eq!(to.len(), moves, "{to:?}");
    assert_eq!(to.first(), Some(&1), "{to:?}");
}

/// A task leaves a CPU that loses events. It is seen on the other CPU before the loss is reported. So it
/// has moved, and it has not computed all of the time until then. Its move may be lost too, or recorded on
/// the other CPU.
#[test]
fn a_task_that_leaves_unseen_has_not_computed_since() {
    for move_is_lost in [true, false] {
        let mut sink = wandering();
        let moves = sink.events.iter().filter(|event| is_move(event)).count();
        assert!(moves >= 15, "{moves}");
        if !move_is_lost {
            let moves = sink.events.iter_mut().filter(|event| is_move(event));
            moves.for_each(|event| event.cpu = CpuId(1));
        }
        for round in [2, 6, 10, 14] {
            let from = round * ROUND + MS;
            lose(&mut sink.events, 0, from, from + 15 * MS);
        }
        leaves_unseen(&sink);
    }
}

fn leaves_unseen(sink: &Collected) {
    let (recording, answers) = extracted(&sink.events, &sink.names);
    assert!(recording.is_lossy);
    let times = recorded(&recording, &answers);
    let [time] = &times.vcpus[..] else {
        panic!("one vCPU: {times:?}");
    };
    let task = &recording.tasks[0];
    let computes = task.steps.iter().map(|step| match *step {
        Step::Run { ns, .. } => ns,
        _ => 0,
    });
    let computes: u64 = computes.sum();
    assert!(
        computes.abs_diff(time.run_ns) < MS,
        "{computes} of {}",
        time.run_ns
    );
    let to = moved_to(&task.steps);
    assert!(to.windows(2).all(|pair| pair[0] != pair[1]), "{to:?}");
    assert!(to.len() >= 15, "{to:?}");
}

/// What a CPU did while its events were lost is not known: its tasks wait until they are seen again.
#[test]
fn tasks_wait_from_a_gap_on_until_they_are_seen() {
    let mut log = trace(
        "
      0 0  0 name 10 10
      0 0  0 switch 0 10
      0 1  0 switch 0 20
      5 0 10 entry 0
    100 0 10 exit 0 48
    110 0 10 entry 0
    400 1 20 canceltimer 1
    400 0 10 lost 7
    410 0 10 exit 0 48
    420 0 10 entry 0
    500 0 10 exit 0 12
    503 0 10 switch 10 0 sleeps
    504 0  0 waking 10 0
    506 0  0 switch 0 10
    508 0 10 switch 10 0 sleeps
    510 0  0 waking 99 3
    600 1 20 waking 30 1
    700 1 20 canceltimer 1
    700 0  0 lost 7
    710 0 10 entry 0
    800 0 10 exit 0 48
",
    );
    log.append("900 1 20 waking 30 1");
    let recording = log.extracted();
    // The guest has halted, and was awake in vain: that is one wait to where it is seen again.
    assert_eq!(
        steps(&recording, 10),
        "host 5, guest 95, exit48 10, sleep to 410, exit48 10, guest 80, halt12 5, sleep to 710, \
         guest 90, exit48 100"
    );
    assert_eq!(steps(&recording, 20), "host 600, reach 0, host 300");
    let gaps: Vec<&[(u64, u64)]> = recording.gaps.iter().map(|gaps| &*gaps.0).collect();
    assert_eq!(gaps, [&[(110_000, 400_000), (510_000, 700_000)][..], &[]]);
}

/// The first events of CPU 3 are lost: task 20, which slept on CPU 2, is on CPU 3 when that shows.
#[test]
fn a_task_is_seen_again_on_a_cpu_of_which_nothing_was_recorded() {
    let log = trace(
        "
      0 2  0 switch 0 20
      0 1  0 switch 0 30
    100 2 20 switch 20 0 sleeps
    190 3  0 lost 5
    200 3 20 canceltimer 5
    250 3 20 switch 20 0 sleeps
    300 1 30 waking 20 3
    301 3  0 switch 0 20
    400 3 20 switch 20 0 sleeps
",
    );
    assert_eq!(
        steps(&log.extracted(), 20),
        "host 100, sleep to 200, move 3, host 50, sleep for 0, host 99, sleep forever"
    );
}

/// No other CPU has an event in the gap.
#[test]
fn a_gap_ends_where_the_loss_shows() {
    let log = trace(
        "
      0 0  0 switch 0 10
    110 0 10 canceltimer 1
    400 0 10 lost 7
    410 0 10 canceltimer 1
",
    );
    assert_eq!(log.extracted().gaps[0].0[..], [(110_000, 400_000)]);
}
