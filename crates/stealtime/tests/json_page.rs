//! docs/json-commands.md and docs/json.md against what the commands print.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{self, FAULTY_VM};

const COMMANDS: &str = include_str!("../../../docs/json-commands.md");
const ANALYZE: &str = include_str!("../../../docs/json.md");
const DOCTOR: &str = include_str!("../../../docs/doctor.md");
const SNAPSHOT: &str = include_str!("../../../docs/snapshot.md");
/// Objects that tables name, by the heading of their section.
const SHARED: &str = "Shared objects";
/// A row that stands for all keys of a shared object.
const REST: &str = "…";
/// The type of a case without fields.
const CASE: &str = "case";
/// Beginnings of rows that are printed only where `/dev/kvm` is usable.
const NEEDS_KVM: [&str; 5] = [
    "`stealtime clock doctor`",
    "`stealtime clock save`",
    "`stealtime clock restore`",
    "Shared objects spread",
    "Shared objects cost",
];
/// Beginnings of rows that the recordings of the test need not have.
const RARE: [&str; 19] = [
    "`stealtime fit` lacks[]",
    "`stealtime fit` curves[].points[]",
    "`stealtime fit` curves[].failure.check",
    "`stealtime fit` removals.steps[]",
    "`stealtime fit` removals.end",
    "`stealtime fit` removals.suffering.takers[]",
    "`stealtime fit --rebalance`  knee",
    "`stealtime fit --rebalance`  before",
    "`stealtime fit --rebalance`  after",
    "`stealtime fit --rebalance` recordings[].lacks[]",
    "`stealtime fit --rebalance` moves[]",
    "`stealtime fit --rebalance` hosts[].after",
    "`stealtime fit --rebalance` hosts[].before",
    "`stealtime fit --rebalance` before",
    "`stealtime fit --rebalance` after",
    "`stealtime fit --self-test` [].steps[].rows[].work_ms",
    "`stealtime reproduce` results[].left_out[]",
    "`stealtime whatif` vcpus[] to_ns",
    "`stealtime whatif` auto.tried[].on_host[].managers[]",
];

/// A loaded scheduler, for the tree of a host.
const COUNTERS: &str = r#"== sys/kernel/sched_ext/root/ops
stealtime
== run/stealtime/sched.json
{"version":1,"pid":7,"all_tasks":true,"yields":"receiver","counts":{"loans":3},"yield_to_run_us":[0,3],
"groups":[{"cgroup_id":9,"weight":300,"runtime_ns":7}],"vcpus":2,"group_paths":["/vms"]}
"#;

/// A row of a table.
#[derive(Clone, Debug)]
struct Row {
    kind: String,
    is_optional: bool,
}

/// The rows of an object, by key.
type Rows = BTreeMap<String, Row>;

/// A page: the objects of each section, by their path.
struct Page {
    sections: BTreeMap<String, BTreeMap<String, Rows>>,
    /// Rows that are printed: section, path and key.
    printed: RefCell<BTreeSet<String>>,
}

impl Page {
    /// Reads `section` and `object` headings, and the rows below them.
    fn new(text: &str, section_mark: &str, object_mark: &str) -> Self {
        let mut sections: BTreeMap<String, BTreeMap<String, Rows>> = BTreeMap::new();
        let (mut section, mut object) = (String::new(), String::new());
        for line in text.lines() {
            if let Some(heading) = line.strip_prefix(object_mark) {
                object = heading.trim_matches('`').replace("(root)", "");
            } else if let Some(heading) = line.strip_prefix(section_mark) {
                heading.clone_into(&mut section);
            } else if let Some(row) = line.strip_prefix("| `") {
                let cells: Vec<&str> = row.split('|').map(str::trim).collect();
                let [key, kind, _, about, ..] = cells[..] else {
                    panic!("a row without type, unit and meaning: {line}");
                };
                assert!(!about.is_empty(), "a row without a meaning: {line}");
                let required = kind.strip_prefix("optional ");
                let row = Row {
                    kind: required.unwrap_or(kind).to_owned(),
                    is_optional: required.is_some(),
                };
                let objects = sections.entry(section.clone()).or_default();
                let rows = objects.entry(object.clone()).or_default();
                let key = key.trim_end_matches('`');
                let twice = rows.insert(key.to_owned(), row);
                assert!(twice.is_none(), "{section} {object} {key} has two rows");
            }
        }
        Self {
            sections,
            printed: RefCell::default(),
        }
    }

