//! What a host's snapshot says of the recorded host: facts that a fit need not find.

use std::collections::{BTreeMap, BTreeSet};

use stealtime_doctor::present_text;
use stealtime_host::{Cgroup, Policy, Snapshot, Thread, Vm, cpulist};
use stealtime_lab::knobs::{self, Setting};
use stealtime_replay::host::{Feature, Policy as FairPolicy};
use stealtime_simulator::config::Cfs;
use stealtime_simulator::script::{ScriptGroup, SharedGroup};

use crate::host_file::HostFacts;
use crate::question::FEATURES;
use crate::recorded::Recorded;

/// `cpu.shares` of a group with `cpu.weight` 100.
const USUAL_SHARES: u64 = 1_024;
/// The range of `cpu.weight`.
const WEIGHTS: std::ops::RangeInclusive<u64> = 1..=10_000;
/// Knobs of KVM that a replay can have.
const OF_KVM: [&str; 8] = [
    "kvm.halt_poll_ns",
    "kvm.halt_poll_ns_grow",
    "kvm.halt_poll_ns_grow_start",
    "kvm.halt_poll_ns_shrink",
    "kvm.ple_gap",
    "kvm.ple_window",
    "kvm.ple_window_grow",
    "kvm.ple_window_max",
];
/// Tunables of CFS, before Linux 6.6.
const OF_CFS: [&str; 3] = [
    "sched.latency_ns",
    "sched.min_granularity_ns",
    "sched.wakeup_granularity_ns",
];
/// Those of EEVDF.
const OF_EEVDF: [&str; 1] = ["sched.base_slice_ns"];

/// Groups of v1 hierarchies for any number of VMs.
const FOR_SEVERAL: [&str; 5] = ["machine", "kubepods", "burstable", "besteffort", "vc"];

/// Facts of a snapshot, as a replay takes them.
#[derive(Debug, Clone, Default)]
pub(crate) struct SnapshotFacts {
    /// Cgroups of the VMs, if all of them are known.
    pub(crate) cgroups: Option<Cgroups>,
    /// CPUs that threads may use, by id.
    pub(crate) affinity: BTreeMap<i32, Vec<u32>>,
    /// Policies of threads where they are SCHED_BATCH or SCHED_IDLE, by id.
    pub(crate) policies: BTreeMap<i32, FairPolicy>,
    /// Whether wakeups preempt (`WAKEUP_PREEMPTION`).
    pub(crate) wakeups_preempt: Option<bool>,
    /// Names of the settings that are from here.
    pub(crate) settings: BTreeSet<String>,
    /// Memory that new VMs can have.
    pub(crate) available_bytes: Option<u64>,
    /// Memory that VMs of the recording occupy, by index.
    pub(crate) resident_bytes: BTreeMap<usize, u64>,
    /// Facts that no replay has, as sentences.
    pub(crate) unused: Vec<String>,
}

/// Cgroups of the VMs of a recording, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cgroups {
    /// VMs with a cgroup of their own.
    pub(crate) own: BTreeSet<usize>,
    /// All VMs have one.
    pub(crate) every_vm: bool,
    /// In those, each vCPU has one.
    pub(crate) per_vcpu: bool,
    /// They have one parent that is not the root.
    pub(crate) slice: bool,
    /// Groups of several VMs, if their tree or their settings matter: each after the one above it.
    pub(crate) shared: Vec<SharedCgroup>,
    /// The one of those that a VM is in.
    pub(crate) shared_by_vm: BTreeMap<usize, usize>,
    /// `cpu.weight` where it is not 100.
    pub(crate) weights: BTreeMap<usize, u32>,
    /// `cpu.max` where there is a limit: quota and period in ns.
    pub(crate) limits: BTreeMap<usize, (u64, u64)>,
}

/// A cgroup of several VMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedCgroup {
    /// Below the mount point of its hierarchy.
    pub(crate) path: String,
    /// Its parent and settings, as a replay has them.
    pub(crate) settings: SharedGroup,
}

/// The cgroups of one VM with the cpu controller, the uppermost first.
struct OwnCgroups<'s> {
    own: Vec<&'s Cgroup>,
    /// Those above, which hold other VMs too or may.
    shared: Vec<&'s Cgroup>,
    /// Each vCPU is in another one.
    per_vcpu: bool,
    /// Limits of vCPUs' own groups.
    vcpu_limits: usize,
}

