//! Threads that move pages while the host runs.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::RecordError;
use crate::limits::{Limits, Reports};
use crate::ring::{Pipe, Ring};
use crate::session::{Ended, Observer, Progress, stats};
use crate::stats::Stats;
use crate::tracefs::Folder;

/// CPUs that one thread serves.
const CPUS_OF_THREAD: usize = 16;
/// Longest time between two looks at a buffer. The buffers hold seconds.
const LONGEST: Duration = Duration::from_millis(200);
/// Shortest time: kernels before 6.1 report a buffer as readable with its first event.
const SHORTEST: Duration = Duration::from_millis(10);
/// The time between looks at the end.
const TICK: Duration = Duration::from_millis(50);
/// The recorder's threads go before ordinary tasks: they run for 0.1 ms at a time.
const NICE: i32 = -10;

/// Pages that were collected.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) ended: Ended,
    pub(crate) elapsed: Duration,
    /// The output cannot be written; what came before is whole.
    pub(crate) error: Option<io::Error>,
}

/// What the threads share.
#[derive(Debug, Default)]
struct Shared {
    /// Tracing has stopped: the rest is to be moved.
    is_ending: AtomicBool,
    bytes: AtomicU64,
    error: Mutex<Option<io::Error>>,
}

impl Shared {
    fn fail(&self, error: io::Error) {
        let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
    }

    fn has_failed(&self) -> bool {
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        error.is_some()
    }
}

/// Threads that serve so many CPUs.
pub(crate) fn threads(cpus: usize) -> usize {
    cpus.div_ceil(CPUS_OF_THREAD)
}

/// Moves pages until the recording ends, and what is left then. Tracing has begun. `on_report` is called
/// with each report.
pub(crate) fn collect(
    folder: &Folder,
    cpus: &[u16],
    rings: &mut [Ring],
    limits: Limits,
    observer: &mut dyn Observer,
    on_report: &mut dyn FnMut(),
) -> Result<Collected, RecordError> {
    let shared = Shared::default();
    let (ended, elapsed, stopped) = std::thread::scope(|scope| {
        let shared = &shared;
        let start = |part| {
            Builder::new().spawn_scoped(scope, move || {
                if let Err(error) = serve(part, shared) {
                    shared.fail(error);
                }
            })
        };
        let started = rings
            .chunks_mut(CPUS_OF_THREAD)
            .try_for_each(|part| start(part).map(|_| ()));
        let ended = match started {
            Ok(()) => Ok(watch(folder, cpus, limits, shared, observer, on_report)),
            Err(source) => Err(RecordError::NoThread { source }),
        };
        let stopped = folder.write("tracing_on", "0", "stop tracing");
        let elapsed = limits.began.elapsed();
        shared.is_ending.store(true, Ordering::Release);
        (ended, elapsed, stopped)
    });
    let ended = ended?;
    stopped?;
    let error = shared
        .error
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    Ok(Collected {
        ended: if error.is_some() {
            Ended::Output
        } else {
            ended
        },
        elapsed,
        error,
    })
}

/// Waits for the end, and reports meanwhile.
fn watch(
    folder: &Folder,
    cpus: &[u16],
    limits: Limits,
    shared: &Shared,
    observer: &mut dyn Observer,
    on_report: &mut dyn FnMut(),
) -> Ended {
    let mut sum = Stats::default();
    // The first second may have been counted before.
    stats(folder, cpus)
        .iter()
        .for_each(|(_, stats)| sum.add(stats));
    let mut reports = Reports::new(sum.events() + sum.lost);
    loop {
        if shared.has_failed() {
            return Ended::Output;
        }
        let bytes = shared.bytes.load(Ordering::Relaxed);
        if let Some(ended) = limits.ended(bytes, observer) {
            return ended;
        }
        if reports.is_due() {
            let mut sum = Stats::default();
            stats(folder, cpus)
                .iter()
                .for_each(|(_, stats)| sum.add(stats));
            let progress = Progress {
                elapsed: limits.began.elapsed(),
                events: sum.events(),
                rate: 0,
                bytes: bytes + sum.bytes,
                lost: sum.lost,
            };
            reports.report(progress, observer);
            on_report();
        }
        std::thread::sleep(limits.remaining().map_or(TICK, |time| time.min(TICK)));
    }
}

/// Moves the pages of some CPUs.
fn serve(rings: &mut [Ring], shared: &Shared) -> io::Result<()> {
    // Without the right to it, buffers of seconds still suffice.
    let _ = rustix::process::setpriority_process(None, NICE);
    let pipe = Pipe::new()?;
    // Which have had events: a CPU that is offline would be ready at any time, with an error.
    let mut live = vec![false; rings.len()];
    loop {
        let is_ending = shared.is_ending.load(Ordering::Acquire);
        if !is_ending {
            wait(rings, &live)?;
        }
        for (ring, is_live) in rings.iter_mut().zip(&mut live) {
            let former_len = ring.len;
            let moved = match is_ending {
                true => ring.finish(&pipe),
                false => ring.drain(&pipe).map(drop),
            };
            *is_live |= ring.len > former_len;
            shared
                .bytes
                .fetch_add(ring.len.saturating_sub(former_len), Ordering::Relaxed);
            moved?;
        }
        if is_ending {
            return Ok(());
        }
    }
}

/// Waits until a buffer is half full (`buffer_percent`), or [`LONGEST`].
fn wait(rings: &[Ring], live: &[bool]) -> io::Result<()> {
    let live = rings.iter().zip(live).filter(|(_, is_live)| **is_live);
    let fds = live.filter_map(|(ring, _)| ring.readiness());
    let mut fds: Vec<PollFd<'_>> = fds
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    std::thread::sleep(SHORTEST);
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: LONGEST.subsec_nanos().into(),
    };
    match rustix::event::poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
