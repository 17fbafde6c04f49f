//! The CPUs of a group: where it has an entity and a queue (`tg->se[]`, `tg->cfs_rq[]`), and the
//! state of compacted ones.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::compact::Compacted;
use super::ids::{Ent, RqId, make_room};

/// A CPU on which a group has an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupCpu {
    pub(crate) rq: RqId,
    pub(crate) ent: Ent,
}

/// Both lists, each sorted by run queue.
#[derive(Clone, Debug, Default, Hash)]
struct Lists {
    present: Vec<GroupCpu>,
    compacted: Vec<Compacted>,
}

/// The CPUs of a group. Most groups of a host belong to one vCPU and are on one CPU, which is
/// kept inline. A group that has been on several has lists.
#[derive(Clone, Debug, Hash)]
pub(crate) struct GroupCpus {
    single: Option<GroupCpu>,
    lists: Option<Box<Lists>>,
}

impl GroupCpus {
    pub(crate) const EMPTY: Self = Self {
        single: None,
        lists: None,
    };

    /// Where the group has an entity, sorted by run queue.
    #[inline]
    pub(crate) fn all(&self) -> &[GroupCpu] {
        match &self.lists {
            None => self.single.as_slice(),
            Some(lists) => &lists.present,
        }
    }

    /// The state of compacted CPUs, sorted by run queue.
    #[inline]
    pub(crate) fn compacted(&self) -> &[Compacted] {
        self.lists.as_ref().map_or(&[], |lists| &lists.compacted)
    }

    /// CPUs on which the group has an entity or had one.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.all().len() + self.compacted().len()
    }

    /// Index of `rq` in [`Self::all`].
    #[inline]
    pub(crate) fn position(&self, rq: RqId) -> Option<usize> {
        self.all().binary_search_by_key(&rq, |cpu| cpu.rq).ok()
    }

    fn lists(&mut self) -> &mut Lists {
        let single = &mut self.single;
        self.lists.get_or_insert_with(|| {
            Box::new(Lists {
                present: single.take().into_iter().collect(),
                compacted: Vec::new(),
            })
        })
    }

    /// Adds a CPU on which the group has no entity.
    pub(crate) fn add(&mut self, lean: bool, cpu: GroupCpu) {
        debug_assert!(self.position(cpu.rq).is_none(), "one entity for each CPU");
        if self.lists.is_none() && self.single.is_none() {
            self.single = Some(cpu);
            return;
        }
        let present = &mut self.lists().present;
        let index = present.partition_point(|c| c.rq < cpu.rq);
        make_room(lean, present);
        present.insert(index, cpu);
    }

    /// Replaces the entity at `index` of [`Self::all`] by its compacted state.
    pub(crate) fn compact(&mut self, lean: bool, index: usize, compacted: Compacted) {
        let lists = self.lists();
        let removed = lists.present.remove(index);
        debug_assert_eq!(removed.rq, compacted.rq);
        let position = lists.compacted.partition_point(|c| c.rq < compacted.rq);
        make_room(lean, &mut lists.compacted);
        lists.compacted.insert(position, compacted);
        debug_assert!(
            lists.compacted.is_sorted_by(|a, b| a.rq < b.rq),
            "one entry for each CPU"
        );
    }

    /// Takes the compacted state of `rq`, if there is any.
    pub(crate) fn take_compacted(&mut self, rq: RqId) -> Option<Compacted> {
        let compacted = &mut self.lists.as_mut()?.compacted;
        let index = compacted.binary_search_by_key(&rq, |c| c.rq).ok()?;
        Some(compacted.remove(index))
    }

    /// Drops the state of all compacted CPUs.
    pub(crate) fn forget_compacted(&mut self) {
        if let Some(lists) = &mut self.lists {
            lists.compacted.clear();
        }
    }
}
