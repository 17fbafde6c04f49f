//! How close a replay under the recorded knobs comes: `accuracy TRACE...`.

use stealtime_analysis::{Analysis, Options};
use stealtime_replay::{Extractor, host};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let mut source = stealtime_trace::open(path.as_ref())?;
        let mut analysis = Analysis::new(Options::default());
        while let Some(event) = source.next_event()? {
            analysis.event(&event, source.names());
        }
        let answers = analysis.finish(source.names());
        let mut source = stealtime_trace::open(path.as_ref())?;
        let mut extractor = Extractor::new(&answers);
        while let Some(event) = source.next_event()? {
            extractor.event(&event, source.names());
        }
        let recording = extractor.finish();
        println!(
            "{path}: {} ms, {} CPUs, {} tasks, {:?}, idle {:?}",
            recording.span_ns / 1_000_000,
            recording.cpus,
            recording.tasks.len(),
            recording.resolved,
            (recording.idle_wake_ns, recording.halt_poll_ns, recording.hz)
        );
        let config = host::as_recorded(
            &recording,
            host::knobs(&recording),
            &host::Assumed::default(),
            0,
        );
        let start = std::time::Instant::now();
        let outcome = stealtime_simulator::run(&config, &mut ())?;
        let mut errors = Vec::new();
        for (task, script) in recording.tasks.iter().zip(&outcome.scripts) {
            let Some(time) = answers.vcpus.iter().find(|time| time.tid == task.tid) else {
                continue;
            };
            let span = recording.span_ns as f64 / 100.0;
            let percent = |a: u64, b: u64| (a as f64 - b as f64) / span;
            let run = percent(script.books.run_ns, time.on_cpu_ns);
            let ready = percent(script.books.wait_ns, time.preempted_ns + time.wake_wait_ns);
            let halted = percent(script.books.sleep_ns, time.halt_ns + time.blocked_ns);
            println!(
                "  {:>12} run {:5.1} % ({run:+.1}) ready {:5.1} % ({ready:+.1}) halted {:5.1} % ({halted:+.1}) poll {:.1} ({:.1}) steps {}/{}",
                task.name,
                time.on_cpu_ns as f64 / span,
                (time.preempted_ns + time.wake_wait_ns) as f64 / span,
                time.halt_ns as f64 / span,
                script.poll_ns as f64 / span,
                time.poll_ns.unwrap_or(0) as f64 / span,
                script.steps,
                script.of_steps,
            );
            errors.extend([run.abs(), ready.abs(), halted.abs()]);
        }
        errors.sort_by(f64::total_cmp);
        let at = |q: f64| {
            errors
                .get((errors.len() as f64 * q) as usize)
                .copied()
                .unwrap_or(0.0)
        };
        println!(
            "  median {:.1} p90 {:.1} in {:.2} s",
            at(0.5),
            at(0.9),
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
