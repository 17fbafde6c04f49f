//! Results of items in their order, computed by several threads.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Results that may wait for the thread that takes them, so that a slow disk does not fill the memory.
const MOST_WAITING: usize = 64;

/// Work on items. One thread takes the results in the order of the items, while others work ahead.
pub(crate) struct Ahead<'w, I, T> {
    items: &'w [I],
    work: &'w (dyn Fn(&I) -> T + Sync),
    next: AtomicUsize,
    finished: Mutex<BTreeMap<usize, thread::Result<T>>>,
    changed: Condvar,
}

/// Ends the work when it is dropped, also by a panic: others wait for the thread that takes results.
pub(crate) struct StopAtEnd<'a, 'w, I, T>(&'a Ahead<'w, I, T>);

impl<'w, I, T> Ahead<'w, I, T> {
    pub(crate) fn new(items: &'w [I], work: &'w (dyn Fn(&I) -> T + Sync)) -> Self {
        Self {
            items,
            work,
            next: AtomicUsize::new(0),
            finished: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Works until all items are begun.
    pub(crate) fn help(&self) {
        loop {
            let mut finished = self.finished();
            while finished.len() >= MOST_WAITING
                && self.next.load(Ordering::Relaxed) < self.items.len()
            {
                finished = self.wait(finished);
            }
            drop(finished);
            if !self.begin_one() {
                break;
            }
        }
    }

    /// The result of an item. Until it is there, the thread works on the next item.
    pub(crate) fn take(&self, index: usize) -> T {
        loop {
            let found = self.finished().remove(&index);
            if let Some(result) = found {
                return self.taken(result);
            }
            if self.begin_one() {
                continue;
            }
            let mut finished = self.finished();
            loop {
                if let Some(result) = finished.remove(&index) {
                    drop(finished);
                    return self.taken(result);
                }
                finished = self.wait(finished);
            }
        }
    }

    pub(crate) const fn stop_at_end(&self) -> StopAtEnd<'_, 'w, I, T> {
        StopAtEnd(self)
    }

    fn taken(&self, result: thread::Result<T>) -> T {
        self.changed.notify_all();
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Works on the next item, if there is one.
    fn begin_one(&self) -> bool {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(item) = self.items.get(index) else {
            return false;
        };
        // A thread that waits for this result must not wait for ever.
        let result = catch_unwind(AssertUnwindSafe(|| (self.work)(item)));
        self.finished().insert(index, result);
        self.changed.notify_all();
        true
    }

    fn finished(&self) -> MutexGuard<'_, BTreeMap<usize, thread::Result<T>>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'g, V>(&self, guard: MutexGuard<'g, V>) -> MutexGuard<'g, V> {
        self.changed
            .wait(guard)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I, T> Drop for StopAtEnd<'_, '_, I, T> {
    fn drop(&mut self) {
        // Within the lock: a thread that is about to wait sees it, or hears of it.
        let _finished = self.0.finished();
        self.0.next.store(self.0.items.len(), Ordering::Relaxed);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the first results, with so many helpers.
    fn results(helpers: usize, count: usize, taken: usize) -> Vec<usize> {
        let square = |number: &usize| number * number;
        let numbers: Vec<usize> = (0..count).collect();
        let ahead = Ahead::new(&numbers, &square);
        thread::scope(|scope| {
            let _stop = ahead.stop_at_end();
            for _ in 0..helpers {
                scope.spawn(|| ahead.help());
            }
            (0..taken).map(|index| ahead.take(index)).collect()
        })
    }

    #[test]
    fn results_come_in_order_and_an_early_end_stops_the_helpers() {
        for helpers in [0, 1, 3] {
            for (count, taken) in [(0, 0), (1, 1), (500, 500), (500, 3), (500, 0)] {
                let expected: Vec<usize> = (0..taken).map(|number| number * number).collect();
                assert_eq!(results(helpers, count, taken), expected);
            }
        }
    }

    #[test]
    fn a_panic_of_a_helper_is_one_of_the_thread_that_takes() {
        let work = |number: &usize| assert!(*number != 3, "the third");
        let ahead = Ahead::new(&[1, 2, 3, 4, 5], &work);
        let ended = thread::scope(|scope| {
            let _stop = ahead.stop_at_end();
            let helper = scope.spawn(|| ahead.help());
            helper.join().expect("a helper has no panic");
            catch_unwind(AssertUnwindSafe(|| {
                (0..5).for_each(|index| ahead.take(index))
            }))
        });
        assert!(ended.is_err());
    }
}
