//! `stealtime analyze TRACE… -o FOLDER`: many recordings as one set of tables.

use std::cmp::Reverse;
use std::io::{Read as _, stdin};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStringExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use clap::{Args, ValueEnum};
use serde::Serialize;
use stealtime_fleet::{Fleet, FleetError, Identity, Outcome, RecordingTables, Table, Written};
use stealtime_lab::sweep::Form;
use stealtime_report::{Key, counted, json};

use super::{Analyze, Format};
use crate::args::{Recording, threads};
use crate::error::CliError;
use crate::input::{Analyzed, Unwanted};
use crate::progress::{self, RunProgress};
use crate::{input, output};

/// Bytes of a list of recordings: more paths than any folder has.
const LONGEST_LIST: u64 = 256 << 20;

/// Many recordings.
#[derive(Debug, Args)]
pub(super) struct Many {
    /// Further recordings, with --out. `@FILE` is a list of paths, one a line or with a zero byte after
    /// each; `@-` is standard input
    #[arg(value_name = "TRACE", requires = "out")]
    more: Vec<PathBuf>,

    /// Write each table of all recordings as a file to this folder, instead of showing them. Recordings that
    /// the folder has are not read again
    #[arg(long, short = 'o', alias = "output", value_name = "FOLDER")]
    pub(super) out: Option<PathBuf>,

    /// Forget what the folder has, and begin again
    #[arg(long, requires = "out")]
    restart: bool,

    /// Recordings that are read at a time; without it, as many as there are CPUs
    #[arg(long, value_name = "N", requires = "out")]
    jobs: Option<NonZeroUsize>,

    /// Form of the files
    #[arg(
        long,
        value_enum,
        value_name = "FORM",
        value_delimiter = ',',
        default_value = "parquet",
        requires = "out"
    )]
    results: Vec<ResultsForm>,
}

/// A form of the tables' files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ResultsForm {
    /// Apache Parquet
    Parquet,
    /// CSV
    Csv,
}

impl From<ResultsForm> for Form {
    fn from(form: ResultsForm) -> Self {
        match form {
            ResultsForm::Parquet => Self::Parquet,
            ResultsForm::Csv => Self::Csv,
        }
    }
}

/// What `--format json` prints.
#[derive(Serialize)]
struct Summary<'s> {
    folder: String,
    recordings: usize,
    partial: usize,
    failed: usize,
    tables: &'s [Written],
}

impl Many {
    /// The folder, if there is to be one.
    pub(super) fn out(&self) -> Option<&Path> {
        self.out.as_deref()
    }

    /// The recordings, each once.
    fn recordings(&self, first: &Path) -> Result<Vec<PathBuf>, CliError> {
        let mut paths = Vec::new();
        for path in std::iter::once(first).chain(self.more.iter().map(PathBuf::as_path)) {
            match path.as_os_str().as_encoded_bytes().strip_prefix(b"@") {
                Some(_) if path.exists() => paths.push(path.to_owned()),
                Some(name) => paths.extend(list(Path::new(&name_of(name)))?),
                None => paths.push(path.to_owned()),
            }
        }
        if paths.iter().any(|path| path.as_os_str() == "-") {
            let reason = "standard input is no file that --out can find again: give a file";
            return Err(CliError::OfNoUse {
                option: "-",
                why: reason,
            });
        }
        if let Some(path) = paths.iter().find(|path| input::is_stream(path)) {
            return Err(CliError::Stream(path.clone()));
        }
        let count = paths.len();
        let mut known = std::collections::BTreeSet::new();
        paths.retain(|path| known.insert(path.clone()));
        if paths.len() < count {
            let repeated = count - paths.len();
            output::note(&format!(
                "stealtime: {} more than once: each recording counts once",
                counted(repeated as u64, "name")
            ));
        }
        if paths.is_empty() {
            return Err(CliError::NoRecordingsListed);
        }
        Ok(paths)
    }
}

