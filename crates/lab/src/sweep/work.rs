//! Runs on threads: each takes the next number, one thread records what has ended.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::SweepError;
use super::plan::Plan;
use crate::run::{RunError, RunOutput, Runner, guarded};

/// Results that may wait to be recorded, for each thread: enough that a slow disk does not stop the runs.
const QUEUE: usize = 1024;
/// The interval at which the recording thread checks whether the user has stopped.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The recording thread sleeps so long when it has recorded all results. To wake for each costs two switches
/// of the CPU for each run.
const PAUSE: Duration = Duration::from_millis(2);

/// What the threads have in common.
pub(super) struct Job<'j> {
    plan: &'j Plan,
    runner: &'j dyn Runner,
    threads: NonZeroUsize,
    stop: &'j AtomicBool,
    /// Runs that last longer are given up.
    pub(super) limit: Option<Duration>,
    /// Ends runs and threads.
    halt: AtomicBool,
}

/// What was run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Runs that finished.
    pub(super) runs: u64,
    /// Time of all threads within these runs.
    pub(super) in_runs: Duration,
    /// From the first thread's begin to the last one's end.
    pub(super) wall: Duration,
}

/// A run that has ended.
struct Finished {
    run: u64,
    result: Result<RunOutput, RunError>,
    took: Duration,
}

/// The number of the next run. All threads call it at once, so it takes no lock: a preempted holder
/// would stop them all.
type Order<'o> = &'o (dyn Fn() -> Option<u64> + Sync);

impl<'j> Job<'j> {
    pub(super) fn new(
        plan: &'j Plan,
        runner: &'j dyn Runner,
        threads: NonZeroUsize,
        stop: &'j AtomicBool,
    ) -> Self {
        Self {
            plan,
            runner,
            threads,
            stop,
            limit: None,
            halt: AtomicBool::new(false),
        }
    }

    /// Runs what `order` gives, until it gives nothing or the job halts.
    fn work(&self, order: Order<'_>, results: &SyncSender<Finished>) {
        while !self.halt.load(Ordering::Relaxed) {
            let Some(run) = order() else {
                break;
            };
            let begin = Instant::now();
            let result = match self.plan.config(run) {
                Ok(config) => guarded(self.runner, &config, &self.halt),
                Err(refused) => Err(RunError::Failed(refused.to_string())),
            };
            let finished = Finished {
                run,
                took: begin.elapsed(),
                result,
            };
            if finished.result == Err(RunError::Stopped) || results.send(finished).is_err() {
                break;
            }
        }
    }
}

/// Does runs in this order; `record` gets each that has ended, one after the other.
pub(super) fn run(
    job: &Job<'_>,
    order: Order<'_>,
    record: &mut dyn FnMut(u64, Result<RunOutput, RunError>) -> Result<(), SweepError>,
) -> Result<Work, SweepError> {
    let begin = Instant::now();
    let threads = job.threads.get();
    let (send, receive) = sync_channel::<Finished>(QUEUE * threads);
    let mut failed = None;
    let mut work = Work::default();
    std::thread::scope(|scope| {
        for started in 0..threads {
            let send = send.clone();
            let thread = Builder::new().spawn_scoped(scope, move || job.work(order, &send));
            if let Err(source) = thread {
                // A limit of threads: those that started do all of it, with the same results.
                failed = (started == 0).then_some(SweepError::NoThread { source });
                break;
            }
        }
        drop(send);
        loop {
            let finished = receive.try_recv().or_else(|error| match error {
                TryRecvError::Disconnected => Err(RecvTimeoutError::Disconnected),
                TryRecvError::Empty => {
                    std::thread::sleep(PAUSE);
                    receive.recv_timeout(CHECK_INTERVAL)
                }
            });
            match finished {
                Ok(finished) => {
                    work.runs += 1;
                    work.in_runs += finished.took;
                    if failed.is_none() {
                        failed = record(finished.run, finished.result).err();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let is_late = job.limit.is_some_and(|limit| begin.elapsed() > limit);
            if job.stop.load(Ordering::Relaxed) || is_late || failed.is_some() {
                job.halt.store(true, Ordering::Relaxed);
            }
        }
    });
    work.wall = begin.elapsed();
    failed.map_or(Ok(work), Err)
}
