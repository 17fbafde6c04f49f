//! Evidence of interaction that vCPU threads are one VM.
//!
//! KVM's events name vCPUs by their number, which repeats from VM to VM. A vCPU that interrupts another
//! one is of its VM. Kicks, and wakeups by VMM threads, are weaker evidence.

use std::collections::BTreeMap;

use crate::{IntMap, ThreadIndex, VcpuIndex};

/// Most pairs for which weak evidence is counted: memory is bounded, and early pairs are enough.
const MAX_PAIRS: usize = 1 << 16;
/// Times that weak evidence must agree. A kick names the target's CPU, and just after a switch there it
/// names a wrong vCPU. Chance does not repeat that three times for one pair.
const MIN_EVIDENCE: u32 = 3;
/// Evidence on which vCPUs are one VM, by vCPU index.
#[derive(Debug, Default)]
pub struct Links {
    parent: Vec<u32>,
    /// vCPU numbers of a group, at its root, sorted.
    ids: Vec<Vec<u32>>,
    weak: IntMap<u64, u32>,
    helpers: IntMap<u64, u32>,
}

impl Links {
    /// Adds a vCPU with this number, which KVM makes its first APIC id.
    pub(crate) fn push(&mut self, vcpu: VcpuIndex, id: u32) {
        debug_assert_eq!(vcpu.index(), self.parent.len(), "numbers are dense");
        self.parent.push(vcpu.0);
        self.ids.push(vec![id]);
    }

    /// The vCPU is gone, and its number goes to one with the id `new`. The rest of its group stays
    /// together.
    pub(crate) fn recycle(&mut self, vcpu: VcpuIndex, old: u32, new: u32) {
        let root = self.root(vcpu);
        let indices = (0..self.parent.len() as u32).map(VcpuIndex);
        let rest: Vec<VcpuIndex> = indices
            .filter(|&index| index != vcpu && self.root(index) == root)
            .collect();
        let mut ids = std::mem::take(&mut self.ids[root.index()]);
        ids.retain(|&id| id != old);
        if let Some(&head) = rest.first() {
            for member in &rest {
                self.parent[member.index()] = head.0;
            }
            self.ids[head.index()] = ids;
        }
        self.parent[vcpu.index()] = vcpu.0;
        self.ids[vcpu.index()] = vec![new];
        self.weak
            .retain(|&pair, _| high(pair) != vcpu.0 && low(pair) != vcpu.0);
        self.helpers.retain(|&pair, _| low(pair) != vcpu.0);
    }

    /// A vCPU's number has become known.
    pub(crate) fn renumber(&mut self, vcpu: VcpuIndex, old: u32, new: u32) {
        let root = self.root(vcpu);
        let ids = &mut self.ids[root.index()];
        ids.retain(|&id| id != old);
        ids.push(new);
        ids.sort_unstable();
    }

    /// The root of the vCPU's group: equal for all vCPUs of one.
    #[must_use]
    pub fn root(&self, vcpu: VcpuIndex) -> VcpuIndex {
        let mut root = vcpu.0;
        while self.parent[root as usize] != root {
            root = self.parent[root as usize];
        }
        VcpuIndex(root)
    }

    /// Makes two groups one, unless they have an id in common: a VM has each number once. Returns whether
    /// they are one group.
    pub(crate) fn join(&mut self, a: VcpuIndex, b: VcpuIndex) -> bool {
        let (a, b) = (self.root(a), self.root(b));
        if a == b {
            return true;
        }
        // The lower number stays the root, so that groups do not depend on the order of evidence.
        let (target, source) = (a.min(b), a.max(b));
        let added = &self.ids[source.index()];
        let common = |id: &u32| added.binary_search(id).is_ok();
        if self.ids[target.index()].iter().any(common) {
            return false;
        }
        let moved = std::mem::take(&mut self.ids[source.index()]);
        let ids = &mut self.ids[target.index()];
        ids.extend(moved);
        ids.sort_unstable();
        self.parent[source.index()] = target.0;
        true
    }

