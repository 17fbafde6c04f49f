//! What a restore did, why, and how exact it is.

use std::fmt;

use serde::Serialize;

use crate::policy::Policy;

/// What became of vCPUs' TSC offsets that differed when they were saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OffsetsOutcome {
    /// They differ as before.
    Kept,
    /// They are equal.
    MadeEqual,
    /// KVM keeps the TSC where it is, whatever was asked for.
    AsKvmHasThem,
}

impl fmt::Display for OffsetsOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "kept",
            Self::MadeEqual => "made equal",
            Self::AsKvmHasThem => "not carried over, this KVM moves no TSC",
        })
    }
}

/// Something that was decided on the way, or keeps a restore from being exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The clocks could not be read in one instant.
    NoInstant {
        /// When saving; otherwise on this host.
        at_save: bool,
        /// How far apart the readings can be.
        bound_ns: u64,
    },
    /// No offset attribute: the TSC was written by value.
    NoOffsets,
    /// The TSC written by value, measured afterwards.
    ByValue {
        /// How far off it can be.
        bound_ns: u64,
    },
    /// KVM keeps the TSC where it is.
    TscFixed {
        /// How far that is from where it should be.
        off_ns: u64,
    },
    /// `KVM_SET_CLOCK` has no `KVM_CLOCK_REALTIME`: the clock was set by value.
    NoRealtimeFlag {
        /// How far off it can be.
        bound_ns: u64,
    },
    /// This host's wall clock is behind the source's: guest time did not advance.
    WallClockBehind {
        /// By how much.
        by_ns: u64,
    },
    /// The hosts' wall clocks differ by a known time, which is taken off the pause.
    WallClocksDiffered {
        /// This host's minus the source's.
        ahead_ns: i64,
    },
    /// More had passed than guest time may advance.
    Capped {
        /// What had passed.
        elapsed_ns: u64,
        /// What was added.
        max_ns: u64,
    },
    /// The guest's TSC is scaled by hardware.
    Scaled {
        /// The guest's frequency.
        guest_khz: u32,
        /// The host's.
        host_khz: u32,
        /// In the host's format.
        ratio: u64,
    },
    /// The guest was scaled where it was saved. Its kvmclock page is made for its frequency in whole kHz,
    /// so it runs ahead of the kvmclock that KVM saves. The bounds include that.
    PageDrift {
        /// For how long, at most.
        age_ns: u64,
    },
    /// The guest's TSC runs at this host's frequency, which KVM takes for equal.
    WithinTolerance {
        /// The frequency that KVM reports to the guest.
        guest_khz: u32,
        /// The one that it has.
        host_khz: u32,
        /// How fast the guest's TSC drifts from what the guest thinks.
        drift_ppb: u64,
    },
    /// The guest's TSC ran at its host's frequency where it was saved. The pause is counted with the
    /// guest's own, as KVM documents it.
    RanWithinTolerance {
        /// The frequency that KVM reports to the guest.
        guest_khz: u32,
        /// The one that it had.
        host_khz: u32,
        /// How far its TSC is from where it would be had it ticked on.
        off_ns: u64,
    },
    /// The saved offsets were not equal.
    OffsetsDiffered {
        /// A vCPU that differed from vCPU 0.
        vcpu: usize,
        /// By how many cycles.
        cycles: i64,
        /// What became of them.
        outcome: OffsetsOutcome,
    },
    /// The master clock is off: each vCPU's kvmclock runs for itself and is slower to read.
    MasterClockOff {
        /// Flags of the last `KVM_GET_CLOCK`.
        flags: u32,
    },
    /// The guest has no kvmclock enabled on this many vCPUs, so it has no notice of the pause.
    /// Restore `MSR_KVM_SYSTEM_TIME_NEW` before the clocks.
    NotToldOfPause {
        /// How many.
        vcpus: usize,
    },
    /// Deadlines were written and are not armed: they have expired, or the LAPIC is not in
    /// TSC-deadline mode yet. Restore the LAPIC before the clocks.
    DeadlinesNotArmed {
        /// How many.
        vcpus: usize,
    },
    /// `TSC_ADJUST` was written and reads something else: KVM ignores it while the vCPU's CPUID
    /// lacks it. Set CPUID before the clocks.
    AdjustsNotTaken {
        /// How many.
        vcpus: usize,
    },
}

