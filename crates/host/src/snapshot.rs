//! What a snapshot has. Each key of the JSON with its source is in docs/snapshot.md.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::scheduler::Scheduler;
pub use crate::vm::{Evidence, FoundBy, Manager, Policy, Process, Thread, ThreadKind, Vm};

/// The version of the JSON. It rises when a key gets another meaning, not when one is added.
pub const VERSION: u32 = 1;

/// What a host knows of itself and of its VMs. `None` is what could not be read or does not exist
/// there; [`Snapshot::missing`] has the reasons.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// [`VERSION`] of the writer.
    pub version: u32,
    /// Which host this is.
    pub identity: Identity,
    /// Time of the snapshot.
    pub time: Time,
    /// The kernel.
    pub kernel: Kernel,
    /// Settings of the scheduler.
    pub sched: Sched,
    /// KVM.
    pub kvm: Kvm,
    /// CPUs.
    pub cpu: CpuInfo,
    /// Clocksources.
    pub clocksource: Clocksource,
    /// State of each vulnerability of the CPUs, in the kernel's words.
    pub mitigations: BTreeMap<String, String>,
    /// CPU time of the host since its boot.
    pub cpu_time: CpuTime,
    /// Memory.
    pub memory: Memory,
    /// Which hierarchy of control groups the host has.
    pub cgroup: CgroupInfo,
    /// The VMs' control groups, all of their ancestors, and the groups next to these below the root.
    pub cgroups: Vec<Cgroup>,
    /// VMs on KVM, by name.
    pub vms: Vec<Vm>,
    /// What could not be read.
    pub missing: Vec<Missing>,
    /// In a recording: the host when it began; this one is of its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Box<Snapshot>>,
}

/// Use of a control group's limit between two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// Its path.
    pub path: String,
    /// Periods with a demand.
    pub periods: u64,
    /// Of these, periods in which the quota was used up.
    pub throttled_periods: u64,
    /// Time in which its tasks could not run for it, added over CPUs.
    pub throttled_us: u64,
}

impl Snapshot {
    /// All VMs: those of [`Self::before`] that have ended, too.
    pub fn all_vms(&self) -> impl Iterator<Item = &Vm> {
        let begin = self.before.iter().flat_map(|begin| &begin.vms);
        let is_same = |a: &Vm, b: &Vm| {
            (a.process.pid, a.process.start_ms) == (b.process.pid, b.process.start_ms)
        };
        let ended = begin.filter(move |ended| !self.vms.iter().any(|vm| is_same(ended, vm)));
        self.vms.iter().chain(ended)
    }

    /// Groups that their limit has stopped since [`Self::before`].
    #[must_use]
    pub fn throttled(&self) -> Vec<Throttled> {
        let key = |group: &Cgroup| (group.path.clone(), group.hierarchy.clone());
        let begin = self.before.iter().flat_map(|begin| &begin.cgroups);
        let begin: BTreeMap<_, &Cgroup> = begin.map(|group| (key(group), group)).collect();
        let throttled = |group: &Cgroup| {
            let first = begin.get(&key(group))?;
            // A group of the same name that was made anew counts from zero.
            let grown = |last: Option<u64>, first: Option<u64>| last?.checked_sub(first?);
            let throttled = Throttled {
                path: group.path.clone(),
                periods: grown(group.periods, first.periods)?,
                throttled_periods: grown(group.throttled_periods, first.throttled_periods)?,
                throttled_us: grown(group.throttled_us, first.throttled_us)?,
            };
            (throttled.throttled_periods > 0).then_some(throttled)
        };
        self.cgroups.iter().filter_map(throttled).collect()
    }
}

/// A value that a snapshot lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Missing {
    /// The key of the value, such as `sched.features`.
    pub what: String,
    /// The reason, with the first file or process it concerns.
    pub why: String,
    /// Number of files or processes with this reason.
    pub times: u64,
}

