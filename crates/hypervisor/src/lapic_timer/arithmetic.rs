//! Periods and expirations: pure functions of registers and clocks.
//!
//! | TMICT | divide configuration | divisor | bus cycle | period |
//! |---|---|---|---|---|
//! | 1000 | 0b0011 | 16 | 1 ns | 16 000 ns |
//! | 10 | 0b1011 | 1 | 1 ns, periodic | 200 000 ns: the floor of `min_timer_period_us` = 200 |
//! | 62 500 | 0b0000 | 2 | 40 ns | 5 000 000 ns |
//!
//! ```
//! use stealtime_hypervisor::lapic_timer::arithmetic::{Rate, divisor};
//!
//! let rate = Rate { bus_cycle_ns: 1, divisor: divisor(0b0011), min_period_us: 200 };
//! assert_eq!(rate.ns(1000), 16_000);
//! ```

use core::fmt;

use super::timer::{Now, TimerMode};
use super::tsc::GuestTsc;
use crate::wide;

/// Length of a bus cycle, from 1 ns to as many as the longest count times the largest divisor has
/// room for in 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BusCycle(u32);

impl BusCycle {
    /// The longest, in ns: 2^25.
    pub const MAX_NS: u32 = (u64::MAX / 128 / u32::MAX as u64) as u32;

    /// A bus cycle of `ns` (`KVM_CAP_X86_APIC_BUS_CYCLES_NS`).
    ///
    /// # Errors
    /// [`BusCycleOutOfRange`]: a count of such cycles would never end, or wrap.
    pub const fn new(ns: u32) -> Result<Self, BusCycleOutOfRange> {
        if ns == 0 || ns > Self::MAX_NS {
            return Err(BusCycleOutOfRange { ns });
        }
        Ok(Self(ns))
    }

    /// In ns.
    #[must_use]
    pub const fn ns(self) -> u32 {
        self.0
    }
}

impl Default for BusCycle {
    /// KVM's: 1 ns.
    fn default() -> Self {
        Self(1)
    }
}

/// A bus cycle with which counts have no length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusCycleOutOfRange {
    /// The cycle, in ns.
    pub ns: u32,
}

impl fmt::Display for BusCycleOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ns, limit) = (self.ns, BusCycle::MAX_NS);
        write!(f, "an APIC bus cycle of {ns} ns: give from 1 to {limit} ns")
    }
}

impl core::error::Error for BusCycleOutOfRange {}

/// How fast the timer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Length of a bus cycle in ns (`apic_bus_cycle_ns`, default 1).
    pub bus_cycle_ns: u32,
    /// Bus cycles per count: 1 to 128.
    pub divisor: u32,
    /// Shortest period of a periodic timer in µs (`kvm.min_timer_period_us`, default 200).
    pub min_period_us: u32,
}

/// The divisor that a divide configuration register stands for: bits 3, 1 and 0.
#[must_use]
pub const fn divisor(tdcr: u32) -> u32 {
    let n = (tdcr & 3) | (tdcr & 8) >> 1;
    1 << ((n + 1) & 7)
}

impl Rate {
    /// Nanoseconds in so many counts; wraps in 64 bits.
    #[must_use]
    pub fn ns(&self, counts: u32) -> u64 {
        u64::from(counts)
            .wrapping_mul(u64::from(self.bus_cycle_ns))
            .wrapping_mul(u64::from(self.divisor))
    }

    /// The period for a periodic timer: not below the floor, unless 0.
    fn period(&self, counts: u32, mode: TimerMode) -> u64 {
        let period = self.ns(counts);
        let floor = u64::from(self.min_period_us) * 1000;
        // Signed, as the kernel compares: a period beyond 2^63 ns is below the floor.
        if mode == TimerMode::Periodic && period != 0 && (period as i64) < floor as i64 {
            floor
        } else {
            period
        }
    }
}

/// When a timer expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Length of a period in ns.
    pub period_ns: u64,
    /// Guest TSC of the expiration.
    pub tscdeadline: u64,
    /// Host time of the expiration.
    pub target_ns: i64,
    /// TMCCT is to be set to 0: what was to be restored exceeds a period.
    pub clear_tmcct: bool,
}

/// When a running timer was to expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiration {
    /// Guest TSC.
    pub tscdeadline: u64,
    /// Host time in ns.
    pub target_ns: i64,
}

