//! Options that several verbs have.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::error::CliError;
use crate::host::HostOfRecording;
use crate::when::When;

/// The recording to read.
#[derive(Clone, Debug, Args)]
pub(crate) struct Recording {
    /// A recording: trace.dat of trace-cmd, perf.data, or ftrace text; plain or in zstd, xz or gzip;
    /// `-` is standard input
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,

    /// The TSC's frequency in kHz, for a recording with the clock x86-tsc
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) tsc_khz: Option<u64>,

    /// A recording of the same boot of the same kernel, for a perf.data file that has lost the formats
    /// of its events
    #[arg(long, value_name = "FILE")]
    pub(crate) formats_from: Option<PathBuf>,

    /// These threads are the vCPUs of this VM (repeat for each VM). `NAME=pid:181` names those of a process,
    /// `NAME=cgroup:PATH` those in or below a control group
    #[arg(long, value_name = "NAME=TID,TID…")]
    pub(crate) vm_of: Vec<VmOf>,

    /// The host's snapshot, for a recording without one: names of VMs, their threads and control groups
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,
}

/// How recordings that are replayed are read. These verbs have `--self-test` too.
#[derive(Debug, Args)]
pub(crate) struct Replayed {
    /// The TSC's frequency in kHz, for a recording with the clock x86-tsc
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    tsc_khz: Option<u64>,

    /// A recording of the same boot of the same kernel, for a perf.data file that has lost the formats
    /// of its events
    #[arg(long, value_name = "FILE")]
    formats_from: Option<PathBuf>,

    /// These threads are the vCPUs of this VM (repeat for each VM). `NAME=pid:181` names those of a process,
    /// `NAME=cgroup:PATH` those in or below a control group
    #[arg(long, value_name = "NAME=TID,TID…")]
    pub(crate) vm_of: Vec<VmOf>,

    /// The host's snapshot, for a recording without one: names of VMs, their threads and control groups
    #[arg(long, value_name = "FILE", conflicts_with = "self_test")]
    pub(crate) snapshot: Option<PathBuf>,
}

impl Replayed {
    /// A recording that is read so, with these VMs and this snapshot.
    pub(crate) fn recording(
        &self,
        trace: &Path,
        vm_of: &[VmOf],
        snapshot: Option<&PathBuf>,
    ) -> Recording {
        Recording {
            trace: trace.to_owned(),
            tsc_khz: self.tsc_khz,
            formats_from: self.formats_from.clone(),
            vm_of: vm_of.to_vec(),
            snapshot: snapshot.cloned(),
        }
    }

    /// The files that are read in addition to the recording.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.formats_from.iter().chain(&self.snapshot)
    }
}

impl Recording {
    /// A recording that is read without options.
    pub(crate) fn plain(trace: &Path) -> Self {
        Self {
            trace: trace.to_owned(),
            tsc_khz: None,
            formats_from: None,
            vm_of: Vec::new(),
            snapshot: None,
        }
    }

    /// How to read it; `wanted`: the tracepoints with fields that are used.
    pub(crate) fn options(&self, wanted: Option<Vec<&'static str>>) -> stealtime_trace::Options {
        stealtime_trace::Options {
            tsc_khz: self.tsc_khz,
            formats_from: self.formats_from.clone(),
            only: wanted,
            ..stealtime_trace::Options::default()
        }
    }

    /// VMs by thread and by process.
    ///
    /// # Errors
    /// A thread or a process is assigned to two VMs, or nothing is known of a control group.
    pub(crate) fn vm_threads(&self, host: &HostOfRecording) -> Result<VmThreads, CliError> {
        let mut found = VmThreads::default();
        for VmOf { name, threads } in &self.vm_of {
            match threads {
                Threads::Tids(tids) => assign(&mut found.threads, "thread", tids, name)?,
                Threads::Process(pid) => assign(&mut found.processes, "process", &[*pid], name)?,
                Threads::Cgroup(path) => {
                    assign(&mut found.threads, "thread", &host.threads_in(path)?, name)?;
                }
            }
        }
        Ok(found)
    }

