//! The fair class before Linux 6.6, as in 6.1: CFS in the same queues.
//!
//! Each queue's tree is sorted by virtual runtime (`deadline` is kept equal to it), and its base,
//! `zero_vruntime`, is `min_vruntime`. There is no lag, no eligibility and no slice: who has run least
//! is next, sleepers come back up to half a latency ahead of the others, and the tick ends what has run
//! for longer than its part of the latency. `vprot` counts the ns since the entity was picked
//! (`sum_exec_runtime - prev_sum_exec_runtime`).
//!
//! `HRTICK` (off in 6.1) is not there, nor are features whose switches nobody turns any more:
//! `GENTLE_FAIR_SLEEPERS`, `START_DEBIT`, `LAST_BUDDY`, `ALT_PERIOD` and `BASE_SLICE` are on.

use super::Fair;
use super::enqueue::{Count, Dequeue, Enqueue};
use super::entity::{Entity, Marks, Policy, TaskState};
use super::features::Feature;
use super::group::scale_load_down;
use super::ids::{Arena, Ent, Que};
use super::preempt::Arrival;
use super::queue::Resched;
use super::weights::{NICE_0_LOAD, before, earlier, tunable_scaling};

/// Tunables of CFS, in ns (`/sys/kernel/debug/sched/`). The first two in [100 000, 1 000 000 000], the
/// last in [0, 1 000 000 000].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cfs {
    /// `latency_ns`: the time in which each of a few tasks runs once.
    pub latency_ns: u64,
    /// `min_granularity_ns`: the shortest slice.
    pub min_granularity_ns: u64,
    /// `wakeup_granularity_ns`: how far behind in virtual time a task has to be to preempt as it
    /// wakes.
    pub wakeup_granularity_ns: u64,
}

impl Cfs {
    /// Features of EEVDF that CFS has too; the others do nothing.
    pub const FEATURES: [Feature; 2] = [Feature::WakeupPreemption, Feature::NextBuddy];

    /// What Linux 6.1 sets for so many CPUs: 6, 0.75 and 1 ms, times 1 + log2(min(cpus, 8)).
    #[must_use]
    pub fn linux_6_1(cpus: u32) -> Self {
        let factor = tunable_scaling(cpus);
        Self {
            latency_ns: 6_000_000 * factor,
            min_granularity_ns: 750_000 * factor,
            wakeup_granularity_ns: 1_000_000 * factor,
        }
    }

    /// Up to how many tasks the latency holds for (`sched_nr_latency`).
    fn nr_latency(&self) -> u64 {
        self.latency_ns.div_ceil(self.min_granularity_ns.max(1))
    }

    /// `__sched_period`, for so many running tasks.
    fn period_ns(&self, running: u64) -> u64 {
        if running > self.nr_latency() {
            running.saturating_mul(self.min_granularity_ns)
        } else {
            self.latency_ns
        }
    }
}

/// `sysctl_sched_idle_min_granularity`, which is not scaled by the number of CPUs.
const IDLE_MIN_GRANULARITY_NS: u64 = 750_000;

/// Buddies of a queue that EEVDF has not.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Buddies {
    /// Who was preempted, to come back soon.
    last: Ent,
    /// Who has yielded.
    skip: Ent,
}

impl Buddies {
    pub(crate) const NONE: Self = Self {
        last: Ent::NONE,
        skip: Ent::NONE,
    };
}

/// Inverse of a weight that is computed (`__update_inv_weight`), 2^32 for 1.
fn inverse(weight: u64) -> u64 {
    match scale_load_down(weight) {
        0 => u64::from(u32::MAX),
        scaled => (u64::from(u32::MAX) / scaled).max(1),
    }
}

/// Inverse of a task's weight (`sched_prio_to_wmult`): rounded, but from nice 13 on cut.
fn task_inverse(weight: u64) -> u64 {
    const CUT_FROM: u64 = 56;
    let scaled = (weight >> 10).max(1);
    let half = if scaled > CUT_FROM { scaled / 2 } else { 0 };
    ((1 << 32) + half) / scaled
}

