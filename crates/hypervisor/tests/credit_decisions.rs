//! "The target stays eligible across several scheduling decisions rather than a single pick", and
//! "the margin scales with runqueue depth": how many decisions that is.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "share/decisions.rs"]
mod decisions;

use decisions::{Case, default_margin_ns, picks_in_a_row};

/// Time between two decisions of a CPU of guests that run dedup, in ns.
const GAP_NS: u64 = 16_000;

fn picks(margin_ns: Option<u64>, depth: u32) -> u32 {
    picks_in_a_row(Case {
        margin_ns,
        depth,
        gap_ns: GAP_NS,
    })
    .unwrap()
}

#[test]
fn without_the_series_the_hint_is_dropped() {
    for depth in [3, 4, 8, 16, 32] {
        assert_eq!(picks(None, depth), 0, "{depth} tasks");
    }
}

/// A lag of `margin * (n - 1)` lasts while the target runs `margin * n`: of each ns that it runs,
/// one part in `n` is its share.
#[test]
fn a_credited_target_is_eligible_over_several_decisions_that_grow_with_the_queue() {
    let margin = default_margin_ns();
    for depth in [3, 4, 8, 16, 32] {
        let expected = margin * u64::from(depth) / GAP_NS + 1;
        let got = u64::from(picks(Some(margin), depth));
        assert!(
            got.abs_diff(expected) <= 1,
            "{depth} tasks: {got}, {expected}"
        );
        assert!(got >= 8, "{depth} tasks: several");
    }
}

/// At the boundary of eligibility, the least that makes the hint hold, it holds once.
#[test]
fn at_the_boundary_it_is_a_single_pick() {
    for depth in [3, 4, 8] {
        assert_eq!(picks(Some(1_000), depth), 1, "{depth} tasks");
    }
}

/// However large the margin, lag is within the bound of `entity_lag`, here a slice and a tick.
#[test]
fn the_bound_of_lag_ends_it() {
    let bounded = picks(Some(100_000_000), 32);
    assert_eq!(bounded, picks(Some(6_800_000), 32));
    assert!(u64::from(bounded) * GAP_NS < 8_000_000, "{bounded}");
}