impl HostFacts {
    /// Adds what the host's snapshot says and the file about the host does not.
    pub fn add_snapshot(&mut self, snapshot: &Snapshot, recorded: &Recorded) {
        let mut facts = SnapshotFacts::default();
        let mut trial = recorded.stub();
        // A file is a later word than the snapshot.
        let _ = self.apply_settings(&mut trial);
        let is_cfs = trial.knobs.sched.cfs.is_some();
        for (knob, text) in settings(snapshot, is_cfs) {
            if self.has(knob) {
                continue;
            }
            let set = Setting::parse(&trial, knob, &text)
                .and_then(|setting| setting.apply(&mut trial).map(|()| setting));
            match set {
                Ok(setting) => {
                    facts.settings.insert(knob.to_owned());
                    self.add_setting(setting);
                }
                Err(error) => facts.unused.push(error.to_string()),
            }
        }
        let wakeup = snapshot.sched.features.iter();
        let mut wakeup = wakeup.filter_map(|word| match word.as_str() {
            "WAKEUP_PREEMPTION" => Some(true),
            "NO_WAKEUP_PREEMPTION" => Some(false),
            _ => None,
        });
        facts.wakeups_preempt = wakeup.next();
        let vms = vms(snapshot, recorded);
        facts.cgroups = cgroups(snapshot, recorded, &vms, &mut facts.unused);
        facts.affinity = affinity(&vms, recorded);
        facts.policies = policies(&vms, &mut facts.unused);
        facts.available_bytes = snapshot.memory.available_bytes;
        let resident = (0..).zip(&vms).filter_map(|(index, vm)| {
            let bytes = vm.as_ref()?.process.resident_bytes?;
            Some((index, bytes))
        });
        facts.resident_bytes = resident.filter(|vm| vm.1 > 0).collect();
        if snapshot.cpu.smt_active == Some(true) {
            let text = "SMT is on: what siblings cost each other is part of the recorded times";
            facts.unused.push(text.to_owned());
        }
        self.set_snapshot(facts);
    }
}

/// Settings of the host: knobs and values.
fn settings(snapshot: &Snapshot, is_cfs: bool) -> Vec<(&'static str, String)> {
    let mut settings = Vec::new();
    let of_class: &[&str] = if is_cfs { &OF_CFS } else { &OF_EEVDF };
    for name in OF_KVM.iter().chain(of_class) {
        let knob = knobs::find(name);
        debug_assert!(knob.is_some(), "{name}");
        let text = knob.and_then(|knob| {
            let text = present_text(snapshot, knob)?;
            let value = knob.kind.read(text);
            Some(value.map_or_else(|_| text.to_owned(), |value| value.to_string()))
        });
        settings.extend(text.map(|text| (*name, text)));
    }
    settings.extend(snapshot.kernel.hz.map(|hz| ("host.hz", hz.to_string())));
    // Requests of a kernel without lazy preemption count at once in user mode and in guests.
    let preempt = match snapshot.kernel.preempt.mode.as_deref() {
        Some("lazy") => Some("lazy"),
        Some("none" | "voluntary" | "full" | "rt") => Some("full"),
        _ => None,
    };
    if !is_cfs {
        settings.extend(preempt.map(|mode| ("sched.preempt", mode.to_owned())));
    }
    let known: Vec<&str> = match is_cfs {
        true => Cfs::FEATURES.iter().map(|feature| feature.name()).collect(),
        false => Feature::ALL.iter().map(|feature| feature.name()).collect(),
    };
    let features = snapshot.sched.features.iter().map(String::as_str);
    let features =
        features.filter(|word| known.contains(&word.strip_prefix("NO_").unwrap_or(word)));
    let features: Vec<&str> = features.collect();
    if !features.is_empty() {
        settings.push((FEATURES, features.join(",")));
    }
    settings
}

/// The snapshot's VM of each VM of the recording, by the threads of its vCPUs.
fn vms<'s>(snapshot: &'s Snapshot, recorded: &Recorded) -> Vec<Option<&'s Vm>> {
    let mut by_tid: BTreeMap<i32, (&Vm, Option<u32>)> = BTreeMap::new();
    for vm in snapshot.all_vms() {
        by_tid.extend(vm.vcpus().map(|thread| (thread.tid, (vm, thread.vcpu))));
    }
    let rows = &recorded.answers().vcpus;
    let find = |name: &String| {
        let mut rows = rows.iter().filter(|row| row.vm == *name);
        rows.find_map(|row| {
            let (vm, number) = by_tid.get(&row.tid)?;
            number
                .is_none_or(|number| number == row.vcpu)
                .then_some(*vm)
        })
    };
    recorded.vms.iter().map(find).collect()
}

