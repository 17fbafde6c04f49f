//! Changes for vCPUs that wait for others: more weight, and CPUs of their own.

use std::collections::BTreeSet;

use stealtime_host::{Cgroup, Policy, Snapshot, Thread, Vm, cpulist};
use stealtime_lab::knobs::{self, HostSetting, StepTarget, Steps, Value};

use crate::change::Change;
use crate::manager::{GroupFile, VmSetting, by_manager, is_below, merge};
use crate::view::{View, affinity, cpus_in};

/// Of two equal VMs the one then gets 75 %.
const MORE_WEIGHT: u32 = 3;
/// The most that the kernel takes (`CGROUP_WEIGHT_MAX`).
const MOST_WEIGHT: u32 = 10_000;
/// The default of `cpu.shares`, which stands for a weight of 100.
const DEFAULT_SHARES: u64 = 1024;

/// More weight for a VM against a rival that its vCPUs wait for.
///
/// The weight that decides is that of the group of this VM next to a group of the other.
///
/// `None` where no such group is this VM's alone, and where its weight is unknown or the most. `None` too
/// where a thread is not of the fair class.
#[must_use]
pub fn more_weight(vm: &Vm, rival: &Vm, snapshot: &Snapshot) -> Option<Change> {
    let threads = vm.vcpus().chain(rival.vcpus());
    let mut policies = threads.filter_map(|thread| thread.policy);
    if policies.any(|policy| !matches!(policy, Policy::Other | Policy::Batch)) {
        return None;
    }
    let (vm_path, rival_path) = (whole(vm)?, whole(rival)?);
    let groups = snapshot.groups_above(vm_path);
    let group = groups
        .filter(|group| group.path != "/" && !is_below(rival_path, &group.path))
        .last()?;
    let is_alone = snapshot
        .vms
        .iter()
        .filter(|known| known.name != vm.name)
        .filter_map(whole)
        .all(|path| !is_below(path, &group.path));
    let former = weight(group)?;
    let raised = former.saturating_mul(MORE_WEIGHT).min(MOST_WEIGHT);
    if !is_alone || group.idle == Some(true) || raised <= former {
        return None;
    }
    let file = GroupFile::new(snapshot, group);
    let name = format!(
        "cpu.weight of {} = {raised}, which takes time from {}",
        group.path, rival.name
    );
    let mut change = Change::command(name, file.weight(raised), file.weight(former));
    // Managers keep the weight of the VM's own group.
    if group.path == vm_path {
        let weight = raised;
        change
            .managers
            .extend(by_manager(vm, VmSetting::Weight { weight, former }));
    }
    Some(change)
}

/// The group of a VM as a whole: libvirt has groups of threads below it.
fn whole(vm: &Vm) -> Option<&str> {
    let path = vm.cgroup.as_deref()?;
    let scope = path.split_once("/libvirt/").map(|(scope, _)| scope);
    Some(scope.unwrap_or(path))
}

/// The weight of a group, if writing it back restores what it has.
fn weight(group: &Cgroup) -> Option<u32> {
    if let Some(shares) = group.shares {
        let weight = shares * 100 / DEFAULT_SHARES;
        let is_exact = (weight * DEFAULT_SHARES).div_ceil(100) == shares;
        return u32::try_from(weight).ok().filter(|_| is_exact);
    }
    u32::try_from(group.weight?).ok()
}

