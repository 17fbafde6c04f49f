//! What can happen: one variant a tracepoint.

use crate::{ExitReason, HostVector, NameId, Tid, VcpuId};

/// What happened. Variants and fields are named after the tracepoints and their fields; what no
/// analysis reads is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields bear the names of the tracepoints' own fields")]
#[rustfmt::skip]
pub enum Kind {
    // What the source itself says (not counted as events of the host).
    /// A task has this name, and belongs to this process (0: not known), from here on.
    Task { tid: Tid, process: Tid, name: NameId },
    /// The recording says that this thread runs this vCPU of the guest with this name.
    VcpuThread { tid: Tid, vm: NameId, vcpu: VcpuId },
    /// Events of this CPU were lost before this point; 0: it is not known how many.
    Lost { count: u64 },
    /// An event that is known by name only, or whose fields could not be read.
    Other { name: NameId },

    // kvm: entry, exit and what userspace is asked for.
    /// `kvm_entry`: the vCPU is about to enter the guest.
    KvmEntry { vcpu: VcpuId },
    /// `kvm_exit`: the vCPU has left the guest. `info1` is the exit qualification (VMX) or
    /// EXITINFO1 (SVM); `intr_vector` the vector in the VM-exit interruption information where that
    /// is valid. `vcpu` is [`VcpuId::UNKNOWN`] on kernels before 5.10.
    KvmExit { reason: ExitReason, vcpu: VcpuId, intr_vector: Option<u8>, info1: u64 },
    /// `kvm_userspace_exit`: KVM_RUN returns; `errno` is negative for an error.
    KvmUserspaceExit { reason: u32, errno: i32 },
    /// `kvm_hypercall`; of the second argument the low 32 bits, of others nothing.
    KvmHypercall { nr: u64, a0: u64, a1: u32 },
    /// `kvm_pio`: port I/O of `count` items of `size` bytes.
    KvmPio { write: bool, port: u16, size: u8, count: u32, val: u32 },
    /// `kvm_mmio`: `mmio_type` is 0 unsatisfied read, 1 read, 2 write.
    KvmMmio { mmio_type: u8, len: u32, gpa: u64, val: u64 },
    /// `kvm_msr`.
    KvmMsr { write: bool, exception: bool, ecx: u32, data: u64 },
    /// `kvm_cpuid`.
    KvmCpuid { function: u32, index: u32 },
    /// `kvm_page_fault`. `vcpu` is [`VcpuId::UNKNOWN`] on kernels before 6.2.
    KvmPageFault { vcpu: VcpuId, address: u64, error_code: u64 },

    // kvm: interrupts.
    /// `kvm_apic`: access to a register of the emulated LAPIC.
    KvmApic { write: bool, reg: u32, val: u64 },
    /// `kvm_apic_ipi`: the guest wrote the ICR. `dest_id` is the destination field.
    KvmApicIpi { icr_low: u32, dest_id: u32 },
    /// `kvm_apic_accept_irq`: vector `vec` set in IRR (or posted). `dm` is delivery mode << 8.
    KvmApicAcceptIrq { apicid: u32, dm: u16, tm: u16, vec: u8 },
    /// `kvm_apicv_accept_irq`: the same on its way through APICv.
    KvmApicvAcceptIrq { apicid: u32, dm: u16, tm: u16, vec: u8 },
    /// `kvm_inj_virq`: vector written into the VMCS/VMCB (`vector` of IRQ kind; `soft`: INT n).
    KvmInjVirq { vector: u32, soft: bool, reinjected: bool },
    /// `kvm_inj_exception`.
    KvmInjException { exception: u8, error_code: u32 },
    /// `kvm_eoi`.
    KvmEoi { apicid: u32, vector: i32 },
    /// `kvm_pv_eoi`.
    KvmPvEoi { apicid: u32, vector: i32 },
    /// `kvm_set_irq`.
    KvmSetIrq { gsi: u32, level: i32 },
    /// `kvm_msi_set_irq`: an MSI to a guest.
    KvmMsiSetIrq { address: u64, data: u64 },
    /// `kvm_pi_irte_update`: an IOMMU entry posts (`set`) to this vCPU or no longer does.
    KvmPiIrteUpdate { host_irq: u32, vcpu: VcpuId, gsi: u32, gvec: u32, set: bool },
    /// `kvm_avic_incomplete_ipi`: hardware could not deliver an IPI by itself (AVIC).
    KvmAvicIncompleteIpi { vcpu: VcpuId, icrh: u32, icrl: u32, id: u32 },
    /// `kvm_apicv_inhibit_changed`.
    KvmApicvInhibitChanged { reason: i32, set: bool, inhibits: u64 },