    /// Documents further objects by the table of one.
    fn share(&mut self, section: &str, path: &str, others: &[&str]) {
        let objects = self.sections.get_mut(section).expect("a section");
        let rows = objects[path].clone();
        for other in others {
            objects.insert((*other).to_owned(), rows.clone());
        }
    }

    /// Checks a printed object against its table.
    fn object(&self, section: &str, path: &str, value: &Value) {
        let place = format!("{section} {path}");
        let object = value.as_object();
        let object = object.unwrap_or_else(|| panic!("{place}: no object: {value}"));
        let rows = self.sections[section].get(path);
        let rows = rows.unwrap_or_else(|| panic!("no table of {place}: {value}"));
        let rest = rows.get(REST).map(|rest| {
            let name = rest.kind.trim_start_matches("keys of ").trim_matches('`');
            let keys = &self.sections[SHARED][name];
            let part = object.iter().filter(|(key, _)| keys.contains_key(*key));
            let part = part.map(|(key, value)| (key.clone(), value.clone()));
            self.print(section, path, REST);
            self.object(SHARED, name, &Value::Object(part.collect()));
            keys
        });
        for (key, row) in rows.iter().filter(|(key, _)| *key != REST) {
            let is_there = row.is_optional || object.contains_key(key);
            assert!(is_there, "{place}: no {key}, and it is not optional");
        }
        for (key, value) in object {
            if rest.is_some_and(|keys| keys.contains_key(key)) {
                continue;
            }
            let row = rows.get(key);
            let row = row.unwrap_or_else(|| panic!("no row of {place} {key}: {value}"));
            self.print(section, path, key);
            let dot = if path.is_empty() { "" } else { "." };
            self.value(section, &format!("{path}{dot}{key}"), &row.kind, value);
        }
    }

    /// Checks a printed value against its type: `array of objects or null`.
    fn value(&self, section: &str, path: &str, kind: &str, value: &Value) {
        let fits = match kind {
            "text" | CASE => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "object" => {
                self.object(section, path, value);
                true
            }
            _ if kind.starts_with("array of ") => {
                let items = value.as_array();
                let items = items.unwrap_or_else(|| panic!("{section} {path}: no array: {value}"));
                let item = singular(&kind["array of ".len()..]);
                for value in items {
                    self.value(section, &format!("{path}[]"), &item, value);
                }
                true
            }
            _ if kind.starts_with("object of ") => {
                let object = value.as_object();
                let object =
                    object.unwrap_or_else(|| panic!("{section} {path}: no object: {value}"));
                let item = singular(&kind["object of ".len()..]);
                for value in object.values() {
                    self.value(section, path, &item, value);
                }
                true
            }
            _ => match kind.strip_suffix(" or null") {
                Some(_) if value.is_null() => true,
                Some(kind) => {
                    self.value(section, path, kind, value);
                    true
                }
                None => {
                    self.shared(kind.trim_matches('`'), value);
                    true
                }
            },
        };
        assert!(fits, "{section} {path}: no {kind}: {value}");
    }

