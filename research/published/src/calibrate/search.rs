//! The search for a value: bisection over whole steps.

use std::collections::BTreeMap;

/// How far to either side of the found value the slope is looked at: its 50th part.
const SLOPE_PART: u64 = 50;

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    /// The value with the figure nearest to the target.
    pub(super) value: u64,
    /// Its figure.
    pub(super) figure: f64,
    /// Half the width of the figure's interval.
    pub(super) half_width: Option<f64>,
    /// By how many percent the figure changes for each percent of the value.
    pub(super) slope: f64,
    /// How many values were tried.
    pub(super) tried: usize,
}

type At = (f64, Option<f64>);

/// Searches the step among `0..=steps` with the figure nearest to `target`. `value` is the value
/// of a step, and `figure` the figure of a value.
///
/// The inner error has the figures of both ends, if the target is not between them.
///
/// # Errors
///
/// What `figure` fails with.
pub(super) fn search<E>(
    steps: u64,
    value: impl Fn(u64) -> u64,
    target: f64,
    figure: &mut dyn FnMut(u64) -> Result<At, E>,
) -> Result<Result<Found, (f64, f64)>, E> {
    let mut tried: BTreeMap<u64, At> = BTreeMap::new();
    let mut figure_at = |step: u64, tried: &mut BTreeMap<u64, At>| -> Result<f64, E> {
        if let Some(known) = tried.get(&step) {
            return Ok(known.0);
        }
        let new = figure(value(step))?;
        tried.insert(step, new);
        Ok(new.0)
    };
    let (mut low, mut high) = (0, steps);
    let at_low = figure_at(low, &mut tried)?;
    let at_high = figure_at(high, &mut tried)?;
    let is_above = |figure: f64| figure > target;
    if is_above(at_low) == is_above(at_high) && at_low != target && at_high != target {
        return Ok(Err((at_low, at_high)));
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        // The target stays between the figures of both ends, whatever they do in between.
        match is_above(figure_at(middle, &mut tried)?) == is_above(at_low) {
            true => low = middle,
            false => high = middle,
        }
    }
    // Of the two steps with the target between them the nearer one: a value further off may come as
    // near by chance.
    let (below, above) = (figure_at(low, &mut tried)?, figure_at(high, &mut tried)?);
    let best = match (below - target).abs() <= (above - target).abs() {
        true => low,
        false => high,
    };
    let part = (best / SLOPE_PART).max(1);
    let (below, above) = (
        best.saturating_sub(part),
        best.saturating_add(part).min(steps),
    );
    let rise = figure_at(above, &mut tried)? - figure_at(below, &mut tried)?;
    let run = value(above).abs_diff(value(below)) as f64;
    let mean = figure_at(best, &mut tried)?;
    Ok(Ok(Found {
        value: value(best),
        figure: mean,
        half_width: tried.get(&best).and_then(|known| known.1),
        slope: rise / run * value(best) as f64 / mean,
        tried: tried.len(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(steps: u64, target: f64, shape: impl Fn(u64) -> f64) -> Result<Found, (f64, f64)> {
        let mut figure = |value| Ok::<_, ()>((shape(value), None));
        search(steps, |step| 100 + step, target, &mut figure).expect("shapes do not fail")
    }

    #[test]
    fn a_rising_and_a_falling_line_are_met_to_the_step() {
        let up = of(1_000, 1_234.4, |x| 2.0 * x as f64).expect("it is between");
        assert_eq!((up.value, up.figure), (617, 1_234.0));
        assert!((up.slope - 1.0).abs() < 1e-9, "{up:?}");
        assert!(up.tried <= 15, "{up:?}");
        let down = of(1_000, 500.0, |x| 1_100.0 - x as f64).expect("it is between");
        assert_eq!(down.value, 600);
        assert!((down.slope + 600.0 / 500.0).abs() < 1e-9, "{down:?}");
    }

    #[test]
    fn a_cliff_gives_the_nearer_side_and_its_slope() {
        let cliff = |x: u64| if x < 160 { 0.94 } else { 1.27 };
        let found = of(900, 1.1, cliff).expect("it is between");
        assert_eq!((found.value, found.figure), (159, 0.94));
        assert!(found.slope > 20.0, "{found:?}");
    }

    #[test]
    fn what_is_not_between_the_ends_is_refused_with_both() {
        assert_eq!(of(10, 5.0, |x| x as f64), Err((100.0, 110.0)));
        assert_eq!(of(10, 5.0, |_| 7.0), Err((7.0, 7.0)));
        assert_eq!(of(10, 7.0, |_| 7.0).map(|found| found.figure), Ok(7.0));
    }

    proptest! {
        /// However ragged: the value found has a neighbor on the other side of the target, or is
        /// nearer to it than one that has.
        #[test]
        fn a_ragged_slope_is_no_trap(steps in 1_u64..2_000, noise: u64, share in 0.01_f64..0.99) {
            let ragged = |x: u64| {
                let mixed = x.wrapping_mul(noise | 1).rotate_left(17) % 64;
                x as f64 + mixed as f64
            };
            let (low, high) = (ragged(100), ragged(100 + steps));
            prop_assume!(low < high);
            let target = low + (high - low) * share;
            let found = of(steps, target, ragged).expect("it is between");
            prop_assert_eq!(ragged(found.value), found.figure);
            let jump = (101..=100 + steps).map(|x| (ragged(x) - ragged(x - 1)).abs());
            let widest = jump.fold(0.0, f64::max);
            prop_assert!((found.figure - target).abs() <= widest);
            prop_assert_eq!(of(steps, target, ragged), Ok(found));
        }
    }
}
