//! Counting, by a trait with defaults that do nothing.
//!
//! Each mechanism reports what is worth counting through [`Events`]. `()` implements it and costs
//! nothing; a VMM implements the methods that it exports as statistics, a simulator those that it
//! records. Methods take `&self`: a counter that several CPUs raise is an atomic, one of a single
//! thread a `Cell`.
//!
//! ```
//! use std::cell::Cell;
//! use stealtime_hypervisor::events::Events;
//!
//! #[derive(Default)]
//! struct Notified(Cell<u64>);
//!
//! impl Events for Notified {
//!     fn post_notified(&self, _vector: u8) {
//!         self.0.set(self.0.get() + 1);
//!     }
//! }
//!
//! let counted = Notified::default();
//! counted.post_notified(0x31);
//! counted.post_coalesced(0x31); // not counted: the default does nothing
//! assert_eq!(counted.0.get(), 1);
//! ```

/// What the mechanisms of this crate count. Every method does nothing unless overridden.
pub trait Events {
    // ---- posted interrupts

    /// A post found its PIR bit set: another poster's notification covers it.
    fn post_coalesced(&self, _vector: u8) {}
    /// A post set its PIR bit and found ON set: a notification is under way.
    fn post_on_already_set(&self, _vector: u8) {}
    /// Software posted and sends a notification IPI.
    fn post_notified(&self, _vector: u8) {}
    /// Software posted and must wake the vCPU, which is not in guest mode.
    fn post_wakes(&self, _vector: u8) {}
    /// Software posted from the CPU that the target is loaded on: seen at re-entry.
    fn post_to_self(&self, _vector: u8) {}
    /// Software posted and returned because SN is set (faulty policies as posted only).
    fn post_dropped_by_sn(&self, _vector: u8) {}
    /// Software could not post since APICv is inactive; the caller sets the IRR.
    fn post_apicv_inactive(&self, _vector: u8) {}
    /// Hardware (VT-d or IPI virtualization) posted and sends a notification.
    fn hw_post_notified(&self, _vector: u8) {}
    /// Hardware posted without a notification, because SN is set.
    fn hw_post_suppressed(&self, _vector: u8) {}
    /// Hardware posted without a notification, because ON is set.
    fn hw_post_on_already_set(&self, _vector: u8) {}
    /// Guest-mode microcode processed a notification; `merged` PIR bits moved (0: spurious).
    fn notification_in_guest(&self, _merged: u32) {}
    /// A notification reached a CPU in the host: a useless host interrupt.
    fn notification_in_host(&self) {}
    /// SN was set with a locked operation.
    fn sn_set(&self) {}
    /// SN was cleared with a locked operation.
    fn sn_cleared(&self) {}
    /// PIR was moved into the IRR; `merged` bits moved (0: it was empty).
    fn pir_harvested(&self, _merged: u32) {}
    /// Nothing was to be synchronized: PIR was not read.
    fn sync_skipped(&self) {}
    /// A guest entry was cancelled after the mode already said "in guest".
    fn entry_cancelled(&self) {}
    /// A blocking vCPU was put on a wakeup list.
    fn wakeup_armed(&self) {}
    /// A self-IPI closes the race of a post with the switch to the wakeup vector.
    fn wakeup_self_ipi(&self) {}
    /// The wakeup handler wakes a vCPU.
    fn wakeup_handler_wakes(&self) {}
    /// SN was found set where it should be clear (the kernel's `WARN`).
    fn sn_set_while_blocking(&self) {}

    // ---- local APIC

    /// An interrupt was delivered to a vCPU. Its LAPIC has `accepted` it or not.
    fn interrupt_accepted(&self, _vector: u8, _accepted: bool) {}
    /// A destination was resolved without the destination map.
    fn destination_slow_path(&self) {}
    /// An IPI reached no LAPIC.
    fn ipi_reached_nobody(&self, _vector: u8) {}
    /// Hardware virtualized an IPI.
    fn ipi_virtualized(&self, _vector: u8) {}
    /// Hardware could not virtualize an IPI: an APIC-write exit.
    fn ipi_exits(&self, _vector: u8) {}
    /// End of interrupt; `exits` says whether it left the guest.
    fn eoi(&self, _vector: u8, _exits: bool) {}

    // ---- LAPIC timer

    /// The timer was armed on the preemption timer.
    fn timer_armed_hv(&self) {}
    /// The timer was armed on an hrtimer.
    fn timer_armed_sw(&self) {}
    /// The preemption timer cannot hold the deadline (`-ERANGE`): an hrtimer is used.
    fn timer_out_of_hv_range(&self) {}
    /// The timer expired.
    fn timer_expired(&self) {}
    /// An expiry was dropped because one is pending.
    fn timer_coalesced(&self) {}
    /// The expiry was injected directly by the vCPU's own thread.
    fn timer_injected_directly(&self) {}
    /// The expiry was posted to the running vCPU from another CPU.
    fn timer_posted(&self) {}
    /// The expiry became pending: the vCPU was not in guest mode.
    fn timer_pended(&self) {}
    /// The vCPU blocks: preemption timer to hrtimer.
    fn timer_switched_to_sw(&self) {}
    /// The vCPU runs again: hrtimer to preemption timer.
    fn timer_switched_to_hv(&self) {}
    /// Periods of a periodic timer were dropped after a long stop.
    fn timer_periods_dropped(&self, _periods: u64) {}
    /// The timer advance was adapted.
    fn timer_advance_changed(&self, _old_ns: u32, _new_ns: u32) {}
    /// An hrtimer was placed on a housekeeping CPU.
    fn hrtimer_moved(&self) {}
    /// The housekeeping CPU refused an hrtimer, which would be its first event.
    fn hrtimer_refused(&self) {}

    // ---- halt polling

    /// A halt polled for so many ns; `successful`: it never slept.
    fn halt_polled(&self, _successful: bool, _poll_ns: u64) {}
    /// A successful poll ended by a wakeup for another vCPU.
    fn halt_poll_invalid(&self) {}
    /// The polling window after a halt, in ns.
    fn halt_poll_window(&self, _own_ns: u32) {}

    // ---- IPI tracking and directed yield

    /// A unicast fixed IPI was recorded.
    fn ipi_recorded(&self, _sender: u32, _receiver: u32, _vector: u8) {}
    /// An EOI settled a sender's record.
    fn ipi_settled(&self, _sender: u32, _receiver: u32) {}
    /// A guest named the vCPU that it waits for.
    fn guest_hint(&self, _waiter: u32, _holder: u32) {}
    /// A vCPU spun: yields tried, vCPUs looked at, and whether the relaxed pass was needed.
    fn spin(&self, _vcpu: u32, _yields: u32, _looked_at: u32, _relaxed: bool) {}
    /// A spinning vCPU boosted another.
    fn boosted(&self, _spinner: u32, _vcpu: u32, _reason: crate::directed_yield::Reason) {}

    // ---- batched wakeups

    /// A softirq was raised on a CPU.
    fn softirq_raised(&self, _cpu: u32, _nr: u32, _set: crate::wakeup_batch::softirq::SetPending) {}
    /// Event-check IPIs were sent with so many ICR writes (0: to no CPU).
    fn event_check_sent(&self, _sender: u32, _icr_writes: u32) {}
    /// A batch was finished.
    fn batch_finished(&self, _cpu: u32, _finished: crate::wakeup_batch::Finished) {}
}

/// Counts nothing.
impl Events for () {}
