//! What many drills came to.

use serde::Serialize;

/// A distribution of errors, in ns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Distribution {
    /// How many.
    pub count: usize,
    /// The most negative one: guest time late.
    pub least: i64,
    /// On average, with signs, rounded: what adds up over many restores of one guest.
    pub mean: i64,
    /// Half of them are at most this, without signs.
    pub median_abs: u64,
    /// 99 of 100 are at most this, without signs.
    pub p99_abs: u64,
    /// 999 of 1000 are at most this, without signs.
    pub p999_abs: u64,
    /// The largest one: guest time early.
    pub most: i64,
    /// The largest without its sign.
    pub max_abs: u64,
}

impl Distribution {
    /// Of these errors.
    #[must_use]
    pub fn of(errors: &[i64]) -> Self {
        let mut sizes: Vec<u64> = errors.iter().map(|e| e.unsigned_abs()).collect();
        sizes.sort_unstable();
        // The nearest rank: the smallest size that at least this part of all is at most.
        let rank = |per_mille: usize| {
            let rank = (sizes.len() * per_mille).div_ceil(1000).max(1);
            sizes.get(rank - 1).copied().unwrap_or(0)
        };
        let sum: i128 = errors.iter().map(|e| i128::from(*e)).sum();
        let count = (errors.len() as i128).max(1);
        // Rounded to the nearest, halves up; between the least and the most.
        let mean = (2 * sum + count).div_euclid(2 * count);
        Self {
            count: errors.len(),
            mean: i64::try_from(mean).unwrap_or(0),
            least: errors.iter().copied().min().unwrap_or(0),
            median_abs: rank(500),
            p99_abs: rank(990),
            p999_abs: rank(999),
            most: errors.iter().copied().max().unwrap_or(0),
            max_abs: sizes.last().copied().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_nearest_and_signs_kept() {
        let errors: Vec<i64> = (1..=1000)
            .map(|e| if e % 2 == 0 { e } else { -e })
            .collect();
        let d = Distribution::of(&errors);
        assert_eq!((d.count, d.least, d.most), (1000, -999, 1000));
        assert_eq!((d.median_abs, d.p99_abs, d.p999_abs), (500, 990, 999));
        assert_eq!(d.max_abs, 1000);
        assert_eq!(Distribution::of(&[]), Distribution::default());
        assert_eq!(Distribution::of(&[-7]).median_abs, 7);
        assert_eq!(Distribution::of(&[-7, 2, 4]).mean, 0);
        assert_eq!(Distribution::of(&[80, 90, 91]).mean, 87);
        assert_eq!(Distribution::of(&[i64::MAX; 3]).mean, i64::MAX);
    }
}
