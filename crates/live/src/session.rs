//! A recording from its first setting to the whole file.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};
use serde::Serialize;
use stealtime_trace::write::raw::{Recording, System};

use crate::RecordError;
use crate::address_space;
use crate::buffers::{Sizes, available_kb};
use crate::clock::{self, Choice};
use crate::collect;
use crate::file::Spools;
use crate::instance::{Instance, remove_leftovers};
use crate::limits::Limits;
use crate::ring::Ring;
use crate::select::{Missing, Selection};
use crate::stats::Stats;
use crate::tasks::Threads;
use crate::tracefs::Folder;

/// The time after which the sizes of the buffers are settled.
const FIRST: Duration = Duration::from_secs(1);
/// Looks at the buffers in this time.
const STEP: Duration = Duration::from_millis(20);
/// Looks for new processes in this time until the pages are collected.
const SCAN: Duration = Duration::from_millis(300);

/// A recording that is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// The file to write.
    pub output: PathBuf,
    /// Ends the recording after this time.
    pub duration: Option<Duration>,
    /// Ends the recording once the pages have so many bytes.
    pub size: Option<u64>,
    /// The trace clock; chosen by the host if `None`.
    pub clock: Option<String>,
    /// KiB of each CPU's ring buffer; by the rate of the first second if `None`.
    pub buffer_kb: Option<u64>,
    /// Records by perf_event_open into a perf.data: tracefs is only read.
    pub by_perf: bool,
}

/// The caller's side of a recording.
pub trait Observer {
    /// Whether the recording is to end.
    fn is_stopped(&self) -> bool;
    /// Some time has passed.
    fn progress(&mut self, progress: &Progress);
    /// A sentence about the host or the recording.
    fn warn(&mut self, text: &str);
    /// The name of a file that an abrupt end must remove; `None`: there is none.
    fn unfinished(&mut self, path: Option<&Path>);
    /// Tracing has begun.
    fn started(&mut self) {}
    /// The host's snapshot as JSON, at the end of the recording.
    fn snapshot(&mut self) -> Option<String> {
        None
    }
}

/// How far a recording is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Progress {
    /// Since the first event.
    pub elapsed: Duration,
    /// Events so far, without lost ones.
    pub events: u64,
    /// Events a second since the last time.
    pub rate: u64,
    /// Bytes so far.
    pub bytes: u64,
    /// Events lost so far.
    pub lost: u64,
}

/// Why a recording ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// After the time asked for.
    Time,
    /// At the size asked for.
    Size,
    /// By a signal.
    Stopped,
    /// The disk is full, or the output cannot be written for another reason.
    Output,
}

/// A finished recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The file.
    pub file: PathBuf,
    /// Bytes of the file.
    pub bytes: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Events in the file; unknown if the output could not be written.
    pub events: Option<u64>,
    /// Events that were lost.
    pub lost: u64,
    /// CPUs with events.
    pub cpus: usize,
    /// Why it ended.
    pub ended: Ended,
    /// The error that ended it.
    pub error: Option<String>,
    /// The trace clock.
    pub clock: String,
    /// Why this clock.
    pub clock_reason: &'static str,
    /// KiB of each CPU's ring buffer.
    pub buffer_kb: u64,
    /// Number of recorded tracepoints.
    pub tracepoints: usize,
    /// Tracepoints that are not recorded, by what is lost without them.
    pub missing: Vec<Missing>,
    /// CPU time of this process while it recorded, in percent of one CPU.
    pub cpu_percent: f64,
}

/// Records the host.
///
/// # Errors
/// tracefs cannot be used, the kernel has no `sched_switch`, or the output cannot be written. The host is
/// left as it was.
pub fn record(options: &Options, observer: &mut dyn Observer) -> Result<Summary, RecordError> {
    check_address_space(0)?;
    if options.by_perf {
        return crate::perf::record(options, observer);
    }
    let host = Host::open()?;
    host.clean(&mut |text| observer.warn(text));
    let spools = Spools::new(&options.output)?;
    let selection = Selection::probe(&host.tracefs)?;
    let instance = Instance::create(&host.tracefs)?;
    let (clock, buffer_kb) = (options.clock.as_deref(), options.buffer_kb);
    let mut session = Session::new(host, clock, buffer_kb, selection, instance)?;
    if let Some(warning) = &session.clock.warning {
        observer.warn(warning);
    }
    let began = session.start(options, observer)?;
    session.finish(options, began, spools, observer)
}

