//! The answers: plain data, serialized as they are. The keys are documented and stable.
//!
//! Times are integer nanoseconds of the trace's clock (`source.clock_unit` says when they are ticks
//! instead). Percentages are floats computed at the very end. `null` means that the recording cannot
//! say, which `findings` or `source.notes` explain; it never means zero.
//!
//! ```
//! use stealtime_analysis::{Analysis, Options, answers};
//! use stealtime_events::{NameId, Names};
//!
//! struct NoNames;
//! impl Names for NoNames {
//!     fn name(&self, _: NameId) -> &str {
//!         ""
//!     }
//! }
//!
//! // Of no events at all: what they would have said is missing, not zero.
//! let found: answers::Answers = Analysis::new(Options::default()).finish(&NoNames);
//! assert!(found.vcpus.is_empty() && found.vms.is_empty());
//! ```

mod overview;

pub use overview::{
    CpuOverTime, CpuUse, Host, OverTime, Stall, VmOverTime, VmState, VmmThreads, WaitClass, Waits,
};

use serde::Serialize;

/// Everything that one pass over a trace says.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Answers {
    /// The recording.
    pub source: Source,
    /// Count of each tracepoint, most frequent first.
    pub events: Vec<EventCount>,
    /// The VMs found.
    pub vms: Vec<Vm>,
    /// The host.
    pub host: Host,
    /// The longest waits of vCPUs for a CPU, longest first.
    pub stalls: Vec<Stall>,
    /// Single waits, by VM.
    pub waits: Vec<Waits>,
    /// The states of whole VMs.
    pub vm_states: Vec<VmState>,
    /// CPU time of the VMMs' other threads, by VM and role.
    pub vmm_threads: Vec<VmmThreads>,
    /// Steal and use of CPUs over time.
    pub over_time: OverTime,
    /// Exits by VM and reason.
    pub exits: Vec<KeyRow>,
    /// Exits by reason over all VMs selected: `perf kvm stat report`.
    pub exit_totals: Vec<KeyRow>,
    /// MSR accesses: `perf kvm stat report --event=msr`.
    pub msr: Vec<KeyRow>,
    /// Port I/O: `perf kvm stat report --event=ioport`.
    pub ioport: Vec<KeyRow>,
    /// MMIO: `perf kvm stat report --event=mmio`.
    pub mmio: Vec<KeyRow>,
    /// The time split of each vCPU.
    pub vcpus: Vec<VcpuTime>,
    /// Time in which a runnable vCPU does not run, by the occupant of the CPU.
    pub ready: Vec<Ready>,
    /// Latencies by VM and kind.
    pub latencies: Vec<Latency>,
    /// Spinning and directed yield, by VM.
    pub yields: Vec<Yields>,
    /// Directed yields that `scx_stealtime` decided on, by the snapshots of the host.
    pub scheduler: Vec<SchedulerCount>,
    /// Halt polling, by VM.
    pub halt_polls: Vec<HaltPolls>,
    /// Host interrupts that hit a CPU while it runs a guest.
    pub interrupts: Vec<Interrupts>,
    /// Findings, most costly first.
    pub findings: Vec<Finding>,
    /// Distributions of exits, waits and latencies, which those of other recordings can be added to. Empty
    /// unless [`crate::Options::histograms`] asks for them.
    #[serde(skip)]
    pub histograms: Vec<Bucket>,
}

/// How many durations of a distribution are about as long.
///
/// Rows with the same `vm`, `table`, `key` and `detail` are one distribution. Bounds are the same in each
/// recording: counts with the same `up_to_ns` add up, and a percentile of the sums is right to 0.8 %.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// The VM.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// `exits`: from the exit to the next entry. `waits`: single waits for a CPU. `latency`: as in that
    /// table.
    pub table: String,
    /// The exit's reason, or the kind of latency; empty for waits.
    pub key: String,
    /// `detail` of that latency; else empty.
    pub detail: String,
    /// The longest duration of the bucket. The shortest is 127/128 of it or more.
    pub up_to_ns: u64,
    /// Durations in it.
    pub count: u64,
}

/// The recording.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Source {
    /// The file as named on the command line.
    pub path: String,
    /// The container: `trace.dat v7`, `trace.dat v6`, `perf.data`, `perf.data (pipe)`, `ftrace
    /// text`.
    pub format: String,
    /// The compression around it: `zstd`, `xz`, `gzip`; `null`: none.
    pub compression: Option<String>,
    /// The trace clock's name; empty: not in the file.
    pub clock: String,
    /// `ns`, or `ticks` where the clock cannot be converted.
    pub clock_unit: String,
    /// Of the recorded host; `null`: not in the file.
    pub uname: Option<String>,
    /// CPUs of the host, known or seen.
    pub cpus: u32,
    /// Events in the selection of time and CPUs.
    pub events: u64,
    /// Events known to be lost.
    pub lost: u64,
    /// Gaps with an unknown number of lost events.
    pub lost_gaps: u64,
    /// Events earlier than the one before them.
    pub out_of_order: u64,
    /// Time of the recording's first event.
    pub first_ns: u64,
    /// Time of the last.
    pub last_ns: u64,
    /// `last_ns - first_ns`.
    pub span_ns: u64,
    /// Whether a part of the recording is unread: cut short, corrupt, undecodable.
    pub partial: bool,
    /// Limits of the result that a reader must know, a sentence each; the options that select a
    /// part.
    pub notes: Vec<String>,
}

