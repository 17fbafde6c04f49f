//! What the BPF programs cost: how often each runs, and for how long.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;
use libbpf_rs::query::ProgInfoIter;

/// The kernel takes times of BPF programs while this exists.
#[derive(Debug)]
pub(crate) struct Costs {
    _enabled: OwnedFd,
}

impl Costs {
    /// Begins.
    ///
    /// # Errors
    /// As `BPF_ENABLE_STATS`.
    pub(crate) fn begin() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let file = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if file < 0 {
            return Err(io::Error::from_raw_os_error(-file));
        }
        // SAFETY: the call has opened the file for this owner.
        let enabled = unsafe { OwnedFd::from_raw_fd(file) };
        Ok(Self { _enabled: enabled })
    }

    /// A line for each program of this scheduler that ran: its runs, and the mean of their times in ns.
    pub(crate) fn text() -> String {
        let mut programs: Vec<_> = ProgInfoIter::default()
            .filter(|program| program.run_cnt > 0)
            .map(|program| {
                let name = program.name.to_string_lossy().into_owned();
                let mean_ns = program.run_time_ns / program.run_cnt;
                (program.run_time_ns, name, program.run_cnt, mean_ns)
            })
            .collect();
        programs.sort_unstable();
        let line = |(_, name, runs, mean_ns): &(u64, String, u64, u64)| {
            format!("cost {name:<16} {runs:>10} runs, {mean_ns:>6} ns each\n")
        };
        programs.iter().rev().map(line).collect()
    }
}