/// What tells hosts and boots of them apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// Its name.
    pub hostname: Option<String>,
    /// HMAC-SHA-256 of the machine id, as machine-id(5) asks for.
    pub machine_id_hash: Option<String>,
    /// Random id of the boot.
    pub boot_id: Option<String>,
    /// Release of the kernel.
    pub kernel_release: Option<String>,
    /// Architecture, as `uname -m`.
    pub architecture: Option<String>,
}

/// Why two snapshots, or a snapshot and a recording, do not belong together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} differs: {first} and {second}")]
pub struct Mismatch {
    /// The value that differs.
    pub what: &'static str,
    /// As the first has it.
    pub first: String,
    /// As the second has it.
    pub second: String,
}

impl Identity {
    /// The first sign that `recorded` is another host, or another boot of this one. Values that one of
    /// them lacks are no sign.
    #[must_use]
    pub fn mismatch(&self, recorded: &Self) -> Option<Mismatch> {
        let pairs = [
            (
                "the machine id",
                &self.machine_id_hash,
                &recorded.machine_id_hash,
            ),
            ("the host's name", &self.hostname, &recorded.hostname),
            ("the kernel", &self.kernel_release, &recorded.kernel_release),
            (
                "the architecture",
                &self.architecture,
                &recorded.architecture,
            ),
            ("the boot", &self.boot_id, &recorded.boot_id),
        ];
        let mut pairs = pairs.into_iter();
        pairs.find_map(|(value, first, second)| match (first, second) {
            (Some(first), Some(second)) if first != second => Some(Mismatch {
                what: value,
                first: first.clone(),
                second: second.clone(),
            }),
            _ => None,
        })
    }
}

/// When a snapshot begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Time {
    /// Since the boot, suspend included, in hundredths of a second as ns.
    pub uptime_ns: Option<u64>,
    /// The boot, in seconds since 1970.
    pub boot_s: Option<u64>,
}

/// The kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kernel {
    /// Its release.
    pub release: Option<String>,
    /// Its version with compiler and date.
    pub version: Option<String>,
    /// Its command line.
    pub command_line: Option<String>,
    /// Ticks per second (`CONFIG_HZ`).
    pub hz: Option<u32>,
    /// Where `hz` is from: a path, or `jiffies`.
    pub hz_source: Option<String>,
    /// Preemption.
    pub preempt: Preempt,
    /// Options of the build that concern scheduling, ticks and KVM.
    pub config: BTreeMap<String, String>,
    /// Where `config` is from.
    pub config_source: Option<String>,
}

/// Preemption of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Preempt {
    /// `none`, `voluntary`, `full`, `lazy` or `rt`.
    pub mode: Option<String>,
    /// Where it is from: a path, `preempt=` of the command line, or `config`.
    pub source: Option<String>,
    /// What a running kernel can change to.
    pub choices: Vec<String>,
}

/// The scheduler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sched {
    /// Features, those that are off with `NO_`; none where they are unknown.
    pub features: Vec<String>,
    /// Values of debugfs by file name (`base_slice_ns`), in the unit of the name.
    pub values: BTreeMap<String, String>,
    /// Scheduling settings of sysctl by name.
    pub sysctl: BTreeMap<String, String>,
    /// State of `sched_ext`: `disabled`, `enabled`.
    pub ext_state: Option<String>,
    /// Name of the loaded `sched_ext` scheduler.
    pub ext_ops: Option<String>,
    /// What that one has counted, if it is `scx_stealtime`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Scheduler>,
}

/// KVM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kvm {
    /// Whether `/dev/kvm` exists.
    pub device: bool,
    /// Parameters of each of its modules that is loaded.
    pub modules: BTreeMap<String, BTreeMap<String, String>>,
}

