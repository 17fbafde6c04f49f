//! Waits that ended on another CPU: what was concluded from their CPU's silence holds until that CPU
//! is heard of again and nothing was lost.

use stealtime_track::{Cause, Retracted, Run, Waker};

use crate::account::Account;
use crate::options::Window;
use crate::ready;
use crate::series::Sampled;
use crate::waits::Longest;

/// The latest wait of a vCPU that ended on another CPU, or in the run queue of one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Doubted {
    /// The latency of the wakeup that this wait was part of, in ns: it counts once the wait is no
    /// longer doubted.
    pub(crate) latency: Option<(Waker, u64)>,
    /// What the CPU's being idle meant, once the whole wait had ended.
    pub(crate) idle: Option<Cause>,
}

impl Account {
    /// The latest wait that ended elsewhere is not doubted any more.
    pub(crate) fn trust_doubted(&mut self, longest: Longest) {
        self.waits.trust(longest);
        if let Some((waker, waited)) = self.doubted.take().and_then(|wait| wait.latency) {
            self.latencies.wakeup[waker as usize].record(waited);
        }
    }

    /// Part of that wait was not seen: it is unknown.
    pub(crate) fn retract(&mut self, window: &Window, wait: &Retracted) {
        let idle = self.doubted.take().and_then(|doubted| doubted.idle);
        self.waits.retract();
        if let Some((start, end)) = window.part(wait.start, wait.end, wait.cpu) {
            self.steal_over_time.take_back(start, end);
            self.states.cover(start, end, Sampled::Unknown);
        }
        let bucket = match wait.run {
            Run::Waking => &mut self.time.wake_wait,
            _ => &mut self.time.preempted,
        };
        let ns = window.clip(wait.start, wait.end, wait.cpu).min(*bucket);
        *bucket -= ns;
        self.time.unknown += ns;
        let cause = match idle {
            None if wait.cause == Cause::IDLE => {
                // The same wait goes on: what idle time in it means is still open.
                let whole = wait.end.saturating_sub(wait.start);
                self.wait_idle = self.wait_idle.saturating_sub(ns);
                self.wait_idle_whole = self.wait_idle_whole.saturating_sub(whole);
                return;
            }
            Some(meant) if wait.cause == Cause::IDLE => meant,
            _ => wait.cause,
        };
        ready::take_back(&mut self.ready, cause, ns);
    }
}
