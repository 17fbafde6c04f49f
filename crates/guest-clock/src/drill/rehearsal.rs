//! Saved states of small guests of our own, and states of others restored into them.
//!
//! ```no_run
//! use guest_clock::drill::rehearsal::{restore_into_own_guest, save_own_guest};
//! use guest_clock::{Options, Policy};
//!
//! let saved = save_own_guest(2)?;
//! let restored = restore_into_own_guest(&saved, &Options::new(Policy::ELAPSED))?;
//! assert_eq!(restored.seen.tsc_back, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use serde::Serialize;

use super::DrillError;
use crate::explanation::Explanation;
use crate::guest::{Guest, Seen};
use crate::policy::Options;
use crate::save::GuestClocks;
use crate::saved::{Saved, State};

/// Readings before and after.
const ROUNDS: u32 = 50;

/// What became of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Restored {
    /// Only rounding is between the guest's clocks and the ideal.
    pub exact: bool,
    /// What was done.
    pub explanation: Explanation,
    /// What the guest saw afterwards, the saved clocks counting as its latest readings.
    pub seen: Seen,
}

/// Runs a small guest, and saves its clocks.
///
/// # Errors
/// [`DrillError`].
pub fn save_own_guest(vcpus: usize) -> Result<Saved, DrillError> {
    let mut guest = Guest::new(vcpus)?;
    guest.run(ROUNDS)?;
    Ok(GuestClocks::save(&guest.vm, &guest.vcpus)?)
}

/// Restores a state into a small guest, and runs it.
///
/// # Errors
/// [`DrillError`]; with [`DrillError::Restore`] the state was refused.
pub fn restore_into_own_guest(saved: &Saved, options: &Options) -> Result<Restored, DrillError> {
    let State::X86(x86) = saved.state() else {
        let refused = crate::PlanError::Architecture {
            saved: "arm64",
            here: "x86",
        };
        return Err(crate::RestoreError::Refused(refused).into());
    };
    let scaled = x86.scaled(x86.instant.host_tsc);
    // Counters wrap; without knowing where, the first vCPU's is as good as any.
    let first = x86.vcpus.first().map_or(0, |v| v.tsc_offset);
    let latest = first.wrapping_add(scaled);
    let mut guest = Guest::after(saved.vcpus(), latest, x86.instant.clock_ns)?;
    let explanation = saved.restore(&guest.vm, &guest.vcpus, *options)?;
    guest.run(ROUNDS)?;
    Ok(Restored {
        exact: explanation.is_exact(),
        explanation,
        seen: guest.seen(),
    })
}
