//! Statistics over durations: mean and deviation as perf computes them, and percentiles.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::answers::KeyRow;

/// Bits of a value below its leading one that the histogram keeps: 1/1024 of the value.
const PRECISION_BITS: u32 = 10;
/// Counters of one page, which fill a line of the cache: durations of one reason cluster.
const PAGE: usize = 32;
/// Values that wait to be counted together.
const PENDING: usize = 32;

/// A histogram of any 64-bit values. A value's bucket is within 0.1 % of it.
///
/// Buckets are linear within each power of two, as in an HDR histogram, but kept in pages that are made
/// when first used. An analysis keeps one for each reason of each vCPU thread, because VMs are known only
/// at the end. A dense table would need 100 KB and more each. Counters are short for the same reason, and
/// carry.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram {
    /// For each page its place in `counters`, plus one; 0: not made yet.
    pages: Vec<u16>,
    counters: Vec<[u16; PAGE]>,
    /// By bucket, what its counter has overflowed by.
    carried: BTreeMap<u32, u64>,
    /// Buckets of the values that wait, and how many do. Counters are seldom in the cache, and the
    /// loads of several at once take little longer than that of one.
    pending: [u16; PENDING],
    waiting: u8,
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

/// Bits of a bound below its leading one that can be 0.
const BOUND_BITS: u32 = 7;

/// The bound of a value: the largest one with the same leading 8 bits.
const fn bound_of(value: u64) -> u64 {
    let bits = u64::BITS - value.leading_zeros();
    match bits.checked_sub(BOUND_BITS + 1) {
        Some(shift) => value | ((1 << shift) - 1),
        None => value,
    }
}

impl Histogram {
    /// Counts a value.
    #[inline]
    pub(crate) fn record(&mut self, value: u64) {
        self.count += 1;
        self.max = self.max.max(value);
        if let Some(place) = self.pending.get_mut(usize::from(self.waiting)) {
            // The last of all buckets is 54 << 10 | 1023.
            *place = bucket_of(value) as u16;
            self.waiting += 1;
        }
        if usize::from(self.waiting) >= PENDING {
            self.flush();
        }
    }

    fn waiting(&self) -> &[u16] {
        let waiting = self.pending.get(..usize::from(self.waiting));
        waiting.unwrap_or_default()
    }

    fn flush(&mut self) {
        let pending = self.pending;
        for bucket in pending.iter().take(usize::from(self.waiting)) {
            self.add(usize::from(*bucket));
        }
        self.waiting = 0;
    }

    /// Adds one to a bucket's counter, not to the count.
    #[inline]
    fn add(&mut self, bucket: usize) {
        let counter = &mut self.page(bucket / PAGE)[bucket % PAGE];
        *counter = counter.wrapping_add(1);
        if *counter == 0 {
            self.carry(bucket);
        }
    }

    /// A bucket's counter has overflowed.
    #[cold]
    fn carry(&mut self, bucket: usize) {
        *self.carried.entry(bucket as u32).or_default() += 1 << u16::BITS;
    }

    /// The counters of a page, which is made if there is none.
    #[inline]
    fn page(&mut self, page: usize) -> &mut [u16; PAGE] {
        let place = match self.pages.get(page) {
            Some(&place) if place > 0 => usize::from(place),
            _ => self.make(page),
        };
        &mut self.counters[place - 1]
    }

    /// Makes a page. There are fewer pages than 16 bits can number: 55 << 5 at [`PAGE`] counters.
    #[cold]
    fn make(&mut self, page: usize) -> usize {
        if page >= self.pages.len() {
            self.pages.resize(page + 1, 0);
        }
        self.counters.push([0; PAGE]);
        let place = self.counters.len();
        if let Some(known) = self.pages.get_mut(page) {
            *known = place as u16;
        }
        place
    }

    /// The pages with their numbers, in ascending order.
    fn each_page(&self) -> impl Iterator<Item = (usize, &[u16; PAGE])> {
        self.pages.iter().enumerate().filter_map(|(page, &place)| {
            let place = usize::from(place).checked_sub(1)?;
            Some((page, self.counters.get(place)?))
        })
    }

