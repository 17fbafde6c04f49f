//! Many timers in order: a wheel of short spans of time, each sorted when it is near.

use core::cmp::Reverse;

use super::few::Few;
use super::queue::Slot;
use crate::at::At;

/// The shortest span, in ns as a power of two: on a host of a thousand busy CPUs some forty timers fire
/// in it.
const SPAN_BITS: u32 = 8;
/// A level has 256 spans, each as long as all those of the level below.
const LEVEL_BITS: u32 = 8;
const SPANS: usize = 1 << LEVEL_BITS;
const WORDS: usize = SPANS / 64;
/// With so many levels all times there are have a span.
const LEVELS: usize = (u64::BITS - SPAN_BITS).div_ceil(LEVEL_BITS) as usize;

/// So many timers are kept in order at least, if there are as many within the next few spans: a timer
/// that fires soon is then mostly put among them at once.
const LEAST_NEAR: usize = 8;
const SPANS_AHEAD: u64 = 8;

/// Room for so many timers of one span is kept.
const MOST_SORTED: usize = 64;

/// No slot, where a slot's number stands.
const NONE: u32 = u32::MAX;

/// A timer's neighbors in its span's list, which is in the order in which they were armed.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

/// Spans of one length, the later the longer.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// The timer of each span that was armed last.
    last: [u32; SPANS],
    /// Spans that have timers, a bit each.
    used: [u64; WORDS],
}

impl Level {
    const EMPTY: Self = Self {
        last: [NONE; SPANS],
        used: [0; WORDS],
    };

    fn mark(&mut self, place: usize, used: bool) {
        let (word, bit) = (&mut self.used[place / 64], 1 << (place % 64));
        *word = if used { *word | bit } else { *word & !bit };
    }

    /// The first span from `place` on that has timers.
    fn first_used(&self, place: usize) -> Option<usize> {
        let from = |at: usize| match at == place / 64 {
            true => u64::MAX << (place % 64),
            false => u64::MAX,
        };
        (place / 64..WORDS).find_map(|at| {
            let bits = self.used[at] & from(at);
            (bits != 0).then_some(at * 64 + bits.trailing_zeros() as usize)
        })
    }
}

/// Timers that fire soon are in order, those of later spans in the spans' lists. The spans of a level
/// begin where time has come to in the level above: when it comes to the next of those, that one's timers
/// are put into the levels below, in the order in which they were armed.
///
/// What it takes to arm a timer and to take the next does not grow with how many there are. A heap's
/// path does, and each step of it is a branch that cannot be predicted and, further down, a cache miss.
#[derive(Clone, Debug)]
pub(super) struct Wheel {
    near: Few,
    /// The first of the shortest spans that is not in `near`. They are counted from time 0.
    begin: u64,
    levels: Box<[Level; LEVELS]>,
    /// By slot, as far as timers were armed.
    links: Vec<Link>,
    armed: usize,
    /// A span while it is sorted.
    sorted: Vec<(u64, Slot)>,
}

/// The number of the shortest span, from time 0.
const fn span_of(at_ns: u64) -> u64 {
    at_ns >> SPAN_BITS
}

/// The span's place in a level.
const fn place(span: u64, level: usize) -> usize {
    (span >> (level as u32 * LEVEL_BITS)) as usize % SPANS
}

impl Wheel {
    pub(super) fn new() -> Self {
        Self {
            near: Few::default(),
            begin: 0,
            levels: Box::new([Level::EMPTY; LEVELS]),
            links: Vec::new(),
            armed: 0,
            sorted: Vec::new(),
        }
    }

    /// The level where a span's number first differs from that of `begin`.
    const fn level(&self, span: u64) -> usize {
        let differs = (span ^ self.begin) | 1;
        (differs.ilog2() / LEVEL_BITS) as usize
    }

    /// Arms a timer that is not armed: it fires after those that were armed for the same time.
    #[inline(never)]
    pub(super) fn arm(&mut self, slot: Slot, at_ns: u64) {
        self.armed += 1;
        let span = span_of(at_ns);
        if span < self.begin {
            self.near.arm(slot, at_ns);
        } else {
            self.link(slot, span);
        }
    }

    /// Disarms a timer that is armed for `at_ns`.
    #[inline(never)]
    pub(super) fn cancel(&mut self, slot: Slot, at_ns: u64) {
        self.armed -= 1;
        let span = span_of(at_ns);
        if span < self.begin {
            self.near.cancel(slot);
        } else {
            self.unlink(slot, span);
        }
    }

    /// When the next timer will fire. `times` says when each does, by slot.
    pub(super) fn next(&self, times: &[At]) -> Option<u64> {
        if let Some(at_ns) = self.near.next() {
            return Some(at_ns);
        }
        // The first span of the lowest level that has any: all others are later.
        let (level, place) = self.first_used()?;
        let timers = self.timers_of(level, place);
        timers.filter_map(|slot| times[slot.index()].get()).min()
    }

    /// Takes the next timer, if it fires at `until_ns` or before.
    #[inline(never)]
    pub(super) fn pop(&mut self, until_ns: u64, times: &[At]) -> Option<(u64, Slot)> {
        match self.near.next() {
            None => self.turn(times),
            Some(at_ns) => self.turn_ahead(span_of(at_ns) + SPANS_AHEAD, times),
        }
        let next = self.near.pop(until_ns)?;
        self.armed -= 1;
        Some(next)
    }

