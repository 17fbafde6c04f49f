//! The messages as prost reads them, by the published schema.

use prost::Message as _;
use stealtime_collector::{Classes, Exits, Sample, Times, Vm};

use super::*;
use crate::watched::Cost;

#[derive(Clone, PartialEq, prost::Message)]
struct Family {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    help: String,
    #[prost(uint64, tag = "3")]
    kind: u64,
    #[prost(message, repeated, tag = "4")]
    series: Vec<Series>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Series {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Value>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Value>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Value {
    #[prost(double, tag = "1")]
    value: f64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Histogram {
    #[prost(uint64, tag = "1")]
    count: u64,
    #[prost(double, tag = "2")]
    sum: f64,
    #[prost(message, repeated, tag = "3")]
    classes: Vec<Class>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, tag = "6")]
    zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    zero_count: u64,
    #[prost(message, repeated, tag = "12")]
    spans: Vec<Span>,
    #[prost(sint64, repeated, packed = "false", tag = "13")]
    deltas: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Class {
    #[prost(uint64, tag = "1")]
    cumulated: u64,
    #[prost(double, tag = "2")]
    end: f64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Span {
    #[prost(sint32, tag = "1")]
    offset: i32,
    #[prost(uint32, tag = "2")]
    length: u32,
}

fn families(totals: &Totals) -> Vec<Family> {
    let bytes = encode(totals);
    let mut rest = bytes.as_slice();
    let mut found = Vec::new();
    while !rest.is_empty() {
        found.push(Family::decode_length_delimited(&mut rest).expect("a family"));
    }
    found
}

/// A name that a text form has to escape, and that is cut.
fn name() -> String {
    format!("a\"b\n\\{}", "\u{fc}".repeat(10_000))
}

fn totals() -> Totals {
    let mut counts = [0; 12];
    counts[2] = 7;
    let waits = Classes {
        counts,
        sum_ns: 500_000,
    };
    let vm = Vm {
        vm: name(),
        times: Times {
            guest_ns: 1_500_000_000,
            ..Times::default()
        },
        exits_by_reason: vec![Exits {
            reason: "hlt".to_owned(),
            count: 3,
            ns: 7,
        }],
        wakeup_classes: waits,
        wakeup_buckets: [(-111, 2), (-110, 4), (-107, 1)].into_iter().collect(),
        ..Vm::default()
    };
    let sample = Sample {
        vms: vec![vm],
        ..Sample::default()
    };
    let mut totals = Totals::new(10);
    totals.add(&sample, &Cost::default(), |_| None);
    totals
}

#[test]
fn families_have_the_values_of_the_text() {
    let families = families(&totals());
    let named = |name: &str| {
        let mut found = families.iter();
        let family = found.find(|family| family.name == name);
        family.unwrap_or_else(|| panic!("{name}"))
    };
    let seconds = named("stealtime_vcpu_seconds_total");
    assert_eq!((seconds.kind, seconds.series.len()), (COUNTER.number, 6));
    assert_eq!(seconds.help, "Time of the VM's vCPU threads by state.");
    let guest = &seconds.series[0];
    assert_eq!(guest.counter, Some(Value { value: 1.5 }));
    assert_eq!(guest.labels[0].value.chars().count(), 200);
    assert!(guest.labels[0].value.starts_with("a\"b\n\\"));
    assert_eq!(guest.labels[1].value, "guest");
    let gauge = named("stealtime_vm_info");
    assert_eq!(gauge.kind, GAUGE.number);
    assert_eq!(gauge.series[0].gauge, Some(Value { value: 1.0 }));
    // Every name of the text form is there, and no other.
    let text = crate::verb::metrics::text::prometheus(&totals());
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let kinds = kinds.filter_map(|line| line.split(' ').next());
    let mut expected: Vec<&str> = kinds.collect();
    let mut names: Vec<&str> = families.iter().map(|family| family.name.as_str()).collect();
    expected.sort_unstable();
    names.sort_unstable();
    assert_eq!(names, expected);
}

#[test]
fn a_histogram_is_classic_and_native() {
    let families = families(&totals());
    let mut found = families.iter();
    let family = found.find(|family| family.name == "stealtime_wakeup_latency_seconds");
    let family = family.expect("a histogram");
    assert_eq!(family.kind, HISTOGRAM.number);
    let histogram = family.series[0].histogram.as_ref().expect("its value");
    assert_eq!((histogram.count, histogram.sum), (7, 0.0005));
    let ends = histogram.classes.iter();
    let classes: Vec<(f64, u64)> = ends.map(|class| (class.end, class.cumulated)).collect();
    assert_eq!(classes[1..3], [(3e-5, 0), (1e-4, 7)]);
    assert_eq!(classes.last(), Some(&(f64::INFINITY, 7)));
    assert_eq!((histogram.schema, histogram.zero_count), (Some(3), 0));
    let spans: Vec<(i32, u32)> = histogram
        .spans
        .iter()
        .map(|span| (span.offset, span.length))
        .collect();
    assert_eq!(spans, [(-111, 2), (2, 1)]);
    assert_eq!(histogram.deltas, [2, 2, -3]);
}

/// Label values of any text are one line of the text forms.
#[test]
fn labels_are_escaped_in_text() {
    for page in [
        crate::verb::metrics::text::prometheus(&totals()),
        crate::verb::metrics::text::openmetrics(&totals()),
    ] {
        let line = "stealtime_vcpu_seconds_total{vm=\"a\\\"b\\n\\\\\u{fc}";
        assert!(page.lines().any(|found| found.starts_with(line)), "{line}");
        assert!(page.lines().all(|line| line.len() < 1000));
    }
}