/// Where the host's files are.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) tracefs: Folder,
    pub(crate) proc_root: PathBuf,
    sys: PathBuf,
}

impl Host {
    /// This host.
    pub(crate) fn open() -> Result<Self, RecordError> {
        Ok(Self {
            tracefs: Folder::tracefs()?,
            proc_root: PathBuf::from("/proc"),
            sys: PathBuf::from("/sys"),
        })
    }

    /// Removes what killed recorders left behind.
    pub(crate) fn clean(&self, warn: &mut dyn FnMut(&str)) {
        let leftovers = remove_leftovers(&self.tracefs, &self.proc_root);
        if !leftovers.removed.is_empty() {
            warn(&format!(
                "removed {} of a recorder that was killed: {}",
                match leftovers.removed.len() {
                    1 => "a tracing instance".to_owned(),
                    count => format!("{count} tracing instances"),
                },
                leftovers.removed.join(", ")
            ));
        }
        for path in leftovers.stuck {
            let path = path.display();
            warn(&format!(
                "{path} is left of a recorder that was killed and is in use: `rmdir {path}` later"
            ));
        }
    }
}

/// A recording that is set up.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) host: Host,
    pub(crate) selection: Selection,
    pub(crate) instance: Instance,
    pub(crate) clock: Choice,
    pub(crate) sizes: Sizes,
    /// Numbers of the CPUs that have a ring buffer or may get one.
    pub(crate) cpus: Vec<u16>,
    pub(crate) threads: Threads,
    pub(crate) page: usize,
}

impl Session {
    /// Sets the instance up; nothing is recorded yet.
    pub(crate) fn new(
        host: Host,
        clock: Option<&str>,
        buffer_kb: Option<u64>,
        mut selection: Selection,
        instance: Instance,
    ) -> Result<Self, RecordError> {
        let folder = instance.folder();
        let clocks = folder.text("trace_clock")?;
        let source = clock::source(&host.sys);
        let clock = clock::choose(&clocks, source.as_deref(), clock)?.with_conversion();
        folder.write("trace_clock", &clock.name, "set the clock")?;
        let cpus = cpus(folder);
        let online = std::thread::available_parallelism().map_or(1, usize::from);
        let available = available_kb(&host.proc_root).unwrap_or(1 << 20);
        // Buffers of CPUs that are not there take no memory.
        let sizes = Sizes::new(available, online as u64, buffer_kb);
        selection.enable(folder)?;
        let page = match folder.text("buffer_subbuf_size_kb") {
            Ok(kb) => kb.parse::<usize>().map_or(4096, |kb| kb * 1024),
            Err(_) => rustix::param::page_size(),
        };
        let mut session = Self {
            host,
            selection,
            clock,
            sizes,
            cpus,
            threads: Threads::default(),
            page,
            instance,
        };
        session.resize(sizes)?;
        session.threads.scan(&session.host.proc_root);
        Ok(session)
    }

    /// Sets the size of the buffers. With too little memory they get less.
    fn resize(&mut self, sizes: Sizes) -> Result<(), RecordError> {
        let folder = self.instance.folder();
        let mut kb = sizes.now_kb;
        loop {
            match folder.write(
                "buffer_size_kb",
                &kb.to_string(),
                "set the size of the buffers",
            ) {
                Ok(()) => break,
                Err(RecordError::Control { source, .. })
                    if source.kind() == std::io::ErrorKind::OutOfMemory && kb > 64 =>
                {
                    kb /= 2;
                }
                Err(error) => return Err(error),
            }
        }
        self.sizes = Sizes {
            now_kb: kb,
            limit_kb: if kb < sizes.now_kb {
                kb
            } else {
                sizes.limit_kb
            },
        };
        Ok(())
    }

