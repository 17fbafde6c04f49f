//! Variants by what they give and take, as charts and a table of a page.

use stealtime_whatif::{
    Auto, Effect, Gain, HOST_TASKS, Outcome, Ranked, Variant, Word, ranked as rank,
};

use crate::html::chart::{cut_note, visible};
use crate::html::decision::recipe;
use crate::html::{Axis, Cell, Chart, Color, Interval, Mark, Page, Part, Table};
use crate::whatif_text::{LEGEND, WORDS, break_evens, estimate, interval, signed, word};

/// Rows of a chart: its bars stay readable. The table has all.
const MOST_ROWS: usize = 60;

/// What `--auto` tried, ranked.
pub(super) fn auto(auto: &Auto, page: &mut Page) {
    page.section("What was tried, the best first");
    if auto.tried.is_empty() {
        page.text("Nothing to try: no time of 1 % or more is lost to what a replay can change.");
    } else {
        page.text(format!(
            "{} changes, each alone{}, {} replays of each.",
            auto.tried.len(),
            match auto.on_top_of.is_empty() {
                true => String::new(),
                false => format!(" on top of {}", auto.on_top_of),
            },
            auto.seeds
        ));
        ranked(&auto.rows(), page);
        reasons(auto, page);
        on_host(auto, page);
    }
    if !auto.cannot.is_empty() {
        let heads = ["knobs or settings", "why a replay does not tell", "instead"];
        let mut table = Table::new("Not for a replay to answer", &heads, 3);
        for question in &auto.cannot {
            table.row(
                [&question.what, &question.why, &question.instead].map(|text| text.as_str().into()),
            );
        }
        page.table(table);
    }
}

/// The variants of a grid, ranked.
pub(super) fn grid(variants: &[Variant], page: &mut Page) {
    page.section("All variants, the best first");
    ranked(&rank(variants), page);
}

/// The rows that are charted, each under its rank and name.
fn numbered<'r>(rows: &'r [Ranked<'r>]) -> impl Iterator<Item = (String, &'r Gain)> {
    let ranks = (1..=MOST_ROWS).zip(rows);
    ranks.map(|(rank, row)| (format!("{rank}. {}", row.name), row.gain))
}

