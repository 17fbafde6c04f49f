//! ns per operation: this crate's fair class beside a pointer-linked red-black peer, and the
//! candidates for its tree beside each other.
//!
//! `cargo bench -p stealtime-hypervisor --bench eevdf`
#![allow(clippy::unwrap_used, reason = "a benchmark may fail")]

mod candidates;
mod peer;
mod rbtree;
mod tracking;
mod worlds;

use std::time::{Duration, Instant};

use worlds::{OPS, Ours, Peer, Rounds, World};

const SIZES: [usize; 4] = [2, 8, 64, 1024];

fn queues(tasks: usize) -> usize {
    (512 / tasks).clamp(4, 64)
}

/// Passes of each implementation, in turns: what else the machine does falls on all.
const PASSES: usize = 41;

/// The fastest pass so far: ns per operation, and a checksum of all picks.
struct Best {
    ns: [f64; 3],
    sum: usize,
}

impl Best {
    fn new() -> Self {
        Self {
            ns: [f64::MAX; 3],
            sum: 0,
        }
    }

    fn pass<W: World>(&mut self, mut world: W, tasks: usize) {
        let rounds = 40_000 / (queues(tasks) * 4);
        let mut run = Rounds::new(&mut world, queues(tasks), tasks);
        let mut spent = [Duration::ZERO; 3];
        self.sum = 0;
        for _ in 0..rounds {
            let picked = run.round(&mut world, &mut |op, world, batch| {
                let start = Instant::now();
                batch(world);
                spent[op] += start.elapsed();
            });
            self.sum = self.sum.wrapping_mul(31).wrapping_add(picked);
        }
        for (op, spent) in spent.iter().enumerate() {
            let each = spent.as_nanos() as f64 / (rounds * run.len()[op]) as f64;
            self.ns[op] = self.ns[op].min(each);
        }
    }
}

fn main() {
    println!("ns per operation, best of {PASSES} passes");
    println!("| entities | operation | this crate | peer | ratio | peer, load tracking | ratio |");
    println!("|---|---|---|---|---|---|---|");
    for tasks in SIZES {
        let n = queues(tasks);
        let (mut ours, mut peer, mut tracking) = (Best::new(), Best::new(), Best::new());
        for _ in 0..PASSES {
            ours.pass(Ours::new(n, tasks), tasks);
            peer.pass(Peer::new(n, tasks, false), tasks);
            tracking.pass(Peer::new(n, tasks, true), tasks);
        }
        assert!(
            ours.sum == peer.sum && peer.sum == tracking.sum,
            "{tasks} entities: all must pick the same"
        );
        for (op, name) in OPS.iter().enumerate() {
            let (ours, peer, tracking) = (ours.ns[op], peer.ns[op], tracking.ns[op]);
            println!(
                "| {tasks} | {name} | {ours:.1} | {peer:.1} | {:.2} | {tracking:.1} | {:.2} |",
                ours / peer,
                ours / tracking
            );
        }
    }
    println!();
    candidates::run();
}
