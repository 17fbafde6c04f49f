//! One pass over events to answers: where guest time goes.
//!
//! Memory is bounded by the number of CPUs, threads, vCPUs and exit reasons, not by the length of
//! the trace. The same analysis serves real recordings and simulated runs.
//!
//! ```
//! use stealtime_analysis::{Analysis, Options};
//! use stealtime_events::{Context, CpuId, Event, ExitReason, Kind, NameId, Names, Tid, VcpuId};
//!
//! struct NoNames;
//! impl Names for NoNames {
//!     fn name(&self, _: NameId) -> &str {
//!         ""
//!     }
//! }
//!
//! let event = |time_ns, kind| Event {
//!     time_ns,
//!     tid: Tid(7),
//!     cpu: CpuId(0),
//!     context: Context::default(),
//!     kind,
//! };
//! let (vcpu, reason) = (VcpuId(0), ExitReason::vmx(48));
//! let exit = Kind::KvmExit { reason, vcpu, intr_vector: None, info1: 0 };
//! let mut analysis = Analysis::new(Options::default());
//! analysis.event(&event(1_000, Kind::KvmEntry { vcpu }), &NoNames);
//! analysis.event(&event(5_000, exit), &NoNames);
//! analysis.event(&event(5_700, Kind::KvmEntry { vcpu }), &NoNames);
//! let answers = analysis.finish(&NoNames);
//! assert_eq!(answers.exit_totals[0].reason, "EPT_VIOLATION");
//! assert_eq!(answers.exit_totals[0].time_ns, 700);
//! assert_eq!(answers.vcpus[0].guest_ns, Some(4_000));
//! ```

mod account;
pub mod answers;
mod clock_reads;
mod clocks;
mod count;
mod cpus;
mod doubt;
mod findings;
mod finish;
mod guessed;
mod guest_clock;
mod interrupts;
mod keys;
mod latency;
mod options;
mod overview;
mod polls;
mod ready;
mod series;
mod stats;
mod sums;
mod tables;
mod vms;
mod waits;
mod yields;

#[cfg(test)]
mod tests;

pub use answers::Answers;
pub use findings::{Entry, per_mille, reference, rounded_per_mille};
pub use guessed::{shown_vm, shown_vm_in};
pub use options::{HostThread, HostVm, HostVms, Options, Selection, Skip};
pub use waits::Longest;

use stealtime_events::{CpuId, Event, NameId, Names};
use stealtime_track::{ReasonIndex, Thread, Tracker, VcpuIndex};

use account::Account;
use sums::Sums;

/// The analysis of one trace: events in, answers out. The [`Tracker`] follows the host, and the sums
/// are its observer.
#[derive(Debug)]
pub struct Analysis {
    tracker: Tracker<Sums>,
}

/// Events that a reader has counted and left out.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    /// Their name.
    pub name: NameId,
    /// How many there were.
    pub events: u64,
    /// Time of the first, in ns.
    pub first_ns: u64,
    /// Time of the last, in ns.
    pub last_ns: u64,
    /// The highest CPU.
    pub last_cpu: CpuId,
}

impl Analysis {
    /// An analysis that has seen nothing yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            tracker: Tracker::new(Sums::new(options)),
        }
    }

    /// Takes the next event in the order of time. An event earlier than the one before it is taken
    /// as if it came at the same time, and counted.
    pub fn event(&mut self, event: &Event, names: &dyn Names) {
        self.tracker.event(event, names);
    }

    /// The same for several events.
    pub fn events(&mut self, events: &[Event], names: &dyn Names) {
        for event in events {
            self.event(event, names);
        }
    }

    /// Takes events that the reader has counted and left out. To be called after the last event, and
    /// without a selection of time or CPUs.
    pub fn counted(&mut self, counted: &Counted) {
        if counted.events == 0 {
            return;
        }
        self.tracker
            .skip(counted.first_ns, counted.last_ns, counted.last_cpu);
        let sums = self.tracker.observer_mut();
        sums.events += counted.events;
        sums.counts.add_other(counted.name, counted.events);
    }

    /// So many events, given or counted, were earlier than one before them.
    pub const fn set_out_of_order(&mut self, events: u64) {
        self.tracker.set_out_of_order(events);
    }

    pub(crate) const fn sums(&self) -> &Sums {
        self.tracker.observer()
    }

    pub(crate) fn account(&self, vcpu: VcpuIndex) -> &Account {
        &self.sums().accounts[vcpu.index()]
    }

    pub(crate) fn thread_of(&self, vcpu: VcpuIndex) -> &Thread {
        self.tracker.thread_of(vcpu)
    }

    /// The number of a vCPU in its VM.
    pub(crate) fn id(&self, vcpu: VcpuIndex) -> u32 {
        self.tracker.vcpu(vcpu).id().0
    }

    /// The name of an exit reason as perf prints it. Reasons that perf calls `UNKNOWN` keep their
    /// number, and failed entries are distinct from exits.
    pub(crate) fn reason_name(&self, index: ReasonIndex) -> String {
        if index == ReasonIndex::NO_EXIT {
            return "(no exit seen)".to_owned();
        }
        let Some(reason) = self.tracker.reasons().get(index) else {
            return "(others)".to_owned();
        };
        match reason.name() {
            Some(name) if reason.is_failed_vmentry() => format!("{name} FAILED_VMENTRY"),
            Some(name) => name.to_owned(),
            None => format!("UNKNOWN({:#x})", reason.code),
        }
    }
}
