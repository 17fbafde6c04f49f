//! `stealtime check` as a user has it.

use std::path::Path;
use std::process::{Command, Stdio};

/// Status, output and complaints, with what differs from run to run taken out.
fn check(folder: &Path, arguments: &[&str]) -> String {
    let run = Command::new(env!("CARGO_BIN_EXE_stealtime"))
        .arg("check")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("the command runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let (out, complaints) = (text(run.stdout), text(run.stderr));
    let status = run.status.code().expect("it ends by itself");
    for line in out.lines() {
        // A command is to be copied as it is.
        let whole = line.starts_with('{') || line.starts_with("replay: ");
        let width = line.chars().count();
        assert!(whole || width <= 100, "{width} columns: {line}");
    }
    let mut shown = format!("status {status}\n{}", without_times(&out));
    if !complaints.is_empty() {
        shown.push_str(&format!("--- complaints\n{complaints}"));
    }
    shown
}

/// `1.2 s` and `"seconds":1.2` become `T s`.
fn without_times(text: &str) -> String {
    let mut kept = Vec::new();
    for word in text.split(' ') {
        kept.push(word);
        if word == "s;" && kept.len() > 1 {
            let at = kept.len() - 2;
            kept[at] = "T";
        }
    }
    let text = kept.join(" ");
    match text.split_once("\"seconds\":") {
        Some((before, after)) => {
            let rest = after.find(',').map_or("", |at| &after[at..]);
            format!("{before}\"seconds\":\"T\"{rest}")
        }
        None => text,
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn list() {
    insta::assert_snapshot!(check(folder().path(), &["--list"]));
}

#[test]
fn a_pass() {
    insta::assert_snapshot!(check(folder().path(), &["ipi-tracking"]));
}

#[test]
fn a_failure_and_its_replay() {
    let folder = folder();
    let asked = [
        "pi-notify",
        "--variant",
        "as-posted-v1",
        "--agents",
        "plain-apicv",
        "--keep-in",
        ".",
    ];
    insta::assert_snapshot!("a_failure", check(folder.path(), &asked));
    let file = "check-pi-notify-as-posted-v1-plain-apicv-no-blocked-for-ever-flaw-5.replay";
    insta::assert_snapshot!("its_replay", check(folder.path(), &["--replay", file]));

    let path = folder.path().join(file);
    let text = std::fs::read_to_string(&path).expect("the file of the failure");
    let old = text.replacen(char::is_numeric, "0", 1);
    assert_ne!(old, text);
    std::fs::write(&path, old).expect("a file of mine");
    insta::assert_snapshot!(
        "of_another_version",
        check(folder.path(), &["--replay", file])
    );
    insta::assert_snapshot!("no_file", check(folder.path(), &["--replay", "missing"]));
}

#[test]
fn a_failure_with_many_agents() {
    let asked = ["wakeup-batch", "--variant", "softirq-number"];
    insta::assert_snapshot!(check(folder().path(), &asked));
}

#[test]
fn a_failure_is_written_only_where_asked() {
    let here = folder();
    let files = |folder: &Path| folder.read_dir().expect("a folder").count();
    let asked = ["clock", "--variant", "exits-not-awaited"];
    let shown = check(here.path(), &asked);
    assert!(shown.contains("status 1\n") && shown.contains("no-time-travel"));
    assert!(!shown.contains("--replay"), "{shown}");
    assert_eq!(files(here.path()), 0);

    let kept = here.path().join("a folder of it's own");
    std::fs::create_dir(&kept).expect("a folder");
    let name = kept.to_str().expect("UTF-8");
    let shown = check(here.path(), &[&asked[..], &["--keep-in", name]].concat());
    assert_eq!((files(here.path()), files(&kept)), (1, 1));
    // The command is one for a shell as it stands there.
    let command = shown.lines().find_map(|line| line.strip_prefix("replay: "));
    let command = command
        .expect("a command")
        .split_once(' ')
        .expect("words")
        .1;
    let replayed = Command::new("sh")
        .args([
            "-c",
            &format!("\"$0\" {command}"),
            env!("CARGO_BIN_EXE_stealtime"),
        ])
        .output()
        .expect("a shell");
    assert_eq!(replayed.status.code(), Some(1), "{command}");
    assert!(String::from_utf8_lossy(&replayed.stdout).contains("no-time-travel"));
}

#[test]
fn what_is_unknown() {
    let folder = folder();
    let mut all = String::new();
    for asked in [
        &["pi-notif"] as &[&str],
        &["pi-notify", "--variant", "putt"],
        &["pi-notify", "--agents", "two-vcpu"],
        &["pi-notify", "--agents", "posters=1"],
        &["pi-notify", "--agents", "poster=9"],
        &["pi-notify", "--bound", "many"],
    ] {
        all.push_str(&format!(
            "$ check {}\n{}\n",
            asked.join(" "),
            check(folder.path(), asked)
        ));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn bounds_too_large_for_memory() {
    let asked = [
        "pi-notify",
        "--variant",
        "put",
        "--agents",
        "two-vcpus,device=4",
    ];
    let shown = check(folder().path(), &[&asked[..], &["--memory", "8"]].concat());
    insta::assert_snapshot!(shown);
}

#[test]
fn a_bound_of_steps_as_json() {
    let asked = [
        "clock", "--agents", "restore", "--bound", "9", "--format", "json",
    ];
    insta::assert_snapshot!(check(folder().path(), &asked));
}

#[test]
fn json_is_asked_for_as_of_other_verbs() {
    let asked = ["clock", "--agents", "restore", "--bound", "9", "--json"];
    insta::assert_snapshot!("a_bound_of_steps_as_json", check(folder().path(), &asked));
}

#[test]
fn a_failure_as_json() {
    let asked = [
        "clock",
        "--variant",
        "exits-not-awaited",
        "--format",
        "json",
    ];
    insta::assert_snapshot!(check(folder().path(), &asked));
}

#[test]
fn a_list_and_a_replay_as_json() {
    let folder = folder();
    let listed = check(folder.path(), &["clock", "--list", "--json"]);
    insta::assert_snapshot!("list_as_json", listed);
    let asked = [
        "clock",
        "--variant",
        "exits-not-awaited",
        "--json",
        "--keep-in",
        ".",
    ];
    let found = check(folder.path(), &asked);
    let file = "check-clock-exits-not-awaited-restore-no-time-travel.replay";
    assert!(found.contains(file), "{found}");
    let replayed = check(folder.path(), &["--replay", file, "--json"]);
    insta::assert_snapshot!("replay_as_json", replayed);
}
