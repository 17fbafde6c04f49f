//! Groups: their entities on each CPU, their shares, and what changes an entity's weight.

use super::config::{CgroupMode, OtherLoad};
use super::entity::{Entity, Marks, NEW_GROUP_LOAD, NO_GROUP};
use super::error::Error;
use super::ids::{Ent, GroupId, Que, RqId, TaskId};
use super::parts::{Part, Parts};
use super::queue::Queue;
use super::weights::{
    MIN_SHARES, NICE_0_LOAD, NICE_MIN, SHARES_MAX, SHARES_MIN, WEIGHT_IDLEPRIO, mul_div,
    weight_of_nice,
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
    pub(crate) parts: Parts,
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

/// `scale_load_down`: at least 2 unless 0.
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
            parts: Parts::EMPTY,
        });
        Ok(GroupId(id))
    }

    /// Gives a group its entity and queue on a CPU (`alloc_fair_sched_group` for one CPU), and
    /// those above it too. Nothing happens where they are there already.
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
        if self.part(g, rq).is_some() {
            return Ok(());
        }
        let (parent, queue) = match self.groups[g].parent() {
            Some(above) => {
                self.extend_group(above, rq)?;
                let e = self.part(above, rq);
                (e, self.ent[e].my_q)
            }
            None => (Ent::NONE, root),
        };
        let (e, my_q) = self.new_part()?;
        let idle = self.groups[g].idle;
        self.que[my_q].set_idle(idle);
        let depth = self.groups[g].depth - 1;
        self.used(parent, 1);
        let ent = &mut self.ent[e];
        (ent.queue, ent.my_q, ent.depth, ent.rq) = (queue, my_q, depth, rq);
        ent.set_group(Some(g));
        self.set_arena(e, queue);
        let parts = &mut self.groups[g].parts;
        parts.add(self.lean, Part { rq, ent: e });
        if let Some(folded) = parts.take_folded(rq) {
            self.unfold(e, &folded);
        }
        Ok(())
    }

    /// Gives the group that a task is in its part on a CPU, as [`Self::extend_group`] does.
    ///
    /// # Errors
    ///
    /// An unknown task or run queue.
    pub fn extend_for(&mut self, task: TaskId, rq: RqId) -> Result<(), Error> {
        let ent = &self.ent[self.task(task)?];
        match ent.group() {
            Some(_) if ent.rq == rq && ent.marks.has(Marks::HOMED) => Ok(()),
            Some(group) => self.extend_group(group, rq),
            None => Ok(()),
        }
    }

    /// An entity of a group, blank, and its queue.
    fn new_part(&mut self) -> Result<(Ent, Que), Error> {
        if let Some(e) = self.free_parts.pop() {
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
    pub(crate) fn part(&self, g: GroupId, rq: RqId) -> Ent {
        let parts = &self.groups[g].parts;
        let found = parts.place(rq).and_then(|at| parts.all().get(at));
        found.map_or(Ent::NONE, |part| part.ent)
    }

    /// The `i`-th part of a group; none beyond the last. For walks that change things.
    pub(crate) fn nth_part(&self, g: GroupId, i: usize) -> Option<Part> {
        self.groups[g].parts.all().get(i).copied()
    }

    /// Where a task of `group` goes on `rq`: the entity above it and the queue.
    pub(crate) fn home(&self, group: Option<GroupId>, rq: RqId) -> Result<(Ent, Que), Error> {
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
        let e = self.part(g, rq);
        if e.is_none() {
            return Err(Error::GroupNotOnCpu { group: g, rq });
        }
        Ok((e, self.ent[e].my_q))
    }

    /// Keeps the total load of the group that owns `q`.
    #[inline]
    pub(crate) fn group_load(&mut self, q: Que, delta: i64) {
        let owner = self.que[q].owner;
        if owner.is_some() {
            self.add_group_load(owner, delta);
        }
    }

    #[inline(never)]
    fn add_group_load(&mut self, owner: Ent, delta: i64) {
        if let Some(g) = self.ent[owner].group() {
            let load = &mut self.groups[g].load;
            *load = load.wrapping_add_signed(delta);
        }
    }

    /// `calc_group_shares`: the part of a group's shares that its load on this CPU is due.
    pub(crate) fn group_weight(&self, e: Ent) -> Option<u64> {
        let ent = &self.ent[e];
        let g = ent.group()?;
        let own = self.level_load(ent.my_q);
        if own == 0 {
            return None;
        }
        let group = &self.groups[g];
        let mut others = self.ext_load(ent.my_q);
        if self.cfg.other_load == OtherLoad::Instantaneous {
            others += (group.load - own) >> 10;
        }
        let load = scale_load_down(own);
        let tasks = u64::from(group.runnable.max(1));
        // A look into the lists, which most modes do without.
        let cpus = || group.parts.cpus().max(1) as u64;
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
        let weight = u128::from(shares) * u128::from(load) / u128::from(others + load);
        let weight = u64::try_from(weight).unwrap_or(cap);
        Some(weight.min(cap).max(MIN_SHARES))
    }

    /// Keeps both totals of the group with entity `owner`.
    #[inline(never)]
    pub(crate) fn group_changed(&mut self, owner: Ent, load: i64, runnable: i32) {
        if let Some(g) = self.ent[owner].group() {
            let group = &mut self.groups[g];
            group.load = group.load.wrapping_add_signed(load);
            group.runnable = group.runnable.wrapping_add_signed(runnable);
        }
    }

    /// Keeps the count of runnable tasks of the group that owns `q`.
    #[inline]
    pub(crate) fn group_runnable(&mut self, q: Que, delta: i32) {
        let owner = self.que[q].owner;
        if owner.is_some() && delta != 0 {
            self.add_group_runnable(owner, delta);
        }
    }

    #[inline(never)]
    fn add_group_runnable(&mut self, owner: Ent, delta: i32) {
        if let Some(g) = self.ent[owner].group() {
            let runnable = &mut self.groups[g].runnable;
            *runnable = runnable.wrapping_add_signed(delta);
        }
    }

    /// `update_cfs_group`: gives a group's entity the weight it should have.
    #[inline]
    pub(crate) fn refresh_weight(&mut self, e: Ent) {
        if !self.ent[e].is_task() {
            self.refresh_group(e);
        }
    }

    #[inline(never)]
    fn refresh_group(&mut self, e: Ent) {
        // Where nothing is in it, CFS has the least, of which the slice of the first to come is reckoned.
        let empty = || self.cfg.cfs.map(|_| MIN_SHARES);
        let Some(weight) = self.group_weight(e).or_else(empty) else {
            return;
        };
        // CFS reweights all the same, and accounts for the one that runs by it.
        if weight == self.load(e) && self.cfg.cfs.is_none() {
            return;
        }
        if self.is_flat(self.ent[e].rq) {
            self.set_level_load(e, weight);
        } else {
            self.reweight(e, weight);
        }
    }

    /// Changes an entity's own-level weight, and the sum above it if it is counted there.
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

    /// `reweight_entity`: keeps the entity's lag, deadline and protection in real time.
    pub(crate) fn reweight(&mut self, e: Ent, weight: u64) {
        if self.cfg.cfs.is_some() {
            self.cfs_reweight(e, weight);
            return;
        }
        let q = self.arena(e);
        if !self.ent[e].on_rq {
            self.set_level_load(e, weight);
            self.rescale(e, weight, false);
            return;
        }
        self.update_curr(q);
        self.set_level_load(e, weight);
        self.reweight_queued(q, e, weight);
    }

    /// Changes the weight at which a queued entity competes, in its arena `q`.
    pub(crate) fn reweight_queued(&mut self, q: Que, e: Ent, weight: u64) {
        let curr = self.que[q].curr == e;
        let (v, _) = self.avg_vruntime(q);
        let vlag = self.entity_lag(q, e, v);
        let ent = &mut self.ent[e];
        ent.vlag = vlag;
        ent.deadline = ent.deadline.wrapping_sub(v);
        let protected = curr && ent.protected();
        if protected {
            ent.vprot = ent.vprot.wrapping_sub(v);
        }
        if !curr {
            // The tree's key was the absolute deadline; sums need the old vruntime, untouched.
            self.tree_remove(q, e);
        }
        self.rescale(e, weight, protected);
        let ent = &mut self.ent[e];
        if protected {
            ent.vprot = ent.vprot.wrapping_add(v);
        }
        ent.deadline = ent.deadline.wrapping_add(v);
        ent.vruntime = v.wrapping_sub(ent.vlag as u64);
        if !curr {
            self.tree_insert(q, e);
        }
    }

    /// `rescale_entity`: lag, and what is relative, are in virtual time of the old weight.
    pub(crate) fn rescale(&mut self, e: Ent, weight: u64, protected: bool) {
        let ent = &mut self.ent[e];
        let old = ent.weight;
        if self.cfg.cfs.is_some() {
            ent.weight = weight;
            return;
        }
        ent.vlag = mul_div(ent.vlag, old, weight);
        if ent.on_rq || ent.rel_deadline {
            ent.deadline = mul_div(ent.deadline as i64, old, weight) as u64;
        }
        if protected {
            ent.vprot = mul_div(ent.vprot as i64, old, weight) as u64;
        }
        ent.weight = weight;
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
        while let Some(Part { rq, .. }) = self.nth_part(g, i) {
            self.check_clock(rq, now_ns)?;
            i += 1;
        }
        for i in 0..self.groups[g].parts.folded().len() {
            let rq = self.groups[g].parts.folded().get(i).map(|f| f.rq);
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
        while let Some(Part { rq, ent }) = self.nth_part(g, i) {
            i += 1;
            self.refresh_chain(ent, rq, now_ns);
        }
        for i in 0..self.groups[g].parts.folded().len() {
            // A folded part has no weight to refresh; those above it may.
            if let Some(rq) = self.groups[g].parts.folded().get(i).map(|f| f.rq) {
                let mut above = self.groups[g].parent();
                let mut e = Ent::NONE;
                while let Some(up) = above.filter(|_| e.is_none()) {
                    (e, above) = (self.part(up, rq), self.groups[up].parent());
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
        let (_, q) = self.home(Some(g), rq)?;
        if self.ext_loads.len() < self.que.0.len() {
            self.ext_loads.resize(self.que.0.len(), 0);
        }
        if let Some(told) = self.ext_loads.get_mut(q.0 as usize) {
            *told = load;
        }
        Ok(())
    }

    /// What [`Self::set_ext_load`] said of the group that `q` belongs to.
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
        while let Some(part) = self.nth_part(g, i) {
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
            if queue.is_idle() {
                return;
            }
            e = self.parent(e);
        }
    }
}
