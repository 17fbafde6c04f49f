//! Refusing what cannot be run.

use core::fmt;

use stealtime_hypervisor::directed_yield::ple::PleVendor;
use stealtime_hypervisor::fair::{Cfs, Feature, Features, PickMode};

use super::{Config, Hypervisor, Pinning, SchedPolicy};
use crate::script::ScriptGroup;
use crate::workload::host_body;

/// What is wrong with a configuration, by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The key, dotted, with indexes (`vm.0.pinning`).
    pub key: String,
    /// What is wrong and what to do.
    pub problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.problem)
    }
}

impl core::error::Error for ConfigError {}

fn wrong<T>(key: impl Into<String>, problem: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError {
        key: key.into(),
        problem: problem.into(),
    })
}

fn range(key: &str, value: u64, min: u64, max: u64) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    wrong(key, format!("{value} is not within {min} to {max}"))
}

impl Config {
    /// Whether this can be run.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first key that is out of range or contradicts another.
    pub fn check(&self) -> Result<(), ConfigError> {
        let t = &self.host.topology;
        range("host.sockets", t.sockets.into(), 1, 4096)?;
        range("host.llcs_per_socket", t.llcs_per_socket.into(), 1, 64)?;
        range("host.cores_per_llc", t.cores_per_llc.into(), 1, 4096)?;
        range("host.threads_per_core", t.threads_per_core.into(), 1, 2)?;
        range("host.cpus", t.cpus().into(), 1, 4096)?;
        range(
            "run.duration_ns",
            self.run.duration_ns,
            1_000,
            1_000_000_000_000_000,
        )?;
        range(
            "run.warmup_ns",
            self.run.warmup_ns,
            0,
            1_000_000_000_000_000,
        )?;
        range("sched.hz", self.knobs.sched.hz.into(), 100, 1000)?;
        self.check_cfs()?;
        self.check_policy()?;
        self.check_apic_ids()?;
        if self.host.profile.cstates.is_empty() {
            return wrong(
                "profile.cstates",
                "an idle CPU needs at least one state, such as C1",
            );
        }
        range(
            "profile.smt_percent",
            self.host.profile.smt_percent.into(),
            1,
            100,
        )?;
        range(
            "profile.costs.tsc_khz",
            self.host.profile.costs.tsc_khz.into(),
            1,
            10_000_000,
        )?;
        self.check_cpus("host.nohz_full", &self.knobs.host.nohz_full)?;
        self.check_cpus("host.isolcpus", &self.knobs.host.isolcpus)?;
        for (n, task) in self.host.tasks.iter().enumerate() {
            self.check_cpus(&format!("task.{n}.cpus"), &task.cpus)?;
            range(&format!("task.{n}.count"), task.count.into(), 1, 65_536)?;
            check_nice(&format!("task.{n}.nice"), task.nice)?;
            host_body(format!("task.{n}.workload"), &task.workload.name)?;
        }
        self.check_svm()?;
        for n in 0..self.vms.len() {
            self.check_vm(n)?;
        }
        self.check_scripts()?;
        if self.vms.is_empty() && self.host.tasks.is_empty() && self.scripts.tasks.is_empty() {
            return wrong("vm", "nothing to run: give at least one [[vm]] or [[task]]");
        }
        Ok(())
    }

    /// What VMX alone has, and the pause-loop window of each vendor.
    fn check_svm(&self) -> Result<(), ConfigError> {
        let (features, ple) = (&self.host.profile.features, &self.knobs.kvm.ple);
        let vendor = if features.svm {
            PleVendor::Svm
        } else {
            PleVendor::Vmx
        };
        if ple.vendor != vendor {
            let message = format!(
                "{:?} on a host with {vendor:?}: start from Knobs::on",
                ple.vendor
            );
            return wrong("kvm.ple.vendor", message);
        }
        let enabled = |exists: bool| exists && features.svm;
        for (key, exists) in [
            ("apicv", enabled(features.apicv)),
            ("ipiv", enabled(features.ipiv)),
            ("hv_timer_shift", enabled(features.hv_timer_shift.is_some())),
        ] {
            if exists {
                let message = "VMX alone has it: set it to false on a host with svm";
                return wrong(format!("profile.features.{key}"), message);
            }
        }
        Ok(())
    }