/// A CPU for each vCPU of a VM, none of which is in `offered` or has a bound vCPU of another VM.
///
/// `None` where there are too few such CPUs, where the affinity of a thread is unknown, and where the
/// vCPUs are bound like that already.
#[must_use]
pub fn own_cpus(vm: &Vm, snapshot: &Snapshot, offered: &mut BTreeSet<u32>) -> Option<Change> {
    let view = View::new(snapshot);
    let vcpus: Vec<&Thread> = vm.vcpus().collect();
    let bound: BTreeSet<u32> = vcpus
        .iter()
        .map(|thread| affinity(thread))
        .filter(|cpus| cpus.len() == 1)
        .flatten()
        .collect();
    if vcpus.is_empty() || bound.len() == vcpus.len() {
        return None;
    }
    let usable: BTreeSet<u32> = vcpus.iter().flat_map(|thread| affinity(thread)).collect();
    let allowed = allowed(vm, snapshot);
    let is_free = |cpu: &u32| {
        let mut pins = view.pinned.get(cpu).into_iter().flatten();
        let is_reserved = view.isolated.contains(cpu) && !usable.contains(cpu);
        let is_allowed = allowed.as_ref().is_none_or(|allowed| allowed.contains(cpu));
        pins.all(|pin| pin.vm.name == vm.name)
            && !is_reserved
            && is_allowed
            && !offered.contains(cpu)
    };
    // CPUs that they may use already come first.
    let (near, far): (Vec<u32>, Vec<u32>) = view
        .online
        .iter()
        .copied()
        .filter(is_free)
        .partition(|cpu| usable.contains(cpu));
    let cpus: Vec<u32> = near.into_iter().chain(far).take(vcpus.len()).collect();
    if cpus.len() < vcpus.len() {
        return None;
    }
    let list = cpulist::format(&cpus.iter().copied().collect());
    let change = bind(vm, &vcpus, &cpus, &list)?;
    offered.extend(cpus);
    Some(change)
}

/// The CPUs that the cpuset of a VM's group allows; `None` where it is unknown.
fn allowed(vm: &Vm, snapshot: &Snapshot) -> Option<BTreeSet<u32>> {
    let path = vm.cpuset_cgroup.as_deref().or(vm.cgroup.as_deref())?;
    let group = snapshot.groups_above(path).next()?;
    let cpus = cpus_in(group.effective_cpus.as_deref());
    (!cpus.is_empty()).then_some(cpus)
}

fn bind(vm: &Vm, vcpus: &[&Thread], cpus: &[u32], list: &str) -> Option<Change> {
    let HostSetting::Step(step) = knobs::find("pinning")?.host else {
        return None;
    };
    let (mut pin_steps, mut managers) = (Steps::default(), Vec::new());
    for (thread, cpu) in vcpus.iter().zip(cpus) {
        let (vcpu, former) = (thread.vcpu?, thread.affinity.as_deref()?);
        let cpu = cpu.to_string();
        if cpu == former {
            continue;
        }
        let target = StepTarget {
            tids: &[thread.tid],
            ..StepTarget::default()
        };
        let [value, former_value] =
            [cpu.as_str(), former].map(|cpus| Value::Words(cpus.to_owned()));
        let steps = step.fill(&value, &former_value, &target);
        pin_steps.set.extend(steps.set);
        pin_steps.undo.extend(steps.undo);
        let setting = VmSetting::Vcpu {
            vcpu,
            cpus: &cpu,
            former,
        };
        managers.extend(by_manager(vm, setting));
    }
    let mut change = Change::by_step(format!("pin {}=1:1 {list}", vm.name), &step, pin_steps);
    change.managers = merge(managers);
    if !change.managers.is_empty() {
        change.note.clear();
    }
    Some(change)
}

#[cfg(test)]
mod tests {
    use stealtime_host::{Manager, ThreadKind};

    use super::*;

    fn vm(name: &str, first: i32, affinities: &[&str]) -> Vm {
        let threads = (0_u32..).zip(first..).zip(affinities);
        let threads = threads.map(|((vcpu, tid), cpus)| Thread {
            tid,
            kind: ThreadKind::Vcpu,
            vcpu: Some(vcpu),
            affinity: Some((*cpus).to_owned()),
            policy: Some(Policy::Other),
            ..Thread::default()
        });
        Vm {
            name: name.to_owned(),
            manager: Manager::Libvirt,
            threads: threads.collect(),
            cgroup: Some(format!("/vms/{name}")),
            ..Vm::default()
        }
    }

