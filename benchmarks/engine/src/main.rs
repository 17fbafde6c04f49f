//! The hold model on one engine (`scripts/bench-engine`).
//!
//! `hold increments DISTRIBUTION MEAN COUNT` writes COUNT increments in ns to stdout, 8 bytes each.
//! `hold ENGINE FILE PENDING` reads them. The first PENDING fill the queue, and each event takes one of
//! the others. It prints the CPU time of these events and the simulated time of the first event that
//! finds no increment, in ns.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::error::Error;
use std::io::Write;

use stealtime_simulator::engine::{Queue, Streams};

#[cfg(feature = "nexosim")]
mod peer;

const USAGE: &str =
    "hold increments exponential|uniform MEAN COUNT | hold stealtime|heap|nexosim FILE PENDING";

/// What a run measured.
pub(crate) struct Measured {
    cpu_ns: u64,
    last_ns: u64,
}

/// CPU time of this thread, in ns. Each engine runs on one thread.
pub(crate) fn cpu_ns() -> Result<u64, Box<dyn Error>> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let (seconds, rest_ns) = (u64::try_from(time.tv_sec)?, u64::try_from(time.tv_nsec)?);
    Ok(seconds * 1_000_000_000 + rest_ns)
}

fn increments(distribution: &str, mean: u64, count: usize) -> Result<(), Box<dyn Error>> {
    let mut random = Streams::new(1).named(distribution);
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    for _ in 0..count {
        let increment = match distribution {
            // nexosim refuses an event at the present time.
            "exponential" => random.exponential(mean).max(1),
            "uniform" => random.between(1, 2 * mean - 1),
            _ => return Err(USAGE.into()),
        };
        stdout.write_all(&increment.to_le_bytes())?;
    }
    Ok(stdout.flush()?)
}

fn stealtime(pending: &[u64], increments: &[u64]) -> Result<Measured, Box<dyn Error>> {
    let mut queue = Queue::new();
    for &increment in pending {
        let slot = queue.slot();
        queue.arm(slot, increment);
    }
    let start = cpu_ns()?;
    for &increment in increments {
        let (now, slot) = queue.pop(u64::MAX).ok_or("an empty queue")?;
        queue.arm(slot, now + increment);
    }
    Ok(Measured {
        cpu_ns: cpu_ns()? - start,
        last_ns: queue.next().ok_or("an empty queue")?,
    })
}

/// The heap of the standard library, with the same order of equal times. It cannot cancel a timer.
fn heap(pending: &[u64], increments: &[u64]) -> Result<Measured, Box<dyn Error>> {
    let mut heap = BinaryHeap::new();
    let mut sequence = 0u64;
    for (slot, &increment) in (0u32..).zip(pending) {
        sequence += 1;
        heap.push(Reverse((increment, sequence, slot)));
    }
    let start = cpu_ns()?;
    for &increment in increments {
        let Reverse((now, _, slot)) = heap.pop().ok_or("an empty heap")?;
        sequence += 1;
        heap.push(Reverse((now + increment, sequence, slot)));
    }
    Ok(Measured {
        cpu_ns: cpu_ns()? - start,
        last_ns: heap.peek().ok_or("an empty heap")?.0.0,
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (engine, file, pending) = match args[..] {
        ["increments", distribution, mean, count] => {
            return increments(distribution, mean.parse()?, count.parse()?);
        }
        [engine, file, pending] => (engine, file, pending.parse::<usize>()?),
        _ => return Err(USAGE.into()),
    };
    let bytes = std::fs::read(file)?;
    let numbers: Vec<u64> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|&n| u64::from_le_bytes(n))
        .collect();
    let (pending, increments) = numbers
        .split_at_checked(pending)
        .ok_or("too few increments")?;
    let measured = match engine {
        "stealtime" => stealtime(pending, increments)?,
        "heap" => heap(pending, increments)?,
        #[cfg(feature = "nexosim")]
        "nexosim" => peer::nexosim(pending, increments)?,
        _ => return Err(USAGE.into()),
    };
    println!("{} {}", measured.cpu_ns, measured.last_ns);
    Ok(())
}