/// CPUs of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuInfo {
    /// `GenuineIntel`, `AuthenticAMD`.
    pub vendor: Option<String>,
    /// The model's name.
    pub model: Option<String>,
    /// Family, model and stepping.
    pub signature: Option<String>,
    /// Revision of the microcode.
    pub microcode: Option<String>,
    /// Flags of CPU 0.
    pub flags: Vec<String>,
    /// VMX capabilities of CPU 0 in the kernel's words.
    pub vmx_flags: Vec<String>,
    /// Whether the host is a VM itself. `None` where flags are unknown.
    pub is_guest: Option<bool>,
    /// Model of the machine.
    pub machine: Option<String>,
    /// Those that are online.
    pub online: Option<String>,
    /// Those that may be plugged in.
    pub possible: Option<String>,
    /// Without balancing, by `isolcpus=`.
    pub isolated: Option<String>,
    /// Isolated by a partition of cpusets.
    pub cpuset_isolated: Option<String>,
    /// Without ticks while one task runs, by `nohz_full=`.
    pub nohz_full: Option<String>,
    /// Online and not in `nohz_full`: timers may move here.
    pub housekeeping: Option<String>,
    /// Whether SMT siblings are online.
    pub smt_active: Option<bool>,
    /// `on`, `off`, `forceoff`, `notsupported`, `notimplemented`.
    pub smt_control: Option<String>,
    /// Each CPU.
    pub cpus: Vec<Cpu>,
    /// Each cache once.
    pub caches: Vec<Cache>,
    /// NUMA nodes.
    pub nodes: Vec<Node>,
    /// Idle states.
    pub idle: Idle,
}

/// A CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Its number.
    pub cpu: u32,
    /// Package.
    pub package: Option<i64>,
    /// Die within the package.
    pub die: Option<i64>,
    /// Core within the package.
    pub core: Option<i64>,
    /// NUMA node.
    pub node: Option<u32>,
    /// CPUs of the same core, itself included.
    pub siblings: Option<String>,
    /// CPUs of the same last-level cache, itself included.
    pub llc: Option<String>,
    /// Governor of its frequency.
    pub governor: Option<String>,
    /// Driver of its frequency.
    pub frequency_driver: Option<String>,
    /// Lowest and highest frequency allowed.
    pub min_khz: Option<u64>,
    /// The highest one.
    pub max_khz: Option<u64>,
    /// CPU time since the boot.
    pub time: Option<CpuTime>,
    /// Entries into each of the idle states, and time in them.
    pub idle: Vec<IdleUse>,
}

/// A cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cache {
    /// Its level, from 1.
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Its size.
    pub size_bytes: Option<u64>,
    /// CPUs that share it.
    pub cpus: String,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its number.
    pub node: u32,
    /// Its CPUs.
    pub cpus: Option<String>,
    /// Its memory.
    pub memory_bytes: Option<u64>,
    /// Distances to all nodes.
    pub distances: Vec<u32>,
}

/// How idle CPUs wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Idle {
    /// Driver: `intel_idle`, `acpi_idle`, `none`.
    pub driver: Option<String>,
    /// Governor: `menu`, `teo`, `haltpoll`.
    pub governor: Option<String>,
    /// States, the shallowest first.
    pub states: Vec<IdleState>,
}

/// An idle state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleState {
    /// Its index.
    pub index: u32,
    /// Its name: `POLL`, `C1E`.
    pub name: String,
    /// The driver's words: `MWAIT 0x60`.
    pub description: Option<String>,
    /// To leave it.
    pub exit_latency_us: Option<u64>,
    /// For which entering it pays.
    pub target_residency_us: Option<u64>,
    /// CPUs that have it.
    pub cpus: String,
    /// CPUs on which it is switched off.
    pub disabled_cpus: String,
}

/// Use of an idle state by a CPU since the boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleUse {
    /// Index of the state.
    pub index: u32,
    /// Entries.
    pub entries: Option<u64>,
    /// Time in it.
    pub time_us: Option<u64>,
}

