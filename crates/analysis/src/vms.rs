//! Which vCPU threads are one VM.
//!
//! KVM's events name vCPUs by their number, which repeats from VM to VM. Sources of the VM are, in this
//! order: the recording, the user, the host's snapshot, the process, and interaction (one vCPU interrupts
//! another). The last one is the order of thread ids: a guess, and marked as one.

use std::collections::{BTreeMap, BTreeSet};

use stealtime_events::Names;
use stealtime_track::names::{is_kernel_name, is_vmm_name, served_process, vcpu_in_name};
use stealtime_track::{ThreadIndex, VcpuIndex};

use crate::Analysis;

/// [`Group::grouped_by`] of a guess.
pub(crate) const ORDER: &str = "order";

/// A VM and its vCPUs, by index.
#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) pid: Option<i32>,
    pub(crate) grouped_by: &'static str,
    pub(crate) vcpus: Vec<VcpuIndex>,
    /// Index among [`crate::HostVms::vms`], if the host's snapshot names it.
    host: Option<usize>,
}

/// What certain sources say of a vCPU thread's VM.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    Recorded(String),
    User(String),
    Host(usize),
    Process(i32),
}

impl Analysis {
    /// The VMs, in the order of their lowest thread id.
    pub(crate) fn group(&mut self, names: &dyn Names) -> Vec<Group> {
        self.tracker.settle_links(|thread| {
            let name = names.name(thread.name);
            is_vmm_name(name) && !is_kernel_name(name)
        });
        let mut certain = BTreeMap::<Known, Vec<VcpuIndex>>::new();
        let mut rest = BTreeMap::<VcpuIndex, Vec<VcpuIndex>>::new();
        for index in self.shown_vcpus() {
            match self.known(index, names) {
                Some(known) => certain.entry(known).or_default().push(index),
                None => rest
                    .entry(self.tracker.links().root(index))
                    .or_default()
                    .push(index),
            }
        }
        let mut groups: Vec<Group> = certain
            .into_iter()
            .map(|(known, vcpus)| self.named_group(known, vcpus, names))
            .collect();
        join_named(&mut groups);
        groups.extend(self.by_order(rest.into_values().collect()));
        for group in &mut groups {
            group.vcpus.sort_by_key(|&vcpu| {
                let vcpu = self.tracker.vcpu(vcpu);
                (vcpu.id(), vcpu.thread())
            });
        }
        groups.sort_by_key(|group| self.lowest_tid(&group.vcpus));
        self.name_apart(&mut groups);
        groups
    }

    /// Gives each VM a name of its own. Without any it is `vm0`, `vm1`… A second VM of a name has its
    /// process or its lowest thread behind it.
    fn name_apart(&self, groups: &mut [Group]) {
        let names = groups.iter().map(|group| group.name.clone());
        let known: BTreeSet<String> = names.filter(|name| !name.is_empty()).collect();
        let mut numbered = (0..)
            .map(|number| format!("vm{number}"))
            .filter(|name| !known.contains(name));
        let mut used = BTreeSet::new();
        for group in groups {
            if group.name.is_empty() {
                group.name = numbered.next().unwrap_or_default();
            }
            let id = group.pid.unwrap_or_else(|| self.lowest_tid(&group.vcpus));
            while !used.insert(group.name.clone()) {
                group.name = format!("{} ({id})", group.name);
            }
        }
    }

    /// vCPUs that show in the answers: KVM events were seen in their context. A kernel without entries and
    /// exits traces none of a guest that only computes. Then the host's snapshot or the user names it.
    pub(crate) fn shown_vcpus(&self) -> impl Iterator<Item = VcpuIndex> {
        let vcpus = (0..).map(VcpuIndex).zip(self.tracker.vcpus());
        vcpus
            .filter(|(index, vcpu)| {
                vcpu.is_seen() || vcpu.is_present() && self.is_named_vcpu(*index)
            })
            .map(|(index, _)| index)
    }

    /// Whether the user or the host's snapshot has the thread as this vCPU.
    fn is_named_vcpu(&self, vcpu: VcpuIndex) -> bool {
        let tid = self.thread_of(vcpu).tid.0;
        let options = &self.sums().options;
        options.groups.contains_key(&tid) || options.host.has_vcpu(tid, self.id(vcpu))
    }

    fn known(&self, vcpu: VcpuIndex, names: &dyn Names) -> Option<Known> {
        let thread = self.thread_of(vcpu);
        if let Some(vm) = self.tracker.vcpu(vcpu).recorded_vm() {
            return Some(Known::Recorded(names.name(vm).to_owned()));
        }
        let options = &self.sums().options;
        let host = self.host_vm(vcpu);
        let tid = thread.tid.0;
        // Without processes in the recording, the snapshot may know them.
        let process = match thread.process.0 {
            0 => host.map_or(tid, |vm| options.host.vms[vm].pid),
            process => process,
        };
        let by_user = options.groups.get(&tid);
        if let Some(vm) = by_user.or_else(|| options.processes.get(&process)) {
            return Some(Known::User(vm.clone()));
        }
        let by_process = || (thread.process.0 > 0).then_some(Known::Process(process));
        host.map(Known::Host).or_else(by_process)
    }

    /// The VM of a vCPU in the host's snapshot.
    fn host_vm(&self, vcpu: VcpuIndex) -> Option<usize> {
        let thread = self.thread_of(vcpu);
        let host = &self.sums().options.host;
        let vm = host.of_vcpu(thread.tid.0, thread.process.0, self.id(vcpu));
        vm.filter(|&vm| vm < host.vms.len())
    }

