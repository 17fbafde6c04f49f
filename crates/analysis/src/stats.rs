//! Statistics over durations: mean and deviation as perf computes them, and percentiles.

use crate::answers::KeyRow;

/// Bits of a value below its leading one that the histogram keeps: 1/1024 of the value.
const PRECISION_BITS: u32 = 10;
/// Counters of one page. Durations of one reason cluster, so pages are small.
const PAGE: usize = 64;

/// A histogram of 64-bit values whose bounds need not be known before. A value's bucket is within
/// 0.1 % of it.
///
/// Buckets are laid out as in an HDR histogram (linear within each power of two) but kept in pages
/// that are made when first used: an analysis keeps one for each reason of each vCPU thread, as it
/// learns only at the end which threads are one VM, and with a dense table that alone would be
/// 100 KB and more each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram {
    pages: Vec<Option<Box<[u64; PAGE]>>>,
    count: u64,
    max: u64,
}

const fn bucket_of(value: u64) -> usize {
    let bits = u64::BITS - value.leading_zeros();
    if bits <= PRECISION_BITS + 1 {
        return value as usize;
    }
    let shift = bits - (PRECISION_BITS + 1);
    ((shift as usize) << PRECISION_BITS) + (value >> shift) as usize
}

/// The largest value of a bucket.
const fn top_of(bucket: usize) -> u64 {
    let octave = bucket >> PRECISION_BITS;
    if octave <= 1 {
        return bucket as u64;
    }
    let shift = octave as u32 - 1;
    let low = (bucket & ((1 << PRECISION_BITS) - 1)) as u64 + (1 << PRECISION_BITS);
    // The width minus one is added last: the topmost bucket ends at u64::MAX.
    (low << shift) + ((1 << shift) - 1)
}

impl Histogram {
    /// Counts a value.
    pub(crate) fn record(&mut self, value: u64) {
        self.add(bucket_of(value), 1);
        self.max = self.max.max(value);
    }

    fn add(&mut self, bucket: usize, count: u64) {
        let page = bucket / PAGE;
        if page >= self.pages.len() {
            self.pages.resize(page + 1, None);
        }
        if let Some(slot) = self.pages.get_mut(page) {
            let counts = slot.get_or_insert_with(|| Box::new([0; PAGE]));
            counts[bucket % PAGE] += count;
        }
        self.count += count;
    }

    /// Adds all values of another.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (page, counts) in other.pages.iter().enumerate() {
            for (offset, &count) in counts.iter().flat_map(|counts| counts.iter().enumerate()) {
                if count > 0 {
                    self.add(page * PAGE + offset, count);
                }
            }
        }
        self.max = self.max.max(other.max);
    }

    /// How many values were counted.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// The largest value, exact.
    pub(crate) const fn max(&self) -> u64 {
        self.max
    }

    /// The value that `per_mille` of 1000 values do not exceed, 0 of no values: the top of the
    /// bucket in which it lies, at most the largest value.
    pub(crate) fn quantile(&self, per_mille: u64) -> u64 {
        let wanted = u128::from(self.count) * u128::from(per_mille);
        let rank = wanted.div_ceil(1000).max(1);
        let mut seen = 0u128;
        for (page, counts) in self.pages.iter().enumerate() {
            for (offset, &count) in counts.iter().flat_map(|counts| counts.iter().enumerate()) {
                seen += u128::from(count);
                if count > 0 && seen >= rank {
                    return top_of(page * PAGE + offset).min(self.max);
                }
            }
        }
        self.max
    }
}

/// Count, sum, extremes, running mean and sum of squared deviations (`update_stats` of perf).
#[derive(Debug, Clone)]
pub(crate) struct Stats {
    /// How many.
    pub(crate) n: u64,
    /// Their sum.
    pub(crate) sum: u64,
    min: u64,
    max: u64,
    mean: f64,
    m2: f64,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            n: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
            mean: 0.0,
            m2: 0.0,
        }
    }
}

