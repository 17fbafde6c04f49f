//! The tracepoints whose fields are read, and which fields those are.

use stealtime_events::HostVector;

use crate::point::Point;

/// What is read of a tracepoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec {
    pub(super) system: &'static str,
    pub(crate) event: &'static str,
    pub(crate) point: Point,
    /// Names of the fields, in the order in which the decoder loads them. `?` before a name: the
    /// event can be made without. `a|b`: the field has been renamed.
    pub(super) fields: &'static [&'static str],
    /// Names of tasks: index of the tid in `fields`, and the field of the name.
    pub(super) comms: &'static [(usize, &'static str)],
}

const fn spec(
    system: &'static str,
    event: &'static str,
    point: Point,
    fields: &'static [&'static str],
) -> Spec {
    Spec {
        system,
        event,
        point,
        fields,
        comms: &[],
    }
}

impl Spec {
    const fn names(self, comms: &'static [(usize, &'static str)]) -> Self {
        Self { comms, ..self }
    }
}

const COMM: &[(usize, &str)] = &[(0, "comm")];
const WAKEUP: &[&str] = &["pid", "prio", "target_cpu"];
const ACCEPT: &[&str] = &["apicid", "dm", "tm", "vec"];

/// Names and fields of Linux 5.10 to 7.2. Where a tracepoint differs between architectures, the
/// description with all the fields wins, in this order.
#[rustfmt::skip]
pub(crate) const SPECS: &[Spec] = &[
    spec("kvm", "kvm_entry", Point::KvmEntry, &["?vcpu_id"]),
    spec("kvm", "kvm_exit", Point::KvmExit, &["exit_reason", "isa", "info1", "?vcpu_id", "?intr_info"]),
    spec("kvm", "kvm_exit", Point::KvmExitArm64, &["ret", "esr_ec"]),
    spec("kvm", "kvm_exit", Point::KvmExitRiscv, &["scause"]),
    spec("kvm", "kvm_userspace_exit", Point::KvmUserspaceExit, &["reason", "errno"]),
    spec("kvm", "kvm_hypercall", Point::KvmHypercall, &["nr", "a0", "a1"]),
    spec("kvm", "kvm_pio", Point::KvmPio, &["rw", "port", "size", "count", "val"]),
    spec("kvm", "kvm_mmio", Point::KvmMmio, &["type", "len", "gpa", "val"]),
    spec("kvm", "kvm_msr", Point::KvmMsr, &["write", "exception", "ecx", "data"]),
    spec("kvm", "kvm_cpuid", Point::KvmCpuid, &["function", "index"]),
    spec("kvm", "kvm_page_fault", Point::KvmPageFault, &["?vcpu_id", "fault_address", "error_code"]),
    spec("kvm", "kvm_apic", Point::KvmApic, &["rw", "reg", "val"]),
    spec("kvm", "kvm_apic_ipi", Point::KvmApicIpi, &["icr_low", "dest_id"]),
    spec("kvm", "kvm_apic_accept_irq", Point::KvmApicAcceptIrq, ACCEPT),
    spec("kvm", "kvm_apicv_accept_irq", Point::KvmApicvAcceptIrq, ACCEPT),
    // Before 6.0: `irq` alone.
    spec("kvm", "kvm_inj_virq", Point::KvmInjVirq, &["vector|irq", "?soft", "?reinjected"]),
    spec("kvm", "kvm_inj_exception", Point::KvmInjException, &["exception", "error_code"]),
    spec("kvm", "kvm_eoi", Point::KvmEoi, &["apicid", "vector"]),
    spec("kvm", "kvm_pv_eoi", Point::KvmPvEoi, &["apicid", "vector"]),
    spec("kvm", "kvm_set_irq", Point::KvmSetIrq, &["gsi", "level"]),
    spec("kvm", "kvm_msi_set_irq", Point::KvmMsiSetIrq, &["address", "data"]),
    spec("kvm", "kvm_pi_irte_update", Point::KvmPiIrteUpdate, &["host_irq", "vcpu_id", "gsi", "gvec", "set"]),
    spec("kvm", "kvm_avic_incomplete_ipi", Point::KvmAvicIncompleteIpi, &["vcpu", "icrh", "icrl", "id"]),
    spec("kvm", "kvm_apicv_inhibit_changed", Point::KvmApicvInhibitChanged, &["reason", "set", "inhibits"]),
    spec("kvm", "kvm_vcpu_wakeup", Point::KvmVcpuWakeup, &["ns", "waited", "valid"]),
    spec("kvm", "kvm_halt_poll_ns", Point::KvmHaltPollNs, &["grow", "vcpu_id", "new", "old"]),
    spec("kvm", "kvm_ple_window_update", Point::KvmPleWindowUpdate, &["vcpu_id", "new", "old"]),
    spec("kvm", "kvm_ple_window", Point::KvmPleWindowUpdate, &["vcpu_id", "new", "old"]),
    spec("kvm", "kvm_hv_timer_state", Point::KvmHvTimerState, &["vcpu_id", "hv_timer_in_use"]),
    spec("kvm", "kvm_wait_lapic_expire", Point::KvmWaitLapicExpire, &["vcpu_id", "delta"]),
    spec("kvm", "kvm_write_tsc_offset", Point::KvmWriteTscOffset, &["vcpu_id", "previous_tsc_offset", "next_tsc_offset"]),
    spec("kvm", "kvm_track_tsc", Point::KvmTrackTsc, &["vcpu_id", "nr_vcpus_matched_tsc", "online_vcpus", "use_master_clock", "host_clock"]),
    spec("kvm", "kvm_update_master_clock", Point::KvmUpdateMasterClock, &["use_master_clock", "host_clock", "offset_matched"]),
    spec("kvm", "kvm_pvclock_update", Point::KvmPvclockUpdate, &["vcpu_id", "tsc_timestamp", "system_time"]),
    spec("kvm", "kvm_pv_tlb_flush", Point::KvmPvTlbFlush, &["vcpu_id", "need_flush_tlb"]),
    spec("sched", "sched_switch", Point::SchedSwitch, &["prev_pid", "next_pid", "prev_prio", "next_prio", "prev_state"])
        .names(&[(0, "prev_comm"), (1, "next_comm")]),
    spec("sched", "sched_waking", Point::SchedWaking, WAKEUP).names(COMM),
    spec("sched", "sched_wakeup", Point::SchedWakeup, WAKEUP).names(COMM),
    spec("sched", "sched_wakeup_new", Point::SchedWakeupNew, WAKEUP).names(COMM),
    spec("sched", "sched_migrate_task", Point::SchedMigrateTask, &["pid", "prio", "orig_cpu", "dest_cpu"]).names(COMM),
    spec("sched", "sched_stat_runtime", Point::SchedStatRuntime, &["pid", "runtime"]).names(COMM),
    spec("sched", "sched_stat_wait", Point::SchedStatWait, &["pid", "delay"]).names(COMM),
    spec("sched", "sched_process_fork", Point::SchedProcessFork, &["parent_pid", "child_pid"])
        .names(&[(0, "parent_comm"), (1, "child_comm")]),
    spec("sched", "sched_process_exit", Point::SchedProcessExit, &["pid"]).names(COMM),
    spec("irq", "irq_handler_entry", Point::IrqHandlerEntry, &["irq"]),
    spec("irq", "irq_handler_exit", Point::IrqHandlerExit, &["irq"]),
    spec("irq", "softirq_entry", Point::SoftirqEntry, &["vec"]),
    spec("irq", "softirq_exit", Point::SoftirqExit, &["vec"]),
    spec("irq", "softirq_raise", Point::SoftirqRaise, &["vec"]),
    spec("ipi", "ipi_send_cpu", Point::IpiSendCpu, &["cpu", "callback"]),
    spec("ipi", "ipi_send_cpumask", Point::IpiSendCpumask, &["callback"]),
    spec("csd", "csd_queue_cpu", Point::CsdQueueCpu, &["cpu", "func"]),
    spec("csd", "csd_function_entry", Point::CsdFunctionEntry, &["func"]),
    spec("csd", "csd_function_exit", Point::CsdFunctionExit, &["func"]),
    spec("timer", "hrtimer_setup", Point::HrtimerSetup, &["hrtimer"]),
    spec("timer", "hrtimer_init", Point::HrtimerSetup, &["hrtimer"]),
    spec("timer", "hrtimer_start", Point::HrtimerStart, &["hrtimer", "expires", "function"]),
    spec("timer", "hrtimer_cancel", Point::HrtimerCancel, &["hrtimer"]),
    spec("timer", "hrtimer_expire_entry", Point::HrtimerExpireEntry, &["hrtimer", "now", "function"]),
    spec("timer", "hrtimer_expire_exit", Point::HrtimerExpireExit, &["hrtimer"]),
    spec("task", "task_rename", Point::TaskRename, &["?pid"]).names(&[(0, "newcomm")]),
];

/// The specifications for a tracepoint: most have one, `kvm_exit` one an architecture.
pub(super) fn specs(system: &str, event: &str) -> Vec<Spec> {
    // An empty system: the container does not say.
    let in_system = |wanted: &str| system.is_empty() || system == wanted;
    let mut found: Vec<Spec> = SPECS
        .iter()
        .filter(|spec| spec.event == event && in_system(spec.system))
        .copied()
        .collect();
    if in_system("irq_vectors") {
        for class in HostVector::ALL {
            let (_, entry, exit) = class.names();
            if event == entry {
                found.push(spec(
                    "irq_vectors",
                    entry,
                    Point::VectorEntry(class),
                    &["vector"],
                ));
            } else if event == exit {
                found.push(spec(
                    "irq_vectors",
                    exit,
                    Point::VectorExit(class),
                    &["vector"],
                ));
            }
        }
    }
    found
}
