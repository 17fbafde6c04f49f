//! Moving an empty group under another.

use super::error::Error;
use super::ids::GroupId;
use super::parts::Part;
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
        let (busy, old) = (group.tasks + group.children > 0, group.parent());
        let depth = match parent {
            Some(p) => u32::from(self.group(p)?.depth) + 1,
            None => 1,
        };
        let mut above = parent;
        while let Some(p) = above {
            if p == g {
                return Err(Error::GroupUnderItself(g));
            }
            above = self.groups[p].parent();
        }
        if depth > MAX_DEPTH {
            return Err(Error::TooDeep {
                depth,
                max: MAX_DEPTH,
            });
        }
        let queued = group
            .parts
            .all()
            .iter()
            .any(|part| self.ent[part.ent].on_rq);
        if busy || queued {
            return Err(Error::GroupBusy(g));
        }
        for part in group.parts.all() {
            self.home(parent, part.rq)?;
        }
        let mut i = 0;
        while let Some(Part { rq, ent }) = self.nth_part(g, i) {
            let (above, queue) = self.home(parent, rq)?;
            self.used(self.parent(ent), -1);
            self.used(above, 1);
            self.set_arena(ent, queue);
            let ent = &mut self.ent[ent];
            (ent.queue, ent.depth) = (queue, (depth - 1) as u8);
            i += 1;
        }
        // What was owed under another parent is owed no more.
        self.groups[g].parts.forget_folded();
        self.groups[g].set_parent(parent);
        self.groups[g].depth = depth as u8;
        if let Some(p) = old {
            self.groups[p].children -= 1;
        }
        if let Some(p) = parent {
            self.groups[p].children += 1;
        }
        Ok(())
    }
}
