//! Copies of the state of queues and groups.

use super::error::Error;
use super::hierarchy::Hierarchy;
use super::ids::{Ent, GroupId, Que, RqId, TaskId};
use super::rq::Rq;
use super::sched::{Sched, check};
use super::sched_entity::{Attr, EntityView, TaskView};
use super::weights::{NICE_0_LOAD, SLICE_MAX_NS, SLICE_MIN_NS, mul_div};
use super::{Actions, Fair};

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
    /// Largest lag of a task or a group above it (`entity_lag`, unbounded), in ns of CPU time due
    /// less CPU time received. Negative if all of them are ahead.
    ///
    /// # Errors
    ///
    /// An unknown task.
    pub fn lag_ns(&self, task: TaskId) -> Result<i64, Error> {
        let tree = &self.sched.tree;
        let mut largest = None;
        for_each_level(&self.sched, tree.task(task)?, &mut |q, e| {
            let ent = &tree[e];
            // The only member of a queue has no lag.
            if ent.on_rq() && tree[q].members() > 1 {
                let vlag = tree.average(q).wrapping_sub(ent.vruntime()) as i64;
                largest = largest.max(Some(mul_div(vlag, ent.weight(), NICE_0_LOAD)));
            }
        });
        Ok(largest.unwrap_or(0))
    }

    /// The queue of `group` (`None`: the root) on `rq`.
    ///
    /// # Errors
    ///
    /// An unknown run queue or group, or a group without a part on `rq`.
    pub fn queue(&self, rq: RqId, group: Option<GroupId>) -> Result<QueueView, Error> {
        let (_, q) = self.sched.group_cfs_rq(group, rq)?;
        Ok(queue_view(&self.sched.tree, q))
    }

    /// The entity of `group` on `rq`.
    ///
    /// # Errors
    ///
    /// As [`Self::queue`].
    pub fn group_entity(&self, rq: RqId, group: GroupId) -> Result<EntityView, Error> {
        let (e, _) = self.sched.group_cfs_rq(Some(group), rq)?;
        Ok(self.sched.tree[e].view(self.sched.tree.load(e)))
    }

    /// A copy of a group's state.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchGroup`].
    pub fn group_view(&self, group: GroupId) -> Result<GroupView, Error> {
        let g = self.sched.groups.get(group)?;
        Ok(GroupView {
            parent: g.parent(),
            shares: g.shares(),
            idle: g.is_idle(),
            tasks: g.tasks(),
        })
    }

    /// The current task of `rq`; `None` for the idle task.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRq`].
    pub fn running(&self, rq: RqId) -> Result<Option<TaskId>, Error> {
        let r = self.sched.rq(rq)?;
        Ok(r.curr()
            .is_some()
            .then(|| self.sched.tree[r.curr()].task_id(r.curr())))
    }

    /// Clock of a run queue in ns: the time of the last operation on it.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRq`].
    pub fn clock(&self, rq: RqId) -> Result<u64, Error> {
        let r = self.sched.rq(rq)?;
        Ok(r.clock())
    }

    /// Calls `task` with each waiting task of `rq`, for a load balancer: queue by queue from the
    /// root, by deadline. Includes delayed sleepers, but not the current task.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRq`].
    pub fn for_each_waiting(&self, rq: RqId, task: &mut dyn FnMut(TaskId)) -> Result<(), Error> {
        let r = self.sched.rq(rq)?;
        visit_waiting(&self.sched.tree, r.root(), task);
        Ok(())
    }

    /// Calls `level` with the eligibility and the lag of a queued task and each group above it, as
    /// of the last account.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTask`] or [`Error::NotQueued`].
    pub fn eligibility(&self, id: TaskId, level: &mut dyn FnMut(Eligibility)) -> Result<(), Error> {
        let tree = &self.sched.tree;
        let task = tree.task(id)?;
        if !tree[task].on_rq() {
            return Err(Error::NotQueued(id));
        }
        for_each_level(&self.sched, task, &mut |q, e| {
            level(Eligibility {
                eligible: tree.eligible(q, e),
                vlag: tree.average(q).wrapping_sub(tree[e].vruntime()) as i64,
            });
        });
        Ok(())
    }

    /// A copy of a task's state.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTask`].
    pub fn view(&self, id: TaskId) -> Result<TaskView, Error> {
        let e = self.sched.tree.live_task(id)?;
        Ok(task_view(&self.sched, e))
    }

    /// Request pending and slice timer of a run queue, as after the last operation.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRq`].
    pub fn pending(&self, rq: RqId) -> Result<Actions, Error> {
        self.sched.rq(rq)?;
        Ok(self.actions(rq))
    }

    /// Whether all sums, counters and links of `rq` agree with its entities. An unknown run queue
    /// is not consistent.
    ///
    /// Debug builds assert this after each operation, except for the groups' totals over all CPUs.
    /// It is linear in the entities.
    pub fn consistent(&self, rq: RqId) -> bool {
        self.sched.rq(rq).is_ok() && check::rq(&self.sched, rq) && check::groups(&self.sched)
    }
}

