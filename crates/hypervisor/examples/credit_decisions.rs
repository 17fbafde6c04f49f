//! Prints for how many decisions of the scheduler a credited target stays the one to run.
//!
//! `cargo run --release -p stealtime-hypervisor --example credit_decisions`

#[path = "../tests/share/decisions.rs"]
mod decisions;

use decisions::{Case, default_margin_ns, picks_in_a_row};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let default = default_margin_ns();
    let margins = [
        None,
        Some(1_000),
        Some(10_000),
        Some(default),
        Some(175_000),
        Some(700_000),
    ];
    for gap_ns in [16_000, 30_000] {
        println!("\nA decision every {} us", gap_ns / 1_000);
        println!("| margin | 2 tasks | 3 | 4 | 8 | 16 | 32 |");
        println!("|---|---|---|---|---|---|---|");
        for margin_ns in margins {
            let name = margin_ns.map_or("7.2".to_owned(), |ns| format!("{} us", ns / 1_000));
            print!("| {name} |");
            for depth in [2, 3, 4, 8, 16, 32] {
                let case = Case {
                    margin_ns,
                    depth,
                    gap_ns,
                };
                print!(" {} |", picks_in_a_row(case)?);
            }
            println!();
        }
    }
    Ok(())
}
