//! What is kept of states already seen: fingerprints, in a table.

use std::hash::{Hash, Hasher};

/// 128 bits of a state: the chance that two explored states have equal ones is below 1e-20.
///
/// Small numbers, which most are, are packed: a number below 255 is a byte, another one a byte of
/// 255 and its eight. A state's structure says how many numbers it has, so that no two states
/// have the same bytes.
#[derive(Debug, Default)]
pub(crate) struct Fingerprint {
    lanes: (u64, u64),
    packed: u64,
    bits: u32,
}

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xd6e8_feb8_6659_fd93;

#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Fingerprint {
    pub(crate) fn of(value: &impl Hash) -> [u64; 2] {
        let mut hasher = Self {
            lanes: (K0, K1),
            packed: 0,
            bits: 0,
        };
        value.hash(&mut hasher);
        hasher.word(hasher.packed);
        hasher.word(u64::from(hasher.bits));
        let (a, b) = hasher.lanes;
        // Zero marks an empty place of the table.
        [mix(a ^ K1, K0 ^ b.rotate_left(32)) | 1, mix(b ^ K0, K1 ^ a)]
    }
    #[inline]
    fn word(&mut self, word: u64) {
        let (a, b) = &mut self.lanes;
        *a = mix(*a ^ word, K1);
        *b = mix(b.rotate_left(23) ^ word, K0).wrapping_add(word);
    }
    #[inline]
    fn byte(&mut self, byte: u8) {
        self.packed |= u64::from(byte) << self.bits;
        self.bits += 8;
        if self.bits == 64 {
            self.word(self.packed);
            (self.packed, self.bits) = (0, 0);
        }
    }
    #[inline]
    fn number(&mut self, number: u64) {
        if number < 255 {
            self.byte(number as u8);
        } else {
            self.byte(255);
            self.word(number);
        }
    }
}

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.lanes.0 ^ self.lanes.1
    }
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            let mut raw = [0; 8];
            raw.copy_from_slice(word);
            self.number(u64::from_le_bytes(raw));
        }
        for &byte in words.remainder() {
            self.byte(byte);
        }
    }
    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.byte(n);
    }
    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.number(u64::from(n));
    }
    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.number(n);
    }
    #[inline]
    fn write_i64(&mut self, n: i64) {
        self.number(n as u64);
    }
    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.number(n as u64);
    }
    #[inline]
    fn write_isize(&mut self, n: isize) {
        self.number(n as u64);
    }
}

/// A set of fingerprints.
#[derive(Debug)]
pub(crate) struct Visited {
    places: Vec<[u64; 2]>,
    used: usize,
}

impl Visited {
    pub(crate) fn new() -> Self {
        Self {
            places: vec![[0; 2]; 1 << 16],
            used: 0,
        }
    }
    fn place(&self, print: [u64; 2]) -> (usize, bool) {
        let mask = self.places.len() - 1;
        let mut index = (print[1] as usize) & mask;
        loop {
            let stored = self.places[index];
            if stored == print {
                return (index, true);
            }
            if stored == [0; 2] {
                return (index, false);
            }
            index = (index + 1) & mask;
        }
    }
    /// Whether a fingerprint is in its first place, where most are.
    #[inline]
    pub(crate) fn is_first(&self, print: [u64; 2]) -> bool {
        self.places[(print[1] as usize) & (self.places.len() - 1)] == print
    }
    pub(crate) fn contains(&self, print: [u64; 2]) -> bool {
        self.place(print).1
    }
    pub(crate) fn insert(&mut self, print: [u64; 2]) -> bool {
        let (index, known) = self.place(print);
        if known {
            return false;
        }
        self.places[index] = print;
        self.used += 1;
        if self.used * 3 > self.places.len() * 2 {
            let larger = vec![[0; 2]; self.places.len() * 2];
            let old = core::mem::replace(&mut self.places, larger);
            for print in old.into_iter().filter(|p| *p != [0; 2]) {
                let (index, _) = self.place(print);
                self.places[index] = print;
            }
        }
        true
    }
    pub(crate) fn bytes(&self) -> u64 {
        (self.places.len() * 16) as u64
    }
}
