//! Findings of the composed hosts of crates/host, and of snapshots changed for each rule.

use std::fs;
use std::path::Path;

use stealtime_doctor::{Diagnosis, Finding, State, Urgency, diagnose};
use stealtime_host::{Snapshot, Thread, ThreadKind, Vm};

const PAGE: &str = include_str!("../../../docs/doctor.md");

fn host(name: &str) -> Snapshot {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/tests/data");
    let read = |name: &str| fs::read_to_string(data.join(format!("{name}.tree"))).expect(name);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("host.tree");
    fs::write(&path, read("base") + &read(name)).expect("a file");
    Snapshot::read(&path).expect("a snapshot")
}

fn found<'t>(diagnosis: &'t Diagnosis, id: &str) -> Option<&'t Finding> {
    assert!(
        PAGE.contains(&format!("| `{id}` |")),
        "docs/doctor.md lacks {id}"
    );
    diagnosis.findings.iter().find(|finding| finding.id == id)
}

fn expect<'t>(diagnosis: &'t Diagnosis, id: &str) -> &'t Finding {
    let ids: Vec<&str> = diagnosis
        .findings
        .iter()
        .map(|finding| finding.id)
        .collect();
    found(diagnosis, id).unwrap_or_else(|| panic!("no {id} in {ids:?}"))
}

#[test]
fn a_libvirt_host() {
    let diagnosis = diagnose(&host("libvirt"));
    let throttled = expect(&diagnosis, "throttled");
    assert_eq!(throttled.urgency, Urgency::Costs);
    assert_eq!(throttled.vms, ["db-1"]);
    assert!(
        throttled.evidence[0].contains("120 of 4000 periods"),
        "{throttled:?}"
    );
    let change = &throttled.changes[0];
    assert!(change.set[0].starts_with("echo max > '/sys/fs/cgroup/machine.slice/"));
    assert!(change.undo[0].contains(" 100000 > "), "{change:?}");
    let by_libvirt = &change.managers[0].set[0];
    assert!(
        by_libvirt.starts_with("virsh schedinfo db-1 --live"),
        "{change:?}"
    );
    let stacked = expect(&diagnosis, "stacked_vcpus");
    assert_eq!(stacked.vms, ["Tom & \"Jerry\"", "db-1"]);
    assert!(
        stacked.evidence[0].starts_with("CPU 2 has 2: "),
        "{stacked:?}"
    );
    assert!(expect(&diagnosis, "isolated_unused").evidence[0].ends_with("6-7"));
    assert_eq!(
        expect(&diagnosis, "deep_idle").evidence[0]
            .split(": ")
            .last(),
        Some("C6 290 us")
    );
    assert_eq!(expect(&diagnosis, "clocks_hidden").vms, ["Tom & \"Jerry\""]);
    expect(&diagnosis, "posted_timers_idle");
    for id in [
        "host_steal",
        "clocksource",
        "apicv_off",
        "lowest_frequency",
        "waits",
    ] {
        assert!(found(&diagnosis, id).is_none(), "{id}");
    }
    // The most urgent first.
    let urgencies: Vec<Urgency> = diagnosis.findings.iter().map(|f| f.urgency).collect();
    assert!(urgencies.is_sorted(), "{urgencies:?}");
    assert_eq!(diagnosis.mechanisms.len(), 5);
    let states: Vec<State> = diagnosis.mechanisms.iter().map(|row| row.state).collect();
    assert_eq!(
        states,
        [
            State::On,
            State::On,
            State::Absent,
            State::On,
            State::Absent
        ]
    );
}

