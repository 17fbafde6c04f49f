//! Values over time in bounded memory: buckets and instants that double in width as a recording grows.

/// Most buckets of a series. After the first doubling at least half of them are in use.
const BUCKETS: usize = 128;
/// log2 of the first width of a bucket, in ns: about 1 ms.
const BUCKET_SHIFT: u32 = 20;
/// Most instants at which states are sampled. The standard error of a share is below 1.6 points.
const INSTANTS: usize = 2048;
/// log2 of the first distance of two instants, in ns: about 0.26 ms.
const INSTANT_SHIFT: u32 = 18;
/// States in one word, of two bits each.
const PER_WORD: usize = 32;

/// Time in each bucket, from the begin of the selection on.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    shift: u32,
    sums: Vec<u64>,
    /// The latest time, which is not added yet: times that follow each other are added at once.
    pending: (u64, u64),
}

impl Default for Series {
    fn default() -> Self {
        Self {
            shift: BUCKET_SHIFT,
            sums: Vec::new(),
            pending: (0, 0),
        }
    }
}

impl Series {
    /// Adds the time from `start` to `end`, in ns since the begin.
    #[inline]
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        if start == self.pending.1 {
            self.pending.1 = end;
        } else {
            self.close();
            self.pending = (start, end);
        }
    }

    /// Adds what is pending: to be called before the sums are read.
    pub(crate) fn close(&mut self) {
        let (start, end) = std::mem::take(&mut self.pending);
        self.each_part(start, end, |sum, ns| *sum += ns);
    }

    /// Takes back such time.
    pub(crate) fn take_back(&mut self, start: u64, end: u64) {
        self.close();
        self.each_part(start, end, |sum, ns| *sum = sum.saturating_sub(ns));
    }

    fn each_part(&mut self, start: u64, end: u64, change: impl Fn(&mut u64, u64)) {
        if end <= start {
            return;
        }
        if (end - 1) >> self.shift >= BUCKETS as u64 {
            self.widen(Self::shift_for(end));
        }
        let mut begin = start;
        while begin < end {
            let bucket = begin >> self.shift;
            let top = (bucket << self.shift).saturating_add(1 << self.shift);
            let part_end = top.min(end);
            // Below BUCKETS, as the series is wide enough.
            let index = bucket as usize;
            if index >= self.sums.len() {
                self.sums.resize(index + 1, 0);
            }
            change(&mut self.sums[index], part_end - begin);
            begin = part_end;
        }
    }

    /// All time, in ns.
    pub(crate) fn total(&self) -> u64 {
        self.sums.iter().fold(0, |sum, ns| sum.saturating_add(*ns))
    }

    /// Buckets of this width, which is not below the series' own.
    #[cold]
    fn widen(&mut self, shift: u32) {
        debug_assert!(self.shift <= shift, "a series does not narrow");
        let doublings = shift.saturating_sub(self.shift);
        for index in 0..self.sums.len() {
            let sum = std::mem::take(&mut self.sums[index]);
            self.sums[index >> doublings] += sum;
        }
        self.sums.truncate(self.sums.len().div_ceil(1 << doublings));
        self.shift += doublings;
    }

    /// log2 of the width of its buckets, in ns.
    pub(crate) const fn shift(&self) -> u32 {
        self.shift
    }

    /// log2 of the width that covers `ns` in few enough buckets.
    pub(crate) const fn shift_for(ns: u64) -> u32 {
        let mut shift = BUCKET_SHIFT;
        while ns.saturating_sub(1) >> shift >= BUCKETS as u64 {
            shift += 1;
        }
        shift
    }

    /// The sums at this width, which is not below its own, in `buckets` buckets.
    pub(crate) fn at_width(&self, shift: u32, buckets: usize) -> Vec<u64> {
        let mut wide = self.clone();
        wide.widen(shift);
        wide.sums.resize(buckets, 0);
        wide.sums
    }
}

/// State of a vCPU at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sampled {
    /// Not known, or not alive.
    Unknown = 0,
    /// On a CPU.
    Running = 1,
    /// Runnable, not on a CPU.
    Waiting = 2,
    /// Asleep.
    Asleep = 3,
}