    /// Checks a printed value against a shared table: an object, or one of several cases.
    fn shared(&self, name: &str, value: &Value) {
        let rows = self.sections[SHARED].get(name);
        let rows = rows.unwrap_or_else(|| panic!("no table of {name}: {value}"));
        let is_case = |(key, row): (&String, &Row)| row.kind == CASE || key.contains('.');
        if !rows.iter().any(is_case) {
            return self.object(SHARED, name, value);
        }
        let mut fields = BTreeMap::new();
        let case = if let Some(case) = value.as_str() {
            fields.insert(case.to_owned(), value);
            case
        } else {
            let object = value.as_object().and_then(|object| object.iter().next());
            let (case, inner) = object.unwrap_or_else(|| panic!("{name}: no case: {value}"));
            let inner = inner.as_object().expect("the fields of a case");
            fields.extend(
                inner
                    .iter()
                    .map(|(key, value)| (format!("{case}.{key}"), value)),
            );
            case
        };
        let of_case = |key: &&String| key.split('.').next() == Some(case);
        let documented: Vec<&String> = rows.keys().filter(of_case).collect();
        let printed: Vec<&String> = fields.keys().collect();
        assert_eq!(
            documented, printed,
            "{name}: the rows of {case}, and what is printed"
        );
        for (key, value) in fields {
            self.print(SHARED, name, &key);
            self.value(SHARED, &format!("{name}.{key}"), &rows[&key].kind, value);
        }
    }

    fn print(&self, section: &str, path: &str, key: &str) {
        let mut printed = self.printed.borrow_mut();
        printed.insert(format!("{section} {path} {key}"));
    }

    /// Rows that no command has printed.
    fn missing(&self) -> Vec<String> {
        let printed = self.printed.borrow();
        let rows = self.sections.iter().flat_map(|(section, objects)| {
            let keys = objects
                .iter()
                .flat_map(|(path, rows)| rows.keys().map(move |key| format!("{path} {key}")));
            keys.map(move |key| format!("{section} {key}"))
        });
        let is_rare = |row: &String| RARE.iter().any(|begin| row.starts_with(begin));
        rows.filter(|row| !printed.contains(row) && !is_rare(row))
            .collect()
    }
}

/// `texts or null` as the type of one item.
fn singular(kind: &str) -> String {
    if let Some(items) = kind.strip_prefix("objects of ") {
        return format!("object of {items}");
    }
    let (items, null) = kind.split_once(" or ").unwrap_or((kind, ""));
    let item = items.trim_end_matches('s');
    let item = if items.starts_with('`') { items } else { item };
    match null {
        "" => item.to_owned(),
        _ => format!("{item} or {null}"),
    }
}

/// A recording of the tree.
fn recording(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/traces");
    folder.join(name).to_str().expect("UTF-8").to_owned()
}

const SCENARIO: &str = "about = \"a small one\"\n[host]\nprofile = \"skylake-sp\"\ncpus = 2\n\
    [[vm]]\nname = \"web\"\nvcpus = 2\nworkload = { name = \"ticks\", period_ns = \"100us\" }\n\
    [variants.plain]\n[variants.paced]\nsched.lag_credit.rate_limit = \"adaptive\"\n\
    [run]\nduration = \"2ms\"\nwarmup = \"1ms\"\nseeds = 2\n";

/// What a command prints in a folder with the scenarios.
fn printed(folder: &Path, arguments: &[&str]) -> String {
    let (_, out, error) = common::run(common::stealtime(arguments).current_dir(folder));
    assert!(!out.is_empty(), "{arguments:?}: {error}");
    out
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// A folder with a scenario that runs and one that does not.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: String| fs::write(folder.path().join(name), text);
    write("small.toml", SCENARIO.to_owned()).expect("a file");
    write("faulty.toml", format!("{SCENARIO}{FAULTY_VM}")).expect("a file");
    folder
}