impl Reason {
    /// Whether a guest can see it as inexactness of its clocks.
    #[must_use]
    pub const fn is_inexact(&self) -> bool {
        match self {
            Self::NoInstant { .. }
            | Self::NoOffsets
            | Self::ByValue { .. }
            | Self::NoRealtimeFlag { .. }
            | Self::WallClockBehind { .. }
            | Self::TscFixed { .. }
            | Self::PageDrift { .. }
            | Self::WithinTolerance { .. }
            | Self::RanWithinTolerance { .. }
            | Self::MasterClockOff { .. } => true,
            Self::OffsetsDiffered { outcome, .. } => !matches!(outcome, OffsetsOutcome::MadeEqual),
            Self::Capped { .. }
            | Self::WallClocksDiffered { .. }
            | Self::Scaled { .. }
            | Self::NotToldOfPause { .. }
            | Self::DeadlinesNotArmed { .. }
            | Self::AdjustsNotTaken { .. } => false,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInstant { at_save, bound_ns } => {
                let place = if *at_save { "when saving" } else { "here" };
                write!(f, "clocks not read in one instant {place}: {bound_ns} ns")
            }
            Self::NoOffsets => write!(f, "no TSC offset attribute: written by value"),
            Self::ByValue { bound_ns } => write!(f, "TSC written by value: {bound_ns} ns"),
            Self::TscFixed { off_ns } => write!(
                f,
                "this KVM keeps the TSC where it is: {off_ns} ns from where it should be"
            ),
            Self::NoRealtimeFlag { bound_ns } => {
                write!(f, "KVM_SET_CLOCK without KVM_CLOCK_REALTIME: {bound_ns} ns")
            }
            Self::WallClockBehind { by_ns } => write!(
                f,
                "this host's wall clock is {by_ns} ns behind the source's: guest time stood still, and is \
                 late by whatever has passed"
            ),
            Self::WallClocksDiffered { ahead_ns } => write!(
                f,
                "this host's wall clock minus the source's is {ahead_ns} ns: taken off the pause"
            ),
            Self::Capped { elapsed_ns, max_ns } => {
                write!(f, "{elapsed_ns} ns passed, guest time advanced by {max_ns}")
            }
            Self::Scaled {
                guest_khz,
                host_khz,
                ratio,
            } => write!(f, "{guest_khz} kHz on {host_khz} kHz: TSC ratio {ratio:#x}"),
            Self::PageDrift { age_ns } => write!(
                f,
                "the guest was scaled: for up to {age_ns} ns its kvmclock ran ahead of the saved one, by \
                 less than 1 kHz of its frequency; Options::uncertainty may say for how long"
            ),
            Self::WithinTolerance {
                guest_khz,
                host_khz,
                drift_ppb,
            } => write!(
                f,
                "{guest_khz} kHz on {host_khz} kHz counts as equal: drift of {drift_ppb} ns a second"
            ),
            Self::RanWithinTolerance {
                guest_khz,
                host_khz,
                off_ns,
            } => write!(
                f,
                "saved at {host_khz} kHz, which counted as its {guest_khz} kHz: its TSC is {off_ns} ns \
                 from where it would be had it ticked on"
            ),
            Self::OffsetsDiffered {
                vcpu,
                cycles,
                outcome,
            } => write!(
                f,
                "vCPU {vcpu} was saved {cycles} cycles from vCPU 0: {outcome}"
            ),
            Self::MasterClockOff { flags } => write!(
                f,
                "master clock off (KVM_GET_CLOCK flags {flags:#x}): kvmclock is slow to read; the \
                 vCPUs' TSC offsets differ or the host's clocksource is not tsc"
            ),
            Self::NotToldOfPause { vcpus } => {
                write!(
                    f,
                    "{vcpus} vCPUs without kvmclock: not notified of the pause; restore \
                     MSR_KVM_SYSTEM_TIME_NEW before the clocks"
                )
            }
            Self::DeadlinesNotArmed { vcpus } => write!(
                f,
                "{vcpus} deadlines expired, or LAPIC not in TSC-deadline mode: restore it before the \
                 clocks"
            ),
            Self::AdjustsNotTaken { vcpus } => write!(
                f,
                "{vcpus} vCPUs ignore TSC_ADJUST: set their CPUID before the clocks"
            ),
        }
    }
}

/// One vCPU's part of what was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VcpuExplanation {
    /// Saved offset.
    pub offset_from: u64,
    /// Offset in effect.
    pub offset_to: u64,
    /// What the guest's TSC read when it was saved.
    pub tsc_at_save: u64,
    /// What it read at the plan's anchor.
    pub tsc_at_anchor: u64,
    /// The deadline that was armed, in guest cycles.
    pub tsc_deadline: Option<u64>,
}

impl fmt::Display for VcpuExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (saved, effective) = (self.offset_from.cast_signed(), self.offset_to.cast_signed());
        write!(f, "TSC offset {saved} -> {effective}, ")?;
        write!(f, "TSC {} -> {}", self.tsc_at_save, self.tsc_at_anchor)?;
        match self.tsc_deadline {
            Some(deadline) => write!(f, ", deadline {deadline}"),
            None => Ok(()),
        }
    }
}

/// The errors that a restore can leave, in ns; `u64::MAX`: not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Bounds {
    /// [`Explanation::tsc_against_kvmclock_ns`].
    pub tsc_against_kvmclock_ns: u64,
    /// [`Explanation::kvmclock_against_real_ns`].
    pub kvmclock_against_real_ns: u64,
    /// [`Explanation::tsc_against_its_rate_ns`].
    pub tsc_against_its_rate_ns: u64,
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = |ns: u64| match ns {
            u64::MAX => "unknown".to_owned(),
            ns => format!("{ns} ns"),
        };
        write!(
            f,
            "TSC against kvmclock {}, kvmclock against real time {}, TSC against its rate {}",
            bound(self.tsc_against_kvmclock_ns),
            bound(self.kvmclock_against_real_ns),
            bound(self.tsc_against_its_rate_ns),
        )
    }
}

