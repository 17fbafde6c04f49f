//! The vCPUs that a spinning vCPU probably waits for (`st_answers` of `sched-ext/bpf/track.h`).
//!
//! An IPI has one receiver or many, as for a TLB shootdown. Each owes its sender an answer until the EOI
//! of the vector. [`crate::ipi_tracking`] has the records of the directed-yield series, which know one
//! receiver.
//!
//! All records are hints. The sender alone reads its own; answers come from other CPUs.
//!
//! ```text
//!  sender                                   receiver
//!  due: a bit for each receiver, number ──▶ received: sender, index, vector, number ──┐
//!   ▲──────────────── EOI of the vector clears the bit of that number ────────────────┘
//! ```
//!
//! # Example
//!
//! ```
//! use std::sync::atomic::AtomicU64;
//! use stealtime_hypervisor::scx::{Answered, Answers, Receiver};
//!
//! let contexts = [(); 3].map(|()| Answers::<AtomicU64>::new());
//!
//! // vCPU 0 sends vector 0xfb to the two others.
//! contexts[0].send(1_000);
//! for (index, vcpu) in [1, 2].into_iter().enumerate() {
//!     let receiver = Receiver { vcpu, index, vector: 0xfb };
//!     contexts[0].accept(0, &contexts[vcpu as usize], receiver);
//! }
//! assert_eq!(contexts[0].due(50_000_000, 2_000).collect::<Vec<_>>(), [1, 2]);
//!
//! let answered = Answers::eoi(&contexts, 1, 0xfb);
//! assert_eq!(answered, Some(Answered { sender: 0, is_last: false }));
//! assert_eq!(contexts[0].due(50_000_000, 2_000).collect::<Vec<_>>(), [2]);
//! ```

use core::sync::atomic::Ordering::Relaxed;

use crate::ipi_tracking::FIRST_LEGAL_VECTOR;
use crate::word::AtomicWord;

/// Receivers of one IPI that have a bit. Further ones are not awaited.
pub const MOST_RECEIVERS: usize = 32;

const VCPU_MASK: u64 = (1 << 24) - 1;
const INDEX_SHIFT: u32 = 24;
const VECTOR_SHIFT: u32 = 32;
const IPI_SHIFT: u32 = 40;
const DUE_MASK: u64 = (1 << MOST_RECEIVERS) - 1;

/// A vCPU that accepts an IPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Its number, below 2^24.
    pub vcpu: u32,
    /// Its place among the receivers of this IPI, from 0.
    pub index: usize,
    /// The vector.
    pub vector: u8,
}

/// An answer that a sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The vCPU that waits for it.
    pub sender: u32,
    /// It waits for no other one.
    pub is_last: bool,
}

/// A vCPU's last IPI, and the last one that it received. `RECEIVERS` is [`MOST_RECEIVERS`] at most.
///
/// `due` has a bit for each receiver without an answer (0–31), and the number of the IPI (40–63).
/// `received` has the sender (0–23), the index (24–31), the vector (32–39), and that number (40–63). By the
/// number, an answer to an earlier IPI leaves a newer one alone.
#[derive(Debug)]
pub struct Answers<W, const RECEIVERS: usize = MOST_RECEIVERS> {
    due: W,
    time_ns: W,
    received: W,
    receivers: [W; RECEIVERS],
}

impl<W: AtomicWord, const RECEIVERS: usize> Answers<W, RECEIVERS> {
    /// A vCPU that has neither sent nor received.
    #[must_use]
    pub fn new() -> Self {
        const { assert!(RECEIVERS <= MOST_RECEIVERS, "a bit for each receiver") };
        Self {
            due: W::new(0),
            time_ns: W::new(0),
            received: W::new(0),
            receivers: core::array::from_fn(|_| W::new(0)),
        }
    }

    /// The vCPU is created or destroyed.
    pub fn reset(&self) {
        self.due.store(0, Relaxed);
        self.received.store(0, Relaxed);
        self.time_ns.store(0, Relaxed);
    }

