//! The VMX preemption timer: a countdown in guest mode that needs no interrupt.
//!
//! It counts down by one every 2^shift TSC cycles (IA32_VMX_MISC\[4:0\], 5 on most parts). It has
//! 32 bits: a range of 2^37 cycles, 55 s at 2.5 GHz.
//!
//! ```
//! use stealtime_hypervisor::lapic_timer::GuestTsc;
//! use stealtime_hypervisor::lapic_timer::hv_timer::{set, value_at_entry};
//!
//! // 1 ms at 2.5 GHz, of a timer that counts each 32 cycles.
//! let tsc = GuestTsc::new(2_500_000, GuestTsc::NEUTRAL, 0)?;
//! let armed = set(&tsc, 1_000_000, 0, 5, 3_500_000)?;
//! assert_eq!(armed.host_deadline, 3_500_000);
//! let value = value_at_entry(armed.host_deadline, 1_000_000, 5, false, &mut false);
//! assert_eq!(value, Some(2_500_000 / 32));
//! // An hour does not fit.
//! assert!(set(&tsc, 0, 0, 5, 9_000_000_000_000).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use core::fmt;

use super::tsc::GuestTsc;

/// An absolute host deadline that means "not armed".
pub const UNARMED: u64 = u64::MAX;

/// A deadline that the timer cannot hold (`-ERANGE`). An hrtimer takes it; the deadline may come
/// into range later, but asking at each entry costs too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// Guest cycles to wait.
    pub guest_cycles: u64,
    /// Host cycles to wait; `None` if they need more than 64 bits.
    pub host_cycles: Option<u64>,
    /// The timer's rate: one count each 2^shift cycles.
    pub shift: u32,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} guest cycles (", self.guest_cycles)?;
        match self.host_cycles {
            Some(host) => write!(f, "{host} host cycles")?,
            None => f.write_str("over 2^64 host cycles")?,
        }
        write!(
            f,
            ") exceed the 2^{} cycles of the preemption timer: use an hrtimer",
            self.shift + 32
        )
    }
}

impl core::error::Error for OutOfRange {}

/// An armed preemption timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Armed {
    /// Host TSC at which it expires.
    pub host_deadline: u64,
    /// It has expired already.
    pub expired: bool,
}

/// Converts a guest deadline (`vmx_set_hv_timer`). The range is checked on host cycles, after the
/// advance is taken off.
///
/// # Errors
/// [`OutOfRange`].
pub fn set(
    tsc: &GuestTsc,
    host_tsc: u64,
    advance_ns: u32,
    shift: u32,
    deadline: u64,
) -> Result<Armed, OutOfRange> {
    let guest = tsc.at(host_tsc);
    let remaining = deadline.saturating_sub(guest);
    let guest_cycles = remaining.saturating_sub(tsc.cycles(u64::from(advance_ns)));
    let host_cycles = tsc.host_cycles(guest_cycles);
    let shift = shift & 31;
    match host_cycles {
        Some(delta) if delta >> shift >> 32 == 0 => Ok(Armed {
            host_deadline: host_tsc.wrapping_add(delta),
            expired: delta == 0,
        }),
        _ => Err(OutOfRange {
            guest_cycles,
            host_cycles,
            shift,
        }),
    }
}

/// What to write to the preemption-timer value at a VM entry (`vmx_update_hv_timer`); `None`:
/// leave it. `soft_disabled` says that the largest value was written, once, to silence it: the
/// VMCS control bit stays on.
#[must_use]
#[inline]
pub fn value_at_entry(
    host_deadline: u64,
    host_tsc: u64,
    shift: u32,
    force_immediate_exit: bool,
    soft_disabled: &mut bool,
) -> Option<u32> {
    if force_immediate_exit {
        *soft_disabled = false;
        return Some(0);
    }
    if host_deadline != UNARMED {
        *soft_disabled = false;
        let remaining = host_deadline.saturating_sub(host_tsc);
        return Some((remaining >> (shift & 31)) as u32);
    }
    if *soft_disabled {
        return None;
    }
    *soft_disabled = true;
    Some(u32::MAX)
}
