//! Hash maps for small integer keys in the hot path.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Multiply and rotate: a few cycles a key. Not safe against chosen keys, so every table that
/// uses it is bounded.
#[derive(Debug, Default, Clone, Copy)]
pub struct IntHasher(u64);

/// An odd number with bits in no pattern (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl IntHasher {
    const fn add(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(SPREAD);
    }
}

impl Hasher for IntHasher {
    fn finish(&self) -> u64 {
        // The table takes its bucket from the low bits, the product is best in the high ones.
        self.0.rotate_left(26)
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.add(u64::from(byte));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.add(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.add(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    fn write_i32(&mut self, value: i32) {
        self.add(u64::from(value.cast_unsigned()));
    }
}

/// A map from integers.
pub type IntMap<K, V> = HashMap<K, V, BuildHasherDefault<IntHasher>>;
