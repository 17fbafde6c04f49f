//! Variants by what they give and take, as tables.

use std::fmt::Write as _;

use stealtime_whatif::{Auto, Ranked, TOO_FAR, Variant, VmEffect, Word, ranked};

use super::paragraph;
use crate::escape;
use crate::terminal::decision::manager_name;
use crate::units::wrap;
use crate::whatif_text::{LEGEND, WORDS, amount, break_evens, estimate, interval, signed, word};

/// Columns for the name of a change: what the figures leave of 100.
const NAME: usize = 27;
/// Rows of a grid; all are in the JSON and the first ones in a report.
const MOST_ROWS: usize = 60;

/// What `--auto` found.
pub(super) fn auto(output: &mut String, auto: &Auto, close: bool) {
    if auto.tried.is_empty() {
        output.push_str(
            "\nNothing to try: no time of 1% or more is lost to what a replay can change\n",
        );
    } else {
        let title = format!(
            "Tried: {} changes, each alone{}, {} replays of each ({} replays in all)",
            auto.tried.len(),
            match auto.on_top_of.is_empty() {
                true => String::new(),
                false => format!(" on top of {}", auto.on_top_of),
            },
            auto.seeds,
            auto.replays
        );
        ranking(output, &title, &auto.rows(), close);
        if auto.left_out > 0 {
            let _ = writeln!(output, "  {} more were left out", auto.left_out);
        }
        by_vm(output, auto);
        reasons(output, auto);
        on_host(output, auto);
    }
    cannot(output, auto);
}

/// All variants of a grid, the best first.
pub(super) fn grid(output: &mut String, variants: &[Variant], close: bool) {
    let mut rows = ranked(variants);
    rows.truncate(MOST_ROWS);
    let title = format!("{} variants, the best first", variants.len());
    ranking(output, &title, &rows, close);
    if variants.len() > MOST_ROWS {
        let omitted = variants.len() - MOST_ROWS;
        let _ = writeln!(
            output,
            "  {omitted} more give less; --json has all, in the order of the grid"
        );
    }
}

fn ranking(output: &mut String, title: &str, rows: &[Ranked<'_>], close: bool) {
    output.push('\n');
    paragraph(output, "", title);
    paragraph(output, "  ", LEGEND);
    let _ = writeln!(
        output,
        " #  {:<NAME$}  {:>13}  {:>10} {:>6} {:>6}  {:<8} loses most",
        "change", "net", "given back", "freed", "work", "means"
    );
    for (rank, ranked) in (1..).zip(rows) {
        row(output, rank, ranked);
    }
    paragraph(output, "  ", WORDS);
    for (rank, break_even) in break_evens(rows) {
        paragraph(output, "  ", &format!("{rank}: {break_even}."));
    }
    if !close {
        paragraph(output, "  ", &format!("Note: {TOO_FAR}."));
    }
}

fn row(output: &mut String, rank: usize, Ranked { name, gain }: &Ranked<'_>) {
    let lost = gain.most_lost().map_or("-".to_owned(), |lost| {
        let loser = escape::short(&lost.who, 10);
        format!("{loser} {}", amount(-lost.change.mean))
    });
    // A pin stays in one piece.
    let name = escape::terminal(name).replace("pin ", "pin\u{a0}");
    let lines = wrap(&name, NAME).into_iter();
    let mut lines = lines.map(|line| line.replace('\u{a0}', " "));
    let _ = writeln!(
        output,
        "{rank:>2}  {:<NAME$}  {:>13}  {:>10} {:>6} {:>6}  {:<8} {lost}",
        lines.next().unwrap_or_default(),
        estimate(&gain.net_change),
        signed(gain.given_back.change.mean),
        signed(gain.cpu_freed.change.mean),
        signed(gain.work.change.mean),
        word(gain.outcome),
    );
    for line in lines {
        let _ = writeln!(output, "      {line}");
    }
}

/// Whether a VM's row says anything.
fn stands_out(vm: &VmEffect) -> bool {
    let words = [vm.given_back.word, vm.work.word, vm.wakeup_p99_us.word];
    words
        .iter()
        .any(|word| matches!(word, Word::Better | Word::Worse))
}

fn by_vm(output: &mut String, auto: &Auto) {
    if !auto
        .tried
        .iter()
        .any(|tried| tried.gain.vms.iter().any(stands_out))
    {
        output.push_str(
            "\nNo VM gains or loses more than noise and than what the replay is off by\n",
        );
        return;
    }
    output.push_str(
        "\nBy VM, where it gains or loses more than noise and than the replay is off by\n",
    );
    let _ = writeln!(
        output,
        "   #  {:<12}  {:<15}  {:>13} {:<8}  {:>7} {:<8}  {:<15}",
        "VM", "waits, ms/s", "given back", "", "work", "", "p99 wakeup, us"
    );
    for (index, tried) in auto.tried.iter().enumerate() {
        for vm in tried.gain.vms.iter().filter(|vm| stands_out(vm)) {
            vm_row(output, index + 1, vm);
        }
    }
}

fn vm_row(output: &mut String, rank: usize, vm: &VmEffect) {
    let (given_back, p99) = (&vm.given_back, &vm.wakeup_p99_us);
    let wakeups = match p99.before == 0.0 && p99.after == 0.0 {
        true => ("-".to_owned(), ""),
        false => (
            format!("{:.0} > {:.0}", p99.before, p99.after),
            meaning(p99.word),
        ),
    };
    let line = format!(
        "  {rank:>2}  {:<12}  {:<15}  {:>13} {:<8}  {:>7} {:<8}  {:<13} {}",
        escape::short(&given_back.who, 12),
        format!("{:.1} > {:.1}", given_back.before, given_back.after),
        interval(given_back),
        meaning(given_back.word),
        signed(vm.work.change.mean),
        meaning(vm.work.word),
        wakeups.0,
        wakeups.1,
    );
    output.push_str(line.trim_end());
    output.push('\n');
}

const fn meaning(word: Word) -> &'static str {
    match word {
        Word::Better => "better",
        Word::Worse => "worse",
        Word::Same => "the same",
        Word::WithinNoise => "noise",
        Word::BelowError => "< error",
        Word::Unknown => "unknown",
    }
}

