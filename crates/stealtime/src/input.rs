//! A recording through the analysis.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use stealtime_analysis::answers::Source;
use stealtime_analysis::{Analysis, Answers, Counted, Longest, Options, Selection, Skip};
use stealtime_events::Event;
use stealtime_trace::{Ahead, ClockUnit, EventSource, Note, ReadError, SourceInfo};

use crate::args::{self, Recording, VmThreads, Window};
use crate::error::CliError;
use crate::host::HostOfRecording;
use crate::output;
use crate::progress::Progress;
use crate::scheduler;
use crate::when::When;

/// The answers of a recording, and why it could not be read to its end.
#[derive(Debug)]
pub(crate) struct Analyzed {
    pub(crate) answers: Answers,
    pub(crate) cut: Option<ReadError>,
    /// Why less was read than was recorded: that, or what the reader found missing.
    pub(crate) partial: Option<String>,
    /// The time of the first event, whatever was selected.
    pub(crate) first_ns: u64,
    /// What is to be said where the answers are not shown ([`aside`]).
    pub(crate) aside: Vec<String>,
    /// Of that, what was said of the recording and was of no use.
    pub(crate) unused: Vec<String>,
    /// The snapshot of the recording's host.
    pub(crate) host: HostOfRecording,
}

impl Analyzed {
    /// Says it.
    pub(crate) fn tell(&self) {
        tell(&self.aside);
    }
}

/// Notes for every use of a recording: that it is not whole, and that an option about it had no effect.
pub(crate) fn aside(info: &SourceInfo) -> Vec<String> {
    notes(info, |note| note.partial || note.unused)
}

fn notes(info: &SourceInfo, is_meant: impl Fn(&Note) -> bool) -> Vec<String> {
    let notes = info.notes.iter().filter(|note| is_meant(note));
    notes.map(|note| note.text.clone()).collect()
}

/// Says such things on standard error.
pub(crate) fn tell(aside: &[String]) {
    for text in aside {
        output::note(&format!("stealtime: {text}"));
    }
}

/// What is not to be shown, and so need not be found out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unwanted {
    /// Tables.
    pub(crate) skip: Skip,
    /// Tracepoints but for these need only be counted.
    pub(crate) only: Option<Vec<&'static str>>,
    /// Single waits but for these.
    pub(crate) longest: Longest,
    /// Distributions, unless this is set.
    pub(crate) has_histograms: bool,
}

/// Reads the recording at `path` once.
pub(crate) fn analyze(
    path: &Path,
    recording: &Recording,
    window: Option<Window>,
    selection: Selection,
    unwanted: Unwanted,
) -> Result<Analyzed, CliError> {
    let Unwanted {
        skip,
        only: wanted,
        longest,
        has_histograms,
    } = unwanted;
    let mut source = open(path, recording, wanted)?;
    let mut host = HostOfRecording::find(recording, source.info())?;
    let VmThreads { threads, processes } = recording.vm_threads(&host)?;
    let (prefix, first) = first_event(&mut *source)?;
    let first_ns = first.map_or(0, |event| event.time_ns);
    let after_first = |moment: When| moment.resolve(first_ns).saturating_sub(first_ns);
    let selection = Selection {
        from_ns: window.and_then(|window| window.from).map(after_first),
        to_ns: window.and_then(|window| window.until).map(after_first),
        ..selection
    };
    let mut analysis = Analysis::new(Options {
        selection,
        groups: threads,
        processes,
        host: host.vms(),
        scheduler: host
            .snapshot
            .as_ref()
            .map(scheduler::counts)
            .unwrap_or_default(),
        skip,
        longest,
        histograms: has_histograms,
    });
    for events in [prefix.as_slice(), first.as_slice()] {
        analysis.events(events, source.names());
    }
    let cut = drive("reading", &mut *source, |events, source| {
        analysis.events(events, source.names());
        Ok(())
    })?;
    for counted in &source.info().counted {
        let name = source.names().id(&counted.name).unwrap_or_default();
        analysis.counted(&Counted {
            name,
            events: counted.events,
            first_ns: counted.first_ns,
            last_ns: counted.last_ns,
            last_cpu: counted.last_cpu,
        });
    }
    if let Some(late) = source.info().late {
        analysis.set_out_of_order(late);
    }
    let mut answers = analysis.finish(source.names());
    for (today, recorded) in &source.info().renamed {
        answers.rename_event(today, recorded);
    }
    describe(&mut answers.source, recording, source.info(), cut.as_ref());
    host.compare(&answers);
    answers.source.notes.extend(host.notes.iter().cloned());
    let with_host = |mut notes: Vec<String>| {
        notes.extend(host.notes.iter().cloned());
        notes
    };
    let missing = notes(source.info(), |note| note.partial);
    let partial = cut.as_ref().map(ReadError::to_string);
    Ok(Analyzed {
        partial: partial.or(missing.into_iter().next()),
        aside: with_host(aside(source.info())),
        unused: with_host(notes(source.info(), |note| note.unused)),
        answers,
        cut,
        first_ns,
        host,
    })
}

