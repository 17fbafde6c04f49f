//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Schedule a host of VMs so that directed yields reach the vCPU that a spinning vCPU waits for
///
/// The scheduler stays while this command runs. When it ends, is killed or fails, the kernel's own
/// scheduler takes over at once. Counters are printed at the end.
#[derive(Debug, Parser)]
#[command(
    name = "scx_stealtime",
    version,
    after_help = "\
Examples:
  sudo scx_stealtime --for 60
  sudo scx_stealtime --canary VM=web --canary VM=4711 --stats 5
  sudo scx_stealtime --yield refuse --for 10 --json
  sudo scx_stealtime --check"
)]
pub(crate) struct Options {
    /// End after this many seconds
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) run_for: Option<f64>,

    /// End when standard input ends
    ///
    /// A program that loads the scheduler holds the other end of a pipe: its own end, even by SIGKILL,
    /// ends the scheduler.
    #[arg(long)]
    pub(crate) until_eof: bool,

    /// Schedule only this VM: its guest's name or its process id; may be repeated
    ///
    /// Its threads change to the policy SCHED_EXT. The kernel runs that policy after its own: on a CPU
    /// with other load a canary has little more than the kernel's reserve.
    #[arg(long, value_name = "VM=NAME", value_parser = canary)]
    pub(crate) canary: Vec<String>,

    /// Print counters every so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) stats: Option<f64>,

    /// Print counters as JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Only say whether the scheduler could start
    #[arg(long)]
    pub(crate) check: bool,

    /// Compare the BPF program's arithmetic in this kernel with the library's, without loading the scheduler
    #[arg(long)]
    pub(crate) self_test: bool,

    /// Print how often each BPF program ran at the end, and its mean time, which the kernel takes then
    #[arg(long)]
    pub(crate) costs: bool,

    /// Load a compiled scheduler of another project instead: comparisons of cost
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) sample: Option<PathBuf>,

    /// What a directed yield runs
    #[arg(long = "yield", value_enum, default_value = "receiver")]
    pub(crate) yields: Yields,

    /// Time in us that a vCPU spins on while the receiver of its IPI runs, before it yields to another
    #[arg(long, value_name = "US", default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) spin_us: u64,

    /// Read the values of --yield and --spin-us from this file, each time it changes
    ///
    /// Comparisons change them without loading the scheduler again.
    #[arg(long, value_name = "FILE")]
    pub(crate) follow: Option<PathBuf>,

    /// Longest loan to the receiver of an IPI, in us, where its EOI does not end it: the hardware
    /// completes EOIs (APICv)
    #[arg(long, value_name = "US", default_value_t = 200, value_parser = clap::value_parser!(u64).range(100..=100_000))]
    pub(crate) loan_us: u64,

    /// Time in us that the receiver of an IPI runs on after its EOI, before it gives a loan back
    ///
    /// Linux ends an interrupt first, and handles it then.
    #[arg(long, value_name = "US", default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    pub(crate) answer_us: u64,

    /// Credit the target as the directed-yield series does, instead of lending it the yielder's slice
    ///
    /// Loans keep the share of each VM. Credits take time from all other tasks, within the guard.
    #[arg(long)]
    pub(crate) no_loan: bool,

    /// With --no-loan: refuse yields to vCPUs that have had more than their share
    #[arg(long)]
    pub(crate) no_credit: bool,

    /// Lag after a credit for each other task of the queue, in us [1, 100000]
    #[arg(long, value_name = "US", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) margin_us: u64,

    /// Thousandths of a CPU's time that credits may move from other tasks [0, 1000]; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 125, value_parser = clap::value_parser!(u64).range(0..=1000))]
    pub(crate) guard_per_mille: u64,

    /// Credit that may be saved up, in ms
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub(crate) guard_burst_ms: u64,

    /// Shortest time between interrupts of another CPU for a yield, in ms
    #[arg(long, value_name = "MS", default_value_t = 6, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub(crate) force_interval_ms: u64,

    /// Age up to which an IPI without an answer confirms its receiver, in ms
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) ipi_window_ms: u64,

    /// Slice in us; by default the kernel's base slice for this number of CPUs
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(100..=100_000))]
    pub(crate) slice_us: Option<u64>,

    /// Longest wait of a runnable task in ms, ten times that for light tasks: beyond it the scheduler ends
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(50..=25_000))]
    pub(crate) watchdog_ms: u64,
}

/// What a directed yield runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Yields {
    /// Nothing: each yield is refused
    Refuse,
    /// The vCPU that KVM nominates
    Nominee,
    /// The confirmed receiver of the yielder's IPI, else the vCPU that KVM nominates
    Receiver,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 1e7 => Ok(value),
        _ => Err("give a number of seconds above 0".to_owned()),
    }
}

fn canary(text: &str) -> Result<String, String> {
    match text.strip_prefix("VM=") {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err("give VM=NAME or VM=PID".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        assert_eq!(seconds("2.5"), Ok(2.5));
        assert!(seconds("0").is_err() && seconds("nan").is_err() && seconds("-1").is_err());
        assert_eq!(canary("VM=web"), Ok("web".to_owned()));
        assert!(canary("web").is_err() && canary("VM=").is_err());
    }

    #[test]
    fn options_are_consistent() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }
}
