//! Invariants across the parts, recomputed from scratch. It is linear in the entities.

use super::Sched;
use crate::fair::ids::{Ent, RqId};

/// Whether all sums, counters and links of a run queue agree with its entities.
pub(crate) fn rq(sched: &Sched, rq: RqId) -> bool {
    let (tree, r) = (&sched.tree, &sched.rqs[rq]);
    let running = match r.curr() {
        Ent::NONE => tree[r.root()].curr().is_none(),
        curr => tree[curr].rq() == rq && tree[tree.pick_queue(curr)].curr() == curr,
    };
    running && tree.check_queue(r.root(), r.mode())
}

/// Whether the totals of each group are the sums over its queues.
pub(crate) fn groups(sched: &Sched) -> bool {
    sched.groups.as_slice().iter().all(|group| {
        let (mut load, mut runnable) = (0, 0);
        for part in group.cpus().all() {
            let q = sched.tree[part.ent].my_q();
            load += sched.tree.level_load(q);
            runnable += sched.tree[q].h_nr_runnable();
        }
        (load, runnable) == group.totals()
    })
}

#[cfg(test)]
mod tests;
