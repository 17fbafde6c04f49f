//! Counters of `scx_stealtime`: its program publishes them each second while it schedules this host.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime};

use stealtime_analysis::answers::SchedulerCount;
use stealtime_host::{Scheduler, Snapshot};
use stealtime_report::{count, escape};

/// Where the program writes them.
pub(crate) const PLACE: &str = "/run/stealtime/sched.json";
/// An older file is of a program that was killed: it is written each second.
const STALE: Duration = Duration::from_secs(5);
/// Longest file that is read: 4,096 control groups with their paths.
const MOST_BYTES: u64 = 4 << 20;
/// Control groups in a line, at most.
const MOST_SHARES: usize = 4;
/// Kinds of counts that have a name of their own: what, kind, the counter, and that of its time.
const COUNTS: [(&str, &str, &str, Option<&str>); 14] = [
    ("served", "receiver", "yield_receiver", None),
    ("served", "pending", "yield_pending", None),
    ("served", "nominee", "yield_nominee", None),
    ("served", "pause", "pause_receiver", None),
    ("target", "picked", "want_picked", Some("yield_to_run_ns")),
    ("target", "missed", "want_missed", None),
    ("loan", "lent", "loans", Some("lent_ns")),
    ("loan", "returned", "loans_returned", None),
    ("loan", "expired", "loans_expired", None),
    ("request", "given", "handed_over", None),
    ("credit", "paid", "credits", Some("credit_ns")),
    ("ipi", "tracked", "ipis_tracked", None),
    ("ipi", "confirmed", "ipis_settled", None),
    ("ipi", "broadcast", "ipis_broadcast", None),
];

/// The counters of the loaded scheduler; `None` where none is loaded, or its file is not understood.
pub(crate) fn read(place: &Path) -> Option<Scheduler> {
    let file = File::open(place).ok()?;
    let written = file.metadata().ok()?.modified().ok()?;
    // A clock that was set back shows a time of the future.
    let age = SystemTime::now().duration_since(written);
    if age.is_ok_and(|age| age > STALE) {
        return None;
    }
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    Scheduler::parse(&text)
}

/// Lines on the yields and on the shares of CPU time since an earlier time, or since the scheduler was
/// loaded.
pub(crate) fn lines(scheduler: &Scheduler, former: Option<&Scheduler>) -> Vec<String> {
    let recent = scheduler.since(former);
    let shares = recent.shares();
    let mut lines = vec![yields(&recent)];
    // One group has it all.
    if shares.len() > 1 {
        let shown = shares.iter().take(MOST_SHARES);
        let mut parts: Vec<String> = shown
            .map(|share| {
                let path = escape::short(&escape::terminal(&share.path), 40);
                let (share, due) = (100.0 * share.share, 100.0 * share.due);
                format!("{path} {share:.1} % ({due:.1} %)")
            })
            .collect();
        if let Some(hidden) = shares
            .len()
            .checked_sub(MOST_SHARES)
            .filter(|hidden| *hidden > 0)
        {
            parts.push(format!("{hidden} more"));
        }
        lines.push(format!(
            "CPU time by control group (due): {}",
            parts.join(", ")
        ));
    }
    lines
}

/// Whether counters of the begin of a recording were lost: the scheduler of its end is none, or another one.
pub(crate) fn has_restarted(snapshot: &Snapshot) -> bool {
    let pid = |snapshot: &Snapshot| {
        snapshot
            .sched
            .counters
            .as_ref()
            .map(|counters| counters.pid)
    };
    let begin = snapshot.before.as_deref().and_then(pid);
    begin.is_some() && begin != pid(snapshot)
}

fn yields(recent: &Scheduler) -> String {
    let refused: u64 = recent.refused().map(|(_, count)| count).sum();
    let mut parts = vec![format!("{} yields", count(recent.count("yield_directed")))];
    for (name, text) in [
        ("yield_receiver", "to the IPI's receiver"),
        ("yield_pending", "to a vCPU with an interrupt"),
        ("yield_nominee", "to KVM's nominee"),
    ] {
        parts.push(format!("{} {text}", count(recent.count(name))));
    }
    parts.push(format!("{} refused", count(refused)));
    if let Some(median_us) = recent.median_us() {
        parts.push(format!("half run within {median_us} us"));
    }
    let tasks = if recent.all_tasks { "" } else { " (canaries)" };
    let mode = escape::short(&escape::terminal(&recent.yields), 32);
    format!("scx_stealtime{tasks} {mode}: {}", parts.join(", "))
}

