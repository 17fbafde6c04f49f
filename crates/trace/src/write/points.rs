//! The tracepoints that are written: their fields in the kernel's order and types, and how their
//! records are printed.
//!
//! Names and types are those of the tracepoints (Linux 7.2); what no [`stealtime_events::Kind`]
//! carries is left out, so that no reader takes a made-up zero for something that was recorded. But
//! trace-cmd's plugins insist on `rip`, `guest_rip`, `info2` and `softexpires`: these are there, and 0.

use stealtime_events::{ExitReason, HostVector, Isa};

/// What is written of a tracepoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tracepoint {
    pub(super) system: &'static str,
    pub(super) name: &'static str,
    /// Declarations, `; ` between them.
    pub(super) fields: &'static str,
    /// The print format, a C string and its arguments.
    pub(super) print: &'static str,
}

const fn kvm(name: &'static str, fields: &'static str, print: &'static str) -> Tracepoint {
    of("kvm", name, fields, print)
}

const fn sched(name: &'static str, fields: &'static str, print: &'static str) -> Tracepoint {
    of("sched", name, fields, print)
}

const fn of(
    system: &'static str,
    name: &'static str,
    fields: &'static str,
    print: &'static str,
) -> Tracepoint {
    Tracepoint {
        system,
        name,
        fields,
        print,
    }
}

/// Where a `kvm_exit` of x86 has its reason's name: made of the tables of [`ExitReason`].
pub(super) const REASON: &str = "@REASON@";

const ACCEPT: &str = "__u32 apicid; __u16 dm; __u16 tm; __u8 vec";
const ACCEPT_PRINT: &str = r#""apicid %x vec %u (%s|%s)", REC->apicid, REC->vec, __print_symbolic((REC->dm >> 8) & 0x7, { 0, "Fixed" }, { 1, "LowPrio" }, { 2, "SMI" }, { 3, "Res3" }, { 4, "NMI" }, { 5, "INIT" }, { 6, "SIPI" }, { 7, "ExtINT" }), REC->tm ? "level" : "edge""#;
const WAKEUP: &str = "char comm[16]; pid_t pid; int prio; int target_cpu";
const WAKEUP_PRINT: &str =
    r#""comm=%s pid=%d prio=%d target_cpu=%03d", REC->comm, REC->pid, REC->prio, REC->target_cpu"#;
const EOI: &str = "__u32 apicid; int vector";
const EOI_PRINT: &str = r#""apicid %x vector %d", REC->apicid, REC->vector"#;
const SOFTIRQ: &str = "unsigned int vec";
const SOFTIRQ_PRINT: &str = r#""vec=%u [action=%s]", REC->vec, __print_symbolic(REC->vec, { 0, "HI" }, { 1, "TIMER" }, { 2, "NET_TX" }, { 3, "NET_RX" }, { 4, "BLOCK" }, { 5, "IRQ_POLL" }, { 6, "TASKLET" }, { 7, "SCHED" }, { 8, "HRTIMER" }, { 9, "RCU" })"#;

