//! `whatif` as a page.

mod observed;
mod population;
mod ranking;

use stealtime_whatif::{CLOSE, Delta, Document, ReplayedVcpu, Shares, Variant, VcpuError};

use super::{
    Axis, Cell, Chart, Color, Dots, Interval, Lead, Mark, Page, Range, Scale, Table, decision,
};
use crate::terminal::time::vcpu_number;
use crate::units::distinct;
use crate::whatif_text::{self, delta_word};

/// vCPUs that have a row in the chart of the replay's errors: its dots stay readable.
const MOST_VCPUS: usize = 64;

/// With more variants the ranking and the tables show their effects, without charts of each.
const MOST_CHARTED: usize = 6;
/// Variants that have a table of their own: each has a row for every quantity of every VM.
const MOST_TABLES: usize = 60;
/// Variants in the sentences at the top: more would push the ranking off the first screen.
const MOST_LEADS: usize = 8;
/// VMs in the overview: two charts each.
const MOST_OVERVIEW: usize = 8;
/// Variants in the overview: rows of a chart.
const MOST_ROWS: usize = 60;

/// All of it; `command` does it again.
#[must_use]
pub fn page(document: &Document, command: &str) -> Page {
    let mut page = Page::new("whatif", document.path.clone()).made_by(command);
    page.fact(whatif_text::facts(document));
    page.fact(whatif_text::waits(&document.waits));
    if let Some(advice) = &document.advice {
        page.fact(advice.clone());
    }
    if document.recording_partial {
        page.first(whatif_text::PARTIAL_RECORDING);
    }
    if document.partial {
        page.warning(whatif_text::PARTIAL);
    }
    for lack in &document.lacks {
        page.warning(format!("Lacking: {}", lack.shown()));
    }
    for line in document.presence.lines() {
        page.fact(format!("In part: {line}."));
    }
    for line in &document.not_answerable {
        page.warning(format!("Not answerable: {line}"));
    }
    leads(document, &mut page);
    if let Some(auto) = &document.auto {
        ranking::auto(auto, &mut page);
    } else if document.variants.len() > 1 {
        ranking::grid(&document.variants, &mut page);
        overview(document, &mut page);
    }
    if let Some(observed) = &document.seen {
        observed::table(&mut page, observed);
    }
    closeness(document, &mut page);
    let charted = document.variants.len() <= MOST_CHARTED;
    for variant in document.variants.iter().take(MOST_TABLES) {
        self::variant(variant, charted, &mut page);
    }
    if document.variants.len() > MOST_TABLES {
        page.note(format!(
            "Of {} variants the first {MOST_TABLES} have tables of their own; --json has all.",
            document.variants.len()
        ));
    }
    page.section("What was taken for true");
    for assumed in &document.assumed {
        page.text(assumed.clone());
    }
    page.text(format!("Fit: {}.", document.fit.sentence()));
    page.section("Run it again");
    page.lines(command);
    page
}

fn leads(document: &Document, page: &mut Page) {
    if let Some(auto) = &document.auto {
        page.lead(decision::lead(&auto.decision));
    }
    let close = document.error.is_close();
    page.lead(Lead {
        about: match close {
            true => "The replay is close to the recording:",
            false => "The replay is too far from the recording to trust sizes:",
        }
        .to_owned(),
        says: whatif_text::errors(&document.error),
        more: vec![CLOSE.to_owned()],
        steps: Vec::new(),
        mark: if close { Mark::Better } else { Mark::Worse },
    });
    for variant in document.variants.iter().take(MOST_LEADS) {
        page.lead(Lead {
            about: format!("{}:", variant.name),
            says: format!("{}.", variant.verdict),
            more: vec![ranking::sentence(&variant.gain)],
            steps: Vec::new(),
            mark: match close {
                true => ranking::outcome_mark(&variant.gain),
                false => Mark::Plain,
            },
        });
    }
}

