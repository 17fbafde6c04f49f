use std::num::NonZeroUsize;

use super::*;
use crate::compare::compare;
use crate::run::run;
use crate::scenario::{Scenario, Variant};
use crate::stats::Verdict;

const TEXT: &str = r#"
[host]
profile = "skylake-sp"
cpus = 2

[[vm]]
name = "web"
count = 2
vcpus = 2
workload = "ticks"

[[vm]]
name = "batch"
vcpus = 2
workload = "busy"

[[task]]
name = "backup"
workload = "busy"

[variants.alike]
[variants.slow]
vm.web.workload.period_ns = "4ms"

[run]
duration = "50ms"
warmup = "10ms"
seeds = 3
"#;

fn compared(threads: usize) -> crate::compare::Comparison {
    let scenario = Scenario::from_text("a.toml", TEXT).expect("a scenario");
    let variants: Vec<&Variant> = scenario.variants.iter().collect();
    let threads = NonZeroUsize::new(threads).expect("not 0");
    let go = AtomicBool::new(false);
    let runs = run(&Simulator, &scenario, &variants, threads, &go, &|_, _| {});
    compare(&scenario, &runs.expect("it can be run"))
}

#[test]
fn a_scenario_runs_and_its_variants_differ() {
    let comparison = compared(1);
    assert!(
        comparison
            .variants
            .iter()
            .all(|v| !v.partial && v.failures.is_empty())
    );
    let row = |of: Subject, name: &str| {
        let found = comparison
            .rows
            .iter()
            .find(|row| row.of == of && row.name == name);
        found.unwrap_or_else(|| panic!("no {name}"))
    };
    let verdict = |of: Subject, name: &str| {
        let cell = row(of, name).cells[1].expect("a cell");
        cell.difference.expect("a difference").verdict
    };
    let web = || Subject::Vm("web".into());
    assert_eq!(verdict(web(), "throughput"), Verdict::Worse);
    row(Subject::Task("backup".into()), "throughput");
    // Four threads that sleep 1 ms at a time.
    let turns = row(web(), "throughput").cells[0]
        .expect("a cell")
        .estimate
        .mean;
    assert!((1_000.0..=4_000.0).contains(&turns), "{turns}");
    row(Subject::Vm("web".into()), "latency p99");
    row(Subject::Vm("web".into()), "interrupt response mean");
    row(Subject::Host, "exits HLT");
    row(Subject::Host, "share error");
    // Two CPUs, three VMs and a task: some of them wait, for less than the whole time.
    for of in [Subject::Vm("batch".into()), Subject::Task("backup".into())] {
        let lag = row(of, "worst lag").cells[0].expect("a cell");
        let lag = lag.estimate.mean;
        assert!(lag > 10_000.0 && lag < 50e6, "{lag} ns");
    }
}

/// As `perf kvm stat` shows them; and sums over the rates, which go by the name "exits …", hold.
#[test]
fn exits_have_shares_and_times_by_reason() {
    let comparison = compared(1);
    let host = |prefix: &str| -> Vec<(String, f64)> {
        let rows = comparison.rows.iter().filter(|row| row.of == Subject::Host);
        let named = rows.filter_map(|row| Some((row.name.strip_prefix(prefix)?, row)));
        let first = |row: &crate::compare::Row| row.cells[0].expect("a cell").estimate.mean;
        named
            .map(|(name, row)| (name.to_owned(), first(row)))
            .collect()
    };
    let rates: f64 = host("exits ").iter().map(|(_, rate)| rate).sum();
    let of_vms = comparison.rows.iter().filter(|row| row.name == "exits");
    let of_vms: f64 = of_vms
        .map(|row| row.cells[0].expect("a cell").estimate.mean)
        .sum();
    assert!((rates / of_vms - 1.0).abs() < 1e-9, "{rates} {of_vms}");
    let shares = host("exit time ");
    let all: f64 = shares.iter().map(|(_, share)| share).sum();
    assert!((all - 100.0).abs() < 1e-6, "{shares:?}");
    let (min, mean, max) = (host("exit min "), host("exit mean "), host("exit max "));
    assert!(!mean.is_empty());
    for ((min, mean), max) in min.iter().zip(&mean).zip(&max) {
        assert!(min.0 == mean.0 && mean.0 == max.0);
        assert!(0.0 < min.1 && min.1 <= mean.1 && mean.1 <= max.1, "{min:?}");
    }
}

#[test]
fn the_same_bytes_on_one_thread_and_on_three() {
    let json = |threads| serde_json::to_string(&compared(threads)).expect("JSON");
    assert_eq!(json(1), json(3));
}

