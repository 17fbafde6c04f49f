use std::sync::Arc;

use stealtime_events::{Context, Event, Kind};
use stealtime_hypervisor::fair::{Feature, Features, Policy, Preempt};

use super::{
    Edge, Late, Moves, Preempted, ScriptConfig, ScriptGroup, ScriptOutcome, Scripts, Spent, Step,
    Then, Ticks, Until,
};
use crate::config::{Config, Costs, HostConfig, Knobs, RunConfig, Topology};
use crate::{Collected, Outcome, run};

mod groups;
mod idle;
mod late;
mod load;

fn go(cpus: u32, edges: u32, scripts: Vec<Vec<Step>>) -> Outcome {
    run(&config(cpus, edges, scripts), &mut ()).unwrap()
}

fn config(cpus: u32, edges: u32, scripts: Vec<Vec<Step>>) -> Config {
    let tasks = scripts
        .into_iter()
        .enumerate()
        .map(|(n, steps)| ScriptConfig {
            preempted: Preempted::default(),
            name: format!("script{n}"),
            nice: 0,
            policy: Policy::Normal,
            cpus: Vec::new(),
            first_cpu: n as u32 % cpus,
            starts_ns: 0,
            vm: Some(0),
            vcpu: None,
            moves: Moves::Scheduler,
            then: Then::End,
            alarm_ns: 10_000,
            called: Late::default(),
            ticks: None,
            stalls: [].into(),
            steps: Arc::from(steps),
        });
    Config {
        host: HostConfig::generic(Topology::flat(cpus)),
        vms: Vec::new(),
        scripts: Scripts {
            tasks: tasks.collect(),
            edges,
            groups: vec![Some(ScriptGroup::default())],
            slice: true,
            ..Scripts::default()
        },
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: 100_000_000,
            warmup_ns: 0,
            seed: 1,
        },
    }
}

/// These are vCPUs, in the order of their numbers.
fn are_vcpus(tasks: &mut [ScriptConfig]) {
    for (number, task) in (0..).zip(tasks) {
        task.vcpu = Some(number);
    }
}

#[test]
fn weights_share_a_cpu_between_vms() {
    let mut config = config(1, 0, vec![vec![work(1_000_000_000)]; 2]);
    config.scripts.tasks[1].vm = Some(1);
    let weight = |cpu_weight| {
        Some(ScriptGroup {
            cpu_weight,
            ..ScriptGroup::default()
        })
    };
    config.scripts.groups = vec![weight(100), weight(300)];
    let ran = |config: &Config| {
        let outcome = run(config, &mut ()).unwrap();
        let ran: Vec<u64> = outcome.scripts.iter().map(|s| s.books.run_ns).collect();
        assert!(ran.iter().sum::<u64>() > 99_000_000, "{ran:?}");
        ran
    };
    let weighed = ran(&config);
    // A quarter and three quarters of 100 ms, to within a slice.
    assert!(weighed[0].abs_diff(25_000_000) < 3_000_000, "{weighed:?}");
    config.scripts.groups = vec![weight(100), weight(100)];
    let even = ran(&config);
    assert!(even[0].abs_diff(even[1]) < 6_000_000, "{even:?}");
    config.scripts.groups = vec![weight(100), weight(0)];
    assert!(run(&config, &mut ()).is_err());
}

#[test]
fn vcpus_in_cgroups_of_their_own_compete_with_those_of_all_other_threads() {
    let mut config = config(1, 0, vec![vec![work(1_000_000_000)]; 4]);
    are_vcpus(&mut config.scripts.tasks[..2]);
    let mut shares = |vcpu_groups| {
        config.scripts.vcpu_groups = vcpu_groups;
        let outcome = run(&config, &mut ()).unwrap();
        let ran = outcome.scripts.iter().map(|s| s.books.run_ns / 1_000_000);
        ran.collect::<Vec<u64>>()
    };
    // A quarter each; then a third for each vCPU and one for both others.
    assert!(shares(false).iter().all(|ms| ms.abs_diff(25) <= 3));
    let apart = shares(true);
    let near = apart.iter().zip([33, 33, 16, 16]);
    assert!(
        near.clone().all(|(ms, of)| ms.abs_diff(of) <= 3),
        "{apart:?}"
    );
}

