//! The host.

use super::Profile;
use super::workload::WorkloadConfig;

/// How CPUs hang together. All CPUs are counted through as Linux numbers them on such machines:
/// first one thread of each core, socket by socket, then the second threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Packages, [1, 4096].
    pub sockets: u32,
    /// Last-level caches in a socket, [1, 64].
    pub llcs_per_socket: u32,
    /// Cores that share a last-level cache, [1, 4096].
    pub cores_per_llc: u32,
    /// Hardware threads of a core, 1 or 2.
    pub threads_per_core: u32,
}

impl Topology {
    /// One socket of `cpus` cores without SMT.
    #[must_use]
    pub const fn flat(cpus: u32) -> Self {
        Self {
            sockets: 1,
            llcs_per_socket: 1,
            cores_per_llc: cpus,
            threads_per_core: 1,
        }
    }

    /// Cores of the host.
    #[must_use]
    pub const fn cores(&self) -> u32 {
        self.sockets * self.llcs_per_socket * self.cores_per_llc
    }

    /// Logical CPUs of the host.
    #[must_use]
    pub const fn cpus(&self) -> u32 {
        self.cores() * self.threads_per_core
    }

    /// The core of a CPU.
    #[must_use]
    pub const fn core_of(&self, cpu: u32) -> u32 {
        cpu % self.cores()
    }

    /// The last-level cache of a CPU.
    #[must_use]
    pub const fn llc_of(&self, cpu: u32) -> u32 {
        self.core_of(cpu) / self.cores_per_llc
    }

    /// The socket of a CPU.
    #[must_use]
    pub const fn socket_of(&self, cpu: u32) -> u32 {
        self.llc_of(cpu) / self.llcs_per_socket
    }

    /// The other hardware thread of a CPU's core.
    #[must_use]
    pub const fn sibling_of(&self, cpu: u32) -> Option<u32> {
        if self.threads_per_core < 2 {
            return None;
        }
        let cores = self.cores();
        Some(if cpu < cores {
            cpu + cores
        } else {
            cpu - cores
        })
    }
}

/// Which hypervisor the host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Hypervisor {
    /// Linux with KVM.
    #[default]
    Kvm,
    /// Xen.
    Xen,
}

/// How idle CPUs of the host wait (`idle=`, `intel_idle`, `acpi_idle`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IdleMethod {
    /// MONITOR/MWAIT: a write to the flag wakes, without an interrupt.
    #[default]
    Mwait,
    /// HLT and port reads: an interrupt wakes.
    Hlt,
    /// A loop that polls the flag (`idle=poll`).
    Poll,
}

/// A task of the host that competes with guests: a third party, a vhost worker, a VMM.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskConfig {
    /// Name, as `comm` shows it.
    pub name: String,
    /// What it does.
    pub workload: WorkloadConfig,
    /// How many of them, [1, 65536].
    pub count: u32,
    /// Nice value, [-20, 19].
    pub nice: i8,
    /// CPUs that it may run on; empty for all.
    pub cpus: Vec<u32>,
}

/// The machine and what is not a guest.
#[derive(Clone, Debug, PartialEq)]
pub struct HostConfig {
    /// Costs and features of the hardware.
    pub profile: Profile,
    /// CPUs.
    pub topology: Topology,
    /// KVM or Xen.
    pub hypervisor: Hypervisor,
    /// How idle CPUs wait.
    pub idle: IdleMethod,
    /// Other tasks.
    pub tasks: Vec<TaskConfig>,
}

impl HostConfig {
    /// KVM on a machine of no particular make, with nothing but guests. Idle CPUs wait by MWAIT.
    #[must_use]
    pub fn generic(topology: Topology) -> Self {
        Self {
            profile: Profile::generic(),
            topology,
            hypervisor: Hypervisor::Kvm,
            idle: IdleMethod::Mwait,
            tasks: Vec::new(),
        }
    }
}