/// `__calc_delta`: `delta * weight` by an inverse, as exact as 32 bits are.
fn calc_delta(delta: u64, weight: u64, inverse: u64) -> u64 {
    let mut shift = 32;
    let mut shorten = |fact: u64| {
        let bits = u64::BITS - (fact >> 32).leading_zeros();
        shift -= bits;
        fact >> bits
    };
    let fact = shorten(scale_load_down(weight));
    let fact = shorten(fact.wrapping_mul(inverse));
    ((u128::from(delta) * u128::from(fact)) >> shift) as u64
}

impl Entity {
    /// `calc_delta_fair` of CFS.
    fn cfs_vtime(&self, delta_ns: u64) -> u64 {
        if self.weight == NICE_0_LOAD {
            return delta_ns;
        }
        let inverse = match self.is_task() {
            true => task_inverse(self.weight),
            false => inverse(self.weight),
        };
        calc_delta(delta_ns, NICE_0_LOAD, inverse)
    }

    fn set_vruntime(&mut self, vruntime: u64) {
        (self.vruntime, self.deadline) = (vruntime, vruntime);
    }
}

/// `entity_before`.
fn runs_before(ents: &Arena<Entity>, a: Ent, b: Ent) -> bool {
    before(ents[a].vruntime, ents[b].vruntime)
}

impl Fair {
    /// `update_curr`, for time that has passed.
    #[cold]
    #[inline(never)]
    pub(crate) fn cfs_charge(&mut self, q: Que, curr: Ent) {
        let c = &mut self.ent[curr];
        let delta = self.now - c.exec_start;
        c.exec_start = self.now;
        c.vprot += delta;
        let vruntime = c.vruntime.wrapping_add(c.cfs_vtime(delta));
        c.set_vruntime(vruntime);
        self.cfs_advance(q);
    }

    /// `update_min_vruntime`.
    fn cfs_advance(&mut self, q: Que) {
        let queue = &self.que[q];
        let curr = queue.running(&self.ent).map(|curr| curr.vruntime);
        let first = self.pool.first(&queue.timeline);
        let first = first.map(|e| self.ent[Ent(e)].vruntime);
        let least = match (curr, first) {
            (Some(curr), Some(first)) => earlier(curr, first),
            (curr, first) => match curr.or(first) {
                Some(one) => one,
                None => return,
            },
        };
        let queue = &mut self.que[q];
        if before(queue.zero_vruntime, least) {
            queue.set_zero(least);
        }
    }

    /// `sched_slice`, in ns.
    fn cfs_slice(&self, cfs: &Cfs, q: Que, entity: Ent) -> u64 {
        let ent = &self.ent[entity];
        let root = self.rqs[ent.rq].root;
        let joins = u64::from(!ent.on_rq);
        let mut slice = cfs.period_ns(u64::from(self.que[root].h_nr_queued) + joins);
        let mut e = entity;
        while let Some(ent) = self.ent.at(e) {
            let own = if ent.on_rq { 0 } else { ent.weight };
            let load = self.weight(ent.queue) + own;
            slice = calc_delta(slice, ent.weight, inverse(load));
            e = self.parent(e);
        }
        let idle = self.is_idle(entity) && !self.is_all_idle(q);
        slice.max(match idle {
            true => IDLE_MIN_GRANULARITY_NS,
            false => cfs.min_granularity_ns,
        })
    }

    /// `place_entity`.
    fn cfs_place(&mut self, cfs: &Cfs, q: Que, e: Ent, initial: bool) {
        let least = self.que[q].zero_vruntime;
        let vruntime = match initial {
            true => {
                let slice = self.cfs_slice(cfs, q, e);
                least.wrapping_add(self.ent[e].cfs_vtime(slice))
            }
            false if self.is_idle(e) => least.wrapping_sub(cfs.min_granularity_ns >> 1),
            false => least.wrapping_sub(cfs.latency_ns >> 1),
        };
        let ent = &mut self.ent[e];
        if before(ent.vruntime, vruntime) {
            ent.set_vruntime(vruntime);
        }
    }