    /// An IPI begins at `now_ns`: no answer to the one before is due.
    pub fn send(&self, now_ns: u64) {
        self.time_ns.store(now_ns, Relaxed);
        let ipi = (self.due.load(Relaxed) >> IPI_SHIFT).wrapping_add(1);
        self.due.store(ipi << IPI_SHIFT, Relaxed);
    }

    /// `target` accepts the IPI that this vCPU, of number `sender`, began last. Call it before the
    /// interrupt is pending. A receiver beyond the last bit is not awaited.
    pub fn accept(&self, sender: u32, target: &Self, receiver: Receiver) {
        if let Some(place) = self.receivers.get(receiver.index) {
            let (vcpu, index) = (u64::from(receiver.vcpu), receiver.index as u64);
            place.store(vcpu & VCPU_MASK, Relaxed);
            let ipi = self.due.load(Relaxed) >> IPI_SHIFT << IPI_SHIFT;
            let vector = u64::from(receiver.vector) << VECTOR_SHIFT;
            let received = u64::from(sender) & VCPU_MASK | index << INDEX_SHIFT | vector | ipi;
            target.received.store(received, Relaxed);
            self.due.fetch_or(1 << index, Relaxed);
        }
    }

    /// The receivers without an answer, in the order of their acceptance; none where the IPI is older than
    /// `window_ns`. A time of the future is too old.
    pub fn due(&self, window_ns: u64, now_ns: u64) -> impl Iterator<Item = u32> + '_ {
        let is_recent = self.has_sent(window_ns, now_ns);
        let due = if is_recent { self.due.load(Relaxed) } else { 0 };
        let receivers = self.receivers.iter().enumerate();
        receivers
            .filter(move |(index, _)| due >> index & 1 != 0)
            .map(|(_, receiver)| receiver.load(Relaxed) as u32)
    }

    /// Whether the last IPI is no older than `window_ns`. A time of the future is too old.
    #[must_use]
    pub fn has_sent(&self, window_ns: u64, now_ns: u64) -> bool {
        now_ns.wrapping_sub(self.time_ns.load(Relaxed)) <= window_ns
    }

    /// Time of the last IPI, in ns.
    #[must_use]
    pub fn sent_ns(&self) -> u64 {
        self.time_ns.load(Relaxed)
    }

    /// vCPU `receiver` ends the interrupt of `vector`: the answer that this is, if a sender waits for it.
    pub fn eoi(contexts: &[Self], receiver: u32, vector: u8) -> Option<Answered> {
        if vector < FIRST_LEGAL_VECTOR {
            return None;
        }
        let received = contexts.get(receiver as usize)?.received.load(Relaxed);
        let sender = (received & VCPU_MASK) as u32;
        let due = contexts.get(sender as usize)?.settle(received, vector)?;
        Some(Answered {
            sender,
            is_last: due & DUE_MASK == 0,
        })
    }

    /// Clears the bit of an answer: what is due without it.
    fn settle(&self, received: u64, vector: u8) -> Option<u64> {
        let bit = 1 << (received >> INDEX_SHIFT & (MOST_RECEIVERS as u64 - 1));
        let mut due = self.due.load(Relaxed);
        if (received >> VECTOR_SHIFT) as u8 != vector || received >> IPI_SHIFT != due >> IPI_SHIFT {
            return None;
        }
        // Each failure is another receiver's answer, or a further receiver.
        for _ in 0..2 * MOST_RECEIVERS {
            if due & bit == 0 {
                return None;
            }
            match self.due.compare_exchange(due, due & !bit, Relaxed, Relaxed) {
                Ok(_) => return Some(due & !bit),
                // A newer IPI is not answered.
                Err(found) if found >> IPI_SHIFT != due >> IPI_SHIFT => return None,
                Err(found) => due = found,
            }
        }
        debug_assert!(false, "a word changes more often than it has bits");
        None
    }
}

