//! Synchronization of PIR to IRR (`vmx_sync_pir_to_irr`), and changes of SN.

use super::load_put::PostedVcpu;
use super::policy::Suppression;
use super::shared::{SharedVcpu, VcpuMode};
use crate::events::Events;
use crate::lapic::{InterruptSource, Irr, Lapic};
use crate::word::AtomicWord;

/// Sets SN: hardware posts without notifications.
///
/// Only the vCPU's thread writes SN, so that a load decides whether it is set already.
pub fn suppress<W: AtomicWord>(vcpu: &SharedVcpu<W>, events: &impl Events) {
    if !vcpu.desc.test_sn() {
        vcpu.desc.set_sn();
        events.sn_set();
    }
}

/// Clears SN and restores the invariant that PIR not empty implies ON. Whether ON was set.
///
/// SN must be cleared before PIR is read. VT-d reads SN and writes PIR in one step. Either it has
/// seen SN = 0 and set ON itself, or its PIR bit is visible here.
pub fn unsuppress<W: AtomicWord>(vcpu: &SharedVcpu<W>, events: &impl Events) -> bool {
    if vcpu.desc.test_sn() {
        vcpu.desc.clear_sn();
        events.sn_cleared();
        vcpu.desc.fence_after_rmw();
    }
    recompute_on(vcpu)
}

/// Sets ON if PIR is not empty, and returns whether it did.
pub(super) fn recompute_on<W: AtomicWord>(vcpu: &SharedVcpu<W>) -> bool {
    let missing = !vcpu.desc.test_on() && !vcpu.desc.is_pir_empty();
    if missing {
        vcpu.desc.set_on();
    }
    missing
}

impl PostedVcpu {
    /// Moves posted interrupts into the IRR and returns the highest requested one. With APICv this
    /// becomes RVI. Without APICv an event is requested only if the highest vector is new:
    /// otherwise a blocked interrupt would request events without end.
    ///
    /// ON is cleared before PIR is read. Afterwards, it would clear the ON of a post in between.
    pub fn sync<W: AtomicWord>(
        &self,
        vcpu: &SharedVcpu<W>,
        lapic: &mut Lapic,
        events: &impl Events,
    ) -> Option<u8> {
        let control = vcpu.desc.control();
        let policy = self.policy();
        if !(control.on() || policy.syncs_under_sn() && control.sn()) {
            events.sync_skipped();
            let highest = vcpu.irr.highest();
            lapic.note_highest(highest, false);
            return highest;
        }
        // Clearing a clear ON would cost a needless locked operation.
        if control.on() || policy.clears_on_unseen() {
            vcpu.desc.clear_on();
        }
        if policy == Suppression::AsPostedV1 && vcpu.mode() == VcpuMode::InGuest {
            vcpu.desc.clear_sn();
            events.sn_cleared();
        }
        vcpu.desc.fence_after_rmw();
        let posted = vcpu.desc.harvest();
        events.pir_harvested(posted.len());
        let merged = lapic.merge_pir(&vcpu.irr, &posted);
        lapic.note_highest(merged.highest, merged.highest_is_new);
        merged.highest
    }

    /// The vCPU's requests for its LAPIC, which synchronize on each access.
    pub fn source<'a, W: AtomicWord, E: Events>(
        &'a self,
        vcpu: &'a SharedVcpu<W>,
        events: &'a E,
    ) -> Synchronized<'a, W, E> {
        Synchronized {
            own: self,
            vcpu,
            events,
        }
    }
}

/// An [`InterruptSource`] that synchronizes PIR to IRR on each access.
#[derive(Debug)]
pub struct Synchronized<'a, W: AtomicWord, E> {
    own: &'a PostedVcpu,
    vcpu: &'a SharedVcpu<W>,
    events: &'a E,
}

impl<W: AtomicWord, E: Events> InterruptSource<W> for Synchronized<'_, W, E> {
    fn irr(&self) -> &Irr<W> {
        &self.vcpu.irr
    }
    fn refresh(&self, lapic: &mut Lapic) -> Option<u8> {
        self.own.sync(self.vcpu, lapic, self.events)
    }
}
