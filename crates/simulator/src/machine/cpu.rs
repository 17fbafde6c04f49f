//! What a CPU of the host does.

use std::collections::VecDeque;

use stealtime_hypervisor::eevdf::{Resched, RqId};

use super::{Body, Irq, Machine, TaskState};
use crate::engine::Slot;
use crate::fault::Sim;
use crate::ids::{CpuNr, TaskNr, TimerNr};
use crate::kvm::VcpuRun;

/// What a CPU is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In an idle state.
    Idle,
    /// On its way out of an idle state.
    IdleExit,
    /// In a host interrupt's handler.
    Irq(Irq),
    /// Switching to its task.
    Switch,
    /// Running its task (a vCPU in guest mode included).
    Run,
}

/// A CPU of the host.
#[derive(Clone, Debug)]
pub(crate) struct Cpu {
    pub(crate) rq: RqId,
    pub(crate) phase: Phase,
    /// Fires when the phase is over.
    pub(crate) timer: Slot,
    /// Time owed for what was done at an instant, in ns.
    pub(crate) debt_ns: u64,
    /// The task with its data in the caches.
    pub(crate) warm: Option<TaskNr>,
    /// Interrupts that wait at its LAPIC.
    pub(crate) pending: Irq,
    pub(crate) irqs_off: bool,
    /// The L1 data cache may hold what a guest must not learn (`kvm_cpu_l1tf_flush_l1d`).
    pub(crate) l1d_unsafe: bool,
    /// Its task may not be switched out now.
    pub(crate) preempt_off: bool,
    pub(crate) resched: Resched,
    /// Its task; `None` for the idle task.
    pub(crate) current: Option<TaskNr>,
    pub(crate) idle: super::idle::IdleCpu,
    /// Armed hrtimers with their times, the first to expire first, and of those of one time the one
    /// that was armed first.
    pub(crate) hrtimers: VecDeque<(u64, TimerNr)>,
    pub(crate) clock_event: Slot,
    pub(crate) tick: TimerNr,
    pub(crate) hrtick: TimerNr,
    /// Devices whose interrupts wait here.
    pub(crate) devices: Vec<super::message::DeviceIrq>,
    /// Tasks that run or wait here.
    pub(crate) runnable: u32,
    /// When the last target of its ICR has accepted, in xAPIC mode, in ns.
    pub(crate) icr_idle_at: u64,
    /// The core's other thread has a task.
    pub(crate) slow: bool,
    /// Up to when its task's time is charged to a limit, in ns.
    pub(crate) charged_ns: u64,
    pub(crate) balance: super::balance::Balance,
    pub(crate) housekeeping: bool,
    pub(crate) isolated: bool,
}

impl Machine<'_> {
    /// The phase of `cpu` lasts `ns` from now, and what the CPU owes.
    pub(crate) fn stay(&mut self, cpu: CpuNr, ns: u64) {
        let c = &mut self.cpus[cpu];
        let ns = ns + core::mem::take(&mut c.debt_ns);
        let (timer, at) = (c.timer, self.now + ns);
        self.queue.arm(timer, at);
    }

    /// Charges a CPU for something that is done now.
    pub(crate) fn charge(&mut self, cpu: CpuNr, ns: u32) {
        self.cpus[cpu].debt_ns += u64::from(ns);
    }

    /// Stops the phase of `cpu` and says how much of it was left.
    pub(crate) fn interrupted(&mut self, cpu: CpuNr) -> u64 {
        let timer = self.cpus[cpu].timer;
        let left = self.queue.when(timer).map_or(0, |at| at - self.now);
        self.queue.cancel(timer);
        left
    }

    /// Whether `cpu` runs a vCPU that is in guest mode.
    pub(crate) fn guest_on(&self, cpu: CpuNr) -> Option<crate::ids::VcpuNr> {
        let c = &self.cpus[cpu];
        if c.phase != Phase::Run {
            return None;
        }
        match self.tasks[c.current?].body {
            Body::Vcpu(vcpu) if self.vcpus[vcpu].run == VcpuRun::Guest => Some(vcpu),
            _ => None,
        }
    }

    /// The phase of `cpu` is over.
    pub(crate) fn phase_over(&mut self, cpu: CpuNr) -> Sim {
        if self.cpus[cpu].debt_ns > 0 {
            // Something was charged while the phase ran.
            self.stay(cpu, 0);
            return Ok(());
        }
        match self.cpus[cpu].phase {
            Phase::Idle => self.broken("an idle CPU's phase has no end"),
            Phase::IdleExit => self.next(cpu),
            Phase::Irq(irq) => self.irq_over(cpu, irq),
            Phase::Switch => self.switched(cpu),
            Phase::Run => {
                let Some(task) = self.cpus[cpu].current else {
                    return self.broken("a CPU without a task runs one");
                };
                let t = &mut self.tasks[task];
                t.left_ns = 0;
                match t.body {
                    // What `run_task` would look at is not so.
                    Body::Vcpu(vcpu) => self.vcpu_step(cpu, vcpu),
                    _ => self.run_task(cpu, task),
                }
            }
        }
    }

    /// Between two things: takes interrupts, then reschedules, then goes on with the task.
    pub(crate) fn next(&mut self, cpu: CpuNr) -> Sim {
        if self.take_irq(cpu)? {
            return Ok(());
        }
        if self.xen.is_some() && !self.cpus[cpu].preempt_off {
            self.xen_softirqs(cpu);
        }
        let c = &self.cpus[cpu];
        match c.current {
            None => {
                if c.debt_ns > 0 {
                    self.cpus[cpu].phase = Phase::IdleExit;
                    self.stay(cpu, 0);
                    return Ok(());
                }
                if c.balance.kicked {
                    self.balance_for_idle(cpu)?;
                    return self.next(cpu);
                }
                if c.resched == Resched::None {
                    self.enter_idle(cpu)
                } else {
                    self.schedule(cpu)
                }
            }
            Some(task) if self.gives_way(cpu, task) => self.schedule(cpu),
            Some(task) => self.run_task(cpu, task),
        }
    }

    /// Whether the task gives way to a request, back from an interrupt. A lazy one counts on the
    /// way to user mode; for a vCPU that is the way into the guest, which looks itself.
    pub(crate) fn gives_way(&self, cpu: CpuNr, task: TaskNr) -> bool {
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

    /// The current task goes on where it was.
    pub(crate) fn run_task(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        if matches!(&self.tasks[task].body, Body::Script(script) if !script.on_halt())
            && self.throttle(cpu)?
        {
            return Ok(());
        }
        self.cpus[cpu].phase = Phase::Run;
        let left = self.tasks[task].left_ns;
        if left > 0 {
            let computes = !matches!(self.tasks[task].body, Body::Vcpu(_));
            let ns = if computes {
                self.slowed(cpu, left)
            } else {
                left
            };
            self.stay(cpu, ns);
            return Ok(());
        }
        if self.cpus[cpu].debt_ns > 0 {
            self.stay(cpu, 0);
            return Ok(());
        }
        debug_assert_eq!(self.tasks[task].state, TaskState::Running);
        match self.tasks[task].body {
            Body::Vcpu(vcpu) => self.vcpu_step(cpu, vcpu),
            Body::Host(_) => self.host_step(cpu, task),
            Body::Worker(_) => self.worker_step(cpu, task),
            Body::Script(_) => self.script_step(cpu, task),
            Body::Vmm(_) => self.vmm_step(cpu, task),
        }
    }
}