    /// A task that sleeps or migrates takes its virtual runtime along as a distance
    /// (`migrate_task_rq_fair`).
    #[cold]
    #[inline(never)]
    pub(crate) fn cfs_leave(&mut self, e: Ent) {
        let ent = &self.ent[e];
        let off = matches!(ent.state, TaskState::Asleep | TaskState::Throttled);
        if off && ent.marks.has(Marks::HOMED) && !ent.rel_deadline {
            self.cfs_normalize(ent.queue, e);
        }
    }

    /// A sleeper that is to change its group is placed where it is, so that it gets no more for
    /// sleeping than one that wakes (`detach_task_cfs_rq`). Whether it is one.
    pub(crate) fn cfs_settle(&mut self, e: Ent) -> bool {
        let ent = &self.ent[e];
        let off = matches!(ent.state, TaskState::Asleep | TaskState::Throttled);
        let sleeps = off && ent.marks.has(Marks::HOMED) && !ent.rel_deadline;
        let Some(cfs) = self.cfg.cfs.filter(|_| sleeps) else {
            return false;
        };
        self.cfs_place(&cfs, ent.queue, e, false);
        true
    }

    /// Makes a virtual runtime a distance from where `q` is; [`Self::cfs_renormalize`] undoes it.
    fn cfs_normalize(&mut self, q: Que, e: Ent) {
        let least = self.que[q].zero_vruntime;
        let ent = &mut self.ent[e];
        ent.set_vruntime(ent.vruntime.wrapping_sub(least));
        ent.rel_deadline = true;
    }

    pub(crate) fn cfs_renormalize(&mut self, q: Que, e: Ent) {
        let least = self.que[q].zero_vruntime;
        let ent = &mut self.ent[e];
        if core::mem::replace(&mut ent.rel_deadline, false) {
            ent.set_vruntime(ent.vruntime.wrapping_add(least));
        }
    }

    /// `enqueue_entity`, and the counters of `q`. `flags` are those of the task's own level.
    #[cold]
    #[inline(never)]
    pub(crate) fn cfs_enqueue(&mut self, q: Que, e: Ent, flags: Enqueue, count: &mut Count) {
        let Some(cfs) = self.cfg.cfs else { return };
        let curr = self.que[q].curr == e;
        if curr {
            self.cfs_renormalize(q, e);
        }
        self.update_curr(q);
        self.cfs_renormalize(q, e);
        if flags.initial {
            // `task_fork_fair`: from where the one that runs is, as a child is its parent's.
            let runs = self.que[q].running(&self.ent);
            let from = runs.map_or(self.ent[e].vruntime, |runs| runs.vruntime);
            self.ent[e].set_vruntime(from);
        }
        self.refresh_weight(e);
        if flags.initial || flags.wakeup {
            self.cfs_place(&cfs, q, e, flags.initial);
        }
        self.account_load(q, e);
        let (queue, ent) = (&mut self.que[q], &mut self.ent[e]);
        ent.on_rq = true;
        queue.members += 1;
        if !curr {
            queue.tree_insert(&mut self.pool, &self.ent, e);
        }
        self.count_up(q, count);
    }

    /// `dequeue_entity`, and the counters of `q`: the weight that is left there.
    #[cold]
    #[inline(never)]
    pub(crate) fn cfs_dequeue(&mut self, q: Que, e: Ent, flags: Dequeue, count: &mut Count) -> u64 {
        self.update_curr(q);
        self.cfs_clear_buddies(q, e);
        let (queue, ent) = (&mut self.que[q], &mut self.ent[e]);
        if queue.curr != e {
            queue.tree_remove(&mut self.pool, e, ent);
        }
        ent.on_rq = false;
        queue.members -= 1;
        self.unaccount_load(q, e);
        if !flags.sleep {
            self.cfs_normalize(q, e);
        }
        self.refresh_weight(e);
        if !flags.saves {
            self.cfs_advance(q);
        }
        self.count_down(q, count);
        self.level_load(q)
    }

