//! Replays of simulated hosts with their snapshots: the truth is known.

use std::fs;

use serde_json::Value;

use crate::common::{run, stealtime};

/// Three VMs on four CPUs, with weights, a limit, pins and cgroups of vCPUs, and another scheduler and
/// KVM than the defaults.
const SCENARIO: &str = r#"
about = "a host with settings of its own"

[host]
profile = "skylake-sp"
cpus = 4

[knobs]
kvm.halt_poll_ns = "50us"

[[vm]]
name = "db-eu"
vcpus = 2
cpu_weight = 400
workload = { name = "ticks", period_ns = "4ms", work_ns = "3ms" }

[[vm]]
name = "web"
vcpus = 2
cpu_max = "60ms 100ms"
pinning = "0-2"
workload = { name = "ticks", period_ns = "2ms", work_ns = "1ms" }

[[vm]]
name = "batch"
vcpus = 3
cpu_weight = 50
workload = "busy"

[variants.as-libvirt]

[variants.flat-vms]
vm.web.vcpu_cgroups = false
vm.batch.vcpu_cgroups = false
vm.db-eu.vcpu_cgroups = false
sched.preempt = "full"
sched.base_slice_ns = "5ms"
host.hz = 1000

[variants.pinned]
vm.batch.pinning = "1:1 1-3"
vm.web.cpu_max = "max"
sched.features = "NO_WAKEUP_PREEMPTION"

[run]
duration = "2s"
warmup = "100ms"
seeds = 1
"#;

/// Bounds of the self-test, in percent.
const BOUNDS: [(&str, f64); 3] = [
    ("median_percent", 3.0),
    ("p90_percent", 8.0),
    ("exits_worst_percent", 5.0),
];

fn output(arguments: &[&str]) -> String {
    let (status, out, error) = run(&mut stealtime(arguments));
    assert_eq!(status, Some(0), "{arguments:?}: {error}");
    out
}

/// The value and the source of a fact.
fn fact<'d>(document: &'d Value, name: &str) -> (&'d str, &'d str) {
    let facts = document["facts"].as_array().expect("facts");
    let mut rows = facts.iter().filter(|row| row["fact"] == name);
    let row = rows.next().unwrap_or_else(|| panic!("{name}: {facts:?}"));
    assert_eq!(rows.next(), None, "{name} is there once");
    let text = |key: &str| row[key].as_str().expect("a text");
    (text("value"), text("source"))
}

#[test]
fn the_facts_of_a_simulated_host_are_those_it_had_and_need_no_fit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let scenario = path("host.toml");
    fs::write(&scenario, SCENARIO).expect("a file");
    let cases: [(&str, &[(&str, &str)]); 3] = [
        (
            "as-libvirt",
            &[
                ("cgroups", "each VM in a cgroup, and in it each vCPU"),
                ("weights", "weights: db-eu 400, batch 50"),
                ("preemption", "lazy preemption"),
                ("kvm.halt_poll_ns", "50us"),
                ("affinity", "of 9 threads"),
            ],
        ),
        (
            "flat-vms",
            &[
                ("cgroups", "each VM in a cgroup"),
                ("preemption", "full preemption"),
                ("sched.base_slice_ns", "5ms"),
                ("host.hz", "1000"),
            ],
        ),
        (
            "pinned",
            &[
                ("wakeup_preemption", "wakeups do not preempt"),
                ("weights", "weights: db-eu 400, batch 50"),
            ],
        ),
    ];
    for (variant, facts) in cases {
        let trace = path(variant);
        let _ = output(&["simulate", &scenario, "--trace", &trace, "--of", variant]);
        let document = output(&["whatif", &trace, "--json"]);
        let document: Value = serde_json::from_str(&document).expect("JSON");
        for (name, value) in facts {
            assert_eq!(
                fact(&document, name),
                (*value, "snapshot"),
                "{variant}: {name}"
            );
        }
        let vms = document["vcpus"].as_array().expect("vCPUs").iter();
        let mut vms: Vec<&str> = vms.filter_map(|row| row["vm"].as_str()).collect();
        vms.dedup();
        assert_eq!(vms, ["db-eu", "web", "batch"]);
        for (key, bound) in BOUNDS {
            let error = document["error"][key].as_f64();
            let is_within = error.is_none_or(|error| error <= bound);
            assert!(is_within, "{variant}: {key} {error:?}: {document:#}");
        }
        let assumed = document["assumed"].to_string();
        assert!(assumed.contains("as the host's snapshot says"), "{assumed}");
    }
}

/// Recordings of nested hosts with cgroups, weights, quotas and pins.
#[test]
fn recordings_with_snapshots_are_within_the_bounds() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/live");
    let rows = output(&["whatif", "--self-test", folder, "--json"]);
    let rows: Value = serde_json::from_str(&rows).expect("JSON");
    let rows = rows.as_array().expect("rows");
    assert_eq!(rows.len(), 5);
    for row in rows {
        for (key, bound) in BOUNDS {
            let error = row["error"][key].as_f64();
            let is_within = error.is_some_and(|error| error <= bound);
            assert!(is_within, "{key} {error:?}: {row:#}");
        }
    }
}

/// The line about cgroups of several VMs, and lines about settings that no replay has.
fn shared_lines(document: &Value) -> String {
    let assumed = document["assumed"].as_array().expect("lines").iter();
    let lines = assumed.filter_map(Value::as_str);
    let lines = lines.filter(|line| line.starts_with("VMs share") || line.contains("several VMs"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Weights and limits of cgroups that hold two VMs: as recorded, and with a limit that two VMs share.
#[test]
fn settings_of_shared_cgroups_are_replayed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/live");
    let recording = |name: &str| format!("{folder}/{name}/trace.dat.zst");
    let document = |arguments: &[&str]| -> Value {
        let arguments = [&["whatif"], arguments, &["--json"]].concat();
        serde_json::from_str(&output(&arguments)).expect("JSON")
    };
    let (nested, quotas) = (recording("nested"), recording("quotas"));
    let snapshot = output(&["snapshot", &nested, "--json"]);
    let mut snapshot: Value = serde_json::from_str(&snapshot).expect("JSON");
    for group in snapshot["cgroups"].as_array_mut().expect("groups") {
        let quota = match group["path"].as_str() {
            Some("/prod") => Value::from(150_000),
            Some("/prod/db") => Value::Null,
            _ => continue,
        };
        group["quota_us"] = quota;
        group["period_us"] = Value::from(100_000);
    }
    let temporary = tempfile::tempdir().expect("a folder");
    let limited = temporary.path().join("host.json");
    fs::write(&limited, snapshot.to_string()).expect("a file");
    let limited = limited.to_str().expect("UTF-8");
    let shown = [
        ("weights of parents", document(&[&nested])),
        (
            "a limit of two VMs",
            document(&[&nested, "--snapshot", limited]),
        ),
        ("limits within a limit", document(&[&quotas])),
    ];
    let shown = shown.map(|(name, document)| format!("{name}\n{}\n", shared_lines(&document)));
    insta::assert_snapshot!("shared_cgroups", shown.join("\n"));
    // The facts have the same words.
    let value = document(&[&nested, "--snapshot", limited]);
    let (value, source) = fact(&value, "shared_cgroups");
    assert_eq!(source, "snapshot");
    assert!(shown[1].contains(value), "{value}");
}
