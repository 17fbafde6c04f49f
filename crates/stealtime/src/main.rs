//! The `stealtime` command.
fn main() {}
