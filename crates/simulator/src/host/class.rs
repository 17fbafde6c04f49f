//! The class that schedules the host's tasks: the fair class, or `scx_stealtime` of sched_ext.

use stealtime_hypervisor::directed_yield::YieldTo;
use stealtime_hypervisor::fair::{
    self, Actions, Attr, Block, Error, Fair, GroupId, PickMode, Resched, RqId, TaskId,
};
use stealtime_hypervisor::scx::{Affinity, Awaits, Refusal, Scx, Yielded};

use super::{Host, Irq, Task, irq, place, tick};
use crate::fault::Sim;
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

/// Why a task becomes runnable.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    Wakeup,
    Fork,
    /// It waited on another CPU.
    Move,
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

    /// A task becomes runnable on a CPU, which is idle or not.
    pub(crate) fn start(
        &mut self,
        task: TaskId,
        rq: RqId,
        start: Start,
        is_idle: bool,
        now: u64,
    ) -> Result<Actions, Error> {
        match (self, start) {
            (Self::Fair(fair), Start::Wakeup) => fair.wake(task, rq, now),
            (Self::Fair(fair), Start::Fork) => fair.fork(task, rq, now),
            (Self::Fair(fair), Start::Move) => fair.attach(task, rq, now),
            (Self::Scx(scx), _) => Ok(request(scx.wake(task, rq, is_idle, now)?)),
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

/// The class picks for `cpu`; a task that waited elsewhere moves there.
pub(crate) fn pick(host: &mut Host<'_>, cpu: CpuNr) -> Sim<Next> {
    let allowed = Allowed {
        tasks: &host.tasks,
        by_slot: &host.by_slot,
    };
    let rq = host.cpus[cpu].rq;
    let picked = host.class.pick(rq, host.clock.now(), &allowed)?;
    if let Some((task, source)) = picked.task.zip(picked.from) {
        let (task, source) = (host.by_slot[task.slot()], host.cpu_of(source));
        host.migrated(task, source, cpu, cpu);
        host.tasks[task].cpu = cpu;
        place::one_less(host, source);
        place::one_more(host, cpu);
    }
    if let Some(task) = picked.requeued {
        kick_idle(host, host.by_slot[task.slot()], cpu)?;
    }
    Ok(picked)
}

/// `scx_bpf_kick_cpu`: a task waits in a shared queue, and an idle CPU may take it.
pub(crate) fn kick_idle(host: &mut Host<'_>, task: TaskNr, sender: CpuNr) -> Sim {
    if host.class.scx().is_none() {
        return Ok(());
    }
    let allowed = &host.tasks[task].allowed;
    match host.domains.idle_cpu(allowed, sender.0, u32::MAX) {
        Some(idle) => irq::request_resched(host, idle, Resched::Now, sender),
        None => Ok(()),
    }
}

/// `source` makes another CPU reschedule at once.
pub(crate) fn interrupt(host: &mut Host<'_>, cpu: CpuNr, source: CpuNr) {
    host.cpus[cpu].resched = Resched::Now;
    irq::send_ipi(host, source, cpu, Irq::Reschedule);
}

/// `ops.yield`: what runs on `cpu` yields to a vCPU's thread.
pub(crate) fn yield_to(
    host: &mut Host<'_>,
    cpu: CpuNr,
    task: TaskNr,
    awaits: Awaits,
) -> Result<YieldTo, Error> {
    let (fair, target_cpu) = (host.tasks[task].fair, host.tasks[task].cpu);
    if host.cpus[cpu].runnable == 1 && host.cpus[target_cpu].runnable == 1 {
        return Ok(YieldTo::BothAlone);
    }
    let (rq, now) = (host.cpus[cpu].rq, host.clock.now());
    let allowed = Allowed {
        tasks: &host.tasks,
        by_slot: &host.by_slot,
    };
    let Class::Scx(scx) = &mut host.class else {
        debug_assert!(false, "another class has no yields of sched_ext");
        return Ok(YieldTo::Declined);
    };
    match scx.yield_to(rq, fair, awaits, now, &allowed)? {
        Yielded::Served { kicked, .. } => {
            if let Some(kicked) = kicked {
                interrupt(host, host.cpu_of(kicked), cpu);
            }
            Ok(YieldTo::Yielded)
        }
        Yielded::Refused(refusal) => {
            if refusal == Refusal::Guard {
                // It is in the host, and picks on its way back.
                host.cpus[cpu].resched = Resched::Now;
            }
            Ok(YieldTo::Declined)
        }
    }
}

/// What runs on `cpu` has spun, and KVM asks for no yield. Whether the caller is to pick.
pub(crate) fn pause(host: &mut Host<'_>, cpu: CpuNr, awaits: Awaits) -> Result<bool, Error> {
    let (rq, now) = (host.cpus[cpu].rq, host.clock.now());
    let allowed = Allowed {
        tasks: &host.tasks,
        by_slot: &host.by_slot,
    };
    let Class::Scx(scx) = &mut host.class else {
        return Ok(false);
    };
    match scx.pause(rq, awaits, now, &allowed)? {
        None | Some(Yielded::Refused(Refusal::Pinned)) => Ok(false),
        Some(Yielded::Refused(_)) => Ok(true),
        Some(Yielded::Served { kicked, .. }) => {
            if let Some(kicked) = kicked {
                interrupt(host, host.cpu_of(kicked), cpu);
            }
            Ok(true)
        }
    }
}

/// The EOI of a vCPU's thread settles the IPI of another one's: a loan of `scx_stealtime` ends.
pub(crate) fn answered(host: &mut Host<'_>, sender: TaskNr, receiver: TaskNr) -> Sim {
    let (lender, borrower) = (host.tasks[sender].fair, host.tasks[receiver].fair);
    let Class::Scx(scx) = &mut host.class else {
        return Ok(());
    };
    if let Some((rq, time)) = scx.answered(lender, borrower, host.clock.now())? {
        tick::arm_hrtick(host, host.cpu_of(rq), Some(time));
    }
    Ok(())
}