/// What the scheduler counted while a recording was made, by the host's snapshots of its begin and end.
/// Nothing where it was not loaded at the end.
pub(crate) fn counts(snapshot: &Snapshot) -> Vec<SchedulerCount> {
    let begin = snapshot.before.as_ref();
    let former = begin.and_then(|begin| begin.sched.counters.as_ref());
    let Some(last) = &snapshot.sched.counters else {
        return Vec::new();
    };
    let recent = last.since(former);
    let row = |group: &str, kind: &str, count: u64| SchedulerCount {
        what: group.to_owned(),
        kind: kind.to_owned(),
        count,
        ..SchedulerCount::default()
    };
    let named = COUNTS.into_iter().map(|(group, kind, counter, time)| {
        let half_us = recent.median_us().filter(|_| kind == "picked");
        SchedulerCount {
            ns: time.map(|name| recent.count(name)),
            half_within_ns: half_us.map(|half_us| half_us.saturating_mul(1_000)),
            ..row(group, kind, recent.count(counter))
        }
    });
    let refused = recent.refused();
    let mut rows: Vec<SchedulerCount> = named
        .chain(refused.map(|(reason, count)| row("refused", reason, count)))
        .collect();
    rows.retain(|row| row.count > 0);
    // Served yields, refused ones, then what became of their targets.
    let order = ["served", "refused", "target", "loan", "credit", "ipi"];
    rows.sort_by_key(|row| order.iter().position(|group| *group == row.what));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"version":1,"pid":7,"all_tasks":true,"yields":"receiver","counts":
        {"yield_directed":30,"yield_receiver":20,"yield_nominee":4,"refused_guard":6},
        "yield_to_run_us":[0,0,3,20,1],"groups":[{"cgroup_id":0,"weight":100,"runtime_ns":5}],
        "vcpus":2,"group_paths":["/"]}"#;

    #[test]
    fn a_line_has_what_was_counted_since() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("sched.json");
        std::fs::write(&place, TEXT).expect("written");
        let scheduler = read(&place).expect("understood");
        assert_eq!(
            lines(&scheduler, None),
            [
                "scx_stealtime receiver: 30 yields, 20 to the IPI's receiver, 0 to a vCPU with an interrupt, \
             4 to KVM's nominee, 6 refused, half run within 8 us"
            ]
        );
        let same = lines(&scheduler, Some(&scheduler)).concat();
        assert!(
            same.contains(" 0 yields, 0 to the IPI's receiver"),
            "{same}"
        );
    }

    #[test]
    fn a_file_that_is_old_or_of_another_version_shows_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("sched.json");
        assert_eq!(read(&place), None);
        std::fs::write(&place, TEXT.replace("\"version\":1", "\"version\":2")).expect("written");
        assert_eq!(read(&place), None);
        std::fs::write(&place, TEXT).expect("written");
        let file = File::options().write(true).open(&place).expect("there");
        file.set_modified(SystemTime::now() - 2 * STALE)
            .expect("set");
        assert_eq!(read(&place), None);
    }

    #[test]
    fn a_line_has_the_shares_that_are_due() {
        let text = TEXT
            .replace(
                "\"runtime_ns\":5}",
                "\"runtime_ns\":5},{\"cgroup_id\":1,\"weight\":300,\"runtime_ns\":74}, \
                {\"cgroup_id\":2,\"weight\":100,\"runtime_ns\":26}",
            )
            .replace("[\"/\"]", "[\"/\",\"/gold\",\"/sil\\u001bver\"]");
        let scheduler = Scheduler::parse(&text).expect("understood");
        assert_eq!(
            lines(&scheduler, None)[1],
            "CPU time by control group (due): /gold 74.0 % (75.0 %), /sil\\u{1b}ver 26.0 % (25.0 %)"
        );
    }

    #[test]
    fn a_recording_has_what_was_counted_within_it() {
        let mut snapshot = Snapshot::default();
        assert!(counts(&snapshot).is_empty());
        snapshot.sched.counters = Scheduler::parse(TEXT);
        let rows = counts(&snapshot);
        let rows: Vec<(&str, &str, u64)> = rows
            .iter()
            .map(|row| (row.what.as_str(), row.kind.as_str(), row.count))
            .collect();
        let yields = [
            ("served", "receiver", 20),
            ("served", "nominee", 4),
            ("refused", "guard", 6),
        ];
        assert_eq!(rows, yields);
        snapshot.before = Some(Box::new(snapshot.clone()));
        assert!(counts(&snapshot).is_empty() && !has_restarted(&snapshot));
        snapshot.sched.counters = None;
        assert!(counts(&snapshot).is_empty() && has_restarted(&snapshot));
    }
}
