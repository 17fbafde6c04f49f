//! CFS, the fair class of Linux 6.1, in the timelines and groups that it shares with EEVDF.
//!
//! There is no lag, no eligibility and no slice. The entity with the least virtual runtime is
//! picked. A waking task is placed up to half a latency ahead. The tick preempts a task that
//! has run for its share of the latency.
//!
//! Shared fields have another meaning here:
//!
//! | field | under CFS |
//! |---|---|
//! | `Queue::zero_vruntime` | `min_vruntime` |
//! | `Entity::deadline` | equal to `vruntime`: sorts the timeline by it |
//! | `Entity::vprot` | ns since the pick (`sum_exec_runtime - prev_sum_exec_runtime`) |
//! | `Entity::rel_deadline` | `vruntime` is a distance from a `min_vruntime` |
//!
//! `HRTICK` (off in 6.1) is absent. `GENTLE_FAIR_SLEEPERS`, `START_DEBIT`, `LAST_BUDDY`,
//! `ALT_PERIOD` and `BASE_SLICE` are always on.

mod arithmetic;
mod buddies;

use self::arithmetic::{calc_delta, inverse};
pub(crate) use self::buddies::BuddyTable;
use self::buddies::{Buddy, clear_buddy, set_last_buddy, set_skip_buddy};
use super::Fair;
use super::class::{Class, Rules};
use super::config::Config;
use super::enqueue::{Count, Dequeue, Enqueue};
use super::entity::{Entity, Marks, Policy, TaskState};
use super::features::Feature;
use super::ids::{Arena, Ent, Que, RqId};
use super::queue::{Queue, Resched};
use super::task::Arrival;
use super::weights::{MIN_SHARES, before, earlier, tunable_scaling};

/// Tunables of CFS, in ns (`/sys/kernel/debug/sched/`). The first two in [100 000, 1 000 000 000],
/// the last in [0, 1 000 000 000].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cfs {
    /// `latency_ns`: the time in which each of a few tasks runs once.
    pub latency_ns: u64,
    /// `min_granularity_ns`: the shortest slice.
    pub min_granularity_ns: u64,
    /// `wakeup_granularity_ns`: the lead in virtual time from which the current task is preempted
    /// by a waking one.
    pub wakeup_granularity_ns: u64,
}

/// `sysctl_sched_idle_min_granularity`, which is not scaled by the number of CPUs.
const IDLE_MIN_GRANULARITY_NS: u64 = 750_000;

impl Cfs {
    /// Features that CFS has; the others do nothing.
    pub const FEATURES: [Feature; 2] = [Feature::WakeupPreemption, Feature::NextBuddy];

    /// The tunables of Linux 6.1 on one CPU.
    const ONE_CPU: Self = Self {
        latency_ns: 6_000_000,
        min_granularity_ns: 750_000,
        wakeup_granularity_ns: 1_000_000,
    };

    /// The tunables of Linux 6.1: 6, 0.75 and 1 ms, times 1 + log2(min(cpus, 8)).
    #[must_use]
    pub fn linux_6_1(cpus: u32) -> Self {
        let factor = tunable_scaling(cpus);
        Self {
            latency_ns: Self::ONE_CPU.latency_ns * factor,
            min_granularity_ns: Self::ONE_CPU.min_granularity_ns * factor,
            wakeup_granularity_ns: Self::ONE_CPU.wakeup_granularity_ns * factor,
        }
    }

    /// Number of tasks up to which the latency holds (`sched_nr_latency`).
    fn nr_latency(self) -> u64 {
        self.latency_ns.div_ceil(self.min_granularity_ns.max(1))
    }

    /// `__sched_period`, for so many runnable tasks.
    fn period_ns(self, running: u64) -> u64 {
        if running > self.nr_latency() {
            running.saturating_mul(self.min_granularity_ns)
        } else {
            self.latency_ns
        }
    }

    /// The configured tunables.
    fn configured(fair: &Fair) -> Self {
        debug_assert!(fair.cfg.cfs.is_some(), "EEVDF is configured");
        fair.cfg.cfs.unwrap_or(Self::ONE_CPU)
    }

