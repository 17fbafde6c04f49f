//! What the recording is, and what to look at in it.

use stealtime_analysis::Answers;

use super::{Style, paragraph};
use crate::escape;
use crate::units::{Times, count, counted};

/// Notes shown; all of them are in the JSON.
const NOTES: usize = 8;

/// A line each for the recording, the host, the VMs and every note.
pub(super) fn render(answers: &Answers, style: Style, out: &mut String) {
    let source = &answers.source;
    let times = Times::of(&source.clock_unit);
    out.push_str(&style.bold(&escape::terminal(&source.path)));
    out.push('\n');

    let mut facts = vec![source.format.clone()];
    facts.extend(source.compression.clone());
    if !source.clock.is_empty() {
        facts.push(format!("clock {}", source.clock));
    }
    facts.push(format!(
        "{} on {}",
        times.show(source.span_ns),
        counted(source.cpus.into(), "CPU")
    ));
    facts.push(counted(source.events, "event"));
    facts.push(lost(answers));
    // A unit of two columns is for tables only.
    let line = facts.join(", ").replace("  s", " s");
    paragraph(&line, "  ", style, str::to_owned, out);

    if let Some(uname) = &source.uname {
        paragraph(&format!("host: {uname}"), "  ", style, str::to_owned, out);
    }
    paragraph(&vms(answers), "  ", style, str::to_owned, out);
    for note in source.notes.iter().take(NOTES) {
        paragraph(
            &format!("note: {note}"),
            "  ",
            style,
            |line| style.warn(line),
            out,
        );
    }
    if source.notes.len() > NOTES {
        let more = format!("note: {} more in the JSON", source.notes.len() - NOTES);
        paragraph(&more, "  ", style, |line| style.warn(line), out);
    }
    if source.partial {
        let text = "Partial: less was read than was recorded; every number below is of what was \
                    read.";
        paragraph(text, "  ", style, |line| style.warn(line), out);
    }
}

fn lost(answers: &Answers) -> String {
    let source = &answers.source;
    let mut text = match source.lost {
        0 if source.lost_gaps == 0 => return "none lost".to_owned(),
        0 => String::new(),
        lost => format!("{} lost", count(lost)),
    };
    if source.lost_gaps > 0 {
        if !text.is_empty() {
            text.push_str(" and ");
        }
        text.push_str(&counted(source.lost_gaps, "gap"));
        text.push_str(" of unknown loss");
    }
    text
}

fn vms(answers: &Answers) -> String {
    if answers.vms.is_empty() {
        return "no VM: nothing ran a vCPU here".to_owned();
    }
    let vms: Vec<_> = answers
        .vms
        .iter()
        .map(|vm| format!("{} ({})", vm.vm, counted(vm.vcpus.into(), "vCPU")))
        .collect();
    let mut how: Vec<_> = answers
        .vms
        .iter()
        .map(|vm| vm.grouped_by.as_str())
        .collect();
    how.sort_unstable();
    how.dedup();
    format!("VMs: {}; told apart by: {}", vms.join(", "), how.join(", "))
}

/// The findings, numbered.
pub(super) fn findings(answers: &Answers, style: Style, out: &mut String) {
    out.push('\n');
    out.push_str(&style.bold("What to look at"));
    out.push('\n');
    if answers.findings.is_empty() {
        out.push_str("  Nothing that is known to cost guest time was found.\n");
        return;
    }
    for (i, finding) in answers.findings.iter().enumerate() {
        let about = if finding.vm.is_empty() || finding.what.contains(&finding.vm) {
            String::new()
        } else {
            format!("{}: ", finding.vm)
        };
        let head = format!("{}. {about}{} [{}]", i + 1, finding.what, finding.id);
        paragraph(&head, "  ", style, |line| style.warn(line), out);
        paragraph(&finding.evidence, "     ", style, str::to_owned, out);
        if !finding.next.is_empty() {
            let next = format!("next: {}", finding.next);
            paragraph(&next, "     ", style, str::to_owned, out);
        }
    }
}
