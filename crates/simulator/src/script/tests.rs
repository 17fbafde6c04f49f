use std::sync::Arc;

use super::{Edge, ScriptConfig, ScriptGroup, Scripts, Spent, Step, Until};
use crate::config::{
    Config, HostConfig, Hypervisor, IdleMethod, Knobs, Profile, RunConfig, Topology,
};
use crate::{Outcome, run};

fn go(cpus: u32, edges: u32, scripts: Vec<Vec<Step>>) -> Outcome {
    run(&config(cpus, edges, scripts), &mut ()).unwrap()
}

fn config(cpus: u32, edges: u32, scripts: Vec<Vec<Step>>) -> Config {
    let tasks = scripts
        .into_iter()
        .enumerate()
        .map(|(n, steps)| ScriptConfig {
            name: format!("script{n}"),
            nice: 0,
            cpus: Vec::new(),
            first_cpu: n as u32 % cpus,
            starts_ns: 0,
            vm: Some(0),
            moves: false,
            endless: false,
            alarm_ns: 10_000,
            steps: Arc::from(steps),
        });
    Config {
        host: HostConfig {
            profile: Profile::generic(),
            topology: Topology::flat(cpus),
            hypervisor: Hypervisor::Kvm,
            idle: IdleMethod::Mwait,
            tasks: Vec::new(),
        },
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
