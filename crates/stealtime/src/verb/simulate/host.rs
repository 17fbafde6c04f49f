//! The snapshot of a simulated host: what a snapshot of a real one would say of its settings.

use std::collections::BTreeMap;

use stealtime_events::{Event, Kind, Names};
use stealtime_host::{
    Cgroup, Evidence, FoundBy, Manager, Policy, Process, Snapshot, Thread, ThreadKind, VERSION, Vm,
    cpulist,
};
use stealtime_lab::knobs::{self, HostSetting, Location};
use stealtime_simulator::config::{Config, Pinning, VmConfig};

/// The group of all VMs, as libvirt has it.
const SLICE: &str = "/machine.slice";
/// The threads of a simulated host, by their process.
#[derive(Debug, Default)]
pub(super) struct Threads(BTreeMap<i32, BTreeMap<i32, String>>);

impl Threads {
    /// Takes the name of a thread.
    pub(super) fn event(&mut self, event: &Event, names: &dyn Names) {
        if let Kind::Task { tid, process, name } = event.kind {
            let threads = self.0.entry(process.0).or_default();
            threads.insert(tid.0, names.name(name).to_owned());
        }
    }

    /// Processes with a vCPU: those of VMs, in the order of the configuration.
    fn vms(&self) -> impl Iterator<Item = (i32, &BTreeMap<i32, String>)> {
        let processes = self.0.iter().map(|(pid, threads)| (*pid, threads));
        processes.filter(|(_, threads)| threads.values().any(|name| number(name).is_some()))
    }
}

/// The number of a vCPU's thread by its name.
fn number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("CPU ")?.strip_suffix("/KVM")?;
    digits.parse().ok()
}

/// The snapshot of a host with these settings.
pub(super) fn snapshot(config: &Config, threads: &Threads) -> Snapshot {
    let mut snapshot = Snapshot {
        version: VERSION,
        ..Snapshot::default()
    };
    let cpus = config.host.topology.cpus();
    let online = cpulist::format(&(0..cpus).collect());
    snapshot.cpu.online = Some(online.clone());
    snapshot.cpu.possible = Some(online.clone());
    let value = |knob: &str| knobs::get(config, knob).ok();
    snapshot.kernel.hz = Some(config.knobs.sched.hz);
    snapshot.kernel.preempt.mode = value("sched.preempt");
    if config.knobs.sched.cfs.is_none() {
        let slice = stealtime_replay::host::base_slice_ns(config).to_string();
        let values = &mut snapshot.sched.values;
        values.insert("base_slice_ns".to_owned(), slice);
        let features = config.knobs.sched.features;
        let word = |feature: &stealtime_replay::host::Feature| {
            let prefix = if features.has(*feature) { "" } else { "NO_" };
            format!("{prefix}{}", feature.name())
        };
        snapshot.sched.features = stealtime_replay::host::Feature::ALL
            .iter()
            .map(word)
            .collect();
    }
    snapshot.kvm.device = true;
    for knob in knobs::all() {
        let HostSetting::Step(step) = knob.host else {
            continue;
        };
        // Simulated hosts are Intel's: the first location.
        let text = knob.get(config).and_then(|value| step.text(&value));
        if let (Some(Location::Parameter { module, name }), Some(text)) =
            (step.locations().first(), text)
        {
            let parameters = snapshot
                .kvm
                .modules
                .entry((*module).to_owned())
                .or_default();
            parameters.insert((*name).to_owned(), text);
        }
    }
    snapshot.cgroup.version = "v2".to_owned();
    snapshot.cgroups = vec![group("/", None), group(SLICE, Some(100))];
    for ((pid, threads), config) in threads.vms().zip(&config.vms) {
        let vm = vm(config, pid, threads, &online);
        let scope = vm.cgroup.clone().unwrap_or_default();
        let mut top = group(&scope, Some(config.cpu_weight.into()));
        if let Some((quota_ns, period_ns)) = config.cpu_max_ns {
            top.quota_us = Some(quota_ns / 1_000);
            top.period_us = Some(period_ns / 1_000);
        }
        snapshot.cgroups.push(top);
        if config.vcpu_cgroups {
            snapshot
                .cgroups
                .push(group(&format!("{scope}/libvirt"), Some(100)));
            let groups = vm
                .threads
                .iter()
                .filter_map(|thread| thread.cgroup.as_deref());
            let mut groups: Vec<&str> = groups.collect();
            groups.sort_unstable();
            groups.dedup();
            let groups = groups.into_iter().map(|path| group(path, Some(100)));
            snapshot.cgroups.extend(groups);
        }
        snapshot.vms.push(vm);
    }
    snapshot
}

fn group(path: &str, weight: Option<u64>) -> Cgroup {
    Cgroup {
        path: path.to_owned(),
        hierarchy: "v2".to_owned(),
        weight,
        ..Cgroup::default()
    }
}

fn vm(config: &VmConfig, pid: i32, threads: &BTreeMap<i32, String>, online: &str) -> Vm {
    let scope = format!("{SLICE}/machine-{pid}.scope");
    let thread = |(&tid, name): (&i32, &String)| {
        let vcpu = number(name);
        let group = match (config.vcpu_cgroups, vcpu) {
            (false, _) => scope.clone(),
            (true, Some(vcpu)) => format!("{scope}/libvirt/vcpu{vcpu}"),
            (true, None) => format!("{scope}/libvirt/emulator"),
        };
        Thread {
            tid,
            name: name.clone(),
            kind: match vcpu {
                Some(_) => ThreadKind::Vcpu,
                None => ThreadKind::Emulator,
            },
            vcpu,
            evidence: vcpu.map(|_| Evidence::Name),
            policy: Some(Policy::Other),
            nice: Some(config.nice.into()),
            affinity: affinity(&config.pinning, vcpu, online),
            cgroup: Some(group),
            ..Thread::default()
        }
    };
    let mut threads: Vec<Thread> = threads.iter().map(thread).collect();
    threads.sort_by_key(|thread| (thread.kind, thread.vcpu, thread.tid));
    Vm {
        name: config.name.clone(),
        manager: Manager::Libvirt,
        id: Some(config.name.clone()),
        name_source: "the scenario".to_owned(),
        found_by: FoundBy::Threads,
        process: Process {
            pid,
            name: config.name.clone(),
            ..Process::default()
        },
        threads,
        cgroup: Some(scope),
        ..Vm::default()
    }
}

/// CPUs of a thread; `None` where the simulated host decides, as for workers of pinned VMs.
fn affinity(pinning: &Pinning, vcpu: Option<u32>, online: &str) -> Option<String> {
    let list = |cpus: &[u32]| cpulist::format(&cpus.iter().copied().collect());
    match (pinning, vcpu) {
        (Pinning::None, _) => Some(online.to_owned()),
        (Pinning::Pool(cpus), Some(_)) => Some(list(cpus)),
        (Pinning::OneToOne(cpus), Some(vcpu)) => cpus.get(vcpu as usize).map(|cpu| list(&[*cpu])),
        (_, None) => None,
    }
}