    /// Weak evidence that two vCPUs are one VM.
    pub(crate) fn suspect(&mut self, a: VcpuIndex, b: VcpuIndex) {
        count(&mut self.weak, pair(a.min(b).0, a.max(b).0));
    }

    /// Weak evidence that a VMM's thread serves a vCPU.
    pub(crate) fn helped(&mut self, helper: ThreadIndex, vcpu: VcpuIndex) {
        count(&mut self.helpers, pair(helper.0, vcpu.0));
    }

    /// Joins groups by weak evidence, strongest first: a wrong pair is rarer than the right ones, and
    /// comes too late. A shell wakes vCPUs as well, so only threads count that `is_helper` accepts.
    pub(crate) fn settle(&mut self, is_helper: impl Fn(ThreadIndex) -> bool) {
        self.helpers
            .retain(|&pair, _| is_helper(ThreadIndex(high(pair))));
        for (pair, _) in strongest(&self.weak) {
            self.join(VcpuIndex(high(pair)), VcpuIndex(low(pair)));
        }
        let mut by_helper = BTreeMap::<u32, Vec<VcpuIndex>>::new();
        for (pair, _) in strongest(&self.helpers) {
            let vcpus = by_helper.entry(high(pair)).or_default();
            vcpus.push(VcpuIndex(low(pair)));
        }
        for vcpus in by_helper.values() {
            for pair in vcpus.windows(2) {
                self.join(pair[0], pair[1]);
            }
        }
    }

    /// VMM threads with the vCPU that each serves most often.
    #[must_use]
    pub fn helpers(&self) -> BTreeMap<ThreadIndex, VcpuIndex> {
        let mut best = BTreeMap::new();
        for (pair, _) in strongest(&self.helpers) {
            best.entry(ThreadIndex(high(pair)))
                .or_insert(VcpuIndex(low(pair)));
        }
        best
    }
}

const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn high(pair: u64) -> u32 {
    (pair >> 32) as u32
}

const fn low(pair: u64) -> u32 {
    pair as u32
}

fn count(table: &mut IntMap<u64, u32>, pair: u64) {
    if let Some(count) = table.get_mut(&pair) {
        *count = count.saturating_add(1);
    } else if table.len() < MAX_PAIRS {
        table.insert(pair, 1);
    }
}

fn strongest(table: &IntMap<u64, u32>) -> Vec<(u64, u32)> {
    let mut pairs: Vec<(u64, u32)> = table
        .iter()
        .map(|(&pair, &count)| (pair, count))
        .filter(|pair| pair.1 >= MIN_EVIDENCE)
        .collect();
    pairs.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(ids: &[u32]) -> Links {
        let mut links = Links::default();
        for (index, &id) in (0..).map(VcpuIndex).zip(ids) {
            links.push(index, id);
        }
        links
    }

    #[test]
    fn groups_with_an_id_in_common_stay_apart() {
        let mut links = links(&[0, 1, 0]);
        assert!(links.join(VcpuIndex(0), VcpuIndex(1)));
        assert!(!links.join(VcpuIndex(1), VcpuIndex(2)));
    }

    #[test]
    fn a_recycled_number_leaves_its_group() {
        let mut links = links(&[0, 1, 2]);
        links.join(VcpuIndex(0), VcpuIndex(1));
        links.join(VcpuIndex(1), VcpuIndex(2));
        links.recycle(VcpuIndex(0), 0, 1);
        assert_eq!(links.root(VcpuIndex(1)), links.root(VcpuIndex(2)));
        assert_ne!(links.root(VcpuIndex(0)), links.root(VcpuIndex(1)));
        assert!(
            !links.join(VcpuIndex(0), VcpuIndex(2)),
            "both have the id 1"
        );
    }
}
