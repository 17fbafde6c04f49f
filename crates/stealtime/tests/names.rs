//! Names of VMs: from a snapshot, from the user, and shown so that they do nothing but show.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::command::hackbench;
use crate::common::{run, stealtime};

/// Signs of grammars, of HTML and of a terminal.
const HOSTILE: &str = "a.b=\"<q>\"\n}\u{1b}[31m";
/// As names of knobs have it.
const QUOTED: &str = r#""a.b=\"<q>\"\n}\u001b[31m""#;

fn output(arguments: &[&str]) -> String {
    let (status, out, error) = run(&mut stealtime(arguments));
    assert_eq!(status, Some(0), "{arguments:?}: {error}");
    out
}

/// Whether a text does nothing to a terminal but show.
fn is_safe(text: &str) -> bool {
    text.chars().all(|c| c == '\n' || !c.is_control())
}

fn complaint(arguments: &[&str]) -> String {
    let (status, _, error) = run(&mut stealtime(arguments));
    assert_eq!(status, Some(2), "{arguments:?}: {error}");
    assert!(is_safe(&error), "{error:?}");
    error
}

/// The answers, and a snapshot of the same host in which its VMs have these names.
struct Host {
    recording: String,
    answers: Value,
    snapshot: Value,
    folder: tempfile::TempDir,
}

impl Host {
    fn new(names: &[&str]) -> Self {
        // Two VMs, on a kernel that the file names.
        let recording = hackbench().to_str().expect("UTF-8").to_owned();
        let answers = output(&["analyze", &recording, "--json"]);
        let answers: Value = serde_json::from_str(&answers).expect("JSON");
        let uname = answers["source"]["uname"].as_str().expect("a uname");
        let words: Vec<&str> = uname.split(' ').collect();
        let rows = answers["vcpus"].as_array().expect("rows");
        let vms = answers["vms"].as_array().expect("VMs");
        let vms = vms
            .iter()
            .zip(names)
            .enumerate()
            .map(|(index, (vm, name))| {
                let of_vm = rows.iter().filter(|row| row["vm"] == vm["vm"]);
                let group = format!("/machine.slice/machine-{index}.scope");
                let threads: Vec<Value> = of_vm
                    .map(|row| {
                        json!({"tid": row["tid"], "kind": "vcpu", "vcpu": row["vcpu"],
                        "cgroup": format!("{group}/libvirt/vcpu{}", row["vcpu"])})
                    })
                    .collect();
                json!({"name": name, "process": {"pid": 90_000 + index}, "cgroup": group,
                "threads": threads})
            });
        let snapshot = json!({
            "version": 1,
            "identity": {"hostname": words[1], "kernel_release": words[2]},
            "cpu": {"possible": "0-63"},
            "vms": vms.collect::<Vec<_>>(),
        });
        let host = Self {
            recording,
            answers,
            snapshot,
            folder: tempfile::tempdir().expect("a folder"),
        };
        host.write("host.json", &host.snapshot);
        host
    }

    fn path(&self, name: &str) -> String {
        let path: &Path = &self.folder.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    }

    fn write(&self, name: &str, snapshot: &Value) {
        fs::write(self.path(name), snapshot.to_string()).expect("a file");
    }

    /// The arguments of a verb for this recording with its snapshot.
    fn with(&self, verb: &str, arguments: &[&str]) -> String {
        let snapshot = self.path("host.json");
        let begin = [verb, self.recording.as_str(), "--snapshot", &snapshot];
        output(&[&begin, arguments].concat())
    }
}

#[test]
fn a_snapshot_names_the_vms_in_every_output() {
    let host = Host::new(&[HOSTILE, "web"]);
    let answers: Value = serde_json::from_str(&host.with("analyze", &["--json"])).expect("JSON");
    let names = answers["vms"].as_array().expect("VMs").iter();
    let names: Vec<_> = names.map(|vm| (&vm["vm"], &vm["grouped_by"])).collect();
    let grouped = json!("snapshot");
    assert_eq!(
        names[..2],
        [(&json!(HOSTILE), &grouped), (&json!("web"), &grouped)]
    );
    // Nothing but names and processes changes.
    assert_eq!(
        answers["exits"].as_array().map(Vec::len),
        host.answers["exits"].as_array().map(Vec::len)
    );

    let report = host.path("report.html");
    let table = host.with("analyze", &["--key", "all", "--report", &report]);
    assert!(table.contains("a.b=\"<q>\"\\n}\\u{1b}[31m"), "{table}");
    assert!(is_safe(&table));
    let html = fs::read_to_string(&report).expect("a file");
    assert!(is_safe(&html) && !html.contains("<q>"));
    let csv = host.with("analyze", &["--key", "time", "--format", "csv"]);
    assert!(is_safe(&csv));

    let perfetto = host.path("trace.pftrace");
    host.with(
        "export",
        &["--to", "perfetto", "-o", &perfetto, "--vm", "web"],
    );
    let perfetto = fs::read(&perfetto).expect("a file");
    assert!(perfetto.windows(3).any(|bytes| bytes == b"web"));
    let one = host.with("analyze", &["--json", "--vm", HOSTILE]);
    let one: Value = serde_json::from_str(&one).expect("JSON");
    assert_eq!(one["vms"].as_array().map(Vec::len), Some(1));
}

