//! `sweep` as a user has it: refusals, kills, full disks.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::FAULTY_VM;

const SMALL: &str = "about = \"a small one\"\n[host]\nprofile = \"skylake-sp\"\ncpus = 2\n\
    [[vm]]\nname = \"web\"\nvcpus = 2\nworkload = { name = \"ticks\", period_ns = \"100us\" }\n\
    [variants.plain]\n[variants.paced]\nsched.lag_credit.rate_limit = \"adaptive\"\n\
    [run]\nduration = \"2ms\"\nwarmup = \"1ms\"\nseeds = 2\n";

const GRID: [&str; 4] = [
    "--vary",
    "kvm.halt_poll_ns=0..190us+10us",
    "--vary",
    "vm.web.workload.period_ns=50us,100us,1ms",
];

/// A folder with a scenario in it.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("small.toml"), SMALL).expect("a file");
    folder
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stealtime"));
    command
        .args(["sweep", "small.toml"])
        .args(arguments)
        .current_dir(folder);
    command
}

/// Status, output, errors.
fn sweep(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    outcome(
        command(folder, arguments)
            .output()
            .expect("the command runs"),
    )
}

fn outcome(output: Output) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = output;
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

fn results(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("small.sweep/results.parquet")).expect("results")
}

#[test]
fn a_grid_becomes_a_table_and_a_summary() {
    let folder = folder();
    let arguments = [&GRID[..], &["--results", "parquet,csv"]].concat();
    let (status, out, error) = sweep(folder.path(), &arguments);
    assert_eq!((status, error.as_str()), (Some(0), ""), "{out}");
    for part in [
        "vm.web.throughput_per_s",
        "kvm.halt_poll_ns",
        "… 4 more: --format json",
        "Best vm.web.latency_mean_ns",
        "variant",
        "240 runs: small.sweep/results.parquet, small.sweep/results.csv",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
    let csv = fs::read_to_string(folder.path().join("small.sweep/results.csv")).expect("a file");
    assert_eq!(csv.lines().count(), 241);
    let first = csv.lines().nth(1).expect("a run");
    assert!(first.starts_with("0,50000,plain,1,done,,"), "{first}");
    // Run again, it executes nothing and shows the additional metric.
    let again = [
        &GRID[..],
        &["--json", "--metric", "vm.web.halt_polling_percent"],
    ]
    .concat();
    let (status, out, error) = sweep(folder.path(), &again);
    assert_eq!((status, error.as_str()), (Some(0), ""));
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&value["runs"], &value["failed"]), (&240.into(), &0.into()));
    assert_eq!(value["effects"].as_array().map(Vec::len), Some(3));
    let levels = &value["effects"][0]["levels"];
    assert_eq!(levels.as_array().map(Vec::len), Some(20));
    assert_eq!(levels[0]["estimate"]["mean"], 0.0, "no polling");
    assert_eq!(levels[19]["difference"]["estimate"]["n"], 2);
    assert_eq!(value["vary"][1]["values"][2], "1ms");
}