/// Another CPU wakes a task, and lazily requests the current task to reschedule. The next step of the current
/// task decides whether it is preempted at once.
#[test]
fn an_interrupt_of_the_recorded_host_is_no_occasion_to_give_way() {
    let waits = |exit: Spent, ticks| {
        let handled = Step::Run {
            ns: 1_000,
            spent: exit,
        };
        let mut computes = vec![work(4_600_000)];
        computes.extend([handled, work(100_000)].repeat(100));
        let woken = vec![Step::Sleep(Until::Edge(Edge(0))), work(10_000)];
        let wakes = vec![work(4_500_000), Step::Reach(Edge(0))];
        let mut config = config(2, 1, vec![computes, wakes, woken]);
        for (task, cpu) in config.scripts.tasks.iter_mut().zip([0, 1, 0]) {
            task.cpus = vec![cpu];
        }
        config.scripts.tasks[0].ticks = ticks;
        let sched = &mut config.knobs.sched;
        sched.preempt = Preempt::Lazy;
        let features = sched.features.without(Feature::Hrtick);
        sched.features = features.without(Feature::RunToParity);
        // At the beginning it waits for the first tick.
        run(&config, &mut ()).unwrap().scripts[2].books.wait_ns - 4_000_600
    };
    let at_exit = waits(Spent::Exit(12), None);
    assert!((100_000..110_000).contains(&at_exit), "{at_exit}");
    // The next tick is one: at 8 ms.
    let at_tick = waits(Spent::Interrupt(1), None);
    assert!((3_490_000..3_510_000).contains(&at_tick), "{at_tick}");
    // And so is one of its guest: at 6 ms.
    let of_guest = Ticks {
        phase_ns: 2_000_000,
        period_ns: 4_000_000,
    };
    let at_guests = waits(Spent::Interrupt(1), Some(of_guest));
    assert!((1_490_000..1_510_000).contains(&at_guests), "{at_guests}");
}

const fn work(ns: u64) -> Step {
    let spent = Spent::Guest;
    Step::Run { ns, spent }
}

#[test]
fn a_wait_ends_when_the_other_gets_there() {
    let edge = Edge(0);
    let outcome = go(
        2,
        1,
        vec![
            vec![work(5_000_000), Step::Reach(edge), work(1_000_000)],
            vec![
                work(1_000_000),
                Step::Sleep(Until::Edge(edge)),
                work(2_000_000),
            ],
        ],
    );
    let ends: Vec<u64> = outcome
        .scripts
        .iter()
        .map(|s| s.finished_ns.unwrap())
        .collect();
    assert!((6_000_000..6_100_000).contains(&ends[0]), "{ends:?}");
    // The waiter's CPU was in its deepest state.
    assert!((7_000_000..7_200_000).contains(&ends[1]), "{ends:?}");
    assert!(
        outcome
            .scripts
            .iter()
            .all(|s| s.spent[&Spent::Guest].0 >= 3_000_000)
    );
}

#[test]
fn a_task_that_begins_later_is_not_there_before_and_not_after_its_last_step() {
    let mut config = config(1, 0, vec![vec![work(30_000_000)], vec![work(10_000_000)]]);
    config.scripts.tasks[1].starts_ns = 40_000_000;
    let outcome = run(&config, &mut ()).unwrap();
    let books = |n: usize| outcome.scripts[n].books;
    // Interrupts on its CPU take time of it.
    assert!((10_000_000..10_020_000).contains(&books(1).run_ns));
    assert_eq!(books(1).sleep_ns, 0);
    // The CPU had to be woken for it.
    assert!(books(1).wait_ns < 200_000, "{:?}", books(1));
    assert_eq!(books(1).total_ns(), 100_000_000);
    let ended = outcome.scripts[1].finished_ns.unwrap();
    assert!((50_000_000..50_300_000).contains(&ended), "{ended}");
    assert!((30_000_000..30_050_000).contains(&books(0).run_ns));
}

