//! Groups: their entities on each CPU, their shares, and the weights that follow from these.

use super::config::{CgroupMode, OtherLoad};
use super::entity::{Entity, Marks, NEW_GROUP_LOAD, NO_GROUP};
use super::error::Error;
use super::group_cpus::{GroupCpu, GroupCpus};
use super::ids::{Ent, GroupId, Que, RqId, TaskId};
use super::queue::Queue;
use super::weights::{
    MIN_SHARES, NICE_0_LOAD, NICE_MIN, SHARES_MAX, SHARES_MIN, WEIGHT_IDLEPRIO, weight_of_nice,
};
use super::{Fair, MAX_DEPTH};

/// A group (`struct task_group`).
#[derive(Clone, Debug, Hash)]
pub(crate) struct Group {
    /// `NO_GROUP` under the root group.
    parent: u32,
    /// At most [`SHARES_MAX`].
    shares: u32,
    pub(crate) tasks: u32,
    pub(crate) children: u32,
    /// Weight on all its queues.
    pub(crate) load: u64,
    /// Runnable tasks at and below it on all CPUs.
    pub(crate) runnable: u32,
    pub(crate) cpus: GroupCpus,
    pub(crate) depth: u8,
    pub(crate) idle: bool,
}

const _: () = assert!(SHARES_MAX <= u32::MAX as u64 && size_of::<Group>() == 56);

impl Group {
    /// The group above; `None` for the root group.
    pub(crate) fn parent(&self) -> Option<GroupId> {
        (self.parent != NO_GROUP).then_some(GroupId(self.parent))
    }

    pub(crate) fn set_parent(&mut self, parent: Option<GroupId>) {
        self.parent = parent.map_or(NO_GROUP, |g| g.0);
    }

    pub(crate) fn shares(&self) -> u64 {
        u64::from(self.shares)
    }
}

/// `scale_load_down` on 64 bit: at least 2, unless 0.
pub(crate) fn scale_load_down(weight: u64) -> u64 {
    if weight == 0 {
        0
    } else {
        (weight >> 10).max(2)
    }
}

impl Fair {
    pub(crate) fn group(&self, g: GroupId) -> Result<&Group, Error> {
        self.groups.0.get(g.0 as usize).ok_or(Error::NoSuchGroup(g))
    }

    /// Makes a group under `parent` (`None`: the root group), on no CPU yet.
    ///
    /// # Errors
    ///
    /// An unknown parent, or [`Error::TooDeep`].
    pub fn create_group(&mut self, parent: Option<GroupId>) -> Result<GroupId, Error> {
        let depth = match parent {
            Some(p) => u32::from(self.group(p)?.depth) + 1,
            None => 1,
        };
        if depth > MAX_DEPTH {
            return Err(Error::TooDeep {
                depth,
                max: MAX_DEPTH,
            });
        }
        let id = u32::try_from(self.groups.0.len()).map_err(|_| Error::Full("groups"))?;
        if let Some(p) = parent {
            self.groups[p].children += 1;
        }
        Self::make_room(self.lean, &mut self.groups.0);
        self.groups.0.push(Group {
            parent: parent.map_or(NO_GROUP, |g| g.0),
            depth: depth as u8,
            shares: NICE_0_LOAD as u32,
            idle: false,
            tasks: 0,
            children: 0,
            load: 0,
            runnable: 0,
            cpus: GroupCpus::EMPTY,
        });
        Ok(GroupId(id))
    }

