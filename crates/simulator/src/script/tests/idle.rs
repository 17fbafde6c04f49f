//! Waits that depend on what is left of a run, and how idle CPUs are found.

use super::super::Looks;
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

#[test]
fn an_answer_comes_so_long_after_its_request() {
    let answer = |ns| {
        Step::Halt(Until::AfterEdge {
            edge: Edge(0),
            ns,
            exit_us: 0,
            waker: None,
        })
    };
    // The request is passed on after 10 ms. A vCPU waits from then on, before, and after the answer has come.
    let passes_on = vec![work(10 * MS), Step::Reach(Edge(0)), work(50 * MS)];
    for (steps, expected) in [
        (vec![work(10 * MS), answer(5_000_000)], 15 * MS),
        (vec![work(2 * MS), answer(5_000_000)], 15 * MS),
        (vec![work(2 * MS), answer(0)], 10 * MS),
        (vec![work(13 * MS), answer(5_000_000)], 15 * MS),
        (vec![work(20 * MS), answer(5_000_000)], 20 * MS),
    ] {
        let mut host = config(2, 1, vec![passes_on.clone(), steps.clone()]);
        host.scripts.tasks[1].vcpu = Some(0);
        let outcome = run(&host, &mut ()).expect("it runs");
        let finished = outcome.scripts[1].finished_ns.expect("it is through");
        assert!(
            finished.abs_diff(expected) < MS / 2,
            "{steps:?}: {finished}"
        );
    }
}

#[test]
fn an_idle_cpu_takes_a_while_to_run_what_another_one_wakes() {
    let wait = |waker| match waker {
        Some(waker) => Until::Called {
            time_ns: 10 * MS,
            waker,
        },
        None => Until::Time(10 * MS),
    };
    // The script's own CPU takes its timer's interrupt first: it waits for nothing then.
    for (waker, waits_ns) in [(Some(1), 130_000), (None, 0)] {
        let mut host = config(
            2,
            0,
            vec![vec![work(MS), Step::Halt(wait(waker)), work(MS)]],
        );
        host.host.profile.costs = Costs::FREE;
        host.scripts.tasks[0].called = Late(Arc::from([(0, 130_000)]));
        let outcome = run(&host, &mut ()).expect("it runs");
        let script = &outcome.scripts[0];
        let waited_ns = script.books.wait_ns;
        assert!(
            waited_ns.abs_diff(waits_ns) < 5_000,
            "{waker:?}: {waited_ns}"
        );
        let finished = script.finished_ns.expect("it is through");
        assert!(
            finished.abs_diff(11 * MS + waits_ns) < MS / 20,
            "{finished}"
        );
    }
}

#[test]
fn a_busy_cpu_takes_timers_and_answers_at_once() {
    let answer = |waker| Until::AfterEdge {
        edge: Edge(0),
        ns: 5_000_000,
        exit_us: 900,
        waker,
    };
    let timer = Until::Armed {
        ns: 15 * MS,
        exit_us: 900,
    };
    // CPU 1 is busy, and reaches the point after 10 ms. CPU 0 is idle.
    let busy = vec![work(10 * MS), Step::Reach(Edge(0)), work(50 * MS)];
    for (wait, late_ns) in [
        (answer(Some(1)), 0),
        (answer(Some(0)), 900_000),
        (answer(None), 900_000),
        (timer, 900_000),
    ] {
        let waits = vec![Step::Arm, work(MS), Step::Halt(wait), work(MS)];
        let mut host = config(2, 1, vec![waits, busy.clone()]);
        host.host.profile.costs = Costs::FREE;
        let outcome = run(&host, &mut ()).expect("it runs");
        let finished = outcome.scripts[0].finished_ns.expect("it is through");
        let expected = 16 * MS + late_ns;
        assert!(finished.abs_diff(expected) < MS / 5, "{wait:?}: {finished}");
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
    let looks = |permille| {
        ready_ns(|scripts| {
            scripts.searches_by_utilization = true;
            scripts.looks = Looks::Learned(Some(permille));
        })
    };
    assert!(usual <= searched, "{usual}, {searched}");
    assert!(searched < looks(0), "{searched}, {}", looks(0));
    assert_eq!(searched, looks(1000));
    // A pure function of the configuration.
    assert_eq!(looks(500), looks(500));
}
