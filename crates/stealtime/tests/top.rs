//! `stealtime top` and `stealtime metrics` of recordings: what they write, and what they refuse.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{run, stealtime};

const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/data/live/quotas/trace.dat.zst"
);

#[test]
fn samples_are_text_or_lines_of_json() {
    let top = ["top", "--batch", "--replay", RECORDING, "--for", "2s"];
    let (status, out, error) = run(&mut stealtime(&top));
    assert_eq!((status, error.as_str()), (Some(0), ""));
    assert_eq!(out.matches("CPUs: vCPU threads").count(), 2, "{out}");
    insta::assert_snapshot!("top_batch", out.split_once("\n\n").expect("two samples").0);

    let json = ["top", "--replay", RECORDING, "--json", "--filter", "WEB"];
    let (status, out, error) = run(&mut stealtime(&json));
    assert_eq!((status, error.as_str()), (Some(0), ""));
    let lines: Result<Vec<serde_json::Value>, _> = out.lines().map(serde_json::from_str).collect();
    let lines = lines.expect("JSON");
    assert!(lines.len() >= 5, "{}", lines.len());
    for line in &lines {
        assert_eq!(line["vms"].as_array().map(Vec::len), Some(1));
        assert_eq!(line["vms"][0]["vm"], "web");
        assert_eq!(line["partial"], false);
        assert!(line["collector"]["cpu_ns"].is_null());
    }
}

/// The command on a terminal of its own, with that terminal's other side.
fn on_terminal(command: &mut std::process::Command) -> (std::process::Child, std::fs::File) {
    use rustix::pty;
    // A child that had this side, too, would keep the terminal.
    let flags = pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY | pty::OpenptFlags::CLOEXEC;
    let master = pty::openpt(flags).expect("a terminal");
    pty::grantpt(&master).expect("granted");
    pty::unlockpt(&master).expect("unlocked");
    let name = pty::ptsname(&master, Vec::new()).expect("its name");
    let path = std::path::Path::new(name.to_str().expect("a path"));
    let open = || std::fs::File::options().read(true).write(true).open(path);
    let slave = open().expect("the other side");
    let size = rustix::termios::Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&slave, size).expect("a size");
    let child = command
        .stdin(open().expect("keys"))
        .stdout(open().expect("a screen"))
        .stderr(slave)
        .spawn()
        .expect("started");
    // The command has the terminal's files as long as it lives.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    (child, std::fs::File::from(master))
}

/// A window that is closed, or a connection that breaks.
#[test]
fn the_screen_ends_with_its_terminal() {
    let mut command = stealtime(&["top", "--replay", RECORDING]);
    let (mut top, mut screen) = on_terminal(command.env("TERM", "xterm"));
    let mut shown = Vec::new();
    while !String::from_utf8_lossy(&shown).contains("web") {
        let mut part = [0; 4096];
        let len = screen.read(&mut part).expect("a screen");
        shown.extend_from_slice(&part[..len]);
    }
    drop(screen);
    let status = top.wait().expect("it ends");
    assert_eq!(status.code(), Some(0));
}

/// Emacs's shell shows escapes as they are.
#[test]
fn a_dumb_terminal_gets_tables() {
    let mut command = stealtime(&["top", "--replay", RECORDING, "--for", "1s"]);
    let (mut top, mut screen) = on_terminal(command.env("TERM", "dumb"));
    let mut shown = Vec::new();
    // The end of a terminal is an error.
    let _ = screen.read_to_end(&mut shown);
    assert_eq!(top.wait().expect("it ends").code(), Some(0));
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("longest wait"), "{shown}");
    assert!(!shown.contains('\u{1b}'), "{shown}");
}

/// What `scx_stealtime` publishes, with a name that a terminal must not see as it is.
const SCHEDULER: &str = r#"{"version":1,"pid":7,"all_tasks":true,"yields":"receiver\u001b[31m",
    "counts":{"yield_directed":30,"yield_receiver":20,"yield_nominee":4,"refused_guard":6,
    "lent_ns":1500000000,"yield_to_run_ns":48000},"yield_to_run_us":[0,0,3,20,1],
    "groups":[{"cgroup_id":8,"weight":100,"runtime_ns":2000000000},
    {"cgroup_id":9,"weight":300,"runtime_ns":7},{"cgroup_id":10,"weight":300,"runtime_ns":6000000000}],
    "vcpus":2,"group_paths":["/vms/\"web\"","","/vms/db"]}"#;

