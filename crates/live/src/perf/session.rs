//! A recording by perf_event_open from its first event to the whole file.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FallocateFlags;
use stealtime_trace::write::raw::System;
use tempfile::NamedTempFile;

use super::attributes::{self, Attributes};
use super::file::{self, Event, Host};
use super::ring::{Count, Ring};
use crate::RecordError;
use crate::limits::{Limits, Reports};
use crate::select::{Selection, Tracepoint};
use crate::session::{self, Ended, Observer, Options, Progress, Summary};
use crate::tasks::Threads;
use crate::tracefs::Folder;

/// KiB of each CPU's ring: 0.4 s of 100,000 events a second.
const RING_KB: u64 = 4096;
/// Longest time between two looks at the rings.
const LONGEST: Duration = Duration::from_millis(100);
/// Bytes that are kept free for the sections behind the records.
const RESERVE: u64 = 16 << 20;
/// Clocks of `clock_gettime` by the names of trace clocks.
const CLOCKS: [(&str, i32); 4] = [
    ("mono", libc::CLOCK_MONOTONIC),
    ("mono_raw", libc::CLOCK_MONOTONIC_RAW),
    ("boot", libc::CLOCK_BOOTTIME),
    ("tai", libc::CLOCK_TAI),
];

/// Records by perf_event_open. tracefs is read only: for the ids and formats of tracepoints.
pub(crate) fn record(
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Summary, RecordError> {
    let tracefs = Folder::tracefs().map_err(|error| RecordError::NoIds(Box::new(error)))?;
    let mut selection = Selection::probe(&tracefs)?;
    let name = options.clock.as_deref().unwrap_or("mono");
    let clock = CLOCKS.iter().find(|(clock, _)| *clock == name);
    let Some(&(clock, clock_id)) = clock else {
        return Err(RecordError::NoClock {
            asked: name.to_owned(),
            available: CLOCKS.map(|(clock, _)| clock.to_owned()).into(),
        });
    };
    let mut output = Output::new(&options.output)?;
    session::raise_file_limit();
    let kb = options.buffer_kb.unwrap_or(RING_KB).next_power_of_two();
    let (events, rings) = open(&tracefs, &mut selection, clock_id, kb as usize * 1024)?;
    let mut threads = Threads::default();
    threads.scan("/proc".as_ref());
    let failed = |error| output_error(&options.output, error);
    output.put(&file::head(&events, 0)).map_err(failed)?;
    let id = events.first().and_then(|event| event.ids.first());
    for (tid, process, name) in threads.iter() {
        let comm = file::comm(process, tid, name, id.copied().unwrap_or(0));
        output.put(&comm).map_err(failed)?;
    }
    observer.unfinished(Some(output.target.path()));
    let refused = |source| RecordError::NoPerf {
        source,
        paranoid: String::new(),
    };
    rings.iter().try_for_each(Ring::enable).map_err(refused)?;
    let cpu_before = session::cpu_time();
    let collected = collect(options, &rings, &mut output, observer);
    let cpu_time = session::cpu_time().saturating_sub(cpu_before);
    let seconds = collected.elapsed.as_secs_f64();
    let host = describe(&tracefs, &selection, &threads, rings.len() as u32)?;
    let finished = output.finish(&events, &host, &options.output);
    observer.unfinished(None);
    let bytes = finished.map_err(failed)?;
    Ok(Summary {
        file: options.output.clone(),
        bytes,
        seconds,
        events: collected.error.is_none().then_some(collected.count.samples),
        lost: collected.count.lost,
        cpus: rings.len(),
        ended: collected.ended,
        error: collected.error.map(|error| error.to_string()),
        clock: clock.to_owned(),
        clock_reason: match options.clock {
            Some(_) => "asked for",
            None => "CLOCK_MONOTONIC: shared by all CPUs",
        },
        buffer_kb: kb,
        tracepoints: events.len(),
        missing: selection.missing,
        cpu_percent: 100.0 * cpu_time.as_secs_f64() / seconds.max(1e-3),
    })
}

/// Opens all tracepoints on all CPUs that are online. Those that the kernel refuses are missing.
fn open(
    tracefs: &Folder,
    selection: &mut Selection,
    clock: i32,
    len: usize,
) -> Result<(Vec<Event>, Vec<Ring>), RecordError> {
    let cpus = session::cpus(tracefs);
    let (mut events, mut refused) = (Vec::new(), Vec::new());
    let mut rings: Vec<Ring> = Vec::new();
    for point in &selection.tracepoints {
        let id = id(tracefs, point)?;
        let mut attributes = Attributes::tracepoint(id).clock(clock);
        // `sched_switch` is the first: its events own the rings.
        if events.is_empty() {
            attributes = attributes.threads();
        }
        let mut ids = Vec::new();
        let opened = if events.is_empty() {
            open_first(&cpus, &attributes, len, &mut rings, &mut ids)
        } else {
            open_next(&attributes, &mut rings, &mut ids)
        };
        match opened {
            Ok(()) => events.push(Event {
                name: format!("{}:{}", point.system, point.name),
                attributes,
                ids,
            }),
            Err(source) if events.is_empty() => {
                let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
                return Err(RecordError::NoPerf {
                    source,
                    paranoid: paranoid.unwrap_or_default().trim().to_owned(),
                });
            }
            Err(_) => refused.push(point.clone()),
        }
    }
    selection.refuse(&refused);
    Ok((events, rings))
}

/// The number of a tracepoint.
fn id(tracefs: &Folder, point: &Tracepoint) -> Result<u64, RecordError> {
    let text = tracefs.text(&point.file("id"));
    let text = text.map_err(|error| RecordError::NoIds(Box::new(error)))?;
    text.parse().map_err(|_| RecordError::NoSwitches)
}

/// The first event of each CPU, with a ring of its own. A CPU that is offline has none.
fn open_first(
    cpus: &[u16],
    attributes: &Attributes,
    len: usize,
    rings: &mut Vec<Ring>,
    ids: &mut Vec<u64>,
) -> io::Result<()> {
    for &cpu in cpus {
        let Some(event) = of_online_cpu(attributes::open(attributes, cpu))? else {
            continue;
        };
        let ring = Ring::new(cpu, event, len)?;
        ids.push(ring.last_id()?);
        rings.push(ring);
    }
    match rings.is_empty() {
        true => Err(io::ErrorKind::NotFound.into()),
        false => Ok(()),
    }
}

/// An event of a CPU; `None` of one that is offline.
fn of_online_cpu<E>(opened: io::Result<E>) -> io::Result<Option<E>> {
    match opened {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        opened => opened.map(Some),
    }
}

/// A further event of each CPU. One that went offline meanwhile keeps the events that it has.
fn open_next(attributes: &Attributes, rings: &mut [Ring], ids: &mut Vec<u64>) -> io::Result<()> {
    for ring in rings {
        if let Some(event) = of_online_cpu(attributes::open(attributes, ring.cpu))? {
            ring.add(event)?;
            ids.push(ring.last_id()?);
        }
    }
    Ok(())
}

/// What was collected.
struct Collected {
    ended: Ended,
    elapsed: Duration,
    count: Count,
    error: Option<io::Error>,
}

/// Moves records to the file until the recording ends.
fn collect(
    options: &Options,
    rings: &[Ring],
    output: &mut Output,
    observer: &mut dyn Observer,
) -> Collected {
    let limits = Limits {
        began: Instant::now(),
        duration: options.duration,
        size: options.size,
    };
    let mut collected = Collected {
        ended: Ended::Time,
        elapsed: Duration::ZERO,
        count: Count::default(),
        error: None,
    };
    let mut reports = Reports::new(0);
    loop {
        collected.elapsed = limits.began.elapsed();
        let ended = limits.ended(output.len, observer);
        if let Err(error) = round(rings, output, &mut collected.count) {
            collected.error = Some(error);
            collected.ended = Ended::Output;
            return collected;
        }
        if let Some(ended) = ended {
            collected.ended = ended;
            return collected;
        }
        if reports.is_due() {
            let progress = Progress {
                elapsed: collected.elapsed,
                events: collected.count.samples,
                rate: 0,
                bytes: output.len,
                lost: collected.count.lost,
            };
            reports.report(progress, observer);
        }
        let remaining = limits.remaining();
        wait(rings, remaining.map_or(LONGEST, |time| time.min(LONGEST)));
    }
}

/// Drains all rings once.
fn round(rings: &[Ring], output: &mut Output, count: &mut Count) -> io::Result<()> {
    let mut records = Vec::new();
    for ring in rings {
        ring.drain(&mut records);
    }
    if records.is_empty() {
        return Ok(());
    }
    count.add(Count::of(&records));
    records.extend_from_slice(&file::finished_round());
    output.put(&records)
}

/// Waits until a ring has a watermark of records, but not too often.
fn wait(rings: &[Ring], longest: Duration) {
    let fds = rings.iter().filter_map(Ring::readiness);
    let mut fds: Vec<PollFd<'_>> = fds
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let shortest = Duration::from_millis(20).min(longest);
    std::thread::sleep(shortest);
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: (longest - shortest).subsec_nanos().into(),
    };
    // An error means an early look, no more.
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
}

