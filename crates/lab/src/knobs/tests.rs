use super::*;
use proptest::prelude::*;
use stealtime_simulator::config::{
    ClockMethod, HostClock, HostConfig, Hypervisor, MigrationConfig, RunConfig, Topology,
    WorkloadConfig,
};

fn config() -> Config {
    let vm = |name: &str| VmConfig {
        name: name.to_owned(),
        workload: WorkloadConfig::named("ticks"),
        ..VmConfig::default()
    };
    Config {
        host: HostConfig {
            profile: crate::profile::builtin("skylake-sp")
                .expect("it comes along")
                .profile,
            topology: Topology::flat(8),
            hypervisor: Hypervisor::Kvm,
            idle: IdleMethod::Mwait,
            tasks: Vec::new(),
        },
        vms: vec![vm("web-1"), vm("web-2"), vm("db.eu")],
        knobs: Knobs::default(),
        run: RunConfig::default(),
        scripts: stealtime_simulator::script::Scripts::default(),
    }
}

/// A name that stands for a knob in [`config`].
fn named(knob: &Knob) -> String {
    knob.full_name().replace("NAME", "web")
}

#[test]
fn names_are_there_once() {
    let mut names: Vec<String> = all().map(Knob::full_name).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn the_default_of_every_knob_can_be_set_and_changes_nothing() {
    for knob in all() {
        let mut config = config();
        let name = named(knob);
        let before = get(&config, &name).expect("it is a knob");
        assert_eq!(before, knob.default().to_string(), "{name}");
        match set(&mut config, &name, &before) {
            Ok(()) => assert_eq!(config, self::config(), "{name}"),
            // A detail of what is off by default.
            Err(KnobError::Value { problem, .. }) if problem.starts_with("only with") => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Another value than the default, where the kind says one.
fn other(knob: &Knob) -> Option<String> {
    let default = knob.default();
    let value = match knob.kind {
        Kind::Switch => (default == Value::Switch(false)).to_string(),
        Kind::Number { min, max, .. } if default == Value::Number(max) => min.to_string(),
        Kind::Number { max, .. } => max.to_string(),
        Kind::Time { max, .. } | Kind::TimeOr { max, .. } => crate::units::show_time(max),
        Kind::Cpus => "1-3,5".to_owned(),
        Kind::Choice(words) => {
            let words = words();
            let other = words.iter().find(|word| **word != default.to_string());
            (*other?).to_owned()
        }
        Kind::Words(_) => match knob.name {
            "sched.features" => "NO_RUN_TO_PARITY,YIELD_TO_LAG_CREDIT".to_owned(),
            "pinning" => "1:1 3,1-2".to_owned(),
            "cpu_max" => "50ms 200ms".to_owned(),
            _ => return None,
        },
    };
    Some(value)
}

/// What must be on for a detail of it to be set.
fn with_what_it_needs(name: &str) -> Config {
    let mut config = config();
    if name.ends_with("clock_method") {
        let clock = HostClock::exact(1);
        let migration = MigrationConfig {
            at_ns: 1,
            to_cpus: vec![1],
            method: ClockMethod::default(),
            transfer_ns: 1,
            load_ns: 0,
            step_ns: 1,
            source: clock,
            destination: clock,
        };
        config.vms[0].migration = Some(migration.clone());
        config.vms[1].migration = Some(migration);
    }
    let needs = match name {
        "sched.lag_credit.gap_ns" | "sched.lag_credit.min_ns" | "sched.lag_credit.max_ns" => {
            Some(("sched.lag_credit.rate_limit", "adaptive"))
        }
        "sched.lag_credit.guard_burst_ns" => Some(("sched.lag_credit.guard_per_mille", "125")),
        "sched.latency_ns" | "sched.min_granularity_ns" | "sched.wakeup_granularity_ns" => {
            Some(("sched.fair", "cfs"))
        }
        "sched.scx.yield" | "sched.scx.spin_ns" | "sched.scx.answer_ns" => {
            Some(("sched.policy", "scx-stealtime"))
        }
        "xen.batch_min_targets" => Some(("xen.batch_wakeups", "threshold")),
        _ => None,
    };
    if name.starts_with("xen.") {
        config.host.hypervisor = Hypervisor::Xen;
    }
    if let Some((name, value)) = needs {
        set(&mut config, name, value).expect("a value");
    }
    config
}

#[test]
fn every_knob_changes_what_it_reads() {
    for knob in all().filter(|knob| !knob.is_of_recording()) {
        let name = named(knob);
        let mut config = with_what_it_needs(&name);
        let old = config.clone();
        let value = other(knob).unwrap_or_else(|| panic!("no other value of {name}"));
        set(&mut config, &name, &value).unwrap_or_else(|error| panic!("{error}"));
        assert_ne!(config, old, "{name}");
        assert_eq!(get(&config, &name).expect("it is a knob"), value, "{name}");
        if knob.is_per_vm() {
            assert_eq!(config.vms[2], old.vms[2], "{name}: only the group's");
            assert_eq!(
                get(&config, &name.replace("web", "web-2")).expect("a knob"),
                value
            );
        }
    }
}

#[test]
fn the_two_copies_of_ipi_knobs_stay_one() {
    let mut config = config();
    set(&mut config, "kvm.ipi_tracking_enabled", "Y").expect("a switch");
    set(&mut config, "kvm.ipi_window_ns", "1ms").expect("a time");
    let kvm = &config.knobs.kvm;
    assert!(kvm.directed_yield.ipi.ipi_tracking_enabled);
}

#[test]
fn values_that_do_not_fit_are_refused_and_change_nothing() {
    for (name, value, says) in [
        ("kvm.halt_poll_ns", "5 MB", "no unit of time"),
        ("kvm.halt_poll_ns", "5s", "not within 0ns to 4294967295ns"),
        ("kvm.halt_poll_ns", "-1", "no time"),
        ("kvm.pi_inject_timer", "2", "not within -1 to 1"),
        ("kvm.enable_apicv", "maybe", "no switch"),
        ("kvm.timer_policy", "adaptiv", "did you mean `adaptive`?"),
        (
            "sched.features",
            "RUN_TO_PARTY",
            "did you mean `RUN_TO_PARITY`?",
        ),
        ("sched.pick", "flatt", "did you mean `flat`?"),
        (
            "sched.lag_credit.gap_ns",
            "1ms",
            "only with sched.lag_credit.rate_limit=adaptive",
        ),
        (
            "xen.batch_wakeups",
            "off",
            "only with host.hypervisor = \"xen\"",
        ),
        ("host.nohz_full", "3-1", "ends before it begins"),
        ("vm.web.pinning", "1:1", "no CPUs"),
        ("vm.web.cpu_max", "1 2 3", "quota and a period"),
        ("vm.web.cpu_max", "18446744073709551615", "too long"),
        ("vm.web.cpu_weight", "0", "not within 1 to 10000"),
        ("vm.web.cpu_wait", "1", "did you mean `vm.web.cpu_weight`?"),
        ("vm.nice", "1", "a VM's knobs are vm.NAME.KNOB"),
        ("vm.web-9.cpu_weight", "1", "did you mean `web-1`?"),
        ("vm.web", "1", "a VM's knobs are vm.NAME.KNOB"),
        ("vm.", "1", "a VM's knobs are vm.NAME.KNOB"),
        ("vm.web.workload.period", "1ms", "did you mean `period_ns`?"),
        (
            "vm.web.workload.period_ns",
            "1ns",
            "a time within 1us to 100s",
        ),
        (
            "vm.web.workload.threads",
            "many",
            "a whole number within 0 to 65536",
        ),
        ("kvm.halt_poll", "1", "did you mean `kvm.halt_poll_ns`?"),
        ("zzz", "1", "stealtime knobs"),
        ("vm.web.count", "2", "only with a recording"),
        ("vm.web.count", "-1", "not within 0 to 10000"),
        ("host.cpus", "4", "only with a recording"),
    ] {
        let mut config = config();
        let error = set(&mut config, name, value).expect_err(name).to_string();
        assert!(error.contains(says), "{name}={value}: {error}");
        assert_eq!(config, self::config(), "{name}={value}");
    }
}

#[test]
fn values_have_several_forms() {
    let mut config = config();
    for (name, value, reads) in [
        ("kvm.halt_poll_ns", "50000", "50us"),
        ("kvm.halt_poll_ns", "0.05ms", "50us"),
        ("kvm.enable_apicv", "N", "false"),
        ("host.nohz_full", "5,1-3,2", "1-3,5"),
        ("sched.base_slice_ns", "3ms", "3ms"),
        ("sched.base_slice_ns", "auto", "auto"),
        ("vm.web.cpu_max", "50000 100000", "50ms 100ms"),
        ("vm.web.cpu_max", "20ms", "20ms 100ms"),
        ("vm.web.cpu_max", "max", "max"),
        ("vm.web.pinning", "1:1 0,0", "1:1 0,0"),
        ("vm.web.pinning", "3,1,2", "1-3"),
        ("vm.web.pinning", "none", "none"),
        ("vm.db.eu.nice", "5", "5"),
        ("vm.*.workload.threads", "4", "4"),
        ("vm.web.workload.period_ns", "20us", "20000"),
        ("sched.hz", "1000", "1000"),
    ] {
        set(&mut config, name, value).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(get(&config, name).expect("a knob"), reads, "{name}={value}");
    }
    assert!(get(&config, "vm.web.workload.nothing").is_err());
}

#[test]
fn details_come_after_what_they_are_details_of() {
    let ordered = |first, second| assert!(order(first) < order(second), "{first} {second}");
    ordered("sched.lag_credit.rate_limit", "sched.lag_credit.gap_ns");
    ordered("sched.lag_credit.method", "sched.lag_credit.margin_ns");
    ordered(
        "sched.lag_credit.guard_per_mille",
        "sched.lag_credit.guard_burst_ns",
    );
    ordered("xen.batch_wakeups", "xen.batch_min_targets");
    ordered("vm.a.cpu_pm", "vm.*.hlt_in_guest");
    ordered("vm.*.cpu_weight", "vm.a.cpu_weight");
    ordered("vm.*.workload.threads", "vm.a.workload.threads");
}

/// The steps from one value to another, in a VM with two threads.
fn steps(name: &str, former: &str, value: &str) -> Steps {
    let parse = |text| Setting::parse(&config(), name, text).expect("a value");
    let former = parse(former);
    let target = StepTarget {
        vendor: Vendor::Intel,
        vm: "web",
        tids: &[119, 121],
    };
    let steps = parse(value).host_steps(former.value().expect("of the table"), &target);
    steps.expect("a host can have it")
}

#[test]
fn steps_have_values_as_files_take_them_and_restore_former_ones() {
    for (name, former, value, set, undo) in [
        (
            "kvm.halt_poll_ns",
            "200us",
            "50us",
            "echo 50000 > /sys/module/kvm/parameters/halt_poll_ns",
            "echo 200000 > /sys/module/kvm/parameters/halt_poll_ns",
        ),
        (
            "kernel.timer_migration",
            "true",
            "false",
            "sysctl kernel.timer_migration=0",
            "sysctl kernel.timer_migration=1",
        ),
        (
            "sched.fair",
            "cfs",
            "eevdf",
            "boot Linux 6.6 or later",
            "boot Linux 6.5 or earlier",
        ),
        (
            "host.nohz_full",
            "",
            "1-3",
            "kernel command line: nohz_full=1-3",
            "kernel command line: without nohz_full=",
        ),
        (
            "vm.web.nice",
            "0",
            "-5",
            "renice -n -5 -p 119 121",
            "renice -n 0 -p 119 121",
        ),
        (
            "vm.web.pinning",
            "0-3",
            "1",
            "for tid in 119 121; do taskset -pc 1 $tid; done",
            "for tid in 119 121; do taskset -pc 0-3 $tid; done",
        ),
    ] {
        let steps = steps(name, former, value);
        assert_eq!(steps.set, [set], "{name}");
        assert_eq!(steps.undo, [undo], "{name}");
    }
    let limit = steps("vm.web.cpu_max", "max", "20ms 100ms");
    assert!(limit.set[0].contains("echo 20000 100000 > "), "{limit:?}");
    assert!(limit.undo[0].contains("echo max > "), "{limit:?}");
}

#[test]
fn each_feature_is_a_step_and_gets_its_former_state() {
    let steps = steps(
        "sched.features",
        "NEXT_BUDDY",
        "NO_RUN_TO_PARITY,NO_NEXT_BUDDY",
    );
    let file = "> /sys/kernel/debug/sched/features";
    let set = [
        format!("echo NO_RUN_TO_PARITY {file}"),
        format!("echo NO_NEXT_BUDDY {file}"),
    ];
    let undo = [
        format!("echo RUN_TO_PARITY {file}"),
        format!("echo NEXT_BUDDY {file}"),
    ];
    assert_eq!((steps.set, steps.undo), (set.to_vec(), undo.to_vec()));
}

#[test]
fn what_no_host_has_says_why() {
    for entry in reference::entries() {
        let host = &entry.on_host;
        let is_simulated_alone = host.note.starts_with("simulation only: ");
        assert_eq!(host.set.is_none(), is_simulated_alone, "{}", entry.name);
        assert_eq!(host.set.is_some(), host.acts.is_some(), "{}", entry.name);
    }
}

proptest! {
    #[test]
    fn no_name_and_no_value_panics(name in "(kvm|sched|vm|host|xen)?[.a-z_*]{0,20}", value in "\\PC{0,12}") {
        let mut config = config();
        let _ = (set(&mut config, &name, &value), get(&config, &name));
    }

    #[test]
    fn no_value_of_a_knob_panics(at in 0_usize..80, value in "[-0-9a-z:., ]{0,16}") {
        let mut config = config();
        if let Some(knob) = all().nth(at) && set(&mut config, &named(knob), &value).is_ok() {
            prop_assert!(get(&config, &named(knob)).is_ok());
        }
    }
}

#[test]
fn a_name_in_quotes_is_any_name() {
    let mut config = config();
    for (vm, name) in config.vms.iter_mut().zip(["a.b\n", "web", "web-1"]) {
        vm.name = name.to_owned();
    }
    set(&mut config, &vm_knob("a.b\n", "nice"), "5").expect("a VM");
    set(&mut config, "vm.\"a.b\\n\".workload.work", "3ms").expect_err("no such parameter");
    // With a VM of the very name no group is meant.
    set(&mut config, "vm.web.nice", "7").expect("a VM");
    let nice: Vec<i8> = config.vms.iter().map(|vm| vm.nice).collect();
    assert_eq!(nice, [5, 7, 0]);
    set(&mut config, "vm.\"web-1\".nice", "9").expect("a VM");
    assert_eq!(get(&config, "vm.web-1.nice"), Ok("9".to_owned()));
    set(&mut config, "vm.*.nice", "1").expect("all");
    assert!(config.vms.iter().all(|vm| vm.nice == 1));
    let error = set(&mut config, "vm.\"wep\".nice", "1").expect_err("no VM");
    assert!(error.to_string().contains("did you mean `web`"), "{error}");
}