    /// The arguments that read it in the same way, each after a blank.
    pub(crate) fn as_arguments(&self) -> String {
        let mut arguments = vec![self.trace.display().to_string()];
        if let Some(khz) = self.tsc_khz {
            arguments.extend(["--tsc-khz".to_owned(), khz.to_string()]);
        }
        if let Some(path) = &self.formats_from {
            arguments.extend(["--formats-from".to_owned(), path.display().to_string()]);
        }
        let quoted = arguments
            .iter()
            .map(|argument| crate::report::quoted(argument));
        quoted.map(|argument| format!(" {argument}")).collect()
    }

    /// Files that are read.
    pub(crate) fn inputs(&self) -> Vec<&Path> {
        let files = self.formats_from.iter().chain(&self.snapshot);
        std::iter::once(self.trace.as_path())
            .chain(files.map(PathBuf::as_path))
            .collect()
    }
}

/// The names of VMs that the user gives.
#[derive(Debug, Default)]
pub(crate) struct VmThreads {
    /// By thread id.
    pub(crate) threads: BTreeMap<i32, String>,
    /// By process id.
    pub(crate) processes: BTreeMap<i32, String>,
}

/// Assigns threads or processes to a VM.
fn assign<'i>(
    vms: &mut BTreeMap<i32, String>,
    kind: &str,
    ids: impl IntoIterator<Item = &'i i32>,
    name: &str,
) -> Result<(), CliError> {
    for id in ids {
        let first = vms.insert(*id, name.to_owned());
        if let Some(first) = first.filter(|first| first != name) {
            let (subject, second) = (format!("{kind} {id}"), name.to_owned());
            return Err(CliError::TwoVms {
                subject,
                first,
                second,
            });
        }
    }
    Ok(())
}

/// How many runs at a time: so many, or as many as there are CPUs. At most as many as a limit of address
/// space has room for: no result depends on the number.
pub(crate) fn threads(jobs: Option<NonZeroUsize>) -> NonZeroUsize {
    let room = NonZeroUsize::new(stealtime_live::room_for_threads());
    jobs.or_else(|| std::thread::available_parallelism().ok())
        .unwrap_or(NonZeroUsize::MIN)
        .min(room.unwrap_or(NonZeroUsize::MIN))
}

/// How to write a result, in one of the forms that its verb has.
#[derive(Debug, Args)]
pub(crate) struct Form<F: Forms = Format> {
    /// How to write the result
    #[arg(long, value_enum, default_value_t = F::TABLE)]
    format: F,

    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

/// Forms of a result.
pub(crate) trait Forms: ValueEnum + PartialEq + Send + Sync + 'static {
    /// What is written if nothing is asked for.
    const TABLE: Self;
    /// What `--json` is short for.
    const JSON: Self;
}

/// Forms that every verb has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables
    Table,
    /// One JSON object
    Json,
}

impl Forms for Format {
    const TABLE: Self = Self::Table;
    const JSON: Self = Self::Json;
}

impl<F: Forms> Form<F> {
    /// The form that is asked for.
    pub(crate) fn get(&self) -> F {
        if self.json {
            F::JSON
        } else {
            self.format.clone()
        }
    }

    /// Whether the result is wanted as JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.get() == F::JSON
    }
}

/// CPUs as options take them: `3`, `0-3`; several are separated by commas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuRange {
    first: u16,
    last: u16,
}

impl CpuRange {
    /// The numbers of all of these, each once, in the order given.
    pub(crate) fn numbers(ranges: &[Self]) -> Vec<u16> {
        let mut numbers = Vec::new();
        for cpu in ranges.iter().flat_map(|range| range.first..=range.last) {
            if !numbers.contains(&cpu) {
                numbers.push(cpu);
            }
        }
        numbers
    }
}

/// Why a text is no range of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CpuRangeError {
    /// From a larger to a smaller number.
    #[error("the range {first}-{last} goes backwards: give {last}-{first}")]
    Reversed {
        /// The number before the dash.
        first: u16,
        /// The number after it.
        last: u16,
    },
    /// No number and no range.
    #[error("{0:?} is no CPU and no range of CPUs: give 3, 0-3 or 0-3,8")]
    NoCpu(String),
}

impl std::str::FromStr for CpuRange {
    type Err = CpuRangeError;