#[test]
fn short_halts_are_polled_and_long_ones_slept() {
    let mut steps = vec![work(1_000)];
    for n in 1..100u64 {
        let at = n * 100_000;
        steps.extend([Step::Halt(Until::Time(at)), work(20_000)]);
    }
    let short = &go(1, 0, vec![steps]).scripts[0];
    assert!(short.halts >= 98 && short.polled >= 90, "{short:?}");
    let mut steps = vec![work(1_000)];
    for n in 1..50u64 {
        steps.extend([Step::Halt(Until::Time(n * 2_000_000)), work(20_000)]);
    }
    let long = &go(1, 0, vec![steps]).scripts[0];
    assert!(long.halts >= 45 && long.polled == 0, "{long:?}");
}

/// A sleeper that has not left the queue yet keeps others from polling: `single_task_running` counts it.
#[test]
fn no_vcpu_polls_while_a_sleeper_is_queued_still() {
    // First halts after the other one has gone to sleep: those that polled, and those that did not.
    let first_halts = |delays: bool| {
        let halts = [work(900_000), Step::Halt(Until::After(100_000))].repeat(150);
        // It has had more than its share when it sleeps, as the other one has woken meanwhile.
        let sleeps = [work(600_000), Step::Sleep(Until::After(6_770_000))].repeat(150);
        let mut config = config(1, 0, vec![halts, sleeps]);
        config.scripts.tell = true;
        // Windows grow and do not shrink.
        config.knobs.kvm.halt_poll.halt_poll_ns = 50_000_000;
        let features = config.knobs.sched.features;
        config.knobs.sched.features = match delays {
            true => features.with(Feature::DelayDequeue),
            false => features.without(Feature::DelayDequeue),
        };
        let mut sink = Collected::default();
        let scripts = run(&config, &mut sink).unwrap().scripts;
        // When the other one gave it the CPU, if it has not had it again.
        let (mut since, mut polled, mut not) = (None, 0, 0);
        for event in &sink.events {
            match event.kind {
                Kind::SchedSwitch { next, .. } if next == scripts[1].tid => since = None,
                Kind::SchedSwitch { prev, .. } if prev == scripts[1].tid => {
                    since = Some(event.time_ns);
                }
                Kind::KvmVcpuWakeup { ns, waited, .. }
                    if since.is_some_and(|since| event.time_ns - ns > since) =>
                {
                    since = None;
                    match waited {
                        true => not += 1,
                        false => polled += 1,
                    }
                }
                _ => {}
            }
        }
        (polled, not)
    };
    let (polled, not) = first_halts(true);
    assert!(not >= 10 && polled <= 3, "{polled} {not}");
    let (polled, not) = first_halts(false);
    assert!(polled >= 10 && not <= 3, "{polled} {not}");
}

#[test]
fn a_task_moves_at_its_times_when_it_does_not_run() {
    let steps = [work(1_500_000), Step::Sleep(Until::After(500_000))].repeat(20);
    let mut config = config(2, 0, vec![steps]);
    config.scripts.tasks[0].moves = Moves::Times(Arc::from([
        // It runs, until 9.5 ms.
        (8_300_000, 1),
        // Both while it sleeps: the last one counts.
        (21_600_000, 0),
        (21_700_000, 1),
        (31_600_000, 0),
        // There is no such CPU.
        (35_000_000, 7),
    ]));
    let mut sink = Collected::default();
    run(&config, &mut sink).unwrap();
    let moves = sink.events.iter().filter_map(|event| match event.kind {
        Kind::SchedMigrateTask { dest_cpu, .. } => Some((event.time_ns / 100_000, dest_cpu)),
        _ => None,
    });
    let moves: Vec<_> = moves.collect();
    let [(first, 1), (second, 0)] = moves[..] else {
        panic!("{moves:?}");
    };
    assert!((100..105).contains(&first), "{moves:?}");
    assert!((316..340).contains(&second), "{moves:?}");
}

