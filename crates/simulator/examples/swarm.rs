//! Random scenarios with all checks on:
//! `swarm [--seconds N] [--count N] [--seed S] [--threads N] [--faults] [--dump]`.
//!
//! `--faults` injects the faults of [`stealtime_simulator::inject`]: interrupts are lost, late or repeated,
//! CPUs stall, VMs are killed, threads hang, and devices do not answer. Guests migrate between hosts with
//! clocks that step.
//!
//! Ends with status 1 at the first failure, after printing the seed and the command that runs it
//! again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use stealtime_simulator::inject::{Injected, Injection};
use stealtime_simulator::{Fault, swarm};

struct Arguments {
    seconds: f64,
    count: u64,
    seed: u64,
    threads: u64,
    faults: bool,
    dump: bool,
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments {
        seconds: f64::INFINITY,
        count: u64::MAX,
        seed: 1,
        threads: 1,
        faults: false,
        dump: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seconds" => found.seconds = words.next()?.parse().ok()?,
            "--count" => found.count = words.next()?.parse().ok()?,
            "--seed" => found.seed = words.next()?.parse().ok()?,
            "--threads" => found.threads = words.next()?.parse().ok()?,
            "--faults" => found.faults = true,
            "--dump" => found.dump = true,
            _ => return None,
        }
    }
    if found.seconds.is_infinite() && found.count == u64::MAX {
        found.count = 1000;
    }
    Some(found)
}

/// What the threads have come to.
#[derive(Default)]
struct Sums {
    runs: u64,
    events: u64,
    injected: Injected,
    /// Scenarios with a VM that migrated.
    migrated: u64,
    /// The lowest seed that failed, and its failure.
    failed: Option<(u64, String)>,
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("swarm [--seconds N] [--count N] [--seed S] [--threads N] [--faults] [--dump]");
        return ExitCode::from(2);
    };
    let start = Instant::now();
    let (next, sums) = (AtomicU64::new(0), Mutex::new(Sums::default()));
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.max(1) {
            scope.spawn(|| work(&arguments, start, &next, &sums));
        }
    });
    let sums = sums
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some((seed, failed)) = sums.failed {
        let faults = if arguments.faults { " --faults" } else { "" };
        println!("seed {seed}: {failed}");
        println!("again: cargo run --release -p stealtime-simulator --example swarm -- \\");
        println!("    --seed {seed} --count 1{faults} --dump");
        return ExitCode::FAILURE;
    }
    let took = start.elapsed().as_secs_f64();
    let last = arguments.seed.wrapping_add(sums.runs).wrapping_sub(1);
    println!(
        "{} scenarios (seeds {} to {last}), {} events, {took:.1} s",
        sums.runs, arguments.seed, sums.events
    );
    if arguments.faults {
        println!("{} with a migration; {:?}", sums.migrated, sums.injected);
    }
    ExitCode::SUCCESS
}

/// Runs scenarios until the count or the time is over, or one fails.
fn work(arguments: &Arguments, start: Instant, next: &AtomicU64, sums: &Mutex<Sums>) {
    while start.elapsed().as_secs_f64() < arguments.seconds {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= arguments.count {
            return;
        }
        let seed = arguments.seed.wrapping_add(number);
        let (config, injection) = match arguments.faults {
            true => swarm::disturbed(seed),
            false => (swarm::scenario(seed), Injection::default()),
        };
        if arguments.dump {
            println!("{config:#?}\n{injection:#?}");
        }
        let result = catch_unwind(AssertUnwindSafe(|| {
            swarm::run_disturbed(&config, &injection, &|| false)
        }));
        let Ok(mut sums) = sums.lock() else {
            return;
        };
        let failed = match result {
            Ok(Ok((outcome, injected))) => {
                sums.runs += 1;
                sums.events += outcome.stats.events;
                sums.injected += injected;
                let moved = |vm: &stealtime_simulator::VmOutcome| {
                    vm.clocks.is_some_and(|clocks| clocks.blackout_ns > 0)
                };
                sums.migrated += u64::from(outcome.vms.iter().any(moved));
                None
            }
            // What the generator may not make is refused: that is no failure of the simulator.
            Ok(Err(Fault::Config(error))) => Some(format!("the scenario is refused: {error}")),
            Ok(Err(fault)) => Some(fault.to_string()),
            Err(_) => Some("a panic".to_owned()),
        };
        if let Some(failed) = failed
            && sums.failed.as_ref().is_none_or(|former| seed < former.0)
        {
            sums.failed = Some((seed, failed));
        }
        if sums.failed.is_some() {
            return;
        }
    }
}
