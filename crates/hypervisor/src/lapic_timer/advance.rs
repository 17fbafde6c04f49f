//! Timer advance: the timer fires a little early, the rest is waited for just before VM entry.
//!
//! | guest TSC less deadline | advance of 1000 ns at 2.5 GHz becomes |
//! |---|---|
//! | −2500 cycles: 1000 ns early | 1000 − 1000/8 = 875 |
//! | +800 cycles: 320 ns late | 1000 + 320/8 = 1040 |
//! | ±99 cycles or fewer: noise | 1000 |
//! | beyond ±10 000 cycles: something else happened | 1000 |
//!
//! ```
//! use stealtime_hypervisor::lapic_timer::GuestTsc;
//! use stealtime_hypervisor::lapic_timer::advance::{Spin, adjust, wait};
//!
//! assert_eq!(adjust(2_500_000, 1000, -2500), 875);
//! // 1,000 cycles before the deadline: the guest waits for them in the host.
//! let tsc = GuestTsc::new(2_500_000, GuestTsc::NEUTRAL, 0)?;
//! assert_eq!(wait(&tsc, 9_000, 10_000, 1000).spin, Spin::Cycles(1_000));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::tsc::GuestTsc;

/// Advance that a timer starts with, in ns.
pub const START_NS: u32 = 1000;
/// Advance beyond which the adaptation starts over, in ns.
pub const MAX_NS: u32 = 5000;
/// Differences below this are noise, in cycles.
const MIN_DELTA: u64 = 100;
/// Differences above this are no measure of the advance, in cycles.
const MAX_DELTA: u64 = 10_000;
/// Each step corrects an eighth of the difference.
const STEP: u64 = 8;

/// The advance after an expiry that came `delta` cycles late, negative for early
/// (`adjust_lapic_timer_advance`). Arithmetic is in 32 bits: what would be below 0 wraps and is
/// reset as too large.
#[must_use]
pub fn adjust(khz: u32, advance_ns: u32, delta: i64) -> u32 {
    let error = delta.unsigned_abs();
    // Tiny differences are noise. Large ones come from preemption, and measure nothing of the
    // entry.
    if !(MIN_DELTA..=MAX_DELTA).contains(&error) {
        return advance_ns;
    }
    let Some(ns) = (error * 1_000_000).checked_div(u64::from(khz)) else {
        return advance_ns;
    };
    let step = (ns / STEP) as u32;
    let adjusted = if delta < 0 {
        advance_ns.wrapping_sub(step)
    } else {
        advance_ns.wrapping_add(step)
    };
    if adjusted > MAX_NS {
        START_NS
    } else {
        adjusted
    }
}

/// How to spend the time until the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Spin {
    /// Not early.
    None,
    /// Spin for so many TSC cycles, host and guest being the same.
    Cycles(u64),
    /// Spin for so many nanoseconds.
    Ns(u32),
}

/// What the wait just before VM entry does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The adapted advance, in ns.
    pub advance_ns: u32,
    /// The wait, never longer than that advance.
    pub spin: Spin,
}

/// Adapts the advance to how early or late a timer with `deadline` is at `host_tsc`, and says how
/// long to wait (`__kvm_wait_lapic_expire`).
#[must_use]
pub fn wait(tsc: &GuestTsc, host_tsc: u64, deadline: u64, advance_ns: u32) -> Wait {
    let guest = tsc.at(host_tsc);
    let delta = guest.wrapping_sub(deadline) as i64;
    let advance_ns = adjust(tsc.khz(), advance_ns, delta);
    let spin = if guest >= deadline {
        Spin::None
    } else if tsc.is_scaled() {
        // `__wait_lapic_expire`: cycles of a scaled guest have another length than those the host
        // spins.
        let ns = tsc.wrapping_ns(deadline - guest) as u32;
        Spin::Ns(ns.min(advance_ns))
    } else {
        Spin::Cycles((deadline - guest).min(tsc.cycles(u64::from(advance_ns))))
    };
    Wait { advance_ns, spin }
}

/// The same for a poster on another CPU. Its interrupt must never be early, so it waits for the
/// deadline itself, though no longer than [`MAX_NS`]. Upstream cuts the wait to the advance that
/// was just made smaller, and posts up to an eighth of it early.
#[must_use]
pub fn wait_to_post(tsc: &GuestTsc, host_tsc: u64, deadline: u64, advance_ns: u32) -> Wait {
    let guest = tsc.at(host_tsc);
    let adapted = wait(tsc, host_tsc, deadline, advance_ns);
    let Some(remaining) = deadline
        .checked_sub(guest)
        .filter(|&remaining| remaining > 0)
    else {
        return adapted;
    };
    let spin = if tsc.is_scaled() {
        // Rounded up: a nanosecond late is not early.
        let ns = tsc.exact_ns(remaining).saturating_add(1);
        Spin::Ns(u32::try_from(ns).unwrap_or(MAX_NS).min(MAX_NS))
    } else {
        Spin::Cycles(remaining.min(tsc.cycles(u64::from(MAX_NS))))
    };
    Wait { spin, ..adapted }
}
