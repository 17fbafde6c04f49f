//! Moving tasks to CPUs that have less to do (`sched_balance_newidle`, `sched_balance_domains`,
//! `nohz_idle_balance`).
//!
//! Load is the number of runnable tasks. Running tasks are not moved.

use super::domain::{IMBALANCE_PCT, Level};
use super::{Machine, Phase, TaskState};
use crate::fault::Sim;
use crate::ids::{CpuNr, Number, TaskNr};

/// `sysctl_sched_migration_cost`: a task that ran so recently has a warm cache, in ns.
const MIGRATION_COST_NS: u64 = 500_000;
/// `sd->cache_nice_tries`: failures after which warm caches count for nothing.
const NICE_TRIES: u8 = 1;
/// `sd->busy_factor`.
const BUSY_FACTOR: u64 = 16;
/// `SCHED_NR_MIGRATE_BREAK`: most tasks that are moved at once.
const MOST_AT_ONCE: u32 = 8;

/// Longest time between two attempts of idle CPUs that move nothing, in ns (the kernel's is
/// between `sd->max_interval` and `MAX_PINNED_INTERVAL`).
const MOST_IDLE_BALANCE_NS: u64 = 64_000_000;

/// What a CPU keeps for balancing.
#[derive(Clone, Debug)]
pub(crate) struct Balance {
    /// When each level is due again, in ns.
    next_ns: [u64; 3],
    /// Attempts of each level that found a busier CPU and moved nothing.
    failed: [u8; 3],
    /// How long the CPU stays idle on average (`rq->avg_idle`), in ns.
    avg_idle_ns: u64,
    idle_stamp: Option<u64>,
    /// It was woken to balance for all idle CPUs (`NOHZ_BALANCE_KICK`).
    pub(crate) kicked: bool,
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            next_ns: [0; 3],
            failed: [0; 3],
            avg_idle_ns: 2 * MIGRATION_COST_NS,
            idle_stamp: None,
            kicked: false,
        }
    }
}

impl Balance {
    /// The CPU has nothing to do from now on.
    pub(crate) fn idles(&mut self, now: u64) {
        self.idle_stamp.get_or_insert(now);
    }

    /// A task wakes on it (`ttwu_do_activate`).
    pub(crate) fn woken(&mut self, now: u64) {
        if let Some(since) = self.idle_stamp.take() {
            let (old, sample) = (self.avg_idle_ns, now - since);
            let new = if sample > old {
                old + (sample - old) / 8
            } else {
                old - (old - sample) / 8
            };
            self.avg_idle_ns = new.min(2 * MIGRATION_COST_NS);
        }
    }
}

const LEVELS: [Level; 3] = [Level::Smt, Level::Cache, Level::Host];

