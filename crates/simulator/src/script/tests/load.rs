//! Scripts on hosts with another load than recorded.

use super::{Preempted, Spent, Step, Until, are_vcpus, config, run, work};

const HALT: Spent = Spent::Halt(120);

/// A guest that computes for 5 ms and halts until some time. The exit takes 100 us before and after.
fn run_ns(skips_halts: bool, until_ns: u64) -> (u64, u64) {
    let exit = Step::Run {
        ns: 100_000,
        spent: HALT,
    };
    let halts = [
        exit,
        Step::Halt(Until::Time(until_ns)),
        Step::Slept(0),
        exit,
    ];
    let steps = [work(5_000_000)].into_iter().chain(halts);
    let mut config = config(1, 0, vec![steps.chain([work(1_000_000)]).collect()]);
    are_vcpus(&mut config.scripts.tasks);
    config.scripts.skips_halts = skips_halts;
    let outcome = run(&config, &mut ()).unwrap();
    let [script] = outcome.scripts.as_slice() else {
        panic!("one script");
    };
    let exits = script.spent.get(&HALT).copied().unwrap_or_default();
    (script.spent[&Spent::Guest].0, exits.0)
}

#[test]
fn a_late_guest_does_not_halt() {
    assert_eq!(run_ns(true, 4_000_000), (6_000_000, 0));
    // As recorded it exits, and goes on at once.
    assert_eq!(run_ns(false, 4_000_000), (6_000_000, 200_000));
    // It has to wait.
    assert_eq!(run_ns(true, 20_000_000), (6_000_000, 200_000));
    // What it waits for comes while it exits.
    assert_eq!(run_ns(true, 5_050_000), (6_000_000, 200_000));
}

#[test]
fn preemptions_beyond_the_recorded_ones_take_time() {
    const COST_NS: u32 = 1_000_000;
    let more_ns = |every_ns: u64| {
        let run_ns = |preempted| {
            let mut config = config(1, 0, vec![vec![work(20_000_000)]; 2]);
            are_vcpus(&mut config.scripts.tasks);
            config.scripts.tasks[0].preempted = preempted;
            run(&config, &mut ()).unwrap().scripts[0].books.run_ns
        };
        let costly = Preempted {
            every_ns,
            cost_ns: COST_NS,
        };
        run_ns(costly).saturating_sub(run_ns(Preempted::default()))
    };
    assert!(more_ns(0) > 3 * u64::from(COST_NS), "{}", more_ns(0));
    // As often as recorded.
    assert!(more_ns(100_000) < u64::from(COST_NS) / 10);
}
