use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Queue, Slot};

proptest! {
    /// Against a sorted map: the same timers fire at the same times in the same order.
    #[test]
    fn fires_as_a_sorted_map_does(steps in prop::collection::vec((0..3u8, 0..24usize, 0..50u64), 1..400)) {
        let mut queue = Queue::new();
        let slots: Vec<Slot> = (0..24).map(|_| queue.slot()).collect();
        let mut model: BTreeMap<(u64, u64), Slot> = BTreeMap::new();
        let (mut now, mut sequence) = (0, 0);
        for (what, which, delay) in steps {
            let slot = slots[which];
            match what {
                0 => {
                    sequence += 1;
                    model.retain(|_, &mut armed| armed != slot);
                    model.insert((now + delay, sequence), slot);
                    queue.arm(slot, now + delay);
                }
                1 => {
                    model.retain(|_, &mut armed| armed != slot);
                    queue.cancel(slot);
                }
                _ => {
                    let until = now + delay;
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
            for &slot in &slots {
                let due = model.iter().find(|&(_, &armed)| armed == slot);
                prop_assert_eq!(queue.when(slot), due.map(|(&(due, _), _)| due));
            }
        }
    }
}