    /// Starts tracing, and starts again with larger buffers if the first second shows that they are too
    /// small. Kernels stop recording while they resize, and do not count what they miss. Returns when
    /// tracing began.
    fn start(
        &mut self,
        options: &Options,
        observer: &mut dyn Observer,
    ) -> Result<Instant, RecordError> {
        let mut is_first = true;
        loop {
            self.instance
                .folder()
                .write("tracing_on", "1", "start tracing")?;
            let began = Instant::now();
            if std::mem::take(&mut is_first) {
                observer.started();
            }
            let first = options
                .duration
                .map_or(FIRST, |duration| duration.min(FIRST));
            let mut grown = None;
            let mut scanned = began;
            while options.buffer_kb.is_none() && grown.is_none() && began.elapsed() < first {
                if observer.is_stopped() {
                    return Ok(began);
                }
                std::thread::sleep(STEP.min(first));
                if scanned.elapsed() >= SCAN {
                    self.threads.scan_new(&self.host.proc_root);
                    scanned = Instant::now();
                }
                let worst = self.stats().into_iter().map(|(_, stats)| stats);
                let worst = worst.max_by_key(|stats| (stats.lost, stats.bytes));
                let worst = worst.unwrap_or_default();
                grown = self.sizes.grown(worst.bytes, worst.lost, began.elapsed());
                if worst.bytes > self.sizes.now_kb * 512 {
                    // As large as they can be: reading must not wait.
                    break;
                }
            }
            let Some(sizes) = grown else {
                return Ok(began);
            };
            let folder = self.instance.folder();
            folder.write("tracing_on", "0", "stop tracing")?;
            clear(folder)?;
            self.resize(sizes)?;
        }
    }

    /// Counters of each CPU's buffer.
    pub(crate) fn stats(&self) -> Vec<(u16, Stats)> {
        stats(self.instance.folder(), &self.cpus)
    }

    /// Records until the end, and writes the file.
    fn finish(
        mut self,
        options: &Options,
        began: Instant,
        spools: Spools,
        observer: &mut dyn Observer,
    ) -> Result<Summary, RecordError> {
        let mut rings = self.rings(&spools)?;
        let limits = Limits {
            began,
            duration: options.duration,
            size: options.size,
        };
        let cpu_before = cpu_time();
        let (threads, proc_root) = (&mut self.threads, &self.host.proc_root);
        let collected = collect::collect(
            self.instance.folder(),
            &self.cpus,
            &mut rings,
            limits,
            observer,
            &mut || threads.scan_new(proc_root),
        )?;
        let cpu_time = cpu_time().saturating_sub(cpu_before);
        let seconds = collected.elapsed.as_secs_f64();
        self.threads.scan(&self.host.proc_root);
        let mut sum = Stats::default();
        self.stats().iter().for_each(|(_, stats)| sum.add(stats));
        let mut recording = self.description(&rings)?;
        recording.snapshot = observer.snapshot();
        let cpus = rings.iter().filter(|ring| ring.len > 0).count();
        let mut summary = Summary {
            file: options.output.clone(),
            bytes: 0,
            seconds,
            events: collected.error.is_none().then(|| sum.events()),
            lost: sum.lost,
            cpus,
            ended: collected.ended,
            error: collected.error.map(|error| error.to_string()),
            clock: self.clock.name.clone(),
            clock_reason: self.clock.reason,
            buffer_kb: self.sizes.now_kb,
            tracepoints: self.selection.tracepoints.len(),
            missing: self.selection.missing.clone(),
            cpu_percent: 100.0 * cpu_time.as_secs_f64() / seconds.max(1e-3),
        };
        // The instance goes first: from here on only the file is left to do. Tracing has stopped in one
        // that another process holds open.
        rings.iter_mut().for_each(Ring::close);
        if let Err(error) = self.instance.remove() {
            observer.warn(&format!("{error}; the next recording removes it"));
        }
        summary.bytes = spools.join(recording, rings, &mut |path| observer.unfinished(path))?;
        Ok(summary)
    }