    /// `pick_next_entity`, of a queue that has members.
    #[cold]
    #[inline(never)]
    pub(crate) fn cfs_pick(&self, cfs: &Cfs, q: Que) -> Ent {
        let queue = &self.que[q];
        let curr = self.curr_on(q);
        let first = self.pool.first(&queue.timeline).map(Ent);
        let sooner = |of: Option<Ent>| match (of, curr) {
            (Some(of), Some(curr)) if runs_before(&self.ent, curr, of) => Some(curr),
            (of, curr) => of.or(curr),
        };
        let Some(left) = sooner(first) else {
            return Ent::NONE;
        };
        let fair = |e: Ent| e.is_some() && !self.cfs_preempts(cfs, e, left);
        let buddies = self.buddies(q);
        if fair(queue.next) {
            return queue.next;
        }
        if fair(buddies.last) {
            return buddies.last;
        }
        if buddies.skip == left {
            let second = match curr == Some(left) {
                true => first,
                false => sooner(self.second(q)),
            };
            if let Some(second) = second.filter(|second| fair(*second)) {
                return second;
            }
        }
        left
    }

    /// The entity after the first in a tree.
    fn second(&self, q: Que) -> Option<Ent> {
        let (mut nth, mut second) = (0, None);
        self.pool.for_each(&self.que[q].timeline, &mut |e| {
            if nth == 1 {
                second = Some(Ent(e));
            }
            nth += 1;
        });
        second
    }

    /// `sched_idle_cfs_rq`.
    fn is_all_idle(&self, q: Que) -> bool {
        let queue = &self.que[q];
        let mut all = queue.members > 0 && self.curr_on(q).is_none_or(|curr| self.is_idle(curr));
        self.pool
            .for_each(&queue.timeline, &mut |e| all &= self.is_idle(Ent(e)));
        all
    }

    /// `wakeup_preempt_entity` is 1: `e` is behind `curr` by more than the granularity.
    fn cfs_preempts(&self, cfs: &Cfs, curr: Ent, e: Ent) -> bool {
        let ent = &self.ent[e];
        let behind = self.ent[curr].vruntime.wrapping_sub(ent.vruntime) as i64;
        behind > 0 && behind > ent.cfs_vtime(cfs.wakeup_granularity_ns) as i64
    }

    /// `check_preempt_wakeup`, where a fair task runs that is not `p`.
    #[cold]
    #[inline(never)]
    pub(crate) fn cfs_check_preempt(&mut self, cfs: &Cfs, curr: Ent, p: Ent, how: Arrival) {
        let rq = self.ent[p].rq;
        let many = u64::from(self.que[self.ent[curr].queue].members) >= cfs.nr_latency();
        let marked = many && !how.is_fork() && self.cfg.features.has(Feature::NextBuddy);
        if marked {
            self.set_next_buddy(p);
        }
        if self.rqs[rq].resched == Resched::Now {
            return;
        }
        let (policy, curr_policy) = (self.ent[p].policy(), self.ent[curr].policy());
        let (se, pse) = self.siblings(curr, p);
        if curr_policy != Policy::Idle || policy == Policy::Idle {
            let may = self.cfg.features.has(Feature::WakeupPreemption);
            if policy != Policy::Normal || !may {
                return;
            }
            match (self.is_idle(se), self.is_idle(pse)) {
                (true, false) => {}
                (false, true) => return,
                _ => {
                    self.update_curr(self.ent[se].queue);
                    if !self.cfs_preempts(cfs, se, pse) {
                        return;
                    }
                    if !marked {
                        self.set_next_buddy(pse);
                    }
                }
            }
        }
        self.request(rq, Resched::Now);
        // The kernel has climbed to the siblings only where it has compared them.
        let se = if curr_policy == Policy::Idle {
            curr
        } else {
            se
        };
        if many && self.ent[se].on_rq && self.ent[se].is_task() {
            self.set_buddy(se, true, |buddies, e| buddies.last = e);
        }
    }

