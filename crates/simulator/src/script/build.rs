//! Making the tasks that run scripts.

use stealtime_hypervisor::fair::weights::shares_of_cpu_weight;
use stealtime_hypervisor::fair::{Attr, GroupId, Preempt};

use super::{Moves, ScriptGroup, ScriptRunner, ScriptTask, Scripts, expect_tick};
use crate::fault::Sim;
use crate::host::{Body, Callback, CpuSet, Host, Message, bandwidth, build as host_build};
use crate::ids::CpuNr;

/// The cgroups of a VM with tasks that run scripts.
#[derive(Clone, Copy, Debug, Default)]
struct ScriptGroups {
    /// That of its vCPUs, or which holds one for each.
    vcpus: Option<GroupId>,
    /// That of its other threads.
    others: Option<GroupId>,
    limit: Option<u32>,
}

/// Tasks that do what was recorded.
pub(crate) fn add_tasks(runner: &mut ScriptRunner, host: &mut Host<'_>) -> Sim {
    let scripts = host.cfg().scripts.clone();
    let groups = add_groups(host, &scripts)?;
    for (index, config) in scripts.tasks.iter().enumerate() {
        let vm_groups = config.vm.and_then(|vm| groups.get(vm as usize));
        let vm_groups = vm_groups.copied().unwrap_or_default();
        let group = match vm_groups.vcpus {
            Some(vcpus) if config.vcpu.is_some() && scripts.vcpu_groups => {
                Some(host.create_group(Some(vcpus))?)
            }
            Some(vcpus) if config.vcpu.is_some() => Some(vcpus),
            _ => vm_groups.others,
        };
        let allowed = if config.cpus.is_empty() {
            CpuSet::ALL
        } else {
            CpuSet::of(&config.cpus)
        };
        let attr = Attr {
            policy: config.policy,
            nice: config.nice,
            ..Attr::default()
        };
        let task = host_build::add_task_with(host, &config.name, group, attr, allowed, None)?;
        let timer = host.add_timer(Callback::Script(task));
        host.set_bandwidth(task, vm_groups.limit);
        if config.moves != Moves::Scheduler {
            host.keep(task);
        }
        if let Moves::Times(moves) = &config.moves
            && let Some(&(time, _)) = moves.first()
        {
            host.post(time, Message::ScriptMoves { task });
        }
        host.set_cpu(task, CpuNr(config.first_cpu));
        let script = ScriptTask::new(config, timer, index);
        host.set_body(task, Body::Script(Box::new(script)));
        if let (Some(vm), Some(number)) = (config.vm, config.vcpu) {
            runner.yields.add(vm, number, task);
        }
        // Where all requests count at once, no occasion is needed.
        if host.cfg().knobs.sched.preempt == Preempt::Lazy {
            expect_tick(host, task)?;
        }
        if config.starts_ns > 0 {
            host.defer(task);
            host.post(config.starts_ns, Message::StartScript { task });
        }
    }
    Ok(())
}

/// The groups of each VM of scripts and its limit.
fn add_groups(host: &mut Host<'_>, scripts: &Scripts) -> Sim<Vec<ScriptGroups>> {
    let has_groups = scripts.groups.iter().any(Option::is_some);
    let slice = match scripts.slice && has_groups {
        true => Some(host.create_group(None)?),
        false => None,
    };
    let mut shared: Vec<ScriptGroups> = Vec::new();
    for config in &scripts.shared_groups {
        let above = config.parent.and_then(|parent| shared.get(parent));
        let above = above.copied().unwrap_or_default();
        let (group, limit) = add_group(host, above.others, &config.group)?;
        shared.push(ScriptGroups {
            vcpus: Some(group),
            others: Some(group),
            limit: limit.or(above.limit),
        });
    }
    let mut groups = Vec::new();
    for (vm, config) in scripts.groups.iter().enumerate() {
        let above = scripts.shared_by_vm.get(&vm);
        let above = above.and_then(|&index| shared.get(index)).copied();
        let above = above.unwrap_or_default();
        let Some(config) = config else {
            groups.push(above);
            continue;
        };
        let (group, limit) = add_group(host, above.others.or(slice), config)?;
        let (mut vcpus, mut rest) = (group, group);
        if scripts.vcpu_groups {
            vcpus = host.create_group(Some(group))?;
            rest = host.create_group(Some(vcpus))?;
        }
        groups.push(ScriptGroups {
            vcpus: Some(vcpus),
            others: Some(rest),
            limit: limit.or(above.limit),
        });
    }
    Ok(groups)
}

/// A cgroup under another one or the root, and its limit.
fn add_group(
    host: &mut Host<'_>,
    parent: Option<GroupId>,
    config: &ScriptGroup,
) -> Sim<(GroupId, Option<u32>)> {
    let group = host.create_group(parent)?;
    let shares = shares_of_cpu_weight(u64::from(config.cpu_weight));
    host.set_shares(group, shares)?;
    let limit = config.cpu_max_ns;
    let limit = limit.map(|(quota, period)| bandwidth::limit(host, group, quota, period));
    Ok((group, limit))
}