    /// `sched_slice`, in ns.
    fn sched_slice(self, fair: &Fair, q: Que, entity: Ent) -> u64 {
        let ent = &fair.ent[entity];
        let root = fair.rqs[ent.rq].root;
        // An entity that is being placed is not counted yet, on any level.
        let joining = u64::from(!ent.on_rq);
        let mut slice = self.period_ns(u64::from(fair.que[root].h_nr_queued) + joining);
        let mut e = entity;
        while let Some(ent) = fair.ent.get(e) {
            let joining = if ent.on_rq { 0 } else { ent.weight };
            let load = fair.weight(ent.queue) + joining;
            slice = calc_delta(slice, ent.weight, inverse(load));
            e = fair.parent(e);
        }
        let idle = fair.is_idle(entity) && !Self::sched_idle_cfs_rq(fair, q);
        slice.max(match idle {
            true => IDLE_MIN_GRANULARITY_NS,
            false => self.min_granularity_ns,
        })
    }

    /// Whether all members of `q` are idle.
    fn sched_idle_cfs_rq(fair: &Fair, q: Que) -> bool {
        let queue = &fair.que[q];
        let curr = fair.curr_on(q);
        let mut idle = queue.members > 0 && curr.is_none_or(|curr| fair.is_idle(curr));
        fair.pool
            .for_each(&queue.timeline, &mut |e| idle &= fair.is_idle(Ent(e)));
        idle
    }

    fn place_entity(self, fair: &mut Fair, q: Que, e: Ent, initial: bool) {
        let min_vruntime = fair.que[q].zero_vruntime;
        let vruntime = match initial {
            // START_DEBIT: a new task waits for one slice.
            true => {
                let slice = self.sched_slice(fair, q, e);
                min_vruntime.wrapping_add(fair.ent[e].cfs_vtime(slice))
            }
            false if fair.is_idle(e) => min_vruntime.wrapping_sub(self.min_granularity_ns >> 1),
            // GENTLE_FAIR_SLEEPERS: half the latency.
            false => min_vruntime.wrapping_sub(self.latency_ns >> 1),
        };
        let ent = &mut fair.ent[e];
        // A short sleep gains nothing: virtual runtime never decreases.
        if before(ent.vruntime, vruntime) {
            ent.set_vruntime(vruntime);
        }
    }

    fn update_min_vruntime(fair: &mut Fair, q: Que) {
        let queue = &fair.que[q];
        let curr = queue.running(&fair.ent).map(|curr| curr.vruntime);
        let first = fair.pool.first(&queue.timeline);
        let first = first.map(|e| fair.ent[Ent(e)].vruntime);
        let least = match (curr, first) {
            (Some(curr), Some(first)) => earlier(curr, first),
            (curr, first) => match curr.or(first) {
                Some(only) => only,
                // An empty queue keeps its `min_vruntime`.
                None => return,
            },
        };
        let queue = &mut fair.que[q];
        // Monotonic: entities that come back are placed against it.
        if before(queue.zero_vruntime, least) {
            queue.set_zero(least);
        }
    }

    /// Replaces a virtual runtime by its distance from `min_vruntime`, which is comparable across
    /// queues; [`Self::renormalize`] is the inverse.
    fn normalize(fair: &mut Fair, q: Que, e: Ent) {
        let min_vruntime = fair.que[q].zero_vruntime;
        let ent = &mut fair.ent[e];
        debug_assert!(!ent.rel_deadline, "a distance already");
        ent.set_vruntime(ent.vruntime.wrapping_sub(min_vruntime));
        ent.rel_deadline = true;
    }

    fn renormalize(fair: &mut Fair, q: Que, e: Ent) {
        let min_vruntime = fair.que[q].zero_vruntime;
        let ent = &mut fair.ent[e];
        if core::mem::replace(&mut ent.rel_deadline, false) {
            ent.set_vruntime(ent.vruntime.wrapping_add(min_vruntime));
        }
    }

