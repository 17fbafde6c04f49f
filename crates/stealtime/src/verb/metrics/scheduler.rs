//! Metrics of `scx_stealtime`, where it schedules the host.

use std::fmt;

use stealtime_host::{Scheduler, Share};

use super::form::{Distribution, Form, Values, seconds};
use super::totals::{Labels, MAX_REASONS, shortened};

/// Metric, its counter in the program, what it is.
type Row = (&'static str, &'static str, &'static str);

const COUNTERS: [Row; 6] = [
    (
        "sched_wanted_picked",
        "want_picked",
        "Targets of yields that ran next",
    ),
    (
        "sched_wanted_missed",
        "want_missed",
        "Targets of yields that had left the queue, or were not due",
    ),
    ("sched_loans", "loans", "Slices lent to targets of yields"),
    (
        "sched_handed_over",
        "handed_over",
        "Requests given to targets of yields",
    ),
    (
        "sched_credits",
        "credits",
        "Lag credits paid to targets of yields",
    ),
    (
        "sched_ipis_tracked",
        "ipis_tracked",
        "IPIs of vCPUs to others of their VM",
    ),
];

const TIMES: [Row; 2] = [
    (
        "sched_lent",
        "lent_ns",
        "Time that targets ran at the yielders' cost",
    ),
    (
        "sched_credit",
        "credit_ns",
        "Service that credits moved, at nice 0",
    ),
];

/// All of them. At most `limit` control groups have series.
pub(super) fn encode(
    form: &mut impl Form,
    scheduler: &Scheduler,
    shares: &[Share],
    limit: usize,
) -> fmt::Result {
    let labels = vec![
        ("all_tasks", scheduler.all_tasks.to_string()),
        ("yields", shortened(&scheduler.yields)),
    ];
    let help = "scx_stealtime schedules this host; the value is 1";
    form.gauges("sched_info", help, vec![(labels, 1)])?;
    let help = "Directed yields by what became of them";
    form.counters("sched_yields", help, outcomes(scheduler))?;
    let single = |counter: &str| vec![(Labels::new(), scheduler.count(counter))];
    for (name, counter, help) in COUNTERS {
        form.counters(name, help, single(counter))?;
    }
    for (name, counter, help) in TIMES {
        form.times(name, help, single(counter))?;
    }
    encode_yield_to_run(form, scheduler)?;
    let label = |path: &str| vec![("cgroup", shortened(path))];
    let groups = || scheduler.groups().take(limit);
    let runtimes = groups().map(|group| (label(group.path), group.runtime_ns));
    let help = "Run time of the control group's own tasks";
    form.times("sched_group", help, runtimes.collect())?;
    let weights = groups().map(|group| (label(group.path), group.weight));
    let help = "The control group's cpu.weight";
    form.gauges("sched_group_weight", help, weights.collect())?;
    let values = |value: fn(&Share) -> f64| {
        let shares = shares.iter().take(limit);
        shares
            .map(|share| (label(&share.path), value(share)))
            .collect()
    };
    let help = "Share of CPU time of the scope or control group, in the latest sample";
    form.gauges("sched_unit_cpu_ratio", help, values(|share| share.share))?;
    let help = "Share that is due to it by its weight, against all that ran in the sample";
    form.gauges("sched_unit_due_ratio", help, values(|share| share.due))
}

fn outcomes(scheduler: &Scheduler) -> Values<u64> {
    let labels = |outcome: &str, reason: &str| {
        vec![
            ("outcome", outcome.to_owned()),
            ("reason", shortened(reason)),
        ]
    };
    let served = [
        ("receiver", "yield_receiver"),
        ("pending", "yield_pending"),
        ("nominee", "yield_nominee"),
        ("pause", "pause_receiver"),
    ];
    let served = served.map(|(reason, name)| (labels("served", reason), scheduler.count(name)));
    let refused = scheduler.refused().take(MAX_REASONS);
    let refused = refused.map(|(reason, count)| (labels("refused", reason), count));
    served.into_iter().chain(refused).collect()
}

/// A class ends at a power of two, in us; the last has no end.
fn encode_yield_to_run(form: &mut impl Form, scheduler: &Scheduler) -> fmt::Result {
    let classes: Vec<(u64, u64)> = scheduler.yield_to_run().collect();
    let Some(last) = classes.len().checked_sub(1) else {
        return Ok(());
    };
    let end = |n: usize, end_us: u64| {
        if n == last {
            f64::INFINITY
        } else {
            end_us as f64 / 1e6
        }
    };
    let numbered = classes.iter().enumerate();
    let classes = numbered.map(|(n, &(end_us, count))| (end(n, end_us), count));
    let waits = Distribution {
        sum: seconds(scheduler.count("yield_to_run_ns")),
        classes: classes.collect(),
        buckets: None,
    };
    let help = "From a yield until its target runs";
    form.histograms("sched_yield_to_run", help, vec![(Labels::new(), waits)])
}
