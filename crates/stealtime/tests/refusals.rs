//! Hosts that do not let `record` do its work: the message, and the host afterwards. Each host is a mount
//! namespace of this one, for which these tests need root.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common;

const TRACEFS: &str = "/sys/kernel/tracing";
/// The status of a shell that cannot make the host.
const CANNOT: i32 = 99;

/// A tracefs with these parts of the real one, in the folder `fake`; `last` changes it.
fn fake(parts: &[&str], last: &str) -> String {
    let mut lines = "mkdir -p fake/events".to_owned();
    for part in parts {
        lines.push_str(&format!(
            " && if [ -d {TRACEFS}/{part} ]; then mkdir -p fake/{part}; else : >fake/{part}; fi \
             && mount --bind {TRACEFS}/{part} fake/{part}"
        ));
    }
    format!("{lines} && {last} && mount --rbind fake {TRACEFS}")
}

/// What a recording reads of tracefs, in addition to single systems of events.
const PARTS: [&str; 6] = [
    "trace_clock",
    "instances",
    "events/header_page",
    "events/header_event",
    "events/ftrace",
    "events/timer",
];

/// Runs a command line in the folder, on a host that `setup` makes; its process is the one that is started.
/// `None`, with the reason on standard output, if this machine cannot make the host.
fn on_host(folder: &Path, setup: &str, command: &str) -> Option<(u32, Output)> {
    if !is_root() {
        println!("skipped: {command}: needs root");
        return None;
    }
    let lines = format!("{{ {setup} ; }} || exit {CANNOT}; exec {command}");
    let child = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            &lines,
            env!("CARGO_BIN_EXE_stealtime"),
        ])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(child) = child else {
        println!("skipped: {command}: unshare is not installed");
        return None;
    };
    let id = child.id();
    let output = child.wait_with_output().expect("its output");
    let error = String::from_utf8_lossy(&output.stderr);
    let is_made = output.status.code() != Some(CANNOT)
        && !["unshare:", "setpriv:", "sh:"]
            .iter()
            .any(|tool| error.starts_with(tool));
    if !is_made {
        println!("skipped: {command}: {}", error.trim());
    }
    is_made.then_some((id, output))
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Tracing instances of a process.
fn instances(id: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("{TRACEFS}/instances"));
    let entries = entries.into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let own = format!("stealtime-{id}-");
    let is_own = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with(&own)
    };
    paths.filter(is_own).collect()
}

/// A folder that every user may write to. The one of `TMPDIR` may be closed to others.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(folder.path(), open).expect("its rights");
    folder
}

const RECORD: &str = "\"$0\" record -o made.dat --seconds 0.1";
/// As a user without capabilities.
const UNPRIVILEGED: &str =
    "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all";

/// A host that refuses, and what is said then.
struct Refusal<'a> {
    setup: String,
    command: String,
    message: &'a str,
}

impl Refusal<'_> {
    fn check(&self) {
        let folder = open_folder();
        let Some((id, output)) = on_host(folder.path(), &self.setup, &self.command) else {
            return;
        };
        let error = String::from_utf8_lossy(&output.stderr);
        // Other tests kill recorders meanwhile, and each recorder says what it removes of those or cannot.
        let is_of_others = |line: &str| {
            line.starts_with("removed a tracing instance of a recorder")
                || line.contains(" is left of a recorder that was killed and is in use")
        };
        let mut lines = error.trim_end().lines();
        let first = lines.find(|line| !is_of_others(line));
        let error: Vec<&str> = first.into_iter().chain(lines).collect();
        let error = error
            .join("\n")
            .replace(&format!("stealtime-{id}-"), "stealtime-PID-");
        let error = masked(&masked(&error, "stealtime-PID-", ':'), "(it is ", ')');
        assert_eq!(error, self.message, "{}", self.command);
        assert_eq!(output.status.code(), Some(2), "{}", self.command);
        assert!(output.stdout.is_empty(), "{}", self.command);
        assert_eq!(instances(id), [] as [PathBuf; 0], "{}", self.command);
        assert!(!folder.path().join("made.dat").exists(), "{}", self.command);
    }
}

/// The text with `N` between a word and the next end: numbers that differ between hosts.
fn masked(text: &str, word: &str, end: char) -> String {
    match text.split_once(word) {
        Some((before, rest)) => {
            let rest = rest.find(end).map_or("", |place| &rest[place..]);
            format!("{before}{word}N{rest}")
        }
        None => text.to_owned(),
    }
}