/// Answers of `number` slices of equal length. `whole` has the length of the recording and its VMs' names.
pub(crate) fn slices(
    path: &Path,
    recording: &Recording,
    number: u16,
    whole: &Answers,
) -> Result<Vec<Answers>, CliError> {
    let span = u128::from(whole.source.span_ns);
    let edge = |slice: u16| {
        let part = span * u128::from(slice) / u128::from(number.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    };
    // A slice shows too little of a VM to name it.
    let vcpus = whole.vcpus.iter();
    let groups: BTreeMap<i32, String> = vcpus.map(|vcpu| (vcpu.tid, vcpu.vm.clone())).collect();
    let analysis = |slice: u16| {
        Analysis::new(Options {
            selection: Selection {
                from_ns: Some(edge(slice)),
                to_ns: (slice + 1 < number).then(|| edge(slice + 1)),
                ..Selection::default()
            },
            groups: groups.clone(),
            skip: Skip {
                keys: true,
                latencies: true,
            },
            ..Options::default()
        })
    };
    let mut slices: Vec<Analysis> = (0..number).map(analysis).collect();
    let mut source = open(path, recording, None)?;
    // The first reading reports an early end.
    let _cut = drive("slicing", &mut *source, |events, source| {
        for slice in &mut slices {
            slice.events(events, source.names());
        }
        Ok(())
    })?;
    let names = source.names();
    let slices = slices.into_iter().map(|slice| slice.finish(names));
    Ok(slices.collect())
}

/// Opens a recording. A thread of its own reads it where there is a CPU for that. `wanted` has the
/// tracepoints with fields that are used.
pub(crate) fn open(
    path: &Path,
    recording: &Recording,
    wanted: Option<Vec<&'static str>>,
) -> Result<Box<dyn EventSource>, CliError> {
    let has_cpus = args::threads(None).get() > 1;
    let options = stealtime_trace::Options {
        unpack_ahead: has_cpus,
        ..recording.options(wanted)
    };
    let source = stealtime_trace::open_with(path, &options).map_err(CliError::Open)?;
    if has_cpus {
        return Ok(match Ahead::new(source) {
            Ok(ahead) => Box::new(ahead),
            Err((source, _)) => source,
        });
    }
    Ok(source)
}

/// Everything up to the first event of the host, and that event: names may come before it.
pub(crate) fn first_event(
    source: &mut dyn EventSource,
) -> Result<(Vec<Event>, Option<Event>), CliError> {
    let mut prefix = Vec::new();
    loop {
        match source.next_event() {
            Ok(Some(event)) if event.kind.is_host_event() => return Ok((prefix, Some(event))),
            Ok(Some(event)) => prefix.push(event),
            Ok(None) => return Ok((prefix, None)),
            Err(error) => return Err(CliError::Open(error)),
        }
    }
}

/// Gives all events to `take`, many at once: this crate is built without optimization. Returns why the
/// recording could not be read to its end.
pub(crate) fn drive(
    doing: &'static str,
    source: &mut dyn EventSource,
    mut take: impl FnMut(&[Event], &dyn EventSource) -> Result<(), CliError>,
) -> Result<Option<ReadError>, CliError> {
    /// Events that are taken at once.
    const BATCH: usize = 1 << 11;
    let mut progress = Progress::new(doing);
    let mut events = Vec::with_capacity(BATCH);
    loop {
        events.clear();
        let read = source.next_events(BATCH, &mut events);
        take(&events, source)?;
        progress.events(events.len(), source);
        if progress.is_stopped() {
            return Err(CliError::Stopped);
        }
        match read {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Ok(Some(error)),
        }
    }
}

/// What the reader knows of the recording.
fn describe(
    source: &mut Source,
    recording: &Recording,
    info: &SourceInfo,
    cut: Option<&ReadError>,
) {
    source.path = recording.trace.display().to_string();
    source.format = info.format.name().to_owned();
    source.compression = info.compression.map(str::to_owned);
    source.clock.clone_from(&info.clock.name);
    source.clock_unit = match info.clock.unit {
        ClockUnit::Ns => "ns",
        ClockUnit::Ticks => "ticks",
    }
    .to_owned();
    source.uname.clone_from(&info.uname);
    source.cpus = info.cpus.unwrap_or(source.cpus).max(source.cpus);
    source.partial |= info.is_partial() || cut.is_some();
    source
        .notes
        .extend(info.notes.iter().map(|note| note.text.clone()));
    source.notes.extend(cut.map(ReadError::to_string));
}

/// Whether it is a pipe or a device, which can be read once.
pub(crate) fn is_stream(path: &Path) -> bool {
    let meta = path.metadata();
    meta.is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
}

/// A recording that can be read twice: standard input is kept in a temporary file.
#[derive(Debug)]
pub(crate) enum Twice {
    File(std::path::PathBuf),
    Spooled(tempfile::NamedTempFile),
}

impl Twice {
    /// Makes the recording readable twice.
    pub(crate) fn new(path: &Path) -> Result<Self, CliError> {
        // Files are read twice, and readers say what is wrong with a directory.
        let is_stdin = path.as_os_str() == "-";
        if !is_stdin && !is_stream(path) {
            return Ok(Self::File(path.to_owned()));
        }
        let mut spool = tempfile::NamedTempFile::new()
            .map_err(|error| CliError::Spool(std::env::temp_dir(), output::own(error)))?;
        let cached = match is_stdin {
            true => io::copy(&mut io::stdin().lock(), &mut spool)
                .map_err(|error| CliError::Spool(std::env::temp_dir(), error))?,
            false => {
                let failed = |source| CliError::Keep {
                    path: path.to_owned(),
                    source,
                };
                let mut file = std::fs::File::open(path).map_err(failed)?;
                io::copy(&mut file, &mut spool).map_err(failed)?
            }
        };
        match cached {
            0 => Err(CliError::Nothing(path.to_owned())),
            _ => Ok(Self::Spooled(spool)),
        }
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Spooled(file) => file.path(),
        }
    }
}
