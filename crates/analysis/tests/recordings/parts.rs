//! Parts of a recording, by time or by CPU, make the whole, and causes of waiting make the waiting:
//! also where events were lost.

use std::collections::BTreeMap;
use std::path::Path;

use stealtime_analysis::{Answers, Options, Selection};

use super::common::{answers, check, traces};
use super::paths::one_of_each_series;

/// Sums that parts must make, by what they are of.
type Sums = BTreeMap<String, u64>;

fn add(sums: &mut Sums, answers: &Answers) {
    let mut add = |key: String, value: u64| *sums.entry(key).or_default() += value;
    add("events".to_owned(), answers.source.events);
    for vcpu in &answers.vcpus {
        for (name, value) in [
            ("span", vcpu.span_ns),
            ("on CPU", vcpu.on_cpu_ns),
            ("guest", vcpu.guest_ns.unwrap_or(0)),
            ("poll", vcpu.poll_ns.unwrap_or(0)),
            ("halt", vcpu.halt_ns),
            ("blocked", vcpu.blocked_ns),
            ("preempted", vcpu.preempted_ns),
            ("waking", vcpu.wake_wait_ns),
            ("unknown", vcpu.unknown_ns),
        ] {
            add(format!("tid {} {name}", vcpu.tid), value);
        }
    }
    for row in &answers.ready {
        let who = (&row.vm, row.vcpu, &row.cause, &row.who);
        add(format!("ready {who:?}"), row.ns);
    }
    for row in &answers.exit_totals {
        add(format!("exits {}", row.reason), row.samples);
        add(format!("time of exits {}", row.reason), row.time_ns);
    }
    for row in &answers.latencies {
        let what = (&row.vm, &row.kind, &row.detail);
        add(format!("latencies {what:?}"), row.count);
    }
    sums.retain(|_, value| *value > 0);
}

fn of(path: &Path, parts: Vec<Selection>) -> Sums {
    let mut sums = Sums::new();
    for selection in parts {
        let options = Options {
            selection,
            ..Options::default()
        };
        let part = answers(path, options);
        check(&part);
        add(&mut sums, &part);
    }
    sums
}

#[test]
fn parts_make_the_whole() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/traces");
    let paths = one_of_each_series(&traces().unwrap_or(sample));
    assert!(!paths.is_empty());
    for path in paths {
        let whole = answers(&path, Options::default());
        check(&whole);
        let mut sums = Sums::new();
        add(&mut sums, &whole);
        let cuts = [0, 13, 37, 71, 100].map(|percent| whole.source.span_ns / 100 * percent);
        let windows = cuts.windows(2).map(|cut| Selection {
            from_ns: Some(cut[0]),
            to_ns: (cut[1] != cuts[4]).then_some(cut[1]),
            ..Selection::default()
        });
        assert_eq!(of(&path, windows.collect()), sums, "{path:?} by time");
        let cpus = (0..whole.source.cpus).map(|cpu| Selection {
            cpus: vec![u16::try_from(cpu).unwrap()],
            ..Selection::default()
        });
        assert_eq!(of(&path, cpus.collect()), sums, "{path:?} by CPU");
    }
}