/// Every tracepoint, in the order of [`Point`](crate::point::Point).
#[rustfmt::skip]
pub(super) const POINTS: &[Tracepoint] = &[
    kvm("kvm_entry", "unsigned int vcpu_id; unsigned long rip", r#""vcpu %u, rip 0x%lx", REC->vcpu_id, REC->rip"#),
    kvm("kvm_exit", "unsigned int exit_reason; unsigned long guest_rip; u32 isa; u64 info1; u64 info2; u32 intr_info; unsigned int vcpu_id",
        r#""vcpu %u reason %s%s rip 0x%lx info1 0x%016llx info2 0x%016llx intr_info 0x%08x", REC->vcpu_id, @REASON@, REC->guest_rip, REC->info1, REC->info2, REC->intr_info"#),
    kvm("kvm_exit", "unsigned int ret; unsigned int esr_ec",
        r#""%s: HSR_EC: 0x%04x", __print_symbolic(REC->ret, { 0, "IRQ" }, { 1, "EL1_SERROR" }, { 2, "TRAP" }, { 3, "IL" }, { 0xbadca11, "HYP_GONE" }), REC->esr_ec"#),
    kvm("kvm_exit", "unsigned long scause", r#""SCAUSE:0x%lx", REC->scause"#),
    kvm("kvm_userspace_exit", "__u32 reason; int errno",
        r#""reason %s (%d)", REC->errno < 0 ? (REC->errno == -4 ? "restart" : "error") : __print_symbolic(REC->reason, { 0, "KVM_EXIT_UNKNOWN" }, { 1, "KVM_EXIT_EXCEPTION" }, { 2, "KVM_EXIT_IO" }, { 3, "KVM_EXIT_HYPERCALL" }, { 4, "KVM_EXIT_DEBUG" }, { 5, "KVM_EXIT_HLT" }, { 6, "KVM_EXIT_MMIO" }, { 7, "KVM_EXIT_IRQ_WINDOW_OPEN" }, { 8, "KVM_EXIT_SHUTDOWN" }, { 9, "KVM_EXIT_FAIL_ENTRY" }, { 10, "KVM_EXIT_INTR" }, { 17, "KVM_EXIT_INTERNAL_ERROR" }, { 24, "KVM_EXIT_SYSTEM_EVENT" }, { 29, "KVM_EXIT_X86_RDMSR" }, { 30, "KVM_EXIT_X86_WRMSR" }), REC->errno < 0 ? -REC->errno : REC->reason"#),
    kvm("kvm_hypercall", "unsigned long nr; unsigned long a0; unsigned long a1", r#""nr 0x%lx a0 0x%lx a1 0x%lx", REC->nr, REC->a0, REC->a1"#),
    kvm("kvm_pio", "unsigned int rw; unsigned int port; unsigned int size; unsigned int count; unsigned int val",
        r#""pio_%s at 0x%x size %u count %u val 0x%x", REC->rw ? "write" : "read", REC->port, REC->size, REC->count, REC->val"#),
    kvm("kvm_mmio", "u32 type; u32 len; u64 gpa; u64 val",
        r#""mmio %s len %u gpa 0x%llx val 0x%llx", __print_symbolic(REC->type, { 0, "unsatisfied-read" }, { 1, "read" }, { 2, "write" }), REC->len, REC->gpa, REC->val"#),
    kvm("kvm_msr", "unsigned int write; u32 ecx; u64 data; u8 exception",
        r#""msr_%s %x = 0x%llx%s", REC->write ? "write" : "read", REC->ecx, REC->data, REC->exception ? " (#GP)" : """#),
    kvm("kvm_cpuid", "unsigned int function; unsigned int index", r#""func %x idx %x", REC->function, REC->index"#),
    kvm("kvm_page_fault", "unsigned int vcpu_id; u64 fault_address; u64 error_code",
        r#""vcpu %u address 0x%016llx error_code 0x%llx", REC->vcpu_id, REC->fault_address, REC->error_code"#),
    kvm("kvm_apic", "unsigned int rw; unsigned int reg; u64 val",
        r#""apic_%s 0x%x = 0x%llx", REC->rw ? "write" : "read", REC->reg, REC->val"#),
    kvm("kvm_apic_ipi", "__u32 icr_low; __u32 dest_id",
        r#""dst %x vec %u (%s|%s|%s|%s|%s)", REC->dest_id, REC->icr_low & 0xff, __print_symbolic((REC->icr_low >> 8) & 0x7, { 0, "Fixed" }, { 1, "LowPrio" }, { 2, "SMI" }, { 3, "Res3" }, { 4, "NMI" }, { 5, "INIT" }, { 6, "SIPI" }, { 7, "ExtINT" }), REC->icr_low & 0x800 ? "logical" : "physical", REC->icr_low & 0x4000 ? "assert" : "de-assert", REC->icr_low & 0x8000 ? "level" : "edge", __print_symbolic((REC->icr_low >> 18) & 0x3, { 0, "dst" }, { 1, "self" }, { 2, "all" }, { 3, "all-but-self" })"#),
    kvm("kvm_apic_accept_irq", ACCEPT, ACCEPT_PRINT),
    kvm("kvm_apicv_accept_irq", ACCEPT, ACCEPT_PRINT),
    kvm("kvm_inj_virq", "unsigned int vector; bool soft; bool reinjected",
        r#""%s 0x%x%s", REC->soft ? "Soft/INTn" : "IRQ", REC->vector, REC->reinjected ? " [reinjected]" : """#),
    kvm("kvm_inj_exception", "u8 exception; u32 error_code",
        r#""0x%x (0x%x)", REC->exception, REC->error_code"#),
    kvm("kvm_eoi", EOI, EOI_PRINT),
    kvm("kvm_pv_eoi", EOI, EOI_PRINT),
    kvm("kvm_set_irq", "unsigned int gsi; int level", r#""gsi %u level %d", REC->gsi, REC->level"#),
    kvm("kvm_msi_set_irq", "u64 address; u64 data", r#""address=0x%llx data=0x%llx", REC->address, REC->data"#),
    kvm("kvm_pi_irte_update", "unsigned int host_irq; unsigned int vcpu_id; unsigned int gsi; unsigned int gvec; bool set",
        r#""PI is %s for irq %u, vcpu %u, gsi: 0x%x, gvec: 0x%x", REC->set ? "enabled" : "disabled", REC->host_irq, REC->vcpu_id, REC->gsi, REC->gvec"#),
    kvm("kvm_avic_incomplete_ipi", "u32 vcpu; u32 icrh; u32 icrl; u32 id",
        r#""vcpu=%u icrh=0x%08x icrl=0x%08x id=%u", REC->vcpu, REC->icrh, REC->icrl, REC->id"#),
    kvm("kvm_apicv_inhibit_changed", "int reason; bool set; unsigned long inhibits",
        r#""%s reason=%d, inhibits=0x%lx", REC->set ? "set" : "cleared", REC->reason, REC->inhibits"#),
    kvm("kvm_vcpu_wakeup", "__u64 ns; bool waited; bool valid",
        r#""%s time %llu ns, polling %s", REC->waited ? "wait" : "poll", REC->ns, REC->valid ? "valid" : "invalid""#),
    kvm("kvm_halt_poll_ns", "bool grow; unsigned int vcpu_id; unsigned int new; unsigned int old",
        r#""vcpu %u: halt_poll_ns %u (%s %u)", REC->vcpu_id, REC->new, REC->grow ? "grow" : "shrink", REC->old"#),
    kvm("kvm_ple_window_update", "unsigned int vcpu_id; unsigned int new; unsigned int old",
        r#""vcpu %u old %u new %u (%s)", REC->vcpu_id, REC->old, REC->new, REC->old < REC->new ? "growing" : "shrinking""#),
    kvm("kvm_hv_timer_state", "unsigned int vcpu_id; unsigned int hv_timer_in_use",
        r#""vcpu_id %x hv_timer %x", REC->vcpu_id, REC->hv_timer_in_use"#),
    kvm("kvm_wait_lapic_expire", "unsigned int vcpu_id; s64 delta",
        r#""vcpu %u: delta %lld (%s)", REC->vcpu_id, REC->delta, REC->delta < 0 ? "early" : "late""#),
    kvm("kvm_write_tsc_offset", "unsigned int vcpu_id; __u64 previous_tsc_offset; __u64 next_tsc_offset",
        r#""vcpu=%u prev=%llu next=%llu", REC->vcpu_id, REC->previous_tsc_offset, REC->next_tsc_offset"#),
    kvm("kvm_track_tsc", "unsigned int vcpu_id; unsigned int nr_vcpus_matched_tsc; unsigned int online_vcpus; bool use_master_clock; int host_clock",
        r#""vcpu_id %u masterclock %u offsetmatched %u nr_online %u hostclock %s", REC->vcpu_id, REC->use_master_clock, REC->nr_vcpus_matched_tsc, REC->online_vcpus, __print_symbolic(REC->host_clock, { 0, "none" }, { 1, "tsc" })"#),
    kvm("kvm_update_master_clock", "bool use_master_clock; int host_clock; bool offset_matched",
        r#""masterclock %d hostclock %s offsetmatched %u", REC->use_master_clock, __print_symbolic(REC->host_clock, { 0, "none" }, { 1, "tsc" }), REC->offset_matched"#),
    kvm("kvm_pvclock_update", "unsigned int vcpu_id; __u64 tsc_timestamp; __u64 system_time",
        r#""vcpu_id %u, pvclock { tsc_timestamp 0x%llx, system_time 0x%llx }", REC->vcpu_id, REC->tsc_timestamp, REC->system_time"#),
    kvm("kvm_pv_tlb_flush", "unsigned int vcpu_id; bool need_flush_tlb",
        r#""vcpu %u need_flush_tlb %s", REC->vcpu_id, REC->need_flush_tlb ? "true" : "false""#),
    sched("sched_switch", "char prev_comm[16]; pid_t prev_pid; int prev_prio; long prev_state; char next_comm[16]; pid_t next_pid; int next_prio",
        r#""prev_comm=%s prev_pid=%d prev_prio=%d prev_state=%s%s ==> next_comm=%s next_pid=%d next_prio=%d", REC->prev_comm, REC->prev_pid, REC->prev_prio, (REC->prev_state & 0xff) ? __print_flags(REC->prev_state & 0xff, "|", { 1, "S" }, { 2, "D" }, { 4, "T" }, { 8, "t" }, { 0x10, "X" }, { 0x20, "Z" }, { 0x40, "P" }, { 0x80, "I" }) : "R", REC->prev_state & 0x100 ? "+" : "", REC->next_comm, REC->next_pid, REC->next_prio"#),
    sched("sched_waking", WAKEUP, WAKEUP_PRINT),
    sched("sched_wakeup", WAKEUP, WAKEUP_PRINT),
    sched("sched_wakeup_new", WAKEUP, WAKEUP_PRINT),
    sched("sched_migrate_task", "char comm[16]; pid_t pid; int prio; int orig_cpu; int dest_cpu",
        r#""comm=%s pid=%d prio=%d orig_cpu=%d dest_cpu=%d", REC->comm, REC->pid, REC->prio, REC->orig_cpu, REC->dest_cpu"#),
    sched("sched_stat_runtime", "char comm[16]; pid_t pid; u64 runtime",
        r#""comm=%s pid=%d runtime=%llu [ns]", REC->comm, REC->pid, REC->runtime"#),
    sched("sched_stat_wait", "char comm[16]; pid_t pid; u64 delay",
        r#""comm=%s pid=%d delay=%llu [ns]", REC->comm, REC->pid, REC->delay"#),
    sched("sched_process_fork", "char parent_comm[16]; pid_t parent_pid; char child_comm[16]; pid_t child_pid",
        r#""comm=%s pid=%d child_comm=%s child_pid=%d", REC->parent_comm, REC->parent_pid, REC->child_comm, REC->child_pid"#),
    sched("sched_process_exit", "char comm[16]; pid_t pid", r#""comm=%s pid=%d", REC->comm, REC->pid"#),
    of("irq", "irq_handler_entry", "int irq", r#""irq=%d", REC->irq"#),
    of("irq", "irq_handler_exit", "int irq", r#""irq=%d", REC->irq"#),
    of("irq", "softirq_entry", SOFTIRQ, SOFTIRQ_PRINT),
    of("irq", "softirq_exit", SOFTIRQ, SOFTIRQ_PRINT),
    of("irq", "softirq_raise", SOFTIRQ, SOFTIRQ_PRINT),
    of("ipi", "ipi_send_cpu", "unsigned int cpu; void * callback", r#""cpu=%u callback=%pS", REC->cpu, REC->callback"#),
    of("ipi", "ipi_send_cpumask", "void * callback", r#""cpumask=? callback=%pS", REC->callback"#),
    of("csd", "csd_queue_cpu", "unsigned int cpu; void * func", r#""cpu=%u func=%ps", REC->cpu, REC->func"#),
    of("csd", "csd_function_entry", "void * func", r#""func=%ps", REC->func"#),
    of("csd", "csd_function_exit", "void * func", r#""func=%ps", REC->func"#),
    of("timer", "hrtimer_setup", "void * hrtimer", r#""hrtimer=%p", REC->hrtimer"#),
    of("timer", "hrtimer_start", "void * hrtimer; void * function; s64 expires; s64 softexpires",
        r#""hrtimer=%p function=%ps expires=%llu softexpires=%llu", REC->hrtimer, REC->function, (unsigned long long) REC->expires, (unsigned long long) REC->softexpires"#),
    of("timer", "hrtimer_cancel", "void * hrtimer", r#""hrtimer=%p", REC->hrtimer"#),
    of("timer", "hrtimer_expire_entry", "void * hrtimer; s64 now; void * function",
        r#""hrtimer=%p function=%ps now=%llu", REC->hrtimer, REC->function, (unsigned long long) REC->now"#),
    of("timer", "hrtimer_expire_exit", "void * hrtimer", r#""hrtimer=%p", REC->hrtimer"#),
];

/// All that are written: [`POINTS`], then entry and exit of each host vector.
pub(super) fn all() -> Vec<Tracepoint> {
    let mut all = POINTS.to_vec();
    for class in HostVector::ALL {
        let (_, entry, exit) = class.names();
        for name in [entry, exit] {
            all.push(of(
                "irq_vectors",
                name,
                "int vector",
                r#""vector=%d", REC->vector"#,
            ));
        }
    }
    all
}

/// The two arguments that print the reason of a `kvm_exit` of x86: its name, and whether the entry
/// failed.
pub(super) fn reason() -> String {
    let names = |isa| {
        // No code of either table is larger, but for SVM's last (-1, VMEXIT_INVALID).
        let codes = (0..0x500).chain([u32::MAX]);
        let names = codes.filter_map(|code| {
            let name = ExitReason { isa, code }.name()?;
            Some(format!("{{ {code:#x}, \"{name}\" }}"))
        });
        names.collect::<Vec<_>>().join(", ")
    };
    // The table of VMX is that of basic reasons, the lower half: u32::MAX would be its last again.
    format!(
        "(REC->isa == 1) ? __print_symbolic(REC->exit_reason & 0xffff, {}) : \
         __print_symbolic(REC->exit_reason, {}), \
         (REC->isa == 1 && REC->exit_reason & 0x80000000) ? \" FAILED_VMENTRY\" : \"\"",
        names(Isa::Vmx),
        names(Isa::Svm)
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::point::Point;
    use crate::tracefs::points::SPECS;

    #[test]
    fn points_stand_at_their_places() {
        let all = all();
        let name = |point: Point| all[usize::from(point.number())].name;
        let mut numbers = BTreeSet::new();
        // A name that is no longer today's stands behind it.
        for spec in SPECS.iter().filter(|spec| spec.point != Point::TaskRename) {
            if numbers.insert(spec.point.number()) {
                assert_eq!(name(spec.point), spec.event);
            }
        }
        for class in HostVector::ALL {
            for point in [Point::VectorEntry(class), Point::VectorExit(class)] {
                numbers.insert(point.number());
            }
            let names = (Point::VectorEntry(class), Point::VectorExit(class));
            let (_, entry, exit) = class.names();
            assert_eq!((name(names.0), name(names.1)), (entry, exit));
        }
        assert_eq!(numbers.len(), all.len(), "all that is written is read");
        assert_eq!(usize::from(Point::TaskRename.number()), all.len());
    }

    #[test]
    fn reasons_have_names() {
        let reason = reason();
        for part in ["{ 0xc, \"HLT\" }", "{ 0x400, \"npf\" }", "FAILED_VMENTRY"] {
            assert!(reason.contains(part), "{part}: {reason}");
        }
    }
}
