//! The host: CPUs, scheduler, timers, interrupts.
//!
//! Each CPU does one thing at a time ([`Phase`]), and one timer of the engine says when that is
//! over. What happens then happens at that instant; what it costs beyond the phase is owed
//! (`debt_ns`) and paid before the CPU goes on. An interrupt that may be taken stops what a task
//! does; how much was left is kept with the task.
//!
//! The host knows neither guests nor scripts: [`Machine`](crate::machine::Machine) calls both, and
//! applies what a CPU does next ([`Flow`]).

#[cfg(test)]
mod access_tests;
pub(crate) mod balance;
pub(crate) mod bandwidth;
pub(crate) mod build;
pub(crate) mod class;
mod clock;
mod cpu;
mod domain;
mod governor;
pub(crate) mod hrtimer;
pub(crate) mod idle;
pub(crate) mod injected;
pub(crate) mod irq;
mod looks;
mod message;
mod output;
pub(crate) mod place;
pub(crate) mod poll;
mod sched;
pub(crate) mod task;
pub(crate) mod tick;
mod utilization;
pub(crate) mod worker;

use stealtime_events::Kind;
use stealtime_hypervisor::fair::{GroupId, Resched};

pub(crate) use class::Class;
pub(crate) use clock::{Clock, EngineEvent, MOST_AT_ONCE, MessageNr};
pub(crate) use cpu::{Cpu, Flow, Phase, Resume};
pub(crate) use hrtimer::{Callback, Hrtimer};
pub(crate) use irq::Irq;
pub(crate) use message::{DeviceIrq, Message};
pub(crate) use output::Output;
pub(crate) use task::{Body, CpuSet, HostTask, Task, TaskState};
pub(crate) use worker::{MAIN_LOOP_PERIOD_NS, MAIN_LOOP_WORK_NS, Worker, Workers};

use crate::config::{Config, Costs, VmConfig};
use crate::engine::Streams;
use crate::fault::{Fault, Sim};
use crate::ids::{CpuNr, Number, Table, TaskNr, TimerNr, VmNr};
use crate::inject::InjectionState;
use crate::machine::Checks;
use crate::scale::{mul_div, mul_div_ceil};
use crate::script::ScriptTask;
use crate::stats::{Mechanisms, Stats};
use crate::xen::Xen;

/// A host, at some instant.
pub(crate) struct Host<'a> {
    clock: Clock,
    out: Output<'a>,
    cfg: Config,
    costs: Costs,
    streams: Streams,
    cpus: Table<CpuNr, Cpu>,
    domains: domain::Domains,
    /// How far wakeups search, where that follows utilization.
    search: Option<utilization::Search>,
    /// What the placement of timers looks at; empty without isolated CPUs.
    timer_views: Vec<stealtime_hypervisor::lapic_timer::CpuTimers>,
    /// All other CPUs, the nearest first, of CPUs that have asked.
    nearest: Vec<Vec<usize>>,
    /// When an idle CPU may be woken next to balance for all of them, in ns.
    next_idle_balance: u64,
    /// How long that is put off, in ns: longer while nothing can be moved.
    idle_balance_ns: u64,
    class: Class,
    tasks: Table<TaskNr, Task>,
    /// Limits of groups (`cpu.max`).
    bandwidths: Vec<bandwidth::Bandwidth>,
    /// By VM.
    workers: Vec<Workers>,
    /// Tasks by the slot of their scheduler id.
    by_slot: Vec<TaskNr>,
    timers: Table<TimerNr, Hrtimer>,
    xen: Option<Box<Xen>>,
    checks: Checks,
    injection: Option<Box<InjectionState>>,
}

impl Host<'_> {
    /// A fault without a time gets the present one.
    pub(crate) fn dated(&self, fault: Fault) -> Fault {
        match fault {
            Fault::Broken {
                at_ns: 0,
                what: message,
            } => Fault::Broken {
                at_ns: self.clock.now(),
                what: message,
            },
            other => other,
        }
    }

    /// Ends the run if a check found something.
    pub(crate) fn report_failed(&mut self) -> Sim {
        match self.checks.take_failed() {
            Some(message) => self.broken(message),
            None => Ok(()),
        }
    }

    /// The script of a task.
    pub(crate) fn script(&mut self, task: TaskNr) -> Sim<&mut ScriptTask> {
        match &mut self.tasks[task].body {
            Body::Script(script) => Ok(script),
            _ => Err(Box::new(Fault::Broken {
                at_ns: 0,
                what: "a task without a script runs one".to_owned(),
            })),
        }
    }

    #[cold]
    pub(crate) fn broken<T>(&self, message: impl Into<String>) -> Sim<T> {
        Err(Box::new(Fault::Broken {
            at_ns: self.clock.now(),
            what: message.into(),
        }))
    }

    /// Gives out an event that happens now on `cpu`, in the context of its task.
    #[inline(always)]
    pub(crate) fn emit(&mut self, cpu: CpuNr, kind: Kind) {
        self.out.emit(self.clock.now(), cpu, &self.cpus[cpu], kind);
    }

    /// The warm-up is over: the books of CPUs and tasks, and all counts, start anew.
    pub(crate) fn begin_measuring(&mut self) {
        self.settle_books();
        let now = self.clock.now();
        self.out.books.begin_measuring(now);
        self.tasks.iter_mut().for_each(|task| task.books.clear(now));
        self.out.stats.clear();
    }

    /// Brings the books of CPUs and tasks up to now.
    pub(crate) fn settle_books(&mut self) {
        let now = self.clock.now();
        self.out.books.settle(now);
        self.tasks
            .iter_mut()
            .for_each(|task| task.books.settle(now));
    }
}

