//! Queues (`struct cfs_rq`), run queues (`struct rq`), and sums over a queue's members.
//!
//! The members of a queue are the entities in its tree and the running one, which is never in
//! the tree. Sums over the tree are kept; the running entity is added where they are used.

use super::Fair;
use super::config::PickMode;
use super::entity::Entity;
use super::ids::{Arena, Ent, Que};
use super::timeline::{Pool, Timeline};
use super::weights::{NICE_0_LOAD, calc_delta_fair, earlier};

/// One queue: the root's, or a group's on one CPU. It is one cache line, and a large host has several
/// for each vCPU: what few have is kept beside them (`Fair::tokens`, `Fair::ext_loads`), and so are
/// weight and number of its entities under flat picking (`Fair::flat_queues`); level by level they
/// are those of its members.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Queue {
    pub(crate) timeline: Timeline,
    /// Running entity.
    pub(crate) curr: Ent,
    /// Weight of the tree.
    pub(crate) sum_weight: u64,
    /// Sum of `(vruntime - zero_vruntime) * weight` over the tree.
    pub(crate) sum_w_vruntime: i64,
    /// Base of `sum_w_vruntime`, near the average.
    pub(crate) zero_vruntime: u64,
    /// Entities competing in it: those in the tree, and the running one if it is queued.
    pub(crate) members: u32,
    /// Buddy: to be picked if eligible.
    pub(crate) next: Ent,
    /// Its group's entity; none for the root.
    pub(crate) owner: Ent,
    pub(crate) h_nr_queued: u32,
    pub(crate) h_nr_runnable: u32,
    /// `h_nr_idle`, and with the highest bit that it belongs to an idle group.
    idle: u32,
}

/// There are fewer entities than this.
const IDLE_GROUP: u32 = 1 << 31;

/// The running entity of a queue, as far as sums and bounds need it.
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

    /// Tasks at and below this level that are idle, by policy or by a group below it.
    #[inline]
    pub(crate) fn h_nr_idle(&self) -> u32 {
        self.idle & !IDLE_GROUP
    }

    #[inline]
    pub(crate) fn add_idle(&mut self, tasks: i32) {
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

    /// What the running entity adds, if it is a member.
    #[inline]
    pub(crate) fn running(&self, ent: &Arena<Entity>) -> Option<Running> {
        ent.at(self.curr).filter(|c| c.on_rq).map(Running::of)
    }

    /// Sums over all members, `curr` being the running one.
    #[inline]
    pub(crate) fn sums(&self, curr: Option<Running>) -> (i64, u64) {
        let Some(curr) = curr else {
            return (self.sum_w_vruntime, self.sum_weight);
        };
        let term = self.key(curr.vruntime).wrapping_mul(curr.weight as i64);
        (
            self.sum_w_vruntime.wrapping_add(term),
            self.sum_weight + curr.weight,
        )
    }

    /// `entity_key`: virtual runtime relative to the base.
    #[inline]
    pub(crate) fn key(&self, vruntime: u64) -> i64 {
        vruntime.wrapping_sub(self.zero_vruntime) as i64
    }

    /// `entity_eligible`.
    #[inline]
    pub(crate) fn eligible(&self, curr: Option<Running>, vruntime: u64) -> bool {
        let (sum, weight) = self.sums(curr);
        fits(sum, weight, self.key(vruntime))
    }

    /// `avg_vruntime`: the average, which becomes the base, and the weight of all members.
    #[inline]
    pub(crate) fn avg_vruntime(&mut self, curr: Option<Running>) -> (u64, u64) {
        let (sum, weight) = self.sums(curr);
        if self.sum_weight == 0 {
            // The base of a sum over nothing moves alone.
            if let Some(curr) = curr {
                self.zero_vruntime = curr.vruntime;
            }
        } else {
            let delta = floor_div(sum, weight as i64);
            self.set_zero(self.zero_vruntime.wrapping_add(delta as u64));
        }
        (self.zero_vruntime, weight)
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
        self.sum_weight -= ent.weight;
        pool.remove(&mut self.timeline, e.0);
    }

    /// [`Self::tree_insert`] of one and [`Self::tree_remove`] of another.
    #[inline(always)]
    pub(crate) fn tree_exchange(
        &mut self,
        pool: &mut Pool,
        ents: &Arena<Entity>,
        (come, go): (Ent, Ent),
    ) {
        let (new, old) = (&ents[come], &ents[go]);
        let plus = self.key(new.vruntime).wrapping_mul(new.weight as i64);
        let minus = self.key(old.vruntime).wrapping_mul(old.weight as i64);
        self.sum_w_vruntime = self.sum_w_vruntime.wrapping_add(plus).wrapping_sub(minus);
        self.sum_weight = self.sum_weight + new.weight - old.weight;
        let keys = &|e| ents.keys(e);
        pool.exchange(&mut self.timeline, (come.0, go.0), new.slice, keys);
    }

    /// `update_zero_vruntime`.
    #[inline]
    pub(crate) fn set_zero(&mut self, zero: u64) {
        let delta = zero.wrapping_sub(self.zero_vruntime) as i64;
        let moved = (self.sum_weight as i64).wrapping_mul(delta);
        self.sum_w_vruntime = self.sum_w_vruntime.wrapping_sub(moved);
        self.zero_vruntime = zero;
    }
}

/// Whether a key is eligible: `sum >= key * weight`, exactly.
#[inline]
pub(crate) fn fits(sum: i64, weight: u64, key: i64) -> bool {
    match key.checked_mul(weight as i64) {
        Some(right) => sum >= right,
        None => i128::from(sum) >= i128::from(key) * i128::from(weight),
    }
}