#[test]
fn knobs_and_pins_take_quoted_names() {
    let host = Host::new(&[HOSTILE, "web"]);
    let weight = format!("vm.{QUOTED}.cpu_weight=300");
    let pin = format!("{QUOTED}/0=1");
    let arguments = ["--set", &weight, "--pin", &pin, "--seeds", "2", "--json"];
    let document: Value = serde_json::from_str(&host.with("whatif", &arguments)).expect("JSON");
    let variant = document["variants"][0].to_string();
    assert!(variant.contains("cpu_weight"), "{variant}");
    let snapshot = host.path("host.json");
    let begin = ["whatif", &host.recording, "--snapshot", &snapshot, "--set"];
    let error = complaint(&[&begin[..], &["vm.\"wep\".nice=1"]].concat());
    assert!(error.contains("did you mean `web`"), "{error}");
}

#[test]
fn a_snapshot_of_another_host_is_refused() {
    let mut host = Host::new(&["db", "web"]);
    let snapshot = host.snapshot.clone();
    for (change, message) in [
        (
            json!({"kernel_release": "1.2.3"}),
            "the kernel is 1.2.3 in the snapshot",
        ),
        (
            json!({"architecture": "s390x"}),
            "the architecture is s390x",
        ),
    ] {
        host.snapshot["identity"] = change;
        host.write("other.json", &host.snapshot);
        let error = complaint(&[
            "analyze",
            &host.recording,
            "--snapshot",
            &host.path("other.json"),
        ]);
        assert!(
            error.contains("of another host") && error.contains(message),
            "{error}"
        );
    }
    host.snapshot = snapshot;
    host.snapshot["cpu"]["possible"] = json!("0");
    host.write("other.json", &host.snapshot);
    let error = complaint(&[
        "analyze",
        &host.recording,
        "--snapshot",
        &host.path("other.json"),
    ]);
    assert!(
        error.contains("the number of CPUs is 1 in the snapshot"),
        "{error}"
    );
    // Thread ids of another boot name nothing, and the output says so.
    host.snapshot["cpu"]["possible"] = json!("0-63");
    for vm in host.snapshot["vms"].as_array_mut().expect("VMs") {
        for (tid, thread) in (70_000..).zip(vm["threads"].as_array_mut().expect("threads")) {
            thread["tid"] = json!(tid);
        }
    }
    host.write("host.json", &host.snapshot);
    let table = host.with("analyze", &["--key", "vms"]);
    assert!(
        table.contains("vCPU threads is in the snapshot of"),
        "{table}"
    );
}

#[test]
fn the_user_names_processes_and_cgroups() {
    let host = Host::new(&["db", "web"]);
    let json = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
    let scope = "first=cgroup:/sys/fs/cgroup/machine.slice/machine-0.scope";
    let named = json(host.with("analyze", &["--json", "--vm-of", scope]));
    assert_eq!(named["vms"][0]["vm"], "first");
    assert_eq!(named["vms"][0]["vcpus"], host.answers["vms"][0]["vcpus"]);
    let named = json(host.with("analyze", &["--json", "--vm-of", "mine=pid:90001"]));
    assert_eq!(named["vms"][1]["vm"], "mine");
    let begin = ["analyze", &host.recording, "--vm-of"];
    let error = complaint(&[&begin[..], &[scope]].concat());
    assert!(
        error.contains("neither the recording nor --snapshot"),
        "{error}"
    );
    let error = complaint(&[&begin[..], &["a=pid:x"]].concat());
    assert!(error.contains("\"x\" is not a process id"), "{error}");
}
