//! Properties of the recorded host: given by a file, implied by the settings to change, or fitted.

use std::path::Path;

use serde_json::Value;
use stealtime_simulator::Collected;
use stealtime_simulator::config::{
    Config, HostConfig, Knobs, RunConfig, Topology, VmConfig, WorkloadConfig,
};
use stealtime_trace::write::TraceDatWriter;

use super::edited::edited_of;
use super::{HACKBENCH, TICKET_LOCK, answer, complaint, whatif};

/// A file about the host with this text.
fn file(folder: &tempfile::TempDir, text: &str) -> String {
    let file = folder.path().join("host.toml");
    std::fs::write(&file, text).expect("written");
    file.to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_file_about_the_host_is_believed() {
    let folder = tempfile::tempdir().expect("a folder");
    let host = |text: &str| whatif(&[HACKBENCH, "--host", &file(&folder, text)]);
    let (status, out, _) =
        host("# mine\ngroups = true\nplacement = \"simulated\"\nhost.hz = 1000\n");
    assert_eq!(status, Some(0));
    for part in [
        "host.hz=1000 (as given)",
        "each VM in a cgroup",
        "by the simulated scheduler",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    for (text, part) in [
        ("groups = maybe", ":1: groups"),
        ("\nplacement", ":2: expected"),
        ("kvm.nothing = 1", "no knob kvm.nothing"),
    ] {
        let (status, _, error) = host(text);
        assert!(status == Some(2) && error.contains(part), "{text}: {error}");
    }
}

#[test]
fn vcpus_have_cgroups_in_that_of_a_single_vm_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "vcpu_cgroups = true\ngroups = false\nvm.vm1.cpu_max = \"40ms 100ms\"\n";
    let out = answer(&[HACKBENCH, "--host", &file(&folder, text)]).replace("\n  ", " ");
    let line = "in cgroups of their own, and in those each vCPU (fits best, unless given): vm1 with cpu.max";
    assert!(out.contains(line), "{out}");
}

fn preempts(recording: &str, arguments: &[&str]) -> String {
    let out = answer(&[&[recording, "--seeds", "2"], arguments].concat());
    let lines = out.replace("\n  ", " ");
    let line = lines.lines().find(|line| line.contains(": sched.preempt="));
    line.expect("what is assumed").to_owned()
}

/// This host has no lazy requests to reschedule, which fits both modes of preemption.
#[test]
fn a_mode_of_preemption_to_change_to_implies_the_other_one() {
    let of = |arguments: &[&str]| preempts(TICKET_LOCK, arguments);
    let asked = "as the other is asked for; --host FILE sets it";
    for (value, other) in [("lazy", "full"), ("full", "lazy")] {
        let line = of(&["--set", &format!("sched.preempt={value}")]);
        assert_eq!(line, format!("Assumed: sched.preempt={other} ({asked})"));
    }
    assert!(of(&["--set", "host.hz=100"]).ends_with("(fits best, unless given)"));
    assert!(of(&["--vary", "sched.preempt=lazy,full"]).ends_with("(fits best, unless given)"));
}

#[test]
fn wakeups_show_how_a_host_preempts() {
    let of = |arguments: &[&str]| preempts(HACKBENCH, arguments);
    let shown = "Assumed: sched.preempt=lazy (as its wakeups show)";
    assert_eq!(of(&["--set", "sched.preempt=full"]), shown);
    assert_eq!(of(&["--set", "sched.preempt=lazy"]), shown);
    let folder = tempfile::tempdir().expect("a folder");
    let given = file(&folder, "sched.preempt = full\n");
    let line = of(&["--host", &given, "--set", "sched.preempt=full"]);
    assert_eq!(line, "Assumed: sched.preempt=full (as given)");
}

#[test]
fn the_second_best_host_is_shown_with_its_distance() {
    let json: Value = serde_json::from_str(&answer(&[HACKBENCH, "--json"])).expect("JSON");
    let fit = &json["fit"];
    assert!(fit["tried"].as_u64() > Some(5), "{fit}");
    let dimensions = fit["dimensions"].as_array().expect("dimensions");
    let find = |name: &Value| dimensions.iter().find(|row| row["dimension"] == *name);
    let second = &fit["runner_up"];
    let differs = second["differs"].as_array().expect("differences");
    assert!(!differs.is_empty(), "{fit}");
    for row in differs {
        let best = find(&row["dimension"]).expect("the same dimension");
        assert_ne!(best["value"], row["value"]);
        assert_eq!(best["source"], "fitted", "only open dimensions vary: {fit}");
    }
    let preemption = find(&"preemption".into()).expect("a row");
    assert_eq!(preemption["source"], "recorded");
    let times = |misfit: &Value| misfit["times_percent"].as_f64().expect("a number");
    let further = times(&second["misfit"]) / times(&fit["misfit"]) * 100.0 - 100.0;
    let shown = second["further_percent"].as_f64().expect("a number");
    assert!((further - shown).abs() < 0.5, "{further} {shown}");
}

#[test]
fn a_change_to_what_was_there_is_called_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let given = file(&folder, "host.hz = 1000\n");
    let verdict = |setting: &str| {
        let out = answer(&[
            HACKBENCH, "--host", &given, "--seeds", "2", "--set", setting,
        ]);
        let (rows, verdict) = out.split_once("verdict: ").expect("a verdict");
        let (_, rows) = rows.split_once("\nhost.hz=").expect("the variant");
        (rows.to_owned(), verdict.to_owned())
    };
    let (rows, verdict_of_same) = verdict("host.hz=1000");
    assert!(
        !rows.contains("error") && rows.contains("the same"),
        "{rows}"
    );
    assert!(verdict_of_same.starts_with("nothing changes: the host is taken to have had"));
    assert!(!verdict("host.hz=100").1.contains("nothing changes"));
}

