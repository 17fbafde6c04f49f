//! The class that schedules the host's tasks: the fair class, or `scx_stealtime` of sched_ext.

use stealtime_hypervisor::fair::{
    self, Actions, Attr, Block, Error, Fair, GroupId, PickMode, Resched, RqId, TaskId,
};
use stealtime_hypervisor::scx::{Affinity, Scx};

use super::Task;
use crate::ids::{CpuNr, Number, Table, TaskNr};

/// The class of all tasks.
#[derive(Debug)]
pub(crate) enum Class {
    Fair(Box<Fair>),
    Scx(Box<Scx>),
}

/// What a pick decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) task: Option<TaskId>,
    pub(crate) actions: Actions,
    /// The run queue on which it waited, if that is another one.
    pub(crate) from: Option<RqId>,
    /// The former task, which waits now where each CPU of a domain may take it.
    pub(crate) requeued: Option<TaskId>,
}

/// Where tasks may run, for the shared queues of [`Scx`].
pub(crate) struct Allowed<'t> {
    pub(crate) tasks: &'t Table<TaskNr, Task>,
    pub(crate) by_slot: &'t [TaskNr],
}

impl Affinity for Allowed<'_> {
    fn may_run(&self, task: TaskId, cpu: RqId) -> bool {
        let allowed = &self.tasks[self.by_slot[task.slot()]].allowed;
        allowed.has(CpuNr::from_index(cpu.slot()))
    }

    fn is_pinned(&self, task: TaskId) -> bool {
        self.tasks[self.by_slot[task.slot()]].allowed.is_single()
    }
}

const NOTHING: Actions = Actions {
    resched: Resched::None,
    hrtick: None,
};

/// A request to reschedule at once, or none.
const fn request(resched: bool) -> Actions {
    Actions {
        resched: if resched { Resched::Now } else { Resched::None },
        hrtick: None,
    }
}

impl Class {
    /// The fair class; `None` with another.
    pub(crate) const fn fair(&self) -> Option<&Fair> {
        match self {
            Self::Fair(fair) => Some(fair),
            Self::Scx(_) => None,
        }
    }

    /// The same, to change it.
    pub(crate) const fn fair_mut(&mut self) -> Option<&mut Fair> {
        match self {
            Self::Fair(fair) => Some(fair),
            Self::Scx(_) => None,
        }
    }

    /// `scx_stealtime`; `None` with another class.
    pub(crate) const fn scx(&self) -> Option<&Scx> {
        match self {
            Self::Fair(_) => None,
            Self::Scx(scx) => Some(scx),
        }
    }

    /// Adds a CPU of a last-level cache.
    pub(crate) fn create_rq(&mut self, mode: PickMode, cache: u32) -> Result<RqId, Error> {
        match self {
            Self::Fair(fair) => fair.create_rq(mode),
            Self::Scx(scx) => Ok(scx.create_cpu(cache as usize)),
        }
    }

    pub(crate) fn create_group(&mut self, parent: Option<GroupId>) -> Result<GroupId, Error> {
        match self {
            Self::Fair(fair) => fair.create_group(parent),
            Self::Scx(scx) => scx.create_group(parent),
        }
    }

    pub(crate) fn set_shares(&mut self, group: GroupId, shares: u64) -> Result<(), Error> {
        match self {
            Self::Fair(fair) => fair.set_shares(group, shares, 0),
            Self::Scx(scx) => scx.set_weight(group, fair::weights::cpu_weight_of_shares(shares)),
        }
    }

    pub(crate) fn create_task(
        &mut self,
        attr: Attr,
        group: Option<GroupId>,
    ) -> Result<TaskId, Error> {
        match self {
            Self::Fair(fair) => fair.create_task(attr, group),
            Self::Scx(scx) => scx.create_task(attr.nice, group),
        }
    }

    pub(crate) fn pick(
        &mut self,
        rq: RqId,
        now: u64,
        allowed: &Allowed<'_>,
    ) -> Result<Next, Error> {
        match self {
            Self::Fair(fair) => {
                let picked = fair.pick(rq, now)?;
                Ok(Next {
                    task: picked.task,
                    actions: picked.actions,
                    from: None,
                    requeued: None,
                })
            }
            Self::Scx(scx) => {
                let picked = scx.pick(rq, now, allowed)?;
                Ok(Next {
                    task: picked.task,
                    actions: Actions {
                        resched: Resched::None,
                        hrtick: picked.loan_end_ns,
                    },
                    from: picked.from,
                    requeued: picked.requeued,
                })
            }
        }
    }

