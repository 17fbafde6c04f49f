//! Which figures a profile has.

use stealtime_simulator::config::{Costs, Features};

/// Reads each field of a structure by its name.
macro_rules! fields {
    ($(#[$doc:meta])* $names:ident, $build:ident, $type:ident, $value:ty: $($field:ident)*) => {
        $(#[$doc])*
        pub(super) const $names: &[&str] = &[$(stringify!($field)),*];

        /// Builds the structure from what `value` says of each field; `None` as soon as it does.
        pub(super) fn $build(mut value: impl FnMut(&'static str) -> Option<$value>) -> Option<$type> {
            // All are asked before the first that is missing ends it: every problem is found.
            $(let $field = value(stringify!($field));)*
            Some($type { $($field: $field?.into()),* })
        }
    };
}

fields! {
    /// Fields of [`Costs`].
    COSTS, costs, Costs, u32:
    tsc_khz vmexit_ns vmentry_ns l1d_flush_ns counter_trap_ns handle_external_interrupt_ns
    handle_hlt_ns handle_wake_ns
    halt_poll_turn_ns handle_icr_ns
    handle_tsc_deadline_ns handle_msr_ns handle_eoi_ns handle_cpuid_ns handle_pause_ns
    yield_candidate_ns handle_hypercall_ns handle_io_ns handle_userspace_ns
    handle_preemption_timer_ns handle_ept_violation_ns handle_interrupt_window_ns icr_x2apic_ns
    icr_xapic_ns ipi_flight_ns ipi_cross_socket_ns irq_ns softirq_ns posted_interrupt_ns
    locked_own_ns locked_shared_ns cache_line_ns pir_scan_ns hrtimer_start_ns hrtimer_remote_ns
    hrtimer_expiry_ns tick_ns context_switch_ns vcpu_load_ns wakeup_ns migrate_ns guest_irq_ns
    guest_switch_ns guest_syscall_ns guest_wakeup_ns
}

/// A capability: there or not, or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ability(pub(super) Option<u32>);

impl From<Ability> for bool {
    fn from(ability: Ability) -> Self {
        ability.0.is_some()
    }
}

impl From<Ability> for Option<u32> {
    fn from(ability: Ability) -> Self {
        ability.0
    }
}

fields! {
    /// Fields of [`Features`].
    FEATURES, features, Features, Ability:
    apicv ipiv hv_timer_shift ple svm vtd_posting x2apic x2apic_cluster tsc_scaling ecv_cntpoff
}
