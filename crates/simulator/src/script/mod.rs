//! Tasks that do what was recorded: so much computing, then waiting for what others do.
//!
//! A script is a task's demand, free of the schedule that it happened to get. It computes in ns of
//! its own time on a CPU, and waits for points that other scripts reach or for a time. The host
//! decides when it runs; a halt of a vCPU polls as KVM does before it sleeps.

mod build;
mod halt;
mod moves;
mod points;
mod run;
mod task;
#[cfg(test)]
mod tests;
mod ticks;
mod work;
mod yields;

use std::collections::BTreeMap;
use std::sync::Arc;

use stealtime_hypervisor::fair::Policy;

use crate::ids::{CpuNr, Number};

pub(crate) use build::add_tasks;
pub(crate) use moves::apply_moves;
pub(crate) use run::{ScriptRunner, finish_wake};
pub use task::ScriptOutcome;
pub(crate) use task::ScriptTask;
use ticks::expect_tick;
pub(crate) use ticks::tick;

use points::Points;
use yields::Yields;

/// A point that one script reaches and others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge(pub u32);

/// What a script's time on a CPU was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Spent {
    /// In the guest.
    Guest,
    /// Handling an exit, by its reason's number as recorded.
    Exit(u32),
    /// Handling an exit that an interrupt made, by its number. The interrupt is one of the recorded
    /// host's slices, ticks and wakeups, of which a run has its own, or of [`ScriptConfig::ticks`].
    /// This one is no occasion to give the CPU up.
    Interrupt(u32),
    /// Handling an exit that halts, by its number, but for polling, going to sleep and coming back.
    Halt(u32),
    /// Anything else.
    Host,
}

/// What ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Another script reaches a point.
    Edge(Edge),
    /// A halted vCPU until another one of its VM reaches a point or, if [`Scripts::balanced`], until
    /// the others have done some work since.
    Work {
        /// The point.
        edge: Edge,
        /// CPU time of all vCPUs of the VM together, in ns.
        ns: u32,
        /// Some vCPU of the VM always worked or was runnable while this one waited. So if all halt,
        /// what the wait is for was done before it began, and it is over.
        busy: bool,
    },
    /// A time of the run, in ns; in later passes of [`Then::Repeat`], of the pass.
    Time(u64),
    /// A time at which another CPU wakes it, such as the one that takes a device's interrupt.
    Called {
        /// As of [`Self::Time`].
        time_ns: u64,
        /// The number of that CPU, taken modulo the CPUs.
        waker: u16,
    },
    /// So many ns after this script's last [`Step::Arm`]: a timer that was set relative to what
    /// its task had done.
    Armed {
        /// In ns.
        ns: u64,
        /// What an idle CPU takes in addition to leave its state, in us.
        exit_us: u16,
    },
    /// So many ns after the wait begins.
    After(u64),
    /// So many ns after another script reaches a point: a device answers a request that the other one has
    /// passed on. The point may be reached before the wait begins.
    AfterEdge {
        /// The point.
        edge: Edge,
        /// In ns.
        ns: u32,
        /// What an idle CPU takes in addition to leave its state, in us.
        exit_us: u16,
        /// The CPU that takes the interrupt, as of [`Self::Called`]; `None`: the script's.
        waker: Option<u16>,
    },
    /// After this share of the time to the end of the run.
    Rest {
        /// In thousandths, at most 1000.
        permille: u16,
    },
    /// At a time, or sooner: so long after the wait begins.
    Sooner {
        /// As of [`Self::Time`].
        time_ns: u64,
        /// In us.
        after_us: u16,
    },
    /// A point of a grid in time that is not passed yet, as a tick's timer expires.
    Grid {
        /// A point of the grid, in ns of the run, taken modulo the period.
        phase_ns: u32,
        /// From point to point, in ns; 0 is no wait.
        period_ns: u32,
        /// The how many-th point after the wait begins, from 1; 0 is the last one before: a timer
        /// that is due and late.
        nth: u16,
        /// How long after that the wait is over, in us. Timers of a host that is a virtual machine
        /// itself can be late by milliseconds.
        late_us: u16,
    },
}

/// A step of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Computes for so many ns of its own time.
    Run {
        /// Time on a CPU, in ns.
        ns: u64,
        /// For what.
        spent: Spent,
    },
    /// Reaches a point.
    Reach(Edge),
    /// Sleeps.
    Sleep(Until),
    /// Halts: polls, then sleeps.
    Halt(Until),
    /// What the end of a halt takes if it slept, in ns of computing; nothing if it was over before.
    Slept(u32),
    /// A guest's timer that was set when it halted. If it fires before the [`Until::Edge`] of the
    /// next step, the script wakes, works for [`ScriptConfig::alarm_ns`] and waits again.
    Alarm(Until),
    /// Yields its CPU to a runnable vCPU of its VM, if there is any. The guest has spun for so long
    /// that it exits (`kvm_vcpu_on_spin`).
    Spin,
    /// Yields it to the vCPU of its VM that has this number, if that waits for one: the guest asks for it by
    /// hypercall (`kvm_sched_yield`).
    YieldTo(u32),
    /// Sets a timer: [`Until::Armed`] counts from here.
    Arm,
    /// The balancer moves it to this CPU, as soon as it does not run. Only tasks with
    /// [`Moves::Steps`] have it.
    Move(u32),
}