#[test]
fn settings_of_the_host() {
    let mut snapshot = host("libvirt");
    let kvm = snapshot.kvm.modules.get_mut("kvm").expect("kvm");
    kvm.insert("halt_poll_ns".into(), "0".into());
    let intel = snapshot
        .kvm
        .modules
        .get_mut("kvm_intel")
        .expect("kvm_intel");
    for (name, value) in [
        ("enable_apicv", "N"),
        ("enable_ipiv", "N"),
        ("ple_gap", "0"),
        ("vmentry_l1d_flush", "always"),
    ] {
        intel.insert(name.into(), value.into());
    }
    snapshot.clocksource.current = Some("hpet".into());
    snapshot.kernel.preempt.mode = Some("lazy".into());
    snapshot.kernel.command_line = Some("root=/dev/sda1 idle=halt quiet".into());
    snapshot.cpu.is_guest = Some(true);
    snapshot.cpu_time.steal_ms = snapshot.cpu_time.total_ms() / 10;
    for cpu in &mut snapshot.cpu.cpus {
        cpu.frequency_driver = Some("acpi-cpufreq".into());
    }
    let diagnosis = diagnose(&snapshot);
    let set = |id: &str| expect(&diagnosis, id).changes[0].set[0].clone();
    let undo = |id: &str| expect(&diagnosis, id).changes[0].undo[0].clone();
    assert_eq!(
        set("apicv_off"),
        "modprobe -r kvm_intel; modprobe kvm_intel enable_apicv=Y"
    );
    assert_eq!(
        undo("ipiv_off"),
        "modprobe -r kvm_intel; modprobe kvm_intel enable_ipiv=N"
    );
    assert_eq!(
        set("halt_polling_off"),
        "echo 200000 > /sys/module/kvm/parameters/halt_poll_ns"
    );
    assert!(set("clocksource").starts_with("echo tsc > "));
    assert!(undo("lowest_frequency").contains("echo powersave > "));
    expect(&diagnosis, "l1d_flush");
    assert_eq!(
        set("lazy_preemption"),
        "echo full > /sys/kernel/debug/sched/preempt"
    );
    expect(&diagnosis, "idle_parameter");
    assert_eq!(expect(&diagnosis, "host_steal").urgency, Urgency::Costs);
    // Without more vCPUs than CPUs no spinner keeps a CPU from another.
    assert!(found(&diagnosis, "ple_off").is_none());
    snapshot.cpu.online = Some("0-2".into());
    expect(&diagnose(&snapshot), "ple_off");
}

/// A VM with bound vCPUs and a device model.
fn bound(name: &str, cpus: &[u32], emulator: &str) -> Vm {
    let vcpus = cpus.iter().enumerate().map(|(index, cpu)| Thread {
        tid: 100 + index as i32,
        kind: ThreadKind::Vcpu,
        vcpu: Some(index as u32),
        affinity: Some(cpu.to_string()),
        run_ns: Some(10_000_000_000),
        ..Thread::default()
    });
    let mut threads: Vec<Thread> = vcpus.collect();
    threads.push(Thread {
        tid: 99,
        name: "qemu".into(),
        affinity: Some(emulator.into()),
        ..Thread::default()
    });
    Vm {
        name: name.into(),
        threads,
        ..Vm::default()
    }
}

#[test]
fn settings_of_vms() {
    let mut snapshot = host("libvirt");
    let mut vm = bound("a b", &[0, 1], "0-1");
    vm.cpu_pm = Some(true);
    vm.threads[0].tsc_offset = Some(-1);
    vm.threads[1].tsc_offset = Some(-2);
    vm.threads[1].wait_ns = Some(3_000_000_000);
    for (name, value) in [
        ("halt_attempted_poll", 1000),
        ("halt_successful_poll", 100),
        ("halt_poll_fail_ns", 2_000_000_000),
    ] {
        vm.kvm_stats.insert(name.into(), value);
    }
    vm.threads[1].timeslices = Some(500);
    vm.threads[0].timeslices = Some(500);
    snapshot.vms = vec![vm, bound("c", &[4, 1], "2-3")];
    let kvm = snapshot.kvm.modules.get_mut("kvm").expect("kvm");
    kvm.insert("pi_inject_timer".into(), "0".into());
    let diagnosis = diagnose(&snapshot);
    let emulator = expect(&diagnosis, "emulator_with_vcpus");
    assert_eq!(emulator.changes[0].set, ["taskset -pc 2-3,5 99"]);
    assert_eq!(emulator.changes[0].undo, ["taskset -pc 0-1 99"]);
    assert_eq!(expect(&diagnosis, "polls_wasted").vms, ["a b"]);
    assert_eq!(expect(&diagnosis, "waits").vms, ["a b"]);
    expect(&diagnosis, "tsc_offsets_differ");
    let turns = expect(&diagnosis, "long_turns");
    assert_eq!(
        turns.evidence[0],
        "3.0 ms on average before each of 1000 turns"
    );
    expect(&diagnosis, "cpu_pm_shared");
    let smt = expect(&diagnosis, "smt_shared");
    assert_eq!(
        smt.evidence,
        [
            "CPUs 0,4 of one core: a b, c",
            "CPUs 1,5 of one core: a b, c"
        ]
    );
    let timers = expect(&diagnosis, "timers_not_posted");
    assert_eq!(
        timers.changes[0].undo,
        ["echo 0 > /sys/module/kvm/parameters/pi_inject_timer"]
    );
}

