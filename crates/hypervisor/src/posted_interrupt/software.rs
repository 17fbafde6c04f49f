//! Software posts an interrupt (`vmx_deliver_interrupt`).

use super::policy::Suppression;
use super::shared::{CpuId, Kick, Requests, SharedVcpu, VcpuMode, kick};
use super::{POSTED_INTR_NESTED_VECTOR, POSTED_INTR_VECTOR};
use crate::events::Events;
use crate::word::AtomicWord;

/// What the poster must do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Delivery {
    /// APICv is inactive: use [`deliver_through_irr`].
    ApicvInactive,
    /// Nothing: the vector was posted already, whoever did so notifies.
    Coalesced,
    /// Nothing: a notification is outstanding.
    OnAlreadySet,
    /// Nothing, by the faulty policies `as-posted-v1` and `as-posted-v2`: SN is set. ON stays clear
    /// and nobody wakes the vCPU (flaw 5).
    DroppedBySn,
    /// Nothing: the target is loaded on this very CPU, whose re-entry synchronizes.
    ToSelf,
    /// Send an IPI with `vector` to the CPU that the vCPU was last loaded on.
    Ipi {
        /// The CPU; `None` for a vCPU that was never loaded.
        cpu: Option<CpuId>,
        /// Host vector.
        vector: u8,
    },
    /// Wake the vCPU's task ([`wake_up`](super::wake_up)); no IPI.
    Wake,
}

/// Posts `vector`. `on_loaded_cpu`: the sender's CPU is the one that runs this vCPU's thread
/// (a fast-path exit handler that posts to its own vCPU).
///
/// SN is not consulted, except by these two: that a notification is suppressed does not
/// say that the vCPU needs no wakeup. Setting ON under SN = 1 helps those who look only at ON.
#[inline]
pub fn deliver<W: AtomicWord>(
    vcpu: &SharedVcpu<W>,
    vector: u8,
    on_loaded_cpu: bool,
    policy: Suppression,
    events: &impl Events,
) -> Delivery {
    if !vcpu.apicv() {
        events.post_apicv_inactive(vector);
        return Delivery::ApicvInactive;
    }
    if vcpu.desc.test_and_set_pir(vector) {
        events.post_coalesced(vector);
        return Delivery::Coalesced;
    }
    if policy.software_honours_sn() && vcpu.desc.test_sn() {
        events.post_dropped_by_sn(vector);
        return Delivery::DroppedBySn;
    }
    // A full barrier: pairs with the one after the mode is set at guest entry. Either the mode
    // below says "in guest", or the entry sees ON.
    if vcpu.desc.test_and_set_on() {
        events.post_on_already_set(vector);
        return Delivery::OnAlreadySet;
    }
    vcpu.desc.fence_after_rmw();
    trigger(vcpu, vector, POSTED_INTR_VECTOR, on_loaded_cpu, events)
}

/// Delivers `vector` to a vCPU without active APICv: through the IRR, an event and a kick.
pub fn deliver_through_irr<W: AtomicWord>(vcpu: &SharedVcpu<W>, vector: u8) -> Kick {
    vcpu.irr.set(vector);
    kick(vcpu, Requests::EVENT, false)
}

/// Posts the nested notification vector of an active nested guest: the vCPU's thread, or the
/// processor by the nested descriptor, does the rest.
pub fn deliver_nested<W: AtomicWord>(
    vcpu: &SharedVcpu<W>,
    vector: u8,
    on_loaded_cpu: bool,
    events: &impl Events,
) -> Delivery {
    vcpu.request(Requests(Requests::NESTED_POSTED.0 | Requests::EVENT.0));
    // A request alone orders only writes; the mode is read next.
    vcpu.fence();
    trigger(
        vcpu,
        vector,
        POSTED_INTR_NESTED_VECTOR,
        on_loaded_cpu,
        events,
    )
}

/// Sends the notification or asks for a wakeup (`kvm_vcpu_trigger_posted_interrupt`).
#[inline]
fn trigger<W: AtomicWord>(
    vcpu: &SharedVcpu<W>,
    posted: u8,
    vector: u8,
    on_loaded_cpu: bool,
    events: &impl Events,
) -> Delivery {
    if vcpu.mode() != VcpuMode::InGuest {
        // Also while exiting: such a vCPU comes back through the synchronization.
        events.post_wakes(posted);
        return Delivery::Wake;
    }
    if on_loaded_cpu {
        events.post_to_self(posted);
        return Delivery::ToSelf;
    }
    events.post_notified(posted);
    Delivery::Ipi {
        cpu: vcpu.cpu(),
        vector,
    }
}