fn whatif(page: &Page, folder: &Path) {
    let section = "`stealtime whatif`";
    let cfs = recording("svm-cfs/trace.dat");
    // A vCPU that never runs, and a VM that begins within the recording.
    let idle = recording("svm-perf-kvm-stat-hackbench-tlb-burst/perf.data.zst");
    let late = recording("pvmhost-ticketlock-idle-text/trace.txt.zst");
    let seen: &[&str] = &["--set", "host.hz=1000", "--seen", &cfs, "--again", &cfs];
    let export: &[&str] = &["--set", "host.hz=1000", "--export", "a.pftrace"];
    let counts: &[&str] = &[
        "--set",
        "vm.vm0.count=0",
        "--set",
        "vm.vm1.count=2",
        "--set",
        "host.cpus=1",
    ];
    for (recording, options) in [
        (&cfs, &["--auto"][..]),
        (&cfs, seen),
        (&cfs, export),
        (&cfs, counts),
        (&idle, &["--auto"]),
        (&late, &[]),
    ] {
        let arguments = [&["whatif", recording, "--json", "--seeds", "2"], options];
        let out = printed(folder, &arguments.concat());
        page.object(section, "", &json(&out));
    }
    let traces = folder.join("traces");
    fs::create_dir(&traces).expect("a folder");
    fs::copy(&cfs, traces.join("trace.dat")).expect("a copy");
    let out = printed(folder, &["whatif", "--self-test", "traces", "--json"]);
    let rows = json(&out);
    for row in rows.as_array().expect("an array") {
        page.object("`stealtime whatif --self-test`", "[]", row);
    }
}

fn fit(page: &mut Page, folder: &Path) {
    let section = "`stealtime fit`";
    page.share(section, "recorded", &["curves[].points[]", "removals.end"]);
    let vms = ["curves[].points[].vms[]", "removals.end.vms[]"];
    page.share(section, "recorded.vms[]", &vms);
    let checks = [
        "curves[].points[].checks[]",
        "removals.end.checks[]",
        "curves[].failure.check",
    ];
    page.share(section, "recorded.checks[]", &checks);
    page.share(
        section,
        "curves[].failure.takers[]",
        &["removals.suffering.takers[]"],
    );
    page.share(section, "removals.ranked[]", &["removals.steps[]"]);
    page.share(
        section,
        "removals.ranked[].vms[]",
        &["removals.steps[].vms[]"],
    );
    let cfs = recording("svm-cfs/trace.dat");
    let snapshot = common::host_of_cfs(folder);
    for options in [
        &[
            "--add",
            "vm1",
            "--limit",
            "vm0.ready<60%",
            "--limit",
            "overhead<99%",
            "--snapshot",
            &snapshot,
        ][..],
        &["--move", "--set", "host.hz=1000"],
        &["--add", "vm1"],
    ] {
        let arguments = [&["fit", &cfs, "--json", "--seeds", "2"], options];
        let out = printed(folder, &arguments.concat());
        page.object(section, "", &json(&out));
    }
    moves(page, folder);
    let section = "`stealtime fit --self-test`";
    page.share(
        section,
        "[].steps[].rows[].ready_percent",
        &["[].steps[].rows[].work_ms"],
    );
    for step in ["step1", "step2", "step3"] {
        let place = folder.join("series").join(step);
        fs::create_dir_all(&place).expect("a folder");
        fs::copy(&cfs, place.join("trace.dat")).expect("a copy");
    }
    // It is not replayable, which is said.
    let broken = folder.join("series/step3/trace.dat");
    let bytes = fs::read(&broken).expect("a copy");
    fs::write(&broken, &bytes[..bytes.len() / 8]).expect("a part");
    let out = printed(
        folder,
        &["fit", "--self-test", "series", "--json", "--seeds", "2"],
    );
    for row in json(&out).as_array().expect("an array") {
        page.object(section, "[]", row);
    }
}

fn moves(page: &mut Page, folder: &Path) {
    let section = "`stealtime fit --rebalance`";
    let hosts = [
        "hosts[].after",
        "moves[].source_after",
        "moves[].destination_after",
    ];
    page.share(section, "hosts[].before", &hosts);
    let vms = hosts.map(|host| format!("{host}.vms[]"));
    page.share(
        section,
        "hosts[].before.vms[]",
        &vms.each_ref().map(String::as_str),
    );
    let checks = hosts.map(|host| format!("{host}.checks[]"));
    let checks = checks.each_ref().map(String::as_str);
    page.share(section, "before.check", &checks);
    page.share(
        section,
        "before.check",
        &["hosts[].before.checks[]", "after.check"],
    );
    page.share(section, "before", &["after"]);
    page.share(section, "before.takers[]", &["after.takers[]"]);
    let hosts = [
        recording("svm-cfs/trace.dat"),
        recording("svm-hackbench-cyclictest-hog/trace.dat.zst"),
    ];
    let [first, second] = &hosts;
    let arguments = [
        "fit",
        first,
        second,
        "--rebalance",
        "--json",
        "--seeds",
        "2",
    ];
    let out = printed(
        folder,
        &[&arguments[..], &["--limit", "vm0.ready<60%"]].concat(),
    );
    page.object(section, "", &json(&out));
}

