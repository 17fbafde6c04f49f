//! `whatif` as a user has it.

mod asked;
mod edited;
mod host;
mod proposed;
mod recordings;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use edited::{cut, edited};
use serde_json::Value;
use stealtime_events::{Event, Kind};

use crate::common;

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/traces")
}

/// Exit status, standard output and standard error of `whatif` in the directory of the recordings.
fn whatif(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = common::stealtime(&["whatif"]);
    common::run(command.args(arguments).current_dir(traces()))
}

fn answer(arguments: &[&str]) -> String {
    let (status, out, error) = whatif(arguments);
    assert_eq!((status, error.as_str()), (Some(0), ""), "{arguments:?}");
    out
}

fn complaint(arguments: &[&str]) -> String {
    let (status, out, error) = whatif(arguments);
    assert_eq!((status, out.as_str()), (Some(2), ""), "{arguments:?}");
    error
}

const HACKBENCH: &str = "svm-hackbench-cyclictest-hog/trace.dat.zst";
const TICKET_LOCK: &str = "pvmhost-ticketlock-idle-text/trace.txt.zst";

#[test]
fn a_replay_and_a_variant_as_tables() {
    let out = answer(&[
        HACKBENCH,
        "--set",
        "sched.base_slice_ns=3ms",
        "--seeds",
        "3",
    ]);
    assert!(out.lines().all(|line| line.chars().count() <= 100));
    insta::with_settings!({prepend_module_to_snapshot => false, snapshot_path => "../snapshots"}, {
        insta::assert_snapshot!("whatif-base-slice", out);
    });
}

#[test]
fn runs_are_pure_functions_of_what_is_given() {
    let asked = [
        HACKBENCH,
        "--vary",
        "kvm.halt_poll_ns=0,1000000",
        "--seeds",
        "2",
        "--json",
    ];
    let first = answer(&asked);
    assert_eq!(first, answer(&asked));
    let json: Value = serde_json::from_str(&first).expect("JSON");
    let names: Vec<&Value> = json["variants"]
        .as_array()
        .expect("variants")
        .iter()
        .map(|variant| &variant["name"])
        .collect();
    assert_eq!(names, ["kvm.halt_poll_ns=0", "kvm.halt_poll_ns=1000000"]);
    // A vCPU's time is accounted for once, whatever was replayed.
    for vcpu in json["vcpus"].as_array().expect("vCPUs") {
        for of in ["recorded", "replayed"] {
            let share = |key: &str| vcpu[of][key].as_f64().expect("a number");
            let sum = share("run_percent") + share("ready_percent") + share("halted_percent");
            assert!(sum < 100.01, "{vcpu}");
        }
    }
}

