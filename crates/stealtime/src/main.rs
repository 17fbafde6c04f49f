//! The `stealtime` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(stealtime::main(std::env::args_os()))
}