fn name_of(bytes: &[u8]) -> std::ffi::OsString {
    std::ffi::OsString::from_vec(bytes.to_vec())
}

/// The paths in a list.
fn list(file: &Path) -> Result<Vec<PathBuf>, CliError> {
    let mut bytes = Vec::new();
    if file.as_os_str() == "-" {
        let read = stdin().lock().take(LONGEST_LIST).read_to_end(&mut bytes);
        read.map_err(CliError::Stdin)?;
    } else {
        let failed = |source| CliError::List {
            path: file.to_owned(),
            source,
        };
        let opened = std::fs::File::open(file).map_err(failed)?;
        let read = opened.take(LONGEST_LIST).read_to_end(&mut bytes);
        read.map_err(failed)?;
    }
    let separator = if bytes.contains(&0) { 0 } else { b'\n' };
    let names = bytes.split(|byte| *byte == separator);
    let names = names.filter(|name| !name.is_empty());
    Ok(names.map(|name| PathBuf::from(name_of(name))).collect())
}

/// Recordings that are left, and what all threads share.
struct Work<'w> {
    analyze: &'w Analyze,
    fleet: &'w Fleet,
    missing: &'w [PathBuf],
    next: AtomicUsize,
    done: AtomicUsize,
    stop: &'w AtomicBool,
    failed: Mutex<Option<FleetError>>,
}

