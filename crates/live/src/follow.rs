//! Events of this host as they happen, for collectors without an end.
//!
//! Pages of all CPUs are read in rounds. An event that a round gives was committed before the round ended, so
//! the next round has all earlier ones of other CPUs. So a round gives what is earlier than the former
//! round's latest page: a delay of two rounds and a page, whatever the trace clock.

use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use stealtime_events::Event;
use stealtime_trace::trace_dat::Pages;
use stealtime_trace::{NameTable, SourceInfo};

use crate::RecordError;
use crate::flight::{Flight, Keep, Latest};
use crate::instance::Instance;
use crate::need::NEEDS;
use crate::select::{Missing, Selection};
use crate::session::{Host, Session, cpu_time, raise_file_limit};
use crate::stats::Stats;

/// Pages of a CPU that are read in one round, at most: 1 MiB of the usual size. More stay in the kernel's
/// buffer, so that memory is bounded.
const PAGES: usize = 256;
/// Time between scans for new processes.
const SCAN: Duration = Duration::from_millis(300);
/// A collector's thread goes before ordinary tasks, as a recorder's does.
pub(crate) const NICE: i32 = -10;

/// Whether samples are made of a tracepoint.
pub(crate) fn is_sampled(system: &str, name: &str) -> bool {
    let mut sampled = NEEDS.iter().filter(|need| need.sampled);
    sampled.any(|need| need.system == system && need.events.contains(&name))
}

/// A tracing instance that is read as it fills. Dropping it removes the instance.
pub struct Follower {
    // Dropped before the session: an instance with open files cannot be removed.
    rings: Vec<Ring>,
    session: Session,
    pages: Pages,
    scanned: Instant,
    /// CPU time of this process when it began.
    cpu_before: Duration,
    /// The latest pages, if they are kept.
    latest: Option<Latest>,
}

/// One CPU's buffer.
struct Ring {
    cpu: u16,
    source: File,
}