/// Users without a right.
#[test]
fn refusals_of_rights_are_one_sentence_and_leave_nothing() {
    let nothing = "true".to_owned();
    let refusals = [
        Refusal {
            setup: nothing.clone(),
            command: format!("{UNPRIVILEGED} {RECORD}"),
            message: "stealtime: /sys/kernel/tracing: permission denied: recording needs root: `sudo \
                      stealtime record`",
        },
        Refusal {
            setup: nothing.clone(),
            command: format!("{UNPRIVILEGED} {RECORD} --perf"),
            message: "stealtime: /sys/kernel/tracing: permission denied: recording needs root: `sudo \
                      stealtime record`; perf_event_open takes tracepoints by their ids, and only \
                      tracefs has these",
        },
        Refusal {
            setup: nothing.clone(),
            command: format!("{UNPRIVILEGED} unshare --map-root-user {RECORD}"),
            message: "stealtime: /sys/kernel/tracing: the kernel refuses to open it, although the user \
                      is root; a container or kernel lockdown may forbid it: record on the host itself; \
                      `stealtime record --perf` may still be allowed",
        },
        Refusal {
            setup: "mkdir -m 700 kept".to_owned(),
            command: format!(
                "{UNPRIVILEGED} \"$0\" try --set kvm.halt_poll_ns=0 --yes --run-folder kept"
            ),
            message: "stealtime: try: kept: it is not of this user: turning knobs needs root",
        },
        Refusal {
            setup: nothing,
            command: format!("setpriv --bounding-set=-perfmon,-sys_admin {RECORD} --perf"),
            message: "stealtime: perf_event_open refuses sched:sched_switch: Permission denied (os \
                      error 13); it needs root, CAP_PERFMON or kernel.perf_event_paranoid below 0 (it \
                      is N)",
        },
    ];
    refusals.iter().for_each(Refusal::check);
}

/// Hosts without a part.
#[test]
fn refusals_of_hosts_are_one_sentence_and_leave_nothing() {
    // Not every host has debugfs.
    let hidden = format!("umount -l /sys/kernel/debug 2>/dev/null; umount -l {TRACEFS}");
    let read_only = format!("mount -o remount,bind,ro {TRACEFS}");
    // EPERM for root, as of kernel lockdown.
    let refusing =
        "mkdir fake/instances && mount -t tmpfs none fake/instances && chattr +i fake/instances";
    let refusing = fake(&["trace_clock", "events/sched"], refusing);
    let refusals = [
        Refusal {
            setup: hidden.clone(),
            command: RECORD.to_owned(),
            message: "stealtime: the tracing file system is not mounted: `mount -t tracefs nodev \
                      /sys/kernel/tracing`, then try again",
        },
        Refusal {
            setup: hidden,
            command: format!("{RECORD} --perf"),
            message: "stealtime: the tracing file system is not mounted: `mount -t tracefs nodev \
                      /sys/kernel/tracing`, then try again; perf_event_open takes tracepoints by \
                      their ids, and only tracefs has these",
        },
        Refusal {
            setup: read_only,
            command: RECORD.to_owned(),
            message: "stealtime: /sys/kernel/tracing/instances/stealtime-PID-N: tracefs is mounted \
                      read-only here, as in a container: record on the host itself, or by `stealtime \
                      record --perf`, which only reads it",
        },
        Refusal {
            setup: refusing,
            command: RECORD.to_owned(),
            message: "stealtime: /sys/kernel/tracing/instances/stealtime-PID-N: the kernel refuses to \
                      make a tracing instance, although the user is root; a container or kernel \
                      lockdown may forbid it: record on the host itself; `stealtime record --perf` may \
                      still be allowed",
        },
        Refusal {
            setup: fake(&PARTS, "true"),
            command: RECORD.to_owned(),
            message: "stealtime: the kernel has no event sched:sched_switch, without which no question \
                      can be answered: boot a kernel with CONFIG_EVENT_TRACING, as distributions have",
        },
        Refusal {
            setup: fake(&["trace_clock", "events/sched"], "true"),
            command: RECORD.to_owned(),
            message: "stealtime: /sys/kernel/tracing/instances: the kernel has no tracing instances; \
                      use `stealtime record --print`",
        },
        Refusal {
            setup: "mkdir small && mount -t tmpfs -o size=1m none small".to_owned(),
            command: RECORD.replace("made.dat", "small/made.dat"),
            message: "stealtime: small/made.dat: no storage space: free some space, or record to \
                      another disk with -o",
        },
    ];
    refusals.iter().for_each(Refusal::check);
}

/// The module kvm is not loaded: the recording is whole, and names the answers that are lost.
#[test]
fn a_host_without_kvm_is_recorded() {
    let folder = open_folder();
    let setup = fake(&[&PARTS[..], &["events/sched"]].concat(), "true");
    let Some((id, output)) = on_host(folder.path(), &setup, &format!("{RECORD} --json")) else {
        return;
    };
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let missing = summary["missing"].as_array().expect("rows");
    let entries = missing
        .iter()
        .find(|row| row["events"][0] == "kvm:kvm_entry");
    assert_eq!(entries.expect("a row")["reason"], "no_kvm");
    assert!(
        missing.iter().any(|row| row["reason"] == "absent"),
        "{missing:?}"
    );
    assert!(instances(id).is_empty());
    let mut analyze = common::stealtime(&["analyze", "made.dat", "--json"]);
    let (status, _, error) = common::run(analyze.current_dir(folder.path()));
    assert_eq!(status, Some(0), "{error}");
}