fn difference(page: &Page, folder: &Path) {
    let live = |name: &str| recording(&format!("../live/{name}/trace.dat.zst"));
    let out = printed(folder, &["diff", &live("plain"), &live("quotas"), "--json"]);
    page.object("`stealtime diff`", "", &json(&out));
}

fn simulator(page: &Page, folder: &Path) {
    let simulate = "`stealtime simulate`";
    for arguments in [
        &["small.toml", "--stats", "--set", "kvm.ple_gap=3"][..],
        &["faulty.toml"],
    ] {
        let arguments = [&["simulate", "--json"], arguments].concat();
        page.object(simulate, "", &json(&printed(folder, &arguments)));
    }
    for scenario in ["small.toml", "faulty.toml"] {
        let vary = ["--vary", "kvm.halt_poll_ns=0,100us"];
        let arguments = [&["sweep", "--json", scenario], &vary[..]].concat();
        let out = printed(folder, &arguments);
        page.object("`stealtime sweep`", "", &json(&out));
    }
}

/// Tables of many recordings, published results, and the reference.
fn others(page: &Page, folder: &Path) {
    let cfs = recording("svm-cfs/trace.dat");
    let out = printed(
        folder,
        &["analyze", &cfs, "--out", "fleet", "--key", "time", "--json"],
    );
    page.object("`stealtime analyze --out`", "", &json(&out));
    let results = ["counter-offsets", "notification-suppression"];
    let arguments = [&["reproduce", "--quick", "--json"], &results[..]].concat();
    let out = printed(folder, &arguments);
    page.object("`stealtime reproduce`", "", &json(&out));
    let scenarios = recording("../../../scenarios/published");
    let out = printed(
        folder,
        &[
            "calibrate",
            "counter-offsets",
            "--dry-run",
            "--json",
            "--scenarios",
            &scenarios,
        ],
    );
    page.object("`stealtime calibrate`", "", &json(&out));
    for (section, options) in [
        ("`stealtime knobs`", &[][..]),
        ("`stealtime knobs --workloads`", &["--workloads"]),
    ] {
        let out = printed(folder, &[&["knobs", "--json"], options].concat());
        for row in json(&out).as_array().expect("an array") {
            page.object(section, "[]", row);
        }
    }
}

fn check(page: &Page, folder: &Path) {
    let faulty = ["pi-notify", "--variant", "as-posted-v1"];
    let agents = ["--agents", "plain-apicv", "--keep-in", "."];
    let arguments = [&["check", "--json"], &faulty[..], &agents].concat();
    let out = printed(folder, &arguments);
    let mut replay = None;
    for line in out.lines() {
        let line = json(line);
        page.object("`stealtime check`", "", &line);
        let file = line["violations"][0]["replay"].as_str();
        replay = replay.or(file.map(str::to_owned));
    }
    let replay = replay.expect("a file of the violation");
    let out = printed(folder, &["check", "--json", "--replay", &replay]);
    page.object("`stealtime check --replay`", "", &json(&out));
    for line in printed(folder, &["check", "--json", "--list"]).lines() {
        page.object("`stealtime check --list`", "", &json(line));
    }
}

