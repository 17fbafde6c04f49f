//! The peer: one level of the fair class on the pointer-linked red-black tree.
//!
//! The same steps as `enqueue_entity`, `dequeue_entity`, `wakeup_preempt_fair`, `pick_eevdf`, put
//! and set for tasks of the root group, with the kernel's order of computation: eligibility
//! multiplies at each node, sums are relative to a moving base. No groups, no load tracking.

use std::ptr::null_mut;

use super::rbtree::{Link, Node, Tree};

const TICK_NS: u64 = 4_000_000;
const BASE_SLICE_NS: u64 = 2_800_000;

pub(crate) struct Queue {
    tree: Tree,
    sum_weight: u64,
    sum_w_vruntime: i64,
    zero: u64,
    curr: Link,
    nr: u32,
    load: u64,
    clock: u64,
    resched: bool,
}

fn vtime(delta: u64, weight: u64) -> u64 {
    if weight == 1 << 20 { delta } else { (delta << 20) / weight }
}

fn before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

// SAFETY of all below: as in `rbtree`: nodes are boxed, outlive the queue and stay where they are.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Queue {
    pub(crate) fn new() -> Self {
        Self {
            tree: Tree::new(),
            sum_weight: 0,
            sum_w_vruntime: 0,
            zero: 0u64.wrapping_sub(1 << 20),
            curr: null_mut(),
            nr: 0,
            load: 0,
            clock: 0,
            resched: false,
        }
    }

    fn key(&self, v: u64) -> i64 {
        v.wrapping_sub(self.zero) as i64
    }

    fn curr(&self) -> Option<&Node> {
        unsafe { self.curr.as_ref() }.filter(|c| c.on_rq)
    }

    fn sums(&self) -> (i64, u64) {
        let (mut sum, mut weight) = (self.sum_w_vruntime, self.sum_weight);
        if let Some(c) = self.curr() {
            sum += self.key(c.vruntime).wrapping_mul(c.weight as i64);
            weight += c.weight;
        }
        (sum, weight)
    }

    fn avg(&mut self) -> u64 {
        let (sum, weight) = self.sums();
        let delta = if self.sum_weight == 0 {
            self.curr().map_or(0, |c| self.key(c.vruntime))
        } else {
            let biased = if sum < 0 { sum - (weight as i64 - 1) } else { sum };
            biased / weight as i64
        };
        self.sum_w_vruntime -= (self.sum_weight as i64).wrapping_mul(delta);
        self.zero = self.zero.wrapping_add(delta as u64);
        self.zero
    }

    fn eligible(&self, v: u64) -> bool {
        let (sum, weight) = self.sums();
        i128::from(sum) >= i128::from(self.key(v)) * i128::from(weight)
    }

    fn insert(&mut self, n: Link) {
        let (v, w) = unsafe { ((*n).vruntime, (*n).weight) };
        self.sum_w_vruntime += self.key(v).wrapping_mul(w as i64);
        self.sum_weight += w;
        self.tree.insert(n);
    }

    fn erase(&mut self, n: Link) {
        self.tree.erase(n);
        let (v, w) = unsafe { ((*n).vruntime, (*n).weight) };
        self.sum_w_vruntime -= self.key(v).wrapping_mul(w as i64);
        self.sum_weight -= w;
    }

    fn slices(&self) -> (u64, u64) {
        let (mut lo, mut hi) = self.tree.slices().unwrap_or((u64::MAX, 0));
        if let Some(c) = self.curr() {
            (lo, hi) = (lo.min(c.slice), hi.max(c.slice));
        }
        (lo, hi)
    }

    fn update_curr(&mut self) {
        let Some(c) = (unsafe { self.curr.as_mut() }) else { return };
        if self.clock <= c.exec_start {
            return;
        }
        let delta = self.clock - c.exec_start;
        c.exec_start = self.clock;
        c.vruntime = c.vruntime.wrapping_add(vtime(delta, c.weight));
        let expired = !before(c.vruntime, c.deadline);
        if expired {
            c.deadline = c.vruntime.wrapping_add(vtime(c.slice, c.weight));
            self.avg();
        }
        if self.nr > 1 && (expired || !before(c.vruntime, c.vprot)) {
            self.resched = true;
        }
    }

    pub(crate) fn dequeue(&mut self, n: Link, now: u64) {
        self.clock = now;
        self.update_curr();
        let v = self.avg();
        let e = unsafe { &mut *n };
        let bound = vtime(self.slices().1 + TICK_NS, e.weight) as i64;
        e.vlag = (v.wrapping_sub(e.vruntime) as i64).clamp(-bound, bound);
        e.deadline = e.deadline.wrapping_sub(e.vruntime);
        e.rel_deadline = true;
        self.erase(n);
        let e = unsafe { &mut *n };
        e.on_rq = false;
        self.nr -= 1;
        self.load -= e.weight;
    }

    pub(crate) fn enqueue(&mut self, n: Link, now: u64, initial: bool) {
        self.clock = now;
        self.update_curr();
        let v = self.avg();
        let e = unsafe { &mut *n };
        e.slice = BASE_SLICE_NS;
        let vslice = vtime(e.slice, e.weight);
        e.vruntime = v;
        if self.nr > 0 && e.vlag != 0 {
            let load = self.sums().1;
            let lag = e.vlag * (load + e.weight) as i64 / load as i64;
            e.vruntime = v.wrapping_sub(lag as u64);
        }
        if e.rel_deadline {
            e.deadline = e.deadline.wrapping_add(e.vruntime);
            e.rel_deadline = false;
        } else {
            let vslice = if initial { vslice / 2 } else { vslice };
            e.deadline = e.vruntime.wrapping_add(vslice);
        }
        self.nr += 1;
        self.load += e.weight;
        self.insert(n);
        unsafe { (*n).on_rq = true };
        if initial || self.curr.is_null() || self.resched {
            return;
        }
        if self.pick_eevdf() == n {
            self.resched = true;
        } else {
            let lo = self.slices().0;
            let c = unsafe { &mut *self.curr };
            let end = c.vruntime.wrapping_add(vtime(lo, c.weight));
            if before(end, c.vprot) {
                c.vprot = end;
            }
        }
    }

    fn pick_eevdf(&self) -> Link {
        let left = self.tree.leftmost();
        if self.nr == 1 {
            return if self.curr().is_some() { self.curr } else { left };
        }
        let curr = self.curr().filter(|c| self.eligible(c.vruntime));
        if curr.is_some_and(|c| before(c.vruntime, c.vprot)) {
            return self.curr;
        }
        let first = unsafe { left.as_ref() }.is_some_and(|l| self.eligible(l.vruntime));
        let best = if first { left } else { self.tree.search(|v| self.eligible(v)) };
        match (unsafe { best.as_ref() }, curr) {
            (Some(b), Some(c)) if before(c.deadline, b.deadline) => self.curr,
            (Some(_), _) => best,
            _ => self.curr,
        }
    }

    /// Picks and switches; the id of what runs.
    pub(crate) fn pick(&mut self, now: u64) -> usize {
        self.clock = now;
        self.update_curr();
        let next = self.pick_eevdf();
        if next != self.curr {
            if self.curr().is_some() {
                self.insert(self.curr);
            }
            self.curr = null_mut();
            self.erase(next);
            let shortest = self.slices().0;
            let e = unsafe { &mut *next };
            e.exec_start = now;
            e.vprot = e.deadline;
            if shortest < e.slice {
                let end = e.vruntime.wrapping_add(vtime(shortest, e.weight));
                if before(end, e.vprot) {
                    e.vprot = end;
                }
            }
            self.curr = next;
        }
        self.resched = false;
        unsafe { (*next).id }
    }
}
