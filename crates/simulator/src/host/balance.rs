//! Moving tasks to CPUs that have less to do (`sched_balance_newidle`, `sched_balance_domains`,
//! `nohz_idle_balance`).
//!
//! Load is the number of runnable tasks. Running tasks are not moved.

use super::class::Start;
use super::domain::{IMBALANCE_PCT, Level};
use super::looks::Learned;
use super::{Host, Phase, TaskState, bandwidth, idle, place, poll, tick};
use crate::fault::Sim;
use crate::ids::{CpuNr, Number, TaskNr};
use crate::script::Looks;

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
    /// What it has learned of looks at each level; `None` if that does not matter.
    looks: Option<[Learned; 3]>,
}

impl Balance {
    /// `looks`: how often the CPU looks for tasks as it runs out of them.
    pub(crate) fn new(looks: Looks) -> Self {
        Self {
            next_ns: [0; 3],
            failed: [0; 3],
            avg_idle_ns: 2 * MIGRATION_COST_NS,
            idle_stamp: None,
            kicked: false,
            looks: Learned::new(looks).map(|level| [level; 3]),
        }
    }

    /// The CPU has nothing to do from now on.
    pub(crate) fn idles(&mut self, now: u64) {
        self.idle_stamp.get_or_insert(now);
    }

