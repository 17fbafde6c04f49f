//! Which vCPU threads are one VM.
//!
//! A trace of KVM names vCPUs by number, and numbers repeat from VM to VM. What tells VMs apart, in
//! this order: the recording, the user, the process, interaction (one vCPU interrupts another), and
//! last the order of thread ids, which is a guess and marked as one.

use std::collections::BTreeMap;

use stealtime_events::Names;

use crate::Analysis;
use crate::hash::IntMap;
use crate::threads::{ThreadId, is_kernel_name, is_vmm_name, served_process};

/// Most pairs for which weak evidence is counted.
const MAX_PAIRS: usize = 1 << 16;
/// How often weak evidence must agree. A kick that reaches a CPU just after its vCPU was switched
/// away points at a wrong vCPU: that does not happen three times to one pair only.
const MIN_EVIDENCE: u32 = 3;
/// [`Group::grouped_by`] of a guess.
pub(crate) const ORDER: &str = "order";

/// Evidence on which vCPUs are one VM, by vCPU index.
#[derive(Debug, Default)]
pub(crate) struct Links {
    parent: Vec<u32>,
    /// vCPU numbers of a group, at its root, sorted.
    ids: Vec<Vec<u32>>,
    weak: IntMap<u64, u32>,
    helpers: IntMap<u64, u32>,
}

impl Links {
    /// A vCPU with this number.
    pub(crate) fn push(&mut self, id: u32) {
        self.parent
            .push(u32::try_from(self.parent.len()).unwrap_or(u32::MAX));
        self.ids.push(vec![id]);
    }

    /// A vCPU's number has become known.
    pub(crate) fn renumber(&mut self, vcpu: u32, old: u32, new: u32) {
        let root = self.root(vcpu) as usize;
        if let Some(ids) = self.ids.get_mut(root) {
            ids.retain(|&id| id != old);
            ids.push(new);
            ids.sort_unstable();
        }
    }

    /// The vCPU that stands for the group.
    pub(crate) fn root(&self, mut vcpu: u32) -> u32 {
        while let Some(&parent) = self.parent.get(vcpu as usize)
            && parent != vcpu
        {
            vcpu = parent;
        }
        vcpu
    }

    fn numbers(&self, root: u32) -> &[u32] {
        self.ids.get(root as usize).map_or(&[], Vec::as_slice)
    }

    /// Makes two groups one, unless they have a vCPU number in common. Whether they are one then.
    pub(crate) fn join(&mut self, a: u32, b: u32) -> bool {
        let (a, b) = (self.root(a), self.root(b));
        if a == b {
            return true;
        }
        let (keep, gone) = (a.min(b), a.max(b));
        let common = |id: &u32| self.numbers(gone).binary_search(id).is_ok();
        if self.numbers(keep).iter().any(common) {
            return false;
        }
        let moved = self
            .ids
            .get_mut(gone as usize)
            .map(std::mem::take)
            .unwrap_or_default();
        if let (Some(ids), Some(parent)) = (
            self.ids.get_mut(keep as usize),
            self.parent.get_mut(gone as usize),
        ) {
            ids.extend(moved);
            ids.sort_unstable();
            *parent = keep;
        }
        true
    }

    /// Weak evidence that two vCPUs are one VM.
    pub(crate) fn suspect(&mut self, a: u32, b: u32) {
        count(
            &mut self.weak,
            u64::from(a.min(b)) << 32 | u64::from(a.max(b)),
        );
    }

    /// Weak evidence that a VMM's thread serves a vCPU.
    pub(crate) fn helped(&mut self, helper: ThreadId, vcpu: u32) {
        count(&mut self.helpers, u64::from(helper) << 32 | u64::from(vcpu));
    }

    /// Joins what weak evidence says, strongest first.
    fn settle(&mut self) {
        for (pair, _) in strongest(&self.weak) {
            self.join(high(pair), low(pair));
        }
        let mut by_helper = BTreeMap::<u32, Vec<u32>>::new();
        for (pair, _) in strongest(&self.helpers) {
            by_helper.entry(high(pair)).or_default().push(low(pair));
        }
        for vcpus in by_helper.values() {
            for pair in vcpus.windows(2) {
                self.join(pair[0], pair[1]);
            }
        }
    }

    /// The VMM threads that were seen to serve a vCPU.
    pub(crate) fn helpers(&self) -> BTreeMap<ThreadId, u32> {
        let mut best = BTreeMap::new();
        for (pair, _) in strongest(&self.helpers) {
            best.entry(high(pair)).or_insert(low(pair));
        }
        best
    }
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

/// A VM and its vCPUs, by index.
#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) pid: Option<i32>,
    pub(crate) grouped_by: &'static str,
    pub(crate) vcpus: Vec<u32>,
}

