//! How many more VMs fit on the host of a recording, and which one to take away.
//!
//! [`Replays`] gives the figures of a host with so many of each VM. A [`Curve`] has them over the count of a
//! VM, at the counts that the search for the largest one tries.

mod cause;
mod curve;
mod document;
mod error;
mod figures;
mod fleet;
mod limit;
mod memory;
mod rebalance;
mod rebalance_document;
#[cfg(test)]
mod rebalance_tests;
mod recorded;
mod removal;
mod report;
mod search;
mod seen;
mod sentence;
#[cfg(test)]
mod tests;

pub use cause::Taker;
pub use curve::{Bound, Curve, Failure, Subject};
pub use document::{Capacity, KNEE, Question};
pub use error::FitError;
pub use figures::{Band, Check, Outcome, Point, PointVm};
pub use fleet::{Fleet, FleetVm, FleetVms, host_names, join};
pub use limit::{Figure, Limit, LimitError, Side};
pub(crate) use limit::{Parts, quantity, write_quantity};
pub use memory::{Memory, VmMemory};
pub use rebalance::{HostChange, HostFailure, Migration, Rebalance, rebalance};
pub use rebalance_document::{HostRecording, RebalanceDocument};
pub use recorded::RecordedHost;
pub use recorded::vms as recorded_vms;
pub use removal::{Removal, Removals, Spared, Suffering};
pub use report::FitDocument;
pub use seen::{SeenFigure, SeenRow, SeenSeries, SeenStep, base_of};
pub use sentence::with_band;

use crate::count::VmCount;
use crate::population::Population;

/// A VM of the recorded host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostVm {
    /// Its name.
    pub name: String,
    /// Its vCPUs that ran.
    pub vcpus: usize,
    /// What it ran in the recording, in ms per second.
    pub run_ms: f64,
    /// Ready time in the recording, in percent of its vCPUs' time.
    pub ready_percent: f64,
    /// Median of its wakeup latencies in the recording, in us.
    pub wakeup_p50_us: f64,
    /// 99th percentile of them.
    pub wakeup_p99_us: f64,
    /// Work in the recording, in ms per second.
    pub work_ms: f64,
    /// How far its demand may be from that in a longer recording: half of the 95 % interval, as a share.
    pub demand_error: f64,
    /// It never waits for anything but a CPU.
    pub is_elastic: bool,
    /// It is a VM of another recording: this host has none of it as recorded. Figures are those of its own
    /// host.
    pub is_added: bool,
    /// How many of it the host has before it is counted: as recorded, or as `vm.NAME.count` sets it.
    pub first: u32,
}

impl HostVm {
    /// Whether the recording has such a figure of it.
    fn has(&self, figure: Figure) -> bool {
        match figure {
            Figure::Ready | Figure::Overhead => true,
            Figure::WakeupP50 | Figure::WakeupP99 => self.wakeup_p99_us > 0.0,
            Figure::Work => self.work_ms > 0.0,
        }
    }
}

/// Replays of a host with so many of each VM.
pub trait Replays: Sync {
    /// The VMs of the recording.
    fn vms(&self) -> &[HostVm];

    /// CPUs of the host.
    fn cpus(&self) -> u32;

    /// Replays each list of counts with the seeds 1 to `seeds`: by list, then by seed. VMs that a list does
    /// not name have 1.
    ///
    /// # Errors
    ///
    /// Those of the replays, [`FitError::Stopped`] if they were stopped.
    fn replay(&self, lists: &[Vec<VmCount>], seeds: u64) -> Result<Vec<Vec<Population>>, FitError>;

    /// Replays the host as recorded, without changes, with the seeds 1 to `seeds`.
    ///
    /// # Errors
    ///
    /// As [`Self::replay`].
    fn recorded(&self, seeds: u64) -> Result<Vec<Population>, FitError> {
        let replays = self.replay(&[Vec::new()], seeds)?;
        replays.into_iter().next().ok_or(FitError::Stopped)
    }

    /// Whether [`Self::replay`] has changes of the host in addition to counts.
    fn is_changed(&self) -> bool {
        false
    }

    /// What has the CPUs while vCPUs of a VM and its copies are ready, the largest share first.
    ///
    /// # Errors
    ///
    /// As [`Self::replay`].
    fn takers(&self, counts: &[VmCount], vm: &str) -> Result<Vec<Taker>, FitError>;
}
