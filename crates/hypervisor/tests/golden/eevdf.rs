//! Sequences of scheduler operations recorded from the functions of Linux 7.2.

use crate::files::{self, VectorFile};
use crate::ours::Ours;
use crate::recorded::replay;

macro_rules! family {
    ($($test:ident: $name:literal),* $(,)?) => {
        /// Families with a test of their own.
        const OWN: &[&str] = &[$($name),*];

        $(#[test]
        fn $test() {
            replay_all(&files::of($name));
        })*
    };
}

family! {
    flat_queue_with_mixed_nice: "a-flat",
    sleep_and_delayed_dequeue: "b-sleep",
    yield_and_yield_to: "c-yield",
    group_hierarchy: "d-hier",
    slices_and_protection: "e-slice",
    wakeup_preemption: "f-preempt",
    migration_between_queues_and_groups: "g-migrate",
    switched_features: "h-features",
    two_cpus: "i-cpus",
    deep_groups: "j-deep",
    idle_policy_idle_groups_and_priorities: "k-idle",
    quotas: "l-throttle",
    joins_between_block_and_pick: "m-pull",
    affinity_changes: "n-affinity",
}

fn replay_all(files: &[VectorFile]) {
    for file in files {
        let mut sequences = 0;
        for sequence in file.sequences() {
            replay(file, &sequence, |setup| Ours::new(setup).checking_itself());
            sequences += 1;
        }
        assert!(sequences > 0, "{}: no sequences", file.path.display());
    }
}

/// Recordings of the scheduler under any other name.
#[test]
fn families_not_known_by_name() {
    let mut further = files::all();
    further.retain(|f| f.of_scheduler() && !OWN.contains(&f.family.as_str()));
    replay_all(&further);
}
