//! Many timers in order: a wheel of spans of time, the nearest a nanosecond long.

use super::queue::{Link, NONE, Slot, Timer};
use crate::at::At;

/// The lowest level has 4096 spans of 1 ns: most timers fire sooner than they end.
const LOW_BITS: u32 = 12;
const LOW_SPANS: usize = 1 << LOW_BITS;
/// A level above has 256 spans, each as long as all those of the level below.
const LEVEL_BITS: u32 = 8;
const SPANS: usize = 1 << LEVEL_BITS;
/// With so many levels above the lowest all times there are have a span.
const LEVELS: usize = (u64::BITS - LOW_BITS).div_ceil(LEVEL_BITS) as usize;

/// The timers of a span: the one that was armed first, and the one that was armed last.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u32,
    last: u32,
}

impl Span {
    const EMPTY: Self = Self {
        first: NONE,
        last: NONE,
    };
}

/// Spans of one length, the later the longer, and which of them have timers, a bit each.
#[derive(Clone, Copy, Debug)]
struct Level<const N: usize, const WORDS: usize> {
    spans: [Span; N],
    used: [u64; WORDS],
    /// Words that are not 0, a bit each.
    words: u64,
}

impl<const N: usize, const WORDS: usize> Level<N, WORDS> {
    const EMPTY: Self = Self {
        spans: [Span::EMPTY; N],
        used: [0; WORDS],
        words: 0,
    };

    #[inline]
    fn mark(&mut self, place: usize) {
        self.used[place / 64] |= 1 << (place % 64);
        self.words |= 1 << (place / 64);
    }

    #[inline]
    fn unmark(&mut self, place: usize) {
        let word = &mut self.used[place / 64];
        *word &= !(1 << (place % 64));
        self.words &= !(u64::from(*word == 0) << (place / 64));
    }

    /// The first span from `place` on that has timers.
    #[inline]
    fn first_used(&self, place: usize) -> Option<usize> {
        let word = place / 64;
        let bits = self.used.get(word)? & u64::MAX << (place % 64);
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        // Beyond the last word there is none: a shift by 1 and by the rest never shifts by 64.
        let words = self.words & u64::MAX << 1 << word;
        let word = words.trailing_zeros() as usize;
        let bits = self.used.get(word).filter(|_| words != 0)?;
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// Puts a timer behind all others of a span.
    #[inline]
    fn link(&mut self, timers: &mut [Timer], slot: Slot, place: usize) {
        let previous = core::mem::replace(&mut self.spans[place].last, slot.0);
        let after = NONE;
        timers[slot.index()].link = Link {
            before: previous,
            after,
        };
        match timers.get_mut(previous as usize) {
            Some(timer) => timer.link.after = slot.0,
            None => {
                self.spans[place].first = slot.0;
                self.mark(place);
            }
        }
    }

    #[inline]
    fn unlink(&mut self, timers: &mut [Timer], slot: Slot, place: usize) {
        let Link {
            before: previous,
            after,
        } = timers[slot.index()].link;
        let span = &mut self.spans[place];
        match timers.get_mut(previous as usize) {
            Some(timer) => timer.link.after = after,
            None => span.first = after,
        }
        match timers.get_mut(after as usize) {
            Some(timer) => timer.link.before = previous,
            None => span.last = previous,
        }
        if span.first == NONE {
            self.unmark(place);
        }
    }

    /// Takes all timers of a span out: the first one of their list.
    fn empty(&mut self, place: usize) -> u32 {
        self.unmark(place);
        core::mem::replace(&mut self.spans[place], Span::EMPTY).first
    }
}

/// Timers in lists, one for each span that has any. The spans of a level divide the present span of
/// the level above. When that one is over, the timers of the next one go into the levels below, in
/// the order in which they were armed. In the lowest level they are in order without a comparison:
/// all timers of a span fire at the same time.
///
/// What it takes to arm a timer and to take the next does not grow with how many there are. A
/// heap's path does: each step of it is a branch that cannot be predicted and, further down, a
/// cache miss. So does the sort of a span of several timers.
#[derive(Clone, Debug)]
pub(super) struct Wheel {
    /// Time has come to here: what was armed for earlier has been taken.
    begin: u64,
    low: Box<Level<LOW_SPANS, { LOW_SPANS / 64 }>>,
    levels: Box<[Level<SPANS, { SPANS / 64 }>; LEVELS]>,
    armed: usize,
}

/// Where a time is.
#[derive(Clone, Copy)]
enum Place {
    Low(usize),
    Level(usize, usize),
}

impl Wheel {
    pub(super) fn new() -> Self {
        Self {
            begin: 0,
            low: Box::new(Level::EMPTY),
            levels: Box::new([Level::EMPTY; LEVELS]),
            armed: 0,
        }
    }