#[test]
fn what_is_given_of_a_vm_holds_in_variants_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let given = file(&folder, "vm.vm0.cpu_max = \"10ms 100ms\"\n");
    let running = |arguments: &[&str]| {
        let asked = ["--seeds", "2", "--json", "--set", "host.hz=100"];
        let out = answer(&[&[HACKBENCH], &asked[..], arguments].concat());
        let json: Value = serde_json::from_str(&out).expect("JSON");
        let changes = json["variants"][0]["changes"].as_array().expect("changes");
        let of_vm0 = |c: &&Value| c["vm"] == "vm0" && c["quantity"] == "running";
        let change = changes.iter().find(of_vm0).expect("a row").clone();
        ["before", "after"].map(|when| change[when].as_f64().expect("a number"))
    };
    let [before, after] = running(&[]);
    assert!(before > 200.0 && after > 200.0, "{before} {after}");
    // With what CPUs keep of a period's runtime.
    let [before, after] = running(&["--host", &given]);
    assert!(before < 120.0 && after < 120.0, "{before} {after}");
}

#[test]
fn a_vm_with_a_given_weight_is_in_a_cgroup() {
    let folder = tempfile::tempdir().expect("a folder");
    for (given, part) in [
        (
            "vm.vm0.cpu_weight = 300",
            "own (fits best, unless given): vm0",
        ),
        ("vm.vm0.nice = 0", "no cgroups"),
    ] {
        let given = file(&folder, &format!("groups = false\n{given}\n"));
        let out = answer(&[HACKBENCH, "--host", &given]);
        assert!(out.contains(part), "{part}: {out}");
    }
}

/// A simulated host of one CPU and two VMs that compute, of which the second has this weight, as a recording.
fn weighed(path: &Path, cpu_weight: u32) {
    let vm = |(n, cpu_weight)| VmConfig {
        name: format!("vm{n}"),
        vcpus: 1,
        workload: WorkloadConfig::named("busy"),
        cpu_weight,
        ..VmConfig::default()
    };
    let config = Config {
        host: HostConfig::generic(Topology::flat(1)),
        vms: [(0, 100), (1, cpu_weight)].map(vm).into(),
        scripts: Default::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: 500_000_000,
            warmup_ns: 0,
            seed: 1,
        },
    };
    let mut seen = Collected::default();
    stealtime_simulator::run(&config, &mut seen).expect("a good configuration");
    let mut file = std::fs::File::create(path).expect("a file");
    let mut writer = TraceDatWriter::new(Default::default()).expect("a writer");
    for event in &seen.events {
        writer.push(event, &seen.names).expect("written");
    }
    writer.finish(&mut file).expect("a whole file");
}

#[test]
fn weights_are_found_unless_they_are_given() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("weighed.dat");
    weighed(&path, 300);
    let recording = path.to_str().expect("UTF-8");
    let lines = |arguments: &[&str]| {
        let out = answer(&[&[recording], arguments].concat());
        out.replace("\n  ", " ").replace("  ", " ")
    };
    // VMs have no names here, but for those of their processes.
    let line = "(fits best, unless given): pid1003 with cpu.weight 300 (fits best, unless given)";
    let found = lines(&[]);
    assert!(found.contains(line), "{found}");
    // That is what `--set` changes from, and what other variants have too.
    let same = lines(&["--seeds", "2", "--set", "vm.pid1003.cpu_weight=300"]);
    assert!(same.contains("nothing changes"), "{same}");
    let equal = lines(&["--seeds", "2", "--set", "vm.pid1003.cpu_weight=100"]);
    assert!(equal.contains("pid1000: better, pid1003: worse"), "{equal}");
    let given = file(&folder, "groups = true\nvm.pid1003.cpu_weight = 200\n");
    let given = lines(&["--host", &given]);
    assert!(
        given.contains("pid1003 with cpu.weight 200 (as given)"),
        "{given}"
    );
}

