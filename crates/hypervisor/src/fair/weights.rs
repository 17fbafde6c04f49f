//! Weights, and the conversion of time to virtual time.
//!
//! ```
//! use stealtime_hypervisor::fair::weights::{calc_delta_fair, shares_of_cpu_weight, weight_of_nice};
//!
//! // A millisecond of nice 0 is a millisecond of virtual time; at half the weight it is two.
//! assert_eq!(calc_delta_fair(1_000_000, weight_of_nice(0)), 1_000_000);
//! assert_eq!(calc_delta_fair(1_000_000, weight_of_nice(0) / 2), 2_000_000);
//! // `cpu.weight` 100, the default of a group, is nice 0.
//! assert_eq!(shares_of_cpu_weight(100), weight_of_nice(0));
//! ```

use crate::wide;

/// Weight of a nice-0 entity (`NICE_0_LOAD` on 64 bit): virtual time runs as real time at it.
pub const NICE_0_LOAD: u64 = 1 << 20;

/// Smallest weight of a group's entity (`MIN_SHARES`, not scaled up).
pub const MIN_SHARES: u64 = 2;

/// Smallest shares that a group can be given (`scale_load(MIN_SHARES)`).
pub const SHARES_MIN: u64 = 2 << 10;

/// Largest shares that a group can be given (`scale_load(MAX_SHARES)`).
pub const SHARES_MAX: u64 = 1 << 28;

/// Weight of a task with the idle policy, and shares of an idle group (`WEIGHT_IDLEPRIO`).
pub const WEIGHT_IDLEPRIO: u64 = 3 << 10;

/// Shortest slice in ns that a task can request (`__sched_setscheduler`).
pub const SLICE_MIN_NS: u64 = 100_000;

/// Longest slice in ns that a task can request.
pub const SLICE_MAX_NS: u64 = 100_000_000;

/// Lowest nice value.
pub const NICE_MIN: i8 = -20;

/// Highest nice value.
pub const NICE_MAX: i8 = 19;

/// `sched_prio_to_weight`: one step of nice is about 10 % of the CPU, a factor of 1.25.
const NICE_WEIGHT: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, // -20
    9548, 7620, 6100, 4904, 3906, 3121, 2501, 1991, 1586, 1277, // -10
    1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, // 0
    110, 87, 70, 56, 45, 36, 29, 23, 18, 15, // 10
];

/// Weight of a nice value; values beyond [-20, 19] count as the nearest end.
///
/// | nice | weight |
/// |---|---|
/// | -20 | 90 891 264 |
/// | 0 | 1 048 576 |
/// | 19 | 15 360 |
pub fn weight_of_nice(nice: i8) -> u64 {
    let row = (nice.clamp(NICE_MIN, NICE_MAX) - NICE_MIN) as usize;
    NICE_WEIGHT
        .get(row)
        .map_or(NICE_0_LOAD, |w| u64::from(*w) << 10)
}

/// Shares of a cgroup v2 `cpu.weight` (1 to 10 000, 100 is the default).
///
/// `round(weight * 1024 / 100)`, scaled up, clamped to [[`SHARES_MIN`], [`SHARES_MAX`]]
/// (`cpu_weight_write_u64`).
pub fn shares_of_cpu_weight(cpu_weight: u64) -> u64 {
    let cpu_weight = cpu_weight.min(10_000);
    (((cpu_weight * 1024 + 50) / 100) << 10).clamp(SHARES_MIN, SHARES_MAX)
}

/// The `cpu.weight` that shares are worth: the inverse of [`shares_of_cpu_weight`], to the nearest
/// (`sched_weight_to_cgroup`).
pub fn cpu_weight_of_shares(shares: u64) -> u32 {
    let shares = shares.min(SHARES_MAX) >> 10;
    ((shares * 100 + 512) / 1024).clamp(1, 10_000) as u32
}

/// Default slice in ns for so many CPUs: 0.7 ms times 1 + log2(min(cpus, 8))
/// (`sched_tunable_scaling` logarithmic).
pub fn base_slice_ns(cpus: u32) -> u64 {
    NORMALIZED_BASE_SLICE_NS * tunable_scaling(cpus)
}

/// Factor of tunables for so many CPUs: 1 + log2(min(cpus, 8)) (`get_update_sysctl_factor`).
pub fn tunable_scaling(cpus: u32) -> u64 {
    u64::from(1 + cpus.clamp(1, 8).ilog2())
}

/// The slice before scaling by the CPU count (`normalized_sysctl_sched_base_slice`).
pub const NORMALIZED_BASE_SLICE_NS: u64 = 700_000;

/// Virtual time of `delta` ns at `weight` (`calc_delta_fair` on 64 bit).
///
/// `floor(delta * NICE_0_LOAD / weight)`: on 64 bit the kernel divides, without inverse weights.
/// Weight 0 counts as 1; a result beyond `u64` saturates.
#[inline]
pub fn calc_delta_fair(delta: u64, weight: u64) -> u64 {
    if weight == NICE_0_LOAD {
        return delta;
    }
    let weight = weight.max(1);
    // The product fits 64 bits up to 4.9 hours, and one division of 64 bits suffices.
    if delta < 1 << 44 {
        return (delta << 20) / weight;
    }
    calc_delta_wide(delta, weight)
}

/// The inverse: service in ns that `vtime` is at `weight`, rounded down. It saturates.
pub fn service_ns(vtime: u64, weight: u64) -> u64 {
    u64::try_from((u128::from(vtime) * u128::from(weight)) >> 20).unwrap_or(u64::MAX)
}

