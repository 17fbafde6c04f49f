//! Parts of groups that nothing uses, folded up.
//!
//! A task that moves between CPUs leaves a part of its group on each: an entity and a queue. What
//! the kernel remembers of an empty one from there on is little: the entity's lag and weight, what
//! a migration made relative, and the queue's base.

use super::Fair;
use super::entity::Marks;
use super::error::Error;
use super::ids::{Ent, GroupId, RqId, TaskId};
use super::parts::Part;
use crate::lag_credit::Tokens;

/// What remains of a part.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Folded {
    pub(crate) rq: RqId,
    slice: u32,
    load: u32,
    vlag: i64,
    deadline: u64,
    vprot: u64,
    weight: u64,
    zero_vruntime: u64,
    rel_deadline: bool,
    custom_slice: bool,
}

impl Fair {
    /// Folds the parts of a task's group where neither the task nor anything else is, and of the
    /// groups above where nothing is left. What a group is owed there is kept, and
    /// [`Self::extend_group`] unfolds.
    ///
    /// # Errors
    ///
    /// An unknown task.
    pub fn fold_parts(&mut self, task: TaskId) -> Result<(), Error> {
        let e = self.task(task)?;
        let Some(g) = self.ent[e].group() else {
            return Ok(());
        };
        for i in (0..self.groups[g].parts.all().len()).rev() {
            let Some(part) = self.nth_part(g, i) else {
                break;
            };
            let above = self.parent(part.ent);
            if self.is_unused(part.ent) {
                self.fold(g, i, part);
                self.fold_chain(above, part.rq);
            }
        }
        Ok(())
    }

    /// A delayed entity has left its queue: if it is a group's, and all that was below it has gone
    /// elsewhere meanwhile, its part goes too.
    #[inline]
    pub(crate) fn left_delayed(&mut self, e: Ent, rq: RqId) {
        if self.lean && !self.ent[e].is_task() {
            self.fold_chain(e, rq);
        }
    }

    /// Folds what is unused from a group's entity upwards.
    fn fold_chain(&mut self, mut e: Ent, rq: RqId) {
        while e.is_some() && self.is_unused(e) {
            let ent = &self.ent[e];
            let (Some(g), above) = (ent.group(), self.parent(e)) else {
                return;
            };
            let Some(at) = self.groups[g].parts.place(rq) else {
                return;
            };
            self.fold(g, at, Part { rq, ent: e });
            e = above;
        }
    }

    /// A task or a group has (1) or leaves (-1) its place below a group's entity.
    pub(crate) fn used(&mut self, e: Ent, by: i32) {
        if e.is_some() {
            let users = &mut self.ent[e].count;
            *users = users.wrapping_add_signed(by);
        }
    }

    /// A task has its place nowhere.
    pub(crate) fn unhome(&mut self, e: Ent) {
        if self.cfg.cfs.is_some() {
            self.cfs_leave(e);
        }
        let marks = &mut self.ent[e].marks;
        if marks.has(Marks::HOMED) {
            marks.set(Marks::HOMED, false);
            self.used(self.parent(e), -1);
        }
    }

    fn is_unused(&self, e: Ent) -> bool {
        let ent = &self.ent[e];
        if ent.count > 0 || ent.on_rq {
            return false;
        }
        let (own, above) = (&self.que[ent.my_q], &self.que[ent.queue]);
        let idle = own.curr.is_none() && own.next.is_none() && own.members == 0;
        let named = above.curr == e || above.next == e;
        let plain = !ent.delayed && own.h_nr_queued == 0 && u32::try_from(self.load(e)).is_ok();
        // Nobody else has set anything there.
        let tokens = self.tokens.0.get(ent.my_q.0 as usize);
        let unspent = tokens.is_none_or(|tokens| *tokens == Tokens::default());
        idle && !named && plain && self.ext_load(ent.my_q) == 0 && unspent
    }

    fn fold(&mut self, g: GroupId, at: usize, part: Part) {
        let ent = &self.ent[part.ent];
        let folded = Folded {
            rq: part.rq,
            slice: ent.slice,
            load: self.load(part.ent) as u32,
            vlag: ent.vlag,
            deadline: ent.deadline,
            vprot: ent.vprot,
            weight: ent.weight,
            zero_vruntime: self.que[ent.my_q].zero_vruntime,
            rel_deadline: ent.rel_deadline,
            custom_slice: ent.custom_slice(),
        };
        self.groups[g].parts.fold(self.lean, at, folded);
        self.used(self.parent(part.ent), -1);
        self.ent[part.ent].set_group(None);
        Self::make_room(self.lean, &mut self.free_parts);
        self.free_parts.push(part.ent);
    }

    /// Gives a new part what was remembered of its predecessor.
    pub(crate) fn unfold(&mut self, e: Ent, folded: &Folded) {
        let ent = &mut self.ent[e];
        (ent.slice, ent.vlag) = (folded.slice, folded.vlag);
        (ent.deadline, ent.rel_deadline) = (folded.deadline, folded.rel_deadline);
        if self.cfg.cfs.is_some() {
            ent.vruntime = folded.deadline;
        }
        ent.weight = folded.weight;
        ent.marks.set(Marks::CUSTOM_SLICE, folded.custom_slice);
        ent.vprot = folded.vprot;
        self.que[ent.my_q].zero_vruntime = folded.zero_vruntime;
        self.set_load(e, u64::from(folded.load));
    }
}