    /// Makes the entity and queue of a group and its ancestors on a CPU
    /// (`alloc_fair_sched_group`, of one CPU). Nothing happens where they exist.
    ///
    /// # Errors
    ///
    /// An unknown group or run queue.
    pub fn extend_group(&mut self, g: GroupId, rq: RqId) -> Result<(), Error> {
        self.group(g)?;
        let root = self
            .rqs
            .0
            .get(rq.0 as usize)
            .ok_or(Error::NoSuchRq(rq))?
            .root;
        if self.group_se(g, rq).is_some() {
            return Ok(());
        }
        let (parent, queue) = match self.groups[g].parent() {
            Some(above) => {
                self.extend_group(above, rq)?;
                let e = self.group_se(above, rq);
                (e, self.ent[e].my_q)
            }
            None => (Ent::NONE, root),
        };
        let (e, my_q) = self.alloc_group_cpu()?;
        let idle = self.groups[g].idle;
        self.que[my_q].set_idle(idle);
        let depth = self.groups[g].depth - 1;
        self.add_users(parent, 1);
        let ent = &mut self.ent[e];
        (ent.queue, ent.my_q, ent.depth, ent.rq) = (queue, my_q, depth, rq);
        ent.set_group(Some(g));
        self.set_pick_queue(e, queue);
        let parts = &mut self.groups[g].cpus;
        parts.add(self.lean, GroupCpu { rq, ent: e });
        if let Some(compacted) = parts.take_compacted(rq) {
            self.restore(e, &compacted);
        }
        Ok(())
    }

    /// [`Self::extend_group`] of the group of a task.
    ///
    /// # Errors
    ///
    /// An unknown task or run queue.
    pub fn extend_for(&mut self, task: TaskId, rq: RqId) -> Result<(), Error> {
        let ent = &self.ent[self.task(task)?];
        match ent.group() {
            Some(_) if ent.rq == rq && ent.marks.has(Marks::RQ_SET) => Ok(()),
            Some(group) => self.extend_group(group, rq),
            None => Ok(()),
        }
    }

    /// An entity of a group, blank, and its queue.
    fn alloc_group_cpu(&mut self) -> Result<(Ent, Que), Error> {
        if let Some(e) = self.free_group_cpus.pop() {
            let my_q = self.ent[e].my_q;
            self.ent[e] = Entity::blank(NEW_GROUP_LOAD);
            self.set_load(e, NEW_GROUP_LOAD);
            self.que[my_q] = Queue::new(e);
            return Ok((e, my_q));
        }
        let e = self.new_entity(NEW_GROUP_LOAD)?;
        let my_q = Que(u32::try_from(self.que.0.len()).map_err(|_| Error::Full("queues"))?);
        self.push_queue(e);
        Ok((e, my_q))
    }

    /// The group's entity on `rq`; none where it has no part.
    pub(crate) fn group_se(&self, g: GroupId, rq: RqId) -> Ent {
        let parts = &self.groups[g].cpus;
        let part = parts.position(rq).and_then(|index| parts.all().get(index));
        part.map_or(Ent::NONE, |part| part.ent)
    }

    /// The `i`-th part of a group; none beyond the last. For walks that change the parts.
    pub(crate) fn nth_cpu(&self, g: GroupId, i: usize) -> Option<GroupCpu> {
        self.groups[g].cpus.all().get(i).copied()
    }

    /// The parent entity and the queue of a task of `group` on `rq`.
    pub(crate) fn group_cfs_rq(
        &self,
        group: Option<GroupId>,
        rq: RqId,
    ) -> Result<(Ent, Que), Error> {
        let root = self
            .rqs
            .0
            .get(rq.0 as usize)
            .ok_or(Error::NoSuchRq(rq))?
            .root;
        let Some(g) = group else {
            return Ok((Ent::NONE, root));
        };
        self.group(g)?;
        let e = self.group_se(g, rq);
        if e.is_none() {
            return Err(Error::GroupNotOnCpu { group: g, rq });
        }
        Ok((e, self.ent[e].my_q))
    }

    /// Adds to the total load of the group that owns `q`.
    #[inline]
    pub(crate) fn group_load(&mut self, q: Que, delta: i64) {
        let owner = self.que[q].owner;
        if owner.is_some() {
            self.add_group_load(owner, delta);
        }
    }

    #[inline(never)]
    fn add_group_load(&mut self, owner: Ent, delta: i64) {
        self.group_changed(owner, delta, 0);
    }

