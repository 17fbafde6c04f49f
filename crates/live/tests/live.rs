//! Recordings of this host, where it has tracefs and lets this user record.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stealtime_events::{Kind, Names, Tid};
use stealtime_live::{
    BpfError, BpfFollower, Ended, Folder, Follower, Keep, Observer, Options, Progress, RecordError,
    Summary, record,
};

/// Stops after some reports, and keeps what is said.
#[derive(Default)]
struct Witness {
    stop_after: Option<u32>,
    reports: u32,
    warnings: Vec<String>,
}

impl Observer for Witness {
    fn is_stopped(&self) -> bool {
        self.stop_after.is_some_and(|count| self.reports >= count)
    }

    fn progress(&mut self, progress: &Progress) {
        self.reports += 1;
        assert!(
            progress.elapsed > Duration::ZERO && progress.bytes > 0,
            "{progress:?}"
        );
    }

    fn warn(&mut self, text: &str) {
        self.warnings.push(text.to_owned());
    }

    fn unfinished(&mut self, _path: Option<&Path>) {}

    fn snapshot(&mut self) -> Option<String> {
        Some("{\"host\":\"this one\"}".into())
    }
}

/// A recording; `None`, and the reason on standard output, where this host cannot be recorded.
fn recorded(options: &Options, witness: &mut Witness) -> Option<Summary> {
    match record(options, witness) {
        Ok(summary) => Some(summary),
        Err(
            error @ (RecordError::NotMounted { .. }
            | RecordError::NoTracing { .. }
            | RecordError::NoRights { .. }
            | RecordError::Refused { .. }
            | RecordError::NoInstances { .. }),
        ) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn options(output: &Path) -> Options {
    Options {
        output: output.to_owned(),
        duration: Some(Duration::from_millis(400)),
        ..Options::default()
    }
}

/// Instances of this process.
fn instances() -> usize {
    let Ok(tracefs) = Folder::tracefs() else {
        return 0;
    };
    let own = format!("stealtime-{}-", std::process::id());
    let entries = std::fs::read_dir(tracefs.path().join("instances"));
    let names = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with(&own))
        .count()
}

/// Events of a file that are none of the reader's own, and the number of switches.
fn counts(path: &Path) -> (u64, u64) {
    let mut source = stealtime_trace::open(path).expect("a recording");
    let (mut events, mut switches) = (0, 0);
    while let Some(event) = source.next_event().expect("a whole file") {
        events += u64::from(event.kind.is_host_event());
        switches += u64::from(matches!(event.kind, Kind::SchedSwitch { .. }));
    }
    let info = source.info();
    assert_eq!(info.snapshot.as_deref(), Some("{\"host\":\"this one\"}"));
    assert!(!info.is_partial(), "{:?}", info.notes);
    (events, switches)
}

/// Lines of `trace-cmd report`; `None` where it is not installed.
fn reported(path: &Path) -> Option<u64> {
    let output = Command::new("trace-cmd")
        .arg("report")
        .arg("-i")
        .arg(path)
        .output()
        .ok()?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8_lossy(&output.stdout);
    // A line of an event has its CPU in brackets.
    Some(text.lines().filter(|line| line.contains(" [0")).count() as u64)
}

#[test]
fn two_recorders_at_once_give_two_whole_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = ["one.dat", "two.dat"].map(|name| folder.path().join(name));
    let summaries: Vec<Option<Summary>> = std::thread::scope(|scope| {
        let runs = paths
            .each_ref()
            .map(|path| scope.spawn(move || recorded(&options(path), &mut Witness::default())));
        runs.map(|run| run.join().expect("no panic")).into()
    });
    for (summary, path) in summaries.iter().zip(&paths) {
        let Some(summary) = summary else { return };
        let (events, switches) = counts(path);
        assert_eq!((summary.ended, summary.lost), (Ended::Time, 0));
        assert!(
            switches > 0 && Some(events) == summary.events,
            "{events} {summary:?}"
        );
        assert_eq!(
            std::fs::metadata(path).expect("a file").len(),
            summary.bytes
        );
        match reported(path) {
            Some(lines) => assert_eq!(lines, events),
            None => println!("skipped: trace-cmd is not installed"),
        }
    }
    // Neither an instance nor a file is left.
    assert_eq!(instances(), 0);
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        2
    );
}

/// Records by perf_event_open, with a thread that ends meanwhile.
#[test]
fn perf_events_give_a_whole_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("perf.data");
    let asked = Options {
        by_perf: true,
        ..options(&path)
    };
    let summary = match record(&asked, &mut Witness::default()) {
        Ok(summary) => summary,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    assert_eq!((summary.ended, summary.lost), (Ended::Time, 0));
    let mut source = stealtime_trace::open(&path).expect("a recording");
    let (mut events, mut switches, mut last) = (0, 0, 0);
    while let Some(event) = source.next_event().expect("a whole file") {
        events += u64::from(event.kind.is_host_event());
        switches += u64::from(matches!(event.kind, Kind::SchedSwitch { .. }));
        assert!(event.time_ns >= last, "time goes back");
        last = event.time_ns;
    }
    assert!(
        switches > 0 && Some(events) == summary.events,
        "{events} {summary:?}"
    );
    let info = source.info();
    assert!(!info.is_partial(), "{:?}", info.notes);
    let report = Command::new("perf")
        .args(["script", "-F", "time,event", "-i"])
        .arg(&path)
        .output();
    match report {
        Ok(report) if report.status.success() => {
            let lines = String::from_utf8_lossy(&report.stdout).lines().count() as u64;
            assert_eq!(lines, events);
        }
        _ => println!("skipped: perf is not installed"),
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        1
    );
}

