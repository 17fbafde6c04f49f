//! States a second on one core: `cargo run --release --example states_per_second [SCENE]`.

use std::time::Instant;

use stealtime_verify::{Limits, cases};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scene = std::env::args().nth(1);
    let scene = scene.as_deref().unwrap_or("device+poster");
    for case in cases(Some("pi-notify"), None, Some(scene))? {
        let begin = Instant::now();
        let threads = 1;
        let outcome = case.explore(Limits {
            threads,
            ..Limits::default()
        });
        let seconds = begin.elapsed().as_secs_f64();
        let rate = outcome.states as f64 / seconds;
        let Limits { memory_mib, .. } = Limits::default();
        println!(
            "{} ({scene}): {} states, {} steps, {seconds:.2} s, {rate:.0} states/s on one core, at \
             most {memory_mib} MiB; {:?}, {} violations",
            case.variant,
            outcome.states,
            outcome.transitions,
            outcome.end,
            outcome.findings.len()
        );
        for finding in &outcome.findings {
            let violation = &finding.violation;
            println!("{}: {}", violation.property, violation.sentence);
            println!("{}", case.walk(&finding.path)?);
        }
    }
    Ok(())
}