    /// `calc_group_shares`: the part of a group's shares that is due to its load on this CPU;
    /// `None` without load there.
    pub(crate) fn group_weight(&self, e: Ent) -> Option<u64> {
        let ent = &self.ent[e];
        let g = ent.group()?;
        let local_load = self.level_load(ent.my_q);
        if local_load == 0 {
            return None;
        }
        let group = &self.groups[g];
        debug_assert!(group.load >= local_load, "the total misses this CPU");
        let mut remote_load = self.ext_load(ent.my_q);
        if self.cfg.other_load == OtherLoad::Instantaneous {
            remote_load += (group.load - local_load) >> 10;
        }
        let load = scale_load_down(local_load);
        let tasks = u64::from(group.runnable.max(1));
        // A closure, because most modes need no walk of the lists.
        let cpus = || group.cpus.count().max(1) as u64;
        let shares = match self.cfg.cgroup_mode {
            CgroupMode::Up => return Some(group.shares()),
            CgroupMode::Smp => group.shares(),
            CgroupMode::Concur => group.shares() * tasks.min(cpus()),
            CgroupMode::Max => group.shares() * cpus(),
            CgroupMode::Tasks => group.shares() * tasks,
        };
        let cap = match self.cfg.cgroup_mode {
            CgroupMode::Max => weight_of_nice(NICE_MIN),
            _ => shares,
        };
        let weight = u128::from(shares) * u128::from(load) / u128::from(remote_load + load);
        let weight = u64::try_from(weight).unwrap_or(cap);
        Some(weight.min(cap).max(MIN_SHARES))
    }

    /// Adds to the totals of the group with entity `owner`: load, and runnable tasks.
    #[inline(never)]
    pub(crate) fn group_changed(&mut self, owner: Ent, load: i64, runnable: i32) {
        let Some(g) = self.ent[owner].group() else {
            debug_assert!(false, "the owner of a queue represents a group");
            return;
        };
        let group = &mut self.groups[g];
        debug_assert!(
            group.load.checked_add_signed(load).is_some()
                && group.runnable.checked_add_signed(runnable).is_some(),
            "less in the group than leaves it"
        );
        group.load = group.load.wrapping_add_signed(load);
        group.runnable = group.runnable.wrapping_add_signed(runnable);
    }

    /// Adds to the count of runnable tasks of the group that owns `q`.
    #[inline]
    pub(crate) fn group_runnable(&mut self, q: Que, delta: i32) {
        let owner = self.que[q].owner;
        if owner.is_some() && delta != 0 {
            self.group_changed(owner, 0, delta);
        }
    }

    /// `update_cfs_group`: updates the weight of a group's entity.
    #[inline]
    pub(crate) fn refresh_weight(&mut self, e: Ent) {
        if !self.ent[e].is_task() {
            self.refresh_group(e);
        }
    }

    #[inline(never)]
    fn refresh_group(&mut self, e: Ent) {
        let rules = self.cfg.rules();
        // Under EEVDF the entity of an empty queue keeps its weight.
        if let Some(weight) = self.group_weight(e).or(rules.empty_group_weight)
            && (weight != self.load(e) || rules.reweights_to_same)
        {
            if self.is_flat(self.ent[e].rq) {
                self.set_level_load(e, weight);
            } else {
                self.reweight_entity(e, weight);
            }
        }
    }

    /// Changes an entity's weight on its own level, and the level's total if it is queued.
    pub(crate) fn set_level_load(&mut self, e: Ent, load: u64) {
        let delta = load as i64 - self.load(e) as i64;
        self.set_load(e, load);
        let ent = &self.ent[e];
        if ent.on_rq {
            let q = ent.queue;
            self.count_level(q, delta, 0);
            self.group_load(q, delta);
        }
    }

    /// Sets a group's shares (`sched_group_set_shares`), clamped to
    /// [[`SHARES_MIN`], [`SHARES_MAX`]], and refreshes its weights and those above it.
    ///
    /// # Errors
    ///
    /// [`Error::IdleGroupShares`] for an idle group, [`Error::ZeroWeight`], an unknown group, or
    /// the clock of a run queue that has a part of the group.
    pub fn set_shares(&mut self, g: GroupId, shares: u64, now_ns: u64) -> Result<(), Error> {
        if shares == 0 {
            return Err(Error::ZeroWeight);
        }
        if self.group(g)?.idle {
            return Err(Error::IdleGroupShares(g));
        }
        self.check_group_clocks(g, now_ns)?;
        self.apply_shares(g, shares.clamp(SHARES_MIN, SHARES_MAX), now_ns);
        Ok(())
    }

