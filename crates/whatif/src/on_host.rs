//! The steps that make a change on the recorded host, and those that undo it.

use serde::Serialize;
use stealtime_lab::knobs::{self, HostSetting, Part, Setting, Steps, Threads, Value};
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

/// A change with the steps that make it on the recorded host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostChange {
    /// The change.
    pub change: String,
    /// Commands and other steps, for root; empty if no host can make the change.
    pub set: Vec<String>,
    /// Those that restore what is recorded or assumed.
    pub undo: Vec<String>,
    /// From when on the change acts; `null` if no host can make it.
    pub acts: Option<String>,
    /// Conditions and equivalents, or why no host can make the change; empty for none.
    pub note: String,
}

/// The changes of a plan, on a host that is configured as `former`.
pub(crate) fn changes(plan: &Plan, base: &Baseline, former: Config) -> Vec<HostChange> {
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

impl Host<'_> {
    fn change(&self, change: &Change) -> HostChange {
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
        let (acts, note) = match row.map(|knob| knob.host) {
            Some(HostSetting::Step(step)) => (Some(step.acts.to_string()), step.note.to_owned()),
            Some(HostSetting::SimulationOnly(reason)) => {
                (None, format!("simulation only: {reason}"))
            }
            None => (None, "simulation only".to_owned()),
        };
        let (set, undo): (Vec<_>, Vec<_>) = steps
            .into_iter()
            .map(|steps| (steps.set, steps.undo))
            .unzip();
        HostChange {
            change: name,
            set: set.concat(),
            undo: undo.concat(),
            acts,
            note,
        }
    }

    fn setting_steps(&self, setting: &Setting) -> Vec<Steps> {
        if setting.vms().is_some() {
            let vms = (0u32..).zip(&self.base.recorded.vms);
            let named = vms.filter(|(_, name)| setting.is_for(name));
            return named
                .flat_map(|(vm, name)| self.vm_steps(setting, vm, name))
                .collect();
        }
        let former = setting.knob().and_then(|knob| knob.get(&self.former));
        let threads = Threads { vm: "", tids: &[] };
        let steps = former.and_then(|former| setting.host_steps(&former, &threads));
        steps.into_iter().collect()
    }

    /// The steps for one VM: one for each former value of its threads.
    fn vm_steps(&self, setting: &Setting, vm: u32, name: &str) -> Vec<Steps> {
        let scripts = &self.former.scripts;
        let group = scripts.groups.get(vm as usize).and_then(Option::as_ref);
        let former: Vec<Group<Value>> = match answerable::part(setting) {
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
                let weight = group.map_or(DEFAULT_WEIGHT, |group| group.cpu_weight);
                vec![self.cgroup(Value::Number(weight.into()), vm)]
            }
            Some(Part::Limit) => {
                let limit = match group.and_then(|group| group.cpu_max_ns) {
                    Some((quota_ns, period_ns)) => format!("{quota_ns}ns {period_ns}ns"),
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
            setting.host_steps(&group.key, &Threads { vm: name, tids })
        });
        steps.collect()
    }

    fn pin_steps(&self, pin: &Pin) -> Vec<Steps> {
        let Some(HostSetting::Step(step)) = knobs::find("pinning").map(|knob| knob.host) else {
            debug_assert!(false, "the table has a step for pinning");
            return Vec::new();
        };
        let tasks = &self.base.recorded.recording.tasks;
        let mut groups = Vec::new();
        for (task, script) in tasks.iter().zip(&self.former.scripts.tasks) {
            if let Some(cpus) = pin.cpus(task) {
                add(
                    &mut groups,
                    [cpu_list(cpus), self.allowed(script)],
                    task.tid,
                );
            }
        }
        let steps = groups.iter().map(|group: &Group<[Value; 2]>| {
            let [cpus, former] = &group.key;
            let tids = &group.tids;
            step.fill(cpus, former, &Threads { vm: "", tids })
        });
        steps.collect()
    }

    /// The CPUs that a task may use before the change.
    fn allowed(&self, script: &ScriptConfig) -> Value {
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
