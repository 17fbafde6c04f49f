//! Queues (`struct cfs_rq`), run queues (`struct rq`), and sums over a queue's members.
//!
//! The members of a queue are the entities in its tree and the current one, which is never in
//! the tree. Sums over the tree are kept, and the current entity is added where they are used.

use super::Fair;
use super::config::PickMode;
use super::eevdf::lag::WeightedSum;
use super::entity::Entity;
use super::ids::{Arena, Ent, Que};
use super::timeline::{Keys, Pool, Timeline};
use super::weights::NICE_0_LOAD;

/// One queue: the root's, or a group's on one CPU.
///
/// It is one cache line, because a large host has several queues for each vCPU. State that few
/// queues have is in tables of its own (`Fair::tokens`, `Fair::ext_loads`). So are the weight and
/// number of entities under flat picking (`Fair::flat_queues`), which equal those of the members
/// level by level.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Queue {
    pub(crate) timeline: Timeline,
    /// Current entity.
    pub(crate) curr: Ent,
    /// Weight of the tree.
    pub(crate) sum_weight: u64,
    /// Sum of `(vruntime - zero_vruntime) * weight` over the tree.
    pub(crate) sum_w_vruntime: i64,
    /// Base of `sum_w_vruntime`, near the average.
    pub(crate) zero_vruntime: u64,
    /// Competing entities: those in the tree, and the current one if it is queued.
    pub(crate) members: u32,
    /// Buddy: picked if eligible.
    pub(crate) next: Ent,
    /// Its group's entity; none for the root.
    pub(crate) owner: Ent,
    pub(crate) h_nr_queued: u32,
    pub(crate) h_nr_runnable: u32,
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
    pub(crate) fn of(curr: &Entity) -> Self {
        Self {
            vruntime: curr.vruntime,
            weight: curr.weight,
            slice: u64::from(curr.slice),
        }
    }
}

impl Queue {
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
    #[inline]
    pub(crate) fn running(&self, ent: &Arena<Entity>) -> Option<Running> {
        ent.get(self.curr).filter(|c| c.on_rq).map(Running::of)
    }

    /// Sums over all members: those in the tree, and `curr`.
    #[inline]
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

    /// `entity_key`: virtual runtime relative to the base.
    #[inline]
    pub(crate) fn key(&self, vruntime: u64) -> i64 {
        vruntime.wrapping_sub(self.zero_vruntime) as i64
    }

    /// `__enqueue_entity`: into the tree.
    #[inline]
    pub(crate) fn tree_insert(&mut self, pool: &mut Pool, ents: &Arena<Entity>, e: Ent) {
        let ent = &ents[e];
        let term = self.key(ent.vruntime).wrapping_mul(ent.weight as i64);
        self.sum_w_vruntime = self.sum_w_vruntime.wrapping_add(term);
        self.sum_weight += ent.weight;
        let keys = &|e| ents.keys(e);
        pool.insert(&mut self.timeline, e.0, ent.slice, keys);
    }

    /// `__dequeue_entity`: out of the tree.
    #[inline]
    pub(crate) fn tree_remove(&mut self, pool: &mut Pool, e: Ent, ent: &Entity) {
        let term = self.key(ent.vruntime).wrapping_mul(ent.weight as i64);
        self.sum_w_vruntime = self.sum_w_vruntime.wrapping_sub(term);
        debug_assert!(
            self.sum_weight >= ent.weight,
            "its weight is not in the sum"
        );
        self.sum_weight -= ent.weight;
        pool.remove(&mut self.timeline, e.0);
    }

