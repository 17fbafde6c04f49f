//! Prints what a CPU-bound third party keeps against a pair that yields to each other.
//!
//! `cargo run --release -p stealtime-hypervisor --example credit_share`

#[path = "../tests/share/mod.rs"]
mod share;

use share::{Case, Layout, measure};
use stealtime_hypervisor::fair::PickMode;
use stealtime_hypervisor::lag_credit::{LagCredit, RateLimit};

const TOTAL_NS: u64 = 20_000_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let adaptive = LagCredit {
        rate_limit: RateLimit::Adaptive {
            interval_ns: 6_000_000,
            gap_ns: 100_000,
            min_ns: 1_000_000,
            max_ns: 24_000_000,
        },
        ..LagCredit::SERIES_V3
    };
    let variants = [
        ("7.2", None),
        ("v3", Some(LagCredit::SERIES_V3)),
        ("v3, adaptive", Some(adaptive)),
        ("v3, guarded", Some(LagCredit::GUARDED)),
        ("v2", Some(LagCredit::SERIES_V2)),
    ];
    for (layout, mode) in [
        (Layout::OneQueue, PickMode::Hierarchical),
        (Layout::Machines, PickMode::Hierarchical),
        (Layout::Machines, PickMode::Flat),
    ] {
        for spin_ns in [5_000, 50_000, 500_000] {
            println!(
                "\n{layout:?}, {mode:?}, yields after {} us",
                spin_ns / 1_000
            );
            println!("| tasks | fair % | variant | least % | of fair % | yields | honoured % |");
            println!("|---|---|---|---|---|---|---|");
            for tasks in [3, 4, 6, 8, 16, 32] {
                for (name, credit) in variants {
                    let out = measure(
                        &Case {
                            tasks,
                            spin_ns,
                            layout,
                            mode,
                            credit,
                        },
                        TOTAL_NS,
                    )?;
                    println!(
                        "| {tasks} | {} | {name} | {} | {} | {} | {} |",
                        percent(out.fair_ppm),
                        percent(out.least_ppm),
                        percent(out.least_ppm * 1_000_000 / out.fair_ppm),
                        out.yields,
                        percent(out.honoured * 1_000_000 / out.yields.max(1)),
                    );
                }
            }
        }
    }
    Ok(())
}

/// One decimal, from parts of a million.
fn percent(ppm: u64) -> String {
    format!("{}.{}", ppm / 10_000, ppm / 1_000 % 10)
}
