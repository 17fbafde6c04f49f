//! The words of posted interrupts: hardware's atomics, with a pause where a poster can be interrupted.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};

use stealtime_hypervisor::word::{AtomicWord, CacheLine};

use crate::cpu;

/// A word in memory that the processor reads too.
#[derive(Debug)]
#[repr(transparent)]
pub struct Word(AtomicU64);

/// The CPU that pauses, plus 1; 0: none.
static PAUSING: AtomicU32 = AtomicU32::new(0);
static PAUSE: AtomicU64 = AtomicU64::new(0);

/// This CPU pauses for so many cycles after the next bit that it sets. In a post that is between PIR and
/// ON, where an interrupt of the host may come.
pub fn pause_after_next_bit(cpu: u32, cycles: u64) {
    PAUSE.store(cycles, Relaxed);
    PAUSING.store(cpu + 1, Relaxed);
}

fn pause() {
    let pausing = PAUSING.load(Relaxed);
    if pausing != 0 && pausing == cpu::id() + 1 {
        PAUSING.store(0, Relaxed);
        cpu::delay(PAUSE.load(Relaxed));
    }
}

impl AtomicWord for Word {
    type Line = CacheLine;

    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        let old = self.0.fetch_or(bits, order);
        pause();
        old
    }
    fn fetch_and(&self, bits: u64, order: Ordering) -> u64 {
        self.0.fetch_and(bits, order)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, success, failure)
    }
    fn fence(&self, order: Ordering) {
        AtomicWord::fence(&self.0, order);
    }
    fn fence_after_rmw(&self) {
        self.0.fence_after_rmw();
    }
}
