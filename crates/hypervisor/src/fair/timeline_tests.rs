//! The tree against a sorted list.

extern crate std;
use super::*;
use crate::fair::weights::before;
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
        let index = self
            .0
            .partition_point(|r| !before(row.deadline, r.deadline));
        self.0.insert(index, row);
    }

    fn first_eligible(&self, zero: u64, bound: i64) -> Option<u32> {
        let fits = |r: &&Row| r.vruntime.wrapping_sub(zero) as i64 <= bound;
        self.0.iter().find(fits).map(|r| r.entity)
    }

    /// The keys of an entity in the list.
    fn keys(&self, entity: u32) -> Keys {
        let row = self.0.iter().find(|r| r.entity == entity).unwrap();
        Keys {
            deadline: row.deadline,
            vruntime: row.vruntime,
        }
    }
}

/// Each entry of an inner node sums up the node below, which has a copy of it.
fn summed(pool: &Pool, n: u32) {
    let Some(node) = pool.nodes.get(n as usize).filter(|node| !node.leaf) else {
        return;
    };
    for entry in node.filled() {
        let below = &pool.nodes[entry.child as usize];
        assert_eq!(*entry, below.summary(entry.child));
        let copy = (below.vruntime, below.min_slice, below.max_slice);
        assert_eq!(copy, (entry.vruntime, entry.min_slice, entry.max_slice));
        assert_eq!(below.parent, n);
        summed(pool, entry.child);
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
    summed(pool, t.root);
    for bound in bounds {
        let sum = WeightedSum {
            w_vruntime: bound.saturating_mul(3).saturating_add(2),
            weight: 3,
        };
        assert_eq!(
            pool.earliest_eligible(t, zero, sum, &|e| list.keys(e)),
            pool.first_eligible(t, zero, *bound, &|e| list.keys(e))
        );
        let found = pool.first_eligible(t, zero, *bound, &|e| list.keys(e));
        assert_eq!(found.map(|f| f.entity), list.first_eligible(zero, *bound));
    }
}

const CAPACITY: u32 = if cfg!(miri) { 60 } else { 600 };

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 64 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Trees of one node, where an exchange is one pass over it.
    #[test]
    fn short_exchanges_agree_with_a_sorted_list(
        zero in any::<u64>(),
        steps in prop::collection::vec((0..20u32, 0..6i64, -5..5i64, 1..4u32, 0..3u8),
            if cfg!(miri) { 100 } else { 400 }),
    ) {
        let mut pool = Pool::with_capacity(20);
        let mut t = Timeline::EMPTY;
        let mut list = List::default();
        for (entity, deadline, vruntime, slice, what) in steps {
            let deadline = zero.wrapping_add(deadline as u64);
            let vruntime = zero.wrapping_add(vruntime as u64);
            let first = list.0.get(usize::from(what)).map(|r| r.entity);
            let row = Row { entity, deadline, vruntime, slice };
            match first {
                _ if pool.contains(entity) => {
                    pool.remove(&mut t, entity);
                    list.0.retain(|r| r.entity != entity);
                }
                Some(outgoing) if entity % 2 == 0 => {
                    list.insert(row);
                    pool.exchange(&mut t, entity, slice, outgoing, &|e| list.keys(e));
                    list.0.retain(|r| r.entity != outgoing);
                }
                _ => {
                    list.insert(row);
                    pool.insert(&mut t, entity, slice, &|e| list.keys(e));
                }
            }
            same(&pool, &t, &list, zero, &[-3, 0, 3]);
        }
    }

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
                list.insert(row);
                pool.insert(&mut t, *entity, *slice, &|e| list.keys(e));
            } else if *what == 0 {
                pool.update_slice(&mut t, *entity, *slice);
                let row = list.0.iter_mut().find(|r| r.entity == *entity);
                row.unwrap().slice = *slice;
            } else if *what < 6 || n % 1000 > 700 {
                pool.remove(&mut t, *entity);
                list.0.retain(|r| r.entity != *entity);
            } else {
                let incoming = (*entity + 1) % CAPACITY;
                if !pool.contains(incoming) {
                    let row = Row { entity: incoming, deadline, vruntime, slice: *slice };
                    list.insert(row);
                    pool.exchange(&mut t, incoming, *slice, *entity, &|e| list.keys(e));
                    list.0.retain(|r| r.entity != *entity);
                }
            }
            if n % 7 == 0 {
                same(&pool, &t, &list, zero, &[-51, -50, n as i64 % 50, 0, 49]);
            }
        }
        same(&pool, &t, &list, zero, &[0]);
        for entity in 0..CAPACITY {
            if pool.contains(entity) {
                pool.remove(&mut t, entity);
                list.0.retain(|r| r.entity != entity);
            }
        }
        same(&pool, &t, &list, zero, &[0]);
        prop_assert_eq!(t, Timeline::EMPTY);
        prop_assert_eq!(pool.free.len(), pool.nodes.len());
    }
}