const _: () = assert!(size_of::<Queue>() == 64 && size_of::<Rq>() == 40);

/// Request to reschedule that is pending on a running task.
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
    /// Up to this time no entity that runs can have gone unaccounted for too long.
    pub(crate) unasked_until: u64,
    /// Expiry of the slice timer; 0 for not armed.
    pub(crate) hrtick: u64,
    pub(crate) root: Que,
    /// Running task; none when idle.
    pub(crate) curr: Ent,
    pub(crate) mode: PickMode,
    pub(crate) resched: Resched,
    /// A fair task has been announced to the idle task since the last pick.
    pub(crate) announced: bool,
    /// The running task has blocked.
    pub(crate) pick_due: bool,
}

/// `floor(a / b)` for a positive `b`.
#[inline]
pub(crate) fn floor_div(a: i64, b: i64) -> i64 {
    // As of two or four tasks of nice 0: a shift floors.
    if b & (b - 1) == 0 {
        return a >> b.trailing_zeros();
    }
    let q = a / b;
    if a % b < 0 { q - 1 } else { q }
}

impl Arena<Entity> {
    /// Deadline and virtual runtime of an entity, as the tree sorts and searches by them.
    #[inline]
    pub(crate) fn keys(&self, e: u32) -> (u64, u64) {
        let ent = &self[Ent(e)];
        (ent.deadline, ent.vruntime)
    }
}

impl Fair {
    /// The running entity of `q` if it is a member.
    #[inline]
    pub(crate) fn curr_on(&self, q: Que) -> Option<Ent> {
        let curr = self.que[q].curr;
        self.ent.at(curr).filter(|c| c.on_rq).map(|_| curr)
    }

    /// Weighted sum of keys and sum of weights over all members.
    #[inline]
    pub(crate) fn sums(&self, q: Que) -> (i64, u64) {
        let queue = &self.que[q];
        queue.sums(queue.running(&self.ent))
    }

    /// Weight of all members.
    #[inline]
    pub(crate) fn weight(&self, q: Que) -> u64 {
        self.sums(q).1
    }

    /// `entity_eligible`.
    #[inline]
    pub(crate) fn eligible(&self, q: Que, e: Ent) -> bool {
        let queue = &self.que[q];
        queue.eligible(queue.running(&self.ent), self.ent[e].vruntime)
    }

    /// `avg_vruntime` without moving the base.
    #[inline]
    pub(crate) fn average(&self, q: Que) -> u64 {
        let queue = &self.que[q];
        let (sum, weight) = self.sums(q);
        if queue.sum_weight != 0 {
            let delta = floor_div(sum, weight as i64);
            return queue.zero_vruntime.wrapping_add(delta as u64);
        }
        if weight == 0 {
            queue.zero_vruntime
        } else {
            self.ent[queue.curr].vruntime
        }
    }

    /// `avg_vruntime`: the average, which becomes the base, and the weight of all members.
    #[inline]
    pub(crate) fn avg_vruntime(&mut self, q: Que) -> (u64, u64) {
        let queue = &mut self.que[q];
        queue.avg_vruntime(queue.running(&self.ent))
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

    /// Sets the slice of an entity that is on its queue, in the tree or running.
    #[inline]
    pub(crate) fn set_queued_slice(&mut self, e: Ent, slice: u64) {
        let slice = slice as u32;
        if self.ent[e].slice != slice {
            self.ent[e].slice = slice;
            if self.pool.contains(e.0) {
                let q = self.arena(e);
                let timeline = &mut self.que[q].timeline;
                self.pool.update_slice(timeline, e.0, slice);
            }
        }
    }

    /// How far from the average lag may be, in virtual ns (the bound in `entity_lag`).
    #[inline]
    pub(crate) fn lag_bound(&self, q: Que, e: Ent) -> i64 {
        let real = self.max_slice(q) + self.cfg.tick_ns;
        calc_delta_fair(real, self.ent[e].weight).min(i64::MAX as u64) as i64
    }

    /// `entity_lag` against an average of `v`.
    #[inline]
    pub(crate) fn entity_lag(&self, q: Que, e: Ent, v: u64) -> i64 {
        self.ent[e].lag_against(v, self.max_slice(q) + self.cfg.tick_ns)
    }

    /// `update_protect_slice`: shortens the protection to the shortest slice queued.
    #[inline(always)]
    pub(crate) fn update_protect(&mut self, q: Que, e: Ent) {
        let queue = &self.que[q];
        let mut slice = u64::from(queue.timeline.shortest());
        if let Some(curr) = queue.running(&self.ent) {
            slice = slice.min(curr.slice);
        }
        let ent = &mut self.ent[e];
        let end = ent.vruntime.wrapping_add(ent.vtime(slice));
        ent.vprot = earlier(ent.vprot, end);
    }
}

#[cfg(test)]
mod tests {
    use super::floor_div;

    #[test]
    fn floors_toward_minus_infinity() {
        assert_eq!(floor_div(7, 2), 3);
        assert_eq!(floor_div(-7, 2), -4);
        assert_eq!(floor_div(-8, 2), -4);
        assert_eq!(floor_div(0, 5), 0);
        for a in [
            i64::MIN,
            -1025,
            -1024,
            -1023,
            -1,
            0,
            1,
            1023,
            1024,
            i64::MAX,
        ] {
            for b in [1, 2, 1024, 1 << 62] {
                assert_eq!(floor_div(a, b), a.div_euclid(b), "{a} {b}");
            }
        }
    }
}
