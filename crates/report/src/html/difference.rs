//! What differs between two sets of recordings, as a page.

use super::chart::{cut_note, visible};
use super::{Axis, Cell, Chart, Color, Interval, Lead, Mark, Page, Part, Table};
use crate::difference::{Change, Comparison, Side, Word, found};
use crate::terminal::difference::{
    intervals, list, no_change, not_compared, partial, quantity, shown_setting, word,
};
use crate::units::Times;

/// VMs of a chart, as many as are readable.
const MOST_VMS: usize = 32;
/// Rows of a table: a page stays small enough for a browser with hundreds of VMs.
const MOST_TABLE_ROWS: usize = 500;
/// Findings above the sections; the table has every change.
const MOST_FINDINGS: usize = 12;

/// Quantities with a chart: key, title.
const CHARTED: [(&str, &str); 5] = [
    ("steal", "Waiting for a CPU (steal); lower is better"),
    ("guest", "Time in the guest"),
    ("exits", "Handling exits"),
    ("polling", "Polling in halts"),
    ("asleep", "Asleep"),
];

/// Parts of a VM's time: key, name, color.
const PARTS: [(&str, &str, Color); 5] = [
    ("guest", "in the guest", Color::Guest),
    ("exits", "handling exits", Color::Exits),
    ("polling", "polling in halts", Color::Poll),
    ("steal", "waiting for a CPU (steal)", Color::Preempted),
    ("asleep", "asleep", Color::Halted),
];

/// The page of a comparison; `command` makes it again.
#[must_use]
pub fn page(comparison: &Comparison, command: &str) -> Page {
    let title = format!(
        "{} and {}",
        list(&comparison.before.recordings),
        list(&comparison.after.recordings)
    );
    let mut page = Page::new("diff", title).made_by(command);
    let sides = [("before", &comparison.before), ("after", &comparison.after)];
    for (name, side) in sides {
        page.fact(fact(name, side));
        warnings(name, side, &mut page);
    }
    page.fact(intervals(&comparison.before, &comparison.after));
    leads(comparison, &mut page);
    page.section("What changed");
    charts(comparison, &mut page);
    split(comparison, &mut page);
    page.section("Changes by VM");
    page.table(changes(comparison));
    page.section("Settings that differ");
    settings(comparison, &mut page);
    page
}

/// The recordings of a side with their kernels.
fn fact(name: &str, side: &Side) -> String {
    let time = Times::Ns.show(side.span_ns).replace("  s", " s");
    let kernels = match side.kernels.is_empty() {
        true => String::new(),
        false => format!(", {}", list(&side.kernels)),
    };
    format!("{name}: {}, {time}{kernels}", list(&side.recordings))
}

fn warnings(name: &str, side: &Side, page: &mut Page) {
    if let Some(text) = partial(side) {
        page.warning(format!("{name}: {text}"));
    }
    if !side.only_here.is_empty() {
        page.warning(format!("VMs only {name}: {}", list(&side.only_here)));
    }
    if !side.guessed.is_empty() {
        page.warning(format!(
            "{name}, names that are guesses, as is their match: {}; --vm-of names VMs",
            list(&side.guessed)
        ));
    }
    for tracepoint in &side.lacks {
        page.warning(format!("{name}: {}", not_compared(tracepoint)));
    }
}

fn lead(says: String, mark: Mark) -> Lead {
    Lead {
        about: String::new(),
        says,
        more: Vec::new(),
        steps: Vec::new(),
        mark,
    }
}

fn leads(comparison: &Comparison, page: &mut Page) {
    let findings = found(&comparison.changes);
    let hidden = findings.len().saturating_sub(MOST_FINDINGS);
    for (change, sentence) in findings.into_iter().take(MOST_FINDINGS) {
        page.lead(lead(sentence, mark(change.word)));
    }
    if hidden > 0 {
        page.lead(lead(
            format!("And {hidden} more; the table has every change."),
            Mark::Noise,
        ));
    }
    if let Some(text) = no_change(comparison) {
        page.lead(lead(text.to_owned(), Mark::Noise));
    }
}

const fn mark(word: Word) -> Mark {
    match word {
        Word::Better => Mark::Better,
        Word::Worse => Mark::Worse,
        Word::Different => Mark::Plain,
        Word::WithinNoise | Word::Unknown => Mark::Noise,
    }
}