#[test]
fn a_loaded_scheduler_is_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sched.json");
    std::fs::write(&file, SCHEDULER).expect("written");
    let file = file.to_string_lossy();
    let first = ["--replay", RECORDING, "--for", "1s", "--scheduler", &file];
    let (status, out, _) = run(&mut stealtime(&[&["top", "--batch"][..], &first].concat()));
    assert_eq!(status, Some(0));
    // Nothing since the start of `top`.
    assert!(
        out.contains("receiver\\u{1b}[31m: 0 yields, 0 to the"),
        "{out}"
    );
    let (_, out, _) = run(&mut stealtime(&[&["top", "--json"][..], &first].concat()));
    let line: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(line["scheduler"]["counts"]["yield_receiver"], 20);
    // Nothing has run since.
    assert_eq!(line["scheduler"]["shares"], serde_json::json!([]));
    let last = [
        "metrics",
        "--textfile",
        "-",
        "--replay",
        RECORDING,
        "--scheduler",
        &file,
    ];
    let (status, out, _) = run(&mut stealtime(&last));
    assert_eq!(status, Some(0));
    for line in [
        "stealtime_sched_yields_total{outcome=\"served\",reason=\"receiver\"} 20",
        "stealtime_sched_yields_total{outcome=\"refused\",reason=\"guard\"} 6",
        "stealtime_sched_lent_seconds_total 1.5",
        "stealtime_sched_yield_to_run_seconds_bucket{le=\"8e-06\"} 23",
        "stealtime_sched_yield_to_run_seconds_count 24",
        "stealtime_sched_group_seconds_total{cgroup=\"/vms/\\\"web\\\"\"} 2",
        "stealtime_sched_unit_cpu_ratio{cgroup=\"/vms/db\"} 0.75",
        "stealtime_sched_unit_due_ratio{cgroup=\"/vms/\\\"web\\\"\"} 0.25",
    ] {
        assert!(
            out.lines().any(|found| found.starts_with(line)),
            "{line}\n{out}"
        );
    }
    assert_eq!(
        out.matches("stealtime_sched_group_weight{").count(),
        2,
        "{out}"
    );
}

#[test]
fn a_file_has_the_metrics_of_a_recording() {
    let metrics = [
        "metrics",
        "--replay",
        RECORDING,
        "--textfile",
        "-",
        "--max-vms",
        "2",
    ];
    let (status, out, error) = run(&mut stealtime(&metrics));
    assert_eq!((status, error.as_str()), (Some(0), ""));
    for line in [
        "# TYPE stealtime_vcpu_seconds_total counter",
        "# TYPE stealtime_wakeup_latency_seconds histogram",
        "stealtime_stall_seconds_bucket{vm=\"db\",le=\"0.01\"} ",
        "stealtime_ready_seconds_total{vm=\"(others)\",cause=\"throttled\"} ",
        "stealtime_collector_lost_events_total 0",
        "stealtime_collector_partial_samples_total 0",
    ] {
        assert!(
            out.lines().any(|found| found.starts_with(line)),
            "{line}\n{out}"
        );
    }
    assert!(!out.contains("stealtime_collector_cpu_seconds"), "{out}");
}

#[test]
fn a_page_is_served_while_another_scraper_hangs() {
    let metrics = ["metrics", "--replay", RECORDING, "--listen", "127.0.0.1:0"];
    let mut child = stealtime(&metrics)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let line = lines.next().expect("a line").expect("UTF-8");
    let address = line.strip_prefix("metrics: http://").expect(&line);
    let address = address.strip_suffix("/metrics").expect(&line);
    let connect = || TcpStream::connect(address).expect("a connection");
    let mut hanging = connect();
    hanging.write_all(b"GET /met").expect("a part");
    let began = Instant::now();
    let page = || {
        let mut stream = connect();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            .expect("a request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    };
    // The recording is read meanwhile.
    let mut text = page();
    while !text.contains("vm=\"web\"") && began.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(20));
        text = page();
    }
    assert!(
        text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("# EOF\n"),
        "{text}"
    );
    assert!(
        text.contains("stealtime_exits_total{vm=\"web\",reason=\"interrupt\"} "),
        "{text}"
    );
    child.kill().expect("it ends");
    child.wait().expect("it has ended");
}

#[test]
fn what_cannot_be_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    for (arguments, message) in [
        (
            vec!["metrics", "--replay", RECORDING, "--listen", &address],
            "give another port, or port 0 for a free one",
        ),
        (
            vec!["metrics"],
            "<--listen <ADDRESS:PORT>|--textfile <FILE>>",
        ),
        (
            vec!["metrics", "--listen", "localhost:9725"],
            "expected an address and a port: 127.0.0.1:9725",
        ),
        (
            vec!["top", "--interval", "5ms"],
            "an interval is 100ms at least",
        ),
        (vec!["top", "--for", "ten"], "not a length of time"),
        (vec!["top", "--replay", "no-such-file"], "no-such-file"),
    ] {
        let (status, _, error) = run(&mut stealtime(&arguments));
        assert_eq!(status, Some(2), "{arguments:?}");
        assert!(error.contains(message), "{arguments:?}: {error}");
    }
}

#[test]
fn too_little_address_space_for_threads_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().to_str().expect("UTF-8");
    for arguments in [
        vec!["top", "--batch", "--for", "1s"],
        vec!["metrics", "--listen", "127.0.0.1:0", "--for", "1s"],
        vec!["watch", "--when", "stall>20ms", "--for", "1s", "-o", output],
    ] {
        let mut command = std::process::Command::new("sh");
        // 384 MiB, in KiB.
        command.args(["-c", "ulimit -v 393216 && exec \"$0\" \"$@\""]);
        command
            .arg(env!("CARGO_BIN_EXE_stealtime"))
            .args(&arguments);
        let (status, _, error) = run(&mut command);
        assert_eq!(status, Some(2), "{arguments:?}: {error}");
        let message = "address space is limited to 384 MiB, and the threads need ";
        assert!(error.contains(message), "{arguments:?}: {error}");
    }
}