    /// `check_preempt_tick`, on one level.
    #[cold]
    #[inline(never)]
    pub(crate) fn cfs_tick(&mut self, q: Que, curr: Ent) {
        let Some(cfs) = self.cfg.cfs else { return };
        if self.que[q].members < 2 {
            return;
        }
        let slice = self.cfs_slice(&cfs, q, curr);
        let ent = &self.ent[curr];
        let (rq, ran) = (ent.rq, ent.vprot);
        if ran > slice {
            self.request(rq, Resched::Now);
            self.cfs_clear_buddies(q, curr);
            return;
        }
        let first = self.pool.first(&self.que[q].timeline);
        let Some(first) = first.filter(|_| ran >= cfs.min_granularity_ns) else {
            return;
        };
        let ahead = ent.vruntime.wrapping_sub(self.ent[Ent(first)].vruntime) as i64;
        if ahead >= 0 && ahead > slice as i64 {
            self.request(rq, Resched::Now);
        }
    }

    /// `yield_task_fair`, where others wait.
    #[cold]
    #[inline(never)]
    pub(crate) fn cfs_yield(&mut self, curr: Ent) {
        let q = self.ent[curr].queue;
        self.cfs_clear_buddies(q, curr);
        if self.ent[curr].policy() != Policy::Batch {
            self.update_curr(q);
        }
        self.set_buddy(curr, false, |buddies, e| buddies.skip = e);
    }

    fn buddies(&self, q: Que) -> Buddies {
        let buddies = self.buddies.0.get(q.0 as usize);
        buddies.copied().unwrap_or(Buddies::NONE)
    }

    /// Names `e` and its ancestors, `up_to_idle`: not from an idle one on.
    fn set_buddy(&mut self, mut e: Ent, up_to_idle: bool, set: impl Fn(&mut Buddies, Ent)) {
        while let Some(ent) = self.ent.at(e) {
            if up_to_idle && (!ent.on_rq || self.is_idle(e)) {
                return;
            }
            let q = self.ent[e].queue;
            set(&mut self.buddies[q], e);
            e = self.parent(e);
        }
    }

    /// `clear_buddies`.
    #[cold]
    #[inline(never)]
    pub(crate) fn cfs_clear_buddies(&mut self, q: Que, e: Ent) {
        self.clear_buddies(q, e);
        let ours = self.buddies(q);
        if ours.last == e {
            self.clear_up(e, |buddies| &mut buddies.last);
        }
        if ours.skip == e {
            self.clear_up(e, |buddies| &mut buddies.skip);
        }
    }

    fn clear_up(&mut self, mut e: Ent, of: impl Fn(&mut Buddies) -> &mut Ent) {
        while let Some(ent) = self.ent.at(e) {
            let named = of(&mut self.buddies[ent.queue]);
            if *named != e {
                return;
            }
            *named = Ent::NONE;
            e = self.parent(e);
        }
    }

    /// `reweight_entity`: nothing but the weight changes.
    #[cold]
    #[inline(never)]
    pub(crate) fn cfs_reweight(&mut self, e: Ent, weight: u64) {
        let q = self.ent[e].queue;
        let (queued, curr) = (self.ent[e].on_rq, self.que[q].curr == e);
        if queued && curr {
            self.update_curr(q);
        }
        let ent = &mut self.ent[e];
        let delta = weight as i64 - ent.weight as i64;
        ent.weight = weight;
        if queued {
            if !curr {
                let queue = &mut self.que[q];
                let moved = queue.key(ent.vruntime).wrapping_mul(delta);
                queue.sum_w_vruntime = queue.sum_w_vruntime.wrapping_add(moved);
                queue.sum_weight = queue.sum_weight.wrapping_add_signed(delta);
            }
            self.group_load(q, delta);
        }
    }

    /// Names nobody, for a queue that is new.
    pub(crate) fn push_buddies(&mut self) {
        Self::make_room(self.lean, &mut self.buddies.0);
        self.buddies.0.push(Buddies::NONE);
    }
}
