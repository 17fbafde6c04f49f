//! Failures that users of VMMs have reported. The order of calls that fails and the order that does not are
//! carried out side by side, with the readings of the guest.
//!
//! ```
//! use guest_clock::{drill::Device, reported};
//!
//! let shown = reported::find("6200")?.show(Device::Fake)?;
//! assert!(shown.failing.is_faulty() && !shown.right.is_faulty());
//! for step in &shown.failing.steps {
//!     println!("{step}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cases;
mod hosts;
mod log;
mod sight;
mod stage;
mod timers;

use serde::Serialize;

use crate::device::{Vcpu, Vm};
use crate::drill::{Device, DrillError};
use crate::error::RestoreError;
use crate::explanation::Explanation;
use crate::fake::GuestReading;
use crate::plan::Plan;

pub use sight::Sight;
use stage::FakeStage;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use stage::KvmStage;

/// A reported failure.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Projects and numbers, as `firecracker-6200`.
    pub names: &'static [&'static str],
    /// What users saw.
    pub failure: &'static str,
    on_fake: fn(&FakeStage) -> Orders,
    on_kvm: OnKvm,
}

/// Both orders of a report: the failing one, then the right one.
type Orders = Result<[Order; 2], DrillError>;

/// How a report is shown on `/dev/kvm`.
#[derive(Clone, Copy, Debug)]
enum OnKvm {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    Runs {
        run: fn(&KvmStage) -> Orders,
        /// The failure needs a KVM that moves TSCs.
        moves_tsc: bool,
    },
    /// With the reason.
    Never(&'static str),
}

/// A report that the fake shows, and `/dev/kvm` where it `runs`, or `never` for a reason. `moves_tsc`: only
/// a KVM that moves TSCs shows it.
macro_rules! report {
    ($names:expr, $failure:literal, $run:path, runs, moves_tsc: $moves_tsc:literal) => {
        Report {
            names: $names,
            failure: $failure,
            on_fake: $run,
            #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
            on_kvm: OnKvm::Runs {
                run: $run,
                moves_tsc: $moves_tsc,
            },
            #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
            on_kvm: OnKvm::Never("this platform has no /dev/kvm for x86-64 guests"),
        }
    };
    ($names:expr, $failure:literal, $run:path, never: $reason:expr) => {
        Report {
            names: $names,
            failure: $failure,
            on_fake: $run,
            on_kvm: OnKvm::Never($reason),
        }
    };
}

/// All reports, in the order of `docs/clock-failures.md`.
pub const REPORTS: [Report; 10] = [
    report!(
        &["firecracker-6200"],
        "vCPUs with different offsets after a restore: time goes back when a task moves",
        cases::unequal_offsets,
        runs,
        moves_tsc: true
    ),
    report!(
        &["firecracker-4099"],
        "processes hang after resume: deadline restored before the TSC",
        timers::deadline_before_tsc,
        never: timers::NO_LAPIC
    ),
    report!(
        &["firecracker-5809"],
        "the monotonic clock jumps by the pause, unasked",
        cases::jump_by_policy,
        runs,
        moves_tsc: true
    ),
    report!(
        &[
            "firecracker-5581",
            "cloud-hypervisor-5786",
            "cloud-hypervisor-5787",
        ],
        "the frequency is not carried, or a similar host is refused",
        hosts::other_frequency,
        never: hosts::ONE_HOST
    ),
    report!(
        &[
            "cloud-hypervisor-7930",
            "cloud-hypervisor-7931",
            "cloud-hypervisor-7932",
        ],
        "clock set after vCPUs ran, guest not notified of the pause",
        cases::clock_set_late,
        runs,
        moves_tsc: false
    ),
    report!(
        &["cloud-hypervisor-8383"],
        "master clock off after a restore, clock reads many times slower",
        cases::master_clock_off,
        runs,
        moves_tsc: true
    ),
    report!(
        &["openvmm-4253"],
        "a TSC written as zero is not zero",
        cases::zero_is_not_written,
        runs,
        moves_tsc: true
    ),
    report!(
        &["openvmm-4290"],
        "timer far ahead of the clock: two timelines",
        cases::two_timelines,
        runs,
        moves_tsc: true
    ),
    report!(
        &["openvmm-2913"],
        "TSC_ADJUST not handled",
        timers::adjust_before_cpuid,
        never: timers::NO_GUEST_WRITES
    ),
    report!(
        &["one-second-rule"],
        "a second value within a second is replaced by the first one's",
        cases::values_within_a_second,
        runs,
        moves_tsc: true
    ),
];

/// One order of calls, carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Order {
    /// What it does.
    pub title: &'static str,
    /// Each vCPU of the guest when it was saved, in the order of the readings.
    pub before: Vec<GuestReading>,
    /// Writes, runs and pauses, in order.
    pub steps: Vec<String>,
    /// Each vCPU afterwards, in the order of the readings.
    pub after: Vec<GuestReading>,
    /// What the guest notices.
    pub seen: Vec<Sight>,
}

