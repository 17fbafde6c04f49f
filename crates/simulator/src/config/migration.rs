//! A guest that is moved to another host.

/// How a guest's TSCs are carried over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ClockMethod {
    /// The counters' values are saved and written.
    Value,
    /// The offsets are computed by the formula in the kernel's documentation.
    Documented,
    /// The offsets are computed with scaled counters.
    #[default]
    Offset,
}

/// The clocks of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostClock {
    /// Nominal TSC frequency in kHz, at least 1.
    pub tsc_khz: u32,
    /// The TSC when the run begins.
    pub tsc_at_start: u64,
    /// How much faster than nominal the TSC runs, in parts per billion.
    pub drift_ppb: i32,
    /// How far the wall clock is ahead of true time, in ns (what NTP or PTP leaves).
    pub realtime_skew_ns: i64,
}

impl HostClock {
    /// A host that was started when the run began, exact in all things.
    #[must_use]
    pub const fn exact(tsc_khz: u32) -> Self {
        Self {
            tsc_khz,
            tsc_at_start: 0,
            drift_ppb: 0,
            realtime_skew_ns: 0,
        }
    }
}

/// A migration: when, where to, and how. The other host is a set of CPUs that has clocks of its
/// own; nothing else runs there unless it is configured so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationConfig {
    /// When the VMM begins to stop the guest, in ns.
    pub at_ns: u64,
    /// CPUs of the destination.
    pub to_cpus: Vec<u32>,
    /// How TSCs are carried over.
    pub method: ClockMethod,
    /// How long the state is under way, in ns.
    pub transfer_ns: u64,
    /// CPU time in which the VMM restores the machine's other state on the other host. What is to be
    /// written to counters is known before it, from what came over, and written after it.
    pub load_ns: u64,
    /// CPU time of the VMM for each ioctl and what is around it, in ns.
    pub step_ns: u64,
    /// The source's clocks.
    pub source: HostClock,
    /// The destination's clocks.
    pub destination: HostClock,
}
