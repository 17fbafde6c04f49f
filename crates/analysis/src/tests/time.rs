//! The time of a recording: its begin, times without events, and events out of their order.

use super::build::{EPT, PREEMPTED, RUNNABLE, SLEEPS, Trace};
use crate::options::Options;
use crate::{Analysis, Answers};

const SECOND: u64 = 1_000_000_000;

/// An event at each of these seconds.
fn at_seconds(seconds: &[u64]) -> Trace {
    let mut trace = Trace::new(&[]);
    for second in seconds {
        trace.entry(second * SECOND, 0, 7, 0);
    }
    trace
}

/// The evidence of the finding on a time without events.
fn silence(answers: &Answers) -> Option<&str> {
    let mut found = answers.findings.iter();
    let jump = found.find(|finding| finding.id == "time_jumps");
    jump.map(|finding| &*finding.evidence)
}

#[test]
fn of_several_times_without_events_the_longest_is_reported() {
    let tells = |seconds: &[u64], expected: &str| {
        let answers = at_seconds(seconds).answers();
        assert_eq!(silence(&answers), Some(expected), "{seconds:?}");
    };
    tells(
        &[100, 200, 500, 600],
        "none for 300.000 s, from 100.000 s after the first one on",
    );
    tells(
        &[100, 400, 500],
        "none for 300.000 s, from 0.000 s after the first one on",
    );
    // Of equal ones it is the first.
    tells(
        &[100, 101, 201, 301],
        "none for 100.000 s, from 1.000 s after the first one on",
    );
}

#[test]
fn a_selection_has_more_than_a_minute_without_events_or_none() {
    let trace = at_seconds(&[100, 101, 201]);
    for (from_ns, to_ns, is_found) in [
        (None, Some(61 * SECOND), false),
        (None, Some(61 * SECOND + 1), true),
        (Some(41 * SECOND), None, false),
        (Some(41 * SECOND - 1), None, true),
    ] {
        let answers = trace.within(from_ns, to_ns);
        assert_eq!(silence(&answers).is_some(), is_found, "{from_ns:?}");
    }
}

#[test]
fn series_begin_with_the_selection() {
    let mut trace = Trace::new(&[]);
    trace.entry(1000, 0, 7, 0).exit(5000, 0, 7, 0, EPT);
    for (from_ns, expected) in [(None, 1000), (Some(500), 1500)] {
        let answers = trace.within(from_ns, None);
        assert_eq!(answers.over_time.start_ns, expected);
    }
}

/// States of a VM of two vCPUs, at instants that are 2^18 ns apart.
#[test]
fn states_of_a_vm_are_those_of_its_vcpus_at_each_instant() {
    const BEGIN: u64 = 1000;
    const DISTANCE: u64 = 1 << 18;
    let mut trace = Trace::new(&[]);
    trace.entry(BEGIN, 0, 7, 0).entry(BEGIN, 1, 8, 1);
    // Those of thread 7 end with an instant, those of thread 8 a little later.
    for (instants, later, cpu, prev, next, state) in [
        (3, 100, 1, 8, 0, SLEEPS),
        (4, 0, 0, 7, 32, PREEMPTED),
        (6, 0, 0, 32, 7, SLEEPS),
        (8, 0, 0, 7, 0, SLEEPS),
        (9, 100, 1, 0, 8, RUNNABLE),
        (10, 100, 1, 8, 33, PREEMPTED),
        (11, 0, 0, 0, 7, RUNNABLE),
        (13, 0, 0, 7, 32, PREEMPTED),
        (14, 100, 0, 32, 7, SLEEPS),
    ] {
        let time = BEGIN + instants * DISTANCE + later;
        trace.switch(time, cpu, prev, next, state);
    }
    let states = |from_ns| {
        let answers = trace.within(from_ns, None);
        let [row] = &answers.vm_states[..] else {
            panic!("{:?}", answers.vm_states);
        };
        assert_eq!((row.vcpus, row.unknown), (2, 0));
        let run = [row.full_run, row.partial_run, row.concurrency_hazard];
        let rest = [row.full_contention, row.partial_contention, row.blocked];
        (row.instants, run, rest)
    };
    assert_eq!(states(None), (14, [3, 4, 2], [1, 3, 1]));
    // Its first instant is one distance behind the begin of a selection.
    assert_eq!(states(Some(4 * DISTANCE)), (10, [0, 3, 2], [1, 3, 1]));
}

/// A reader that puts events in order says how many were not.
#[test]
fn events_that_a_reader_put_in_order_are_counted() {
    let trace = at_seconds(&[1, 2]);
    let mut analysis = Analysis::new(Options::default());
    analysis.events(&trace.events, &trace.names);
    analysis.set_out_of_order(3);
    assert_eq!(analysis.finish(&trace.names).source.out_of_order, 3);
}
