//! Counts the events of traces by name, as a check against `trace-cmd report` and `perf report`.
//!
//! `cargo run --release -p stealtime-trace --example count -- [-q] TRACE…`

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use stealtime_events::{Kind, Names};
use stealtime_trace::EventSource;

fn main() -> Result<(), Box<dyn Error>> {
    let (options, paths): (Vec<_>, Vec<_>) = std::env::args()
        .skip(1)
        .partition(|arg| arg.starts_with('-') && arg != "-");
    for path in paths {
        let start = Instant::now();
        let mut source = stealtime_trace::open(path.as_ref())?;
        if options.iter().any(|option| option == "-q") {
            let mut events = 0_u64;
            while let Some(event) = source.next_event()? {
                events += u64::from(event.kind.is_host_event());
            }
            println!("{path}: {events} events in {:?}", start.elapsed());
        } else {
            count(source.as_mut())?;
        }
    }
    Ok(())
}

fn count(source: &mut dyn EventSource) -> Result<(), Box<dyn Error>> {
    let mut by_name: BTreeMap<String, u64> = BTreeMap::new();
    let mut by_reason: BTreeMap<String, u64> = BTreeMap::new();
    let (mut total, mut first, mut last, mut gaps) = (0_u64, None, 0, 0_u64);
    while let Some(event) = source.next_event()? {
        gaps += u64::from(matches!(event.kind, Kind::Lost { .. }));
        if !event.kind.is_host_event() {
            continue;
        }
        total += 1;
        first = first.or(Some(event.time_ns));
        last = event.time_ns;
        let name = match event.kind {
            Kind::Other { name } => source.names().name(name),
            kind => kind.tracepoint().unwrap_or("?"),
        };
        match by_name.get_mut(name) {
            Some(count) => *count += 1,
            None => drop(by_name.insert(name.to_owned(), 1)),
        }
        if let Kind::KvmExit { reason, .. } = event.kind {
            let reason = reason
                .name()
                .map_or_else(|| format!("{reason:?}"), str::to_owned);
            *by_reason.entry(reason).or_default() += 1;
        }
    }
    println!(
        "total events: {total}\nfirst: {}\nlast: {last}",
        first.unwrap_or(0)
    );
    println!("gaps: {gaps}");
    for (name, count) in by_name.iter().chain(&by_reason) {
        println!("{count:10} {name}");
    }
    println!("{:#?}", source.info());
    Ok(())
}