/// How often a tracepoint fired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventCount {
    /// The tracepoint without its system, as the recording has it.
    pub name: String,
    /// Number of its events in the selection.
    pub count: u64,
    /// Its name in today's kernels if it differs (`hrtimer_init` is `hrtimer_setup`), else null.
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
    /// Its name: from the recording, `--vm-of`, the host's snapshot or the process, or made from its number
    /// (`pid346`). Without a process: `vm0`, `vm1`… A second VM of a name has its process behind it:
    /// `web (346)`.
    pub vm: String,
    /// The VMM's process; `null`: not known.
    pub pid: Option<i32>,
    /// Its vCPU threads.
    pub vcpus: u32,
    /// The evidence that its threads are one VM: `recorded`, `user` (`--vm-of`), `snapshot`, `process`,
    /// `interaction` or `order`. Interaction: which vCPU sends interrupts to which. Order: a guess by
    /// thread ids.
    pub grouped_by: String,
    /// Whether its set of threads is a guess, by the order of their ids and with other VMs in the
    /// recording. Tables show such a name with a `?`, which is no part of it.
    pub guessed: bool,
}

/// A row of `perf kvm stat report`, and percentiles.
///
/// Also the rows of `exit_totals`, `msr`, `ioport` and `mmio`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KeyRow {
    /// The VM; `*`: all.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// As `perf kvm stat` prints it: `EPT_VIOLATION`, `npf`, `0x80b:W`, `0x3f8:POUT`.
    pub reason: String,
    /// Number of samples.
    pub samples: u64,
    /// Of all samples in the table.
    pub samples_percent: f64,
    /// Sum of their times, from the exit to the next entry, with sleep and waiting.
    pub time_ns: u64,
    /// Of all time in the table.
    pub time_percent: f64,
    /// The shortest.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The mean.
    pub avg_ns: f64,
    /// Standard error of the mean, in percent of the mean: perf's `+-`.
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

/// Where one vCPU's time went.
///
/// `span_ns` is exactly the sum of `guest_ns`, `exit_ns`, `poll_ns`, `halt_ns`, `preempted_ns` and
/// `wake_wait_ns`; where the first three are `null`, `on_cpu_ns` stands for them. Steal is
/// `preempted_ns + wake_wait_ns`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VcpuTime {
    /// The VM.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// Its number in the VM; 4294967295: not in the trace.
    pub vcpu: u32,
    /// The thread's name.
    pub task: String,
    /// The thread's id.
    pub tid: i32,
    /// Time in which the thread's state is known.
    pub span_ns: u64,
    /// On a CPU: `guest_ns + exit_ns + poll_ns`.
    pub on_cpu_ns: u64,
    /// In the guest; `null`: unknown without `kvm_entry` and `kvm_exit`.
    pub guest_ns: Option<u64>,
    /// On a CPU outside the guest: handling exits, in KVM or in the VMM; `null` as above.
    pub exit_ns: Option<u64>,
    /// Polling for a wakeup instead of sleeping; `null` as above.
    pub poll_ns: Option<u64>,
    /// Asleep: the guest is halted, or the thread is blocked in the VMM.
    pub halt_ns: u64,
    /// Runnable, but taken off its CPU.
    pub preempted_ns: u64,
    /// Runnable after a wakeup, but not yet on a CPU.
    pub wake_wait_ns: u64,
    /// Of `halt_ns`: blocked outside of a halt, as a thread of the VMM.
    pub blocked_ns: u64,
    /// Of `poll_ns`: polls that end because of a wakeup.
    pub poll_useful_ns: u64,
    /// Of `poll_ns`: polls that end in sleep.
    pub poll_wasted_ns: u64,
    /// Whether its polling window is above 0 before the window's first change. Only the export to
    /// Perfetto needs it, to draw those polls.
    #[serde(skip)]
    pub polls_at_first: bool,
    /// Of `guest_ns` and `exit_ns`: spinning that ends in a PAUSE exit, and handling that exit;
    /// `null`: not known.
    pub spin_ns: Option<u64>,
    /// In addition to the span: time with lost events or an unknown state.
    pub unknown_ns: u64,
    /// `exit_ns` by exit reason, largest first.
    pub exit_ns_by_reason: Vec<ReasonTime>,
}

/// Time for one exit reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ReasonTime {
    /// The exit reason; `(no exit seen)`: before the first exit.
    pub reason: String,
    /// Number of exits.
    pub count: u64,
    /// On-CPU time outside the guest for them.
    pub ns: u64,
}

