//! The scheduler around the fair class: who runs where, and what is told to whom.

use stealtime_events::{Kind, Tid};
use stealtime_hypervisor::eevdf::{Actions, Block, Resched};

use super::{Body, Machine, Phase, TaskState};
use crate::fault::Sim;
use crate::ids::{CpuNr, Number, TaskNr};
use crate::script::Late;

/// `TASK_INTERRUPTIBLE` and `TASK_DEAD`, as `sched_switch` shows them.
const INTERRUPTIBLE: u32 = 1;
const DEAD: u32 = 0x10;
/// How often the tick of a `nohz_full` CPU is made up for elsewhere, in ns.
pub(crate) const REMOTE_TICK_NS: u64 = 1_000_000_000;

impl Machine<'_> {
    /// `schedule()`: picks, and switches if that is another task.
    pub(crate) fn schedule(&mut self, cpu: CpuNr) -> Sim {
        self.charge_bandwidth(cpu);
        let rq = self.cpus[cpu].rq;
        let mut picked = self.fair.pick(rq, self.now)?;
        if picked.task.is_none() && self.pull_for_newidle(cpu)? {
            picked = self.fair.pick(rq, self.now)?;
        }
        let next = picked.task.map(|id| self.by_slot[id.slot()]);
        self.cpus[cpu].resched = picked.actions.resched;
        self.arm_hrtick(cpu, picked.actions.hrtick);
        let prev = self.cpus[cpu].current;
        if next == prev {
            return match prev {
                Some(task) => self.run_task(cpu, task),
                None => self.enter_idle(cpu),
            };
        }
        self.switch(cpu, prev, next)
    }

    fn switch(&mut self, cpu: CpuNr, prev: Option<TaskNr>, next: Option<TaskNr>) -> Sim {
        self.stats.context_switches += 1;
        let (mut prev_tid, mut prev_prio, mut prev_state) = (Tid::IDLE, 120, 0);
        if let Some(task) = prev {
            let t = &mut self.tasks[task];
            (prev_tid, prev_prio) = (t.tid, t.prio);
            prev_state = match t.state {
                TaskState::Running | TaskState::Runnable | TaskState::Throttled => 0,
                TaskState::Blocked | TaskState::New => INTERRUPTIBLE,
                TaskState::Dead => DEAD,
            };
            if t.state == TaskState::Running {
                t.state = TaskState::Runnable;
            }
            let (state, now) = (t.state, self.now);
            t.books.enter(state, now);
            if let Body::Vcpu(vcpu) = t.body {
                self.vcpu_put(cpu, vcpu)?;
            }
        }
        let (next_tid, next_prio) = next.map_or((Tid::IDLE, 120), |task| {
            (self.tasks[task].tid, self.tasks[task].prio)
        });
        self.emit(
            cpu,
            Kind::SchedSwitch {
                prev: prev_tid,
                next: next_tid,
                prev_prio,
                next_prio,
                prev_state,
            },
        );
        self.cpus[cpu].current = next;
        if prev.is_some() != next.is_some() {
            self.smt_changed(cpu);
        }
        self.begin_charging(cpu);
        self.books.switched(cpu, next, self.now);
        let mut cost = u64::from(self.costs.context_switch_ns);
        if let Some(task) = next {
            let now = self.now;
            let t = &mut self.tasks[task];
            t.state = TaskState::Running;
            t.cpu = cpu;
            t.books.enter(TaskState::Running, now);
            t.books.was_behind(self.fair.lag_ns(t.fair)?);
            if let Body::Vcpu(_) = t.body {
                cost += u64::from(self.costs.vcpu_load_ns);
            }
        }
        let c = &mut self.cpus[cpu];
        c.phase = Phase::Switch;
        c.irqs_off = true;
        self.stay(cpu, cost);
        match prev {
            Some(task) if self.tasks[task].goes() => self.move_switched_out(cpu, task),
            _ => Ok(()),
        }
    }

    /// A task that was to move and has just lost its CPU moves now; one that sleeps does so as it
    /// wakes.
    fn move_switched_out(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        if self.tasks[task].state != TaskState::Runnable {
            return Ok(());
        }
        match self.tasks[task].take_goes_to() {
            Some(to) if to != cpu => self.move_waiting(task, cpu, to, cpu),
            _ => Ok(()),
        }
    }

    /// The switch is done: the new task runs.
    pub(crate) fn switched(&mut self, cpu: CpuNr) -> Sim {
        self.cpus[cpu].irqs_off = false;
        if let Some(task) = self.cpus[cpu].current
            && let Body::Vcpu(vcpu) = self.tasks[task].body
        {
            self.vcpu_load(cpu, vcpu)?;
        }
        self.warm_up(cpu);
        self.next(cpu)
    }

    /// The task that begins on `cpu` fetches what it works on again, if another task has run there.
    fn warm_up(&mut self, cpu: CpuNr) {
        let c = &mut self.cpus[cpu];
        if c.current.is_none() || c.warm == c.current {
            return;
        }
        c.warm = c.current;
        c.debt_ns += u64::from(self.cfg.knobs.host.cold_cache_ns);
    }

    /// The running task of `cpu` sleeps, or ends.
    pub(crate) fn block_current(&mut self, cpu: CpuNr) -> Sim {
        let Some(task) = self.cpus[cpu].current else {
            return self.broken("the idle task sleeps");
        };
        let how = match self.tasks[task].state {
            TaskState::Dead => Block::Exit,
            _ => Block::Sleep,
        };
        let rq = self.cpus[cpu].rq;
        self.fair.block(rq, how, self.now)?;
        if how != Block::Exit {
            self.tasks[task].state = TaskState::Blocked;
        }
        self.one_less(cpu);
        self.charge_bandwidth(cpu);
        self.return_runtime(cpu, task)?;
        self.schedule(cpu)
    }

    /// Wakes a task that sleeps (`try_to_wake_up`), as `by` does it. Whether it slept.
    pub(crate) fn wake(&mut self, task: TaskNr, by: CpuNr) -> Sim<bool> {
        if self.tasks[task].state != TaskState::Blocked {
            return Ok(false);
        }
        let delayed = self.fair.delayed_on(self.tasks[task].fair)?;
        let was = self.tasks[task].cpu;
        let target = match delayed {
            Some(rq) => self.cpu_of(rq),
            None => self.select_cpu(task, by),
        };
        let (tid, prio) = (self.tasks[task].tid, i32::from(self.tasks[task].prio));
        self.emit(
            by,
            Kind::SchedWaking {
                tid,
                prio,
                target_cpu: was.0,
            },
        );
        self.charge(by, self.costs.wakeup_ns);
        if target != was {
            self.migrated(task, was, target, by);
        }
        self.make_part(task, target)?;
        let now = self.now;
        let actions = self
            .fair
            .wake(self.tasks[task].fair, self.cpus[target].rq, now)?;
        if target != was {
            self.fold_parts(task)?;
        }
        let t = &mut self.tasks[task];
        t.state = TaskState::Runnable;
        t.cpu = target;
        t.books.enter(TaskState::Runnable, now);
        self.one_more(target);
        self.disturb_poll(target, by)?;
        self.need_tick(target, by)?;
        // Told last, as whether it preempts shows in the event's flags (`ttwu_do_wakeup`).
        self.act(target, actions, by)?;
        self.emit(
            by,
            Kind::SchedWakeup {
                tid,
                prio,
                target_cpu: target.0,
            },
        );
        Ok(true)
    }

    /// A task that waits or wakes goes to another CPU (`set_task_cpu`), as `by` does it.
    pub(crate) fn migrated(&mut self, task: TaskNr, from: CpuNr, to: CpuNr, by: CpuNr) {
        let t = &self.tasks[task];
        let kind = Kind::SchedMigrateTask {
            tid: t.tid,
            prio: i32::from(t.prio),
            orig_cpu: from.0,
            dest_cpu: to.0,
        };
        self.emit(by, kind);
        self.stats.migrations += 1;
        self.charge(by, self.costs.migrate_ns);
    }

    /// A new task joins.
    pub(crate) fn fork(&mut self, task: TaskNr, cpu: CpuNr) -> Sim {
        self.fork_by(task, cpu, cpu)
    }

    /// The same, as another CPU does it.
    pub(crate) fn fork_by(&mut self, task: TaskNr, cpu: CpuNr, by: CpuNr) -> Sim {
        self.make_part(task, cpu)?;
        let now = self.now;
        let actions = self
            .fair
            .fork(self.tasks[task].fair, self.cpus[cpu].rq, now)?;
        let t = &mut self.tasks[task];
        t.state = TaskState::Runnable;
        t.cpu = cpu;
        t.books.enter(TaskState::Runnable, now);
        let (tid, prio) = (t.tid, i32::from(t.prio));
        self.one_more(cpu);
        self.disturb_poll(cpu, by)?;
        self.need_tick(cpu, cpu)?;
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
            return self.leave_idle(cpu);
        }
        self.act(cpu, actions, by)
    }

    /// A task's group gets its part on a CPU when it first needs one.
    pub(crate) fn make_part(&mut self, task: TaskNr, cpu: CpuNr) -> Sim {
        Ok(self
            .fair
            .extend_for(self.tasks[task].fair, self.cpus[cpu].rq)?)
    }

    /// What it leaves behind where it was is folded up.
    fn fold_parts(&mut self, task: TaskNr) -> Sim {
        Ok(self.fair.fold_parts(self.tasks[task].fair)?)
    }

    /// What the fair class wants done on `cpu`, at the request of `from`.
    pub(crate) fn act(&mut self, cpu: CpuNr, actions: Actions, from: CpuNr) -> Sim {
        self.arm_hrtick(cpu, actions.hrtick);
        self.request_resched(cpu, actions.resched, from)
    }

    fn arm_hrtick(&mut self, cpu: CpuNr, at: Option<u64>) {
        let timer = self.cpus[cpu].hrtick;
        match at {
            Some(at) => {
                let scripts = &self.cfg.scripts;
                // Where no slice timer has told, the tick's timer does.
                let late = Late::on(&scripts.late, cpu, at);
                let late = late.or_else(|| Late::on(&scripts.tick_late, cpu, at));
                let at = at.max(self.now) + late.unwrap_or(0);
                if self.timers[timer].queued() != Some((cpu, at)) {
                    self.start_pinned(timer, cpu, at);
                }
            }
            None => {
                if self.timers[timer].queued().is_some() {
                    self.cancel_timer(timer, cpu);
                }
            }
        }
    }

    pub(crate) fn hrtick(&mut self, cpu: CpuNr) -> Sim {
        let actions = self.fair.hrtick(self.cpus[cpu].rq, self.now)?;
        self.act(cpu, actions, cpu)
    }

    /// The tick of a CPU that is not idle.
    pub(crate) fn tick(&mut self, cpu: CpuNr, due: u64) -> Sim {
        self.charge(cpu, self.costs.tick_ns);
        self.stats.ticks += 1;
        self.charge_bandwidth(cpu);
        if self.cpus[cpu].current.is_some() {
            let actions = self.fair.tick(self.cpus[cpu].rq, self.now)?;
            self.act(cpu, actions, cpu)?;
        }
        self.balance_on_tick(cpu)?;
        if self.keeps_tick(cpu) {
            let next = match self.cfg.scripts.tick_late.is_empty() {
                true => (due + self.tick_ns()).max(self.now + 1),
                false => self.next_tick(cpu),
            };
            let timer = self.cpus[cpu].tick;
            self.start_pinned(timer, cpu, next);
        }
        Ok(())
    }

    /// Once a second housekeeping does what a stopped tick does not.
    pub(crate) fn tick_remote(&mut self, cpu: CpuNr) -> Sim {
        let next = self.now + REMOTE_TICK_NS;
        self.post(next, super::Message::RemoteTick { cpu });
        let stopped = self.timers[self.cpus[cpu].tick].queued().is_none();
        if self.cpus[cpu].current.is_none() || !stopped {
            return Ok(());
        }
        let by = self.housekeeper(cpu).unwrap_or(CpuNr(0));
        self.charge(by, self.costs.tick_ns);
        let actions = self.fair.tick(self.cpus[cpu].rq, self.now)?;
        self.act(cpu, actions, by)
    }

    /// The first CPU that does housekeeping, from `near` on; `None` if none does.
    pub(crate) fn housekeeper(&self, near: CpuNr) -> Option<CpuNr> {
        let n = self.cpus.len() as u32;
        let mut from_near = (0..n).map(|step| CpuNr((near.0 + step) % n));
        from_near.find(|&cpu| self.cpus[cpu].housekeeping)
    }

    pub(crate) fn tick_ns(&self) -> u64 {
        1_000_000_000 / u64::from(self.cfg.knobs.sched.hz)
    }

    /// A CPU of `nohz_full` with one task needs no tick.
    pub(crate) fn keeps_tick(&self, cpu: CpuNr) -> bool {
        let c = &self.cpus[cpu];
        c.housekeeping || c.runnable > 1
    }

    pub(crate) fn stop_tick(&mut self, cpu: CpuNr) {
        let timer = self.cpus[cpu].tick;
        if self.timers[timer].queued().is_some() {
            self.cancel_timer(timer, cpu);
        }
    }

    /// The tick goes on at its own phase.
    pub(crate) fn start_tick(&mut self, cpu: CpuNr) {
        let timer = self.cpus[cpu].tick;
        if self.timers[timer].queued().is_some() {
            return;
        }
        let next = self.next_tick(cpu);
        self.start_pinned(timer, cpu, next);
    }

    /// When the next tick comes, if it is set now.
    fn next_tick(&self, cpu: CpuNr) -> u64 {
        let (tick, scripts) = (self.tick_ns(), &self.cfg.scripts);
        let phase = scripts.tick_phase_ns % tick;
        let due = (self.now + tick - phase) / tick * tick + phase;
        due + Late::on(&scripts.tick_late, cpu, due).unwrap_or(0)
    }

    pub(crate) fn cpu_of(&self, rq: stealtime_hypervisor::eevdf::RqId) -> CpuNr {
        CpuNr::from_index(rq.slot())
    }
}