    // kvm: halting, spinning, timers and clocks.
    /// `kvm_vcpu_wakeup`: a halt has ended after `ns`; `waited`: it slept, else it only polled;
    /// `valid`: the wakeup was worth a poll.
    KvmVcpuWakeup { ns: u64, waited: bool, valid: bool },
    /// `kvm_halt_poll_ns`: the vCPU's polling time changes.
    KvmHaltPollNs { vcpu: VcpuId, grow: bool, new: u32, old: u32 },
    /// `kvm_ple_window_update` (`kvm_ple_window` before 5.x).
    KvmPleWindowUpdate { vcpu: VcpuId, new: u32, old: u32 },
    /// `kvm_hv_timer_state`: the vCPU's LAPIC timer is (not) in the VMX preemption timer.
    KvmHvTimerState { vcpu: VcpuId, hv_timer_in_use: bool },
    /// `kvm_wait_lapic_expire`: guest TSC minus deadline, in guest TSC ticks, when a timer fired
    /// early by the timer advance: negative is early.
    KvmWaitLapicExpire { vcpu: VcpuId, delta: i64 },
    /// `kvm_write_tsc_offset`: ticks, modulo 2^64.
    KvmWriteTscOffset { vcpu: VcpuId, prev: u64, next: u64 },
    /// `kvm_track_tsc`: how many vCPUs match the first's TSC, of how many.
    KvmTrackTsc { vcpu: VcpuId, matched: u32, online: u32, use_master_clock: bool, host_clock: u32 },
    /// `kvm_update_master_clock`. `host_clock` 1 is the TSC.
    KvmUpdateMasterClock { use_master_clock: bool, host_clock: u32, offset_matched: bool },
    /// `kvm_pvclock_update`: what the guest's kvmclock page says from now on.
    KvmPvclockUpdate { vcpu: VcpuId, tsc_timestamp: u64, system_time: u64 },
    /// `kvm_pv_tlb_flush`.
    KvmPvTlbFlush { vcpu: VcpuId, need_flush_tlb: bool },

    // sched.
    /// `sched_switch`: `prev_state` as the kernel traces it, 0: still runnable (preempted).
    SchedSwitch { prev: Tid, next: Tid, prev_prio: i16, next_prio: i16, prev_state: u32 },
    /// `sched_waking`: in the waker's context, before the wakeup.
    SchedWaking { tid: Tid, prio: i32, target_cpu: u32 },
    /// `sched_wakeup`: the task is runnable.
    SchedWakeup { tid: Tid, prio: i32, target_cpu: u32 },
    /// `sched_wakeup_new`.
    SchedWakeupNew { tid: Tid, prio: i32, target_cpu: u32 },
    /// `sched_migrate_task`.
    SchedMigrateTask { tid: Tid, prio: i32, orig_cpu: u32, dest_cpu: u32 },
    /// `sched_stat_runtime`: the task ran for so many ns since the last such event.
    SchedStatRuntime { tid: Tid, runtime_ns: u64 },
    /// `sched_stat_wait`: the task waited for so many ns on a run queue.
    SchedStatWait { tid: Tid, delay_ns: u64 },
    /// `sched_process_fork`.
    SchedProcessFork { parent: Tid, child: Tid },
    /// `sched_process_exit`.
    SchedProcessExit { tid: Tid },

    // Interrupts of the host.
    /// `irq_vectors:NAME_entry`.
    VectorEntry { class: HostVector, vector: u8 },
    /// `irq_vectors:NAME_exit`.
    VectorExit { class: HostVector, vector: u8 },
    /// `irq_handler_entry`: a device's interrupt.
    IrqHandlerEntry { irq: u32 },
    /// `irq_handler_exit`.
    IrqHandlerExit { irq: u32 },
    /// `softirq_entry`: `vec` is `TIMER_SOFTIRQ` and so on.
    SoftirqEntry { vec: u32 },
    /// `softirq_exit`.
    SoftirqExit { vec: u32 },
    /// `softirq_raise`.
    SoftirqRaise { vec: u32 },
    /// `ipi_send_cpu`: to one CPU; `callback` is what it will run.
    IpiSendCpu { cpu: u32, callback: NameId },
    /// `ipi_send_cpumask`.
    IpiSendCpumask { callback: NameId },
    /// `csd_queue_cpu`: a function call is queued for a CPU.
    CsdQueueCpu { cpu: u32, func: NameId },
    /// `csd_function_entry`.
    CsdFunctionEntry { func: NameId },
    /// `csd_function_exit`.
    CsdFunctionExit { func: NameId },

    // hrtimers. Times are of the timer's own clock (mostly CLOCK_MONOTONIC), in ns.
    /// `hrtimer_setup` (`hrtimer_init` before 6.15).
    HrtimerSetup { hrtimer: u64 },
    /// `hrtimer_start`.
    HrtimerStart { hrtimer: u64, expires_ns: u64, function: NameId },
    /// `hrtimer_cancel`.
    HrtimerCancel { hrtimer: u64 },
    /// `hrtimer_expire_entry`.
    HrtimerExpireEntry { hrtimer: u64, now_ns: u64, function: NameId },
    /// `hrtimer_expire_exit`.
    HrtimerExpireExit { hrtimer: u64 },
}

