//! The peer's tree: an intrusive, pointer-linked, augmented red-black tree.
//!
//! It has the algorithmic shape of the kernel's `cfs_rq->tasks_timeline`. Nodes are embedded in the
//! entities and linked by pointers, and the leftmost is cached. Insertions, removals and rotations
//! maintain the earliest vruntime and the shortest and longest slice of each subtree. It is written
//! for this benchmark, and is not the kernel's code.

use std::ptr::null_mut;

use super::peer::Cfs;
use super::tracking::Average;

pub(crate) type Link = *mut Node;

/// An entity with its links. `weight` and below are the scheduler's.
#[repr(C)]
pub(crate) struct Node {
    parent: Link,
    left: Link,
    right: Link,
    red: bool,
    pub(crate) on_rq: bool,
    pub(crate) rel_deadline: bool,
    pub(crate) deadline: u64,
    pub(crate) vruntime: u64,
    min_vruntime: u64,
    pub(crate) slice: u64,
    min_slice: u64,
    max_slice: u64,
    pub(crate) weight: u64,
    pub(crate) vlag: i64,
    pub(crate) vprot: u64,
    pub(crate) exec_start: u64,
    pub(crate) id: usize,
    pub(crate) delayed: bool,
    pub(crate) custom_slice: bool,
    pub(crate) policy: u8,
    pub(crate) depth: u32,
    pub(crate) average: Average,
    /// Queue it is on (`se->cfs_rq`), group's entity above (`se->parent`), own queue (`se->my_q`).
    pub(crate) cfs: *mut Cfs,
    pub(crate) above: Link,
    pub(crate) my_q: *mut Cfs,
}

impl Node {
    pub(crate) fn new(id: usize, weight: u64, slice: u64) -> Self {
        Self {
            parent: null_mut(),
            left: null_mut(),
            right: null_mut(),
            red: false,
            on_rq: false,
            rel_deadline: false,
            deadline: 0,
            vruntime: 0,
            min_vruntime: 0,
            slice,
            min_slice: 0,
            max_slice: 0,
            weight,
            vlag: 0,
            vprot: 0,
            exec_start: 0,
            id,
            delayed: false,
            custom_slice: false,
            policy: 0,
            depth: 0,
            average: Average::default(),
            cfs: null_mut(),
            above: null_mut(),
            my_q: null_mut(),
        }
    }
}

pub(crate) struct Tree {
    root: Link,
    leftmost: Link,
}

fn before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

// SAFETY of all below: every link is null or points to a node of the same tree. The peer queue boxes
// the nodes, outlives the tree and never moves them, and one thread uses them. Raw links are needed:
// the point of the peer is to have the kernel's memory shape.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all, above"
)]
mod links {
    use super::{Link, Node, Tree, before};
    use std::ptr::null_mut;

    /// Recomputes a node's augmentation; false if it was right.
    unsafe fn augment(n: &mut Node) -> bool {
        let (mut v, mut lo, mut hi) = (n.vruntime, n.slice, n.slice);
        for child in [n.left, n.right] {
            if let Some(c) = unsafe { child.as_ref() } {
                if before(c.min_vruntime, v) {
                    v = c.min_vruntime;
                }
                lo = lo.min(c.min_slice);
                hi = hi.max(c.max_slice);
            }
        }
        let same = (n.min_vruntime, n.min_slice, n.max_slice) == (v, lo, hi);
        (n.min_vruntime, n.min_slice, n.max_slice) = (v, lo, hi);
        !same
    }

    unsafe fn propagate(mut n: Link) {
        while let Some(node) = unsafe { n.as_mut() } {
            if !unsafe { augment(node) } {
                return;
            }
            n = node.parent;
        }
    }

    fn is_red(n: Link) -> bool {
        unsafe { n.as_ref() }.is_some_and(|n| n.red)
    }

    impl Tree {
        pub(crate) fn new() -> Self {
            Self {
                root: null_mut(),
                leftmost: null_mut(),
            }
        }

        pub(crate) fn leftmost(&self) -> Link {
            self.leftmost
        }

        pub(crate) fn slices(&self) -> Option<(u64, u64)> {
            unsafe { self.root.as_ref() }.map(|r| (r.min_slice, r.max_slice))
        }

        unsafe fn replace(&mut self, parent: Link, old: Link, new: Link) {
            unsafe {
                if parent.is_null() {
                    self.root = new;
                } else if (*parent).left == old {
                    (*parent).left = new;
                } else {
                    (*parent).right = new;
                }
            }
        }

        unsafe fn rotate(&mut self, top: Link, leftwards: bool) {
            unsafe {
                let up = if leftwards { (*top).right } else { (*top).left };
                let middle = if leftwards { (*up).left } else { (*up).right };
                if leftwards {
                    (*top).right = middle;
                    (*up).left = top;
                } else {
                    (*top).left = middle;
                    (*up).right = top;
                }
                if !middle.is_null() {
                    (*middle).parent = top;
                }
                let parent = (*top).parent;
                (*up).parent = parent;
                self.replace(parent, top, up);
                (*top).parent = up;
                // The new top covers what the old one did.
                (*up).min_vruntime = (*top).min_vruntime;
                (*up).min_slice = (*top).min_slice;
                (*up).max_slice = (*top).max_slice;
                augment(&mut *top);
            }
        }