/// Clocksources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clocksource {
    /// The one in use.
    pub current: Option<String>,
    /// All, the best first.
    pub available: Vec<String>,
}

/// CPU time by kind. `/proc/stat` counts hundredths of a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuTime {
    /// In user mode, guests' included.
    pub user_ms: u64,
    /// The same of tasks with a positive nice value.
    pub nice_ms: u64,
    /// In the kernel.
    pub system_ms: u64,
    /// Idle.
    pub idle_ms: u64,
    /// Idle while I/O is outstanding.
    pub iowait_ms: u64,
    /// In interrupts.
    pub irq_ms: u64,
    /// In softirqs.
    pub softirq_ms: u64,
    /// Ready while the hypervisor below runs something else.
    pub steal_ms: u64,
    /// In guests.
    pub guest_ms: u64,
    /// In guests with a positive nice value.
    pub guest_nice_ms: u64,
}

impl CpuTime {
    /// All of it; guests' time is within `user_ms` and `nice_ms`.
    #[must_use]
    pub const fn total_ms(&self) -> u64 {
        self.user_ms
            + self.nice_ms
            + self.system_ms
            + self.idle_ms
            + self.iowait_ms
            + self.irq_ms
            + self.softirq_ms
            + self.steal_ms
    }
}

/// Memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// All of it.
    pub total_bytes: Option<u64>,
    /// What new processes can have without swapping (`MemAvailable`).
    pub available_bytes: Option<u64>,
    /// Transparent huge pages: `always`, `madvise`, `never`.
    pub transparent_hugepages: Option<String>,
    /// Reserved huge pages of the default size.
    pub hugepages: Option<u64>,
    /// Their size.
    pub hugepage_bytes: Option<u64>,
    /// KSM: 0 off, 1 merges, 2 has unmerged all.
    pub ksm_run: Option<u32>,
}

/// Control groups of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CgroupInfo {
    /// `v2`; `v1` or `hybrid` where the cpu controller is in a v1 hierarchy; `none`.
    pub version: String,
    /// Mount point with the cpu controller.
    pub cpu_mount: Option<String>,
    /// Mount point with the cpuset controller.
    pub cpuset_mount: Option<String>,
}

/// A control group. Limits are `None` at the root, and where the parent has not enabled the
/// controller: then the group has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cgroup {
    /// Its path below the mount point; `/` is the root.
    pub path: String,
    /// `v2`, or the controller of a v1 hierarchy: `cpu`, `cpuset`.
    pub hierarchy: String,
    /// `cpu.weight`, from 1 to 10,000; 100 is the default.
    pub weight: Option<u64>,
    /// The same as a nice value (`cpu.weight.nice`).
    pub weight_nice: Option<i64>,
    /// Whether its tasks are as those of `SCHED_IDLE` (`cpu.idle`).
    pub idle: Option<bool>,
    /// `cpu.shares` of v1; 1024 is the default.
    pub shares: Option<u64>,
    /// CPU time in each period; `None` without a limit.
    pub quota_us: Option<u64>,
    /// The period of the quota.
    pub period_us: Option<u64>,
    /// CPU time of former periods that may be used at most.
    pub burst_us: Option<u64>,
    /// `cpuset.cpus`: CPUs that are configured; empty for those of the parent.
    pub cpus: Option<String>,
    /// CPUs that its tasks may use.
    pub effective_cpus: Option<String>,
    /// `cpuset.cpus.partition`: `member`, `root`, `isolated`.
    pub partition: Option<String>,
    /// `domain`, `threaded`, `domain threaded`.
    pub kind: Option<String>,
    /// CPU time.
    pub usage_us: Option<u64>,
    /// Periods with a demand.
    pub periods: Option<u64>,
    /// Periods in which the quota was used up.
    pub throttled_periods: Option<u64>,
    /// Time in which its tasks could not run for it, added over CPUs.
    pub throttled_us: Option<u64>,
}