    /// The buckets of a page and how many values are counted in them, without those of none.
    fn buckets(&self, page: usize, counters: &[u16; PAGE]) -> impl Iterator<Item = (usize, u64)> {
        let counters = counters.iter().enumerate().map(move |(offset, &counter)| {
            let bucket = page * PAGE + offset;
            (
                bucket,
                u64::from(counter) + self.carried_of(bucket..bucket + 1),
            )
        });
        counters.filter(|(_, count)| *count > 0)
    }

    /// By how much the counters of some buckets have overflowed.
    fn carried_of(&self, buckets: Range<usize>) -> u64 {
        if self.carried.is_empty() {
            return 0;
        }
        let buckets = buckets.start as u32..buckets.end as u32;
        self.carried.range(buckets).map(|(_, count)| *count).sum()
    }

    /// Adds all values of another.
    pub(crate) fn merge(&mut self, source: &Self) {
        for (page, counters) in source.each_page() {
            let mut overflows = [false; PAGE];
            let sums = self.page(page).iter_mut().zip(counters);
            // Without a branch for each counter: most are 0.
            for ((sum, counter), has_overflowed) in sums.zip(&mut overflows) {
                (*sum, *has_overflowed) = sum.overflowing_add(*counter);
            }
            if overflows != [false; PAGE] {
                let overflowed = (0..PAGE).zip(overflows).filter(|(_, overflow)| *overflow);
                overflowed.for_each(|(offset, _)| self.carry(page * PAGE + offset));
            }
        }
        for (bucket, count) in &source.carried {
            *self.carried.entry(*bucket).or_default() += count;
        }
        for bucket in source.waiting() {
            self.add(usize::from(*bucket));
        }
        self.count += source.count;
        self.max = self.max.max(source.max);
    }

    /// How many values were counted.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// The largest value, exact.
    pub(crate) const fn max(&self) -> u64 {
        self.max
    }

    /// How many values there are up to each bound and above the one before it, without those of none. Bounds
    /// are within 1/128 of the values, and the same in every histogram.
    pub(crate) fn bounds(&self) -> Vec<(u64, u64)> {
        let mut flushed = self.clone();
        flushed.flush();
        let mut bounds: Vec<(u64, u64)> = Vec::new();
        let pages = flushed.each_page();
        for (bucket, count) in pages.flat_map(|(page, counters)| flushed.buckets(page, counters)) {
            let bound = bound_of(top_of(bucket));
            match bounds.last_mut() {
                Some((last, sum)) if *last == bound => *sum += count,
                _ => bounds.push((bound, count)),
            }
        }
        bounds
    }

    /// The value that `per_mille` of 1000 values do not exceed; 0 without values. It is the top of its
    /// bucket, at most the largest value.
    pub(crate) fn quantile(&self, per_mille: u64) -> u64 {
        self.quantiles([per_mille])[0]
    }

