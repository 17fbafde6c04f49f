//! Why a vCPU leaves the guest.

use stealtime_events::ExitReason;

use crate::config::Costs;
use crate::ids::ThreadNr;
use crate::program::{DeviceId, SourceId};

/// The vCPUs that an IPI goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IpiTo {
    /// One vCPU.
    One(u32),
    /// All but the sender.
    Others,
    /// Several.
    Some(IpiMask),
}

/// vCPUs by bit: up to 128 from `first` on, as `KVM_HC_SEND_IPI` takes them. Of one cluster of 16,
/// a write to the ICR in x2APIC mode reaches them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpiMask {
    /// A VM has 4096 vCPUs at most.
    first: u16,
    /// The lowest first. Not one number, nor larger ones: they would make each step of a vCPU a
    /// third larger.
    words: [u16; 8],
}

const _: () = assert!(size_of::<Exit>() == 24);

impl IpiMask {
    pub(crate) const fn new(first: u32, bits: u128) -> Self {
        let mut words = [0; 8];
        let mut n = 0;
        while n < words.len() {
            words[n] = (bits >> (16 * n)) as u16;
            n += 1;
        }
        let first = first as u16;
        Self { first, words }
    }

    /// The vCPU of the lowest bit.
    pub(crate) const fn first(self) -> u32 {
        self.first as u32
    }

    pub(crate) const fn bits(self) -> u128 {
        let (mut bits, mut n) = (0, 0);
        while n < self.words.len() {
            bits |= (self.words[n] as u128) << (16 * n);
            n += 1;
        }
        bits
    }

    pub(crate) const fn has(self, index: u32) -> bool {
        let first = self.first();
        index >= first && index - first < 128 && self.bits() >> (index - first) & 1 == 1
    }

    /// One beyond the last.
    pub(crate) const fn end(self) -> u32 {
        self.first() + 128 - self.bits().leading_zeros()
    }
}

impl IpiTo {
    /// Whether a vCPU gets it.
    pub(crate) const fn has(self, index: u32, sender: u32) -> bool {
        match self {
            Self::One(index_of_one) => index_of_one == index,
            Self::Others => index != sender,
            Self::Some(mask) => mask.has(index),
        }
    }

    /// The ICR's low half and the destination, for x2APIC mode (one byte of it for xAPIC).
    pub(crate) const fn icr(self, vector: u8) -> (u32, u32) {
        match self {
            Self::One(index) => (vector as u32, index),
            Self::Others => (vector as u32 | 0xc_0000, 0),
            // Logical: cluster in the high half, members in the low one.
            Self::Some(mask) => {
                let bits = (mask.bits() << (mask.first() % 16)) as u32 & 0xffff;
                (vector as u32 | 0x800, ((mask.first() / 16) << 16) | bits)
            }
        }
    }
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
    /// A page that the hypervisor must bring in.
    EptViolation,
    /// A notification of the network card: packets to send.
    Notify { source: SourceId },
    /// A request to a device, in the kernel.
    Io { device: DeviceId, thread: ThreadNr },
    /// `KVM_HC_KICK_CPU`: a paravirtual spinlock passes on.
    KickCpu { vcpu: u32 },
    /// `KVM_HC_SCHED_YIELD`: the receiver of an IPI, or the owner of a lock, does not run.
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
            Self::EptViolation => 48,
            Self::Io { .. } | Self::Notify { .. } => 49,
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
            Self::EptViolation => costs.handle_ept_violation_ns,
            Self::Io { .. } | Self::Notify { .. } => costs.handle_io_ns,
        }
    }
}
