//! PIR to IRR (`vmx_sync_pir_to_irr`), and the two helpers that change SN.

use super::load_put::PostedVcpu;
use super::policy::Suppression;
use super::shared::{SharedVcpu, VcpuMode};
use crate::events::Events;
use crate::lapic::{InterruptSource, Irr, Lapic};
use crate::word::AtomicWord;

/// Sets SN: hardware posts without notifying from now on.
///
/// Only the vCPU's thread writes SN, so that a set bit need not be set again.
pub fn suppress<W: AtomicWord>(vcpu: &SharedVcpu<W>, events: &impl Events) {
    if !vcpu.desc.test_sn() {
        vcpu.desc.set_sn();
        events.sn_set();
    }
}

/// Clears SN and restores what everybody relies on: PIR not empty implies ON. Whether ON had to
/// be set.
///
/// SN must be cleared before PIR is read. VT-d reads SN and writes PIR in one step: it either
/// saw SN = 0 and set ON itself, or its PIR bit is there to be seen here.
pub fn unsuppress<W: AtomicWord>(vcpu: &SharedVcpu<W>, events: &impl Events) -> bool {
    if vcpu.desc.test_sn() {
        vcpu.desc.clear_sn();
        events.sn_cleared();
        vcpu.desc.fence_after_rmw();
    }
    recompute_on(vcpu)
}

/// PIR not empty: sets ON.
pub(super) fn recompute_on<W: AtomicWord>(vcpu: &SharedVcpu<W>) -> bool {
    let lost = !vcpu.desc.test_on() && !vcpu.desc.is_pir_empty();
    if lost {
        vcpu.desc.set_on();
    }
    lost
}

impl PostedVcpu {
    /// Takes posted interrupts over into the IRR and returns the highest requested one. With
    /// APICv RVI becomes that; without it an event is requested, but only if the highest vector
    /// is a new one: otherwise a blocked interrupt would request events for ever.
    ///
    /// ON is cleared before PIR is read. Cleared after, it would wipe out the ON of a post that
    /// landed in between.
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
        // A clear ON can only be left alone: clearing it once more costs a locked operation.
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

    /// The requests of a vCPU as its LAPIC wants them: synchronized first.
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

/// An [`InterruptSource`] that synchronizes PIR to IRR whenever it is asked.
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
