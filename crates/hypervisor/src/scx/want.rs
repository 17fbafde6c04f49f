//! The task that a CPU is to run next, in one word (`st_want` of `sched-ext/bpf/track.h`).
//!
//! A directed yield writes it under the run queue's lock. The entry of a vCPU, which gives a loan
//! back, writes it without: KVM's tracepoints may not take that lock. In words of their own, the
//! target of the one meets the lender of the other (protocol `scx-yield` of `stealtime check`).

use core::sync::atomic::Ordering;

use crate::word::AtomicWord;

/// Bits of a thread id: `PID_MAX_LIMIT` is 4 Mi.
const THREAD_BITS: u32 = 22;
const THREAD_MASK: u64 = (1 << THREAD_BITS) - 1;
const LENDER_SHIFT: u32 = THREAD_BITS;
const SLICE_SHIFT: u32 = 2 * THREAD_BITS;
const SLICE_BITS: u32 = 19;
const TIMED: u64 = 1 << 63;

/// Longest slice of a wanted task, in us.
pub const MOST_SLICE_US: u64 = (1 << SLICE_BITS) - 1;

/// A task that a CPU is to run next, out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wanted {
    /// Its thread, below 4 Mi and above 0.
    pub thread: u32,
    /// The thread that pays for its run; 0 if it pays for itself.
    pub lender: u32,
    /// Its slice in us, [`MOST_SLICE_US`] at most; 0 for the slice that it has.
    pub slice_us: u64,
    /// No EOI ends its loan: a timer does.
    pub is_timed: bool,
}

impl Wanted {
    /// The word of this task.
    pub fn to_word(self) -> u64 {
        let lender = (u64::from(self.lender) & THREAD_MASK) << LENDER_SHIFT;
        let slice = self.slice_us.min(MOST_SLICE_US) << SLICE_SHIFT;
        let timed = if self.is_timed { TIMED } else { 0 };
        u64::from(self.thread) & THREAD_MASK | lender | slice | timed
    }

    /// The task of a word; `None` where the word names none.
    pub fn from_word(word: u64) -> Option<Self> {
        let thread = (word & THREAD_MASK) as u32;
        (thread != 0).then_some(Self {
            thread,
            lender: (word >> LENDER_SHIFT & THREAD_MASK) as u32,
            slice_us: word >> SLICE_SHIFT & MOST_SLICE_US,
            is_timed: word & TIMED != 0,
        })
    }
}

/// The word of a CPU.
#[derive(Debug)]
pub struct WantWord<W>(W);

impl<W: AtomicWord> WantWord<W> {
    /// A CPU that wants no task.
    pub fn new() -> Self {
        Self(W::new(0))
    }

    /// The CPU is to run this task; what it wanted until then is forgotten.
    pub fn write(&self, wanted: Wanted) {
        self.0.store(wanted.to_word(), Ordering::Relaxed);
    }

    /// Takes the task, in one step: one that is written meanwhile stays.
    pub fn take(&self) -> Option<Wanted> {
        Wanted::from_word(self.0.swap(0, Ordering::Relaxed))
    }
}

impl<W: AtomicWord> Default for WantWord<W> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    #[test]
    fn a_task_is_the_same_behind_its_word() {
        let wanted = Wanted {
            thread: 4_194_303,
            lender: 17,
            slice_us: MOST_SLICE_US,
            is_timed: true,
        };
        assert_eq!(Wanted::from_word(wanted.to_word()), Some(wanted));
        let long = Wanted {
            slice_us: u64::MAX,
            ..wanted
        };
        assert_eq!(long.to_word(), wanted.to_word());
        // Half a second, and not the next bit: it says that a timer ends the loan.
        assert_eq!(MOST_SLICE_US, 524_287);
        let no_timer = Wanted {
            is_timed: false,
            ..long
        };
        assert_eq!(no_timer.to_word(), wanted.to_word() & !TIMED);
        assert_eq!(Wanted::from_word(0), None);
    }

    #[test]
    fn a_task_is_taken_once() {
        let word = WantWord::<Cell<u64>>::new();
        let wanted = Wanted {
            thread: 7,
            lender: 0,
            slice_us: 0,
            is_timed: false,
        };
        word.write(wanted);
        assert_eq!((word.take(), word.take()), (Some(wanted), None));
    }
}
