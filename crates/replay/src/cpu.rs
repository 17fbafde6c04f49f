//! What a CPU of the recording does.

/// A CPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cpu {
    /// The task on it; 0 for the idle task, `None` before it is known.
    pub(crate) current: Option<i32>,
    /// The hrtimer whose callback runs.
    pub(crate) expiring: Option<u64>,
    /// Time of its last event.
    pub(crate) last: u64,
}

/// Latencies from wakeups to running on CPUs that were idle.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdleWakes {
    samples: Vec<u64>,
}

impl IdleWakes {
    /// No more than this many are kept.
    const MOST: usize = 100_000;

    pub(crate) fn add(&mut self, ns: u64) {
        if self.samples.len() < Self::MOST {
            self.samples.push(ns);
        }
    }

    /// The median; `None` without samples.
    pub(crate) fn median(&self) -> Option<u64> {
        let mut sorted = self.samples.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}
