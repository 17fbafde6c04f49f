//! What the BPF program counts: `bpf/shared.h` has the order.

use std::fmt::Write;

use serde::Serialize;

use crate::skeleton::types;

/// Names for JSON, in the order of `enum counter`.
pub(crate) const NAMES: [&str; 36] = [
    "yield_undirected",
    "yield_directed",
    "yield_receiver",
    "yield_pending",
    "yield_nominee",
    "refused_by_mode",
    "refused_receiver_runs",
    "refused_answered",
    "refused_guard",
    "refused_pinned",
    "refused_not_queued",
    "pause_receiver",
    "redirected",
    "kicked_remote",
    "kick_limited",
    "credits",
    "credit_ns",
    "loans",
    "loans_returned",
    "loans_expired",
    "handed_over",
    "lent_ns",
    "want_picked",
    "want_missed",
    "ipis_tracked",
    "ipis_broadcast",
    "ipis_settled",
    "vcpus_full",
    "groups_full",
    "picked_eligible",
    "picked_head",
    "kept",
    "stolen",
    "wake_preempted",
    "receiver_runs",
    "yield_to_run_ns",
];

/// Counters of all CPUs.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Counters {
    /// By name, in the order of [`NAMES`].
    #[serde(serialize_with = "by_name")]
    pub(crate) counts: Vec<u64>,
    /// Time from a yield until its target runs, us: a bucket of `1 << n` holds shorter times.
    pub(crate) yield_to_run_us: Vec<u64>,
    /// Run time of each control group with tasks, and of those above them, ns.
    pub(crate) groups: Vec<GroupTime>,
    /// vCPUs with tracked IPIs.
    pub(crate) vcpus: u32,
}

/// Run time of a control group's own tasks.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GroupTime {
    pub(crate) cgroup_id: u64,
    pub(crate) weight: u32,
    pub(crate) runtime_ns: u64,
}

fn by_name<S: serde::Serializer>(counts: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(NAMES.iter().zip(counts))
}

impl Counters {
    pub(crate) fn read(bss: &types::bss, used: u32) -> Self {
        let mut counters = Self {
            counts: vec![0; NAMES.len()],
            yield_to_run_us: vec![0; bss.cpus[0].waits_us.len()],
            ..Self::default()
        };
        for cpu in &bss.cpus {
            add(&mut counters.counts, &cpu.counters);
            add(&mut counters.yield_to_run_us, &cpu.waits_us);
        }
        let used = (used as usize).min(bss.groups.len());
        let groups = &bss.groups[..used];
        let parents: Vec<usize> = groups.iter().map(|group| group.parent as usize).collect();
        let has_run: Vec<bool> = groups.iter().map(|group| group.runtime_ns > 0).collect();
        counters.groups = groups
            .iter()
            .zip(with_those_above(&parents, &has_run))
            .filter_map(|(group, is_shown)| is_shown.then_some(group))
            .map(|group| GroupTime {
                cgroup_id: group.id,
                weight: group.weight,
                runtime_ns: group.runtime_ns,
            })
            .collect();
        counters.vcpus = bss.vcpus.iter().filter(|vcpu| vcpu.tid != 0).count() as u32;
        counters
    }

    fn get(&self, name: &str) -> u64 {
        let index = NAMES.iter().position(|known| *known == name);
        index.map_or(0, |index| self.counts[index])
    }