    /// A task wakes on it (`ttwu_do_activate`).
    pub(crate) fn woken(&mut self, now: u64) {
        if let Some(start) = self.idle_stamp.take() {
            let (old, sample) = (self.avg_idle_ns, now - start);
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

/// CPUs of a level around one; at most 1 where there is no such level.
fn span(host: &Host<'_>, level: Level) -> u32 {
    let topology = &host.cfg.host.topology;
    match level {
        Level::Smt => topology.threads_per_core,
        Level::Cache if topology.cores_per_llc > 1 => host.domains.cache_size(),
        Level::Host if host.domains.caches() > 1 => topology.cpus(),
        _ => 1,
    }
}

/// Whether a CPU takes part in balancing. Shared queues need none.
fn takes_part(host: &Host<'_>, cpu: CpuNr) -> bool {
    !host.cpus[cpu].isolated && host.class.scx().is_none()
}

/// Whether a CPU has to look for tasks elsewhere.
fn balances(host: &Host<'_>, cpu: CpuNr) -> bool {
    takes_part(host, cpu) && host.domains.overloaded()
}

/// A CPU that runs out of tasks takes one that waits elsewhere, if it expects to be idle for
/// longer than the search takes.
pub(crate) fn newidle(host: &mut Host<'_>, cpu: CpuNr) -> Sim<bool> {
    let now = host.clock.now();
    host.cpus[cpu].balance.idles(now);
    if host.cfg.scripts.looks == Looks::Never {
        return Ok(false);
    }
    // `rd->overloaded`: no CPU has a task to spare.
    let is_overloaded = match host.cpus[cpu].balance.looks {
        Some(_) => host.domains.seems_overloaded(),
        None => host.domains.overloaded(),
    };
    if !is_overloaded || !takes_part(host, cpu) {
        return Ok(false);
    }
    let mut spent = 0;
    for level in LEVELS {
        let span = span(host, level);
        if span < 2 {
            continue;
        }
        // A line of each run queue is read.
        let cost = u64::from(span) * u64::from(host.costs.cache_line_ns);
        // The search must not take longer than the CPU is likely to idle
        // (`sched_balance_newidle`).
        if host.cpus[cpu].balance.avg_idle_ns < spent + cost {
            break;
        }
        let Some(weight) = drawn(host, cpu, level) else {
            learn(host, cpu, level, 0);
            continue;
        };
        spent += cost;
        host.cpus[cpu].debt_ns += cost;
        let pulled = pull(host, cpu, level, true, cpu)?;
        learn(host, cpu, level, if pulled { weight } else { 0 });
        if span == host.cfg.host.topology.cpus() {
            host.domains.searched();
        }
        if pulled {
            host.cpus[cpu].balance.woken(now);
            return Ok(true);
        }
    }
    Ok(false)
}

/// For how many chances a look counts; `None` if chance keeps the CPU from looking.
fn drawn(host: &Host<'_>, cpu: CpuNr, level: Level) -> Option<u32> {
    let Some(looks) = &host.cpus[cpu].balance.looks else {
        return Some(1);
    };
    // A draw by time, CPU and level: equal runs draw the same.
    let place = (u64::from(cpu.0) << 48) ^ ((level as u64) << 62);
    let mut draw = host.clock.now() ^ place ^ host.cfg.run.seed.rotate_left(32);
    draw = (draw ^ (draw >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    draw = (draw ^ (draw >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    looks[level as usize].drawn(draw ^ (draw >> 31))
}

/// A chance to look has passed; see [`Learned::pass`].
fn learn(host: &mut Host<'_>, cpu: CpuNr, level: Level, found: u32) {
    let now = host.clock.now();
    if let Some(looks) = &mut host.cpus[cpu].balance.looks {
        looks[level as usize].pass(found, now);
    }
}

/// On a tick: balances each level that is due, and kicks an idle CPU to balance for all.
pub(crate) fn on_tick(host: &mut Host<'_>, cpu: CpuNr) -> Sim {
    if !balances(host, cpu) {
        return Ok(());
    }
    kick_idle_balancer(host, cpu)?;
    for (n, level) in LEVELS.into_iter().enumerate() {
        let span = u64::from(span(host, level));
        if span < 2 || host.clock.now() < host.cpus[cpu].balance.next_ns[n] {
            continue;
        }
        // A busy CPU balances seldom: idle CPUs look more often and do most of the moving.
        let factor = if host.cpus[cpu].current.is_some() {
            BUSY_FACTOR
        } else {
            1
        };
        host.cpus[cpu].balance.next_ns[n] = host.clock.now() + span * 1_000_000 * factor;
        if should_balance(host, cpu, level) {
            pull(host, cpu, level, false, cpu)?;
        }
    }
    Ok(())
}

/// `should_we_balance`: an idle CPU of the group, or else its first one.
fn should_balance(host: &Host<'_>, cpu: CpuNr, level: Level) -> bool {
    let topology = &host.cfg.host.topology;
    if host.cpus[cpu].runnable == 0 {
        return true;
    }
    match level {
        Level::Smt => true,
        Level::Cache => topology
            .sibling_of(cpu.0)
            .is_none_or(|sibling| host.domains.tasks_of(sibling) > 0 && cpu.0 < sibling),
        Level::Host => {
            let cache = topology.llc_of(cpu.0);
            let first = cache * topology.cores_per_llc;
            host.domains.cache_load(cache).idle_cpus == 0 && cpu.0 == first
        }
    }
}

/// An overloaded CPU wakes an idle one, which has no tick to balance on.
fn kick_idle_balancer(host: &mut Host<'_>, cpu: CpuNr) -> Sim {
    if host.cpus[cpu].runnable < 2 || host.clock.now() < host.next_idle_balance {
        return Ok(());
    }
    let Some(idle) = host.domains.any_idle(cpu) else {
        return Ok(());
    };
    if host.cpus[idle].phase != Phase::Idle {
        return Ok(());
    }
    host.idle_balance_ns = host.idle_balance_ns.max(tick::tick_ns(host));
    host.next_idle_balance = host.clock.now() + host.idle_balance_ns;
    host.cpus[idle].balance.kicked = true;
    idle::kick(host, idle, cpu)
}

/// The CPU that was woken balances for itself and for the other idle ones.
pub(crate) fn nohz_idle_balance(host: &mut Host<'_>, cpu: CpuNr) -> Sim {
    host.cpus[cpu].balance.kicked = false;
    let mut next = Some(cpu);
    let mut moved = false;
    for _ in 0..MOST_AT_ONCE {
        let Some(idle) = next.filter(|_| host.domains.overloaded()) else {
            break;
        };
        let mut pulled = false;
        for level in LEVELS {
            if span(host, level) > 1 && !pulled {
                pulled = pull(host, idle, level, false, cpu)?;
            }
        }
        if !pulled {
            break;
        }
        moved = true;
        next = host.domains.any_idle(cpu);
    }
    // What waits may be pinned, or warm.
    host.idle_balance_ns = if moved {
        0
    } else {
        (host.idle_balance_ns * 2).min(MOST_IDLE_BALANCE_NS)
    };
    Ok(())
}

/// Takes tasks from the busiest CPU of a level, if it has enough more; `waker` does it.
fn pull(host: &mut Host<'_>, cpu: CpuNr, level: Level, newidle: bool, waker: CpuNr) -> Sim<bool> {
    let n = level as usize;
    let Some(source) = busiest_of(host, cpu, level) else {
        host.cpus[cpu].balance.failed[n] = 0;
        return Ok(false);
    };
    let (local, remote) = (host.cpus[cpu].runnable, host.cpus[source].runnable);
    // A difference of one only moves the imbalance.
    if remote < local + 2 {
        return Ok(false);
    }
    // `detach_tasks` stops after the first task for a newly idle CPU, which then can run it.
    let maximum = if newidle {
        1
    } else {
        ((remote - local) / 2).clamp(1, MOST_AT_ONCE)
    };
    let warm = level == Level::Smt || host.cpus[cpu].balance.failed[n] > NICE_TRIES;
    let mut pulled = false;
    for _ in 0..maximum {
        if !pull_from(host, cpu, source, warm, waker)? {
            break;
        }
        pulled = true;
    }
    let failed = &mut host.cpus[cpu].balance.failed[n];
    if pulled {
        *failed = 0;
    } else if !newidle {
        *failed = failed.saturating_add(1);
    }
    Ok(pulled)
}

/// `sched_balance_find_src_group`, `sched_balance_find_src_rq`.
fn busiest_of(host: &Host<'_>, cpu: CpuNr, level: Level) -> Option<CpuNr> {
    let own_cache = host.cfg.host.topology.llc_of(cpu.0);
    if level != Level::Host {
        return host.domains.busiest(cpu, level, own_cache);
    }
    let local = host.domains.cache_load(own_cache);
    let rest = (0..host.domains.caches()).filter(|&c| c != own_cache);
    let cache = rest.max_by_key(|&c| {
        let load = host.domains.cache_load(c);
        (load.overloaded.min(1), load.tasks, core::cmp::Reverse(c))
    })?;
    let theirs = host.domains.cache_load(cache);
    // With room here any task that waits there may come; else only a clear difference counts.
    let clear = u64::from(theirs.tasks) * 100 > u64::from(local.tasks) * IMBALANCE_PCT;
    if theirs.tasks < local.tasks + 2 || !(clear || local.idle_cpus > 0) {
        return None;
    }
    host.domains.busiest(cpu, Level::Cache, cache)
}

/// Moves one movable task that waits on `source`; one with warm caches only if `warm`.
fn pull_from(
    host: &mut Host<'_>,
    cpu: CpuNr,
    source: CpuNr,
    warm: bool,
    waker: CpuNr,
) -> Sim<bool> {
    let mut found: Option<TaskNr> = None;
    let pairs = |task| bandwidth::throttled_pair(host, task, cpu, source);
    let scripts = &host.cfg.scripts;
    let unknown = (scripts.gaps.get(cpu.index())).is_some_and(|gaps| gaps.has(host.clock.now()));
    let idle_takes = scripts.idle_takes && !unknown && host.cpus[cpu].runnable == 0;
    let (by_slot, tasks, now) = (&host.by_slot, &host.tasks, host.clock.now());
    let Some(fair) = host.class.fair() else {
        return host.broken("shared queues are balanced");
    };
    fair.for_each_waiting(host.cpus[source].rq, &mut |id| {
        let task = by_slot[id.slot()];
        let t = &tasks[task];
        let hot = t.books.was_preempted() && now - t.books.changed_ns() < MIGRATION_COST_NS;
        let movable = t.state == TaskState::Runnable && t.allowed.has(cpu) && (warm || !hot);
        let movable = movable && (!t.kept || idle_takes) && !pairs(task);
        if found.is_none() && movable {
            found = Some(task);
        }
    })?;
    let Some(task) = found else {
        return Ok(false);
    };
    move_waiting(host, task, source, cpu, waker)?;
    Ok(true)
}

/// Moves a task that waits on `source` to `cpu`; `waker` does it.
pub(crate) fn move_waiting(
    host: &mut Host<'_>,
    task: TaskNr,
    source: CpuNr,
    cpu: CpuNr,
    waker: CpuNr,
) -> Sim {
    let now = host.clock.now();
    let fair = host.tasks[task].fair;
    let actions = host.class.detach(fair, now)?;
    host.act(source, actions, waker)?;
    host.migrated(task, source, cpu, waker);
    host.tasks[task].cpu = cpu;
    host.tasks[task].moved_ns = now;
    place::one_less(host, source);
    place::one_more(host, cpu);
    poll::disturb(host, cpu, waker);
    host.make_part(task, cpu)?;
    // It counts there already.
    let is_idle = host.cpus[cpu].runnable == 1;
    let rq = host.cpus[cpu].rq;
    let actions = host.class.start(fair, rq, Start::Move, is_idle, now)?;
    host.class.compact_group(fair)?;
    host.act(cpu, actions, waker)?;
    place::need_tick(host, cpu, waker)
}
