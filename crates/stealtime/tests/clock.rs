//! `stealtime clock` as a user runs it; without a device unless there is one.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common;

fn clock(args: &[&str]) -> Output {
    let mut command = common::stealtime(&["clock"]);
    command.args(args).output().unwrap()
}

#[test]
fn a_drill_without_a_device_keeps_every_promise() {
    let args = [
        "drill", "--device", "fake", "--times", "200", "--load", "0", "--json",
    ];
    let output = clock(&args);
    assert_eq!(output.status.code(), Some(0));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (value, offset) = (&report["methods"][0], &report["methods"][1]);
    assert_eq!(
        (&value["method"], &offset["method"]),
        (&"value".into(), &"offset".into())
    );
    assert_eq!(offset["beyond_bound"], 0);
    assert!(offset["tsc"]["max_abs"].as_u64().unwrap() <= 2);
    assert!(value["tsc"]["max_abs"].as_u64().unwrap() > 100_000);
}

/// Compares with `tests/snapshots/NAME`; `STEALTIME_BLESS=1` writes it instead.
fn snapshot(name: &str, text: &str) {
    let long = text.lines().find(|line| line.chars().count() > 100);
    assert_eq!(long, None, "wider than 100 columns");
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/snapshots")
        .join(name);
    if std::env::var_os("STEALTIME_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(text == expected, "{}: is now\n{text}", path.display());
}

fn stdout(args: &[&str], status: i32) -> String {
    let output = clock(args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// The only numbers in it that are not of the seed are of this machine's speed.
#[test]
fn the_drill_s_table_is_as_it_was() {
    let args = "drill --device fake --times 300 --load 0 --seed 7";
    let table = stdout(&args.split(' ').collect::<Vec<_>>(), 0);
    let steady = table.lines().map(|line| match line.contains(" took, us") {
        true => format!("{}\n", line.split(':').next().unwrap_or_default()),
        false => format!("{line}\n"),
    });
    snapshot("clock-drill-fake.txt", &steady.collect::<String>());
}

#[test]
fn help_is_as_it_was() {
    for verb in [
        "doctor", "drill", "save", "restore", "show", "inspect", "facts", "rehearse",
    ] {
        let help = stdout(&[verb, "--help"], 0);
        snapshot(&format!("clock-{verb}-help.txt"), &help);
    }
}

const STATES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../fuzz/corpus/fuzz_clock_state"
);

/// What each bad state is answered with: one line each, the reason and what to do.
#[test]
fn each_bad_state_is_answered_as_it_was() {
    let state = |name: &str| std::fs::read(format!("{STATES}/{name}")).unwrap();
    let (json, binary) = (state("x86-json"), state("x86-binary"));
    let text = String::from_utf8(json.clone()).unwrap();
    let swap = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1).into_bytes()
    };
    let mut flipped = binary.clone();
    flipped[40] ^= 1;
    let dir = tempfile::tempdir().unwrap();
    let mut answers = String::new();
    for (what, contents) in [
        ("nothing", Vec::new()),
        ("something else", b"hello".to_vec()),
        ("another version", swap("\"version\": 1", "\"version\": 2")),
        (
            "another version, binary",
            [b"STGC\x02\x00", &binary[6..]].concat(),
        ),
        ("another architecture", state("arm64-json")),
        ("an unknown architecture", swap("\"x86\"", "\"riscv\"")),
        (
            "an unknown architecture, binary",
            [b"STGC\x01\x00\x09", &binary[7..]].concat(),
        ),
        ("truncated", json[..json.len() / 2].to_vec()),
        ("truncated, binary", binary[..60].to_vec()),
        ("longer, binary", [&binary[..], b"!"].concat()),
        ("one bit flipped, binary", flipped),
        (
            "a forged frequency",
            swap("\"tsc_khz\": 2", "\"tsc_khz\": 4294967295, \"x\": 2"),
        ),
        (
            "no frequency",
            swap("\"host_tsc_khz\": 2596120", "\"host_tsc_khz\": 0"),
        ),
        (
            "no vCPUs",
            (text.split("\"vcpus\"").next().unwrap().to_owned() + "\"vcpus\": []}}").into(),
        ),
    ] {
        let file = dir.path().join("state");
        std::fs::write(&file, contents).unwrap();
        let output = clock(&["restore", file.to_str().unwrap()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{what}: {error}");
        assert!(output.stdout.is_empty(), "{what}");
        let error = error.replace(dir.path().to_str().unwrap(), "DIR");
        answers.push_str(&wrap(&format!("{what}: {error}")));
    }
    snapshot("clock-restore-errors.txt", &answers);
}

/// For the snapshot only: errors are one line each.
fn wrap(line: &str) -> String {
    let mut wrapped = String::new();
    let mut column = 0;
    for word in line.split_whitespace() {
        if column + word.len() > 95 {
            wrapped.push_str("\n   ");
            column = 3;
        }
        wrapped.push_str(if column == 0 { "" } else { " " });
        wrapped.push_str(word);
        column += word.len() + 1;
    }
    wrapped + "\n"
}

/// Where there is no device, every verb that needs it says so, with status 2.
#[test]
fn without_permission_each_verb_says_what_to_do() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    let opened = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm");
    if opened.is_err() {
        println!("skipped: /dev/kvm is not there to be refused");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("stealtime");
    std::fs::copy(env!("CARGO_BIN_EXE_stealtime"), &program).unwrap();
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), all).unwrap();
    for args in [&["doctor"][..], &["save", "-"], &["drill", "--times", "1"]] {
        let mut command = Command::new(&program);
        command.arg("clock").args(args).uid(65534).gid(65534);
        let Ok(output) = command.output() else {
            println!("skipped: only root can change to another user");
            return;
        };
        let error = String::from_utf8(output.stderr).unwrap();
        let expected = "stealtime: no permission for /dev/kvm: join group kvm, or run as root\n";
        assert_eq!((output.status.code(), error.as_str()), (Some(2), expected));
    }
}

