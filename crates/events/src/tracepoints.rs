//! The table of tracepoints: one row for each.
//!
//! A row makes the variant of [`Kind`](crate::Kind), its name and its count. In the readers and the
//! writer of traces it makes the decoder, the parser of text, the encoder and the description of the
//! record. To add a tracepoint, copy its declarations and its `print fmt` from
//! `/sys/kernel/tracing/events/SYSTEM/NAME/format` into a new row:
//!
//! ```text
//! /// What happened, with units.
//! Variant = system name {
//!     field: Type = "C declaration",                  becomes a field of the variant
//!     field: Type = "C declaration" formerly "name",  the C field had this name in older kernels
//!     field: Type = "C declaration" or absent,        older kernels lack it: UNKNOWN, 0 or false
//!     "char comm[16]" of field,                       name of the task with the tid in `field`
//!     "C declaration",                                not read, and 0 in files that are written
//! }
//! r#"print fmt"#;
//! ```
//!
//! `name formerly older` is for a tracepoint that has been renamed. Types implement the trait `Value` of
//! `stealtime-trace`. A row lacks C fields that are not read, unless trace-cmd's plugins demand
//! them: a written file would hold a made-up zero.
//!
//! A row in brackets, `[module] Variant { fields }`, makes its variant by hand. It has one layout for
//! each architecture, and names the function of the module that makes the variant. `kvm_exit` is the
//! only one: it differs between architectures. A text that the `print fmt` alone does not describe
//! needs a function in `stealtime-trace`, `text/irregular.rs`.
//!
//! The declarations are those of Linux 7.2; fields and names hold for 5.10 to 7.2. A row's place is
//! the ID of its records in written files: new rows go to the end.

