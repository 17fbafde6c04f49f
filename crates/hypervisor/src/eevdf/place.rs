//! Where an entity joins its queue, and what it takes along when it leaves.

use super::Fair;
use super::config::Config;
use super::entity::Entity;
use super::features::Feature;
use super::ids::{Ent, Que};
use super::queue::{Queue, Running};
use super::weights::mul_div;

impl Queue {
    /// `place_entity`: gives `ent`, which is not counted yet, its vruntime and deadline.
    ///
    /// Inserting an entity with lag moves the average by it. So that the lag is `vlag` *after*
    /// the insertion, it is inflated by `(W + w) / W` before.
    #[inline(always)]
    pub(crate) fn place(
        &mut self,
        curr: Option<Running>,
        ent: &mut Entity,
        cfg: &Config,
        initial: bool,
    ) {
        let features = cfg.features;
        let (v, load) = self.avg_vruntime(curr);
        if !ent.custom_slice() {
            ent.slice = cfg.base_slice_ns as u32;
        }
        let (vlag, w) = (ent.vlag, ent.weight);
        let mut vruntime = v;
        if vlag != 0 && features.has(Feature::PlaceLag) && self.members > 0 {
            let lag = mul_div(vlag, load + w, load);
            vruntime = v.wrapping_sub(lag as u64);
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

    /// `update_entity_lag`: stores the lag of a queued entity; true if `V - vlag` is not where it
    /// is.
    ///
    /// A delayed entity keeps what it has paid of its debt and earns nothing beyond zero.
    #[inline(always)]
    pub(crate) fn update_lag(
        &mut self,
        curr: Option<Running>,
        ent: &mut Entity,
        cfg: &Config,
    ) -> bool {
        let mut longest = u64::from(self.timeline.longest());
        if let Some(c) = curr {
            longest = longest.max(c.slice);
        }
        let (v, _) = self.avg_vruntime(curr);
        let mut vlag = ent.lag_against(v, longest + cfg.tick_ns);
        if ent.delayed {
            vlag = vlag.max(ent.vlag);
            if cfg.features.has(Feature::DelayZero) {
                vlag = vlag.min(0);
            }
        }
        ent.vlag = vlag;
        v.wrapping_sub(vlag as u64) != ent.vruntime
    }
}

impl Fair {
    /// [`Queue::place`].
    pub(crate) fn place(&mut self, q: Que, e: Ent, initial: bool) {
        let queue = &mut self.que[q];
        let curr = queue.running(&self.ent);
        queue.place(curr, &mut self.ent[e], &self.cfg, initial);
    }

    /// [`Queue::update_lag`].
    pub(crate) fn update_lag(&mut self, q: Que, e: Ent) -> bool {
        let queue = &mut self.que[q];
        let curr = queue.running(&self.ent);
        queue.update_lag(curr, &mut self.ent[e], &self.cfg)
    }

    /// `requeue_delayed_entity`: a delayed entity becomes an ordinary one again.
    pub(crate) fn requeue_delayed(&mut self, e: Ent) {
        let q = self.arena(e);
        self.update_curr(q);
        if self.update_lag(q, e) {
            self.replace(q, e);
        }
        self.clear_delayed(e);
    }

    /// Takes a queued entity out, places it by its lag, and puts it back.
    pub(crate) fn replace(&mut self, q: Que, e: Ent) {
        let curr = self.que[q].curr == e;
        self.que[q].members -= 1;
        if !curr {
            self.tree_remove(q, e);
        }
        self.place(q, e, false);
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
    fn count_runnable(&mut self, e: Ent, up: bool) {
        let mut e = if self.ent[e].is_task() { e } else { Ent::NONE };
        while e.is_some() {
            let queue = self.ent[e].queue;
            let n = &mut self.que[queue].h_nr_runnable;
            *n = if up { *n + 1 } else { *n - 1 };
            self.group_runnable(queue, if up { 1 } else { -1 });
            e = self.que[queue].owner;
        }
    }
}
