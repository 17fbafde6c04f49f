//! The interrupt request register: shared between the vCPU, its senders and hardware.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::Lapic;
use super::vector_set::{VectorSet, bit_of, word_of};
use crate::word::AtomicWord;

/// The IRR of one vCPU.
///
/// Any CPU may set a bit ([`set`](Self::set)); only the vCPU's thread, or the hardware that runs
/// the vCPU, clears bits. Unlike the rest of the LAPIC it is therefore made of atomic words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Irr<W> {
    words: [W; 4],
    /// 0: the IRR is empty for sure, 1: it must be searched (the kernel's `irr_pending`).
    pending: W,
}

/// What a merge of PIR bits into the IRR left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The highest vector in the IRR afterwards.
    pub highest: Option<u8>,
    /// Whether that vector is one that the merge newly set.
    pub highest_is_new: bool,
}

impl<W: AtomicWord> Default for Irr<W> {
    /// An empty IRR that says "search me", as a LAPIC is created.
    fn default() -> Self {
        Self {
            words: [(); 4].map(|()| W::new(0)),
            pending: W::new(1),
        }
    }
}

impl<W: AtomicWord> Irr<W> {
    /// Requests an interrupt, from any CPU. Whether the bit was clear before.
    pub fn set(&self, vector: u8) -> bool {
        let bit = bit_of(vector);
        let previous = self.words[word_of(vector)].fetch_or(bit, SeqCst) & bit;
        // After the bit: a clear that races resets the flag before it searches.
        self.pending.store(1, SeqCst);
        previous == 0
    }

    /// Withdraws a request (vCPU thread only). With APICv the `irr_pending` hint stays 1.
    pub fn clear(&self, vector: u8, apicv: bool) -> bool {
        let (word, bit) = (&self.words[word_of(vector)], bit_of(vector));
        if apicv {
            return word.fetch_and(!bit, SeqCst) & bit != 0;
        }
        self.pending.store(0, SeqCst);
        let previous = word.fetch_and(!bit, SeqCst) & bit;
        // The search comes after the store of 0. A bit that is set in between is found here, or
        // its setter's store of 1 comes last.
        if !self.snapshot().is_empty() {
            self.pending.store(1, SeqCst);
        }
        previous != 0
    }

    /// The bits, read word by word.
    #[inline]
    pub fn snapshot(&self) -> VectorSet {
        VectorSet([0, 1, 2, 3].map(|i: usize| self.words[i].load(Relaxed)))
    }

    /// Takes all requests, for the virtual-APIC page (vCPU thread only, before a VM entry with
    /// virtual-interrupt delivery). [`merge`](Self::merge) returns after the exit what the processor
    /// has not delivered. The `irr_pending` hint stays 1, as APICv requires.
    pub fn take(&self) -> VectorSet {
        let swapped = |word: &W| match word.load(Relaxed) {
            0 => 0,
            _ => word.swap(0, SeqCst),
        };
        VectorSet([0, 1, 2, 3].map(|i: usize| swapped(&self.words[i])))
    }

    /// The highest requested vector, by the hint: `None` if the hint says empty.
    pub fn highest(&self) -> Option<u8> {
        if self.is_pending() {
            self.snapshot().highest()
        } else {
            None
        }
    }

    /// The `irr_pending` hint.
    pub fn is_pending(&self) -> bool {
        self.pending.load(SeqCst) != 0
    }

    /// Sets the `irr_pending` hint: the IRR must be searched.
    pub fn mark_pending(&self) {
        self.pending.store(1, SeqCst);
    }

    /// ORs `bits` into the IRR (the kernel's `__kvm_apic_update_irr`). Words that get no bit are
    /// only read. `highest` ignores the `irr_pending` hint.
    #[inline]
    pub fn merge(&self, bits: &VectorSet) -> Merged {
        let mut now = [0; 4];
        let mut new = [0; 4];
        for (i, &add) in bits.0.iter().enumerate() {
            let previous = if add == 0 {
                self.words[i].load(Relaxed)
            } else {
                self.words[i].fetch_or(add, SeqCst)
            };
            now[i] = previous | add;
            new[i] = add & !previous;
        }
        let highest = VectorSet(now).highest();
        let newest = VectorSet(new).highest();
        Merged {
            highest,
            highest_is_new: newest.is_some() && newest == highest,
        }
    }
}

/// Where a LAPIC finds its requests: the IRR alone, or behind it a posted-interrupt descriptor
/// that must be synchronized first.
pub trait InterruptSource<W: AtomicWord> {
    /// The IRR.
    fn irr(&self) -> &Irr<W>;
    /// Brings the IRR up to date and returns the highest requested vector. May change RVI or
    /// request an event.
    fn refresh(&self, lapic: &mut Lapic) -> Option<u8>;
}

/// No descriptor: a software LAPIC, or AMD's AVIC.
impl<W: AtomicWord> InterruptSource<W> for Irr<W> {
    fn irr(&self) -> &Irr<W> {
        self
    }
    fn refresh(&self, _lapic: &mut Lapic) -> Option<u8> {
        self.highest()
    }
}