/// With a device: a state saved is restored, in either form, and both have JSON.
#[test]
fn what_is_saved_is_restored_and_shown_within_100_columns() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    let path = file.to_str().unwrap();
    let first = clock(&["save", path, "--json"]);
    if first.status.code() == Some(2) {
        println!("skipped: {}", String::from_utf8_lossy(&first.stderr));
        return;
    }
    let written: serde_json::Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(
        (&written["vcpus"], &written["form"]),
        (&2.into(), &"json".into())
    );
    let narrow = |text: &str| assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
    for form in ["json", "binary"] {
        narrow(&stdout(&["save", path, "--vcpus", "8", "--form", form], 0));
        let table = stdout(&["restore", path], 0);
        assert!(table.contains("vCPUs 0 to 7: TSC offset"), "{table}");
        narrow(&table);
        let restored = stdout(&["restore", path, "--format", "json"], 0);
        let restored: serde_json::Value = serde_json::from_str(&restored).unwrap();
        assert_eq!(restored["seen"]["clock_back_ns"], 0);
        assert_eq!(
            restored["explanation"]["vcpus"].as_array().unwrap().len(),
            8
        );
    }
    // Exit status 1 where restores cannot be exact: shown all the same.
    let doctor = clock(&["doctor", "--no-bench"]);
    narrow(&String::from_utf8(doctor.stdout).unwrap());
    let doctor = clock(&["doctor", "--no-bench", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let exact = found["exact"].as_bool().unwrap();
    assert_eq!(doctor.status.code(), Some(i32::from(!exact)));
}

#[test]
fn bad_states_and_uses_end_with_status_2_and_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    let path = file.to_str().unwrap();
    for (contents, reason) in [
        (&b"STGC\x01\x00\x01\x01"[..], "truncated"),
        (b"{}", "missing field `version`"),
        (b"{\"version\": 9}", "version 9"),
        (b"hello", "not a saved clock state"),
    ] {
        std::fs::write(&file, contents).unwrap();
        let output = clock(&["restore", path]);
        assert_eq!(output.status.code(), Some(2));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            message.contains(reason) && message.contains(path),
            "{message}"
        );
    }
    for args in [
        &["restore", path, "--policy", "at-most"][..],
        &["restore", path, "--policy", "stopped", "--limit", "1"],
        &["drill", "--vcpus", "3-2"],
        &["restore", "/nowhere"],
    ] {
        assert_eq!(clock(args).status.code(), Some(2), "{args:?}");
    }
}

/// firecracker 6200: more than a second lies between the vCPUs' writes. By value they come apart, and the
/// guest sees time go back; by offset nothing of the kind.
#[test]
fn a_delay_between_the_vcpus_writes_shows_by_value_only() {
    let args = "drill --device fake --times 20 --load 0 --vcpus 2-4 --between 1200000 --json";
    let shown = stdout(&args.split(' ').collect::<Vec<_>>(), 0);
    let report: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let (value, offset) = (&report["methods"][0], &report["methods"][1]);
    assert!(value["between_vcpus"]["max_abs"].as_u64().unwrap() >= 1_200_000_000);
    assert!(value["guest_tsc_back"].as_u64().unwrap() > 1_000_000_000);
    assert_eq!(offset["between_vcpus"]["max_abs"], 0);
    assert_eq!(offset["guest_tsc_back"], 0);
    assert_eq!(
        (&report["partial"], &report["done"]),
        (&false.into(), &20.into())
    );
}