    fn host(vms: Vec<Vm>, weights: &[(&str, u64)]) -> Snapshot {
        let groups = weights.iter().map(|(path, weight)| Cgroup {
            path: (*path).to_owned(),
            hierarchy: "v2".to_owned(),
            weight: Some(*weight),
            ..Cgroup::default()
        });
        let mut snapshot = Snapshot {
            cgroups: groups.collect(),
            vms,
            ..Snapshot::default()
        };
        snapshot.cpu.online = Some("0-3".to_owned());
        snapshot
    }

    #[test]
    fn weight_is_raised_where_two_vms_compete() {
        let vms = vec![vm("web", 10, &["0-3"]), vm("db", 20, &["0-3"])];
        let weights = [
            ("/", 100),
            ("/vms", 100),
            ("/vms/web", 50),
            ("/vms/db", 100),
        ];
        let snapshot = host(vms, &weights);
        let [web, db] = &snapshot.vms[..] else {
            panic!("two VMs");
        };
        let change = more_weight(web, db, &snapshot).expect("a change");
        assert_eq!(change.set, ["echo 150 > /sys/fs/cgroup/vms/web/cpu.weight"]);
        assert_eq!(change.undo, ["echo 50 > /sys/fs/cgroup/vms/web/cpu.weight"]);
        assert_eq!(
            change.managers[0].set,
            ["virsh schedinfo web --live cpu_shares=150"]
        );
        // A group with another VM in it: more weight is for both.
        let mut shared = snapshot.clone();
        shared.vms[1].cgroup = Some("/db".to_owned());
        shared.vms.push(vm("mail", 30, &["0-3"]));
        assert_eq!(more_weight(&shared.vms[0], &shared.vms[1], &shared), None);
        // Weight does nothing for a real-time thread, nor above the most.
        let mut fifo = snapshot.clone();
        fifo.vms[1].threads[0].policy = Some(Policy::Fifo);
        assert_eq!(more_weight(&fifo.vms[0], &fifo.vms[1], &fifo), None);
        let most = host(snapshot.vms.clone(), &[("/vms/web", 10_000)]);
        assert_eq!(more_weight(web, db, &most), None);
    }

    #[test]
    fn shares_are_restored_exactly() {
        let group = |shares| Cgroup {
            shares: Some(shares),
            ..Cgroup::default()
        };
        assert_eq!(weight(&group(1024)), Some(100));
        assert_eq!(weight(&group(512)), Some(50));
        assert_eq!(weight(&group(1000)), None);
    }

    #[test]
    fn vcpus_get_cpus_that_no_other_vm_is_bound_to() {
        let vms = vec![vm("web", 10, &["0-1", "0-1"]), vm("db", 20, &["1"])];
        let snapshot = host(vms, &[]);
        let web = &snapshot.vms[0];
        let mut offered = BTreeSet::new();
        let change = own_cpus(web, &snapshot, &mut offered).expect("a change");
        assert_eq!(change.set, ["taskset -pc 0 10", "taskset -pc 2 11"]);
        assert_eq!(change.undo, ["taskset -pc 0-1 10", "taskset -pc 0-1 11"]);
        assert_eq!(
            change.managers[0].set,
            [
                "virsh vcpupin web 0 0 --live",
                "virsh vcpupin web 1 2 --live"
            ]
        );
        // The next VM finds one CPU left.
        assert_eq!(offered, BTreeSet::from([0, 2]));
        assert_eq!(own_cpus(web, &snapshot, &mut offered), None);
        // vCPUs that have one each stay there.
        let bound = host(vec![vm("web", 10, &["2", "3"])], &[]);
        assert_eq!(own_cpus(&bound.vms[0], &bound, &mut BTreeSet::new()), None);
        // No command helps against a cpuset.
        let mut confined = snapshot.clone();
        confined.vms[0].cpuset_cgroup = Some("/vms/web".to_owned());
        confined.cgroups.push(Cgroup {
            path: "/vms/web".to_owned(),
            effective_cpus: Some("0-1".to_owned()),
            ..Cgroup::default()
        });
        assert_eq!(
            own_cpus(&confined.vms[0], &confined, &mut BTreeSet::new()),
            None
        );
    }
}
