//! The steps that make a change on the recorded host, and those that undo it.
//!
//! With a snapshot they name the VM's control group and its manager, and restore what the snapshot has.
//! Without one the path of the control group is unknown: the step reads it from a thread of the VM.

use stealtime_doctor::{self as doctor, GroupFile, VmSetting, by_manager, present_value};
use stealtime_host::{Cgroup, Snapshot, Vm};
use stealtime_lab::knobs::{self, HostSetting, Part, Setting, StepTarget, Steps, Value, Vendor};
use stealtime_lab::units::show_cpus;
use stealtime_simulator::config::Config;
use stealtime_simulator::script::ScriptConfig;

use crate::answerable;
use crate::apply::reniced;
use crate::baseline::Baseline;
use crate::pin::Pin;
use crate::plan::{Change, Plan, explicit};

/// `cpu.weight` of a cgroup that has no other.
const DEFAULT_WEIGHT: u32 = 100;
/// Why the steps of a VM's control group have no path.
const UNKNOWN_PATH: &str = "the path of the control group is unknown without a snapshot of the host, and \
                            is read from a thread of the VM";

/// The changes of a plan, on a host that is configured as `former`.
pub(crate) fn changes(plan: &Plan, base: &Baseline, former: Config) -> Vec<doctor::Change> {
    let host = Host {
        base,
        former: explicit(former),
    };
    plan.changes().map(|change| host.change(change)).collect()
}

/// A host before a change.
struct Host<'b> {
    base: &'b Baseline,
    /// With tunables written out that the kernel derives.
    former: Config,
}

/// Whether the snapshot of the recorded host shows that a setting of the host is so already.
pub(crate) fn is_set(base: &Baseline, setting: &Setting) -> bool {
    let snapshot = base.recorded.snapshot.as_ref();
    let present = snapshot.zip(setting.knob());
    let present = present.and_then(|(snapshot, knob)| present_value(snapshot, knob));
    present.is_some() && present.as_ref() == setting.value()
}

