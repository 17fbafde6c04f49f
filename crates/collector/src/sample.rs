//! What a host did in one interval.

use serde::Serialize;

use crate::histogram::{Buckets, Classes};

/// The time that runnable vCPUs waited for a CPU, by what the CPU did meanwhile, in ns. The names are
/// those of `analyze` (docs/analysis.md).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Ready {
    /// It ran another vCPU of the same VM.
    pub vcpu_same_vm: u64,
    /// It ran a vCPU of another VM.
    pub vcpu_other_vm: u64,
    /// It ran another thread of a VMM: emulator, iothread, vhost.
    pub vmm_thread: u64,
    /// It ran a thread of the kernel.
    pub kernel_thread: u64,
    /// It ran another task.
    pub host_task: u64,
    /// It handled interrupts.
    pub irq: u64,
    /// It was idle, because the vCPU's bandwidth was used up.
    pub throttled: u64,
    /// It was idle, or on its way out of idle.
    pub idle: u64,
    /// Not known.
    pub unknown: u64,
}

impl Ready {
    /// Names and times of all causes.
    #[must_use]
    pub const fn rows(&self) -> [(&'static str, u64); 9] {
        [
            ("vcpu_same_vm", self.vcpu_same_vm),
            ("vcpu_other_vm", self.vcpu_other_vm),
            ("vmm_thread", self.vmm_thread),
            ("kernel_thread", self.kernel_thread),
            ("host_task", self.host_task),
            ("irq", self.irq),
            ("throttled", self.throttled),
            ("idle", self.idle),
            ("unknown", self.unknown),
        ]
    }

    /// Time of all causes, in ns.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.rows().iter().map(|row| row.1).sum()
    }

    /// Adds that of another.
    pub const fn add(&mut self, added: &Self) {
        self.vcpu_same_vm += added.vcpu_same_vm;
        self.vcpu_other_vm += added.vcpu_other_vm;
        self.vmm_thread += added.vmm_thread;
        self.kernel_thread += added.kernel_thread;
        self.host_task += added.host_task;
        self.irq += added.irq;
        self.throttled += added.throttled;
        self.idle += added.idle;
        self.unknown += added.unknown;
    }
}

/// Where the time of vCPU threads went, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// In the guest.
    pub guest_ns: u64,
    /// On a CPU outside the guest: handling exits, in KVM or in the VMM.
    pub exit_ns: u64,
    /// Polling for a wakeup instead of sleeping.
    pub poll_ns: u64,
    /// Asleep: the guest is halted, or the thread is blocked in the VMM.
    pub halt_ns: u64,
    /// Runnable, not on a CPU: steal. The sum of `ready`.
    pub ready_ns: u64,
    /// `ready_ns` by cause.
    pub ready: Ready,
    /// The thread's state is not known.
    pub unknown_ns: u64,
    /// Number of exits.
    pub exits: u64,
}

impl Times {
    /// All of it: of a vCPU that starts or ends within the interval, less than the interval.
    #[must_use]
    pub const fn total_ns(&self) -> u64 {
        let on_cpu = self.guest_ns + self.exit_ns + self.poll_ns;
        on_cpu + self.halt_ns + self.ready_ns + self.unknown_ns
    }

    /// Adds that of another.
    pub const fn add(&mut self, added: &Self) {
        self.guest_ns += added.guest_ns;
        self.exit_ns += added.exit_ns;
        self.poll_ns += added.poll_ns;
        self.halt_ns += added.halt_ns;
        self.ready_ns += added.ready_ns;
        self.ready.add(&added.ready);
        self.unknown_ns += added.unknown_ns;
        self.exits += added.exits;
    }
}

/// Times from `sched_waking` of a vCPU to its run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Wakeups {
    /// Number of wakeups.
    pub count: u64,
    /// Median in ns, within 0.4 %.
    pub p50_ns: u64,
    /// 99th percentile in ns, within 0.4 %.
    pub p99_ns: u64,
    /// The longest in ns, exact.
    pub max_ns: u64,
}

/// Exits for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Exits {
    /// The exit reason, as `analyze` names it.
    pub reason: String,
    /// Number of exits.
    pub count: u64,
    /// On-CPU time outside the guest for them, without polling, in ns.
    pub ns: u64,
}

/// A wait of a vCPU for a CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Stall {
    /// The vCPU.
    pub vcpu: u32,
    /// Its thread.
    pub tid: i32,
    /// Begin, in ns of the trace's clock.
    pub start_ns: u64,
    /// Its length so far, in ns.
    pub ns: u64,
    /// `waking` after a wakeup, else `preempted`.
    pub kind: &'static str,
    /// The last CPU that it waited for.
    pub cpu: u16,
    /// What the CPU did for the largest part of it; a name of [`Ready`].
    pub cause: &'static str,
    /// The task, the other VM or the softirq of that cause; empty for causes without a name.
    pub who: String,
    /// It still waits.
    pub goes_on: bool,
}

/// A vCPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Vcpu {
    /// Its number in the VM; 4294967295: not known.
    pub vcpu: u32,
    /// Its thread.
    pub tid: i32,
    /// Where its time went.
    #[serde(flatten)]
    pub times: Times,
    /// Its wakeups.
    pub wakeups: Wakeups,
    /// Its longest wait for a CPU that ended or goes on, in ns.
    pub stall_ns: u64,
    /// Its thread has ended.
    pub has_ended: bool,
}

/// A VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Vm {
    /// Its name.
    pub vm: String,
    /// Its process; `None`: not known.
    pub pid: Option<i32>,
    /// Which vCPUs it has is a guess.
    pub guessed: bool,
    /// Sum over its vCPUs.
    #[serde(flatten)]
    pub times: Times,
    /// Wakeups of its vCPUs.
    pub wakeups: Wakeups,
    /// Its exits by reason, most time first.
    pub exits_by_reason: Vec<Exits>,
    /// Its longest waits, longest first.
    pub stalls: Vec<Stall>,
    /// Its vCPUs by number.
    pub vcpus: Vec<Vcpu>,
    /// Its wakeups by latency.
    #[serde(skip)]
    pub wakeup_classes: Classes,
    /// The same in finer buckets.
    #[serde(skip)]
    pub wakeup_buckets: Buckets,
    /// Its ended waits for a CPU by length.
    #[serde(skip)]
    pub stall_classes: Classes,
    /// The same in finer buckets.
    #[serde(skip)]
    pub stall_buckets: Buckets,
}

/// A CPU of the host; times in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Its number.
    pub cpu: u16,
    /// It ran vCPU threads.
    pub vcpu_ns: u64,
    /// It ran other tasks.
    pub other_ns: u64,
    /// It was idle.
    pub idle_ns: u64,
    /// vCPUs waited for it; several can wait at once.
    pub waiting_ns: u64,
}

/// What a host did from `start_ns` to `end_ns`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Begin, in ns of the trace's clock.
    pub start_ns: u64,
    /// End, in ns.
    pub end_ns: u64,
    /// Events were lost, the clock has jumped, or an earlier sample was dropped: times and counts are lower
    /// bounds.
    pub partial: bool,
    /// Number of events.
    pub events: u64,
    /// Number of lost events, as far as it is known.
    pub lost: u64,
    /// Losses of an unknown number of events.
    pub lost_gaps: u64,
    /// CPUs of the host.
    pub cpus: Vec<Cpu>,
    /// VMs.
    pub vms: Vec<Vm>,
}

impl Sample {
    /// Its length, in ns.
    #[must_use]
    pub const fn length_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}
