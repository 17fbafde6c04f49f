//! Chunks of compressed trace data, unpacked by a thread of their own ahead of the reader.
//!
//! The thread takes sound and small chunks alone. From the first other one on, it leaves a CPU's data to the
//! reader, which says what is wrong. So the events and the messages are those without a thread.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::compression::Compression;
use super::cpu::Plan;
use super::input::Source;
use crate::tracefs::Endian;

/// Unpacked bytes of all CPUs that may wait: some ten chunks for each of 16 CPUs. trace-cmd packs ten pages
/// at once.
pub(super) const WAITING: usize = 8 << 20;
/// The same of one CPU: a chunk of trace-cmd at least.
const LEAST: usize = 64 << 10;
/// With more CPUs the reader does it alone: the chunks would take more than 32 MiB.
const MOST_CPUS: usize = 512;

/// Bytes of a chunk's head: its sizes, packed and unpacked.
const HEAD: usize = 8;

/// An unpacked chunk.
struct Chunk {
    /// The position in the file of its packed data.
    position: u64,
    pages: Vec<u8>,
}

/// The chunks of one CPU.
struct Lane {
    endian: Endian,
    /// The position of the next chunk's head; none where the reader does the rest.
    next: Option<u64>,
    end: u64,
    /// Chunks that wait, and their bytes.
    chunks: VecDeque<Chunk>,
    waiting: usize,
}

/// What thread and reader share.
struct Shared {
    lanes: Vec<Lane>,
    /// Used vectors, back to the thread.
    spare: Vec<Vec<u8>>,
    /// The reader is gone.
    is_abandoned: bool,
}

/// A chunk to be unpacked.
struct Job {
    lane: usize,
    endian: Endian,
    next: u64,
    end: u64,
    /// Bytes of the CPU that wait.
    waiting: usize,
}

impl Shared {
    /// The next chunk of the CPU with the fewest bytes that wait.
    fn most_urgent(&self) -> Option<Job> {
        let jobs = self.lanes.iter().enumerate().filter_map(|(index, lane)| {
            Some(Job {
                lane: index,
                endian: lane.endian,
                next: lane.next?,
                end: lane.end,
                waiting: lane.waiting,
            })
        });
        jobs.min_by_key(|job| job.waiting)
    }
}

/// The chunks of all CPUs on their way from the thread to the reader.
struct Belt {
    shared: Mutex<Shared>,
    /// To the reader: a chunk waits, or there will be none.
    filled: Condvar,
    /// To the thread: there is room.
    taken: Condvar,
    /// Bytes of a CPU that may wait.
    room: usize,
}

impl Belt {
    /// A panic of the other side leaves no half-made state.
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reader's side.
pub(super) struct Unpacker(Arc<Belt>);

impl Drop for Unpacker {
    fn drop(&mut self) {
        self.0.shared().is_abandoned = true;
        self.0.taken.notify_one();
    }
}

impl Unpacker {
    /// Starts the thread. It reads by a handle of its own. The lanes are in the order of the plans. None
    /// where the operating system gives no thread, or for too many CPUs.
    pub(super) fn new<'a>(
        plans: impl Iterator<Item = &'a Plan>,
        source: Source,
        compression: Compression,
    ) -> Option<Self> {
        let lane = |plan: &Plan| Lane {
            endian: plan.layout.endian,
            // The number of chunks comes first. `trace-cmd convert` does not count it into the size.
            next: plan.compressed.then(|| plan.start.saturating_add(4)),
            end: plan.end.saturating_add(4),
            chunks: VecDeque::new(),
            waiting: 0,
        };
        let lanes: Vec<Lane> = plans.map(lane).collect();
        let room = WAITING.checked_div(lanes.len())?.max(LEAST);
        if lanes.len() > MOST_CPUS {
            return None;
        }
        let belt = Arc::new(Belt {
            room,
            shared: Mutex::new(Shared {
                lanes,
                spare: Vec::new(),
                is_abandoned: false,
            }),
            filled: Condvar::new(),
            taken: Condvar::new(),
        });
        let mut worker = Worker {
            belt: Arc::clone(&belt),
            source,
            compression,
            packed: Vec::new(),
        };
        thread::Builder::new()
            .name("unpacker".to_owned())
            .spawn(move || worker.run())
            .ok()?;
        Some(Self(belt))
    }

