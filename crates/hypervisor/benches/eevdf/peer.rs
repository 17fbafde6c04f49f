//! The peer: the fair class on pointers and a red-black tree.
//!
//! The same steps as `enqueue_task_fair`, `dequeue_entities`, `check_preempt_wakeup_fair`,
//! `pick_task_fair`, put and set, in the kernel's shape:
//!
//! - Entities are linked by pointers to their queue, the entity above and their own queue. They are
//!   walked level by level.
//! - Eligibility is multiplied out at each node.
//! - Feature bits, buddies, idle entities, counters per level, requests and the hook of the slice
//!   timer are tested where the kernel tests them.
//! - Load tracking, which the kernel's functions always do and this crate does not, is optional.
//! - Bandwidth, statistics, core scheduling and locks are missing.

use std::ptr::null_mut;

use super::rbtree::{Link, Node, Tree};
use super::tracking::Average;

const TICK_NS: u64 = 4_000_000;
const BASE_SLICE_NS: u64 = 2_800_000;
const SLEEP: u32 = 1;
const SPECIAL: u32 = 2;
const WAKEUP: u32 = 4;
const INITIAL: u32 = 8;

/// Feature bits, read at run time as the kernel's are.
pub(crate) const FEATURES: u32 = 0x1ff;
const PLACE_LAG: u32 = 1;
const REL_DEADLINE: u32 = 2;
const DELAY_DEQUEUE: u32 = 4;
const PICK_BUDDY: u32 = 8;
const PREEMPT_SHORT: u32 = 16;
const WAKEUP_PREEMPTION: u32 = 32;
const RUN_TO_PARITY: u32 = 64;
const INITIAL_HALF: u32 = 128;
const DELAY_ZERO: u32 = 256;
const HRTICK: u32 = 512;
/// Not a feature of the kernel's, where it is always on.
pub(crate) const LOAD_TRACKING: u32 = 1024;

/// `struct rq`.
pub(crate) struct Rq {
    clock: u64,
    curr: Link,
    resched: u8,
    announced: bool,
    hrtick: u64,
    nr_running: u32,
    features: u32,
    pub(crate) root: *mut Cfs,
}

/// `struct cfs_rq`.
pub(crate) struct Cfs {
    tree: Tree,
    sum_weight: u64,
    sum_w_vruntime: i64,
    zero: u64,
    curr: Link,
    next: Link,
    nr: u32,
    h_nr_queued: u32,
    h_nr_runnable: u32,
    h_nr_idle: u32,
    load: u64,
    idle: bool,
    rq: *mut Rq,
    average: Average,
}

fn vtime(delta: u64, weight: u64) -> u64 {
    if weight == 1 << 20 {
        delta
    } else {
        (delta << 20) / weight
    }
}

fn before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

// SAFETY of all below: as in `rbtree`: run queue, queues and nodes are boxed, live as long as the
// peer, stay where they are, and one thread uses them.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all, above"
)]
mod links {
    use super::*;

    impl Cfs {
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

        fn set_zero(&mut self, zero: u64) {
            let delta = zero.wrapping_sub(self.zero) as i64;
            self.sum_w_vruntime -= (self.sum_weight as i64).wrapping_mul(delta);
            self.zero = zero;
        }

