//! CFS bandwidth (`cpu.max`): a VM's quota is handed out to CPUs in slices; where it is used up,
//! tasks stop on their way to user mode or into the guest until the period timer brings more.

use core::cmp::Reverse;

use stealtime_hypervisor::eevdf::{Block, GroupId, Resched};

use super::{Callback, Hrtimer, Machine, Message, TaskState};
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

impl Machine<'_> {
    /// A group gets a limit; the number stands for it.
    pub(crate) fn limit(&mut self, group: GroupId, quota_ns: u64, period_ns: u64) -> u32 {
        let number = self.bandwidths.len() as u32;
        let timer = self.timers.add(Hrtimer::new(Callback::Period(number)));
        self.bandwidths.push(Bandwidth {
            group,
            quota_ns: i64::try_from(quota_ns).unwrap_or(i64::MAX / 4),
            period_ns,
            pool_ns: 0,
            timer,
            active: false,
            idle: false,
            local: vec![Local::default(); self.cpus.len()],
            throttled: Vec::new(),
            slack_armed: false,
            throttles: 0,
        });
        number
    }

    #[inline]
    fn limit_of(&self, cpu: CpuNr) -> Option<usize> {
        if self.bandwidths.is_empty() {
            return None;
        }
        let task = self.cpus[cpu].current?;
        self.tasks[task].bandwidth().map(|b| b as usize)
    }

    /// A task under a limit begins to run (`check_enqueue_throttle`).
    pub(crate) fn begin_charging(&mut self, cpu: CpuNr) {
        self.cpus[cpu].charged_ns = self.now;
        if self.limit_of(cpu).is_some() {
            self.charge_bandwidth(cpu);
        }
    }

    /// `account_cfs_rq_runtime`: the running task's time is taken off its CPU's part, which is
    /// filled up from the pool when it is used up.
    #[inline]
    pub(crate) fn charge_bandwidth(&mut self, cpu: CpuNr) {
        if let Some(n) = self.limit_of(cpu) {
            self.charge_limit(cpu, n);
        }
    }

    fn charge_limit(&mut self, cpu: CpuNr, n: usize) {
        let spent = self.now - core::mem::replace(&mut self.cpus[cpu].charged_ns, self.now);
        let local = &mut self.bandwidths[n].local[cpu.index()];
        local.left_ns -= spent as i64;
        if local.left_ns > 0 || local.throttled {
            return;
        }
        self.start_period(n, cpu);
        let b = &mut self.bandwidths[n];
        let local = &mut b.local[cpu.index()];
        let amount = (SLICE_NS - local.left_ns).min(b.pool_ns).max(0);
        b.pool_ns -= amount;
        b.idle = false;
        local.left_ns += amount;
        if local.left_ns <= 0 {
            local.throttled = true;
            b.throttled.push(cpu);
            b.throttles += 1;
            let c = &mut self.cpus[cpu];
            c.resched = c.resched.max(Resched::Now);
        }
    }

    fn start_period(&mut self, n: usize, cpu: CpuNr) {
        let b = &mut self.bandwidths[n];
        if b.active {
            return;
        }
        b.active = true;
        b.pool_ns = b.quota_ns;
        let (timer, at) = (b.timer, self.now + b.period_ns);
        self.start_pinned(timer, cpu, at);
    }

    /// On the way to user mode or into the guest (`throttle_cfs_rq_work`): stops here if the
    /// runtime is used up. Whether the CPU has gone on to something else.
    #[inline]
    pub(crate) fn throttle(&mut self, cpu: CpuNr) -> Sim<bool> {
        match (self.limit_of(cpu), self.cpus[cpu].current) {
            (Some(n), Some(task)) => self.throttle_limited(cpu, n, task),
            _ => Ok(false),
        }
    }

    fn throttle_limited(&mut self, cpu: CpuNr, n: usize, task: TaskNr) -> Sim<bool> {
        self.charge_limit(cpu, n);
        let local = &mut self.bandwidths[n].local[cpu.index()];
        if !local.throttled {
            return Ok(false);
        }
        local.waiting.push(task);
        self.fair
            .block(self.cpus[cpu].rq, Block::Throttle, self.now)?;
        self.tasks[task].state = TaskState::Throttled;
        self.one_less(cpu);
        self.schedule(cpu)?;
        Ok(true)
    }

    /// A limited task sleeps: what its CPU does not need goes back (`return_cfs_rq_runtime`).
    pub(crate) fn return_runtime(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        let Some(n) = self.tasks[task].bandwidth().map(|b| b as usize) else {
            return Ok(());
        };
        let queue = self
            .fair
            .queue(self.cpus[cpu].rq, Some(self.bandwidths[n].group))?;
        let b = &mut self.bandwidths[n];
        let local = &mut b.local[cpu.index()];
        let slack = local.left_ns - KEPT_NS;
        if queue.h_nr_queued > 0 || slack <= 0 {
            return Ok(());
        }
        local.left_ns -= slack;
        b.pool_ns += slack;
        if b.pool_ns > SLICE_NS && !b.throttled.is_empty() && !b.slack_armed {
            b.slack_armed = true;
            let at = self.now + SLACK_NS;
            self.post(at, Message::Slack { limit: n as u32 });
        }
        Ok(())
    }

    /// `sched_cfs_slack_timer`: what came back goes to those who wait.
    pub(crate) fn hand_out_slack(&mut self, limit: u32) -> Sim {
        let n = limit as usize;
        self.bandwidths[n].slack_armed = false;
        let by = self.bandwidths[n].throttled.first().copied();
        match by {
            Some(by) if self.bandwidths[n].pool_ns > 0 => self.distribute(n, by),
            _ => Ok(()),
        }
    }

    /// `sched_cfs_period_timer`.
    pub(crate) fn period_over(&mut self, cpu: CpuNr, limit: u32, due: u64) -> Sim {
        let n = limit as usize;
        let b = &mut self.bandwidths[n];
        if b.idle && b.throttled.is_empty() {
            b.active = false;
            return Ok(());
        }
        b.pool_ns = b.quota_ns;
        b.idle = true;
        let next = (due + b.period_ns).max(self.now + 1);
        let timer = b.timer;
        self.distribute(n, cpu)?;
        self.start_pinned(timer, cpu, next);
        Ok(())
    }

    /// `distribute_cfs_runtime`: each CPU that waits gets enough to be in credit.
    fn distribute(&mut self, n: usize, by: CpuNr) -> Sim {
        let waiting = core::mem::take(&mut self.bandwidths[n].throttled);
        for (at, &cpu) in waiting.iter().enumerate() {
            if self.limit_of(cpu) == Some(n) {
                // One that stays in the kernel runs on although its CPU is throttled.
                self.charge_limit(cpu, n);
            }
            let b = &mut self.bandwidths[n];
            let local = &mut b.local[cpu.index()];
            let amount = (1 - local.left_ns).min(b.pool_ns);
            b.pool_ns -= amount;
            local.left_ns += amount;
            b.idle = false;
            if local.left_ns <= 0 {
                b.throttled.extend_from_slice(&waiting[at..]);
                return Ok(());
            }
            self.unthrottle(n, cpu, by)?;
        }
        Ok(())
    }

    /// `unthrottle_cfs_rq`: tasks that stopped here are queued again, and preempt nothing; only an
    /// idle CPU is asked to reschedule.
    fn unthrottle(&mut self, n: usize, cpu: CpuNr, by: CpuNr) -> Sim {
        let local = &mut self.bandwidths[n].local[cpu.index()];
        local.throttled = false;
        let now = self.now;
        // `list_add` to the list of their queue: the last that stopped is the first. And
        // `tg_unthrottle_up` meets groups before those above them, the youngest first.
        let mut order = Vec::with_capacity(local.waiting.len());
        for task in core::mem::take(&mut local.waiting).into_iter().rev() {
            let group = self.fair.view(self.tasks[task].fair)?.group;
            order.push((Reverse(group.map(GroupId::slot)), task));
        }
        order.sort_by_key(|&(group, _)| group);
        let mut actions = None;
        for (_, task) in order {
            actions = Some(self.fair.unthrottle(self.tasks[task].fair, now)?);
            let t = &mut self.tasks[task];
            t.state = TaskState::Runnable;
            t.moved_ns = now;
            self.one_more(cpu);
            self.disturb_poll(cpu, by)?;
            self.need_tick(cpu, by)?;
        }
        match actions {
            Some(actions) => self.act(cpu, actions, by),
            None => Ok(()),
        }
    }

    /// Whether a task may not be moved between these CPUs (`throttled_lb_pair`).
    pub(crate) fn throttled_pair(&self, task: TaskNr, a: CpuNr, b: CpuNr) -> bool {
        self.tasks[task].bandwidth().is_some_and(|n| {
            let local = &self.bandwidths[n as usize].local;
            local[a.index()].throttled || local[b.index()].throttled
        })
    }

    /// What is wrong with the limits, if anything: who waits is waited for by a timer.
    pub(crate) fn limits_broken(&self) -> Option<String> {
        for (n, b) in self.bandwidths.iter().enumerate() {
            let armed = self.timers[b.timer].queued().is_some();
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
            let given: i64 = b.local.iter().map(|local| local.left_ns.max(0)).sum();
            if b.pool_ns < 0 || given > b.local.len() as i64 * SLICE_NS {
                return Some(format!("limit {n}: {given} ns given, {} left", b.pool_ns));
            }
        }
        None
    }
}
