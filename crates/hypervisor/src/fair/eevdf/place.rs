//! Placement: the virtual times of an entity that joins a queue, and those it keeps as it leaves.

use super::lag::Average;
use crate::fair::Fair;
use crate::fair::config::Config;
use crate::fair::entity::Entity;
use crate::fair::features::Feature;
use crate::fair::ids::{Ent, Que};
use crate::fair::queue::{Queue, Running};
use crate::fair::weights::mul_div;

impl Queue {
    /// `place_entity`: sets vruntime and deadline of `ent`, which is not a member yet.
    ///
    /// Inserting an entity with lag moves the average. For the lag to be `vlag` *after* the
    /// insertion, it is multiplied by `(W + w) / W` first.
    #[inline(always)]
    pub(crate) fn place_entity(
        &mut self,
        curr: Option<Running>,
        ent: &mut Entity,
        cfg: &Config,
        initial: bool,
    ) {
        let features = cfg.features;
        let Average {
            vruntime: v,
            weight: load,
        } = self.avg_vruntime(curr);
        if !ent.custom_slice() {
            ent.slice = cfg.base_slice_ns as u32;
        }
        let (vlag, w) = (ent.vlag, ent.weight);
        let mut vruntime = v;
        if vlag != 0 && features.has(Feature::PlaceLag) && self.members > 0 {
            let lag = mul_div(vlag, load + w, load);
            vruntime = v.wrapping_sub(lag as u64);
            // The average will be near a heavy entity: from an old base its key, times its weight,
            // would leave 64 bits.
            if w > load {
                self.set_zero(vruntime);
            }
        }
        ent.vruntime = vruntime;
        if features.has(Feature::PlaceRelDeadline) && ent.rel_deadline {
            ent.deadline = ent.deadline.wrapping_add(vruntime);
            ent.rel_deadline = false;
            return;
        }
        let mut vslice = ent.vtime(u64::from(ent.slice));
        if features.has(Feature::PlaceDeadlineInitial) && initial {
            vslice /= 2;
        }
        ent.deadline = vruntime.wrapping_add(vslice);
    }
}

impl Entity {
    /// Replaces the deadline by its distance, which an entity keeps while it is off the queue.
    #[inline]
    pub(crate) fn make_deadline_relative(&mut self) {
        debug_assert!(!self.rel_deadline, "a distance already");
        self.deadline = self.deadline.wrapping_sub(self.vruntime);
        self.rel_deadline = true;
    }
}

impl Fair {
    /// [`Queue::place_entity`].
    pub(crate) fn place_entity(&mut self, q: Que, e: Ent, initial: bool) {
        let queue = &mut self.que[q];
        let curr = queue.running(&self.ent);
        queue.place_entity(curr, &mut self.ent[e], &self.cfg, initial);
    }

    /// `requeue_delayed_entity`: a delayed entity becomes an ordinary one again.
    pub(crate) fn requeue_delayed(&mut self, e: Ent) {
        let q = self.pick_queue(e);
        self.update_curr(q);
        if self.update_entity_lag(q, e) {
            self.requeue_entity(q, e);
        }
        self.clear_delayed(e);
    }

    /// Takes a queued entity out, places it by its lag, and puts it back.
    pub(crate) fn requeue_entity(&mut self, q: Que, e: Ent) {
        let curr = self.que[q].curr == e;
        self.que[q].members -= 1;
        if !curr {
            self.tree_remove(q, e);
        }
        self.place_entity(q, e, false);
        if !curr {
            self.tree_insert(q, e);
        }
        self.que[q].members += 1;
    }

    /// `set_delayed`: a delayed task is not runnable on any level.
    pub(crate) fn set_delayed(&mut self, e: Ent) {
        self.ent[e].delayed = true;
        self.count_runnable(e, false);
    }

    /// `clear_delayed`.
    pub(crate) fn clear_delayed(&mut self, e: Ent) {
        self.ent[e].delayed = false;
        self.count_runnable(e, true);
    }

    /// Groups are not counted: their tasks are uncounted already.
    fn count_runnable(&mut self, e: Ent, runnable: bool) {
        let mut e = if self.ent[e].is_task() { e } else { Ent::NONE };
        while e.is_some() {
            let queue = self.ent[e].queue;
            let n = &mut self.que[queue].h_nr_runnable;
            *n = if runnable { *n + 1 } else { *n - 1 };
            self.group_runnable(queue, if runnable { 1 } else { -1 });
            e = self.que[queue].owner;
        }
    }
}

/// Changes the weight at which a queued entity competes, in its pick queue `q`.
pub(super) fn reweight_queued(fair: &mut Fair, q: Que, e: Ent, weight: u64) {
    debug_assert!(fair.ent[e].on_rq, "not queued");
    let curr = fair.que[q].curr == e;
    let v = fair.avg_vruntime(q).vruntime;
    let vlag = fair.entity_lag(q, e, v);
    let ent = &mut fair.ent[e];
    ent.vlag = vlag;
    ent.deadline = ent.deadline.wrapping_sub(v);
    let protected = curr && ent.protected();
    if protected {
        ent.vprot = ent.vprot.wrapping_sub(v);
    }
    if !curr {
        // Before the rescaling: the sums still have the old vruntime and weight.
        fair.tree_remove(q, e);
    }
    fair.rescale_entity(e, weight, protected);
    let ent = &mut fair.ent[e];
    if protected {
        ent.vprot = ent.vprot.wrapping_add(v);
    }
    ent.deadline = ent.deadline.wrapping_add(v);
    ent.vruntime = v.wrapping_sub(ent.vlag as u64);
    if !curr {
        fair.tree_insert(q, e);
    }
}