#[test]
fn pins_bind_and_polling_is_switched_off() {
    let out = answer(&[
        HACKBENCH,
        "--set",
        "kvm.halt_poll_ns=0",
        "--seeds",
        "2",
        "--json",
    ]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    let changes = json["variants"][0]["changes"].as_array().expect("changes");
    let polling = changes.iter().filter(|c| c["quantity"] == "polling");
    assert!(polling.clone().count() > 0);
    assert!(polling.into_iter().all(|c| c["after"] == 0.0));
    // All vCPUs of the busiest VM on one CPU: they have one CPU's time together.
    let running = changes.iter().filter(|c| c["quantity"] == "running");
    let before = |c: &&Value| c["before"].as_f64().expect("a number") as u64;
    let vm = &running.max_by_key(before).expect("a VM")["vm"];
    let vm = vm.as_str().expect("a name");
    let out = answer(&[
        HACKBENCH,
        "--pin",
        &format!("{vm}=1"),
        "--seeds",
        "2",
        "--json",
    ]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    let changes = json["variants"][0]["changes"].as_array().expect("changes");
    let running = changes
        .iter()
        .find(|c| c["vm"] == vm && c["quantity"] == "running")
        .expect("a row");
    assert!(
        running["after"].as_f64().expect("a number") <= 1_000.1,
        "{running}"
    );
    assert!(
        running["before"].as_f64().expect("a number") > 1_000.1,
        "{running}"
    );
}

#[test]
fn long_names_of_vms_stay_apart() {
    let out = answer(&[
        HACKBENCH,
        "--vm-of",
        "production-web-1=200,203",
        "--vm-of",
        "production-web-2=202,204,206,207",
        "--set",
        "host.hz=1000",
        "--seeds",
        "2",
    ]);
    for name in ["produc…-web-1 ", "produc…-web-2 "] {
        let rows = out
            .lines()
            .filter(|line| line.trim_start().starts_with(name));
        // Of its vCPUs, and of what is changed.
        assert!(rows.count() >= 2 + 6, "{out}");
    }
}

#[test]
fn what_cannot_be_answered_is_said_before_the_run() {
    let cases: [(&[&str], &str); 11] = [
        (
            &[
                HACKBENCH,
                "--set",
                "host.hz=100",
                "--vary",
                "host.hz=250,1000",
            ],
            "host.hz is set twice",
        ),
        (
            &[HACKBENCH, "--set", "kvm.halt_pol_ns=0"],
            "did you mean `kvm.halt_poll_ns`?",
        ),
        (
            &[HACKBENCH, "--set", "kvm.ple_gap=0"],
            "does nothing in a replay yet",
        ),
        (
            &[HACKBENCH, "--set", "kvm.halt_pol_ns=0"],
            "kvm.halt_pol_ns",
        ),
        (
            &[HACKBENCH, "--set", "kvm.halt_poll_ns=often"],
            "kvm.halt_poll_ns",
        ),
        (
            &[HACKBENCH, "--set", "kvm.halt_poll_ns"],
            "expected KNOB=VALUE",
        ),
        (&[HACKBENCH, "--pin", "vm9/0=1"], "no VM"),
        (&[HACKBENCH, "--pin", "vm0/0=7"], "the host has CPUs 0-3"),
        (&[HACKBENCH, "--pin", "vm0/77=1"], "no such vCPU"),
        (&["nowhere.dat"], "nowhere.dat"),
        (&["README.md"], "README.md"),
    ];
    for (arguments, part) in cases {
        let error = complaint(arguments);
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
}

/// A number in JSON.
fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn changes_are_tried_and_ranked() {
    let out = answer(&[HACKBENCH, "--auto", "--seeds", "3"]);
    let auto = out.split_once("\nTried: ").expect("what was tried").1;
    assert!(
        auto.lines().all(|line| line.chars().count() <= 100),
        "{out}"
    );
    insta::with_settings!({prepend_module_to_snapshot => false, snapshot_path => "../snapshots"}, {
        insta::assert_snapshot!("whatif-auto", out);
    });
}

#[test]
fn what_was_tried_is_what_its_arguments_ask_for() {
    let asked = |jobs| {
        let out = answer(&[
            HACKBENCH, "--auto", "--seeds", "2", "--jobs", jobs, "--json",
        ]);
        serde_json::from_str::<Value>(&out).expect("JSON")
    };
    let json = asked("1");
    assert_eq!(json, asked("5"));
    let auto = &json["auto"];
    let tried = auto["tried"].as_array().expect("what was tried");
    let variants = json["variants"].as_array().expect("variants");
    assert!((8..=24).contains(&tried.len()), "{}", tried.len());
    assert_eq!(tried.len(), variants.len());
    // Each, and the recorded knobs.
    let replays = 2 * (tried.len() as u64 + 1);
    assert_eq!(auto["replays"].as_u64(), Some(replays));
    let classes = [
        "better",
        "mixed",
        "less_cpu",
        "same",
        "within_noise",
        "below_error",
        "worse",
    ];
    for (one, variant) in tried.iter().zip(variants) {
        assert_eq!(one["name"], variant["name"]);
        assert!(
            classes.contains(&one["outcome"].as_str().expect("a word")),
            "{one}"
        );
        // Its VMs make up the whole.
        let mean = |effect: &Value| number(&effect["change"]["mean"]);
        let vms = one["vms"].as_array().expect("VMs").iter();
        let sum: f64 = vms.map(|vm| mean(&vm["given_back"])).sum();
        assert!((sum - mean(&one["given_back"])).abs() < 1e-6, "{one}");
        // What the host spends is work and polling.
        let polling = mean(&one["host_cpu"]) - mean(&one["work"]);
        assert!((polling + mean(&one["cpu_freed"])).abs() < 1e-6, "{one}");
        let lost = match one["host_tasks"]["word"] == "worse" {
            true => mean(&one["host_tasks"]),
            false => 0.0,
        };
        let net = mean(&one["given_back"]) + mean(&one["cpu_freed"]) + lost;
        let net = net + mean(&one["work"]).min(0.0);
        assert!((net - number(&one["net"])).abs() < 1e-6, "{one}");
    }
    let gains = |one: &&Value| one["net_word"] == "better";
    let better = tried.iter().take_while(gains);
    let nets: Vec<f64> = better.map(|one| number(&one["net"])).collect();
    assert_eq!(nets.len(), tried.iter().filter(gains).count());
    assert!(nets.is_sorted_by(|a, b| a >= b), "{nets:?}");
    // The first, the last and one with pins alone give the same by themselves.
    let pinned = tried
        .iter()
        .position(|one| one["name"].to_string().contains("pin "));
    for at in [0, tried.len() - 1, pinned.expect("a pin")] {
        let arguments = tried[at]["arguments"].as_array().expect("arguments");
        let mut alone = vec![HACKBENCH, "--seeds", "2", "--json"];
        alone.extend(arguments.iter().map(|one| one.as_str().expect("a text")));
        let json: Value = serde_json::from_str(&answer(&alone)).expect("JSON");
        assert_eq!(json["variants"][0], variants[at], "{alone:?}");
    }
}

#[test]
fn what_is_set_comes_before_what_is_tried() {
    let out = answer(&[
        HACKBENCH,
        "--auto",
        "--set",
        "host.hz=1000",
        "--pin",
        "vm0=0-1",
        "--seeds",
        "2",
        "--json",
    ]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    let auto = &json["auto"];
    assert_eq!(auto["on_top_of"], "host.hz=1000 pin vm0=0-1");
    let tried = auto["tried"].as_array().expect("what was tried");
    // As recorded, with what was set, and with each change.
    assert_eq!(auto["replays"].as_u64(), Some(2 * (tried.len() as u64 + 2)));
    // 1000 is set already, and so not tried.
    assert!(tried.iter().all(|one| one["name"] != "host.hz=1000"));
    let refused = complaint(&[HACKBENCH, "--auto", "--vary", "host.hz=100,250"]);
    assert!(refused.contains("cannot be used with"), "{refused}");
}

#[test]
fn weights_limits_and_pins_of_tasks_act() {
    let (_folder, host) = no_cgroups();
    let host = host.as_str();
    let changes = |arguments: &[&str]| {
        let mut all = vec![HACKBENCH, "--seeds", "2", "--json", "--host", host];
        all.extend(arguments);
        let json: Value = serde_json::from_str(&answer(&all)).expect("JSON");
        json["variants"][0]["changes"].clone()
    };
    let ready = |changes: &Value, vm: &str| {
        let mut of_vm = changes.as_array().expect("changes").iter();
        let row = of_vm.find(|c| c["vm"] == vm && c["quantity"] == "ready");
        number(&row.expect("a row")["difference"]["estimate"]["mean"])
    };
    let nice = changes(&["--set", "vm.vm0.nice=-10"]);
    assert!(ready(&nice, "vm0") < -50.0, "{nice}");
    let none = changes(&["--set", "vm.vm0.nice=0"]);
    assert!(ready(&none, "vm0").abs() < 1e-9, "{none}");
    // A limit takes the CPU from the VM that computes, and gives it to vCPUs that wait for it.
    let limited = changes(&["--set", "vm.vm1.cpu_max=20ms 100ms"]);
    assert!(ready(&limited, "vm0") < -100.0, "{limited}");
    let unlimited = changes(&["--set", "vm.vm1.cpu_max=max"]);
    let rows = unlimited.as_array().expect("changes").iter();
    let of_vm1 = rows.filter(|c| c["vm"] == "vm1" && c["quantity"] == "running");
    assert_eq!(of_vm1.count(), 1, "{unlimited}");
    // Emulators' threads on a CPU with vCPUs: those wait.
    let pinned = changes(&["--pin", "task:qemu-system-x86=0"]);
    assert!(
        ready(&pinned, "vm0").abs() + ready(&pinned, "vm2").abs() > 1.0,
        "{pinned}"
    );
    // A CPU for each vCPU in turn is what pins one by one say.
    let turn = changes(&["--pin", "vm0=1:1 1,0"]);
    let each = changes(&["--pin", "vm0/0=1", "--pin", "vm0/1=0"]);
    assert_eq!(turn, each);
    for (arguments, part) in [
        (["--pin", "task:absent=0"], "no task but vCPUs"),
        (["--set", "vm.vm0.cpu_weight=300"], "vm.NAME.nice"),
        (["--set", "vm.vm0.pv_eoi=false"], "of a VM act: cpu_weight"),
        (["--set", "vm.vm7.nice=1"], "no such VM"),
        (["--set", "vm.vm0.nice=77"], "vm.vm0.nice"),
    ] {
        let error = complaint(&[HACKBENCH, "--host", host, arguments[0], arguments[1]]);
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
    let grouped = std::path::Path::new(host).with_extension("grouped");
    std::fs::write(&grouped, "groups = true\n").expect("written");
    let grouped = grouped.to_str().expect("UTF-8");
    let error = complaint(&[HACKBENCH, "--host", grouped, "--set", "vm.vm0.nice=-5"]);
    assert!(error.contains("in a cgroup of its own"), "{error}");
}

/// A file that says that the host's VMs have no cgroups, and its folder.
fn no_cgroups() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("host.toml");
    std::fs::write(&file, "groups = false\n").expect("written");
    let path = file.to_str().expect("UTF-8").to_owned();
    (folder, path)
}

#[test]
fn replays_are_written_for_other_tools() {
    let (folder, host) = no_cgroups();
    let export = |name: &str| {
        let to = format!("{}/{name}/", folder.path().display());
        let asked = [
            HACKBENCH,
            "--host",
            &host,
            "--set",
            "vm.vm0.nice=-5",
            "--seeds",
            "2",
            "--export",
            &to,
        ];
        let out = answer(&asked);
        let read = |file: &str| {
            assert!(out.contains(&format!("Written: {to}{file}")), "{out}");
            std::fs::read(folder.path().join(name).join(file)).expect("a file")
        };
        ["side-by-side.pftrace", "replayed.dat", "variant-1.dat"].map(read)
    };
    let files = export("a");
    assert!(files == export("b"), "the same replays give the same files");
    // The groups of tracks.
    for name in ["recorded", "replayed", "variant vm.vm0.nice=-5"] {
        let found = files[0]
            .windows(name.len())
            .filter(|part| *part == name.as_bytes());
        assert_eq!(found.count(), 1, "{name}");
    }
    // A replay is a recording: with the VMs of the first, and the time that `whatif` says.
    let analyzed = |file: &str| -> Value {
        let path = folder.path().join("a").join(file);
        let (_, out, _) = common::run(common::stealtime(&["analyze", "--json"]).arg(path));
        serde_json::from_str(&out).expect("JSON")
    };
    let (replayed, variant) = (analyzed("replayed.dat"), analyzed("variant-1.dat"));
    let vcpus = |json: &Value| {
        let vms = json["vms"].as_array().expect("VMs").iter();
        vms.map(|vm| vm["vcpus"].as_u64()).collect::<Vec<_>>()
    };
    assert_eq!(vcpus(&replayed), [Some(2), Some(2), Some(4)]);
    let out = answer(&[
        HACKBENCH,
        "--host",
        &host,
        "--set",
        "vm.vm0.nice=-5",
        "--seeds",
        "2",
        "--json",
    ]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    let span = number(&json["span_ns"]);
    for (said, replayed) in json["vcpus"]
        .as_array()
        .expect("vCPUs")
        .iter()
        .zip(replayed["vcpus"].as_array().expect("vCPUs"))
    {
        let exported = number(&replayed["on_cpu_ns"]) / span * 100.0;
        let said = number(&said["replayed"]["run_percent"]);
        assert!((said - exported).abs() < 0.5, "{said} {exported}");
    }
    // The VM with the better nice value waits less in the file too.
    let ready = |json: &Value| -> f64 {
        let of_vm = json["vcpus"].as_array().expect("vCPUs").iter().take(2);
        of_vm
            .map(|vcpu| number(&vcpu["preempted_ns"]) + number(&vcpu["wake_wait_ns"]))
            .sum()
    };
    assert!(ready(&variant) < 0.8 * ready(&replayed));
    assert!(complaint(&[HACKBENCH, "--export", "no/such/file"]).contains("No such file"));
    let many = [
        "--vary",
        "host.hz=100,200,250,300,500,600,700,800,1000",
        "--export",
        "x",
    ];
    let error = complaint(&[&[HACKBENCH][..], &many].concat());
    assert!(error.contains("up to 8 variants"), "{error}");
}

#[test]
fn what_a_recording_lacks_is_said_with_what_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cut.dat");
    let asked = path.to_str().expect("UTF-8");
    let lacks = |gap: Option<u64>, keep: &dyn Fn(&Event, u64) -> bool| {
        cut(&path, gap, keep);
        let out = answer(&[asked, "--set", "sched.base_slice_ns=3ms", "--seeds", "2"]);
        let (before, _) = out.split_once("\nReplay under").expect("a head");
        assert!(out.contains("verdict: "), "{out}");
        let lacks = before.split("\nLacking: ").skip(1);
        let lacks: Vec<String> = lacks.map(|text| text.replace("\n  ", " ")).collect();
        // Each says what it means, what is answered all the same, and what to record.
        for lack in &lacks {
            assert!(
                lack.contains("Answered: ") && lack.contains("Record: "),
                "{lack}"
            );
        }
        lacks.join("\n")
    };
    let name = |event: &Event| event.kind.tracepoint();
    let without = |words: &'static [&'static str]| {
        move |event: &Event, _: u64| !name(event).is_some_and(|name| words.contains(&name))
    };
    let whole = lacks(None, &|_, _| true);
    assert!(whole.starts_with("which threads are of vm1: "), "{whole}");
    assert_eq!(whole.trim_end().lines().count(), 1, "{whole}");
    let cases: [(&'static [&'static str], &str); 4] = [
        (&["sched_waking"], "no sched_waking"),
        (
            &["hrtimer_start", "hrtimer_expire_entry"],
            "no hrtimer events",
        ),
        (&["kvm_apic_accept_irq"], "no kvm_apic_accept_irq"),
        (&["sched_migrate_task"], "no sched_migrate_task"),
    ];
    for (words, part) in cases {
        let said = lacks(None, &without(words));
        assert!(said.contains(part), "{words:?}: {said}");
    }
    // EOIs and IPIs alone are missed by no replay, which is said.
    let said = lacks(None, &without(&["kvm_eoi", "kvm_pv_eoi"]));
    assert!(
        said.contains("no kvm_eoi") && said.contains("no replay needs"),
        "{said}"
    );
    let said = lacks(None, &without(&["kvm_apic_ipi"]));
    assert!(
        said.contains("no kvm_apic_ipi") && said.contains("Answered: everything"),
        "{said}"
    );
    let said = lacks(None, &without(&["hrtimer_start"]));
    assert!(said.contains("no hrtimer_start"), "{said}");
    // Lost in the middle.
    let said = lacks(Some(500_000_000), &|_, _| true);
    assert!(said.contains("events were lost (7"), "{said}");
    let of = |event: &Event, tids: &[i32]| {
        let (prev, next) = match event.kind {
            Kind::SchedSwitch { prev, next, .. } => (prev.0, next.0),
            Kind::SchedWaking { tid, .. } | Kind::SchedWakeup { tid, .. } => (tid.0, tid.0),
            _ => (event.tid.0, event.tid.0),
        };
        tids.contains(&prev) || tids.contains(&next)
    };
    // Nothing but what came before the first switch to a vCPU.
    cut(&path, None, |event, _| {
        !of(event, &[200, 201, 202, 203, 204, 205, 206, 207])
    });
    let error = complaint(&[asked]);
    assert!(error.contains("no vCPU that ran"), "{error}");
    // No exits: halts are not known, so that polling is not answered, and the scheduler is.
    cut(&path, None, without(&["kvm_exit", "kvm_entry"]));
    let error = complaint(&[asked, "--set", "kvm.halt_poll_ns=0"]);
    assert!(error.contains("no halts of vCPUs"), "{error}");
    // Halts without the events that separate polling from sleep.
    cut(&path, None, without(&["kvm_vcpu_wakeup"]));
    let error = complaint(&[asked, "--set", "kvm.halt_poll_ns=0"]);
    assert!(error.contains("record kvm:kvm_vcpu_wakeup"), "{error}");
    // Without kvm_hypercall no vCPU yields to another.
    let credit = "sched.features=YIELD_TO_LAG_CREDIT";
    answer(&[asked, "--set", credit, "--seeds", "2"]);
    cut(&path, None, without(&["kvm_hypercall"]));
    for setting in [credit, "sched.lag_credit.margin_ns=1ms"] {
        let error = complaint(&[asked, "--set", setting]);
        assert!(
            error.contains("record kvm:kvm_exit and kvm:kvm_hypercall"),
            "{error}"
        );
    }
    let (_folder, host) = no_cgroups();
    let error = complaint(&[asked, "--host", &host, "--set", "sched.pick=flat"]);
    assert!(error.contains("no cgroups are assumed"), "{error}");
    cut(&path, None, without(&["kvm_exit", "kvm_entry"]));
    let out = answer(&[asked, "--auto", "--seeds", "2"]);
    assert!(out.contains("Lacking: no kvm_entry and kvm_exit"), "{out}");
    assert!(
        out.contains("Tried: ") && !out.contains("kvm.halt_poll_ns=0 "),
        "{out}"
    );
}

#[test]
fn a_recording_without_switches_says_what_to_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("no-sched.txt");
    let line = " CPU 0/KVM-11 [000] 1.000001: kvm_exit: vcpu 0 reason HLT rip 0x1 info 0 0\n";
    std::fs::write(&path, line.repeat(3)).expect("written");
    let error = complaint(&[path.to_str().expect("UTF-8")]);
    assert!(error.contains("sched:sched_switch"), "{error}");
}

#[test]
fn guests_that_begin_and_end_in_the_middle_do_so_in_replays() {
    // Two guests that were started while the host was recorded.
    let out = answer(&["pvmhost-ticketlock-idle-text/trace.txt.zst", "--json"]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    let partly = json["presence"]["partly"].as_array().expect("VMs");
    assert_eq!(partly.len(), 2, "{partly:?}");
    for one in partly {
        assert_eq!(one["begin_is_recorded"], true);
        assert!((1e7..2e7).contains(&number(&one["from_ns"])), "{one}");
    }
    assert!(number(&json["presence"]["tasks_end"]) > 1.0);
    let out = answer(&["pvmhost-ticketlock-idle-text/trace.txt.zst"]);
    let said = out.lines().filter(|line| line.starts_with("In part: "));
    assert_eq!(said.count(), 3, "{out}");
    // And one that is stopped: its threads exit when they next leave their CPUs after 0.6 s.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cut.dat");
    let tids = tids("vm1");
    let gone = RefCell::new(BTreeSet::new());
    edited(&path, None, |event, since| {
        if let Kind::SchedSwitch { prev, .. } = event.kind
            && tids.contains(&prev.0)
            && since > 600_000_000
            && gone.borrow_mut().insert(prev.0)
        {
            let mut last = *event;
            if let Kind::SchedSwitch { prev_state, .. } = &mut last.kind {
                *prev_state = 0x10;
            }
            return Some(last);
        }
        let gone = gone.borrow();
        gone.iter()
            .try_fold(*event, |event, tid| without(&event, *tid))
    });
    let json = answer(&[path.to_str().expect("UTF-8"), "--json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let vcpus = json["vcpus"].as_array().expect("vCPUs").iter();
    let stopped = vcpus.filter(|vcpu| vcpu["vm"] == "vm1");
    for vcpu in stopped {
        let share = number(&vcpu["to_ns"]) / number(&json["span_ns"]) * 100.0;
        assert!((59.0..75.0).contains(&share), "{vcpu}");
        for of in ["recorded", "replayed"] {
            let of = &vcpu[of];
            let sum = number(&of["run_percent"]) + number(&of["ready_percent"]);
            let sum = sum + number(&of["halted_percent"]);
            assert!((sum - share).abs() < 8.0, "{share} {vcpu}");
        }
    }
    assert_eq!(
        json["presence"]["partly"].as_array().map(Vec::is_empty),
        Some(false)
    );
}

/// The threads of a VM's vCPUs.
fn tids(vm: &str) -> Vec<i32> {
    let mut analyze = common::stealtime(&["analyze", HACKBENCH, "--json"]);
    let (_, out, _) = common::run(analyze.current_dir(traces()));
    let answers: Value = serde_json::from_str(&out).expect("JSON");
    let vcpus = answers["vcpus"].as_array().expect("vCPUs").iter();
    let of_vm = vcpus.filter(|vcpu| vcpu["vm"] == vm);
    of_vm.map(|vcpu| number(&vcpu["tid"]) as i32).collect()
}

/// An event without a task: its CPU idles instead.
fn without(event: &Event, tid: i32) -> Option<Event> {
    let mut event = *event;
    match &mut event.kind {
        Kind::SchedSwitch { prev, next, .. } => {
            for one in [prev, next] {
                if one.0 == tid {
                    one.0 = 0;
                }
            }
            if event.tid.0 == tid {
                event.tid.0 = 0;
            }
            Some(event)
        }
        Kind::SchedWaking { tid: of, .. }
        | Kind::SchedWakeup { tid: of, .. }
        | Kind::SchedMigrateTask { tid: of, .. }
            if of.0 == tid =>
        {
            None
        }
        _ => (event.tid.0 != tid).then_some(event),
    }
}

#[test]
fn vcpus_that_never_ran_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cut.dat");
    let asked = path.to_str().expect("UTF-8");
    let out = answer(&[HACKBENCH, "--json"]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        json["presence"]["never_ran"].as_array().map(Vec::len),
        Some(0)
    );
    // The third of four vCPUs is taken out of the recording.
    let third = tids("vm2")[2];
    edited(&path, None, |event, _| without(event, third));
    let out = answer(&[asked]);
    assert!(out.contains("never ran: vm"), "{out}");
    assert!(out.contains(" vCPU 2. Nothing is known"), "{out}");
}

#[test]
fn large_grids_are_one_table_and_whole_in_json() {
    let slices: Vec<String> = (1..=30).map(|n| format!("{}us", n * 200)).collect();
    let vary = format!("sched.base_slice_ns={}", slices.join(","));
    let asked = [
        HACKBENCH,
        "--vary",
        &vary,
        "--vary",
        "host.hz=250,1000",
        "--seeds",
        "2",
    ];
    let out = answer(&asked);
    let table = out
        .split_once("60 variants, the best first")
        .expect("a table")
        .1;
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
    assert!(!table.contains("verdict: "), "{table}");
    assert!(table.contains("sched.base_slice_ns=6000us"), "{table}");
    let json = answer(&[&asked[..], &["--json"]].concat());
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let variants = json["variants"].as_array().expect("variants");
    assert_eq!((variants.len(), &json["partial"]), (60, &false.into()));
    // In the order of the grid.
    assert_eq!(
        variants[1]["name"],
        "sched.base_slice_ns=200us host.hz=1000"
    );
    // 40 to the power of 2 are more than are begun without being asked.
    let many: Vec<String> = (1..=40).map(|n| format!("{}us", n * 100)).collect();
    let slices = format!("sched.base_slice_ns={}", many.join(","));
    let polls = format!("kvm.halt_poll_ns={}", many.join(","));
    let error = complaint(&[HACKBENCH, "--vary", &slices, "--vary", &polls]);
    assert!(
        error.contains("1600 variants") && error.contains("add --yes"),
        "{error}"
    );
}

/// Standard output and error of a search that SIGINT stops after so long.
fn stopped_after(seconds: u64, arguments: &[&str]) -> (Vec<u8>, String) {
    let mut child = common::stealtime(arguments)
        .current_dir(traces())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the command runs");
    std::thread::sleep(std::time::Duration::from_secs(seconds));
    let sent = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .expect("kill runs");
    assert!(sent.success() && child.try_wait().is_ok_and(|ended| ended.is_none()));
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.stdout, error)
}

#[test]
fn what_was_replayed_before_it_was_stopped_is_shown() {
    // More than any machine replays in the given time.
    let slices: Vec<String> = (1..=300).map(|n| format!("{}us", n * 100)).collect();
    let slices = format!("sched.base_slice_ns={}", slices.join(","));
    let polls: Vec<String> = (1..=300).map(|n| format!("{n}us")).collect();
    let polls = format!("kvm.halt_poll_ns={}", polls.join(","));
    let mut vary = vec!["whatif", HACKBENCH, "--vary", &slices, "--vary", &polls];
    vary.extend(["--seeds", "2", "--json", "--yes", "--jobs", "2"]);
    // A busy machine takes longer to the first result: nothing is printed before the fit, and no variant
    // before its last seed.
    let has_variants = |json: &Value| {
        json["variants"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    };
    let tries = [6, 12, 24, 48, 96].into_iter();
    let mut results = tries
        .map(|seconds| stopped_after(seconds, &vary))
        .filter_map(|(output, error)| Some((serde_json::from_slice(&output).ok()?, error)));
    let (json, error): (Value, String) = results
        .find(|(json, _)| has_variants(json))
        .expect("a result");
    let variants = json["variants"].as_array().expect("variants");
    assert_eq!(json["partial"], true);
    assert!((1..90_000).contains(&variants.len()), "{}", variants.len());
    assert_eq!(
        variants[0]["name"],
        "sched.base_slice_ns=100us kvm.halt_poll_ns=1us"
    );
    assert_eq!(error, "stealtime: stopped\n");
}
