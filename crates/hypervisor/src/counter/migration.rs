//! Migration of a guest's TSC by offsets: the new offset, and an account of what it adds.
//!
//! Source: read the clock (kvmclock, host TSC, wall clock in one instant), then each vCPU's
//! offset. Destination: set the clock, read it again, compute, write the offsets. The invariant:
//! the guest's TSC at kvmclock 0 is the same on both sides.
//!
//! ```text
//!  guest TSC      source                          destination
//!      ▲            ●────────── added cycles ─────────▶●
//!      │  ofs_src + S_src(tsc_src)      ofs_dst + S_dst(tsc_dst)
//!      └───────────────────────────────────────────────────▶ kvmclock
//!               guest_src        blackout           guest_dst
//! ```
//!
//! The documented form (`Documentation/virt/kvm/devices/vcpu.rst`) uses the raw host TSCs, which
//! is right only where neither side scales. [`by_offsets`] uses the scaled ones. The kernel's
//! document and the series that introduced the attribute do not mention this.
//!
//! | form | what a preempted VMM thread adds to guest time | right under scaling |
//! |---|---|---|
//! | [`by_value`] | all of its delay, per vCPU | yes |
//! | [`documented`] | nothing | no |
//! | [`by_offsets`] | nothing | yes |

use super::kvm_clock::{KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KvmClockData};
use super::scaling::RatioFormat;
use crate::wide;

/// One side of a migration: an instant of its clocks, and how its hardware scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Side {
    /// From `KVM_GET_CLOCK`, with wall clock and host TSC.
    pub clock: KvmClockData,
    /// The host's ratio format.
    pub format: RatioFormat,
    /// The vCPU's ratio on this host; the neutral one where nothing is scaled.
    pub ratio: u64,
}

impl Side {
    fn scaled_tsc(&self) -> u64 {
        self.format.scale(self.clock.host_tsc, self.ratio)
    }

    /// The host's frequency, in kHz, going by the ratio; not above the real one, and at least 1.
    fn host_khz(&self, guest_khz: u32) -> u128 {
        let scaled = u128::from(guest_khz) << self.format.frac_bits();
        match self.ratio {
            0 => 1,
            ratio if ratio == self.format.neutral() => wide::div(scaled, ratio).max(1),
            // The ratio was rounded down.
            ratio => wide::div(scaled, ratio).saturating_sub(1).max(1),
        }
    }
}

/// What the caller knows about the hosts, for the bound on what the guest can see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Uncertainty {
    /// How far the two wall clocks may be apart, in ns (the bound of NTP or PTP).
    pub realtime_skew_ns: u64,
    /// How far each host's TSC frequency may be from its nominal kHz, in parts per billion.
    /// A frequency cut to kHz is off by up to 10^9/khz on its own; that is always included.
    /// A guest that is not scaled though its frequency is not its host's (within
    /// `kvm.tsc_tolerance_ppm`) ticks at the host's: that difference belongs here too.
    pub frequency_error_ppb: u32,
    /// Before the source's clock was read, how long its master clock had been in use, in ns; at
    /// most the age of the VM. Matters for a scaled guest only. The frequency of its page
    /// is cut to kHz once more, so that the page drifts from `KVM_GET_CLOCK` until a refresh.
    pub master_clock_age_ns: u64,
}

/// What a migration adds to a guest's TSC, and how wrong that can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    /// kvmclock on the destination minus kvmclock on the source: the blackout that the guest's
    /// clocks include.
    pub kvmclock_elapsed_ns: u64,
    /// The same by the hosts' wall clocks; they differ where `KVM_SET_CLOCK` refused to go back.
    pub realtime_elapsed_ns: i128,
    /// Cycles that the guest's TSC advances over the blackout.
    pub added_cycles: u128,
    /// Cycles by which the guest's TSC misses `added_cycles`, exactly; the documented form under
    /// scaling has its fault here, the other forms have 0.
    pub misplaced_cycles: i128,
    /// Most that the guest's TSC can be off its kvmclock afterwards, in ns: what rounding and
    /// `misplaced_cycles` make.
    pub tsc_against_kvmclock_ns: u64,
    /// Largest error of the guest's TSC against a TSC that ticks through the blackout, in ns. It
    /// adds the hosts' frequency errors and the skew of the wall clocks to the above.
    pub tsc_against_its_rate_ns: u64,
    /// Largest error of the guest's kvmclock against real time by the migration, in ns. It adds
    /// skew of the wall clocks, rounding of the pvclock, and drift of a scaled guest's page.
    pub kvmclock_against_real_ns: u64,
}

