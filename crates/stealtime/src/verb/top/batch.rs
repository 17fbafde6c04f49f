//! Samples as text or JSON lines.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Serialize;
use stealtime_collector::Sample;
use stealtime_host::{Scheduler, Share};
use stealtime_report::counted;

use super::view::{self, Column, Shape};
use crate::error::CliError;
use crate::output;
use crate::scheduler;
use crate::watched::{Cost, ROUND, Watched};

/// A line of JSON.
#[derive(Serialize)]
struct Line<'s> {
    #[serde(flatten)]
    sample: &'s Sample,
    collector: Cost,
    /// What scx_stealtime has counted since it was loaded, if it schedules this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduler: Option<Counted>,
}

/// Counters of scx_stealtime.
#[derive(Serialize)]
struct Counted {
    #[serde(flatten)]
    scheduler: Scheduler,
    /// Shares of CPU time in the interval, by control group.
    shares: Vec<Share>,
}

/// Writes samples until `duration` is over, the recording ends, or Ctrl-C.
pub(super) fn run(
    watched: &mut Watched,
    shape: &Shape,
    duration: Option<Duration>,
    limit: usize,
    is_json: bool,
) -> Result<(), CliError> {
    let stop = output::stop_by_interrupt();
    let began = Instant::now();
    let mut first = None;
    let mut former = watched.scheduler();
    loop {
        let goes_on = watched.poll()?;
        while let Some((mut sample, cost)) = watched.sample() {
            let first = *first.get_or_insert(sample.start_ns);
            let scheduler = watched.scheduler();
            let former = std::mem::replace(&mut former, scheduler.clone());
            if is_json {
                let counted = scheduler.map(|scheduler| Counted {
                    shares: scheduler.since(former.as_ref()).shares(),
                    scheduler,
                });
                write_json(&mut sample, cost, shape, counted)?;
            } else {
                let lines = scheduler.map(|now| scheduler::lines(&now, former.as_ref()));
                let text = text(&sample, &cost, shape, limit, &lines.unwrap_or_default());
                output::to_stdout(|writer| writer.write_all(text.as_bytes()))?;
            }
            // By the trace's clock: the last sample is whole, however late it comes.
            let shown = Duration::from_nanos(sample.end_ns.saturating_sub(first));
            if duration.is_some_and(|duration| shown >= duration) {
                return Ok(());
            }
        }
        // A host without events has no samples.
        let patience = Duration::from_secs(10);
        let is_late = duration.is_some_and(|limit| began.elapsed() > limit + patience);
        if !goes_on || stop.load(Ordering::Relaxed) || is_late && watched.is_timed() {
            return Ok(());
        }
        if watched.is_timed() {
            std::thread::sleep(ROUND);
        }
    }
}

fn write_json(
    sample: &mut Sample,
    collector: Cost,
    shape: &Shape,
    scheduler: Option<Counted>,
) -> Result<(), CliError> {
    let shown: Vec<i32> = view::vms(sample, shape)
        .iter()
        .map(|vm| first_tid(vm))
        .collect();
    let position =
        |vm: &stealtime_collector::Vm| shown.iter().position(|&tid| tid == first_tid(vm));
    sample.vms.retain(|vm| position(vm).is_some());
    sample.vms.sort_by_key(position);
    let line = Line {
        sample,
        collector,
        scheduler,
    };
    let mut text = serde_json::to_string(&line).unwrap_or_default();
    text.push('\n');
    output::to_stdout(|writer| writer.write_all(text.as_bytes()))
}

fn first_tid(vm: &stealtime_collector::Vm) -> i32 {
    vm.vcpus.first().map_or(0, |vcpu| vcpu.tid)
}

/// A sample as a table, with the lines of a loaded scheduler.
fn text(sample: &Sample, cost: &Cost, shape: &Shape, limit: usize, scheduler: &[String]) -> String {
    let mut text = format!(
        "{:.2} s: {}\n{}\n",
        sample.length_ns() as f64 / 1e9,
        view::summary(sample, cost),
        view::cpus(sample)
    );
    for line in scheduler {
        text.push_str(line);
        text.push('\n');
    }
    let rows = view::rows(sample, shape);
    let vms = rows.iter().filter(|row| !row.is_vcpu).count();
    let mut begun = 0;
    let is_shown = |row: &&view::Row| {
        begun += usize::from(!row.is_vcpu);
        begun <= limit
    };
    let shown: Vec<&view::Row> = rows.iter().filter(is_shown).collect();
    let widths = Column::ALL.map(|column| {
        let cells = shown
            .iter()
            .map(|row| row.cells[column as usize].chars().count());
        cells
            .chain([column.title().chars().count()])
            .max()
            .unwrap_or(0)
    });
    let titles = Column::ALL.map(|column| column.title().to_owned());
    for cells in std::iter::once(&titles).chain(shown.iter().map(|row| &row.cells)) {
        let mut line = String::new();
        for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
            // A String takes any text.
            let _ = match column {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    if vms > limit {
        let hidden = counted((vms - limit) as u64, "VM");
        text.push_str(&format!("and {hidden} more: --top {vms}\n"));
    }
    text.push('\n');
    text
}
