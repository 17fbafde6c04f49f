//! A set of the 256 interrupt vectors.

use core::fmt;

/// Vectors 0–255 as four 64-bit words: vector `v` is bit `v % 64` of word `v / 64`.
///
/// The layout of the PIR, and of the IRR, ISR, TMR and EOI-exit bitmap with their gaps left out.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct VectorSet(pub [u64; 4]);

/// The word that holds a vector, 0–3.
pub(crate) const fn word_of(vector: u8) -> usize {
    (vector >> 6) as usize
}

/// The bit that a vector has in its word.
pub(crate) const fn bit_of(vector: u8) -> u64 {
    1 << (vector & 63)
}

impl VectorSet {
    /// No vector.
    pub const EMPTY: Self = Self([0; 4]);

    /// Adds a vector; whether it was new.
    pub fn insert(&mut self, vector: u8) -> bool {
        let word = &mut self.0[word_of(vector)];
        let new = *word & bit_of(vector) == 0;
        *word |= bit_of(vector);
        new
    }

    /// Removes a vector; whether it was there.
    pub fn remove(&mut self, vector: u8) -> bool {
        let word = &mut self.0[word_of(vector)];
        let present = *word & bit_of(vector) != 0;
        *word &= !bit_of(vector);
        present
    }

    /// Whether the vector is in the set.
    #[must_use]
    pub const fn contains(&self, vector: u8) -> bool {
        self.0[word_of(vector)] & bit_of(vector) != 0
    }

    /// Whether no vector is in the set.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0[0] | self.0[1] | self.0[2] | self.0[3] == 0
    }

    /// From the eight 32-bit registers of an APIC page (IRR, ISR or TMR), lowest vectors first. The
    /// registers lie 16 bytes apart in the page.
    #[must_use]
    pub fn from_registers(registers: [u32; 8]) -> Self {
        let [r0, r1, r2, r3, r4, r5, r6, r7] = registers.map(u64::from);
        Self([r0 | r1 << 32, r2 | r3 << 32, r4 | r5 << 32, r6 | r7 << 32])
    }

    /// The eight 32-bit registers of an APIC page, lowest vectors first.
    #[must_use]
    pub fn to_registers(self) -> [u32; 8] {
        let [w0, w1, w2, w3] = self.0;
        // The casts take the low halves.
        [w0, w0 >> 32, w1, w1 >> 32, w2, w2 >> 32, w3, w3 >> 32].map(|half| half as u32)
    }

    /// How many vectors are in the set, 0–256.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        self.0.iter().map(|w| w.count_ones()).sum()
    }

    /// The highest vector, which has the highest priority.
    #[must_use]
    #[inline]
    pub fn highest(&self) -> Option<u8> {
        let highest_in = |word: usize| {
            let bits = self.0[word];
            // At most 3 * 64 + 63.
            (bits != 0).then(|| (word as u32 * 64 + bits.ilog2()) as u8)
        };
        highest_in(3)
            .or_else(|| highest_in(2))
            .or_else(|| highest_in(1))
            .or_else(|| highest_in(0))
    }

    /// The vectors in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|&v| self.contains(v))
    }
}

impl FromIterator<u8> for VectorSet {
    fn from_iter<I: IntoIterator<Item = u8>>(vectors: I) -> Self {
        let mut set = Self::EMPTY;
        for vector in vectors {
            set.insert(vector);
        }
        set
    }
}

impl fmt::Debug for VectorSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
