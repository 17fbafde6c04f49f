//! Host interrupts with a tracepoint pair of their own (`irq_vectors:*`, arch/x86).
//!
//! ```
//! use stealtime_events::vector::{HostVector, linux};
//!
//! assert_eq!(HostVector::Reschedule.names().1, "reschedule_entry");
//! assert_eq!(linux::POSTED_INTR, 0xf2);
//! ```

/// What a `NAME_entry`/`NAME_exit` pair of `irq_vectors` is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostVector {
    /// `local_timer`: the CPU's APIC timer.
    LocalTimer,
    /// `reschedule`: the scheduler's IPI, which is also how KVM kicks a vCPU.
    Reschedule,
    /// `call_function`: smp_call_function_many.
    CallFunction,
    /// `call_function_single`: smp_call_function_single.
    CallFunctionSingle,
    /// `irq_work`.
    IrqWork,
    /// `x86_platform_ipi`.
    X86PlatformIpi,
    /// `error_apic`.
    ErrorApic,
    /// `spurious_apic`.
    SpuriousApic,
    /// `thermal_apic`.
    ThermalApic,
    /// `threshold_apic`.
    ThresholdApic,
    /// `deferred_error_apic`.
    DeferredErrorApic,
}

impl HostVector {
    /// Every class, in the order of the enum.
    pub const ALL: [Self; 11] = [
        Self::LocalTimer,
        Self::Reschedule,
        Self::CallFunction,
        Self::CallFunctionSingle,
        Self::IrqWork,
        Self::X86PlatformIpi,
        Self::ErrorApic,
        Self::SpuriousApic,
        Self::ThermalApic,
        Self::ThresholdApic,
        Self::DeferredErrorApic,
    ];

    /// The tracepoint's name without `_entry` and `_exit`.
    #[must_use]
    pub const fn stem(self) -> &'static str {
        self.names().0
    }

    /// The names of stem, entry and exit tracepoint.
    #[must_use]
    pub const fn names(self) -> (&'static str, &'static str, &'static str) {
        macro_rules! names {
            ($stem:literal) => {
                ($stem, concat!($stem, "_entry"), concat!($stem, "_exit"))
            };
        }
        match self {
            Self::LocalTimer => names!("local_timer"),
            Self::Reschedule => names!("reschedule"),
            Self::CallFunction => names!("call_function"),
            Self::CallFunctionSingle => names!("call_function_single"),
            Self::IrqWork => names!("irq_work"),
            Self::X86PlatformIpi => names!("x86_platform_ipi"),
            Self::ErrorApic => names!("error_apic"),
            Self::SpuriousApic => names!("spurious_apic"),
            Self::ThermalApic => names!("thermal_apic"),
            Self::ThresholdApic => names!("threshold_apic"),
            Self::DeferredErrorApic => names!("deferred_error_apic"),
        }
    }
}

/// Host vectors with a fixed meaning (arch/x86/include/asm/irq_vectors.h, Linux 7.2).
pub mod linux {
    /// `LOCAL_TIMER_VECTOR`.
    pub const LOCAL_TIMER: u8 = 0xec;
    /// `POSTED_MSI_NOTIFICATION_VECTOR`.
    pub const POSTED_MSI_NOTIFICATION: u8 = 0xeb;
    /// `POSTED_INTR_NESTED_VECTOR`.
    pub const POSTED_INTR_NESTED: u8 = 0xf0;
    /// `POSTED_INTR_WAKEUP_VECTOR`.
    pub const POSTED_INTR_WAKEUP: u8 = 0xf1;
    /// `POSTED_INTR_VECTOR`.
    pub const POSTED_INTR: u8 = 0xf2;
    /// `IRQ_WORK_VECTOR`.
    pub const IRQ_WORK: u8 = 0xf6;
    /// `CALL_FUNCTION_SINGLE_VECTOR`.
    pub const CALL_FUNCTION_SINGLE: u8 = 0xfb;
    /// `CALL_FUNCTION_VECTOR`.
    pub const CALL_FUNCTION: u8 = 0xfc;
    /// `RESCHEDULE_VECTOR`.
    pub const RESCHEDULE: u8 = 0xfd;
}
