//! Copies of the state of queues and groups.

use super::Fair;
use super::entity::EntityView;
use super::error::Error;
use super::ids::{Ent, GroupId, Que, RqId, TaskId};
use super::weights::{NICE_0_LOAD, mul_div};

/// The task or group that an entity represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// A task.
    Task(TaskId),
    /// A group.
    Group(GroupId),
}

/// A copy of a queue's state (`struct cfs_rq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Entities of this level, the current one included.
    pub nr_queued: u32,
    /// Tasks at and below this level.
    pub h_nr_queued: u32,
    /// Tasks of these that are not delayed.
    pub h_nr_runnable: u32,
    /// Tasks of these that are idle, by policy or by a group below this level.
    pub h_nr_idle: u32,
    /// Weight of its entities.
    pub load: u64,
    /// Average virtual runtime.
    pub avg_vruntime: u64,
    /// Base of `sum_w_vruntime`.
    pub zero_vruntime: u64,
    /// Weight of the tree, which does not include the current entity.
    pub sum_weight: u64,
    /// Weighted sum of vruntimes over the tree, relative to the base.
    pub sum_w_vruntime: i64,
    /// Current entity.
    pub curr: Option<Member>,
    /// Buddy.
    pub next: Option<Member>,
}

/// Eligibility and lag of an entity on its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eligibility {
    /// Whether EEVDF may pick it (`entity_eligible`).
    pub eligible: bool,
    /// Its lag, unbounded, in virtual ns.
    pub vlag: i64,
}

/// A copy of a group's state.
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

    /// Largest lag of a task or a group above it (`entity_lag`, unbounded), in ns of CPU time due
    /// less CPU time received. Negative if all of them are ahead.
    ///
    /// # Errors
    ///
    /// An unknown task.
    pub fn lag_ns(&self, task: TaskId) -> Result<i64, Error> {
        let mut e = self.task(task)?;
        let mut largest = None;
        while let Some(ent) = self.ent.get(e) {
            let pick_queue = self.pick_queue(e);
            let queue = &self.que[pick_queue];
            // The only member of a queue has no lag.
            if ent.on_rq && queue.members > 1 {
                let vlag = self.average(pick_queue).wrapping_sub(ent.vruntime) as i64;
                largest = largest.max(Some(mul_div(vlag, ent.weight, NICE_0_LOAD)));
            }
            if self.is_flat(ent.rq) {
                // Tasks compete on one level.
                break;
            }
            e = self.parent(e);
        }
        Ok(largest.unwrap_or(0))
    }

    /// The queue of `group` (`None`: the root) on `rq`.
    ///
    /// # Errors
    ///
    /// An unknown run queue or group, or a group without a part on `rq`.
    pub fn queue(&self, rq: RqId, group: Option<GroupId>) -> Result<QueueView, Error> {
        let (_, q) = self.group_cfs_rq(group, rq)?;
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

    /// The entity of `group` on `rq`.
    ///
    /// # Errors
    ///
    /// As [`Self::queue`].
    pub fn group_entity(&self, rq: RqId, group: GroupId) -> Result<EntityView, Error> {
        let (e, _) = self.group_cfs_rq(Some(group), rq)?;
        Ok(self.ent[e].view(self.load(e)))
    }

    /// A copy of a group's state.
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

    /// The current task of `rq`; `None` for the idle task.
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

    /// Calls `task` with each waiting task of `rq`, for a load balancer: queue by queue from the
    /// root, by deadline. Includes delayed sleepers, but not the current task.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRq`].
    pub fn for_each_waiting(&self, rq: RqId, task: &mut dyn FnMut(TaskId)) -> Result<(), Error> {
        let r = self.rqs.0.get(rq.0 as usize).ok_or(Error::NoSuchRq(rq))?;
        self.visit_waiting(r.root, task);
        Ok(())
    }

    /// Recurses at most [`super::MAX_DEPTH`] deep, as groups nest.
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

    /// Calls `level` with the eligibility and the lag of a queued task and each group above it, as
    /// of the last account.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTask`] or [`Error::NotQueued`].
    pub fn eligibility(&self, id: TaskId, level: &mut dyn FnMut(Eligibility)) -> Result<(), Error> {
        let mut e = self.task(id)?;
        if !self.ent[e].on_rq {
            return Err(Error::NotQueued(id));
        }
        while e.is_some() {
            let q = self.pick_queue(e);
            level(Eligibility {
                eligible: self.eligible(q, e),
                vlag: self.average(q).wrapping_sub(self.ent[e].vruntime) as i64,
            });
            if self.is_flat(self.ent[e].rq) {
                return Ok(());
            }
            e = self.parent(e);
        }
        Ok(())
    }
}
