//! How fast a recording is written as trace.dat: its events are kept in memory first.
//!
//! `cargo run --release -p stealtime-trace --example write_speed -- TRACE [TIMES]`

use std::io::{self, Write};
use std::time::Instant;

use stealtime_events::Event;
use stealtime_trace::write::{Compression, Options, Stats, TraceDatWriter, Version};
use stealtime_trace::{EventSource, open};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: write_speed TRACE [TIMES]; TRACE is a recording to take events from")?;
    let times: u64 = arguments.next().map_or(Ok(10), |times| times.parse())?;
    let mut source = open(path.as_ref())?;
    let mut events = Vec::new();
    while let Some(event) = source.next_event()? {
        events.push(event);
    }
    for (name, version, compression) in [
        ("version 6", Version::V6, Compression::None),
        ("version 7, zstd", Version::V7, Compression::Zstd),
    ] {
        let options = Options {
            version,
            compression,
            ..Options::default()
        };
        let start = Instant::now();
        let stats = write(&events, &*source, times, options)?;
        let seconds = start.elapsed().as_secs_f64();
        let (million, bytes) = (stats.events as f64 / 1e6, stats.bytes as f64);
        writeln!(
            io::stdout(),
            "{name}: {million:.1} million events in {seconds:.2} s: {:.1} million/s, {:.1} bytes each",
            million / seconds,
            bytes / stats.events as f64
        )?;
    }
    Ok(())
}

/// Writes the events so many times, one after the other in time.
fn write(
    events: &[Event],
    source: &dyn EventSource,
    times: u64,
    options: Options,
) -> Result<Stats, Box<dyn std::error::Error>> {
    let first = events.first().map_or(0, |event| event.time_ns);
    let span = events.last().map_or(0, |event| event.time_ns - first) + 1;
    let mut writer = TraceDatWriter::new(options)?;
    for round in 0..times {
        for event in events {
            let time_ns = event.time_ns + round * span;
            writer.push(&Event { time_ns, ..*event }, source.names())?;
        }
    }
    Ok(writer.finish(&mut io::sink())?)
}