/// The expiration of a timer that starts now (`set_target_expiration`). `tmcct`: the remaining
/// count to restore, otherwise the whole of `tmict` is to run. `None`: the period is 0, nothing
/// is to be armed.
#[must_use]
pub fn target_from_start(
    tsc: &GuestTsc,
    now: Now,
    mode: TimerMode,
    rate: &Rate,
    tmict: u32,
    tmcct: Option<u32>,
) -> Option<Target> {
    if rate.ns(tmict) == 0 {
        return None;
    }
    let period_ns = rate.period(tmict, mode);
    let mut clear_tmcct = false;
    let mut remaining = period_ns;
    if let Some(tmcct) = tmcct.filter(|_| mode != TimerMode::TscDeadline) {
        remaining = rate.ns(tmcct);
        if remaining as i64 <= 0 {
            remaining = if mode == TimerMode::Periodic {
                period_ns
            } else {
                0
            };
        } else if remaining as i64 > period_ns as i64 {
            clear_tmcct = true;
            remaining = period_ns;
        }
    }
    Some(Target {
        period_ns,
        tscdeadline: tsc.at(now.host_tsc).wrapping_add(tsc.cycles(remaining)),
        target_ns: now.ns.wrapping_add(remaining as i64),
        clear_tmcct,
    })
}

/// The expiration after the divisor changed while the timer runs (`update_target_expiration`).
/// `rate` has the new divisor. An old divisor of 0, which no register value encodes, leaves no
/// time to wait.
#[must_use]
pub fn target_from_divisor(
    tsc: &GuestTsc,
    now_ns: i64,
    mode: TimerMode,
    rate: &Rate,
    old_divisor: u32,
    tmict: u32,
    old: Expiration,
) -> Target {
    let remaining = old.target_ns.wrapping_sub(now_ns).max(0) as u64;
    let product = u128::from(remaining) * u128::from(rate.divisor);
    let rest = match old_divisor {
        0 => 0,
        divisor => wide::div(product, u64::from(divisor)) as u64,
    };
    Target {
        period_ns: rate.period(tmict, mode),
        tscdeadline: old
            .tscdeadline
            .wrapping_add(tsc.cycles(rest))
            .wrapping_sub(tsc.cycles(remaining)),
        target_ns: now_ns.wrapping_add(rest as i64),
        clear_tmcct: false,
    }
}

/// The next expiration of a periodic timer (`advance_periodic_target_expiration`): guest TSC and
/// host time. Missed periods are dropped: after a long stop it is now, once.
#[must_use]
pub fn next_period(tsc: &GuestTsc, now: Now, period_ns: u64, target_ns: i64) -> (u64, i64) {
    let target = target_ns.wrapping_add(period_ns as i64).max(now.ns);
    let remaining = target.wrapping_sub(now.ns) as u64;
    let deadline = tsc.at(now.host_tsc).wrapping_add(tsc.cycles(remaining));
    (deadline, target)
}

/// How a deadline is waited for in software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwDeadline {
    /// No deadline.
    Disarmed,
    /// An hrtimer that fires at this host time, the advance taken off.
    At(i64),
    /// It is past, or nearer than the advance.
    Expired,
}

/// Starts a TSC deadline in software, as upstream does (`start_sw_tscdeadline`). A deadline
/// 2^64 / 10^6 cycles ahead or more, two hours at 2.5 GHz, wraps and fires too early.
#[must_use]
pub fn sw_deadline_as_upstream(
    tsc: &GuestTsc,
    now: Now,
    advance_ns: u32,
    deadline: u64,
) -> SwDeadline {
    let ns = |cycles| tsc.wrapping_ns(cycles);
    sw_deadline_by(tsc, now, advance_ns, deadline, ns)
}

/// The same without wrapping: a deadline too far ahead for a clock of 63 bits waits as long as
/// that can.
#[must_use]
pub fn sw_deadline(tsc: &GuestTsc, now: Now, advance_ns: u32, deadline: u64) -> SwDeadline {
    let longest = i64::MAX.saturating_sub(now.ns.max(0)) as u64;
    let ns = |cycles| tsc.exact_ns(cycles).min(longest);
    sw_deadline_by(tsc, now, advance_ns, deadline, ns)
}

fn sw_deadline_by(
    tsc: &GuestTsc,
    now: Now,
    advance_ns: u32,
    deadline: u64,
    to_ns: impl Fn(u64) -> u64,
) -> SwDeadline {
    if deadline == 0 {
        return SwDeadline::Disarmed;
    }
    let guest = tsc.at(now.host_tsc);
    let ns = to_ns(deadline.wrapping_sub(guest));
    let advance = u64::from(advance_ns);
    if deadline > guest && ns > advance {
        SwDeadline::At(now.ns.wrapping_add(ns as i64).wrapping_sub(advance as i64))
    } else {
        SwDeadline::Expired
    }
}
