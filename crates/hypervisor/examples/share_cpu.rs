//! Two tasks share a CPU by their weights, as Linux 7.2 decides.
//!
//! `cargo run -p stealtime-hypervisor --example share_cpu`

use stealtime_hypervisor::fair::{Attr, Config, Error, Fair, PickMode};

const TICK_NS: u64 = 1_000_000;

fn main() -> Result<(), Error> {
    let mut fair = Fair::new(Config::linux_7_2(1))?;
    let cpu = fair.create_rq(PickMode::Hierarchical)?;
    let mut ran_ms = Vec::new();
    for nice in [0, 5] {
        let attr = Attr {
            nice,
            ..Attr::default()
        };
        let task = fair.create_task(attr, None)?;
        fair.fork(task, cpu, 0)?;
        ran_ms.push((task, nice, 0));
    }
    for tick in 0..1000 {
        let task = fair.pick(cpu, tick * TICK_NS)?.task;
        let current = ran_ms.iter_mut().find(|(id, ..)| Some(*id) == task);
        current.expect("one of the two").2 += 1;
        fair.tick(cpu, (tick + 1) * TICK_NS)?;
    }
    for (_, nice, ms) in ran_ms {
        println!("nice {nice}: {ms} ms of 1000");
    }
    Ok(())
}
