//! Trees for the timeline, on the same sequence: pick the earliest eligible, take it out, put it
//! back with a later deadline. All must pick the same.

use std::time::Instant;

use stealtime_hypervisor::fair::timeline::{Keys, Pool, Timeline};

use super::rbtree::{Node, Tree};
use super::worlds::Dice;

const SIZES: [usize; 9] = [1, 2, 4, 8, 16, 64, 256, 1024, 10_000];

#[derive(Clone, Copy)]
struct Item {
    id: usize,
    deadline: u64,
    vruntime: u64,
    slice: u64,
}

trait Candidate {
    fn insert(&mut self, item: Item);
    fn remove(&mut self, id: usize);
    fn first_eligible(&self, bound: u64) -> Option<usize>;
    /// Shortest and longest slice.
    fn slices(&self) -> (u64, u64);
}

/// With the keys of each entity in a table, as the scheduler has them.
struct BPlus(Pool, Timeline, Vec<Keys>);

impl Candidate for BPlus {
    fn insert(&mut self, i: Item) {
        let Self(pool, tree, keys) = self;
        keys[i.id] = Keys {
            deadline: i.deadline,
            vruntime: i.vruntime,
        };
        let keys = &|e| keys[e as usize];
        pool.insert(tree, i.id as u32, i.slice as u32, keys);
    }
    fn remove(&mut self, id: usize) {
        self.0.remove(&mut self.1, id as u32);
    }
    fn first_eligible(&self, bound: u64) -> Option<usize> {
        self.0
            .first_eligible(&self.1, bound, 0, &|e| self.2[e as usize])
            .map(|found| found.entity as usize)
    }
    fn slices(&self) -> (u64, u64) {
        if self.1.is_empty() {
            return (u64::MAX, 0);
        }
        (self.1.shortest().into(), self.1.longest().into())
    }
}

struct RedBlack(Tree, Vec<*mut Node>);

// SAFETY of the blocks below: nodes are boxed in `new`, freed in `drop`, and stay in place.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all, above"
)]
mod red_black {
    use super::*;

    impl RedBlack {
        pub(super) fn new(n: usize) -> Self {
            let node = |id| Box::into_raw(Box::new(Node::new(id, 1 << 20, 0)));
            Self(Tree::new(), (0..n).map(node).collect())
        }
    }

    impl Drop for RedBlack {
        fn drop(&mut self) {
            for node in &self.1 {
                drop(unsafe { Box::from_raw(*node) });
            }
        }
    }

    impl Candidate for RedBlack {
        fn insert(&mut self, i: Item) {
            let node = self.1[i.id];
            unsafe {
                ((*node).deadline, (*node).vruntime) = (i.deadline, i.vruntime);
                (*node).slice = i.slice;
            }
            self.0.insert(node);
        }
        fn remove(&mut self, id: usize) {
            self.0.erase(self.1[id]);
        }
        fn first_eligible(&self, bound: u64) -> Option<usize> {
            let found = self.0.search(|v| v.wrapping_sub(bound) as i64 <= 0);
            unsafe { found.as_ref() }.map(|n| n.id)
        }
        fn slices(&self) -> (u64, u64) {
            self.0.slices().unwrap_or((u64::MAX, 0))
        }
    }
}

/// Sorted by deadline; found by deadline, moved by memmove.
struct Sorted(Vec<Item>, Vec<u64>);

impl Candidate for Sorted {
    fn insert(&mut self, i: Item) {
        let at = self
            .0
            .partition_point(|o| o.deadline.wrapping_sub(i.deadline) as i64 <= 0);
        self.1[i.id] = i.deadline;
        self.0.insert(at, i);
    }
    fn remove(&mut self, id: usize) {
        let deadline = self.1[id];
        let mut at = self
            .0
            .partition_point(|o| (o.deadline.wrapping_sub(deadline) as i64) < 0);
        while self.0[at].id != id {
            at += 1;
        }
        self.0.remove(at);
    }
    fn first_eligible(&self, bound: u64) -> Option<usize> {
        self.0
            .iter()
            .find(|o| o.vruntime.wrapping_sub(bound) as i64 <= 0)
            .map(|o| o.id)
    }
    fn slices(&self) -> (u64, u64) {
        let both = |(lo, hi): (u64, u64), o: &Item| (lo.min(o.slice), hi.max(o.slice));
        self.0.iter().fold((u64::MAX, 0), both)
    }
}

/// Binary heap by (deadline, order of insertion), with the same augmentation over its implicit
/// subtrees; the search goes best first and leaves out what cannot win.
struct Heap {
    items: Vec<(Item, u64)>,
    sums: Vec<(u64, u64, u64)>,
    at: Vec<usize>,
    order: u64,
}

