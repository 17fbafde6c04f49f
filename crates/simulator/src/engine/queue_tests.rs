use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Queue, Slot};

/// What to do with which timer, and how long from now.
fn steps(timers: usize, most: usize, delay: u64) -> impl Strategy<Value = Vec<(u8, usize, u64)>> {
    prop::collection::vec((0..8u8, 0..timers, 0..delay), 1..most)
}

proptest! {
    /// Against a sorted map: the same timers fire at the same times in the same order.
    #[test]
    fn fires_as_a_sorted_map_does(
        (timers, steps) in prop_oneof![
            steps(24, 400, 50).prop_map(|steps| (24, steps)),
            // Soon more than a list takes.
            steps(1000, 2000, 5000).prop_map(|steps| (1000, steps)),
        ],
    ) {
        let mut queue = Queue::new();
        let slots: Vec<Slot> = (0..timers).map(|_| queue.slot()).collect();
        let mut model: BTreeMap<(u64, u64), Slot> = BTreeMap::new();
        let (mut now, mut sequence) = (0, 0);
        for (what, which, delay) in steps {
            let slot = slots[which];
            match what {
                0..=4 => {
                    sequence += 1;
                    model.retain(|_, &mut armed| armed != slot);
                    model.insert((now + delay, sequence), slot);
                    queue.arm(slot, now + delay);
                }
                5 => {
                    model.retain(|_, &mut armed| armed != slot);
                    queue.cancel(slot);
                }
                _ => {
                    let until = now + delay % 50;
                    while let Some((at, fired)) = queue.pop(until) {
                        let ((due, _), expected) = model.pop_first().unwrap();
                        prop_assert_eq!((at, fired), (due, expected));
                    }
                    prop_assert!(model.keys().all(|&(due, _)| due > until));
                    now = until;
                }
            }
            prop_assert_eq!(queue.armed(), model.len());
            prop_assert_eq!(queue.next(), model.keys().next().map(|&(due, _)| due));
            let due = model.iter().find(|&(_, &armed)| armed == slot);
            prop_assert_eq!(queue.when(slot), due.map(|(&(due, _), _)| due));
        }
        while let Some((at, fired)) = queue.pop(u64::MAX) {
            let ((due, _), expected) = model.pop_first().unwrap();
            prop_assert_eq!((at, fired), (due, expected));
        }
        prop_assert!(model.is_empty());
        prop_assert!(slots.iter().all(|&slot| queue.when(slot).is_none()));
    }
}
