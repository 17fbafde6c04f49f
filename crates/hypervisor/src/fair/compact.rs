//! Compaction of groups on CPUs that nothing uses.
//!
//! A task that moves between CPUs leaves an entity and a queue of its group on each. Of an empty
//! one only the entity's lag and weight, its relative deadline and the queue's base have an
//! effect later. These are kept in 56 bytes, and the entity and the queue are used again.

use super::group_cpus::GroupCpu;
use super::ids::{Ent, GroupId, RqId};
use super::sched::Sched;
use super::sched_entity::Kept;

/// The state of a group on one CPU that outlives its entity there.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Compacted {
    kept: Kept,
    zero_vruntime: u64,
    pub(crate) rq: RqId,
    load: u32,
}

const _: () = assert!(size_of::<Compacted>() == 56);

/// Compacts group `g`, and groups above it, on CPUs that nothing uses.
pub(super) fn compact_group(sched: &mut Sched, g: GroupId) {
    // Backwards, because compaction removes from the list being walked.
    for i in (0..sched.groups[g].cpus().all().len()).rev() {
        let Some(cpu) = sched.groups.nth_cpu(g, i) else {
            debug_assert!(false, "only the CPU at hand is removed from the list");
            break;
        };
        if is_unused(sched, cpu.ent) {
            let above = sched.tree.parent(cpu.ent);
            compact(sched, g, i, cpu);
            compact_chain(sched, above, cpu.rq);
        }
    }
}

/// A delayed entity has left its queue. The entity of a group is compacted if all tasks below it
/// have moved to other CPUs.
#[inline]
pub(super) fn delayed_left(sched: &mut Sched, e: Ent, rq: RqId) {
    if sched.tree.is_lean() && !sched.tree[e].is_task() {
        compact_chain(sched, e, rq);
    }
}

/// Compacts unused groups from entity `e` upwards.
fn compact_chain(sched: &mut Sched, mut e: Ent, rq: RqId) {
    while e.is_some() && is_unused(sched, e) {
        let above = sched.tree.parent(e);
        let group = sched.tree[e].group();
        let index = group.and_then(|g| sched.groups[g].cpus().position(rq));
        let (Some(g), Some(index)) = (group, index) else {
            debug_assert!(
                false,
                "an entity with a parent chain stands for a group on its CPU"
            );
            return;
        };
        compact(sched, g, index, GroupCpu { rq, ent: e });
        e = above;
    }
}

/// Whether a group's entity can be compacted: nothing refers to it, and [`Compacted`] keeps all of
/// its state.
fn is_unused(sched: &Sched, e: Ent) -> bool {
    let tree = &sched.tree;
    let ent = &tree[e];
    if ent.users() > 0 || ent.on_rq() {
        return false;
    }
    // Tasks in its queue are users, and off its queue it is no buddy.
    debug_assert_eq!(tree[ent.my_q()].members(), 0, "members without users");
    let unspent = sched.credits.is_unspent(ent.my_q());
    // `Compacted` keeps the load in 32 bits.
    u32::try_from(tree.load(e)).is_ok() && sched.groups.ext_load(ent.my_q()) == 0 && unspent
}

fn compact(sched: &mut Sched, g: GroupId, index: usize, cpu: GroupCpu) {
    debug_assert!(
        is_unused(sched, cpu.ent),
        "something still refers to its entity"
    );
    let ent = &sched.tree[cpu.ent];
    let compacted = Compacted {
        kept: ent.kept(),
        zero_vruntime: sched.tree[ent.my_q()].zero_vruntime(),
        rq: cpu.rq,
        load: sched.tree.load(cpu.ent) as u32,
    };
    let lean = sched.tree.is_lean();
    sched.groups.compact(lean, g, index, compacted);
    sched.tree.add_users(sched.tree.parent(cpu.ent), -1);
    sched.tree.free_group_cpu(cpu.ent);
}

/// Restores the state of a compacted entity into its successor.
pub(super) fn restore(sched: &mut Sched, e: Ent, compacted: &Compacted) {
    debug_assert_eq!(sched.tree[e].rq(), compacted.rq, "of another CPU");
    let ent = &mut sched.tree[e];
    ent.restore(&compacted.kept);
    let my_q = ent.my_q();
    sched.tree[my_q].set_zero(compacted.zero_vruntime);
    sched.class_restored(e);
    sched.tree.set_load(e, u64::from(compacted.load));
}
