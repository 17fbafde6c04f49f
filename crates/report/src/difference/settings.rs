//! Settings of two hosts, or of one host before and after a change.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Setting;

/// Objects of a snapshot that hold settings alone.
const OBJECTS: [&str; 6] = [
    "kernel",
    "sched",
    "kvm",
    "clocksource",
    "mitigations",
    "memory",
];
/// Settings of the CPUs. The rest counts, or follows from the model.
const CPU: [&str; 7] = [
    "model",
    "microcode",
    "online",
    "isolated",
    "cpuset_isolated",
    "nohz_full",
    "smt_control",
];
/// Settings of a CPU.
const OF_CPU: [&str; 4] = ["governor", "frequency_driver", "min_khz", "max_khz"];
/// Settings of a control group.
const GROUP: [&str; 8] = [
    "weight",
    "idle",
    "shares",
    "quota_us",
    "period_us",
    "burst_us",
    "cpus",
    "partition",
];
/// Settings of a VM.
const VM: [&str; 2] = ["cpu_option", "cpu_pm"];
/// Settings of a vCPU's thread.
const THREAD: [&str; 5] = [
    "policy",
    "nice",
    "rt_priority",
    "affinity",
    "timer_advance_ns",
];

/// Settings by their key.
type Settings = BTreeMap<String, String>;

/// The settings of two snapshots (`stealtime snapshot --json`) that differ, by key. VMs are matched by
/// name and are left out where only one side has them; counters, times and ids are no settings.
#[must_use]
pub fn settings(first: &Value, second: &Value) -> Vec<Setting> {
    let shared: BTreeSet<&str> = names(first).intersection(&names(second)).copied().collect();
    let (olds, news) = (all(first, &shared), all(second, &shared));
    let keys: BTreeSet<&String> = olds.keys().chain(news.keys()).collect();
    let pairs = keys
        .into_iter()
        .map(|key| (key, olds.get(key), news.get(key)));
    pairs
        .filter(|(_, old, new)| old != new)
        .map(|(key, old, new)| Setting {
            key: key.clone(),
            before: old.cloned(),
            after: new.cloned(),
        })
        .collect()
}

fn items<'v>(value: &'v Value, key: &str) -> impl Iterator<Item = &'v Value> {
    value[key].as_array().into_iter().flatten()
}

fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value[key].as_str()
}

fn names(snapshot: &Value) -> BTreeSet<&str> {
    items(snapshot, "vms")
        .filter_map(|vm| text(vm, "name"))
        .collect()
}

fn all(snapshot: &Value, vms: &BTreeSet<&str>) -> Settings {
    let mut found = Settings::new();
    for key in OBJECTS {
        flatten(key, &snapshot[key], &mut found);
    }
    // The driver's list follows from the current one and the hardware.
    found.retain(|key, _| !key.starts_with("clocksource.available"));
    let cpu = &snapshot["cpu"];
    pick("cpu", cpu, &CPU, &mut found);
    flatten("cpu.idle.governor", &cpu["idle"]["governor"], &mut found);
    for state in items(&cpu["idle"], "states") {
        let name = text(state, "name").unwrap_or_default();
        let key = format!("cpu.idle.states.{name}.disabled_cpus");
        flatten(&key, &state["disabled_cpus"], &mut found);
    }
    for core in items(cpu, "cpus") {
        let number = core["cpu"].as_u64().unwrap_or_default();
        pick(&format!("cpu.cpus.{number}"), core, &OF_CPU, &mut found);
    }
    groups(snapshot, vms, &mut found);
    for vm in items(snapshot, "vms") {
        if let Some(name) = text(vm, "name").filter(|name| vms.contains(name)) {
            of_vm(&format!("vms.{name}"), vm, &mut found);
        }
    }
    found
}