#[test]
fn an_alarm_ends_a_wait_for_a_while() {
    let edge = Edge(0);
    let waits = |alarm: Option<Step>| {
        let mut steps = vec![work(10_000)];
        steps.extend(alarm);
        steps.extend([Step::Halt(Until::Edge(edge)), work(1_000_000)]);
        let reaches = vec![work(20_000_000), Step::Reach(edge)];
        go(2, 1, vec![reaches, steps]).scripts[1].clone()
    };
    let (plain, woken) = (
        waits(None),
        waits(Some(Step::Alarm(Until::Time(8_000_000)))),
    );
    assert_eq!((plain.halts, woken.halts), (1, 2));
    let more = woken.spent[&Spent::Guest].0 - plain.spent[&Spent::Guest].0;
    assert_eq!(more, 10_000, "what an alarm takes");
    let ends = [plain, woken].map(|script| script.finished_ns.unwrap());
    assert!(ends[0].abs_diff(ends[1]) < 200_000, "{ends:?}");
    // One that comes after what is waited for does nothing.
    let late = waits(Some(Step::Alarm(Until::Time(80_000_000))));
    assert_eq!((late.halts, late.spent[&Spent::Guest].0), (1, 1_010_000));
}

#[test]
fn a_script_may_compute_on() {
    let mut config = config(1, 0, vec![vec![work(1_000_000)]]);
    let run_ns = |config: &Config| run(config, &mut ()).unwrap().scripts[0].books.run_ns;
    assert!(run_ns(&config) < 2_000_000);
    config.scripts.tasks[0].then = Then::Compute;
    assert!(run_ns(&config) > 99_000_000);
}

#[test]
fn work_that_repeats_goes_on_and_waits_for_the_next_time() {
    // One computes 1 ms and reaches a point, the other waits for it.
    let scripts = vec![
        vec![work(1_000_000), Step::Reach(Edge(0))],
        vec![Step::Halt(Until::Edge(Edge(0))), work(100_000)],
    ];
    let mut config = config(2, 1, scripts);
    let passes = |config: &Config| {
        let outcome = run(config, &mut ()).unwrap();
        let passes = |script: &ScriptOutcome| (script.passes, script.halts);
        outcome.scripts.iter().map(passes).collect::<Vec<_>>()
    };
    assert_eq!(passes(&config), [(0, 0), (0, 1)]);
    for task in &mut config.scripts.tasks {
        task.then = Then::Repeat;
    }
    // 100 ms: the second is one behind, and halts each time.
    let both = passes(&config);
    assert!((98..=100).contains(&both[0].0), "{both:?}");
    assert!(both[0].0.abs_diff(both[1].0) <= 1, "{both:?}");
    assert!(both[1].1 >= u64::from(both[1].0), "{both:?}");
    // If the first one ends, its point stays reached.
    config.scripts.tasks[0].then = Then::End;
    assert!(passes(&config)[1].0 > 900);
}

#[test]
fn times_of_a_later_pass_count_from_its_begin() {
    let steps = vec![
        Step::Sleep(Until::Time(5_000_000)),
        work(1_000_000),
        Step::Sleep(Until::After(4_000_000)),
    ];
    let mut config = config(1, 0, vec![steps]);
    config.scripts.tasks[0].then = Then::Repeat;
    let passes = run(&config, &mut ()).unwrap().scripts[0].passes;
    assert!((9..=10).contains(&passes), "{passes}");
}

#[test]
fn steps_that_take_no_time_are_not_repeated_forever() {
    let mut config = config(1, 1, vec![vec![Step::Reach(Edge(0))]]);
    config.scripts.tasks[0].then = Then::Repeat;
    assert!(run(&config, &mut ()).unwrap().scripts[0].passes <= 1);
}

#[test]
fn sleeping_takes_time_and_polling_does_not() {
    // The first one reaches a point after 1 ms, for which the second one halts.
    let scripts = vec![
        vec![work(1_000_000), Step::Reach(Edge(0)), work(90_000_000)],
        vec![Step::Halt(Until::Edge(Edge(0))), Step::Slept(30_000)],
    ];
    let mut config = config(2, 1, scripts);
    config.knobs.kvm.halt_poll.halt_poll_ns = 0;
    let halts = |config: &Config| run(config, &mut ()).unwrap().scripts[1].clone();
    let free = halts(&config);
    assert_eq!(free.polled, 0);
    assert!((30_000..40_000).contains(&free.books.run_ns), "{free:?}");
    config.scripts.block_ns = 50_000;
    let slept = halts(&config);
    let more = slept.books.run_ns - free.books.run_ns;
    assert_eq!((slept.polled, more), (0, 50_000));
    assert_eq!((slept.poll_ns, slept.sleeping_ns), (0, 80_000));
    // What comes on the way to sleep ends the halt, and nothing was slept.
    config.scripts.block_ns = 2_000_000;
    let awake = halts(&config);
    assert_eq!(awake.polled, 1);
    assert!(
        (1_900_000..2_100_000).contains(&awake.books.run_ns),
        "{awake:?}"
    );
}

