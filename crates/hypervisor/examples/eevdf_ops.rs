//! The benchmark's operations without clocks, for counting instructions.
//!
//! `eevdf_ops ours|peer|tracking|linux|untracked TASKS ROUNDS`: each batch of one kind of operation runs in a
//! function of its own, `batch_enqueue`, `batch_dequeue` or `batch_pick`, on which a profiler can
//! count.
//! Prints the number of operations of each kind. The benchmark's `instructions.sh` runs it under
//! callgrind.
#![allow(
    clippy::unwrap_used,
    reason = "as the benchmark that it shares modules with"
)]
#![allow(dead_code, reason = "shares the benchmark's modules")]

#[cfg(linux_fair)]
#[path = "../benches/eevdf/linux.rs"]
mod linux;
#[path = "../benches/eevdf/peer.rs"]
mod peer;
#[path = "../benches/eevdf/rbtree.rs"]
mod rbtree;
#[path = "../benches/eevdf/tracking.rs"]
mod tracking;
#[path = "../benches/eevdf/worlds.rs"]
mod worlds;

use worlds::{OPS, Ours, Peer, Rounds, World};

#[inline(never)]
fn batch_enqueue<W>(world: &mut W, batch: &mut dyn FnMut(&mut W)) {
    batch(world);
}

#[inline(never)]
fn batch_dequeue<W>(world: &mut W, batch: &mut dyn FnMut(&mut W)) {
    batch(world);
    std::hint::black_box(1);
}

#[inline(never)]
fn batch_pick<W>(world: &mut W, batch: &mut dyn FnMut(&mut W)) {
    batch(world);
    std::hint::black_box(2);
}

fn run<W: World>(mut world: W, tasks: usize, rounds: usize) {
    const QUEUES: usize = 4;
    let mut run = Rounds::new(&mut world, QUEUES, tasks);
    let mut sum = 0usize;
    for _ in 0..rounds {
        sum = sum
            .wrapping_mul(31)
            .wrapping_add(run.round(&mut world, &mut |op, world, batch| match op {
                0 => batch_enqueue(world, batch),
                1 => batch_dequeue(world, batch),
                _ => batch_pick(world, batch),
            }));
    }
    for (op, each) in OPS.iter().zip(run.len()) {
        println!("{op} {}", each * rounds);
    }
    eprintln!("picks {sum}");
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<usize>().ok());
    let (Some(which), Some(tasks), Some(rounds)) = (args.get(1), number(2), number(3)) else {
        eprintln!("use: eevdf_ops ours|peer|tracking|linux|untracked TASKS ROUNDS");
        std::process::exit(2);
    };
    match which.as_str() {
        "ours" => run(Ours::new(4, tasks), tasks, rounds),
        "peer" => run(Peer::new(4, tasks, false), tasks, rounds),
        "tracking" => run(Peer::new(4, tasks, true), tasks, rounds),
        #[cfg(linux_fair)]
        "linux" => run(
            linux::Linux::<linux::Tracking>::new(4, tasks),
            tasks,
            rounds,
        ),
        #[cfg(linux_fair)]
        "untracked" => run(
            linux::Linux::<linux::Untracked>::new(4, tasks),
            tasks,
            rounds,
        ),
        other => {
            eprintln!("{other} is not built");
            std::process::exit(2);
        }
    }
}