    /// Armed timers.
    pub(super) const fn armed(&self) -> usize {
        self.armed
    }

    /// Turns the wheel up to `span` as long as few timers are in order.
    fn turn_ahead(&mut self, span: u64, times: &[At]) {
        while self.near.armed() < LEAST_NEAR {
            match self.first_used() {
                Some((0, place))
                    if self.begin - self.begin % SPANS as u64 + place as u64 <= span =>
                {
                    self.turn(times);
                }
                _ => return,
            }
        }
    }

    /// Turns the wheel to the next span that has timers, and sorts them.
    fn turn(&mut self, times: &[At]) {
        while let Some((level, place)) = self.first_used() {
            let bits = level as u32 * LEVEL_BITS;
            let above = self.begin >> bits >> LEVEL_BITS << LEVEL_BITS;
            self.begin = (above | place as u64) << bits;
            if level == 0 {
                return self.sort(place, times);
            }
            self.put_below(level, place, times);
        }
    }

    /// Takes the timers of the span where the wheel begins, and sorts them.
    fn sort(&mut self, place: usize, times: &[At]) {
        let mut sorted = core::mem::take(&mut self.sorted);
        let begin_ns = self.begin << SPAN_BITS;
        // The next to fire comes last, and of one time what was armed first: one number says both.
        let timers = (0u32..).zip(self.timers_of(0, place));
        sorted.extend(timers.filter_map(|(n, slot)| {
            let later_ns = times[slot.index()].get()? - begin_ns;
            Some((later_ns << u32::BITS | u64::from(u32::MAX - n), slot))
        }));
        sorted.sort_unstable_by_key(|&(key, _)| Reverse(key));
        let in_order = sorted.drain(..);
        let in_order = in_order.map(|(key, slot)| (begin_ns + (key >> u32::BITS), slot));
        self.near.put_behind(in_order);
        sorted.shrink_to(MOST_SORTED);
        self.sorted = sorted;
        self.empty(0, place);
        self.begin += 1;
        if self.begin.is_multiple_of(SPANS as u64) {
            self.begin_above(times);
        }
    }

    /// Time has come to the next span of the level above, if not of several: its timers go down.
    fn begin_above(&mut self, times: &[At]) {
        for level in (1..LEVELS).rev() {
            if self.begin.is_multiple_of(1 << (level as u32 * LEVEL_BITS)) {
                self.put_below(level, place(self.begin, level), times);
            }
        }
    }

    /// Puts the timers of a span, which has come, into the levels below, the one that was armed first
    /// first.
    fn put_below(&mut self, level: usize, place: usize, times: &[At]) {
        let mut next = self.timers_of(level, place).last();
        self.empty(level, place);
        while let Some(slot) = next {
            let after = Slot(self.links[slot.index()].after);
            next = (after.index() < self.links.len()).then_some(after);
            if let Some(at_ns) = times[slot.index()].get() {
                self.link(slot, span_of(at_ns));
            }
        }
    }

    fn empty(&mut self, level: usize, place: usize) {
        self.levels[level].last[place] = NONE;
        self.levels[level].mark(place, false);
    }

    /// The timers of a span, the one that was armed last first.
    fn timers_of(&self, level: usize, place: usize) -> impl Iterator<Item = Slot> {
        let mut slot = self.levels[level].last[place];
        core::iter::from_fn(move || {
            let this = Slot(slot);
            slot = self.links.get(this.index())?.before;
            Some(this)
        })
    }

    /// Level and place of the first span that has timers.
    fn first_used(&self) -> Option<(usize, usize)> {
        let mut levels = (0..).zip(self.levels.iter());
        levels.find_map(|(level, spans)| {
            let found = spans.first_used(place(self.begin, level))?;
            Some((level, found))
        })
    }

    fn link(&mut self, slot: Slot, span: u64) {
        let level = self.level(span);
        let place = place(span, level);
        let before = core::mem::replace(&mut self.levels[level].last[place], slot.0);
        self.make_room(slot);
        let after = NONE;
        self.links[slot.index()] = Link { before, after };
        match self.links.get_mut(before as usize) {
            Some(link) => link.after = slot.0,
            None => self.levels[level].mark(place, true),
        }
    }

    fn unlink(&mut self, slot: Slot, span: u64) {
        let Link { before, after } = self.links[slot.index()];
        if let Some(link) = self.links.get_mut(before as usize) {
            link.after = after;
        }
        match self.links.get_mut(after as usize) {
            Some(link) => link.before = before,
            None => {
                let level = self.level(span);
                let place = place(span, level);
                self.levels[level].last[place] = before;
                if before == NONE {
                    self.levels[level].mark(place, false);
                }
            }
        }
    }

    fn make_room(&mut self, slot: Slot) {
        let len = self.links.len();
        if slot.index() < len {
            return;
        }
        let more = slot.index() + 1 - len;
        if self.links.capacity() - len < more {
            // By a sixteenth, as tables of a large host grow.
            self.links.reserve_exact(more.max(len / 16));
        }
        let none = Link {
            before: NONE,
            after: NONE,
        };
        self.links.resize(len + more, none);
    }
}