/// Time in which a runnable vCPU did not run, and what its CPU did instead.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Ready {
    /// The VM that waits.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// The vCPU that waits.
    pub vcpu: u32,
    /// The occupant of the CPU. Of tasks: `vcpu_same_vm`, `vcpu_other_vm`, `vmm_thread` (emulator, vhost,
    /// I/O threads), `kernel_thread`, `host_task`. Of interrupts and softirqs: `irq`. Without one:
    /// `throttled` (the vCPU's bandwidth is used up), `idle` (wakeup latency), `unknown`.
    pub cause: String,
    /// The task's name, the other VM, the softirq; empty for causes without a name.
    pub who: String,
    /// The time waited.
    pub ns: u64,
}

/// [`Ready::cause`] in words.
#[must_use]
pub fn cause_in_words(cause: &str) -> &str {
    match cause {
        "vcpu_same_vm" => "vCPU, same VM",
        "vcpu_other_vm" => "vCPU, other VM",
        "vmm_thread" => "VMM thread",
        "kernel_thread" => "kernel thread",
        "host_task" => "host task",
        "irq" => "interrupt work",
        "throttled" => "(bandwidth used up)",
        "idle" => "idle (wakeup)",
        "unknown" => "(not known)",
        other => other,
    }
}

/// A latency's distribution.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// The VM.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// `wakeup` is runnable to running. From the ICR write: `ipi_accept` to the target's IRR, `ipi_inject`
    /// to injection, `ipi_eoi` to EOI. From the expiry: `timer` to injection, `timer_expire` to its
    /// handler. `injection` is IRR to injection.
    pub kind: String,
    /// The difference between rows of one kind: the timer's backend, the wakeup's cause; else
    /// empty.
    pub detail: String,
    /// Number of latencies.
    pub count: u64,
    /// Median, within 0.1 %.
    pub p50_ns: u64,
    /// 90th percentile, within 0.1 %.
    pub p90_ns: u64,
    /// 99th percentile, within 0.1 %.
    pub p99_ns: u64,
    /// The longest, exact.
    pub max_ns: u64,
}

/// Spinning vCPUs and what was done about them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Yields {
    /// The VM.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// PAUSE exits.
    pub pause_exits: u64,
    /// Of these: followed by a switch to another vCPU of the VM before the next entry.
    pub switched_to_same_vm: u64,
    /// Of these: followed by a switch to anything else.
    pub switched_elsewhere: u64,
    /// Changes of the PLE window upwards.
    pub ple_grow: u64,
    /// Changes downwards.
    pub ple_shrink: u64,
    /// The largest PLE window seen.
    pub ple_window_max: u32,
}

/// What `scx_stealtime` counted while the recording was made. A selection of a part changes nothing here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SchedulerCount {
    /// `served` and `refused` directed yields; what became of their `target`; `loan` of a slice; `request`
    /// of a yielder; `credit` of lag; `ipi` between vCPUs.
    pub what: String,
    /// Of `served` what ran: `receiver` of the yielder's IPI, vCPU with a `pending` interrupt, KVM's
    /// `nominee`. Of `refused` the reason. Of `target`: `picked` next, or `missed`. Of `loan`: `lent`,
    /// `returned` by the answer, `expired` by a timer. Of `request`: `given` to a nominee. Of `credit`:
    /// `paid`. Of `ipi`: `tracked` ones, `confirmed` by the EOIs of all receivers, `broadcast` to several.
    pub kind: String,
    /// How many.
    pub count: u64,
    /// A sum. Of `picked` targets the time from yields until they ran. Of `lent` slices what targets ran at
    /// the yielder's cost. Of `paid` credits the service they moved.
    pub ns: Option<u64>,
    /// Of `picked` targets: half of them ran within this time, which is a power of two in us.
    pub half_within_ns: Option<u64>,
}

/// Halt polling.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HaltPolls {
    /// The VM.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// Halts.
    pub halts: u64,
    /// Halts that end while polling.
    pub poll_success: u64,
    /// Halts that poll and still sleep.
    pub poll_fail: u64,
    /// Time polled with success.
    pub poll_success_ns: u64,
    /// Time polled without success.
    pub poll_fail_ns: u64,
    /// `kvm_halt_poll_ns` growths.
    pub grow: u64,
    /// `kvm_halt_poll_ns` shrinks.
    pub shrink: u64,
}

/// Host interrupts that hit a CPU while it ran a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Interrupts {
    /// The interrupted VM.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// The host's vector; `null`: not known.
    pub vector: Option<u8>,
    /// `local_timer`, `reschedule`, `posted_intr`, `device`…, or `unknown`.
    pub name: String,
    /// Number of interrupts.
    pub count: u64,
}

/// Something to look at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A stable name: `steal`, `master_clock_off`, `polls_wasted`, `vcpus_stacked`, `lost_events`…
    pub id: String,
    /// The VM it is about; empty: the host.
    pub vm: String,
    /// `guessed` of that VM.
    pub vm_guessed: bool,
    /// The finding.
    pub what: String,
    /// The numbers that show it.
    pub evidence: String,
    /// What to look at or change.
    pub next: String,
}
