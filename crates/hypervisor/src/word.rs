//! The one place that decides between real and instrumented atomics.
//!
//! Every lock-free protocol of this crate is generic over [`AtomicWord`]. Production
//! ([`AtomicU64`]), a simulator on one thread ([`Cell<u64>`](Cell)) and an interleaving checker
//! with words of its own run the same code. All shared state lies in such words: a checker sees
//! each load, store, read-modify-write and fence.
//!
//! ```
//! use std::cell::Cell;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use stealtime_hypervisor::word::AtomicWord;
//!
//! // The same lines for both.
//! fn next<W: AtomicWord>(word: &W) -> u64 {
//!     word.fetch_add(1, Ordering::Relaxed) + 1
//! }
//! assert_eq!(next(&AtomicU64::new(6)), 7);
//! assert_eq!(next(&<Cell<u64> as AtomicWord>::new(6)), 7);
//! ```

use core::cell::Cell;
use core::fmt::Debug;
use core::sync::atomic::{AtomicU64, Ordering};

/// A 64-bit word that several CPUs may touch at once.
///
/// `order` follows the rules of [`core::sync::atomic`]: a load takes `Relaxed`, `Acquire` or
/// `SeqCst`, a store `Relaxed`, `Release` or `SeqCst`. This crate only passes those; another
/// caller that does not gets the panic which `core` documents.
pub trait AtomicWord: Debug {
    /// Alignment of structures of these words: [`CacheLine`] if hardware reads them, else `()`.
    type Line: Clone + Debug + PartialEq + Eq + core::hash::Hash;
    /// A word that holds `value`.
    fn new(value: u64) -> Self;
    /// Reads the word.
    fn load(&self, order: Ordering) -> u64;
    /// Writes the word.
    fn store(&self, value: u64, order: Ordering);
    /// Writes the word and returns what it held.
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Sets `bits` and returns what the word held.
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64;
    /// Keeps only `bits` and returns what the word held.
    fn fetch_and(&self, bits: u64, order: Ordering) -> u64;
    /// Adds, wrapping, and returns what the word held.
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    /// Writes `new` if the word holds `current`.
    ///
    /// # Errors
    /// The value found, when it was not `current`; the word is unchanged then.
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
    /// A memory fence, which orders all memory. The word only identifies the protocol, for checkers
    /// that keep their state in the words. `Relaxed` has no effect.
    fn fence(&self, order: Ordering);
    /// A full fence that directly follows a read-modify-write of the same CPU (the kernel's
    /// `smp_mb__after_atomic`). Free where a locked instruction is a full barrier already.
    #[inline]
    fn fence_after_rmw(&self) {
        self.fence(Ordering::SeqCst);
    }
    /// Runs `body`, which represents hardware that owns the whole cache line (VT-d posts in one
    /// atomic step). An instrumented word excludes other CPUs. The default only runs `body`: it is
    /// exact on one thread, and on several it keeps PIR before ON.
    #[inline]
    fn one_step<R>(&self, body: impl FnOnce() -> R) -> R {
        body()
    }
}

/// Aligns what it stands in as a cache line; of no size in an empty array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(align(64))]
pub struct CacheLine;

/// Production: the hardware's atomics.
impl AtomicWord for AtomicU64 {
    type Line = CacheLine;
    #[inline]
    fn new(value: u64) -> Self {
        AtomicU64::new(value)
    }
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }
    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::swap(self, value, order)
    }
    #[inline]
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_or(self, bits, order)
    }
    #[inline]
    fn fetch_and(&self, bits: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_and(self, bits, order)
    }
    #[inline]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_add(self, value, order)
    }
    #[inline]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        AtomicU64::compare_exchange(self, current, new, success, failure)
    }
    #[inline]
    fn fence(&self, order: Ordering) {
        if order != Ordering::Relaxed {
            core::sync::atomic::fence(order);
        }
    }
    #[inline]
    fn fence_after_rmw(&self) {
        // On x86 a locked instruction orders all earlier and later accesses, so that only the
        // compiler must be held back. Miri models the language, not x86, and needs the fence.
        if cfg!(all(target_arch = "x86_64", not(miri))) {
            core::sync::atomic::compiler_fence(Ordering::SeqCst);
        } else {
            core::sync::atomic::fence(Ordering::SeqCst);
        }
    }
}

/// One thread, as in a discrete-event simulator: cloneable, and nothing to order.
impl AtomicWord for Cell<u64> {
    type Line = ();
    fn new(value: u64) -> Self {
        Cell::new(value)
    }
    fn load(&self, _order: Ordering) -> u64 {
        self.get()
    }
    fn store(&self, value: u64, _order: Ordering) {
        self.set(value);
    }
    fn swap(&self, value: u64, _order: Ordering) -> u64 {
        self.replace(value)
    }
    fn fetch_or(&self, bits: u64, _order: Ordering) -> u64 {
        self.replace(self.get() | bits)
    }
    fn fetch_and(&self, bits: u64, _order: Ordering) -> u64 {
        self.replace(self.get() & bits)
    }
    fn fetch_add(&self, value: u64, _order: Ordering) -> u64 {
        self.replace(self.get().wrapping_add(value))
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        _success: Ordering,
        _failure: Ordering,
    ) -> Result<u64, u64> {
        let found = self.get();
        if found == current {
            self.set(new);
            Ok(found)
        } else {
            Err(found)
        }
    }
    fn fence(&self, _order: Ordering) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behaves<W: AtomicWord>() {
        let w = W::new(0b0110);
        assert_eq!(w.fetch_or(0b1001, Ordering::SeqCst), 0b0110);
        assert_eq!(w.fetch_and(0b1010, Ordering::SeqCst), 0b1111);
        assert_eq!(w.swap(7, Ordering::SeqCst), 0b1010);
        assert_eq!(w.fetch_add(u64::MAX, Ordering::Relaxed), 7);
        let (ok, fail) = (Ordering::SeqCst, Ordering::Relaxed);
        assert_eq!(w.compare_exchange(5, 9, ok, fail), Err(6));
        assert_eq!(w.compare_exchange(6, 9, ok, fail), Ok(6));
        w.fence(Ordering::Relaxed);
        w.fence(Ordering::SeqCst);
        w.fence_after_rmw();
        w.store(1, Ordering::Release);
        assert_eq!(w.one_step(|| w.load(Ordering::Acquire)), 1);
    }

    #[test]
    fn both_words_behave_alike() {
        behaves::<AtomicU64>();
        behaves::<Cell<u64>>();
    }
}