/// How close the replay is, vCPU by vCPU.
fn closeness(document: &Document, page: &mut Page) {
    page.section("How close the replay is");
    let shown = || document.vcpus.iter().take(MOST_VCPUS);
    let name = |vcpu: &ReplayedVcpu| format!("{} vCPU {}", vcpu.vm, vcpu_number(vcpu.vcpu));
    let dots = |name: &str, color, error: fn(VcpuError) -> f64| Dots {
        name: name.to_owned(),
        color,
        values: shown().map(|vcpu| Some(error(vcpu.error()))).collect(),
    };
    let title = match document.vcpus.len() {
        all if all > MOST_VCPUS => format!(" (the first {MOST_VCPUS} of {all} vCPUs)"),
        _ => String::new(),
    };
    page.chart(
        format!("Error of the replay under the recorded knobs{title}"),
        "Dots for each vCPU: replayed minus recorded time running, ready and halted, in percent of the \
         span; the table has the numbers.",
        Chart::Dots {
            axis: Axis::plain("replayed minus recorded, % of the span", " %"),
            rows: shown().map(name).collect(),
            dots: vec![
                dots("running", Color::Guest, |error| error.running),
                dots("ready", Color::Preempted, |error| error.ready),
                dots("halted", Color::Blocked, |error| error.halted),
            ],
        },
    );
    page.table(vcpus(&document.vcpus));
    latencies(&document.vcpus, page);
    let mut table = Table::new("Exits by reason", &["reason", "recorded", "replayed"], 1);
    for exit in &document.exits {
        table.row([
            exit.reason.as_str().into(),
            exit.recorded.to_string().into(),
            exit.replayed.to_string().into(),
        ]);
    }
    if !table.is_empty() {
        page.table(table);
    }
}

/// From runnable to running, recorded and replayed.
fn latencies(vcpus: &[ReplayedVcpu], page: &mut Page) {
    let range = |vcpu: &ReplayedVcpu, label: &str, shares: &Shares| {
        let points = [
            shares.wakeup_p50_ns?,
            shares.wakeup_p90_ns?,
            shares.wakeup_p99_ns?,
            shares.wakeup_max_ns?,
        ];
        Some(Range {
            name: format!("{} vCPU {}, {label}", vcpu.vm, vcpu_number(vcpu.vcpu)),
            points: points.map(|ns| ns as f64).to_vec(),
            says: format!(
                "{} wakeups, p50 {} us, p99 {} us",
                shares.wakeups,
                points[0] / 1_000,
                points[2] / 1_000
            ),
        })
    };
    let pair = |vcpu: &ReplayedVcpu| {
        [
            range(vcpu, "recorded", &vcpu.recorded),
            range(vcpu, "replayed", &vcpu.replayed),
        ]
    };
    // Two rows for each vCPU.
    let rows = vcpus.iter().take(MOST_VCPUS / 2).flat_map(pair).flatten();
    let rows: Vec<Range> = rows.collect();
    if rows.is_empty() {
        return;
    }
    page.chart(
        "From runnable to running, recorded and replayed",
        "Percentiles of wakeup latencies of each vCPU, recorded and replayed; the table has the numbers.",
        Chart::Ranges {
            axis: Axis::times("wakeup latency, logarithmic", Scale::LogNs),
            points: vec!["p50", "p90", "p99", "longest"],
            rows,
        },
    );
}

fn vcpus(vcpus: &[ReplayedVcpu]) -> Table {
    let heads = [
        "vCPU",
        "running %",
        "replayed",
        "ready %",
        "replayed",
        "halted %",
        "replayed",
        "polling %",
        "replayed",
        "wakeup p50 us",
        "replayed",
        "p99 us",
        "replayed",
        "done %",
    ];
    let mut table = Table::new("Recorded and replayed", &heads, 1).explained(
        "Shares of the span. Wakeup: from runnable to running. Done: the share of its demand that the \
         replay got done.",
    );
    let micros = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| (ns / 1_000).to_string());
    for vcpu in vcpus {
        let (recorded, replayed) = (&vcpu.recorded, &vcpu.replayed);
        let shares = [
            (recorded.run_percent, replayed.run_percent),
            (recorded.ready_percent, replayed.ready_percent),
            (recorded.halted_percent, replayed.halted_percent),
            (recorded.poll_percent, replayed.poll_percent),
        ];
        let shares = shares
            .iter()
            .flat_map(|(recorded, replayed)| [recorded, replayed]);
        let wakeups = [
            (recorded.wakeup_p50_ns, replayed.wakeup_p50_ns),
            (recorded.wakeup_p99_ns, replayed.wakeup_p99_ns),
        ];
        let wakeups = wakeups
            .iter()
            .flat_map(|(recorded, replayed)| [*recorded, *replayed]);
        let cells = std::iter::once(format!("{} vCPU {}", vcpu.vm, vcpu_number(vcpu.vcpu)))
            .chain(shares.map(|share| format!("{share:.1}")))
            .chain(wakeups.map(micros))
            .chain([format!("{:.1}", vcpu.done_percent)]);
        table.row(cells.map(Cell::from));
    }
    table
}

