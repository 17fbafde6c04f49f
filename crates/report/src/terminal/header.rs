//! What the recording is, and what to look at in it.

use stealtime_analysis::Answers;
use stealtime_analysis::answers::Finding;
use stealtime_whatif::Remedy;

use super::Screen;
use super::decision::manager_name;
use crate::escape;
use crate::units::{Times, count, counted};

/// Notes shown: more would push the tables off the first screen. All of them are in the JSON.
const NOTES: usize = 8;
/// VMs named in the header; the table of VMs has more.
const VMS: usize = 12;
/// Findings shown, unless fewer rows are asked for.
const FINDINGS: usize = 12;

/// What is to be known of all numbers of a recording that was not read whole.
pub(crate) const PARTIAL: &str = "Partial: less was read than was recorded; every number below is of \
                                  what was read.";

/// A line each for the recording, the host, the VMs and every note.
pub(super) fn render(answers: &Answers, screen: &mut Screen) {
    let source = &answers.source;
    // A path stays in one piece for copies.
    screen.heading(&escape::terminal(&source.path));
    if source.partial {
        screen.warn(2, PARTIAL);
    }
    for fact in facts(answers) {
        screen.plain(2, &fact);
    }
    for note in source.notes.iter().take(NOTES) {
        screen.warn(2, &format!("note: {note}"));
    }
    if source.notes.len() > NOTES {
        let text = format!("note: {} more in the JSON", source.notes.len() - NOTES);
        screen.warn(2, &text);
    }
}

/// What the recording and its host are, and the VMs in it, a line each.
pub(crate) fn facts(answers: &Answers) -> Vec<String> {
    let source = &answers.source;
    let times = Times::of(&source.clock_unit);
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
    let mut lines = vec![facts.join(", ").replace("  s", " s")];
    lines.extend(source.uname.iter().map(|uname| format!("host: {uname}")));
    lines.push(vms(answers));
    lines.extend(super::overview::facts(answers, times));
    lines
}

fn lost(answers: &Answers) -> String {
    let source = &answers.source;
    let mut text = match source.lost {
        // Of what was not read nothing is known.
        0 if source.lost_gaps == 0 && source.partial => {
            return "none known to be lost in what was read".to_owned();
        }
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
        return match answers.source.partial {
            true => "no VM: nothing that could be read tells of a vCPU".to_owned(),
            false => "no VM: nothing ran a vCPU here".to_owned(),
        };
    }
    let mut vms: Vec<_> = answers
        .vms
        .iter()
        .take(VMS)
        .map(|vm| format!("{} ({})", vm.vm, counted(vm.vcpus.into(), "vCPU")))
        .collect();
    if let Some(hidden) = answers.vms.get(VMS..).filter(|hidden| !hidden.is_empty()) {
        let vcpus = hidden.iter().map(|vm| u64::from(vm.vcpus)).sum();
        vms.push(format!(
            "and {} more ({})",
            hidden.len(),
            counted(vcpus, "vCPU")
        ));
    }
    let mut groupings: Vec<_> = answers
        .vms
        .iter()
        .map(|vm| vm.grouped_by.as_str())
        .collect();
    groupings.sort_unstable();
    groupings.dedup();
    let mark = match answers.vms.iter().any(|vm| vm.guessed) {
        true => " (? marks a guess)",
        false => "",
    };
    format!(
        "VMs: {}; grouped by: {}{mark}",
        vms.join(", "),
        groupings.join(", ")
    )
}

/// What stands instead of no findings.
pub(crate) fn no_finding(answers: &Answers) -> &'static str {
    if answers.vcpus.is_empty() {
        "No vCPU was seen, so there was nothing to look into."
    } else {
        "Nothing that is known to cost guest time was found."
    }
}

/// The VM that a finding is about, where it does not say so itself.
pub(crate) fn about(finding: &Finding) -> String {
    if finding.vm.is_empty() || finding.what.contains(&finding.vm) {
        String::new()
    } else {
        format!("{}: ", finding.vm)
    }
}

/// How many findings of each kind are left out.
pub(crate) fn more_findings(findings: &[Finding]) -> Option<String> {
    if findings.is_empty() {
        return None;
    }
    let mut counts: Vec<(&str, u64)> = Vec::new();
    for finding in findings {
        match counts.iter_mut().find(|(id, _)| *id == finding.id) {
            Some((_, found)) => *found += 1,
            None => counts.push((&finding.id, 1)),
        }
    }
    let kinds: Vec<String> = counts
        .iter()
        .map(|(id, found)| format!("{found} {id}"))
        .collect();
    let text = counted(findings.len() as u64, "more finding");
    Some(format!("And {text}: {}; JSON has all.", kinds.join(", ")))
}

/// How many findings are shown.
pub(crate) fn shown_findings(answers: &Answers, top: usize) -> (&[Finding], &[Finding]) {
    let shown = answers.findings.len().min(top).min(FINDINGS);
    answers.findings.split_at(shown)
}

/// What to set: the change, or the knob where no commands are known.
pub(crate) fn settings(remedy: &Remedy) -> Vec<String> {
    match (&remedy.knob, remedy.changes.as_slice()) {
        (Some(knob), []) => vec![knob.clone()],
        (_, changes) => changes.iter().map(|change| change.change.clone()).collect(),
    }
}

/// Commands that make a remedy and undo it, each behind its label.
pub(crate) fn commands(remedy: &Remedy) -> Vec<(String, &str)> {
    let mut commands = Vec::new();
    let mut add = |label: String, steps| {
        let steps: &[String] = steps;
        commands.extend(steps.iter().map(|step| (label.clone(), step.as_str())));
    };
    for change in &remedy.changes {
        add("do".to_owned(), &change.set);
        add("undo".to_owned(), &change.undo);
        for steps in &change.managers {
            let manager = manager_name(steps.manager);
            add(format!("do by {manager}"), &steps.set);
            add(format!("undo by {manager}"), &steps.undo);
        }
    }
    commands
}

/// The findings, numbered.
pub(super) fn findings(answers: &Answers, remedies: &[Remedy], top: usize, screen: &mut Screen) {
    screen.heading("What to look at");
    if answers.findings.is_empty() {
        screen.plain(2, no_finding(answers));
    }
    let (shown, hidden) = shown_findings(answers, top);
    for (i, finding) in shown.iter().enumerate() {
        let about = about(finding);
        let head = format!("{}. {about}{} [{}]", i + 1, finding.what, finding.id);
        screen.warn(2, &head);
        screen.plain(5, &finding.evidence);
        if !finding.next.is_empty() {
            let next = format!("next: {}", finding.next);
            screen.plain(5, &next);
        }
        if let Some(remedy) = remedies.iter().find(|remedy| remedy.finding == i) {
            screen.plain(5, &format!("set: {}", settings(remedy).join(", ")));
            for (label, command) in commands(remedy) {
                screen.command(5, &label, command);
            }
        }
    }
    if let Some(text) = more_findings(hidden) {
        screen.plain(2, &text);
    }
}