/// Whether a path is a group or below it.
fn is_in(path: &str, group: &str) -> bool {
    let rest = path.strip_prefix(group.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The cgroups of all VMs; `None` where one is unknown.
fn cgroups(
    snapshot: &Snapshot,
    recorded: &Recorded,
    vms: &[Option<&Vm>],
    unused: &mut Vec<String>,
) -> Option<Cgroups> {
    if snapshot.cgroup.version.is_empty() || vms.is_empty() {
        return None;
    }
    if let Some((_, name)) = vms.iter().zip(&recorded.vms).find(|(vm, _)| vm.is_none()) {
        unused.push(format!(
            "cgroups are fitted: the snapshot does not have the VM {name}"
        ));
        return None;
    }
    let mut found = Cgroups::default();
    let mut above = Vec::new();
    let mut parents = BTreeSet::new();
    let mut nested = BTreeSet::new();
    for (index, vm) in vms.iter().enumerate() {
        let mut groups = own_cgroups((*vm)?, snapshot)?;
        above.push(core::mem::take(&mut groups.shared));
        let Some(top) = groups.own.first() else {
            continue;
        };
        found.own.insert(index);
        parents.insert(above[index].last().map(|parent| parent.path.as_str()));
        nested.insert(groups.per_vcpu);
        if let Some(weight) = weight(top).filter(|weight| *weight != 100) {
            found.weights.insert(index, weight);
        }
        let limits = groups.own.iter().filter_map(|group| limit(group));
        // The least share of a period stops first.
        let least = limits
            .min_by_key(|(quota, period)| u128::from(*quota) * 1_000_000 / u128::from(*period));
        found.limits.extend(least.map(|limit| (index, limit)));
        if groups.vcpu_limits > 0 {
            let name = &recorded.vms[index];
            unused.push(format!("{name}: limits of single vCPUs are not replayed"));
        }
    }
    found.every_vm = found.own.len() == vms.len();
    found.per_vcpu = nested.contains(&true);
    if nested.len() > 1 {
        unused.push("vCPUs of some VMs alone have cgroups: replayed as those of all".to_owned());
    }
    let parent = parents.first().copied().flatten();
    found.slice = parents.len() == 1 && parent.is_some_and(|path| path != "/");
    found.share(&above, parents.len() > 1, unused);
    Some(found)
}

impl Cgroups {
    /// Adds the groups of several VMs: `above` has those of each VM. VMs under one group with usual settings
    /// need none ([`Self::slice`]).
    fn share(&mut self, above: &[Vec<&Cgroup>], is_tree: bool, unused: &mut Vec<String>) {
        let is_usual = |group: &Cgroup| weight(group).is_none_or(|weight| weight == 100);
        let mut groups = above.iter().flatten();
        let has_settings = groups.any(|group| !is_usual(group) || limit(group).is_some());
        if !is_tree && !has_settings {
            return;
        }
        for (vm, chain) in above.iter().enumerate() {
            let mut parent = None;
            for group in chain {
                let known = self
                    .shared
                    .iter()
                    .position(|shared| shared.path == group.path);
                let index = known.unwrap_or_else(|| {
                    self.shared.push(SharedCgroup {
                        path: group.path.clone(),
                        settings: SharedGroup {
                            parent,
                            group: ScriptGroup {
                                cpu_weight: weight(group).unwrap_or(100),
                                cpu_max_ns: None,
                            },
                        },
                    });
                    self.shared.len() - 1
                });
                parent = Some(index);
            }
            self.shared_by_vm.extend(parent.map(|parent| (vm, parent)));
        }
        self.slice = false;
        self.share_limits(above, unused);
    }

    /// Parents and settings of the groups of several VMs, in their order.
    pub(crate) fn shared_settings(&self) -> Vec<SharedGroup> {
        let groups = self.shared.iter();
        groups.map(|shared| shared.settings.clone()).collect()
    }

    /// Groups of several VMs with their settings, as words.
    pub(crate) fn shared_text(&self) -> Option<String> {
        let groups = self.shared.iter().map(|shared| {
            let path = &shared.path;
            let ScriptGroup {
                cpu_weight: weight,
                cpu_max_ns,
            } = shared.settings.group;
            match cpu_max_ns {
                Some((quota, period)) => format!(
                    "{path} with weight {weight} and cpu.max {} {}",
                    quota / 1_000,
                    period / 1_000
                ),
                None => format!("{path} with weight {weight}"),
            }
        });
        let groups: Vec<String> = groups.collect();
        (!groups.is_empty()).then(|| groups.join(", "))
    }

    /// Adds limits of groups of several VMs. A task is under one limit in a replay.
    fn share_limits(&mut self, above: &[Vec<&Cgroup>], unused: &mut Vec<String>) {
        let limited: BTreeMap<&str, (u64, u64)> = above
            .iter()
            .flatten()
            .filter_map(|group| Some((group.path.as_str(), limit(group)?)))
            .collect();
        for (path, limit) in &limited {
            let members = above.iter().enumerate();
            let mut members =
                members.filter(|(_, chain)| chain.iter().any(|group| group.path == *path));
            let is_only = members.all(|(vm, chain)| {
                let limits = chain
                    .iter()
                    .filter(|group| limited.contains_key(&*group.path));
                !self.limits.contains_key(&vm) && limits.count() == 1
            });
            let mut groups = self.shared.iter_mut();
            match groups.find(|shared| shared.path == *path) {
                Some(shared) if is_only => shared.settings.group.cpu_max_ns = Some(*limit),
                _ => unused.push(format!(
                    "{path}: cpu.max of a group of several VMs is not replayed, as groups within it have limits \
                     too"
                )),
            }
        }
    }
}

/// Policies of threads that are not SCHED_OTHER. Real-time threads have their priority in the recording, and
/// no replay has them.
fn policies(vms: &[Option<&Vm>], unused: &mut Vec<String>) -> BTreeMap<i32, FairPolicy> {
    let mut policies = BTreeMap::new();
    let mut beyond = 0_usize;
    for thread in vms.iter().flatten().flat_map(|vm| &vm.threads) {
        let policy = match thread.policy {
            None | Some(Policy::Other) => continue,
            Some(Policy::Batch) => FairPolicy::Batch,
            Some(Policy::Idle) => FairPolicy::Idle,
            Some(Policy::Fifo | Policy::Rr | Policy::Deadline | Policy::Ext) => {
                beyond += 1;
                continue;
            }
        };
        policies.insert(thread.tid, policy);
    }
    if beyond > 0 {
        unused.push(format!(
            "not replayed: {beyond} threads of VMs have real-time, deadline or sched_ext policies"
        ));
    }
    policies
}

/// The cgroups with the cpu controller that hold this VM alone; `None` if those of a vCPU are unknown.
fn own_cgroups<'s>(vm: &'s Vm, snapshot: &'s Snapshot) -> Option<OwnCgroups<'s>> {
    let paths: Vec<&str> = vm
        .vcpus()
        .map(|thread| thread.cgroup.as_deref().or(vm.cgroup.as_deref()))
        .collect::<Option<_>>()?;
    let first = *paths.first()?;
    let elsewhere = snapshot
        .vms
        .iter()
        .filter(|neighbour| neighbour.process.pid != vm.process.pid);
    let elsewhere: Vec<&str> = elsewhere
        .flat_map(|vm| {
            vm.threads
                .iter()
                .filter_map(|thread| thread.cgroup.as_deref())
        })
        .collect();
    // Groups without a weight have no cpu controller, and their tasks compete in the group above.
    let groups = snapshot.cgroups.iter().filter(|group| {
        matches!(group.hierarchy.as_str(), "v2" | "cpu") && weight(group).is_some()
    });
    let mut chain: Vec<&Cgroup> = groups
        .filter(|group| group.path != "/" && is_in(first, &group.path))
        .collect();
    chain.sort_by_key(|group| group.path.len());
    let holds_all = |group: &&Cgroup| paths.iter().all(|path| is_in(path, &group.path));
    let is_alone = |group: &&Cgroup| !elsewhere.iter().any(|path| is_in(path, &group.path));
    let (mut shared, single): (Vec<&Cgroup>, Vec<&Cgroup>) = chain.into_iter().partition(holds_all);
    let is_own = |group: &&Cgroup| is_alone(group) && !is_for_several(&group.path);
    let top = shared.iter().position(is_own).unwrap_or(shared.len());
    let alone = shared.split_off(top);
    let limits = single.iter().filter(|group| limit(group).is_some());
    // A VM with one vCPU has its libvirt group for that in common.
    let is_vcpu = |group: &&Cgroup| {
        let name = group.path.rsplit('/').next().unwrap_or_default();
        name.strip_prefix("vcpu")
            .is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let own_vcpu = alone.iter().any(is_vcpu);
    Some(OwnCgroups {
        shared,
        per_vcpu: !single.is_empty() || own_vcpu,
        vcpu_limits: limits.count(),
        own: alone,
    })
}

/// Whether managers put any number of VMs into a group, so that its weight is that of no single one.
fn is_for_several(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_slice = name.ends_with(".slice") && !name.contains("-pod");
    is_slice || FOR_SEVERAL.contains(&name)
}

/// `cpu.weight` of a group; `cpu.shares` of v1 as a weight.
fn weight(group: &Cgroup) -> Option<u32> {
    let of_shares = group
        .shares
        .map(|shares| (shares * 100 + USUAL_SHARES / 2) / USUAL_SHARES);
    let weight = group.weight.or(of_shares)?;
    // `cpu.idle` has the least weight.
    let weight = if group.idle == Some(true) { 1 } else { weight };
    u32::try_from(weight.clamp(*WEIGHTS.start(), *WEIGHTS.end())).ok()
}

/// `cpu.max` of a group in ns.
fn limit(group: &Cgroup) -> Option<(u64, u64)> {
    let (quota, period) = (group.quota_us?, group.period_us?);
    (quota > 0 && period > 0).then(|| (quota.saturating_mul(1_000), period.saturating_mul(1_000)))
}

/// CPUs of the threads of VMs. Threads that ran elsewhere got them later or earlier.
fn affinity(vms: &[Option<&Vm>], recorded: &Recorded) -> BTreeMap<i32, Vec<u32>> {
    let recording = recorded.recording();
    let ran_on: BTreeMap<i32, &[u16]> = recording
        .tasks
        .iter()
        .map(|task| (task.tid, task.ran_on.as_slice()))
        .collect();
    let cpus_of = |thread: &Thread| {
        let cpus = cpulist::parse(thread.affinity.as_deref()?)?;
        let ran_on = ran_on.get(&thread.tid)?;
        let cpus: Vec<u32> = cpus
            .into_iter()
            .filter(|&cpu| cpu < recording.cpus)
            .collect();
        let is_true = ran_on.iter().all(|&cpu| cpus.contains(&u32::from(cpu)));
        (is_true && !cpus.is_empty()).then_some((thread.tid, cpus))
    };
    let threads = vms.iter().flatten().flat_map(|vm| &vm.threads);
    threads.filter_map(cpus_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(path: &str, weight: u64, quota_us: Option<u64>) -> Cgroup {
        Cgroup {
            path: path.to_owned(),
            weight: Some(weight),
            quota_us,
            period_us: quota_us.map(|_| 100_000),
            ..Cgroup::default()
        }
    }

    #[test]
    fn groups_of_several_vms_are_a_tree() {
        let prod = group("/prod", 300, None);
        let db = group("/prod/db", 100, Some(50_000));
        let above = [vec![&prod, &db], vec![&prod], vec![]];
        let mut found = Cgroups::default();
        let mut unused = Vec::new();
        found.share(&above, true, &mut unused);
        let paths: Vec<&str> = found.shared.iter().map(|shared| &*shared.path).collect();
        assert_eq!(paths, ["/prod", "/prod/db"]);
        assert_eq!(found.shared[1].settings.parent, Some(0));
        assert_eq!(found.shared_by_vm, BTreeMap::from([(0, 1), (1, 0)]));
        let words = "/prod with weight 300, /prod/db with weight 100 and cpu.max 50000 100000";
        assert_eq!(found.shared_text().as_deref(), Some(words));
        assert!(unused.is_empty(), "{unused:?}");

        // A VM with a limit of its own is under two.
        let mut found = Cgroups::default();
        found.limits.insert(0, (10_000_000, 100_000_000));
        found.share(&above, true, &mut unused);
        assert_eq!(found.shared[1].settings.group.cpu_max_ns, None);
        assert!(unused[0].starts_with("/prod/db: cpu.max"), "{unused:?}");
    }

    #[test]
    fn one_usual_group_above_all_vms_is_a_slice() {
        let slice = group("/machine.slice", 100, None);
        let mut found = Cgroups {
            slice: true,
            ..Cgroups::default()
        };
        found.share(&[vec![&slice], vec![&slice]], false, &mut Vec::new());
        assert!(found.slice && found.shared.is_empty());
    }

    #[test]
    fn policies_of_the_fair_class_are_replayed() {
        let thread = |tid, policy| Thread {
            tid,
            policy: Some(policy),
            ..Thread::default()
        };
        let threads = vec![
            thread(1, Policy::Other),
            thread(2, Policy::Batch),
            thread(3, Policy::Idle),
            thread(4, Policy::Fifo),
        ];
        let vm = Vm {
            threads,
            ..Vm::default()
        };
        let mut unused = Vec::new();
        let policies = policies(&[Some(&vm), None], &mut unused);
        let expected = [(2, FairPolicy::Batch), (3, FairPolicy::Idle)];
        assert_eq!(policies, BTreeMap::from(expected));
        assert!(unused[0].contains("1 threads"), "{unused:?}");
    }
}
