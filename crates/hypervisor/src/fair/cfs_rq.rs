//! CfsRqs (`struct cfs_rq`), run queues (`struct rq`), and sums over a queue's members.
//!
//! The members of a queue are the entities in its tree and the current one, which is never in
//! the tree. Sums over the tree are kept, and the current entity is added where they are used.

use core::hash::{Hash, Hasher};

use super::eevdf::lag::{Average, WeightedSum, floor_div};
use super::ids::Ent;
use super::sched::Count;
use super::sched_entity::SchedEntity;
use super::timeline::{Pool, Timeline};
use super::weights::NICE_0_LOAD;

/// One queue: the root's, or a group's on one CPU.
///
/// It is one cache line, because a large host has several queues for each vCPU. State that few
/// queues have is in tables of its own: tokens of the lag credit, external loads. So are the weight
/// and number of entities under flat picking ([`super::flat_levels`]), which equal those of the
/// members level by level.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct CfsRq {
    timeline: Timeline,
    /// Current entity.
    curr: Ent,
    /// Weight of the tree.
    sum_weight: u64,
    /// Sum of `(vruntime - zero_vruntime) * weight` over the tree.
    sum_w_vruntime: i64,
    /// Base of `sum_w_vruntime`, near the average.
    zero_vruntime: u64,
    /// Competing entities: those in the tree, and the current one if it is queued.
    members: u32,
    /// Buddy: picked if eligible.
    next: Ent,
    /// Its group's entity; none for the root.
    owner: Ent,
    h_nr_queued: u32,
    h_nr_runnable: u32,
    /// `h_nr_idle`, and [`IDLE_GROUP`] if it belongs to an idle group.
    idle: u32,
}

/// The highest bit of the count of idle tasks: there are fewer than 2^31 entities.
const IDLE_GROUP: u32 = 1 << 31;

/// The fields of a queue's current entity that sums and bounds use.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    pub(crate) vruntime: u64,
    pub(crate) weight: u64,
    pub(crate) slice: u64,
}

impl Running {
    #[inline]
    pub(crate) fn of(curr: &SchedEntity) -> Self {
        Self {
            vruntime: curr.vruntime(),
            weight: curr.weight(),
            slice: u64::from(curr.slice()),
        }
    }
}

impl CfsRq {
    pub(crate) fn new(owner: Ent) -> Self {
        Self {
            timeline: Timeline::EMPTY,
            sum_weight: 0,
            sum_w_vruntime: 0,
            // As `init_cfs_rq`: near the wrap, which exposes comparisons that ignore it.
            zero_vruntime: 0u64.wrapping_sub(NICE_0_LOAD),
            curr: Ent::NONE,
            next: Ent::NONE,
            members: 0,
            h_nr_queued: 0,
            h_nr_runnable: 0,
            idle: 0,
            owner,
        }
    }

    /// Its members that wait.
    #[inline]
    pub(crate) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Current entity.
    #[inline]
    pub(crate) fn curr(&self) -> Ent {
        self.curr
    }

    #[inline]
    pub(crate) fn set_curr(&mut self, e: Ent) {
        self.curr = e;
    }

    /// Buddy: picked if eligible.
    #[inline]
    pub(crate) fn next(&self) -> Ent {
        self.next
    }

    #[inline]
    pub(crate) fn set_next(&mut self, e: Ent) {
        self.next = e;
    }

    /// Its group's entity; none for the root.
    #[inline]
    pub(crate) fn owner(&self) -> Ent {
        self.owner
    }

    /// Competing entities: those in the tree, and the current one if it is queued.
    #[inline]
    pub(crate) fn members(&self) -> u32 {
        self.members
    }

    /// Tasks at and below this level.
    #[inline]
    pub(crate) fn h_nr_queued(&self) -> u32 {
        self.h_nr_queued
    }

    /// Tasks of these that are not delayed.
    #[inline]
    pub(crate) fn h_nr_runnable(&self) -> u32 {
        self.h_nr_runnable
    }

    /// A task at or below this level is delayed (-1), or has ceased to be (1).
    #[inline]
    pub(crate) fn add_runnable(&mut self, tasks: i32) {
        debug_assert!(
            self.h_nr_runnable.checked_add_signed(tasks).is_some(),
            "fewer runnable tasks than leave"
        );
        self.h_nr_runnable = self.h_nr_runnable.wrapping_add_signed(tasks);
    }