    fn check_group_clocks(&mut self, g: GroupId, now_ns: u64) -> Result<(), Error> {
        let mut i = 0;
        while let Some(GroupCpu { rq, .. }) = self.nth_cpu(g, i) {
            self.check_clock(rq, now_ns)?;
            i += 1;
        }
        for i in 0..self.groups[g].cpus.compacted().len() {
            let rq = self.groups[g].cpus.compacted().get(i).map(|f| f.rq);
            rq.map_or(Ok(()), |rq| self.check_clock(rq, now_ns))?;
        }
        Ok(())
    }

    fn apply_shares(&mut self, g: GroupId, shares: u64, now_ns: u64) {
        if self.groups[g].shares() == shares {
            return;
        }
        self.groups[g].shares = shares as u32;
        let mut i = 0;
        while let Some(GroupCpu { rq, ent }) = self.nth_cpu(g, i) {
            i += 1;
            self.refresh_chain(ent, rq, now_ns);
        }
        for i in 0..self.groups[g].cpus.compacted().len() {
            // A compacted part has no weight to refresh; its ancestors may have one.
            if let Some(rq) = self.groups[g].cpus.compacted().get(i).map(|f| f.rq) {
                let mut parent = self.groups[g].parent();
                let mut e = Ent::NONE;
                while let Some(ancestor) = parent.filter(|_| e.is_none()) {
                    e = self.group_se(ancestor, rq);
                    parent = self.groups[ancestor].parent();
                }
                self.refresh_chain(e, rq, now_ns);
            }
        }
    }

    fn refresh_chain(&mut self, mut e: Ent, rq: RqId, now_ns: u64) {
        self.set_clock(rq, now_ns);
        while e.is_some() {
            self.refresh_weight(e);
            e = self.parent(e);
        }
    }

    /// Sets the load that a group has on CPUs other than `rq`, in unscaled weight (1024 is one
    /// nice-0 task). Weights follow at their next refresh.
    ///
    /// # Errors
    ///
    /// An unknown group, one without a part on `rq`, or a load above 2^40.
    pub fn set_ext_load(&mut self, g: GroupId, rq: RqId, load: u64) -> Result<(), Error> {
        const MAX: u64 = 1 << 40;
        if load > MAX {
            return Err(Error::LoadOutOfRange { load, max: MAX });
        }
        let (_, q) = self.group_cfs_rq(Some(g), rq)?;
        if self.ext_loads.len() < self.que.0.len() {
            self.ext_loads.resize(self.que.0.len(), 0);
        }
        self.ext_loads[q.0 as usize] = load;
        Ok(())
    }

    /// The load that [`Self::set_ext_load`] has set for the group that `q` belongs to.
    #[inline]
    pub(crate) fn ext_load(&self, q: Que) -> u64 {
        self.ext_loads.get(q.0 as usize).copied().unwrap_or(0)
    }

    /// Makes a group idle or normal (`sched_group_set_idle`, `cpu.idle`). Its shares become those
    /// of the idle policy, or the default.
    ///
    /// # Errors
    ///
    /// An unknown group, or the clock of a run queue that has a part of it.
    pub fn set_idle(&mut self, g: GroupId, idle: bool, now_ns: u64) -> Result<(), Error> {
        if self.group(g)?.idle == idle {
            return Ok(());
        }
        self.check_group_clocks(g, now_ns)?;
        self.groups[g].idle = idle;
        let mut i = 0;
        while let Some(part) = self.nth_cpu(g, i) {
            self.mark_idle(part.ent, idle);
            i += 1;
        }
        let shares = if idle { WEIGHT_IDLEPRIO } else { NICE_0_LOAD };
        self.apply_shares(g, shares, now_ns);
        Ok(())
    }

    fn mark_idle(&mut self, mut e: Ent, idle: bool) {
        let queue = &mut self.que[self.ent[e].my_q];
        queue.set_idle(idle);
        let tasks = (queue.h_nr_queued - queue.h_nr_idle()) as i32;
        while e.is_some() && self.ent[e].on_rq {
            let queue = &mut self.que[self.ent[e].queue];
            queue.add_idle(if idle { tasks } else { -tasks });
            // Above an idle group all tasks count as idle already.
            if queue.is_idle() {
                return;
            }
            e = self.parent(e);
        }
    }
}