/// Ctrl-C: what was measured is shown, and marked.
#[test]
fn a_stopped_drill_shows_what_it_has_marked_partial() {
    let drill = |format: &str| {
        let args = format!("clock drill --device fake --times 1000000 --load 0 --format {format}");
        let child = Command::new(env!("CARGO_BIN_EXE_stealtime"))
            .args(args.split(' '))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        let interrupted = Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status();
        assert!(interrupted.unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130));
        String::from_utf8(output.stdout).unwrap()
    };
    let report: serde_json::Value = serde_json::from_str(&drill("json")).unwrap();
    let done = report["done"].as_u64().unwrap();
    assert!(0 < done && done < 1_000_000, "{done}");
    assert_eq!(report["partial"], true);
    assert_eq!(report["methods"][1]["kvmclock"]["count"], done);
    let table = drill("table");
    assert!(table.contains("PARTIAL, stopped after "), "{table}");
    assert!(table.contains("of 1000000 drills"), "{table}");
}

/// Standard input has a name, and no number is without a limit.
#[test]
fn inputs_are_named_and_numbers_limited() {
    let mut restore = Command::new(env!("CARGO_BIN_EXE_stealtime"))
        .args(["clock", "restore", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    restore.stdin.take().unwrap().write_all(b"hello").unwrap();
    let output = restore.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        error.contains("standard input: not a saved clock state"),
        "{error}"
    );
    for (option, most) in [
        ("--rounds", "1000000"),
        ("--times", "1000000"),
        ("--between", "10000000"),
        ("--delay", "10000000"),
        ("--load", "1024"),
    ] {
        let output = clock(&["drill", option, "4000000000"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(&format!("..={most}")), "{option}: {error}");
    }
}

/// Compares each block of a page that begins with `$ stealtime clock` with what the command prints.
/// `STEALTIME_BLESS=1` writes the page instead.
fn quoted(page: &str, file: impl Fn(&str) -> String) {
    const BLOCK: &str = "```text\n$ stealtime clock ";
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(page);
    let before = std::fs::read_to_string(&path).unwrap();
    let mut parts = before.split(BLOCK);
    let mut now = parts.next().unwrap().to_owned();
    let mut blocks = 0;
    for part in parts {
        let (block, rest) = part.split_once("```").unwrap();
        let command = block.lines().next().unwrap();
        let arguments: Vec<String> = command.split(' ').map(&file).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let printed = stdout(&arguments, 0);
        let long = printed.lines().find(|line| line.chars().count() > 100);
        assert_eq!(long, None, "wider than 100 columns");
        now.push_str(&format!("{BLOCK}{command}\n{printed}```{rest}"));
        blocks += 1;
    }
    assert!(blocks > 1, "{page}");
    if std::env::var_os("STEALTIME_BLESS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    for (line, printed) in page.lines().zip(now.lines()) {
        assert_eq!(line, printed, "{}", path.display());
    }
    assert_eq!(page.len(), now.len(), "{}", path.display());
}

#[test]
fn reported_failures_are_quoted_as_they_are_shown() {
    quoted("clock-failures.md", str::to_owned);
    let listed = stdout(&["show", "--list", "--json"], 0);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let page = include_str!("../../../docs/clock-failures.md");
    for report in listed.as_array().unwrap() {
        let name = report["names"][0].as_str().unwrap();
        assert!(
            page.contains(&format!("$ stealtime clock show {name}\n")),
            "{name}"
        );
        let shown = stdout(&["show", name, "--format", "json"], 0);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert!(
            !shown["failing"]["seen"].as_array().unwrap().is_empty(),
            "{name}"
        );
    }
}

#[test]
fn snapshots_are_inspected_and_rehearsed_as_quoted() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("migration.bin"), stream(0)).unwrap();
    let page = include_str!("../../../docs/clock-snapshots.md");
    let facts = page.split_once("```json\n").unwrap().1;
    let facts = facts.split_once("```").unwrap().0;
    std::fs::write(dir.path().join("host-b.json"), facts).unwrap();
    quoted("clock-snapshots.md", |argument| {
        let file = dir.path().join(argument);
        match argument.contains('.') {
            true => file.to_str().unwrap().to_owned(),
            false => argument.to_owned(),
        }
    });
}