impl<W: AtomicWord, const RECEIVERS: usize> Default for Answers<W, RECEIVERS> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    type Contexts = [Answers<Cell<u64>>; 4];
    const WINDOW_NS: u64 = 50_000_000;

    fn contexts() -> Contexts {
        [(); 4].map(|()| Answers::new())
    }

    fn send(contexts: &Contexts, sender: u32, receivers: &[u32], vector: u8, now_ns: u64) {
        let source = &contexts[sender as usize];
        source.send(now_ns);
        for (index, &vcpu) in receivers.iter().enumerate() {
            let receiver = Receiver {
                vcpu,
                index,
                vector,
            };
            source.accept(sender, &contexts[vcpu as usize], receiver);
        }
    }

    fn due(contexts: &Contexts, sender: usize, now_ns: u64) -> alloc::vec::Vec<u32> {
        contexts[sender].due(WINDOW_NS, now_ns).collect()
    }

    #[test]
    fn each_receiver_owes_an_answer_of_its_own() {
        let contexts = contexts();
        send(&contexts, 0, &[1, 2, 3], 0x41, 1_000);
        assert_eq!(due(&contexts, 0, 1_000), [1, 2, 3]);
        // Another vector's EOI is no answer, and no one's bit is cleared twice.
        assert_eq!(Answers::eoi(&contexts, 2, 0x42), None);
        let answer = |receiver| Answers::eoi(&contexts, receiver, 0x41);
        let answered = |is_last| Some(Answered { sender: 0, is_last });
        assert_eq!((answer(2), answer(2)), (answered(false), None));
        assert_eq!(due(&contexts, 0, 2_000), [1, 3]);
        assert_eq!((answer(1), answer(3)), (answered(false), answered(true)));
        assert_eq!(due(&contexts, 0, 2_000), []);
    }

    #[test]
    fn a_vector_below_16_is_never_answered() {
        for (vector, is_legal) in [(15, false), (16, true)] {
            let contexts = contexts();
            send(&contexts, 1, &[0], vector, 1_000);
            let answered = Answers::eoi(&contexts, 0, vector);
            assert_eq!(answered.is_some(), is_legal, "{vector}");
        }
    }

    #[test]
    fn an_answer_to_an_earlier_ipi_leaves_a_newer_one() {
        let contexts = contexts();
        send(&contexts, 0, &[1, 2], 0x41, 1_000);
        // The sender does not wait: its next IPI has one receiver, in the other's place.
        send(&contexts, 0, &[2], 0x41, 2_000);
        assert_eq!(Answers::eoi(&contexts, 1, 0x41), None);
        assert_eq!(due(&contexts, 0, 2_000), [2]);
    }

    #[test]
    fn a_record_lasts_for_the_window() {
        let contexts = contexts();
        send(&contexts, 3, &[0], 0x41, 1_000);
        assert_eq!(contexts[3].sent_ns(), 1_000);
        assert_eq!(due(&contexts, 3, 1_000 + WINDOW_NS), [0]);
        assert_eq!(due(&contexts, 3, 1_001 + WINDOW_NS), []);
        assert_eq!(due(&contexts, 3, 999), []);
        contexts[3].reset();
        assert_eq!(due(&contexts, 3, 1_000), []);
    }

    #[test]
    fn a_receiver_beyond_the_last_bit_is_not_awaited() {
        let [source, target] = [(); 2].map(|()| Answers::<Cell<u64>, 2>::new());
        source.send(1_000);
        for index in 0..3 {
            let receiver = Receiver {
                vcpu: 7 + index as u32,
                index,
                vector: 0x41,
            };
            source.accept(0, &target, receiver);
        }
        assert!(source.due(WINDOW_NS, 1_000).eq([7, 8]));
    }

    #[test]
    fn a_vcpu_that_has_received_nothing_answers_no_one() {
        let contexts = contexts();
        contexts[0].send(1_000);
        for vector in [0, 15, 16, 255] {
            assert_eq!(Answers::eoi(&contexts, 2, vector), None);
        }
        assert_eq!(Answers::eoi(&contexts, 4, 0x41), None);
    }
}
