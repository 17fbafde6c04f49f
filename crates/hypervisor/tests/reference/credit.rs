//! The reference's lag credit: the scheduler half of the directed-yield series.

use stealtime_hypervisor::fair::Feature;

use crate::model::{Model, NOW};
use crate::op::MARGIN_NS;
use crate::sums::{before, from};

/// Time between two forced reschedules of a CPU.
const FORCE_NS: u64 = 6_000_000;

impl Model {
    /// A yield to `p`, which waits on `cpu` and is nominated.
    pub(crate) fn credited_yield(&mut self, cpu: usize, p: usize) {
        let mut at = Some(p);
        while let Some(e) = at.filter(|e| self.entities[*e].on_rq && !self.is_idle(*e)) {
            self.credit(e);
            at = if self.flat() { None } else { self.parent(e) };
        }
        // Charging a shared ancestor may have dropped its nomination.
        self.nominate(Some(p));
        self.yield_step(cpu);
        let last = self.cpus[cpu].forced;
        if last.is_none_or(|at| self.now - at >= FORCE_NS) {
            self.cpus[cpu].forced = Some(self.now);
            self.mark("credit forces", true);
            self.force(cpu);
        }
    }

    fn credit(&mut self, e: usize) {
        let q = self.arena(e);
        self.update_curr(q);
        let n = self.members(q).len() as i128;
        if self.eligible(q, self.entities[e].vruntime) || n == 1 {
            return;
        }
        let (_, weight) = self.sums(q, self.running_in(q));
        let ent = &self.entities[e];
        let margin = i128::from(MARGIN_NS) * (n - 1);
        let target = margin.min(i128::from(self.lag_bound(q, e)));
        let runs = self.queues[q].curr == Some(e);
        self.mark("credit in place", runs);
        self.mark("credit in the tree", !runs);
        if runs {
            let others = weight - ent.weight;
            let lag = from(self.average(q), ent.vruntime);
            let shift = (target - lag) * i128::from(weight) / i128::from(others);
            let ent = &mut self.entities[e];
            let protected = before(ent.vruntime, ent.vprot);
            let back = |v: u64| v.wrapping_sub(shift as u64);
            (ent.vruntime, ent.deadline) = (back(ent.vruntime), back(ent.deadline));
            if protected {
                ent.vprot = back(ent.vprot);
            }
            // The base goes along.
            self.queues[q].zero = self.entities[e].vruntime.wrapping_add(target as u64);
            return;
        }
        let keeps = self.setup.keep_request && self.has(Feature::PlaceRelDeadline);
        self.leave_tree(q, e);
        let ent = &mut self.entities[e];
        ent.vlag = target as i64;
        let request = ent.deadline.wrapping_sub(ent.vruntime);
        self.place(q, e, false);
        if keeps {
            let ent = &mut self.entities[e];
            ent.deadline = ent.vruntime.wrapping_add(request);
        }
        self.queues[q].tree.push(e);
    }

    /// Ends protection along the running chain, but of buddies.
    fn force(&mut self, cpu: usize) {
        let mut at = self.cpus[cpu].curr;
        while let Some(e) = at {
            let spared = self.queues[self.arena(e)].next == Some(e);
            self.mark("credit spares a buddy", spared);
            let ent = &mut self.entities[e];
            if !spared && before(ent.vruntime, ent.vprot) {
                ent.vprot = ent.vruntime;
            }
            at = if self.flat() { None } else { self.parent(e) };
        }
        self.request(cpu, NOW);
    }
}