    /// The name of a process that has one of its own (QEMU's `-name web,process=web`).
    fn process_name<'n>(&self, pid: i32, names: &'n dyn Names) -> Option<&'n str> {
        let mut threads = self.tracker.threads().iter();
        let (_, leader) = threads.find(|(_, thread)| thread.tid.0 == pid)?;
        let name = names.name(leader.name);
        let says_nothing =
            is_vmm_name(name) || is_kernel_name(name) || vcpu_in_name(name).is_some();
        (!name.is_empty() && leader.vcpu.is_none() && !says_nothing).then_some(name)
    }

    fn named_group(&self, known: Known, vcpus: Vec<VcpuIndex>, names: &dyn Names) -> Group {
        let process =
            |&vcpu: &VcpuIndex| Some(self.thread_of(vcpu).process.0).filter(|&pid| pid > 0);
        let host = vcpus.iter().find_map(|&vcpu| self.host_vm(vcpu));
        let of_host = host.and_then(|vm| self.sums().options.host.vms.get(vm));
        let pid = vcpus.iter().find_map(process);
        let pid = pid.or_else(|| of_host.map(|vm| vm.pid));
        let (name, grouped_by) = match known {
            Known::Recorded(name) => (name, "recorded"),
            Known::User(name) => (name, "user"),
            Known::Host(_) => (
                of_host.map_or_else(String::new, |vm| vm.name.clone()),
                "snapshot",
            ),
            Known::Process(pid) => {
                let name = self.process_name(pid, names).map(str::to_owned);
                (name.unwrap_or_else(|| format!("pid{pid}")), "process")
            }
        };
        Group {
            name,
            pid,
            grouped_by,
            vcpus,
            host,
        }
    }

    fn lowest_tid(&self, vcpus: &[VcpuIndex]) -> i32 {
        let tids = vcpus.iter().map(|&vcpu| self.thread_of(vcpu).tid.0);
        tids.min().unwrap_or(i32::MAX)
    }

    /// Groups by interaction, and single vCPUs, put together by the order of thread ids. A VMM makes its
    /// vCPU threads one by one, so a part belongs behind the nearest thread with the preceding number
    /// and no successor. The oldest VM with a free place would be wrong: threads of VMs that start at
    /// the same time interleave.
    fn by_order(&self, mut parts: Vec<Vec<VcpuIndex>>) -> Vec<Group> {
        parts.sort_by_key(|part| self.lowest_tid(part));
        let mut groups: Vec<Group> = Vec::new();
        for part in parts {
            let predecessor = |group: &Group| self.predecessor(&group.vcpus, &part);
            // Numbers that are missing in the trace leave the highest before the part's.
            let fitting = groups
                .iter_mut()
                .filter_map(|group| Some((predecessor(group)?, group)))
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

    fn number_and_tid(&self, vcpu: VcpuIndex) -> (u32, i32) {
        (self.id(vcpu), self.thread_of(vcpu).tid.0)
    }

    /// Number and thread id of the vCPU of a group that is the last before a part, if the part can be
    /// of the group.
    fn predecessor(&self, group: &[VcpuIndex], part: &[VcpuIndex]) -> Option<(u32, i32)> {
        if !self.fits_behind(group, part) {
            return None;
        }
        let key = |&vcpu: &VcpuIndex| self.number_and_tid(vcpu);
        let first = part.iter().map(key).min()?;
        let lower = group.iter().map(key).filter(|key| key.0 < first.0);
        lower.max()
    }

    /// Whether together they have each number once and thread ids ascend with the numbers.
    fn fits_behind(&self, group: &[VcpuIndex], part: &[VcpuIndex]) -> bool {
        let key = |&vcpu: &VcpuIndex| self.number_and_tid(vcpu);
        let mut keys: Vec<(u32, i32)> = group.iter().chain(part).map(key).collect();
        keys.sort_unstable();
        let starts_anew = part.iter().map(key).any(|(id, _)| id == 0);
        !starts_anew
            && keys
                .windows(2)
                .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1)
    }

    /// The VMM's threads that are no vCPUs, and the VM (by index) that each belongs to.
    pub(crate) fn vmm_threads(
        &self,
        groups: &[Group],
        names: &dyn Names,
    ) -> BTreeMap<ThreadIndex, Option<usize>> {
        let mut vm_of_pid = BTreeMap::new();
        for (vm, group) in groups.iter().enumerate() {
            if let Some(pid) = group.pid {
                vm_of_pid.insert(pid, vm);
            }
        }
        let helpers = self.tracker.links().helpers();
        let host = &self.sums().options.host;
        let by_host = |tid: i32| {
            let thread = host.threads.get(&tid).filter(|thread| !thread.is_vcpu)?;
            groups
                .iter()
                .position(|group| group.host == Some(thread.vm))
        };
        let mut found = BTreeMap::new();
        for (id, thread) in self
            .tracker
            .threads()
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
            let by_host = by_host(thread.tid.0);
            let vm = by_host.or(by_pid).or(by_help);
            if is_vmm_name(name) || vm.is_some() {
                found.insert(id, vm);
            }
        }
        found
    }
}

/// Joins threads that the user gives to a VM with that VM as recorded, or as in the snapshot.
fn join_named(groups: &mut Vec<Group>) {
    let (user, mut rest): (Vec<Group>, Vec<Group>) = groups
        .drain(..)
        .partition(|group| group.grouped_by == "user");
    for mut group in user {
        let is_same = |named: &Group| named.name == group.name && named.grouped_by != "process";
        if let Some(index) = rest.iter().position(is_same) {
            let named = rest.swap_remove(index);
            group.vcpus.extend(named.vcpus);
            group.pid = group.pid.or(named.pid);
            group.host = group.host.or(named.host);
        }
        rest.push(group);
    }
    *groups = rest;
}
