//! A VM of a snapshot.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A VM: a process with a KVM virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Vm {
    /// Its name as its manager shows it; a second VM of the name has its process behind it.
    pub name: String,
    /// What runs it.
    pub manager: Manager,
    /// Its id in commands of the manager: a libvirt domain, a Proxmox id, a pod, a unit.
    pub id: Option<String>,
    /// Namespace of its pod.
    pub namespace: Option<String>,
    /// Its pod.
    pub pod: Option<String>,
    /// UUID of the machine.
    pub uuid: Option<String>,
    /// Where the name is from: an option, or a path.
    pub name_source: String,
    /// The evidence for KVM.
    pub found_by: FoundBy,
    /// Its process.
    pub process: Process,
    /// Threads: vCPUs by number first, and kernel threads that work for it.
    pub threads: Vec<Thread>,
    /// Control group of the process in the hierarchy of the cpu controller.
    pub cgroup: Option<String>,
    /// The same in the hierarchy of the cpuset controller, where that is another one.
    pub cpuset_cgroup: Option<String>,
    /// Autogroup of the process with its nice value, where there is one.
    pub autogroup: Option<String>,
    /// CPU model and its options, as QEMU was started.
    pub cpu_option: Option<String>,
    /// Whether the guest may use kvmclock; `None` where no option says so.
    pub kvmclock: Option<bool>,
    /// Whether the guest may read its steal time; `None` where no option says so.
    pub steal_clock: Option<bool>,
    /// Whether HLT and MWAIT of the guest leave no exit (`-overcommit cpu-pm=on`).
    pub cpu_pm: Option<bool>,
    /// The clocksource that the guest uses. No file of the host has it: a recording may.
    pub guest_clocksource: Option<String>,
    /// Directories of its KVM virtual machines below `/sys/kernel/debug/kvm`.
    pub kvm_directories: Vec<String>,
    /// KVM's counters of the VM since its start, by name; `_ns` are times.
    pub kvm_stats: BTreeMap<String, u64>,
}

impl Vm {
    /// Its vCPU threads.
    pub fn vcpus(&self) -> impl Iterator<Item = &Thread> {
        let threads = self.threads.iter();
        threads.filter(|thread| thread.kind == ThreadKind::Vcpu)
    }
}

/// What runs a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Manager {
    /// libvirt.
    Libvirt,
    /// OpenStack Nova, by libvirt.
    Openstack,
    /// Proxmox VE.
    Proxmox,
    /// KubeVirt, by libvirt in a pod.
    Kubevirt,
    /// Kata Containers.
    Kata,
    /// Firecracker, with or without its jailer.
    Firecracker,
    /// Cloud Hypervisor.
    CloudHypervisor,
    /// A unit of systemd.
    Systemd,
    /// QEMU alone.
    Qemu,
    /// A process of another kind.
    #[default]
    Process,
}

/// The evidence that a process has a KVM virtual machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundBy {
    /// A directory below `/sys/kernel/debug/kvm`.
    Debugfs,
    /// An open file `anon_inode:kvm-vm`.
    File,
    /// The names of its threads alone: its open files cannot be read.
    #[default]
    Threads,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// Name of its first thread.
    pub name: String,
    /// Its program.
    pub program: Option<String>,
    /// Its start since the boot, which tells processes of the same id apart.
    pub start_ms: Option<u64>,
    /// Memory that it occupies (`VmRSS`): of a guest what it has touched, without huge pages of hugetlbfs.
    pub resident_bytes: Option<u64>,
}

/// What a thread of a VM does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadKind {
    /// A vCPU.
    Vcpu,
    /// The device model and its workers: what libvirt calls the emulator.
    #[default]
    Emulator,
    /// An iothread.
    Iothread,
    /// A vhost worker, which may be a thread of the kernel.
    Vhost,
    /// Another thread of the kernel: `kvm-pit`, `kvm-nx-lpage-recovery`.
    Kernel,
}

/// The evidence that a thread is a vCPU, and for its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// `vcpuN/pid` below `/sys/kernel/debug/kvm`.
    Debugfs,
    /// The name of the thread.
    Name,
    /// A control group `vcpuN`.
    Cgroup,
    /// Guest time of the thread; its number is unknown.
    GuestTime,
}

/// Scheduling policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// `SCHED_OTHER`
    Other,
    /// `SCHED_FIFO`
    Fifo,
    /// `SCHED_RR`
    Rr,
    /// `SCHED_BATCH`
    Batch,
    /// `SCHED_IDLE`
    Idle,
    /// `SCHED_DEADLINE`
    Deadline,
    /// `SCHED_EXT`
    Ext,
}

impl Policy {
    /// The policy of a number of `sched.h`.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Other,
            1 => Self::Fifo,
            2 => Self::Rr,
            3 => Self::Batch,
            5 => Self::Idle,
            6 => Self::Deadline,
            7 => Self::Ext,
            _ => return None,
        })
    }
}

/// A thread of a VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Thread {
    /// Its id.
    pub tid: i32,
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: ThreadKind,
    /// Number of the vCPU.
    pub vcpu: Option<u32>,
    /// The evidence for it.
    pub evidence: Option<Evidence>,
    /// Policy.
    pub policy: Option<Policy>,
    /// Nice value, from -20 to 19.
    pub nice: Option<i64>,
    /// Real-time priority, from 1 to 99; 0 for others.
    pub rt_priority: Option<u64>,
    /// The kernel's priority: 20 + nice, or negative for real-time tasks.
    pub priority: Option<i64>,
    /// CPUs that it may use.
    pub affinity: Option<String>,
    /// The CPU of its last run.
    pub last_cpu: Option<u32>,
    /// Guest time.
    pub guest_ms: Option<u64>,
    /// Time on CPUs.
    pub run_ns: Option<u64>,
    /// Time ready without a CPU.
    pub wait_ns: Option<u64>,
    /// Times that it got a CPU.
    pub timeslices: Option<u64>,
    /// Control group in the hierarchy of the cpu controller.
    pub cgroup: Option<String>,
    /// The same in the hierarchy of the cpuset controller, where that is another one.
    pub cpuset_cgroup: Option<String>,
    /// The vCPU's TSC offset.
    pub tsc_offset: Option<i64>,
    /// By how much the vCPU's timer fires early.
    pub timer_advance_ns: Option<u64>,
}
