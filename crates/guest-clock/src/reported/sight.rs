//! What a guest notices: its readings after a restore against those before, and against each other.

use std::fmt;

use serde::Serialize;

use crate::fake::GuestReading;
use crate::save::{cycles_to_ns, signed_ns};

/// Clocks that come apart by less than this, in ns, do so by the calls between two readings.
const APART_NS: u64 = 1_000_000;

/// Something that a guest notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Sight {
    /// A later reading of a TSC is lower.
    TscBack {
        /// The vCPU with the higher reading; of its own, if it is the same.
        from_vcpu: usize,
        /// The vCPU that was read later.
        vcpu: usize,
        /// By how many cycles.
        cycles: u64,
        /// The same in ns.
        ns: u64,
    },
    /// The kvmclock is below its last reading before the save.
    ClockBack {
        /// The vCPU that was read.
        vcpu: usize,
        /// By how many ns.
        ns: u64,
    },
    /// Clock pages without `PVCLOCK_TSC_STABLE_BIT`.
    MasterClockOff {
        /// How many.
        vcpus: usize,
    },
    /// vCPUs without `PVCLOCK_GUEST_STOPPED`.
    NotNotified {
        /// How many.
        vcpus: usize,
    },
    /// TSC and kvmclock do not tell the same time.
    TimelinesApart {
        /// The vCPU.
        vcpu: usize,
        /// By how much its TSC advanced since the save, in ns of the guest's frequency.
        tsc_ns: i64,
        /// By how much its kvmclock advanced, in ns.
        clock_ns: i64,
    },
    /// The kvmclock advances over the pause.
    Jump {
        /// By how many ns.
        ns: u64,
        /// The VMM's policy asks for it.
        asked: bool,
    },
    /// A deadline is no longer armed.
    DeadlineLost {
        /// The vCPU.
        vcpu: usize,
        /// The deadline, in guest cycles.
        deadline: u64,
        /// Its TSC when the deadline was written.
        tsc: u64,
    },
    /// A TSC is not the value that was written.
    NotTheValue {
        /// The vCPU.
        vcpu: usize,
        /// What was written.
        wanted: u64,
        /// What it read right after.
        read: u64,
    },
    /// `TSC_ADJUST` is not the value that was written.
    AdjustLost {
        /// The vCPU.
        vcpu: usize,
        /// What was saved.
        wanted: i64,
        /// What it reads.
        read: i64,
    },
}

impl Sight {
    /// Whether it is a failure.
    #[must_use]
    pub const fn is_fault(&self) -> bool {
        !matches!(self, Self::Jump { asked: true, .. })
    }
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TscBack {
                from_vcpu,
                vcpu,
                cycles,
                ns,
            } if from_vcpu == vcpu => write!(
                f,
                "the TSC of vCPU {vcpu} goes back by {cycles} cycles ({ns} ns)"
            ),
            Self::TscBack {
                from_vcpu,
                vcpu,
                cycles,
                ns,
            } => write!(
                f,
                "a task that moves from vCPU {from_vcpu} to vCPU {vcpu} sees the TSC go back by {cycles} \
                 cycles ({ns} ns)"
            ),
            Self::ClockBack { vcpu, ns } => {
                write!(f, "the kvmclock of vCPU {vcpu} goes back by {ns} ns")
            }
            Self::MasterClockOff { vcpus } => write!(
                f,
                "the master clock is off on {vcpus} vCPUs: each clock read leaves the vDSO for a system \
                 call"
            ),
            Self::NotNotified { vcpus } => write!(
                f,
                "{vcpus} vCPUs are not notified of the pause: watchdogs count it as a lockup"
            ),
            Self::TimelinesApart {
                vcpu,
                tsc_ns,
                clock_ns,
            } => write!(
                f,
                "since the save the TSC of vCPU {vcpu} advanced by {tsc_ns} ns, its kvmclock by {clock_ns} \
                 ns"
            ),
            Self::Jump { ns, asked } => write!(
                f,
                "the monotonic clock jumps by {ns} ns, {}",
                if *asked {
                    "as the policy says"
                } else {
                    "unasked"
                }
            ),
            Self::DeadlineLost {
                vcpu,
                deadline,
                tsc,
            } => write!(
                f,
                "the deadline {deadline} of vCPU {vcpu} expired at TSC {tsc} of the new VM: its interrupt \
                 comes too early, or is lost"
            ),
            Self::NotTheValue { vcpu, wanted, read } => write!(
                f,
                "the TSC of vCPU {vcpu} reads {read}, but {wanted} was written"
            ),
            Self::AdjustLost { vcpu, wanted, read } => write!(
                f,
                "TSC_ADJUST of vCPU {vcpu} reads {read}, but {wanted} was saved: the guest corrects its TSC \
                 by the difference"
            ),
        }
    }
}

