//! Making a host from its configuration.

use std::collections::VecDeque;

use stealtime_events::Tid;
use stealtime_hypervisor::fair::{Attr, Config as FairConfig, Fair, GroupId, OtherLoad, Resched};
use stealtime_hypervisor::scx::Scx;

use super::balance::Balance;
use super::task::{NO_LIMIT, NO_POLL, NOWHERE};
use super::utilization::Search;
use super::{
    Body, Callback, Class, Clock, Cpu, CpuSet, EngineEvent, Host, HostTask, Hrtimer, Irq, Message,
    Output, Phase, Task, TaskState, hrtimer, task,
};
use crate::books::TaskBooks;
use crate::config::{Config, SchedPolicy};
use crate::engine::Streams;
use crate::fault::{Fault, Sim};
use crate::ids::{CpuNr, Table, TaskNr, VcpuNr};
use crate::machine::Checks;
use crate::sink::Sink;
use crate::workload;

/// The class of the host's tasks, without tasks.
fn class(cfg: &Config) -> Result<Class, Fault> {
    match cfg.knobs.sched.policy {
        SchedPolicy::Fair => Ok(Class::Fair(Box::new(fair(cfg)?))),
        SchedPolicy::ScxStealtime(knobs) => Ok(Class::Scx(Box::new(Scx::new(knobs.on(cfg))))),
    }
}

/// The host's fair class, without tasks.
fn fair(cfg: &Config) -> Result<Fair, Fault> {
    let sched = &cfg.knobs.sched;
    let mut config = FairConfig::linux_7_2(cfg.host.topology.cpus());
    config.features = sched.features;
    config.cfs = sched.cfs.map(|cfs| cfs.on(cfg.host.topology.cpus()));
    config.preempt = sched.preempt;
    config.tick_ns = 1_000_000_000 / u64::from(sched.hz);
    config.lag_credit = sched.lag_credit;
    config.yield_forfeits = sched.yield_forfeits;
    config.other_load = OtherLoad::Instantaneous;
    if let Some(ns) = sched.base_slice_ns {
        config.base_slice_ns = ns;
    }
    let mut fair = Fair::new(config)?;
    // The simulator checks its own sums; the scheduler's check is linear in its entities.
    fair.set_self_check(false);
    fair.set_lean();
    Ok(fair)
}
impl<'a> Host<'a> {
    /// The host at time 0, without tasks. Events go to `sink`.
    pub(crate) fn new(cfg: &Config, sink: &'a mut dyn Sink) -> Result<Self, Fault> {
        let cpus = cfg.host.topology.cpus();
        let mut host = Self {
            clock: Clock::new(),
            out: Output::new(cpus, sink),
            costs: cfg.host.profile.costs,
            cfg: cfg.clone(),
            streams: Streams::new(cfg.run.seed),
            cpus: Table::default(),
            domains: super::domain::Domains::new(cfg.host.topology, &cfg.knobs.host.isolcpus),
            search: Search::of_host(cfg),
            timer_views: Vec::new(),
            nearest: Vec::new(),
            next_idle_balance: 0,
            idle_balance_ns: 0,
            class: class(cfg)?,
            tasks: Table::default(),
            bandwidths: Vec::new(),
            workers: Vec::new(),
            by_slot: Vec::new(),
            timers: Table::default(),
            xen: crate::xen::Xen::new(cfg)?,
            checks: Checks::new(cfg!(debug_assertions)),
            injection: None,
        };
        add_cpus(&mut host, cpus)?;
        hrtimer::begin_views(&mut host);
        start_remote_ticks(&mut host);
        Ok(host)
    }

    /// The thread id of the task that is added next.
    pub(crate) fn next_tid(&self) -> Tid {
        Tid(1000 + self.tasks.len() as i32)
    }

    pub(crate) fn least_loaded(&self, task: TaskNr) -> CpuNr {
        let allowed = &self.tasks[task].allowed;
        let cpus = self
            .cpus
            .numbers()
            .filter(|&cpu| allowed.has(cpu) && !self.cpus[cpu].isolated);
        let least = cpus.min_by_key(|&cpu| self.cpus[cpu].runnable);
        least.unwrap_or_else(|| allowed.first())
    }
}

