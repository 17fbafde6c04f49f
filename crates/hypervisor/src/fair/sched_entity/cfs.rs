//! What CFS does to an entity's virtual times: see [`crate::fair::cfs`] for what its fields mean.

use super::{Marks, SchedEntity, TaskState};

impl SchedEntity {
    /// Sets the virtual runtime, by which the timeline is sorted too.
    pub(crate) fn set_vruntime(&mut self, vruntime: u64) {
        (self.vruntime, self.deadline) = (vruntime, vruntime);
    }

    /// `update_curr` of 6.1: the entity has run until `now`, which is `vtime` of virtual time.
    pub(crate) fn cfs_charge(&mut self, now: u64, vtime: u64) {
        self.vprot += now - self.exec_start;
        self.exec_start = now;
        self.set_vruntime(self.vruntime.wrapping_add(vtime));
    }

    /// It is picked: `prev_sum_exec_runtime = sum_exec_runtime`.
    #[inline]
    pub(crate) fn restart_slice(&mut self) {
        self.vprot = 0;
    }

    /// Time in ns since the pick.
    pub(crate) fn ran_ns(&self) -> u64 {
        self.vprot
    }

    /// Replaces the virtual runtime by its distance from `min_vruntime`.
    pub(crate) fn normalize(&mut self, min_vruntime: u64) {
        debug_assert!(!self.rel_deadline, "a distance already");
        self.set_vruntime(self.vruntime.wrapping_sub(min_vruntime));
        self.rel_deadline = true;
    }

    /// The inverse of [`Self::normalize`]; nothing for an absolute virtual runtime.
    pub(crate) fn renormalize(&mut self, min_vruntime: u64) {
        if core::mem::replace(&mut self.rel_deadline, false) {
            self.set_vruntime(self.vruntime.wrapping_add(min_vruntime));
        }
    }

    /// Whether it is off its queue with an absolute virtual runtime: it sleeps, or its group is
    /// throttled.
    pub(crate) fn sleeps(&self) -> bool {
        let off_queue = matches!(self.state, TaskState::Asleep | TaskState::Throttled);
        off_queue && self.marks.has(Marks::RQ_SET) && !self.rel_deadline
    }

    /// Changes the weight alone.
    pub(crate) fn set_weight(&mut self, weight: u64) {
        self.weight = weight;
    }

    /// The virtual runtime of a restored entity: only the deadline was kept.
    pub(crate) fn restore_vruntime(&mut self) {
        self.vruntime = self.deadline;
    }
}
