//! Few timers: those that fire soon in a ring of spans, the others in a sorted list.

use super::few::Few;
use super::queue::{NONE, Slot, Timer};

/// Log2 of how long a span is, in ns.
const SPAN_BITS: u32 = 5;
/// Spans of the ring, a bit each.
const SPANS: u64 = 64;

const fn span_of(at_ns: u64) -> u64 {
    at_ns >> SPAN_BITS
}

/// Timers as they fire.
///
/// Most fire soon, and a span has rarely more than one of them. So arming one and taking the next
/// one look at little, and have no branch to mispredict. In a sorted list that branch is the number
/// of timers before the new one.
///
/// `timers` are all there are, by slot: they say when each fires, and which is the next of its span.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    /// Spans that have timers, by the low bits of their number. All begin less than [`SPANS`] spans
    /// after that of `now_ns`.
    used: u64,
    /// The first timer of each, or [`NONE`].
    first: [u32; SPANS as usize],
    /// How many are in the ring.
    near: usize,
    /// Those that were farther away when they were armed.
    far: Few,
    /// When the first of these fires; `u64::MAX` without one. It is compared for each event.
    far_ns: u64,
    /// When the last one that was taken fired.
    now_ns: u64,
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            used: 0,
            first: [NONE; SPANS as usize],
            near: 0,
            far: Few::default(),
            far_ns: u64::MAX,
            now_ns: 0,
        }
    }
}

impl Ring {
    /// Arms a timer that is not armed, if it fires soon and before all others of its span: a span
    /// rarely has others. Whether it did.
    #[inline]
    pub(super) fn arm_first(&mut self, timers: &mut [Timer], slot: Slot, at_ns: u64) -> bool {
        let span = span_of(at_ns);
        let place = (span % SPANS) as usize;
        let first = self.first[place];
        let is_near = span.wrapping_sub(span_of(self.now_ns)) < SPANS;
        let later = timers.get(first as usize);
        if !is_near || later.is_some_and(|timer| timer.at.or_last() <= at_ns) {
            return false;
        }
        self.near += 1;
        timers[slot.index()].link.after = first;
        self.first[place] = slot.0;
        self.used |= 1 << place;
        true
    }

    /// Arms a timer that is not armed: it fires after those that were armed for the same time.
    pub(super) fn arm(&mut self, timers: &mut [Timer], slot: Slot, at_ns: u64) {
        if self.arm_first(timers, slot, at_ns) {
            return;
        }
        let span = span_of(at_ns);
        if span.wrapping_sub(span_of(self.now_ns)) >= SPANS {
            self.far.arm(slot, at_ns);
            self.far_ns = self.far_ns.min(at_ns);
            return;
        }
        self.near += 1;
        let mut last = self.first[(span % SPANS) as usize];
        let mut next = timers[last as usize].link.after;
        while let Some(timer) = timers.get(next as usize)
            && timer.at.or_last() <= at_ns
        {
            (last, next) = (next, timer.link.after);
        }
        timers[slot.index()].link.after = next;
        timers[last as usize].link.after = slot.0;
    }

    /// Disarms a timer that is armed for `at_ns`.
    #[inline(never)]
    pub(super) fn cancel(&mut self, timers: &mut [Timer], slot: Slot, at_ns: u64) {
        let place = (span_of(at_ns) % SPANS) as usize;
        let (mut last, mut next) = (NONE, self.first[place]);
        while next != slot.0 {
            let Some(timer) = timers.get(next as usize) else {
                self.far.cancel(slot);
                self.far_ns = self.far.next().unwrap_or(u64::MAX);
                return;
            };
            (last, next) = (next, timer.link.after);
        }
        self.near -= 1;
        let after = timers[slot.index()].link.after;
        match timers.get_mut(last as usize) {
            Some(timer) => timer.link.after = after,
            None => self.begin_with(place, after),
        }
    }

    /// The span's first timer is another one now, or there is none.
    fn begin_with(&mut self, place: usize, first: u32) {
        self.first[place] = first;
        self.used &= !(u64::from(first == NONE) << place);
    }

    /// The place of the first span that has timers, if any has.
    fn nearest(&self) -> usize {
        let begin = (span_of(self.now_ns) % SPANS) as u32;
        let ahead = self.used.rotate_right(begin).trailing_zeros();
        (begin + ahead) as usize % SPANS as usize
    }

    /// When the next timer will fire.
    pub(super) fn next(&self, timers: &[Timer]) -> Option<u64> {
        let near = timers.get(self.first[self.nearest()] as usize);
        let near = near.and_then(|timer| timer.at.get());
        near.into_iter().chain(self.far.next()).min()
    }

    /// Takes the next timer, if it fires at `until_ns` or before. Its time stays in `timers`.
    #[inline]
    pub(super) fn pop(&mut self, until_ns: u64, timers: &[Timer]) -> Option<Slot> {
        let place = self.nearest();
        let slot = Slot(self.first[place]);
        let timer = timers.get(slot.index());
        // What was far away when it was armed was armed earlier than what was near.
        let Some(timer) = timer.filter(|timer| timer.at.or_last() < self.far_ns) else {
            return self.pop_far(until_ns);
        };
        let at_ns = timer.at.or_last();
        if at_ns > until_ns {
            return None;
        }
        self.near -= 1;
        self.now_ns = self.now_ns.max(at_ns);
        self.begin_with(place, timer.link.after);
        Some(slot)
    }

    #[inline(never)]
    fn pop_far(&mut self, until_ns: u64) -> Option<Slot> {
        let (at_ns, slot) = self.far.pop(until_ns)?;
        self.far_ns = self.far.next().unwrap_or(u64::MAX);
        self.now_ns = self.now_ns.max(at_ns);
        Some(slot)
    }

    /// Timers in the ring.
    pub(super) const fn near(&self) -> usize {
        self.near
    }

    /// Timers in the list.
    pub(super) const fn listed(&self) -> usize {
        self.far.armed()
    }

    /// Armed timers.
    pub(super) const fn armed(&self) -> usize {
        self.near + self.far.armed()
    }
}
