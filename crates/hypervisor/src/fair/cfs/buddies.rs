//! The buddies `last` and `skip` of each queue. `next`, which EEVDF has as well, is in the queue.

use alloc::vec::Vec;

use crate::fair::ids::{Ent, Que, make_room};
use crate::fair::sched::Sched;

/// A buddy of CFS.
#[derive(Clone, Copy)]
pub(super) enum Buddy {
    /// Preempted by a wakeup: its cache is warm, so that it is preferred.
    Last,
    /// It has yielded: another entity is picked if that is sched.
    Skip,
}

/// Buddies by queue; without entries under EEVDF.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct BuddyTable(Vec<[Ent; 2]>);

impl BuddyTable {
    pub(super) fn get(&self, q: Que, buddy: Buddy) -> Ent {
        self.0[q.0 as usize][buddy as usize]
    }

    fn set(&mut self, q: Que, buddy: Buddy, e: Ent) {
        self.0[q.0 as usize][buddy as usize] = e;
    }

    /// Adds the entries of the queue that was added last.
    pub(super) fn push(&mut self, lean: bool) {
        make_room(lean, &mut self.0);
        self.0.push([Ent::NONE; 2]);
    }
}

/// `set_last_buddy`: `e` and its ancestors, up to an idle one.
pub(super) fn set_last_buddy(sched: &mut Sched, mut e: Ent) {
    while let Some(ent) = sched.tree.get(e) {
        if !ent.on_rq() || sched.tree.is_idle(e) {
            return;
        }
        let q = ent.queue();
        sched.buddies.set(q, Buddy::Last, e);
        e = sched.tree.parent(e);
    }
}

/// `set_skip_buddy`: `e` and all its ancestors.
pub(super) fn set_skip_buddy(sched: &mut Sched, mut e: Ent) {
    while let Some(ent) = sched.tree.get(e) {
        let q = ent.queue();
        sched.buddies.set(q, Buddy::Skip, e);
        e = sched.tree.parent(e);
    }
}

/// `__clear_buddies_last`, `__clear_buddies_skip`: up to the first ancestor that is not the
/// buddy of its queue.
pub(super) fn clear_buddy(sched: &mut Sched, mut e: Ent, buddy: Buddy) {
    while let Some(ent) = sched.tree.get(e) {
        let q = ent.queue();
        if sched.buddies.get(q, buddy) != e {
            return;
        }
        sched.buddies.set(q, buddy, Ent::NONE);
        e = sched.tree.parent(e);
    }
}