/// Time, configuration and counts, which all parts use.
impl<'a> Host<'a> {
    /// The time of the run, in ns.
    #[inline(always)]
    pub(crate) const fn now(&self) -> u64 {
        self.clock.now()
    }

    #[inline(always)]
    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    #[inline(always)]
    pub(crate) const fn clock_mut(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// Lets a message arrive at a time of the run.
    #[inline]
    pub(crate) fn post(&mut self, at_ns: u64, message: Message) {
        self.clock.post(at_ns, message);
    }

    #[inline(always)]
    pub(crate) const fn cfg(&self) -> &Config {
        &self.cfg
    }

    #[inline(always)]
    pub(crate) const fn costs(&self) -> &Costs {
        &self.costs
    }

    pub(crate) const fn streams(&self) -> Streams {
        self.streams
    }

    /// The configured VMs, which are built once.
    pub(crate) fn take_vms(&mut self) -> Vec<VmConfig> {
        core::mem::take(&mut self.cfg.vms)
    }

    #[inline(always)]
    pub(crate) const fn out(&self) -> &Output<'a> {
        &self.out
    }

    #[inline(always)]
    pub(crate) const fn out_mut(&mut self) -> &mut Output<'a> {
        &mut self.out
    }

    /// Counts of the run. Each part adds to those of its own subject.
    #[inline(always)]
    pub(crate) const fn stats_mut(&mut self) -> &mut Stats {
        self.out.stats_mut()
    }

    /// The checks, which [`Machine`](crate::machine::Machine) makes.
    #[inline(always)]
    pub(crate) const fn checks_mut(&mut self) -> &mut Checks {
        &mut self.checks
    }

    /// A check found something.
    pub(crate) fn fail_check(&mut self, check: &'static str, message: impl FnOnce() -> String) {
        self.checks.fail(check, message);
    }

    #[inline(always)]
    pub(crate) const fn is_xen(&self) -> bool {
        self.xen.is_some()
    }

    #[inline]
    pub(crate) fn xen(&self) -> Option<&Xen> {
        self.xen.as_deref()
    }

    #[inline]
    pub(crate) fn xen_mut(&mut self) -> Option<&mut Xen> {
        self.xen.as_deref_mut()
    }

    /// What a batch of Xen changes and counts.
    #[inline]
    pub(crate) fn xen_and_mechanisms(&mut self) -> Option<(&mut Xen, &Mechanisms)> {
        Some((self.xen.as_deref_mut()?, self.out.mechanisms()))
    }
}

