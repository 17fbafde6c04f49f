//! Counters of `scx_stealtime`: its program publishes them each second while it schedules this host.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use stealtime_report::{count, escape};

/// Where the program writes them.
pub(crate) const PLACE: &str = "/run/stealtime/sched.json";
/// An older file is of a program that was killed: it is written each second.
const STALE: Duration = Duration::from_secs(5);
/// Longest file that is read: 4,096 control groups with their paths.
const MOST_BYTES: u64 = 4 << 20;
/// Version of its keys.
const VERSION: u32 = 1;

/// What the program has counted since it was loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scheduler {
    version: u32,
    /// Its process.
    pub(crate) pid: u32,
    /// Whether it runs all tasks, or canaries only.
    pub(crate) all_tasks: bool,
    /// The mode of `--yield`.
    pub(crate) yields: String,
    #[serde(flatten)]
    counts: Counts,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counts {
    /// By the names of `sched-ext/src/counters.rs`.
    counts: BTreeMap<String, u64>,
    /// Yields by the time until their target ran: bucket `n` has those below `1 << n` us.
    yield_to_run_us: Vec<u64>,
    groups: Vec<GroupTime>,
    group_paths: Vec<String>,
}

/// Run time of a control group's own tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct GroupTime {
    cgroup_id: u64,
    weight: u64,
    runtime_ns: u64,
}

/// A control group, by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group<'s> {
    pub(crate) path: &'s str,
    /// `cpu.weight`.
    pub(crate) weight: u64,
    pub(crate) runtime_ns: u64,
}

impl Scheduler {
    /// The counters of the loaded scheduler; `None` where none is loaded, or its file is not understood.
    pub(crate) fn read(place: &Path) -> Option<Self> {
        let file = File::open(place).ok()?;
        let written = file.metadata().ok()?.modified().ok()?;
        // A clock that was set back shows a time of the future.
        let age = SystemTime::now().duration_since(written);
        if age.is_ok_and(|age| age > STALE) {
            return None;
        }
        let mut text = String::new();
        file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
        let scheduler: Self = serde_json::from_str(&text).ok()?;
        (scheduler.version == VERSION).then_some(scheduler)
    }

    /// A counter by its name.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counts.counts.get(name).copied().unwrap_or(0)
    }

    /// Reasons of refused yields, with their numbers.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&str, u64)> {
        let counts = self.counts.counts.iter();
        counts.filter_map(|(name, count)| Some((name.strip_prefix("refused_")?, *count)))
    }

    /// Yields by the time until their target ran: the end of each class in us, and its number.
    pub(crate) fn yield_to_run(&self) -> impl Iterator<Item = (u64, u64)> {
        let classes = self.counts.yield_to_run_us.iter().take(63).enumerate();
        classes.map(|(n, count)| (1 << n, *count))
    }

    /// Control groups with run time, as far as their paths are known: the program looks every 10 s.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let groups = self.counts.groups.iter().zip(&self.counts.group_paths);
        let known = groups.filter(|(_, path)| !path.is_empty());
        known.map(|(group, path)| Group {
            path,
            weight: group.weight,
            runtime_ns: group.runtime_ns,
        })
    }

    /// The same counters without those of an earlier time. A program that was loaded since begins with 0.
    fn since(&self, former: Option<&Self>) -> Self {
        let mut recent = self.clone();
        let Some(former) = former.filter(|former| former.pid == self.pid) else {
            return recent;
        };
        for (name, count) in &mut recent.counts.counts {
            *count = count.saturating_sub(former.count(name));
        }
        let classes = former.counts.yield_to_run_us.iter();
        for (count, class) in recent.counts.yield_to_run_us.iter_mut().zip(classes) {
            *count = count.saturating_sub(*class);
        }
        recent
    }

    /// A line on the yields since an earlier time, or since the scheduler was loaded.
    pub(crate) fn line(&self, former: Option<&Self>) -> String {
        let recent = self.since(former);
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
        let tasks = if self.all_tasks { "" } else { " (canaries)" };
        let mode = escape::short(&escape::terminal(&self.yields), 32);
        format!("scx_stealtime{tasks} {mode}: {}", parts.join(", "))
    }

    /// The end of the class in which half of the times are reached, in us.
    fn median_us(&self) -> Option<u64> {
        let total: u64 = self.yield_to_run().map(|(_, count)| count).sum();
        let mut reached = 0;
        let mut classes = self.yield_to_run();
        classes.find_map(|(end, count)| {
            reached += count;
            (total > 0 && 2 * reached >= total).then_some(end)
        })
    }
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
        let scheduler = Scheduler::read(&place).expect("understood");
        assert_eq!(
            scheduler.line(None),
            "scx_stealtime receiver: 30 yields, 20 to the IPI's receiver, 0 to a vCPU with an interrupt, \
             4 to KVM's nominee, 6 refused, half run within 8 us"
        );
        let same = scheduler.line(Some(&scheduler));
        assert!(
            same.contains(" 0 yields, 0 to the IPI's receiver"),
            "{same}"
        );
        let groups: Vec<Group<'_>> = scheduler.groups().collect();
        assert_eq!((groups[0].path, groups[0].runtime_ns), ("/", 5));
    }

    #[test]
    fn a_file_that_is_old_or_of_another_version_shows_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("sched.json");
        assert_eq!(Scheduler::read(&place), None);
        std::fs::write(&place, TEXT.replace("\"version\":1", "\"version\":2")).expect("written");
        assert_eq!(Scheduler::read(&place), None);
        std::fs::write(&place, TEXT).expect("written");
        let file = File::options().write(true).open(&place).expect("there");
        file.set_modified(SystemTime::now() - 2 * STALE)
            .expect("set");
        assert_eq!(Scheduler::read(&place), None);
    }
}
