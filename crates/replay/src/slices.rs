//! For how long slice timers are set: it shows which tasks compete, where times alone do not.
//!
//! A slice timer is set for what is left of the running task's own slice. With cgroups its slice is not
//! updated when a task of another group wakes (`hrtick_start_fair` in the kernel's `sched/fair.c`). So its
//! timer is set for another time.

use std::collections::{BTreeMap, BTreeSet};

use stealtime_events::{Event, Kind, NameId};
use stealtime_simulator::{NameList, Sink};
use stealtime_track::LONGEST_SLICE_NS;

use crate::decisions::Watcher;
use crate::watch::WakeLatencies;

/// The function of slice timers.
const SLICE_TIMER: &str = "hrtick";
/// Fewer timers than this say nothing.
const LEAST: u64 = 100;
/// Timers for a whole slice are shorter than it by less than one in so many.
const ONE_IN_PASSED: u64 = 20;
/// Steps of the histogram to a doubling of the time.
const STEPS: u64 = 4;

/// Times for which slice timers were set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceTimers {
    /// How many, by the logarithm of the time.
    counts: BTreeMap<u64, u64>,
    /// How many, by the time in us.
    exact: BTreeMap<u64, u64>,
}

impl SliceTimers {
    /// A slice timer is set to expire after so many ns.
    pub(crate) fn set(&mut self, ns: u64) {
        if ns < LONGEST_SLICE_NS {
            *self.exact.entry((ns + 500) / 1_000).or_default() += 1;
        }
        let micros = (ns / 1_000).max(STEPS);
        let doublings = u64::from(micros.ilog2());
        let quarter = (micros >> (doublings - 2)) % STEPS;
        *self.counts.entry(doublings * STEPS + quarter).or_default() += 1;
    }

    /// What a whole slice is, in ns, to within a hundredth: most timers are set for one, but for what passed
    /// since it began. `None` with too few.
    #[must_use]
    pub fn whole_ns(&self) -> Option<u64> {
        let total: u64 = self.exact.values().sum();
        let (mut near, mut largest, mut whole) = (0, 0, 0);
        let mut shortest = self.exact.iter().peekable();
        for (&micros, n) in &self.exact {
            near += n;
            while let Some((_, n)) =
                shortest.next_if(|(least, _)| *least + micros / ONE_IN_PASSED < micros)
            {
                near -= n;
            }
            if near > largest {
                (largest, whole) = (near, micros);
            }
        }
        (total >= LEAST && largest * 3 >= total).then_some(whole * 1_000)
    }

    /// How much of them would have to be set otherwise to be like `compared`, in permille of all;
    /// `None` with too few.
    #[must_use]
    pub fn apart_permille(&self, compared: &Self) -> Option<u64> {
        let total = |timers: &Self| timers.counts.values().sum::<u64>();
        let (own_total, compared_total) = (total(self), total(compared));
        if own_total < LEAST || compared_total < LEAST {
            return None;
        }
        let permille = |timers: &Self, bucket, total| {
            let count = timers.counts.get(&bucket);
            count.map_or(0, |n| n * 1_000 / total)
        };
        let buckets = self.counts.keys().chain(compared.counts.keys());
        let buckets: BTreeSet<u64> = buckets.copied().collect();
        let apart = buckets.iter().map(|&bucket| {
            permille(self, bucket, own_total).abs_diff(permille(compared, bucket, compared_total))
        });
        Some(apart.sum::<u64>() / 2)
    }
}

/// What is watched in a replay.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) wakes: WakeLatencies,
    pub(crate) wakeups: Watcher,
    pub(crate) slices: SliceTimers,
    /// What slice timers call.
    function: Option<NameId>,
}

impl Sink for Watch {
    fn begin(&mut self, names: &NameList, _: u32) {
        self.function = Some(names.clone().add(SLICE_TIMER));
    }

    fn event(&mut self, event: &Event) {
        self.wakes.take(event);
        self.wakeups.take(event);
        match event.kind {
            Kind::HrtimerStart {
                expires_ns,
                function,
                ..
            } if Some(function) == self.function => {
                self.slices.set(expires_ns.saturating_sub(event.time_ns));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use stealtime_events::{Context, CpuId, Tid};

    use super::*;

    fn timers(times: impl Iterator<Item = u64>) -> SliceTimers {
        let mut timers = SliceTimers::default();
        times.for_each(|ns| timers.set(ns));
        timers
    }

    #[test]
    fn most_timers_are_set_for_a_whole_slice() {
        let parts = (0..150).map(|n| 10_000 + n * 8_000);
        let whole = (0..150).map(|n| 1_400_000 - n * 300);
        // A deadline server's, which is no slice's.
        let long = core::iter::repeat_n(948_000_000, 200);
        let mixed = timers(parts.clone().chain(whole).chain(long));
        assert_eq!(mixed.whole_ns(), Some(1_400_000));
        assert_eq!(timers(parts).whole_ns(), None);
        assert_eq!(timers([6_000_000; 40].into_iter()).whole_ns(), None);
    }

    #[test]
    fn as_many_are_apart_as_are_set_otherwise() {
        let full = timers(core::iter::repeat_n(700_000, 400));
        assert_eq!(full.apart_permille(&full), Some(0));
        let doubled = timers(core::iter::repeat_n(1_400_000, 400));
        assert_eq!(full.apart_permille(&doubled), Some(1_000));
        let quarter = timers((0..400).map(|n| if n % 4 == 0 { 12_000 } else { 700_000 }));
        assert_eq!(full.apart_permille(&quarter), Some(250));
        // However many there are.
        let half_as_many = timers(core::iter::repeat_n(710_000, 200));
        assert_eq!(full.apart_permille(&half_as_many), Some(0));
        for (count, apart) in [(LEAST, Some(0)), (LEAST - 1, None)] {
            let few = timers(core::iter::repeat_n(700_000, count as usize));
            assert_eq!(full.apart_permille(&few), apart, "{count}");
            assert_eq!(few.apart_permille(&full), apart, "{count}");
        }
    }

    #[test]
    fn a_replay_has_the_slice_timers_that_it_sets() {
        let mut names = NameList::default();
        let ids = ["tick_nohz_handler", SLICE_TIMER].map(|name| names.add(name));
        let mut watch = Watch::default();
        watch.begin(&names, 1);
        for (number, function) in (0..).zip([ids[0], ids[1], ids[1]]) {
            watch.event(&Event {
                time_ns: 5_000,
                cpu: CpuId(0),
                tid: Tid(0),
                context: Context::default(),
                kind: Kind::HrtimerStart {
                    hrtimer: 1,
                    expires_ns: 705_000 + number,
                    function,
                },
            });
        }
        assert_eq!(watch.slices, timers([700_001, 700_002].into_iter()));
    }
}
