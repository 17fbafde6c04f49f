//! Messages for users about what failed.

use std::io;
use std::path::{Path, PathBuf};

use stealtime_fleet::FleetError;
use stealtime_report::escape;
use stealtime_trace::ReadError;
use stealtime_trace::write::WriteError;

/// Why a verb ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The recording cannot be read at all.
    #[error("{0}")]
    Open(ReadError),
    /// The recording cannot be read to its end; what came before was shown.
    #[error("{0}; the output is of what was read before")]
    Cut(ReadError),
    /// A directory without a recording.
    #[error("{0:?} has no recording: files with .dat or .data in their names, compressed or not")]
    NoRecordings(std::path::PathBuf),
    /// A pipe or a device as one of many recordings.
    #[error("{0:?}: a pipe or a device is no file that --out can find again: give a file")]
    Stream(std::path::PathBuf),
    /// `--vm` of a VM that is not there.
    #[error("--vm {asked}: no such VM; {there}")]
    NoVm {
        /// The name given.
        asked: String,
        /// What there is, as a sentence.
        there: String,
    },
    /// `--vcpu` of a vCPU that no selected VM has.
    #[error("--vcpu {asked}: no VM selected has this vCPU; there are: {there}")]
    NoVcpu {
        /// The number given.
        asked: u32,
        /// The numbers there are.
        there: String,
    },
    /// `--cpu` of a CPU that the host has not.
    #[error("--cpu {asked}: the recording has no such CPU; there are {there}")]
    NoCpu {
        /// The number given.
        asked: u16,
        /// The numbers there are.
        there: String,
    },
    /// A window of time without anything in it.
    #[error("{option} {asked}: {problem}; the recording spans {span}")]
    Window {
        /// The option.
        option: &'static str,
        /// What was given.
        asked: String,
        /// What is wrong with it.
        problem: &'static str,
        /// From when to when the recording is.
        span: String,
    },
    /// CSV is one table.
    #[error("--format csv writes one table: add --key NAME, one of {0}")]
    CsvKey(String),
    /// The output is binary and would go to a terminal.
    #[error("what export writes is not for a terminal: add -o FILE, or `-o -` and a pipe")]
    Terminal,
    /// An option of `export` that the form has no use for.
    #[error("--compress is for --to trace.dat; compress a Perfetto trace by gzip or zstd")]
    ForTraceDat,
    /// The same, the other way round.
    #[error("--vm is for --to perfetto: a trace.dat has the events of all VMs")]
    ForPerfetto,
    /// The same of threads.
    #[error("--vm-of is for --to perfetto: a trace.dat does not assign threads to VMs")]
    VmOfForPerfetto,
    /// A thread or a process that is assigned to two VMs.
    #[error("--vm-of: {subject} is assigned to {first} and to {second}: it belongs to one VM")]
    TwoVms {
        /// The thread or the process.
        subject: String,
        /// The VM that was named first.
        first: String,
        /// The other one.
        second: String,
    },
    /// The host cannot be recorded.
    #[error("{0}")]
    Record(stealtime_live::RecordError),
    /// The host cannot be followed.
    #[error("{}", followed(.0))]
    Follow(stealtime_live::RecordError),
    /// The host cannot be followed by BPF, and that was asked for.
    #[error("--collector bpf: {0}; `--collector tracefs` needs no BPF")]
    Bpf(stealtime_live::BpfError),
    /// The terminal cannot be used as a screen.
    #[error("the terminal cannot be used: {0}; `--batch` needs none")]
    Screen(io::Error),
    /// An address that cannot be listened on.
    #[error("--listen {address}: {source}{}", match source.kind() {
        io::ErrorKind::AddrInUse => ": give another port, or port 0 for a free one",
        io::ErrorKind::AddrNotAvailable => ": no interface of this host has the address",
        io::ErrorKind::PermissionDenied => ": ports below 1024 need root",
        _ => "",
    })]
    Listen {
        /// What was given.
        address: std::net::SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// Metrics cannot be served.
    #[error("metrics cannot be served: {0}")]
    Serve(io::Error),
    /// The recording ended early; the file has what came before.
    #[error("{path}: {1}; the file is whole and has what was recorded until then", path = .0.display())]
    RecordedPart(PathBuf, String),
    /// A trace.dat cannot be written.
    #[error("{0}")]
    TraceDat(WriteError),
    /// The output cannot be written.
    #[error("{path}: {source}")]
    Write {
        /// Where it should have gone.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A recording that would take the place of a device or a pipe.
    #[error(
        "{path}: a recording is a file, and this is a device or a pipe: give the name of a file"
    )]
    NotAFile {
        /// What was given.
        path: PathBuf,
    },
    /// An output would take the place of an input.
    #[error("{path}: is what is read, and would be overwritten: give another name")]
    OverInput {
        /// The file.
        path: PathBuf,
    },
    /// Two outputs would take each other's place.
    #[error("{path}: {first} and {second} would both write it: give another name to one of them")]
    SameOutput {
        /// The file.
        path: PathBuf,
        /// An option.
        first: &'static str,
        /// The other option.
        second: &'static str,
    },
    /// Standard output, for what does not go there.
    #[error("{option} - does not write to standard output, where the tables go: give {give}")]
    NotToStdout {
        /// The option.
        option: &'static str,
        /// What it takes.
        give: &'static str,
    },
    /// An option that shapes what is not written.
    #[error("{option} {why}: leave it out")]
    OfNoUse {
        /// The option.
        option: &'static str,
        /// Why it does nothing here.
        why: &'static str,
    },
    /// `check` was asked for something that is not there, or given a file that it cannot use.
    #[error("{0}")]
    Check(String),
    /// `check` found violations.
    #[error("check: {0} violations found")]
    Violations(usize),
    /// Standard output cannot be written.
    #[error("standard output: {0}")]
    Stdout(io::Error),
    /// What cannot be read twice cannot be kept for a second reading.
    #[error(
        "what comes through a pipe is kept in {0}: {1}; set TMPDIR to another folder, or give a file"
    )]
    Spool(PathBuf, io::Error),
    /// Standard input cannot be read.
    #[error("standard input: {0}")]
    Stdin(io::Error),
    /// A pipe or device cannot be kept for a second reading.
    #[error("{path}: {source}; give a file instead")]
    Keep {
        /// What was given.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Standard input, a pipe or a device had nothing in it.
    #[error("{}: empty; was the recording stopped before anything was written?", input(.0))]
    Nothing(PathBuf),
    /// `whatif`: what was asked cannot be answered.
    #[error("whatif: {0}")]
    WhatIf(String),
    /// `fit`: what was asked cannot be answered.
    #[error("fit: {0}")]
    Fit(String),
    /// A host, or a file of its snapshot.
    #[error("snapshot: {0}")]
    Snapshot(String),
    /// The sched_ext scheduler.
    #[error("sched: {0}")]
    Sched(String),
    /// A trial of knobs on this host: lines of problems.
    #[error("try: {0}")]
    Try(String),
    /// What is to be watched for.
    #[error("watch: {0}")]
    Watch(String),
    /// A snapshot of another host: its file, and the difference.
    #[error(
        "--snapshot {0} is of another host than the recording: {1}; take it on the recorded host, or leave \
         it out"
    )]
    OtherHost(String, String),
    /// `--vm-of NAME=cgroup:PATH` without threads.
    #[error("--vm-of: cgroup {path}: {reason}")]
    NoCgroup {
        /// The control group.
        path: String,
        /// Why nothing is known of it.
        reason: &'static str,
    },
    /// A guest's clocks.
    #[error("{0}")]
    Clock(String),
    /// A scenario that cannot be used: each problem with its line.
    #[error("{0}")]
    Scenario(String),
    /// Knobs or variants of the command line.
    #[error("{0}")]
    Simulate(String),
    /// A sweep that cannot begin or go on.
    #[error("{0}")]
    Sweep(String),
    /// Runs that gave nothing; the output is of the others.
    #[error("{failed} of {all} runs failed")]
    Runs {
        /// How many.
        failed: usize,
        /// Of how many.
        all: usize,
    },
    /// The folder of `analyze --out`.
    #[error("{0}")]
    FleetFolder(FleetError),
    /// Recordings that could not be read, or not to their end; the tables have what was.
    #[error("{failed} of {all} recordings could not be read, {partial} not to their end: {errors}",
        errors = .errors.display())]
    Fleet {
        /// How many have no rows.
        failed: usize,
        /// How many have rows of a part.
        partial: usize,
        /// Of how many.
        all: usize,
        /// The file with the reasons.
        errors: PathBuf,
    },
    /// A list of recordings.
    #[error("{path}: {source}", path = .path.display())]
    List {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A list of recordings without any.
    #[error("the list of recordings is empty")]
    NoRecordingsListed,
    /// Two things that go to standard output.
    #[error("--report - writes the report to standard output, and {0} would too: give a file")]
    ReportToStdout(&'static str),
    /// Ctrl-C; what was done until then was shown.
    #[error("stopped")]
    Stopped,
    /// Ctrl-C in a sweep: how far it is and how it goes on.
    #[error("{0}")]
    StoppedSweep(String),
    /// What was asked to look for was found.
    #[error("{0}")]
    Found(String),
}

/// Why a host cannot be followed: what is said of recordings, without the advice that is for them alone.
fn followed(error: &stealtime_live::RecordError) -> String {
    use stealtime_live::RecordError;
    match error {
        RecordError::NoRights { path } => {
            let path = path.display();
            format!("{path}: permission denied: it needs root: use `sudo`")
        }
        RecordError::NoInstances { path } => {
            let path = path.display();
            format!("{path}: the kernel has no tracing instances (Linux 3.10 has)")
        }
        RecordError::ReadOnly { path } => {
            let path = path.display();
            format!(
                "{path}: tracefs is mounted read-only here, as in a container: use the host itself"
            )
        }
        error => error.to_string(),
    }
}

/// What an input is called.
pub(crate) fn input(path: &Path) -> String {
    match path.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
}

impl From<stealtime_simulator::Fault> for CliError {
    fn from(fault: stealtime_simulator::Fault) -> Self {
        Self::WhatIf(fault.to_string())
    }
}

impl From<stealtime_whatif::Error> for CliError {
    fn from(error: stealtime_whatif::Error) -> Self {
        Self::WhatIf(error.to_string())
    }
}

impl From<stealtime_whatif::capacity::FitError> for CliError {
    fn from(error: stealtime_whatif::capacity::FitError) -> Self {
        match error {
            stealtime_whatif::capacity::FitError::Stopped => Self::Stopped,
            other_error => Self::Fit(other_error.to_string()),
        }
    }
}

impl From<stealtime_whatif::Unreplayable> for CliError {
    fn from(error: stealtime_whatif::Unreplayable) -> Self {
        Self::WhatIf(error.to_string())
    }
}

impl From<stealtime_lab::knobs::KnobError> for CliError {
    fn from(error: stealtime_lab::knobs::KnobError) -> Self {
        Self::WhatIf(error.to_string())
    }
}

impl CliError {
    /// The exit status: 1 for what was looked for and found, 2 for what cannot be done, 130 for what
    /// was stopped.
    pub(crate) const fn status(&self) -> u8 {
        match self {
            Self::Violations(_) | Self::Found(_) | Self::Fleet { .. } => 1,
            Self::Stopped | Self::StoppedSweep(_) => 130,
            _ => 2,
        }
    }

    /// Whether the reader of the output has closed it.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        match self {
            Self::Stdout(source) | Self::Write { source, .. } => {
                source.kind() == io::ErrorKind::BrokenPipe
            }
            _ => false,
        }
    }

    /// The message, safe for a terminal: paths and names may hold anything.
    pub(crate) fn shown(&self) -> String {
        let text = self.to_string();
        // Lines of a file, and problems of a grid, are shown one below the other.
        let lines = || {
            text.lines()
                .map(escape::terminal)
                .collect::<Vec<_>>()
                .join("\n")
        };
        match self {
            Self::Scenario(_) => format!("the scenario cannot be used\n{}", lines()),
            Self::Sweep(_) | Self::Try(_) => lines(),
            _ => escape::terminal(&text).into_owned(),
        }
    }
}
