//! Looking at queues and groups.

use super::Fair;
use super::entity::EntityView;
use super::error::Error;
use super::ids::{Ent, GroupId, Que, RqId, TaskId};
use super::weights::{NICE_0_LOAD, mul_div};

/// What an entity stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// A task.
    Task(TaskId),
    /// A group.
    Group(GroupId),
}

/// A queue as it is (`struct cfs_rq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Entities of this level, the running one included.
    pub nr_queued: u32,
    /// Tasks at and below this level.
    pub h_nr_queued: u32,
    /// Those that are not delayed.
    pub h_nr_runnable: u32,
    /// Those that are idle, by policy or by a group below this level.
    pub h_nr_idle: u32,
    /// Weight of its entities.
    pub load: u64,
    /// Average virtual runtime.
    pub avg_vruntime: u64,
    /// Base of `sum_w_vruntime`.
    pub zero_vruntime: u64,
    /// Weight of the tree: without the running entity.
    pub sum_weight: u64,
    /// Weighted sum of vruntimes over the tree, relative to the base.
    pub sum_w_vruntime: i64,
    /// Running entity.
    pub curr: Option<Member>,
    /// Buddy.
    pub next: Option<Member>,
}

/// A group as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Group above; `None` for the root group.
    pub parent: Option<GroupId>,
    /// Shares.
    pub shares: u64,
    /// It is an idle group.
    pub idle: bool,
    /// Tasks directly in it.
    pub tasks: u32,
}

impl Fair {
    fn member(&self, e: Ent) -> Option<Member> {
        if e.is_none() {
            return None;
        }
        let ent = &self.ent[e];
        if ent.is_task() {
            return Some(Member::Task(ent.task_id(e)));
        }
        ent.group().map(Member::Group)
    }

    /// How far a task is behind its fair share on the level where it is furthest, in ns of CPU
    /// time: what it, or the group that it is in, would have had at this weight beyond what it had
    /// (`entity_lag`, unbounded). Negative if it is ahead on all.
    ///
    /// # Errors
    ///
    /// An unknown task.
    pub fn lag_ns(&self, task: TaskId) -> Result<i64, Error> {
        let mut e = self.task(task)?;
        let mut most = None;
        while let Some(ent) = self.ent.at(e) {
            let arena = self.arena(e);
            let queue = &self.que[arena];
            // Alone it has all there is.
            if ent.on_rq && queue.members > 1 {
                let behind = self.average(arena).wrapping_sub(ent.vruntime) as i64;
                most = most.max(Some(mul_div(behind, ent.weight, NICE_0_LOAD)));
            }
            if self.is_flat(ent.rq) {
                // There is one level.
                break;
            }
            e = self.parent(e);
        }
        Ok(most.unwrap_or(0))
    }

    /// The queue of `group` (`None`: the root) on `rq`.
    ///
    /// # Errors
    ///
    /// An unknown run queue or group, or a group without a part on `rq`.
    pub fn queue(&self, rq: RqId, group: Option<GroupId>) -> Result<QueueView, Error> {
        let (_, q) = self.home(group, rq)?;
        Ok(self.queue_view(q))
    }

    fn queue_view(&self, q: Que) -> QueueView {
        let queue = &self.que[q];
        QueueView {
            nr_queued: self.level_queued(q),
            h_nr_queued: queue.h_nr_queued,
            h_nr_runnable: queue.h_nr_runnable,
            h_nr_idle: queue.h_nr_idle(),
            load: self.level_load(q),
            avg_vruntime: self.average(q),
            zero_vruntime: queue.zero_vruntime,
            sum_weight: queue.sum_weight,
            sum_w_vruntime: queue.sum_w_vruntime,
            curr: self.member(queue.curr),
            next: self.member(queue.next),
        }
    }

    /// The entity that stands for `group` on `rq`.
    ///
    /// # Errors
    ///
    /// As [`Self::queue`].
    pub fn group_entity(&self, rq: RqId, group: GroupId) -> Result<EntityView, Error> {
        let (e, _) = self.home(Some(group), rq)?;
        Ok(self.ent[e].view(self.load(e)))
    }

    /// A group as it is.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchGroup`].
    pub fn group_view(&self, group: GroupId) -> Result<GroupView, Error> {
        let g = self.group(group)?;
        Ok(GroupView {
            parent: g.parent(),
            shares: g.shares(),
            idle: g.idle,
            tasks: g.tasks,
        })
    }

    /// The running task of `rq`; `None` for the idle task.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRq`].
    pub fn running(&self, rq: RqId) -> Result<Option<TaskId>, Error> {
        let r = self.rqs.0.get(rq.0 as usize).ok_or(Error::NoSuchRq(rq))?;
        Ok(r.curr.is_some().then(|| self.ent[r.curr].task_id(r.curr)))
    }

    /// Clock of a run queue in ns: the time of the last operation on it.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRq`].
    pub fn clock(&self, rq: RqId) -> Result<u64, Error> {
        let r = self.rqs.0.get(rq.0 as usize).ok_or(Error::NoSuchRq(rq))?;
        Ok(r.clock)
    }

    /// Calls `task` with each task that waits on `rq`, delayed sleepers included and the running
    /// task not: queue by queue from the root, by deadline. What a load balancer looks through.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRq`].
    pub fn for_each_waiting(&self, rq: RqId, task: &mut dyn FnMut(TaskId)) -> Result<(), Error> {
        let r = self.rqs.0.get(rq.0 as usize).ok_or(Error::NoSuchRq(rq))?;
        self.visit_waiting(r.root, task);
        Ok(())
    }

    /// Groups nest [`super::MAX_DEPTH`] deep at most, and so does this.
    fn visit_waiting(&self, q: Que, task: &mut dyn FnMut(TaskId)) {
        let mut visit = |e: Ent| {
            let ent = &self.ent[e];
            if ent.is_task() {
                task(ent.task_id(e));
            } else {
                self.visit_waiting(ent.my_q, task);
            }
        };
        if let Some(curr) = self.curr_on(q)
            && !self.ent[curr].is_task()
        {
            visit(curr);
        }
        self.pool
            .for_each(&self.que[q].timeline, &mut |e| visit(Ent(e)));
    }

    /// Whether a queued task is eligible on each level of its chain, from the task upwards, as
    /// of its run queue's last account. Calls `level` with each answer and the lag in virtual ns.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTask`] or [`Error::NotQueued`].
    pub fn eligibility(&self, id: TaskId, level: &mut dyn FnMut(bool, i64)) -> Result<(), Error> {
        let mut e = self.task(id)?;
        if !self.ent[e].on_rq {
            return Err(Error::NotQueued(id));
        }
        while e.is_some() {
            let q = self.arena(e);
            level(
                self.eligible(q, e),
                self.average(q).wrapping_sub(self.ent[e].vruntime) as i64,
            );
            if self.is_flat(self.ent[e].rq) {
                return Ok(());
            }
            e = self.parent(e);
        }
        Ok(())
    }
}
