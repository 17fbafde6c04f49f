//! Blocking (`kvm_vcpu_block`), as far as posted interrupts are concerned.

use super::load_put::PostedVcpu;
use super::shared::{Requests, SharedVcpu};
use crate::events::Events;
use crate::lapic::Lapic;
use crate::word::AtomicWord;

impl PostedVcpu {
    /// Blocking starts: the arch hook, before the vCPU waits.
    pub fn begin_blocking<W: AtomicWord>(&mut self, vcpu: &SharedVcpu<W>, events: &impl Events) {
        self.blocking = true;
        self.suppress_for_blocking(vcpu, true, events);
    }

    /// One iteration of the wait loop: publishes the waiter, then checks for interrupts. True if
    /// there are none: the task may be switched out *if it still waits*
    /// ([`SharedVcpu::still_waiting`]). False: the wait is over. `irqs_allowed`: RFLAGS.IF = 1.
    ///
    /// Of all requests only [`Requests::UNBLOCK`], which is cleared, and
    /// [`Requests::NESTED_POSTED`] end the wait.
    ///
    /// The fence is the vCPU's half of R4: a poster that does not see the waiter has set ON first,
    /// which is visible here.
    pub fn wait<W: AtomicWord>(
        &self,
        vcpu: &SharedVcpu<W>,
        lapic: &mut Lapic,
        irqs_allowed: bool,
        events: &impl Events,
    ) -> bool {
        debug_assert!(self.blocking, "wait comes after begin_blocking");
        vcpu.publish_wait();
        vcpu.fence();
        let woken = vcpu.take(Requests::UNBLOCK).0 != 0
            || vcpu.requests().0 & Requests::NESTED_POSTED.0 != 0
            || (irqs_allowed && lapic.has_interrupt(&self.source(vcpu, events)).is_some());
        if woken {
            vcpu.stop_waiting();
        }
        !woken
    }

    /// Blocking ends.
    pub fn end_blocking<W: AtomicWord>(&mut self, vcpu: &SharedVcpu<W>, events: &impl Events) {
        vcpu.stop_waiting();
        self.blocking = false;
        self.suppress_for_blocking(vcpu, false, events);
    }
}