    /// Whether `ent` is off its queue with an absolute virtual runtime: it sleeps, or its group is
    /// throttled.
    fn sleeps(ent: &Entity) -> bool {
        let off_queue = matches!(ent.state, TaskState::Asleep | TaskState::Throttled);
        off_queue && ent.marks.has(Marks::RQ_SET) && !ent.rel_deadline
    }

    /// Whether `wakeup_preempt_entity` is 1: `curr` leads `e` by more than the granularity.
    fn wakeup_preempt_entity(self, fair: &Fair, curr: Ent, e: Ent) -> bool {
        let ent = &fair.ent[e];
        let lead = fair.ent[curr].vruntime.wrapping_sub(ent.vruntime) as i64;
        lead > 0 && lead > ent.cfs_vtime(self.wakeup_granularity_ns) as i64
    }

    /// `__pick_next_entity` of the first entity: the one after it in the tree.
    fn second(fair: &Fair, q: Que) -> Option<Ent> {
        let (mut nth, mut second) = (0, None);
        fair.pool.for_each(&fair.que[q].timeline, &mut |e| {
            if nth == 1 {
                second = Some(Ent(e));
            }
            nth += 1;
        });
        second
    }
}

impl Entity {
    fn set_vruntime(&mut self, vruntime: u64) {
        (self.vruntime, self.deadline) = (vruntime, vruntime);
    }
}

fn entity_before(ents: &Arena<Entity>, a: Ent, b: Ent) -> bool {
    before(ents[a].vruntime, ents[b].vruntime)
}

/// The class. Its tunables stay in the configuration, so that a branch on the class copies nothing.
#[derive(Clone, Copy)]
pub(crate) struct CfsClass;

impl Class for CfsClass {
    const RULES: Rules = Rules {
        custom_slices: false,
        hrtick: false,
        set_nice_always_checks: true,
        move_checks_preempt: false,
        reweights_to_same: true,
        // `sched_slice` uses this weight for the first task that joins the group.
        empty_group_weight: Some(MIN_SHARES),
    };

    fn new_queue(self, fair: &mut Fair) {
        let lean = fair.lean;
        fair.buddies.push(lean);
    }

    #[cold]
    #[inline(never)]
    fn charge(self, fair: &mut Fair, q: Que, curr: Ent) {
        let c = &mut fair.ent[curr];
        let delta = fair.now - c.exec_start;
        c.exec_start = fair.now;
        c.vprot += delta;
        let vruntime = c.vruntime.wrapping_add(c.cfs_vtime(delta));
        c.set_vruntime(vruntime);
        Cfs::update_min_vruntime(fair, q);
    }

    /// `flags` are those of the task's own level.
    #[cold]
    #[inline(never)]
    fn enqueue_entity<const GROUP: bool>(
        self,
        fair: &mut Fair,
        q: Que,
        e: Ent,
        flags: Enqueue,
        count: &mut Count,
    ) {
        let curr = fair.que[q].curr == e;
        // As `enqueue_entity`: the current entity is renormalized before `update_curr` moves
        // `min_vruntime`, others after it.
        if curr {
            Cfs::renormalize(fair, q, e);
        }
        fair.update_curr(q);
        Cfs::renormalize(fair, q, e);
        if flags.initial {
            // `task_fork_fair`: a child starts at the vruntime of its parent, the current entity.
            let parent = fair.que[q].running(&fair.ent);
            let vruntime = parent.map_or(fair.ent[e].vruntime, |parent| parent.vruntime);
            fair.ent[e].set_vruntime(vruntime);
        }
        fair.refresh_weight(e);
        if flags.initial || flags.wakeup {
            Cfs::configured(fair).place_entity(fair, q, e, flags.initial);
        }
        fair.account_load(q, e);
        let (queue, ent) = (&mut fair.que[q], &mut fair.ent[e]);
        ent.on_rq = true;
        queue.members += 1;
        if !curr {
            queue.tree_insert(&mut fair.pool, &fair.ent, e);
        }
        fair.count_up(q, count);
    }

