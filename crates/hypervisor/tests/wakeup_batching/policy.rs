//! When batching pays.

use stealtime_hypervisor::wakeup_batch::policy::{BatchDecider, BatchPolicy, BroadcastCost};

#[test]
fn fixed_policies() {
    let decide = |policy, multicast, targets| BatchDecider::new(policy).decide(multicast, targets);
    assert!(!decide(BatchPolicy::Off, true, 64));
    assert!(decide(BatchPolicy::Form, true, 1));
    assert!(!decide(BatchPolicy::Form, false, 64));
    let threshold = BatchPolicy::Threshold { min_targets: 8 };
    assert!(!decide(threshold, true, 7));
    assert!(decide(threshold, true, 8));
}

/// Runs 1000 broadcasts to 63 vCPUs with the given cost per target; the number that was batched.
fn batched_of_1000(decider: &mut BatchDecider, cost_ns: impl Fn(bool) -> (u64, u64)) -> u32 {
    let mut batched_count = 0;
    for _ in 0..1000 {
        let batched = decider.decide(true, 63);
        batched_count += u32::from(batched);
        let (sender_ns, targets_ns) = cost_ns(batched);
        decider.learn(&BroadcastCost {
            batched,
            targets: 63,
            sender_ns: 63 * sender_ns,
            targets_ns: 63 * targets_ns,
        });
    }
    batched_count
}

#[test]
fn the_adaptive_policy_follows_the_cost() {
    let mut decider = BatchDecider::new(BatchPolicy::Adaptive);
    // Deep idle: each ICR waits for the last target to wake.
    let deep = |batched| {
        if batched {
            (5_000, 5_000)
        } else {
            (17_500, 550_000)
        }
    };
    let batched = batched_of_1000(&mut decider, deep);
    assert!((960..1000).contains(&batched), "{batched}");
    // All targets in guest mode, none waits: the first target pays for the loop.
    let shallow = |batched| if batched { (300, 20_000) } else { (320, 0) };
    let batched = batched_of_1000(&mut decider, shallow);
    assert!(batched < 800, "found out by probing: {batched}");
    let batched = batched_of_1000(&mut decider, shallow);
    assert!((1..20).contains(&batched), "probes it still: {batched}");
    let (a, b) = decider.averages_ns();
    assert!(a.unwrap() > b.unwrap());
    // And back.
    assert!(batched_of_1000(&mut decider, deep) > 900);
}

/// A broadcast to few is cheap as a whole, and may be dear for each.
#[test]
fn the_adaptive_policy_compares_costs_per_target() {
    let mut decider = BatchDecider::new(BatchPolicy::Adaptive);
    for (batched, targets, sender_ns) in [(true, 10, 10_000), (false, 1, 2_000)] {
        decider.learn(&BroadcastCost {
            batched,
            targets,
            sender_ns,
            targets_ns: 0,
        });
    }
    assert_eq!(decider.averages_ns(), (Some(1_000), Some(2_000)));
}

#[test]
fn absurd_costs_do_not_overflow() {
    let mut decider = BatchDecider::new(BatchPolicy::Adaptive);
    for batched in [true, false, true] {
        decider.learn(&BroadcastCost {
            batched,
            targets: 1,
            sender_ns: u64::MAX,
            targets_ns: u64::MAX,
        });
        decider.learn(&BroadcastCost {
            batched,
            targets: 0,
            sender_ns: 1,
            targets_ns: 1,
        });
    }
    let most = 1u64 << 37;
    assert_eq!(decider.averages_ns(), (Some(most), Some(most)));
    assert!(decider.decide(true, u32::MAX));
}
