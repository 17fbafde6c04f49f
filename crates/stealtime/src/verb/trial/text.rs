//! A trial for a terminal.

use std::fmt::Write as _;

use stealtime_report::{counted, escape, wrap};
use stealtime_trial::{Fate, Outcome, Side};
use stealtime_whatif::{SeenTurns, TurnFigure, Word};

use super::document::TryDocument;

const WIDTH: usize = 100;

/// A sentence that goes on under itself.
fn paragraph(output: &mut String, indent: &str, text: &str) {
    for line in wrap(&escape::terminal(text), WIDTH - indent.len()) {
        let _ = writeln!(output, "{indent}{line}");
    }
}

/// What would be turned, and what is predicted of it.
pub(super) fn plan(document: &TryDocument) -> String {
    let mut output = String::new();
    let host = document.host.as_deref().unwrap_or("this host");
    let _ = writeln!(output, "Changes on {}:", escape::terminal(host));
    for turned in &document.turned {
        let line = format!(
            "{}: {}: {} -> {}",
            turned.knob, turned.target, turned.former, turned.tried
        );
        let _ = writeln!(output, "  {}", escape::terminal(&line));
    }
    for note in &document.notes {
        paragraph(&mut output, "  ", note);
    }
    predicted(&mut output, document);
    let turns = document.planned_turns;
    let line = format!(
        "Turns: {turns} of {} s, A (as it is) and B (changed) in turn; then all is taken back.",
        document.turn_s
    );
    paragraph(&mut output, "", &line);
    if !document.guards.is_empty() {
        let guards: Vec<String> = document.guards.iter().map(ToString::to_string).collect();
        let line = format!(
            "Stops early if {} in a slice of {} s.",
            guards.join(" or "),
            document.slice_s
        );
        paragraph(&mut output, "", &line);
    }
    output
}

fn predicted(output: &mut String, document: &TryDocument) {
    let prediction = &document.prediction;
    for reason in &prediction.not_answerable {
        paragraph(output, "", &format!("Not predicted: {reason}"));
    }
    if let Some(variant) = &prediction.variant {
        let error = prediction.error_percent.unwrap_or(0.0);
        let reliable = match prediction.is_close {
            Some(false) => "; that is too far off to rely on",
            _ => "",
        };
        let line = format!(
            "Predicted: {} (the replay as recorded is off by {error:.1} % at the median{reliable})",
            variant.verdict
        );
        paragraph(output, "", &line);
    }
}

/// What the turns show, and what to do.
pub(super) fn result(document: &TryDocument) -> String {
    let mut output = String::from("\n");
    if let Some(stopped) = &document.stopped {
        let turn = document.turns.len();
        let side = match document.turns.last().map(|turn| turn.side) {
            Some(Side::B) => " (B)",
            Some(Side::A) => " (A)",
            None => "",
        };
        let line = format!(
            "Stopped in turn {turn} of {}{side} {stopped}",
            document.planned_turns
        );
        paragraph(&mut output, "", &line);
    }
    if let Some(compared) = &document.seen {
        table(&mut output, &document.set.join(" "), compared);
    }
    output.push_str("Taken back\n");
    output.push_str(&restored(&document.restored));
    output.push('\n');
    let mut verdict = document.verdict.clone();
    if let Some(first) = verdict.get(..1) {
        let first = first.to_uppercase();
        verdict.replace_range(..1, &first);
    }
    paragraph(&mut output, "", &verdict);
    if document.is_an_option() {
        commands(&mut output, document);
    }
    output
}

/// The commands that keep the change.
fn commands(output: &mut String, document: &TryDocument) {
    for change in &document.commands {
        let managers = change.managers.iter().flat_map(|manager| &manager.set);
        let lines = [("to keep it", &change.set), ("undo", &change.undo)];
        for (name, commands) in lines {
            if !commands.is_empty() {
                let commands = commands.join("; ");
                let _ = writeln!(output, "{name}: {}", escape::terminal(&commands));
            }
        }
        for (name, commands) in [
            ("by the VM's manager", managers.cloned().collect()),
            ("over reboots", change.keep.clone()),
        ] {
            let commands: Vec<String> = commands;
            if !commands.is_empty() {
                let commands = commands.join("; ");
                let _ = writeln!(output, "{name}: {}", escape::terminal(&commands));
            }
        }
    }
}