/// New offsets for all vCPUs that have this frequency and ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Migration {
    delta: u64,
    /// What was added.
    pub account: Account,
}

impl Migration {
    /// The offset for the destination, given the one of the source. Wraps modulo 2^64: an offset
    /// is a signed number in disguise.
    #[must_use]
    pub const fn offset(&self, source_offset: u64) -> u64 {
        source_offset.wrapping_add(self.delta)
    }
}

/// Why no offset was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MigrationError {
    /// The guest's frequency is 0: read it with `KVM_GET_TSC_KHZ` on the source.
    FrequencyZero {
        /// The frequency given, in kHz.
        guest_khz: u32,
    },
    /// A clock reading lacks its wall clock or host TSC: the master clock is off there, and the
    /// three values are not of one instant. Match the vCPUs' TSCs first.
    NotOneInstant {
        /// The flags of the source's reading.
        source_flags: u32,
        /// The flags of the destination's reading.
        destination_flags: u32,
        /// The flags needed on both.
        needed: u32,
    },
    /// The destination's kvmclock is behind the source's: it was read before it was set, or the
    /// sides are swapped.
    ClockBehind {
        /// The source's kvmclock in ns.
        source_ns: u64,
        /// The destination's kvmclock in ns.
        destination_ns: u64,
    },
}

impl core::fmt::Display for MigrationError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::FrequencyZero { guest_khz } => write!(
                f,
                "guest TSC frequency of {guest_khz} kHz: read it with KVM_GET_TSC_KHZ on the source"
            ),
            Self::NotOneInstant {
                source_flags,
                destination_flags,
                needed,
            } => write!(
                f,
                "clock readings with flags {source_flags:#x} (source) and {destination_flags:#x} \
                 (destination) need {needed:#x}: match the TSCs of all vCPUs so that the master \
                 clock is on, and read again"
            ),
            Self::ClockBehind {
                source_ns,
                destination_ns,
            } => write!(
                f,
                "the destination's kvmclock, {destination_ns} ns, is behind the source's, \
                 {source_ns} ns: set it with KVM_SET_CLOCK, then read it"
            ),
        }
    }
}

impl core::error::Error for MigrationError {}

/// The form that is right with and without scaling.
///
/// `ofs_dst = ofs_src + S_src(tsc_src) − S_dst(tsc_dst) + (guest_dst − guest_src)·freq`
///
/// # Errors
/// [`MigrationError`], for readings or frequencies that cannot be used.
pub fn by_offsets(
    source: &Side,
    destination: &Side,
    guest_khz: u32,
    known: &Uncertainty,
) -> Result<Migration, MigrationError> {
    let elapsed_ns = check(source, destination, guest_khz)?;
    let added = cycles(elapsed_ns, guest_khz);
    let delta = source
        .scaled_tsc()
        .wrapping_sub(destination.scaled_tsc())
        .wrapping_add(added as u64);
    Ok(Migration {
        delta,
        account: account(source, destination, guest_khz, known, 0),
    })
}

/// The documented form, with the host TSCs as they are.
///
/// `ofs_dst = ofs_src − (guest_src − guest_dst)·freq + (tsc_src − tsc_dst)`
///
/// Under scaling the guest's TSC jumps by the difference between the hosts' and the guest's
/// cycles; [`Account::misplaced_cycles`] says by how much.
///
/// # Errors
/// As [`by_offsets`].
pub fn documented(
    source: &Side,
    destination: &Side,
    guest_khz: u32,
    known: &Uncertainty,
) -> Result<Migration, MigrationError> {
    let elapsed_ns = check(source, destination, guest_khz)?;
    let added = cycles(elapsed_ns, guest_khz);
    let raw = source
        .clock
        .host_tsc
        .wrapping_sub(destination.clock.host_tsc);
    let scaled = source.scaled_tsc().wrapping_sub(destination.scaled_tsc());
    // The jump is what the guest sees, so it wraps like the guest's counter.
    let misplaced = i128::from(raw.wrapping_sub(scaled) as i64);
    Ok(Migration {
        delta: raw.wrapping_add(added as u64),
        account: account(source, destination, guest_khz, known, misplaced),
    })
}

