//! Running, waiting and sleeping times of vCPU threads equal an independent count of the scheduler's
//! events (`summary.json`), within its printed microsecond.

use serde_json::Value;

use super::{integer, recordings};

/// The reference's times are rounded to microseconds. It and the command may begin and end the window
/// at different events: the first and last of the thread, or of the trace.
const TOLERANCE_NS: u64 = 2_000;

#[test]
fn vcpu_times_equal_an_independent_count() {
    for recording in recordings() {
        let Some(text) = recording.reference("summary.json") else {
            continue;
        };
        let reference: Value = serde_json::from_str(&text).expect("a JSON reference");
        let answers = recording.analyze(&[]);
        let ours = answers["vcpus"].as_array().expect("a list");
        for expected in reference["vcpus"].as_array().expect("a list") {
            let tid = &expected["tid"];
            let row = ours.iter().find(|row| row["tid"] == *tid);
            let shown = format!("{}: tid {tid}", recording.file.display());
            let row = row.unwrap_or_else(|| panic!("{shown}: no such vCPU thread found"));
            let waiting = integer(&row["preempted_ns"]) + integer(&row["wake_wait_ns"]);
            let unknown = integer(&row["unknown_ns"]);
            let unknown_at_start = nanoseconds(&expected["unknown_at_start_s"]);
            // Some references count the time before a thread's first switch as waiting.
            let counted = if unknown_at_start == 0 { unknown } else { 0 };
            for (name, got) in [
                ("running_s", integer(&row["on_cpu_ns"])),
                ("runnable_waiting_s", waiting + counted),
                ("unknown_at_start_s", unknown - counted),
                ("sleeping_s", integer(&row["halt_ns"])),
            ] {
                let want = nanoseconds(&expected[name]);
                assert!(
                    got.abs_diff(want) <= TOLERANCE_NS,
                    "{shown}: {name}: {got}, not {want}"
                );
            }
        }
    }
}

fn nanoseconds(seconds: &Value) -> u64 {
    let text = seconds.to_string();
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let digits = format!("{whole}{part:0<9}");
    digits.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}
