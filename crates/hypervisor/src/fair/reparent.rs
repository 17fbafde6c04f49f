//! Moving an empty group under another.

use super::error::Error;
use super::group_cpus::GroupCpu;
use super::ids::GroupId;
use super::{Fair, MAX_DEPTH};

impl Fair {
    /// Moves a group without tasks and groups under `parent` (`None`: the root group).
    ///
    /// Kernels cannot move cgroups. Readers of a host description, which lists groups one by one,
    /// may have to.
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
        let queued = group.cpus.all().iter().any(|part| self.ent[part.ent].on_rq);
        if busy || queued {
            return Err(Error::GroupBusy(g));
        }
        for part in group.cpus.all() {
            self.group_cfs_rq(parent, part.rq)?;
        }
        let mut i = 0;
        while let Some(GroupCpu { rq, ent }) = self.nth_cpu(g, i) {
            let (above, queue) = self.group_cfs_rq(parent, rq)?;
            self.add_users(self.parent(ent), -1);
            self.add_users(above, 1);
            self.set_pick_queue(ent, queue);
            let ent = &mut self.ent[ent];
            (ent.queue, ent.depth) = (queue, (depth - 1) as u8);
            i += 1;
        }
        // Lag is relative to the queue of the old parent, and void in another.
        self.groups[g].cpus.forget_compacted();
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
