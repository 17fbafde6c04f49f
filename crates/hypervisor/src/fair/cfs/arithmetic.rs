//! Fixed-point arithmetic of CFS: multiplication by 32-bit inverses of weights, as in 6.1.

use crate::fair::sched_entity::SchedEntity;
use crate::fair::task_groups::scale_load_down;
use crate::fair::weights::NICE_0_LOAD;

/// Bits of an inverse weight (`WMULT_SHIFT`): 2^32 stands for 1.
const WMULT_SHIFT: u32 = 32;

/// Inverse of a weight that is computed (`__update_inv_weight`), at most `WMULT_CONST`.
pub(super) fn inverse(weight: u64) -> u64 {
    match scale_load_down(weight) {
        0 => u64::from(u32::MAX),
        scaled => (u64::from(u32::MAX) / scaled).max(1),
    }
}

/// Inverse of a task's weight (`sched_prio_to_wmult`).
///
/// The kernel's table rounds to nearest up to nice 12 (weight 70), and truncates from nice 13
/// (weight 56) on. So half a weight is added only above 56.
fn task_inverse(weight: u64) -> u64 {
    const TRUNCATED_UP_TO: u64 = 56;
    let scaled = (weight >> 10).max(1);
    let half = if scaled > TRUNCATED_UP_TO {
        scaled / 2
    } else {
        0
    };
    ((1 << WMULT_SHIFT) + half) / scaled
}

/// `__calc_delta`: `delta * weight` by an inverse.
///
/// Factors are shifted down to 32 bits each, so that the kernel's product fits 64 bits. The bits
/// lost are part of the answer.
pub(super) fn calc_delta(delta: u64, weight: u64, inverse: u64) -> u64 {
    let mut shift = WMULT_SHIFT;
    let mut shorten = |factor: u64| {
        let bits = u64::BITS - (factor >> 32).leading_zeros();
        shift -= bits;
        factor >> bits
    };
    let factor = shorten(scale_load_down(weight));
    let factor = shorten(factor.wrapping_mul(inverse));
    ((u128::from(delta) * u128::from(factor)) >> shift) as u64
}

/// `calc_delta_fair` of 6.1: ns of virtual time that `delta_ns` of run time are for an entity.
pub(super) fn cfs_vtime(ent: &SchedEntity, delta_ns: u64) -> u64 {
    let weight = ent.weight();
    if weight == NICE_0_LOAD {
        return delta_ns;
    }
    let inverse = match ent.is_task() {
        true => task_inverse(weight),
        false => inverse(weight),
    };
    calc_delta(delta_ns, NICE_0_LOAD, inverse)
}
