//! A function over many values on several threads, with its results in their order.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Calls `function` for each value, `jobs` at a time.
pub(crate) fn map<T: Sync, U: Send>(
    values: &[T],
    jobs: usize,
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
        for _ in 1..jobs.min(values.len()) {
            scope.spawn(work);
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
        for jobs in [0, 1, 2, 7, 200] {
            let doubled = map(&values, jobs, |value| value * 2);
            assert_eq!(
                doubled,
                values.iter().map(|value| value * 2).collect::<Vec<_>>()
            );
        }
        assert!(map(&[] as &[u8], 3, |value| *value).is_empty());
    }
}