/// What the parts above read and change of CPUs and tasks.
impl Host<'_> {
    #[inline]
    pub(crate) const fn class(&self) -> &Class {
        &self.class
    }

    /// A cgroup under `parent`; without one under the root.
    pub(crate) fn create_group(&mut self, parent: Option<GroupId>) -> Sim<GroupId> {
        Ok(self.class.create_group(parent)?)
    }

    /// Sets the shares of a group, at the begin of a run.
    pub(crate) fn set_shares(&mut self, group: GroupId, shares: u64) -> Sim {
        Ok(self.class.set_shares(group, shares)?)
    }

    #[inline]
    pub(crate) const fn timers(&self) -> &Table<TimerNr, Hrtimer> {
        &self.timers
    }

    /// An hrtimer, not armed.
    pub(crate) fn add_timer(&mut self, callback: Callback) -> TimerNr {
        self.timers.add(Hrtimer::new(callback))
    }

    /// The threads of a VM's process that are no vCPUs.
    pub(crate) fn workers(&self, vm: VmNr) -> Option<&Workers> {
        self.workers.get(vm.index())
    }

    #[inline(always)]
    pub(crate) const fn cpus(&self) -> &Table<CpuNr, Cpu> {
        &self.cpus
    }

    #[inline(always)]
    pub(crate) const fn tasks(&self) -> &Table<TaskNr, Task> {
        &self.tasks
    }

    /// Makes room for so many more tasks and timers.
    pub(crate) fn reserve(&mut self, tasks: usize, timers: usize) {
        self.tasks.reserve(tasks);
        self.by_slot.reserve_exact(tasks);
        self.timers.reserve(timers);
    }

    pub(crate) fn set_bandwidth(&mut self, task: TaskNr, limit: Option<u32>) {
        self.tasks[task].set_bandwidth(limit);
    }

    /// The scheduler does not move the task: its moves are part of what it does.
    pub(crate) fn keep(&mut self, task: TaskNr) {
        // A shared queue has no recorded places.
        self.tasks[task].kept = self.class.scx().is_none();
    }

    /// `cpu` takes no interrupts for `ns`.
    pub(crate) fn stall(&mut self, cpu: CpuNr, ns: u64) {
        self.cpus[cpu].stalled_until = self.clock.now() + ns;
    }

    /// The clock event device of `cpu` fires later.
    pub(crate) fn delay_clock_event(&mut self, cpu: CpuNr, until_ns: u64) {
        let slot = self.cpus[cpu].clock_event;
        self.clock.arm(slot, until_ns);
    }

    /// When a stall of `cpu` ends, if it has one.
    pub(crate) fn stalled(&self, cpu: CpuNr) -> Option<u64> {
        let end_ns = self.cpus[cpu].stalled_until;
        (end_ns > self.clock.now()).then_some(end_ns)
    }

    /// The CPU on which a task will be forked.
    pub(crate) fn set_cpu(&mut self, task: TaskNr, cpu: CpuNr) {
        self.tasks[task].cpu = cpu;
    }

    /// A task that sleeps is woken, and waits from now on, though it does not compete yet.
    pub(crate) fn begin_wait(&mut self, task: TaskNr) {
        let now = self.clock.now();
        self.tasks[task].books.enter(TaskState::Runnable, now);
    }

    /// The task moves when it next waits for a CPU or wakes.
    pub(crate) fn move_later(&mut self, task: TaskNr, target: CpuNr) {
        let exists = (target.0 as usize) < self.cpus.len() && self.class.scx().is_none();
        let t = &mut self.tasks[task];
        if exists && t.allowed.has(target) {
            t.send_to((t.cpu != target).then_some(target));
        }
    }

    /// A task that waits moves now. One that runs moves when it is switched out, and one that sleeps
    /// when it wakes.
    pub(crate) fn move_if_waiting(&mut self, task: TaskNr) -> Sim {
        let t = &mut self.tasks[task];
        let source = t.cpu;
        if t.state == TaskState::Runnable
            && self.cpus[source].current != Some(task)
            && let Some(target) = t.take_goes_to()
        {
            return balance::move_waiting(self, task, source, target, target);
        }
        Ok(())
    }

    /// The last event of a run.
    pub(crate) fn emit_end(&mut self, cpu: CpuNr) {
        let now = self.clock.now();
        self.out.emit_end(now, cpu, &self.cpus[cpu]);
    }

    /// What a task computes before its next step, in ns.
    #[inline]
    pub(crate) fn set_left(&mut self, task: TaskNr, ns: u64) {
        self.tasks[task].left_ns = ns;
    }

    pub(crate) fn set_body(&mut self, task: TaskNr, body: Body) {
        self.tasks[task].body = body;
    }

    pub(crate) fn body_mut(&mut self, task: TaskNr) -> &mut Body {
        &mut self.tasks[task].body
    }

    pub(crate) fn set_allowed(&mut self, task: TaskNr, cpus: CpuSet) {
        self.tasks[task].allowed = cpus;
    }

    /// The task does not exist until it is forked.
    pub(crate) fn defer(&mut self, task: TaskNr) {
        self.tasks[task].state = TaskState::New;
    }

    /// The task is over: it leaves its CPU for good.
    pub(crate) fn end(&mut self, task: TaskNr) {
        self.tasks[task].state = TaskState::Dead;
    }

    #[inline]
    pub(crate) fn disable_irqs(&mut self, cpu: CpuNr) {
        self.cpus[cpu].irqs_off = true;
    }

    #[inline]
    pub(crate) fn enable_irqs(&mut self, cpu: CpuNr) {
        self.cpus[cpu].irqs_off = false;
    }

    pub(crate) fn disable_preemption(&mut self, cpu: CpuNr) {
        self.cpus[cpu].preempt_off = true;
    }

    pub(crate) fn enable_preemption(&mut self, cpu: CpuNr) {
        self.cpus[cpu].preempt_off = false;
    }

    #[inline]
    pub(crate) fn set_phase(&mut self, cpu: CpuNr, phase: Phase) {
        self.cpus[cpu].phase = phase;
    }

    /// `set_need_resched`.
    pub(crate) fn set_need_resched(&mut self, cpu: CpuNr) {
        self.cpus[cpu].resched = Resched::Now;
    }

    /// An interrupt waits at the LAPIC of `cpu`.
    #[inline]
    pub(crate) fn set_pending(&mut self, cpu: CpuNr, irq: Irq) {
        self.cpus[cpu].pending.insert(irq);
    }

    /// An interrupt waits no longer. Whether it did.
    #[inline]
    pub(crate) fn clear_pending(&mut self, cpu: CpuNr, irq: Irq) -> bool {
        self.cpus[cpu].pending.remove(irq)
    }

    /// The L1 data cache of `cpu` may hold what a guest must not learn (`kvm_set_cpu_l1tf_flush_l1d`).
    #[inline]
    pub(crate) fn mark_l1d_unsafe(&mut self, cpu: CpuNr) {
        self.cpus[cpu].l1d_unsafe = true;
    }

    /// Whether it does; it is flushed (`vmx_l1d_flush`).
    #[inline]
    pub(crate) fn take_l1d_unsafe(&mut self, cpu: CpuNr) -> bool {
        core::mem::take(&mut self.cpus[cpu].l1d_unsafe)
    }

    pub(crate) fn add_device_irq(&mut self, cpu: CpuNr, irq: DeviceIrq) {
        self.cpus[cpu].devices.push(irq);
    }

    /// The device interrupts that `cpu` handles now.
    pub(crate) fn take_devices(&mut self, cpu: CpuNr) -> Vec<DeviceIrq> {
        core::mem::take(&mut self.cpus[cpu].devices)
    }

    /// Whether the core's other thread slows `cpu`.
    pub(crate) fn set_slow(&mut self, cpu: CpuNr, slow: bool) {
        self.cpus[cpu].slow = slow;
    }

    /// The phase in progress on `cpu` ends at `end`, or now if that is over.
    pub(crate) fn move_phase_end(&mut self, cpu: CpuNr, end: u64) {
        let timer = self.cpus[cpu].timer;
        self.clock.arm(timer, end.max(self.clock.now()));
    }
}