    /// A few lines for a reader.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |title: &str, names: &[&str]| {
            let _ = write!(text, "{title:<10}");
            for name in names {
                let short = name
                    .trim_start_matches("yield_")
                    .trim_start_matches("refused_")
                    .replace('_', " ");
                let _ = write!(text, "  {short} {}", self.get(name));
            }
            text.push('\n');
        };
        line(
            "yields",
            &[
                "yield_directed",
                "yield_receiver",
                "yield_pending",
                "yield_nominee",
                "pause_receiver",
                "redirected",
                "receiver_runs",
            ],
        );
        line(
            "refused",
            &[
                "refused_by_mode",
                "refused_receiver_runs",
                "refused_answered",
                "refused_guard",
                "refused_pinned",
                "refused_not_queued",
            ],
        );
        line(
            "next",
            &[
                "want_picked",
                "want_missed",
                "kicked_remote",
                "kick_limited",
            ],
        );
        line(
            "credit",
            &[
                "credits",
                "credit_ns",
                "loans",
                "loans_returned",
                "loans_expired",
                "handed_over",
                "lent_ns",
            ],
        );
        line("IPIs", &["ipis_tracked", "ipis_broadcast", "ipis_settled"]);
        line(
            "picks",
            &[
                "picked_eligible",
                "picked_head",
                "kept",
                "stolen",
                "wake_preempted",
            ],
        );
        for (name, warning) in [
            ("vcpus_full", "vCPUs are not tracked: the table is full"),
            (
                "groups_full",
                "control groups count with their parents: the table is full",
            ),
        ] {
            if self.get(name) > 0 {
                let _ = writeln!(text, "warning     {} {warning}", self.get(name));
            }
        }
        if let Some(median_us) = self.median_wait_us() {
            let _ = writeln!(
                text,
                "time from a yield until its target runs: half below {median_us} us"
            );
        }
        let total: u64 = self.groups.iter().map(|group| group.runtime_ns).sum();
        for group in self.groups.iter().filter(|group| group.runtime_ns > 0) {
            let _ = writeln!(
                text,
                "cgroup {:<8} weight {:<6} ran {:>10.3} s  {:>5.1} %",
                group.cgroup_id,
                group.weight,
                group.runtime_ns as f64 / 1e9,
                100.0 * group.runtime_ns as f64 / total.max(1) as f64
            );
        }
        text
    }

    /// The end of the bucket in which half of the waits are reached.
    fn median_wait_us(&self) -> Option<u64> {
        let total: u64 = self.yield_to_run_us.iter().sum();
        let mut reached = 0;
        self.yield_to_run_us
            .iter()
            .enumerate()
            .find_map(|(n, count)| {
                reached += count;
                (total > 0 && 2 * reached >= total).then(|| 1 << n)
            })
    }
}

/// Groups that have run, and all above them: a reader needs the weight of each level.
fn with_those_above(parents: &[usize], has_run: &[bool]) -> Vec<bool> {
    let mut shown = has_run.to_vec();
    for first in (0..shown.len()).filter(|index| has_run[*index]) {
        let mut index = parents[first];
        // The root is its own parent; a number beyond the table is of a group that ends meanwhile.
        while index > 0 && shown.get(index) == Some(&false) {
            shown[index] = true;
            index = parents[index];
        }
    }
    shown
}

fn add(sums: &mut [u64], counts: &[u64]) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names are those of the enumeration in `bpf/shared.h`, in its order.
    #[test]
    fn names_are_those_of_the_bpf_program() {
        let header = include_str!("../bpf/shared.h");
        let body = header
            .split("enum counter {")
            .nth(1)
            .expect("the enumeration");
        let names: Vec<String> = body
            .split("\tCOUNTERS")
            .next()
            .expect("its end")
            .lines()
            .filter_map(|line| Some(line.trim().split(',').next()?.to_lowercase()))
            .filter(|name| !name.is_empty())
            .collect();
        assert_eq!(names, NAMES);
    }

    #[test]
    fn groups_are_shown_with_those_above() {
        // The root, a slice with two VMs, one of which has not run, and a stale number.
        let shown = with_those_above(&[0, 0, 1, 1, 9], &[false, false, true, false, true]);
        assert_eq!(shown, [false, true, true, false, true]);
    }

    #[test]
    fn half_of_the_waits() {
        let counters = Counters {
            yield_to_run_us: vec![1, 0, 3, 2],
            ..Counters::default()
        };
        assert_eq!(counters.median_wait_us(), Some(4));
        assert_eq!(Counters::default().median_wait_us(), None);
    }
}