/// What certain sources say of a vCPU thread's VM.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    Recorded(String),
    User(String),
    Process(i32),
}

impl Analysis {
    /// Whether two vCPUs are known to be one VM.
    pub(crate) fn are_linked(&self, a: u32, b: u32) -> bool {
        let process = |index: u32| {
            let vcpu = self.vcpus.get(index as usize);
            vcpu.map_or(0, |vcpu| self.threads.get(vcpu.thread).process.0)
        };
        match (process(a), process(b)) {
            (0, _) | (_, 0) => self.links.root(a) == self.links.root(b),
            (a, b) => a == b,
        }
    }

    /// A task wakes a vCPU thread: which of them belong together.
    pub(crate) fn on_wakeup_evidence(&mut self, cpu: u16, woken: u32) {
        let Some(cpu) = self.cpus.get(usize::from(cpu)) else {
            return;
        };
        let (waker, current) = (cpu.vcpu, cpu.current);
        let is_vcpu = waker != crate::cpu::NO_VCPU;
        if is_vcpu && waker != woken {
            let id = self.vcpus.get(woken as usize).map(|vcpu| vcpu.id.0);
            if cpu.accepted.is_some() && cpu.accepted == id {
                // The current vCPU has just made an interrupt pending at the vCPU of this number,
                // and nothing else came between: certain.
                self.links.join(waker, woken);
            }
        } else if let Some(helper) = current.filter(|&task| !is_vcpu && task > 1) {
            self.links.helped(helper, woken);
        }
    }

    /// A vCPU's thread wakes a task that is no vCPU.
    pub(crate) fn on_helper_evidence(&mut self, vcpu: u32, helper: ThreadId) {
        self.links.helped(helper, vcpu);
    }

    /// The current vCPU kicks the CPU `to`.
    pub(crate) fn on_kick_evidence(&mut self, cpu: u16, to: u32) {
        let Some(from) = self.cpus.get(usize::from(cpu)) else {
            return;
        };
        let (Some(apicid), Some(target)) = (from.accepted, self.cpus.get(to as usize)) else {
            return;
        };
        let (a, b) = (from.vcpu, target.vcpu);
        let id = self.vcpus.get(b as usize).map(|vcpu| vcpu.id.0);
        if a != b && a != crate::cpu::NO_VCPU && id == Some(apicid) {
            self.links.suspect(a, b);
        }
    }

    /// The VMs, in the order of their lowest thread id.
    pub(crate) fn group(&mut self, names: &dyn Names) -> Vec<Group> {
        // Threads of other kinds wake vCPUs as well (a shell, say): only a VMM's count.
        let threads = &self.threads;
        self.links.helpers.retain(|&pair, _| {
            let name = names.name(threads.get(high(pair)).name);
            is_vmm_name(name) && !is_kernel_name(name)
        });
        self.links.settle();
        let mut certain = BTreeMap::<Known, Vec<u32>>::new();
        let mut rest = BTreeMap::<u32, Vec<u32>>::new();
        for index in self.shown_vcpus() {
            match self.known(index, names) {
                Some(known) => certain.entry(known).or_default().push(index),
                None => rest.entry(self.links.root(index)).or_default().push(index),
            }
        }
        let mut groups: Vec<Group> = certain
            .into_iter()
            .map(|(known, vcpus)| self.named_group(known, vcpus))
            .collect();
        groups.extend(self.by_order(rest.into_values().collect()));
        for group in &mut groups {
            group.vcpus.sort_by_key(|&index| {
                self.vcpus
                    .get(index as usize)
                    .map(|vcpu| (vcpu.id, vcpu.thread))
            });
        }
        groups.sort_by_key(|group| self.lowest_tid(&group.vcpus));
        let unnamed = groups.iter_mut().filter(|group| group.name.is_empty());
        for (number, group) in unnamed.enumerate() {
            group.name = format!("vm{number}");
        }
        groups
    }

    /// vCPUs that show in the answers: KVM events were seen in their context.
    pub(crate) fn shown_vcpus(&self) -> impl Iterator<Item = u32> {
        (0..)
            .zip(&self.vcpus)
            .filter(|(_, vcpu)| vcpu.is_seen)
            .map(|(index, _)| index)
    }

    fn known(&self, index: u32, names: &dyn Names) -> Option<Known> {
        let vcpu = self.vcpus.get(index as usize)?;
        let thread = self.threads.get(vcpu.thread);
        if let Some(vm) = vcpu.recorded_vm {
            return Some(Known::Recorded(names.name(vm).to_owned()));
        }
        if let Some(vm) = self.options.groups.get(&thread.tid.0) {
            return Some(Known::User(vm.clone()));
        }
        (thread.process.0 > 0).then_some(Known::Process(thread.process.0))
    }