#[test]
fn a_weight_to_change_implies_cgroups() {
    let line = "Assumed: each VM in a cgroup of its own";
    let why = "(as a weight is asked for; --host FILE sets it)";
    for asked in ["--set", "--vary"] {
        let weight = [HACKBENCH, "--seeds", "2", asked, "vm.vm0.cpu_weight=300"];
        let out = answer(&weight).replace("\n  ", " ");
        let grouped = out.contains(line) && out.contains(why);
        assert!(grouped && out.contains("verdict: "), "{out}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let given = file(&folder, "groups = false\n");
    let weight = [
        HACKBENCH,
        "--set",
        "vm.vm0.cpu_weight=300",
        "--host",
        &given,
    ];
    let error = complaint(&weight);
    assert!(error.contains("says `groups = false`"), "{error}");
}

#[test]
fn a_file_about_the_host_that_cannot_be_meant_is_refused_by_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    for (text, part) in [
        (
            "\nkvm.halt_pol_ns = 1",
            ":2: there is no knob kvm.halt_pol_ns; did you mean",
        ),
        ("sched.base_slice_ns = often", ":1: sched.base_slice_ns: "),
        ("vm.vm9.nice = 1", ":1: vm.vm9.nice: there is no such VM"),
        ("= 1", ":1: expected KEY = VALUE"),
        ("groups = true\ngroups = false", ":2: groups is said twice"),
        ("host.hz = 250\nhost.hz = 1000", ":2: host.hz is said twice"),
    ] {
        let path = file(&folder, text);
        let (status, out, error) = whatif(&[HACKBENCH, "--host", &path]);
        assert_eq!((status, out.as_str()), (Some(2), ""), "{text}");
        assert!(error.contains(&format!("{path}{part}")), "{text}: {error}");
    }
    // What never ends is not read to its end.
    let (status, _, error) = whatif(&[HACKBENCH, "--host", "/dev/zero"]);
    assert!(
        status == Some(2) && error.contains("/dev/zero: more than 1048576 bytes"),
        "{error}"
    );
}

/// What is said before the replay of a recording of a kernel like this.
fn of_kernel(uname: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kernel.dat");
    edited_of(&path, Some(uname), None, |event, _| Some(*event));
    answer(&[path.to_str().expect("UTF-8")]).replace("\n  ", " ")
}

#[test]
fn an_older_kernel_has_what_it_had() {
    let out = of_kernel("Linux host 6.8.0-45-generic x86_64");
    let features = "NO_PREEMPT_SHORT NO_NEXT_BUDDY PICK_BUDDY NO_DELAY_DEQUEUE NO_DELAY_ZERO";
    assert!(
        out.contains(features) && out.contains("(as Linux 6.8 has them)"),
        "{out}"
    );
    // What the recording shows goes before what the kernel is known for.
    assert!(
        out.contains("sched.base_slice_ns=210") && out.contains("as its slice timers show"),
        "{out}"
    );
    assert!(!out.contains("CFS"), "{out}");
}

#[test]
fn a_host_with_cfs_is_reported_so() {
    let out = of_kernel("Linux host 5.14.0-503.el9.x86_64 x86_64");
    let said = "Assumed: sched.fair=cfs (as Linux 5.14 schedules), with sched.latency_ns=";
    assert!(out.contains(said), "{out}");
    // What EEVDF has is not listed.
    for not in ["RUN_TO_PARITY", "sched.base_slice_ns", "Lacking: Linux"] {
        assert!(!out.contains(not), "{not}: {out}");
    }
}

#[test]
fn either_class_can_be_asked_for_and_what_it_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kernel.dat");
    let uname = "Linux host 6.1.0-56-amd64 x86_64";
    edited_of(&path, Some(uname), None, |event, _| Some(*event));
    let cfs = path.to_str().expect("UTF-8");
    let said = |recording: &str, settings: &[&str]| {
        let mut arguments = vec![recording, "--seeds", "2"];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        answer(&arguments).replace("\n  ", " ")
    };
    for settings in [
        &["sched.fair=eevdf"][..],
        &["sched.fair=eevdf", "sched.base_slice_ns=3ms"],
        &["sched.wakeup_granularity_ns=0"],
        &["sched.features=NO_WAKEUP_PREEMPTION"],
    ] {
        let out = said(cfs, settings);
        assert!(out.contains("verdict: "), "{settings:?}: {out}");
    }
    for settings in [
        &["sched.fair=cfs"][..],
        &["sched.fair=cfs", "sched.min_granularity_ns=3ms"],
        &["sched.policy=scx-stealtime", "sched.base_slice_ns=1ms"],
    ] {
        let out = said(HACKBENCH, settings);
        assert!(out.contains("verdict: "), "{settings:?}: {out}");
        let drops_moves = out.contains("recorded moves between CPUs are dropped");
        let is_scx = settings[0] == "sched.policy=scx-stealtime";
        assert_eq!(drops_moves, is_scx, "{settings:?}: {out}");
    }
    for (recording, setting, why) in [
        (cfs, "sched.base_slice_ns=3ms", "CFS has nothing of it"),
        (
            cfs,
            "sched.features=NO_RUN_TO_PARITY",
            "CFS has nothing of it",
        ),
        (HACKBENCH, "sched.latency_ns=3ms", "EEVDF has nothing of it"),
        (
            HACKBENCH,
            "sched.scx.yield=nominee",
            "sched.policy=scx-stealtime",
        ),
    ] {
        let error = complaint(&[recording, "--set", setting]).replace("\n  ", " ");
        assert!(error.contains(why), "{setting}: {error}");
    }
}
