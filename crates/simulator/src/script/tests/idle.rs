//! Waits that depend on what is left of a run, and how idle CPUs are found.

use super::*;

const MS: u64 = 1_000_000;

#[test]
fn a_rest_is_a_share_of_what_is_left() {
    let rest = Step::Sleep(Until::Rest { permille: 250 });
    let outcome = go(1, 0, vec![vec![work(20 * MS), rest, work(MS)]]);
    let finished = outcome.scripts[0].finished_ns.expect("it is through");
    // A quarter of the 80 ms that are left after 20 ms.
    assert!(finished.abs_diff(41 * MS) < MS / 2, "{finished}");
}

#[test]
fn a_wait_for_a_time_or_sooner_ends_at_the_first_of_both() {
    let sooner = |time_ns, after_us| Step::Sleep(Until::Sooner { time_ns, after_us });
    for (wait, expected) in [
        (sooner(50 * MS, 3_000), 13 * MS),
        (sooner(11 * MS, 3_000), 11 * MS),
        // The time has passed: there is no wait.
        (sooner(5 * MS, 3_000), 10 * MS),
    ] {
        let outcome = go(1, 0, vec![vec![work(10 * MS), wait]]);
        let finished = outcome.scripts[0].finished_ns.expect("it is through");
        assert!(finished.abs_diff(expected) < MS / 2, "{wait:?}: {finished}");
    }
}

/// Ready time of three servers on two CPUs.
fn ready_ns(change: impl Fn(&mut Scripts)) -> u64 {
    let server = |n: u64| {
        let turn = |turn: u64| {
            let until = Until::Time((turn * 5 + n * (turn % 3)) * MS);
            [Step::Sleep(until), work(2_200_000)]
        };
        (0..20).flat_map(turn).collect::<Vec<Step>>()
    };
    let mut config = config(2, 0, (1..=3).map(server).collect());
    change(&mut config.scripts);
    let outcome = run(&config, &mut ()).expect("it runs");
    outcome
        .scripts
        .iter()
        .map(|script| script.books.wait_ns)
        .sum()
}

#[test]
fn busy_caches_are_not_searched_and_idle_cpus_may_not_look() {
    let usual = ready_ns(|_| {});
    let searched = ready_ns(|scripts| scripts.searches_by_utilization = true);
    let neither = ready_ns(|scripts| {
        scripts.searches_by_utilization = true;
        scripts.newidle_skips_permille = 1000;
    });
    assert!(usual <= searched, "{usual}, {searched}");
    assert!(searched < neither, "{searched}, {neither}");
    // A pure function of the configuration.
    let half = || ready_ns(|scripts| scripts.newidle_skips_permille = 500);
    assert_eq!(half(), half());
}
