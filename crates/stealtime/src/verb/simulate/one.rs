//! One run of a variant, looked at closely: its events as a file, or its first milliseconds drawn.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use stealtime_events::Event;
use stealtime_lab::run::{RunError, RunOutput};
use stealtime_lab::scenario::{Scenario, Variant};
use stealtime_lab::simulate::traced;
use stealtime_report::terminal::Style;
use stealtime_report::terminal::timeline::Timeline;
use stealtime_simulator::config::Config;
use stealtime_simulator::{NameList, Sink};
use stealtime_trace::write::{Options, TraceDatWriter, WriteError};

use super::super::run_args::unusable;
use super::host::{Threads, snapshot};
use crate::error::CliError;
use crate::output;

/// CPUs that are drawn if none are named.
const MOST_DRAWN: u16 = 16;

/// The configuration of a variant with the scenario's first seed.
fn config(scenario: &Scenario, variant: &Variant) -> Result<Config, CliError> {
    let seed = scenario.seeds.first().copied().unwrap_or(1);
    scenario.config(variant, seed).map_err(unusable)
}

fn ended(result: Result<RunOutput, RunError>, variant: &Variant) -> Result<(), CliError> {
    match result {
        Ok(_) => Ok(()),
        Err(RunError::Stopped) => Err(CliError::Stopped),
        Err(error) => Err(CliError::Simulate(format!(
            "variant {}: {error}",
            variant.name
        ))),
    }
}

/// Writes events as they come; the first error ends it.
struct ToFile {
    writer: TraceDatWriter,
    names: NameList,
    threads: Threads,
    failed: Option<WriteError>,
}

impl Sink for ToFile {
    fn begin(&mut self, names: &NameList, _cpus: u32) {
        self.names = names.clone();
    }

    fn event(&mut self, event: &Event) {
        self.threads.event(event, &self.names);
        if self.failed.is_none() {
            self.failed = self.writer.push(event, &self.names).err();
        }
    }
}

/// Writes one run as trace.dat, warm-up included, with the snapshot of its host.
pub(super) fn trace(
    scenario: &Scenario,
    variant: &Variant,
    path: &Path,
    stop: &AtomicBool,
) -> Result<(), CliError> {
    let config = config(scenario, variant)?;
    let failed = |error: WriteError| CliError::Simulate(format!("{}: {error}", path.display()));
    output::to_file(path, |writer| {
        let options = Options {
            cpus: config.host.topology.cpus(),
            ..Options::default()
        };
        let mut sink = ToFile {
            writer: TraceDatWriter::new(options).map_err(failed)?,
            names: NameList::default(),
            threads: Threads::default(),
            failed: None,
        };
        ended(traced(&config, stop, &mut sink), variant)?;
        if let Some(error) = sink.failed {
            return Err(failed(error));
        }
        let snapshot = snapshot(&config, &sink.threads);
        sink.writer.set_snapshot(snapshot.to_json());
        sink.writer.finish(writer).map_err(failed)?;
        Ok(())
    })
}

struct ToTimeline {
    timeline: Timeline,
    names: NameList,
}

impl Sink for ToTimeline {
    fn begin(&mut self, names: &NameList, _cpus: u32) {
        self.names = names.clone();
    }

    fn event(&mut self, event: &Event) {
        self.timeline.event(event, &self.names);
    }
}

/// Whether the host of this variant has these CPUs.
pub(super) fn check_cpus(
    scenario: &Scenario,
    variant: &Variant,
    cpus: &[u16],
) -> Result<(), CliError> {
    if cpus.is_empty() {
        return Ok(());
    }
    let available = config(scenario, variant)?.host.topology.cpus();
    match cpus.iter().find(|cpu| u32::from(**cpu) >= available) {
        None => Ok(()),
        Some(asked) => Err(CliError::Simulate(format!(
            "--cpu {asked}: the host has {available} CPUs, counted from 0"
        ))),
    }
}

/// Draws the first `ns` after the warm-up, of these CPUs ([`check_cpus`]) or of the first ones.
pub(super) fn timeline(
    scenario: &Scenario,
    variant: &Variant,
    ns: u64,
    cpus: &[u16],
    stop: &AtomicBool,
) -> Result<String, CliError> {
    let mut config = config(scenario, variant)?;
    config.run.duration_ns = ns;
    let available = u16::try_from(config.host.topology.cpus()).unwrap_or(u16::MAX);
    let cpus = match cpus {
        [] => (0..available.min(MOST_DRAWN)).collect(),
        cpus => cpus.to_vec(),
    };
    let begin = config.run.warmup_ns;
    let names = config.vms.iter().map(|vm| vm.name.clone()).collect();
    let mut sink = ToTimeline {
        timeline: Timeline::new(begin, begin.saturating_add(ns), &cpus, names),
        names: NameList::default(),
    };
    ended(traced(&config, stop, &mut sink), variant)?;
    let style = Style::new(output::color());
    let drawn = sink.timeline.render(style);
    Ok(format!("\nVariant {}\n{drawn}", variant.name))
}