        pub(crate) fn insert(&mut self, n: Link) {
            unsafe {
                let (mut parent, mut at, mut first) = (null_mut(), self.root, true);
                let mut left = true;
                while !at.is_null() {
                    parent = at;
                    left = before((*n).deadline, (*at).deadline);
                    first &= left;
                    at = if left { (*at).left } else { (*at).right };
                }
                (*n).parent = parent;
                (*n).left = null_mut();
                (*n).right = null_mut();
                (*n).red = true;
                (*n).min_vruntime = (*n).vruntime;
                (*n).min_slice = (*n).slice;
                (*n).max_slice = (*n).slice;
                if parent.is_null() {
                    self.root = n;
                } else if left {
                    (*parent).left = n;
                } else {
                    (*parent).right = n;
                }
                if first {
                    self.leftmost = n;
                }
                propagate(parent);
                self.insert_color(n);
            }
        }

        unsafe fn insert_color(&mut self, mut n: Link) {
            unsafe {
                while is_red((*n).parent) {
                    let mut parent = (*n).parent;
                    let grand = (*parent).parent;
                    let on_left = parent == (*grand).left;
                    let uncle = if on_left {
                        (*grand).right
                    } else {
                        (*grand).left
                    };
                    if is_red(uncle) {
                        (*parent).red = false;
                        (*uncle).red = false;
                        (*grand).red = true;
                        n = grand;
                        continue;
                    }
                    let inner = if on_left {
                        (*parent).right
                    } else {
                        (*parent).left
                    };
                    if n == inner {
                        self.rotate(parent, on_left);
                        parent = n;
                    }
                    (*parent).red = false;
                    (*grand).red = true;
                    self.rotate(grand, !on_left);
                    break;
                }
                (*self.root).red = false;
            }
        }

        pub(crate) fn erase(&mut self, n: Link) {
            unsafe {
                if self.leftmost == n {
                    self.leftmost = next(n);
                }
                let (child, mut parent, black);
                if (*n).left.is_null() || (*n).right.is_null() {
                    child = if (*n).left.is_null() {
                        (*n).right
                    } else {
                        (*n).left
                    };
                    parent = (*n).parent;
                    black = !(*n).red;
                    if !child.is_null() {
                        (*child).parent = parent;
                    }
                    self.replace(parent, n, child);
                } else {
                    let mut s = (*n).right;
                    while !(*s).left.is_null() {
                        s = (*s).left;
                    }
                    child = (*s).right;
                    parent = (*s).parent;
                    black = !(*s).red;
                    if parent == n {
                        parent = s;
                    } else {
                        (*parent).left = child;
                        if !child.is_null() {
                            (*child).parent = parent;
                        }
                        (*s).right = (*n).right;
                        (*(*s).right).parent = s;
                    }
                    (*s).left = (*n).left;
                    (*(*s).left).parent = s;
                    (*s).red = (*n).red;
                    (*s).parent = (*n).parent;
                    self.replace((*n).parent, n, s);
                    (*s).min_vruntime = (*n).min_vruntime;
                    (*s).min_slice = (*n).min_slice;
                    (*s).max_slice = (*n).max_slice;
                    if parent != s {
                        propagate(parent);
                    }
                    propagate(s);
                }
                propagate(parent);
                if black {
                    self.erase_color(child, parent);
                }
            }
        }

        unsafe fn erase_color(&mut self, mut x: Link, mut parent: Link) {
            unsafe {
                while !parent.is_null() && !is_red(x) {
                    let on_left = x == (*parent).left;
                    let mut w = if on_left {
                        (*parent).right
                    } else {
                        (*parent).left
                    };
                    if is_red(w) {
                        (*w).red = false;
                        (*parent).red = true;
                        self.rotate(parent, on_left);
                        w = if on_left {
                            (*parent).right
                        } else {
                            (*parent).left
                        };
                    }
                    let (near, far) = if on_left {
                        ((*w).left, (*w).right)
                    } else {
                        ((*w).right, (*w).left)
                    };
                    if !is_red(near) && !is_red(far) {
                        (*w).red = true;
                        x = parent;
                        parent = (*x).parent;
                        continue;
                    }
                    if !is_red(far) {
                        (*near).red = false;
                        (*w).red = true;
                        self.rotate(w, !on_left);
                        w = if on_left {
                            (*parent).right
                        } else {
                            (*parent).left
                        };
                    }
                    (*w).red = (*parent).red;
                    (*parent).red = false;
                    let far = if on_left { (*w).right } else { (*w).left };
                    (*far).red = false;
                    self.rotate(parent, on_left);
                    x = self.root;
                    break;
                }
                if !x.is_null() {
                    (*x).red = false;
                }
            }
        }

        /// Earliest deadline among the entities with a vruntime that `fits`, which is monotone.
        pub(crate) fn search(&self, fits: impl Fn(u64) -> bool) -> Link {
            unsafe {
                let mut n = self.root;
                while !n.is_null() {
                    let left = (*n).left;
                    if !left.is_null() && fits((*left).min_vruntime) {
                        n = left;
                    } else if fits((*n).vruntime) {
                        return n;
                    } else {
                        n = (*n).right;
                    }
                }
                null_mut()
            }
        }
    }

    unsafe fn next(n: Link) -> Link {
        unsafe {
            if !(*n).right.is_null() {
                let mut s = (*n).right;
                while !(*s).left.is_null() {
                    s = (*s).left;
                }
                return s;
            }
            let (mut n, mut parent) = (n, (*n).parent);
            while !parent.is_null() && n == (*parent).right {
                n = parent;
                parent = (*n).parent;
            }
            parent
        }
    }
}
