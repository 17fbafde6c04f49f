//! Posts by software (`vmx_deliver_interrupt`).

use super::policy::Suppression;
use super::shared::{CpuId, Kick, Requests, SharedVcpu, VcpuMode, kick};
use super::{POSTED_INTR_NESTED_VECTOR, POSTED_INTR_VECTOR};
use crate::events::Events;
use crate::word::AtomicWord;

/// The action that a post requires of the poster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Delivery {
    /// APICv is inactive: use [`deliver_through_irr`].
    ApicvInactive,
    /// None: the vector was posted already, and its poster notifies.
    Coalesced,
    /// None: a notification is outstanding.
    OnAlreadySet,
    /// None, by the faulty policies `as-posted-v1` and `as-posted-v2`: SN is set. ON stays clear and
    /// the vCPU is not woken (flaw 5).
    DroppedBySn,
    /// None: the target is loaded on this CPU, and its re-entry synchronizes.
    ToSelf,
    /// Send an IPI with `vector` to the CPU of the vCPU's last load.
    Ipi {
        /// The CPU; `None` before the first load.
        cpu: Option<CpuId>,
        /// Host vector.
        vector: u8,
    },
    /// Wake the vCPU's task ([`wake_up`](super::wake_up)); no IPI.
    Wake,
}

/// Posts `vector`. `on_loaded_cpu`: the post comes from the CPU that has this vCPU loaded (a
/// fast-path exit handler that posts to its own vCPU).
///
/// Except for these two policies, a post ignores SN: a vCPU with suppressed notifications may still
/// need a wakeup. ON is set even under SN = 1, for readers that check only ON.
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
    // A full barrier. It pairs with the one after the store of the mode at guest entry. Either the
    // mode below is "in guest", or the entry sees ON.
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

/// Posts the nested notification vector of an active nested guest. The vCPU's thread, or the
/// processor by the nested descriptor, completes the delivery.
pub fn deliver_nested<W: AtomicWord>(
    vcpu: &SharedVcpu<W>,
    vector: u8,
    on_loaded_cpu: bool,
    events: &impl Events,
) -> Delivery {
    vcpu.request(Requests(Requests::NESTED_POSTED.0 | Requests::EVENT.0));
    // The release of a request does not order the load of the mode that follows.
    vcpu.fence();
    trigger(
        vcpu,
        vector,
        POSTED_INTR_NESTED_VECTOR,
        on_loaded_cpu,
        events,
    )
}

/// Requests the notification or a wakeup (`kvm_vcpu_trigger_posted_interrupt`).
#[inline]
fn trigger<W: AtomicWord>(
    vcpu: &SharedVcpu<W>,
    posted: u8,
    vector: u8,
    on_loaded_cpu: bool,
    events: &impl Events,
) -> Delivery {
    if vcpu.mode() != VcpuMode::InGuest {
        // Also while exiting: such a vCPU synchronizes before it enters again.
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