    /// The rings of all CPUs. A CPU that comes later fills its own.
    fn rings(&self, spools: &Spools) -> Result<Vec<Ring>, RecordError> {
        raise_file_limit();
        let folder = self.instance.folder();
        let mut rings = Vec::new();
        for &cpu in &self.cpus {
            let path = folder.join(&format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
            let ring = Ring::open(cpu, &path, spools.spool()?, self.page);
            rings.push(ring.map_err(|error| RecordError::control(&path, "read it", error))?);
        }
        Ok(rings)
    }

    /// The description of the recording, without its data.
    pub(crate) fn description(&self, rings: &[Ring]) -> Result<Recording, RecordError> {
        let tracefs = &self.host.tracefs;
        let folder = self.instance.folder();
        let ftrace = tracefs.names("events/ftrace");
        let ftrace = ftrace
            .iter()
            .map(|name| tracefs.read(&format!("events/ftrace/{name}/format")));
        // Not every kernel has all of these, and no answer depends on them.
        let read = |name| tracefs.read(name).unwrap_or_default();
        let stats = self.cpus.iter().filter_map(|&cpu| {
            let text = folder.text(&format!("per_cpu/cpu{cpu}/stats")).ok()?;
            let used = rings.iter().any(|ring| ring.cpu == cpu && ring.len > 0);
            used.then(|| (cpu, text + "\n"))
        });
        let highest = rings
            .iter()
            .filter(|ring| ring.len > 0)
            .map(|ring| ring.cpu)
            .max();
        let uname = rustix::system::uname();
        let words = [
            uname.sysname(),
            uname.nodename(),
            uname.release(),
            uname.machine(),
        ];
        Ok(Recording {
            header_page: tracefs.read("events/header_page")?,
            header_event: tracefs.read("events/header_event")?,
            ftrace: ftrace.filter_map(Result::ok).collect(),
            systems: systems(tracefs, &self.selection)?,
            kallsyms: std::fs::read(self.host.proc_root.join("kallsyms")).unwrap_or_default(),
            printk_formats: read("printk_formats"),
            cmdlines: self.threads.cmdlines(&read("saved_cmdlines")),
            tgids: self.threads.tgids(),
            clock: self.clock.name.clone(),
            tsc: self.clock.tsc,
            uname: words.map(|word| word.to_string_lossy()).join(" "),
            cpus: highest.map_or(0, |cpu| u32::from(cpu) + 1),
            page_size: rustix::param::page_size() as u32,
            buffer_page_size: self.page as u32,
            stats: stats.collect(),
            snapshot: None,
            data: Vec::new(),
        })
    }
}

/// Descriptions of the selected events.
pub(crate) fn systems(tracefs: &Folder, selection: &Selection) -> Result<Vec<System>, RecordError> {
    let mut systems: Vec<System> = Vec::new();
    for point in &selection.tracepoints {
        let format = tracefs.read(&point.file("format"))?;
        match systems
            .iter_mut()
            .find(|system| system.name == point.system)
        {
            Some(system) => system.formats.push(format),
            None => systems.push(System {
                name: point.system.clone(),
                formats: vec![format],
            }),
        }
    }
    Ok(systems)
}

/// CPUs with a folder in `per_cpu`, ascending: all that the host may ever have.
pub(crate) fn cpus(folder: &Folder) -> Vec<u16> {
    let names = folder.names("per_cpu");
    let numbers = names
        .iter()
        .filter_map(|name| name.strip_prefix("cpu")?.parse().ok());
    let mut numbers: Vec<u16> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

/// Counters of each CPU's buffer. A CPU without a buffer has none.
pub(crate) fn stats(folder: &Folder, cpus: &[u16]) -> Vec<(u16, Stats)> {
    let stats = cpus.iter().filter_map(|&cpu| {
        let text = folder.text(&format!("per_cpu/cpu{cpu}/stats")).ok()?;
        Some((cpu, Stats::parse(&text)))
    });
    stats.collect()
}

/// Empties the buffers: opening `trace` with O_TRUNC does.
fn clear(folder: &Folder) -> Result<(), RecordError> {
    let path = folder.join("trace");
    let opened = std::fs::File::options()
        .write(true)
        .truncate(true)
        .open(&path);
    opened
        .map(drop)
        .map_err(|error| RecordError::control(&path, "empty the buffers", error))
}

/// CPU time of this process.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.max(0).unsigned_abs(), time.tv_nsec as u32)
}

/// Two files for each CPU: more than 1,024, the usual limit, on large hosts.
pub(crate) fn raise_file_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Without it the file that is one too many says so.
    let _ = rustix::process::setrlimit(Resource::Nofile, raised);
}