        fn avg(&mut self) -> u64 {
            let (sum, weight) = self.sums();
            let delta = if self.sum_weight == 0 {
                self.curr().map_or(0, |c| self.key(c.vruntime))
            } else {
                let biased = if sum < 0 {
                    sum - (weight as i64 - 1)
                } else {
                    sum
                };
                biased / weight as i64
            };
            self.set_zero(self.zero.wrapping_add(delta as u64));
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

        fn min_slice(&self) -> u64 {
            let tree = self.tree.slices().map_or(u64::MAX, |s| s.0);
            self.curr().map_or(tree, |c| tree.min(c.slice))
        }

        fn max_slice(&self) -> u64 {
            let tree = self.tree.slices().map_or(0, |s| s.1);
            self.curr().map_or(tree, |c| tree.max(c.slice))
        }

        fn rq(&self) -> &Rq {
            unsafe { &*self.rq }
        }

        fn has(&self, feature: u32) -> bool {
            std::hint::black_box(self.rq().features) & feature != 0
        }

        /// `update_load_avg` of an entity and of its queue.
        fn track(&mut self, e: &mut Node) {
            if !self.has(LOAD_TRACKING) {
                return;
            }
            let now = self.rq().clock;
            let runs = std::ptr::eq(self.curr, e);
            e.average
                .update(now, u64::from(e.on_rq), u64::from(e.on_rq), runs);
            let (load, nr) = (self.load >> 10, u64::from(self.h_nr_runnable));
            self.average.update(now, load, nr, !self.curr.is_null());
        }

        fn update_deadline(&mut self, c: &mut Node) -> bool {
            if before(c.vruntime, c.deadline) {
                return false;
            }
            if !c.custom_slice {
                c.slice = BASE_SLICE_NS;
            }
            c.deadline = c.vruntime.wrapping_add(vtime(c.slice, c.weight));
            self.avg();
            true
        }

        fn update_curr(&mut self) {
            let Some(c) = (unsafe { self.curr.as_mut() }) else {
                return;
            };
            let now = self.rq().clock;
            if now <= c.exec_start {
                return;
            }
            let delta = now - c.exec_start;
            c.exec_start = now;
            c.vruntime = c.vruntime.wrapping_add(vtime(delta, c.weight));
            let expired = self.update_deadline(c);
            if self.nr > 1 && (expired || !before(c.vruntime, c.vprot)) {
                unsafe { &mut *self.rq }.request(1);
                self.clear_buddies(c);
            }
        }

        fn clear_buddies(&mut self, mut n: Link) {
            if self.next != n {
                return;
            }
            while let Some(e) = unsafe { n.as_ref() } {
                let cfs = unsafe { &mut *e.cfs };
                if cfs.next != n {
                    return;
                }
                cfs.next = null_mut();
                n = e.above;
            }
        }

        fn update_lag(&mut self, e: &mut Node) -> bool {
            let v = self.avg();
            let bound = vtime(self.max_slice() + TICK_NS, e.weight) as i64;
            let mut vlag = (v.wrapping_sub(e.vruntime) as i64).clamp(-bound, bound);
            if e.delayed {
                vlag = vlag.max(e.vlag);
                if self.has(DELAY_ZERO) {
                    vlag = vlag.min(0);
                }
            }
            e.vlag = vlag;
            v.wrapping_sub(vlag as u64) != e.vruntime
        }

        fn place(&mut self, e: &mut Node, flags: u32) {
            let v = self.avg();
            if !e.custom_slice {
                e.slice = BASE_SLICE_NS;
            }
            let mut vslice = vtime(e.slice, e.weight);
            let mut lag = 0;
            if self.has(PLACE_LAG) && self.nr > 0 && e.vlag != 0 {
                let load = self.sums().1;
                lag = e.vlag * (load + e.weight) as i64 / load as i64;
                if e.weight > load {
                    self.set_zero(v.wrapping_sub(lag as u64));
                }
            }
            e.vruntime = v.wrapping_sub(lag as u64);
            if self.has(REL_DEADLINE) && e.rel_deadline {
                e.deadline = e.deadline.wrapping_add(e.vruntime);
                e.rel_deadline = false;
                return;
            }
            if self.has(INITIAL_HALF) && flags & INITIAL != 0 {
                vslice /= 2;
            }
            e.deadline = e.vruntime.wrapping_add(vslice);
        }

        fn enqueue_entity(&mut self, n: Link, flags: u32) {
            let e = unsafe { &mut *n };
            let curr = self.curr == n;
            if curr {
                self.place(e, flags);
            }
            self.update_curr();
            self.track(e);
            refresh_weight(e);
            if !curr {
                self.place(e, flags);
            }
            self.load += e.weight;
            self.nr += 1;
            if !curr {
                self.insert(n);
            }
            unsafe { (*n).on_rq = true };
        }

        fn dequeue_entity(&mut self, n: Link, flags: u32) -> bool {
            let e = unsafe { &mut *n };
            self.update_curr();
            self.clear_buddies(n);
            let delay = flags & SLEEP != 0 && flags & SPECIAL == 0;
            if self.has(DELAY_DEQUEUE) && delay && !self.eligible(e.vruntime) {
                self.update_lag(e);
                e.delayed = true;
                return false;
            }
            self.track(e);
            self.update_lag(e);
            if self.has(REL_DEADLINE) && flags & SLEEP == 0 {
                e.deadline = e.deadline.wrapping_sub(e.vruntime);
                e.rel_deadline = true;
            }
            if self.curr != n {
                self.erase(n);
            }
            let e = unsafe { &mut *n };
            e.on_rq = false;
            self.load -= e.weight;
            self.nr -= 1;
            refresh_weight(e);
            true
        }

        fn pick_eevdf(&self, protect: bool) -> Link {
            let left = self.tree.leftmost();
            if self.nr == 1 {
                return if self.curr().is_some() {
                    self.curr
                } else {
                    left
                };
            }
            if self.has(PICK_BUDDY)
                && protect
                && let Some(buddy) = unsafe { self.next.as_ref() }
                && self.eligible(buddy.vruntime)
            {
                return self.next;
            }
            let curr = self.curr().filter(|c| self.eligible(c.vruntime));
            if protect && curr.is_some_and(|c| before(c.vruntime, c.vprot)) {
                return self.curr;
            }
            let first = unsafe { left.as_ref() }.is_some_and(|l| self.eligible(l.vruntime));
            let best = if first {
                left
            } else {
                self.tree.search(|v| self.eligible(v))
            };
            match (unsafe { best.as_ref() }, curr) {
                (Some(b), Some(c)) if before(c.deadline, b.deadline) => self.curr,
                (Some(_), _) => best,
                _ => self.curr,
            }
        }

        fn put(&mut self, n: Link) {
            if unsafe { (*n).on_rq } {
                self.update_curr();
                self.insert(n);
                self.track(unsafe { &mut *n });
            }
            self.curr = null_mut();
        }

        fn set(&mut self, n: Link) {
            self.clear_buddies(n);
            if unsafe { (*n).on_rq } {
                self.erase(n);
                self.track(unsafe { &mut *n });
            }
            let mut shortest = 700_000;
            if self.has(RUN_TO_PARITY) {
                shortest = self.min_slice();
            }
            let e = unsafe { &mut *n };
            e.exec_start = self.rq().clock;
            e.vprot = e.deadline;
            if shortest < e.slice {
                let end = e.vruntime.wrapping_add(vtime(shortest, e.weight));
                if before(end, e.vprot) {
                    e.vprot = end;
                }
            }
            self.curr = n;
        }

        fn update_protect(&mut self, e: &mut Node) {
            let end = e.vruntime.wrapping_add(vtime(self.min_slice(), e.weight));
            if before(end, e.vprot) {
                e.vprot = end;
            }
        }
    }