/// A name of a task and of the file with quotes, brackets, a line break and a terminal's escapes.
#[test]
fn hostile_names_are_recorded_and_shown_harmlessly() {
    const NAME: &str = "q\"'}\n9 x\u{1b}[2J";
    let folder = open_folder();
    let sleep = folder.path().join(NAME);
    let found = ["/bin/sleep", "/usr/bin/sleep"]
        .iter()
        .find(|path| Path::new(path).exists());
    let Some(found) = found else {
        println!("skipped: no sleep");
        return;
    };
    fs::copy(found, &sleep).expect("a program");
    // Not to the recorder's pipes: the test waits until these are closed.
    let wake_often = "( n=0; while [ $n -lt 100 ]; do \"./$NAME\" 0.01; n=$((n + 1)); done ) \
                      >/dev/null 2>&1 & ";
    let name = format!("{NAME}.dat");
    let setup = format!(
        "true; export NAME='{}'; {wake_often} true",
        NAME.replace('\'', "'\\''")
    );
    let command = "\"$0\" record -o \"$NAME.dat\" --seconds 0.3";
    let Some((id, output)) = on_host(folder.path(), &setup, command) else {
        return;
    };
    let _ = id;
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(0) {
        println!("skipped: {error}");
        return;
    }
    let is_harmless = |text: &str| text.chars().all(|c| c == '\n' || !c.is_control());
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        is_harmless(&out) && is_harmless(&error),
        "{out:?} {error:?}"
    );
    for arguments in [
        &["analyze", &name, "--key", "all"][..],
        &["snapshot", &name],
    ] {
        let (status, out, error) =
            common::run(common::stealtime(arguments).current_dir(folder.path()));
        assert_eq!(status, Some(0), "{error}");
        assert!(
            is_harmless(&out) && is_harmless(&error),
            "{out:?} {error:?}"
        );
    }
}

/// A process that reads the recorder's instance keeps it; the recording is not lost for that.
#[test]
fn an_instance_that_cannot_be_removed_costs_no_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = common::stealtime(&["record", "-o", "made.dat", "--seconds", "1.5"]);
    let child = command
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.expect("the command starts");
    let held = loop {
        let pipe = instances(child.id())
            .pop()
            .map(|path| path.join("trace_pipe"));
        if let Some(Ok(file)) = pipe.map(fs::File::open) {
            break Some(file);
        }
        if child.try_wait().expect("a child").is_some() {
            break None;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    let id = child.id();
    let output = child.wait_with_output().expect("its output");
    let error = String::from_utf8_lossy(&output.stderr);
    let Some(held) = held else {
        println!("skipped: {error}");
        return;
    };
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(
        error.contains("cannot remove the tracing instance")
            && error.contains("the next recording removes it"),
        "{error}"
    );
    drop(held);
    for arguments in [
        &["analyze", "made.dat", "--key", "vms"][..],
        &["record", "-o", "next.dat", "--seconds", "0.1"],
    ] {
        let (status, _, error) =
            common::run(common::stealtime(arguments).current_dir(folder.path()));
        assert_eq!(status, Some(0), "{error}");
    }
    assert!(instances(id).is_empty());
}

/// A recording takes the place of its file: a device or a pipe stays what it is, and so does a link.
#[test]
fn devices_and_links_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let made = Command::new("mkfifo").arg(path("pipe")).status();
    assert!(made.expect("mkfifo runs").success());
    let pipe = path("pipe").display().to_string();
    let (status, out, error) = common::run(&mut common::stealtime(&["record", "-o", &pipe]));
    assert_eq!((status, out.as_str()), (Some(2), ""));
    let message = "a recording is a file, and this is a device or a pipe: give the name of a file";
    assert_eq!(error, format!("stealtime: {pipe}: {message}\n"));
    assert!(
        path("pipe")
            .symlink_metadata()
            .is_ok_and(|meta| meta.file_type().is_fifo())
    );

    fs::create_dir(path("disk")).expect("a folder");
    fs::write(path("disk/host.json"), "old").expect("a file");
    std::os::unix::fs::symlink("disk/host.json", path("link")).expect("a link");
    let link = path("link").display().to_string();
    let tree = common::host_tree(folder.path(), "plain");
    let mut snapshot = common::stealtime(&["snapshot", "--root", &tree, "-o", &link]);
    let (status, _, error) = common::run(&mut snapshot);
    assert_eq!(status, Some(0), "{error}");
    assert!(path("link").is_symlink());
    let written = fs::read_to_string(path("disk/host.json")).expect("the file");
    assert!(written.starts_with('{'), "{written}");
}