    fn from_str(text: &str) -> Result<Self, CpuRangeError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<u16>();
        match (number(first), number(last)) {
            (Ok(first), Ok(last)) if first <= last => Ok(Self { first, last }),
            (Ok(first), Ok(last)) => Err(CpuRangeError::Reversed { first, last }),
            _ => Err(CpuRangeError::NoCpu(text.to_owned())),
        }
    }
}

/// A part of the recording.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Window {
    /// From this time on: 1.5s, 200ms, 30us after the first event, or @1580.515472 of the trace's clock
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<When>,

    /// Up to this time, which is not included
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<When>,
}

/// `--vm-of NAME=TID,TID…`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VmOf {
    name: String,
    threads: Threads,
}

/// The threads of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Threads {
    /// These.
    Tids(Vec<i32>),
    /// Those of a process.
    Process(i32),
    /// Those in a control group or below it.
    Cgroup(String),
}

/// Why a text does not assign threads to a VM.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VmOfError {
    /// No `=`.
    #[error("expected NAME=TID,TID…, NAME=pid:PID or NAME=cgroup:PATH")]
    Syntax,
    /// Nothing before the `=`.
    #[error("the VM's name is missing before `=`")]
    NoName,
    /// A part that is no positive number.
    #[error("{0:?} is not a thread id")]
    NoTid(String),
    /// The same of a process.
    #[error("{0:?} is not a process id")]
    NoPid(String),
    /// Nothing after `cgroup:`.
    #[error("the control group's path is missing after `cgroup:`")]
    NoPath,
}

impl std::str::FromStr for VmOf {
    type Err = VmOfError;

    fn from_str(text: &str) -> Result<Self, VmOfError> {
        let (name, tids) = text.split_once('=').ok_or(VmOfError::Syntax)?;
        if name.is_empty() {
            return Err(VmOfError::NoName);
        }
        let id = |text: &str| text.trim().parse::<i32>().ok().filter(|&id| id > 0);
        let tid = |text: &str| id(text).ok_or_else(|| VmOfError::NoTid(text.to_owned()));
        let threads = if let Some(pid) = tids.strip_prefix("pid:") {
            Threads::Process(id(pid).ok_or_else(|| VmOfError::NoPid(pid.to_owned()))?)
        } else if let Some(path) = tids.strip_prefix("cgroup:") {
            if path.is_empty() {
                return Err(VmOfError::NoPath);
            }
            Threads::Cgroup(path.to_owned())
        } else {
            Threads::Tids(tids.split(',').map(tid).collect::<Result<_, _>>()?)
        };
        let name = name.to_owned();
        Ok(Self { name, threads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_numbers_and_ranges() {
        let of = |texts: &[&str]| {
            let ranges: Result<Vec<CpuRange>, CpuRangeError> =
                texts.iter().map(|t| t.parse()).collect();
            ranges.map(|ranges| CpuRange::numbers(&ranges))
        };
        assert_eq!(of(&["0-3", "8", "2-4"]), Ok(vec![0, 1, 2, 3, 8, 4]));
        assert_eq!(of(&[" 5 "]), Ok(vec![5]));
        for wrong in ["", "-", "1-", "-1", "x", "1-2-3", "65536", "3-1", "NaN"] {
            assert!(of(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn threads_are_given_to_a_vm() {
        let group: VmOf = "vm-hb=357,359, 361".parse().expect("a group");
        assert_eq!(group.name, "vm-hb");
        assert_eq!(group.threads, Threads::Tids(vec![357, 359, 361]));
        let threads = |text: &str| text.parse::<VmOf>().map(|group| group.threads);
        assert_eq!(threads("web=pid:181"), Ok(Threads::Process(181)));
        let path = "/machine.slice/a=b.scope";
        assert_eq!(
            threads(&format!("web=cgroup:{path}")),
            Ok(Threads::Cgroup(path.to_owned()))
        );
        for wrong in [
            "vm-hb",
            "=1",
            "a=",
            "a=0",
            "a=-4",
            "a=x",
            "a=1,,2",
            "a=pid:",
            "a=pid:0",
            "a=cgroup:",
        ] {
            assert!(wrong.parse::<VmOf>().is_err(), "{wrong}");
        }
    }
}
