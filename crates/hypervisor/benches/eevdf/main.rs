//! ns per operation: this crate's fair class next to a peer with a pointer-linked red-black tree,
//! and comparisons of the candidates for its own tree.
//!
//! `cargo bench -p stealtime-hypervisor --bench eevdf`. `scripts/kernel-eevdf` sets `linux_fair`: the
//! kernel's own functions take the peer's place.
#![allow(clippy::unwrap_used, reason = "a benchmark may fail")]

mod candidates;
#[cfg(linux_fair)]
mod linux;
#[cfg_attr(linux_fair, allow(dead_code, reason = "Linux takes the peer's place"))]
mod peer;
mod rbtree;
mod tracking;
#[cfg_attr(linux_fair, allow(dead_code, reason = "Linux takes the peer's place"))]
mod worlds;

use std::time::{Duration, Instant};

#[cfg(linux_fair)]
use linux::{Linux, Tracking, Untracked};
#[cfg(not(linux_fair))]
use worlds::Peer;
use worlds::{OPS, Ours, Rounds, World};

const SIZES: [usize; 4] = [2, 8, 64, 1024];

fn queues(tasks: usize) -> usize {
    (512 / tasks).clamp(4, 64)
}

/// Passes of each implementation, in turns: what else the machine does falls on all.
const PASSES: usize = 41;

/// The fastest pass so far: ns per operation, and a checksum of each round's picks.
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

/// What this crate is compared with.
struct Peers {
    names: [&'static str; 2],
    passes: [fn(&mut Best, usize, usize); 2],
}

#[cfg(not(linux_fair))]
const PEERS: Peers = Peers {
    names: ["peer", "peer, load tracking"],
    passes: [
        |best, n, tasks| best.pass(Peer::new(n, tasks, false), tasks),
        |best, n, tasks| best.pass(Peer::new(n, tasks, true), tasks),
    ],
};

#[cfg(linux_fair)]
const PEERS: Peers = Peers {
    names: ["Linux", "Linux without load tracking"],
    passes: [
        |best, n, tasks| best.pass(Linux::<Tracking>::new(n, tasks), tasks),
        |best, n, tasks| best.pass(Linux::<Untracked>::new(n, tasks), tasks),
    ],
};

fn main() {
    let [first, second] = PEERS.names;
    println!("ns per operation, best of {PASSES} passes");
    println!("| entities | operation | this crate | {first} | ratio | {second} | ratio |");
    println!("|---|---|---|---|---|---|---|");
    for tasks in SIZES {
        let n = queues(tasks);
        let mut ours = Best::new();
        let mut peers = [Best::new(), Best::new()];
        for _ in 0..PASSES {
            ours.pass(Ours::new(n, tasks), tasks);
            for (peer, pass) in peers.iter_mut().zip(PEERS.passes) {
                pass(peer, n, tasks);
            }
        }
        assert!(
            peers.iter().all(|peer| peer.sum == ours.sum),
            "{tasks} entities: all must pick the same"
        );
        for (op, name) in OPS.iter().enumerate() {
            let (ours, peers) = (ours.ns[op], peers.each_ref().map(|peer| peer.ns[op]));
            println!(
                "| {tasks} | {name} | {ours:.1} | {:.1} | {:.2} | {:.1} | {:.2} |",
                peers[0],
                ours / peers[0],
                peers[1],
                ours / peers[1]
            );
        }
    }
    if cfg!(not(linux_fair)) {
        println!();
        candidates::run();
    }
}
