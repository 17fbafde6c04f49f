//! On which CPUs a group is: its parts, and what it remembers of folded ones.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Fair;
use super::fold::Folded;
use super::ids::{Ent, RqId};

/// A group's part on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub(crate) rq: RqId,
    pub(crate) ent: Ent,
}

/// Both lists, each sorted by run queue.
#[derive(Clone, Debug, Default, Hash)]
struct Lists {
    parts: Vec<Part>,
    folded: Vec<Folded>,
}

/// The parts of a group. Most groups of a host are a vCPU's own, which are on one CPU: that part is
/// kept here, and lists are made for those that have been on more.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Parts {
    only: Option<Part>,
    lists: Option<Box<Lists>>,
}

impl Parts {
    pub(crate) const EMPTY: Self = Self {
        only: None,
        lists: None,
    };

    /// Where it has a part, sorted by run queue.
    #[inline]
    pub(crate) fn all(&self) -> &[Part] {
        match &self.lists {
            None => self.only.as_slice(),
            Some(lists) => &lists.parts,
        }
    }

    /// What it remembers of where its part is folded up, sorted by run queue.
    #[inline]
    pub(crate) fn folded(&self) -> &[Folded] {
        self.lists.as_ref().map_or(&[], |lists| &lists.folded)
    }

    /// CPUs where it has a part, or had one.
    #[inline]
    pub(crate) fn cpus(&self) -> usize {
        self.all().len() + self.folded().len()
    }

    /// Asks for the lists' ends, which tell how many there are.
    pub(crate) fn prefetch(&self) {
        if let Some(lists) = &self.lists {
            crate::prefetch::prefetch(&**lists);
        }
    }

    /// Its part on `rq`, by place among all.
    #[inline]
    pub(crate) fn place(&self, rq: RqId) -> Option<usize> {
        self.all().binary_search_by_key(&rq, |part| part.rq).ok()
    }

    fn lists(&mut self) -> &mut Lists {
        let only = &mut self.only;
        self.lists.get_or_insert_with(|| {
            Box::new(Lists {
                parts: only.take().into_iter().collect(),
                folded: Vec::new(),
            })
        })
    }

    /// Adds a part on a CPU where there is none.
    pub(crate) fn add(&mut self, lean: bool, part: Part) {
        if self.lists.is_none() && self.only.is_none() {
            self.only = Some(part);
            return;
        }
        let parts = &mut self.lists().parts;
        let at = parts.partition_point(|p| p.rq < part.rq);
        Fair::make_room(lean, parts);
        parts.insert(at, part);
    }

    /// Instead of the part at `at` only `folded` stays.
    pub(crate) fn fold(&mut self, lean: bool, at: usize, folded: Folded) {
        let lists = self.lists();
        lists.parts.remove(at);
        let place = lists.folded.partition_point(|f| f.rq < folded.rq);
        Fair::make_room(lean, &mut lists.folded);
        lists.folded.insert(place, folded);
    }

    /// What is remembered of `rq`, taken out.
    pub(crate) fn take_folded(&mut self, rq: RqId) -> Option<Folded> {
        let folded = &mut self.lists.as_mut()?.folded;
        let at = folded.binary_search_by_key(&rq, |f| f.rq).ok()?;
        Some(folded.remove(at))
    }

    /// Forgets what was folded.
    pub(crate) fn forget_folded(&mut self) {
        if let Some(lists) = &mut self.lists {
            lists.folded.clear();
        }
    }
}
