//! ns per operation: this crate's fair class beside a pointer-linked red-black peer, and the
//! candidates for its tree beside each other.
//!
//! `cargo bench -p stealtime-hypervisor --bench eevdf`
#![allow(clippy::unwrap_used, reason = "a benchmark may fail")]

mod candidates;
mod peer;
mod rbtree;
mod worlds;

use std::time::{Duration, Instant};

use worlds::{OPS, Ours, Peer, Rounds, World};

const SIZES: [usize; 4] = [2, 8, 64, 1024];

fn queues(tasks: usize) -> usize {
    (512 / tasks).clamp(4, 64)
}

/// The fastest of several passes, ns per operation, and a checksum of all picks.
fn measure<W: World>(make: impl Fn(usize, usize) -> W, tasks: usize) -> ([f64; 3], usize) {
    let (rounds, passes) = (40_000 / (queues(tasks) * 4), 9);
    let mut best = [f64::MAX; 3];
    let mut sum = 0usize;
    for _ in 0..passes {
        let mut world = make(queues(tasks), tasks);
        let mut run = Rounds::new(&mut world, queues(tasks), tasks);
        let mut spent = [Duration::ZERO; 3];
        sum = 0;
        for _ in 0..rounds {
            let picked = run.round(&mut world, &mut |op, world, batch| {
                let start = Instant::now();
                batch(world);
                spent[op] += start.elapsed();
            });
            sum = sum.wrapping_mul(31).wrapping_add(picked);
        }
        for op in 0..3 {
            let each = spent[op].as_nanos() as f64 / (rounds * run.len()[op]) as f64;
            best[op] = best[op].min(each);
        }
    }
    (best, sum)
}

fn main() {
    println!("ns per operation, best of 9 passes");
    println!("| entities | operation | this crate | red-black peer | ratio |");
    println!("|---|---|---|---|---|");
    for tasks in SIZES {
        let (ours, a) = measure(Ours::new, tasks);
        let (peer, b) = measure(Peer::new, tasks);
        assert_eq!(a, b, "{tasks} entities: both must pick the same");
        for op in 0..3 {
            let ratio = ours[op] / peer[op];
            let name = OPS[op];
            println!(
                "| {tasks} | {name} | {:.1} | {:.1} | {ratio:.2} |",
                ours[op], peer[op]
            );
        }
    }
    println!();
    candidates::run();
}