/// The first sends to the second, which is at work and `waits` for that later, while the third halts for what
/// comes late.
fn sends_to_busy(waits: Step) -> Config {
    let sends = vec![
        work(1_000_000),
        Step::Reach(Edge(0)),
        work(20_000_000),
        Step::Reach(Edge(1)),
    ];
    let halts = vec![Step::Halt(Until::Edge(Edge(1))), work(1_000_000)];
    config(3, 2, vec![sends, vec![work(10_000_000), waits], halts])
}

#[test]
fn what_a_busy_vcpu_is_sent_wakes_one_that_halts() {
    let mut config = sends_to_busy(Step::Halt(Until::Edge(Edge(0))));
    let slept = |config: &Config| run(config, &mut ()).unwrap().scripts[2].books.sleep_ns;
    assert!(slept(&config) > 20_000_000);
    are_vcpus(&mut config.scripts.tasks);
    let woken = slept(&config);
    assert!((900_000..1_200_000).contains(&woken), "{woken}");
    // Of another VM it is not.
    config.scripts.tasks[2].vm = Some(1);
    assert!(slept(&config) > 20_000_000);
}

#[test]
fn what_a_busy_emulator_is_sent_wakes_no_vcpu() {
    // A thread of the VM that is no vCPU.
    let mut config = sends_to_busy(Step::Sleep(Until::Edge(Edge(0))));
    are_vcpus(&mut config.scripts.tasks);
    let slept = |config: &Config| run(config, &mut ()).unwrap().scripts[2].books.sleep_ns;
    config.scripts.tasks[1].vcpu = None;
    assert!(slept(&config) > 20_000_000);
    // Nor does an edge that no task waits for, as when another event has ended the wait.
    config.scripts.tasks[1].steps = Arc::from([work(10_000_000)]);
    config.scripts.tasks[1].vcpu = Some(1);
    assert!(slept(&config) > 20_000_000);
}

#[test]
fn a_task_woken_twice_at_once_does_not_sleep_shorter_later() {
    // Its alarm wakes it, and what it waits for comes while that is on its way; then it sleeps until 50 ms.
    let waits = vec![
        Step::Alarm(Until::Time(1_000_000)),
        Step::Halt(Until::Edge(Edge(0))),
        work(10_000),
        Step::Sleep(Until::Time(50_000_000)),
        work(1_000),
    ];
    let wakes = vec![work(1_400_000), Step::Reach(Edge(0))];
    let mut config = config(2, 1, vec![waits, wakes]);
    config.scripts.wake_ns = 500_000;
    config.knobs.kvm.halt_poll.halt_poll_ns = 0;
    let finished = run(&config, &mut ()).unwrap().scripts[0].finished_ns;
    assert!(finished.unwrap() > 50_000_000, "{finished:?}");
}

#[test]
fn a_wakeup_on_its_way_back_preempts() {
    let mut sleeper = Vec::new();
    for n in 1..9u64 {
        let at = n * 10_000_000 + 500_000;
        sleeper.extend([Step::Sleep(Until::Time(at)), work(10_000)]);
    }
    let mut config = config(1, 0, vec![vec![work(1_000_000_000)], sleeper]);
    config.scripts.wake_ns = 100_000;
    let waited = run(&config, &mut ()).unwrap().scripts[1].books.wait_ns;
    // Eight wakeups take 0.1 ms each, and the first may wait for a slice; the next tick would be
    // 1.5 ms away.
    assert!((800_000..3_500_000).contains(&waited), "{waited}");
}

