//! What `--auto` proposes, and what of a change is called none.

use serde_json::Value;

use super::{HACKBENCH, answer, number, whatif};

const CFS: &str = "svm-cfs/trace.dat";
const WEIGHTS: &str = "svm-cgroup-weights/trace.dat";
/// A replay of this one is too far off.
const FAR: &str = "svm-perf-kvm-stat-hackbench-tlb-burst/perf.data.zst";

/// A file about the host with this text, and its folder.
fn host(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("host.toml");
    std::fs::write(&file, text).expect("written");
    let path = file.to_str().expect("UTF-8").to_owned();
    (folder, path)
}

fn auto(arguments: &[&str]) -> Value {
    let all = ["--auto", "--seeds", "2", "--json"];
    let out = answer(&[arguments, &all[..]].concat());
    serde_json::from_str(&out).expect("JSON")
}

/// The names of what was tried.
fn tried(arguments: &[&str]) -> Vec<String> {
    let json = auto(arguments);
    let tried = json["auto"]["tried"].as_array().expect("what was tried");
    let names = tried.iter().map(|one| one["name"].as_str());
    names.map(|name| name.expect("a name").to_owned()).collect()
}

#[test]
fn more_weight_is_more_than_a_vm_has() {
    let with_nice = |text: &str| {
        let (_folder, given) = host(&format!("groups = false\n{text}\n"));
        let mut names = tried(&[HACKBENCH, "--host", &given]);
        names.retain(|name| name.starts_with("vm.vm0.nice="));
        names
    };
    assert_eq!(with_nice("vm.vm0.nice = 3"), ["vm.vm0.nice=-2"]);
    assert_eq!(with_nice("vm.vm0.nice = -10"), ["vm.vm0.nice=-15"]);
    assert_eq!(with_nice("vm.vm0.nice = -17"), ["vm.vm0.nice=-20"]);
    // There is no more.
    assert!(with_nice("vm.vm0.nice = -20").is_empty());
    let weights = |text: &str| {
        let (_folder, given) = host(&format!("groups = true\n{text}\n"));
        let mut names = tried(&[HACKBENCH, "--host", &given]);
        names.retain(|name| name.contains("cpu_weight"));
        names.sort();
        names
    };
    let given = "vm.vm0.cpu_weight = 10000\nvm.vm1.cpu_weight = 200";
    assert_eq!(weights(given), ["vm.vm1.cpu_weight=600"]);
    let given = "vm.vm0.cpu_weight = 5000\nvm.vm1.cpu_weight = 200";
    let both = ["vm.vm0.cpu_weight=10000", "vm.vm1.cpu_weight=600"];
    assert_eq!(weights(given), both);
    // On top of what is set.
    let on_top = tried(&[HACKBENCH, "--set", "vm.vm0.nice=-10"]);
    assert!(on_top.contains(&"vm.vm0.nice=-15".to_owned()), "{on_top:?}");
}

#[test]
fn a_pin_that_is_proposed_leaves_out_a_cpu() {
    for (recording, cpus) in [(HACKBENCH, "0-3"), (CFS, "0-1"), (WEIGHTS, "0-1")] {
        for name in tried(&[recording]) {
            let pins = name.split("pin ").filter(|pin| pin.starts_with("vm"));
            let mut lists = pins
                .filter_map(|pin| pin.trim().split_once('='))
                .map(|p| p.1);
            assert!(
                !name.contains("pin vm") || !lists.all(|list| list == cpus),
                "{recording}: {name}"
            );
        }
    }
}

#[test]
fn slices_are_proposed_relative_to_what_the_host_has() {
    let of = |text: &str, knob: &str| {
        let (_folder, given) = host(text);
        let mut names = tried(&[HACKBENCH, "--host", &given]);
        names.retain(|name| name.starts_with(knob));
        names.sort();
        names
    };
    // The shortest that there is has no half.
    let shortest = of("sched.base_slice_ns = 100us", "sched.base_slice_ns");
    let longer = ["sched.base_slice_ns=200000", "sched.base_slice_ns=400000"];
    assert_eq!(shortest, longer);
    let longest = of("sched.base_slice_ns = 600ms", "sched.base_slice_ns");
    let shorter = [
        "sched.base_slice_ns=150000000",
        "sched.base_slice_ns=300000000",
    ];
    assert_eq!(longest, shorter);
    assert!(of("host.hz = 1000", "host.hz").is_empty());
    // What is off is switched on, and the other way round.
    let features = "sched.features = NO_RUN_TO_PARITY,NO_WAKEUP_PREEMPTION,NEXT_BUDDY";
    let switched = [
        "sched.features=NO_NEXT_BUDDY",
        "sched.features=RUN_TO_PARITY",
        "sched.features=WAKEUP_PREEMPTION",
    ];
    assert_eq!(of(features, "sched.features"), switched);
}

#[test]
fn what_is_proposed_suits_the_class_that_is_set() {
    let names = tried(&[CFS]);
    let has = |names: &[String], part: &str| names.iter().any(|name| name.contains(part));
    assert!(has(&names, "sched.latency_ns") && has(&names, "sched.fair=eevdf"));
    assert!(!has(&names, "sched.base_slice_ns"), "{names:?}");
    let names = tried(&[CFS, "--set", "sched.fair=eevdf"]);
    assert!(has(&names, "sched.base_slice_ns") && has(&names, "RUN_TO_PARITY"));
    assert!(!has(&names, "sched.latency_ns"), "{names:?}");
}

