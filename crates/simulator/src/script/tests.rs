use std::sync::Arc;

use super::{Edge, ScriptConfig, ScriptGroup, Scripts, Spent, Step, Until};
use crate::config::{
    Config, HostConfig, Hypervisor, IdleMethod, Knobs, Profile, RunConfig, Topology,
};
use crate::{Outcome, run};

fn go(cpus: u32, edges: u32, scripts: Vec<Vec<Step>>) -> Outcome {
    let tasks = scripts
        .into_iter()
        .enumerate()
        .map(|(n, steps)| ScriptConfig {
            name: format!("script{n}"),
            nice: 0,
            cpus: Vec::new(),
            first_cpu: n as u32 % cpus,
            vm: Some(0),
            moves: false,
            steps: Arc::from(steps),
        });
    let config = Config {
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
    };
    run(&config, &mut ()).unwrap()
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
