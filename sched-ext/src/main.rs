//! `scx_stealtime`: loads the scheduler, watches it, and takes it away again.

mod costs;
mod counters;
mod host;
mod options;
mod publish;
mod refusal;
mod run;
mod sample;
mod self_test;
mod topology;

/// Generated from `bpf/` by the build script: a module for each BPF program.
macro_rules! skeleton {
    ($name:ident, $file:literal) => {
        #[allow(
            clippy::all,
            clippy::pedantic,
            clippy::undocumented_unsafe_blocks,
            clippy::unwrap_used,
            dead_code,
            missing_docs,
            non_snake_case
        )]
        mod $name {
            include!(concat!(env!("OUT_DIR"), "/", $file));
        }
    };
}
skeleton!(skeleton, "scx_stealtime.rs");
skeleton!(self_test_skeleton, "self_test.rs");

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let options = options::Options::parse();
    let outcome = match &options {
        options if options.self_test => self_test::run(),
        options => match &options.sample {
            Some(path) => sample::run(path, options),
            None => run::run(options),
        },
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("scx_stealtime: {error}");
            ExitCode::FAILURE
        }
    }
}
