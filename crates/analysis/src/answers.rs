//! The answers: plain data, serialized as they are. The keys are documented and stable.
//!
//! Times are integer nanoseconds of the trace's clock (`source.clock_unit` says when they are ticks
//! instead). Percentages are floats computed at the very end. `null` means that the recording cannot
//! say, which `findings` or `source.notes` explain; it never means zero.

use serde::Serialize;

/// Everything that one pass over a trace says.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Answers {
    /// The recording itself.
    pub source: Source,
    /// How often each tracepoint fired, most frequent first, ties by name.
    pub events: Vec<EventCount>,
    /// The VMs found, and how they were told apart.
    pub vms: Vec<Vm>,
    /// Exits by VM and reason. Percentages are of all exits selected: the rows of one reason, added
    /// up over VMs, are `perf kvm stat`'s row.
    pub exits: Vec<KeyRow>,
    /// Exits by reason over all VMs selected: the table of `perf kvm stat report`.
    pub exit_totals: Vec<KeyRow>,
    /// `perf kvm stat report --event=msr`, over all VMs selected.
    pub msr: Vec<KeyRow>,
    /// `perf kvm stat report --event=ioport`, over all VMs selected.
    pub ioport: Vec<KeyRow>,
    /// `perf kvm stat report --event=mmio`, over all VMs selected.
    pub mmio: Vec<KeyRow>,
    /// The time split of each vCPU.
    pub vcpus: Vec<VcpuTime>,
    /// Time in which a runnable vCPU did not run, by who had the CPU instead.
    pub ready: Vec<Ready>,
    /// Latencies by VM and kind.
    pub latencies: Vec<Latency>,
    /// Spinning and directed yield, by VM.
    pub yields: Vec<Yields>,
    /// Halt polling, by VM.
    pub halt_polls: Vec<HaltPolls>,
    /// Host interrupts that hit a CPU while it ran a guest.
    pub interrupts: Vec<Interrupts>,
    /// What a reader should look at, most costly first.
    pub findings: Vec<Finding>,
}

/// The recording.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Source {
    /// The file as the user named it.
    pub path: String,
    /// The container: `trace.dat v7`, `trace.dat v6`, `perf.data`, `perf.data (pipe)`, `ftrace text`.
    pub format: String,
    /// The compression around it, if any.
    pub compression: Option<String>,
    /// The trace clock's name where the file says so.
    pub clock: String,
    /// `ns`, or `ticks` where the clock could not be converted.
    pub clock_unit: String,
    /// `uname` of the host where the file says so.
    pub uname: Option<String>,
    /// The host's CPUs, where known or seen.
    pub cpus: u32,
    /// Events in the recording that fell into the selection of time and CPUs.
    pub events: u64,
    /// Events known to be lost.
    pub lost: u64,
    /// Gaps in which it is not known how many events were lost.
    pub lost_gaps: u64,
    /// Events earlier than the one before them.
    pub out_of_order: u64,
    /// Time of the first event.
    pub first_ns: u64,
    /// Time of the last event.
    pub last_ns: u64,
    /// `last_ns - first_ns`.
    pub span_ns: u64,
    /// Whether less was read than was recorded (cut short, corrupt, undecodable).
    pub partial: bool,
    /// What a reader must know about the recording, sentence by sentence.
    pub notes: Vec<String>,
}

/// How often a tracepoint fired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventCount {
    /// The tracepoint's name without its system, as the recording has it.
    pub name: String,
    /// How often.
    pub count: u64,
    /// The tracepoint's name in today's kernels, where that is another.
    pub today: Option<String>,
}

impl EventCount {
    /// Whether this is the tracepoint that today has this name.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.today.as_deref().unwrap_or(&self.name) == name
    }
}

