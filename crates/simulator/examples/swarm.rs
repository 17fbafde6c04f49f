//! Random scenarios with all checks on: `swarm [--seconds N] [--count N] [--seed S] [--dump]`.
//!
//! Ends with status 1 at the first failure, after printing the seed and the command that runs it
//! again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use stealtime_simulator::{Fault, swarm};

struct Arguments {
    seconds: f64,
    count: u64,
    seed: u64,
    dump: bool,
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments {
        seconds: f64::INFINITY,
        count: u64::MAX,
        seed: 1,
        dump: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seconds" => found.seconds = words.next()?.parse().ok()?,
            "--count" => found.count = words.next()?.parse().ok()?,
            "--seed" => found.seed = words.next()?.parse().ok()?,
            "--dump" => found.dump = true,
            _ => return None,
        }
    }
    if found.seconds.is_infinite() && found.count == u64::MAX {
        found.count = 1000;
    }
    Some(found)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("swarm [--seconds N] [--count N] [--seed S] [--dump]");
        return ExitCode::from(2);
    };
    let start = Instant::now();
    let (mut runs, mut events) = (0u64, 0u64);
    while runs < arguments.count && start.elapsed().as_secs_f64() < arguments.seconds {
        let seed = arguments.seed.wrapping_add(runs);
        let config = swarm::scenario(seed);
        if arguments.dump {
            println!("{config:#?}");
        }
        let result = catch_unwind(AssertUnwindSafe(|| swarm::run(&config, &|| false)));
        let failed = match result {
            Ok(Ok(outcome)) => {
                events += outcome.stats.events;
                None
            }
            // What the generator may not make is refused: that is no failure of the simulator.
            Ok(Err(Fault::Config(error))) => Some(format!("the scenario is refused: {error}")),
            Ok(Err(fault)) => Some(fault.to_string()),
            Err(_) => Some("a panic".to_owned()),
        };
        if let Some(failed) = failed {
            println!("seed {seed}: {failed}");
            println!("again: cargo run --release -p stealtime-simulator --example swarm -- \\");
            println!("    --seed {seed} --count 1 --dump");
            return ExitCode::FAILURE;
        }
        runs += 1;
    }
    let took = start.elapsed().as_secs_f64();
    println!("{runs} scenarios, {events} events, {took:.1} s");
    ExitCode::SUCCESS
}
