//! `scx_stealtime`: loads the scheduler, watches it, and takes it away again.

mod counters;
mod host;
mod options;
mod refusal;
mod run;
mod topology;

/// Generated from `bpf/` by the build script.
#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    dead_code,
    missing_docs,
    non_snake_case
)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/skeleton.rs"));
}

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let options = options::Options::parse();
    match run::run(&options) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("scx_stealtime: {error}");
            ExitCode::FAILURE
        }
    }
}