#[test]
fn slices_end_as_late_as_they_are_said_to() {
    let late = |entries: &[(u64, u32)]| Late(Arc::from(entries));
    let near = late(&[(1_000, 5), (2_000, 9)]);
    let at = [0, 1_400, 1_600, 9_000].map(|at| near.at(at));
    assert_eq!(at, [Some(5), Some(5), Some(9), Some(9)]);
    assert_eq!(late(&[]).at(7), None);
    let mut config = config(1, 0, vec![vec![work(1_000_000_000)]; 2]);
    let switches = |config: &Config| run(config, &mut ()).unwrap().stats.context_switches;
    let in_time = switches(&config);
    config.scripts.late = vec![late(&[(0, 1_000_000)])];
    let (few, many) = (switches(&config), in_time);
    assert!(few * 4 < many * 3, "{few} {many}");
    // Where only ticks are known, they tell.
    let ends = core::mem::take(&mut config.scripts.late);
    config.scripts.tick_late = ends;
    let by_ticks = switches(&config);
    assert!(by_ticks * 4 < many * 3, "{by_ticks} {many}");
}

#[test]
fn a_balanced_guest_is_idle_until_its_vm_has_done_some_work() {
    // One vCPU reaches a point after 10 ms, for which the other halts; in the recording that one halted
    // while 3 ms were computed.
    let halt = |ns| {
        Step::Halt(Until::Work {
            edge: Edge(0),
            ns,
            busy: false,
        })
    };
    let halted = |ns, balanced| {
        let mut steps = vec![work(2_000_000); 5];
        steps.push(Step::Reach(Edge(0)));
        let mut config = config(2, 1, vec![steps, vec![halt(ns), work(1_000_000)]]);
        are_vcpus(&mut config.scripts.tasks);
        config.scripts.balanced = balanced;
        config.knobs.kvm.halt_poll.halt_poll_ns = 0;
        let sleeper = run(&config, &mut ()).unwrap().scripts[1].clone();
        sleeper.finished_ns.unwrap() / 1_000_000
    };
    assert_eq!(halted(3_000_000, false), 11);
    // Noticed at the end of the second step.
    assert_eq!(halted(3_000_000, true), 5);
    assert_eq!(halted(30_000_000, true), 11);
}

#[test]
fn a_vcpu_that_waits_for_a_vm_that_idles_goes_on() {
    // One vCPU halts until 3 ms of work are done, of which the other does 1 ms and then sleeps until 50 ms.
    // If the VM was busy in that wait, what it is for must have been done before.
    let woken = |busy| {
        let edge = Edge(0);
        let ns = 3_000_000;
        let waits = Step::Halt(Until::Work { edge, ns, busy });
        let works = vec![
            work(1_000_000),
            Step::Halt(Until::Time(50_000_000)),
            work(5_000_000),
            Step::Reach(edge),
        ];
        let mut config = config(2, 1, vec![vec![waits, work(1_000_000)], works]);
        let scripts = &mut config.scripts;
        are_vcpus(&mut scripts.tasks);
        scripts.balanced = true;
        config.knobs.kvm.halt_poll.halt_poll_ns = 0;
        let outcome = run(&config, &mut ()).unwrap();
        outcome.scripts[0].finished_ns.unwrap() / 1_000_000
    };
    assert_eq!(woken(true), 2);
    // At the end of the step in which they are done.
    assert_eq!(woken(false), 56);
}

#[test]
fn vcpus_that_are_not_there_do_not_keep_a_vm_from_idling() {
    let edge = Edge(0);
    let waits = Step::Halt(Until::Work {
        edge,
        ns: 3_000_000,
        busy: true,
    });
    let sleeps = vec![
        work(1_000_000),
        Step::Halt(Until::Time(50_000_000)),
        work(5_000_000),
        Step::Reach(edge),
    ];
    let late = vec![work(1_000_000)];
    let woken = |scripts: [Vec<Step>; 3], starts_ns| {
        let mut config = config(3, 1, scripts.into());
        are_vcpus(&mut config.scripts.tasks);
        config.scripts.tasks[2].starts_ns = starts_ns;
        config.scripts.balanced = true;
        config.knobs.kvm.halt_poll.halt_poll_ns = 0;
        let outcome = run(&config, &mut ()).unwrap();
        outcome.scripts[0].finished_ns.unwrap_or(u64::MAX) / 1_000_000
    };
    let waits = || vec![waits, work(1_000_000)];
    // The third is not there yet, or has ended by the time at which the second halts.
    assert_eq!(woken([waits(), sleeps.clone(), late], 70_000_000), 2);
    assert_eq!(woken([waits(), sleeps, vec![work(500_000)]], 0), 2);
    // The last one that did not halt ends.
    let ends = || vec![work(500_000)];
    assert_eq!(woken([waits(), ends(), vec![work(1_000_000)]], 0), 2);
}

