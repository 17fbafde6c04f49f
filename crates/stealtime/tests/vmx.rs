//! A recording of an Intel host, made by hand, since the tests' recordings of real hosts are of AMD hosts.
//!
//! It has the exits that only VMX has: preemption timer, EOI-induced, external interrupts with their
//! vector, and a failed entry. In addition it has a timer that is posted from another CPU's hrtimer, and
//! TSC offsets that diverge.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::trace_dat::without_commands;

fn stealtime(arguments: &[&str]) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let output = Command::new(env!("CARGO_BIN_EXE_stealtime"))
        .args(arguments)
        .current_dir(data)
        .stdin(Stdio::null())
        .output()
        .expect("the command runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn analyze(arguments: &[&str]) -> String {
    stealtime(&[&["analyze", "vmx.txt"], arguments].concat())
}

fn answers() -> Value {
    serde_json::from_str(&analyze(&["--json"])).expect("JSON")
}

/// The numbers under these keys of the row that has these texts.
fn row(answers: &Value, table: &str, is: &[(&str, &str)], keys: &[&str]) -> Vec<u64> {
    let rows = answers[table].as_array().expect("a table");
    let fits = |row: &&Value| {
        is.iter().all(|(key, value)| {
            let cell = &row[*key];
            cell == value
                || cell
                    .as_u64()
                    .is_some_and(|number| number.to_string() == **value)
        })
    };
    let found: Vec<_> = rows.iter().filter(fits).collect();
    assert_eq!(found.len(), 1, "{table} {is:?}: {found:?}");
    let number = |key: &&str| found[0][*key].as_u64().unwrap_or_else(|| panic!("{key}"));
    keys.iter().map(number).collect()
}

#[test]
fn exits_by_their_reasons() {
    let answers = answers();
    for (reason, samples, time_ns) in [
        // Of vCPU 0 10 and 5 us, of vCPU 1 70 us of which another task had 50.
        ("EXTERNAL_INTERRUPT", 3, 85_000),
        ("MSR_WRITE", 2, 20_000),
        ("PREEMPTION_TIMER", 1, 10_000),
        ("EOI_INDUCED", 1, 3_000),
        ("PAUSE_INSTRUCTION", 1, 5_000),
        ("EPT_VIOLATION", 1, 20_000),
        ("EXCEPTION_NMI FAILED_VMENTRY", 1, 40_000),
        ("APIC_WRITE", 1, 10_000),
    ] {
        let found = row(
            &answers,
            "exit_totals",
            &[("reason", reason)],
            &["samples", "time_ns"],
        );
        assert_eq!(found, [samples, time_ns], "{reason}");
    }
}

#[test]
fn time_of_each_vcpu() {
    let answers = answers();
    let keys = ["span_ns", "guest_ns", "exit_ns", "preempted_ns"];
    // In 910 us vCPU 0 handles exits for 10 + 10 + 3 + 10 + 5 + 5 + 20 + 40 us. vCPU 1 handles exits for
    // 10 + 20 + 10 us, and is preempted for 50 us.
    let first = row(&answers, "vcpus", &[("vcpu", "0")], &keys);
    assert_eq!(first, [910_000, 807_000, 103_000, 0]);
    let second = row(&answers, "vcpus", &[("vcpu", "1")], &keys);
    assert_eq!(second, [910_000, 820_000, 40_000, 50_000]);
    let ready = row(
        &answers,
        "ready",
        &[("vcpu", "1"), ("cause", "host_task")],
        &["ns"],
    );
    assert_eq!(ready, [50_000]);
}

#[test]
fn timers_interrupts_and_ipis() {
    let answers = answers();
    let latency = |kind: &str, detail: &str| {
        let is = [("kind", kind), ("detail", detail)];
        row(&answers, "latencies", &is, &["count", "max_ns"])
    };
    // From the exit to the injection.
    assert_eq!(latency("timer", "preemption_timer"), [1, 6_000]);
    assert_eq!(latency("injection", ""), [1, 2_000]);
    // Programmed for 350, handled at 352, and posted at 354: nothing is injected.
    assert_eq!(latency("timer", "posted"), [1, 2_000]);
    assert_eq!(latency("timer_expire", ""), [1, 2_000]);
    assert_eq!(latency("ipi_accept", ""), [1, 1_000]);
    for (name, vector) in [
        ("local_timer", "236"),
        ("posted_intr", "242"),
        ("reschedule", "253"),
    ] {
        let is = [("name", name), ("vector", vector)];
        assert_eq!(row(&answers, "interrupts", &is, &["count"]), [1], "{name}");
    }
}

#[test]
fn clocks_and_old_names() {
    let answers = answers();
    let findings = answers["findings"].as_array().expect("findings");
    let of = |id: &str| findings.iter().find(|finding| finding["id"] == id);
    let off = of("master_clock_off").expect("it is off");
    assert_eq!(
        off["evidence"],
        "1 kvm_update_master_clock, the last without master clock, offsets not matching"
    );
    assert!(
        of("timer_exits").is_none(),
        "too few exits, and a timer was posted"
    );
    let events = answers["events"].as_array().expect("events");
    let window = events
        .iter()
        .find(|event| event["name"] == "kvm_ple_window");
    assert_eq!(
        window.expect("by its old name")["today"],
        "kvm_ple_window_update"
    );
}

#[test]
fn the_same_from_records_in_binary() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("vmx.dat");
    let file = file.to_str().expect("UTF-8");
    let mut expected = answers();
    without_commands(&mut expected);
    for compress in [&[][..], &["--compress"]] {
        let to = ["export", "vmx.txt", "--to", "trace.dat", "-o", file];
        stealtime(&[&to, compress].concat());
        let answers = stealtime(&["analyze", "--json", file]);
        let mut answers: Value = serde_json::from_str(&answers).expect("JSON");
        without_commands(&mut answers);
        for (table, rows) in expected.as_object().expect("tables") {
            // The new file calls tracepoints by today's names.
            if !["source", "events"].contains(&table.as_str()) {
                assert_eq!(&answers[table], rows, "{table}");
            }
        }
        for key in ["events", "span_ns", "lost", "out_of_order", "cpus"] {
            assert_eq!(answers["source"][key], expected["source"][key], "{key}");
        }
    }
}

#[test]
fn as_it_is_shown() {
    insta::assert_snapshot!(analyze(&["--key", "all"]));
}