impl Kind {
    /// The tracepoint's name, or `None` where the source keeps it ([`Kind::Other`]) or nothing
    /// happened on the host (names and losses).
    #[must_use]
    #[rustfmt::skip]
    pub const fn tracepoint(self) -> Option<&'static str> {
        Some(match self {
            Self::Task { .. } | Self::VcpuThread { .. } | Self::Lost { .. } | Self::Other { .. } => return None,
            Self::KvmEntry { .. } => "kvm_entry",
            Self::KvmExit { .. } => "kvm_exit",
            Self::KvmUserspaceExit { .. } => "kvm_userspace_exit",
            Self::KvmHypercall { .. } => "kvm_hypercall",
            Self::KvmPio { .. } => "kvm_pio",
            Self::KvmMmio { .. } => "kvm_mmio",
            Self::KvmMsr { .. } => "kvm_msr",
            Self::KvmCpuid { .. } => "kvm_cpuid",
            Self::KvmPageFault { .. } => "kvm_page_fault",
            Self::KvmApic { .. } => "kvm_apic",
            Self::KvmApicIpi { .. } => "kvm_apic_ipi",
            Self::KvmApicAcceptIrq { .. } => "kvm_apic_accept_irq",
            Self::KvmApicvAcceptIrq { .. } => "kvm_apicv_accept_irq",
            Self::KvmInjVirq { .. } => "kvm_inj_virq",
            Self::KvmInjException { .. } => "kvm_inj_exception",
            Self::KvmEoi { .. } => "kvm_eoi",
            Self::KvmPvEoi { .. } => "kvm_pv_eoi",
            Self::KvmSetIrq { .. } => "kvm_set_irq",
            Self::KvmMsiSetIrq { .. } => "kvm_msi_set_irq",
            Self::KvmPiIrteUpdate { .. } => "kvm_pi_irte_update",
            Self::KvmAvicIncompleteIpi { .. } => "kvm_avic_incomplete_ipi",
            Self::KvmApicvInhibitChanged { .. } => "kvm_apicv_inhibit_changed",
            Self::KvmVcpuWakeup { .. } => "kvm_vcpu_wakeup",
            Self::KvmHaltPollNs { .. } => "kvm_halt_poll_ns",
            Self::KvmPleWindowUpdate { .. } => "kvm_ple_window_update",
            Self::KvmHvTimerState { .. } => "kvm_hv_timer_state",
            Self::KvmWaitLapicExpire { .. } => "kvm_wait_lapic_expire",
            Self::KvmWriteTscOffset { .. } => "kvm_write_tsc_offset",
            Self::KvmTrackTsc { .. } => "kvm_track_tsc",
            Self::KvmUpdateMasterClock { .. } => "kvm_update_master_clock",
            Self::KvmPvclockUpdate { .. } => "kvm_pvclock_update",
            Self::KvmPvTlbFlush { .. } => "kvm_pv_tlb_flush",
            Self::SchedSwitch { .. } => "sched_switch",
            Self::SchedWaking { .. } => "sched_waking",
            Self::SchedWakeup { .. } => "sched_wakeup",
            Self::SchedWakeupNew { .. } => "sched_wakeup_new",
            Self::SchedMigrateTask { .. } => "sched_migrate_task",
            Self::SchedStatRuntime { .. } => "sched_stat_runtime",
            Self::SchedStatWait { .. } => "sched_stat_wait",
            Self::SchedProcessFork { .. } => "sched_process_fork",
            Self::SchedProcessExit { .. } => "sched_process_exit",
            Self::VectorEntry { class, .. } => class.names().1,
            Self::VectorExit { class, .. } => class.names().2,
            Self::IrqHandlerEntry { .. } => "irq_handler_entry",
            Self::IrqHandlerExit { .. } => "irq_handler_exit",
            Self::SoftirqEntry { .. } => "softirq_entry",
            Self::SoftirqExit { .. } => "softirq_exit",
            Self::SoftirqRaise { .. } => "softirq_raise",
            Self::IpiSendCpu { .. } => "ipi_send_cpu",
            Self::IpiSendCpumask { .. } => "ipi_send_cpumask",
            Self::CsdQueueCpu { .. } => "csd_queue_cpu",
            Self::CsdFunctionEntry { .. } => "csd_function_entry",
            Self::CsdFunctionExit { .. } => "csd_function_exit",
            Self::HrtimerSetup { .. } => "hrtimer_setup",
            Self::HrtimerStart { .. } => "hrtimer_start",
            Self::HrtimerCancel { .. } => "hrtimer_cancel",
            Self::HrtimerExpireEntry { .. } => "hrtimer_expire_entry",
            Self::HrtimerExpireExit { .. } => "hrtimer_expire_exit",
        })
    }

    /// Whether this is something that happened on the host, and so counts as an event of the trace
    /// (names of tasks and losses do not).
    #[must_use]
    pub const fn is_host_event(self) -> bool {
        !matches!(
            self,
            Self::Task { .. } | Self::VcpuThread { .. } | Self::Lost { .. }
        )
    }
}