impl Work<'_> {
    /// Analyzes recordings until none is left, the user stops, or a part cannot be written.
    fn go_on(&self, bar: &RunProgress) {
        while let Some(path) = self.next() {
            let identity = Identity::of(path);
            let outcome = self.analyze.outcome(path);
            if let Err(error) = self.fleet.keep(path, identity, outcome) {
                self.error().get_or_insert(error);
                return;
            }
            bar.done(self.done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    }

    /// The next recording, if there is more to do.
    fn next(&self) -> Option<&PathBuf> {
        let is_over = self.stop.load(Ordering::Relaxed) || self.error().is_some();
        let index = || self.next.fetch_add(1, Ordering::Relaxed);
        (!is_over).then(|| self.missing.get(index())).flatten()
    }

    fn error(&self) -> std::sync::MutexGuard<'_, Option<FleetError>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Analyze {
    /// Analyzes what the folder lacks, and writes the tables.
    pub(super) fn run_many(
        &self,
        folder: &Path,
        format: Format,
        keys: &[Key],
    ) -> Result<(), CliError> {
        self.check_options(format)?;
        let recordings = self.many.recordings(&self.recording.trace)?;
        if recordings.len() > 1 {
            self.check_many()?;
        }
        let fleet = Fleet::open(folder, &self.options(), self.many.restart)?;
        let mut missing = fleet.missing(&recordings)?;
        let jobs = threads(self.many.jobs);
        if jobs.get() > 1 {
            // A large recording that begins last would keep one CPU busy alone.
            missing.sort_by_key(|path| Reverse(path.metadata().map_or(0, |meta| meta.len())));
        }
        let known = recordings.len() - missing.len();
        if known > 0 {
            let folder = fleet.path().display();
            let total = recordings.len();
            output::note(&format!(
                "{folder}: {known} of {total} recordings are there; going on"
            ));
        }
        let stop = output::stop_by_interrupt();
        let work = Work {
            analyze: self,
            fleet: &fleet,
            missing: &missing,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            stop,
            failed: Mutex::new(None),
        };
        let worked = work.run(jobs);
        let finished = known + work.done.into_inner();
        if worked.is_err() {
            let folder = fleet.path().display();
            let total = recordings.len();
            output::note(&format!(
                "{folder}: {finished} of {total} recordings are kept; the same command goes on from there"
            ));
        }
        worked?;
        if finished < recordings.len() {
            return Err(CliError::StoppedSweep(format!(
                "stopped: {finished} of {} recordings are in {}; the same command goes on from there",
                recordings.len(),
                fleet.path().display()
            )));
        }
        let written = self.write_tables(&fleet, &recordings, keys)?;
        if !missing.is_empty() {
            note_older(fleet.path(), &written);
        }
        let (failed, partial) = fleet.troubles(&recordings)?;
        let summary = Summary {
            folder: fleet.path().display().to_string(),
            recordings: recordings.len(),
            partial,
            failed,
            tables: &written,
        };
        summary.show(format)?;
        match failed + partial {
            0 => Ok(()),
            _ => Err(CliError::Fleet {
                failed,
                partial,
                all: recordings.len(),
                errors: errors_file(&written),
            }),
        }
    }

    fn write_tables(
        &self,
        fleet: &Fleet,
        recordings: &[PathBuf],
        keys: &[Key],
    ) -> Result<Vec<Written>, CliError> {
        let is_wanted = |table: &Table| match table {
            Table::Answers(key) => keys.is_empty() || keys.contains(key),
            _ => true,
        };
        let tables: Vec<Table> = Table::all().filter(is_wanted).collect();
        let mut written = Vec::new();
        for form in &self.many.results {
            let jobs = threads(self.many.jobs);
            written.extend(fleet.write(recordings, &tables, (*form).into(), jobs)?);
        }
        Ok(written)
    }

    /// What came of a recording.
    fn outcome(&self, path: &Path) -> Outcome {
        let recording = Recording {
            trace: path.to_owned(),
            tsc_khz: self.recording.tsc_khz,
            formats_from: self.recording.formats_from.clone(),
            vm_of: self.recording.vm_of.clone(),
            snapshot: self.recording.snapshot.clone(),
        };
        let unwanted = Unwanted {
            longest: self.longest(),
            has_histograms: true,
            ..Unwanted::default()
        };
        let window = Some(self.window());
        let selection = self.selection();
        // A defect that one recording shows must not cost the others their rows.
        let analyzed = catch_unwind(AssertUnwindSafe(|| {
            input::analyze(path, &recording, window, selection, unwanted)
        }));
        let failed = |error: String| Outcome {
            error: Some(error),
            ..Outcome::default()
        };
        match analyzed {
            Ok(Ok(analyzed)) => self.rows(&recording, analyzed),
            Ok(Err(error)) => failed(error.to_string()),
            Err(_) => failed("the analysis ended by a defect of this version".to_owned()),
        }
    }

    fn rows(&self, recording: &Recording, mut analyzed: Analyzed) -> Outcome {
        analyzed.answers.source.notes.extend(self.selected());
        Self::name_exports(recording, &mut analyzed.answers);
        let snapshot = analyzed.host.snapshot.as_ref();
        let named = snapshot.and_then(|snapshot| snapshot.identity.hostname.clone());
        Outcome {
            host: named.or_else(|| host_of(analyzed.answers.source.uname.as_deref()?)),
            tables: Some(RecordingTables::new(&analyzed.answers)),
            error: analyzed.partial,
        }
    }

    /// What a part's rows depend on, apart from its recording.
    fn options(&self) -> String {
        let mut options: Vec<String> = self.selected().into_iter().collect();
        let of_recording = Recording {
            trace: PathBuf::new(),
            vm_of: Vec::new(),
            snapshot: None,
            ..self.recording.clone()
        };
        let inputs = of_recording.as_arguments();
        options.extend(
            inputs
                .split_once("'' ")
                .map(|(_, inputs)| inputs.to_owned()),
        );
        let vms = self.recording.vm_of.iter();
        options.extend(vms.map(|vm| format!("--vm-of {vm:?}")));
        let snapshot = self.recording.snapshot.iter();
        options.extend(snapshot.map(|path| format!("--snapshot {}", path.display())));
        options.extend(self.longer_than.map(|ns| format!("--longer-than {ns}ns")));
        options.extend(self.top.map(|rows| format!("--top {rows}")));
        options.join(" ")
    }

    fn check_options(&self, format: Format) -> Result<(), CliError> {
        let of_no_use = |option, reason| {
            Err(CliError::OfNoUse {
                option,
                why: reason,
            })
        };
        if self.report.is_wanted() {
            return of_no_use("--report", "shows one recording, and --out writes tables");
        }
        match format {
            Format::Csv => of_no_use(
                "--format csv",
                "is the form of standard output: --results csv is that of files",
            ),
            Format::Table | Format::Json => Ok(()),
        }
    }

    /// Options about one recording say nothing true of several.
    fn check_many(&self) -> Result<(), CliError> {
        let reason = "is about one recording, and there are several";
        let refuse = |option: &'static str, is_given: bool| match is_given {
            true => Err(CliError::OfNoUse {
                option,
                why: reason,
            }),
            false => Ok(()),
        };
        refuse("--vm-of", !self.recording.vm_of.is_empty())?;
        refuse("--snapshot", self.recording.snapshot.is_some())
    }
}

