//! A trigger as a line of text or JSON.

use std::path::Path;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use stealtime_collector::Stall;
use stealtime_report::escape;
use stealtime_whatif::Watched;

use super::disk::{Done, Outcome};
use super::trigger::{Seen, Trigger};
use crate::verb::record::size;
use crate::verb::top::vcpu_name;

/// VMs and conditions that a line of text has.
const SHOWN: usize = 3;

/// The object of a line of JSON.
#[derive(Serialize)]
struct Line<'t> {
    time: Option<String>,
    #[serde(flatten)]
    trigger: &'t Trigger,
    file: Option<&'t Path>,
    bytes: Option<u64>,
    seconds: Option<f64>,
    not_recorded: Option<&'static str>,
    error: Option<&'t str>,
}

/// As `date -u` has it in RFC 3339.
fn utc(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// A line of JSON.
pub(super) fn json(end: &Done) -> String {
    let (mut file, mut written, mut seconds) = (None, None, None);
    if let Outcome::Recorded {
        file: path,
        bytes,
        seconds: time,
    } = &end.outcome
    {
        (file, written, seconds) = (Some(&**path), Some(*bytes), Some(*time));
    }
    let line = Line {
        time: end.time.map(utc),
        trigger: &end.trigger,
        file,
        bytes: written,
        seconds,
        not_recorded: match &end.outcome {
            Outcome::Recorded { .. } | Outcome::Replayed => None,
            Outcome::AtMost => Some("at_most"),
            Outcome::MaxSize { .. } => Some("max_size"),
            Outcome::Busy => Some("busy"),
            Outcome::Failed(_) => Some("error"),
        },
        error: match &end.outcome {
            Outcome::Failed(error) => Some(error),
            _ => None,
        },
    };
    // A path that is no UTF-8 has no JSON; its trigger is shown all the same.
    serde_json::to_string(&line)
        .or_else(|_| serde_json::to_string(&Line { file: None, ..line }))
        .unwrap_or_default()
}

/// A line of text, safe for a terminal.
pub(super) fn text(end: &Done, at_most: &str) -> String {
    let trigger = &end.trigger;
    let time = match end.time {
        Some(time) => utc(time),
        None => format!("{:.3} s", trigger.offset_ns as f64 / 1e9),
    };
    let shown: Vec<String> = trigger.seen.iter().take(SHOWN).map(sentence).collect();
    let further = trigger.further + trigger.seen.len().saturating_sub(SHOWN);
    let further = match further {
        0 => String::new(),
        count => format!("; and {count} more"),
    };
    let partial = match trigger.partial {
        true => " (events are lost: lower bounds)",
        false => "",
    };
    let outcome = match &end.outcome {
        Outcome::Recorded {
            file,
            bytes,
            seconds,
        } => format!(" -> {}, {seconds:.1} s, {}", file.display(), size(*bytes)),
        Outcome::AtMost => format!("; not recorded: --at-most {at_most}"),
        Outcome::MaxSize { bytes } => format!(
            "; not recorded: {} more would pass --max-size",
            size(*bytes)
        ),
        Outcome::Busy => "; not recorded: former recordings are still written".to_owned(),
        Outcome::Failed(error) => format!("; not recorded: {error}"),
        Outcome::Replayed => String::new(),
    };
    let line = format!("{time}  {}{further}{partial}{outcome}", shown.join("; "));
    escape::terminal(&line).into_owned()
}

/// What was seen of a VM.
fn sentence(finding: &Seen) -> String {
    let met = finding.met.to_string();
    match (finding.met.condition.figure, &finding.longest_wait) {
        (Watched::Stall, Some(wait)) => return format!("{met}: {}", waited(wait)),
        (Watched::Stall | Watched::Throttled, _) => return met,
        _ => {}
    }
    let mut causes = finding.ready.rows();
    causes.sort_by_key(|row| std::cmp::Reverse(row.1));
    match causes.first() {
        Some((cause, ns)) if *ns > 0 => {
            let share = 100.0 * *ns as f64 / finding.ready_ns.max(1) as f64;
            format!("{met}: {share:.0} % of ready is {cause}")
        }
        _ => met,
    }
}

/// A wait for a CPU: which vCPU, where, and by what.
fn waited(wait: &Stall) -> String {
    let vcpu = vcpu_name(wait.vcpu, wait.tid);
    let cause = match wait.who.is_empty() {
        true => wait.cause.to_owned(),
        false => format!("{} {}", wait.cause, wait.who),
    };
    let still = if wait.goes_on { ", goes on" } else { "" };
    format!("{vcpu} {} on CPU {}, {cause}{still}", wait.kind, wait.cpu)
}
