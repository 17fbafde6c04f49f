//! Where tasks wake, and moving them to CPUs that have nothing to do.

use super::{Machine, Phase, TaskState};
use crate::fault::Sim;
use crate::ids::{CpuNr, Number, TaskNr};

impl super::Cpu {
    pub(crate) fn one_more(&mut self) {
        self.runnable += 1;
    }

    pub(crate) fn one_less(&mut self) {
        self.runnable = self.runnable.saturating_sub(1);
    }

    /// Nothing runs here and nothing waits.
    pub(crate) fn has_nothing(&self) -> bool {
        self.runnable == 0
    }
}

impl Machine<'_> {
    /// Where a sleeper wakes (`select_task_rq_fair`, in short): its last CPU if that is idle, or
    /// the waker's side if that is nearer to idleness; then an idle core, then an idle CPU that
    /// shares the cache; else the last CPU.
    pub(crate) fn select_cpu(&mut self, task: TaskNr, by: CpuNr) -> CpuNr {
        let t = &self.tasks[task];
        let prev = t.cpu;
        if !t.allowed.has(prev) {
            return t.allowed.first();
        }
        if self.cpus[prev].has_nothing() {
            return prev;
        }
        let topology = self.cfg.host.topology;
        let same = topology.llc_of(by.0) == topology.llc_of(prev.0);
        if same && t.allowed.has(by) && self.cpus[by].has_nothing() {
            return by;
        }
        self.idle_sibling(task, prev).unwrap_or(prev)
    }

    /// An idle CPU that shares the last-level cache with `near`, idle cores first.
    fn idle_sibling(&self, task: TaskNr, near: CpuNr) -> Option<CpuNr> {
        let topology = self.cfg.host.topology;
        let allowed = &self.tasks[task].allowed;
        let (cores, per) = (topology.cores(), topology.cores_per_llc);
        let first = topology.llc_of(near.0) * per;
        let start = topology.core_of(near.0) - first;
        let mut idle_cpu = None;
        for step in 1..=per {
            let core = first + (start + step) % per;
            let mut whole = true;
            let mut found = None;
            for thread in 0..topology.threads_per_core {
                let cpu = CpuNr(core + thread * cores);
                let idle = self.cpus[cpu].has_nothing();
                whole &= idle;
                if idle && allowed.has(cpu) && !self.cpus[cpu].isolated && found.is_none() {
                    found = Some(cpu);
                }
            }
            if whole && found.is_some() {
                return found;
            }
            idle_cpu = idle_cpu.or(found);
        }
        idle_cpu
    }

    /// A CPU that runs out of tasks takes one that waits elsewhere (`sched_balance_newidle`).
    pub(crate) fn pull_for_newidle(&mut self, cpu: CpuNr) -> Sim<bool> {
        if self.cpus[cpu].isolated {
            return Ok(false);
        }
        self.pull(cpu, 1)
    }

    /// On a tick, less often the busier the CPU (`sched_balance_rq`).
    pub(crate) fn balance_on_tick(&mut self, cpu: CpuNr) -> Sim {
        let every = if self.cpus[cpu].runnable <= 1 { 2 } else { 16 };
        let ticks = self.now / self.tick_ns() + u64::from(cpu.0);
        if !ticks.is_multiple_of(every) || self.cpus[cpu].isolated {
            return Ok(());
        }
        self.pull(cpu, 2).map(|_| ())
    }

    /// Takes one task from the CPU with most of them, if it has `more` more than this one.
    fn pull(&mut self, cpu: CpuNr, more: u32) -> Sim<bool> {
        let topology = self.cfg.host.topology;
        let own = self.cpus[cpu].runnable;
        let reach = |m: &Self, same: &dyn Fn(u32) -> bool| {
            let mut best: Option<CpuNr> = None;
            for other in m.cpus.numbers() {
                let o = &m.cpus[other];
                if other == cpu
                    || o.isolated
                    || !same(other.0)
                    || o.runnable < own + more
                    || o.runnable < 2
                {
                    continue;
                }
                if best.is_none_or(|b| m.cpus[b].runnable < o.runnable) {
                    best = Some(other);
                }
            }
            best
        };
        let near = reach(self, &|o| topology.llc_of(o) == topology.llc_of(cpu.0));
        let Some(from) = near.or_else(|| reach(self, &|_| true)) else {
            return Ok(false);
        };
        self.pull_from(cpu, from)
    }

    fn pull_from(&mut self, cpu: CpuNr, from: CpuNr) -> Sim<bool> {
        let mut found: Option<TaskNr> = None;
        let (by_slot, tasks) = (&self.by_slot, &self.tasks);
        self.fair.for_each_waiting(self.cpus[from].rq, &mut |id| {
            let task = by_slot[id.slot()];
            let t = &tasks[task];
            if found.is_none() && t.state == TaskState::Runnable && t.allowed.has(cpu) {
                found = Some(task);
            }
        })?;
        let Some(task) = found else {
            return Ok(false);
        };
        let (fair, now) = (self.tasks[task].fair, self.now);
        let actions = self.fair.detach(fair, now)?;
        self.act(from, actions, cpu)?;
        let (tid, prio) = (self.tasks[task].tid, i32::from(self.tasks[task].prio));
        self.emit(
            cpu,
            stealtime_events::Kind::SchedMigrateTask {
                tid,
                prio,
                orig_cpu: from.0,
                dest_cpu: cpu.0,
            },
        );
        self.stats.migrations += 1;
        self.charge(cpu, self.costs.migrate_ns);
        self.tasks[task].cpu = cpu;
        self.cpus[from].one_less();
        self.cpus[cpu].one_more();
        self.make_part(task, cpu)?;
        let actions = self.fair.attach(fair, self.cpus[cpu].rq, now)?;
        if self.cpus[cpu].phase != Phase::Idle && self.cpus[cpu].current.is_some() {
            self.act(cpu, actions, cpu)?;
        }
        debug_assert!(cpu.index() < self.cpus.len());
        Ok(true)
    }
}
