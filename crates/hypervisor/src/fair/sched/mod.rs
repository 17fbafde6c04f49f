//! The state of all run queues, and what each operation does to it: clocks, requests, accounting.

use core::hash::{Hash, Hasher};

mod chain;
pub(crate) mod check;
mod class;

pub(crate) use chain::{Count, Dequeue, Enqueue, FINAL};
pub(crate) use class::{Class, Rules};

use super::cfs::BuddyTable;
use super::config::{Config, PickMode};
use super::eevdf::flat;
use super::error::Error;
use super::features::Feature;
use super::hierarchy::Hierarchy;
use super::ids::{Arena, Ent, GroupId, Que, RqId};
use super::rq::{Resched, Rq};
use super::task::Arrival;
use super::task_groups::TaskGroups;
use crate::lag_credit::LagCredits;

/// Longest time in ns (68.7 s) between accounts of a current entity: beyond it the weighted sums
/// could leave 64 bits.
pub(crate) const MAX_UNACCOUNTED_NS: u64 = 1 << 36;

/// The parts of a host's fair class, each of which keeps its own invariant. The classes and the
/// walks up a chain of entities act on several.
#[derive(Clone, Debug)]
pub(crate) struct Sched {
    pub(crate) cfg: Config,
    /// Time of the current operation in ns: the clock of each run queue that it acts on.
    pub(crate) now: u64,
    pub(crate) tree: Hierarchy,
    pub(crate) rqs: Arena<Rq>,
    pub(crate) groups: TaskGroups,
    /// The buddies that only CFS has, by queue.
    pub(crate) buddies: BuddyTable,
    pub(crate) credits: LagCredits,
}

impl Sched {
    /// Without CPUs.
    pub(super) fn new(cfg: Config) -> Self {
        Self {
            cfg,
            now: 0,
            tree: Hierarchy::new(),
            rqs: Arena::EMPTY,
            groups: TaskGroups::EMPTY,
            buddies: BuddyTable::default(),
            credits: LagCredits::default(),
        }
    }

    /// Adds a CPU, idle, with its clock at 0.
    pub(super) fn create_rq(&mut self, mode: PickMode) -> Result<RqId, Error> {
        let rq = RqId(u32::try_from(self.rqs.len()).map_err(|_| Error::Full("run queues"))?);
        let root = self.tree.next_queue()?;
        self.push_queue(Ent::NONE);
        if mode == PickMode::Flat {
            self.tree.extend_flat();
        }
        self.rqs.push(false, Rq::new(mode, root));
        if self.cfg.features.has(Feature::YieldToLagCredit) {
            self.credits.push_rq();
        }
        Ok(rq)
    }

    /// Adds an empty queue that belongs to `owner`, with the next free number.
    pub(super) fn push_queue(&mut self, owner: Ent) {
        self.tree.push_queue(owner);
        let credited = self.cfg.features.has(Feature::YieldToLagCredit);
        if credited && self.cfg.lag_credit.guard.is_some() {
            self.credits.push_queue(self.tree.is_lean());
        }
        self.class_new_queue();
    }

    pub(super) fn rq(&self, rq: RqId) -> Result<&Rq, Error> {
        self.rqs.get(rq).ok_or(Error::NoSuchRq(rq))
    }

    #[inline]
    pub(crate) fn is_flat(&self, rq: RqId) -> bool {
        self.rqs[rq].is_flat()
    }

    /// Refuses a time before the clock of `rq`, or too long after the last account.
    #[inline]
    pub(crate) fn check_clock(&mut self, rq: RqId, now_ns: u64) -> Result<(), Error> {
        if self.rq(rq)?.may_advance_to(now_ns) {
            return Ok(());
        }
        self.check_unaccounted(rq, now_ns)
    }

