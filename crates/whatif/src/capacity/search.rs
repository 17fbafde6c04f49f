//! The largest count that holds, found by few of them.

/// The largest count that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Largest {
    /// The count; `None` if not even the first one holds.
    pub count: Option<u32>,
    /// All counts up to the bound hold: the largest is at least this.
    pub is_bounded: bool,
}

/// Finds the largest count from `first` to `bound` that holds, where each count below one that holds does
/// too. Steps double until a count fails, then halve: at most 2 log2(bound) + 2 counts are tried.
///
/// # Errors
///
/// Those of `holds`.
pub fn largest<E>(
    first: u32,
    bound: u32,
    mut holds: impl FnMut(u32) -> Result<bool, E>,
) -> Result<Largest, E> {
    if first > bound || !holds(first)? {
        return Ok(Largest {
            count: None,
            is_bounded: false,
        });
    }
    let (mut good, mut step) = (first, 1);
    let mut bad = loop {
        if good == bound {
            return Ok(Largest {
                count: Some(bound),
                is_bounded: true,
            });
        }
        let next = good.saturating_add(step).min(bound);
        if !holds(next)? {
            break next;
        }
        good = next;
        step = step.saturating_mul(2);
    };
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        match holds(middle)? {
            true => good = middle,
            false => bad = middle,
        }
    }
    Ok(Largest {
        count: Some(good),
        is_bounded: false,
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// The most counts that [`largest`] tries.
    const fn most_tries(bound: u32) -> usize {
        2 * (u32::BITS - bound.leading_zeros()) as usize + 2
    }

    fn search(first: u32, bound: u32, truth: u32) -> (Largest, usize) {
        let mut tries = 0;
        let found = largest(first, bound, |count| {
            tries += 1;
            Ok::<bool, Infallible>(count <= truth)
        });
        let Ok(found) = found;
        (found, tries)
    }

    #[test]
    fn the_search_finds_what_trying_all_counts_finds() {
        for bound in 1..70 {
            for truth in 0..75 {
                let (found, tries) = search(1, bound, truth);
                let expected = (1..=bound).take_while(|count| *count <= truth).last();
                assert_eq!(found.count, expected, "bound {bound}, truth {truth}");
                assert_eq!(found.is_bounded, truth >= bound);
                assert!(tries <= most_tries(bound), "{tries} tries of {bound}");
            }
        }
        let (found, tries) = search(1, u32::MAX, 3_000_000_000);
        assert_eq!(found.count, Some(3_000_000_000));
        assert!(tries <= most_tries(u32::MAX));
    }

    #[test]
    fn a_failure_ends_the_search() {
        let failed = largest(1, 8, |count| if count < 3 { Ok(true) } else { Err(count) });
        assert_eq!(failed, Err(4));
    }
}
