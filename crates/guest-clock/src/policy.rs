//! What the guest's time does over a pause, and what may be taken instead of exactness.

use serde::{Deserialize, Serialize};
use stealtime_hypervisor::counter::migration::Uncertainty;

use crate::device::Stopping;
use crate::error::Jump;

/// What the guest's time does over the time between save and restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Policy {
    /// It stands still: the guest goes on where it was, its wall clock is late by the pause.
    Stopped,
    /// It advances by what the hosts' wall clocks say has passed.
    Elapsed {
        /// Refuse if more than this has passed, in ns: a wall clock that is wrong by years does
        /// not get into a guest.
        refuse_above_ns: u64,
    },
    /// It advances likewise, but by no more than this many ns.
    AtMost {
        /// The most.
        max_ns: u64,
    },
}

impl Policy {
    /// Guest time advances by whatever has passed.
    pub const ELAPSED: Self = Self::Elapsed {
        refuse_above_ns: u64::MAX,
    };

    /// By how many ns guest time advances where `elapsed_ns` have passed.
    pub(crate) fn advance(self, elapsed_ns: u64) -> Result<u64, Jump> {
        match self {
            Self::Stopped => Ok(0),
            Self::Elapsed { refuse_above_ns } if elapsed_ns > refuse_above_ns => Err(Jump {
                elapsed_ns,
                allowed_ns: refuse_above_ns,
            }),
            Self::Elapsed { .. } => Ok(elapsed_ns),
            Self::AtMost { max_ns } => Ok(elapsed_ns.min(max_ns)),
        }
    }
}

/// The treatment of vCPUs with unequal saved offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unequal {
    /// Refuse: the state was saved from a guest that a restore by value has already damaged.
    #[default]
    Refuse,
    /// Give all the most advanced one: time goes back on no vCPU.
    Highest,
    /// Give all the first one's; refused where another's counter would run backwards.
    First,
    /// Keep them: the guest itself has set its counters apart. The master clock stays off.
    Keep,
}

/// Whether something less than exact will do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Inexact {
    /// No: refuse, with the reason.
    #[default]
    Refuse,
    /// Yes: restore as well as this host can, and state a bound. Counters still never run
    /// backwards.
    Accept,
}

/// The difference between the wall clocks of the two hosts, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallClocks {
    /// This host's wall clock minus the source's, in ns, as PTP or NTP measures it: taken off the pause.
    pub ahead_ns: i64,
    /// A larger difference, either way, is not trusted: the restore is refused.
    pub at_most_ns: u64,
}

/// The wall clocks of the hosts differ by more than [`Options::wall_clocks`] trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this host's wall clock minus the source's is {ahead_ns} ns, at most {at_most_ns} ns are trusted: \
     set the wall clocks right (NTP, PTP), trust more, or choose Policy::Stopped"
)]
pub struct WallClocksDiffer {
    /// This host's minus the source's.
    pub ahead_ns: i64,
    /// The largest difference that is trusted, either way.
    pub at_most_ns: u64,
}

/// This host's wall clock is behind the source's at the save.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this host's wall clock is {by_ns} ns behind the source's when it saved: how much time has \
     passed is not known; set the wall clocks right (NTP, PTP), choose Policy::Stopped, or \
     accept guest time that stands still with Inexact::Accept"
)]
pub struct WallClockBehind {
    /// By how much.
    pub by_ns: u64,
}

impl Default for WallClocks {
    /// Equal wall clocks, without a limit.
    fn default() -> Self {
        Self {
            ahead_ns: 0,
            at_most_ns: u64::MAX,
        }
    }
}

/// How to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// What guest time does over the pause.
    pub policy: Policy,
    /// What to do with offsets that differ between vCPUs.
    pub unequal: Unequal,
    /// Whether something less than exact will do.
    pub inexact: Inexact,
    /// What is known of the hosts' clocks; goes into the stated bounds. A `master_clock_age_ns` of
    /// 0 stands for "not known": for a guest that was scaled the age of its kvmclock is taken.
    pub uncertainty: Uncertainty,
    /// The difference between the hosts' wall clocks. [`Policy::Stopped`] does not use it.
    pub wall_clocks: WallClocks,
    /// Whether the vCPUs may still be on their way out of `KVM_RUN`.
    pub stopping: Stopping,
}

impl Options {
    /// The pause in ns, of wall clocks that are so far apart: the known difference is taken off it.
    ///
    /// # Errors
    /// The known difference is not trusted.
    pub(crate) fn pause_ns(&self, apart_ns: i128) -> Result<i128, WallClocksDiffer> {
        let WallClocks {
            ahead_ns,
            at_most_ns,
        } = self.wall_clocks;
        match self.policy {
            Policy::Stopped => Ok(apart_ns),
            _ if ahead_ns.unsigned_abs() <= at_most_ns => Ok(apart_ns - i128::from(ahead_ns)),
            _ => Err(WallClocksDiffer {
                ahead_ns,
                at_most_ns,
            }),
        }
    }

    /// By how many ns this host's wall clock is behind the source's at the save; 0: it is not, or guest time
    /// stands still.
    ///
    /// # Errors
    /// By more than the stated skew, where exactness is demanded. Within it guest time is late by no more.
    pub(crate) fn behind_ns(&self, elapsed_ns: i128) -> Result<u64, WallClockBehind> {
        let by_ns = match self.policy {
            Policy::Stopped => 0,
            _ => u64::try_from((-elapsed_ns).max(0)).unwrap_or(u64::MAX),
        };
        match by_ns > self.uncertainty.realtime_skew_ns && self.inexact == Inexact::Refuse {
            true => Err(WallClockBehind { by_ns }),
            false => Ok(by_ns),
        }
    }

    /// This policy; exact and equal or not at all.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            unequal: Unequal::Refuse,
            inexact: Inexact::Refuse,
            uncertainty: Uncertainty {
                realtime_skew_ns: 0,
                frequency_error_ppb: 0,
                master_clock_age_ns: 0,
            },
            wall_clocks: WallClocks::default(),
            stopping: Stopping::default(),
        }
    }

    /// The same, but with a bound where exactness cannot be had.
    #[must_use]
    pub const fn accept_inexact(self) -> Self {
        Self {
            inexact: Inexact::Accept,
            ..self
        }
    }

    /// The same, with a measured difference of the wall clocks: this host's minus the source's. The second
    /// number is the largest one that is trusted, in ns.
    #[must_use]
    pub const fn wall_clocks(self, ahead_ns: i64, at_most_ns: u64) -> Self {
        let wall_clocks = WallClocks {
            ahead_ns,
            at_most_ns,
        };
        Self {
            wall_clocks,
            ..self
        }
    }

    /// The same, with this said of the vCPUs.
    #[must_use]
    pub const fn stopping(self, stopping: Stopping) -> Self {
        Self { stopping, ..self }
    }

    /// The same, with this for offsets that differ.
    #[must_use]
    pub const fn unequal(self, unequal: Unequal) -> Self {
        Self { unequal, ..self }
    }
}

impl From<Policy> for Options {
    fn from(policy: Policy) -> Self {
        Self::new(policy)
    }
}