/// The file that is written.
struct Output {
    target: NamedTempFile,
    reserve: Option<File>,
    /// Bytes so far, all of whole rounds.
    len: u64,
}

impl Output {
    fn new(path: &Path) -> Result<Self, RecordError> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let failed = |error| output_error(path, error);
        let reserve = tempfile::tempfile_in(folder).map_err(failed)?;
        let reserved = rustix::fs::fallocate(&reserve, FallocateFlags::empty(), 0, RESERVE);
        // A file system without fallocate: a full disk may then cost the recording.
        if reserved == Err(rustix::io::Errno::NOSPC) {
            return Err(failed(io::ErrorKind::StorageFull.into()));
        }
        Ok(Self {
            target: crate::file::temporary(folder).map_err(failed)?,
            reserve: Some(reserve),
            len: 0,
        })
    }

    /// Adds bytes whole, or not at all.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = self.target.as_file_mut();
        match file.write_all(bytes) {
            Ok(()) => {
                self.len += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                file.set_len(self.len)?;
                io::Seek::seek(file, io::SeekFrom::Start(self.len))?;
                Err(error)
            }
        }
    }

    /// Adds the sections behind the records, and gives the file its name. Returns its bytes.
    fn finish(mut self, events: &[Event], host: &Host, path: &Path) -> io::Result<u64> {
        self.reserve = None;
        let head_len = file::head(events, 0).len() as u64;
        let head = file::head(events, self.len - head_len);
        let features = file::features(events, host, self.len);
        self.put(&features)?;
        std::os::unix::fs::FileExt::write_all_at(self.target.as_file(), &head, 0)?;
        self.target.persist(path).map_err(|error| error.error)?;
        Ok(self.len)
    }
}