fn table(output: &mut String, name: &str, compared: &SeenTurns) {
    let _ = writeln!(
        output,
        "{}: {} of turns, means and changes\n",
        escape::terminal(name),
        match compared.pairs {
            1 => "1 pair".to_owned(),
            pairs => format!("{pairs} pairs"),
        }
    );
    output.push_str(
        "  of            figure      unit         A         B         predicted             seen   spread  means\n",
    );
    for figure in &compared.figures {
        row(output, figure);
    }
    output.push('\n');
    paragraph(
        output,
        "  ",
        "ms/s: per second, of all vCPUs of the VM. A change counts if it is larger than its interval and \
         than the spread, the largest difference between turns that should be alike.",
    );
    let refuted = |refuted| {
        let figures = compared.figures.iter();
        figures
            .filter(|figure| figure.is_refuted == Some(refuted))
            .count()
    };
    let (held, wrong) = (refuted(false), refuted(true));
    if held + wrong > 0 {
        let line = format!(
            "Of {} predicted changes {wrong} {} refuted.",
            held + wrong,
            if wrong == 1 { "is" } else { "are" }
        );
        paragraph(output, "  ", &line);
    }
    for (vm, slices) in &compared.missing {
        let slices = counted(*slices as u64, "slice");
        let line = format!("{vm} is not in {slices}: its figures are of the others.");
        paragraph(output, "  ", &line);
    }
    for (vm, slices) in &compared.without_wakeups {
        let lack = if *slices == 1 { "it has" } else { "they have" };
        let slices = counted(*slices as u64, "slice");
        let line = format!("{vm} never wakes in {slices}: {lack} no wakeup p99.");
        paragraph(output, "  ", &line);
    }
    if compared.lost > 0 {
        let line = format!(
            "{} events were lost: figures are of what was recorded.",
            compared.lost
        );
        paragraph(output, "  ", &line);
    }
    output.push('\n');
}

fn row(output: &mut String, figure: &TurnFigure) {
    let interval = |mean: f64, half: Option<f64>| match half {
        Some(half) => format!("{mean:+.1} ±{half:.1}"),
        None => format!("{mean:+.1}"),
    };
    let predicted = figure
        .predicted
        .map_or_else(|| "-".to_owned(), |p| interval(p.mean, p.half_width));
    let refuted = match figure.is_refuted {
        Some(true) => ", prediction refuted",
        _ => "",
    };
    let mut name = escape::short(&figure.who, if figure.vm_guessed { 12 } else { 13 });
    if figure.vm_guessed {
        name.push('?');
    }
    let _ = writeln!(
        output,
        "  {name:<13} {:<11} {:<5} {:>9.1} {:>9.1} {predicted:>17} {:>16} {:>8.1}  {}{refuted}",
        figure.quantity,
        figure.unit,
        figure.without.mean,
        figure.with.mean,
        interval(figure.seen.mean, figure.seen.half_width),
        figure.spread,
        word(figure),
    );
}

fn word(figure: &TurnFigure) -> &'static str {
    match figure.word {
        Word::Better => "better",
        Word::Worse => "worse",
        Word::Same => "same",
        Word::WithinNoise | Word::BelowError => "noise",
        Word::Unknown => "unknown",
    }
}

/// What became of each value.
pub(super) fn restored(outcomes: &[Outcome]) -> String {
    let mut output = String::new();
    if outcomes.is_empty() {
        output.push_str("  nothing: no trial was left unfinished\n");
    }
    for outcome in outcomes {
        let former = &outcome.former;
        let fate = match &outcome.fate {
            Fate::Back => format!("{former} again"),
            Fate::Already => format!("{former}, as before"),
            Fate::Rebooted => "the host has rebooted since: nothing to take back".to_owned(),
            Fate::Gone { reason } => format!("{reason}: nothing to take back"),
            Fate::Foreign { present } => format!(
                "another program has set {present:?} meanwhile, which stays; before the trial: {former}"
            ),
            Fate::Failed { reason } => format!("NOT taken back: {reason}; it was {former}"),
        };
        let line = format!("{}: {}: {fate}", outcome.knob, outcome.target);
        let _ = writeln!(output, "  {}", escape::terminal(&line));
    }
    output
}
