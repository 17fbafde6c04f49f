//! Invariants of a run queue, recomputed from scratch.

use super::{Ent, Hierarchy, PickMode, Que};

/// Sums over a queue's tree, recomputed.
#[derive(Default)]
struct Sums {
    entities: u32,
    weight: u64,
    w_vruntime: i64,
    load: u64,
    nr_queued: u32,
    h_nr_queued: u32,
    h_nr_runnable: u32,
    h_nr_idle: u32,
}

impl Hierarchy {
    /// Checks `q` and all below it.
    pub(crate) fn check_queue(&self, q: Que, mode: PickMode) -> bool {
        let queue = &self[q];
        let mut sums = Sums::default();
        let mut fine = true;
        let mut last: Option<u64> = None;
        self.pool.for_each(queue.timeline(), &mut |e| {
            let e = Ent(e);
            let ent = &self[e];
            let key = ent.vruntime().wrapping_sub(queue.zero_vruntime()) as i64;
            sums.entities += 1;
            sums.weight += ent.weight();
            let term = key.wrapping_mul(ent.weight() as i64);
            sums.w_vruntime = sums.w_vruntime.wrapping_add(term);
            fine &=
                ent.on_rq() && self.pick_queue(e) == q && e != queue.curr() && !ent.rel_deadline();
            let order = last.is_none_or(|l| ent.deadline().wrapping_sub(l) as i64 >= 0);
            fine &= order;
            last = Some(ent.deadline());
            fine &= mode == PickMode::Flat || self.check_entity(q, e, mode, &mut sums);
        });
        if let Some(curr) = self.curr_on(q) {
            sums.entities += 1;
            fine &= mode == PickMode::Flat || self.check_entity(q, curr, mode, &mut sums);
        }
        let next = queue.next();
        fine &= next.is_none() || (self[next].on_rq() && self.pick_queue(next) == q);
        let tree = sums.weight == queue.sum_weight() && sums.w_vruntime == queue.sum_w_vruntime();
        fine &= tree && sums.entities == queue.members();
        fine && (mode == PickMode::Flat || self.counters_agree(q, &sums))
    }

    fn counters_agree(&self, q: Que, sums: &Sums) -> bool {
        let queue = &self[q];
        sums.load == self.level_load(q)
            && sums.nr_queued == self.level_queued(q)
            && sums.h_nr_queued == queue.h_nr_queued()
            && sums.h_nr_runnable == queue.h_nr_runnable()
            && sums.h_nr_idle == queue.h_nr_idle()
    }

    /// Adds a member to the sums of its level, and checks a group's own queue.
    fn check_entity(&self, q: Que, e: Ent, mode: PickMode, sums: &mut Sums) -> bool {
        let ent = &self[e];
        sums.load += self.load(e);
        sums.nr_queued += 1;
        if ent.is_task() {
            sums.h_nr_queued += 1;
            sums.h_nr_runnable += u32::from(!ent.delayed());
            sums.h_nr_idle += u32::from(self.is_idle(e));
            return ent.queue() == q
                && ent.is_live(ent.generation())
                && self.load(e) == ent.weight();
        }
        let below = &self[ent.my_q()];
        sums.h_nr_queued += below.h_nr_queued();
        sums.h_nr_runnable += below.h_nr_runnable();
        sums.h_nr_idle += if below.is_idle() {
            below.h_nr_queued()
        } else {
            below.h_nr_idle()
        };
        // Only a delayed group may be queued while it is empty.
        let filled = ent.delayed() == (below.members() == 0);
        filled && ent.queue() == q && below.owner() == e && self.check_queue(ent.my_q(), mode)
    }
}
