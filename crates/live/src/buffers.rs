//! Sizes of the ring buffers.

use std::path::Path;
use std::time::Duration;

/// KiB of each CPU's buffer at first, if memory allows: one second of 60,000 events.
const FIRST_KB: u64 = 4096;
/// The smallest buffer in KiB.
const LEAST_KB: u64 = 512;
/// The share of the available memory that all buffers together take at first, and at most.
const FIRST_SHARE: u64 = 16;
const LARGEST_SHARE: u64 = 8;
/// A buffer holds the events of so many seconds at the rate of the busiest CPU.
const SECONDS: u64 = 4;

/// Sizes in KiB of the buffer of one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) now_kb: u64,
    pub(crate) limit_kb: u64,
}

impl Sizes {
    /// Sizes for so many CPUs; `asked` by the user stays as it is.
    pub(crate) fn new(available_kb: u64, cpus: u64, asked_kb: Option<u64>) -> Self {
        if let Some(kb) = asked_kb {
            return Self {
                now_kb: kb,
                limit_kb: kb,
            };
        }
        let share = |share: u64| (available_kb / share / cpus.max(1)).max(LEAST_KB);
        let limit_kb = share(LARGEST_SHARE);
        Self {
            now_kb: FIRST_KB.min(share(FIRST_SHARE)).min(limit_kb),
            limit_kb,
        }
    }

    /// The size for a buffer that is too small, by the bytes that a CPU got in this time. It is too small if
    /// half of it was filled, or events were lost.
    pub(crate) fn grown(self, bytes: u64, lost: u64, elapsed: Duration) -> Option<Self> {
        let held = self.now_kb * 1024;
        let is_small = lost > 0 || bytes > held / 2;
        if !is_small || self.now_kb >= self.limit_kb {
            return None;
        }
        let elapsed_ms = (elapsed.as_millis() as u64).max(1);
        let rate = bytes.saturating_mul(1000) / elapsed_ms;
        let wanted_kb = (rate / 1024).saturating_mul(SECONDS);
        let now_kb = wanted_kb.max(self.now_kb * 2).min(self.limit_kb);
        Some(Self { now_kb, ..self })
    }
}

/// `MemAvailable` of /proc/meminfo in KiB.
pub(crate) fn available_kb(proc_root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(proc_root.join("meminfo")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_rate_of_the_first_second_decides() {
        let sizes = Sizes::new(16 << 20, 2, None);
        assert_eq!((sizes.now_kb, sizes.limit_kb), (4096, 1 << 20));
        assert_eq!(sizes.grown(1 << 20, 0, SECOND), None);
        // 3 MiB a second for four seconds.
        let grown = sizes.grown(3 << 20, 0, SECOND).expect("half is passed");
        assert_eq!(grown.now_kb, 12 << 10);
        // The same within a fifth of a second.
        let grown = sizes.grown(3 << 20, 0, SECOND / 5).expect("half is passed");
        assert_eq!(grown.now_kb, 60 << 10);
        // A loss: what was lost is not known in bytes.
        assert_eq!(sizes.grown(9, 1, SECOND).expect("a loss").now_kb, 8 << 10);
    }

    #[test]
    fn memory_is_the_limit() {
        // 1 GiB available, 256 CPUs.
        let sizes = Sizes::new(1 << 20, 256, None);
        assert_eq!((sizes.now_kb, sizes.limit_kb), (512, 512));
        assert_eq!(sizes.grown(1 << 30, 5, SECOND), None);
        let asked = Sizes::new(1 << 20, 256, Some(9_000));
        assert_eq!(
            (asked.now_kb, asked.grown(1 << 30, 5, SECOND)),
            (9_000, None)
        );
    }
}
