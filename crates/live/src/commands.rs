//! The commands of trace-cmd and perf that record the same events on this kernel.

use std::fmt::Write as _;

use serde::Serialize;

use crate::RecordError;
use crate::clock;
use crate::perf::attributes::{self, Attributes};
use crate::select::{Missing, Selection, Tracepoint};
use crate::tracefs::Folder;

/// Commands for other tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Commands {
    /// For trace-cmd.
    pub trace_cmd: String,
    /// For perf, without the events that the kernel refuses to sample.
    pub perf: String,
    /// Events that perf may not sample, and the kernel's reason.
    pub refused: Vec<Refused>,
    /// Events that this kernel lacks.
    pub missing: Vec<Missing>,
}

/// An event that the kernel refuses to sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// `system:name`.
    pub event: String,
    /// The operating system's error.
    pub error: String,
}

/// Makes the commands for this kernel. Each event is probed.
///
/// # Errors
/// tracefs cannot be used, the kernel has no `sched_switch`, or no clock of the name asked for.
pub fn commands(asked_clock: Option<&str>, seconds: f64) -> Result<Commands, RecordError> {
    let tracefs = Folder::tracefs()?;
    let selection = Selection::probe(&tracefs)?;
    let source = clock::source("/sys".as_ref());
    let clocks = tracefs.text("trace_clock")?;
    let clock = clock::choose(&clocks, source.as_deref(), asked_clock)?.name;
    let mut refused = Vec::new();
    let mut sampled = Vec::new();
    for point in &selection.tracepoints {
        match refusal(&tracefs, point) {
            None => sampled.push(point),
            Some(error) => refused.push(Refused {
                event: format!("{}:{}", point.system, point.name),
                error,
            }),
        }
    }
    // perf has the clocks of clock_gettime; its own clock is the trace clock `perf`.
    let perf_clock = match &*clock {
        "mono" | "boot" | "mono_raw" | "tai" => format!(" -k {clock}"),
        _ => String::new(),
    };
    let recorded = selection.tracepoints.iter();
    Ok(Commands {
        trace_cmd: format!(
            "trace-cmd record -o trace.dat -C {clock} -b 30000{} sleep {seconds}",
            options(recorded)
        ),
        perf: format!(
            "perf record -a{perf_clock} -m 8M -o perf.data{} sleep {seconds}",
            options(sampled.into_iter())
        ),
        refused,
        missing: selection.missing,
    })
}

/// `-e` for each event, a line for each system.
fn options<'a>(points: impl Iterator<Item = &'a Tracepoint>) -> String {
    let mut text = String::new();
    let mut system = None;
    for point in points {
        let separator = if system == Some(&point.system) {
            " "
        } else {
            " \\\n    "
        };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}-e {}:{}", point.system, point.name);
        system = Some(&point.system);
    }
    if !text.is_empty() {
        text.push_str(" \\\n   ");
    }
    text
}

/// Tries to open an event for sampling on CPU 0; returns why it cannot be.
fn refusal(tracefs: &Folder, point: &Tracepoint) -> Option<String> {
    let id = match tracefs.text(&point.file("id")) {
        Ok(id) => id,
        Err(error) => return Some(error.to_string()),
    };
    match id
        .parse()
        .map(|id| attributes::open(&Attributes::tracepoint(id), 0))
    {
        Ok(opened) => opened.err().map(|error| error.to_string()),
        Err(_) => Some(format!("its id is {id:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_system_share_a_line() {
        let point = |system: &str, name: &str| Tracepoint {
            system: system.to_owned(),
            name: name.to_owned(),
        };
        let points = [
            point("sched", "sched_switch"),
            point("sched", "sched_waking"),
            point("kvm", "kvm_exit"),
        ];
        assert_eq!(
            options(points.iter()),
            " \\\n    -e sched:sched_switch -e sched:sched_waking \\\n    -e kvm:kvm_exit \\\n   "
        );
        assert_eq!(options([].iter()), "");
    }
}
