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
//! | `CfsRq::zero_vruntime` | `min_vruntime` |
//! | `SchedEntity::deadline` | equal to `vruntime`: sorts the timeline by it |
//! | `SchedEntity::vprot` | ns since the pick (`sum_exec_runtime - prev_sum_exec_runtime`) |
//! | `SchedEntity::rel_deadline` | `vruntime` is a distance from a `min_vruntime` |
//!
//! `HRTICK` (off in 6.1) is absent. `GENTLE_FAIR_SLEEPERS`, `START_DEBIT`, `LAST_BUDDY`,
//! `ALT_PERIOD` and `BASE_SLICE` are always on.

mod arithmetic;
mod buddies;

use self::arithmetic::{calc_delta, cfs_vtime, inverse};
pub(crate) use self::buddies::BuddyTable;
use self::buddies::{Buddy, clear_buddy, set_last_buddy, set_skip_buddy};
use super::cfs_rq::CfsRq;
use super::config::Config;
use super::features::Feature;
use super::hierarchy::Hierarchy;
use super::ids::{Ent, Que, RqId};
use super::rq::Resched;
use super::sched::{Class, Count, Dequeue, Enqueue, Rules, Sched};
use super::sched_entity::{Policy, SchedEntity};
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
    fn configured(sched: &Sched) -> Self {
        debug_assert!(sched.cfg.cfs.is_some(), "EEVDF is configured");
        sched.cfg.cfs.unwrap_or(Self::ONE_CPU)
    }

    /// `sched_slice`, in ns.
    fn sched_slice(self, sched: &Sched, q: Que, entity: Ent) -> u64 {
        let ent = &sched.tree[entity];
        let root = sched.rqs[ent.rq()].root();
        // An entity that is being placed is not counted yet, on any level.
        let joining = u64::from(!ent.on_rq());
        let mut slice = self.period_ns(u64::from(sched.tree[root].h_nr_queued()) + joining);
        let mut e = entity;
        while let Some(ent) = sched.tree.get(e) {
            let joining = if ent.on_rq() { 0 } else { ent.weight() };
            let load = sched.tree.weight(ent.queue()) + joining;
            slice = calc_delta(slice, ent.weight(), inverse(load));
            e = sched.tree.parent(e);
        }
        let idle = sched.tree.is_idle(entity) && !Self::sched_idle_cfs_rq(sched, q);
        slice.max(match idle {
            true => IDLE_MIN_GRANULARITY_NS,
            false => self.min_granularity_ns,
        })
    }

    /// Whether all members of `q` are idle.
    fn sched_idle_cfs_rq(sched: &Sched, q: Que) -> bool {
        let queue = &sched.tree[q];
        let curr = sched.tree.curr_on(q);
        let mut idle = queue.members() > 0 && curr.is_none_or(|curr| sched.tree.is_idle(curr));
        sched
            .tree
            .for_each_waiting(q, &mut |e| idle &= sched.tree.is_idle(e));
        idle
    }

    fn place_entity(self, sched: &mut Sched, q: Que, e: Ent, initial: bool) {
        let min_vruntime = sched.tree[q].zero_vruntime();
        let vruntime = match initial {
            // START_DEBIT: a new task waits for one slice.
            true => {
                let slice = self.sched_slice(sched, q, e);
                min_vruntime.wrapping_add(cfs_vtime(&sched.tree[e], slice))
            }
            false if sched.tree.is_idle(e) => {
                min_vruntime.wrapping_sub(self.min_granularity_ns >> 1)
            }
            // GENTLE_FAIR_SLEEPERS: half the latency.
            false => min_vruntime.wrapping_sub(self.latency_ns >> 1),
        };
        let ent = &mut sched.tree[e];
        // A short sleep gains nothing: virtual runtime never decreases.
        if before(ent.vruntime(), vruntime) {
            ent.set_vruntime(vruntime);
        }
    }

    fn update_min_vruntime(sched: &mut Sched, q: Que) {
        let curr = sched.tree.running(q).map(|curr| curr.vruntime);
        let first = sched.tree.first(q).map(|e| sched.tree[e].vruntime());
        let least = match (curr, first) {
            (Some(curr), Some(first)) => earlier(curr, first),
            (curr, first) => match curr.or(first) {
                Some(only) => only,
                // An empty queue keeps its `min_vruntime`.
                None => return,
            },
        };
        let queue = &mut sched.tree[q];
        // Monotonic: entities that come back are placed against it.
        if before(queue.zero_vruntime(), least) {
            queue.set_zero(least);
        }
    }

    /// Replaces a virtual runtime by its distance from `min_vruntime`, which is comparable across
    /// queues; [`Self::renormalize`] is the inverse.
    fn normalize(sched: &mut Sched, q: Que, e: Ent) {
        let min_vruntime = sched.tree[q].zero_vruntime();
        sched.tree[e].normalize(min_vruntime);
    }

    fn renormalize(sched: &mut Sched, q: Que, e: Ent) {
        let min_vruntime = sched.tree[q].zero_vruntime();
        sched.tree[e].renormalize(min_vruntime);
    }

    /// Whether `wakeup_preempt_entity` is 1: `curr` leads `e` by more than the granularity.
    fn wakeup_preempt_entity(self, sched: &Sched, curr: Ent, e: Ent) -> bool {
        let ent = &sched.tree[e];
        let lead = sched.tree[curr].vruntime().wrapping_sub(ent.vruntime()) as i64;
        lead > 0 && lead > cfs_vtime(ent, self.wakeup_granularity_ns) as i64
    }

    /// `__pick_next_entity` of the first entity: the one after it in the tree.
    fn second(sched: &Sched, q: Que) -> Option<Ent> {
        let (mut nth, mut second) = (0, None);
        sched.tree.for_each_waiting(q, &mut |e| {
            if nth == 1 {
                second = Some(e);
            }
            nth += 1;
        });
        second
    }
}