    /// Checks each current entity of the chain, and computes until when no further check is needed.
    #[cold]
    #[inline(never)]
    fn check_unaccounted(&mut self, rq: RqId, now_ns: u64) -> Result<(), Error> {
        let clock_ns = self.rqs[rq].clock();
        if now_ns < clock_ns {
            return Err(Error::ClockBack {
                rq,
                clock_ns,
                now_ns,
            });
        }
        let mut oldest = now_ns;
        let mut e = self.rqs[rq].curr();
        while e.is_some() {
            if self.tree[self.tree.pick_queue(e)].curr() == e {
                oldest = oldest.min(self.tree[e].exec_start());
            }
            e = self.tree.parent(e);
        }
        if now_ns - oldest > MAX_UNACCOUNTED_NS {
            let (ran_ns, max_ns) = (now_ns - oldest, MAX_UNACCOUNTED_NS);
            return Err(Error::TooLongUnaccounted { rq, ran_ns, max_ns });
        }
        // Half the limit: entities that become current later start no earlier than now.
        self.rqs[rq].set_accounted_until(oldest.saturating_add(MAX_UNACCOUNTED_NS / 2));
        Ok(())
    }

    /// Refuses an operation on `rq` at a time out of range, or where a pick is due.
    #[inline]
    pub(crate) fn begin_check(&mut self, rq: RqId, now_ns: u64) -> Result<(), Error> {
        self.check_clock(rq, now_ns)?;
        if self.rqs[rq].is_pick_due() {
            return Err(Error::PickDue(rq));
        }
        Ok(())
    }

    /// [`Self::begin_check`], then sets the clock.
    pub(crate) fn begin(&mut self, rq: RqId, now_ns: u64) -> Result<(), Error> {
        self.begin_check(rq, now_ns)?;
        self.set_clock(rq, now_ns);
        Ok(())
    }

    /// `update_rq_clock`.
    #[inline]
    pub(crate) fn set_clock(&mut self, rq: RqId, now_ns: u64) {
        self.rqs[rq].set_clock(now_ns);
        self.now = now_ns;
    }

    /// [`Rq::resched_curr`].
    #[inline]
    pub(crate) fn resched_curr(&mut self, rq: RqId, request: Resched) {
        self.rqs[rq].resched_curr(self.cfg.preempt, request);
    }

    /// Tasks on a run queue, delayed ones included (`rq->nr_running`).
    pub(crate) fn nr_queued(&self, rq: RqId) -> u32 {
        self.tree[self.rqs[rq].root()].h_nr_queued()
    }

    /// Whether `p` is the current task of its run queue.
    pub(crate) fn is_running(&self, p: Ent) -> bool {
        self.rqs
            .get(self.tree[p].rq())
            .is_some_and(|r| r.curr() == p)
    }

    /// `update_curr`: charges the current entity of `q` for its time since the last account.
    #[inline(always)]
    pub(crate) fn update_curr(&mut self, q: Que) {
        let curr = self.tree[q].curr();
        if self
            .tree
            .get(curr)
            .is_some_and(|c| self.now > c.exec_start())
        {
            self.charge(q, curr);
        }
    }

    /// `entity_tick` on each level from the current task upwards.
    pub(super) fn tick_levels(&mut self, rq: RqId, timer: bool) {
        if self.is_flat(rq) {
            flat::tick(self, rq, timer);
            return;
        }
        let mut e = self.rqs[rq].curr();
        while e.is_some() {
            self.update_curr(self.tree[e].queue());
            self.update_cfs_group(e);
            if timer {
                self.resched_curr(rq, Resched::Now);
            } else {
                self.class_entity_tick(self.tree[e].queue(), e);
            }
            e = self.tree.parent(e);
        }
    }

    /// `update_cfs_group`: updates the weight of a group's entity.
    #[inline]
    pub(crate) fn update_cfs_group(&mut self, e: Ent) {
        if !self.tree[e].is_task() {
            self.update_group_weight(e);
        }
    }

