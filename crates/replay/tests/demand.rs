//! How far the demand of parts of a recording is from the usual one.

use common::made::{recording, run, task, wait};
use stealtime_replay::demand_deviations;
use stealtime_simulator::script::{Step, Until};

use crate::common;

const HALT: Step = Step::Halt(Until::After(1));

/// A recording of 2,000 ns has 20 parts of 100 ns. Work counts in the part in which the wait after it ends.
#[test]
fn work_beyond_the_usual_share_counts_where_the_wait_after_it_ends() {
    // In parts 1, 3 and 19: 60 of 160 ns, 60 of 190 ns and 90 of 1,650 ns. It computes for 210 of 2,000 ns.
    let mut first = task(
        7,
        Some((0, 0)),
        &[run(60), HALT, run(40), run(20), HALT, run(90), HALT],
    );
    first.waits = [wait(1, 60, 160), wait(4, 220, 350), wait(6, 440, 2_000)].into();
    // In parts 5 and 10: 400 of 500 ns and 100 of 500 ns.
    let mut second = task(8, Some((0, 1)), &[run(400), HALT, run(100), HALT]);
    second.waits = [wait(1, 400, 500), wait(3, 600, 1_000)].into();
    let mut elsewhere = second.clone();
    (elsewhere.tid, elsewhere.vcpu, elsewhere.vm) = (9, Some((1, 0)), Some(1));
    let mut thread = first.clone();
    (thread.tid, thread.vcpu) = (10, None);
    let recording = recording(2_000, 2, vec![first, second, elsewhere, thread]);
    let (deviations, total_ns) = demand_deviations(&recording, 0);
    assert_eq!(total_ns, 210 + 500);
    let mut expected = [0.0; 20];
    let share = 210.0 / 2_000.0;
    expected[1] = 60.0 - 160.0 * share;
    expected[3] = 60.0 - 190.0 * share;
    expected[19] = 90.0 - 1_650.0 * share;
    (expected[5], expected[10]) = (150.0, -150.0);
    assert_eq!(deviations.len(), expected.len());
    for (place, (found, expected)) in deviations.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() < 1e-6,
            "part {place}: {found} for {expected}"
        );
    }
}
