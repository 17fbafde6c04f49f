//! One pass over events to answers: where guest time went.
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

pub mod answers;
mod clocks;
mod count;
mod cpu;
mod dispatch;
mod exits;
mod findings;
mod finish;
mod gaps;
mod guessed;
mod hash;
mod interrupts;
mod keys;
mod latency;
mod options;
mod polls;
mod ready;
mod split;
mod stats;
mod tables;
mod threads;
mod vcpu;
mod vms;
mod yields;

#[cfg(test)]
mod tests;

pub use answers::Answers;
pub use guessed::{shown_vm, shown_vm_in};
pub use options::{Options, Selection, Skip};
pub use split::{is_gone, is_runnable};
pub use threads::vcpu_in_name;

use hash::IntMap;

/// The analysis of one trace: events in, answers out.
#[derive(Debug)]
pub struct Analysis {
    options: Options,
    window: options::Window,
    /// Whether an event was seen.
    has_begun: bool,
    /// The first event's time.
    first: u64,
    /// The trace's time: the latest event's, never going back.
    now: u64,
    /// Events in the selection.
    events: u64,
    out_of_order: u64,
    /// The longest time without an event that is too long to be true, and when it began.
    silence: Option<(u64, u64)>,
    lost: u64,
    lost_gaps: u64,
    /// Losses so far, to tell whether there was one since.
    loss_count: u64,
    /// Whether a `sched_switch` was seen.
    has_sched: bool,
    /// A thread ran after `sched_waking` without a `sched_wakeup`: the trace has only the former.
    lacks_wakeups: bool,
    counts: count::Counts,
    threads: threads::Threads,
    cpus: Vec<cpu::Cpu>,
    vcpus: Vec<vcpu::Vcpu>,
    /// vCPUs by number.
    by_id: IntMap<u32, Vec<u32>>,
    reasons: exits::Reasons,
    keys: keys::Keys,
    timers: latency::Timers,
    /// Expiries of the timers of bandwidth limits.
    bandwidth_expiries: u64,
    throttling: latency::Throttling,
    links: vms::Links,
    clocks: clocks::Clocks,
}

impl Analysis {
    /// An analysis that has seen nothing yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            window: options::Window::default(),
            has_begun: false,
            first: 0,
            now: 0,
            events: 0,
            out_of_order: 0,
            silence: None,
            lost: 0,
            lost_gaps: 0,
            loss_count: 0,
            has_sched: false,
            lacks_wakeups: false,
            counts: count::Counts::default(),
            threads: threads::Threads::default(),
            cpus: Vec::new(),
            vcpus: Vec::new(),
            by_id: IntMap::default(),
            reasons: exits::Reasons::default(),
            keys: keys::Keys::default(),
            timers: latency::Timers::default(),
            bandwidth_expiries: 0,
            throttling: latency::Throttling::default(),
            links: vms::Links::default(),
            clocks: clocks::Clocks::default(),
        }
    }
}