/// Calls `level` with a task and each group above it, and the queue in which it competes. Under
/// flat picking there is one level.
fn for_each_level(sched: &Sched, task: Ent, level: &mut impl FnMut(Que, Ent)) {
    let flat = sched
        .rqs
        .get(sched.tree[task].rq())
        .is_some_and(Rq::is_flat);
    let mut e = task;
    while e.is_some() {
        level(sched.tree.pick_queue(e), e);
        e = if flat {
            Ent::NONE
        } else {
            sched.tree.parent(e)
        };
    }
}

/// Recurses at most [`super::MAX_DEPTH`] deep, as groups nest.
fn visit_waiting(tree: &Hierarchy, q: Que, task: &mut dyn FnMut(TaskId)) {
    let mut visit = |e: Ent| {
        let ent = &tree[e];
        if ent.is_task() {
            task(ent.task_id(e));
        } else {
            visit_waiting(tree, ent.my_q(), task);
        }
    };
    if let Some(curr) = tree.curr_on(q)
        && !tree[curr].is_task()
    {
        visit(curr);
    }
    tree.for_each_waiting(q, &mut visit);
}

fn member(tree: &Hierarchy, e: Ent) -> Option<Member> {
    let ent = tree.get(e)?;
    if ent.is_task() {
        return Some(Member::Task(ent.task_id(e)));
    }
    ent.group().map(Member::Group)
}

fn queue_view(tree: &Hierarchy, q: Que) -> QueueView {
    let queue = &tree[q];
    QueueView {
        nr_queued: tree.level_queued(q),
        h_nr_queued: queue.h_nr_queued(),
        h_nr_runnable: queue.h_nr_runnable(),
        h_nr_idle: queue.h_nr_idle(),
        load: tree.level_load(q),
        avg_vruntime: tree.average(q),
        zero_vruntime: queue.zero_vruntime(),
        sum_weight: queue.sum_weight(),
        sum_w_vruntime: queue.sum_w_vruntime(),
        curr: member(tree, queue.curr()),
        next: member(tree, queue.next()),
    }
}

#[inline(always)]
fn task_view(sched: &Sched, e: Ent) -> TaskView {
    let ent = &sched.tree[e];
    let slice_ns = u64::from(ent.slice());
    let ranged = (SLICE_MIN_NS..=SLICE_MAX_NS).contains(&slice_ns);
    let slice_ns = (ent.custom_slice() && ranged).then_some(slice_ns);
    TaskView {
        state: ent.state(),
        attr: Attr {
            policy: ent.policy(),
            nice: ent.nice(),
            slice_ns,
        },
        group: ent.group(),
        rq: (!ent.is_new()).then_some(ent.rq()),
        running: sched.is_running(e),
        delayed: ent.delayed(),
        entity: ent.view(sched.tree.load(e)),
    }
}