fn reasons(output: &mut String, auto: &Auto) {
    output.push_str("\nTried because\n");
    for (ranks, reason) in auto.reasons() {
        paragraph(output, "  ", &format!("{ranks}: {reason}"));
    }
}

/// What to type for each change. Commands are not wrapped between words: they stay whole for copies.
fn on_host(page: &mut String, auto: &Auto) {
    page.push_str("\nOn the host, as root; `undo` restores what is recorded or assumed\n");
    for (rank, tried) in (1_usize..).zip(&auto.tried) {
        let mut number = format!("{rank:>2}");
        for change in &tried.on_host {
            let acts = change.acts.as_deref().unwrap_or("on no host");
            let acts = match change.needs_kernel {
                true => format!("{acts}, with another kernel"),
                false => acts.to_owned(),
            };
            paragraph(
                page,
                &format!("  {number}  "),
                &format!("{}, {acts}", change.change),
            );
            number = "  ".to_owned();
            for step in &change.set {
                let _ = writeln!(page, "        {}", escape::terminal(step));
            }
            for step in &change.undo {
                let _ = writeln!(page, "        undo: {}", escape::terminal(step));
            }
            if !change.note.is_empty() {
                paragraph(page, "        ", &format!("note: {}", change.note));
            }
            for commands in &change.managers {
                let name = manager_name(commands.manager);
                paragraph(page, "        ", &format!("by {name}, {}", commands.acts));
                for step in &commands.set {
                    let _ = writeln!(page, "        {}", escape::terminal(step));
                }
                for step in &commands.undo {
                    let _ = writeln!(page, "        undo: {}", escape::terminal(step));
                }
                if !commands.note.is_empty() {
                    paragraph(page, "        ", &format!("note: {}", commands.note));
                }
            }
        }
    }
}

fn cannot(output: &mut String, auto: &Auto) {
    if auto.cannot.is_empty() {
        return;
    }
    output.push_str("\nNot for a replay to answer\n");
    for question in &auto.cannot {
        let text = format!(
            "{}: {}. Instead: {}",
            question.what, question.why, question.instead
        );
        paragraph(output, "  ", &text);
    }
}
