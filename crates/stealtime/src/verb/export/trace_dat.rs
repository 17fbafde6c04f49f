//! `stealtime export --to trace.dat`.

use std::io::Write;

use stealtime_events::{Event, Kind};
use stealtime_trace::write::{Compression, Options, Stats, TraceDatWriter, Version, WriteError};
use stealtime_trace::{EventSource, ReadError};

use super::{Export, pick};
use crate::args::CpuRange;
use crate::error::CliError;
use crate::input;

impl Export {
    /// Reads once; writes at the end.
    pub(super) fn trace_dat(&self) -> Result<(), CliError> {
        let mut source = input::open(&self.recording.trace, &self.recording, None)?;
        let (cut, stats) = self.output(|writer, failed| {
            let failed = |error| match error {
                WriteError::Io(source) => failed(source),
                error => CliError::TraceDat(error),
            };
            self.rewrite(&mut *source, writer, &failed)
        })?;
        // The new file is whole, and cannot say that the recording was not.
        let mut aside = input::aside(source.info());
        if stats.unknown_contexts > 0 {
            aside.push(format!(
                "of {} of {} events it is not known whether they happened in an interrupt; a trace.dat cannot \
                 say so, and this one says that they did not",
                stats.unknown_contexts, stats.events
            ));
        }
        input::tell(&aside);
        cut.map_or(Ok(()), |error| Err(CliError::Cut(error)))
    }

    fn rewrite(
        &self,
        source: &mut dyn EventSource,
        sink: &mut dyn Write,
        failed: &dyn Fn(WriteError) -> CliError,
    ) -> Result<(Option<ReadError>, Stats), CliError> {
        let (prefix, first) = input::first_event(source)?;
        let first_ns = first.map_or(0, |event| event.time_ns);
        let resolve = |moment: crate::when::When| moment.resolve(first_ns);
        let begin_ns = self.window.from.map_or(0, resolve);
        let end_ns = self.window.until.map(resolve);
        let mut writer = TraceDatWriter::new(self.options()).map_err(failed)?;
        let chosen = CpuRange::numbers(&self.cpu);
        let (mut last_ns, mut cpus) = (first_ns, 0);
        let mut take = |event: &Event, source: &dyn EventSource| {
            last_ns = last_ns.max(event.time_ns);
            cpus = cpus.max(u32::from(event.cpu.0) + 1);
            let in_time = begin_ns <= event.time_ns && end_ns.is_none_or(|end| event.time_ns < end);
            let on_cpu = chosen.is_empty() || chosen.contains(&event.cpu.0);
            if is_name(event.kind) || in_time && on_cpu {
                writer.push(event, source.names()).map_err(failed)?;
            }
            Ok(())
        };
        for event in prefix.iter().chain(&first) {
            take(event, source)?;
        }
        let cut = input::drive("exporting", source, |events, source| {
            events.iter().try_for_each(|event| take(event, source))
        })?;
        pick::cpus_of(&chosen, cpus.max(source.info().cpus.unwrap_or(0)))?;
        pick::window_of(self.window, first_ns, last_ns)?;
        writer.describe(source.info());
        let stats = writer.finish(sink).map_err(failed)?;
        Ok((cut, stats))
    }

    /// How the file is written; what it says of the recording is known at the end.
    fn options(&self) -> Options {
        let (version, compression) = match self.compress {
            true => (Version::V7, Compression::Zstd),
            false => (Version::V6, Compression::None),
        };
        Options {
            version,
            compression,
            ..Options::default()
        }
    }
}

/// Whether an event tells what a thread is, whatever happens.
const fn is_name(kind: Kind) -> bool {
    matches!(kind, Kind::Task { .. } | Kind::VcpuThread { .. })
}