/// What a CPU owes, and how long it stays in a phase.
impl Host<'_> {
    /// The phase of `cpu` lasts `ns` from now, and what the CPU owes.
    #[inline]
    pub(crate) fn stay(&mut self, cpu: CpuNr, ns: u64) {
        let c = &mut self.cpus[cpu];
        let ns = ns + core::mem::take(&mut c.debt_ns);
        let (timer, time) = (c.timer, self.clock.now() + ns);
        self.clock.arm(timer, time);
    }

    /// Charges a CPU for something that is done now, in ns.
    #[inline]
    pub(crate) fn charge(&mut self, cpu: CpuNr, ns: impl Into<u64>) {
        self.cpus[cpu].debt_ns += ns.into();
    }

    /// Stops the phase of `cpu` and says how much of it was left.
    pub(crate) fn interrupted(&mut self, cpu: CpuNr) -> u64 {
        let timer = self.cpus[cpu].timer;
        let remaining = self
            .clock
            .when(timer)
            .map_or(0, |time| time - self.clock.now());
        self.clock.cancel(timer);
        remaining
    }

    /// Whether a request to reschedule counts on the way back from an interrupt. A lazy one counts
    /// before user mode only; for a vCPU that is the VM entry, which checks it itself
    /// (`xfer_to_guest_mode_work`).
    pub(crate) fn reschedules(&self, cpu: CpuNr, task: TaskNr) -> bool {
        let c = &self.cpus[cpu];
        match c.resched {
            Resched::None => false,
            Resched::Lazy => match &self.tasks[task].body {
                Body::Vcpu(_) => false,
                Body::Script(script) => !script.in_kernel(),
                _ => true,
            },
            Resched::Now => !c.preempt_off,
        }
    }
}

/// Two busy threads of a core slow each other.
///
/// What tasks compute, on the host and in guests, takes longer while the core's other thread has a
/// task. Work of the host's kernel is not scaled. When the other thread becomes busy or idle the
/// work in progress is rescaled.
impl Host<'_> {
    /// How long `work_ns` take on `cpu` now.
    #[inline]
    pub(crate) fn slowed(&self, cpu: CpuNr, work_ns: u64) -> u64 {
        if !self.cpus[cpu].slow {
            return work_ns;
        }
        let percent = self.cfg.host.profile.smt_percent.max(1);
        mul_div_ceil(work_ns, 100, percent.into())
    }

    /// How much work is done in `ns` on `cpu` now.
    #[inline]
    pub(crate) fn work_in(&self, cpu: CpuNr, ns: u64) -> u64 {
        if !self.cpus[cpu].slow {
            return ns;
        }
        mul_div(ns, self.cfg.host.profile.smt_percent.into(), 100)
    }
}