fn entity_before(tree: &Hierarchy, a: Ent, b: Ent) -> bool {
    before(tree[a].vruntime(), tree[b].vruntime())
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

    fn new_queue(self, sched: &mut Sched) {
        sched.buddies.push(sched.tree.is_lean());
    }

    #[cold]
    #[inline(never)]
    fn charge(self, sched: &mut Sched, q: Que, curr: Ent) {
        let c = &mut sched.tree[curr];
        let vtime = cfs_vtime(c, sched.now - c.exec_start());
        c.cfs_charge(sched.now, vtime);
        Cfs::update_min_vruntime(sched, q);
    }

    /// `flags` are those of the task's own level.
    #[cold]
    #[inline(never)]
    fn enqueue_entity<const GROUP: bool>(
        self,
        sched: &mut Sched,
        q: Que,
        e: Ent,
        flags: Enqueue,
        count: &mut Count,
    ) {
        let curr = sched.tree[q].curr() == e;
        // As `enqueue_entity`: the current entity is renormalized before `update_curr` moves
        // `min_vruntime`, others after it.
        if curr {
            Cfs::renormalize(sched, q, e);
        }
        sched.update_curr(q);
        Cfs::renormalize(sched, q, e);
        if flags.initial {
            // `task_fork_fair`: a child starts at the vruntime of its parent, the current entity.
            let parent = sched.tree.running(q);
            let vruntime = parent.map_or(sched.tree[e].vruntime(), |parent| parent.vruntime);
            sched.tree[e].set_vruntime(vruntime);
        }
        sched.update_cfs_group(e);
        if flags.initial || flags.wakeup {
            Cfs::configured(sched).place_entity(sched, q, e, flags.initial);
        }
        sched.account_load(q, e);
        sched.tree.level(q).join(e);
        sched.count_up(q, count);
    }

    /// No dequeue is delayed.
    #[cold]
    #[inline(never)]
    fn dequeue_entity(
        self,
        sched: &mut Sched,
        q: Que,
        e: Ent,
        flags: Dequeue,
        count: &mut Count,
    ) -> Option<u64> {
        sched.update_curr(q);
        self.clear_buddies(sched, q, e);
        sched.tree.level(q).leave(e);
        sched.unaccount_load(q, e);
        // Before `min_vruntime` moves: the distance refers to the queue with the entity in it.
        if !flags.sleep {
            Cfs::normalize(sched, q, e);
        }
        sched.update_cfs_group(e);
        if !flags.saves {
            Cfs::update_min_vruntime(sched, q);
        }
        sched.count_down(q, count);
        Some(sched.tree.level_load(q))
    }

    #[cold]
    #[inline(never)]
    fn pick_entity(self, sched: &Sched, q: Que, curr: Option<&SchedEntity>, _protect: bool) -> Ent {
        let queue = &sched.tree[q];
        let curr = curr.map(|_| queue.curr());
        let first = sched.tree.first(q);
        let or_curr = |candidate: Option<Ent>| match (candidate, curr) {
            (Some(e), Some(curr)) if entity_before(&sched.tree, curr, e) => Some(curr),
            (candidate, curr) => candidate.or(curr),
        };
        let Some(leftmost) = or_curr(first) else {
            debug_assert!(false, "a pick in an empty queue");
            return Ent::NONE;
        };
        let cfs = Cfs::configured(sched);
        let is_fair = |e: Ent| e.is_some() && !cfs.wakeup_preempt_entity(sched, e, leftmost);
        if is_fair(queue.next()) {
            return queue.next();
        }
        let last = sched.buddies.get(q, Buddy::Last);
        if is_fair(last) {
            return last;
        }
        if sched.buddies.get(q, Buddy::Skip) == leftmost {
            let second = match curr == Some(leftmost) {
                true => first,
                false => or_curr(Cfs::second(sched, q)),
            };
            if let Some(second) = second.filter(|second| is_fair(*second)) {
                return second;
            }
        }
        leftmost
    }

    #[inline]
    fn set_next(self, _: &CfsRq, ent: &mut SchedEntity, _: &Config, _first: bool) {
        ent.restart_slice();
    }

    #[cold]
    #[inline(never)]
    fn clear_buddies(self, sched: &mut Sched, q: Que, e: Ent) {
        sched.tree.clear_next_buddy(q, e);
        clear_buddy(sched, e, Buddy::Last);
        clear_buddy(sched, e, Buddy::Skip);
    }

    #[cold]
    #[inline(never)]
    fn check_preempt(self, sched: &mut Sched, rq: RqId, curr: Ent, p: Ent, arrival: Arrival) {
        let cfs = Cfs::configured(sched);
        // `scale` of the kernel: buddies pay only with more tasks than the latency holds for.
        let scale = u64::from(sched.tree[sched.tree[curr].queue()].members()) >= cfs.nr_latency();
        let marked = scale && !arrival.is_fork() && sched.cfg.features.has(Feature::NextBuddy);
        if marked {
            sched.tree.set_next_buddy(p);
        }
        if sched.rqs[rq].resched() == Resched::Now {
            return;
        }
        let (policy, curr_policy) = (sched.tree[p].policy(), sched.tree[curr].policy());
        let (se, pse) = sched.tree.find_matching_se(curr, p);
        if curr_policy != Policy::Idle || policy == Policy::Idle {
            if policy != Policy::Normal || !sched.cfg.features.has(Feature::WakeupPreemption) {
                return;
            }
            match (sched.tree.is_idle(se), sched.tree.is_idle(pse)) {
                (true, false) => {}
                (false, true) => return,
                _ => {
                    sched.update_curr(sched.tree[se].queue());
                    if !cfs.wakeup_preempt_entity(sched, se, pse) {
                        return;
                    }
                    if !marked {
                        sched.tree.set_next_buddy(pse);
                    }
                }
            }
        }
        sched.resched_curr(rq, Resched::Now);
        // The kernel finds the siblings only to compare them: a jump to `preempt` for an idle
        // current task skips that.
        let se = if curr_policy == Policy::Idle {
            curr
        } else {
            se
        };
        if scale && sched.tree[se].on_rq() && sched.tree[se].is_task() {
            set_last_buddy(sched, se);
        }
    }

    /// `check_preempt_tick`, on one level.
    #[cold]
    #[inline(never)]
    fn entity_tick(self, sched: &mut Sched, q: Que, curr: Ent) {
        if sched.tree[q].members() < 2 {
            return;
        }
        let cfs = Cfs::configured(sched);
        let slice = cfs.sched_slice(sched, q, curr);
        let ent = &sched.tree[curr];
        let (rq, ran_ns) = (ent.rq(), ent.ran_ns());
        if ran_ns > slice {
            sched.resched_curr(rq, Resched::Now);
            // Otherwise the pick could favour the task that has used up its slice.
            self.clear_buddies(sched, q, curr);
            return;
        }
        // `check_preempt_tick`: no preemption before the granularity, however large the lead.
        if ran_ns < cfs.min_granularity_ns {
            return;
        }
        let Some(first) = sched.tree.first(q) else {
            debug_assert!(false, "two members, of which one runs, and none waits");
            return;
        };
        let lead_ns = ent.vruntime().wrapping_sub(sched.tree[first].vruntime()) as i64;
        if lead_ns >= 0 && lead_ns > slice as i64 {
            sched.resched_curr(rq, Resched::Now);
        }
    }

    #[cold]
    #[inline(never)]
    fn yield_task(self, sched: &mut Sched, curr: Ent) {
        let q = sched.tree[curr].queue();
        self.clear_buddies(sched, q, curr);
        if sched.tree[curr].policy() != Policy::Batch {
            sched.update_curr(q);
        }
        set_skip_buddy(sched, curr);
    }

    /// Changes the weight only.
    #[cold]
    #[inline(never)]
    fn reweight_entity(self, sched: &mut Sched, e: Ent, weight: u64) {
        let q = sched.tree[e].queue();
        let (queued, curr) = (sched.tree[e].on_rq(), sched.tree[q].curr() == e);
        if queued && curr {
            sched.update_curr(q);
        }
        let mut level = sched.tree.level(q);
        let (queue, ent) = level.pair(e);
        let delta = weight as i64 - ent.weight() as i64;
        ent.set_weight(weight);
        if queued {
            if !curr {
                queue.add_weight(ent.vruntime(), delta);
            }
            sched.group_load(q, delta);
        }
    }

    fn rescale_entity(self, ent: &mut SchedEntity, weight: u64, _protected: bool) {
        ent.set_weight(weight);
    }

    /// A sleeping task keeps its virtual runtime as a distance; that of a migrating one is one.
    #[cold]
    #[inline(never)]
    fn migrate_task_rq(self, sched: &mut Sched, e: Ent) {
        let ent = &sched.tree[e];
        if ent.sleeps() {
            Cfs::normalize(sched, ent.queue(), e);
        }
    }

    /// Placed in its old queue first, so that it gains no more by sleeping than a waking task.
    fn detach_sleeper(self, sched: &mut Sched, e: Ent) -> bool {
        let ent = &sched.tree[e];
        let (sleeps, q) = (ent.sleeps(), ent.queue());
        if sleeps {
            Cfs::configured(sched).place_entity(sched, q, e, false);
        }
        sleeps
    }

    fn attach_sleeper(self, sched: &mut Sched, e: Ent) {
        Cfs::renormalize(sched, sched.tree[e].queue(), e);
    }

    fn restored(self, ent: &mut SchedEntity) {
        ent.restore_vruntime();
    }
}
