//! The tree against a sorted list.

extern crate std;
use super::*;
use proptest::prelude::*;
use std::vec::Vec;

#[derive(Clone, Copy)]
struct Row {
    entity: u32,
    deadline: u64,
    vruntime: u64,
    slice: u32,
}

/// The same tree as a list.
#[derive(Default)]
struct List(Vec<Row>);

impl List {
    fn insert(&mut self, row: Row) {
        let at = self
            .0
            .partition_point(|r| !before(row.deadline, r.deadline));
        self.0.insert(at, row);
    }

    fn first_eligible(&self, zero: u64, bound: i64) -> Option<u32> {
        let fits = |r: &&Row| r.vruntime.wrapping_sub(zero) as i64 <= bound;
        self.0.iter().find(fits).map(|r| r.entity)
    }
}

fn same(pool: &Pool, t: &Timeline, list: &List, zero: u64, bounds: &[i64]) {
    let mut order = Vec::new();
    pool.for_each(t, &mut |e| order.push(e));
    assert!(order.iter().eq(list.0.iter().map(|r| &r.entity)));
    assert_eq!(t.is_empty(), list.0.is_empty());
    assert_eq!(pool.first(t), list.0.first().map(|r| r.entity));
    let shortest = list.0.iter().map(|r| r.slice).min().unwrap_or(u32::MAX);
    assert_eq!(t.shortest(), shortest);
    assert_eq!(
        t.longest(),
        list.0.iter().map(|r| r.slice).max().unwrap_or(0)
    );
    for bound in bounds {
        assert_eq!(
            pool.first_eligible(t, zero, *bound).map(|f| f.0),
            list.first_eligible(zero, *bound)
        );
    }
}

const CAPACITY: u32 = if cfg!(miri) { 60 } else { 600 };

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 64 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn agrees_with_a_sorted_list(
        zero in any::<u64>(),
        steps in prop::collection::vec((0..CAPACITY, 0..40i64, -50..50i64, 1..9u32, 0..8u8),
            if cfg!(miri) { 200 } else { 3000 }),
    ) {
        let mut pool = Pool::with_capacity(CAPACITY as usize);
        let mut t = Timeline::EMPTY;
        let mut list = List::default();
        for (n, (entity, deadline, vruntime, slice, what)) in steps.iter().enumerate() {
            // Near the wrap, with many equal deadlines.
            let deadline = zero.wrapping_add(*deadline as u64);
            let vruntime = zero.wrapping_add(*vruntime as u64);
            if !pool.contains(*entity) {
                let row = Row { entity: *entity, deadline, vruntime, slice: *slice };
                pool.insert(&mut t, *entity, deadline, vruntime, *slice);
                list.insert(row);
            } else if *what == 0 {
                pool.update_slice(&mut t, *entity, *slice);
                let row = list.0.iter_mut().find(|r| r.entity == *entity);
                row.unwrap().slice = *slice;
            } else if *what < 6 || n % 1000 > 700 {
                pool.remove(&mut t, *entity);
                list.0.retain(|r| r.entity != *entity);
            }
            if n % 7 == 0 {
                same(&pool, &t, &list, zero, &[-51, -50, n as i64 % 50, 0, 49]);
            }
        }
        for entity in 0..CAPACITY {
            if pool.contains(entity) {
                pool.remove(&mut t, entity);
                list.0.retain(|r| r.entity != entity);
            }
        }
        same(&pool, &t, &list, zero, &[0]);
        // All but the root, which stays.
        prop_assert_eq!(pool.free.len() + usize::from(t.root != NONE), pool.nodes.len());
    }
}