    #[inline(never)]
    fn update_group_weight(&mut self, e: Ent) {
        let (ent, rules) = (&self.tree[e], self.cfg.rules());
        let (my_q, rq) = (ent.my_q(), ent.rq());
        let shares = ent.group().and_then(|g| {
            let load = self.tree.level_load(my_q);
            self.groups.calc_group_shares(&self.cfg, g, my_q, load)
        });
        // Under EEVDF the entity of an empty queue keeps its weight.
        if let Some(weight) = shares.or(rules.empty_group_weight)
            && (weight != self.tree.load(e) || rules.reweights_to_same)
        {
            if self.is_flat(rq) {
                self.set_level_load(e, weight);
            } else {
                self.reweight_entity(e, weight);
            }
        }
    }

    /// Changes an entity's weight on its own level, and the level's total if it is queued.
    pub(crate) fn set_level_load(&mut self, e: Ent, load: u64) {
        let delta = load as i64 - self.tree.load(e) as i64;
        self.tree.set_load(e, load);
        let ent = &self.tree[e];
        if ent.on_rq() {
            let q = ent.queue();
            self.tree.count_level(q, delta, 0);
            self.group_load(q, delta);
        }
    }

    /// Adds to the totals of the group with entity `owner`: load, and runnable tasks.
    #[inline(never)]
    pub(crate) fn group_changed(&mut self, owner: Ent, load: i64, runnable: i32) {
        let Some(g) = self.tree[owner].group() else {
            debug_assert!(false, "the owner of a queue represents a group");
            return;
        };
        self.groups.add_totals(g, load, runnable);
    }

    /// Adds to the total load of the group that owns `q`.
    #[inline]
    pub(crate) fn group_load(&mut self, q: Que, delta: i64) {
        let owner = self.tree[q].owner();
        if owner.is_some() {
            self.group_changed(owner, delta, 0);
        }
    }

    /// Adds to the count of runnable tasks of the group that owns `q`.
    #[inline]
    pub(crate) fn group_runnable(&mut self, q: Que, delta: i32) {
        let owner = self.tree[q].owner();
        if owner.is_some() && delta != 0 {
            self.group_changed(owner, 0, delta);
        }
    }

    /// Adds to the counters of `q` and its group. Returns the group's entity.
    #[inline]
    pub(crate) fn count_up(&mut self, q: Que, count: &mut Count) -> Ent {
        let queue = &mut self.tree[q];
        queue.count_up(count);
        let owner = queue.owner();
        if owner.is_some() && count.runnable != 0 {
            self.group_changed(owner, 0, count.runnable as i32);
        }
        owner
    }

    /// Subtracts from the counters of `q` and its group. Returns the group's entity.
    #[inline]
    pub(crate) fn count_down(&mut self, q: Que, count: &mut Count) -> Ent {
        let queue = &mut self.tree[q];
        queue.count_down(count);
        let owner = queue.owner();
        if owner.is_some() && count.runnable != 0 {
            self.group_changed(owner, 0, -(count.runnable as i32));
        }
        owner
    }

    /// `account_entity_enqueue`, and the group's total.
    #[inline]
    pub(crate) fn account_load(&mut self, q: Que, e: Ent) {
        let load = self.tree.load(e) as i64;
        self.tree.count_level(q, load, 1);
        self.group_load(q, load);
    }

    /// `account_entity_dequeue`.
    #[inline]
    pub(crate) fn unaccount_load(&mut self, q: Que, e: Ent) {
        let load = self.tree.load(e) as i64;
        self.tree.count_level(q, -load, -1);
        self.group_load(q, -load);
    }

    /// The parent entity and the queue of a task of `group` on `rq`.
    pub(crate) fn group_cfs_rq(
        &self,
        group: Option<GroupId>,
        rq: RqId,
    ) -> Result<(Ent, Que), Error> {
        let root = self.rq(rq)?.root();
        let Some(g) = group else {
            return Ok((Ent::NONE, root));
        };
        self.groups.get(g)?;
        let e = self.groups.group_se(g, rq);
        if e.is_none() {
            return Err(Error::GroupNotOnCpu { group: g, rq });
        }
        Ok((e, self.tree[e].my_q()))
    }