#[test]
fn settings_of_an_amd_host() {
    let mut snapshot = host("libvirt");
    let amd = [
        ("avic", "N"),
        ("pause_filter_count", "0"),
        ("enable_ipiv", "N"),
    ];
    let amd = amd.map(|(name, value)| (name.to_owned(), value.to_owned()));
    snapshot.kvm.modules.remove("kvm_intel");
    snapshot.kvm.modules.insert("kvm_amd".into(), amd.into());
    snapshot.cpu.flags.push("avic".into());
    snapshot.cpu.online = Some("0-2".into());
    let diagnosis = diagnose(&snapshot);
    let set = |id: &str| expect(&diagnosis, id).changes[0].set[0].clone();
    assert_eq!(
        set("apicv_off"),
        "modprobe -r kvm_amd; modprobe kvm_amd avic=Y"
    );
    assert_eq!(
        set("ple_off"),
        "modprobe -r kvm_amd; modprobe kvm_amd pause_filter_count=3000"
    );
    assert!(found(&diagnosis, "ipiv_off_amd").is_none());
    let amd = snapshot.kvm.modules.get_mut("kvm_amd").expect("kvm_amd");
    amd.insert("avic".into(), "Y".into());
    expect(&diagnose(&snapshot), "ipiv_off_amd");
}

#[test]
fn many_vms_give_few_findings() {
    let mut snapshot = host("libvirt");
    let vm = |number: usize| Vm {
        cpu_option: Some("host,-kvmclock".into()),
        kvmclock: Some(false),
        ..bound(&format!("vm{number}"), &[2], "0-7")
    };
    snapshot.vms = (0..500).map(vm).collect();
    let diagnosis = diagnose(&snapshot);
    assert!(
        diagnosis.findings.len() < 60,
        "{}",
        diagnosis.findings.len()
    );
    let hidden = diagnosis
        .findings
        .iter()
        .filter(|finding| finding.id == "clocks_hidden");
    assert_eq!(hidden.map(|finding| finding.vms.len()).sum::<usize>(), 500);
    let stacked = expect(&diagnosis, "stacked_vcpus");
    assert!(stacked.evidence[0].len() < 300, "{stacked:?}");
}

#[test]
fn a_snapshot_of_nothing_has_no_findings() {
    let diagnosis = diagnose(&Snapshot::default());
    assert!(diagnosis.findings.is_empty(), "{diagnosis:#?}");
    let rows = diagnosis
        .mechanisms
        .iter()
        .filter(|row| row.state == State::On);
    assert_eq!(rows.count(), 0);
}

#[test]
fn a_diagnosis_ends_with_what_to_do() {
    let mut snapshot = host("libvirt");
    let decision = diagnose(&snapshot).decision;
    assert_eq!(
        decision.to_string(),
        "do this: virsh schedinfo db-1 --live global_quota=-1"
    );
    let undo = "virsh schedinfo db-1 --live global_period=100000 global_quota=150000";
    assert_eq!(decision.undo, [undo]);
    // Without a counter that shows a cost a setting is no reason to act.
    for group in &mut snapshot.cgroups {
        group.throttled_periods = Some(0);
    }
    let decision = diagnose(&snapshot).decision;
    assert!(!decision.worth_doing, "{decision:?}");
    assert!(decision.set.is_empty(), "{decision:?}");
    // A cost that no command of this host takes away is recorded.
    let mut vm = bound("a", &[0], "4");
    vm.threads[0].wait_ns = Some(5_000_000_000);
    snapshot.vms = vec![vm];
    let decision = diagnose(&snapshot).decision.to_string();
    assert!(
        decision.starts_with("do this: stealtime record "),
        "{decision}"
    );
    snapshot.vms.clear();
    let decision = diagnose(&snapshot).decision.to_string();
    assert_eq!(decision, "nothing here is worth doing: no VM runs here");
}