    /// `scx_stealtime` refuses to start on such a host, or has nothing of it.
    fn check_policy(&self) -> Result<(), ConfigError> {
        if self.knobs.sched.policy == SchedPolicy::Fair {
            return Ok(());
        }
        let limited = self.vms.iter().position(|vm| vm.cpu_max_ns.is_some());
        let groups = self.scripts.groups.iter().flatten();
        let shared = self
            .scripts
            .shared_groups
            .iter()
            .map(|shared| &shared.group);
        let key = match limited {
            Some(n) => format!("vm.{n}.cpu_max"),
            None if groups.chain(shared).any(|group| group.cpu_max_ns.is_some()) => {
                "cpu.max of a group".to_owned()
            }
            None if self.host.hypervisor == Hypervisor::Xen => {
                return wrong("sched.policy", "Xen has no sched_ext".to_owned());
            }
            None => return Ok(()),
        };
        wrong(
            key,
            "scx_stealtime refuses to start with it: limits are the fair class's".to_owned(),
        )
    }

    /// An xAPIC has 8 bits for an id, and 255 is the broadcast.
    fn check_apic_ids(&self) -> Result<(), ConfigError> {
        let is_xapic = !self.host.profile.features.x2apic;
        let cpus = self.host.topology.cpus();
        if is_xapic && cpus > 255 {
            let problem = format!("{cpus} CPUs: a host has 255 at most in xAPIC mode: set x2apic");
            return wrong("host.cpus", problem);
        }
        Ok(())
    }

    /// CFS has nothing of what came with EEVDF or later.
    fn check_cfs(&self) -> Result<(), ConfigError> {
        let sched = &self.knobs.sched;
        let usual = Features::LINUX_7_2;
        let mut rest = Feature::ALL
            .into_iter()
            .filter(|feature| !Cfs::FEATURES.contains(feature));
        let (key, message) = match (
            rest.find(|&feature| sched.features.has(feature) != usual.has(feature)),
            sched.pick,
            sched.base_slice_ns,
        ) {
            _ if sched.cfs.is_none() => return Ok(()),
            (Some(feature), ..) => ("sched.features", feature.name()),
            (_, PickMode::Flat, _) => ("sched.pick", "flat picking"),
            (.., Some(_)) => ("sched.base_slice_ns", "slices of one length"),
            _ => return Ok(()),
        };
        wrong(
            key,
            format!("CFS has no {message}: set sched.fair=eevdf too"),
        )
    }

    fn check_scripts(&self) -> Result<(), ConfigError> {
        for (n, script) in self.scripts.tasks.iter().enumerate() {
            self.check_cpus(&format!("script.{n}.cpus"), &script.cpus)?;
            self.check_cpus(&format!("script.{n}.first_cpu"), &[script.first_cpu])?;
            check_nice(&format!("script.{n}.nice"), script.nice)?;
        }
        let shared = self.scripts.shared_groups.iter().enumerate();
        for (n, shared) in shared.clone() {
            if shared.parent.is_some_and(|parent| parent >= n) {
                let message = "the group above comes first".to_owned();
                return wrong(format!("script.shared_group.{n}.parent"), message);
            }
        }
        let groups = self.scripts.groups.iter().enumerate();
        let groups = groups.filter_map(|(n, group)| Some((n, group.as_ref()?)));
        for (n, group) in groups.chain(shared.map(|(n, shared)| (n, &shared.group))) {
            let (weight, maximum) = (group.cpu_weight.into(), ScriptGroup::MOST_WEIGHT.into());
            range(&format!("script.group.{n}.cpu_weight"), weight, 1, maximum)?;
            if let Some((quota_ns, period_ns)) = group.cpu_max_ns {
                check_cpu_max(&format!("script.group.{n}.cpu_max"), quota_ns, period_ns)?;
            }
        }
        Ok(())
    }

    fn check_cpus(&self, key: &str, cpus: &[u32]) -> Result<(), ConfigError> {
        let cpus_of_host = self.host.topology.cpus();
        match cpus.iter().find(|&&cpu| cpu >= cpus_of_host) {
            Some(cpu) => wrong(
                key,
                format!("no CPU {cpu}: the host has {cpus_of_host}, counted from 0"),
            ),
            None => Ok(()),
        }
    }