/// Passes the table to a macro: `for_each_tracepoint!(callback)` becomes `callback! { rows }`.
///
/// The form of a row is described at the head of the table's file.
#[macro_export]
macro_rules! for_each_tracepoint {
    ($callback:ident) => { $callback! {
        // kvm: entry, exit and accesses that KVM or userspace emulates.
        /// `kvm_entry`: the vCPU is about to enter the guest.
        KvmEntry = kvm kvm_entry {
            vcpu: VcpuId = "unsigned int vcpu_id" or absent,
            "unsigned long rip",
        }
        r#""vcpu %u, rip 0x%lx", REC->vcpu_id, REC->rip"#;
        /// `kvm_exit`: the vCPU has left the guest. `info1` is the exit qualification (VMX) or
        /// EXITINFO1 (SVM); `intr_vector` the vector in the VM-exit interruption information where
        /// that is valid. `vcpu` is [`VcpuId::UNKNOWN`] on kernels before 5.10.
        [exit] KvmExit {
            reason: ExitReason,
            vcpu: VcpuId,
            intr_vector: Option<u8>,
            info1: u64,
        }
        x86 KvmExit = kvm kvm_exit {
            exit_reason: u32 = "unsigned int exit_reason",
            "unsigned long guest_rip",
            isa: u32 = "u32 isa",
            info1: u64 = "u64 info1",
            "u64 info2",
            intr_info: u32 = "u32 intr_info" or absent,
            vcpu_id: VcpuId = "unsigned int vcpu_id" or absent,
        }
        r#""vcpu %u reason %s%s rip 0x%lx info1 0x%016llx info2 0x%016llx intr_info 0x%08x", REC->vcpu_id, @REASON@, (REC->isa == 1 && REC->exit_reason & 0x80000000) ? " FAILED_VMENTRY" : "", REC->guest_rip, REC->info1, REC->info2, REC->intr_info"#
        arm64 KvmExitArm64 = kvm kvm_exit {
            ret: u32 = "unsigned int ret",
            esr_ec: u32 = "unsigned int esr_ec",
        }
        r#""%s: HSR_EC: 0x%04x", __print_symbolic(REC->ret, { 0, "IRQ" }, { 1, "EL1_SERROR" }, { 2, "TRAP" }, { 3, "IL" }, { 0xbadca11, "HYP_GONE" }), REC->esr_ec"#
        riscv KvmExitRiscv = kvm kvm_exit { scause: u64 = "unsigned long scause" }
        r#""SCAUSE:0x%lx", REC->scause"#;
        /// `kvm_userspace_exit`: KVM_RUN returns; `errno` is negative for an error.
        KvmUserspaceExit = kvm kvm_userspace_exit {
            reason: u32 = "__u32 reason",
            errno: i32 = "int errno",
        }
        r#""reason %s (%d)", REC->errno < 0 ? (REC->errno == -4 ? "restart" : "error") : __print_symbolic(REC->reason, { 0, "KVM_EXIT_UNKNOWN" }, { 1, "KVM_EXIT_EXCEPTION" }, { 2, "KVM_EXIT_IO" }, { 3, "KVM_EXIT_HYPERCALL" }, { 4, "KVM_EXIT_DEBUG" }, { 5, "KVM_EXIT_HLT" }, { 6, "KVM_EXIT_MMIO" }, { 7, "KVM_EXIT_IRQ_WINDOW_OPEN" }, { 8, "KVM_EXIT_SHUTDOWN" }, { 9, "KVM_EXIT_FAIL_ENTRY" }, { 10, "KVM_EXIT_INTR" }, { 17, "KVM_EXIT_INTERNAL_ERROR" }, { 24, "KVM_EXIT_SYSTEM_EVENT" }, { 29, "KVM_EXIT_X86_RDMSR" }, { 30, "KVM_EXIT_X86_WRMSR" }), REC->errno < 0 ? -REC->errno : REC->reason"#;
        /// `kvm_hypercall`; of the second argument the low 32 bits, of others nothing.
        KvmHypercall = kvm kvm_hypercall {
            nr: u64 = "unsigned long nr",
            a0: u64 = "unsigned long a0",
            a1: u32 = "unsigned long a1",
        }
        r#""nr 0x%lx a0 0x%lx a1 0x%lx", REC->nr, REC->a0, REC->a1"#;
        /// `kvm_pio`: port I/O of `count` items of `size` bytes.
        KvmPio = kvm kvm_pio {
            write: bool = "unsigned int rw",
            port: u16 = "unsigned int port",
            size: u8 = "unsigned int size",
            count: u32 = "unsigned int count",
            val: u32 = "unsigned int val",
        }
        r#""pio_%s at 0x%x size %u count %u val 0x%x", REC->rw ? "write" : "read", REC->port, REC->size, REC->count, REC->val"#;
        /// `kvm_mmio`: `mmio_type` is 0 unsatisfied read, 1 read, 2 write.
        KvmMmio = kvm kvm_mmio {
            mmio_type: u8 = "u32 type",
            len: u32 = "u32 len",
            gpa: u64 = "u64 gpa",
            val: u64 = "u64 val",
        }
        r#""mmio %s len %u gpa 0x%llx val 0x%llx", __print_symbolic(REC->type, { 0, "unsatisfied-read" }, { 1, "read" }, { 2, "write" }), REC->len, REC->gpa, REC->val"#;
        /// `kvm_msr`: RDMSR or WRMSR of register `ecx`; `exception`: it raised #GP.
        KvmMsr = kvm kvm_msr {
            write: bool = "unsigned int write",
            ecx: u32 = "u32 ecx",
            data: u64 = "u64 data",
            exception: bool = "u8 exception",
        }
        r#""msr_%s %x = 0x%llx%s", REC->write ? "write" : "read", REC->ecx, REC->data, REC->exception ? " (#GP)" : """#;
        /// `kvm_cpuid`: CPUID with EAX `function` and ECX `index`.
        KvmCpuid = kvm kvm_cpuid {
            function: u32 = "unsigned int function",
            index: u32 = "unsigned int index" or absent,
        }
        r#""func %x idx %x", REC->function, REC->index"#;
        /// `kvm_page_fault`. `vcpu` is [`VcpuId::UNKNOWN`] on kernels before 6.2.
        KvmPageFault = kvm kvm_page_fault {
            vcpu: VcpuId = "unsigned int vcpu_id" or absent,
            address: u64 = "u64 fault_address",
            error_code: u64 = "u64 error_code",
        }
        r#""vcpu %u address 0x%016llx error_code 0x%llx", REC->vcpu_id, REC->fault_address, REC->error_code"#;
        // kvm: interrupts.
        /// `kvm_apic`: access to a register of the emulated LAPIC.
        KvmApic = kvm kvm_apic {
            write: bool = "unsigned int rw",
            reg: u32 = "unsigned int reg",
            val: u64 = "u64 val",
        }
        r#""apic_%s 0x%x = 0x%llx", REC->rw ? "write" : "read", REC->reg, REC->val"#;
        /// `kvm_apic_ipi`: the guest wrote the ICR. `dest_id` is the destination field.
        KvmApicIpi = kvm kvm_apic_ipi { icr_low: u32 = "__u32 icr_low", dest_id: u32 = "__u32 dest_id" }
        r#""dst %x vec %u (%s|%s|%s|%s|%s)", REC->dest_id, REC->icr_low & 0xff, __print_symbolic((REC->icr_low >> 8) & 0x7, { 0, "Fixed" }, { 1, "LowPrio" }, { 2, "SMI" }, { 3, "Res3" }, { 4, "NMI" }, { 5, "INIT" }, { 6, "SIPI" }, { 7, "ExtINT" }), REC->icr_low & 0x800 ? "logical" : "physical", REC->icr_low & 0x4000 ? "assert" : "de-assert", REC->icr_low & 0x8000 ? "level" : "edge", __print_symbolic((REC->icr_low >> 18) & 0x3, { 0, "dst" }, { 1, "self" }, { 2, "all" }, { 3, "all-but-self" })"#;
        /// `kvm_apic_accept_irq`: vector `vec` set in IRR (or posted). `dm` is delivery mode << 8.
        KvmApicAcceptIrq = kvm kvm_apic_accept_irq {
            apicid: u32 = "__u32 apicid",
            dm: u16 = "__u16 dm",
            tm: u16 = "__u16 tm",
            vec: u8 = "__u8 vec",
        }
        r#""apicid %x vec %u (%s|%s)", REC->apicid, REC->vec, __print_symbolic((REC->dm >> 8) & 0x7, { 0, "Fixed" }, { 1, "LowPrio" }, { 2, "SMI" }, { 3, "Res3" }, { 4, "NMI" }, { 5, "INIT" }, { 6, "SIPI" }, { 7, "ExtINT" }), REC->tm ? "level" : "edge""#;
        /// `kvm_apicv_accept_irq`: the same on its way through APICv.
        KvmApicvAcceptIrq = kvm kvm_apicv_accept_irq {
            apicid: u32 = "__u32 apicid",
            dm: u16 = "__u16 dm",
            tm: u16 = "__u16 tm",
            vec: u8 = "__u8 vec",
        }
        r#""apicid %x vec %u (%s|%s)", REC->apicid, REC->vec, __print_symbolic((REC->dm >> 8) & 0x7, { 0, "Fixed" }, { 1, "LowPrio" }, { 2, "SMI" }, { 3, "Res3" }, { 4, "NMI" }, { 5, "INIT" }, { 6, "SIPI" }, { 7, "ExtINT" }), REC->tm ? "level" : "edge""#;
        /// `kvm_inj_virq`: vector written into the VMCS/VMCB (`vector` of IRQ kind; `soft`: INT n).
        KvmInjVirq = kvm kvm_inj_virq {
            vector: u32 = "unsigned int vector" formerly "irq",
            soft: bool = "bool soft" or absent,
            reinjected: bool = "bool reinjected" or absent,
        }
        r#""%s 0x%x%s", REC->soft ? "Soft/INTn" : "IRQ", REC->vector, REC->reinjected ? " [reinjected]" : """#;
        /// `kvm_inj_exception`: vector `exception` (0 to 31) is delivered to the guest.
        KvmInjException = kvm kvm_inj_exception {
            exception: u8 = "u8 exception",
            error_code: u32 = "u32 error_code",
        }
        r#""0x%x (0x%x)", REC->exception, REC->error_code"#;
        /// `kvm_eoi`: the guest ends an interrupt; `vector` is -1 where none was in service.
        KvmEoi = kvm kvm_eoi { apicid: u32 = "__u32 apicid", vector: i32 = "int vector" }
        r#""apicid %x vector %d", REC->apicid, REC->vector"#;
        /// `kvm_pv_eoi`: the same by the paravirtual flag in guest memory, without an exit.
        KvmPvEoi = kvm kvm_pv_eoi { apicid: u32 = "__u32 apicid", vector: i32 = "int vector" }
        r#""apicid %x vector %d", REC->apicid, REC->vector"#;
        /// `kvm_set_irq`: a line of the emulated interrupt controllers changes.
        KvmSetIrq = kvm kvm_set_irq { gsi: u32 = "unsigned int gsi", level: i32 = "int level" }
        r#""gsi %u level %d", REC->gsi, REC->level"#;
        /// `kvm_msi_set_irq`: an MSI to a guest.
        KvmMsiSetIrq = kvm kvm_msi_set_irq { address: u64 = "u64 address", data: u64 = "u64 data" }
        r#""address=0x%llx data=0x%llx", REC->address, REC->data"#;
        /// `kvm_pi_irte_update`: an IOMMU entry posts (`set`) to this vCPU or no longer does.
        KvmPiIrteUpdate = kvm kvm_pi_irte_update {
            host_irq: u32 = "unsigned int host_irq",
            vcpu: VcpuId = "unsigned int vcpu_id",
            gsi: u32 = "unsigned int gsi",
            gvec: u32 = "unsigned int gvec",
            set: bool = "bool set",
        }
        r#""PI is %s for irq %u, vcpu %u, gsi: 0x%x, gvec: 0x%x", REC->set ? "enabled" : "disabled", REC->host_irq, REC->vcpu_id, REC->gsi, REC->gvec"#;
        /// `kvm_avic_incomplete_ipi`: hardware could not deliver an IPI by itself (AVIC).
        KvmAvicIncompleteIpi = kvm kvm_avic_incomplete_ipi {
            vcpu: VcpuId = "u32 vcpu",
            icrh: u32 = "u32 icrh",
            icrl: u32 = "u32 icrl",
            id: u32 = "u32 id",
        }
        r#""vcpu=%u icrh=0x%08x icrl=0x%08x id=%u", REC->vcpu, REC->icrh, REC->icrl, REC->id"#;
        /// `kvm_apicv_inhibit_changed`: `reason` is the bit in `inhibits` that is set or cleared.
        KvmApicvInhibitChanged = kvm kvm_apicv_inhibit_changed {
            reason: i32 = "int reason",
            set: bool = "bool set",
            inhibits: u64 = "unsigned long inhibits",
        }
        r#""%s reason=%d, inhibits=0x%lx", REC->set ? "set" : "cleared", REC->reason, REC->inhibits"#;
        // kvm: halting, spinning, timers and clocks.
        /// `kvm_vcpu_wakeup`: a halt has ended after `ns`; `waited`: it slept, else it only polled;
        /// `valid`: the wakeup was worth a poll.
        KvmVcpuWakeup = kvm kvm_vcpu_wakeup {
            ns: u64 = "__u64 ns",
            waited: bool = "bool waited",
            valid: bool = "bool valid",
        }
        r#""%s time %llu ns, polling %s", REC->waited ? "wait" : "poll", REC->ns, REC->valid ? "valid" : "invalid""#;
        /// `kvm_halt_poll_ns`: the vCPU's polling time changes.
        KvmHaltPollNs = kvm kvm_halt_poll_ns {
            grow: bool = "bool grow",
            vcpu: VcpuId = "unsigned int vcpu_id",
            new: u32 = "unsigned int new",
            old: u32 = "unsigned int old",
        }
        r#""vcpu %u: halt_poll_ns %u (%s %u)", REC->vcpu_id, REC->new, REC->grow ? "grow" : "shrink", REC->old"#;
        /// `kvm_ple_window_update` (`kvm_ple_window` before 5.0): the window of spin exits, in TSC
        /// ticks (VMX) or PAUSEs (SVM).
        KvmPleWindowUpdate = kvm kvm_ple_window_update formerly kvm_ple_window {
            vcpu: VcpuId = "unsigned int vcpu_id",
            new: u32 = "unsigned int new",
            old: u32 = "unsigned int old",
        }
        r#""vcpu %u old %u new %u (%s)", REC->vcpu_id, REC->old, REC->new, REC->old < REC->new ? "growing" : "shrinking""#;
        /// `kvm_hv_timer_state`: the vCPU's LAPIC timer is (not) in the VMX preemption timer.
        KvmHvTimerState = kvm kvm_hv_timer_state {
            vcpu: VcpuId = "unsigned int vcpu_id",
            hv_timer_in_use: bool = "unsigned int hv_timer_in_use",
        }
        r#""vcpu_id %x hv_timer %x", REC->vcpu_id, REC->hv_timer_in_use"#;
        /// `kvm_wait_lapic_expire`: guest TSC minus deadline, in guest TSC ticks, when a timer fired
        /// early by the timer advance: negative is early.
        KvmWaitLapicExpire = kvm kvm_wait_lapic_expire {
            vcpu: VcpuId = "unsigned int vcpu_id",
            delta: i64 = "s64 delta",
        }
        r#""vcpu %u: delta %lld (%s)", REC->vcpu_id, REC->delta, REC->delta < 0 ? "early" : "late""#;
        /// `kvm_write_tsc_offset`: ticks, modulo 2^64.
        KvmWriteTscOffset = kvm kvm_write_tsc_offset {
            vcpu: VcpuId = "unsigned int vcpu_id",
            prev: u64 = "__u64 previous_tsc_offset",
            next: u64 = "__u64 next_tsc_offset",
        }
        r#""vcpu=%u prev=%llu next=%llu", REC->vcpu_id, REC->previous_tsc_offset, REC->next_tsc_offset"#;
        /// `kvm_track_tsc`: how many vCPUs match the first's TSC, of how many.
        KvmTrackTsc = kvm kvm_track_tsc {
            vcpu: VcpuId = "unsigned int vcpu_id",
            matched: u32 = "unsigned int nr_vcpus_matched_tsc",
            online: u32 = "unsigned int online_vcpus",
            use_master_clock: bool = "bool use_master_clock",
            host_clock: u32 = "int host_clock",
        }
        r#""vcpu_id %u masterclock %u offsetmatched %u nr_online %u hostclock %s", REC->vcpu_id, REC->use_master_clock, REC->nr_vcpus_matched_tsc, REC->online_vcpus, __print_symbolic(REC->host_clock, { 0, "none" }, { 1, "tsc" })"#;
        /// `kvm_update_master_clock`. `host_clock` 1 is the TSC.
        KvmUpdateMasterClock = kvm kvm_update_master_clock {
            use_master_clock: bool = "bool use_master_clock",
            host_clock: u32 = "int host_clock",
            offset_matched: bool = "bool offset_matched",
        }
        r#""masterclock %d hostclock %s offsetmatched %u", REC->use_master_clock, __print_symbolic(REC->host_clock, { 0, "none" }, { 1, "tsc" }), REC->offset_matched"#;
        /// `kvm_pvclock_update`: what the guest's kvmclock page says from now on.
        KvmPvclockUpdate = kvm kvm_pvclock_update {
            vcpu: VcpuId = "unsigned int vcpu_id",
            tsc_timestamp: u64 = "__u64 tsc_timestamp",
            system_time: u64 = "__u64 system_time",
        }
        r#""vcpu_id %u, pvclock { tsc_timestamp 0x%llx, system_time 0x%llx }", REC->vcpu_id, REC->tsc_timestamp, REC->system_time"#;
        /// `kvm_pv_tlb_flush`: a preempted vCPU runs again; `need_flush_tlb`: another one has asked for a
        /// flush meanwhile.
        KvmPvTlbFlush = kvm kvm_pv_tlb_flush {
            vcpu: VcpuId = "unsigned int vcpu_id",
            need_flush_tlb: bool = "bool need_flush_tlb",
        }
        r#""vcpu %u need_flush_tlb %s", REC->vcpu_id, REC->need_flush_tlb ? "true" : "false""#;
        // sched.
        /// `sched_switch`: `prev_state` as the kernel traces it, 0: still runnable (preempted).
        SchedSwitch = sched sched_switch {
            "char prev_comm[16]" of prev,
            prev: Tid = "pid_t prev_pid",
            prev_prio: i16 = "int prev_prio",
            prev_state: u32 = "long prev_state",
            "char next_comm[16]" of next,
            next: Tid = "pid_t next_pid",
            next_prio: i16 = "int next_prio",
        }
        r#""prev_comm=%s prev_pid=%d prev_prio=%d prev_state=%s%s ==> next_comm=%s next_pid=%d next_prio=%d", REC->prev_comm, REC->prev_pid, REC->prev_prio, (REC->prev_state & 0xff) ? __print_flags(REC->prev_state & 0xff, "|", { 1, "S" }, { 2, "D" }, { 4, "T" }, { 8, "t" }, { 0x10, "X" }, { 0x20, "Z" }, { 0x40, "P" }, { 0x80, "I" }) : "R", REC->prev_state & 0x100 ? "+" : "", REC->next_comm, REC->next_pid, REC->next_prio"#;
        /// `sched_waking`: in the waker's context, before the wakeup.
        SchedWaking = sched sched_waking {
            "char comm[16]" of tid,
            tid: Tid = "pid_t pid",
            prio: i32 = "int prio",
            target_cpu: u32 = "int target_cpu",
        }
        r#""comm=%s pid=%d prio=%d target_cpu=%03d", REC->comm, REC->pid, REC->prio, REC->target_cpu"#;
        /// `sched_wakeup`: the task is runnable.
        SchedWakeup = sched sched_wakeup {
            "char comm[16]" of tid,
            tid: Tid = "pid_t pid",
            prio: i32 = "int prio",
            target_cpu: u32 = "int target_cpu",
        }
        r#""comm=%s pid=%d prio=%d target_cpu=%03d", REC->comm, REC->pid, REC->prio, REC->target_cpu"#;
        /// `sched_wakeup_new`: the first wakeup of a new task.
        SchedWakeupNew = sched sched_wakeup_new {
            "char comm[16]" of tid,
            tid: Tid = "pid_t pid",
            prio: i32 = "int prio",
            target_cpu: u32 = "int target_cpu",
        }
        r#""comm=%s pid=%d prio=%d target_cpu=%03d", REC->comm, REC->pid, REC->prio, REC->target_cpu"#;
        /// `sched_migrate_task`: the task moves to the run queue of another CPU.
        SchedMigrateTask = sched sched_migrate_task {
            "char comm[16]" of tid,
            tid: Tid = "pid_t pid",
            prio: i32 = "int prio",
            orig_cpu: u32 = "int orig_cpu",
            dest_cpu: u32 = "int dest_cpu",
        }
        r#""comm=%s pid=%d prio=%d orig_cpu=%d dest_cpu=%d", REC->comm, REC->pid, REC->prio, REC->orig_cpu, REC->dest_cpu"#;
        /// `sched_stat_runtime`: the task ran for so many ns since the last such event.
        SchedStatRuntime = sched sched_stat_runtime {
            "char comm[16]" of tid,
            tid: Tid = "pid_t pid",
            runtime_ns: u64 = "u64 runtime",
        }
        r#""comm=%s pid=%d runtime=%llu [ns]", REC->comm, REC->pid, REC->runtime"#;
        /// `sched_stat_wait`: the task waited for so many ns on a run queue.
        SchedStatWait = sched sched_stat_wait {
            "char comm[16]" of tid,
            tid: Tid = "pid_t pid",
            delay_ns: u64 = "u64 delay",
        }
        r#""comm=%s pid=%d delay=%llu [ns]", REC->comm, REC->pid, REC->delay"#;
        /// `sched_process_fork`: a new process or thread.
        SchedProcessFork = sched sched_process_fork {
            "char parent_comm[16]" of parent,
            parent: Tid = "pid_t parent_pid",
            "char child_comm[16]" of child,
            child: Tid = "pid_t child_pid",
        }
        r#""comm=%s pid=%d child_comm=%s child_pid=%d", REC->parent_comm, REC->parent_pid, REC->child_comm, REC->child_pid"#;
        /// `sched_process_exit`: the task ends; its last `sched_switch` follows.
        SchedProcessExit = sched sched_process_exit { "char comm[16]" of tid, tid: Tid = "pid_t pid" }
        r#""comm=%s pid=%d", REC->comm, REC->pid"#;
        // Interrupts of the host.
        /// `irq_handler_entry`: a device's interrupt.
        IrqHandlerEntry = irq irq_handler_entry { irq: u32 = "int irq" }
        r#""irq=%d", REC->irq"#;
        /// `irq_handler_exit`: the handler returns.
        IrqHandlerExit = irq irq_handler_exit { irq: u32 = "int irq" }
        r#""irq=%d", REC->irq"#;
        /// `softirq_entry`: `vec` is `TIMER_SOFTIRQ` and so on.
        SoftirqEntry = irq softirq_entry { vec: u32 = "unsigned int vec" }
        r#""vec=%u [action=%s]", REC->vec, __print_symbolic(REC->vec, { 0, "HI" }, { 1, "TIMER" }, { 2, "NET_TX" }, { 3, "NET_RX" }, { 4, "BLOCK" }, { 5, "IRQ_POLL" }, { 6, "TASKLET" }, { 7, "SCHED" }, { 8, "HRTIMER" }, { 9, "RCU" })"#;
        /// `softirq_exit`: the handler returns.
        SoftirqExit = irq softirq_exit { vec: u32 = "unsigned int vec" }
        r#""vec=%u [action=%s]", REC->vec, __print_symbolic(REC->vec, { 0, "HI" }, { 1, "TIMER" }, { 2, "NET_TX" }, { 3, "NET_RX" }, { 4, "BLOCK" }, { 5, "IRQ_POLL" }, { 6, "TASKLET" }, { 7, "SCHED" }, { 8, "HRTIMER" }, { 9, "RCU" })"#;
        /// `softirq_raise`: the softirq is pending on this CPU.
        SoftirqRaise = irq softirq_raise { vec: u32 = "unsigned int vec" }
        r#""vec=%u [action=%s]", REC->vec, __print_symbolic(REC->vec, { 0, "HI" }, { 1, "TIMER" }, { 2, "NET_TX" }, { 3, "NET_RX" }, { 4, "BLOCK" }, { 5, "IRQ_POLL" }, { 6, "TASKLET" }, { 7, "SCHED" }, { 8, "HRTIMER" }, { 9, "RCU" })"#;
        /// `ipi_send_cpu`: to one CPU; `callback` is what it will run.
        IpiSendCpu = ipi ipi_send_cpu {
            cpu: u32 = "unsigned int cpu",
            callback: NameId = "void * callback",
        }
        r#""cpu=%u callback=%pS", REC->cpu, REC->callback"#;
        /// `ipi_send_cpumask`: to several CPUs; which ones no analysis reads.
        IpiSendCpumask = ipi ipi_send_cpumask { callback: NameId = "void * callback" }
        r#""cpumask=? callback=%pS", REC->callback"#;
        /// `csd_queue_cpu`: a function call is queued for a CPU.
        CsdQueueCpu = csd csd_queue_cpu { cpu: u32 = "unsigned int cpu", func: NameId = "void * func" }
        r#""cpu=%u func=%ps", REC->cpu, REC->func"#;
        /// `csd_function_entry`: the target CPU begins the call.
        CsdFunctionEntry = csd csd_function_entry { func: NameId = "void * func" }
        r#""func=%ps", REC->func"#;
        /// `csd_function_exit`: the call returns.
        CsdFunctionExit = csd csd_function_exit { func: NameId = "void * func" }
        r#""func=%ps", REC->func"#;
        // hrtimers. Times are of the timer's own clock (mostly CLOCK_MONOTONIC), in ns.
        /// `hrtimer_setup` (`hrtimer_init` before 6.15).
        HrtimerSetup = timer hrtimer_setup formerly hrtimer_init { hrtimer: u64 = "void * hrtimer" }
        r#""hrtimer=%p", REC->hrtimer"#;
        /// `hrtimer_start`: armed, to expire at `expires_ns` at the earliest.
        HrtimerStart = timer hrtimer_start {
            hrtimer: u64 = "void * hrtimer",
            function: NameId = "void * function",
            expires_ns: u64 = "s64 expires",
            "s64 softexpires",
        }
        r#""hrtimer=%p function=%ps expires=%llu softexpires=%llu", REC->hrtimer, REC->function, (unsigned long long) REC->expires, (unsigned long long) REC->softexpires"#;
        /// `hrtimer_cancel`: dequeued, by a cancel or because it expires now (`__run_hrtimer`).
        HrtimerCancel = timer hrtimer_cancel { hrtimer: u64 = "void * hrtimer" }
        r#""hrtimer=%p", REC->hrtimer"#;
        /// `hrtimer_expire_entry`: `function` begins; `now_ns` is the time of the interrupt.
        HrtimerExpireEntry = timer hrtimer_expire_entry {
            hrtimer: u64 = "void * hrtimer",
            now_ns: u64 = "s64 now",
            function: NameId = "void * function",
        }
        r#""hrtimer=%p function=%ps now=%llu", REC->hrtimer, REC->function, (unsigned long long) REC->now"#;
        /// `hrtimer_expire_exit`: the function returns.
        HrtimerExpireExit = timer hrtimer_expire_exit { hrtimer: u64 = "void * hrtimer" }
        r#""hrtimer=%p", REC->hrtimer"#;
    } };
}