/// What a script does when its steps are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Then {
    /// It ends.
    #[default]
    End,
    /// It computes on in the guest.
    Compute,
    /// It takes its steps again, as work goes on. In its second pass it waits for the second time
    /// that other repeating scripts reach its points.
    Repeat,
}

/// What moves a task from CPU to CPU.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Moves {
    /// The host's scheduler places and balances it.
    #[default]
    Scheduler,
    /// It changes its CPU where [`Step::Move`] says so and nowhere else.
    Steps,
    /// It changes its CPU at these times of the run in ns, the earliest first, as soon as it does
    /// not run. A balancer decides by the places of all tasks. Moves at recorded times keep tasks
    /// together that shared a CPU.
    Times(Arc<[(u64, u32)]>),
}

/// Times at which a guest's periodic timer interrupts a vCPU at work. At the exit a request to
/// reschedule counts. What it costs is part of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// A time of the run, in ns, taken modulo the period.
    pub phase_ns: u32,
    /// From tick to tick, in ns; not 0.
    pub period_ns: u32,
}

/// What it costs a vCPU to lose its CPU at work. What the recorded preemptions cost is part of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Preempted {
    /// CPU time from one recorded preemption to the next, in ns; 0 if there was none.
    pub every_ns: u64,
    /// CPU time of each one beyond those, in ns: the interrupt's exit.
    pub cost_ns: u32,
}

/// A task with its script.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptConfig {
    /// Name, as `comm` shows it.
    pub name: String,
    /// Nice value, [-20, 19].
    pub nice: i8,
    /// Its policy.
    pub policy: Policy,
    /// CPUs that it may run on; empty for all.
    pub cpus: Vec<u32>,
    /// Where it is when it begins.
    pub first_cpu: u32,
    /// When it begins, in ns of the run: before that there is no such task.
    pub starts_ns: u64,
    /// Its VM, by a number of the caller's; tasks of one VM are in one group if
    /// [`Scripts::groups`] says so.
    pub vm: Option<u32>,
    /// It is the vCPU of that VM with this number. A wakeup that finds it at work goes to a vCPU
    /// that halts.
    pub vcpu: Option<u32>,
    /// What moves it from CPU to CPU.
    pub moves: Moves,
    /// What it does when its steps are done.
    pub then: Then,
    /// What a [`Step::Alarm`] takes, in ns of computing.
    pub alarm_ns: u32,
    /// What it costs to lose its CPU at work more often than recorded.
    pub preempted: Preempted,
    /// When its guest's tick interrupts it at work.
    pub ticks: Option<Ticks>,
    /// What it does.
    pub steps: Arc<[Step]>,
    /// What an idle CPU takes from a wakeup of it by another one until it runs, in ns, by time. Without any
    /// the CPU's [`Scripts::idle_called`] counts.
    pub called: Late,
    /// Its stalls, by step and then by time.
    pub stalls: Arc<[Stall]>,
}

/// A part of a [`Step::Run`] in which the task's CPU took no interrupt: a host that is a virtual machine
/// itself waited for a CPU. What comes meanwhile is taken at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stall {
    /// Index of the step.
    pub step: u32,
    /// After so much of the step, in ns.
    pub after_ns: u64,
    /// Its length, in ns.
    pub ns: u64,
}