    /// In the level where the time first differs from where it has come to.
    #[inline]
    const fn place(&self, at_ns: u64) -> Place {
        let differs = at_ns ^ self.begin;
        if differs < LOW_SPANS as u64 {
            return Place::Low(at_ns as usize % LOW_SPANS);
        }
        let level = ((differs.ilog2() - LOW_BITS) / LEVEL_BITS) as usize;
        Place::Level(level, (at_ns >> bits_below(level)) as usize % SPANS)
    }

    /// Arms a timer that is not armed: it fires after those that were armed for the same time. If that
    /// has passed it fires now.
    #[inline]
    pub(super) fn arm(&mut self, timers: &mut [Timer], slot: Slot, mut at_ns: u64) {
        self.armed += 1;
        if at_ns < self.begin {
            at_ns = self.begin;
            timers[slot.index()].at = At::ns(at_ns);
        }
        self.link(timers, slot, at_ns);
    }

    #[inline]
    fn link(&mut self, timers: &mut [Timer], slot: Slot, at_ns: u64) {
        match self.place(at_ns) {
            Place::Low(place) => self.low.link(timers, slot, place),
            Place::Level(level, place) => self.levels[level].link(timers, slot, place),
        }
    }

    /// Disarms a timer that is armed for `at_ns`.
    #[inline]
    pub(super) fn cancel(&mut self, timers: &mut [Timer], slot: Slot, at_ns: u64) {
        self.armed -= 1;
        match self.place(at_ns) {
            Place::Low(place) => self.low.unlink(timers, slot, place),
            Place::Level(level, place) => self.levels[level].unlink(timers, slot, place),
        }
    }

    /// When the next timer will fire.
    pub(super) fn next(&self, timers: &[Timer]) -> Option<u64> {
        if let Some(at_ns) = self.next_low() {
            return Some(at_ns);
        }
        // The first span of the lowest level that has any: all others are later.
        let (level, place) = self.first_used()?;
        let mut slot = self.levels[level].spans[place].first;
        let of_span = core::iter::from_fn(|| {
            let timer = timers.get(slot as usize)?;
            slot = timer.link.after;
            Some(timer.at)
        });
        of_span.filter_map(At::get).min()
    }

    /// The time of the next timer in the lowest level.
    #[inline]
    fn next_low(&self) -> Option<u64> {
        let place = self.low.first_used(self.begin as usize % LOW_SPANS)?;
        Some(self.begin & !(LOW_SPANS as u64 - 1) | place as u64)
    }

    /// Takes the next timer, if it fires at `until_ns` or before.
    #[inline]
    pub(super) fn pop(&mut self, until_ns: u64, timers: &mut [Timer]) -> Option<(u64, Slot)> {
        let at_ns = match self.next_low() {
            Some(at_ns) => at_ns,
            None => self.turn(until_ns, timers)?,
        };
        if at_ns > until_ns {
            return None;
        }
        self.begin = at_ns;
        self.armed -= 1;
        let place = at_ns as usize % LOW_SPANS;
        let slot = Slot(self.low.spans[place].first);
        self.low.unlink(timers, slot, place);
        Some((at_ns, slot))
    }

    /// Armed timers.
    pub(super) const fn armed(&self) -> usize {
        self.armed
    }

    /// Turns the wheel to the next time that has timers, if that is not later than `until_ns`.
    #[inline(never)]
    fn turn(&mut self, until_ns: u64, timers: &mut [Timer]) -> Option<u64> {
        loop {
            if let Some(at_ns) = self.next_low() {
                return Some(at_ns);
            }
            let (level, place) = self.first_used()?;
            let bits = bits_below(level);
            let above = match bits + LEVEL_BITS {
                u64::BITS.. => 0,
                above => self.begin >> above << above,
            };
            let begin = above | (place as u64) << bits;
            if begin > until_ns {
                return None;
            }
            self.begin = begin;
            self.put_below(level, place, timers);
        }
    }

    /// Puts the timers of a span, which has come, into the levels below, the one that was armed first
    /// first.
    fn put_below(&mut self, level: usize, place: usize, timers: &mut [Timer]) {
        let mut next = self.levels[level].empty(place);
        while let Some(&Timer { at: expiry, link }) = timers.get(next as usize) {
            let slot = Slot(next);
            next = link.after;
            if let Some(at_ns) = expiry.get() {
                self.link(timers, slot, at_ns);
            }
        }
    }

    /// Level and place of the first span above the lowest level that has timers.
    fn first_used(&self) -> Option<(usize, usize)> {
        let mut levels = (0..).zip(self.levels.iter());
        levels.find_map(|(level, spans)| {
            let place = (self.begin >> bits_below(level)) as usize % SPANS;
            Some((level, spans.first_used(place)?))
        })
    }
}

/// Bits of a time that are below the number of its span.
const fn bits_below(level: usize) -> u32 {
    LOW_BITS + level as u32 * LEVEL_BITS
}
