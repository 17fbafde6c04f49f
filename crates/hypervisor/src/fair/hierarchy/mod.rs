//! The hierarchy of entities: tasks, groups on each CPU, and the queues in which they compete.
//!
//! A queue belongs to a group's entity, which competes in the queue above, up to the root's queue
//! of a run queue.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::ops::{Index, IndexMut};

use super::cfs_rq::CfsRq;
use super::config::PickMode;
use super::error::Error;
use super::flat_levels::FlatLevels;
use super::ids::{Arena, Ent, Que, TaskId, make_room};
use super::sched_entity::{NEW_GROUP_LOAD, Policy, SchedEntity, TaskState};
use super::timeline::{MAX_ENTITIES, Pool};
use super::weights::NICE_0_LOAD;

mod check;
mod level;
mod queues;

/// Entities and queues by number, and the nodes of all timelines.
///
/// An entity is in the timeline of the queue in which it competes exactly while that queue's sums
/// include it. Its virtual times and its weight must not change then.
#[derive(Clone, Debug)]
pub(crate) struct Hierarchy {
    entities: Arena<SchedEntity>,
    queues: Arena<CfsRq>,
    pool: Pool,
    flat: FlatLevels,
    free_tasks: Vec<Ent>,
    /// Unused entities of groups, each with its queue.
    free_group_cpus: Vec<Ent>,
}

impl Index<Ent> for Hierarchy {
    type Output = SchedEntity;

    #[inline]
    fn index(&self, e: Ent) -> &SchedEntity {
        &self.entities[e]
    }
}

impl IndexMut<Ent> for Hierarchy {
    #[inline]
    fn index_mut(&mut self, e: Ent) -> &mut SchedEntity {
        &mut self.entities[e]
    }
}

impl Index<Que> for Hierarchy {
    type Output = CfsRq;

    #[inline]
    fn index(&self, q: Que) -> &CfsRq {
        &self.queues[q]
    }
}

impl IndexMut<Que> for Hierarchy {
    #[inline]
    fn index_mut(&mut self, q: Que) -> &mut CfsRq {
        &mut self.queues[q]
    }
}

impl Hierarchy {
    /// Without entities and queues.
    pub(crate) fn new() -> Self {
        Self {
            entities: Arena::EMPTY,
            queues: Arena::EMPTY,
            pool: Pool::default(),
            flat: FlatLevels::DISABLED,
            free_tasks: Vec::new(),
            free_group_cpus: Vec::new(),
        }
    }

    pub(crate) fn set_lean(&mut self) {
        self.pool.set_lean();
    }

    /// Whether memory is allocated as it is used: see [`super::Fair::set_lean`].
    #[inline]
    pub(crate) fn is_lean(&self) -> bool {
        self.pool.is_lean()
    }

    /// The entity `e`; `None` for [`Ent::NONE`].
    #[inline(always)]
    pub(crate) fn get(&self, e: Ent) -> Option<&SchedEntity> {
        self.entities.get(e)
    }

    /// Number of the next queue.
    pub(crate) fn next_queue(&self) -> Result<Que, Error> {
        let index = u32::try_from(self.queues.len());
        index.map(Que).map_err(|_| Error::Full("queues"))
    }

    /// Queues so far.
    pub(crate) fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// Adds an empty queue that belongs to `owner`, with the next free number.
    pub(crate) fn push_queue(&mut self, owner: Ent) {
        self.queues.push(self.pool.is_lean(), CfsRq::new(owner));
        if self.flat.is_enabled() {
            self.extend_flat();
        }
    }

    /// Adds the entities and queues that the tables of flat picking do not have yet.
    pub(crate) fn extend_flat(&mut self) {
        let lean = self.is_lean();
        // Before the first flat run queue, all entities compete level by level.
        for ent in self.entities.as_slice().iter().skip(self.flat.entities()) {
            self.flat.push_entity(lean, ent.weight(), ent.queue());
        }
        for q in self.flat.queues()..self.queues.len() {
            let q = Que(q as u32);
            let (load, nr_queued) = (self.weight(q), self[q].members());
            self.flat.push_queue(lean, load, nr_queued);
        }
    }

    fn new_entity(&mut self, load: u64) -> Result<Ent, Error> {
        let index = u32::try_from(self.entities.len()).map_err(|_| Error::Full("entities"))?;
        if index as usize >= MAX_ENTITIES {
            return Err(Error::Full("entities"));
        }
        self.entities
            .push(self.pool.is_lean(), SchedEntity::blank(load));
        if self.flat.is_enabled() {
            self.extend_flat();
        }
        // Room for all entities that the table can hold: inserting into a tree never allocates.
        self.pool.grow(self.entities.capacity());
        if !self.pool.is_lean() {
            let spare = self.entities.len().saturating_sub(self.free_tasks.len());
            self.free_tasks.reserve(spare);
        }
        Ok(Ent(index))
    }