    fn check_vm(&self, n: usize) -> Result<(), ConfigError> {
        let Some(vm) = self.vms.get(n) else {
            return Ok(());
        };
        if vm.physical_counter_offset != 0 && !self.host.profile.is_arm64() {
            return wrong(
                format!("vm.{n}.physical_counter_offset"),
                "the machine is no arm64 one: its costs.counter_trap_ns is 0",
            );
        }
        range(&format!("vm.{n}.vcpus"), vm.vcpus.into(), 1, 4096)?;
        if !vm.guest.x2apic && vm.vcpus > 255 {
            return wrong(
                format!("vm.{n}.x2apic"),
                format!("{} vCPUs: xAPIC ids end at 254, set x2apic=true", vm.vcpus),
            );
        }
        range(
            &format!("vm.{n}.cpu_weight"),
            vm.cpu_weight.into(),
            1,
            10_000,
        )?;
        range(&format!("vm.{n}.hz"), vm.guest.hz.into(), 24, 1000)?;
        check_nice(&format!("vm.{n}.nice"), vm.nice)?;
        let key = format!("vm.{n}.pinning");
        match &vm.pinning {
            Pinning::None => {}
            Pinning::Pool(cpus) => {
                if cpus.is_empty() {
                    return wrong(key, "an empty set of CPUs: leave it out to run anywhere");
                }
                self.check_cpus(&key, cpus)?;
            }
            Pinning::OneToOne(cpus) => {
                if cpus.len() != vm.vcpus as usize {
                    let (count, want) = (cpus.len(), vm.vcpus);
                    return wrong(
                        key,
                        format!("{count} CPUs for {want} vCPUs: give one for each"),
                    );
                }
                self.check_cpus(&key, cpus)?;
            }
        }
        if let Some((quota_ns, period_ns)) = vm.cpu_max_ns {
            check_cpu_max(&format!("vm.{n}.cpu_max"), quota_ns, period_ns)?;
        }
        if let Some(migration) = &vm.migration {
            let key = format!("vm.{n}.migration");
            if migration.to_cpus.is_empty() {
                return wrong(
                    format!("{key}.to_cpus"),
                    "no CPUs: name those of the destination",
                );
            }
            self.check_cpus(&format!("{key}.to_cpus"), &migration.to_cpus)?;
            let end_ns = self.run.warmup_ns.saturating_add(self.run.duration_ns);
            if migration.at_ns >= end_ns {
                let problem = format!(
                    "{}ns, and the run ends at {end_ns}ns: give an earlier time",
                    migration.at_ns
                );
                return wrong(format!("{key}.at"), problem);
            }
            for (side, clock) in [
                ("source", migration.source),
                ("destination", migration.destination),
            ] {
                range(
                    &format!("{key}.{side}.tsc_khz"),
                    clock.tsc_khz.into(),
                    1,
                    10_000_000,
                )?;
            }
            let source_khz = migration.source.tsc_khz;
            if self.host.profile.is_arm64() && migration.destination.tsc_khz != source_khz {
                let problem = format!(
                    "{source_khz} on the source, and nothing scales an arm64 counter: give the same"
                );
                return wrong(format!("{key}.destination.tsc_khz"), problem);
            }
        }
        Ok(())
    }
}

/// The bounds of `tg_set_cfs_bandwidth`: a period of 1 ms to 1 s, and a quota of at least 1 ms.
fn check_cpu_max(key: &str, quota_ns: u64, period_ns: u64) -> Result<(), ConfigError> {
    if !(1_000_000..=1_000_000_000).contains(&period_ns) {
        return wrong(key, format!("a period of {period_ns}ns: give 1ms to 1s"));
    }
    if !(1_000_000..=u64::from(u32::MAX) * 1000).contains(&quota_ns) {
        let problem = format!("a quota of {quota_ns}ns: give max, or 1ms to 4294967295us");
        return wrong(key, problem);
    }
    Ok(())
}

fn check_nice(key: &str, nice: i8) -> Result<(), ConfigError> {
    if (-20..=19).contains(&nice) {
        return Ok(());
    }
    wrong(key, format!("{nice} is not within -20 to 19"))
}