    /// No dequeue is delayed.
    #[cold]
    #[inline(never)]
    fn dequeue_entity(
        self,
        fair: &mut Fair,
        q: Que,
        e: Ent,
        flags: Dequeue,
        count: &mut Count,
    ) -> Option<u64> {
        fair.update_curr(q);
        self.clear_buddies(fair, q, e);
        let (queue, ent) = (&mut fair.que[q], &mut fair.ent[e]);
        if queue.curr != e {
            queue.tree_remove(&mut fair.pool, e, ent);
        }
        ent.on_rq = false;
        queue.members -= 1;
        fair.unaccount_load(q, e);
        // Before `min_vruntime` moves: the distance refers to the queue with the entity in it.
        if !flags.sleep {
            Cfs::normalize(fair, q, e);
        }
        fair.refresh_weight(e);
        if !flags.saves {
            Cfs::update_min_vruntime(fair, q);
        }
        fair.count_down(q, count);
        Some(fair.level_load(q))
    }

    #[cold]
    #[inline(never)]
    fn pick_entity(self, fair: &Fair, q: Que, curr: Option<&Entity>, _protect: bool) -> Ent {
        let queue = &fair.que[q];
        let curr = curr.map(|_| queue.curr);
        let first = fair.pool.first(&queue.timeline).map(Ent);
        let or_curr = |candidate: Option<Ent>| match (candidate, curr) {
            (Some(e), Some(curr)) if entity_before(&fair.ent, curr, e) => Some(curr),
            (candidate, curr) => candidate.or(curr),
        };
        let Some(leftmost) = or_curr(first) else {
            debug_assert!(false, "a pick in an empty queue");
            return Ent::NONE;
        };
        let cfs = Cfs::configured(fair);
        let is_fair = |e: Ent| e.is_some() && !cfs.wakeup_preempt_entity(fair, e, leftmost);
        if is_fair(queue.next) {
            return queue.next;
        }
        let last = fair.buddies.get(q, Buddy::Last);
        if is_fair(last) {
            return last;
        }
        if fair.buddies.get(q, Buddy::Skip) == leftmost {
            let second = match curr == Some(leftmost) {
                true => first,
                false => or_curr(Cfs::second(fair, q)),
            };
            if let Some(second) = second.filter(|second| is_fair(*second)) {
                return second;
            }
        }
        leftmost
    }

    #[inline]
    fn set_next(self, _: &Queue, ent: &mut Entity, _: &Config, _first: bool) {
        // `prev_sum_exec_runtime = sum_exec_runtime`.
        ent.vprot = 0;
    }

    #[cold]
    #[inline(never)]
    fn clear_buddies(self, fair: &mut Fair, q: Que, e: Ent) {
        fair.clear_next_buddy(q, e);
        clear_buddy(fair, e, Buddy::Last);
        clear_buddy(fair, e, Buddy::Skip);
    }

    #[cold]
    #[inline(never)]
    fn check_preempt(self, fair: &mut Fair, rq: RqId, curr: Ent, p: Ent, arrival: Arrival) {
        let cfs = Cfs::configured(fair);
        // `scale` of the kernel: buddies pay only with more tasks than the latency holds for.
        let scale = u64::from(fair.que[fair.ent[curr].queue].members) >= cfs.nr_latency();
        let marked = scale && !arrival.is_fork() && fair.cfg.features.has(Feature::NextBuddy);
        if marked {
            fair.set_next_buddy(p);
        }
        if fair.rqs[rq].resched == Resched::Now {
            return;
        }
        let (policy, curr_policy) = (fair.ent[p].policy(), fair.ent[curr].policy());
        let (se, pse) = fair.find_matching_se(curr, p);
        if curr_policy != Policy::Idle || policy == Policy::Idle {
            if policy != Policy::Normal || !fair.cfg.features.has(Feature::WakeupPreemption) {
                return;
            }
            match (fair.is_idle(se), fair.is_idle(pse)) {
                (true, false) => {}
                (false, true) => return,
                _ => {
                    fair.update_curr(fair.ent[se].queue);
                    if !cfs.wakeup_preempt_entity(fair, se, pse) {
                        return;
                    }
                    if !marked {
                        fair.set_next_buddy(pse);
                    }
                }
            }
        }
        fair.resched_curr(rq, Resched::Now);
        // The kernel finds the siblings only to compare them: a jump to `preempt` for an idle
        // current task skips that.
        let se = if curr_policy == Policy::Idle {
            curr
        } else {
            se
        };
        if scale && fair.ent[se].on_rq && fair.ent[se].is_task() {
            set_last_buddy(fair, se);
        }
    }

