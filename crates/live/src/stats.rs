//! `per_cpu/cpuN/stats`: what a ring buffer holds, has given and has lost.

/// Counters of one CPU's ring buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events that wait in the buffer.
    pub waiting: u64,
    /// Events that were read.
    pub read: u64,
    /// Events that were overwritten or dropped.
    pub lost: u64,
    /// Bytes that wait in the buffer.
    pub bytes: u64,
}

impl Stats {
    /// Reads the lines; a counter that the kernel does not print is 0.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(key));
            line.and_then(|value| value.trim().parse().ok())
        };
        let count = |key| value(key).unwrap_or(0);
        Self {
            waiting: count("entries:"),
            read: count("read events:"),
            lost: count("overrun:") + count("commit overrun:") + count("dropped events:"),
            bytes: count("bytes:"),
        }
    }

    /// Events that are kept.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.waiting + self.read
    }

    /// Sums over CPUs.
    pub(crate) const fn add(&mut self, stats: &Self) {
        self.waiting += stats.waiting;
        self.read += stats.read;
        self.lost += stats.lost;
        self.bytes += stats.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read() {
        let text = "entries: 177\noverrun: 3\ncommit overrun: 0\nbytes: 12036\n\
                    oldest event ts: 12201.052553\nnow ts: 12201.369748\ndropped events: 2\n\
                    read events: 40\n";
        let stats = Stats::parse(text);
        assert_eq!((stats.events(), stats.lost, stats.bytes), (217, 5, 12036));
        assert_eq!(Stats::parse(""), Stats::default());
    }
}