    /// Weight of the tree.
    #[inline]
    pub(crate) fn sum_weight(&self) -> u64 {
        self.sum_weight
    }

    /// Sum of `(vruntime - zero_vruntime) * weight` over the tree.
    #[inline]
    pub(crate) fn sum_w_vruntime(&self) -> i64 {
        self.sum_w_vruntime
    }

    /// Base of the sum: near the average, or `min_vruntime` of CFS.
    #[inline]
    pub(crate) fn zero_vruntime(&self) -> u64 {
        self.zero_vruntime
    }

    /// Idle tasks at and below this level, by policy or by a group below it.
    #[inline]
    pub(crate) fn h_nr_idle(&self) -> u32 {
        self.idle & !IDLE_GROUP
    }

    #[inline]
    pub(crate) fn add_idle(&mut self, tasks: i32) {
        debug_assert!(
            self.h_nr_idle().checked_add_signed(tasks).is_some(),
            "fewer idle tasks than leave"
        );
        self.idle = self.idle.wrapping_add_signed(tasks);
    }

    /// Whether it belongs to an idle group.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.idle >= IDLE_GROUP
    }

    pub(crate) fn set_idle(&mut self, idle: bool) {
        self.idle = self.h_nr_idle() | if idle { IDLE_GROUP } else { 0 };
    }

    /// The current entity, if it is a member.
    #[inline(always)]
    pub(crate) fn running(&self, entities: &[SchedEntity]) -> Option<Running> {
        let curr = entities.get(self.curr.0 as usize);
        curr.filter(|c| c.on_rq()).map(Running::of)
    }

    /// Sums over all members: those in the tree, and `curr`.
    #[inline(always)]
    pub(crate) fn sums(&self, curr: Option<Running>) -> WeightedSum {
        let Some(curr) = curr else {
            return WeightedSum {
                w_vruntime: self.sum_w_vruntime,
                weight: self.sum_weight,
            };
        };
        let term = self.key(curr.vruntime).wrapping_mul(curr.weight as i64);
        WeightedSum {
            w_vruntime: self.sum_w_vruntime.wrapping_add(term),
            weight: self.sum_weight + curr.weight,
        }
    }

    /// `entity_eligible`.
    #[inline(always)]
    pub(crate) fn eligible(&self, curr: Option<Running>, vruntime: u64) -> bool {
        self.sums(curr).is_eligible(self.key(vruntime))
    }

    /// `avg_vruntime`: the average, which becomes the base.
    #[inline]
    pub(crate) fn avg_vruntime(&mut self, curr: Option<Running>) -> Average {
        let WeightedSum { w_vruntime, weight } = self.sums(curr);
        if self.sum_weight == 0 {
            // An empty tree has no sum that must move with its base.
            if let Some(curr) = curr {
                self.zero_vruntime = curr.vruntime;
            }
        } else {
            let delta = floor_div(w_vruntime, weight as i64);
            self.set_zero(self.zero_vruntime.wrapping_add(delta as u64));
        }
        Average {
            vruntime: self.zero_vruntime,
            weight,
        }
    }

    /// `entity_key`: virtual runtime relative to the base.
    #[inline]
    pub(crate) fn key(&self, vruntime: u64) -> i64 {
        vruntime.wrapping_sub(self.zero_vruntime) as i64
    }

    /// `__enqueue_entity`: into the tree.
    #[inline]
    pub(crate) fn tree_insert(&mut self, pool: &mut Pool, ents: &[SchedEntity], e: Ent) {
        let ent = &ents[e.0 as usize];
        let term = self.key(ent.vruntime()).wrapping_mul(ent.weight() as i64);
        self.sum_w_vruntime = self.sum_w_vruntime.wrapping_add(term);
        self.sum_weight += ent.weight();
        let keys = &|e| ents[e as usize].keys();
        pool.insert(&mut self.timeline, e.0, ent.slice(), keys);
    }

    /// `__dequeue_entity`: out of the tree.
    #[inline]
    pub(crate) fn tree_remove(&mut self, pool: &mut Pool, e: Ent, ent: &SchedEntity) {
        let term = self.key(ent.vruntime()).wrapping_mul(ent.weight() as i64);
        self.sum_w_vruntime = self.sum_w_vruntime.wrapping_sub(term);
        debug_assert!(
            self.sum_weight >= ent.weight(),
            "its weight is not in the sum"
        );
        self.sum_weight -= ent.weight();
        pool.remove(&mut self.timeline, e.0);
    }

    /// Adds an entity to the members: into the tree, unless it is current.
    #[inline(always)]
    pub(crate) fn link(&mut self, pool: &mut Pool, ents: &[SchedEntity], e: Ent) {
        self.members += 1;
        if self.curr != e {
            self.tree_insert(pool, ents, e);
        }
    }

    /// Takes an entity out of the members.
    #[inline(always)]
    pub(crate) fn unlink(&mut self, pool: &mut Pool, e: Ent, ent: &SchedEntity) {
        debug_assert!(self.members > 0, "no members");
        self.members -= 1;
        if self.curr != e {
            self.tree_remove(pool, e, ent);
        }
    }

    /// Sets the slice of an entity in the tree.
    pub(crate) fn update_slice(&mut self, pool: &mut Pool, e: Ent, slice: u32) {
        pool.update_slice(&mut self.timeline, e.0, slice);
    }

    /// Adds to the weight of an entity that stays in the tree: CFS keeps its virtual runtime.
    pub(crate) fn add_weight(&mut self, vruntime: u64, delta: i64) {
        let moved = self.key(vruntime).wrapping_mul(delta);
        self.sum_w_vruntime = self.sum_w_vruntime.wrapping_add(moved);
        self.sum_weight = self.sum_weight.wrapping_add_signed(delta);
    }

    /// [`Self::tree_insert`] of `incoming` and [`Self::tree_remove`] of `outgoing`.
    #[inline(always)]
    pub(crate) fn tree_exchange(
        &mut self,
        pool: &mut Pool,
        ents: &[SchedEntity],
        incoming: Ent,
        outgoing: Ent,
    ) {
        let (new, old) = (&ents[incoming.0 as usize], &ents[outgoing.0 as usize]);
        let plus = self.key(new.vruntime()).wrapping_mul(new.weight() as i64);
        let minus = self.key(old.vruntime()).wrapping_mul(old.weight() as i64);
        self.sum_w_vruntime = self.sum_w_vruntime.wrapping_add(plus).wrapping_sub(minus);
        self.sum_weight = self.sum_weight + new.weight() - old.weight();
        let keys = &|e| ents[e as usize].keys();
        pool.exchange(
            &mut self.timeline,
            incoming.0,
            new.slice(),
            outgoing.0,
            keys,
        );
    }

    /// `update_zero_vruntime`: moves the base, and the sum with it, so that keys stay small enough
    /// for products of 64 bits.
    #[inline]
    pub(crate) fn set_zero(&mut self, zero: u64) {
        let delta = zero.wrapping_sub(self.zero_vruntime) as i64;
        let moved = (self.sum_weight as i64).wrapping_mul(delta);
        self.sum_w_vruntime = self.sum_w_vruntime.wrapping_sub(moved);
        self.zero_vruntime = zero;
    }

    /// Adds to the counters. Above an idle group all tasks count as idle.
    #[inline]
    pub(crate) fn count_up(&mut self, count: &mut Count) {
        self.h_nr_queued += count.queued;
        self.h_nr_runnable += count.runnable;
        self.add_idle(count.idle as i32);
        if self.is_idle() {
            count.idle = count.queued;
        }
    }

    /// Subtracts from the counters.
    #[inline]
    pub(crate) fn count_down(&mut self, count: &mut Count) {
        debug_assert!(self.h_nr_queued >= count.queued && self.h_nr_runnable >= count.runnable);
        self.h_nr_queued -= count.queued;
        self.h_nr_runnable -= count.runnable;
        self.add_idle(-(count.idle as i32));
        if self.is_idle() {
            count.idle = count.queued;
        }
    }

    /// Hashes all but the timeline.
    pub(crate) fn hash_sums<H: Hasher>(&self, state: &mut H) {
        let sums = (self.sum_weight, self.sum_w_vruntime, self.zero_vruntime);
        let counts = (self.members, self.h_nr_queued);
        (sums, counts, self.h_nr_runnable, self.h_nr_idle()).hash(state);
        (self.curr, self.next, self.is_idle()).hash(state);
    }
}

const _: () = assert!(size_of::<CfsRq>() == 64);