/// A chart for steal, and for each further quantity that changes in a VM.
fn charts(comparison: &Comparison, page: &mut Page) {
    for (key, title) in CHARTED {
        let changes = comparison.changes.iter();
        let mut rows: Vec<&Change> = changes.filter(|change| change.quantity == key).collect();
        let is_noise = |change: &&Change| mark(change.word) == Mark::Noise;
        if key != "steal" && rows.iter().all(is_noise) {
            continue;
        }
        // Largest changes stay.
        rows.sort_by(|a, b| b.change.abs().total_cmp(&a.change.abs()));
        let cut = cut_note(rows.len().min(MOST_VMS), rows.len());
        let rows = rows.into_iter().take(MOST_VMS).map(|change| Interval {
            name: change.vm.clone(),
            value: change.change,
            half_width: change.half_width,
            published: None,
            mark: mark(change.word),
            says: format!("{}, {}", shown_change(change), word(change.word)),
        });
        page.chart(
            format!("{title}{cut}"),
            format!(
                "{title}: change of each VM with 95 % intervals; the table \"Changes by VM\" has the numbers."
            ),
            Chart::Intervals {
                axis: Axis::plain("change, ms in each second of the VM's vCPU time", " ms"),
                rows: rows.collect(),
            },
        );
    }
}

fn shown_change(change: &Change) -> String {
    let half_width = change.half_width.map(|half| format!(" ±{half:.1}"));
    format!(
        "{:+.1}{} {}",
        change.change,
        half_width.unwrap_or_default(),
        change.unit
    )
}

/// Two bars for each VM: the parts of its vCPUs' time before and after.
fn split(comparison: &Comparison, page: &mut Page) {
    let mut vms: Vec<&str> = comparison.changes.iter().map(|c| c.vm.as_str()).collect();
    vms.dedup();
    let vm_count = vms.len();
    vms.truncate(MOST_VMS);
    let share = |vm: &str, key: &str, value: fn(&Change) -> f64| {
        let mut changes = comparison.changes.iter();
        let change = changes.find(|change| change.vm == vm && change.quantity == key);
        // ms in a second as percent.
        change.map_or(0.0, |change| value(change) / 10.0)
    };
    let parts = PARTS.iter().map(|(key, name, color)| {
        let values = vms.iter().flat_map(|vm| {
            [
                share(vm, key, |change| change.before),
                share(vm, key, |change| change.after),
            ]
        });
        Part {
            name: (*name).to_owned(),
            color: *color,
            values: values.collect(),
        }
    });
    let parts = visible(parts);
    if parts.is_empty() {
        return;
    }
    let rows = vms
        .iter()
        .flat_map(|vm| [format!("{vm}, before"), format!("{vm}, after")]);
    page.chart(
        format!(
            "Time of each VM's vCPUs{}",
            cut_note(vms.len(), vm_count)
        ),
        "Bars of the shares of time in the guest, in exits, polling, waiting for a CPU and asleep, before \
         and after; the table \"Changes by VM\" has the numbers.",
        Chart::Stacked {
            axis: Axis::plain("share of the vCPUs' time, %", " %"),
            rows: rows.collect(),
            parts,
            most: Some(100.0),
        },
    );
}

fn changes(comparison: &Comparison) -> Table {
    let heads = [
        "VM", "quantity", "before", "after", "change", "unit", "means",
    ];
    let mut table = Table::new("", &heads, 2)
        .ending_in_words(2)
        .explained("Per second of each VM's vCPU time, with 95 % intervals.");
    let rows = &comparison.changes;
    for change in rows.iter().take(MOST_TABLE_ROWS) {
        let half_width = change.half_width.map(|half| format!(" ±{half:.1}"));
        let half_width = half_width.unwrap_or_default();
        table.row([
            Cell::from(change.vm.clone()),
            quantity(change).into(),
            format!("{:.1}", change.before).into(),
            format!("{:.1}", change.after).into(),
            format!("{:+.1}{half_width}", change.change).into(),
            change.unit.into(),
            word(change.word).into(),
        ]);
    }
    match rows.len() > MOST_TABLE_ROWS {
        true => table.with_foot(format!(
            "And {} more; JSON has all.",
            rows.len() - MOST_TABLE_ROWS
        )),
        false => table,
    }
}

fn settings(comparison: &Comparison, page: &mut Page) {
    let Some(settings) = &comparison.settings else {
        page.text(crate::terminal::difference::NO_SETTINGS);
        return;
    };
    if settings.is_empty() {
        page.text("None.");
        return;
    }
    let mut table = Table::new("", &["setting", "before", "after"], 3);
    for setting in settings.iter().take(MOST_TABLE_ROWS) {
        table.row([
            Cell::from(setting.key.clone()),
            shown_setting(setting.before.as_ref()).into(),
            shown_setting(setting.after.as_ref()).into(),
        ]);
    }
    if settings.len() > MOST_TABLE_ROWS {
        table = table.with_foot(format!(
            "And {} more; JSON has all.",
            settings.len() - MOST_TABLE_ROWS
        ));
    }
    page.table(table);
}