/// Refuses a limit of address space in which a thread could fail to start: that aborts a process, and the
/// tracing instance stays. `further` threads are the caller's own.
///
/// # Errors
/// The limit is too small.
pub fn check_address_space(further: usize) -> Result<(), RecordError> {
    check_limit(address_space::limit(), further)
}

/// The same for a limit in bytes.
fn check_limit(limit: Option<u64>, further: usize) -> Result<(), RecordError> {
    // The handler of Ctrl-C and the first snapshot, which itself has up to eight readers.
    const OTHERS: usize = 2;
    const READERS: usize = 8;
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = OTHERS + cpus.min(READERS) + collect::threads(cpus) + further;
    let needed = address_space::needed(threads);
    match limit {
        Some(limit) if limit < needed => Err(RecordError::AddressSpace {
            limit_mib: limit >> 20,
            needed_mib: needed >> 20,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_address_space_in_which_threads_do_not_start_is_refused() {
        assert!(check_limit(None, 0).is_ok());
        assert!(check_limit(Some(1 << 40), 9).is_ok());
        let error = check_limit(Some(384 << 20), 0).expect_err("too little");
        let text = error.to_string();
        assert!(
            text.starts_with("address space is limited to 384 MiB, and the threads need "),
            "{text}"
        );
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let enough = 256 + 130 * (2 + cpus.min(8) + collect::threads(cpus)) as u64;
        assert!(check_limit(Some(enough << 20), 0).is_ok());
        assert!(check_limit(Some(enough << 20), 1).is_err());
    }

    /// An instance has a folder for each CPU that may ever be plugged in (`tracing_init_tracefs_percpu`).
    fn instance(cpus: &[u16]) -> (tempfile::TempDir, Folder) {
        let root = tempfile::tempdir().expect("a folder");
        for cpu in cpus {
            let path = root.path().join(format!("per_cpu/cpu{cpu}"));
            std::fs::create_dir_all(&path).expect("a folder");
            let counters = "entries: 2\noverrun: 1\nbytes: 80\nread events: 3\n";
            std::fs::write(path.join("stats"), counters).expect("a file");
        }
        let folder = Folder::new(root.path());
        (root, folder)
    }

    #[test]
    fn cpus_are_those_with_a_buffer_in_order() {
        let (root, folder) = instance(&[0, 2, 10, 1]);
        std::fs::create_dir(root.path().join("per_cpu/cpufreq")).expect("a folder");
        assert_eq!(cpus(&folder), [0, 1, 2, 10]);
    }

    #[test]
    fn a_cpu_that_vanishes_or_appears_meanwhile_has_no_counters() {
        let (root, folder) = instance(&[0, 1]);
        let known = cpus(&folder);
        std::fs::remove_dir_all(root.path().join("per_cpu/cpu1")).expect("it goes");
        let path = root.path().join("per_cpu/cpu2");
        std::fs::create_dir_all(path).expect("it comes, without a buffer");
        let counted: Vec<u16> = stats(&folder, &known).iter().map(|(cpu, _)| *cpu).collect();
        assert_eq!(counted, [0]);
        assert_eq!(stats(&folder, &cpus(&folder)).len(), 1);
    }
}
