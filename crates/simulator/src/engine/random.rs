//! Random numbers: one stream for each named source, so that a change to one leaves the others.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Gives out streams by name.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    seed: u64,
}

impl Streams {
    /// Streams that all grow from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The stream of this name. The same name gives the same numbers.
    #[must_use]
    pub fn named(&self, name: &str) -> Random {
        // FNV-1a, 128 bits: names are short and few, and the seed is mixed in below.
        let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        for &byte in self.seed.to_le_bytes().iter().chain(name.as_bytes()) {
            hash =
                (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
        let mut rng = Pcg64Mcg::from_seed(hash.to_le_bytes());
        rng.next_u64();
        Random(rng)
    }
}

/// One stream. All draws are integers; none depends on a mathematical library of the machine.
#[derive(Clone, Debug)]
pub struct Random(Pcg64Mcg);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Evenly from [0, below); 0 for an empty range.
    pub fn below(&mut self, below: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(below)) >> 64) as u64
    }

    /// Evenly from [low, high]; `low` if the range is empty.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True with probability `per_mille` / 1000.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }

    /// Exponentially distributed with this mean, in ns.
    pub fn exponential(&mut self, mean_ns: u64) -> u64 {
        // -ln(u) in 32.32 fixed point, u in (0, 1].
        let minus_ln = minus_ln_q32(self.bits());
        ((u128::from(mean_ns) * u128::from(minus_ln)) >> 32) as u64
    }

    /// Within `spread_percent` of `mean_ns`, evenly.
    pub fn around(&mut self, mean_ns: u64, spread_percent: u32) -> u64 {
        let spread = mean_ns / 100 * u64::from(spread_percent.min(100));
        self.between(mean_ns - spread, mean_ns.saturating_add(spread))
    }
}

/// ln 2 in 32.32 fixed point.
const LN2_Q32: u128 = 2_977_044_472;

/// 1 / ln 2 in 2.62 fixed point.
const INV_LN2_Q62: i64 = 6_653_256_548_922_161_246;

/// Leading bits of the mantissa by which the logarithm is looked up.
const LOOKED_UP: u32 = 7;

/// For each: the reciprocal of the middle of its range in 1.63 fixed point. Next to it: minus the
/// binary logarithm of that in 2.52.
static MANTISSAS: [(u64, u64); 1 << LOOKED_UP] = mantissas();

const fn mantissas() -> [(u64, u64); 1 << LOOKED_UP] {
    let mut table = [(0, 0); 1 << LOOKED_UP];
    let mut n = 0;
    while n < table.len() {
        // 1 + (n + 1/2) / 128 is (257 + 2 n) / 256.
        let inverse = (1u128 << 71) / (257 + 2 * n as u128);
        table[n] = (inverse as u64, (1 << 52) - log2_q52(inverse << 1));
        n += 1;
    }
    table
}

/// The binary logarithm of a number in [1, 2), given in 1.63 fixed point: bit by bit, by squaring;
/// a carry is a one.
const fn log2_q52(mut mantissa: u128) -> u64 {
    let (mut log2, mut bit) = (0, 0);
    while bit < 52 {
        mantissa = (mantissa * mantissa) >> 63;
        log2 <<= 1;
        if mantissa >> 64 != 0 {
            log2 |= 1;
            mantissa >>= 1;
        }
        bit += 1;
    }
    log2
}

/// -ln((bits + 1) / 2^64) in 32.32 fixed point.
///
/// Leading zeros give the exponent, and a table the first bits of the mantissa. The series of
/// ln(1 + z) gives the others, with a remainder below 2^-50.
fn minus_ln_q32(bits: u64) -> u64 {
    let value = u128::from(bits) + 1;
    let exponent = 127 - value.leading_zeros();
    // The mantissa in [1, 2) as 1.63 fixed point.
    let mantissa = ((value << 63) >> exponent) as u64;
    let index = (mantissa >> (63 - LOOKED_UP)) as usize % MANTISSAS.len();
    let (inverse, log2_q52) = MANTISSAS[index];
    let times = (u128::from(mantissa) * u128::from(inverse)) >> 63;
    let z = (times as u64).wrapping_sub(1 << 63) as i64;
    let product = |a: i64, b: i64| ((i128::from(a) * i128::from(b)) >> 63) as i64;
    let (z2, z3) = (product(z, z), product(product(z, z), z));
    let ln = z - z2 / 2 + z3 / 3 - product(z2, z2) / 4 + product(z2, z3) / 5;
    // 1.63 by 2.62 fixed point, to 52 places.
    let rest = ((i128::from(ln) * i128::from(INV_LN2_Q62)) >> (63 + 62 - 52)) as i64;
    let fraction = ((log2_q52 as i64 + rest) >> 20).clamp(0, u32::MAX.into()) as u64;
    let minus_log2 = (64u64 << 32) - (u64::from(exponent) << 32) - fraction;
    ((u128::from(minus_log2) * LN2_Q32) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_is_that_of_the_library() {
        for bits in [
            0,
            1,
            2,
            12345,
            u64::MAX / 3,
            u64::MAX / 2,
            u64::MAX - 1,
            u64::MAX,
        ] {
            let exact = -((bits as f64 + 1.0) / 2f64.powi(64)).ln();
            let ours = minus_ln_q32(bits) as f64 / 2f64.powi(32);
            assert!((exact - ours).abs() < 1e-8, "{bits}: {exact} {ours}");
        }
    }

    /// The table and the series give what squaring bit by bit gives.
    #[test]
    fn logarithm_is_that_of_squaring() {
        let mut random = Streams::new(3).named("bits");
        for _ in 0..100_000 {
            let bits = random.bits() >> random.below(64);
            let value = u128::from(bits) + 1;
            let exponent = 127 - value.leading_zeros();
            let fraction = log2_q52((value << 63) >> exponent) >> 20;
            let minus_log2 = (64u64 << 32) - (u64::from(exponent) << 32) - fraction;
            let squared = ((u128::from(minus_log2) * LN2_Q32) >> 32) as u64;
            assert!(
                minus_ln_q32(bits).abs_diff(squared) <= 1,
                "{bits}: {} {squared}",
                minus_ln_q32(bits)
            );
        }
    }

    #[test]
    fn exponential_has_its_mean_and_its_spread() {
        let mut random = Streams::new(7).named("test");
        let draws: Vec<u64> = (0..200_000).map(|_| random.exponential(1000)).collect();
        let mean = draws.iter().sum::<u64>() as f64 / draws.len() as f64;
        let above = draws.iter().filter(|&&draw| draw > 1000).count() as f64 / draws.len() as f64;
        assert!((mean - 1000.0).abs() < 10.0, "{mean}");
        assert!((above - 0.3679).abs() < 0.005, "{above}");
    }

    #[test]
    fn streams_differ_by_name_and_by_seed() {
        let draw = |seed, name| Streams::new(seed).named(name).bits();
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
    }
}