#[test]
fn what_the_host_has_changes_nothing_in_any_unit() {
    let cases: [(&str, &[&str]); 2] = [
        (
            HACKBENCH,
            &[
                "kvm.halt_poll_ns=200us",
                "kvm.halt_poll_ns=200000",
                "sched.base_slice_ns=2.1ms",
                "sched.base_slice_ns=2100000",
                "sched.base_slice_ns=auto",
                "host.hz=250",
                "sched.preempt=lazy",
                "sched.features=RUN_TO_PARITY,NO_NEXT_BUDDY",
                "sched.fair=eevdf",
                "vm.vm0.nice=0",
                "vm.*.nice=0",
                "vm.vm0.cpu_max=max",
                "vm.vm0.cpu_weight=100",
            ],
        ),
        (
            CFS,
            &[
                "sched.fair=cfs",
                "sched.latency_ns=12ms",
                "sched.min_granularity_ns=1500000",
                "sched.wakeup_granularity_ns=auto",
            ],
        ),
    ];
    let verdict = |arguments: &[&str]| {
        let out = answer(&[arguments, &["--seeds", "2"][..]].concat());
        let (_, verdict) = out.split_once("verdict: ").expect("a verdict");
        verdict.to_owned()
    };
    let same = "nothing changes: the host is taken to have had";
    for (recording, settings) in cases {
        for setting in settings {
            let verdict = verdict(&[recording, "--set", setting]);
            assert!(verdict.starts_with(same), "{setting}: {verdict}");
        }
    }
    // vCPUs that are not bound may run everywhere.
    let pinned = verdict(&[HACKBENCH, "--pin", "vm0=0-3"]);
    assert!(pinned.starts_with(same), "{pinned}");
    assert!(!verdict(&[HACKBENCH, "--pin", "vm0=0-2"]).starts_with("nothing"));
    // Another value, but one that nothing depends on here.
    let unused = verdict(&[HACKBENCH, "--set", "sched.lag_credit.margin_ns=5ms"]);
    assert!(
        unused.starts_with("nothing changes: every replay"),
        "{unused}"
    );
}

#[test]
fn verdicts_follow_the_interval_of_what_is_ranked() {
    for recording in [HACKBENCH, CFS, FAR] {
        let json = auto(&[recording]);
        let tried = json["auto"]["tried"].as_array().expect("what was tried");
        let mut classes = Vec::new();
        for one in tried {
            let (change, word) = (&one["net_change"], one["net_word"].as_str());
            let (mean, half) = (number(&change["mean"]), number(&change["half_width"]));
            assert_eq!(mean, number(&one["net"]), "{one}");
            let clear = mean.abs() > half;
            let outcome = one["outcome"].as_str().expect("a word");
            match outcome {
                "better" => assert!(clear && mean > 0.0, "{one}"),
                "worse" => assert!(clear && mean < 0.0, "{one}"),
                "within_noise" | "same" => assert!(!clear || mean == 0.0, "{one}"),
                "below_error" => assert!(clear, "{one}"),
                other => assert!(["mixed", "less_cpu"].contains(&other), "{one}"),
            }
            classes.push(match word {
                Some("better") => 0,
                Some("worse") => 2,
                _ => 1,
            });
        }
        assert!(classes.is_sorted(), "{recording}: {classes:?}");
    }
}

#[test]
fn the_table_says_what_the_json_and_the_page_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("out.html");
    let asked = [FAR, "--auto", "--seeds", "2"];
    let report = ["--report", page.to_str().expect("UTF-8")];
    let (status, out, _) = whatif(&[&asked[..], &report].concat());
    assert_eq!(status, Some(0));
    let far = "the replay itself is too far from the recording to trust sizes";
    // Below the error, below the ranking, and in the last line.
    assert_eq!(out.matches(far).count(), 3, "{out}");
    let json = auto(&[FAR]);
    let page = std::fs::read_to_string(&page).expect("a report");
    for one in json["auto"]["tried"].as_array().expect("what was tried") {
        let word = match one["outcome"].as_str().expect("a word") {
            "within_noise" => "noise",
            "below_error" => "< error",
            "less_cpu" => "less CPU",
            "same" => "the same",
            word => word,
        };
        let mean = number(&one["net"]);
        let net = match mean.abs() >= 999.95 {
            true => format!("{mean:+.0} ±"),
            false => format!("{mean:+.1} ±"),
        };
        let mut rows = out.lines().filter(|line| line.contains(&net));
        assert!(rows.any(|row| row.contains(word)), "{net} {word}: {out}");
        assert!(page.contains(&net), "{net}");
    }
    assert!(!out.contains("undone") && !page.contains("undone"));
    // Of a replay that is near nothing of the kind is said.
    assert!(!answer(&[HACKBENCH, "--auto", "--seeds", "2"]).contains("too far"));
}

#[test]
fn options_about_replays_of_nothing_are_said_to_do_nothing() {
    for option in [&["--seeds", "3"][..], &["--jobs", "2"], &["--yes"]] {
        let (status, _, error) = whatif(&[&[HACKBENCH], option].concat());
        assert_eq!(status, Some(0));
        let said = format!("{} is not used: nothing is changed", option[0]);
        assert!(error.contains(&said), "{error}");
    }
    let (_, _, error) = whatif(&[HACKBENCH, "--seeds", "2", "--set", "host.hz=100"]);
    assert_eq!(error, "");
}
