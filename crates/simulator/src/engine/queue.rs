//! Timers, cancellable and ordered by (time, sequence).

use super::ring::Ring;
use super::wheel::Wheel;
use crate::at::At;
use crate::ids;

/// A timer of the queue. It is armed for one time at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub(super) u32);

impl Slot {
    /// Dense number from 0, in order of creation.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Most timers of a ring.
const MOST_NEAR: usize = 512;
/// Most timers of its sorted list: an insertion passes half of them. With more the wheel is faster.
const MOST_LISTED: usize = 128;

/// Armed timers. Once there are many they stay in a wheel.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a run has one queue, which is looked at for each event"
)]
enum Armed {
    Few(Ring),
    Many(Wheel),
}

/// A slot's timer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    /// When it fires, if it is armed.
    pub(super) at: At,
    /// Its place in the list of a span: next to the time, as both are read together.
    pub(super) link: Link,
}

/// No slot, where a slot's number stands.
pub(super) const NONE: u32 = u32::MAX;

/// A timer's neighbors in the list of its span. The ring's lists go forward alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) before: u32,
    pub(super) after: u32,
}

impl Link {
    /// Without neighbors.
    const NONE: Self = Self {
        before: NONE,
        after: NONE,
    };
}

/// Timers, armed for a time or not. They fire in the order of their times, and those of one time
/// in the order in which they were armed.
#[derive(Clone, Debug)]
pub struct Queue {
    armed: Armed,
    /// By slot.
    timers: Vec<Timer>,
}

impl Default for Queue {
    fn default() -> Self {
        Self::new()
    }
}

impl Queue {
    /// A queue without timers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            armed: Armed::Few(Ring::default()),
            timers: Vec::new(),
        }
    }

    /// Makes a timer, not armed.
    pub fn slot(&mut self) -> Slot {
        let slot = u32::try_from(self.timers.len()).unwrap_or(u32::MAX);
        let timer = Timer {
            at: At::NEVER,
            link: Link::NONE,
        };
        ids::push(&mut self.timers, timer);
        Slot(slot)
    }

    /// Arms a timer, or moves it if it is armed. Of two timers at one time the one that was armed
    /// first fires first.
    pub fn arm(&mut self, slot: Slot, at_ns: u64) {
        let was_at = core::mem::replace(&mut self.timers[slot.index()].at, At::ns(at_ns));
        // Most timers that are armed are not armed yet, and fire soon. So this path calls no function.
        if let Armed::Few(ring) = &mut self.armed
            && was_at == At::NEVER
            && ring.arm_first(&mut self.timers, slot, at_ns)
        {
            if ring.near() > MOST_NEAR {
                self.grow();
            }
            return;
        }
        self.arm_anywhere(slot, was_at, at_ns);
    }

    #[inline(never)]
    fn arm_anywhere(&mut self, slot: Slot, was_at: At, at_ns: u64) {
        match &mut self.armed {
            Armed::Few(few) => {
                if let Some(was_ns) = was_at.get() {
                    few.cancel(&mut self.timers, slot, was_ns);
                }
                few.arm(&mut self.timers, slot, at_ns);
                if few.listed() > MOST_LISTED || few.near() > MOST_NEAR {
                    self.grow();
                }
            }
            Armed::Many(wheel) => {
                if let Some(was_ns) = was_at.get() {
                    wheel.cancel(&mut self.timers, slot, was_ns);
                }
                wheel.arm(&mut self.timers, slot, at_ns);
            }
        }
    }

    /// Disarms a timer; nothing happens if it is not armed.
    pub fn cancel(&mut self, slot: Slot) {
        if let Some(at_ns) = self.timers[slot.index()].at.take() {
            match &mut self.armed {
                Armed::Few(few) => few.cancel(&mut self.timers, slot, at_ns),
                Armed::Many(wheel) => wheel.cancel(&mut self.timers, slot, at_ns),
            }
        }
    }

    /// When a timer will fire.
    #[inline]
    #[must_use]
    pub fn when(&self, slot: Slot) -> Option<u64> {
        self.timers.get(slot.index())?.at.get()
    }

    /// When the next timer will fire.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        match &self.armed {
            Armed::Few(few) => few.next(&self.timers),
            Armed::Many(wheel) => wheel.next(&self.timers),
        }
    }

    /// Takes the next timer, if it fires at `until_ns` or before.
    #[inline]
    pub fn pop(&mut self, until_ns: u64) -> Option<(u64, Slot)> {
        let slot = match &mut self.armed {
            Armed::Few(few) => few.pop(until_ns, &self.timers),
            Armed::Many(wheel) => pop_many(wheel, &mut self.timers, until_ns),
        }?;
        let fired = core::mem::take(&mut self.timers[slot.index()].at);
        Some((fired.or_last(), slot))
    }

    /// Armed timers.
    #[must_use]
    pub fn armed(&self) -> usize {
        match &self.armed {
            Armed::Few(few) => few.armed(),
            Armed::Many(wheel) => wheel.armed(),
        }
    }

    /// From the list to the wheel.
    #[cold]
    fn grow(&mut self) {
        let Armed::Few(list) = &mut self.armed else {
            debug_assert!(false, "a wheel does not grow");
            return;
        };
        let mut wheel = Wheel::new();
        while let Some(slot) = list.pop(u64::MAX, &self.timers) {
            let at_ns = self.timers[slot.index()].at.or_last();
            wheel.arm(&mut self.timers, slot, at_ns);
        }
        self.armed = Armed::Many(wheel);
    }
}

/// As [`Queue::pop`]. Apart from it, as within it the ring's code would save registers for both.
#[inline(never)]
fn pop_many(wheel: &mut Wheel, timers: &mut [Timer], until_ns: u64) -> Option<Slot> {
    wheel.pop(until_ns, timers).map(|(_, slot)| slot)
}
