//! The arithmetic against long multiplication on single bits.

use proptest::prelude::*;
use stealtime_hypervisor::counter::arith::{TimeScale, mul_shr, mul_shr_signed, scale_delta};
use stealtime_hypervisor::counter::scaling::RatioFormat;

/// A 256-bit number as bits, the lowest first: slow, and plainly right.
#[derive(Clone, PartialEq, Debug)]
struct Bits([bool; 256]);

impl Bits {
    fn new(value: u64) -> Self {
        let mut bits = [false; 256];
        for (n, bit) in bits.iter_mut().take(64).enumerate() {
            *bit = value >> n & 1 == 1;
        }
        Self(bits)
    }

    fn up(&self, by: usize) -> Self {
        let mut bits = [false; 256];
        bits[by..].copy_from_slice(&self.0[..256 - by]);
        Self(bits)
    }

    fn plus(&self, other: &Self) -> Self {
        let mut bits = [false; 256];
        let mut carry = 0;
        for (n, bit) in bits.iter_mut().enumerate() {
            let sum = u8::from(self.0[n]) + u8::from(other.0[n]) + carry;
            *bit = sum & 1 == 1;
            carry = sum >> 1;
        }
        Self(bits)
    }

    fn times(&self, factor: u64) -> Self {
        (0..64)
            .filter(|n| factor >> n & 1 == 1)
            .fold(Self::new(0), |sum, n| sum.plus(&self.up(n)))
    }

    /// 64 bits from bit `from` on.
    fn word(&self, from: usize) -> u64 {
        (0..64).fold(0, |word, n| {
            word | u64::from(self.0.get(from + n) == Some(&true)) << n
        })
    }
}

fn edges() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0u32..64, -2i64..3).prop_map(|(n, off)| (1u64 << n).wrapping_add_signed(off)),
    ]
}

proptest! {
    #[test]
    fn products_equal_long_multiplication(a in edges(), b in edges(), shift in 0u32..140) {
        let product = Bits::new(a).times(b).word(shift as usize);
        prop_assert_eq!(mul_shr(a, b, shift), product);
        let signed = a as i64;
        let magnitude = Bits::new(signed.unsigned_abs()).times(b).word(shift as usize);
        let expected = if signed < 0 { magnitude.wrapping_neg() } else { magnitude };
        prop_assert_eq!(mul_shr_signed(signed, b, shift), expected);
    }

    #[test]
    fn deltas_equal_long_multiplication(delta in edges(), mul in any::<u32>(), shift in -63i8..64) {
        let shifted = if shift < 0 { delta >> -shift } else { delta << shift };
        let product = Bits::new(shifted).times(u64::from(mul)).word(32);
        prop_assert_eq!(scale_delta(delta, mul, shift), product);
    }

    /// Scaling and its offset undo each other, for any ratio, also across a wrap.
    #[test]
    fn an_offset_reads_what_it_was_made_for(
        ratio in edges(),
        tsc in edges(),
        target in edges(),
        svm in any::<bool>(),
    ) {
        let format = if svm { RatioFormat::SVM } else { RatioFormat::VMX };
        let offset = format.l1_offset(ratio, tsc, target);
        prop_assert_eq!(format.read_l1(ratio, offset, tsc), target);
        let scaled = Bits::new(tsc).times(ratio).word(format.frac_bits() as usize);
        prop_assert_eq!(format.scale(tsc, ratio), scaled);
    }

    /// A scaled counter never steps back while the host's does not wrap.
    #[test]
    fn scaled_counters_are_monotonic(
        guest_khz in 1u32..5_000_000,
        host_khz in 100_000u32..5_000_000,
        tsc in 0u64..1 << 50,
        later in 0u64..1 << 40,
    ) {
        let format = RatioFormat::VMX;
        let ratio = format.ratio(guest_khz, host_khz).unwrap();
        prop_assert!(format.scale(tsc + later, ratio) >= format.scale(tsc, ratio));
    }

    /// Scale factors of real frequencies are exact to a few parts in 2^31.
    #[test]
    fn scales_are_close(khz in 1_000u32..10_000_000, ns in 0u64..1 << 40) {
        let cycles = TimeScale::ns_to_cycles(khz).unwrap().scale(ns);
        let exact = u128::from(ns) * u128::from(khz) / 1_000_000;
        let tolerance = exact / (1 << 29) + 4;
        prop_assert!(exact.abs_diff(u128::from(cycles)) <= tolerance, "{} {}", exact, cycles);
        let back = TimeScale::cycles_to_ns(u64::from(khz)).unwrap().scale(cycles);
        let slack = u128::from(ns) / (1 << 28) + 2_000_000 / u128::from(khz) + 4;
        prop_assert!(u128::from(ns).abs_diff(u128::from(back)) <= slack, "{} {}", ns, back);
    }
}

proptest! {
    /// One step with the combined ratio and offset reads what two steps read, but for roundings.
    #[test]
    fn nested_guests_read_what_two_levels_make(
        l1_khz in 1_000_000u32..4_000_000,
        l2_khz in 1_000_000u32..4_000_000,
        tsc in 0u64..1 << 52,
        l1_offset in -(1i64 << 50)..1 << 50,
        l2_offset in any::<u64>(),
    ) {
        let format = RatioFormat::VMX;
        let l1_ratio = format.ratio(l1_khz, 2_000_000).unwrap();
        let l2_ratio = format.ratio(l2_khz, l1_khz).unwrap();
        let l1_offset = l1_offset as u64;
        let ratio = format.nested_ratio(l1_ratio, l2_ratio);
        let offset = format.nested_offset(l1_offset, l2_offset, l2_ratio);
        let read = format.read_l1(ratio, offset, tsc);
        // L1 may read below 0; the hardware's two levels are taken as signed there.
        let l1 = i128::from(format.scale(tsc, l1_ratio)) + i128::from(l1_offset as i64);
        let l2 = (l1 * i128::from(l2_ratio)) >> format.frac_bits();
        let composed = (l2 as u64).wrapping_add(l2_offset);
        // The combined ratio is rounded once more: up to tsc / 2^48 of it, here 16. In the other
        // direction, two steps cut off part of L1's reading, times the ratio (below 4), and one more.
        // The offset of one step is cut towards zero.
        let off = read.wrapping_sub(composed) as i64;
        prop_assert!((-40..=6).contains(&off), "{}", off);
    }
}

/// What is not refused is the ratio, as exactly as promised.
#[test]
fn scales_are_as_exact_as_the_scaled_rate_is_large() {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random >> (random % 64)
    };
    for _ in 0..200_000 {
        let (scaled, base) = (next(), next());
        let Ok(scale) = TimeScale::new(scaled, base) else {
            assert!(scaled == 0 || base == 0 || scaled >> 63 != 0);
            continue;
        };
        let made = f64::from(scale.mul) * 2f64.powi(i32::from(scale.shift) - 32);
        let error = made * base as f64 / scaled as f64 - 1.0;
        let most = 1.0 / scaled as f64 + 2f64.powi(-29);
        assert!(
            error.abs() <= most,
            "{scaled} / {base}: {error:e} > {most:e}"
        );
    }
}