fn ranked(rows: &[Ranked<'_>], page: &mut Page) {
    page.note(LEGEND);
    page.note(WORDS);
    for (rank, break_even) in break_evens(rows) {
        page.note(format!("{rank}: {break_even}."));
    }
    net(rows, page);
    let cut = cut_note(MOST_ROWS, rows.len());
    type Pick = fn(&Gain) -> (&Effect, String);
    let charts: [(&str, &str, Pick); 2] = [
        (
            "Waiting given back to all VMs",
            "waiting given back, ms a second",
            |gain| (&gain.given_back, loses(gain)),
        ),
        (
            "CPU time of the host freed",
            "CPU time freed, ms a second",
            |gain| (&gain.cpu_freed, String::new()),
        ),
    ];
    for (title, axis, pick) in charts {
        let bars = numbered(rows).map(|(name, gain)| {
            let (effect, loses) = pick(gain);
            Interval {
                name,
                value: effect.change.mean,
                half_width: effect.change.half_width,
                published: None,
                mark: mark(effect.word, effect.is_relevant),
                says: format!("{} {}{loses}", interval(effect), means(effect.word)),
            }
        });
        let bars: Vec<Interval> = bars.collect();
        if bars.iter().all(|bar| bar.value == 0.0) {
            continue;
        }
        page.chart(
            format!("{title}; higher is better{cut}"),
            format!("{title} by each change, with 95 % intervals; the table has the numbers."),
            Chart::Intervals {
                axis: Axis::plain(axis, ""),
                rows: bars,
            },
        );
    }
    losers(rows, &cut, page);
    table(rows, page);
}

/// What each change comes to, which ranks them.
fn net(rows: &[Ranked<'_>], page: &mut Page) {
    let bars = numbered(rows).map(|(name, gain)| Interval {
        name,
        value: gain.net,
        half_width: gain.net_change.half_width,
        published: None,
        mark: mark(gain.net_word, gain.is_relevant),
        says: format!(
            "{} {}{}",
            estimate(&gain.net_change),
            word(gain.outcome),
            loses(gain)
        ),
    });
    page.chart(
        "Net; higher is better",
        "What each change comes to, with 95 % intervals; the table has the numbers.",
        Chart::Intervals {
            axis: Axis::plain("net, ms a second", ""),
            rows: bars.collect(),
        },
    );
}

/// What each change takes, as bars of parts.
fn losers(rows: &[Ranked<'_>], cut: &str, page: &mut Page) {
    let lost = |effect: &Effect| match effect.word {
        Word::Worse => -effect.change.mean,
        _ => 0.0,
    };
    let vms = |gain: &Gain| gain.vms.iter().map(|vm| lost(&vm.given_back)).sum::<f64>();
    let undone = |gain: &Gain| {
        let vms = gain.vms.iter().map(|vm| lost(&vm.work));
        vms.sum::<f64>() + lost(&gain.host_tasks_work)
    };
    let part = |name: &str, color, size: &dyn Fn(&Gain) -> f64| Part {
        name: name.to_owned(),
        color,
        values: rows
            .iter()
            .take(MOST_ROWS)
            .map(|row| size(row.gain))
            .collect(),
    };
    let parts = visible([
        part("VMs wait longer", Color::Preempted, &vms),
        part("tasks of the host wait longer", Color::Waking, &|gain| {
            lost(&gain.host_tasks)
        }),
        part("less work done", Color::Blocked, &undone),
    ]);
    if parts.is_empty() {
        return;
    }
    page.chart(
        format!("What others lose by it; lower is better{cut}"),
        "Bars for each change: how much longer VMs and tasks of the host wait, and how much less work is done, \
         where that is more than noise; the table has the numbers.",
        Chart::Stacked {
            axis: Axis::plain("lost, ms a second", ""),
            rows: numbered(rows).map(|(name, _)| name).collect(),
            parts,
            most: None,
        },
    );
}

const fn mark(word: Word, is_relevant: bool) -> Mark {
    match word {
        Word::Better | Word::Worse if !is_relevant => Mark::Plain,
        Word::Better => Mark::Better,
        Word::Worse => Mark::Worse,
        Word::Same | Word::WithinNoise | Word::BelowError | Word::Unknown => Mark::Noise,
    }
}

/// What a variant means, as a mark: green and red are for what is more than noise, and enough to matter.
pub(super) const fn outcome_mark(gain: &Gain) -> Mark {
    match gain.outcome {
        Outcome::Same | Outcome::WithinNoise | Outcome::BelowError => Mark::Noise,
        _ if !gain.is_relevant => Mark::Plain,
        Outcome::Mixed => Mark::Plain,
        Outcome::Better | Outcome::LessCpu | Outcome::Worse => mark(gain.net_word, true),
    }
}

const fn means(word: Word) -> &'static str {
    match word {
        Word::Better => "better",
        Word::Worse => "worse",
        Word::Same => "the same",
        Word::WithinNoise => "within noise",
        Word::BelowError => "less than the replay is off by itself",
        Word::Unknown => "one replay only",
    }
}

fn loses(gain: &Gain) -> String {
    gain.most_lost().map_or(String::new(), |lost| {
        let verb = if lost.who == HOST_TASKS {
            "lose"
        } else {
            "loses"
        };
        format!("; {} {verb} {:.1}", lost.who, -lost.change.mean)
    })
}

/// What a variant gives and takes, as a sentence.
pub(super) fn sentence(gain: &Gain) -> String {
    format!(
        "Net {} ms a second, {}: waiting given back {}, CPU time freed {}, work {}{}.",
        estimate(&gain.net_change),
        word(gain.outcome),
        interval(&gain.given_back),
        interval(&gain.cpu_freed),
        interval(&gain.work),
        loses(gain)
    )
}

fn table(rows: &[Ranked<'_>], page: &mut Page) {
    let heads = [
        "#",
        "change",
        "means",
        "loses most",
        "net",
        "given back",
        "CPU freed",
        "work",
        "host's tasks wait",
    ];
    let mut table = Table::new("Ranking", &heads, 4);
    for (rank, Ranked { name, gain }) in (1_usize..).zip(rows) {
        let lost = gain.most_lost().map_or_else(
            || "-".to_owned(),
            |lost| format!("{} {:.1}", lost.who, -lost.change.mean),
        );
        table.row([
            rank.to_string().into(),
            (*name).into(),
            Cell {
                text: word(gain.outcome).to_owned(),
                below: String::new(),
                mark: Some(outcome_mark(gain)),
            },
            lost.into(),
            estimate(&gain.net_change).into(),
            interval(&gain.given_back).into(),
            interval(&gain.cpu_freed).into(),
            signed(gain.work.change.mean).into(),
            signed(-gain.host_tasks.change.mean).into(),
        ]);
    }
    page.table(table);
}

/// What to type for each change.
fn on_host(auto: &Auto, page: &mut Page) {
    let recipes = (1_usize..).zip(&auto.tried).flat_map(|(rank, tried)| {
        let changes = tried.on_host.iter();
        changes.map(move |change| recipe(rank, change))
    });
    let recipes: Vec<_> = recipes.collect();
    if !recipes.is_empty() {
        page.recipes("How to make a change, and how to undo it, as root", recipes);
    }
}

fn reasons(auto: &Auto, page: &mut Page) {
    let heads = ["changes", "tried because"];
    let mut table = Table::new("Why these", &heads, 2);
    for (ranks, reason) in auto.reasons() {
        table.row([ranks.into(), reason.into()]);
    }
    page.table(table);
}