/// [`calc_delta_fair`] in 128 bits, out of line: the call of a wide division would cost its callers
/// registers.
#[cold]
#[inline(never)]
fn calc_delta_wide(delta: u64, weight: u64) -> u64 {
    u64::try_from(wide::div(u128::from(delta) << 20, weight)).unwrap_or(u64::MAX)
}

/// `a * b / c`, truncated toward zero, exact even where the product exceeds 64 bits.
///
/// The kernel multiplies in 64 bits: the results agree unless its product overflows.
#[inline]
pub(crate) fn mul_div(a: i64, b: u64, c: u64) -> i64 {
    let c = c.max(1);
    match i64::try_from(b).ok().and_then(|b| a.checked_mul(b)) {
        // The weight of one task of nice 0: a shift.
        Some(p) if c == NICE_0_LOAD => p / NICE_0_LOAD as i64,
        // An unsigned division of the magnitude, as in `floor_div`. `i64::MIN` by 1 wraps to itself.
        Some(p) => {
            let (quotient, sign) = ((p.unsigned_abs() / c) as i64, p >> 63);
            (quotient ^ sign).wrapping_sub(sign)
        }
        _ => mul_div_wide(a, b, c),
    }
}

#[cold]
#[inline(never)]
fn mul_div_wide(a: i64, b: u64, c: u64) -> i64 {
    let quotient = wide::div_signed(i128::from(a) * i128::from(b), c);
    quotient.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// `whole * part / sum`, exact even where the product exceeds 64 bits; a result beyond saturates.
#[inline]
pub(crate) fn share(whole: u64, part: u64, sum: u64) -> u64 {
    let sum = sum.max(1);
    // A division of 128 bits is a call, and almost no product needs one.
    match whole.checked_mul(part) {
        Some(product) => product / sum,
        None => share_wide(whole, part, sum),
    }
}

#[cold]
#[inline(never)]
fn share_wide(whole: u64, part: u64, sum: u64) -> u64 {
    let quotient = wide::div(u128::from(whole) * u128::from(part), sum);
    u64::try_from(quotient).unwrap_or(u64::MAX)
}

/// Whether virtual time `a` is before `b`, across the wrap (`vruntime_cmp`).
#[inline]
pub(crate) fn before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

/// The earlier of two virtual times (`min_vruntime`).
#[inline]
pub(crate) fn earlier(a: u64, b: u64) -> u64 {
    if before(b, a) { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nice_table_has_the_known_ends() {
        assert_eq!(weight_of_nice(-20), 90_891_264);
        assert_eq!(weight_of_nice(0), NICE_0_LOAD);
        assert_eq!(weight_of_nice(19), 15_360);
        assert_eq!(weight_of_nice(127), 15_360);
    }

    #[test]
    fn cpu_weight_rounds_to_shares() {
        assert_eq!(shares_of_cpu_weight(100), NICE_0_LOAD);
        assert_eq!(shares_of_cpu_weight(1), 10 << 10);
        assert_eq!(shares_of_cpu_weight(0), SHARES_MIN);
    }

    #[test]
    fn base_slice_scales_with_cpus() {
        assert_eq!(base_slice_ns(1), 700_000);
        assert_eq!(base_slice_ns(4), 2_100_000);
        assert_eq!(base_slice_ns(16), 2_800_000);
    }

    #[test]
    fn wide_and_narrow_products_agree() {
        assert_eq!(mul_div(-7, 3, 2), -10);
        assert_eq!(mul_div(i64::MAX, 4, 8), i64::MAX / 2);
        assert_eq!(mul_div(-(1 << 20) - 1, 1, NICE_0_LOAD), -1);
        assert_eq!(mul_div(-(3 << 19), 1, NICE_0_LOAD), -1);
        assert_eq!(mul_div(i64::MAX, 1 << 20, NICE_0_LOAD), i64::MAX);
        assert_eq!(mul_div(i64::MIN, u64::MAX, 1), i64::MIN);
        assert_eq!(calc_delta_fair(3_000_000, 3072), 1_024_000_000);
        assert_eq!(calc_delta_fair(1 << 50, 1 << 21), 1 << 49);
    }

    /// One division of 64 bits up to 2^44 ns, and one of 128 bits from there on.
    #[test]
    fn virtual_time_is_the_exact_quotient_at_any_width() {
        let edge = 1 << 44;
        for delta in [0, 1, edge - 1, edge, edge + 1, u64::MAX] {
            for weight in [
                1,
                3072,
                NICE_0_LOAD - 1,
                NICE_0_LOAD,
                NICE_0_LOAD + 1,
                u64::MAX,
            ] {
                let quotient = (u128::from(delta) << 20) / u128::from(weight);
                let expected = u64::try_from(quotient).unwrap_or(u64::MAX);
                assert_eq!(
                    calc_delta_fair(delta, weight),
                    expected,
                    "{delta} / {weight}"
                );
            }
        }
        assert_eq!(calc_delta_fair(5, 0), 5 << 20);
        assert_eq!(service_ns(u64::MAX, NICE_0_LOAD), u64::MAX);
        assert_eq!(service_ns(u64::MAX, NICE_0_LOAD + 1), u64::MAX);
        assert_eq!(service_ns(3, NICE_0_LOAD / 2), 1);
    }

    #[test]
    fn shares_of_wide_products_are_exact() {
        assert_eq!(share(10, 3, 4), 7);
        assert_eq!(share(u64::MAX, 3, 4), u64::MAX - u64::MAX.div_ceil(4));
        assert_eq!(share(u64::MAX, 3, 2), u64::MAX);
        assert_eq!(share(7, 1, 0), 7);
    }
}