/// A virtual machine as it shows in the trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vm {
    /// Its name: from the recording or the user, else made from the process id, else `vm0`, `vm1`….
    pub vm: String,
    /// The VMM's process id where known.
    pub pid: Option<i32>,
    /// Its vCPU threads.
    pub vcpus: u32,
    /// How its threads were recognised as one VM: `recorded`, `user`, `process`, `interaction`,
    /// `order` (a guess by thread ids).
    pub grouped_by: String,
    /// Whether which threads it has is a guess: by the order of their ids, beside other VMs. Tables
    /// show its name with a `?`, which is no part of the name.
    pub guessed: bool,
}

/// A row of `perf kvm stat report`, and percentiles.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KeyRow {
    /// The VM, `*` for all.
    pub vm: String,
    /// Whether that VM is a guess ([`Vm::guessed`]).
    pub vm_guessed: bool,
    /// The key as `perf kvm stat` prints it: `EPT_VIOLATION`, `npf`, `0x80b:W`, `0x3f8:POUT`.
    pub reason: String,
    /// How many.
    pub samples: u64,
    /// Of all samples in the table.
    pub samples_percent: f64,
    /// Sum of their times.
    pub time_ns: u64,
    /// Of all time in the table.
    pub time_percent: f64,
    /// The shortest.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The mean.
    pub avg_ns: f64,
    /// Standard error of the mean in percent of it: perf's `+-`.
    pub stddev_percent: f64,
    /// Median, within 0.1 %.
    pub p50_ns: u64,
    /// 90th percentile, within 0.1 %.
    pub p90_ns: u64,
    /// 99th percentile, within 0.1 %.
    pub p99_ns: u64,
    /// 99.9th percentile, within 0.1 %.
    pub p999_ns: u64,
}

/// Where one vCPU's time went. `span_ns` is exactly the sum of `guest_ns`, `exit_ns`, `poll_ns`,
/// `halt_ns`, `preempted_ns` and `wake_wait_ns` (`on_cpu_ns` stands for the first three where the
/// recording cannot tell them apart).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VcpuTime {
    /// The VM.
    pub vm: String,
    /// Whether that VM is a guess ([`Vm::guessed`]).
    pub vm_guessed: bool,
    /// The vCPU's number in it.
    pub vcpu: u32,
    /// The thread's name.
    pub task: String,
    /// The thread's id.
    pub tid: i32,
    /// Time from the first to the last moment at which the thread's state is known.
    pub span_ns: u64,
    /// Time on a CPU: `guest_ns + exit_ns + poll_ns`.
    pub on_cpu_ns: u64,
    /// In the guest, host interrupts that did not end in an exit included.
    pub guest_ns: Option<u64>,
    /// On a CPU outside the guest: handling exits, in KVM or in the VMM's thread.
    pub exit_ns: Option<u64>,
    /// Polling for a wakeup instead of sleeping.
    pub poll_ns: Option<u64>,
    /// Asleep: the guest halted, or the vCPU's thread was blocked in the VMM.
    pub halt_ns: u64,
    /// Runnable, but taken off its CPU.
    pub preempted_ns: u64,
    /// Runnable after a wakeup, but not yet on a CPU.
    pub wake_wait_ns: u64,
    /// Of `halt_ns`: blocked outside of a halt, as the VMM's thread.
    pub blocked_ns: u64,
    /// Of `poll_ns`: polls that ended because of a wakeup.
    pub poll_useful_ns: u64,
    /// Of `poll_ns`: polls after which the vCPU slept all the same.
    pub poll_wasted_ns: u64,
    /// Of `guest_ns` and `exit_ns`: spinning that ended in a PAUSE exit, and handling it.
    pub spin_ns: Option<u64>,
    /// Beside the span: time in which events were lost or nothing is known, so that no state could
    /// be given.
    pub unknown_ns: u64,
    /// Exit handling by reason, largest first: `exit_ns` by what it was for.
    pub exit_ns_by_reason: Vec<ReasonTime>,
}

/// Time for one exit reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ReasonTime {
    /// The exit reason.
    pub reason: String,
    /// How many.
    pub count: u64,
    /// On-CPU time outside the guest for them.
    pub ns: u64,
}