/// All scripts of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scripts {
    /// The tasks.
    pub tasks: Vec<ScriptConfig>,
    /// How many edges there are: all are below this.
    pub edges: u32,
    /// The cgroup of each VM, by its number; a VM without one competes task by task.
    pub groups: Vec<Option<ScriptGroup>>,
    /// Cgroups of several VMs, each after the one above it.
    pub shared_groups: Vec<SharedGroup>,
    /// The one of [`Self::shared_groups`] that a VM is in, by the VM's number.
    pub shared_by_vm: BTreeMap<usize, usize>,
    /// The VMs' cgroups are under one parent, machine.slice, as libvirt has them.
    pub slice: bool,
    /// In a VM's cgroup there is one for each vCPU and one for its other threads, as libvirt lays them out.
    pub vcpu_groups: bool,
    /// From what ends a sleep to competing for a CPU, in ns: the timer's or waker's way through the
    /// kernel. It counts as waiting.
    pub wake_ns: u32,
    /// From the end of polling in a halt to being asleep, in ns of computing; what comes meanwhile ends the
    /// halt.
    pub block_ns: u32,
    /// How late ends of slices come, by CPU: see [`Late`]. CPUs without an entry have them as late as ticks.
    pub late: Vec<Late>,
    /// How late ticks come, by CPU. CPUs without an entry have them in time.
    pub tick_late: Vec<Late>,
    /// When the first tick is due, in ns: ticks of all CPUs are whole periods apart from it.
    pub tick_phase_ns: u64,
    /// How long idle CPUs take to run a task that was woken there, by CPU. CPUs without an entry leave their
    /// idle state as the profile says.
    pub idle_late: Vec<Late>,
    /// The same of wakeups by another CPU, which need an interrupt or a store. CPUs without an
    /// entry have that of [`Self::idle_late`].
    pub idle_called: Vec<Late>,
    /// How long polls in halts go on after another CPU has ended them, by CPU. It ends them by what
    /// they wait for, or by waking another task there. A virtual CPU may not run just then. CPUs
    /// without an entry notice at once.
    pub poll_called: Vec<Late>,
    /// A CPU that has nothing to do takes tasks that wait on another one, also those that
    /// [`ScriptConfig::moves`] keeps.
    pub idle_takes: bool,
    /// Wakeups look for an idle CPU as far as the utilization of the last 32 ms lets them, as Linux does from
    /// 6.1 on. Otherwise the number of idle CPUs decides.
    pub searches_by_utilization: bool,
    /// How often a CPU that runs out of tasks looks for those that wait elsewhere.
    pub looks: Looks,
    /// A guest does not halt, and does without the exit ([`Spent::Halt`]), if what it would wait for has come
    /// before. Otherwise it halts as often as recorded.
    pub skips_halts: bool,
    /// When it is not known what a CPU did, by CPU: see [`Gaps`].
    pub gaps: Vec<Gaps>,
    /// Guests' schedulers balance work onto idle vCPUs. So a wait of an idle vCPU ends when the
    /// others have done as much work as recorded ([`Until::Work`]), not when one reaches a point.
    /// Otherwise it is [`Until::Edge`].
    pub balanced: bool,
    /// vCPUs' entries, exits (by their number alone, as VMX's) and ends of halts are events too.
    pub tell: bool,
}

/// How often a CPU that runs out of tasks looks for those that wait elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Looks {
    /// Each time, as Linux does before 7.0.
    #[default]
    Each,
    /// Not at all: searches take longer than the CPU expects to idle.
    Never,
    /// At chance, which it learns. It looks the more often the more it finds (`NI_RANDOM`, from 7.0 on), and
    /// the fewer chances a second has (`NI_RATE`, from 7.1 on). It begins with so many of a thousand times,
    /// if that is known, or as Linux does. The first chances count for more than in Linux.
    Learned(Option<u16>),
}

/// How late a CPU was with something: times of the run and by how much, both in ns, the earliest first.
/// What is due at some time is as late as that which is nearest to it.
///
/// Interrupts' ways through the kernel are in it, and times at which the host, if it is a virtual
/// machine itself, did not run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Late(pub Arc<[(u64, u32)]>);

impl Late {
    /// By how much what is due on a CPU at `due_ns` is late, in ns; `None` if that is not known.
    pub(crate) fn on(cpus: &[Self], cpu: CpuNr, due_ns: u64) -> Option<u64> {
        cpus.get(cpu.index())?.at(due_ns)
    }

    /// By how much what is due at `due_ns` is late, in ns; `None` if that is not known.
    pub(crate) fn at(&self, due_ns: u64) -> Option<u64> {
        let next = self.0.partition_point(|entry| entry.0 < due_ns);
        let near = |n: usize| self.0.get(n).copied();
        let (earlier, later) = (next.checked_sub(1).and_then(near), near(next));
        let late = match (earlier, later) {
            (Some(b), Some(a)) if due_ns - b.0 < a.0 - due_ns => b.1,
            (_, Some(a)) => a.1,
            (Some(b), None) => b.1,
            (None, None) => return None,
        };
        Some(u64::from(late))
    }
}

/// Times of the run, from and to, in ns and in order, at which it is not known what a CPU does. It is not
/// idle then: it takes no task from others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps(pub Arc<[(u64, u64)]>);

impl Gaps {
    /// Whether `time_ns` is in one.
    pub(crate) fn has(&self, time_ns: u64) -> bool {
        let next = self.0.partition_point(|gap| gap.0 <= time_ns);
        let last = next.checked_sub(1).and_then(|last| self.0.get(last));
        last.is_some_and(|gap| time_ns < gap.1)
    }
}

/// A cgroup of several VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedGroup {
    /// Index of the one above it; `None` under the root.
    pub parent: Option<usize>,
    /// Its settings. Its limit is that of VMs without one of their own.
    pub group: ScriptGroup,
}

/// The cgroup of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptGroup {
    /// `cpu.weight`, [1, 10000]; 100 is the default.
    pub cpu_weight: u32,
    /// `cpu.max`: quota and period in ns; `None` without a limit.
    pub cpu_max_ns: Option<(u64, u64)>,
}

impl ScriptGroup {
    /// The most that `cpu.weight` may be.
    pub const MOST_WEIGHT: u32 = 10_000;
}

impl Default for ScriptGroup {
    fn default() -> Self {
        Self {
            cpu_weight: 100,
            cpu_max_ns: None,
        }
    }
}