    /// `check_preempt_tick`, on one level.
    #[cold]
    #[inline(never)]
    fn entity_tick(self, fair: &mut Fair, q: Que, curr: Ent) {
        if fair.que[q].members < 2 {
            return;
        }
        let cfs = Cfs::configured(fair);
        let slice = cfs.sched_slice(fair, q, curr);
        let ent = &fair.ent[curr];
        let (rq, ran_ns) = (ent.rq, ent.vprot);
        if ran_ns > slice {
            fair.resched_curr(rq, Resched::Now);
            // Otherwise the pick could favour the task that has used up its slice.
            self.clear_buddies(fair, q, curr);
            return;
        }
        // `check_preempt_tick`: no preemption before the granularity, however large the lead.
        if ran_ns < cfs.min_granularity_ns {
            return;
        }
        let Some(first) = fair.pool.first(&fair.que[q].timeline) else {
            debug_assert!(false, "two members, of which one runs, and none waits");
            return;
        };
        let lead_ns = ent.vruntime.wrapping_sub(fair.ent[Ent(first)].vruntime) as i64;
        if lead_ns >= 0 && lead_ns > slice as i64 {
            fair.resched_curr(rq, Resched::Now);
        }
    }

    #[cold]
    #[inline(never)]
    fn yield_task(self, fair: &mut Fair, curr: Ent) {
        let q = fair.ent[curr].queue;
        self.clear_buddies(fair, q, curr);
        if fair.ent[curr].policy() != Policy::Batch {
            fair.update_curr(q);
        }
        set_skip_buddy(fair, curr);
    }

    /// Changes the weight only.
    #[cold]
    #[inline(never)]
    fn reweight_entity(self, fair: &mut Fair, e: Ent, weight: u64) {
        let q = fair.ent[e].queue;
        let (queued, curr) = (fair.ent[e].on_rq, fair.que[q].curr == e);
        if queued && curr {
            fair.update_curr(q);
        }
        let ent = &mut fair.ent[e];
        let delta = weight as i64 - ent.weight as i64;
        ent.weight = weight;
        if queued {
            if !curr {
                let queue = &mut fair.que[q];
                let moved = queue.key(ent.vruntime).wrapping_mul(delta);
                queue.sum_w_vruntime = queue.sum_w_vruntime.wrapping_add(moved);
                queue.sum_weight = queue.sum_weight.wrapping_add_signed(delta);
            }
            fair.group_load(q, delta);
        }
    }

    fn rescale_entity(self, ent: &mut Entity, weight: u64, _protected: bool) {
        ent.weight = weight;
    }

    /// A sleeping task keeps its virtual runtime as a distance; that of a migrating one is one.
    #[cold]
    #[inline(never)]
    fn migrate_task_rq(self, fair: &mut Fair, e: Ent) {
        let ent = &fair.ent[e];
        if Cfs::sleeps(ent) {
            Cfs::normalize(fair, ent.queue, e);
        }
    }

    /// Placed in its old queue first, so that it gains no more by sleeping than a waking task.
    fn detach_sleeper(self, fair: &mut Fair, e: Ent) -> bool {
        let ent = &fair.ent[e];
        let (sleeps, q) = (Cfs::sleeps(ent), ent.queue);
        if sleeps {
            Cfs::configured(fair).place_entity(fair, q, e, false);
        }
        sleeps
    }

    fn attach_sleeper(self, fair: &mut Fair, e: Ent) {
        Cfs::renormalize(fair, fair.ent[e].queue, e);
    }

    fn restored(self, ent: &mut Entity) {
        ent.vruntime = ent.deadline;
    }
}