#[test]
fn a_stop_ends_with_a_whole_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("stopped.dat");
    let mut witness = Witness {
        stop_after: Some(1),
        ..Witness::default()
    };
    let asked = Options {
        duration: Some(Duration::from_secs(600)),
        clock: Some("boot".into()),
        buffer_kb: Some(1024),
        ..options(&path)
    };
    let Some(summary) = recorded(&asked, &mut witness) else {
        return;
    };
    assert_eq!(
        (summary.ended, &*summary.clock, summary.buffer_kb),
        (Ended::Stopped, "boot", 1024)
    );
    assert!(summary.seconds < 60.0 && counts(&path).0 > 0, "{summary:?}");
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let mut witness = Witness::default();
    let output = Path::new("/nowhere/trace.dat");
    match record(&options(output), &mut witness) {
        Err(RecordError::Output { path, .. }) => assert_eq!(path, output),
        Err(error) => println!("skipped: {error}"),
        Ok(summary) => panic!("{summary:?}"),
    }
}

#[test]
fn a_followed_host_gives_its_events_in_order() {
    let started = Follower::start(None, Some(1024), &mut |_| {});
    let Ok(mut follower) = started else {
        println!("skipped: {}", started.err().expect("an error"));
        return;
    };
    let (mut switches, mut tasks, mut last, mut until) = (0, 0, 0, 0);
    let began = std::time::Instant::now();
    while switches < 20 && began.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
        until = follower
            .round(&mut |event, _| {
                assert!(event.time_ns >= last, "{event:?} after {last}");
                last = event.time_ns;
                switches += u32::from(matches!(event.kind, Kind::SchedSwitch { .. }));
                tasks += u32::from(matches!(event.kind, Kind::Task { .. }));
            })
            .expect("rounds");
        assert!(last <= until);
    }
    assert!(switches >= 20 && tasks > 0 && until > 0, "{switches}");
    assert!(follower.info().notes.is_empty(), "{:?}", follower.info());
    follower.stop().expect("it goes");
}

/// Of the threads that are woken only a marked one is given: from the round that gives its name on.
#[test]
fn programs_give_the_events_of_this_host_in_order() {
    let mut follower = match BpfFollower::start(None, |name| name == "marked") {
        Ok(follower) => follower,
        Err(error @ (BpfError::Verifier { .. } | BpfError::Types(_))) => panic!("{error}"),
        Err(error) => return println!("skipped: {error}"),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let marked = move || {
        while !stopped.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let thread = std::thread::Builder::new().name("marked".into());
    let thread = thread.spawn(marked).expect("a thread");
    let (mut latest, mut named, mut kinds) = (0, None, BTreeMap::<&str, u64>::new());
    let mut woken = BTreeSet::new();
    let mut round = || {
        std::thread::sleep(Duration::from_millis(30));
        let mut wakeups = 0;
        let limit = follower.round(&mut |event, names| {
            assert!(event.time_ns >= latest, "{event:?} before {latest}");
            latest = event.time_ns;
            match event.kind {
                Kind::Task { tid, process, name } if names.name(name) == "marked" => {
                    named = Some((tid, process));
                }
                Kind::SchedWaking { tid, .. } => {
                    woken.insert(tid);
                    wakeups += 1;
                }
                _ => {}
            }
            let name = event.kind.tracepoint().unwrap_or("");
            *kinds.entry(name).or_default() += 1;
        });
        assert!(latest < limit, "{latest} {limit}");
        wakeups
    };
    let (began, mut wakeups) = (std::time::Instant::now(), 0);
    while wakeups < 15 && began.elapsed() < Duration::from_secs(20) {
        wakeups += round();
    }
    stop.store(true, Ordering::Relaxed);
    thread.join().expect("it ends");
    round();
    println!("{kinds:?} {:?}", follower.missing());
    let (tid, process) = named.expect("a name");
    assert_eq!(process.0, std::process::id().cast_signed());
    // This thread is woken as often.
    let path = std::fs::read_link("/proc/thread-self").expect("a thread");
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let own_tid = Tid(name.parse().expect("its id"));
    assert!(
        woken.contains(&tid) && !woken.contains(&own_tid),
        "{woken:?}"
    );
    for kind in ["sched_waking", "sched_switch"] {
        assert!(kinds[kind] >= 15, "{kinds:?}");
    }
    assert!(kinds["sched_process_exit"] >= 1, "{kinds:?}");
}

#[test]
fn latest_pages_are_a_recording() {
    let keep = Keep {
        time: Duration::from_secs(60),
        bytes: 1 << 20,
    };
    let started = Follower::start_keeping(keep, Some(1024), &mut |_| {});
    let Ok(mut follower) = started else {
        println!("skipped: {}", started.err().expect("an error"));
        return;
    };
    let mut given = 0;
    let began = std::time::Instant::now();
    while given < 20 && began.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
        let round = follower.round(&mut |event, _| {
            given += u64::from(matches!(event.kind, Kind::SchedSwitch { .. }));
        });
        round.expect("rounds");
    }
    let flight = follower.flight().expect("pages are kept");
    let file = flight.with_snapshot(Some("{\"host\":\"this one\"}".into()));
    let file = file.expect("a head");
    follower.stop().expect("it goes");
    let folder = tempfile::tempdir().expect("a folder");
    let path = file.write(folder.path(), "flight", &mut |_| {});
    let path = path.expect("a file");
    let bytes = std::fs::metadata(&path).expect("a file").len();
    assert_eq!(bytes, file.bytes());
    // The file also has what the follower held back until all CPUs had been read.
    let (_, switches) = counts(&path);
    assert!(switches >= given && given >= 20, "{switches} {given}");
}
