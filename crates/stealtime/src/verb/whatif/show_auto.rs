//! What `--auto` found, as tables.

use std::fmt::Write as _;

use stealtime_report::escape;
use stealtime_report::wrap;

use super::auto::{Auto, Effect, Outcome, Tried, VmEffect, Word};

/// Columns of a terminal.
const WIDTH: usize = 100;
/// Columns for the name of a change.
const NAME: usize = 31;

/// All of it.
pub(super) fn auto(out: &mut String, auto: &Auto) {
    if auto.tried.is_empty() {
        out.push_str(
            "\nNothing to try: no time of 1% or more is lost to what a replay can change\n",
        );
    } else {
        ranking(out, auto);
        by_vm(out, auto);
        reasons(out, auto);
    }
    cannot(out, auto);
}

fn ranking(out: &mut String, auto: &Auto) {
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
    out.push('\n');
    paragraph(out, "", &title);
    let legend = "Given back: waiting for a CPU that vCPUs are spared, in ms per second of all vCPUs' \
        time. Loses most: the VM (in ms per second of its vCPUs' time) or the host's tasks, VMMs' other \
        threads among them (ms/s), by waiting longer or by getting less done. Undone: what all get less \
        done of what was recorded, ms/s. Host CPU: what the host spends more, ms/s.";
    paragraph(out, "  ", legend);
    let _ = writeln!(
        out,
        "   #  {:<NAME$}  {:>13}  {:<17}  {:>7}  {:>8}  means",
        "change", "given back", "loses most", "undone", "host CPU"
    );
    for (at, tried) in auto.tried.iter().enumerate() {
        row(out, at + 1, tried);
    }
    if auto.left_out > 0 {
        let _ = writeln!(out, "  {} more were left out", auto.left_out);
    }
    let noise = "noise: the 95% interval includes 0. < error: less than the replay as recorded is off \
        by itself.";
    paragraph(out, "  ", noise);
}

fn row(out: &mut String, rank: usize, tried: &Tried) {
    let lost = tried.most_lost().map_or("-".to_owned(), |lost| {
        let who = escape::terminal(&lost.who).into_owned();
        format!("{who:<10.10} {:>6.1}", -lost.change.mean)
    });
    // A pin stays in one piece.
    let name = escape::terminal(&tried.name).replace("pin ", "pin\u{a0}");
    let lines = wrap(&name, NAME).into_iter();
    let mut lines = lines.map(|line| line.replace('\u{a0}', " "));
    let _ = writeln!(
        out,
        "  {rank:>2}  {:<NAME$}  {:>13}  {lost:<17}  {:>7}  {:>8}  {}",
        lines.next().unwrap_or_default(),
        interval(&tried.given_back),
        signed(-tried.work.change.mean),
        signed(tried.host_cpu.change.mean),
        word(tried.outcome),
    );
    for line in lines {
        let _ = writeln!(out, "        {line}");
    }
}

fn interval(effect: &Effect) -> String {
    let half = effect.change.half_width.unwrap_or(0.0);
    format!("{} ±{half:.1}", signed(effect.change.mean))
}

/// With its sign, and no sign where nothing shows.
fn signed(value: f64) -> String {
    let text = format!("{value:+.1}");
    match text.trim_start_matches(['+', '-']) {
        "0.0" => "0.0".to_owned(),
        _ => text,
    }
}

const fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Better => "better",
        Outcome::Mixed => "mixed",
        Outcome::LessCpu => "less CPU",
        Outcome::Same => "the same",
        Outcome::WithinNoise => "noise",
        Outcome::BelowError => "< error",
        Outcome::Worse => "worse",
    }
}

/// Whether a VM's row says anything.
fn stands_out(vm: &VmEffect) -> bool {
    let words = [vm.given_back.word, vm.work.word, vm.wakeup_p99_us.word];
    words
        .iter()
        .any(|word| matches!(word, Word::Better | Word::Worse))
}

fn by_vm(out: &mut String, auto: &Auto) {
    if !auto
        .tried
        .iter()
        .any(|tried| tried.vms.iter().any(stands_out))
    {
        out.push_str("\nNo VM gains or loses more than noise and than what the replay is off by\n");
        return;
    }
    out.push_str(
        "\nBy VM, where it gains or loses more than noise and than the replay is off by\n",
    );
    let _ = writeln!(
        out,
        "   #  {:<12}  {:<15}  {:>13} {:<8}  {:>7} {:<8}  {:<15}",
        "VM", "waits, ms/s", "given back", "", "work", "", "p99 wakeup, us"
    );
    for (at, tried) in auto.tried.iter().enumerate() {
        for vm in tried.vms.iter().filter(|vm| stands_out(vm)) {
            vm_row(out, at + 1, vm);
        }
    }
}

fn vm_row(out: &mut String, rank: usize, vm: &VmEffect) {
    let (given, p99) = (&vm.given_back, &vm.wakeup_p99_us);
    let wakeups = match p99.before == 0.0 && p99.after == 0.0 {
        true => ("-".to_owned(), ""),
        false => (
            format!("{:.0} > {:.0}", p99.before, p99.after),
            meaning(p99.word),
        ),
    };
    let line = format!(
        "  {rank:>2}  {:<12.12}  {:<15}  {:>13} {:<8}  {:>7} {:<8}  {:<13} {}",
        escape::terminal(&given.who),
        format!("{:.1} > {:.1}", given.before, given.after),
        interval(given),
        meaning(given.word),
        signed(vm.work.change.mean),
        meaning(vm.work.word),
        wakeups.0,
        wakeups.1,
    );
    out.push_str(line.trim_end());
    out.push('\n');
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

fn reasons(out: &mut String, auto: &Auto) {
    out.push_str("\nTried because\n");
    let mut told: Vec<&str> = Vec::new();
    for tried in &auto.tried {
        if told.contains(&tried.why.as_str()) {
            continue;
        }
        told.push(&tried.why);
        let places = (1..)
            .zip(&auto.tried)
            .filter(|(_, other)| other.why == tried.why);
        let places: Vec<String> = places.map(|(at, _): (usize, _)| at.to_string()).collect();
        paragraph(out, "  ", &format!("{}: {}", places.join(", "), tried.why));
    }
}

fn cannot(out: &mut String, auto: &Auto) {
    if auto.cannot.is_empty() {
        return;
    }
    out.push_str("\nNot for a replay to answer\n");
    for one in &auto.cannot {
        let text = format!("{}: {}. Instead: {}", one.what, one.why, one.instead);
        paragraph(out, "  ", &text);
    }
}

/// Text that goes on under itself.
fn paragraph(out: &mut String, indent: &str, text: &str) {
    let text = escape::terminal(text).into_owned();
    let mut hang = "";
    for line in wrap(&text, WIDTH - indent.len() - 2) {
        let _ = writeln!(out, "{indent}{hang}{line}");
        hang = "  ";
    }
}
