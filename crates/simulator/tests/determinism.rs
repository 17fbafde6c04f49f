//! Equal seeds give equal runs: to the byte, whatever the build profile and however many threads.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fmt::Write;

use stealtime_simulator::inject::Injected;
use stealtime_simulator::{Collected, run, swarm};

/// Of runs of the scenarios with these seeds. A change to the simulator or a workload changes it;
/// a change of the build profile must not.
const SEEDS: core::ops::Range<u64> = 100..116;

/// FNV-1a over everything that a run says.
fn digest(seed: u64) -> u64 {
    let config = swarm::scenario(seed);
    let mut sink = Collected::default();
    let outcome = run(&config, &mut sink).unwrap();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut text = String::new();
    let mut add = |text: &mut String| {
        for byte in text.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        text.clear();
    };
    for event in &sink.events {
        write!(text, "{event:?}").unwrap();
        add(&mut text);
    }
    write!(text, "{outcome:?}").unwrap();
    add(&mut text);
    hash
}

/// The same numbers in debug and in release, today and before: `tests/data/digests.txt`.
#[test]
fn runs_are_what_they_were() {
    let known = include_str!("data/digests.txt");
    let mut now = String::new();
    for seed in SEEDS {
        writeln!(now, "{seed} {:016x}", digest(seed)).unwrap();
    }
    if std::env::var_os("STEALTIME_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/digests.txt");
        std::fs::write(path, &now).unwrap();
        return;
    }
    assert_eq!(
        now, known,
        "runs have changed: if they were meant to, run this with STEALTIME_BLESS=1"
    );
}

#[test]
fn threads_do_not_matter() {
    let alone: Vec<u64> = SEEDS.map(digest).collect();
    let together: Vec<u64> = std::thread::scope(|scope| {
        let runs: Vec<_> = SEEDS
            .map(|seed| scope.spawn(move || digest(seed)))
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
}

/// So are runs with injected faults, and no check finds anything.
#[test]
fn injected_faults_grow_from_the_seed_too() {
    let mut injected = Injected::default();
    for seed in SEEDS {
        let (config, injection) = swarm::disturbed(seed);
        let runs = [(); 2].map(|()| {
            let run = swarm::run_disturbed(&config, &injection, &|| false);
            run.unwrap_or_else(|fault| panic!("seed {seed}: {fault}"))
        });
        let [first, second] = runs.map(|(outcome, counts)| (format!("{outcome:?}"), counts));
        assert_eq!(first, second, "seed {seed}");
        injected += first.1;
    }
    let counts = [
        injected.lost,
        injected.late,
        injected.stalls,
        injected.killed,
        injected.hung,
    ];
    assert!(counts.iter().all(|count| *count > 0), "{injected:?}");
}

/// On Xen a CPU is kicked while its vCPU sends an IPI to all others. The softirq is handled before the entry,
/// or the guest runs on with an interrupt pending.
#[test]
fn a_kick_that_comes_while_a_vcpu_sends_is_handled_before_the_entry() {
    let (config, injection) = swarm::disturbed(160_810);
    let run = swarm::run_disturbed(&config, &injection, &|| false);
    assert!(run.is_ok(), "{:?}", run.err());
}
