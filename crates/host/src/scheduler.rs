//! Counters of `scx_stealtime`: its program publishes them each second while it schedules the host.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Version of the keys.
const VERSION: u32 = 1;
/// `cpu.weight` of a group that the file does not have.
const DEFAULT_WEIGHT: u64 = 100;

/// What the program has counted since it was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduler {
    version: u32,
    /// Its process.
    pub pid: u32,
    /// Whether it runs all tasks, or canaries only.
    pub all_tasks: bool,
    /// The mode of `--yield`.
    pub yields: String,
    /// By the names of `sched-ext/src/counters.rs`.
    counts: BTreeMap<String, u64>,
    /// Yields by the time until their target ran: bucket `n` has those below `1 << n` us.
    yield_to_run_us: Vec<u64>,
    groups: Vec<GroupTime>,
    group_paths: Vec<String>,
}

/// Run time of a control group's own tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct GroupTime {
    cgroup_id: u64,
    weight: u64,
    runtime_ns: u64,
}

/// A control group, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'s> {
    /// Below the mount of control groups.
    pub path: &'s str,
    /// `cpu.weight`.
    pub weight: u64,
    /// Run time of its own tasks, in ns.
    pub runtime_ns: u64,
}

/// What a unit of systemd, or another control group, has of the CPU time of all of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Its path.
    pub path: String,
    /// Share of the run time, [0, 1].
    pub share: f64,
    /// Share that its weight gives it against the others that run, [0, 1].
    pub due: f64,
}

impl Scheduler {
    /// The counters in the text that the program publishes; `None` where it is not understood.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let scheduler: Self = serde_json::from_str(text).ok()?;
        (scheduler.version == VERSION).then_some(scheduler)
    }

    /// A counter by its name; 0 where the program does not have it.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Reasons of refused yields, with their numbers.
    pub fn refused(&self) -> impl Iterator<Item = (&str, u64)> {
        let counts = self.counts.iter();
        counts.filter_map(|(name, count)| Some((name.strip_prefix("refused_")?, *count)))
    }

    /// Yields by the time until their target ran: the end of each class in us, and its number.
    pub fn yield_to_run(&self) -> impl Iterator<Item = (u64, u64)> {
        let classes = self.yield_to_run_us.iter().take(63).enumerate();
        classes.map(|(n, count)| (1 << n, *count))
    }

    /// The end of the class in which half of the times are reached, in us; `None` without times.
    #[must_use]
    pub fn median_us(&self) -> Option<u64> {
        let total: u128 = self
            .yield_to_run()
            .map(|(_, count)| u128::from(count))
            .sum();
        let mut reached = 0;
        let mut classes = self.yield_to_run();
        classes.find_map(|(end, count)| {
            reached += u128::from(count);
            (total > 0 && 2 * reached >= total).then_some(end)
        })
    }

    /// Control groups that have run, or one below them, as far as their paths are known: the program
    /// looks every 10 s.
    pub fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let groups = self.groups.iter().zip(&self.group_paths);
        let known = groups.filter(|(_, path)| !path.is_empty());
        known.map(|(group, path)| Group {
            path,
            weight: group.weight,
            runtime_ns: group.runtime_ns,
        })
    }

    /// The same counters without those of an earlier time. A program that was loaded since begins with 0.
    #[must_use]
    pub fn since(&self, former: Option<&Self>) -> Self {
        let mut recent = self.clone();
        let Some(former) = former.filter(|former| former.pid == self.pid) else {
            return recent;
        };
        for (name, count) in &mut recent.counts {
            *count = count.saturating_sub(former.count(name));
        }
        let classes = former.yield_to_run_us.iter();
        for (count, class) in recent.yield_to_run_us.iter_mut().zip(classes) {
            *count = count.saturating_sub(*class);
        }
        let times = former.groups.iter();
        let times: BTreeMap<u64, u64> = times
            .map(|group| (group.cgroup_id, group.runtime_ns))
            .collect();
        for group in &mut recent.groups {
            let earlier_ns = times.get(&group.cgroup_id).copied().unwrap_or(0);
            group.runtime_ns = group.runtime_ns.saturating_sub(earlier_ns);
        }
        recent
    }

    /// Shares of the units that have run, largest first. Tasks of the root have no weight: they are left
    /// out.
    #[must_use]
    pub fn shares(&self) -> Vec<Share> {
        let mut weights = BTreeMap::new();
        let mut times: BTreeMap<&str, u128> = BTreeMap::new();
        for group in self.groups().filter(|group| group.path != "/") {
            weights.insert(group.path, group.weight);
            if group.runtime_ns > 0 {
                *times.entry(unit(group.path)).or_default() += u128::from(group.runtime_ns);
            }
        }
        // A group competes with those next to it that run, or have one below them that does.
        let used: BTreeSet<&str> = times.keys().flat_map(|path| lineage(path)).collect();
        let weight = |path: &str| weights.get(path).copied().unwrap_or(DEFAULT_WEIGHT).max(1);
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for path in &used {
            let sum = sums.entry(above(path)).or_default();
            *sum = sum.saturating_add(weight(path));
        }
        let total: u128 = times.values().sum();
        let part = |path: &str| {
            let sum = sums.get(above(path)).copied().unwrap_or(1);
            weight(path) as f64 / sum as f64
        };
        let mut shares: Vec<Share> = times
            .iter()
            .map(|(path, ns)| Share {
                path: (*path).to_owned(),
                share: *ns as f64 / total as f64,
                due: lineage(path).map(part).product(),
            })
            .collect();
        shares.sort_by(|a, b| {
            b.share
                .total_cmp(&a.share)
                .then_with(|| a.path.cmp(&b.path))
        });
        shares
    }
}