/// What the guest needs in addition to its clocks, before and after its first `KVM_RUN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ForGuest {
    /// vCPUs with the notice of the pause (`KVM_KVMCLOCK_CTRL`): watchdogs do not count it as a lockup.
    pub notified_vcpus: usize,
    /// `counter_value` of a VMClock device: at the anchor the TSC of the first vCPU, on arm64 the virtual
    /// counter. The device needs a new `disruption_marker`, so that the guest drops its calibration
    /// (`vmclock-abi.h`).
    pub vmclock_counter: u64,
    /// Its time at that counter value, in ns since the epoch: the wall clock of this host.
    pub vmclock_utc_ns: u64,
    /// Its `time_maxerror_nanosec`, without the error of this host's wall clock.
    pub vmclock_max_error_ns: u64,
    /// By how much the guest's wall clock is behind this host's, in ns: the first offset that a PTP clock of
    /// the host (`ptp_kvm`) shows.
    pub wall_clock_late_ns: i64,
}

impl fmt::Display for ForGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            notified_vcpus,
            vmclock_counter,
            vmclock_utc_ns,
            vmclock_max_error_ns,
            wall_clock_late_ns,
        } = self;
        writeln!(f, "notice of the pause: {notified_vcpus} vCPUs")?;
        writeln!(
            f,
            "VMClock: new disruption_marker; TSC {vmclock_counter} at UTC {vmclock_utc_ns} ns, max. error \
             {vmclock_max_error_ns} ns"
        )?;
        write!(
            f,
            "PTP: the guest's wall clock is {wall_clock_late_ns} ns behind this host's"
        )
    }
}

/// What a restore did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// What guest time was to do.
    pub policy: Policy,
    /// What had passed by the hosts' wall clocks, in ns.
    pub elapsed_ns: i128,
    /// By how much guest time advanced, in ns.
    pub advanced_ns: u64,
    /// Saved kvmclock, in ns.
    pub clock_from_ns: u64,
    /// kvmclock at the plan's anchor, in ns.
    pub clock_to_ns: u64,
    /// The guest's frequency in kHz.
    pub tsc_khz: u32,
    /// Each vCPU.
    pub vcpus: Vec<VcpuExplanation>,
    /// Most that TSC and kvmclock can be apart, in ns.
    pub tsc_against_kvmclock_ns: u64,
    /// Most that the kvmclock can be off the wall clock's time because of the restore, in ns;
    /// `u64::MAX` where that is not known.
    pub kvmclock_against_real_ns: u64,
    /// Largest distance of the TSC from one that ticks on through the pause, in ns; `u64::MAX`: not
    /// known.
    pub tsc_against_its_rate_ns: u64,
    /// kvmclock minus its plan right after the restore, measured by KVM in one instant.
    pub clock_residual_ns: Option<i64>,
    /// KVM's master clock is on.
    pub master_clock: bool,
    /// What the guest needs in addition to its clocks.
    pub for_guest: ForGuest,
    /// Decisions and limits.
    pub reasons: Vec<Reason>,
}

impl Explanation {
    /// Whether only rounding is between the guest's clocks and the ideal.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        !self.reasons.iter().any(Reason::is_inexact)
    }

    /// The errors that the restore can leave.
    #[must_use]
    pub const fn bounds(&self) -> Bounds {
        Bounds {
            tsc_against_kvmclock_ns: self.tsc_against_kvmclock_ns,
            kvmclock_against_real_ns: self.kvmclock_against_real_ns,
            tsc_against_its_rate_ns: self.tsc_against_its_rate_ns,
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "elapsed {} ns, guest time advanced by {} ns\nkvmclock {} -> {} ns, master clock {}",
            self.elapsed_ns,
            self.advanced_ns,
            self.clock_from_ns,
            self.clock_to_ns,
            if self.master_clock { "on" } else { "off" }
        )?;
        let mut first = 0;
        // Most guests' vCPUs are all alike.
        for alike in self.vcpus.chunk_by(|a, b| a == b) {
            let last = first + alike.len() - 1;
            match first == last {
                true => write!(f, "vCPU {first}")?,
                false => write!(f, "vCPUs {first} to {last}")?,
            }
            first = last + 1;
            if let Some(vcpu) = alike.first() {
                writeln!(f, ": {vcpu}")?;
            }
        }
        writeln!(f, "bounds: {}", self.bounds())?;
        writeln!(f, "{}", self.for_guest)?;
        let exact = if self.is_exact() { "exact" } else { "bounded" };
        write!(f, "{exact}")?;
        for reason in &self.reasons {
            write!(f, "\n- {reason}")?;
        }
        Ok(())
    }
}