    /// [`Self::tree_insert`] of `incoming` and [`Self::tree_remove`] of `outgoing`.
    #[inline(always)]
    pub(crate) fn tree_exchange(
        &mut self,
        pool: &mut Pool,
        ents: &Arena<Entity>,
        incoming: Ent,
        outgoing: Ent,
    ) {
        let (new, old) = (&ents[incoming], &ents[outgoing]);
        let plus = self.key(new.vruntime).wrapping_mul(new.weight as i64);
        let minus = self.key(old.vruntime).wrapping_mul(old.weight as i64);
        self.sum_w_vruntime = self.sum_w_vruntime.wrapping_add(plus).wrapping_sub(minus);
        self.sum_weight = self.sum_weight + new.weight - old.weight;
        let keys = &|e| ents.keys(e);
        pool.exchange(&mut self.timeline, incoming.0, new.slice, outgoing.0, keys);
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
}

const _: () = assert!(size_of::<Queue>() == 64 && size_of::<Rq>() == 40);

/// Request to reschedule, pending on the current task of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Resched {
    /// None.
    #[default]
    None,
    /// At the next tick or return to user space (`TIF_NEED_RESCHED_LAZY`).
    Lazy,
    /// Now (`TIF_NEED_RESCHED`).
    Now,
}

/// The run queue of a CPU.
#[derive(Clone, Debug, Hash)]
#[repr(C)]
pub(crate) struct Rq {
    pub(crate) clock: u64,
    /// Until this time in ns no current entity can exceed `MAX_UNACCOUNTED_NS`.
    pub(crate) accounted_until_ns: u64,
    /// Expiry of the slice timer in ns; 0 for not armed.
    pub(crate) hrtick: u64,
    pub(crate) root: Que,
    /// Current task; none while idle.
    pub(crate) curr: Ent,
    pub(crate) mode: PickMode,
    pub(crate) resched: Resched,
    /// The idle task has been preempted since the last pick.
    pub(crate) announced: bool,
    /// The current task has blocked.
    pub(crate) pick_due: bool,
}

impl Arena<Entity> {
    /// The keys of an entity in the tree.
    #[inline]
    pub(crate) fn keys(&self, e: u32) -> Keys {
        let ent = &self[Ent(e)];
        Keys {
            deadline: ent.deadline,
            vruntime: ent.vruntime,
        }
    }
}

impl Fair {
    /// The current entity of `q` if it is a member.
    #[inline]
    pub(crate) fn curr_on(&self, q: Que) -> Option<Ent> {
        let curr = self.que[q].curr;
        self.ent.get(curr).filter(|c| c.on_rq).map(|_| curr)
    }

    /// Sums over all members.
    #[inline]
    pub(crate) fn sums(&self, q: Que) -> WeightedSum {
        let queue = &self.que[q];
        queue.sums(queue.running(&self.ent))
    }

    /// Weight of all members.
    #[inline]
    pub(crate) fn weight(&self, q: Que) -> u64 {
        self.sums(q).weight
    }

    /// [`Queue::tree_insert`].
    #[inline]
    pub(crate) fn tree_insert(&mut self, q: Que, e: Ent) {
        self.que[q].tree_insert(&mut self.pool, &self.ent, e);
    }

    /// [`Queue::tree_remove`].
    #[inline]
    pub(crate) fn tree_remove(&mut self, q: Que, e: Ent) {
        self.que[q].tree_remove(&mut self.pool, e, &self.ent[e]);
    }

    /// Shortest slice among the members in ns (`cfs_rq_min_slice`); `u32::MAX` without any.
    #[inline]
    pub(crate) fn min_slice(&self, q: Que) -> u64 {
        let tree = u64::from(self.que[q].timeline.shortest());
        self.curr_on(q)
            .map_or(tree, |c| tree.min(u64::from(self.ent[c].slice)))
    }

    /// Longest slice among the members in ns (`cfs_rq_max_slice`); 0 without any.
    #[inline]
    pub(crate) fn max_slice(&self, q: Que) -> u64 {
        let tree = u64::from(self.que[q].timeline.longest());
        self.curr_on(q)
            .map_or(tree, |c| tree.max(u64::from(self.ent[c].slice)))
    }

    /// Sets the slice of an entity that is queued, in the tree or current.
    #[inline]
    pub(crate) fn set_queued_slice(&mut self, e: Ent, slice: u64) {
        let slice = slice as u32;
        if self.ent[e].slice != slice {
            self.ent[e].slice = slice;
            if self.pool.contains(e.0) {
                let q = self.pick_queue(e);
                let timeline = &mut self.que[q].timeline;
                self.pool.update_slice(timeline, e.0, slice);
            }
        }
    }
}
