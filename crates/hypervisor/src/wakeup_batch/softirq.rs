//! A CPU's softirq word: pending bits, and whether the CPU watches them in MWAIT.
//!
//! ```text
//!  bit 63        33   32        31 … 0
//!  ┌───────────────┬─────────┬─────────┐
//!  │       0       │ in_mwait│ pending │
//!  └───────────────┴─────────┴─────────┘
//! ```
//!
//! Both lie in one word, as in Xen 4.20.1 and later. The atomic step that sets a pending bit shows
//! whether the CPU notices by itself. Xen up to 4.20.0 asks a global set of CPUs afterwards. The
//! CPU may have left MWAIT between the two, and an IPI is sent for nothing. That scheme is
//! [`SeparateMwait`].

use core::sync::atomic::Ordering;

use crate::word::AtomicWord;

/// Softirq numbers are below this.
pub const NR_SOFTIRQS: u32 = 32;

const PENDING: u64 = u32::MAX as u64;
const IN_MWAIT: u64 = 1 << 32;

/// What the raiser of a softirq must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetPending {
    /// It was pending: its first raiser owns the notification.
    AlreadyPending,
    /// The CPU is in MWAIT on this very word and wakes by the store.
    Monitored,
    /// The CPU needs an IPI.
    NeedsIpi,
}

/// One CPU's word, in a cache line of its own: MONITOR watches a whole line, and a neighbour's
/// softirq must not end this CPU's MWAIT.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(align(64))]
pub struct SoftirqWord<W> {
    word: W,
}

impl<W: AtomicWord> Default for SoftirqWord<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W: AtomicWord> SoftirqWord<W> {
    /// Nothing pending, not in MWAIT.
    #[must_use]
    pub fn new() -> Self {
        Self { word: W::new(0) }
    }

    /// The pending bits.
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.word.load(Ordering::Acquire) as u32
    }

    /// Whether the CPU promises to notice pending bits without an IPI.
    #[must_use]
    pub fn in_mwait(&self) -> bool {
        self.word.load(Ordering::Acquire) & IN_MWAIT != 0
    }

    /// Sets bit `nr` (below [`NR_SOFTIRQS`]; higher ones name none and count as pending).
    pub fn set_pending(&self, nr: u32) -> SetPending {
        let bit = if nr < NR_SOFTIRQS { 1 << nr } else { 0 };
        let mut value = self.word.load(Ordering::Relaxed);
        loop {
            if value & bit == bit {
                return SetPending::AlreadyPending;
            }
            let swapped =
                self.word
                    .compare_exchange(value, value | bit, Ordering::AcqRel, Ordering::Relaxed);
            match swapped {
                Ok(_) if value & IN_MWAIT != 0 => return SetPending::Monitored,
                Ok(_) => return SetPending::NeedsIpi,
                Err(now) => value = now,
            }
        }
    }

    /// Sets a bit of the CPU's own word: no IPI is needed, whoever else set it.
    pub fn set_own(&self, nr: u32) {
        let bit = if nr < NR_SOFTIRQS { 1 << nr } else { 0 };
        self.word.fetch_or(bit, Ordering::AcqRel);
    }

    /// The CPU handles `bits`: clears and returns those of them that were pending.
    pub fn take(&self, bits: u32) -> u32 {
        let previous = self.word.fetch_and(!u64::from(bits), Ordering::AcqRel);
        previous as u32 & bits
    }

    /// Idle side, first step: announces MWAIT unless something is pending; true if announced.
    ///
    /// Then MONITOR the word's line, ask [`still_idle`](Self::still_idle), MWAIT if so, and
    /// [`leave_mwait`](Self::leave_mwait) in any case. Where MONITOR
    /// misses stores (`X86_BUG_MONITOR`) a CPU must not announce itself: pass `monitor_reliable`
    /// false, and it gets IPIs.
    pub fn announce_mwait(&self, monitor_reliable: bool) -> bool {
        if self.word.load(Ordering::Acquire) & PENDING != 0 {
            return false;
        }
        if monitor_reliable {
            self.word.fetch_or(IN_MWAIT, Ordering::AcqRel);
        }
        true
    }

    /// Idle side, after MONITOR: whether to MWAIT. This second look is necessary: a bit set between
    /// the first one and MONITOR does not end the MWAIT, and its raiser sends no IPI.
    #[must_use]
    pub fn still_idle(&self) -> bool {
        self.word.load(Ordering::SeqCst) & PENDING == 0
    }

    /// Idle side, last step: takes the promise back.
    pub fn leave_mwait(&self) {
        self.word.fetch_and(!IN_MWAIT, Ordering::AcqRel);
    }

    /// Announces or takes back the promise whatever is pending (a restored state).
    pub fn restore_mwait(&self, in_mwait: bool) {
        if in_mwait {
            self.word.fetch_or(IN_MWAIT, Ordering::AcqRel);
        } else {
            self.leave_mwait();
        }
    }
}

/// The older scheme: the flag lies outside the monitored word.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SeparateMwait<W> {
    flag: W,
}

impl<W: AtomicWord> Default for SeparateMwait<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W: AtomicWord> SeparateMwait<W> {
    /// Not in MWAIT.
    #[must_use]
    pub fn new() -> Self {
        Self { flag: W::new(0) }
    }

    /// Sets bit `nr` in `word`, then asks the flag, as two steps.
    pub fn set_pending(&self, word: &SoftirqWord<W>, nr: u32) -> SetPending {
        let bit = if nr < NR_SOFTIRQS { 1 << nr } else { 0 };
        if word.word.fetch_or(bit, Ordering::AcqRel) & bit == bit {
            return SetPending::AlreadyPending;
        }
        word.word.fence_after_rmw();
        if self.flag.load(Ordering::Relaxed) != 0 {
            SetPending::Monitored
        } else {
            SetPending::NeedsIpi
        }
    }

    /// Idle side, after MONITOR: announces MWAIT unless something is pending; true if so.
    pub fn announce_mwait(&self, word: &SoftirqWord<W>) -> bool {
        let idle = word.still_idle();
        if idle {
            self.flag.store(1, Ordering::SeqCst);
        }
        idle
    }

    /// Idle side, after MWAIT.
    pub fn leave_mwait(&self) {
        self.flag.store(0, Ordering::SeqCst);
    }
}