/// Time in which a runnable vCPU did not run, and what its CPU did instead.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Ready {
    /// The VM that waited.
    pub vm: String,
    /// Whether that VM is a guess ([`Vm::guessed`]).
    pub vm_guessed: bool,
    /// The vCPU that waited.
    pub vcpu: u32,
    /// `vcpu_same_vm`, `vcpu_other_vm`, `vmm_thread` (emulator, vhost, I/O threads), `kernel_thread`,
    /// `host_task`, `irq` (interrupt and softirq work), `throttled` (bandwidth), `idle` (nobody: wakeup
    /// latency, idle exit), `unknown`.
    pub cause: String,
    /// Who it was: the task's name, the other VM, the softirq; empty where there is nothing to say.
    pub who: String,
    /// For how long.
    pub ns: u64,
}

/// A latency's distribution.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// The VM.
    pub vm: String,
    /// Whether that VM is a guess ([`Vm::guessed`]).
    pub vm_guessed: bool,
    /// `wakeup` (runnable to running), `ipi_accept` (ICR write to the target's IRR), `ipi_inject` (ICR
    /// write to injection), `ipi_eoi` (ICR write to EOI), `timer` (deadline or expiry to injection),
    /// `timer_expire` (programmed expiry to the handler), `injection` (IRR to injection).
    pub kind: String,
    /// What tells rows of one kind apart: the timer's backend (`preemption_timer`, `hrtimer`,
    /// `posted`), the wakeup's cause; empty otherwise.
    pub detail: String,
    /// How many.
    pub count: u64,
    /// Median, within 0.1 %.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// The longest, exact.
    pub max_ns: u64,
}

/// Spinning vCPUs and what was done about them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Yields {
    /// The VM.
    pub vm: String,
    /// Whether that VM is a guess ([`Vm::guessed`]).
    pub vm_guessed: bool,
    /// PAUSE exits.
    pub pause_exits: u64,
    /// Of these: followed by a switch to another vCPU of the same VM before the next entry.
    pub switched_to_same_vm: u64,
    /// Of these: followed by a switch to anything else.
    pub switched_elsewhere: u64,
    /// PLE window changes upwards.
    pub ple_grow: u64,
    /// PLE window changes downwards.
    pub ple_shrink: u64,
    /// The largest PLE window seen.
    pub ple_window_max: u32,
}

/// Halt polling.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HaltPolls {
    /// The VM.
    pub vm: String,
    /// Whether that VM is a guess ([`Vm::guessed`]).
    pub vm_guessed: bool,
    /// Halts.
    pub halts: u64,
    /// Halts that ended while polling.
    pub poll_success: u64,
    /// Halts that polled and slept all the same.
    pub poll_fail: u64,
    /// Time polled with success.
    pub poll_success_ns: u64,
    /// Time polled without.
    pub poll_fail_ns: u64,
    /// `kvm_halt_poll_ns` growths.
    pub grow: u64,
    /// `kvm_halt_poll_ns` shrinks.
    pub shrink: u64,
}

/// Host interrupts that hit a CPU while it ran a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Interrupts {
    /// The VM that was interrupted.
    pub vm: String,
    /// Whether that VM is a guess ([`Vm::guessed`]).
    pub vm_guessed: bool,
    /// The host vector, where known.
    pub vector: Option<u8>,
    /// What it is: `local_timer`, `reschedule`, `posted_intr`, … or `unknown`.
    pub name: String,
    /// How often.
    pub count: u64,
}

/// Something to look at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A stable name: `master_clock_off`, `timer_exits`, `polls_wasted`, `vcpus_stacked`,
    /// `lost_events`, `no_exit_events`, `no_sched_events`….
    pub id: String,
    /// The VM it is about, empty for the host.
    pub vm: String,
    /// Whether that VM is a guess ([`Vm::guessed`]).
    pub vm_guessed: bool,
    /// What was found.
    pub what: String,
    /// The numbers that show it.
    pub evidence: String,
    /// What to look at or change next.
    pub next: String,
}
