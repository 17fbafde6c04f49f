//! Decisions and arithmetic recorded from the kernels' own functions, replayed on this crate.
//!
//! Vectors are files `*.jsonl`, also compressed (`.zst`, `.gz`). The first line is a header that
//! names the `family`; without it the file's name does. `STEALTIME_GOLDEN` names a file or a
//! directory, searched recursively, of further vectors: any families, any number of files. The
//! small set under `tests/data/golden` is always replayed.
#![allow(
    clippy::unwrap_used,
    reason = "a vector that cannot be read fails the test"
)]

mod apic;
mod cfs;
mod eevdf;
mod files;
mod halt_poll;
mod lapic_timer;
mod multicast;
#[path = "../reference/op.rs"]
mod op;
#[path = "../reference/ours.rs"]
mod ours;
mod pi_desc;
mod ple;
#[path = "../reference/recorded.rs"]
mod recorded;
mod same;
mod softirq;
mod spin;
mod tsc_arith;
mod tsc_sync;
mod vlapic;

/// No file may be passed over because its family is misspelt or new.
#[test]
fn every_family_has_a_replayer() {
    const KNOWN: &[&str] = &[
        // the scheduler before 6.6
        "cfs",
        // kvm
        "apic-dest",
        "apic-irr",
        "halt-poll",
        "lapic-timer",
        "pi-desc",
        "ple",
        "spin",
        "tsc-arith",
        "tsc-sync",
        // xen
        "softirq",
        "vlapic",
        "x2apic-icr",
    ];
    for file in files::all() {
        assert!(
            file.of_scheduler() || KNOWN.contains(&file.family.as_str()),
            "{}: no replayer for family {:?}",
            file.path.display(),
            file.family
        );
    }
}