impl Work<'_> {
    /// Runs on so many threads.
    fn run(&self, jobs: NonZeroUsize) -> Result<(), CliError> {
        let jobs = jobs.get().min(self.missing.len());
        progress::hide_files();
        let bar = RunProgress::new("recordings", self.missing.len());
        std::thread::scope(|scope| {
            // Without further threads, this one does all of it.
            for _ in 1..jobs {
                let started = std::thread::Builder::new().spawn_scoped(scope, || self.go_on(&bar));
                if started.is_err() {
                    break;
                }
            }
            self.go_on(&bar);
        });
        match self.error().take() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

impl Summary<'_> {
    fn show(&self, format: Format) -> Result<(), CliError> {
        output::to_stdout(|writer| {
            if format == Format::Json {
                return json::write_any(self, writer);
            }
            let rows = self.tables.iter().filter(|table| table.rows > 0);
            for Written { path, rows, .. } in rows {
                let path =
                    stealtime_report::escape::terminal(&path.display().to_string()).into_owned();
                writeln!(
                    writer,
                    "{:>12} rows  {path}",
                    stealtime_report::count(*rows)
                )?;
            }
            let empty = self.tables.iter().filter(|table| table.rows == 0);
            let empty: Vec<&str> = empty.map(|table| table.table).collect();
            if !empty.is_empty() {
                writeln!(writer, "without rows: {}", empty.join(", "))?;
            }
            writeln!(
                writer,
                "{} in {}",
                counted(self.recordings as u64, "recording"),
                stealtime_report::escape::terminal(&self.folder)
            )
        })
    }
}

/// Names tables that an earlier call wrote and this one did not: they lack what was read now.
fn note_older(folder: &Path, written: &[Written]) {
    let names = Table::all()
        .flat_map(|table| Form::ALL.map(|form| format!("{}.{}", table.name(), form.extension())));
    let is_older = |name: &String| {
        let path = folder.join(name);
        path.exists() && !written.iter().any(|written| written.path == path)
    };
    let older: Vec<String> = names.filter(is_older).collect();
    if let [first, files @ ..] = &older[..] {
        let further = match files.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        output::note(&format!(
            "{}: an earlier call wrote {first}{further}, without the recordings read now: give its --key and \
             --results too",
            folder.display(),
        ));
    }
}

/// The file with what failed.
fn errors_file(written: &[Written]) -> PathBuf {
    let mut errors = written.iter();
    let errors = errors.find(|written| written.table == Table::Errors.name());
    errors
        .map(|written| written.path.clone())
        .unwrap_or_default()
}

/// The node in `uname -a`'s words: `Linux NODE RELEASE …`.
fn host_of(uname: &str) -> Option<String> {
    let node = uname.strip_prefix("Linux ")?.split(' ').next()?;
    let is_name =
        !node.is_empty() && node != "(none)" && !node.starts_with(|c: char| c.is_ascii_digit());
    is_name.then(|| node.to_owned())
}

impl From<FleetError> for CliError {
    fn from(error: FleetError) -> Self {
        Self::FleetFolder(error)
    }
}
