//! A plain machine for tests and examples.

use super::{CState, Costs, Features, Profile};

impl Profile {
    /// A server of no particular make: round figures near those of Skylake-SP, all of them
    /// estimates. Real machines are data files.
    #[must_use]
    pub fn generic() -> Self {
        let state = |name: &str, exit_us: u32, residency_us: u32| CState {
            name: name.to_owned(),
            exit_latency_ns: exit_us * 1000,
            target_residency_ns: residency_us * 1000,
        };
        Self {
            name: "generic".to_owned(),
            costs: Costs::GENERIC,
            features: Features {
                apicv: true,
                ipiv: false,
                hv_timer_shift: Some(5),
                ple: true,
                svm: false,
                vtd_posting: true,
                x2apic: true,
                x2apic_cluster: true,
                tsc_scaling: true,
                ecv_cntpoff: false,
            },
            // A core with two threads has 16 to 28 % more throughput on server loads (Marr et al.,
            // Intel Technology Journal, 2002). So each thread runs at about 62 %.
            smt_percent: 62,
            cstates: vec![
                state("C1", 2, 2),
                state("C1E", 10, 20),
                state("C6", 133, 600),
            ],
        }
    }
}

impl Costs {
    /// Nothing costs anything: for recorded demand, which contains its costs.
    pub const FREE: Self = Self {
        tsc_khz: 2_500_000,
        vmexit_ns: 0,
        vmentry_ns: 0,
        handle_external_interrupt_ns: 0,
        l1d_flush_ns: 0,
        counter_trap_ns: 0,
        handle_hlt_ns: 0,
        handle_wake_ns: 0,
        halt_poll_turn_ns: 0,
        handle_icr_ns: 0,
        handle_tsc_deadline_ns: 0,
        handle_msr_ns: 0,
        handle_eoi_ns: 0,
        handle_cpuid_ns: 0,
        handle_pause_ns: 0,
        yield_candidate_ns: 0,
        handle_hypercall_ns: 0,
        handle_io_ns: 0,
        handle_userspace_ns: 0,
        handle_preemption_timer_ns: 0,
        handle_ept_violation_ns: 0,
        handle_interrupt_window_ns: 0,
        icr_x2apic_ns: 0,
        icr_xapic_ns: 0,
        ipi_flight_ns: 0,
        ipi_cross_socket_ns: 0,
        irq_ns: 0,
        softirq_ns: 0,
        posted_interrupt_ns: 0,
        locked_own_ns: 0,
        locked_shared_ns: 0,
        cache_line_ns: 0,
        pir_scan_ns: 0,
        hrtimer_start_ns: 0,
        hrtimer_remote_ns: 0,
        hrtimer_expiry_ns: 0,
        tick_ns: 0,
        context_switch_ns: 0,
        vcpu_load_ns: 0,
        wakeup_ns: 0,
        migrate_ns: 0,
        guest_irq_ns: 0,
        guest_switch_ns: 0,
        guest_syscall_ns: 0,
        guest_wakeup_ns: 0,
    };

    const GENERIC: Self = Self {
        tsc_khz: 2_500_000,
        vmexit_ns: 250,
        vmentry_ns: 250,
        handle_external_interrupt_ns: 100,
        l1d_flush_ns: 0,
        counter_trap_ns: 0,
        handle_hlt_ns: 200,
        handle_wake_ns: 300,
        halt_poll_turn_ns: 120,
        handle_icr_ns: 150,
        handle_tsc_deadline_ns: 150,
        handle_msr_ns: 150,
        handle_eoi_ns: 150,
        handle_cpuid_ns: 100,
        handle_pause_ns: 200,
        yield_candidate_ns: 30,
        handle_hypercall_ns: 150,
        handle_io_ns: 1500,
        handle_userspace_ns: 8000,
        handle_preemption_timer_ns: 200,
        handle_ept_violation_ns: 1500,
        handle_interrupt_window_ns: 100,
        icr_x2apic_ns: 110,
        icr_xapic_ns: 150,
        ipi_flight_ns: 450,
        ipi_cross_socket_ns: 150,
        irq_ns: 450,
        softirq_ns: 300,
        posted_interrupt_ns: 200,
        locked_own_ns: 8,
        locked_shared_ns: 80,
        cache_line_ns: 100,
        pir_scan_ns: 2,
        hrtimer_start_ns: 120,
        hrtimer_remote_ns: 250,
        hrtimer_expiry_ns: 250,
        tick_ns: 800,
        context_switch_ns: 1000,
        vcpu_load_ns: 500,
        wakeup_ns: 500,
        migrate_ns: 300,
        guest_irq_ns: 400,
        guest_switch_ns: 800,
        guest_syscall_ns: 200,
        guest_wakeup_ns: 400,
    };
}
