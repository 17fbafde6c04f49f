//! Moving an empty group under another.

use super::error::Error;
use super::ids::{Ent, GroupId, RqId};
use super::{Fair, MAX_DEPTH};

impl Fair {
    /// Moves a group without tasks and groups under `parent` (`None`: the root group).
    ///
    /// Cgroups cannot be moved; a host description that is read group by group may need to.
    ///
    /// # Errors
    ///
    /// [`Error::GroupUnderItself`], [`Error::GroupBusy`] while something is in it or its entity
    /// is still queued, [`Error::TooDeep`], or a parent without a part where the group has one.
    pub fn reparent_group(&mut self, g: GroupId, parent: Option<GroupId>) -> Result<(), Error> {
        let group = self.group(g)?;
        let (busy, old) = (group.tasks + group.children > 0, group.parent);
        let depth = match parent {
            Some(p) => self.group(p)?.depth + 1,
            None => 1,
        };
        let mut above = parent;
        while let Some(p) = above {
            if p == g {
                return Err(Error::GroupUnderItself(g));
            }
            above = self.groups[p].parent;
        }
        if depth > MAX_DEPTH {
            return Err(Error::TooDeep {
                depth,
                max: MAX_DEPTH,
            });
        }
        let parts = self.parts_of(g);
        let queued = parts.clone().any(|rq| self.ent[self.part(g, rq).ent].on_rq);
        if busy || queued {
            return Err(Error::GroupBusy(g));
        }
        for rq in parts.clone() {
            self.home(parent, rq)?;
        }
        for rq in parts {
            let (above, queue) = self.home(parent, rq)?;
            let e: Ent = self.part(g, rq).ent;
            let ent = &mut self.ent[e];
            (ent.parent, ent.queue, ent.arena, ent.depth) = (above, queue, queue, depth - 1);
        }
        self.groups[g].parent = parent;
        self.groups[g].depth = depth;
        if let Some(p) = old {
            self.groups[p].children -= 1;
        }
        if let Some(p) = parent {
            self.groups[p].children += 1;
        }
        Ok(())
    }

    /// Run queues on which a group has a part.
    fn parts_of(&self, g: GroupId) -> impl Iterator<Item = RqId> + Clone + use<> {
        let parts = &self.groups[g].parts;
        let there: alloc::vec::Vec<RqId> = (0..parts.len() as u32)
            .map(RqId)
            .filter(|rq| self.part(g, *rq).ent.is_some())
            .collect();
        there.into_iter()
    }
}
