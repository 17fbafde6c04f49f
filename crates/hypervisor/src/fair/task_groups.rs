//! Groups (`struct task_group`): the tree of groups, their shares, and their totals over all CPUs.

use alloc::vec::Vec;
use core::ops::Index;

use super::MAX_DEPTH;
use super::compact::Compacted;
use super::config::{CgroupMode, Config, OtherLoad};
use super::error::Error;
use super::group_cpus::{GroupCpu, GroupCpus};
use super::ids::{Arena, Ent, GroupId, Que, RqId};
use super::sched_entity::NO_GROUP;
use super::weights::{MIN_SHARES, NICE_0_LOAD, NICE_MIN, SHARES_MAX, share, weight_of_nice};

/// A group.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Group {
    /// `NO_GROUP` under the root group.
    parent: u32,
    /// At most [`SHARES_MAX`].
    shares: u32,
    tasks: u32,
    children: u32,
    /// Weight on all its queues.
    load: u64,
    /// Runnable tasks at and below it on all CPUs.
    runnable: u32,
    cpus: GroupCpus,
    depth: u8,
    idle: bool,
}

const _: () = assert!(SHARES_MAX <= u32::MAX as u64 && size_of::<Group>() == 56);

impl Group {
    /// The group above; `None` for the root group.
    pub(crate) fn parent(&self) -> Option<GroupId> {
        (self.parent != NO_GROUP).then_some(GroupId(self.parent))
    }

    pub(crate) fn shares(&self) -> u64 {
        u64::from(self.shares)
    }

