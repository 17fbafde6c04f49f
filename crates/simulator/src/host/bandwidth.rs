//! CFS bandwidth (`cpu.max`): a VM's quota is handed out to CPUs in slices. Where it is used up,
//! tasks stop on their way to user mode or into the guest. The period timer refills it.

use core::cmp::Reverse;

use stealtime_hypervisor::fair::{Block, GroupId, Resched};

use super::{Callback, Host, Hrtimer, Message, TaskState, hrtimer, place, poll};
use crate::fault::Sim;
use crate::ids::{CpuNr, Number, TaskNr, TimerNr};

/// `sysctl_sched_cfs_bandwidth_slice`, in ns.
const SLICE_NS: i64 = 5_000_000;
/// `min_cfs_rq_runtime`: what a CPU that has nothing to run keeps, in ns.
const KEPT_NS: i64 = 1_000_000;
/// `cfs_bandwidth_slack_period`, in ns.
const SLACK_NS: u64 = 5_000_000;

/// The limit of a group, and what of it is left.
#[derive(Clone, Debug)]
pub(crate) struct Bandwidth {
    group: GroupId,
    quota_ns: i64,
    period_ns: u64,
    /// What no CPU has taken yet in this period.
    pool_ns: i64,
    timer: TimerNr,
    /// The period timer runs.
    active: bool,
    /// Nothing was taken in this period.
    idle: bool,
    local: Vec<Local>,
    /// CPUs that wait for runtime, the longest first.
    throttled: Vec<CpuNr>,
    slack_armed: bool,
    /// Times that a CPU ran out.
    pub(crate) throttles: u64,
}

/// A CPU's part.
#[derive(Clone, Debug, Default)]
struct Local {
    left_ns: i64,
    throttled: bool,
    /// Tasks that stopped here, in that order.
    waiting: Vec<TaskNr>,
}

/// A group gets a limit; the number stands for it.
pub(crate) fn limit(host: &mut Host<'_>, group: GroupId, quota_ns: u64, period_ns: u64) -> u32 {
    let number = host.bandwidths.len() as u32;
    let timer = host.timers.add(Hrtimer::new(Callback::Period(number)));
    host.bandwidths.push(Bandwidth {
        group,
        quota_ns: i64::try_from(quota_ns).unwrap_or(i64::MAX / 4),
        period_ns,
        pool_ns: 0,
        timer,
        active: false,
        idle: false,
        local: vec![Local::default(); host.cpus.len()],
        throttled: Vec::new(),
        slack_armed: false,
        throttles: 0,
    });
    number
}

#[inline]
fn limit_of(host: &Host<'_>, cpu: CpuNr) -> Option<usize> {
    if host.bandwidths.is_empty() {
        return None;
    }
    let task = host.cpus[cpu].current?;
    host.tasks[task].bandwidth().map(|b| b as usize)
}

/// A task under a limit begins to run (`check_enqueue_throttle`).
pub(crate) fn begin_charging(host: &mut Host<'_>, cpu: CpuNr) {
    host.cpus[cpu].charged_ns = host.clock.now();
    if limit_of(host, cpu).is_some() {
        charge_current(host, cpu);
    }
}

/// `account_cfs_rq_runtime`: the running task's time is taken off its CPU's part, which is
/// filled up from the pool when it is used up.
#[inline]
pub(crate) fn charge_current(host: &mut Host<'_>, cpu: CpuNr) {
    if let Some(n) = limit_of(host, cpu) {
        charge_limit(host, cpu, n);
    }
}

fn charge_limit(host: &mut Host<'_>, cpu: CpuNr, n: usize) {
    let spent =
        host.clock.now() - core::mem::replace(&mut host.cpus[cpu].charged_ns, host.clock.now());
    let local = &mut host.bandwidths[n].local[cpu.index()];
    local.left_ns -= spent as i64;
    if local.left_ns > 0 || local.throttled {
        return;
    }
    start_period(host, n, cpu);
    let b = &mut host.bandwidths[n];
    let local = &mut b.local[cpu.index()];
    let amount = (SLICE_NS - local.left_ns).min(b.pool_ns).max(0);
    b.pool_ns -= amount;
    b.idle = false;
    local.left_ns += amount;
    if local.left_ns <= 0 {
        local.throttled = true;
        b.throttled.push(cpu);
        b.throttles += 1;
        let c = &mut host.cpus[cpu];
        c.resched = c.resched.max(Resched::Now);
    }
}

