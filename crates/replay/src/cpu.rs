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

/// Latencies from wakeups to running.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wakes {
    samples: Vec<u64>,
}

impl Wakes {
    /// No more than this many are kept.
    const MOST: usize = 100_000;

    pub(crate) fn add(&mut self, ns: u64) {
        if self.samples.len() < Self::MOST {
            self.samples.push(ns);
        }
    }

    /// The latency below which so many percent are; `None` with fewer than 20.
    pub(crate) fn percentile(&self, percent: usize) -> Option<u64> {
        if self.samples.len() < 20 {
            return None;
        }
        let mut sorted = self.samples.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() * percent / 100).copied()
    }
}