#[test]
fn a_workload_that_is_not_there_is_a_failure_and_no_panic() {
    let text = TEXT.replace("\"ticks\"", "{ name = \"ticks\", threads = 2 }");
    let mut scenario = Scenario::from_text("a.toml", &text).expect("a scenario");
    assert!(scenario.set("vm.web.workload.tread", "3").is_err());
    assert!(scenario.set("vm.web.workload.threads", "-3").is_err());
    scenario
        .set("vm.web.workload.period_ns", "2ms")
        .expect("a parameter");
}

#[test]
fn numbers_of_a_group_are_not_its_name() {
    for (name, group) in [
        ("web-1", "web"),
        ("web", "web"),
        ("web-a", "web-a"),
        ("-1", "-1"),
    ] {
        assert_eq!(group_of(name), group);
    }
}

#[test]
fn where_a_vcpu_runs_decides_whether_its_timers_are_posted_and_not_where_they_fire() {
    // A guest that computes on isolated CPUs; its ticks fire on the housekeeping CPUs.
    let text = "[host]\nprofile = \"skylake-sp\"\ncpus = 4\nnohz_full = \"2-3\"\nisolcpus = \"2-3\"\n\
        [[vm]]\nname = \"rt\"\nvcpus = 2\npinning = \"1:1 2-3\"\ncpu_pm = true\nworkload = \"busy\"\n\
        [[task]]\nname = \"keeper\"\nworkload = \"ticks\"\ncount = 2\ncpus = \"0-1\"\n\
        [knobs]\nkvm.pi_inject_timer = 1\n[run]\nduration = \"100ms\"\nwarmup = \"20ms\"\n";
    let exits = |policy: &str| {
        let mut scenario = Scenario::from_text("a.toml", text).expect("a scenario");
        scenario.set("kvm.timer_policy", policy).expect("a policy");
        let config = scenario
            .config(&scenario.variants[0], 1)
            .expect("a configuration");
        let run = Simulator
            .run(&config, &AtomicBool::new(false))
            .expect("a run");
        let exits = run.metrics.iter().find(|metric| metric.name == "exits");
        exits.expect("exits are counted").value
    };
    assert!(exits("always") < exits("off"));
    assert_eq!(exits("isolated-only"), exits("always"));
}

#[test]
fn shares_of_a_guest_that_starts_late_are_of_its_own_time() {
    let text = "[host]\nprofile = \"skylake-sp\"\ncpus = 2\n\
        [[vm]]\nname = \"late\"\nstart_ns = \"35ms\"\nworkload = \"busy\"\n\
        [[vm]]\nname = \"never\"\nstart_ns = \"1s\"\nworkload = \"busy\"\n\
        [run]\nduration = \"50ms\"\nwarmup = \"10ms\"\n";
    let scenario = Scenario::from_text("a.toml", text).expect("a scenario");
    let config = scenario
        .config(&scenario.variants[0], 1)
        .expect("a configuration");
    let run = Simulator.run(&config, &AtomicBool::new(false));
    let run = run.expect("a run");
    let shares = |vm: &str| -> Vec<f64> {
        let is_share = |metric: &&Metric| {
            metric.of == Subject::Vm(vm.into())
                && crate::metric::VCPU_TIME.contains(&metric.name.as_str())
                && metric.name != "spinning"
        };
        run.metrics
            .iter()
            .filter(is_share)
            .map(|metric| metric.value)
            .collect()
    };
    let late = shares("late");
    assert!((late.iter().sum::<f64>() - 100.0).abs() < 1e-9, "{late:?}");
    // It computes all the time that it is there.
    assert!(late[0] > 90.0, "{late:?}");
    assert!(shares("never").is_empty());
}

#[test]
fn without_operations_there_are_no_exits_per_operation() {
    // A job of a second does not end in the run. Its page faults are exits.
    let text = "[host]\nprofile = \"skylake-sp\"\ncpus = 1\n\
        [[vm]]\nname = \"build\"\nworkload = { name = \"kernel-build\", job_ns = \"1ms\" }\n\
        [variants.short]\n[variants.long]\nvm.build.workload.job_ns = \"1s\"\n\
        [run]\nduration = \"20ms\"\nwarmup = \"5ms\"\n";
    let scenario = Scenario::from_text("a.toml", text).expect("a scenario");
    let variants: Vec<&Variant> = scenario.variants.iter().collect();
    let go = AtomicBool::new(false);
    let runs = run(
        &Simulator,
        &scenario,
        &variants,
        NonZeroUsize::MIN,
        &go,
        &|_, _| {},
    );
    let comparison = compare(&scenario, &runs.expect("it can be run"));
    let cells = |name: &str| {
        let row = comparison.rows.iter().find(|row| row.name == name);
        let cells = &row.expect("a row").cells;
        [cells[0], cells[1]].map(|cell| cell.map(|cell| cell.estimate.mean))
    };
    assert!(matches!(cells("exits per operation"), [Some(short), None] if short > 1.0));
    assert!(cells("exits")[1].is_some_and(|exits| exits > 1_000.0));
}
