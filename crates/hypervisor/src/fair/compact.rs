//! Compaction of groups on CPUs that nothing uses.
//!
//! A task that moves between CPUs leaves an entity and a queue of its group on each. Of an empty
//! one only the entity's lag and weight, its relative deadline and the queue's base have an
//! effect later. These are kept in 56 bytes, and the entity and the queue are used again.

use super::Fair;
use super::entity::Marks;
use super::error::Error;
use super::group_cpus::GroupCpu;
use super::ids::{Ent, GroupId, RqId, TaskId};
use crate::lag_credit::Tokens;

/// The state of a group on one CPU that outlives its entity there.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Compacted {
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
    /// Compacts the group of a task, and groups above it, on CPUs that neither the task nor
    /// anything else uses. Lag is kept: [`Self::extend_group`] restores it.
    ///
    /// # Errors
    ///
    /// An unknown task.
    pub fn compact_group(&mut self, task: TaskId) -> Result<(), Error> {
        let e = self.task(task)?;
        // A task of the root group: the root's queues stay.
        let Some(g) = self.ent[e].group() else {
            return Ok(());
        };
        // Backwards, because compaction removes from the list being walked.
        for i in (0..self.groups[g].cpus.all().len()).rev() {
            let Some(cpu) = self.nth_cpu(g, i) else {
                debug_assert!(false, "only the CPU at hand is removed from the list");
                break;
            };
            if self.is_unused(cpu.ent) {
                let above = self.parent(cpu.ent);
                self.compact(g, i, cpu);
                self.compact_chain(above, cpu.rq);
            }
        }
        Ok(())
    }

    /// A delayed entity has left its queue. The entity of a group is compacted if all tasks below
    /// it have moved to other CPUs.
    #[inline]
    pub(crate) fn delayed_left(&mut self, e: Ent, rq: RqId) {
        if self.lean && !self.ent[e].is_task() {
            self.compact_chain(e, rq);
        }
    }

    /// Compacts unused groups from entity `e` upwards.
    fn compact_chain(&mut self, mut e: Ent, rq: RqId) {
        while e.is_some() && self.is_unused(e) {
            let above = self.parent(e);
            let group = self.ent[e].group();
            let index = group.and_then(|g| self.groups[g].cpus.position(rq));
            let (Some(g), Some(index)) = (group, index) else {
                debug_assert!(
                    false,
                    "an entity with a parent chain stands for a group on its CPU"
                );
                return;
            };
            self.compact(g, index, GroupCpu { rq, ent: e });
            e = above;
        }
    }

    /// A task or a group attaches to a group's entity (1) or detaches from it (-1); nothing for
    /// the root, which has no entity.
    pub(crate) fn add_users(&mut self, e: Ent, delta: i32) {
        if e.is_some() {
            let users = &mut self.ent[e].count;
            debug_assert!(
                users.checked_add_signed(delta).is_some(),
                "more users detach than have attached"
            );
            *users = users.wrapping_add_signed(delta);
        }
    }

    /// Detaches a task from its queue.
    pub(crate) fn clear_task_rq(&mut self, e: Ent) {
        self.migrate_task_rq(e);
        let marks = &mut self.ent[e].marks;
        if marks.has(Marks::RQ_SET) {
            marks.set(Marks::RQ_SET, false);
            self.add_users(self.parent(e), -1);
        }
    }

    /// Whether a group's entity can be compacted: nothing refers to it, and [`Compacted`] keeps
    /// all of its state.
    fn is_unused(&self, e: Ent) -> bool {
        let ent = &self.ent[e];
        if ent.count > 0 || ent.on_rq {
            return false;
        }
        let (my_q, above) = (&self.que[ent.my_q], &self.que[ent.queue]);
        let idle = my_q.curr.is_none() && my_q.next.is_none() && my_q.members == 0;
        let referred = above.curr == e || above.next == e;
        // `Compacted` keeps the load in 32 bits.
        let plain = !ent.delayed && my_q.h_nr_queued == 0 && u32::try_from(self.load(e)).is_ok();
        let tokens = self.tokens.0.get(ent.my_q.0 as usize);
        let unspent = tokens.is_none_or(|tokens| *tokens == Tokens::default());
        idle && !referred && plain && self.ext_load(ent.my_q) == 0 && unspent
    }

    fn compact(&mut self, g: GroupId, index: usize, cpu: GroupCpu) {
        debug_assert!(self.is_unused(cpu.ent), "something still refers to it");
        let ent = &self.ent[cpu.ent];
        let compacted = Compacted {
            rq: cpu.rq,
            slice: ent.slice,
            load: self.load(cpu.ent) as u32,
            vlag: ent.vlag,
            deadline: ent.deadline,
            vprot: ent.vprot,
            weight: ent.weight,
            zero_vruntime: self.que[ent.my_q].zero_vruntime,
            rel_deadline: ent.rel_deadline,
            custom_slice: ent.custom_slice(),
        };
        self.groups[g].cpus.compact(self.lean, index, compacted);
        self.add_users(self.parent(cpu.ent), -1);
        self.ent[cpu.ent].set_group(None);
        Self::make_room(self.lean, &mut self.free_group_cpus);
        self.free_group_cpus.push(cpu.ent);
    }

    /// Restores the state of a compacted entity into its successor.
    pub(crate) fn restore(&mut self, e: Ent, compacted: &Compacted) {
        debug_assert_eq!(self.ent[e].rq, compacted.rq, "of another CPU");
        let ent = &mut self.ent[e];
        (ent.slice, ent.vlag) = (compacted.slice, compacted.vlag);
        (ent.deadline, ent.rel_deadline) = (compacted.deadline, compacted.rel_deadline);
        ent.weight = compacted.weight;
        ent.marks.set(Marks::CUSTOM_SLICE, compacted.custom_slice);
        ent.vprot = compacted.vprot;
        self.que[ent.my_q].zero_vruntime = compacted.zero_vruntime;
        self.class_restored(e);
        self.set_load(e, u64::from(compacted.load));
    }
}
