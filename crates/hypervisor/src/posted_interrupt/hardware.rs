//! The arrival of a notification: processed by the processor in guest mode, or by the host.

use super::shared::SharedVcpu;
use super::{POSTED_INTR_NESTED_VECTOR, POSTED_INTR_VECTOR, POSTED_INTR_WAKEUP_VECTOR};
use crate::events::Events;
use crate::lapic::Lapic;
use crate::word::AtomicWord;

/// The effect of a physical interrupt on a CPU in guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// Its vector is not the VMCS's notification vector: an external-interrupt VM exit, without
    /// access to the descriptor.
    ExternalInterruptExit,
    /// Processed without an exit, including the physical EOI.
    Processed {
        /// How many PIR bits were merged; 0 for a spurious notification.
        merged: u32,
        /// A virtual interrupt is recognized. A guest in HLT wakes only then.
        recognized: bool,
    },
}

/// A physical interrupt `vector` arrives while the CPU executes this vCPU, with `nv` as
/// posted-interrupt notification vector of its VMCS. A late notification for another vCPU only
/// synchronizes this one early.
///
/// ON is cleared before PIR is read, so that a poster may send a needless notification, but never
/// misses one.
pub fn interrupt_in_guest<W: AtomicWord>(
    vcpu: &SharedVcpu<W>,
    lapic: &mut Lapic,
    nv: u8,
    vector: u8,
    events: &impl Events,
) -> Notification {
    if vector != nv {
        return Notification::ExternalInterruptExit;
    }
    vcpu.desc.clear_on();
    vcpu.desc.fence_after_rmw();
    let posted = vcpu.desc.harvest();
    vcpu.irr.merge(&posted);
    if let Some(highest) = posted.highest() {
        lapic.set_rvi(lapic.rvi().max(highest));
    }
    let merged = posted.len();
    events.notification_in_guest(merged);
    Notification::Processed {
        merged,
        recognized: lapic.virtual_interrupt_recognized(),
    }
}

/// The task of the host's handler of an interrupt vector, after EOI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostInterrupt {
    /// None: a notification for a vCPU that is not in guest mode on this CPU. Its cost is a host
    /// interrupt, or an exit of the current guest.
    Spurious,
    /// Run [`wakeup_handler`](super::wakeup_handler) for this CPU.
    Wakeup,
    /// None: the vector does not belong to posted interrupts.
    NotOurs,
}

/// A physical interrupt `vector` arrives while the CPU is in the host.
pub fn interrupt_in_host(vector: u8, events: &impl Events) -> HostInterrupt {
    match vector {
        POSTED_INTR_VECTOR | POSTED_INTR_NESTED_VECTOR => {
            events.notification_in_host();
            HostInterrupt::Spurious
        }
        POSTED_INTR_WAKEUP_VECTOR => HostInterrupt::Wakeup,
        _ => HostInterrupt::NotOurs,
    }
}
