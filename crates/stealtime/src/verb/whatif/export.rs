//! `--export`: the recording and its replays for Perfetto, under each other on one axis of time, and
//! each replay as a trace.dat.

use std::io;
use std::path::{Path, PathBuf};

use stealtime_analysis::Answers;
use stealtime_analysis::answers::EventCount;
use stealtime_events::Event;
use stealtime_replay::export_events;
use stealtime_report::perfetto::{Exporter, Options, Run};
use stealtime_simulator::{NameList, Sink};
use stealtime_trace::write::{self, TraceDatWriter, WriteError};
use stealtime_whatif::{Baseline, Host, Plan};

use super::WhatIf;
use crate::error::CliError;
use crate::{input, output};

/// Most variants in one export.
pub(super) const MOST: usize = 8;
/// Of what `--auto` tried, so many of the best.
pub(super) const BEST: usize = 3;

/// A replay to export.
struct Replay<'b> {
    /// Above its tracks.
    name: String,
    /// Its trace.dat in a folder.
    file: String,
    host: Host<'b>,
}

/// Writes the recording at `recorded`, the replay under the recorded knobs and these variants; says
/// which files were written.
pub(super) fn write(
    verb: &WhatIf,
    base: &Baseline,
    recorded: &Path,
    variants: &[Plan],
    target: &Path,
) -> Result<Vec<PathBuf>, CliError> {
    // Seed 0: every time as it was recorded.
    let host = |plan: &Plan| plan.prepare(base)?.host(base, 0);
    let mut replays = vec![Replay {
        name: "replayed".to_owned(),
        file: REPLAYED.to_owned(),
        host: host(&Plan::default())?,
    }];
    for (n, plan) in (1..).zip(variants) {
        replays.push(Replay {
            name: format!("variant {}", plan.name()),
            file: variant_file(n),
            host: host(plan)?,
        });
    }
    if !is_folder(target) {
        perfetto(verb, base, recorded, &replays, target)?;
        return Ok(vec![target.to_owned()]);
    }
    let joined = target.join(BOTH);
    perfetto(verb, base, recorded, &replays, &joined)?;
    let mut written = vec![joined];
    for replay in &replays {
        let path = target.join(&replay.file);
        trace_dat(base, &replay.host, &path)?;
        written.push(path);
    }
    Ok(written)
}

/// The trace of all of them, in a folder.
const BOTH: &str = "side-by-side.pftrace";
/// The replay as recorded, there.
const REPLAYED: &str = "replayed.dat";

/// The file of a variant's replay, counted from 1.
fn variant_file(n: usize) -> String {
    format!("variant-{n}.dat")
}

/// The files that [`write()`] may write, with up to so many variants.
pub(super) fn files(target: &Path, variants: usize) -> Vec<PathBuf> {
    if !is_folder(target) {
        return vec![target.to_owned()];
    }
    let names = [BOTH.to_owned(), REPLAYED.to_owned()];
    let names = names.into_iter().chain((1..=variants).map(variant_file));
    names.map(|name| target.join(name)).collect()
}

/// Refuses, before anything is replayed, what could not be written.
pub(super) fn check(target: &Path) -> Result<(), CliError> {
    match is_folder(target) {
        true => std::fs::create_dir_all(target)
            .and_then(|()| output::check_folder(target))
            .map_err(|source| CliError::Write {
                path: target.to_owned(),
                source,
            }),
        false => output::check(target),
    }
}

/// A folder that is there, or one by its last character.
fn is_folder(path: &Path) -> bool {
    path.is_dir() || path.to_string_lossy().ends_with('/')
}

fn perfetto(
    verb: &WhatIf,
    base: &Baseline,
    recorded: &Path,
    replays: &[Replay<'_>],
    path: &Path,
) -> Result<(), CliError> {
    let failed = |source: io::Error| CliError::Write {
        path: path.to_owned(),
        source,
    };
    let options = |number: u16, name: &str| Options {
        run: Some(Run {
            number,
            name: name.to_owned(),
        }),
        ..Options::default()
    };
    output::to_file(path, |mut writer| {
        let first = options(0, "recorded");
        let mut exporter =
            Exporter::new(&mut writer, base.recorded().answers(), first).map_err(failed)?;
        let mut source = input::open(recorded, &verb.source(recorded, None), None)?;
        input::drive("exporting", &mut *source, |events, source| {
            exporter.events(events, source.names()).map_err(failed)
        })?;
        exporter.finish().map_err(failed)?;
        let answers = of_a_replay(base.recorded().answers());
        for (number, replay) in (1..).zip(replays) {
            let run = options(number, &replay.name);
            let mut exporter = Exporter::new(&mut writer, &answers, run).map_err(failed)?;
            forward(base, &replay.host, failed, |event, names| {
                exporter.event(event, names)
            })?;
            exporter.finish().map_err(failed)?;
        }
        Ok(())
    })
}

/// The answers for a replay before it runs: the VMs and vCPUs of the recording, and which events the
/// replay has for tracks.
fn of_a_replay(answers: &Answers) -> Answers {
    let mut answers = answers.clone();
    let events = ["sched_switch", "sched_waking", "sched_wakeup"];
    let event = |name: &str| EventCount {
        name: name.to_owned(),
        count: 1,
        today: None,
    };
    answers.events = events.into_iter().map(event).collect();
    answers.source.partial = false;
    answers
}

/// Hands a replay's events on, until that fails.
struct Forward<F, E> {
    to: F,
    names: NameList,
    failed: Option<E>,
}

impl<F, E> Sink for Forward<F, E>
where
    F: FnMut(&Event, &NameList) -> Result<(), E>,
{
    fn begin(&mut self, names: &NameList, _cpus: u32) {
        self.names = names.clone();
    }

    fn event(&mut self, event: &Event) {
        if self.failed.is_none() {
            self.failed = (self.to)(event, &self.names).err();
        }
    }
}

/// Replays, and gives every event to `to`; `failed` says what its errors are.
fn forward<E>(
    base: &Baseline,
    host: &Host<'_>,
    failed: impl Fn(E) -> CliError,
    consume: impl FnMut(&Event, &NameList) -> Result<(), E>,
) -> Result<(), CliError> {
    let mut sink = Forward {
        to: consume,
        names: NameList::default(),
        failed: None,
    };
    let first_ns = base.recorded().answers().source.first_ns;
    export_events(&host.recording, &host.config, first_ns, &mut sink)?;
    sink.failed.map_or(Ok(()), |error| Err(failed(error)))
}

fn trace_dat(base: &Baseline, host: &Host<'_>, path: &Path) -> Result<(), CliError> {
    let failed = |error: WriteError| CliError::WhatIf(format!("{}: {error}", path.display()));
    output::to_file(path, |sink| {
        let options = write::Options {
            cpus: host.recording.cpus,
            ..write::Options::default()
        };
        let mut writer = TraceDatWriter::new(options).map_err(failed)?;
        forward(base, host, failed, |event, names| writer.push(event, names))?;
        writer.finish(sink).map_err(failed)?;
        Ok(())
    })
}
