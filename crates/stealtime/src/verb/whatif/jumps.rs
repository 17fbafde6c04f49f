//! Times that jump: a replay would run through hours in which nothing was recorded.

use stealtime_events::Event;

use crate::error::CliError;

/// Finds times between events that nothing can be made of.
#[derive(Debug, Default)]
pub(super) struct Jumps {
    first: Option<u64>,
    last: u64,
    longest: u64,
    at: u64,
}

impl Jumps {
    /// No traced host is silent for so long: a time is wrong, and replays of it would not end.
    const MOST_NS: u64 = 60_000_000_000;

    /// The next event.
    pub(super) fn event(&mut self, event: &Event) {
        if !event.kind.is_host_event() {
            return;
        }
        if self.first.is_some() && event.time_ns.saturating_sub(self.last) > self.longest {
            self.longest = event.time_ns - self.last;
            self.at = self.last;
        }
        self.first.get_or_insert(event.time_ns);
        self.last = self.last.max(event.time_ns);
    }

    /// Refuses a recording whose times jump.
    pub(super) fn check(&self) -> Result<(), CliError> {
        let Some(first) = self.first.filter(|_| self.longest > Self::MOST_NS) else {
            return Ok(());
        };
        let until = (self.at - first).saturating_add(1);
        Err(CliError::WhatIf(format!(
            "from {} s after its first event on the recording has no event for {} s, which a clock \
             that jumps or a damaged file would explain. The part before can be replayed: \
             `stealtime export TRACE --to trace.dat --until {until}ns -o part.dat`; the part behind: \
             `--from {}ns`",
            Self::seconds(self.at - first),
            Self::seconds(self.longest),
            self.at - first + self.longest,
        )))
    }

    fn seconds(ns: u64) -> String {
        format!("{}.{:03}", ns / 1_000_000_000, ns / 1_000_000 % 1000)
    }
}

#[cfg(test)]
mod tests {
    use stealtime_events::{Context, CpuId, Kind, NameId, Tid};

    use super::*;

    fn of(times: &[u64]) -> Result<(), CliError> {
        let mut jumps = Jumps::default();
        for &time_ns in times {
            jumps.event(&Event {
                time_ns,
                tid: Tid(1),
                cpu: CpuId(0),
                context: Context::default(),
                kind: Kind::Other { name: NameId::NONE },
            });
        }
        jumps.check()
    }

    #[test]
    fn a_recording_whose_times_jump_is_refused_with_how_to_cut_it() {
        let second = 1_000_000_000;
        assert!(of(&[]).is_ok());
        // Time that goes back is no jump, nor is what follows it.
        assert!(of(&[100 * second, second, 101 * second, 160 * second]).is_ok());
        let problem = of(&[second, 3 * second, 4000 * second, 4001 * second]);
        let problem = problem.expect_err("a jump").to_string();
        for part in [
            "from 2.000 s after its first event on",
            "no event for 3997.000 s",
            "--until 2000000001ns",
            "--from 3999000000000ns",
        ] {
            assert!(problem.contains(part), "{problem}");
        }
    }
}
