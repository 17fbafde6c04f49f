//! Groups on their CPUs: making and moving entities, and the weights that follow from shares.

use super::compact;
use super::error::Error;
use super::group_cpus::GroupCpu;
use super::ids::{Ent, GroupId, RqId};
use super::sched::Sched;
use super::weights::{NICE_0_LOAD, WEIGHT_IDLEPRIO};

/// Makes the entity and queue of a group and its ancestors on a CPU (`alloc_fair_sched_group`, of
/// one CPU). Nothing happens where they exist.
pub(super) fn extend(sched: &mut Sched, g: GroupId, rq: RqId) -> Result<(), Error> {
    sched.groups.get(g)?;
    let root = sched.rq(rq)?.root();
    if sched.groups.group_se(g, rq).is_some() {
        return Ok(());
    }
    let (parent, queue) = match sched.groups[g].parent() {
        Some(above) => {
            extend(sched, above, rq)?;
            let e = sched.groups.group_se(above, rq);
            (e, sched.tree[e].my_q())
        }
        None => (Ent::NONE, root),
    };
    let (e, my_q) = match sched.tree.reuse_group_cpu() {
        Some(reused) => reused,
        None => {
            let (e, my_q) = sched.tree.new_group_cpu()?;
            sched.push_queue(e);
            (e, my_q)
        }
    };
    let group = &sched.groups[g];
    sched.tree[my_q].set_idle(group.is_idle());
    sched.tree.add_users(parent, 1);
    let ent = &mut sched.tree[e];
    ent.init_group(g, rq, my_q, queue, group.depth() - 1);
    sched.tree.set_pick_queue(e, queue);
    let cpu = GroupCpu { rq, ent: e };
    if let Some(compacted) = sched.groups.add_cpu(sched.tree.is_lean(), g, cpu) {
        compact::restore(sched, e, &compacted);
    }
    Ok(())
}

/// Moves an empty group under `parent`.
pub(super) fn reparent(
    sched: &mut Sched,
    g: GroupId,
    parent: Option<GroupId>,
) -> Result<(), Error> {
    let group = sched.groups.get(g)?;
    sched.groups.check_parent(g, parent)?;
    let cpus = group.cpus().all();
    if group.is_busy() || cpus.iter().any(|part| sched.tree[part.ent].on_rq()) {
        return Err(Error::GroupBusy(g));
    }
    for part in cpus {
        sched.group_cfs_rq(parent, part.rq)?;
    }
    let depth = sched.groups.set_parent(g, parent)?;
    let mut i = 0;
    while let Some(GroupCpu { rq, ent }) = sched.groups.nth_cpu(g, i) {
        let (above, queue) = sched.group_cfs_rq(parent, rq)?;
        sched.tree.add_users(sched.tree.parent(ent), -1);
        sched.tree.add_users(above, 1);
        sched.tree.set_pick_queue(ent, queue);
        let ent = &mut sched.tree[ent];
        ent.move_to(queue, depth - 1);
        i += 1;
    }
    Ok(())
}

/// Refuses a time out of range for a run queue that has a part of a group.
pub(super) fn check_clocks(sched: &mut Sched, g: GroupId, now_ns: u64) -> Result<(), Error> {
    let mut i = 0;
    while let Some(GroupCpu { rq, .. }) = sched.groups.nth_cpu(g, i) {
        sched.check_clock(rq, now_ns)?;
        i += 1;
    }
    let mut i = 0;
    while let Some(rq) = sched.groups.nth_compacted(g, i) {
        sched.check_clock(rq, now_ns)?;
        i += 1;
    }
    Ok(())
}

/// Sets a group's shares (`sched_group_set_shares`), and refreshes its weights and those above it.
pub(super) fn set_shares(sched: &mut Sched, g: GroupId, shares: u64, now_ns: u64) {
    if !sched.groups.set_shares(g, shares) {
        return;
    }
    let mut i = 0;
    while let Some(GroupCpu { rq, ent }) = sched.groups.nth_cpu(g, i) {
        i += 1;
        refresh_chain(sched, ent, rq, now_ns);
    }
    let mut i = 0;
    while let Some(rq) = sched.groups.nth_compacted(g, i) {
        i += 1;
        // A compacted part has no weight to refresh; its ancestors may have one.
        let e = sched.groups.ancestor_se(g, rq);
        refresh_chain(sched, e, rq, now_ns);
    }
}

fn refresh_chain(sched: &mut Sched, mut e: Ent, rq: RqId, now_ns: u64) {
    sched.set_clock(rq, now_ns);
    while e.is_some() {
        sched.update_cfs_group(e);
        e = sched.tree.parent(e);
    }
}

/// Makes a group idle or normal (`sched_group_set_idle`).
pub(super) fn set_idle(sched: &mut Sched, g: GroupId, idle: bool, now_ns: u64) {
    sched.groups.set_idle(g, idle);
    let mut i = 0;
    while let Some(part) = sched.groups.nth_cpu(g, i) {
        mark_idle(sched, part.ent, idle);
        i += 1;
    }
    let shares = if idle { WEIGHT_IDLEPRIO } else { NICE_0_LOAD };
    set_shares(sched, g, shares, now_ns);
}

fn mark_idle(sched: &mut Sched, mut e: Ent, idle: bool) {
    let my_q = sched.tree[e].my_q();
    let queue = &mut sched.tree[my_q];
    queue.set_idle(idle);
    let tasks = (queue.h_nr_queued() - queue.h_nr_idle()) as i32;
    while e.is_some() && sched.tree[e].on_rq() {
        let q = sched.tree[e].queue();
        let queue = &mut sched.tree[q];
        queue.add_idle(if idle { tasks } else { -tasks });
        // Above an idle group all tasks count as idle already.
        if queue.is_idle() {
            return;
        }
        e = sched.tree.parent(e);
    }
}