#[test]
fn a_vcpu_that_computes_on_does_work_of_its_vm() {
    let waits = Step::Halt(Until::Work {
        edge: Edge(0),
        ns: 30_000_000,
        busy: true,
    });
    let late = vec![Step::Halt(Until::Time(90_000_000)), Step::Reach(Edge(0))];
    let scripts = vec![vec![waits, work(1_000)], vec![work(1_000_000)], late];
    let mut config = config(3, 1, scripts);
    are_vcpus(&mut config.scripts.tasks);
    config.scripts.balanced = true;
    config.scripts.tasks[1].then = Then::Compute;
    let finished = run(&config, &mut ()).unwrap().scripts[0].finished_ns;
    assert!(finished.is_some_and(|ns| ns < 45_000_000), "{finished:?}");
}

#[test]
fn a_poll_ends_when_a_task_waits_for_its_cpu() {
    // Halts of 1.9 ms that poll. A task that wakes on the polling CPU, and does not preempt, does not
    // wait for the end of the poll.
    let halts: Vec<Step> = (1..45u64)
        .flat_map(|n| [Step::Halt(Until::Time(n * 2_000_000)), work(100_000)])
        .collect();
    let wakes: Vec<Step> = (1..45u64)
        .flat_map(|n| {
            [
                Step::Sleep(Until::Time(n * 2_000_000 + 500_000)),
                work(10_000),
            ]
        })
        .collect();
    let mut config = config(1, 0, vec![halts, wakes]);
    are_vcpus(&mut config.scripts.tasks[..1]);
    let halt_poll = &mut config.knobs.kvm.halt_poll;
    halt_poll.halt_poll_ns = 5_000_000;
    halt_poll.grow_start_ns = 5_000_000;
    let features = config.knobs.sched.features;
    config.knobs.sched.features = features.without(Feature::WakeupPreemption);
    let outcome = run(&config, &mut ()).unwrap();
    assert!(outcome.scripts[0].poll_ns > 10_000_000);
    let waited = outcome.scripts[1].books.wait_ns;
    assert!(waited < 2_000_000, "{waited}");
}

#[test]
fn a_wakeup_tells_whether_it_preempts() {
    let sleeps = vec![
        work(10_000),
        Step::Sleep(Until::Time(20_000_000)),
        work(1_000),
    ];
    let flags = |preempt, features: &dyn Fn(Features) -> Features| {
        let mut config = config(1, 0, vec![sleeps.clone(), vec![work(50_000_000)]]);
        config.knobs.sched.preempt = preempt;
        config.knobs.sched.features = features(config.knobs.sched.features);
        let mut sink = Collected::default();
        run(&config, &mut sink).unwrap();
        let woken =
            |event: &&Event| matches!(event.kind, Kind::SchedWakeup { tid, .. } if tid.0 == 1000);
        let event = sink.events.iter().find(woken).unwrap();
        event.context.bits() & (Context::NEED_RESCHED | Context::NEED_RESCHED_LAZY)
    };
    let same = |features| features;
    assert_eq!(flags(Preempt::Lazy, &same), Context::NEED_RESCHED_LAZY);
    assert_eq!(flags(Preempt::Full, &same), Context::NEED_RESCHED);
    let without = |features: Features| features.without(Feature::WakeupPreemption);
    assert_eq!(flags(Preempt::Full, &without), 0);
}

#[test]
fn a_timer_on_a_grid_is_as_late_as_it_was() {
    let grid = Until::Grid {
        phase_ns: 250_000,
        period_ns: 1_000_000,
        nth: 2,
        late_us: 300,
    };
    let outcome = go(1, 0, vec![vec![Step::Halt(grid), work(1_000)]]);
    let finished = outcome.scripts[0].finished_ns.unwrap();
    assert!((1_550_000..1_570_000).contains(&finished), "{finished}");
}

/// vCPU 0 asks after each 100 us for its CPU to be given to another one, as one that waits for that does.
fn yields_to(number: u32) -> Vec<Step> {
    [work(100_000), Step::YieldTo(number)].repeat(2_000)
}

