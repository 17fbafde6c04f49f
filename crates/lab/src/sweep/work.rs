//! Runs on threads: each takes the next number, one writes down what has ended.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::SweepError;
use super::plan::Plan;
use crate::run::{RunError, RunOutput, Runner, guarded};

/// Results that may wait to be written down, for each thread: enough that none waits for a disk that
/// is slow for a moment.
const QUEUE: usize = 1024;
/// How often the one who writes looks whether the user has stopped.
const LOOK: Duration = Duration::from_millis(50);

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

/// What was done and how busy the threads were.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Runs that were finished.
    pub runs: u64,
    /// Threads.
    pub threads: usize,
    /// From the first thread's begin to the last one's end.
    pub wall: Duration,
    /// Time of all threads within runs.
    pub in_runs: Duration,
    /// Time in which threads waited: for what they had done to be written down, or, having ended, for
    /// the last of them.
    pub waited: Duration,
    /// CPU time of all threads that run.
    pub cpu: Duration,
    /// Stopped before the end.
    pub stopped: bool,
}

impl Work {
    /// How much of their time the threads had work, from 0 to 1; whether the host gave them a CPU for
    /// it is another question.
    #[must_use]
    pub fn busy(&self) -> f64 {
        let all = self.wall.as_secs_f64() * self.threads as f64;
        if all > 0.0 {
            1.0 - self.waited.as_secs_f64() / all
        } else {
            1.0
        }
    }
}

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

    /// One thread's life.
    fn work(&self, order: Order<'_>, results: &SyncSender<Finished>) -> Work {
        let begin = Instant::now();
        let cpu = cpu_time();
        let mut work = Work::default();
        while !self.halt.load(Ordering::Relaxed) {
            let Some(run) = order() else {
                break;
            };
            let before = Instant::now();
            let result = match self.plan.config(run) {
                Ok(config) => guarded(self.runner, &config, &self.halt),
                Err(refused) => Err(RunError::Failed(refused.to_string())),
            };
            work.in_runs += before.elapsed();
            if result == Err(RunError::Stopped) {
                break;
            }
            work.runs += 1;
            if !send(results, (run, result), &mut work.waited) {
                break;
            }
        }
        // Until all are known to have ended, this is how long it lived.
        work.wall = begin.elapsed();
        work.cpu = cpu_time().saturating_sub(cpu);
        work
    }
}

/// Hands a result over; adds to `waited` if the queue is full. `false`: nobody takes it.
fn send(results: &SyncSender<Finished>, finished: Finished, waited: &mut Duration) -> bool {
    match results.try_send(finished) {
        Ok(()) => true,
        Err(TrySendError::Disconnected(_)) => false,
        Err(TrySendError::Full(finished)) => {
            let begin = Instant::now();
            let sent = results.send(finished).is_ok();
            *waited += begin.elapsed();
            sent
        }
    }
}

type Finished = (u64, Result<RunOutput, RunError>);
/// The number of the next run: asked by all threads at once, so without a lock, whose owner might lose
/// its CPU.
type Order<'o> = &'o (dyn Fn() -> Option<u64> + Sync);

/// Does runs in this order; `add` is given each that has ended, one after the other.
pub(super) fn run(
    job: &Job<'_>,
    order: Order<'_>,
    add: &mut dyn FnMut(u64, Result<RunOutput, RunError>) -> Result<(), SweepError>,
) -> Result<Work, SweepError> {
    let begin = Instant::now();
    let threads = job.threads.get();
    let (send, receive) = sync_channel::<Finished>(QUEUE * threads);
    let mut failed = None;
    let mut stopped = false;
    let mut all = std::thread::scope(|scope| {
        let mut workers = Vec::with_capacity(threads);
        for _ in 0..threads {
            let send = send.clone();
            match Builder::new().spawn_scoped(scope, move || job.work(order, &send)) {
                Ok(worker) => workers.push(worker),
                // A limit of threads: those that there are do all of it, with the same results.
                Err(source) => {
                    failed = workers
                        .is_empty()
                        .then_some(SweepError::NoThread { source });
                    break;
                }
            }
        }
        drop(send);
        loop {
            match receive.recv_timeout(LOOK) {
                Ok((run, result)) if failed.is_none() => failed = add(run, result).err(),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            stopped |= job.stop.load(Ordering::Relaxed);
            let is_late = job.limit.is_some_and(|limit| begin.elapsed() > limit);
            if stopped || is_late || failed.is_some() {
                job.halt.store(true, Ordering::Relaxed);
            }
        }
        let works = workers.into_iter().filter_map(|worker| worker.join().ok());
        works.fold(Work::default(), |all, one| Work {
            runs: all.runs + one.runs,
            in_runs: all.in_runs + one.in_runs,
            waited: all.waited + one.waited,
            wall: all.wall + one.wall,
            cpu: all.cpu + one.cpu,
            ..all
        })
    });
    let lived = std::mem::replace(&mut all.wall, begin.elapsed());
    let longest = all.wall * u32::try_from(threads).unwrap_or(u32::MAX);
    all.waited += longest.saturating_sub(lived);
    all.threads = threads;
    all.stopped = stopped;
    failed.map_or(Ok(all), Err)
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