fn output_error(path: &Path, source: io::Error) -> RecordError {
    let path = path.to_owned();
    RecordError::Output { path, source }
}

/// The sections of the host.
fn describe(
    tracefs: &Folder,
    selection: &Selection,
    threads: &Threads,
    online: u32,
) -> Result<Host, RecordError> {
    let systems: Vec<System> = session::systems(tracefs, selection)?;
    let uname = rustix::system::uname();
    let word = |word: &std::ffi::CStr| word.to_string_lossy().into_owned();
    // Not every kernel has these, and no answer depends on them.
    let read = |name| tracefs.read(name).unwrap_or_default();
    let possible = session::cpus(tracefs).len() as u32;
    Ok(Host {
        name: word(uname.nodename()),
        release: word(uname.release()),
        machine: word(uname.machine()),
        cpus: [possible, online],
        header_page: read("events/header_page"),
        header_event: read("events/header_event"),
        systems,
        kallsyms: std::fs::read("/proc/kallsyms").unwrap_or_default(),
        printk_formats: read("printk_formats"),
        cmdlines: threads.cmdlines(&read("saved_cmdlines")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `perf_event_open` finds no CPU context to install the event in.
    #[test]
    fn cpus_that_go_offline_are_left_out() {
        let offline = io::Error::from_raw_os_error(libc::ENODEV);
        assert_eq!(of_online_cpu::<u8>(Err(offline)).expect("no error"), None);
        assert_eq!(of_online_cpu(Ok(7)).expect("no error"), Some(7));
        let full = io::Error::from_raw_os_error(libc::EMFILE);
        let error = of_online_cpu::<u8>(Err(full)).expect_err("too many files");
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    }
}