impl Machine<'_> {
    /// CPUs of a level around one; at most 1 where there is no such level.
    fn span(&self, level: Level) -> u32 {
        let topology = &self.cfg.host.topology;
        match level {
            Level::Smt => topology.threads_per_core,
            Level::Cache if topology.cores_per_llc > 1 => self.domains.cache_size(),
            Level::Host if self.domains.caches() > 1 => topology.cpus(),
            _ => 1,
        }
    }

    /// A CPU that runs out of tasks takes one that waits elsewhere, if it expects to be idle for
    /// longer than the search takes.
    pub(crate) fn pull_for_newidle(&mut self, cpu: CpuNr) -> Sim<bool> {
        let now = self.now;
        self.cpus[cpu].balance.idles(now);
        if self.cpus[cpu].isolated || !self.domains.overloaded() {
            return Ok(false);
        }
        let mut spent = 0;
        for level in LEVELS {
            let span = self.span(level);
            if span < 2 {
                continue;
            }
            // A line of each run queue is read.
            let cost = u64::from(span) * u64::from(self.costs.cache_line_ns);
            spent += cost;
            if self.cpus[cpu].balance.avg_idle_ns < spent {
                break;
            }
            self.cpus[cpu].debt_ns += cost;
            if self.pull(cpu, level, true, cpu)? {
                self.cpus[cpu].balance.woken(now);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// On a tick: each level that is due, and idle CPUs are told to help.
    pub(crate) fn balance_on_tick(&mut self, cpu: CpuNr) -> Sim {
        if self.cpus[cpu].isolated || !self.domains.overloaded() {
            return Ok(());
        }
        self.kick_idle_balancer(cpu)?;
        for (n, level) in LEVELS.into_iter().enumerate() {
            let span = u64::from(self.span(level));
            if span < 2 || self.now < self.cpus[cpu].balance.next_ns[n] {
                continue;
            }
            let factor = if self.cpus[cpu].current.is_some() {
                BUSY_FACTOR
            } else {
                1
            };
            self.cpus[cpu].balance.next_ns[n] = self.now + span * 1_000_000 * factor;
            if self.should_balance(cpu, level) {
                self.pull(cpu, level, false, cpu)?;
            }
        }
        Ok(())
    }

    /// `should_we_balance`: an idle CPU of the group, or else its first one.
    fn should_balance(&self, cpu: CpuNr, level: Level) -> bool {
        let topology = &self.cfg.host.topology;
        if self.cpus[cpu].runnable == 0 {
            return true;
        }
        match level {
            Level::Smt => true,
            Level::Cache => topology
                .sibling_of(cpu.0)
                .is_none_or(|sibling| self.domains.tasks_of(sibling) > 0 && cpu.0 < sibling),
            Level::Host => {
                let cache = topology.llc_of(cpu.0);
                let first = cache * topology.cores_per_llc;
                self.domains.cache_load(cache).idle_cpus == 0 && cpu.0 == first
            }
        }
    }

    /// An overloaded CPU wakes an idle one, which has no tick to balance on.
    fn kick_idle_balancer(&mut self, cpu: CpuNr) -> Sim {
        if self.cpus[cpu].runnable < 2 || self.now < self.next_idle_balance {
            return Ok(());
        }
        let Some(idle) = self.domains.any_idle(cpu) else {
            return Ok(());
        };
        if self.cpus[idle].phase != Phase::Idle {
            return Ok(());
        }
        self.idle_balance_ns = self.idle_balance_ns.max(self.tick_ns());
        self.next_idle_balance = self.now + self.idle_balance_ns;
        self.cpus[idle].balance.kicked = true;
        self.kick_idle(idle, cpu)
    }

    /// The CPU that was woken balances for itself and for the other idle ones.
    pub(crate) fn balance_for_idle(&mut self, cpu: CpuNr) -> Sim {
        self.cpus[cpu].balance.kicked = false;
        let mut next = Some(cpu);
        let mut moved = false;
        for _ in 0..MOST_AT_ONCE {
            let Some(idle) = next.filter(|_| self.domains.overloaded()) else {
                break;
            };
            let mut pulled = false;
            for level in LEVELS {
                if self.span(level) > 1 && !pulled {
                    pulled = self.pull(idle, level, false, cpu)?;
                }
            }
            if !pulled {
                break;
            }
            moved = true;
            next = self.domains.any_idle(cpu);
        }
        // What waits may be pinned, or warm.
        self.idle_balance_ns = if moved {
            0
        } else {
            (self.idle_balance_ns * 2).min(MOST_IDLE_BALANCE_NS)
        };
        Ok(())
    }

    /// Takes tasks from the busiest CPU of a level, if it has enough more; `by` does it.
    fn pull(&mut self, cpu: CpuNr, level: Level, newidle: bool, by: CpuNr) -> Sim<bool> {
        let n = level as usize;
        let Some(from) = self.busiest_of(cpu, level) else {
            self.cpus[cpu].balance.failed[n] = 0;
            return Ok(false);
        };
        let (own, theirs) = (self.cpus[cpu].runnable, self.cpus[from].runnable);
        if theirs < own + 2 {
            return Ok(false);
        }
        let most = if newidle {
            1
        } else {
            ((theirs - own) / 2).clamp(1, MOST_AT_ONCE)
        };
        let warm = level == Level::Smt || self.cpus[cpu].balance.failed[n] > NICE_TRIES;
        let mut pulled = false;
        for _ in 0..most {
            if !self.pull_from(cpu, from, warm, by)? {
                break;
            }
            pulled = true;
        }
        let failed = &mut self.cpus[cpu].balance.failed[n];
        if pulled {
            *failed = 0;
        } else if !newidle {
            *failed = failed.saturating_add(1);
        }
        Ok(pulled)
    }

    /// `sched_balance_find_src_group`, `sched_balance_find_src_rq`.
    fn busiest_of(&self, cpu: CpuNr, level: Level) -> Option<CpuNr> {
        let own = self.cfg.host.topology.llc_of(cpu.0);
        if level != Level::Host {
            return self.domains.busiest(cpu, level, own);
        }
        let local = self.domains.cache_load(own);
        let others = (0..self.domains.caches()).filter(|&c| c != own);
        let cache = others.max_by_key(|&c| {
            let load = self.domains.cache_load(c);
            (load.overloaded.min(1), load.tasks, core::cmp::Reverse(c))
        })?;
        let theirs = self.domains.cache_load(cache);
        // With room here any task that waits there may come; else only a clear difference counts.
        let clear = u64::from(theirs.tasks) * 100 > u64::from(local.tasks) * IMBALANCE_PCT;
        if theirs.tasks < local.tasks + 2 || !(clear || local.idle_cpus > 0) {
            return None;
        }
        self.domains.busiest(cpu, Level::Cache, cache)
    }

    /// Moves one task that waits on `from` and may, whose cache is cold unless `warm`.
    fn pull_from(&mut self, cpu: CpuNr, from: CpuNr, warm: bool, by: CpuNr) -> Sim<bool> {
        let mut found: Option<TaskNr> = None;
        let pairs = |task| self.throttled_pair(task, cpu, from);
        let scripts = &self.cfg.scripts;
        let unknown = (scripts.gaps.get(cpu.index())).is_some_and(|gaps| gaps.has(self.now));
        let idle_takes = scripts.idle_takes && !unknown && self.cpus[cpu].runnable == 0;
        let (by_slot, tasks, now) = (&self.by_slot, &self.tasks, self.now);
        self.fair.for_each_waiting(self.cpus[from].rq, &mut |id| {
            let task = by_slot[id.slot()];
            let t = &tasks[task];
            let hot = t.books.was_preempted() && now - t.books.changed_ns() < MIGRATION_COST_NS;
            let may = t.state == TaskState::Runnable && t.allowed.has(cpu) && (warm || !hot);
            let may = may && (!t.kept || idle_takes) && !pairs(task);
            if found.is_none() && may {
                found = Some(task);
            }
        })?;
        let Some(task) = found else {
            return Ok(false);
        };
        self.move_waiting(task, from, cpu, by)?;
        Ok(true)
    }

    /// Moves a task that waits on `from` to `cpu`; `by` does it.
    pub(crate) fn move_waiting(&mut self, task: TaskNr, from: CpuNr, cpu: CpuNr, by: CpuNr) -> Sim {
        let now = self.now;
        let fair = self.tasks[task].fair;
        let actions = self.fair.detach(fair, now)?;
        self.act(from, actions, by)?;
        self.migrated(task, from, cpu, by);
        self.tasks[task].cpu = cpu;
        self.tasks[task].moved_ns = now;
        self.one_less(from);
        self.one_more(cpu);
        self.disturb_poll(cpu, by)?;
        self.make_part(task, cpu)?;
        let actions = self.fair.attach(fair, self.cpus[cpu].rq, now)?;
        self.fair.fold_parts(fair)?;
        self.act(cpu, actions, by)?;
        self.need_tick(cpu, by)
    }
}
