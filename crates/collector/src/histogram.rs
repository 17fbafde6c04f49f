//! Percentiles of one interval, in little memory: there is a histogram for each vCPU.

/// Bits of a value below its leading one that are kept: a bucket is as wide as 1/128 of its values.
const PRECISION_BITS: u32 = 7;

/// Edges of the classes in which waits are counted over time, in ns. Each value is in the first class with an
/// edge that it does not exceed; larger ones are in a class behind the last.
pub const EDGES_NS: [u64; 11] = [
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
];

/// How many values there are in each class of [`EDGES_NS`], and their sum in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Classes {
    /// Numbers of values.
    pub counts: [u64; EDGES_NS.len() + 1],
    /// Sum of all values, in ns.
    pub sum_ns: u64,
}

impl Classes {
    /// Counts a value.
    pub(crate) fn record(&mut self, ns: u64) {
        let class = EDGES_NS.iter().take_while(|&&edge| ns > edge).count();
        if let Some(count) = self.counts.get_mut(class) {
            *count += 1;
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Adds those of another.
    pub fn add(&mut self, added: &Self) {
        let counts = self.counts.iter_mut().zip(added.counts);
        counts.for_each(|(sum, count)| *sum += count);
        self.sum_ns = self.sum_ns.saturating_add(added.sum_ns);
    }

    /// How many values there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Numbers of values by buckets of time. Bucket `n` ends at 2^(n/8) s, and begins where `n - 1` ends. These
/// are the buckets of Prometheus's native histograms with schema 3. The edges are within 0.4 %.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buckets {
    /// Those with values, ascending.
    counts: Vec<(i32, u64)>,
}

impl Buckets {
    /// Buckets with values, ascending, and their numbers.
    #[must_use]
    pub fn counts(&self) -> &[(i32, u64)] {
        &self.counts
    }

    /// How many values there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// Adds those of another.
    pub fn add(&mut self, added: &Self) {
        self.extend(added.counts.iter().copied());
    }
}

impl Extend<(i32, u64)> for Buckets {
    fn extend<T: IntoIterator<Item = (i32, u64)>>(&mut self, added: T) {
        for (bucket, count) in added {
            match self.counts.binary_search_by_key(&bucket, |entry| entry.0) {
                Ok(found) => self.counts[found].1 += count,
                Err(position) => self.counts.insert(position, (bucket, count)),
            }
        }
    }
}

impl FromIterator<(i32, u64)> for Buckets {
    fn from_iter<T: IntoIterator<Item = (i32, u64)>>(counts: T) -> Self {
        let mut buckets = Self::default();
        buckets.extend(counts);
        buckets
    }
}

/// A histogram of 64-bit values. Quantiles are within 0.4 %, the largest value is exact.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram {
    /// Buckets with values, ascending, and their numbers.
    buckets: Vec<(u16, u32)>,
    count: u64,
    max: u64,
}

/// The bucket of a value; below 2^16, as there are 64 - 7 octaves of 128.
const fn bucket_of(value: u64) -> u16 {
    let bits = u64::BITS - value.leading_zeros();
    if bits <= PRECISION_BITS + 1 {
        return value as u16;
    }
    let shift = bits - (PRECISION_BITS + 1);
    ((shift << PRECISION_BITS) + (value >> shift) as u32) as u16
}

/// The value in the middle of a bucket.
const fn middle_of(bucket: u16) -> u64 {
    let octave = (bucket >> PRECISION_BITS) as u32;
    if octave <= 1 {
        return bucket as u64;
    }
    let shift = octave - 1;
    let low = (bucket & ((1 << PRECISION_BITS) - 1)) as u64 + (1 << PRECISION_BITS);
    (low << shift) + (1 << shift) / 2
}

impl Histogram {
    /// Counts a value.
    pub(crate) fn record(&mut self, value: u64) {
        self.add(bucket_of(value), 1);
        self.count += 1;
        self.max = self.max.max(value);
    }

    fn add(&mut self, bucket: u16, count: u32) {
        match self.buckets.binary_search_by_key(&bucket, |entry| entry.0) {
            Ok(found) => {
                if let Some(entry) = self.buckets.get_mut(found) {
                    entry.1 = entry.1.saturating_add(count);
                }
            }
            Err(position) => self.buckets.insert(position, (bucket, count)),
        }
    }

    /// Adds all values of another.
    pub(crate) fn merge(&mut self, added: &Self) {
        for &(bucket, count) in &added.buckets {
            self.add(bucket, count);
        }
        self.count += added.count;
        self.max = self.max.max(added.max);
    }

    /// Its values in ns by buckets of time.
    pub(crate) fn buckets(&self) -> Buckets {
        let number = |ns: u64| ((ns.max(1) as f64 / 1e9).log2() * 8.0).ceil() as i32;
        let mut buckets = Buckets::default();
        let mut end = 0;
        for &(bucket, count) in &self.buckets {
            let ns = middle_of(bucket);
            // Those of the histogram ascend, and are finer: most are in the bucket of the one before.
            match buckets.counts.last_mut().filter(|_| ns <= end) {
                Some((_, sum)) => *sum += u64::from(count),
                None => {
                    let number = number(ns);
                    end = ((f64::from(number) / 8.0).exp2() * 1e9) as u64;
                    buckets.counts.push((number, count.into()));
                }
            }
        }
        buckets
    }