/// The scope that a control group belongs to, a VM or a container, else the group itself.
fn unit(path: &str) -> &str {
    path.find(".scope/")
        .map_or(path, |start| &path[..start + ".scope".len()])
}

/// The group above.
fn above(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}

/// A group and those above it, without the root.
fn lineage(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| Some(above(path))).take_while(|path| !path.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"version":1,"pid":7,"all_tasks":true,"yields":"receiver","counts":
        {"yield_directed":30,"refused_guard":6},"yield_to_run_us":[0,0,3,20,1],"groups":[
        {"cgroup_id":0,"weight":0,"runtime_ns":5},{"cgroup_id":1,"weight":300,"runtime_ns":0},
        {"cgroup_id":2,"weight":100,"runtime_ns":200},{"cgroup_id":3,"weight":100,"runtime_ns":400},
        {"cgroup_id":4,"weight":100,"runtime_ns":200},{"cgroup_id":5,"weight":100,"runtime_ns":200}],
        "vcpus":2,"group_paths":["/","/vms","/vms/a.scope/vcpu0","/vms/a.scope/vcpu1","/vms/b","/web"]}"#;

    #[test]
    fn counters_of_an_interval() {
        let scheduler = Scheduler::parse(TEXT).expect("understood");
        assert_eq!(scheduler.median_us(), Some(8));
        let same = scheduler.since(Some(&scheduler));
        assert_eq!((same.count("yield_directed"), same.median_us()), (0, None));
        assert!(same.shares().is_empty());
        let mut other = scheduler.clone();
        other.pid = 8;
        assert_eq!(scheduler.since(Some(&other)), scheduler);
        assert_eq!(
            Scheduler::parse(&TEXT.replace("n\":1,\"pid", "n\":2,\"pid")),
            None
        );
    }

    #[test]
    fn shares_are_those_of_units_and_due_by_all_levels() {
        let shares = Scheduler::parse(TEXT).expect("understood").shares();
        let shares: Vec<(&str, f64, f64)> = shares
            .iter()
            .map(|share| (share.path.as_str(), share.share, share.due))
            .collect();
        // Three quarters to /vms by its weight, in halves.
        assert_eq!(
            shares,
            [
                ("/vms/a.scope", 0.6, 0.375),
                ("/vms/b", 0.2, 0.375),
                ("/web", 0.2, 0.25)
            ]
        );
    }
}
