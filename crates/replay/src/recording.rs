//! The demand of a recording's tasks, and what it shows of its host.

use std::collections::BTreeMap;
use std::sync::Arc;

use stealtime_events::ExitReason;
use stealtime_hypervisor::fair::Preempt;
use stealtime_simulator::script::{Gaps, Late, Stall, Step, Then, Ticks};

use crate::decisions::Decisions;
use crate::newidle::NewIdle;
use crate::population::Population;
use crate::release::Release;
use crate::slices::SliceTimers;
use crate::watch::WakeLatencies;

/// How wakeups were explained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// By another task, at a point of its own demand.
    pub edges: u64,
    /// By a timer, kept as a time.
    pub timers: u64,
    /// By something else, kept as a time.
    pub unknown: u64,
    /// `sched_waking` without context flags: whether a task or an interrupt woke is not recorded.
    pub without_flags: u64,
    /// Switches that the recording leaves out.
    pub hidden_switches: u64,
}

/// The begin of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begins {
    /// When, in ns of the recording.
    pub at_ns: u64,
    /// Whether the recording has its fork. Without it the task was first seen then, on a CPU that had
    /// been idle: it cannot have waited since the recording began.
    pub is_seen: bool,
}

/// A thread of which the recording has the name and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// Thread id.
    pub tid: i32,
    /// The process that it is of; 0 if that is not known.
    pub process: i32,
    /// Name.
    pub name: String,
}

/// When a script waited in the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Index of the step.
    pub step: u32,
    /// Its begin, in ns of the recording.
    pub began_ns: u64,
    /// Its end, in ns of the recording.
    pub ended_ns: u64,
    /// How long after its timer was due it ended, in us; 0 without a timer.
    pub late_us: u16,
    /// What ended it, if that was on another CPU than the one that it was to run on.
    pub caller: Option<Caller>,
}

/// A CPU that ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its number.
    pub cpu: u16,
    /// It was idle before.
    pub is_idle: bool,
}

/// A task of a recording, with what the recording says of it.
#[derive(Clone, Debug)]
pub struct RecordedTask {
    /// Thread id.
    pub tid: i32,
    /// Name.
    pub name: String,
    /// Index of its VM and its number there, if it is a vCPU.
    pub vcpu: Option<(usize, u32)>,
    /// Index of the VM of which it is a vCPU, or for which its process works.
    pub vm: Option<usize>,
    /// Nice value; real-time tasks count as -20.
    pub nice: i8,
    /// CPUs where it ran.
    pub ran_on: Vec<u16>,
    /// Where it was first.
    pub first_cpu: u16,
    /// When it began, in ns of the recording, if that was in its middle.
    pub begins: Option<Begins>,
    /// When it ended, in ns of the recording, if it did.
    pub ends_ns: Option<u64>,
    /// Times that it got a CPU.
    pub switches_in: u64,
    /// When it changed its CPU, in ns of the recording, and to which.
    pub moves: Arc<[(u64, u32)]>,
    /// Its exits: before which step, and why.
    pub exits: Vec<(usize, ExitReason)>,
    /// What it does after its script, if the recording has not ended. A vCPU repeats its script, or computes
    /// on if it never waited for anything but a CPU. Other tasks end.
    pub then: Then,
    /// What its guest computes for a timer that has nothing else to do, in ns.
    pub alarm_ns: u32,
    /// When its guest's tick interrupts it at work.
    pub ticks: Option<Ticks>,
    /// When it waited, by step.
    pub waits: Arc<[Wait]>,
    /// Stalls of its CPU, by step and then by time.
    pub stalls: Arc<[Stall]>,
    /// Wakeups on idle CPUs by other CPUs: when they were, and how long until it ran, in ns.
    pub called: Late,
    /// Its script.
    pub steps: Arc<[Step]>,
}

impl RecordedTask {
    /// The task with these steps instead. `places` has the index of each recorded step among them, and of the
    /// end.
    pub(crate) fn with_steps(&self, steps: Vec<Step>, places: &[u32]) -> Self {
        let place = |step: usize| places.get(step).copied().unwrap_or(u32::MAX);
        let exits = self.exits.iter();
        let exits = exits.map(|&(step, reason)| (place(step) as usize, reason));
        let stalls = self.stalls.iter().map(|stall| Stall {
            step: place(stall.step as usize),
            ..*stall
        });
        let waits = self.waits.iter().map(|wait| Wait {
            step: place(wait.step as usize),
            ..*wait
        });
        Self {
            exits: exits.collect(),
            stalls: stalls.collect(),
            waits: waits.collect(),
            steps: Arc::from(steps),
            ..self.clone()
        }
    }
}

