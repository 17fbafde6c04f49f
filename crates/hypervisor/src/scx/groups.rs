//! Weights of control groups, flattened: the share of a task in the tree of its group
//! (`sched-ext/bpf/groups.h`).

use alloc::vec::Vec;

use crate::fair::weights::NICE_0_LOAD;
use crate::fair::{Error, GroupId};

/// The default of `cpu.weight`.
const DEFAULT_WEIGHT: u32 = 100;
/// `MIN_SHARES`: the least weight of a task.
const LEAST_WEIGHT: u64 = 2;

#[derive(Clone, Debug)]
struct Group {
    parent: usize,
    weight: u32,
    /// Weight that the parent counts; 0 while no task below is runnable.
    counted: u32,
    /// Runnable tasks and counted children, and the sum of their weights.
    active: u32,
    level: u64,
}

/// The tree of groups; index 0 is the root.
#[derive(Clone, Debug)]
pub(super) struct Groups(Vec<Group>);

impl Groups {
    pub(super) fn new() -> Self {
        let mut groups = Self(Vec::new());
        groups.push(0);
        groups
    }

    fn push(&mut self, parent: usize) -> usize {
        self.0.push(Group {
            parent,
            weight: DEFAULT_WEIGHT,
            counted: 0,
            active: 0,
            level: 0,
        });
        self.0.len() - 1
    }

    /// Index of a group; `None` is the root.
    pub(super) fn index(&self, group: Option<GroupId>) -> Result<usize, Error> {
        match group {
            None => Ok(0),
            Some(group) if group.slot() + 1 < self.0.len() => Ok(group.slot() + 1),
            Some(group) => Err(Error::NoSuchGroup(group)),
        }
    }

    pub(super) fn create(&mut self, parent: usize) -> GroupId {
        GroupId(self.push(parent) as u32 - 1)
    }

    pub(super) fn set_weight(&mut self, index: usize, weight: u32) {
        self.0[index].weight = weight;
        self.sync(index);
    }

    /// Brings the sums above a group up to date, as far as something changed.
    fn sync(&mut self, mut index: usize) {
        while index != 0 {
            let group = &mut self.0[index];
            let wanted = if group.active > 0 { group.weight } else { 0 };
            let former = core::mem::replace(&mut group.counted, wanted);
            if former == wanted {
                return;
            }
            index = group.parent;
            let above = &mut self.0[index];
            above.level = above.level + u64::from(wanted) - u64::from(former);
            match (former, wanted) {
                (0, _) => above.active += 1,
                (_, 0) => above.active -= 1,
                _ => return,
            }
        }
    }

    /// A task of this weight becomes runnable.
    pub(super) fn add(&mut self, index: usize, weight: u32) {
        self.0[index].level += u64::from(weight);
        self.0[index].active += 1;
        self.sync(index);
    }

    /// A task of this weight sleeps.
    pub(super) fn remove(&mut self, index: usize, weight: u32) {
        self.0[index].level -= u64::from(weight);
        self.0[index].active -= 1;
        self.sync(index);
    }

    /// The weight at which a task competes: its own, times at each level the group's weight by the
    /// sum of the level.
    pub(super) fn flat_weight(&self, mut index: usize, own_weight: u32) -> u64 {
        let mut weight = u64::from(own_weight) * NICE_0_LOAD / 100;
        while index != 0 {
            let group = &self.0[index];
            let share = (weight * u64::from(group.weight)).checked_div(group.level);
            weight = share.unwrap_or(weight);
            index = group.parent;
        }
        weight.max(LEAST_WEIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_with_sleeping_tasks_takes_no_share_at_any_level() {
        let mut groups = Groups::new();
        let mut below = |parent| {
            let group = groups.create(parent);
            groups.index(Some(group)).unwrap_or(0)
        };
        let machine = below(0);
        let [outer, sibling] = [machine, machine].map(&mut below);
        let inner = below(outer);
        groups.add(sibling, 100);
        let alone = groups.flat_weight(sibling, 100);
        groups.add(inner, 100);
        assert_eq!(groups.flat_weight(sibling, 100), alone / 2);
        groups.remove(inner, 100);
        assert_eq!(groups.flat_weight(sibling, 100), alone);
    }
}
