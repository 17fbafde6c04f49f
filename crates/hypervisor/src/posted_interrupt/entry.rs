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
    /// Requests must be handled first.
    Cancelled,
}

impl PostedVcpu {
    /// Guest entry up to the VM entry instruction. The caller disables host interrupts before this
    /// call until the guest runs. A notification in between then stays pending in the physical APIC
    /// and is processed in guest mode.
    ///
    /// [`Entry::Cancelled`]: the mode is "outside guest" again; enable interrupts and handle the
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
        // The vCPU's half of R1 and R6. A CPU that does not see the mode has set ON or made a
        // request, and that is visible below.
        vcpu.fence();
        self.sync(vcpu, lapic, events);
        if !must_leave(vcpu, lapic) {
            self.switch_to_guest(vcpu, lapic, events);
            return Entry::Run;
        }
        events.entry_cancelled();
        vcpu.set_mode(VcpuMode::OutsideGuest);
        // The third posting leaves SN clear on this path (flaw 9).
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

    /// Enters again after an exit that was handled with interrupts off. SN stays as it is: the guest
    /// consumes a notification in either case (flaw 6). [`Entry::Cancelled`]: call
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

    /// Directly before the VM entry. The second posting clears SN here, and synchronizes again,
    /// because SN hides posts since the last synchronization.
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

    /// Back in the host: sets the mode, after which the caller may enable interrupts.
    pub fn leave<W: AtomicWord>(&self, vcpu: &SharedVcpu<W>, events: &impl Events) {
        vcpu.set_mode(VcpuMode::OutsideGuest);
        if self.policy().follows_mode() {
            suppress(vcpu, events);
        }
        vcpu.write_fence();
    }
}

/// `kvm_vcpu_exit_request`, without the thread's pending work, which the caller checks.
fn must_leave<W: AtomicWord>(vcpu: &SharedVcpu<W>, lapic: &Lapic) -> bool {
    vcpu.mode() == VcpuMode::ExitingGuest || vcpu.requests().0 != 0 || lapic.event_requested()
}