    /// `set_task_rq`: sets the queue and the parent of a task that is off its queue, on `rq`.
    #[inline(always)]
    pub(crate) fn set_task_rq(&mut self, e: Ent, rq: RqId) -> Result<(), Error> {
        let ent = &self.tree[e];
        debug_assert!(!ent.on_rq(), "still queued");
        // Most tasks return to their last CPU.
        if ent.rq() == rq && ent.is_attached() {
            return Ok(());
        }
        self.set_task_rq_slow(e, rq)
    }

    #[inline(never)]
    fn set_task_rq_slow(&mut self, e: Ent, rq: RqId) -> Result<(), Error> {
        let (parent, queue) = self.group_cfs_rq(self.tree[e].group(), rq)?;
        let parent_se = self.tree.get(parent);
        let depth = parent_se.map_or(0, |parent| parent.depth() + 1);
        let pick_queue = if self.is_flat(rq) {
            self.rqs[rq].root()
        } else {
            queue
        };
        self.clear_task_rq(e);
        self.tree.add_users(parent, 1);
        let ent = &mut self.tree[e];
        ent.attach(rq, queue, depth);
        self.tree.set_pick_queue(e, pick_queue);
        let load = self.tree.load(e);
        if !self.is_flat(rq) && self.tree[e].weight() != load {
            self.rescale_entity(e, load, false);
        }
        Ok(())
    }

    /// Detaches a task from its queue.
    pub(crate) fn clear_task_rq(&mut self, e: Ent) {
        self.migrate_task_rq(e);
        if self.tree[e].detach() {
            self.tree.add_users(self.tree.parent(e), -1);
        }
    }

    /// Ends a task that is on no queue.
    pub(crate) fn free_task(&mut self, e: Ent) {
        debug_assert!(!self.is_running(e), "still in use");
        self.clear_task_rq(e);
        self.groups.remove_task(self.tree[e].group());
        self.tree.free_task(e);
    }

    /// `wakeup_preempt` and `check_preempt_wakeup_fair` for task `p`, which is on `rq`.
    #[inline(never)]
    pub(crate) fn wakeup_preempt(&mut self, rq: RqId, p: Ent, arrival: Arrival) {
        self.wakeup_preempt_inline(rq, p, arrival);
    }

    /// [`Self::wakeup_preempt`], compiled into its caller.
    #[inline(always)]
    pub(crate) fn wakeup_preempt_inline(&mut self, rq: RqId, p: Ent, arrival: Arrival) {
        debug_assert_eq!(self.tree[p].rq(), rq);
        let curr = self.rqs[rq].curr();
        if self.tree.get(curr).is_none() {
            // `wakeup_preempt`: a fair task preempts the idle task.
            self.resched_curr(rq, Resched::Now);
        } else if p != curr {
            self.class_check_preempt(rq, curr, p, arrival);
        }
    }

    /// `yield_task_fair`.
    pub(crate) fn yield_step(&mut self, rq: RqId) {
        if self.nr_queued(rq) != 1 {
            self.class_yield_task(self.rqs[rq].curr());
        }
    }

    /// Nominates `p`, a task or a group, as buddy: from its level up, or in the root's queue under
    /// flat picking.
    pub(crate) fn nominate(&mut self, p: Ent) {
        if !self.is_flat(self.tree[p].rq()) {
            self.tree.set_next_buddy(p);
        } else if !self.tree.is_idle(p) {
            let q = self.tree.pick_queue(p);
            self.tree[q].set_next(p);
        }
    }
}

/// All state with an effect on later operations, except the configuration.
impl Hash for Sched {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.now.hash(state);
        self.tree.hash(state);
        self.rqs.hash(state);
        self.groups.hash(state);
        self.buddies.hash(state);
        self.credits.hash(state);
    }
}
