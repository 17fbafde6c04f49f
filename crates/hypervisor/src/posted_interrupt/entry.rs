//! Guest entry and exit: the vCPU mode protocol (`vcpu_enter_guest`).

use super::load_put::PostedVcpu;
use super::policy::Suppression;
use super::shared::{SharedVcpu, VcpuMode};
use super::sync::{suppress, unsuppress};
use crate::events::Events;
use crate::lapic::Lapic;
use crate::word::AtomicWord;

/// Whether the guest may be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Entry {
    /// Run the guest.
    Run,
    /// Something is to be done first.
    Cancelled,
}

impl PostedVcpu {
    /// Guest entry up to the VM entry instruction. Host interrupts are off from before this call
    /// until the guest runs: a notification that arrives meanwhile stays pending in the physical
    /// APIC and is processed in guest mode.
    ///
    /// [`Entry::Cancelled`]: the mode says "outside" again; turn interrupts on and look at the
    /// requests.
    pub fn enter<W: AtomicWord>(
        &self,
        vcpu: &SharedVcpu<W>,
        lapic: &mut Lapic,
        events: &impl Events,
    ) -> Entry {
        vcpu.set_mode(VcpuMode::InGuest);
        if self.policy().follows_mode() {
            unsuppress(vcpu, events);
        }
        // The vCPU's half of R1 and R6: whoever does not see the mode has set ON, or made a
        // request, which is seen below.
        vcpu.fence();
        self.sync(vcpu, lapic, events);
        if !must_leave(vcpu, lapic) {
            self.switch_to_guest(vcpu, lapic, events);
            return Entry::Run;
        }
        events.entry_cancelled();
        vcpu.set_mode(VcpuMode::OutsideGuest);
        // The third posting forgot this path (flaw 9).
        if self.policy() == Suppression::Corrected {
            suppress(vcpu, events);
        }
        vcpu.write_fence();
        Entry::Cancelled
    }

    /// The VM exit itself, with interrupts still off.
    pub fn vm_exit<W: AtomicWord>(&self, vcpu: &SharedVcpu<W>, events: &impl Events) {
        if self.policy().suppresses_at_exit() && vcpu.apicv() {
            vcpu.desc.set_sn();
            events.sn_set();
        }
    }

    /// The exit was handled with interrupts off and the guest runs on: SN is not touched, a
    /// notification would be consumed by the guest anyway (flaw 6). [`Entry::Cancelled`]: call
    /// [`leave`](Self::leave).
    pub fn reenter<W: AtomicWord>(
        &self,
        vcpu: &SharedVcpu<W>,
        lapic: &mut Lapic,
        events: &impl Events,
    ) -> Entry {
        self.sync(vcpu, lapic, events);
        if must_leave(vcpu, lapic) {
            return Entry::Cancelled;
        }
        self.switch_to_guest(vcpu, lapic, events);
        Entry::Run
    }

    /// Right before the VM entry. The second posting clears SN here; what was posted since the
    /// synchronization, unnoticed under SN, is taken over.
    fn switch_to_guest<W: AtomicWord>(
        &self,
        vcpu: &SharedVcpu<W>,
        lapic: &mut Lapic,
        events: &impl Events,
    ) {
        if self.policy() == Suppression::AsPostedV2 && unsuppress(vcpu, events) {
            self.sync(vcpu, lapic, events);
        }
    }

    /// Back in the host: the mode says so, then interrupts may be turned on.
    pub fn leave<W: AtomicWord>(&self, vcpu: &SharedVcpu<W>, events: &impl Events) {
        vcpu.set_mode(VcpuMode::OutsideGuest);
        if self.policy().follows_mode() {
            suppress(vcpu, events);
        }
        vcpu.write_fence();
    }
}

/// `kvm_vcpu_exit_request`, less the thread work that only the caller knows.
fn must_leave<W: AtomicWord>(vcpu: &SharedVcpu<W>, lapic: &Lapic) -> bool {
    vcpu.mode() == VcpuMode::ExitingGuest || vcpu.requests().0 != 0 || lapic.event_requested()
}