/// States at instants of equal distance. Instants of all vCPUs are the same, so that states of vCPUs can be
/// put together once it is known which are one VM. Distances are powers of two, which no tick or period is
/// a multiple of.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    shift: u32,
    /// The next instant, in ns since the begin: no span that ends before has an instant.
    next: u64,
    words: Vec<u64>,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            shift: INSTANT_SHIFT,
            next: 1 << INSTANT_SHIFT,
            words: Vec::new(),
        }
    }
}

impl Samples {
    /// The next instant, in ns since the begin.
    #[inline]
    pub(crate) const fn next(&self) -> u64 {
        self.next
    }

    /// The state after `start`, up to and with `end`, in ns since the begin.
    pub(crate) fn cover(&mut self, start: u64, end: u64, state: Sampled) {
        while end >> self.shift > INSTANTS as u64 {
            self.thin_out();
        }
        for instant in start >> self.shift..end >> self.shift {
            // At most INSTANTS, by the loop above.
            self.set(instant as usize, state);
        }
        let next = (end >> self.shift) + 1;
        self.next = next.checked_shl(self.shift).unwrap_or(u64::MAX);
    }

    fn set(&mut self, index: usize, state: Sampled) {
        let (word, place) = (index / PER_WORD, index % PER_WORD * 2);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let cleared = self.words[word] & !(3 << place);
        self.words[word] = cleared | (state as u64) << place;
    }

    fn get(&self, index: usize) -> u64 {
        let word = self.words.get(index / PER_WORD).copied().unwrap_or(0);
        word >> (index % PER_WORD * 2) & 3
    }

    /// Keeps each second instant: instant `n` of distance `d` is at `(n + 1) * d`.
    fn thin_out(&mut self) {
        let states: Vec<u64> = (0..self.words.len() * PER_WORD / 2)
            .map(|index| self.get(2 * index + 1))
            .collect();
        let word = |states: &[u64]| {
            let places = states.iter().enumerate();
            places.fold(0, |word, (place, state)| word | state << (2 * place))
        };
        self.words = states.chunks(PER_WORD).map(word).collect();
        self.shift += 1;
    }
}

/// How often the vCPUs of a VM were in each combination of states. The words are those of Xen's
/// `xenalyze` (`domain_runstate` in its source).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Combined {
    pub(crate) instants: u64,
    pub(crate) full_run: u64,
    pub(crate) partial_run: u64,
    pub(crate) concurrency_hazard: u64,
    pub(crate) full_contention: u64,
    pub(crate) partial_contention: u64,
    pub(crate) blocked: u64,
    pub(crate) unknown: u64,
}

