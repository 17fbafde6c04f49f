//! The hash of a scheduler's state, by which a checker of interleavings compares states.

use core::hash::{Hash, Hasher};

use super::Fair;

/// Hashes all state with an effect on later operations, except the configuration: entities, queues
/// with their members in order, run queues, groups. The layout of the trees has none.
impl Hash for Fair {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sched.hash(state);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail")]
mod tests {
    extern crate std;

    use core::hash::{Hash, Hasher};
    use std::hash::DefaultHasher;
    use std::vec;

    use crate::fair::{Attr, Config, Fair, PickMode};

    fn digest(fair: &Fair) -> u64 {
        let mut hasher = DefaultHasher::new();
        fair.hash(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn what_happens_shows_and_a_copy_is_alike() {
        let mut fair = Fair::new(Config::linux_7_2(2)).unwrap();
        let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
        let mut digests = vec![digest(&fair)];
        for time_ns in 0..3 {
            let task = fair.create_task(Attr::default(), None).unwrap();
            fair.fork(task, rq, time_ns).unwrap();
            digests.push(digest(&fair));
        }
        fair.pick(rq, 3).unwrap();
        digests.push(digest(&fair));
        fair.tick(rq, 4).unwrap();
        digests.push(digest(&fair));
        assert_eq!(digest(&fair.clone()), digest(&fair));
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), 6);
    }

    /// A change that no run queue and no group shows.
    #[test]
    fn a_sleeping_tasks_priority_shows() {
        let mut fair = Fair::new(Config::linux_7_2(2)).unwrap();
        let task = fair.create_task(Attr::default(), None).unwrap();
        let before = digest(&fair);
        fair.set_nice(task, 5, 0).unwrap();
        assert_ne!(digest(&fair), before);
    }

    /// A load of 0 on other CPUs is as one that is not set.
    #[test]
    fn a_load_of_other_cpus_shows() {
        let mut fair = Fair::new(Config::linux_7_2(2)).unwrap();
        let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
        let group = fair.create_group(None).unwrap();
        fair.extend_group(group, rq).unwrap();
        let unset = digest(&fair);
        let digests = [0, 5, 6].map(|load| {
            fair.set_ext_load(group, rq, load).unwrap();
            digest(&fair)
        });
        assert_eq!(digests[0], unset);
        assert!(digests[1] != unset && digests[2] != unset && digests[1] != digests[2]);
    }
}
