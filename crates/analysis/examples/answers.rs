//! Prints the answers of a trace as JSON, and how fast the pass was.
//!
//! `cargo run --release -p stealtime-analysis --example answers -- trace.dat`

use std::time::Instant;

use stealtime_analysis::{Analysis, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("name a trace.dat")?;
    let mut source = stealtime_trace::open(path.as_ref())?;
    let mut analysis = Analysis::new(Options::default());
    let start = Instant::now();
    let mut count = 0u64;
    while let Some(event) = source.next_event()? {
        analysis.event(&event, source.names());
        count += 1;
    }
    let answers = analysis.finish(source.names());
    eprintln!("{count} events in {:?}", start.elapsed());
    println!("{}", serde_json::to_string_pretty(&answers)?);
    Ok(())
}