impl Combined {
    /// The states of these vCPUs up to `end`, in ns since the begin.
    pub(crate) fn of<'a>(vcpus: impl Iterator<Item = &'a Samples> + Clone, end: u64) -> Self {
        let mut shift = vcpus.clone().map(|samples| samples.shift).max();
        let shift = shift.get_or_insert(INSTANT_SHIFT);
        while end >> *shift > INSTANTS as u64 {
            *shift += 1;
        }
        let mut combined = Self::default();
        let thinned: Vec<Samples> = vcpus
            .map(|samples| {
                let mut samples = samples.clone();
                while samples.shift < *shift {
                    samples.thin_out();
                }
                samples
            })
            .collect();
        for instant in 0..(end >> *shift) as usize {
            let mut states = [false; 4];
            for samples in &thinned {
                states[samples.get(instant) as usize] = true;
            }
            combined.count(states);
        }
        combined
    }

    /// Counts an instant: which states any vCPU was in.
    fn count(&mut self, states: [bool; 4]) {
        let [_, running, waiting, asleep] = states;
        self.instants += 1;
        let counter = match (running, waiting, asleep) {
            (true, true, _) => &mut self.concurrency_hazard,
            (true, false, true) => &mut self.partial_run,
            (true, false, false) => &mut self.full_run,
            (false, true, true) => &mut self.partial_contention,
            (false, true, false) => &mut self.full_contention,
            (false, false, true) => &mut self.blocked,
            (false, false, false) => &mut self.unknown,
        };
        *counter += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_keeps_its_sum_as_it_widens() {
        let mut series = Series::default();
        series.add(0, 500_000);
        series.add(1_000_000, 2_000_000);
        series.add(2_000_000, 3_000_000);
        series.close();
        assert_eq!(
            series.at_width(BUCKET_SHIFT, 3),
            [548_576, 1_048_576, 902_848]
        );
        assert_eq!(
            series.at_width(BUCKET_SHIFT + 1, 2),
            [548_576 + 1_048_576, 902_848]
        );
        series.add(10_000_000_000, 10_000_000_100);
        series.close();
        let shift = series.shift();
        assert!(10_000_000_000 >> shift < BUCKETS as u64);
        assert_eq!(
            series.at_width(shift, BUCKETS).iter().sum::<u64>(),
            2_500_100
        );
        series.take_back(1_000_000, 3_000_000);
        assert_eq!(series.at_width(shift, BUCKETS).iter().sum::<u64>(), 500_100);
        series.add(0, u64::MAX);
        series.close();
        assert_eq!(Series::shift_for(u64::MAX), series.shift());
    }

    #[test]
    fn instants_of_two_vcpus_are_the_same_however_far_each_is_known() {
        let distance = 1 << INSTANT_SHIFT;
        let (mut long, mut short) = (Samples::default(), Samples::default());
        long.cover(0, 10 * distance, Sampled::Running);
        long.cover(10 * distance, 8_000 * distance, Sampled::Asleep);
        short.cover(0, 12 * distance, Sampled::Waiting);
        let both = [&long, &short];
        let combined = Combined::of(both.into_iter(), 8_000 * distance);
        assert_eq!(combined.instants, 2_000);
        // Of the instants at 4, 8, 12…: two in the first 10, the third in the first 12.
        assert_eq!(combined.concurrency_hazard, 2);
        assert_eq!(combined.partial_contention, 1);
        assert_eq!(combined.blocked, 1_997);
    }

    #[test]
    fn a_series_widens_when_its_buckets_are_full() {
        let full = (BUCKETS as u64) << BUCKET_SHIFT;
        let mut series = Series::default();
        for (start, end, shift) in [(0, full, BUCKET_SHIFT), (full, full + 1, BUCKET_SHIFT + 1)] {
            series.add(start, end);
            series.close();
            assert_eq!(series.shift(), shift);
        }
    }

    #[test]
    fn instants_are_thinned_out_when_there_is_no_place() {
        let (distance, full) = (1 << INSTANT_SHIFT, (INSTANTS as u64) << INSTANT_SHIFT);
        let mut samples = Samples::default();
        // A later state takes the place of an earlier one.
        samples.cover(0, full, Sampled::Asleep);
        for (instant, start) in (0..full).step_by(distance as usize).enumerate() {
            let state = [
                Sampled::Running,
                Sampled::Waiting,
                Sampled::Running,
                Sampled::Asleep,
            ][instant % 4];
            samples.cover(start, start + distance, state);
            assert_eq!(samples.next(), start + 2 * distance);
        }
        let combined = |samples: &Samples| {
            let Combined {
                instants,
                full_run,
                full_contention,
                blocked,
                ..
            } = Combined::of([samples].into_iter(), full);
            [instants, full_run, full_contention, blocked]
        };
        assert_eq!(combined(&samples), [2048, 1024, 512, 512]);
        samples.cover(full, full + distance, Sampled::Running);
        assert_eq!(combined(&samples), [1024, 0, 512, 512]);
    }

    #[test]
    fn an_endless_clock_is_covered() {
        let mut samples = Samples::default();
        samples.cover(0, u64::MAX, Sampled::Asleep);
        samples.cover(u64::MAX, u64::MAX, Sampled::Running);
        let combined = Combined::of([&samples].into_iter(), u64::MAX);
        assert_eq!(combined.blocked, combined.instants);
    }
}
