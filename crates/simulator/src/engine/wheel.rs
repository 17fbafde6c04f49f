//! Many timers in order: a wheel of spans of time, the nearest a nanosecond long.

use super::few::Few;
use super::queue::{Link, NONE, Slot, Timer};
use crate::at::At;

/// A level has 256 spans, each as long as all those of the level below; the lowest one's are 1 ns.
const LEVEL_BITS: u32 = 8;
const SPANS: usize = 1 << LEVEL_BITS;
const WORDS: usize = SPANS / 64;
/// With so many levels all times there are have a span.
const LEVELS: usize = u64::BITS.div_ceil(LEVEL_BITS) as usize;

/// Spans of one length, the later the longer.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// The timer of each span that was armed first, where there is one.
    first: [u32; SPANS],
    /// The one that was armed last.
    last: [u32; SPANS],
    /// Spans that have timers, a bit each.
    used: [u64; WORDS],
}

impl Level {
    const EMPTY: Self = Self {
        first: [NONE; SPANS],
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

/// Timers of the time that has come are in order, those of later spans in the spans' lists. The spans of
/// a level begin where time has come to in the level above: when it comes to the next of those, that
/// one's timers are put into the levels below, in the order in which they were armed. What comes to the
/// lowest level is in order without a comparison: all timers of a span fire at the same time.
///
/// What it takes to arm a timer and to take the next does not grow with how many there are. A heap's
/// path does, and each step of it is a branch that cannot be predicted and, further down, a cache miss;
/// so does the sort of a span of several timers.
#[derive(Clone, Debug)]
pub(super) struct Wheel {
    near: Few,
    /// The first time in ns whose timers are not in `near`.
    begin: u64,
    levels: Box<[Level; LEVELS]>,
    armed: usize,
}

/// A time's place in a level.
const fn place(at_ns: u64, level: usize) -> usize {
    (at_ns >> (level as u32 * LEVEL_BITS)) as usize % SPANS
}

impl Wheel {
    pub(super) fn new() -> Self {
        Self {
            near: Few::default(),
            begin: 0,
            levels: Box::new([Level::EMPTY; LEVELS]),
            armed: 0,
        }
    }

    /// The level where a time first differs from `begin`.
    const fn level(&self, at_ns: u64) -> usize {
        let differs = (at_ns ^ self.begin) | 1;
        (differs.ilog2() / LEVEL_BITS) as usize
    }

    /// Arms a timer that is not armed: it fires after those that were armed for the same time.
    #[inline(never)]
    pub(super) fn arm(&mut self, timers: &mut [Timer], slot: Slot, at_ns: u64) {
        self.armed += 1;
        if at_ns < self.begin {
            self.near.arm(slot, at_ns);
        } else {
            self.link(timers, slot, at_ns);
        }
    }

    /// Disarms a timer that is armed for `at_ns`.
    #[inline(never)]
    pub(super) fn cancel(&mut self, timers: &mut [Timer], slot: Slot, at_ns: u64) {
        self.armed -= 1;
        if at_ns < self.begin {
            self.near.cancel(slot);
        } else {
            self.unlink(timers, slot, at_ns);
        }
    }

    /// When the next timer will fire. `timers` are all there are, by slot.
    pub(super) fn next(&self, timers: &[Timer]) -> Option<u64> {
        if let Some(at_ns) = self.near.next() {
            return Some(at_ns);
        }
        // The first span of the lowest level that has any: all others are later.
        let (level, place) = self.first_used()?;
        let mut slot = self.levels[level].last[place];
        let of_span = core::iter::from_fn(|| {
            let timer = timers.get(slot as usize)?;
            slot = timer.link.before;
            Some(timer.at)
        });
        of_span.filter_map(At::get).min()
    }

    /// Takes the next timer, if it fires at `until_ns` or before.
    #[inline(never)]
    pub(super) fn pop(&mut self, until_ns: u64, timers: &mut [Timer]) -> Option<(u64, Slot)> {
        if self.near.armed() == 0 {
            self.near.shrink();
            self.turn(timers);
        }
        let next = self.near.pop(until_ns)?;
        self.armed -= 1;
        Some(next)
    }

    /// Armed timers.
    pub(super) const fn armed(&self) -> usize {
        self.armed
    }

    /// Turns the wheel to the next time that has timers, and takes them out in order.
    fn turn(&mut self, timers: &mut [Timer]) {
        while let Some((level, place)) = self.first_used() {
            let bits = level as u32 * LEVEL_BITS;
            let above = match bits + LEVEL_BITS {
                u64::BITS => 0,
                above => self.begin >> above << above,
            };
            self.begin = above | (place as u64) << bits;
            if level == 0 {
                return self.come(place, timers);
            }
            self.put_below(level, place, timers);
        }
    }

    /// The time where the wheel begins has come.
    fn come(&mut self, place: usize, timers: &mut [Timer]) {
        let mut slot = self.levels[0].last[place];
        self.empty(0, place);
        // What was armed last fires last, which is first in the list of those near.
        while let Some(timer) = timers.get(slot as usize) {
            self.near.put_sooner(Slot(slot), self.begin);
            slot = timer.link.before;
        }
        self.begin = self.begin.saturating_add(1);
        if self.begin.is_multiple_of(SPANS as u64) {
            self.begin_above(timers);
        }
    }

    /// Time has come to the next span of the level above, if not of several: its timers go down.
    fn begin_above(&mut self, timers: &mut [Timer]) {
        for level in (1..LEVELS).rev() {
            if self.begin.is_multiple_of(1 << (level as u32 * LEVEL_BITS)) {
                self.put_below(level, place(self.begin, level), timers);
            }
        }
    }

    /// Puts the timers of a span, which has come, into the levels below, the one that was armed first
    /// first.
    fn put_below(&mut self, level: usize, place: usize, timers: &mut [Timer]) {
        if self.levels[level].last[place] == NONE {
            return;
        }
        let mut next = self.levels[level].first[place];
        self.empty(level, place);
        while let Some(&Timer { at, link }) = timers.get(next as usize) {
            let slot = Slot(next);
            next = link.after;
            if let Some(at_ns) = at.get() {
                self.link(timers, slot, at_ns);
            }
        }
    }

    fn empty(&mut self, level: usize, place: usize) {
        self.levels[level].last[place] = NONE;
        self.levels[level].mark(place, false);
    }

    /// Level and place of the first span that has timers.
    fn first_used(&self) -> Option<(usize, usize)> {
        let mut levels = (0..).zip(self.levels.iter());
        levels.find_map(|(level, spans)| {
            let found = spans.first_used(place(self.begin, level))?;
            Some((level, found))
        })
    }

    fn link(&mut self, timers: &mut [Timer], slot: Slot, at_ns: u64) {
        let level = self.level(at_ns);
        let place = place(at_ns, level);
        let before = core::mem::replace(&mut self.levels[level].last[place], slot.0);
        let after = NONE;
        timers[slot.index()].link = Link { before, after };
        match timers.get_mut(before as usize) {
            Some(timer) => timer.link.after = slot.0,
            None => {
                self.levels[level].first[place] = slot.0;
                self.levels[level].mark(place, true);
            }
        }
    }

    fn unlink(&mut self, timers: &mut [Timer], slot: Slot, at_ns: u64) {
        let Link { before, after } = timers[slot.index()].link;
        let level = self.level(at_ns);
        let place = place(at_ns, level);
        match timers.get_mut(before as usize) {
            Some(timer) => timer.link.after = after,
            None => self.levels[level].first[place] = after,
        }
        match timers.get_mut(after as usize) {
            Some(timer) => timer.link.before = before,
            None => self.levels[level].last[place] = before,
        }
        if before == NONE && after == NONE {
            self.levels[level].mark(place, false);
        }
    }
}