    /// A slot for a task: `init` makes its entity, on no queue, from the slot's generation.
    pub(crate) fn alloc_task(
        &mut self,
        init: impl FnOnce(u32) -> SchedEntity,
    ) -> Result<Ent, Error> {
        let e = match self.free_tasks.pop() {
            Some(e) => e,
            None => self.new_entity(NICE_0_LOAD)?,
        };
        debug_assert!(!self.pool.contains(e.0), "still in a timeline");
        self.entities[e] = init(self.entities[e].generation());
        self.flat.set_load(e, self.entities[e].weight());
        self.flat.set_pick_queue(e, Que::NONE);
        Ok(e)
    }

    /// A task ends: its slot is free for another.
    pub(crate) fn free_task(&mut self, e: Ent) {
        if self.entities[e].end_task() {
            self.free_tasks.push(e);
        }
    }

    /// An entity of a group, blank, that has been used for another and its queue; `None` if there
    /// is none.
    pub(crate) fn reuse_group_cpu(&mut self) -> Option<(Ent, Que)> {
        let e = self.free_group_cpus.pop()?;
        let my_q = self[e].my_q();
        self[e] = SchedEntity::blank(NEW_GROUP_LOAD);
        self.flat.set_load(e, NEW_GROUP_LOAD);
        self[my_q] = CfsRq::new(e);
        Some((e, my_q))
    }

    /// A new entity of a group, blank, and the number of the queue to add for it.
    pub(crate) fn new_group_cpu(&mut self) -> Result<(Ent, Que), Error> {
        let e = self.new_entity(NEW_GROUP_LOAD)?;
        Ok((e, self.next_queue()?))
    }

    /// Keeps the entity of a group, and its queue, for another group.
    pub(crate) fn free_group_cpu(&mut self, e: Ent) {
        self[e].set_group(None);
        make_room(self.pool.is_lean(), &mut self.free_group_cpus);
        self.free_group_cpus.push(e);
    }

    /// Slot of a task that is not exiting.
    pub(crate) fn task(&self, id: TaskId) -> Result<Ent, Error> {
        let e = self.live_task(id)?;
        if self[e].state() == TaskState::Exiting {
            return Err(Error::NoSuchTask(id));
        }
        Ok(e)
    }

    /// Slot of a task in a given state: one comparison for most calls.
    #[inline(always)]
    pub(crate) fn task_in(&self, id: TaskId, state: TaskState) -> Option<Ent> {
        let ent = self.get(Ent(id.index))?;
        let found = ent.state() == state && ent.is_live(id.generation);
        found.then_some(Ent(id.index))
    }

    /// Slot of a task that may be exiting.
    pub(crate) fn live_task(&self, id: TaskId) -> Result<Ent, Error> {
        match self.get(Ent(id.index)) {
            Some(ent) if ent.is_live(id.generation) => Ok(Ent(id.index)),
            _ => Err(Error::NoSuchTask(id)),
        }
    }

    /// `parent_entity`: the entity of the group that `e` is in; none in the root's queue.
    #[inline]
    pub(crate) fn parent(&self, e: Ent) -> Ent {
        // An entity on no queue has no parent either: `Que::NONE` is beyond the table.
        let queue = self.queues.get(self[e].queue());
        queue.map_or(Ent::NONE, |queue| queue.owner())
    }

    /// A task or a group attaches to a group's entity (1) or detaches from it (-1); nothing for
    /// the root, which has no entity.
    pub(crate) fn add_users(&mut self, e: Ent, delta: i32) {
        if e.is_some() {
            self[e].add_users(delta);
        }
    }

    /// `se_is_idle`: a task with the idle policy, or an idle group.
    #[inline]
    pub(crate) fn is_idle(&self, e: Ent) -> bool {
        let ent = &self[e];
        if ent.is_task() {
            ent.policy() == Policy::Idle
        } else {
            self[ent.my_q()].is_idle()
        }
    }

    /// `find_matching_se`: the ancestors of both in one queue.
    #[inline]
    pub(crate) fn find_matching_se(&self, a: Ent, b: Ent) -> (Ent, Ent) {
        if self[a].queue() == self[b].queue() {
            (a, b)
        } else {
            self.find_matching_se_slow(a, b)
        }
    }

    #[inline(never)]
    fn find_matching_se_slow(&self, mut a: Ent, mut b: Ent) -> (Ent, Ent) {
        while self[a].depth() > self[b].depth() {
            a = self.parent(a);
        }
        while self[b].depth() > self[a].depth() {
            b = self.parent(b);
        }
        while self[a].queue() != self[b].queue() {
            a = self.parent(a);
            b = self.parent(b);
        }
        (a, b)
    }
}

/// Entities, queues, and the members of each queue in order. The layout of the trees has no effect
/// on operations.
impl Hash for Hierarchy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.entities.hash(state);
        self.flat.hash(state);
        for queue in self.queues.as_slice() {
            queue.hash_sums(state);
            self.pool.for_each(queue.timeline(), &mut |e| e.hash(state));
            // Ends the list, so that no two lists hash alike: no entity has this number.
            u32::MAX.hash(state);
        }
    }
}
