//! A function over many values on several threads, with its results in their order.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use stealtime_results::parallel;
//!
//! let squares = parallel::map(&[1, 2, 3], NonZeroUsize::MIN, |number| number * number);
//! assert_eq!(squares, [1, 4, 9]);
//! ```

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

/// Calls `function` for each value on so many threads, or on fewer under a limit of threads.
pub fn map<T: Sync, U: Send>(
    values: &[T],
    threads: NonZeroUsize,
    function: impl Fn(&T) -> U + Sync,
) -> Vec<U> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<U>>> = values.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let (Some(value), Some(result)) = (values.get(index), results.get(index)) else {
                break;
            };
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(function(value));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.get().min(values.len()) {
            // The threads that started, and this one, do all of it.
            if Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    let results = results.into_iter();
    results
        .filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_values() {
        let values: Vec<usize> = (0..100).collect();
        for threads in [1, 2, 7, 200] {
            let threads = NonZeroUsize::new(threads).expect("not 0");
            let doubled = map(&values, threads, |value| value * 2);
            assert_eq!(
                doubled,
                values.iter().map(|value| value * 2).collect::<Vec<_>>()
            );
            assert!(map(&[] as &[u8], threads, |value| *value).is_empty());
        }
    }
}