/// What `stealtime clock` prints without a device, and each case that no file of the test has.
fn clock(page: &Page, folder: &Path) {
    let manifest = env!("CARGO_MANIFEST_DIR");
    let stream = format!("{manifest}/../guest-clock/tests/data/qemu-11.1.3-kvm-devices.bin.zst");
    let stream = zstd::decode_all(fs::File::open(stream).expect("a file")).expect("a stream");
    fs::write(folder.join("migration.bin"), stream).expect("written");
    let text = include_str!("../../../docs/clock-snapshots.md");
    let facts = text.split_once("```json\n").expect("facts").1;
    let facts = facts.split_once("```").expect("an end").0;
    fs::write(folder.join("host.json"), facts).expect("written");
    let state = format!("{manifest}/../../fuzz/corpus/fuzz_clock_state/x86-json");
    let arm64 = format!("{manifest}/../../fuzz/corpus/fuzz_clock_state/arm64-json");
    let run = |section: &str, arguments: &[&str]| {
        let out = printed(folder, &[&["clock"], arguments, &["--json"]].concat());
        page.object(section, "", &json(&out));
    };
    for file in ["migration.bin", &state, &arm64] {
        run("`stealtime clock inspect`", &["inspect", file]);
    }
    for file in [&state, &arm64] {
        let arguments = ["rehearse", file, "--host", "host.json"];
        run("`stealtime clock rehearse`", &arguments);
    }
    let arguments = "drill --device fake --times 3 --load 0".split(' ');
    let arguments: Vec<&str> = arguments.collect();
    run("`stealtime clock drill`", &arguments);
    let out = printed(folder, &["clock", "show", "--list", "--json"]);
    for row in json(&out).as_array().expect("an array") {
        page.object("`stealtime clock show --list`", "[]", row);
        let name = row["names"][0].as_str().expect("a name");
        run("`stealtime clock show`", &["show", name]);
    }
    for (name, value) in cases() {
        page.shared(name, &value);
    }
}

/// Every reason of a restore, and what no snapshot of the test lacks.
fn cases() -> Vec<(&'static str, Value)> {
    use guest_clock::snapshot::Missing;
    use guest_clock::{OffsetsOutcome, Reason};

    let (bound_ns, vcpus, guest_khz, host_khz) = (1, 1, 1, 1);
    let reasons = [
        Reason::NoInstant {
            at_save: true,
            bound_ns,
        },
        Reason::NoOffsets,
        Reason::ByValue { bound_ns },
        Reason::TscFixed { off_ns: 1 },
        Reason::NoRealtimeFlag { bound_ns },
        Reason::WallClockBehind { by_ns: 1 },
        Reason::WallClocksDiffered { ahead_ns: -1 },
        Reason::Capped {
            elapsed_ns: 1,
            max_ns: 1,
        },
        Reason::Scaled {
            guest_khz,
            host_khz,
            ratio: 1,
        },
        Reason::PageDrift { age_ns: 1 },
        Reason::WithinTolerance {
            guest_khz,
            host_khz,
            drift_ppb: 1,
        },
        Reason::RanWithinTolerance {
            guest_khz,
            host_khz,
            off_ns: 1,
        },
        Reason::OffsetsDiffered {
            vcpu: 1,
            cycles: -1,
            outcome: OffsetsOutcome::Kept,
        },
        Reason::MasterClockOff { flags: 0 },
        Reason::NotToldOfPause { vcpus },
        Reason::DeadlinesNotArmed { vcpus },
        Reason::AdjustsNotTaken { vcpus },
    ];
    let absent = [
        Missing::Clock,
        Missing::GuestFrequency,
        Missing::Tsc { vcpu: 1 },
    ];
    let reasons = reasons.map(|reason| ("reason", serde_json::to_value(reason).expect("JSON")));
    let absent = absent.map(|absent| ("missing", serde_json::to_value(absent).expect("JSON")));
    reasons.into_iter().chain(absent).collect()
}

