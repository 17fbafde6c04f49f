use super::*;

#[test]
fn runs_are_numbered_seeds_first() {
    let plan = plan(&GRID).expect("a plan");
    assert_eq!((plan.runs(), plan.points()), (5 * 3 * 2 * 3, 30));
    let place = |run| {
        let Place {
            values,
            variant,
            seed,
        } = plan.place(run);
        (values, variant, seed)
    };
    assert_eq!(place(0), (vec![0, 0], 0, 0));
    assert_eq!(place(2), (vec![0, 0], 0, 2));
    assert_eq!(place(3), (vec![0, 0], 1, 0));
    assert_eq!(place(6), (vec![0, 1], 0, 0));
    assert_eq!(place(18), (vec![1, 0], 0, 0));
    assert_eq!(place(89), (vec![4, 2], 1, 2));
    let config = plan.config(89).expect("a configuration");
    assert_eq!(config.knobs.kvm.halt_poll.halt_poll_ns, 40_000);
    assert_eq!((config.host.topology.cpus(), config.run.seed), (8, 3));
    assert_eq!(config.knobs.kvm.ple.gap, 0);
}

#[test]
fn everything_of_a_scenario_can_be_varied() {
    let config = |text: &str, run| {
        let plan = plan(&[text]).expect(text);
        plan.check(threads(2)).expect(text);
        plan.config(run).expect(text)
    };
    // Two variants and three seeds: the second value begins at run 6.
    assert_eq!(config("vm.web.count=1,3", 6).vms.len(), 3);
    assert_eq!(config("vm.web.vcpus=1,3", 6).vms[0].vcpus, 3);
    assert_eq!(
        config("vm.web.workload=busy,hackbench", 6).vms[0]
            .workload
            .name,
        "hackbench"
    );
    assert_eq!(config("run.duration=1ms,7ms", 6).run.duration_ns, 7_000_000);
    assert_eq!(config("run.warmup=1ms,7ms", 6).run.warmup_ns, 7_000_000);
    assert_eq!(config("host.sockets=1,2", 6).host.topology.cpus(), 8);
    assert_eq!(config("task.other.count=1,5", 6).host.tasks[0].count, 5);
    assert_eq!(config("task.other.nice=0..5+5", 6).host.tasks[0].nice, 5);
    let profile = config("profile=skylake-sp,sapphire-rapids", 6).host.profile;
    assert_eq!(profile.name, "sapphire-rapids");
    let period = config("vm.web.workload.period_ns=1ms,2ms", 6);
    let period = period.vms[0].workload.params.get("period_ns").cloned();
    assert_eq!(
        period,
        Some(stealtime_simulator::config::ParamValue::Int(2_000_000))
    );
    assert_eq!(
        plan(&["run.seeds=7"]).expect("a plan").seeds,
        [1, 2, 3, 4, 5, 6, 7]
    );
    assert_eq!(plan(&["run.seeds=7,9"]).expect("a plan").seeds, [7, 9]);
}

#[test]
fn figures_changed_in_place_stay_on_another_machine() {
    let text = TEXT.replace(
        "profile = \"skylake-sp\"",
        "profile = { base = \"skylake-sp\", costs.irq_ns = 77 }",
    );
    let mut scenario = Scenario::from_text("a.toml", &text).expect("a scenario");
    scenario.set("kvm.halt_poll_ns", "3us").expect("a knob");
    scenario.set_seeds(2);
    let other = scenario.on_profile("sapphire-rapids").expect("a machine");
    let config = other
        .config(&other.variants[0], 1)
        .expect("a configuration");
    assert_eq!(config.host.profile.costs.irq_ns, 77);
    let own = Scenario::from_text("b.toml", &text).expect("a scenario");
    let own = own.config(&own.variants[0], 1).expect("a configuration");
    assert_ne!(config.host.profile.costs, own.host.profile.costs);
    assert_eq!(config.knobs.kvm.halt_poll.halt_poll_ns, 3_000);
    assert_eq!(other.seeds, [1, 2]);
    assert!(scenario.on_profile("skylake").is_err());
}

#[test]
fn what_cannot_be_varied_is_refused_before_anything_runs() {
    for (text, says) in [
        ("kvm.halt_pol_ns=0", "did you mean `kvm.halt_poll_ns`?"),
        ("vm.wep.vcpus=1", "there is no such VM; did you mean `web`?"),
        (
            "task.other2.count=1",
            "there is no such task; did you mean `other`?",
        ),
        ("kvm.ple_gap=0,1", "variant b sets it itself"),
        ("kvm.halt_poll_ns=50us,50000ns", "is there twice"),
        ("host.cpus=4,4", "is there twice"),
        ("run.seeds=1,1", "seed 1 is there twice"),
        ("run.seeds=x,1", "whole numbers"),
        ("run.seeds=0", "0 seeds"),
        ("profile=pentium", "profile"),
    ] {
        let error = plan(&[text]).expect_err(text).to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    let error = plan(&["host.cpus=4", "host.cpus=8"])
        .expect_err("twice")
        .to_string();
    assert!(error.contains("varied twice"), "{error}");
    let large = ["kvm.halt_poll_ns=1..100000", "vm.web.hz=24..1000"];
    let error = plan(&large).expect_err("too large").to_string();
    assert!(
        error.contains("586200000 runs: at most 50000000"),
        "{error}"
    );
}

#[test]
fn every_point_is_looked_at() {
    for (texts, says) in [
        (
            &[
                "sched.lag_credit.rate_limit=fixed,adaptive",
                "sched.lag_credit.gap_ns=4ms,8ms",
            ][..],
            "4 of 8 points cannot be run; nothing was run\n  variant a, sched.lag_credit.gap_ns=4ms: only with",
        ),
        (
            &["kvm.halt_poll_ns=0,x"],
            "variant a, kvm.halt_poll_ns=x: \"x\" is no time",
        ),
        (
            &["host.cpus=1..3,5000"],
            "host.cpus=5000: \"5000\" is not within",
        ),
        (&["vm.web.workload.perod_ns=1"], "did you mean `period_ns`?"),
        (
            &["task.other.workload.color=1"],
            "busy has no parameter color",
        ),
        (&["task.other.color=1"], "a task has no knob"),
        (&["vm.web.workload=ticks,tick"], "did you mean `ticks`?"),
        (&["run.duration=5"], "no unit"),
        (
            &["vm.web.pinning=none,0-7", "host.cpus=4,8"],
            "2 of 8 points cannot be run; nothing was run\n  variant a, vm.web.pinning=0-7: ",
        ),
    ] {
        for count in [1, 3] {
            let plan = plan(texts).expect("names are known");
            let error = plan
                .check(threads(count))
                .expect_err("a refusal")
                .to_string();
            assert!(error.contains(says), "{texts:?}: {error}");
        }
    }
    // What depends on another knob is set after it, whatever the order of the options.
    let order = [
        "sched.lag_credit.gap_ns=4ms,8ms",
        "sched.lag_credit.rate_limit=adaptive",
    ];
    plan(&order)
        .expect("a plan")
        .check(threads(2))
        .expect("all can be run");
}