    fn refresh_weight(e: &mut Node) {
        // Groups would be reweighted here; the benchmark has none.
        debug_assert!(e.my_q.is_null());
        if !e.my_q.is_null() {
            e.weight = unsafe { (*e.my_q).load }.max(2);
        }
    }

    fn is_idle(e: &Node) -> bool {
        match unsafe { e.my_q.as_ref() } {
            None => e.policy == 5,
            Some(q) => q.idle,
        }
    }

    impl Rq {
        pub(crate) fn boxed(features: u32) -> *mut Self {
            let rq = Box::into_raw(Box::new(Self {
                clock: 0,
                curr: null_mut(),
                resched: 0,
                announced: false,
                hrtick: 0,
                nr_running: 0,
                features,
                root: null_mut(),
            }));
            let root = Box::into_raw(Box::new(Cfs {
                tree: Tree::new(),
                sum_weight: 0,
                sum_w_vruntime: 0,
                zero: 0u64.wrapping_sub(1 << 20),
                curr: null_mut(),
                next: null_mut(),
                nr: 0,
                h_nr_queued: 0,
                h_nr_runnable: 0,
                h_nr_idle: 0,
                load: 0,
                idle: false,
                rq,
                average: Average::default(),
            }));
            unsafe { (*rq).root = root };
            rq
        }

        fn request(&mut self, level: u8) {
            let level = if self.curr.is_null() { 2 } else { level };
            self.resched = self.resched.max(level);
        }

        pub(crate) fn dequeue(&mut self, task: Link, now: u64, mut flags: u32) {
            self.clock = now;
            let mut n = task;
            let e = unsafe { &*n };
            let mut idle = u32::from(is_idle(e));
            let runnable = u32::from(!e.delayed || flags & SLEEP != 0);
            let mut slice = 0;
            while let Some(e) = unsafe { n.as_ref() } {
                let cfs = unsafe { &mut *e.cfs };
                if !cfs.dequeue_entity(n, flags) {
                    if n == task {
                        return;
                    }
                    slice = cfs.min_slice();
                    break;
                }
                cfs.h_nr_queued -= 1;
                cfs.h_nr_runnable -= runnable;
                cfs.h_nr_idle -= idle;
                idle |= u32::from(cfs.idle);
                n = unsafe { (*n).above };
                if cfs.load != 0 {
                    slice = cfs.min_slice();
                    break;
                }
                flags = (flags | SLEEP) & !SPECIAL;
            }
            while let Some(e) = unsafe { n.as_mut() } {
                let cfs = unsafe { &mut *e.cfs };
                refresh_weight(e);
                e.slice = slice;
                slice = cfs.min_slice();
                cfs.h_nr_queued -= 1;
                n = e.above;
            }
            self.nr_running -= 1;
        }