/// Latencies of CPUs beyond stalls of their tasks ([`RecordedTask::stalls`]), by CPU, in ns.
#[derive(Clone, Debug, Default)]
pub struct WithoutStalls {
    /// As [`Recording::late`].
    pub late: Vec<Late>,
    /// As [`Recording::tick_late`].
    pub tick_late: Vec<Late>,
    /// As [`Recording::idle_called`], from the first of several wakeups on.
    pub idle_called: Vec<Late>,
}

/// The demand of a recording's tasks.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Length of the recording, in ns.
    pub span_ns: u64,
    /// CPUs of the host.
    pub cpus: u32,
    /// Its kernel, where the file says so.
    pub release: Option<Release>,
    /// Tasks in the order of their ids.
    pub tasks: Vec<RecordedTask>,
    /// vCPUs, by the index of the VM and number, that never got a CPU: they are no tasks.
    pub never_ran: Vec<(usize, u32)>,
    /// Threads without events, in the order of their ids.
    pub unseen: Vec<Unseen>,
    /// Edges between them.
    pub edges: u32,
    /// When each of them was reached, in ns of the recording.
    pub edge_ns: Arc<[u64]>,
    /// How wakeups were explained.
    pub resolved: Resolved,
    /// Median time from a wakeup on an idle CPU to running there, in ns.
    pub idle_wake_ns: Option<u64>,
    /// From a wakeup on a busy CPU to running there at the soonest (5th percentile), in ns.
    pub wake_ns: Option<u64>,
    /// `kvm.halt_poll_ns` as recorded, where halts show it.
    pub halt_poll_ns: Option<u32>,
    /// Ticks of the host a second, if they were recorded.
    pub hz: Option<u32>,
    /// Whether slices end by timers (`HRTICK`), if timers were recorded while tasks competed for a CPU.
    pub hrtick: Option<bool>,
    /// `cpu.max` of VMs that it stopped, by index: quota and period in ns.
    pub limits: BTreeMap<usize, (u64, u64)>,
    /// How late slices ended, by CPU: when they were due and by how much, in ns.
    pub late: Vec<Late>,
    /// How late ticks came, by CPU: when they were due and by how much, in ns.
    pub tick_late: Vec<Late>,
    /// From wakeups on idle CPUs to running there, beyond [`Self::wake_ns`], by CPU, in ns.
    pub idle_late: Vec<Late>,
    /// The same of wakeups by other CPUs.
    pub idle_called: Vec<Late>,
    /// The same, if lateness that stalls explain is the tasks'.
    pub without_stalls: WithoutStalls,
    /// How long polls in halts went on when another CPU had ended them, by CPU, in ns.
    pub poll_called: Vec<Late>,
    /// Events were lost, so that not all is known that tasks did, nor where.
    pub is_lossy: bool,
    /// From when to when those of each CPU were, in ns of the recording.
    pub gaps: Vec<Gaps>,
    /// A halted vCPU's way to sleep, in ns of its CPU time.
    pub block_ns: u32,
    /// Latencies of wakeups.
    pub wakeups: WakeLatencies,
    /// For how long slice timers were set.
    pub slices: SliceTimers,
    /// What was decided at wakeups.
    pub decisions: Decisions,
    /// How often CPUs that ran out of tasks looked for others.
    pub newidle: NewIdle,
    /// Switches to tasks.
    pub switches: u64,
    /// Tasks that were moved to another CPU.
    pub migrations: u64,
    /// Exits in which a vCPU may have yielded its CPU to another one: by PAUSE, or by hypercall.
    pub yields: u64,
    /// Halts of vCPUs: exits that halt.
    pub halts: u64,
    /// `kvm_vcpu_wakeup`: ends of halts, with how long was polled.
    pub halts_told: u64,
    /// What was changed where it has other numbers of VMs than recorded.
    pub(crate) population: Option<Population>,
}

impl Recording {
    /// How the host preempts, where flags of its events or its kernel show it.
    #[must_use]
    pub fn preempt(&self) -> Option<Preempt> {
        let of_kernel = || self.release.and_then(Release::preempt);
        self.decisions.preempt().or_else(of_kernel)
    }
}