impl Order {
    /// Whether the guest sees a failure.
    #[must_use]
    pub fn is_faulty(&self) -> bool {
        self.seen.iter().any(Sight::is_fault)
    }
}

/// Both orders of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Shown {
    /// Projects and numbers.
    pub names: &'static [&'static str],
    /// What users saw.
    pub failure: &'static str,
    /// Where it was shown.
    pub device: Device,
    /// As reported.
    pub failing: Order,
    /// As it should be.
    pub right: Order,
}

/// A report cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// No report has this name.
    #[error("no report {name:?}: known are {}", known())]
    Unknown {
        /// As it was given.
        name: String,
    },
    /// Several projects have this number.
    #[error("{name} is a number of several projects: give one of {}", .reports.join(", "))]
    Ambiguous {
        /// As it was given.
        name: String,
        /// The full names.
        reports: Vec<&'static str>,
    },
    /// The device cannot show it.
    #[error("{report} cannot be shown on /dev/kvm: {reason}; show it without a device")]
    NotOnKvm {
        /// The first name of the report.
        report: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// The guests of the report.
    #[error(transparent)]
    Drill(#[from] DrillError),
}

/// Carries a plan out, with each write recorded.
pub(crate) fn record<V: Vm, C: Vcpu>(
    plan: &Plan,
    vm: &V,
    vcpus: &[C],
) -> (Result<Explanation, RestoreError>, Vec<String>) {
    let log = log::Log::default();
    let (vm, vcpus) = (log::Logged::new(vm, &log), log::Logged::each(vcpus, &log));
    (plan.carry_out(&vm, &vcpus), log.steps())
}

fn known() -> String {
    let names = REPORTS.iter().flat_map(|report| report.names);
    names.copied().collect::<Vec<_>>().join(", ")
}

/// The report of this name: `firecracker-6200`, or its number alone where one project has it.
///
/// # Errors
/// [`ReportError::Unknown`] and [`ReportError::Ambiguous`].
pub fn find(name: &str) -> Result<&'static Report, ReportError> {
    let matches = |full: &&'static str| {
        *full == name
            || full
                .rsplit_once('-')
                .is_some_and(|(_, number)| number == name)
    };
    let mut found: Vec<(&'static Report, &'static str)> = Vec::new();
    for report in &REPORTS {
        found.extend(
            report
                .names
                .iter()
                .filter(|full| matches(full))
                .map(|full| (report, *full)),
        );
    }
    match found.as_slice() {
        [] => Err(ReportError::Unknown {
            name: name.chars().take(100).collect(),
        }),
        [(report, _)] => Ok(report),
        several => Err(ReportError::Ambiguous {
            name: name.to_owned(),
            reports: several.iter().map(|(_, full)| *full).collect(),
        }),
    }
}

impl Report {
    /// Carries out both orders. Without a device the outcome is the same each time.
    ///
    /// # Errors
    /// [`ReportError::NotOnKvm`] where the device cannot show it; [`ReportError::Drill`].
    pub fn show(&'static self, device: Device) -> Result<Shown, ReportError> {
        let orders = match device {
            Device::Fake => (self.on_fake)(&FakeStage::new()),
            Device::Kvm => self.on_kvm()?,
        };
        let [failing, right] = orders?;
        Ok(Shown {
            names: self.names,
            failure: self.failure,
            device,
            failing,
            right,
        })
    }

    fn on_kvm(&'static self) -> Result<Orders, ReportError> {
        let refused = |reason| ReportError::NotOnKvm {
            report: self.names.first().copied().unwrap_or(""),
            reason,
        };
        match self.on_kvm {
            OnKvm::Never(reason) => Err(refused(reason)),
            #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
            OnKvm::Runs { run, moves_tsc } => {
                let facts = crate::kvm::host().map_err(|error| DrillError::Save(error.into()))?;
                if moves_tsc && facts.facts().means != crate::device::TscMeans::Offsets {
                    return Err(refused("this KVM takes no TSC offsets, or ignores them"));
                }
                Ok(run(&KvmStage))
            }
        }
    }
}
