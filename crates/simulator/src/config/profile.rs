//! A machine: what things cost on it and what it can do.

/// An idle state of a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CState {
    /// Name (`C1E`).
    pub name: String,
    /// Time from the wake event to the first instruction, in ns.
    pub exit_latency_ns: u32,
    /// Shortest stay that pays, in ns.
    pub target_residency_ns: u32,
}

/// What the hardware offers to a hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is one capability bit")]
pub struct Features {
    /// APIC virtualization and posted interrupts.
    pub apicv: bool,
    /// IPI virtualization.
    pub ipiv: bool,
    /// VMX preemption timer; its shift (`IA32_VMX_MISC[4:0]`), `None` without it.
    pub hv_timer_shift: Option<u32>,
    /// Pause-loop exiting.
    pub ple: bool,
    /// AMD's SVM in place of VMX: pause loops are counted in PAUSEs and leave the guest at any CPL. There
    /// is no preemption timer, and APIC virtualization (AVIC) is not modelled.
    pub svm: bool,
    /// The IOMMU posts interrupts of assigned devices.
    pub vtd_posting: bool,
    /// LAPICs are in x2APIC mode.
    pub x2apic: bool,
    /// In x2APIC mode, logical (cluster) addressing of IPIs.
    pub x2apic_cluster: bool,
    /// TSC scaling.
    pub tsc_scaling: bool,
    /// arm64: `FEAT_ECV` with `CNTPOFF_EL2`.
    pub ecv_cntpoff: bool,
}

/// What things cost, in ns unless said otherwise. Ranges are [0, 10^9]; `tsc_khz` is at least 1.
///
/// A VM exit and the following entry cost `vmexit_ns + vmentry_ns` with a handler that does
/// nothing; what a handler does is added by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// TSC frequency in kHz.
    pub tsc_khz: u32,
    /// From the exiting instruction to the first instruction of the handler.
    pub vmexit_ns: u32,
    /// From the decision to enter to the first guest instruction.
    pub vmentry_ns: u32,
    /// Emptying the L1 data cache before an entry, and what its refill costs the guest; 0 where the
    /// machine need not.
    pub l1d_flush_ns: u32,
    /// Handlers, beyond exit and entry: a host interrupt.
    pub handle_external_interrupt_ns: u32,
    /// HLT, until polling or blocking starts.
    pub handle_hlt_ns: u32,
    /// From the end of a halt's poll or sleep to where the entry turns interrupts off.
    pub handle_wake_ns: u32,
    /// A turn of the halt-polling loop, which looks at its end.
    pub halt_poll_turn_ns: u32,
    /// Writes to the ICR, beyond what sending costs.
    pub handle_icr_ns: u32,
    /// Writes to IA32_TSC_DEADLINE on the fast path.
    pub handle_tsc_deadline_ns: u32,
    /// arm64: a trapped read of a counter, served at EL2; 0 on other machines.
    pub counter_trap_ns: u32,
    /// Other MSRs.
    pub handle_msr_ns: u32,
    /// End of interrupt.
    pub handle_eoi_ns: u32,
    /// CPUID.
    pub handle_cpuid_ns: u32,
    /// PAUSE, before candidates for a yield are looked at.
    pub handle_pause_ns: u32,
    /// Looking at one candidate for a directed yield.
    pub yield_candidate_ns: u32,
    /// Hypercalls.
    pub handle_hypercall_ns: u32,
    /// Port I/O and MMIO that end in the kernel (ioeventfd).
    pub handle_io_ns: u32,
    /// The same when user space must do it.
    pub handle_userspace_ns: u32,
    /// The preemption timer's expiry.
    pub handle_preemption_timer_ns: u32,
    /// EPT violations: a page is brought in.
    pub handle_ept_violation_ns: u32,
    /// An instruction that opens the interrupt window.
    pub handle_interrupt_window_ns: u32,
    /// Writing the ICR, in x2APIC mode.
    pub icr_x2apic_ns: u32,
    /// Writing the ICR, in xAPIC mode, without waiting for the last one.
    pub icr_xapic_ns: u32,
    /// From the ICR write to the pin of a core that is awake, same socket.
    pub ipi_flight_ns: u32,
    /// The same, more, across sockets.
    pub ipi_cross_socket_ns: u32,
    /// Host interrupt: entry, EOI and return, handler excluded.
    pub irq_ns: u32,
    /// Softirq on the way out.
    pub softirq_ns: u32,
    /// A notification processed in guest mode.
    pub posted_interrupt_ns: u32,
    /// One locked operation on a line that the CPU owns.
    pub locked_own_ns: u32,
    /// One locked operation on a line that another CPU owns.
    pub locked_shared_ns: u32,
    /// Seeing another CPU's store in a polled line.
    pub cache_line_ns: u32,
    /// Reading the four words of PIR: line present.
    pub pir_scan_ns: u32,
    /// hrtimer start on this CPU.
    pub hrtimer_start_ns: u32,
    /// hrtimer start that queues on another CPU.
    pub hrtimer_remote_ns: u32,
    /// From the timer interrupt to the callback.
    pub hrtimer_expiry_ns: u32,
    /// The tick's own work.
    pub tick_ns: u32,
    /// Switch between two tasks of the host.
    pub context_switch_ns: u32,
    /// Loading and putting a vCPU on top of that.
    pub vcpu_load_ns: u32,
    /// Waking a task: run-queue locks and placement.
    pub wakeup_ns: u32,
    /// Moving a task between CPUs.
    pub migrate_ns: u32,
    /// Guest: interrupt entry and exit, handler excluded.
    pub guest_irq_ns: u32,
    /// Guest: switch between two threads.
    pub guest_switch_ns: u32,
    /// Guest: system call entry and exit.
    pub guest_syscall_ns: u32,
    /// Guest: waking a thread.
    pub guest_wakeup_ns: u32,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name (`skylake-sp`).
    pub name: String,
    /// Costs.
    pub costs: Costs,
    /// Capabilities.
    pub features: Features,
    /// Speed of each hardware thread of a core while both have a task, in percent of a lone thread:
    /// [1, 100]. At 100 threads do not slow each other.
    pub smt_percent: u32,
    /// Idle states, shallowest first; at least one.
    pub cstates: Vec<CState>,
}

impl Profile {
    /// Whether it is an arm64 machine: no other one traps reads of the counter.
    pub(crate) const fn is_arm64(&self) -> bool {
        self.costs.counter_trap_ns != 0
    }
}
