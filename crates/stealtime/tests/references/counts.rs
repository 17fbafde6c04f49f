//! Counts by event and by exit reason equal trace-cmd's and perf's, exactly.

use std::collections::BTreeMap;

use stealtime_events::ExitReason;

use super::{Recording, integer, recordings};

/// What a reference says.
#[derive(Default)]
struct Reference {
    total: Option<u64>,
    events: BTreeMap<String, u64>,
    exits: BTreeMap<String, u64>,
    /// Sum of the losses that have a size in the reference.
    lost: Option<u64>,
}

/// `trace-cmd-counts.txt` and `counts.txt`: sections with lines `COUNT NAME`.
fn by_trace_cmd(text: &str) -> Reference {
    let mut reference = Reference::default();
    let mut section = "";
    for line in text.lines() {
        if let Some(total) = line.strip_prefix("total events: ") {
            reference.total = total.trim().parse().ok();
        } else if let Some(sum) = line.strip_prefix("sum of counts in those lines: ") {
            reference.lost = sum.trim().parse().ok();
        } else if !line.starts_with(' ') {
            section = line;
        } else if let Some((count, name)) = line.trim().split_once(' ')
            && let Ok(count) = count.parse()
        {
            match section {
                "events per type:" => drop(reference.events.insert(name.into(), count)),
                "kvm_exit by reason:" => drop(reference.exits.insert(kernel_name(name), count)),
                _ => {}
            }
        }
    }
    reference
}

/// trace-cmd's names of SVM exits (`EXIT_NPF`) to the kernel's (`npf`).
fn kernel_name(reason: &str) -> String {
    ExitReason::from_name(reason)
        .and_then(ExitReason::name)
        .unwrap_or(reason)
        .into()
}

/// `perf-stats.txt`, the output of `perf report --stats`, which counts every sample. (`perf-counts.txt`
/// has what `perf script` prints, which leaves out host events with a guest cpumode.)
fn by_perf(text: &str) -> Reference {
    let mut reference = Reference::default();
    let mut event = None;
    for line in text.lines() {
        if let Some(name) = line.strip_suffix(" stats:") {
            event = name.split_once(':').map(|(_, name)| name.to_owned());
        } else if let Some(count) = line.trim().strip_prefix("SAMPLE events:") {
            let count: u64 = count
                .split_whitespace()
                .next()
                .unwrap_or("")
                .parse()
                .unwrap_or(0);
            match &event {
                // A tracepoint that was recorded by two events has two sections.
                Some(name) => *reference.events.entry(name.clone()).or_default() += count,
                None => reference.total = Some(count),
            }
        }
    }
    reference
}

fn reference_of(recording: &Recording) -> Option<Reference> {
    let is_perf = recording.file.to_string_lossy().contains("perf.data");
    if is_perf {
        return recording
            .reference("perf-stats.txt")
            .map(|text| by_perf(&text));
    }
    let text = recording
        .reference("trace-cmd-counts.txt")
        .or_else(|| recording.reference("counts.txt"));
    text.map(|text| by_trace_cmd(&text))
}

#[test]
fn events_and_exits_are_counted_as_other_tools_count_them() {
    let mut compared = 0;
    for recording in recordings() {
        let Some(reference) = reference_of(&recording) else {
            continue;
        };
        let shown = recording.file.display();
        let answers = recording.analyze(&[]);
        let rows = answers["events"].as_array().expect("a list");
        let events: BTreeMap<String, u64> = rows
            .iter()
            .map(|row| {
                (
                    row["name"].as_str().unwrap_or("").to_owned(),
                    integer(&row["count"]),
                )
            })
            .collect();
        assert_eq!(events, reference.events, "{shown}: counts by event");
        assert_eq!(
            Some(integer(&answers["source"]["events"])),
            reference.total,
            "{shown}: total"
        );
        if let Some(lost) = reference.lost {
            assert_eq!(
                integer(&answers["source"]["lost"]),
                lost,
                "{shown}: lost events"
            );
        }
        compared += 1;
    }
    assert!(compared > 0, "no recording has reference counts");
}