    /// The same for several, which must ascend.
    fn quantiles<const N: usize>(&self, per_mille: [u64; N]) -> [u64; N] {
        if self.waiting > 0 {
            let mut flushed = self.clone();
            flushed.flush();
            return flushed.quantiles(per_mille);
        }
        let ranks = per_mille.map(|per_mille| {
            let wanted = u128::from(self.count) * u128::from(per_mille);
            wanted.div_ceil(1000).max(1)
        });
        let mut values = [self.max; N];
        let mut pairs = values.iter_mut().zip(ranks).peekable();
        let mut cumulated = 0u128;
        for (page, counters) in self.each_page() {
            let Some(&(_, rank)) = pairs.peek() else {
                break;
            };
            let counted: u64 = counters.iter().map(|counter| u64::from(*counter)).sum();
            let counted = counted + self.carried_of(page * PAGE..(page + 1) * PAGE);
            if cumulated + u128::from(counted) < rank {
                cumulated += u128::from(counted);
                continue;
            }
            for (bucket, count) in self.buckets(page, counters) {
                cumulated += u128::from(count);
                while let Some((value, _)) = pairs.next_if(|(_, rank)| cumulated >= *rank) {
                    *value = top_of(bucket).min(self.max);
                }
            }
        }
        values
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
    pub(crate) fn merge(&mut self, source: &Self) {
        if source.n == 0 {
            return;
        }
        let (n, m) = (self.n as f64, source.n as f64);
        let delta = source.mean - self.mean;
        self.mean += delta * m / (n + m);
        self.m2 += source.m2 + delta * delta * n * m / (n + m);
        self.n += source.n;
        self.sum = self.sum.saturating_add(source.sum);
        self.min = self.min.min(source.min);
        self.max = self.max.max(source.max);
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
    pub(crate) histogram: Histogram,
}

impl Durations {
    /// Adds a duration in ns.
    pub(crate) fn record(&mut self, ns: u64) {
        self.stats.record(ns);
        self.histogram.record(ns);
    }

    /// Adds all durations of another.
    pub(crate) fn merge(&mut self, source: &Self) {
        self.stats.merge(&source.stats);
        self.histogram.merge(&source.histogram);
    }

    /// The row, without percentages.
    pub(crate) fn row(&self, vm: &str, reason: &str) -> KeyRow {
        let stats = &self.stats;
        let [p50_ns, p90_ns, p99_ns, p999_ns] = self.histogram.quantiles([500, 900, 990, 999]);
        KeyRow {
            vm: vm.to_owned(),
            reason: reason.to_owned(),
            samples: stats.n,
            time_ns: stats.sum,
            min_ns: if stats.n == 0 { 0 } else { stats.min },
            max_ns: stats.max,
            avg_ns: ratio(stats.sum, stats.n),
            stddev_percent: stats.rel_stddev_percent(),
            p50_ns,
            p90_ns,
            p99_ns,
            p999_ns,
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
            assert!(bucket_of(value) <= usize::from(u16::MAX), "{value}");
            histogram.record(value);
        }
        assert_eq!(histogram.quantile(1000), u64::MAX);
        assert_eq!(histogram.quantile(1), 0);
    }

    #[test]
    fn more_values_than_a_counter_holds_are_counted() {
        let mut histogram = Histogram::default();
        for _ in 0..200_000 {
            histogram.record(7);
        }
        (0..100_001).for_each(|_| histogram.record(9));
        let mut twice = histogram.clone();
        twice.merge(&histogram);
        for (histogram, times) in [(&histogram, 1), (&twice, 2)] {
            assert_eq!(histogram.count(), 300_001 * times);
            let mut all = histogram.clone();
            all.flush();
            let pages = all.each_page();
            let counts: Vec<_> = pages
                .flat_map(|(page, counters)| all.buckets(page, counters))
                .collect();
            assert_eq!(counts, [(7, 200_000 * times), (9, 100_001 * times)]);
            assert_eq!(histogram.quantiles([1, 600, 700, 1000]), [7, 7, 9, 9]);
        }
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

    #[test]
    fn the_error_of_the_mean_shrinks_with_samples() {
        // Mean 200, sample deviation 100: its part by the root of three is 28.87 % of the mean.
        let mut durations = Durations::default();
        for ns in [100, 200, 300] {
            durations.record(ns);
        }
        let row = durations.row("*", "hypercall");
        assert_eq!(format!("{:.2}", row.stddev_percent), "28.87");
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
        fn bounds_hold_all_values_and_add_up(
            values in proptest::collection::vec(any::<u64>().prop_map(|v| v >> (v % 64)), 1..200),
        ) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|&value| histogram.record(value));
            let bounds = histogram.bounds();
            prop_assert!(bounds.is_sorted_by(|a, b| a.0 < b.0), "{bounds:?}");
            let mut expected = BTreeMap::<u64, u64>::new();
            for &value in &values {
                let bound = bound_of(value);
                prop_assert!(bound >= value && bound - value <= value / 128, "{bound} for {value}");
                *expected.entry(bound).or_default() += 1;
            }
            prop_assert_eq!(bounds, expected.into_iter().collect::<Vec<_>>());
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
