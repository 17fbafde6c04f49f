//! Where the fair class's tables lie.

use core::ops::Range;

use super::Fair;

/// The memory of a table.
pub(super) const fn bytes_of<T>(table: &[T]) -> Range<*const u8> {
    let Range { start, end } = table.as_ptr_range();
    start.cast()..end.cast()
}

impl Fair {
    /// Where the tables lie that operations read most, for a caller who has advice about memory to give
    /// (`madvise`). They move when a CPU, a task or a group is added.
    #[must_use]
    pub fn memory(&self) -> [Range<*const u8>; 6] {
        let [nodes, leaves] = self.pool.memory();
        [
            bytes_of(&self.ent.0),
            bytes_of(&self.que.0),
            bytes_of(&self.rqs.0),
            bytes_of(&self.groups.0),
            nodes,
            leaves,
        ]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail")]
mod tests {
    use super::*;
    use crate::eevdf::{Attr, Config, PickMode};

    #[test]
    fn what_a_task_needs_is_in_it() {
        let mut fair = Fair::new(Config::linux_7_2(2)).unwrap();
        let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
        let group = fair.create_group(None).unwrap();
        let task = fair.create_task(Attr::default(), Some(group)).unwrap();
        fair.extend_group(group, rq).unwrap();
        fair.fork(task, rq, 1_000).unwrap();
        let memory = fair.memory();
        let has = |at: *const u8| memory.iter().any(|table| table.contains(&at));
        assert!(has(core::ptr::from_ref(&fair.rqs[rq]).cast()));
        let ent = super::super::Ent(task.index);
        assert!(has(core::ptr::from_ref(&fair.ent[ent]).cast()));
        let queue = fair.ent[ent].queue;
        assert!(has(core::ptr::from_ref(&fair.que[queue]).cast()));
    }
}