impl Host<'_> {
    fn change(&self, change: &Change) -> doctor::Change {
        let (name, row, steps) = match change {
            Change::Knob(setting) => (
                setting.to_string(),
                setting.knob(),
                self.setting_steps(setting),
            ),
            Change::Pin(pin) => (
                format!("pin {pin}"),
                knobs::find("pinning"),
                self.pin_steps(pin),
            ),
        };
        let step = match row.map(|knob| knob.host) {
            Some(HostSetting::Step(step)) => step,
            Some(HostSetting::SimulationOnly(reason)) => {
                let note = format!("simulation only: {reason}");
                return doctor::Change::simulation_only(name, note);
            }
            None => return doctor::Change::simulation_only(name, "simulation only".to_owned()),
        };
        let vendor = self.vendor();
        let mut locations = step.locations().iter().peekable();
        if locations.peek().is_some() && !locations.any(|location| location.is_of(vendor)) {
            let note = "KVM of this host's vendor has no such parameter".to_owned();
            return doctor::Change::simulation_only(name, note);
        }
        let (set, undo): (Vec<_>, Vec<_>) = steps
            .into_iter()
            .map(|steps| (steps.set, steps.undo))
            .unzip();
        let steps = Steps {
            set: set.concat(),
            undo: undo.concat(),
        };
        let mut change_on_host = doctor::Change::by_step(name, &step, steps);
        match change {
            Change::Knob(setting) => self.tell_managers(setting, &mut change_on_host),
            Change::Pin(pin) => {
                let managers = self.pins_by_manager(pin);
                if !managers.is_empty() {
                    change_on_host.note.clear();
                }
                change_on_host.managers = managers;
            }
        }
        change_on_host
    }

    /// Adds the commands of the managers of the VMs that a setting is for.
    fn tell_managers(&self, setting: &Setting, change_on_host: &mut doctor::Change) {
        let part = answerable::part(setting);
        if !matches!(part, Some(Part::Weight | Part::Limit)) {
            return;
        }
        let vms = (0u32..).zip(&self.base.recorded.vms);
        let vms = vms.filter(|(_, name)| setting.is_for(name));
        let vms: Vec<u32> = vms.map(|(vm, _)| vm).collect();
        if vms.iter().any(|&vm| self.group_of_snapshot(vm).is_none()) {
            change_on_host.note = format!("{UNKNOWN_PATH}; {}", change_on_host.note);
            return;
        }
        let commands = vms.iter().map(|&vm| {
            let known = self.vm_of_snapshot(vm)?;
            match part {
                Some(Part::Weight) => {
                    let weight = setting.value().and_then(weight)?;
                    let former = self.weight(vm);
                    by_manager(known, VmSetting::Weight { weight, former })
                }
                _ => {
                    let quota = setting.value().and_then(quota_us);
                    let former = self.quota(vm);
                    by_manager(known, VmSetting::Limit { quota, former })
                }
            }
        });
        // Commands for some of the VMs are no change of all of them.
        let commands: Option<Vec<_>> = commands.collect();
        change_on_host.managers = doctor::merge(commands.unwrap_or_default());
        change_on_host.note.clear();
    }

    fn pins_by_manager(&self, pin: &Pin) -> Vec<doctor::ByManager> {
        let tasks = self.base.recorded.recording.tasks.iter();
        let commands = tasks
            .zip(&self.former.scripts.tasks)
            .filter_map(|(task, script)| {
                let cpus = show_cpus(pin.cpus(task)?);
                let (vm, vcpu) = task.vcpu?;
                let known = self.vm_of_snapshot(u32::try_from(vm).ok()?)?;
                let former = self.allowed(task.tid, script).to_string();
                let setting = VmSetting::Vcpu {
                    vcpu,
                    cpus: &cpus,
                    former: &former,
                };
                by_manager(known, setting).filter(|_| cpus != former)
            });
        doctor::merge(commands.collect::<Vec<_>>())
    }

    /// That of the recorded host, if its snapshot tells it.
    fn vendor(&self) -> Vendor {
        let snapshot = self.base.recorded.snapshot.as_ref();
        snapshot.map(doctor::vendor).unwrap_or_default()
    }

    /// The VM of the snapshot that has a vCPU's thread of this one.
    fn vm_of_snapshot(&self, vm: u32) -> Option<&Vm> {
        let snapshot = self.base.recorded.snapshot.as_ref()?;
        let tasks = self.base.recorded.recording.tasks.iter();
        let mut tids = tasks
            .filter(|task| task.vcpu.is_some_and(|vcpu| vcpu.0 == vm as usize))
            .map(|task| task.tid);
        let with_thread = |tid: i32| {
            let mut vms = snapshot.vms.iter();
            vms.find(|vm| vm.threads.iter().any(|thread| thread.tid == tid))
        };
        tids.find_map(with_thread)
    }

    /// The control group of a VM as a whole: libvirt has groups of threads below it.
    fn group_of_snapshot(&self, vm: u32) -> Option<(&Snapshot, &Cgroup)> {
        let snapshot = self.base.recorded.snapshot.as_ref()?;
        let path = self.vm_of_snapshot(vm)?.cgroup.as_deref()?;
        let whole = path
            .split_once("/libvirt/")
            .map_or(path, |(scope, _)| scope);
        let group = snapshot.groups_above(whole).next()?;
        (group.path == whole && whole != "/").then_some((snapshot, group))
    }

    fn weight(&self, vm: u32) -> u32 {
        let known = self
            .group_of_snapshot(vm)
            .and_then(|(_, group)| group.weight);
        let groups = &self.former.scripts.groups;
        let fitted = groups.get(vm as usize).and_then(Option::as_ref);
        let known = known.and_then(|weight| u32::try_from(weight).ok());
        known.unwrap_or_else(|| fitted.map_or(DEFAULT_WEIGHT, |group| group.cpu_weight))
    }

    fn quota(&self, vm: u32) -> doctor::Quota {
        if let Some((_, group)) = self.group_of_snapshot(vm) {
            return group.quota_us.zip(group.period_us);
        }
        let groups = &self.former.scripts.groups;
        let (quota, period) = groups.get(vm as usize)?.as_ref()?.cpu_max_ns?;
        Some((quota / 1_000, period / 1_000))
    }

    fn setting_steps(&self, setting: &Setting) -> Vec<Steps> {
        if setting.vms().is_some() {
            let vms = (0u32..).zip(&self.base.recorded.vms);
            let named = vms.filter(|(_, name)| setting.is_for(name));
            return named
                .flat_map(|(vm, name)| self.vm_steps(setting, vm, name))
                .collect();
        }
        let snapshot = self.base.recorded.snapshot.as_ref();
        let present = snapshot.zip(setting.knob());
        let present = present.and_then(|(snapshot, knob)| present_value(snapshot, knob));
        let fitted = || setting.knob().and_then(|knob| knob.get(&self.former));
        let target = StepTarget {
            vendor: self.vendor(),
            ..StepTarget::default()
        };
        let former = present.or_else(fitted);
        let steps = former.and_then(|former| setting.host_steps(&former, &target));
        steps.into_iter().collect()
    }

    /// The steps for one VM: one for each former value of its threads.
    fn vm_steps(&self, setting: &Setting, vm: u32, name: &str) -> Vec<Steps> {
        let scripts = &self.former.scripts;
        let part = answerable::part(setting);
        if let (Some((snapshot, group)), Some(value)) =
            (self.group_of_snapshot(vm), setting.value())
        {
            let file = GroupFile::new(snapshot, group);
            let steps = match part {
                Some(Part::Weight) => weight(value).map(|weight| Steps {
                    set: vec![file.weight(weight)],
                    undo: vec![file.weight(self.weight(vm))],
                }),
                Some(Part::Limit) => Some(Steps {
                    set: vec![file.limit(quota_us(value))],
                    undo: vec![file.limit(self.quota(vm))],
                }),
                _ => None,
            };
            if let Some(steps) = steps {
                return vec![steps];
            }
        }
        let former: Vec<Group<Value>> = match part {
            Some(Part::Nice) => {
                let mut groups = Vec::new();
                for index in reniced(&scripts.tasks, vm) {
                    if let (Some(task), Some(tid)) = (scripts.tasks.get(index), self.tid(index)) {
                        add(&mut groups, Value::Number(task.nice.into()), tid);
                    }
                }
                groups
            }
            Some(Part::Weight) => {
                vec![self.cgroup(Value::Number(self.weight(vm).into()), vm)]
            }
            Some(Part::Limit) => {
                let limit = match self.quota(vm) {
                    Some((quota, period)) => format!("{quota}us {period}us"),
                    None => "max".to_owned(),
                };
                vec![self.cgroup(Value::Words(limit), vm)]
            }
            _ => Vec::new(),
        };
        // A VM without a recorded thread has no step.
        let groups = former.iter().filter(|group| !group.tids.is_empty());
        let steps = groups.filter_map(|group| {
            let tids = &group.tids;
            let target = StepTarget {
                vm: name,
                tids,
                ..StepTarget::default()
            };
            setting.host_steps(&group.key, &target)
        });
        steps.collect()
    }

    fn pin_steps(&self, pin: &Pin) -> Vec<Steps> {
        let Some(HostSetting::Step(step)) = knobs::find("pinning").map(|knob| knob.host) else {
            debug_assert!(false, "the table has a step for pinning");
            return Vec::new();
        };
        let tasks = &self.base.recorded.recording.tasks;
        let mut groups: Vec<Group<[Value; 2]>> = Vec::new();
        for (task, script) in tasks.iter().zip(&self.former.scripts.tasks) {
            if let Some(cpus) = pin.cpus(task) {
                add(
                    &mut groups,
                    [cpu_list(cpus), self.allowed(task.tid, script)],
                    task.tid,
                );
            }
        }
        let changed = |group: &&Group<[Value; 2]>| group.key[0] != group.key[1];
        let steps = groups.iter().filter(changed).map(|group| {
            let [cpus, former] = &group.key;
            let tids = &group.tids;
            let target = StepTarget {
                tids,
                ..StepTarget::default()
            };
            step.fill(cpus, former, &target)
        });
        steps.collect()
    }

    /// The CPUs that a task may use before the change.
    fn allowed(&self, tid: i32, script: &ScriptConfig) -> Value {
        let vms = self
            .base
            .recorded
            .snapshot
            .iter()
            .flat_map(|snapshot| &snapshot.vms);
        let mut threads = vms.flat_map(|vm| &vm.threads);
        let known = threads.find(|thread| thread.tid == tid);
        if let Some(cpus) = known.and_then(|thread| thread.affinity.clone()) {
            return Value::Words(cpus);
        }
        match script.cpus.is_empty() {
            true => Value::Words(self.base.recorded.cpu_range()),
            false => cpu_list(&script.cpus),
        }
    }

    fn tid(&self, index: usize) -> Option<i32> {
        let task = self.base.recorded.recording.tasks.get(index)?;
        Some(task.tid)
    }

    /// The cgroup of a VM with its former value: any thread of a vCPU is in it.
    fn cgroup(&self, former: Value, vm: u32) -> Group<Value> {
        let tasks = self.base.recorded.recording.tasks.iter();
        let mut vcpus = tasks.filter(|task| task.vcpu.is_some_and(|vcpu| vcpu.0 == vm as usize));
        Group {
            key: former,
            tids: vcpus.next().map(|task| task.tid).into_iter().collect(),
        }
    }
}

fn weight(value: &Value) -> Option<u32> {
    match value {
        Value::Number(weight) => u32::try_from(*weight).ok(),
        _ => None,
    }
}

/// A limit in µs; `None` is no limit.
fn quota_us(value: &Value) -> doctor::Quota {
    let (quota_ns, period_ns) = knobs::cpu_max_ns(value)?;
    Some((quota_ns / 1_000, period_ns / 1_000))
}

fn cpu_list(cpus: &[u32]) -> Value {
    Value::Words(show_cpus(cpus))
}

/// Threads that share their steps.
struct Group<K> {
    key: K,
    tids: Vec<i32>,
}

/// Adds a thread to the group of its key; groups keep the order of their first threads.
fn add<K: PartialEq>(groups: &mut Vec<Group<K>>, key: K, tid: i32) {
    match groups.iter_mut().find(|group| group.key == key) {
        Some(group) => group.tids.push(tid),
        None => groups.push(Group {
            key,
            tids: vec![tid],
        }),
    }
}
