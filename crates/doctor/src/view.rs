//! A snapshot with the values that several rules need.

use std::collections::{BTreeMap, BTreeSet};

use stealtime_host::{Snapshot, Thread, Vm, cpulist};
use stealtime_lab::knobs::Vendor;

use crate::change::vendor;

/// From this release on KVM posts timers of VMs alone that run HLT or MWAIT themselves (commit
/// 1714a4eb6fb0, which some older stable kernels have too).
pub(crate) const POSTS_FEW: Release = Release {
    major: 5,
    minor: 18,
};

/// A snapshot, and sets of its CPUs.
pub(crate) struct View<'t> {
    pub(crate) snapshot: &'t Snapshot,
    pub(crate) vendor: Vendor,
    pub(crate) online: BTreeSet<u32>,
    pub(crate) nohz_full: BTreeSet<u32>,
    pub(crate) isolated: BTreeSet<u32>,
    /// vCPUs of all VMs.
    pub(crate) vcpus: usize,
    /// vCPUs that may run on one CPU alone, by CPU.
    pub(crate) pinned: BTreeMap<u32, Vec<Pin<'t>>>,
}

/// A vCPU that is bound to a CPU.
#[derive(Clone, Copy)]
pub(crate) struct Pin<'t> {
    pub(crate) vm: &'t Vm,
    pub(crate) thread: &'t Thread,
}

impl Pin<'_> {
    /// `db-1 vCPU 0`
    pub(crate) fn label(&self) -> String {
        match self.thread.vcpu {
            Some(vcpu) => format!("{} vCPU {vcpu}", self.vm.name),
            None => format!("{} thread {}", self.vm.name, self.thread.tid),
        }
    }
}

impl<'t> View<'t> {
    pub(crate) fn new(snapshot: &'t Snapshot) -> Self {
        let online = cpus_in(snapshot.cpu.online.as_deref());
        let mut isolated = cpus_in(snapshot.cpu.isolated.as_deref());
        isolated.extend(cpus_in(snapshot.cpu.cpuset_isolated.as_deref()));
        let mut pinned: BTreeMap<u32, Vec<Pin>> = BTreeMap::new();
        for vm in &snapshot.vms {
            for thread in vm.vcpus() {
                let cpus = affinity(thread);
                if let (Some(cpu), 1) = (cpus.first(), cpus.len()) {
                    pinned.entry(*cpu).or_default().push(Pin { vm, thread });
                }
            }
        }
        Self {
            nohz_full: cpus_in(snapshot.cpu.nohz_full.as_deref()),
            vcpus: snapshot.vms.iter().map(|vm| vm.vcpus().count()).sum(),
            vendor: vendor(snapshot),
            snapshot,
            online,
            isolated,
            pinned,
        }
    }

    /// A parameter of a module.
    pub(crate) fn parameter(&self, module: &str, name: &str) -> Option<&'t str> {
        let values = self.snapshot.kvm.modules.get(module)?;
        values.get(name).map(String::as_str)
    }

    /// Whether a parameter is switched on; `None` where it is unknown.
    pub(crate) fn is_on(&self, module: &str, name: &str) -> Option<bool> {
        match self.parameter(module, name)? {
            "Y" | "y" | "1" => Some(true),
            "N" | "n" | "0" => Some(false),
            _ => None,
        }
    }

    /// Whether KVM virtualizes the guests' APICs; `None` where it is unknown.
    pub(crate) fn has_apicv(&self) -> Option<bool> {
        let intel = self.is_on("kvm_intel", "enable_apicv");
        intel.or_else(|| self.is_on("kvm_amd", "avic"))
    }

    pub(crate) fn has_flag(&self, name: &str) -> bool {
        self.snapshot.cpu.flags.iter().any(|flag| flag == name)
    }

    pub(crate) fn has_vmx_flag(&self, name: &str) -> bool {
        self.snapshot.cpu.vmx_flags.iter().any(|flag| flag == name)
    }

    /// Whether there are more vCPUs than CPUs.
    pub(crate) fn is_overcommitted(&self) -> bool {
        self.vcpus > self.online.len() && !self.online.is_empty()
    }

    /// Release of the kernel as its first two numbers.
    pub(crate) fn kernel(&self) -> Option<Release> {
        let release = self.snapshot.kernel.release.as_deref()?;
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some(Release {
            major: numbers.next()?.parse().ok()?,
            minor: numbers.next()?.parse().ok()?,
        })
    }
}

/// The first two numbers of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Release {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// The CPUs that a thread may use; none where they are unknown.
pub(crate) fn affinity(thread: &Thread) -> BTreeSet<u32> {
    cpus_in(thread.affinity.as_deref())
}

/// CPUs of a list; none where there is no list.
pub(crate) fn cpus_in(list: Option<&str>) -> BTreeSet<u32> {
    list.and_then(cpulist::parse).unwrap_or_default()
}
