//! Why a vCPU leaves the guest.

use stealtime_events::ExitReason;

use crate::config::Costs;
use crate::ids::ThreadNr;
use crate::program::DeviceId;

/// To whom a guest sends an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IpiTo {
    /// One vCPU.
    One(u32),
    /// All but the sender.
    Others,
}

/// An exit and what the hypervisor has to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// A host interrupt.
    ExternalInterrupt,
    /// HLT.
    Hlt,
    /// A write to the ICR.
    Icr { vector: u8, to: IpiTo },
    /// The same by hypercall (`KVM_HC_SEND_IPI`).
    SendIpi { vector: u8, to: IpiTo },
    /// A write to IA32_TSC_DEADLINE; 0 disarms. In ns of the run.
    TscDeadline { at_ns: u64 },
    /// The preemption timer.
    PreemptionTimer,
    /// The guest can take an interrupt now.
    InterruptWindow,
    /// A write to the EOI register.
    Eoi,
    /// PAUSE in a loop.
    Pause,
    /// CPUID.
    Cpuid,
    /// A request to a device, in the kernel.
    Io { device: DeviceId, thread: ThreadNr },
    /// `KVM_HC_KICK_CPU`: a paravirtual spinlock passes on.
    KickCpu { vcpu: u32 },
    /// `KVM_HC_SCHED_YIELD`: the receiver of an IPI does not run.
    SchedYield { vcpu: u32 },
}

impl Exit {
    /// As a trace names it.
    pub(crate) const fn reason(self) -> ExitReason {
        ExitReason::vmx(match self {
            Self::ExternalInterrupt => 1,
            Self::InterruptWindow => 7,
            Self::Cpuid => 10,
            Self::Hlt => 12,
            Self::SendIpi { .. } | Self::KickCpu { .. } | Self::SchedYield { .. } => 18,
            Self::Icr { .. } | Self::TscDeadline { .. } => 32,
            Self::Pause => 40,
            Self::Eoi => 56,
            Self::Io { .. } => 49,
            Self::PreemptionTimer => 52,
        })
    }

    /// Whether it is handled with interrupts off and the guest entered at once
    /// (`handle_fastpath_set_msr_irqoff`, `handle_fastpath_preemption_timer`).
    pub(crate) const fn is_fast(self) -> bool {
        matches!(
            self,
            Self::Icr { .. } | Self::TscDeadline { .. } | Self::PreemptionTimer
        )
    }

    /// What its handler costs beyond exit and entry.
    pub(crate) const fn handler_ns(self, costs: &Costs) -> u32 {
        match self {
            Self::ExternalInterrupt => costs.handle_external_interrupt_ns,
            Self::Hlt => costs.handle_hlt_ns,
            Self::Icr { .. } => costs.handle_icr_ns,
            Self::SendIpi { .. } | Self::KickCpu { .. } | Self::SchedYield { .. } => {
                costs.handle_hypercall_ns
            }
            Self::TscDeadline { .. } => costs.handle_tsc_deadline_ns,
            Self::PreemptionTimer => costs.handle_preemption_timer_ns,
            Self::InterruptWindow => costs.handle_interrupt_window_ns,
            Self::Eoi => costs.handle_eoi_ns,
            Self::Pause => costs.handle_pause_ns,
            Self::Cpuid => costs.handle_cpuid_ns,
            Self::Io { .. } => costs.handle_io_ns,
        }
    }
}
