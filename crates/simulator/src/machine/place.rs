//! Where tasks wake (`select_task_rq_fair`).

use super::{CpuSet, Machine};
use crate::fault::Sim;
use crate::ids::{CpuNr, TaskNr};

impl Machine<'_> {
    /// A task more runs or waits on `cpu`.
    pub(crate) fn one_more(&mut self, cpu: CpuNr) {
        let c = &mut self.cpus[cpu];
        c.runnable += 1;
        let runnable = c.runnable;
        if runnable == 1 {
            c.balance.woken(self.now);
        }
        self.domains.changed(cpu, runnable);
    }

    /// A task less.
    pub(crate) fn one_less(&mut self, cpu: CpuNr) {
        let c = &mut self.cpus[cpu];
        c.runnable = c.runnable.saturating_sub(1);
        let runnable = c.runnable;
        self.domains.changed(cpu, runnable);
    }

    fn has_nothing(&self, cpu: CpuNr) -> bool {
        self.cpus[cpu].runnable == 0
    }

    /// Where a sleeper wakes: near its last CPU or its waker's (`wake_affine`), on an idle CPU
    /// that shares the cache if the search finds one.
    pub(crate) fn select_cpu(&mut self, task: TaskNr, by: CpuNr) -> CpuNr {
        let t = &self.tasks[task];
        let prev = t.cpu;
        if !t.allowed.has(prev) {
            return self.least_busy(&t.allowed);
        }
        if t.kept {
            return self.tasks[task].take_goes_to().unwrap_or(prev);
        }
        if self.cpus[prev].isolated {
            return prev;
        }
        let affine = by != prev && t.allowed.has(by) && !self.cpus[by].isolated;
        let target = if affine {
            self.wake_affine(prev, by)
        } else {
            prev
        };
        self.idle_sibling(task, prev, target).unwrap_or(target)
    }

    /// Where a task begins that may no longer run where it was: the first CPU of those with the fewest
    /// tasks.
    fn least_busy(&self, allowed: &CpuSet) -> CpuNr {
        let cpus = (0..self.cpus.len() as u32).map(CpuNr);
        cpus.filter(|&cpu| allowed.has(cpu))
            .min_by_key(|&cpu| self.cpus[cpu].runnable)
            .unwrap_or_else(|| allowed.first())
    }

    /// `wake_affine_idle`, then `wake_affine_weight` with numbers of tasks for loads.
    fn wake_affine(&self, prev: CpuNr, by: CpuNr) -> CpuNr {
        let topology = &self.cfg.host.topology;
        let shared = topology.llc_of(prev.0) == topology.llc_of(by.0);
        if self.has_nothing(prev) {
            return prev;
        }
        if shared && self.has_nothing(by) {
            return by;
        }
        let here = (u64::from(self.cpus[by].runnable) + 1) * 100;
        let bias = 100 + (super::domain::IMBALANCE_PCT - 100) / 2;
        let there = u64::from(self.cpus[prev].runnable) * bias;
        if here < there { by } else { prev }
    }

    /// `select_idle_sibling`.
    fn idle_sibling(&self, task: TaskNr, prev: CpuNr, target: CpuNr) -> Option<CpuNr> {
        if self.has_nothing(target) {
            return Some(target);
        }
        let topology = &self.cfg.host.topology;
        let cache = topology.llc_of(target.0);
        let shared = topology.llc_of(prev.0) == cache;
        if shared && self.has_nothing(prev) {
            return Some(prev);
        }
        let load = self.domains.cache_load(cache);
        if load.idle_cpus == 0 {
            return None;
        }
        let allowed = &self.tasks[task].allowed;
        if topology.threads_per_core > 1 {
            if load.idle_cores > 0 {
                let core = self.domains.idle_core(allowed, target.0);
                return core.or_else(|| self.domains.idle_cpu(allowed, target.0, u32::MAX));
            }
            let sibling = topology.sibling_of(prev.0).map(CpuNr);
            let idle = sibling.filter(|&s| {
                shared && self.has_nothing(s) && allowed.has(s) && !self.cpus[s].isolated
            });
            if idle.is_some() {
                return idle;
            }
        }
        let most = self.domains.scan_limit(cache);
        self.domains.idle_cpu(allowed, target.0, most)
    }

    /// A second task on a CPU without a tick (`tick_nohz_full_kick_cpu`): it must have one again.
    pub(crate) fn need_tick(&mut self, cpu: CpuNr, from: CpuNr) -> Sim {
        let c = &self.cpus[cpu];
        if c.housekeeping || c.runnable < 2 || self.timers[c.tick].queued().is_some() {
            return Ok(());
        }
        if c.phase == super::Phase::Idle {
            return Ok(());
        }
        self.start_tick(cpu);
        if cpu != from {
            self.send_ipi(from, cpu, super::Irq::Reschedule);
        }
        Ok(())
    }
}