    /// Exchanges a used vector for the chunk of a CPU with its data at `position` and of this size. `false`
    /// where the reader has to unpack it.
    pub(super) fn take(
        &self,
        lane: usize,
        position: u64,
        size: usize,
        pages: &mut Vec<u8>,
    ) -> bool {
        let mut shared = self.0.shared();
        while let Some(lane) = shared.lanes.get_mut(lane) {
            if let Some(chunk) = lane.chunks.pop_front() {
                let waited = lane.waiting;
                lane.waiting -= chunk.pages.len();
                let crosses = (lane.waiting..waited).contains(&(self.0.room / 2));
                if chunk.position != position || chunk.pages.len() != size {
                    // The reader has gone another way, or the file has changed.
                    (lane.next, lane.waiting) = (None, 0);
                    lane.chunks.clear();
                    return false;
                }
                shared.spare.push(std::mem::replace(pages, chunk.pages));
                // A thread that waits has something to do for a while.
                if crosses {
                    self.0.taken.notify_one();
                }
                return true;
            }
            if lane.next.is_none() {
                break;
            }
            let waiting = self.0.filled.wait(shared);
            shared = waiting.unwrap_or_else(PoisonError::into_inner);
        }
        false
    }
}

/// The thread's side.
struct Worker {
    belt: Arc<Belt>,
    source: Source,
    compression: Compression,
    packed: Vec<u8>,
}

/// A panic must not let the reader wait.
impl Drop for Worker {
    fn drop(&mut self) {
        for lane in &mut self.belt.shared().lanes {
            lane.next = None;
        }
        self.belt.filled.notify_one();
    }
}

impl Worker {
    /// Unpacks, the CPU with the fewest waiting bytes first, until all is done or the reader is gone.
    fn run(&mut self) {
        let belt = Arc::clone(&self.belt);
        let mut shared = belt.shared();
        while !shared.is_abandoned
            && let Some(job) = shared.most_urgent()
        {
            if job.waiting >= belt.room {
                shared = belt
                    .taken
                    .wait(shared)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let mut pages = shared.spare.pop().unwrap_or_default();
            drop(shared);
            let packed = self.unpack(&job, &mut pages);
            shared = belt.shared();
            let lane = shared.lanes.get_mut(job.lane);
            if let Some(lane) = lane.filter(|lane| lane.next.is_some()) {
                let position = job.next + HEAD as u64;
                lane.next = packed.map(|packed| position + packed);
                if packed.is_some() {
                    lane.waiting += pages.len();
                    lane.chunks.push_back(Chunk { position, pages });
                }
            }
            belt.filled.notify_one();
        }
    }

    /// Unpacks a chunk. Returns the length of its packed data.
    fn unpack(&mut self, job: &Job, pages: &mut Vec<u8>) -> Option<u64> {
        let Job {
            endian, next, end, ..
        } = *job;
        let mut head = [0; HEAD];
        if self.source.fill(&mut head, next).ok()? < HEAD {
            return None;
        }
        let length = endian.u32(&head, 0)?;
        let size = endian.u32(&head, 4)? as usize;
        let position = next + HEAD as u64;
        let is_within = position.saturating_add(u64::from(length)) <= end;
        let is_small = size <= self.belt.room && length as usize <= self.belt.room;
        if !is_within || !is_small || size == 0 {
            return None;
        }
        self.packed.resize(length as usize, 0);
        if self.source.fill(&mut self.packed, position).ok()? < length as usize {
            return None;
        }
        let unpacked = self.compression.unpack(&self.packed, size, pages);
        unpacked.is_ok().then_some(u64::from(length))
    }
}
