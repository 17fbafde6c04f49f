//! Hostile recordings by this project's readers and by trace-cmd and perf: what both accept has the same
//! events, by CPU and time. A tool that is missing accepts nothing.
#![no_main]

#[macro_use]
mod target;

use std::process::Command;

/// Times from here on, in nanoseconds, are left out: trace-cmd 3.1.6 shows only some of the events there.
const LATEST: u64 = 1 << 59;

/// CPU and time in nanoseconds of each event, sorted.
type Events = Vec<(u64, u64)>;

target!(read);

fn read(data: &[u8]) {
    let (form, data) = data.split_first().unwrap_or((&0, &[]));
    let (bytes, command): (_, &[&str]) = match form & 1 {
        0 => (
            stealtime_fuzz::trace_dat::file(data),
            &["trace-cmd", "report", "-t", "-i"],
        ),
        _ => (
            stealtime_fuzz::perf_data::file(data),
            &["perf", "script", "-f", "--ns", "-F", "cpu,time,event", "-i"],
        ),
    };
    let Some(ours) = ours(&bytes) else {
        return;
    };
    if let Some(theirs) = theirs(&bytes, command) {
        assert_eq!(ours, theirs, "{}", command[0]);
    }
}

/// What this project reads, if it finds no damage.
fn ours(bytes: &[u8]) -> Option<Events> {
    let input = Box::new(std::io::Cursor::new(bytes.to_vec()));
    let mut source = stealtime_trace::open_read("fuzz", input, &Default::default()).ok()?;
    let mut events = Vec::new();
    while let Some(event) = source.next_event().ok()? {
        if event.kind.is_host_event() {
            events.push((u64::from(event.cpu.0), event.time_ns));
        }
    }
    events.sort_unstable();
    let info = source.info();
    let has_losses = info.lost.counted > 0 || info.lost.uncounted_gaps > 0;
    let is_early = events.iter().all(|(_, time)| *time < LATEST);
    (!info.is_partial() && !has_losses && is_early).then_some(events)
}

/// What a tool prints of the file, if it succeeds without a warning.
fn theirs(bytes: &[u8], command: &[&str]) -> Option<Events> {
    let path = std::env::temp_dir().join(format!("differential-{}", std::process::id()));
    std::fs::write(&path, bytes).expect("room for a file");
    let output = Command::new("timeout")
        .arg("5")
        .args(command)
        .arg(&path)
        .output()
        .ok()?;
    if !output.status.success() || !output.stderr.is_empty() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut events: Events = text.lines().filter_map(event).collect();
    events.sort_unstable();
    Some(events)
}

/// `… [CPU] … SECONDS.NANOSECONDS: …`
fn event(line: &str) -> Option<(u64, u64)> {
    let (cpu, rest) = line.split_once('[')?.1.split_once(']')?;
    let (time, _) = rest.split_once(':')?;
    let (seconds, ns) = time.split_whitespace().last()?.split_once('.')?;
    let time = seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?;
    Some((cpu.parse().ok()?, time.checked_add(ns.parse().ok()?)?))
}
