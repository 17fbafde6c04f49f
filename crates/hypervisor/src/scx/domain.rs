//! A cache domain: the queue by deadline, and the sums of EEVDF over its runnable tasks.

use alloc::collections::BTreeSet;

use super::member::Member;
use crate::wide;

/// The deadline as the queue compares it, with the order of insertion.
pub(super) type Key = (i64, u64);

/// `vruntime` is `zero` plus a distance; the sum is that of weight times distance.
#[derive(Clone, Debug)]
pub(super) struct Domain {
    queue: BTreeSet<(Key, usize)>,
    weight: u64,
    sum: i128,
    zero: u64,
}

impl Domain {
    pub(super) fn new() -> Self {
        Self {
            queue: BTreeSet::new(),
            weight: 0,
            sum: 0,
            // Far from both ends: keys compare as signed numbers.
            zero: 1 << 40,
        }
    }

    /// Total weight of its members.
    pub(super) fn weight(&self) -> u64 {
        self.weight
    }

    /// The weighted average of the members' virtual times, rounded down.
    pub(super) fn average(&self) -> u64 {
        if self.weight == 0 {
            return self.zero;
        }
        let size = self.sum.unsigned_abs();
        let distance = if self.sum < 0 {
            (wide::div_ceil(size, self.weight) as u64).wrapping_neg()
        } else {
            wide::div(size, self.weight) as u64
        };
        self.zero.wrapping_add(distance)
    }

    /// With an average rounded down, a member is eligible unless it is after it.
    pub(super) fn is_eligible(&self, vruntime: u64) -> bool {
        vruntime.wrapping_sub(self.average()) as i64 <= 0
    }

    fn product(&self, vruntime: u64, weight: u64) -> i128 {
        i128::from(vruntime.wrapping_sub(self.zero) as i64) * i128::from(weight)
    }

    /// Moves the base of the sums to the average, so that distances stay short.
    pub(super) fn rebase(&mut self) -> u64 {
        let average = self.average();
        let delta = average.wrapping_sub(self.zero) as i64;
        self.sum -= i128::from(delta) * i128::from(self.weight);
        self.zero = average;
        average
    }

    pub(super) fn add_member(&mut self, vruntime: u64, weight: u64) {
        self.sum += self.product(vruntime, weight);
        self.weight += weight;
    }

    pub(super) fn remove_member(&mut self, vruntime: u64, weight: u64) {
        debug_assert!(weight <= self.weight, "the member is counted");
        self.sum -= self.product(vruntime, weight);
        self.weight = self.weight.saturating_sub(weight);
        // Without members the average stays where it was.
        if self.weight == 0 {
            self.sum = 0;
        }
    }

    /// A member of this weight moves by `delta`.
    pub(super) fn shift_member(&mut self, delta: i64, weight: u64) {
        self.sum += i128::from(delta) * i128::from(weight);
    }

    pub(super) fn insert(&mut self, key: Key, task: usize) {
        let added = self.queue.insert((key, task));
        debug_assert!(added, "a task is queued once");
    }

    pub(super) fn remove(&mut self, key: Key, task: usize) {
        let removed = self.queue.remove(&(key, task));
        debug_assert!(removed, "the task is in this queue");
    }

    /// Tasks that wait, by deadline.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> + '_ {
        self.queue.iter().map(|(_, task)| *task)
    }

    /// Whether the sums are those of its members.
    pub(super) fn agrees<'m>(&self, members: impl Iterator<Item = &'m Member>) -> bool {
        let (mut sum, mut weight) = (0, 0);
        for member in members {
            sum += self.product(member.vruntime(), member.weight());
            weight += member.weight();
        }
        sum == self.sum && weight == self.weight
    }
}
