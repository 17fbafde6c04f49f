//! Which guest IPIs open a batch, and which vCPUs a delivered interrupt must kick.
//!
//! Xen: `is_multicast_dest` (`vlapic.c`), `vcpu_kick` (`domain.c`).
//!
//! ```
//! use stealtime_hypervisor::wakeup_batch::multicast::GuestIpi;
//!
//! // All but self, of 8 vCPUs: a batch pays. To one of them: it does not.
//! let broadcast = GuestIpi::from_icr(0x000c_40fd, 0, true, u32::MAX);
//! assert!(broadcast.is_multicast(8));
//! assert_eq!(broadcast.likely_targets(8), 7);
//! assert!(!GuestIpi::from_icr(0x40fd, 3, true, u32::MAX).is_multicast(8));
//! ```

/// A guest's ICR write, as far as its destination's form goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GuestIpi {
    /// ICR bits 18–19: 0 none, 1 self, 2 all, 3 all but self.
    pub shorthand: u8,
    /// ICR bit 11: logical destination mode.
    pub logical: bool,
    /// The destination: 32 bits in x2APIC mode, else 8.
    pub dest: u32,
    /// The sender's LAPIC is in x2APIC mode.
    pub x2apic: bool,
    /// The sender's DFR; used in xAPIC mode only.
    pub dfr: u32,
}

/// Shorthand "self".
pub const SHORTHAND_SELF: u8 = 1;

impl GuestIpi {
    /// Decodes the two halves of an ICR write.
    #[must_use]
    pub const fn from_icr(low: u32, high: u32, x2apic: bool, dfr: u32) -> Self {
        Self {
            shorthand: (low >> 18 & 3) as u8,
            logical: low >> 11 & 1 != 0,
            dest: if x2apic { high } else { high >> 24 },
            x2apic,
            dfr,
        }
    }

    /// Whether the destination has the *form* of several, in a domain of `max_vcpus`.
    ///
    /// How many vCPUs match is not looked at; a domain of one or two never batches.
    #[must_use]
    pub const fn is_multicast(&self, max_vcpus: u32) -> bool {
        if max_vcpus <= 2 {
            return false;
        }
        if self.shorthand != 0 {
            return self.shorthand != SHORTHAND_SELF;
        }
        match (self.x2apic, self.logical) {
            // The cluster's number, in the upper half, says nothing about how many.
            (true, true) => (self.dest & 0xffff).count_ones() > 1,
            (true, false) => self.dest == u32::MAX,
            // The DFR serves as a mask: in the cluster model it leaves the four member bits.
            (false, true) => (self.dest & self.dfr >> 24).count_ones() > 1,
            (false, false) => self.dest == 0xff,
        }
    }

    /// How many vCPUs the form names in a domain of `max_vcpus`. It assumes LAPICs as an operating
    /// system sets them up: one id each, one mode for all. Cheap; only matching is exact.
    #[must_use]
    pub const fn likely_targets(&self, max_vcpus: u32) -> u32 {
        let form = match (self.shorthand, self.x2apic, self.logical) {
            (SHORTHAND_SELF, _, _) => 1,
            (2, _, _) => max_vcpus,
            (3, _, _) => max_vcpus.saturating_sub(1),
            (_, true, true) => (self.dest & 0xffff).count_ones(),
            (_, false, true) => (self.dest & self.dfr >> 24).count_ones(),
            (_, true, false) if self.dest == u32::MAX => max_vcpus,
            (_, false, false) if self.dest == 0xff => max_vcpus,
            _ => 1,
        };
        if form < max_vcpus { form } else { max_vcpus }
    }
}

/// A vCPU to which an interrupt was just given.
pub trait KickTarget {
    /// It is on a CPU right now.
    fn is_running(&self) -> bool;
    /// Ends its blocking, if it blocks, and wakes it then.
    fn unblock(&mut self);
}

/// Whether `VCPU_KICK_SOFTIRQ` is to be raised on the target's CPU.
///
/// Whether it runs is sampled *before* it is unblocked: a vCPU that this call wakes looks at its
/// interrupts anyway. `current`: the target is the vCPU that this CPU is executing for.
pub fn vcpu_kick(target: &mut impl KickTarget, in_irq: bool, current: bool) -> bool {
    let running = target.is_running();
    target.unblock();
    running && (in_irq || !current)
}