    fn named_group(&self, known: Known, vcpus: Vec<u32>) -> Group {
        let process = |&index: &u32| {
            let vcpu = self.vcpus.get(index as usize)?;
            Some(self.threads.get(vcpu.thread).process.0).filter(|&pid| pid > 0)
        };
        let pid = vcpus.iter().find_map(process);
        let (name, grouped_by) = match known {
            Known::Recorded(name) => (name, "recorded"),
            Known::User(name) => (name, "user"),
            Known::Process(pid) => (format!("pid{pid}"), "process"),
        };
        Group {
            name,
            pid,
            grouped_by,
            vcpus,
        }
    }

    fn lowest_tid(&self, vcpus: &[u32]) -> i32 {
        let tid = |&index: &u32| {
            let vcpu = self.vcpus.get(index as usize)?;
            Some(self.threads.get(vcpu.thread).tid.0)
        };
        vcpus.iter().filter_map(tid).min().unwrap_or(i32::MAX)
    }

    /// Groups that interaction made, and what is left, put together by the order of thread ids. A VMM
    /// makes its vCPU threads one after the other, so a part belongs behind the nearest thread before
    /// it that has the number before it and no successor yet. Where VMs of one size start at the same
    /// time their threads interleave, and the oldest VM with a free place would be the wrong one.
    fn by_order(&self, mut parts: Vec<Vec<u32>>) -> Vec<Group> {
        parts.sort_by_key(|part| self.lowest_tid(part));
        let mut groups: Vec<Group> = Vec::new();
        for part in parts {
            let behind = |group: &Group| self.predecessor(&group.vcpus, &part);
            // Numbers that are missing in the trace leave the highest before the part's.
            let fitting = groups
                .iter_mut()
                .filter_map(|group| Some((behind(group)?, group)))
                .max_by_key(|(predecessor, _)| *predecessor);
            match fitting {
                Some((_, group)) => {
                    group.vcpus.extend(part);
                    group.grouped_by = ORDER;
                }
                None => {
                    let grouped_by = if part.len() > 1 { "interaction" } else { ORDER };
                    groups.push(Group {
                        grouped_by,
                        vcpus: part,
                        ..Group::default()
                    });
                }
            }
        }
        groups
    }

    fn number_and_tid(&self, index: u32) -> Option<(u32, i32)> {
        let vcpu = self.vcpus.get(index as usize)?;
        Some((vcpu.id.0, self.threads.get(vcpu.thread).tid.0))
    }

    /// Number and thread id of the vCPU of a group that is the last before a part, if the part can be
    /// of the group.
    fn predecessor(&self, group: &[u32], part: &[u32]) -> Option<(u32, i32)> {
        if !self.fits_behind(group, part) {
            return None;
        }
        let numbers = |of: &[u32]| -> Vec<(u32, i32)> {
            let known = of.iter().filter_map(|&index| self.number_and_tid(index));
            known.collect()
        };
        let first = numbers(part).into_iter().min()?;
        let before = numbers(group).into_iter().filter(|one| one.0 < first.0);
        before.max()
    }

    /// Whether together they have each number once and thread ids ascend with the numbers.
    fn fits_behind(&self, group: &[u32], part: &[u32]) -> bool {
        let key = |&index: &u32| self.number_and_tid(index);
        let mut all: Vec<(u32, i32)> = group.iter().chain(part).filter_map(key).collect();
        all.sort_unstable();
        let starts_anew = part.iter().filter_map(key).any(|(id, _)| id == 0);
        !starts_anew
            && all
                .windows(2)
                .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1)
    }

    /// The VMM's threads that are no vCPUs, and the VM (by index) that each belongs to.
    pub(crate) fn vmm_threads(
        &self,
        groups: &[Group],
        names: &dyn Names,
    ) -> BTreeMap<ThreadId, Option<usize>> {
        let mut vm_of_pid = BTreeMap::new();
        for (vm, group) in groups.iter().enumerate() {
            if let Some(pid) = group.pid {
                vm_of_pid.insert(pid, vm);
            }
        }
        let helpers = self.links.helpers();
        let mut found = BTreeMap::new();
        for (id, thread) in self
            .threads
            .iter()
            .filter(|(_, thread)| thread.vcpu.is_none())
        {
            let name = names.name(thread.name);
            let by_pid = vm_of_pid
                .get(&thread.process.0)
                .or_else(|| vm_of_pid.get(&served_process(name)?.0))
                .copied();
            let by_help = helpers
                .get(&id)
                .and_then(|vcpu| groups.iter().position(|group| group.vcpus.contains(vcpu)));
            if is_vmm_name(name) || by_pid.is_some() || by_help.is_some() {
                found.insert(id, by_pid.or(by_help));
            }
        }
        found
    }
}