/// All variants side by side, in what they are judged by.
fn overview(document: &Document, page: &mut Page) {
    page.section("What each variant changes");
    let changes = document.variants.iter().flat_map(|v| &v.changes);
    let vms = distinct(changes.map(|change| change.vm.as_str()));
    for vm in vms.iter().take(MOST_OVERVIEW) {
        for (quantity, unit) in [("ready", "ms a second"), ("wakeup p99", "us")] {
            let bar = |variant: &Variant| {
                let is_it = |c: &&Delta| c.vm == *vm && c.quantity == quantity;
                let change = variant.changes.iter().find(is_it)?;
                Some(interval(variant.name.clone(), change))
            };
            let rows = document.variants.iter().filter_map(bar).take(MOST_ROWS);
            let rows: Vec<Interval> = rows.collect();
            if rows.iter().all(|row| row.value == 0.0) {
                continue;
            }
            changed(
                format!("{vm}: {quantity}; lower is better"),
                format!("change of {quantity} against the recorded knobs, {unit}"),
                rows,
                page,
            );
        }
    }
    if vms.len() > MOST_OVERVIEW || document.variants.len() > MOST_ROWS {
        page.note(format!(
            "Of {} VMs and {} variants at most {MOST_OVERVIEW} and {MOST_ROWS} are charted.",
            vms.len(),
            document.variants.len()
        ));
    }
}

fn interval(name: String, change: &Delta) -> Interval {
    Interval {
        name,
        value: change.difference.estimate.mean,
        half_width: change.difference.estimate.half_width,
        published: None,
        mark: match change.below_error {
            true => Mark::Noise,
            false => Mark::of(change.difference.verdict, change.is_relevant),
        },
        says: says(change),
    }
}

fn changed(title: String, axis: String, rows: Vec<Interval>, page: &mut Page) {
    let describes = format!("{title}: {axis}, with 95 % intervals; the tables have the numbers.");
    let axis = Axis::plain(axis, "");
    page.chart(title, describes, Chart::Intervals { axis, rows });
}

/// What a variant changes: a chart for each unit, if there are to be charts, and a table.
fn variant(variant: &Variant, charted: bool, page: &mut Page) {
    page.section(variant.name.clone());
    page.text(format!("Verdict: {}.", variant.verdict));
    if let Some(net) = whatif_text::net(&variant.gain) {
        page.text(format!("{net}."));
    }
    if let Some(break_even) = whatif_text::break_even(&variant.gain) {
        page.text(format!("{break_even}."));
    }
    page.note(
        "With 95 % intervals over replays in which what the recording does not tell was moved by \
         chance. A change that is smaller than what the replay is off by itself is no prediction.",
    );
    for (unit, title, axis) in [
        (
            "ms/s",
            "Time of the VMs' vCPUs",
            "change of time, ms a second",
        ),
        ("us", "Time from runnable to running", "change, us"),
    ] {
        let changes = variant.changes.iter().filter(|change| change.unit == unit);
        let rows = changes
            .filter(|_| charted)
            .map(|change| interval(format!("{} {}", change.vm, change.quantity), change));
        changed(title.to_owned(), axis.to_owned(), rows.collect(), page);
    }
    let heads = [
        "VM",
        "quantity",
        "unit",
        "before",
        "after",
        "difference",
        "is",
    ];
    let mut table = Table::new("Before and after", &heads, 3).ending_in_words(1);
    for change in &variant.changes {
        table.row([
            change.vm.as_str().into(),
            change.quantity.into(),
            change.unit.into(),
            format!("{:.1}", change.before).into(),
            format!("{:.1}", change.after).into(),
            difference(change).into(),
            delta_word(change).into(),
        ]);
    }
    page.table(table);
    if let Some(change) = &variant.population {
        population::table(change, page);
    }
}

fn difference(change: &Delta) -> String {
    let estimate = &change.difference.estimate;
    match estimate.half_width {
        Some(half) => format!("{:+.1} ±{half:.1}", estimate.mean),
        None => format!("{:+.1}", estimate.mean),
    }
}

fn says(change: &Delta) -> String {
    format!("{} {}", difference(change), delta_word(change))
}