impl Follower {
    /// Starts tracing. `warn` gets sentences about the host. `buffer_kb` is the size of each CPU's buffer.
    ///
    /// # Errors
    /// tracefs cannot be used, or the kernel has no `sched_switch`. The host is left as it was.
    pub fn start(
        clock: Option<&str>,
        buffer_kb: Option<u64>,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, RecordError> {
        Self::begin(clock, buffer_kb, None, warn)
    }

    /// The same with all tracepoints that [`record`](crate::record) records. The latest pages are kept, and
    /// [`Follower::flight`] makes a recording of them.
    ///
    /// # Errors
    /// As [`Follower::start`].
    pub fn start_keeping(
        keep: Keep,
        buffer_kb: Option<u64>,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, RecordError> {
        Self::begin(None, buffer_kb, Some(keep), warn)
    }

    fn begin(
        clock: Option<&str>,
        buffer_kb: Option<u64>,
        keep: Option<Keep>,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, RecordError> {
        let cpu_before = cpu_time();
        let host = Host::open()?;
        host.clean(warn);
        let mut selection = Selection::probe(&host.tracefs)?;
        if keep.is_none() {
            selection.keep(is_sampled);
        }
        let instance = Instance::create(&host.tracefs)?;
        let session = Session::new(host, clock, buffer_kb, selection, instance)?;
        if let Some(warning) = &session.clock.warning {
            warn(warning);
        }
        // Without the right to it, buffers of a second still suffice.
        let _ = rustix::process::setpriority_process(None, NICE);
        raise_file_limit();
        let description = session.description(&[])?;
        let mut pages = Pages::new(&description).map_err(RecordError::Pages)?;
        pages.name_tasks(&description.cmdlines, &description.tgids);
        let folder = session.instance.folder();
        let rings = session.cpus.iter().map(|&cpu| {
            let path = folder.join(&format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
            Ring::open(cpu, &path).map_err(|error| RecordError::control(&path, "read it", error))
        });
        let rings = rings.collect::<Result<Vec<Ring>, RecordError>>()?;
        folder.write("tracing_on", "1", "start tracing")?;
        Ok(Self {
            rings,
            session,
            pages,
            scanned: Instant::now(),
            cpu_before,
            latest: keep.map(|keep| Latest::new(keep, description)),
        })
    }

    /// Reads what there is, and gives the events that are known to be in order. Returns the time up to which
    /// all events were given, in ns of the trace's clock; 0 before the first.
    ///
    /// # Errors
    /// A buffer cannot be read.
    pub fn round(&mut self, take: &mut dyn FnMut(&Event, &NameTable)) -> Result<u64, RecordError> {
        if self.scanned.elapsed() >= SCAN {
            self.scan();
        }
        let mut limit = self.pages.newest();
        if let Some(latest) = &mut self.latest {
            latest.forget(Instant::now());
        }
        for ring in &mut self.rings {
            if ring.drain(&mut self.pages, self.latest.as_mut())? {
                // More is left in the kernel's buffer: nothing behind this CPU's latest page is settled.
                limit = limit.min(self.pages.waits_until(ring.cpu).unwrap_or(limit));
            }
        }
        self.pages.take(limit, take);
        Ok(limit)
    }

    /// Adds the threads of new processes.
    fn scan(&mut self) {
        let (threads, proc_root) = (&mut self.session.threads, &self.session.host.proc_root);
        threads.scan_new(proc_root);
        let time = self.latest.as_ref().map(Latest::time);
        threads.forget_ended(Instant::now(), time.unwrap_or_default());
        let (cmdlines, tgids) = (threads.cmdlines(&[]), threads.tgids());
        self.pages.name_tasks(&cmdlines, &tgids);
        self.scanned = Instant::now();
    }

    /// Names so far.
    #[must_use]
    pub const fn names(&self) -> &NameTable {
        self.pages.names()
    }

    /// What is known of the stream.
    #[must_use]
    pub const fn info(&self) -> &SourceInfo {
        self.pages.info()
    }

    /// Tracepoints that samples need and this kernel does not give.
    #[must_use]
    pub fn missing(&self) -> &[Missing] {
        &self.session.selection.missing
    }

    /// The trace clock's name.
    #[must_use]
    pub fn clock(&self) -> &str {
        &self.session.clock.name
    }

    /// KiB of each CPU's ring buffer.
    #[must_use]
    pub const fn buffer_kb(&self) -> u64 {
        self.session.sizes.now_kb
    }

    /// Events that were lost so far, by the kernel's counters.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let mut sum = Stats::default();
        let stats = self.session.stats();
        stats.iter().for_each(|(_, stats)| sum.add(stats));
        sum.lost
    }

    /// A recording of the latest pages; `None` if they are not kept.
    #[must_use]
    pub fn flight(&mut self) -> Option<Flight> {
        let threads = &self.session.threads;
        let saved = self.session.host.tracefs.read("saved_cmdlines");
        let mut flight = self.latest.as_ref()?.flight();
        flight.recording.cmdlines = threads.cmdlines(&saved.unwrap_or_default());
        flight.recording.tgids = threads.tgids();
        Some(flight)
    }

    /// CPU time of this process since it follows the host.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        cpu_time().saturating_sub(self.cpu_before)
    }

    /// Ends tracing and removes the instance.
    ///
    /// # Errors
    /// The instance cannot be removed: another process holds it open.
    pub fn stop(self) -> Result<(), RecordError> {
        drop(self.rings);
        self.session.instance.remove()
    }
}

impl Ring {
    fn open(cpu: u16, path: &std::path::Path) -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut options = File::options();
        let source = options.read(true).custom_flags(flags).open(path)?;
        Ok(Self { cpu, source })
    }

    /// Reads pages until there are none; whether the limit of a round came first.
    fn drain(
        &mut self,
        pages: &mut Pages,
        mut latest: Option<&mut Latest>,
    ) -> Result<bool, RecordError> {
        for _ in 0..PAGES {
            let mut page = pages.buffer();
            match self.source.read(&mut page) {
                Ok(0) => {
                    pages.recycle(page);
                    return Ok(false);
                }
                Ok(len) => {
                    if let Some(rest) = page.get_mut(len..) {
                        rest.fill(0);
                    }
                    if let Some(latest) = &mut latest {
                        latest.push(self.cpu, pages.begin_of(&page), &page);
                    }
                    pages.push(self.cpu, page);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => pages.recycle(page),
                // Nothing is there, or the CPU has never been online and has no buffer.
                Err(_) => {
                    pages.recycle(page);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_leave_out_what_they_do_not_need() {
        for (system, name) in [
            ("kvm", "kvm_exit"),
            ("timer", "hrtimer_expire_entry"),
            ("irq_vectors", "reschedule_exit"),
        ] {
            assert!(is_sampled(system, name), "{name}");
        }
        for (system, name) in [
            ("kvm", "kvm_mmio"),
            ("timer", "hrtimer_start"),
            ("sched", "kvm_exit"),
        ] {
            assert!(!is_sampled(system, name), "{name}");
        }
    }
}
