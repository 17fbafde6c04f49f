//! Errors of many restores in a row.

/// Restores: `GUEST_CLOCK_CYCLES`, which a kernel's command line can set for its first process.
pub fn cycles() -> u32 {
    let wanted = std::env::var("GUEST_CLOCK_CYCLES").ok();
    wanted.map_or(200, |text| text.parse().unwrap())
}

/// Errors of restores in a row, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drift {
    sum: i64,
    furthest: i64,
    largest: i64,
    count: u32,
    since: i64,
    largest_bound: u64,
}

impl Drift {
    /// One more, which may be off by `bound_ns`.
    pub fn add(&mut self, off_ns: i64, bound_ns: u64) {
        assert!(
            off_ns.unsigned_abs() <= bound_ns,
            "{off_ns} ns off, bound {bound_ns} ns"
        );
        self.sum += off_ns;
        self.largest = self.largest.max(off_ns.abs());
        self.largest_bound = self.largest_bound.max(bound_ns);
        self.count += 1;
        if self.count.is_multiple_of(1000) {
            self.furthest = self.furthest.max((self.sum - self.since).abs());
            self.since = self.sum;
        }
    }

    /// Prints the account, and checks that a thousand restores drift by less than 10 us.
    pub fn judge(&self, clock: &str) {
        println!(
            "  {clock}: {} restores, each off by at most {} ns (largest bound {} ns), all together {} ns, \
             a thousand at most {} ns",
            self.count, self.largest, self.largest_bound, self.sum, self.furthest
        );
        let furthest = self.furthest.max((self.sum - self.since).abs());
        assert!(furthest < 10_000, "{self:?}");
    }
}
