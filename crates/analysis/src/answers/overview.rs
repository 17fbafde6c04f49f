//! What an operator looks at first: the host, the longest waits, whole VMs, and all of it over time.

use serde::Serialize;

/// The host in the selection.
///
/// Without `sched_switch` all times are `null`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Host {
    /// vCPU threads of the VMs selected.
    pub vcpus: u32,
    /// `sched_switch` events.
    pub switches: u64,
    /// The length of the selection.
    pub span_ns: u64,
    /// Each CPU.
    pub cpus: Vec<CpuUse>,
}

/// What one CPU of the host runs.
///
/// Time that is in no key is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CpuUse {
    /// Its number.
    pub cpu: u16,
    /// vCPU threads run; `null`: the recording has no `sched_switch`.
    pub vcpu_ns: Option<u64>,
    /// Other tasks run.
    pub other_ns: Option<u64>,
    /// The idle task runs.
    pub idle_ns: Option<u64>,
    /// vCPUs wait for this CPU; several that wait at once count each.
    pub waiting_ns: Option<u64>,
    /// `sched_switch` events.
    pub switches: u64,
}

/// A long wait of one vCPU for a CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Stall {
    /// The VM that waits.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// The vCPU that waits.
    pub vcpu: u32,
    /// Its thread.
    pub tid: i32,
    /// Begin.
    pub start_ns: u64,
    /// Its length. A wait that the selection cuts counts whole; one that a loss or the end of the recording
    /// cuts, up to there.
    pub ns: u64,
    /// `preempted`: taken off its CPU; `waking`: woken, not yet on a CPU.
    pub kind: String,
    /// The CPU that it waited for at last.
    pub cpu: u16,
    /// The occupant of the CPU for the largest part, as in `ready[].cause`.
    pub cause: String,
    /// Its name, as in `ready[].who`.
    pub who: String,
    /// If it is a task: its name.
    pub task: Option<String>,
    /// If it is a task: its thread id.
    pub task_tid: Option<i32>,
    /// How long it had the CPU during the wait, at least.
    pub cause_ns: u64,
    /// A command that exports the wait and its surroundings for Perfetto; `null`: the recording cannot be
    /// read twice.
    pub export: Option<String>,
}

/// Single waits of the vCPUs of a VM for a CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// The VM.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// How many there are.
    pub count: u64,
    /// Their sum.
    pub ns: u64,
    /// Median, within 0.1 %.
    pub p50_ns: u64,
    /// 90th percentile, within 0.1 %.
    pub p90_ns: u64,
    /// 99th percentile, within 0.1 %.
    pub p99_ns: u64,
    /// The longest, exact.
    pub max_ns: u64,
    /// With `--longer-than`: how many are longer.
    pub longer: Option<u64>,
    /// With `--longer-than`: their sum.
    pub longer_ns: Option<u64>,
    /// How many there are of each length, in six classes.
    pub classes: Vec<WaitClass>,
}

/// Waits of a length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct WaitClass {
    /// Waits are this long or longer.
    pub from_ns: u64,
    /// Waits are shorter than this; `null`: any.
    pub below_ns: Option<u64>,
    /// How many there are.
    pub count: u64,
}

/// CPU time of the threads of a VMM that are no vCPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VmmThreads {
    /// The VM; empty: not known which.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// `emulator` (main threads and workers), `iothread`, `vhost` or `kernel`, by the threads' names.
    pub role: String,
    /// Threads that ran.
    pub threads: u32,
    /// How long they ran.
    pub cpu_ns: u64,
    /// The one that ran longest.
    pub task: String,
    /// Its thread id.
    pub tid: i32,
    /// How long it ran.
    pub task_ns: u64,
}

/// The vCPUs of a VM together.
///
/// How often all, some or none of them run or wait, in the words of Xen's `xenalyze`. Counts are of
/// instants at equal distance, 2,048 at most. A share has a standard error of up to 1.6 points. vCPUs with
/// an unknown state are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VmState {
    /// The VM.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Instants.
    pub instants: u64,
    /// All vCPUs run.
    pub full_run: u64,
    /// Some run, the others sleep.
    pub partial_run: u64,
    /// Some run while others wait for a CPU: a lock of one that waits holds up those that run.
    pub concurrency_hazard: u64,
    /// All wait for a CPU.
    pub full_contention: u64,
    /// Some wait, the others sleep.
    pub partial_contention: u64,
    /// All sleep.
    pub blocked: u64,
    /// No state is known.
    pub unknown: u64,
}

/// Steal and use of CPUs over time, in buckets of equal width.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OverTime {
    /// Begin of the first bucket.
    pub start_ns: u64,
    /// Width of a bucket: a power of two, which doubles so that there are 128 buckets at most.
    pub width_ns: u64,
    /// How many there are. The last one reaches beyond the end.
    pub buckets: u32,
    /// Each VM.
    pub vms: Vec<VmOverTime>,
    /// Each CPU; empty without `sched_switch`.
    pub cpus: Vec<CpuOverTime>,
}

/// A VM over time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VmOverTime {
    /// The VM.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Time in each bucket in which its vCPUs wait for a CPU, their sum.
    pub steal_ns: Vec<u64>,
}

/// A CPU over time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CpuOverTime {
    /// Its number.
    pub cpu: u16,
    /// Time in each bucket in which it runs any task.
    pub busy_ns: Vec<u64>,
    /// Of it: vCPU threads.
    pub vcpu_ns: Vec<u64>,
    /// Time in which vCPUs wait for it, their sum.
    pub waiting_ns: Vec<u64>,
}
