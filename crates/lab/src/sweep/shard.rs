//! Parts of a sweep, for as many machines.

use std::fmt;
use std::str::FromStr;

/// The most shards: more than machines of any cluster.
pub const MOST_SHARDS: u64 = 1_000_000;

/// One of equal parts of a sweep. Which runs it has depends on the grid and on the number of shards alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 1 on.
    number: u64,
    count: u64,
}

/// Why there is no such shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// No two numbers.
    #[error("expected K/N, as in 2/8")]
    Form,
    /// Out of range.
    #[error(
        "there is no shard {number} of {count}: shards are 1 to N, and N is at most {MOST_SHARDS}"
    )]
    Range {
        /// The shard.
        number: u64,
        /// Of how many.
        count: u64,
    },
}

impl Shard {
    /// Shard `number` of `count`, from 1 on.
    ///
    /// # Errors
    ///
    /// [`ShardError::Range`].
    pub fn new(number: u64, count: u64) -> Result<Self, ShardError> {
        match (1..=MOST_SHARDS).contains(&count) && (1..=count).contains(&number) {
            true => Ok(Self { number, count }),
            false => Err(ShardError::Range { number, count }),
        }
    }

    /// Its number, from 1 on.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.number
    }

    /// How many shards there are.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// Whether it has a run.
    #[must_use]
    pub const fn has(self, run: u64) -> bool {
        Self::number_of(run, self.count) == self.number
    }

    /// The number of the shard that has a run, of so many. Neighbours in the grid go to different
    /// shards, in a turned order for each group of them. Without the turn a shard could have one value
    /// of a slow knob alone.
    pub(super) const fn number_of(run: u64, count: u64) -> u64 {
        run.wrapping_add(mixed(run / count)) % count + 1
    }
}

/// The finalizer of `SplitMix64`.
const fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        let (number, count) = text.split_once('/').ok_or(ShardError::Form)?;
        let number = number.trim().parse().map_err(|_| ShardError::Form)?;
        let count = count.trim().parse().map_err(|_| ShardError::Form)?;
        Self::new(number, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_is_in_one_shard_and_shards_are_alike() {
        const RUNS: u64 = 40_000;
        let shards: Vec<Shard> = (1..=8)
            .map(|k| Shard::new(k, 8).expect("a shard"))
            .collect();
        for run in 0..RUNS {
            let owners = shards.iter().filter(|shard| shard.has(run));
            assert_eq!(owners.count(), 1, "{run}");
        }
        for shard in &shards {
            let own = (0..RUNS - 3).filter(|run| shard.has(*run)).count();
            assert!(own.abs_diff(RUNS as usize / 8) <= 1, "{shard}: {own}");
            for stride in [5, 8, 13] {
                let own = (0..RUNS)
                    .step_by(stride)
                    .filter(|run| shard.has(*run))
                    .count();
                let mean = RUNS as usize / stride / 8;
                // Five standard deviations of a binomial share.
                let bound = 5.0 * (mean as f64).sqrt();
                assert!(
                    own.abs_diff(mean) as f64 <= bound,
                    "{shard}: {own} of {mean}"
                );
            }
        }
    }

    #[test]
    fn shards_are_read() {
        let shown = |text: &str| text.parse::<Shard>().map(|shard| shard.to_string());
        assert_eq!(shown("2/8"), Ok("2/8".to_owned()));
        assert_eq!(shown("1/1"), Ok("1/1".to_owned()));
        for text in ["", "3", "a/2", "1/b", "-1/2"] {
            assert_eq!(shown(text), Err(ShardError::Form), "{text}");
        }
        for (text, number, count) in [
            ("0/2", 0, 2),
            ("3/2", 3, 2),
            ("1/0", 1, 0),
            ("1/1000001", 1, 1_000_001),
        ] {
            assert_eq!(shown(text), Err(ShardError::Range { number, count }));
        }
    }
}