/// What `stealtime clock` prints of `/dev/kvm`, and whether that is usable.
fn clock_on_kvm(page: &Page, folder: &Path) -> bool {
    let save = ["clock", "save", "state.json", "--json"];
    let (status, out, error) = common::run(common::stealtime(&save).current_dir(folder));
    if status == Some(2) {
        println!("skipped: {error}");
        return false;
    }
    page.object("`stealtime clock save`", "", &json(&out));
    let restore = ["clock", "restore", "state.json", "--json"];
    page.object(
        "`stealtime clock restore`",
        "",
        &json(&printed(folder, &restore)),
    );
    for options in [&[][..], &["--no-bench"]] {
        let arguments = [&["clock", "doctor", "--json"], options].concat();
        let out = printed(folder, &arguments);
        page.object("`stealtime clock doctor`", "", &json(&out));
    }
    let facts = json(&printed(folder, &["clock", "facts"]));
    page.object(SHARED, "facts", &facts);
    true
}

#[test]
fn every_key_that_is_printed_has_a_row_and_the_reverse() {
    let mut page = Page::new(COMMANDS, "## ", "### ");
    let folder = folder();
    fit(&mut page, folder.path());
    difference(&page, folder.path());
    whatif(&page, folder.path());
    simulator(&page, folder.path());
    others(&page, folder.path());
    check(&page, folder.path());
    clock(&page, folder.path());
    let is_kvm_usable = clock_on_kvm(&page, folder.path());
    let mut missing = page.missing();
    let needs_kvm = |row: &String| NEEDS_KVM.iter().any(|begin| row.starts_with(begin));
    missing.retain(|row| is_kvm_usable || !needs_kvm(row));
    assert!(
        missing.is_empty(),
        "docs/json-commands.md, not printed: {missing:#?}"
    );
}

/// The page's other direction, each row is printed: `crates/report/tests/forms.rs`.
#[test]
fn every_key_of_analyze_has_a_row_with_its_type() {
    let section = "The JSON of `stealtime analyze --json`";
    let mut page = Page::new(ANALYZE, "# ", "## ");
    let tables = ["exit_totals[]", "msr[]", "ioport[]", "mmio[]"];
    page.share(section, "exits[]", &tables);
    let folder = folder();
    for name in [
        "svm-cfs/trace.dat",
        "pvmhost-ticketlock-idle-text/trace.txt.zst",
        "svm-perf-kvm-stat-hackbench-tlb-burst/perf.data.zst",
    ] {
        let out = printed(folder.path(), &["analyze", "--json", &recording(name)]);
        page.object(section, "", &json(&out));
    }
}

#[test]
fn every_key_of_a_snapshot_has_a_row_with_its_type() {
    let section = "Tables";
    let mut page = Page::new(SNAPSHOT, "## ", "### ");
    page.sections.retain(|name, _| name == section);
    page.share(section, "cpu_time", &["cpu.cpus[].time"]);
    let folder = folder();
    for name in ["libvirt", "kubernetes", "firecracker-v1", "plain"] {
        let tree = common::host_tree(folder.path(), name);
        if name == "plain" {
            let text = fs::read_to_string(&tree).expect("a tree") + COUNTERS;
            fs::write(&tree, text).expect("written");
        }
        let out = printed(folder.path(), &["snapshot", "--root", &tree, "--json"]);
        page.object(section, "", &json(&out));
    }
    let missing = page.missing();
    assert!(
        missing.is_empty(),
        "docs/snapshot.md, not printed: {missing:#?}"
    );
}

#[test]
fn every_key_of_a_diagnosis_has_a_row_with_its_type() {
    let section = "Tables";
    // The tables before it are of words and findings.
    let tables = DOCTOR.find("## Tables").expect("a section");
    let page = Page::new(&DOCTOR[tables..], "## ", "### ");
    let folder = folder();
    for name in ["libvirt", "plain"] {
        let tree = common::host_tree(folder.path(), name);
        let out = printed(folder.path(), &["doctor", "--root", &tree, "--json"]);
        page.object(section, "", &json(&out));
    }
    let missing = page.missing();
    assert!(
        missing.is_empty(),
        "docs/doctor.md, not printed: {missing:#?}"
    );
}