fn start_period(host: &mut Host<'_>, n: usize, cpu: CpuNr) {
    let b = &mut host.bandwidths[n];
    if b.active {
        return;
    }
    b.active = true;
    b.pool_ns = b.quota_ns;
    let (timer, time) = (b.timer, host.clock.now() + b.period_ns);
    hrtimer::start_pinned(host, timer, cpu, time);
}

/// The configuration's check refuses limits without the fair class.
const NO_LIMITS: &str = "a limit without the fair class";

/// On the way to user mode or into the guest (`throttle_cfs_rq_work`): stops here if the
/// runtime is used up. Whether it does: the caller picks another task.
#[inline]
pub(crate) fn throttle(host: &mut Host<'_>, cpu: CpuNr) -> Sim<bool> {
    match (limit_of(host, cpu), host.cpus[cpu].current) {
        (Some(n), Some(task)) => throttle_limited(host, cpu, n, task),
        _ => Ok(false),
    }
}

fn throttle_limited(host: &mut Host<'_>, cpu: CpuNr, n: usize, task: TaskNr) -> Sim<bool> {
    charge_limit(host, cpu, n);
    let local = &mut host.bandwidths[n].local[cpu.index()];
    if !local.throttled {
        return Ok(false);
    }
    local.waiting.push(task);
    host.class
        .block(host.cpus[cpu].rq, Block::Throttle, host.clock.now())?;
    host.tasks[task].state = TaskState::Throttled;
    place::one_less(host, cpu);
    Ok(true)
}

/// A limited task sleeps: what its CPU does not need goes back (`return_cfs_rq_runtime`).
pub(crate) fn return_runtime(host: &mut Host<'_>, cpu: CpuNr, task: TaskNr) -> Sim {
    let Some(n) = host.tasks[task].bandwidth().map(|b| b as usize) else {
        return Ok(());
    };
    let Some(fair) = host.class.fair() else {
        return host.broken(NO_LIMITS);
    };
    let queue = fair.queue(host.cpus[cpu].rq, Some(host.bandwidths[n].group))?;
    let b = &mut host.bandwidths[n];
    let local = &mut b.local[cpu.index()];
    let slack = local.left_ns - KEPT_NS;
    if queue.h_nr_queued > 0 || slack <= 0 {
        return Ok(());
    }
    local.left_ns -= slack;
    b.pool_ns += slack;
    if b.pool_ns > SLICE_NS && !b.throttled.is_empty() && !b.slack_armed {
        b.slack_armed = true;
        let time = host.clock.now() + SLACK_NS;
        host.clock.post(time, Message::Slack { limit: n as u32 });
    }
    Ok(())
}

/// `sched_cfs_slack_timer`: what came back goes to throttled CPUs.
pub(crate) fn distribute_slack(host: &mut Host<'_>, limit: u32) -> Sim {
    let n = limit as usize;
    host.bandwidths[n].slack_armed = false;
    let first = host.bandwidths[n].throttled.first().copied();
    match first {
        Some(first) if host.bandwidths[n].pool_ns > 0 => distribute(host, n, first),
        _ => Ok(()),
    }
}

/// `sched_cfs_period_timer`.
pub(crate) fn period_over(host: &mut Host<'_>, cpu: CpuNr, limit: u32, due: u64) -> Sim {
    let n = limit as usize;
    let b = &mut host.bandwidths[n];
    if b.idle && b.throttled.is_empty() {
        b.active = false;
        return Ok(());
    }
    b.pool_ns = b.quota_ns;
    b.idle = true;
    let next = (due + b.period_ns).max(host.clock.now() + 1);
    let timer = b.timer;
    distribute(host, n, cpu)?;
    hrtimer::start_pinned(host, timer, cpu, next);
    Ok(())
}