#[test]
fn bad_grids_are_refused_and_leave_nothing() {
    let folder = folder();
    for (arguments, says) in [
        (
            &["--vary", "kvm.halt_pol_ns=0,1"][..],
            "--vary kvm.halt_pol_ns: there is no such knob; did you mean `kvm.halt_poll_ns`?",
        ),
        (&["--vary", "kvm.halt_poll_ns"], "expected KNOB=VALUE"),
        (&["--vary", "kvm.halt_poll_ns=1us..8us"], "how far apart?"),
        (
            &["--vary", "sched.lag_credit.gap_ns=4ms,8ms"],
            "2 of 4 points cannot be run; nothing was run\n  variant plain, sched.lag_credit.gap_ns=4ms: \
             only with sched.lag_credit.rate_limit=adaptive\n  variant plain, sched.lag_credit.gap_ns=8ms: only",
        ),
        (
            &["--vary", "sched.lag_credit.rate_limit=fixed,off"],
            "variant paced sets it itself",
        ),
        (
            &["--vary", "host.profile=skylake"],
            "did you mean `skylake-sp`?",
        ),
        (
            &[
                "--vary",
                "kvm.halt_poll_ns=1..1000",
                "--vary",
                "kvm.ple_window=1..100000",
            ],
            "400000000 runs: at most 50000000 are one sweep",
        ),
        (&["--seeds", "3", "--vary", "run.seeds=4"], "say two things"),
        (
            &["--set", "kvm.ple_gap=3", "--vary", "kvm.ple_gap=4"],
            "--set kvm.ple_gap=3 and --vary kvm.ple_gap say two things",
        ),
        (
            &["--set", "vm.web.nice=3", "--vary", "vm.*.nice=4"],
            "--set vm.web.nice=3 and --vary vm.*.nice say two things",
        ),
        (
            &["--vary", "vm.web.temperature=1"],
            "`stealtime knobs` lists them",
        ),
        (&["--out", "small.toml"], "is no folder: choose another"),
        (
            &["--variant", "on"],
            "no such variant; there are plain, paced",
        ),
        (&["--jobs", "0"], "--jobs"),
        (&["--results", "xlsx"], "parquet, csv"),
    ] {
        let (status, out, error) = sweep(folder.path(), arguments);
        assert_eq!((status, out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(error.contains(says), "{arguments:?}: {error}");
    }
    let left = fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(left, 1, "only the scenario is there");
    // An unknown column: the runs are kept, and the name that was meant is said.
    let wrong = ["--seeds", "1", "--metric", "vm.web.throughput"];
    let (status, _, error) = sweep(folder.path(), &wrong);
    assert!(
        status == Some(2) && error.contains("did you mean `vm.web.throughput_per_s`?"),
        "{error}"
    );
    assert!(!results(folder.path()).is_empty());
}

#[test]
fn folders_of_others_are_left_alone() {
    let folder = folder();
    let first = ["--vary", "kvm.halt_poll_ns=0,50us"];
    assert_eq!(sweep(folder.path(), &first).0, Some(0));
    let before = results(folder.path());
    let second = [
        "--vary",
        "kvm.halt_poll_ns=0,60us",
        "--set",
        "kvm.ple_gap=0",
    ];
    let (status, _, error) = sweep(folder.path(), &second);
    assert_eq!(status, Some(2));
    let expected = "stealtime: small.sweep is another sweep's folder: choose another --out, or throw its \
        results away by --restart\n  --vary: there kvm.halt_poll_ns=0,50us, here kvm.halt_poll_ns=0,60us\n  \
        --set: there nothing, here kvm.ple_gap=0\n";
    assert_eq!(error, expected);
    assert_eq!(results(folder.path()), before);
    let (status, _, error) = sweep(folder.path(), &["--out", "."]);
    assert!(
        status == Some(2) && error.contains("is not empty, and is no sweep's folder"),
        "{error}"
    );
    let restart = [&second[..], &["--restart"]].concat();
    assert_eq!(sweep(folder.path(), &restart).0, Some(0));
    assert_ne!(results(folder.path()), before);
}

#[test]
fn a_sweep_that_is_killed_goes_on_to_the_same_bytes() {
    let whole = folder();
    let long = [&GRID[..], &["--duration", "5ms"]].concat();
    assert_eq!(sweep(whole.path(), &long).0, Some(0));
    let expected = results(whole.path());
    let folder = folder();
    let mut killed = 0;
    // Moments from the first files on: more each time, so that it ends.
    for moment in 1..60 {
        let mut child = command(folder.path(), &long)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command runs");
        let jobs = Duration::from_millis(moment * moment * 3 % 97 + moment * 4);
        std::thread::sleep(jobs);
        // SIGKILL; what has ended cannot be killed any more.
        let _ = child.kill();
        let status = child.wait().expect("it ends");
        if status.success() {
            break;
        }
        killed += 1;
    }
    assert!(killed > 2, "killed {killed} times");
    let last = [&long[..], &["--jobs", "3"]].concat();
    let (status, _, error) = sweep(folder.path(), &last);
    assert_eq!(status, Some(0), "{error}");
    assert!(results(folder.path()) == expected, "after {killed} kills");
    let names = fs::read_dir(folder.path().join("small.sweep")).expect("a folder");
    let mut names: Vec<_> = names
        .map(|entry| entry.expect("a file").file_name())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["results.parquet", "runs.journal", "sweep.json"],
        "nothing half-done is left"
    );
}

#[test]
fn ctrl_c_says_how_far_it_is_and_how_it_goes_on() {
    let folder = folder();
    let long = [&GRID[..], &["--duration", "400ms", "--jobs", "1"]].concat();
    let child = command(folder.path(), &long)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    std::thread::sleep(Duration::from_millis(900));
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(sent.expect("kill runs").success());
    let (status, out, error) = outcome(child.wait_with_output().expect("it ends"));
    assert_eq!((status, out.as_str()), (Some(130), ""), "{error}");
    assert!(
        error.starts_with("stealtime: stopped: ")
            && error
                .contains(" of 240 runs are in small.sweep; the same command goes on from there"),
        "{error}"
    );
    assert!(!folder.path().join("small.sweep/results.parquet").exists());
}

#[test]
fn a_full_disk_is_reported_and_nothing_is_lost() {
    let whole = folder();
    assert_eq!(sweep(whole.path(), &GRID).0, Some(0));
    let folder = folder();
    // A limit on the size of files stands for the disk: 16 blocks of 512 or 1024 bytes.
    let limited = "trap '' XFSZ; ulimit -f 16; exec \"$0\" sweep small.toml \"$@\"";
    let output = Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_stealtime")])
        .args(GRID)
        .current_dir(folder.path())
        .output();
    let (status, out, error) = outcome(output.expect("sh runs"));
    assert_eq!((status, out.as_str()), (Some(2), ""), "{error}");
    assert!(error.contains(": File too large"), "{error}");
    let kept = error.split_once("; ");
    let kept = kept.and_then(|(_, rest)| rest.split_once(" of 240 runs are kept"));
    let kept: u64 = kept.expect(&error).0.parse().expect("a number");
    assert!((1..240).contains(&kept), "{error}");
    let (status, _, error) = sweep(folder.path(), &GRID);
    assert_eq!(status, Some(0));
    assert_eq!(
        error,
        format!("small.sweep: {kept} of 240 runs are there; going on\n")
    );
    assert_eq!(results(folder.path()), results(whole.path()));
}

#[test]
fn a_large_grid_says_how_long_it_takes_and_asks() {
    let folder = folder();
    let grid = [
        "--vary",
        "kvm.halt_poll_ns=1..400",
        "--vary",
        "kvm.ple_gap=1..400",
        "--duration",
        // Hours on any machine.
        "2s",
    ];
    let (status, out, error) = sweep(folder.path(), &grid);
    assert_eq!((status, out.as_str()), (Some(2), ""), "{error}");
    for part in [
        "runs are left, which take about ",
        "add --yes to begin",
        "runs were tried and are kept",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn runs_that_fail_are_rows() {
    let folder = folder();
    fs::write(
        folder.path().join("small.toml"),
        format!("{SMALL}{FAULTY_VM}"),
    )
    .expect("a file");
    let (status, out, error) = sweep(folder.path(), &["--results", "csv"]);
    assert!(
        status == Some(2) && error.contains("4 of 4 runs failed"),
        "{error}"
    );
    assert!(out.contains("4 runs of 4 failed, the first by: "), "{out}");
    let csv = fs::read_to_string(folder.path().join("small.sweep/results.csv")).expect("a file");
    assert_eq!(csv.matches(",failed,").count(), 4, "{csv}");
}

#[test]
fn a_report_does_not_take_the_place_of_the_results() {
    let folder = folder();
    assert_eq!(sweep(folder.path(), &["--seeds", "1"]).0, Some(0));
    let before = results(folder.path());
    for file in ["results.parquet", "runs.journal", "sweep.json"] {
        let report = format!("small.sweep/{file}");
        let (status, out, error) = sweep(folder.path(), &["--seeds", "1", "--report", &report]);
        assert_eq!((status, out.as_str()), (Some(2), ""), "{file}");
        assert!(error.contains("--out and --report would both"), "{error}");
    }
    assert_eq!(results(folder.path()), before);
}

/// Folders may be called anything: JSON has text, and what goes to a terminal does not steer it.
#[test]
fn odd_names_of_folders_are_shown_safely() {
    use std::os::unix::ffi::OsStrExt;
    let folder = folder();
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff\x1b[2J");
    let asked = ["--seeds", "1", "--json", "--out"];
    let (status, out, _) = outcome(
        command(folder.path(), &asked)
            .arg(odd)
            .output()
            .expect("run"),
    );
    assert_eq!(status, Some(0));
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert!(
        value["folder"]
            .as_str()
            .is_some_and(|name| name.starts_with("odd"))
    );
    // A run that was cut off is reported.
    let journal = folder.path().join(odd).join("runs.journal");
    let bytes = fs::read(&journal).expect("a journal");
    fs::write(&journal, &bytes[..bytes.len() - 1]).expect("written");
    let (status, _, error) = outcome(
        command(folder.path(), &asked)
            .arg(odd)
            .output()
            .expect("run"),
    );
    assert_eq!(status, Some(0), "{error}");
    assert!(
        error.contains("odd") && !error.contains('\u{1b}'),
        "{error:?}"
    );
}

#[test]
fn shards_merge_into_the_sweep_that_ran_in_one_piece() {
    let folder = folder();
    let (status, _, error) = sweep(folder.path(), &GRID);
    assert_eq!(status, Some(0), "{error}");
    let whole = results(folder.path());
    let merge = |folders: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stealtime"));
        command.args(["sweep", "merge"]).args(folders);
        command.args(["--out", "merged"]).current_dir(folder.path());
        outcome(command.output().expect("the command runs"))
    };
    for shard in ["3/3", "1/3"] {
        let (status, out, error) = sweep(folder.path(), &[&GRID[..], &["--shard", shard]].concat());
        assert_eq!((status, error.as_str()), (Some(0), ""), "{out}");
        assert!(out.starts_with(&format!("shard {shard}: ")), "{out}");
    }
    let (status, _, error) = merge(&["small.3-of-3.sweep", "small.1-of-3.sweep"]);
    assert_eq!(status, Some(2), "{error}");
    assert!(error.contains("shard 2/3 lacks "), "{error}");
    let mut second = command(folder.path(), &[&GRID[..], &["--shard", "auto/3"]].concat());
    second.env("JOB_COMPLETION_INDEX", "1");
    let (status, out, error) = outcome(second.output().expect("the command runs"));
    assert_eq!((status, error.as_str()), (Some(0), ""), "{out}");
    let (status, out, error) = merge(&["small.2-of-3.sweep", "small.1-of-3.sweep"]);
    assert_eq!((status, error.as_str()), (Some(0), ""), "{out}");
    let merged = fs::read(folder.path().join("merged/results.parquet")).expect("results");
    assert!(merged == whole);
}
