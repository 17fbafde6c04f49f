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
        (timers, pace, steps) in prop_oneof![
            steps(24, 400, 50).prop_map(|steps| (24, 50, steps)),
            // Near and far ones.
            steps(24, 400, 20_000).prop_map(|steps| (24, 9000, steps)),
            // Soon more than a list takes.
            steps(1000, 2000, 5000).prop_map(|steps| (1000, 50, steps)),
            // Many, most of them beyond the wheel when they are armed: one turn, or several.
            steps(1000, 2000, 600_000).prop_map(|steps| (1000, 5000, steps)),
            steps(1000, 2000, 1 << 40).prop_map(|steps| (1000, 1 << 36, steps)),
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
                    let until = now + delay % pace;
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

/// Timers at the last times that can be represented, among many others.
#[test]
fn the_end_of_time_comes() {
    let mut queue = Queue::new();
    let slots: Vec<Slot> = (0..600).map(|_| queue.slot()).collect();
    for (n, &slot) in (0u64..).zip(&slots) {
        queue.arm(slot, u64::MAX - 1 - n % 3);
    }
    let order = (0..3)
        .rev()
        .flat_map(|late| slots.iter().skip(late).step_by(3));
    for &slot in order {
        assert_eq!(queue.pop(u64::MAX).map(|(_, fired)| fired), Some(slot));
    }
    assert_eq!(queue.pop(u64::MAX), None);
}

/// Among many: what is armed for a time that has passed fires now, behind what was armed for now, and can be
/// disarmed.
#[test]
fn what_is_late_fires_now() {
    let mut queue = Queue::new();
    let slots: Vec<Slot> = (0..600).map(|_| queue.slot()).collect();
    for &slot in &slots {
        queue.arm(slot, 10_000);
    }
    let (first, second, third) = (slots[0], slots[1], slots[2]);
    assert_eq!(queue.pop(10_000), Some((10_000, first)));
    queue.arm(first, 9_000);
    queue.arm(second, 10);
    queue.arm(third, 10);
    assert_eq!(queue.when(first), Some(10_000));
    queue.cancel(second);
    let rest = slots[3..].iter().chain([&first, &third]);
    for &slot in rest {
        assert_eq!(queue.pop(u64::MAX), Some((10_000, slot)));
    }
    assert_eq!(queue.pop(u64::MAX), None);
}
