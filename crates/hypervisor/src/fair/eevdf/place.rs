//! Placement: the virtual times of an entity that joins a queue, and those it keeps as it leaves.

use super::lag::{Average, entity_lag, update_queued_lag};
use crate::fair::cfs_rq::{CfsRq, Running};
use crate::fair::config::Config;
use crate::fair::features::Feature;
use crate::fair::ids::{Ent, Que};
use crate::fair::sched::Sched;
use crate::fair::sched_entity::SchedEntity;
use crate::fair::weights::mul_div;

/// `place_entity`: sets vruntime and deadline of `ent`, which is not a member yet.
///
/// Inserting an entity with lag moves the average. For the lag to be `vlag` *after* the
/// insertion, it is multiplied by `(W + w) / W` first.
#[inline(always)]
pub(super) fn place_entity(
    cfs_rq: &mut CfsRq,
    curr: Option<Running>,
    ent: &mut SchedEntity,
    cfg: &Config,
    initial: bool,
) {
    let features = cfg.features;
    let Average {
        vruntime: v,
        weight: load,
    } = cfs_rq.avg_vruntime(curr);
    ent.begin_placement(cfg.base_slice_ns);
    let (vlag, w) = (ent.vlag(), ent.weight());
    let mut vruntime = v;
    if vlag != 0 && features.has(Feature::PlaceLag) && cfs_rq.members() > 0 {
        let lag = mul_div(vlag, load + w, load);
        vruntime = v.wrapping_sub(lag as u64);
        // The average will be near a heavy entity: from an old base its key, times its weight,
        // would leave 64 bits.
        if w > load {
            cfs_rq.set_zero(vruntime);
        }
    }
    ent.place(vruntime, features, initial);
}

/// [`place_entity`] of `e` in `q`.
pub(super) fn place(sched: &mut Sched, q: Que, e: Ent, initial: bool) {
    let mut level = sched.tree.level(q);
    let curr = level.running();
    let (cfs_rq, ent) = level.pair(e);
    place_entity(cfs_rq, curr, ent, &sched.cfg, initial);
}

/// `requeue_delayed_entity`: a delayed entity becomes an ordinary one again.
pub(crate) fn requeue_delayed(sched: &mut Sched, e: Ent) {
    let q = sched.tree.pick_queue(e);
    sched.update_curr(q);
    if update_queued_lag(sched, q, e) {
        requeue_entity(sched, q, e);
    }
    clear_delayed(sched, e);
}

/// Takes a queued entity out, places it by its lag, and puts it back.
pub(crate) fn requeue_entity(sched: &mut Sched, q: Que, e: Ent) {
    let mut level = sched.tree.level(q);
    // Not a member: placement asks whether there are others.
    level.unlink(e);
    let curr = level.running();
    let (cfs_rq, ent) = level.pair(e);
    place_entity(cfs_rq, curr, ent, &sched.cfg, false);
    level.link(e);
}

/// `set_delayed`: a delayed task is not runnable on any level.
pub(super) fn set_delayed(sched: &mut Sched, e: Ent) {
    sched.tree[e].set_delayed(true);
    count_runnable(sched, e, false);
}

/// `clear_delayed`.
pub(super) fn clear_delayed(sched: &mut Sched, e: Ent) {
    sched.tree[e].set_delayed(false);
    count_runnable(sched, e, true);
}

/// Groups are not counted: their tasks are uncounted already.
fn count_runnable(sched: &mut Sched, e: Ent, runnable: bool) {
    let mut e = if sched.tree[e].is_task() {
        e
    } else {
        Ent::NONE
    };
    while e.is_some() {
        let queue = sched.tree[e].queue();
        let tasks = if runnable { 1 } else { -1 };
        sched.tree[queue].add_runnable(tasks);
        sched.group_runnable(queue, tasks);
        e = sched.tree[queue].owner();
    }
}

/// Changes the weight at which a queued entity competes, in its pick queue `q`.
pub(super) fn reweight_queued(sched: &mut Sched, q: Que, e: Ent, weight: u64) {
    debug_assert!(sched.tree[e].on_rq(), "not queued");
    let curr = sched.tree[q].curr() == e;
    let v = sched.tree.avg_vruntime(q).vruntime;
    let vlag = entity_lag(sched, q, e, v);
    let ent = &mut sched.tree[e];
    let protected = curr && ent.protected();
    // The tree still has the old position, and the sums the old vruntime and weight.
    ent.make_relative(v, vlag, protected);
    if !curr {
        sched.tree.level(q).tree_remove(e);
    }
    sched.rescale_entity(e, weight, protected);
    sched.tree[e].make_absolute(v, protected);
    if !curr {
        sched.tree.level(q).tree_insert(e);
    }
}
