//! The hash of a scheduler's state, by which a checker of interleavings compares states.

use core::hash::{Hash, Hasher};

use super::Fair;
use super::ids::Que;
use super::queue::Queue;

/// Hashes all state with an effect on later operations, except the configuration: entities, queues
/// with their members in order, run queues, groups. The layout of the trees has none.
impl Hash for Fair {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.now.hash(state);
        self.ent.0.hash(state);
        self.rqs.0.hash(state);
        self.credits.0.hash(state);
        self.groups.0.hash(state);
        self.flat.0.hash(state);
        self.flat_queues.0.hash(state);
        self.tokens.0.hash(state);
        self.buddies.hash(state);
        for (n, queue) in (0..).zip(&self.que.0) {
            queue.hash_sums(state);
            self.ext_load(Que(n)).hash(state);
            self.pool.for_each(&queue.timeline, &mut |e| e.hash(state));
            // Ends the list, so that no two lists hash alike: no entity has this number.
            u32::MAX.hash(state);
        }
    }
}

impl Queue {
    fn hash_sums<H: Hasher>(&self, state: &mut H) {
        let sums = (self.sum_weight, self.sum_w_vruntime, self.zero_vruntime);
        let counts = (self.members, self.h_nr_queued);
        (sums, counts, self.h_nr_runnable, self.h_nr_idle()).hash(state);
        (self.curr, self.next, self.is_idle()).hash(state);
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
}
