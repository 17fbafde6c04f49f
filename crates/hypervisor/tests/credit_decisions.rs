//! "The target stays eligible across several scheduling decisions rather than a single pick", and
//! "the margin scales with runqueue depth": how many decisions that is.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "share/decisions.rs"]
mod decisions;

use decisions::{Case, default_margin_ns, picks_in_a_row};
use stealtime_hypervisor::fair::{Attr, Config, Fair, Feature, PickMode, RqId, TaskId, YieldTo};
use stealtime_hypervisor::lag_credit::CreditFault;

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

/// A queue of four tasks, the first of which has had its slice, with a fault in the credit.
fn queue_of_four(fault: CreditFault) -> (Fair, RqId, TaskId) {
    let mut config = Config::linux_7_2(16);
    config.features = config.features.with(Feature::YieldToLagCredit);
    let mut fair = Fair::new(config).unwrap();
    fair.set_credit_fault(fault);
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    for _ in 0..4 {
        let task = fair.create_task(Attr::default(), None).unwrap();
        fair.fork(task, rq, 0).unwrap();
    }
    let target = fair.pick(rq, 0).unwrap().task.unwrap();
    fair.tick(rq, config.tick_ns).unwrap();
    fair.pick(rq, config.tick_ns).unwrap();
    (fair, rq, target)
}

#[test]
fn an_unlimited_credit_forces_each_reschedule() {
    for (fault, both) in [(CreditFault::None, false), (CreditFault::Unlimited, true)] {
        let (mut fair, rq, target) = queue_of_four(fault);
        let now = fair.config().tick_ns + 1_000;
        let forced = |fair: &mut Fair, now| match fair.yield_to(rq, target, now).unwrap() {
            YieldTo::Yielded { credit, .. } => credit.forced,
            refused => panic!("{refused:?}"),
        };
        assert!(forced(&mut fair, now));
        assert_eq!(forced(&mut fair, now + 1_000), both, "{fault:?}");
    }
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "self_check")]
fn a_change_inside_the_tree_is_found_by_the_self_check() {
    let (mut fair, rq, target) = queue_of_four(CreditFault::InPlace);
    fair.set_self_check(true);
    let now = fair.config().tick_ns + 1_000;
    fair.yield_to(rq, target, now).unwrap();
    fair.pick(rq, now).unwrap();
}