impl Stats {
    /// Adds a value (Welford's method).
    pub(crate) fn record(&mut self, value: u64) {
        self.n += 1;
        self.sum = self.sum.saturating_add(value);
        let delta = value as f64 - self.mean;
        self.mean += delta / self.n as f64;
        self.m2 += delta * (value as f64 - self.mean);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds all values of another (Chan's method).
    pub(crate) fn merge(&mut self, other: &Self) {
        if other.n == 0 {
            return;
        }
        let (n, m) = (self.n as f64, other.n as f64);
        let delta = other.mean - self.mean;
        self.mean += delta * m / (n + m);
        self.m2 += other.m2 + delta * delta * n * m / (n + m);
        self.n += other.n;
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Standard error of the mean in percent of the mean: perf's `+-`.
    fn rel_stddev_percent(&self) -> f64 {
        if self.n < 2 || self.mean == 0.0 {
            return 0.0;
        }
        let n = self.n as f64;
        let error = (self.m2 / (n - 1.0) / n).sqrt();
        100.0 * error / self.mean
    }
}

/// A row of a table of durations.
#[derive(Debug, Clone, Default)]
pub(crate) struct Durations {
    /// What perf keeps.
    pub(crate) stats: Stats,
    histogram: Histogram,
}

impl Durations {
    /// Adds a duration in ns.
    pub(crate) fn record(&mut self, ns: u64) {
        self.stats.record(ns);
        self.histogram.record(ns);
    }

    /// Adds all durations of another.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.stats.merge(&other.stats);
        self.histogram.merge(&other.histogram);
    }

    /// The row, without percentages.
    pub(crate) fn row(&self, vm: &str, reason: &str) -> KeyRow {
        let stats = &self.stats;
        KeyRow {
            vm: vm.to_owned(),
            reason: reason.to_owned(),
            samples: stats.n,
            time_ns: stats.sum,
            min_ns: if stats.n == 0 { 0 } else { stats.min },
            max_ns: stats.max,
            avg_ns: ratio(stats.sum, stats.n),
            stddev_percent: stats.rel_stddev_percent(),
            p50_ns: self.histogram.quantile(500),
            p90_ns: self.histogram.quantile(900),
            p99_ns: self.histogram.quantile(990),
            p999_ns: self.histogram.quantile(999),
            ..KeyRow::default()
        }
    }
}

/// The sum of times of several vCPUs: a hostile trace can have more than 64 bits hold.
pub(crate) fn total(times: impl Iterator<Item = u64>) -> u64 {
    times.fold(0, u64::saturating_add)
}

/// A quotient, 0 where there is nothing to divide by.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Fills in the percentages of a table's rows and sorts it as perf does, by samples; ties by name.
pub(crate) fn finish_rows(rows: &mut [KeyRow]) {
    let samples = rows
        .iter()
        .fold(0u64, |sum, row| sum.saturating_add(row.samples));
    let time = rows
        .iter()
        .fold(0u64, |sum, row| sum.saturating_add(row.time_ns));
    for row in &mut *rows {
        row.samples_percent = 100.0 * ratio(row.samples, samples);
        row.time_percent = 100.0 * ratio(row.time_ns, time);
    }
    rows.sort_by(|a, b| {
        (b.samples.cmp(&a.samples))
            .then_with(|| a.vm.cmp(&b.vm))
            .then_with(|| a.reason.cmp(&b.reason))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_smallest_and_largest_values_have_buckets() {
        let mut histogram = Histogram::default();
        for value in [0, 1, 1023, 1024, 2047, 2048, u64::MAX] {
            assert!(top_of(bucket_of(value)) >= value, "{value}");
            histogram.record(value);
        }
        assert_eq!(histogram.quantile(1000), u64::MAX);
        assert_eq!(histogram.quantile(1), 0);
    }

    #[test]
    fn two_samples_have_the_deviation_that_perf_prints() {
        // perf's row of two hypercalls: 7518.16 us and 15673.95 us, mean 11596.06 us (+- 35.17 %).
        let mut durations = Durations::default();
        durations.record(7_518_160);
        durations.record(15_673_950);
        let row = durations.row("*", "hypercall");
        assert_eq!(format!("{:.2}", row.stddev_percent), "35.17");
        assert_eq!(row.min_ns, 7_518_160);
        assert_eq!(format!("{:.2}", row.avg_ns / 1000.0), "11596.06");
    }

    proptest! {
        #[test]
        fn a_bucket_is_within_a_thousandth(value in any::<u64>()) {
            let top = top_of(bucket_of(value));
            prop_assert!(top >= value);
            prop_assert!(top - value <= value / 1024);
        }

        #[test]
        fn quantiles_are_within_a_thousandth_of_the_sorted_value(
            mut values in proptest::collection::vec(0u64..10_000_000, 1..200),
            per_mille in 1u64..=1000,
        ) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|&value| histogram.record(value));
            values.sort_unstable();
            let rank = (values.len() as u64 * per_mille).div_ceil(1000).max(1) as usize;
            let exact = values[rank - 1];
            let got = histogram.quantile(per_mille);
            prop_assert!(got >= exact && got - exact <= exact / 1024, "{got} for {exact}");
        }

        #[test]
        fn merging_is_as_recording_all(
            left in proptest::collection::vec(0u64..1_000_000, 0..50),
            right in proptest::collection::vec(0u64..1_000_000, 0..50),
        ) {
            let (mut a, mut b, mut all) = <(Durations, Durations, Durations)>::default();
            for &value in &left { a.record(value); all.record(value); }
            for &value in &right { b.record(value); all.record(value); }
            a.merge(&b);
            let (merged, direct) = (a.row("*", "x"), all.row("*", "x"));
            prop_assert_eq!(
                (merged.samples, merged.time_ns, merged.min_ns, merged.max_ns, merged.p90_ns),
                (direct.samples, direct.time_ns, direct.min_ns, direct.max_ns, direct.p90_ns)
            );
            prop_assert!((merged.stddev_percent - direct.stddev_percent).abs() < 1e-6);
        }
    }
}