        pub(crate) fn enqueue(&mut self, task: Link, now: u64, mut flags: u32) {
            self.clock = now;
            let mut n = task;
            let e = unsafe { &*n };
            let mut idle = u32::from(is_idle(e));
            let runnable = u32::from(!e.delayed || flags & WAKEUP != 0);
            let initial = flags & INITIAL != 0;
            let mut slice = 0;
            while let Some(e) = unsafe { n.as_mut() } {
                if e.on_rq {
                    break;
                }
                if slice != 0 {
                    e.slice = slice;
                    e.custom_slice = true;
                }
                let cfs = unsafe { &mut *e.cfs };
                cfs.enqueue_entity(n, flags);
                slice = cfs.min_slice();
                cfs.h_nr_queued += 1;
                cfs.h_nr_runnable += runnable;
                cfs.h_nr_idle += idle;
                idle |= u32::from(cfs.idle);
                flags = WAKEUP;
                n = unsafe { (*n).above };
            }
            while let Some(e) = unsafe { n.as_mut() } {
                let cfs = unsafe { &mut *e.cfs };
                refresh_weight(e);
                e.slice = slice;
                slice = cfs.min_slice();
                cfs.h_nr_queued += 1;
                n = e.above;
            }
            self.nr_running += 1;
            if std::hint::black_box(self.features) & HRTICK != 0 && self.hrtick == 0 {
                self.hrtick = now;
            }
            self.check_preempt(task, initial);
        }

        fn check_preempt(&mut self, p: Link, fork: bool) {
            if self.curr.is_null() {
                if !self.announced {
                    self.announced = true;
                    self.request(2);
                }
                return;
            }
            if p == self.curr || self.resched == 2 {
                return;
            }
            if std::hint::black_box(self.features) & WAKEUP_PREEMPTION == 0 {
                return;
            }
            let (mut a, mut b) = (self.curr, p);
            unsafe {
                while (*a).depth > (*b).depth {
                    a = (*a).above;
                }
                while (*b).depth > (*a).depth {
                    b = (*b).above;
                }
                while (*a).cfs != (*b).cfs {
                    (a, b) = ((*a).above, (*b).above);
                }
            }
            let (se, pse) = unsafe { (&mut *a, &*b) };
            let cfs = unsafe { &mut *se.cfs };
            if is_idle(se) && !is_idle(pse) {
                se.vprot = se.vruntime;
                self.request(1);
                return;
            }
            if is_idle(se) != is_idle(pse) || unsafe { (*p).policy } != 0 {
                return;
            }
            cfs.update_curr();
            let short = cfs.has(PREEMPT_SHORT) && pse.slice < se.slice;
            if !short && (fork || pse.delayed) {
                return;
            }
            if cfs.pick_eevdf(!short) == b {
                self.request(1);
                if short {
                    se.vprot = se.vruntime;
                    cfs.clear_buddies(a);
                }
            } else {
                cfs.update_protect(se);
            }
        }

        /// Picks and switches; the id of what runs.
        pub(crate) fn pick(&mut self, now: u64) -> usize {
            self.clock = now;
            let prev = self.curr;
            let mut cfs = unsafe { &mut *self.root };
            let next = loop {
                if cfs.curr().is_some() {
                    cfs.update_curr();
                }
                let n = cfs.pick_eevdf(true);
                match unsafe { (*n).my_q.as_mut() } {
                    None => break n,
                    Some(below) => cfs = below,
                }
            };
            if next != prev {
                let mut n = prev;
                while let Some(e) = unsafe { n.as_ref() } {
                    unsafe { &mut *e.cfs }.put(n);
                    n = e.above;
                }
                let mut n = next;
                while let Some(e) = unsafe { n.as_ref() } {
                    let cfs = unsafe { &mut *e.cfs };
                    if !cfs.curr.is_null() {
                        break;
                    }
                    cfs.set(n);
                    n = unsafe { (*n).above };
                }
                self.curr = next;
            }
            self.resched = 0;
            self.announced = false;
            unsafe { (*next).id }
        }
    }
}

/// First enqueue of a new task.
pub(crate) const FORK: u32 = INITIAL;
