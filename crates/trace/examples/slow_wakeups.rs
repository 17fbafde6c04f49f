//! The slowest wakeup of a recording: from `sched_waking` to the switch that runs the thread.
//!
//! `cargo run --release -p stealtime-trace --example slow_wakeups -- trace.dat`

use std::collections::BTreeMap;

use stealtime_events::Kind;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a recording")?;
    let mut source = stealtime_trace::open(path.as_ref())?;
    let (mut waking, mut slowest) = (BTreeMap::new(), (0, None, 0));
    while let Some(event) = source.next_event()? {
        match event.kind {
            Kind::SchedWaking { tid, .. } => {
                waking.entry(tid).or_insert(event.time_ns);
            }
            Kind::SchedSwitch { next, .. } => {
                let since = waking.remove(&next).unwrap_or(event.time_ns);
                let waited_ns = event.time_ns.saturating_sub(since);
                slowest = slowest.max((waited_ns, Some(next), event.time_ns));
            }
            _ => {}
        }
    }
    let (waited_ns, thread, time_ns) = slowest;
    println!("{thread:?} waited {waited_ns} ns, until {time_ns}");
    Ok(())
}