/// What restoring the *value* does: the guest's counter stands still from the moment when the
/// VMM computes it until KVM writes it, once per vCPU.
///
/// Returns the value to write, and the same account with that delay in it.
///
/// # Errors
/// As [`by_offsets`].
pub fn by_value(
    source: &Side,
    destination: &Side,
    guest_khz: u32,
    known: &Uncertainty,
    source_offset: u64,
    write_delay_ns: u64,
) -> Result<(u64, Account), MigrationError> {
    let elapsed_ns = check(source, destination, guest_khz)?;
    let value = source_offset
        .wrapping_add(source.scaled_tsc())
        .wrapping_add(cycles(elapsed_ns, guest_khz) as u64);
    // At most 2^64 ns times 2^32 kHz: far within an i128.
    let lost = -(cycles(write_delay_ns, guest_khz) as i128);
    let account = account(source, destination, guest_khz, known, lost);
    Ok((value, account))
}

fn check(source: &Side, destination: &Side, guest_khz: u32) -> Result<u64, MigrationError> {
    let needed = KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC;
    let (s, d) = (&source.clock, &destination.clock);
    if guest_khz == 0 {
        Err(MigrationError::FrequencyZero { guest_khz })
    } else if s.flags & d.flags & needed != needed {
        Err(MigrationError::NotOneInstant {
            source_flags: s.flags,
            destination_flags: d.flags,
            needed,
        })
    } else {
        d.clock_ns
            .checked_sub(s.clock_ns)
            .ok_or(MigrationError::ClockBehind {
                source_ns: s.clock_ns,
                destination_ns: d.clock_ns,
            })
    }
}

/// Cycles of a counter of `khz` in `ns`, rounded down: never ahead of the kvmclock.
fn cycles(ns: u64, khz: u32) -> u128 {
    wide::div(u128::from(ns) * u128::from(khz), 1_000_000)
}

/// Largest distance between the page of a scaled guest and `KVM_GET_CLOCK` after `age_ns`, in ns.
///
/// The page has the guest's frequency cut to kHz. The ratio is rounded down, so that the cut may
/// lose a whole kHz. Each side's multiplier has 32 bits and is rounded down too.
fn page_drift_ns(age_ns: u64, guest_khz: u32) -> u64 {
    let page_khz = u64::from(guest_khz.saturating_sub(1).max(1));
    let multiplier_ns = (age_ns >> 31).saturating_add(1);
    age_ns.div_ceil(page_khz).saturating_add(multiplier_ns)
}

fn account(
    source: &Side,
    destination: &Side,
    guest_khz: u32,
    known: &Uncertainty,
    misplaced_cycles: i128,
) -> Account {
    let (s, d) = (&source.clock, &destination.clock);
    let elapsed_ns = d.clock_ns.saturating_sub(s.clock_ns);
    // One cycle each: the conversion of the blackout, the scaling on either side.
    let rounding_ns = u128::from(3_000_000u32.div_ceil(guest_khz.max(1)));
    let misplaced_ns = wide::div_ceil(
        misplaced_cycles.unsigned_abs() * 1_000_000,
        u64::from(guest_khz.max(1)),
    );
    let against_kvmclock_ns = rounding_ns + misplaced_ns;
    // The nominal frequency stands in for the real one, which is up to 1 kHz higher.
    let cut_to_khz_ppb = match u64::try_from(source.host_khz(guest_khz)) {
        Ok(khz) => 1_000_000_000u64.div_ceil(khz),
        Err(_) => 1,
    };
    let ppb = u128::from(cut_to_khz_ppb) + u128::from(known.frequency_error_ppb);
    let rate_ns = wide::div_ceil(u128::from(elapsed_ns) * ppb, 1_000_000_000);
    // Each pvclock reading truncates its cycles and its multiplier: below 2 ns a side.
    let drift_ns = if source.ratio == source.format.neutral() {
        0
    } else {
        page_drift_ns(known.master_clock_age_ns, guest_khz)
    };
    let kvmclock_ns = known
        .realtime_skew_ns
        .saturating_add(drift_ns)
        .saturating_add(4);
    let against_rate_ns = against_kvmclock_ns + rate_ns + u128::from(kvmclock_ns);
    Account {
        kvmclock_elapsed_ns: elapsed_ns,
        realtime_elapsed_ns: i128::from(d.realtime_ns) - i128::from(s.realtime_ns),
        added_cycles: cycles(elapsed_ns, guest_khz),
        misplaced_cycles,
        tsc_against_kvmclock_ns: u64::try_from(against_kvmclock_ns).unwrap_or(u64::MAX),
        tsc_against_its_rate_ns: u64::try_from(against_rate_ns).unwrap_or(u64::MAX),
        kvmclock_against_real_ns: kvmclock_ns,
    }
}