    /// Forgets all values, and keeps the room for them.
    pub(crate) fn clear(&mut self) {
        self.buckets.clear();
        (self.count, self.max) = (0, 0);
    }

    /// How many values were counted.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// The largest value; 0 without values.
    pub(crate) const fn max(&self) -> u64 {
        self.max
    }

    /// The value that `per_mille` of 1000 values do not exceed; 0 without values.
    pub(crate) fn quantile(&self, per_mille: u64) -> u64 {
        let wanted = u128::from(self.count) * u128::from(per_mille);
        let rank = wanted.div_ceil(1000).max(1);
        let mut cumulated = 0_u128;
        for &(bucket, count) in &self.buckets {
            cumulated += u128::from(count);
            if cumulated >= rank {
                return middle_of(bucket).min(self.max);
            }
        }
        self.max
    }
}

/// Values that [`Distribution`] keeps as they are.
const RECENT: usize = 6;

/// Values as a histogram and by classes. The latest ones are kept apart. So most values touch one line of a
/// cache, instead of four or more.
#[derive(Debug, Clone, Default)]
pub(crate) struct Distribution {
    recent: [u64; RECENT],
    used: usize,
    histogram: Histogram,
    classes: Classes,
}

impl Distribution {
    /// Counts a value.
    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        if self.used >= RECENT {
            self.settle();
        }
        if let Some(slot) = self.recent.get_mut(self.used) {
            *slot = ns;
            self.used += 1;
        }
    }

    /// Counts the latest values: to be called before the others.
    pub(crate) fn settle(&mut self) {
        for &ns in self.recent.iter().take(self.used) {
            self.histogram.record(ns);
            self.classes.record(ns);
        }
        self.used = 0;
    }

    /// All values that are settled.
    pub(crate) fn histogram(&self) -> &Histogram {
        debug_assert_eq!(self.used, 0, "not settled");
        &self.histogram
    }

    /// The same by classes.
    pub(crate) fn classes(&self) -> &Classes {
        debug_assert_eq!(self.used, 0, "not settled");
        &self.classes
    }

    /// Adds all values of another, which is settled.
    pub(crate) fn add(&mut self, added: &Self) {
        self.histogram.merge(added.histogram());
        self.classes.add(added.classes());
    }

    /// Forgets all values, and keeps the room for them.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
        self.histogram.clear();
        self.classes = Classes::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_has_all_values_once_it_is_settled() {
        let (mut all, mut one) = (Distribution::default(), Distribution::default());
        for value in 0..100 {
            one.record(value * 10_000);
        }
        one.settle();
        one.settle();
        all.add(&one);
        all.add(&one);
        assert_eq!((all.histogram().count(), all.classes().count()), (200, 200));
        assert_eq!(all.histogram().max(), 990_000);
        assert_eq!(all.classes().counts[0], 4);
        all.clear();
        assert_eq!((all.histogram().count(), all.classes().sum_ns), (0, 0));
    }

    #[test]
    fn quantiles_are_within_half_a_percent() {
        let mut histogram = Histogram::default();
        for value in 1..=100_000_u64 {
            histogram.record(value * 37);
        }
        for per_mille in [500, 900, 990, 999] {
            let exact = (per_mille * 100 * 37) as f64;
            let error = (histogram.quantile(per_mille) as f64 - exact).abs() / exact;
            assert!(error < 0.005, "{per_mille}: {error}");
        }
        assert_eq!(histogram.max(), 3_700_000);
        assert_eq!(histogram.count(), 100_000);
        histogram.clear();
        assert_eq!(histogram.quantile(990), 0);
        histogram.record(u64::MAX);
        histogram.record(0);
        assert_eq!(histogram.quantile(500), 0);
        assert!(histogram.quantile(1000) > u64::MAX / 256 * 255);
    }

    #[test]
    fn buckets_end_at_powers_of_an_eighth() {
        let mut histogram = Histogram::default();
        for ns in [
            0,
            1_000_000_000,
            999_000_000,
            950_000_000,
            1_050_000_000,
            1_100_000_000,
        ] {
            histogram.record(ns);
        }
        // 2^(-1/8) s is 917 ms, 2^(1/8) s is 1,091 ms. What is 0 counts as 1 ns.
        let mut buckets = histogram.buckets();
        // 999 ms and 1 s are in one bucket of the histogram, of which the middle is above 1 s.
        assert_eq!(buckets.counts(), [(-239, 1), (0, 1), (1, 3), (2, 1)]);
        let mut added = Histogram::default();
        for ns in [1_000, 930_000_000, 1_000] {
            added.record(ns);
        }
        buckets.add(&added.buckets());
        assert_eq!(
            buckets.counts(),
            [(-239, 1), (-159, 2), (0, 2), (1, 3), (2, 1)]
        );
        assert_eq!(buckets.count(), 9);
    }

    #[test]
    fn a_value_on_an_edge_is_below_it() {
        let mut classes = Classes::default();
        for ns in [0, 10_000, 10_001, 1_000_000_000, 1_000_000_001] {
            classes.record(ns);
        }
        assert_eq!(
            (classes.counts[0], classes.counts[1], classes.counts[10]),
            (2, 1, 1)
        );
        assert_eq!((classes.counts[11], classes.count()), (1, 5));
    }
}
