//! A guest.

use super::MigrationConfig;
use super::workload::WorkloadConfig;

/// Where vCPU threads may run.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Pinning {
    /// Anywhere.
    #[default]
    None,
    /// All of the VM's vCPUs on these CPUs.
    Pool(Vec<u32>),
    /// Each vCPU on the CPU of its place in the list.
    OneToOne(Vec<u32>),
}

/// What the guest's kernel uses and what the VMM lets it have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is one feature bit")]
pub struct GuestConfig {
    /// `cpu_pm`: MWAIT does not exit.
    pub mwait_in_guest: bool,
    /// HLT does not exit.
    pub hlt_in_guest: bool,
    /// PAUSE does not exit.
    pub pause_in_guest: bool,
    /// The guest's LAPICs are in x2APIC mode.
    pub x2apic: bool,
    /// KVM_FEATURE_PV_EOI.
    pub pv_eoi: bool,
    /// KVM_FEATURE_PV_SEND_IPI.
    pub pv_send_ipi: bool,
    /// KVM_FEATURE_PV_TLB_FLUSH.
    pub pv_tlb_flush: bool,
    /// KVM_FEATURE_PV_UNHALT: paravirtual spinlocks. Without it whoever comes first takes a free
    /// lock (`virt_spin_lock`).
    pub pv_spinlocks: bool,
    /// The guest was booted with `nopvspin`: queued spinlocks as on bare metal.
    pub nopvspin: bool,
    /// A waiter for a spinlock yields to its owner's vCPU by a hypercall. It does so at once if
    /// that vCPU does not run, and after each round of spinning. Guests on s390 do so
    /// (`arch_spin_lock_wait_classic`, DIAGNOSE 9c). The first to try takes a free lock.
    pub spin_yield: bool,
    /// KVM_FEATURE_PV_SCHED_YIELD: IPIs to preempted vCPUs yield to them.
    pub pv_sched_yield: bool,
    /// KVM_FEATURE_STEAL_TIME: the guest's scheduler knows what was stolen.
    pub steal_time: bool,
    /// CONFIG_HZ of the guest.
    pub hz: u32,
    /// The guest's idle loop polls this long before HLT, in ns; 0: not (`haltpoll`).
    pub guest_halt_poll_ns: u32,
}

impl Default for GuestConfig {
    fn default() -> Self {
        Self {
            mwait_in_guest: false,
            hlt_in_guest: false,
            pause_in_guest: false,
            x2apic: true,
            pv_eoi: true,
            pv_send_ipi: true,
            pv_tlb_flush: true,
            pv_spinlocks: true,
            nopvspin: false,
            spin_yield: false,
            pv_sched_yield: true,
            steal_time: true,
            hz: 250,
            guest_halt_poll_ns: 0,
        }
    }
}

/// A guest: what it has, where it may run and what runs in it.
#[derive(Clone, Debug, PartialEq)]
pub struct VmConfig {
    /// Name: of its scope under machine.slice and of its process.
    pub name: String,
    /// vCPUs, [1, 4096].
    pub vcpus: u32,
    /// Where they may run.
    pub pinning: Pinning,
    /// What the guest is.
    pub guest: GuestConfig,
    /// What runs in it.
    pub workload: WorkloadConfig,
    /// A cgroup for each vCPU and one for the other threads, as libvirt lays them out; without, all
    /// threads are in the scope itself.
    pub vcpu_cgroups: bool,
    /// `cpu.weight` of its scope, [1, 10000]; 100 is the default.
    pub cpu_weight: u32,
    /// `cpu.max`: quota and period in ns; `None` without a limit.
    pub cpu_max_ns: Option<(u64, u64)>,
    /// Nice value of its threads, [-20, 19].
    pub nice: i8,
    /// arm64: what the VMM has set the physical counter back by, in counts.
    pub physical_counter_offset: u64,
    /// A device is assigned; its interrupts may be posted (VT-d).
    pub assigned_device: bool,
    /// When the guest starts, in ns.
    pub start_ns: u64,
    /// It is moved to another host.
    pub migration: Option<MigrationConfig>,
}

impl Default for VmConfig {
    fn default() -> Self {
        Self {
            name: "vm".to_owned(),
            vcpus: 1,
            pinning: Pinning::None,
            guest: GuestConfig::default(),
            workload: WorkloadConfig::named("idle"),
            vcpu_cgroups: true,
            cpu_weight: 100,
            cpu_max_ns: None,
            nice: 0,
            physical_counter_offset: 0,
            assigned_device: false,
            start_ns: 0,
            migration: None,
        }
    }
}
