//! The scheduler around the fair class: picks, wakeups, forks, switches.

use stealtime_events::{Kind, Tid};
use stealtime_hypervisor::directed_yield::YieldTo;
use stealtime_hypervisor::fair::{self, Actions, Block, Resched};
use stealtime_hypervisor::scx::Awaits;

use super::class::Start;
use super::{
    Body, Class, Host, Phase, TaskState, balance, bandwidth, class, idle, irq, place, poll, tick,
};
use crate::fault::Sim;
use crate::ids::{CpuNr, Number, TaskNr};

/// `TASK_INTERRUPTIBLE` and `TASK_DEAD`, as `sched_switch` shows them.
const INTERRUPTIBLE: u32 = 1;
const DEAD: u32 = 0x10;
/// The idle task's priority, as `sched_switch` shows it.
const IDLE_PRIO: i16 = 120;

/// What `sched_switch` shows of the task that leaves the CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwitchedOut {
    tid: Tid,
    prio: i16,
    state: u32,
}

impl Host<'_> {
    /// `pick_next_task`: the task that `cpu` runs next; without one it takes one from another CPU.
    pub(crate) fn pick(&mut self, cpu: CpuNr) -> Sim<Option<TaskNr>> {
        bandwidth::charge_current(self, cpu);
        let mut picked = class::pick(self, cpu)?;
        // `pick_next_task_fair` pulls before it gives up to the idle task.
        if picked.task.is_none() && balance::newidle(self, cpu)? {
            picked = class::pick(self, cpu)?;
        }
        self.cpus[cpu].resched = picked.actions.resched;
        tick::arm_hrtick(self, cpu, picked.actions.hrtick);
        Ok(picked.task.map(|id| self.by_slot[id.slot()]))
    }

    /// The current task, `None` for the idle task, is about to leave its CPU.
    pub(crate) fn leave_cpu(&mut self, prev: Option<TaskNr>) -> SwitchedOut {
        self.out.stats.context_switches += 1;
        let Some(task) = prev else {
            return SwitchedOut {
                tid: Tid::IDLE,
                prio: IDLE_PRIO,
                state: 0,
            };
        };
        let now = self.clock.now();
        let t = &mut self.tasks[task];
        let state = match t.state {
            TaskState::Running | TaskState::Runnable | TaskState::Throttled => 0,
            TaskState::Blocked | TaskState::New => INTERRUPTIBLE,
            TaskState::Dead => DEAD,
        };
        t.lose_cpu(now);
        SwitchedOut {
            tid: t.tid,
            prio: t.prio,
            state,
        }
    }

    /// `next` is the current task of `cpu` from now on.
    pub(crate) fn set_current(&mut self, cpu: CpuNr, left_task: SwitchedOut, next: Option<TaskNr>) {
        let (tid, prio) = next.map_or((Tid::IDLE, IDLE_PRIO), |task| {
            (self.tasks[task].tid, self.tasks[task].prio)
        });
        self.emit(
            cpu,
            Kind::SchedSwitch {
                prev: left_task.tid,
                next: tid,
                prev_prio: left_task.prio,
                next_prio: prio,
                prev_state: left_task.state,
            },
        );
        self.cpus[cpu].current = next;
        self.cpus[cpu].tid = tid;
        self.cpus[cpu].stalled_until = 0;
    }

    /// `cpu` switches to its current task, which takes time.
    pub(crate) fn begin_switch(
        &mut self,
        cpu: CpuNr,
        prev: Option<TaskNr>,
        next: Option<TaskNr>,
    ) -> Sim {
        bandwidth::begin_charging(self, cpu);
        let now = self.clock.now();
        self.out.books.switched(cpu, next, now);
        let mut cost = u64::from(self.costs.context_switch_ns);
        if let Some(task) = next {
            let t = &mut self.tasks[task];
            t.state = TaskState::Running;
            t.cpu = cpu;
            t.books.enter(TaskState::Running, now);
            t.books.was_behind(self.class.lag_ns(t.fair)?);
            if let Body::Vcpu(_) = t.body {
                cost += u64::from(self.costs.vcpu_load_ns);
            }
        }
        let c = &mut self.cpus[cpu];
        c.phase = Phase::Switch;
        // `__schedule` holds the run queue's lock with interrupts off.
        c.irqs_off = true;
        self.stay(cpu, cost);
        if let Some(task) = prev
            && self.tasks[task].goes()
        {
            self.move_switched_out(cpu, task)?;
        }
        Ok(())
    }

    /// A task that was to move and has just lost its CPU moves now; one that sleeps does so as it
    /// wakes.
    pub(crate) fn move_switched_out(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        if self.tasks[task].state != TaskState::Runnable {
            return Ok(());
        }
        match self.tasks[task].take_goes_to() {
            Some(target) if target != cpu => balance::move_waiting(self, task, cpu, target, cpu),
            _ => Ok(()),
        }
    }

    /// The task that begins on `cpu` fetches what it works on again, if another task has run there.
    pub(crate) fn warm_up(&mut self, cpu: CpuNr) {
        let c = &mut self.cpus[cpu];
        if c.current.is_none() || c.warm == c.current {
            return;
        }
        c.warm = c.current;
        c.debt_ns += u64::from(self.cfg.knobs.host.cold_cache_ns);
    }

    /// Wakes a task that sleeps (`try_to_wake_up`), as `waker` does it. Whether it slept.
    pub(crate) fn wake(&mut self, task: TaskNr, waker: CpuNr) -> Sim<bool> {
        if self.tasks[task].state != TaskState::Blocked {
            return Ok(false);
        }
        // A task with a delayed dequeue (`DELAY_DEQUEUE`) is still on its queue:
        // `ttwu_runnable` wakes it there.
        let delayed = self.class.delayed_on(self.tasks[task].fair)?;
        let previous = self.tasks[task].cpu;
        let target = match delayed {
            Some(rq) => self.cpu_of(rq),
            None => place::select_cpu(self, task, waker),
        };
        let (tid, prio) = (self.tasks[task].tid, i32::from(self.tasks[task].prio));
        self.emit(
            waker,
            Kind::SchedWaking {
                tid,
                prio,
                target_cpu: previous.0,
            },
        );
        // The waker pays for the wakeup before it goes on: the event itself takes no time.
        self.charge(waker, self.costs.wakeup_ns);
        if target != previous {
            self.migrated(task, previous, target, waker);
        }
        self.make_part(task, target)?;
        let now = self.clock.now();
        let is_idle = self.cpus[target].runnable == 0;
        let (fair, rq) = (self.tasks[task].fair, self.cpus[target].rq);
        let actions = self.class.start(fair, rq, Start::Wakeup, is_idle, now)?;
        if target != previous {
            // What its group leaves behind where it was is folded up.
            self.class.compact_group(fair)?;
        }
        let t = &mut self.tasks[task];
        t.state = TaskState::Runnable;
        t.cpu = target;
        t.books.enter(TaskState::Runnable, now);
        // Counted before the request to reschedule: that looks at the number of tasks for NO_HZ.
        place::one_more(self, target);
        poll::disturb(self, target, waker);
        place::need_tick(self, target, waker)?;
        // Emitted last: whether the wakeup preempts shows in the event's flags (`ttwu_do_wakeup`).
        self.act(target, actions, waker)?;
        if !is_idle {
            class::kick_idle(self, task, waker)?;
        }
        self.emit(
            waker,
            Kind::SchedWakeup {
                tid,
                prio,
                target_cpu: target.0,
            },
        );
        Ok(true)
    }

    /// A task that waits or wakes goes to another CPU (`set_task_cpu`), as `waker` does it.
    pub(crate) fn migrated(&mut self, task: TaskNr, source: CpuNr, target: CpuNr, waker: CpuNr) {
        let t = &self.tasks[task];
        let kind = Kind::SchedMigrateTask {
            tid: t.tid,
            prio: i32::from(t.prio),
            orig_cpu: source.0,
            dest_cpu: target.0,
        };
        self.emit(waker, kind);
        self.out.stats.migrations += 1;
        self.charge(waker, self.costs.migrate_ns);
    }

    /// A new task joins.
    pub(crate) fn fork(&mut self, task: TaskNr, cpu: CpuNr) -> Sim {
        self.fork_by(task, cpu, cpu)
    }

    /// The same, as another CPU does it.
    pub(crate) fn fork_by(&mut self, task: TaskNr, cpu: CpuNr, waker: CpuNr) -> Sim {
        self.make_part(task, cpu)?;
        let now = self.clock.now();
        let is_idle = self.cpus[cpu].runnable == 0;
        let (fair, rq) = (self.tasks[task].fair, self.cpus[cpu].rq);
        let actions = self.class.start(fair, rq, Start::Fork, is_idle, now)?;
        let t = &mut self.tasks[task];
        t.state = TaskState::Runnable;
        t.cpu = cpu;
        t.books.enter(TaskState::Runnable, now);
        let (tid, prio) = (t.tid, i32::from(t.prio));
        place::one_more(self, cpu);
        poll::disturb(self, cpu, waker);
        place::need_tick(self, cpu, cpu)?;
        self.emit(
            cpu,
            Kind::SchedWakeupNew {
                tid,
                prio,
                target_cpu: cpu.0,
            },
        );
        if self.cpus[cpu].phase == Phase::Idle {
            self.cpus[cpu].resched = Resched::Now;
            return idle::leave(self, cpu);
        }
        self.act(cpu, actions, waker)
    }

    /// A task's group gets its part on a CPU when it first needs one.
    pub(crate) fn make_part(&mut self, task: TaskNr, cpu: CpuNr) -> Sim {
        Ok(self
            .class
            .extend_for(self.tasks[task].fair, self.cpus[cpu].rq)?)
    }

    /// What the fair class wants done on `cpu`, at the request of `source`.
    pub(crate) fn act(&mut self, cpu: CpuNr, actions: Actions, source: CpuNr) -> Sim {
        // The timer of a loan stays until the next pick.
        if self.class.scx().is_none() {
            tick::arm_hrtick(self, cpu, actions.hrtick);
        }
        irq::request_resched(self, cpu, actions.resched, source)
    }

    pub(crate) fn cpu_of(&self, rq: stealtime_hypervisor::fair::RqId) -> CpuNr {
        CpuNr::from_index(rq.slot())
    }

    /// `kvm_vcpu_yield_to`: what runs on `cpu` yields to a vCPU's thread. If it did, the caller picks.
    /// `awaits` is what `scx_stealtime` knows of the yielder.
    pub(crate) fn yield_to(
        &mut self,
        cpu: CpuNr,
        task: TaskNr,
        awaits: Awaits,
    ) -> Result<YieldTo, fair::Error> {
        if matches!(self.tasks[task].state, TaskState::Dead | TaskState::New) {
            // No thread runs it any more, or yet.
            return Ok(YieldTo::Declined);
        }
        // Credit is taken from the spinner's queue, so the target's group needs an entity there.
        if self.cfg.knobs.sched.lag_credit.across_run_queues && self.make_part(task, cpu).is_err() {
            return Ok(YieldTo::Declined);
        }
        let (rq, now) = (self.cpus[cpu].rq, self.clock.now());
        let t = &self.tasks[task];
        let (fair, target_cpu, may_run_here) = (t.fair, t.cpu, t.allowed.has(cpu));
        if target_cpu != cpu && self.cpus[target_cpu].current.is_none() {
            // An idle CPU enqueues a task that is woken there itself (`ttwu_queue_wakelist`).
            // Before that `yield_to` finds no running task.
            return Ok(YieldTo::Declined);
        }
        let fair_class = match &mut self.class {
            Class::Fair(fair) => fair,
            Class::Scx(_) => return class::yield_to(self, cpu, task, awaits),
        };
        Ok(
            match fair_class.yield_to_pulling(rq, fair, may_run_here, now)? {
                fair::YieldTo::Yielded { kicked, pulled, .. } => {
                    if pulled.is_some() {
                        self.tasks[task].cpu = cpu;
                        self.tasks[task].moved_ns = now;
                        place::one_less(self, target_cpu);
                        place::one_more(self, cpu);
                        self.out.stats.migrations += 1;
                    }
                    if kicked.is_some() && target_cpu != cpu {
                        class::interrupt(self, target_cpu, cpu);
                    }
                    YieldTo::Yielded
                }
                fair::YieldTo::OnlyOne => YieldTo::BothAlone,
                fair::YieldTo::Refused => YieldTo::Declined,
            },
        )
    }

    /// The running task of `cpu` sleeps, or ends. The caller picks.
    pub(crate) fn block_current(&mut self, cpu: CpuNr) -> Sim {
        let Some(task) = self.cpus[cpu].current else {
            return self.broken("the idle task sleeps");
        };
        let mode = match self.tasks[task].state {
            TaskState::Dead => Block::Exit,
            _ => Block::Sleep,
        };
        let rq = self.cpus[cpu].rq;
        self.class.block(rq, mode, self.clock.now())?;
        if mode != Block::Exit {
            self.tasks[task].state = TaskState::Blocked;
        }
        place::one_less(self, cpu);
        // `return_cfs_rq_runtime`: what is left of the slice goes back to the group, for other
        // CPUs.
        bandwidth::charge_current(self, cpu);
        bandwidth::return_runtime(self, cpu, task)
    }
}
