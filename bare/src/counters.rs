//! The mechanisms' counters: `Events` as atomics that all CPUs raise.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use stealtime_hypervisor::directed_yield::Reason;
use stealtime_hypervisor::events::Events;

use crate::parts::{self, Mark, mark};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// One number for each.
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64,)* }
        impl Counters {
            const fn new() -> Self {
                Self { $($name: AtomicU64::new(0),)* }
            }
            /// Back to 0.
            pub fn reset(&self) {
                $(self.$name.store(0, Relaxed);)*
            }
        }
    };
}

counters! {
    coalesced, on_already_set, notified, wakes, to_self, dropped_by_sn,
    hw_notified, hw_suppressed, hw_on_already_set,
    in_host, sn_set, sn_cleared, cancelled,
    wakeup_armed, self_ipi, handler_wakes, sn_while_blocking,
    armed_hv, armed_sw, expired, injected, posted, pended, moved, refused,
    boosts, confirmed,
    halt_polls, halt_polls_successful,
    /// Physical interrupts of other vectors.
    stray,
}

/// Those of the current phase.
pub static COUNTERS: Counters = Counters::new();

fn raise(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Read a counter.
pub fn value(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

impl Events for Counters {
    fn post_coalesced(&self, _: u8) {
        raise(&self.coalesced);
    }
    fn post_on_already_set(&self, _: u8) {
        raise(&self.on_already_set);
    }
    fn post_notified(&self, _: u8) {
        raise(&self.notified);
    }
    fn post_wakes(&self, _: u8) {
        raise(&self.wakes);
    }
    fn post_to_self(&self, _: u8) {
        raise(&self.to_self);
    }
    fn post_dropped_by_sn(&self, _: u8) {
        raise(&self.dropped_by_sn);
    }
    fn hw_post_notified(&self, _: u8) {
        parts::posted();
        raise(&self.hw_notified);
    }
    fn hw_post_suppressed(&self, _: u8) {
        raise(&self.hw_suppressed);
    }
    fn hw_post_on_already_set(&self, _: u8) {
        raise(&self.hw_on_already_set);
    }
    fn notification_in_host(&self) {
        raise(&self.in_host);
    }
    fn sn_set(&self) {
        mark(Mark::Suppressed);
        raise(&self.sn_set);
    }
    fn sn_cleared(&self) {
        mark(Mark::Cleared);
        raise(&self.sn_cleared);
    }
    fn sync_skipped(&self) {
        mark(Mark::Synchronized);
    }
    fn pir_harvested(&self, _: u32) {
        mark(Mark::Synchronized);
    }
    fn entry_cancelled(&self) {
        raise(&self.cancelled);
    }
    fn wakeup_armed(&self) {
        raise(&self.wakeup_armed);
    }
    fn wakeup_self_ipi(&self) {
        raise(&self.self_ipi);
    }
    fn wakeup_handler_wakes(&self) {
        raise(&self.handler_wakes);
    }
    fn sn_set_while_blocking(&self) {
        raise(&self.sn_while_blocking);
    }
    fn timer_armed_hv(&self) {
        raise(&self.armed_hv);
    }
    fn timer_armed_sw(&self) {
        raise(&self.armed_sw);
    }
    fn timer_expired(&self) {
        raise(&self.expired);
    }
    fn timer_injected_directly(&self) {
        raise(&self.injected);
    }
    fn timer_posted(&self) {
        raise(&self.posted);
    }
    fn timer_pended(&self) {
        raise(&self.pended);
    }
    fn hrtimer_moved(&self) {
        raise(&self.moved);
    }
    fn boosted(&self, _: u32, _: u32, reason: Reason) {
        raise(&self.boosts);
        if reason == Reason::Confirmed {
            raise(&self.confirmed);
        }
    }
    fn halt_polled(&self, successful: bool, _: u64) {
        raise(&self.halt_polls);
        if successful {
            raise(&self.halt_polls_successful);
        }
    }
    fn hrtimer_refused(&self) {
        raise(&self.refused);
    }
}
