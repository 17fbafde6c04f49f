//! Faults of a machine and of what runs on it, injected into a run.
//!
//! [`Machine::inject`](crate::Machine::inject) takes an [`Injection`]. All checks go on watching: late and
//! repeated interrupts, stalled CPUs, processes that die and threads that hang break no promise. Where
//! interrupts are lost, what they would have ended may go on; nothing else may break.

use crate::engine::Random;
use crate::host::Message;
use crate::ids::{CpuNr, TaskNr, VcpuNr, VmNr};

/// Something that happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// A CPU does nothing else for this long: firmware or an NMI has it. It begins when the CPU next takes
    /// interrupts.
    Stall {
        /// The CPU.
        cpu: u32,
        /// How long, in ns.
        ns: u64,
    },
    /// The process of a VM is killed: its threads end at once, its vCPUs when they next leave the guest.
    Kill {
        /// Index of the VM.
        vm: u32,
    },
    /// The thread of a vCPU never enters the guest again, and answers nothing.
    Hang {
        /// Index of the VM.
        vm: u32,
        /// Index of the vCPU.
        vcpu: u32,
    },
    /// The wall clock of the host of a VM that migrates steps.
    ClockStep {
        /// Index of the VM.
        vm: u32,
        /// By how much, in ns; negative is back.
        ns: i64,
    },
}

/// What is injected into a run. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Injection {
    /// Seed of the chances below.
    pub seed: u64,
    /// Interrupts between CPUs that never arrive, of 1000.
    pub lost_of_1000: u32,
    /// Interrupts between CPUs that arrive late, of 1000.
    pub late_of_1000: u32,
    /// How late they are at most, in ns.
    pub late_ns: u64,
    /// Interrupts between CPUs that arrive twice, of 1000; the second time late.
    pub twice_of_1000: u32,
    /// Answers of devices that never come, of 1000.
    pub unanswered_of_1000: u32,
    /// What happens once: when, in ns, and what.
    pub incidents: Vec<(u64, Incident)>,
}

/// How often each fault has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Interrupts that were lost.
    pub lost: u64,
    /// Interrupts that were late.
    pub late: u64,
    /// Interrupts that came twice.
    pub twice: u64,
    /// Answers of devices that did not come.
    pub unanswered: u64,
    /// Stalls of CPUs.
    pub stalls: u64,
    /// VMs that were killed.
    pub killed: u64,
    /// Threads that hung.
    pub hung: u64,
    /// Steps of wall clocks.
    pub clock_steps: u64,
}

impl core::ops::AddAssign for Injected {
    fn add_assign(&mut self, counts: Self) {
        self.lost += counts.lost;
        self.late += counts.late;
        self.twice += counts.twice;
        self.unanswered += counts.unanswered;
        self.stalls += counts.stalls;
        self.killed += counts.killed;
        self.hung += counts.hung;
        self.clock_steps += counts.clock_steps;
    }
}

impl Injection {
    /// By how much longer than without faults something may take, in ns.
    pub(crate) fn slack_ns(&self) -> u64 {
        let stalls = self.incidents.iter().map(|(_, incident)| match incident {
            Incident::Stall { ns, .. } => *ns,
            _ => 0,
        });
        self.late_ns.saturating_add(stalls.sum())
    }

    /// Whether the wall clock of this VM's host steps.
    pub(crate) fn steps_clock_of(&self, vm: u32) -> bool {
        let mut incidents = self.incidents.iter();
        incidents.any(|(_, i)| matches!(i, Incident::ClockStep { vm: of, .. } if *of == vm))
    }
}

/// An injection, and what it has come to.
#[derive(Clone, Debug)]
pub(crate) struct InjectionState {
    plan: Injection,
    random: Random,
    pub(crate) counts: Injected,
    /// By CPU: how long its stall will last, in ns.
    stalls: Vec<u64>,
    /// VMs that were killed, and when.
    killed: Vec<(VmNr, u64)>,
    /// Threads of their processes that are no vCPUs.
    doomed: Vec<TaskNr>,
    hung: Vec<VcpuNr>,
}

impl InjectionState {
    pub(crate) fn new(plan: Injection, random: Random, cpus: usize) -> Self {
        Self {
            plan,
            random,
            counts: Injected::default(),
            stalls: vec![0; cpus],
            killed: Vec::new(),
            doomed: Vec::new(),
            hung: Vec::new(),
        }
    }

    pub(crate) fn incident(&self, number: u32) -> Option<Incident> {
        let entry = self.plan.incidents.get(number as usize)?;
        Some(entry.1)
    }

    /// How late an interrupt arrives, each time that it does, in ns.
    pub(crate) fn arrivals(&mut self) -> [Option<u64>; 2] {
        if self.random.chance(self.plan.lost_of_1000) {
            self.counts.lost += 1;
            return [None; 2];
        }
        let mut late_ns = 0;
        if self.random.chance(self.plan.late_of_1000) {
            self.counts.late += 1;
            late_ns = self.random.between(1, self.plan.late_ns);
        }
        if !self.random.chance(self.plan.twice_of_1000) {
            return [Some(late_ns), None];
        }
        self.counts.twice += 1;
        [Some(late_ns), Some(self.random.below(self.plan.late_ns))]
    }

    /// Whether a message goes nowhere: its VM is dead, or a device does not answer.
    pub(crate) fn swallows(&mut self, message: Message) -> bool {
        match message {
            Message::Device { vm, .. } => {
                let unanswered = self.random.chance(self.plan.unanswered_of_1000);
                self.counts.unanswered += u64::from(unanswered);
                unanswered || self.killed_at(vm).is_some()
            }
            Message::Request { vm, .. } | Message::Start { vm } => self.killed_at(vm).is_some(),
            _ => false,
        }
    }

    pub(crate) fn stall(&mut self, cpu: CpuNr, ns: u64) {
        self.counts.stalls += 1;
        self.stalls[cpu.0 as usize] += ns;
    }

    /// The stall that begins now on `cpu`, in ns.
    pub(crate) fn take_stall(&mut self, cpu: CpuNr) -> u64 {
        core::mem::take(&mut self.stalls[cpu.0 as usize])
    }

    /// Whether the VM was alive until now.
    pub(crate) fn kill(&mut self, vm: VmNr, now_ns: u64) -> bool {
        let was_alive = self.killed_at(vm).is_none();
        if was_alive {
            self.counts.killed += 1;
            self.killed.push((vm, now_ns));
        }
        was_alive
    }

    /// When the VM was killed, in ns.
    pub(crate) fn killed_at(&self, vm: VmNr) -> Option<u64> {
        let mut killed = self.killed.iter();
        killed.find(|entry| entry.0 == vm).map(|entry| entry.1)
    }

    /// The task ends instead of its next step.
    pub(crate) fn doom(&mut self, task: TaskNr) {
        self.doomed.push(task);
    }

    pub(crate) fn is_doomed(&self, task: TaskNr) -> bool {
        self.doomed.contains(&task)
    }

    pub(crate) fn hang(&mut self, vcpu: VcpuNr) {
        self.counts.hung += 1;
        self.hung.push(vcpu);
    }

    pub(crate) fn is_hung(&self, vcpu: VcpuNr) -> bool {
        self.hung.contains(&vcpu)
    }
}