    /// `cpu.idle`.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle
    }

    /// Tasks directly in it.
    pub(crate) fn tasks(&self) -> u32 {
        self.tasks
    }

    /// Whether a task or a group is in it.
    pub(crate) fn is_busy(&self) -> bool {
        self.tasks + self.children > 0
    }

    /// Levels from the root group; 1 for a group below it.
    pub(crate) fn depth(&self) -> u8 {
        self.depth
    }

    /// Its entities.
    pub(crate) fn cpus(&self) -> &GroupCpus {
        &self.cpus
    }

    /// Weight and runnable tasks on all CPUs.
    pub(crate) fn totals(&self) -> (u64, u32) {
        (self.load, self.runnable)
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

/// The groups of a host.
#[derive(Clone, Debug)]
pub(crate) struct TaskGroups {
    groups: Arena<Group>,
    /// By queue: the load of its group on other CPUs, unscaled. Shorter than the table of queues
    /// until a load is set.
    ext_loads: Vec<u64>,
}

impl Index<GroupId> for TaskGroups {
    type Output = Group;

    #[inline]
    fn index(&self, g: GroupId) -> &Group {
        &self.groups[g]
    }
}

impl TaskGroups {
    pub(crate) const EMPTY: Self = Self {
        groups: Arena::EMPTY,
        ext_loads: Vec::new(),
    };

    pub(crate) fn get(&self, g: GroupId) -> Result<&Group, Error> {
        self.groups.get(g).ok_or(Error::NoSuchGroup(g))
    }

    pub(crate) fn as_slice(&self) -> &[Group] {
        self.groups.as_slice()
    }

    /// Depth of a group below `parent`.
    fn depth_below(&self, parent: Option<GroupId>) -> Result<u8, Error> {
        let depth = match parent {
            Some(p) => u32::from(self.get(p)?.depth) + 1,
            None => 1,
        };
        if depth > MAX_DEPTH {
            let max = MAX_DEPTH;
            return Err(Error::TooDeep { depth, max });
        }
        Ok(depth as u8)
    }

    fn add_child(&mut self, parent: Option<GroupId>) {
        if let Some(p) = parent {
            self.groups[p].children += 1;
        }
    }

    /// Makes a group on no CPU.
    pub(crate) fn create(&mut self, lean: bool, parent: Option<GroupId>) -> Result<GroupId, Error> {
        let depth = self.depth_below(parent)?;
        let id = u32::try_from(self.groups.len()).map_err(|_| Error::Full("groups"))?;
        self.add_child(parent);
        let group = Group {
            parent: parent.map_or(NO_GROUP, |g| g.0),
            depth,
            shares: NICE_0_LOAD as u32,
            idle: false,
            tasks: 0,
            children: 0,
            load: 0,
            runnable: 0,
            cpus: GroupCpus::EMPTY,
        };
        self.groups.push(lean, group);
        Ok(GroupId(id))
    }

    /// Checks that `g` can move under `parent`: not under itself, and not too deep.
    pub(crate) fn check_parent(&self, g: GroupId, parent: Option<GroupId>) -> Result<(), Error> {
        if let Some(p) = parent {
            self.get(p)?;
        }
        let mut above = parent;
        while let Some(p) = above {
            if p == g {
                return Err(Error::GroupUnderItself(g));
            }
            above = self.groups[p].parent();
        }
        self.depth_below(parent).map(drop)
    }

    /// Moves a group under `parent`, which [`Self::check_parent`] has allowed.
    pub(crate) fn set_parent(&mut self, g: GroupId, parent: Option<GroupId>) -> Result<u8, Error> {
        let depth = self.depth_below(parent)?;
        self.add_child(parent);
        let group = &mut self.groups[g];
        let old = group.parent();
        group.parent = parent.map_or(NO_GROUP, |g| g.0);
        group.depth = depth;
        // Lag is relative to the queue of the old parent, and void in another.
        group.cpus.forget_compacted();
        if let Some(p) = old {
            self.groups[p].children -= 1;
        }
        Ok(depth)
    }

    /// A task joins a group; nothing for the root group.
    pub(crate) fn add_task(&mut self, group: Option<GroupId>) {
        if let Some(g) = group {
            self.groups[g].tasks += 1;
        }
    }

    /// A task leaves a group; nothing for the root group.
    pub(crate) fn remove_task(&mut self, group: Option<GroupId>) {
        if let Some(g) = group {
            debug_assert!(self.groups[g].tasks > 0, "no task has joined");
            self.groups[g].tasks -= 1;
        }
    }

    /// Adds the entity of a group on a CPU, and returns the state that a compacted one had there.
    pub(crate) fn add_cpu(&mut self, lean: bool, g: GroupId, cpu: GroupCpu) -> Option<Compacted> {
        let cpus = &mut self.groups[g].cpus;
        cpus.add(lean, cpu);
        cpus.take_compacted(cpu.rq)
    }

    /// Replaces the group's entity at `index` of its CPUs by its compacted state.
    pub(crate) fn compact(&mut self, lean: bool, g: GroupId, index: usize, compacted: Compacted) {
        self.groups[g].cpus.compact(lean, index, compacted);
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

    /// The run queue of the `i`-th compacted part of a group; none beyond the last.
    pub(crate) fn nth_compacted(&self, g: GroupId, i: usize) -> Option<RqId> {
        self.groups[g].cpus.compacted().get(i).map(|part| part.rq)
    }

    /// The lowest entity on `rq` of a group above `g`.
    pub(crate) fn ancestor_se(&self, g: GroupId, rq: RqId) -> Ent {
        let mut parent = self.groups[g].parent();
        let mut e = Ent::NONE;
        while let Some(ancestor) = parent.filter(|_| e.is_none()) {
            e = self.group_se(ancestor, rq);
            parent = self.groups[ancestor].parent();
        }
        e
    }

    /// Adds to the totals of a group: load, and runnable tasks.
    #[inline]
    pub(crate) fn add_totals(&mut self, g: GroupId, load: i64, runnable: i32) {
        let group = &mut self.groups[g];
        debug_assert!(
            group.load.checked_add_signed(load).is_some()
                && group.runnable.checked_add_signed(runnable).is_some(),
            "less in the group than leaves it"
        );
        group.load = group.load.wrapping_add_signed(load);
        group.runnable = group.runnable.wrapping_add_signed(runnable);
    }

    /// `calc_group_shares`: the part of a group's shares that is due to the load `local_load` of
    /// its queue `q`; `None` without load there.
    #[inline]
    pub(crate) fn calc_group_shares(
        &self,
        cfg: &Config,
        g: GroupId,
        q: Que,
        local_load: u64,
    ) -> Option<u64> {
        if local_load == 0 {
            return None;
        }
        let group = &self.groups[g];
        debug_assert!(group.load >= local_load, "the total misses this CPU");
        let mut remote_load = self.ext_load(q);
        if cfg.other_load == OtherLoad::Instantaneous {
            remote_load += (group.load - local_load) >> 10;
        }
        let load = scale_load_down(local_load);
        let tasks = u64::from(group.runnable.max(1));
        // A closure, because most modes need no walk of the lists.
        let cpus = || group.cpus.count().max(1) as u64;
        let shares = match cfg.cgroup_mode {
            CgroupMode::Up => return Some(group.shares()),
            CgroupMode::Smp => group.shares(),
            CgroupMode::Concur => group.shares() * tasks.min(cpus()),
            CgroupMode::Max => group.shares() * cpus(),
            CgroupMode::Tasks => group.shares() * tasks,
        };
        let cap = match cfg.cgroup_mode {
            CgroupMode::Max => weight_of_nice(NICE_MIN),
            _ => shares,
        };
        let weight = match remote_load {
            // Most groups of a host run on one CPU.
            0 => shares,
            remote => share(shares, load, remote + load),
        };
        Some(weight.min(cap).max(MIN_SHARES))
    }

    /// Sets the shares of a group, and returns whether they differ.
    pub(crate) fn set_shares(&mut self, g: GroupId, shares: u64) -> bool {
        let group = &mut self.groups[g];
        let differs = group.shares() != shares;
        group.shares = shares as u32;
        differs
    }

    pub(crate) fn set_idle(&mut self, g: GroupId, idle: bool) {
        self.groups[g].idle = idle;
    }

    /// The load on other CPUs of the group that `q`, of so many queues, belongs to.
    pub(crate) fn set_ext_load(&mut self, q: Que, queues: usize, load: u64) {
        if self.ext_loads.len() < queues {
            self.ext_loads.resize(queues, 0);
        }
        self.ext_loads[q.0 as usize] = load;
    }

    /// The load that [`Self::set_ext_load`] has set for `q`.
    #[inline]
    pub(crate) fn ext_load(&self, q: Que) -> u64 {
        self.ext_loads.get(q.0 as usize).copied().unwrap_or(0)
    }
}

impl core::hash::Hash for TaskGroups {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.groups.hash(state);
        // A load of 0 is as one that is not set.
        for (q, load) in self
            .ext_loads
            .iter()
            .enumerate()
            .filter(|(_, load)| **load > 0)
        {
            (q, load).hash(state);
        }
    }
}