fn add_cpus(host: &mut Host<'_>, cpus: u32) -> Sim {
    for n in 0..cpus {
        let cache = host.cfg.host.topology.llc_of(n);
        let rq = host.class.create_rq(host.cfg.knobs.sched.pick, cache)?;
        let cpu = CpuNr(n);
        let timer = host.clock.slot(EngineEvent::Phase(cpu));
        let clock_event = host.clock.slot(EngineEvent::ClockEvent(cpu));
        let tick = host.timers.add(Hrtimer::new(Callback::Tick));
        let hrtick = host.timers.add(Hrtimer::new(Callback::Hrtick));
        let looks = host.cfg.scripts.looks;
        let knobs = &host.cfg.knobs.host;
        let full = knobs.nohz_full.contains(&n);
        host.cpus.add(Cpu {
            rq,
            tid: Tid::IDLE,
            phase: Phase::Idle,
            timer,
            debt_ns: 0,
            pending: Irq::default(),
            irqs_off: false,
            l1d_unsafe: false,
            stalled_until: 0,
            preempt_off: false,
            resched: Resched::None,
            current: None,
            warm: None,
            idle: super::idle::IdleCpu::default(),
            hrtimers: VecDeque::new(),
            clock_event,
            tick,
            hrtick,
            devices: Vec::new(),
            runnable: 0,
            icr_idle_at: 0,
            slow: false,
            charged_ns: 0,
            balance: Balance::new(looks),
            housekeeping: !full,
            isolated: knobs.isolcpus.contains(&n),
        });
    }
    Ok(())
}

fn start_remote_ticks(host: &mut Host<'_>) {
    for cpu in host
        .cpus
        .numbers()
        .filter(|&cpu| !host.cpus[cpu].housekeeping)
        .collect::<Vec<_>>()
    {
        let time = super::tick::REMOTE_TICK_NS + u64::from(cpu.0);
        host.clock.post(time, Message::RemoteTick { cpu });
    }
}

/// Where an unpinned task may run: not on CPUs of `isolcpus`.
pub(crate) fn unpinned(host: &Host<'_>) -> CpuSet {
    let isolated = &host.cfg.knobs.host.isolcpus;
    let rest = (0..host.cpus.len() as u32).filter(|cpu| !isolated.contains(cpu));
    let rest: Vec<u32> = rest.collect();
    if isolated.is_empty() || rest.is_empty() {
        return CpuSet::ALL;
    }
    CpuSet::of(&rest)
}

/// A task of the host; its body is a vCPU that does not exist until it gets another.
pub(crate) fn add_task(
    host: &mut Host<'_>,
    name: &str,
    group: Option<GroupId>,
    nice: i8,
    allowed: CpuSet,
    process: Option<Tid>,
) -> Sim<TaskNr> {
    let attr = Attr {
        nice,
        ..Attr::default()
    };
    add_task_with(host, name, group, attr, allowed, process)
}

/// Adds a task with these attributes.
pub(crate) fn add_task_with(
    host: &mut Host<'_>,
    name: &str,
    group: Option<GroupId>,
    attr: Attr,
    allowed: CpuSet,
    process: Option<Tid>,
) -> Sim<TaskNr> {
    let fair = host.class.create_task(attr, group)?;
    let tid = host.next_tid();
    let name = host.out.name_task(name, process.unwrap_or(tid));
    let cpu = allowed.first();
    let task = host.tasks.add(Task {
        tid,
        name,
        fair,
        allowed,
        cpu,
        state: TaskState::Blocked,
        moved_ns: 0,
        limit: NO_LIMIT,
        left_ns: 0,
        body: Body::Vcpu(VcpuNr(u32::MAX)),
        kept: false,
        goes_to: NOWHERE,
        prio: 120 + i16::from(attr.nice),
        books: TaskBooks::default(),
        poll_phase_ns: NO_POLL,
        polls: 0,
    });
    if host.by_slot.len() <= fair.slot() {
        host.by_slot.resize(fair.slot() + 1, task);
    }
    host.by_slot[fair.slot()] = task;
    Ok(task)
}

/// Emits the names and processes of all tasks.
pub(crate) fn introduce(host: &mut Host<'_>) {
    let processes = host.out.begin(host.cpus.len() as u32);
    if !host.out.tracing() {
        return;
    }
    for (task, process) in host.tasks.numbers().zip(processes) {
        let t = &host.tasks[task];
        let kind = stealtime_events::Kind::Task {
            tid: t.tid,
            process,
            name: t.name,
        };
        host.emit(CpuNr(0), kind);
    }
}

/// The host's other tasks.
pub(crate) fn add_tasks(host: &mut Host<'_>) -> Sim {
    let tasks = host.cfg.host.tasks.clone();
    for config in &tasks {
        let meter = host.out.add_meter(&config.name);
        for k in 0..config.count {
            let random = host.streams.named(&format!("task/{}/{k}", config.name));
            let program = workload::host_program(&config.workload, random, k)?;
            let allowed = if config.cpus.is_empty() {
                unpinned(host)
            } else {
                CpuSet::of(&config.cpus)
            };
            let task = add_task(host, &config.name, None, config.nice, allowed, None)?;
            let sleep = task::sleep_timer(host, task);
            host.tasks[task].body = Body::Host(Box::new(HostTask {
                program,
                sleep,
                reply: 0,
                meter,
            }));
        }
    }
    Ok(())
}