/// What a guest of this frequency notices, by its readings alone. `asked_ns`: guest time may advance by as
/// much.
pub(super) fn compare(
    earlier: &[GuestReading],
    after: &[GuestReading],
    tsc_khz: u32,
    asked_ns: u64,
) -> Vec<Sight> {
    let mut sights = Vec::new();
    sights.extend(tsc_back(earlier, after, tsc_khz));
    let latest = earlier.iter().map(|reading| reading.kvmclock_ns).max();
    let latest = latest.unwrap_or(0);
    sights.extend(after.iter().enumerate().find_map(|(vcpu, reading)| {
        let ns = latest.saturating_sub(reading.kvmclock_ns);
        (ns > 0).then_some(Sight::ClockBack { vcpu, ns })
    }));
    let count = |matches: fn(&GuestReading) -> bool| {
        after.iter().filter(|reading| matches(reading)).count()
    };
    let unstable = count(|reading| !reading.stable);
    if unstable > 0 && earlier.iter().all(|reading| reading.stable) {
        sights.push(Sight::MasterClockOff { vcpus: unstable });
    }
    let silent = count(|reading| !reading.stopped);
    if silent > 0 {
        sights.push(Sight::NotNotified { vcpus: silent });
    }
    sights.extend(apart(earlier, after, tsc_khz));
    if let Some(first) = after.first() {
        let ns = first.kvmclock_ns.saturating_sub(latest);
        if ns > APART_NS {
            let is_asked = ns <= asked_ns.saturating_add(APART_NS);
            sights.push(Sight::Jump {
                ns,
                asked: is_asked,
            });
        }
    }
    sights
}

/// The largest step back, over the restore or from one vCPU to the next.
fn tsc_back(earlier: &[GuestReading], after: &[GuestReading], tsc_khz: u32) -> Option<Sight> {
    let readings = earlier.iter().enumerate().chain(after.iter().enumerate());
    let mut highest: Option<(usize, u64)> = None;
    let mut worst: Option<(usize, usize, u64)> = None;
    for (vcpu, reading) in readings {
        if let Some((from_vcpu, tsc)) = highest {
            let cycles = tsc.saturating_sub(reading.tsc);
            if cycles > worst.map_or(0, |(_, _, largest)| largest) {
                worst = Some((from_vcpu, vcpu, cycles));
            }
        }
        if highest.is_none_or(|(_, tsc)| reading.tsc > tsc) {
            highest = Some((vcpu, reading.tsc));
        }
    }
    worst.map(|(from_vcpu, vcpu, cycles)| Sight::TscBack {
        from_vcpu,
        vcpu,
        cycles,
        ns: cycles_to_ns(cycles, tsc_khz),
    })
}

/// The first vCPU of which TSC and kvmclock do not advance by the same time.
fn apart(earlier: &[GuestReading], after: &[GuestReading], tsc_khz: u32) -> Option<Sight> {
    let pairs = earlier.iter().zip(after).enumerate();
    pairs
        .map(|(vcpu, (old, new))| {
            let tsc_ns = signed_ns(new.tsc.wrapping_sub(old.tsc).cast_signed(), tsc_khz);
            let clock_ns = new.kvmclock_ns.wrapping_sub(old.kvmclock_ns).cast_signed();
            (vcpu, tsc_ns, clock_ns)
        })
        .find(|(_, tsc_ns, clock_ns)| tsc_ns.abs_diff(*clock_ns) > APART_NS)
        .map(|(vcpu, tsc_ns, clock_ns)| Sight::TimelinesApart {
            vcpu,
            tsc_ns,
            clock_ns,
        })
}