    /// A task that sleeps wakes on a CPU, which is idle or not.
    pub(crate) fn wake(
        &mut self,
        task: TaskId,
        rq: RqId,
        is_idle: bool,
        now: u64,
    ) -> Result<Actions, Error> {
        match self {
            Self::Fair(fair) => fair.wake(task, rq, now),
            Self::Scx(scx) => Ok(request(scx.wake(task, rq, is_idle, now)?)),
        }
    }

    pub(crate) fn fork(
        &mut self,
        task: TaskId,
        rq: RqId,
        is_idle: bool,
        now: u64,
    ) -> Result<Actions, Error> {
        match self {
            Self::Fair(fair) => fair.fork(task, rq, now),
            Self::Scx(scx) => Ok(request(scx.wake(task, rq, is_idle, now)?)),
        }
    }

    pub(crate) fn block(&mut self, rq: RqId, mode: Block, now: u64) -> Result<(), Error> {
        match self {
            Self::Fair(fair) => fair.block(rq, mode, now).map(drop),
            Self::Scx(scx) => scx.block(rq, mode, now),
        }
    }

    pub(crate) fn tick(&mut self, rq: RqId, now: u64) -> Result<Actions, Error> {
        match self {
            Self::Fair(fair) => fair.tick(rq, now),
            Self::Scx(scx) => Ok(request(scx.tick(rq, now)?)),
        }
    }

    pub(crate) fn hrtick(&mut self, rq: RqId, now: u64) -> Result<Actions, Error> {
        match self {
            Self::Fair(fair) => fair.hrtick(rq, now),
            Self::Scx(scx) => Ok(request(scx.end_loan(rq, now)?)),
        }
    }

    /// The current task yields. The caller picks.
    pub(crate) fn yield_task(&mut self, rq: RqId, now: u64) -> Result<(), Error> {
        match self {
            Self::Fair(fair) => fair.yield_task(rq, now).map(drop),
            Self::Scx(scx) => scx.yield_task(rq, now),
        }
    }

    pub(crate) fn detach(&mut self, task: TaskId, now: u64) -> Result<Actions, Error> {
        match self {
            Self::Fair(fair) => fair.detach(task, now),
            Self::Scx(scx) => scx.detach(task).map(|()| NOTHING),
        }
    }

    pub(crate) fn attach(
        &mut self,
        task: TaskId,
        rq: RqId,
        is_idle: bool,
        now: u64,
    ) -> Result<Actions, Error> {
        match self {
            Self::Fair(fair) => fair.attach(task, rq, now),
            Self::Scx(scx) => Ok(request(scx.wake(task, rq, is_idle, now)?)),
        }
    }

    /// The run queue on which a sleeper is still queued (`DELAY_DEQUEUE`).
    pub(crate) fn delayed_on(&self, task: TaskId) -> Result<Option<RqId>, Error> {
        self.fair().map_or(Ok(None), |fair| fair.delayed_on(task))
    }

    pub(crate) fn lag_ns(&self, task: TaskId) -> Result<i64, Error> {
        match self {
            Self::Fair(fair) => fair.lag_ns(task),
            Self::Scx(scx) => scx.lag_ns(task),
        }
    }

    /// A task's group gets its part on a CPU when it first needs one.
    pub(crate) fn extend_for(&mut self, task: TaskId, rq: RqId) -> Result<(), Error> {
        match self {
            Self::Fair(fair) => fair.extend_for(task, rq),
            Self::Scx(_) => Ok(()),
        }
    }

    pub(crate) fn compact_group(&mut self, task: TaskId) -> Result<(), Error> {
        match self {
            Self::Fair(fair) => fair.compact_group(task),
            Self::Scx(_) => Ok(()),
        }
    }

    /// The task that the class runs on a CPU.
    pub(crate) fn running(&self, rq: RqId) -> Result<Option<TaskId>, Error> {
        match self {
            Self::Fair(fair) => fair.running(rq),
            Self::Scx(scx) => scx.running(rq),
        }
    }
}