#[test]
fn a_yielder_to_a_vcpu_that_waits_loses_what_that_gains() {
    let busy = || vec![work(1_000_000_000)];
    let shares = |number| {
        let mut config = config(1, 0, vec![yields_to(number), busy(), busy()]);
        are_vcpus(&mut config.scripts.tasks);
        let outcome = run(&config, &mut ()).unwrap();
        let ran = outcome.scripts.iter().map(|s| s.books.run_ns / 1_000_000);
        (outcome.stats.directed_yields, ran.collect::<Vec<u64>>())
    };
    let (yields, ms) = shares(1);
    assert!(yields > 10 && ms[0] * 2 < ms[2], "{yields} {ms:?}");
    // To itself, and to one that is not there.
    for number in [0, 7] {
        let (yields, ms) = shares(number);
        assert!(yields == 0 && ms[0].abs_diff(ms[2]) <= 3, "{yields} {ms:?}");
    }
}

#[test]
fn yields_are_to_the_thread_that_has_the_number_now() {
    let busy = || vec![work(1_000_000_000)];
    let ended = vec![work(1_000_000)];
    let mut config = config(1, 0, vec![yields_to(1), ended, busy(), busy()]);
    are_vcpus(&mut config.scripts.tasks);
    let later = &mut config.scripts.tasks[2];
    (later.vcpu, later.starts_ns) = (Some(1), 5_000_000);
    let outcome = run(&config, &mut ()).unwrap();
    let ran = |n: usize| outcome.scripts[n].books.run_ns;
    assert!(outcome.stats.directed_yields > 10 && ran(0) * 2 < ran(3));
    // One that has not begun yet is no target either.
    let later = &mut config.scripts.tasks[2];
    (later.vcpu, later.starts_ns) = (Some(3), 90_000_000);
    config.scripts.tasks[0].steps = yields_to(3).into();
    assert!(run(&config, &mut ()).is_ok());
}

#[test]
fn a_yield_to_a_vcpu_that_runs_or_sleeps_gives_nothing_away() {
    let sleeps = vec![Step::Halt(Until::Time(1_000_000_000))];
    let runs = vec![work(1_000_000_000)];
    let third = vec![work(1_000_000_000)];
    for other in [sleeps, runs] {
        let mut config = config(2, 0, vec![yields_to(1), other, third.clone()]);
        are_vcpus(&mut config.scripts.tasks);
        // The third shares the first one's CPU.
        for (task, cpu) in config.scripts.tasks.iter_mut().zip([0, 1, 0]) {
            task.cpus = vec![cpu];
            task.first_cpu = cpu;
        }
        let outcome = run(&config, &mut ()).unwrap();
        assert_eq!(outcome.stats.directed_yields, 0);
        let ran = |n: usize| outcome.scripts[n].books.run_ns;
        assert!(ran(0).abs_diff(ran(2)) < 3_000_000);
    }
}

#[test]
fn a_spinner_yields_to_a_vcpu_of_its_own_vm() {
    let busy = || vec![work(1_000_000_000)];
    let spins = [work(100_000), Step::Spin].repeat(2_000);
    let mut config = config(1, 0, vec![spins, busy(), busy(), busy()]);
    are_vcpus(&mut config.scripts.tasks[..2]);
    are_vcpus(&mut config.scripts.tasks[2..]);
    for other in &mut config.scripts.tasks[2..] {
        other.vm = Some(1);
    }
    config.scripts.groups = vec![None, None];
    let outcome = run(&config, &mut ()).unwrap();
    let yields = outcome.stats.directed_yields;
    let ms: Vec<u64> = outcome
        .scripts
        .iter()
        .map(|s| s.books.run_ns / 1_000_000)
        .collect();
    assert!(yields > 10 && ms[0] * 2 < ms[1], "{yields} {ms:?}");
    // Alone in its VM it has no vCPU to yield to, and keeps its share.
    config.scripts.tasks[1].vm = Some(1);
    config.scripts.tasks[1].vcpu = Some(2);
    let outcome = run(&config, &mut ()).unwrap();
    assert_eq!(outcome.stats.directed_yields, 0);
    let ran = |n: usize| outcome.scripts[n].books.run_ns;
    assert!(ran(0).abs_diff(ran(1)) < 3_000_000);
}