#[test]
fn what_is_no_snapshot_or_no_host_ends_with_status_2_and_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let refused = |args: &[&str], reason: &str| {
        let output = clock(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(
            error.contains(reason) && output.stdout.is_empty(),
            "{args:?}: {error}"
        );
    };
    let (text, newer) = (file("text", "hello"), file("newer", "{\"version\": 3}"));
    let state = format!("{STATES}/x86-json");
    refused(&["inspect", &text], "this is no snapshot");
    refused(
        &["inspect", &newer],
        "made by version 3, this library reads up to version 1",
    );
    refused(&["inspect", "no such file"], "no such file");
    refused(
        &["rehearse", &state, "--host", &newer],
        "facts made by version 3",
    );
    refused(&["rehearse", &state, "--host", &text], "no facts of a host");
    refused(&["show", "62"], "no report");
    refused(&["show"], "REPORT");
    // A host that cannot take the guest: refused with every policy, shown as such.
    let facts = include_str!("../../../docs/clock-snapshots.md");
    let facts = facts
        .split_once("```json\n")
        .unwrap()
        .1
        .split_once("```")
        .unwrap()
        .0;
    let slow = file(
        "slow",
        &facts.replace("\"has_scaling\": true", "\"has_scaling\": false"),
    );
    let shown = stdout(&["rehearse", &state, "--host", &slow], 1);
    assert_eq!(shown.matches("REFUSED: ").count(), 3, "{shown}");
}

/// A stream of QEMU as a file, with as much memory in it as this.
fn stream(memory: usize) -> Vec<u8> {
    let data = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../guest-clock/tests/data/qemu-11.1.3-kvm-devices.bin.zst"
    );
    let stream = zstd::decode_all(std::fs::File::open(data).unwrap()).unwrap();
    let (head, rest) = stream.split_at(8);
    [head, &vec![0; memory], rest].concat()
}

/// A pipe cannot be gone back in, and a stream of QEMU has the guest's memory ahead of its clocks.
#[test]
fn a_snapshot_in_a_pipe_is_read_as_a_file_is() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("migration.bin");
    std::fs::write(&file, stream(0)).unwrap();
    let expected = stdout(&["inspect", file.to_str().unwrap()], 0);
    for (input, memory) in [("/dev/stdin", 0), ("-", 0), ("-", 40 << 20)] {
        let mut inspect = Command::new(env!("CARGO_BIN_EXE_stealtime"))
            .args(["clock", "inspect", input])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // What is not read is seen in the output.
        let _ = inspect.stdin.take().unwrap().write_all(&stream(memory));
        let output = inspect.wait_with_output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed, expected, "{input}, {memory} bytes of memory");
    }
}

/// A user of the command does not know the library's names, in a table or in JSON.
#[test]
fn rehearsals_name_the_command_s_options() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, contents: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, contents).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let page = include_str!("../../../docs/clock-snapshots.md");
    let facts = page.split_once("```json\n").unwrap().1;
    let facts = file("host.json", facts.split_once("```").unwrap().0.as_bytes());
    let migration = file("migration.bin", &stream(0));
    let scaled = format!("{STATES}/x86-scaled");
    let scaled = [scaled.as_str(), "--accept-inexact", "--unequal", "highest"];
    let by_value = [migration.as_str(), "--taken", "5", "--read-within", "5"];
    for (snapshot, status, expected) in [
        (&scaled[..], 0, "its kvmclock ran ahead"),
        (&by_value, 1, "or accept the bound with --accept-inexact"),
    ] {
        let arguments = [&["rehearse"], snapshot, &["--host", &facts, "--json"]].concat();
        let shown = stdout(&arguments, status);
        assert!(shown.contains(expected) && !shown.contains("::"), "{shown}");
        let table = stdout(&arguments[..arguments.len() - 1], status);
        assert!(!table.contains("::"), "{table}");
    }
    for (option, value) in [
        ("--taken", "9223372036854775808"),
        ("--pause", "9223372036854775808"),
        ("--read-within", "9223372036854775808"),
        ("--guest-khz", "0"),
        ("--source-khz", "2147483647"),
    ] {
        let output = clock(&["rehearse", &migration, "--host", &facts, option, value]);
        let error = String::from_utf8(output.stderr).unwrap();
        let expected = format!("invalid value '{value}' for '{option} ");
        assert!(error.contains(&expected), "{error}");
    }
}
