//! CPUs that hear late of what others do.

use std::sync::Arc;

use stealtime_hypervisor::fair::Feature;

use super::super::{Edge, Late, Moves, Step, Until};
use super::{are_vcpus, config, work};
use crate::run;

/// CPU 0 hears of others at once, CPU 1 after so long, in ns.
fn late(ns: u32) -> Vec<Late> {
    let of_cpu = |ns| Late(Arc::from([(0, ns)]));
    vec![of_cpu(0), of_cpu(ns)]
}

/// A wakeup by another CPU reaches an idle CPU, or one on which a vCPU polls, after the configured latency.
/// Wakeups by the CPU itself have no such latency.
#[test]
fn wakeups_by_another_cpu_have_the_configured_latency() {
    // One computes for 0.1 ms, often; the other, on CPU 1, works a little each time.
    let finished = |by_other: bool, idle_called_ns, poll_called_ns| {
        let edges = 50;
        let wakes = |n| [work(100_000), Step::Reach(Edge(n))];
        let halts = |n| match by_other {
            true => [Step::Halt(Until::Edge(Edge(n))), work(10_000)],
            false => [Step::Halt(Until::After(90_000)), work(10_000)],
        };
        let scripts = vec![
            (0..edges).flat_map(wakes).collect(),
            (0..edges).flat_map(halts).collect(),
        ];
        let mut config = config(2, edges, scripts);
        config.scripts.idle_late = late(20_000);
        config.scripts.idle_called = late(idle_called_ns);
        config.scripts.poll_called = late(poll_called_ns);
        let polls = poll_called_ns > 0;
        config.knobs.kvm.halt_poll.halt_poll_ns = if polls { 200_000 } else { 0 };
        let finished = run(&config, &mut ()).unwrap().scripts[1].finished_ns;
        finished.expect("it is through with its script")
    };
    let later = |by_other, (idle, poll), (than_idle, than_poll)| {
        let than = finished(by_other, than_idle, than_poll);
        finished(by_other, idle, poll).abs_diff(than) / 1_000
    };
    let (asleep, polling) = (
        later(true, (70_000, 0), (20_000, 0)),
        later(true, (0, 60_000), (0, 10_000)),
    );
    assert_eq!((asleep, polling), (50, 50));
    assert_eq!(later(false, (70_000, 0), (20_000, 0)), 0);
    assert_eq!(later(false, (0, 60_000), (0, 10_000)), 0);
}

#[test]
fn a_poll_ends_late_for_a_task_that_another_cpu_wakes() {
    // Halts of 1.9 ms that poll on CPU 1, and a task that is woken there 0.5 ms after their begin.
    let at = |n: u32, ns| Until::Time(u64::from(n) * 2_000_000 + ns);
    let halts = (0..40).flat_map(|n| [Step::Halt(at(n, 2_000_000)), work(100_000)]);
    let wakes = (0..40).flat_map(|n| [Step::Sleep(at(n, 500_000)), Step::Reach(Edge(n))]);
    let woken = (0..40).flat_map(|n| [Step::Sleep(Until::Edge(Edge(n))), work(10_000)]);
    let scripts = vec![wakes.collect(), halts.collect(), woken.collect()];
    let mut config = config(2, 40, scripts);
    are_vcpus(&mut config.scripts.tasks[..2]);
    for task in &mut config.scripts.tasks[1..] {
        (task.first_cpu, task.moves) = (1, Moves::Steps);
    }
    let halt_poll = &mut config.knobs.kvm.halt_poll;
    (halt_poll.halt_poll_ns, halt_poll.grow_start_ns) = (5_000_000, 5_000_000);
    let features = config.knobs.sched.features;
    config.knobs.sched.features = features.without(Feature::WakeupPreemption);
    let mut waited = |ns| {
        config.scripts.poll_called = late(ns);
        run(&config, &mut ()).unwrap().scripts[2].books.wait_ns
    };
    let later_us = waited(300_000).saturating_sub(waited(0)) / 1_000;
    assert!((25 * 300..=40 * 300).contains(&later_us), "{later_us}");
}

/// Two tasks that compute share a CPU, and their slices end at ticks.
#[test]
fn ticks_come_at_their_phase_and_as_late_as_they_are_said_to() {
    use crate::Collected;
    use stealtime_events::Kind;

    let ticks = |phase_ns: u64, late: &[(u64, u32)]| {
        let mut config = config(1, 0, vec![vec![work(40_000_000)]; 2]);
        config.knobs.sched.features = config.knobs.sched.features.without(Feature::Hrtick);
        config.knobs.sched.hz = 250;
        config.scripts.tick_phase_ns = phase_ns;
        config.scripts.tick_late = vec![Late(Arc::from(late))];
        let mut sink = Collected::default();
        run(&config, &mut sink).unwrap();
        let expired = sink.events.iter().filter_map(|event| match event.kind {
            Kind::HrtimerExpireEntry { now_ns, .. } => Some(now_ns / 1_000),
            _ => None,
        });
        expired.take(5).collect::<Vec<u64>>()
    };
    assert_eq!(ticks(0, &[]), [4_000, 8_000, 12_000, 16_000, 20_000]);
    assert_eq!(ticks(5_500_000, &[]), [1_500, 5_500, 9_500, 13_500, 17_500]);
    // The third is so late that the fourth does not come.
    let late = [
        (4_000_000, 0),
        (8_000_000, 300_000),
        (12_000_000, 5_000_000),
        (20_000_000, 0),
    ];
    assert_eq!(ticks(0, &late), [4_000, 8_300, 17_000, 20_000, 24_000]);
}