impl Heap {
    fn less(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.items[a], &self.items[b]);
        match a.0.deadline.wrapping_sub(b.0.deadline) as i64 {
            0 => a.1 < b.1,
            d => d < 0,
        }
    }
    fn sum(&mut self, i: usize) {
        let item = &self.items[i].0;
        let mut s = (item.vruntime, item.slice, item.slice);
        for c in [2 * i + 1, 2 * i + 2] {
            if let Some(below) = self.sums.get(c) {
                let v = if (below.0.wrapping_sub(s.0) as i64) < 0 {
                    below.0
                } else {
                    s.0
                };
                s = (v, s.1.min(below.1), s.2.max(below.2));
            }
        }
        self.sums[i] = s;
    }
    fn swap(&mut self, a: usize, b: usize) {
        self.items.swap(a, b);
        self.at[self.items[a].0.id] = a;
        self.at[self.items[b].0.id] = b;
    }
    /// Restores order around `i` and sums from there to the root.
    fn settle(&mut self, mut i: usize) {
        loop {
            let below = [2 * i + 1, 2 * i + 2];
            let least = below.into_iter().filter(|c| *c < self.items.len());
            let least = least.fold(i, |m, c| if self.less(c, m) { c } else { m });
            if least == i {
                break;
            }
            self.swap(i, least);
            i = least;
        }
        self.sum(i);
        while i > 0 {
            let above = (i - 1) / 2;
            if self.less(i, above) {
                self.swap(i, above);
                self.sum(i);
            }
            i = above;
            self.sum(i);
        }
    }
    fn search(&self, i: usize, bound: u64, best: &mut Option<usize>) {
        let Some(sum) = self.sums.get(i) else { return };
        if sum.0.wrapping_sub(bound) as i64 > 0 || best.is_some_and(|b| !self.less(i, b)) {
            return;
        }
        if self.items[i].0.vruntime.wrapping_sub(bound) as i64 <= 0 {
            *best = Some(i);
            return;
        }
        self.search(2 * i + 1, bound, best);
        self.search(2 * i + 2, bound, best);
    }
}

impl Candidate for Heap {
    fn insert(&mut self, item: Item) {
        self.order += 1;
        self.at[item.id] = self.items.len();
        self.items.push((item, self.order));
        self.sums.push((item.vruntime, item.slice, item.slice));
        self.settle(self.items.len() - 1);
    }
    fn remove(&mut self, id: usize) {
        let (i, last) = (self.at[id], self.items.len() - 1);
        self.swap(i, last);
        self.items.pop();
        self.sums.pop();
        let mut above = last;
        while above > 0 {
            above = (above - 1) / 2;
            self.sum(above);
        }
        if i < last {
            self.settle(i);
        }
    }
    fn first_eligible(&self, bound: u64) -> Option<usize> {
        let mut best = None;
        self.search(0, bound, &mut best);
        best.map(|i| self.items[i].0.id)
    }
    fn slices(&self) -> (u64, u64) {
        self.sums.first().map_or((u64::MAX, 0), |s| (s.1, s.2))
    }
}

/// ns per cycle of search, removal, slices and insertion; and a checksum of the picks.
fn cycles(tree: &mut impl Candidate, n: usize) -> (f64, usize) {
    let mut dice = Dice(n as u64 | 1);
    let mut items: Vec<Item> = (0..n)
        .map(|id| {
            let (vruntime, slice) = (dice.roll(3_000_000) as u64, 2_800_000);
            Item {
                id,
                deadline: vruntime + slice,
                vruntime,
                slice,
            }
        })
        .collect();
    let mut total: u64 = items.iter().map(|i| i.vruntime).sum();
    for item in &items {
        tree.insert(*item);
    }
    let rounds = if n > 1000 { 20_000 } else { 100_000 };
    let mut sum = 0usize;
    let start = Instant::now();
    for _ in 0..rounds {
        let Some(id) = tree.first_eligible(total / n as u64) else {
            break;
        };
        tree.remove(id);
        let (lo, hi) = tree.slices();
        let item = &mut items[id];
        let ran = 500_000 + dice.roll(4_000_000) as u64;
        item.vruntime += ran;
        total += ran;
        item.deadline = item.deadline.max(item.vruntime + (ran & 0xfff00));
        tree.insert(*item);
        sum = sum
            .wrapping_mul(31)
            .wrapping_add(id ^ lo as usize ^ hi as usize);
    }
    (start.elapsed().as_nanos() as f64 / rounds as f64, sum)
}

fn best(run: impl Fn() -> (f64, usize)) -> (f64, usize) {
    let runs: Vec<_> = (0..9).map(|_| run()).collect();
    let least = runs.iter().map(|r| r.0).fold(f64::MAX, f64::min);
    (least, runs[0].1)
}

pub(crate) fn run() {
    println!("ns per cycle of search, removal and insertion, best of 9 passes");
    println!("| entities | B+ tree | red-black tree | sorted array | implicit heap |");
    println!("|---|---|---|---|---|");
    for n in SIZES {
        const ZERO: Keys = Keys {
            deadline: 0,
            vruntime: 0,
        };
        let pool = || BPlus(Pool::with_capacity(n), Timeline::EMPTY, vec![ZERO; n]);
        let heap = || Heap {
            items: vec![],
            sums: vec![],
            at: vec![0; n],
            order: 0,
        };
        let found = [
            best(|| cycles(&mut pool(), n)),
            best(|| cycles(&mut RedBlack::new(n), n)),
            best(|| cycles(&mut Sorted(vec![], vec![0; n]), n)),
            best(|| cycles(&mut heap(), n)),
        ];
        assert!(
            found.iter().all(|f| f.1 == found[0].1),
            "{n}: the trees pick differently"
        );
        let [a, b, c, d] = found.map(|f| f.0);
        println!("| {n} | {a:.0} | {b:.0} | {c:.0} | {d:.0} |");
    }
}