/// Groups of VMs by the VM, as their paths may have ids of the boot; all others by path.
fn groups(snapshot: &Value, vms: &BTreeSet<&str>, found: &mut Settings) {
    let group_of = |vm| text(vm, "cgroup").filter(|path| *path != "/");
    let of_vms: Vec<(&str, &str)> = items(snapshot, "vms")
        .filter_map(|vm| Some((group_of(vm)?, text(vm, "name")?)))
        .collect();
    for group in items(snapshot, "cgroups") {
        let path = text(group, "path").unwrap_or_default();
        let is_inside = |of_vm: &str| {
            let rest = path.strip_prefix(of_vm);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let owner = of_vms.iter().find(|(of_vm, _)| is_inside(of_vm));
        let key = match owner {
            None => format!("cgroups.{path}"),
            Some((of_vm, name)) if vms.contains(name) => {
                format!(
                    "vms.{name}.cgroup{}",
                    path.strip_prefix(of_vm).unwrap_or_default()
                )
            }
            Some(_) => continue,
        };
        pick(&key, group, &GROUP, found);
        if group["quota_us"].is_null() {
            found.remove(&format!("{key}.period_us"));
        }
    }
    for (path, name) in of_vms.iter().filter(|(_, name)| vms.contains(name)) {
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        found.insert(format!("vms.{name}.cgroup.above"), format!("{above}/"));
    }
    // Values that a group has from its begin.
    let at_first = [
        (".idle", "false"),
        (".partition", "member"),
        (".burst_us", "0"),
    ];
    found.retain(|key, value| !at_first.contains(&(suffix(key), value.as_str())));
}

/// The last part of a key, with its dot.
fn suffix(key: &str) -> &str {
    key.rfind('.').map_or("", |dot| &key[dot..])
}

fn of_vm(key: &str, vm: &Value, found: &mut Settings) {
    pick(key, vm, &VM, found);
    let vcpus = items(vm, "threads").filter(|thread| text(thread, "kind") == Some("vcpu"));
    for thread in vcpus {
        if let Some(number) = thread["vcpu"].as_u64() {
            pick(&format!("{key}.vcpu.{number}"), thread, &THREAD, found);
        }
    }
}

fn pick(path: &str, value: &Value, keys: &[&str], found: &mut Settings) {
    for key in keys {
        flatten(&format!("{path}.{key}"), &value[*key], found);
    }
}

/// Adds the values below `path`; `null` and empty text are none.
fn flatten(path: &str, value: &Value, found: &mut Settings) {
    match value {
        Value::Null => {}
        Value::Object(object) => {
            for (key, value) in object {
                flatten(&format!("{path}.{key}"), value, found);
            }
        }
        Value::Array(items) if path == "sched.features" => {
            for feature in items.iter().filter_map(Value::as_str) {
                let (name, state) = match feature.strip_prefix("NO_") {
                    Some(name) => (name, "off"),
                    None => (feature, "on"),
                };
                found.insert(format!("{path}.{name}"), state.to_owned());
            }
        }
        Value::String(text) if text.is_empty() => {}
        Value::String(text) => {
            found.insert(path.to_owned(), text.clone());
        }
        _ => {
            found.insert(path.to_owned(), value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rows(before: &Value, after: &Value) -> Vec<String> {
        let found = settings(before, after);
        let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let row = |row: Setting| format!("{} {} {}", row.key, shown(row.before), shown(row.after));
        found.into_iter().map(row).collect()
    }

    #[test]
    fn parameters_and_features_are_compared_and_times_are_not() {
        let snapshot = |poll: &str, feature: &str, time: u64| {
            json!({
                "time": {"uptime_ns": time},
                "kvm": {"modules": {"kvm": {"halt_poll_ns": poll}}},
                "sched": {"features": [feature, "NO_HRTICK"]},
            })
        };
        let before = snapshot("200000", "PLACE_LAG", 1);
        let after = snapshot("0", "NO_PLACE_LAG", 2);
        assert_eq!(rows(&before, &before), [""; 0]);
        assert_eq!(
            rows(&before, &after),
            [
                "kvm.modules.kvm.halt_poll_ns 200000 0",
                "sched.features.PLACE_LAG on off",
            ]
        );
    }

    #[test]
    fn groups_and_threads_of_vms_are_matched_by_the_name_of_the_vm() {
        let snapshot = |group: &str, weight: u64, affinity: &str, usage: u64| {
            json!({
                "cgroups": [
                    {"path": "/vms", "weight": 100, "quota_us": null, "period_us": 100_000, "usage_us": usage},
                    {"path": group, "weight": weight, "idle": false, "usage_us": usage},
                ],
                "vms": [{"name": "web", "cgroup": group, "threads": [
                    {"kind": "vcpu", "vcpu": 0, "affinity": affinity, "nice": 0, "run_ns": usage},
                ]}],
            })
        };
        let before = snapshot("/vms/qemu-1-web", 100, "0-3", 1);
        let after = snapshot("/vms/qemu-7-web", 300, "2", 9);
        assert_eq!(
            rows(&before, &after),
            [
                "vms.web.cgroup.weight 100 300",
                "vms.web.vcpu.0.affinity 0-3 2"
            ]
        );
        let mut other = after.clone();
        other["vms"][0]["name"] = json!("db");
        assert_eq!(rows(&before, &other), [""; 0]);
    }
}
