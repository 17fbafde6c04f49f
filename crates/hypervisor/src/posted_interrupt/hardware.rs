//! A notification arrives: processed by the processor in guest mode, or by the host.

use super::shared::SharedVcpu;
use super::{POSTED_INTR_NESTED_VECTOR, POSTED_INTR_VECTOR, POSTED_INTR_WAKEUP_VECTOR};
use crate::events::Events;
use crate::lapic::Lapic;
use crate::word::AtomicWord;

/// What a physical interrupt did to a CPU in guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// Its vector is not the VMCS's notification vector: an external-interrupt VM exit; the
    /// descriptor was not touched.
    ExternalInterruptExit,
    /// Processed without an exit; the physical EOI has been written.
    Processed {
        /// How many PIR bits were merged; 0 for a spurious notification.
        merged: u32,
        /// A virtual interrupt is recognized. A guest in HLT wakes only then.
        recognized: bool,
    },
}

/// A physical interrupt `vector` arrives while the CPU runs this vCPU, whose VMCS names `nv` as
/// posted-interrupt notification vector. It does not matter for which vCPU it was meant: another
/// one's late notification merely synchronizes this one early.
///
/// ON is cleared before PIR is read, so that a poster may send one more notification than
/// needed, never one fewer.
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

/// What the host's handler of an interrupt vector has to do, after EOI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostInterrupt {
    /// Nothing: a notification for a vCPU that is not in guest mode here. It cost one host
    /// interrupt, or an exit of whatever guest ran.
    Spurious,
    /// Run [`wakeup_handler`](super::wakeup_handler) for this CPU.
    Wakeup,
    /// It is no vector of posted interrupts.
    NotOurs,
}

/// A physical interrupt `vector` arrives while the CPU runs the host.
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
