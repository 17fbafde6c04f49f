//! The MWAIT promise: items 12 and 13, and the word under real threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use stealtime_hypervisor::wakeup_batch::icr::ApicMode;
use stealtime_hypervisor::wakeup_batch::softirq::{SeparateMwait, SetPending, SoftirqWord};
use stealtime_hypervisor::word::AtomicWord;

use crate::machine::{Machine, SCHEDULE, to};

#[test]
fn wakeup_sloppy_12_a_store_wakes_a_monitoring_cpu() {
    let mut m = Machine::new(8, ApicMode::X2apicPhysical);
    assert!(m.words[3].announce_mwait(true));
    assert!(m.words[3].still_idle());
    // This one's MONITOR misses stores: it makes no promise.
    assert!(m.words[4].announce_mwait(false));
    m.batch.begin().unwrap();
    for cpu in [3, 4, 5] {
        m.raise(cpu, SCHEDULE);
    }
    assert_eq!(m.noted(), [4, 5]);
    m.finish();
    assert_eq!(m.sent(), [to(4), to(5)]);
    assert_eq!(m.words[3].pending(), 1 << SCHEDULE);
    // Out of MWAIT with the softirq still pending: the next raiser of another one sends.
    m.words[3].leave_mwait();
    m.raise(3, 4);
    assert_eq!(m.sent(), [to(3)]);
}

#[test]
fn wakeup_sloppy_13_a_bit_set_before_monitor_is_seen() {
    let word = SoftirqWord::<Cell<u64>>::new();
    assert!(word.announce_mwait(true));
    assert!(word.in_mwait());
    // Before MONITOR: the raiser relies on the promise and sends nothing.
    assert_eq!(word.set_pending(SCHEDULE), SetPending::Monitored);
    assert!(!word.still_idle(), "must not MWAIT");
    word.leave_mwait();
    assert!(!word.in_mwait());
    assert!(!word.announce_mwait(true), "pending: not even announced");
    assert!(!word.in_mwait());
}

/// A word with a CPU that leaves MWAIT as soon as the word is stored to.
#[derive(Debug)]
struct Leaves(Cell<u64>);

impl AtomicWord for Leaves {
    type Line = ();
    fn new(value: u64) -> Self {
        Self(Cell::new(value))
    }
    fn load(&self, _order: Ordering) -> u64 {
        self.0.get()
    }
    fn store(&self, value: u64, _order: Ordering) {
        self.0.set(value);
    }
    fn swap(&self, value: u64, _order: Ordering) -> u64 {
        self.0.replace(value)
    }
    fn fetch_or(&self, bits: u64, _order: Ordering) -> u64 {
        self.0.replace(self.0.get() | bits)
    }
    fn fetch_and(&self, bits: u64, _order: Ordering) -> u64 {
        self.0.replace(self.0.get() & bits)
    }
    fn fetch_add(&self, value: u64, _order: Ordering) -> u64 {
        self.0.replace(self.0.get().wrapping_add(value))
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        _success: Ordering,
        _failure: Ordering,
    ) -> Result<u64, u64> {
        let found = self.0.get();
        if found == current {
            self.0.set(new & 0xffff_ffff);
            Ok(found)
        } else {
            Err(found)
        }
    }
    fn fence(&self, _order: Ordering) {}
}

#[test]
fn wakeup_sloppy_12_the_promise_is_read_in_the_step_of_the_store() {
    let word = SoftirqWord::<Leaves>::new();
    assert!(word.announce_mwait(true));
    // It has left by now; looking again would send an IPI for nothing.
    assert_eq!(word.set_pending(SCHEDULE), SetPending::Monitored);
    assert!(!word.in_mwait());
}

#[test]
fn a_separate_flag_is_too_late_for_a_cpu_that_left() {
    let (word, flag) = (SoftirqWord::<Cell<u64>>::new(), SeparateMwait::new());
    assert!(flag.announce_mwait(&word));
    assert_eq!(flag.set_pending(&word, SCHEDULE), SetPending::Monitored);
    flag.leave_mwait();
    assert!(!flag.announce_mwait(&word));
    assert_eq!(
        flag.set_pending(&word, SCHEDULE),
        SetPending::AlreadyPending
    );
    // No softirq has this number, and none is raised.
    assert_eq!(flag.set_pending(&word, 32), SetPending::AlreadyPending);
    // Between store and test the target wakes by the store and leaves: an IPI for nothing. The
    // two halves of `set_pending`, with the target's step between them:
    word.take(u32::MAX);
    assert!(flag.announce_mwait(&word));
    let first_half = word.set_pending(SCHEDULE);
    assert_eq!(
        first_half,
        SetPending::NeedsIpi,
        "this word makes no promise"
    );
    flag.leave_mwait();
    assert_eq!(flag.set_pending(&word, 4), SetPending::NeedsIpi);
}

#[test]
fn numbers_beyond_the_word_name_no_softirq() {
    let word = SoftirqWord::<Cell<u64>>::new();
    for nr in [32, 33, 64, u32::MAX] {
        assert_eq!(word.set_pending(nr), SetPending::AlreadyPending);
        word.set_own(nr);
    }
    assert_eq!((word.pending(), word.in_mwait()), (0, false));
}

/// Real threads: each raise is answered exactly once, by an IPI, by the promise, or by an earlier
/// raise that is still pending. Also run under Miri.
#[test]
fn no_wakeup_is_lost_between_threads() {
    let rounds = if cfg!(miri) { 40 } else { 20_000 };
    let word = SoftirqWord::<AtomicU64>::new();
    let ipi = AtomicU32::new(0);
    let handled = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut done = 0;
            while done < rounds {
                if word.announce_mwait(true) {
                    // MWAIT: ends by a store to the word, or by an IPI.
                    while word.still_idle() && ipi.swap(0, Ordering::AcqRel) == 0 {
                        thread::yield_now();
                    }
                    word.leave_mwait();
                }
                if word.take(u32::MAX) != 0 {
                    done += 1;
                    handled.store(done, Ordering::Release);
                }
            }
        });
        for round in 0..rounds {
            match word.set_pending(SCHEDULE) {
                SetPending::NeedsIpi => ipi.store(1, Ordering::Release),
                SetPending::Monitored => {}
                SetPending::AlreadyPending => panic!("round {round}: no other CPU raises"),
            }
            while handled.load(Ordering::Acquire) <= round {
                thread::yield_now();
            }
        }
    });
    assert_eq!(word.pending(), 0);
}