/// `distribute_cfs_runtime`: each CPU that waits gets enough to be in credit.
fn distribute(host: &mut Host<'_>, n: usize, waker: CpuNr) -> Sim {
    let waiting = core::mem::take(&mut host.bandwidths[n].throttled);
    for (position, &cpu) in waiting.iter().enumerate() {
        if limit_of(host, cpu) == Some(n) {
            // One that stays in the kernel runs on although its CPU is throttled.
            charge_limit(host, cpu, n);
        }
        let b = &mut host.bandwidths[n];
        let local = &mut b.local[cpu.index()];
        let amount = (1 - local.left_ns).min(b.pool_ns);
        b.pool_ns -= amount;
        local.left_ns += amount;
        b.idle = false;
        if local.left_ns <= 0 {
            b.throttled.extend_from_slice(&waiting[position..]);
            return Ok(());
        }
        unthrottle(host, n, cpu, waker)?;
    }
    Ok(())
}

/// `unthrottle_cfs_rq`: tasks that stopped here are queued again, and preempt nothing; only an
/// idle CPU is asked to reschedule.
fn unthrottle(host: &mut Host<'_>, n: usize, cpu: CpuNr, waker: CpuNr) -> Sim {
    let local = &mut host.bandwidths[n].local[cpu.index()];
    local.throttled = false;
    let now = host.clock.now();
    // `list_add` to the list of their queue: the last that stopped is the first. And
    // `tg_unthrottle_up` meets groups before those above them, the youngest first.
    let mut order = Vec::with_capacity(local.waiting.len());
    for task in core::mem::take(&mut local.waiting).into_iter().rev() {
        let Some(fair) = host.class.fair() else {
            return host.broken(NO_LIMITS);
        };
        let group = fair.view(host.tasks[task].fair)?.group;
        order.push((Reverse(group.map(GroupId::slot)), task));
    }
    order.sort_by_key(|&(group, _)| group);
    let mut actions = None;
    for (_, task) in order {
        let Some(fair) = host.class.fair_mut() else {
            return host.broken(NO_LIMITS);
        };
        actions = Some(fair.unthrottle(host.tasks[task].fair, now)?);
        let t = &mut host.tasks[task];
        t.state = TaskState::Runnable;
        t.moved_ns = now;
        place::one_more(host, cpu);
        poll::disturb(host, cpu, waker);
        place::need_tick(host, cpu, waker)?;
    }
    match actions {
        Some(actions) => host.act(cpu, actions, waker),
        None => Ok(()),
    }
}

/// Whether a task may not be moved between these CPUs (`throttled_lb_pair`).
pub(crate) fn throttled_pair(host: &Host<'_>, task: TaskNr, a: CpuNr, b: CpuNr) -> bool {
    host.tasks[task].bandwidth().is_some_and(|n| {
        let local = &host.bandwidths[n as usize].local;
        local[a.index()].throttled || local[b.index()].throttled
    })
}

/// What is wrong with the limits, if anything: throttled CPUs without a timer that will refill.
pub(crate) fn violation(host: &Host<'_>) -> Option<String> {
    for (n, b) in host.bandwidths.iter().enumerate() {
        let armed = host.timers[b.timer].queued().is_some();
        if b.active != armed || (!b.throttled.is_empty() && !armed) {
            return Some(format!(
                "the period timer of limit {n}, active: {}",
                b.active
            ));
        }
        for (cpu, local) in b.local.iter().enumerate() {
            let listed = b.throttled.contains(&CpuNr::from_index(cpu));
            if listed != local.throttled || (!local.waiting.is_empty() && !listed) {
                return Some(format!("limit {n} on CPU {cpu}: {local:?}"));
            }
        }
        let assigned: i64 = b.local.iter().map(|local| local.left_ns.max(0)).sum();
        if b.pool_ns < 0 || assigned > b.local.len() as i64 * SLICE_NS {
            return Some(format!(
                "limit {n}: {assigned} ns given, {} left",
                b.pool_ns
            ));
        }
    }
    None
}
