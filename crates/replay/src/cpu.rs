//! What a CPU of the recording does.

use std::collections::VecDeque;

use stealtime_simulator::script::{Gaps, Late};
use stealtime_track::ThreadRef;

use crate::coupled::Stretch;

/// A tick that ends a slice has its CPU switch within so many ns.
const OUT_OF_TICK_NS: u64 = 1_000_000;

/// A delay of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Latency {
    /// When its cause was, by the recording's clock in ns.
    pub(crate) since: u64,
    /// How long it took, in ns; longer ones than 4.2 s count as that.
    pub(crate) late_ns: u32,
    /// How much of that a stall of the current task explains, in ns.
    pub(crate) stalled_ns: u32,
}

/// A CPU is stalled if it has no event for so long, in ns, and a timer was due meanwhile. The kernel's own
/// stretches without interrupts are shorter.
pub(crate) const LEAST_STALL_NS: u64 = 500_000;
/// A timer that a running CPU takes at once is late by less, in ns: the interrupt's way through the kernel.
const LATE_NS: u64 = 100_000;
/// Stretches without events that are kept: a timer is late by a few at most.
const QUIET: usize = 8;

/// A CPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cpu {
    /// Its current task; `None` before its first switch, and after a loss until the next one.
    pub(crate) current: Option<ThreadRef>,
    /// It has been idle.
    pub(crate) has_idled: bool,
    /// Time of its last event.
    pub(crate) last: u64,
    /// When the slice timer that expired last should have, and how long a stall kept it, in ns, if its task
    /// has the CPU still.
    pub(crate) slice_over: Option<(u64, u64)>,
    /// The latest stretches without events, in ns by the recording's clock.
    quiet: VecDeque<Stretch>,
    /// When another CPU woke a task here first, while this one was idle.
    pub(crate) called: Option<u64>,
    /// Ends of slices: when they were due, by how much they were late, in ns.
    pub(crate) late: Vec<Latency>,
    /// Ticks: when they were due, by how much they were late, in ns.
    pub(crate) tick_late: Vec<Latency>,
    /// When the last tick came, if the task that had the CPU has it still, and was not in its guest since.
    pub(crate) ticked: Option<u64>,
    /// Wakeups while it was idle: when they were, how long until it had switched, in ns.
    pub(crate) idle_late: Vec<Latency>,
    /// The same of wakeups by another CPU.
    pub(crate) idle_called: Vec<Latency>,
    /// From the first wakeup by another CPU while it was idle until it switched to any task, in ns. A CPU
    /// that stalls switches to what its own timers woke first.
    pub(crate) first_called: Vec<Latency>,
    /// Ends of polls by another CPU: when they were, and how long the polls went on, in ns.
    pub(crate) poll_called: Vec<Latency>,
    /// Stretches in which its events were lost.
    pub(crate) lost: Vec<Stretch>,
}

impl Cpu {
    /// Whether it is known to be idle.
    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_some_and(|current| current.tid.is_idle())
    }

    /// It has an event.
    pub(crate) fn acts(&mut self, now: u64) {
        let is_quiet = now.saturating_sub(self.last) >= LEAST_STALL_NS && self.last > 0;
        if is_quiet {
            if self.quiet.len() == QUIET {
                self.quiet.pop_front();
            }
            self.quiet.push_back(Stretch {
                start: self.last,
                end: now,
            });
        }
    }

    /// The longest stretch without events in which a timer that was due at this time should have expired.
    pub(crate) fn stall(&self, due: u64) -> Option<Stretch> {
        let is_late = |quiet: &&Stretch| quiet.after(due).ns() >= LATE_NS;
        let late = self.quiet.iter().filter(is_late);
        late.max_by_key(|quiet| quiet.ns()).copied()
    }

    /// The slice timer expires, `late` ns after it should have, by a stall for so long.
    pub(crate) fn slice_ends(&mut self, now: u64, late: u64, stalled: u64) {
        self.slice_over = Some((now.saturating_sub(late), stalled));
    }

    /// A tick comes, `late` ns after it should have, by a stall for so long.
    pub(crate) fn ticks(&mut self, now: u64, late: u64, stalled: u64) {
        let due = now.saturating_sub(late);
        self.tick_late
            .push(Latency::new(due, late).with_stall(stalled));
        self.ticked = Some(now);
    }

    /// The next slice begins: a timer was set for it, or the task has lost the CPU. If the one before
    /// ended by its timer, it was so late.
    pub(crate) fn next_slice(&mut self, now: u64) {
        if let Some((due, stalled)) = self.slice_over.take() {
            let late = Latency::new(due, now.saturating_sub(due));
            self.late.push(late.with_stall(stalled));
        }
    }

    /// The task that had it loses it, though it could run: by the tick, if one has just come, which was so
    /// late then.
    pub(crate) fn preempts(&mut self, now: u64) {
        self.next_slice(now);
        let ticked = self.ticked.take();
        let by_tick = ticked.is_some_and(|tick| now.saturating_sub(tick) <= OUT_OF_TICK_NS);
        if let Some(last) = self.tick_late.last_mut().filter(|_| by_tick) {
            let stalled = u64::from(last.stalled_ns);
            let late = Latency::new(last.since, now.saturating_sub(last.since));
            *last = late.with_stall(stalled);
        }
    }

    /// When its events were lost, in ns since `first`.
    pub(crate) fn gaps(&self, first: u64) -> Gaps {
        let after = |time: u64| time.saturating_sub(first);
        let gap = |lost: &Stretch| (after(lost.start), after(lost.end));
        Gaps(self.lost.iter().map(gap).collect())
    }

    /// A slice is over, and its task is back in the guest: no other task was to run. A later switch is not
    /// the slice's end. (On the way into the guest requests to reschedule count, lazy ones too.)
    pub(crate) fn goes_on(&mut self) {
        self.slice_over = None;
        self.ticked = None;
    }

    /// A poll on it was ended at this time by another CPU, and went on for so long.
    pub(crate) fn poll_called(&mut self, came: u64, late: u64) {
        self.poll_called.push(Latency::new(came, late));
    }

    /// It has switched from idleness to a task that was woken at this time, by `itself` or by another CPU.
    pub(crate) fn idle_woken(&mut self, woken: u64, itself: bool, now: u64) {
        let latencies = match itself {
            true => &mut self.idle_late,
            false => &mut self.idle_called,
        };
        latencies.push(Latency::new(woken, now.saturating_sub(woken)));
        if let Some(called) = self.called.take() {
            let late = Latency::new(called, now.saturating_sub(called));
            self.first_called.push(late);
        }
    }
}

impl Latency {
    pub(crate) fn new(since: u64, late_ns: u64) -> Self {
        Self {
            since,
            late_ns: u32::try_from(late_ns).unwrap_or(u32::MAX),
            stalled_ns: 0,
        }
    }

    fn with_stall(self, stalled_ns: u64) -> Self {
        let stalled_ns = u32::try_from(stalled_ns).unwrap_or(u32::MAX);
        Self {
            stalled_ns: stalled_ns.min(self.late_ns),
            ..self
        }
    }

    /// As if the timer had been due at the end of the stall.
    pub(crate) fn without_stall(self) -> Self {
        Self {
            since: self.since.saturating_add(self.stalled_ns.into()),
            late_ns: self.late_ns - self.stalled_ns,
            stalled_ns: 0,
        }
    }
}

/// Recorded latencies in ns since `first`, less `counted_ns`, which other parameters hold.
pub(crate) fn late_since(latencies: &[Latency], first: u64, counted_ns: u32) -> Late {
    let pair = |latency: &Latency| {
        let time = latency.since.saturating_sub(first);
        (time, latency.late_ns.saturating_sub(counted_ns))
    };
    let mut late: Vec<_> = latencies.iter().map(pair).collect();
    late.sort_unstable();
    Late(late.into())
}

/// Latencies from wakeups to running.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wakes {
    samples: Vec<u64>,
}

impl Wakes {
    /// No more than this many are kept.
    const MOST: usize = 100_000;

    pub(crate) fn add(&mut self, ns: u64) {
        if self.samples.len() < Self::MOST {
            self.samples.push(ns);
        }
    }

    /// The latency below which so many percent are; `None` with fewer than 20.
    pub(crate) fn percentile(&self, percent: usize) -> Option<u64> {
        if self.samples.len() < 20 {
            return None;
        }
        let mut sorted = self.samples.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() * percent / 100).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::{Cpu, Latency, Wakes};

    const fn late(since: u64, late_ns: u32) -> Latency {
        Latency {
            since,
            late_ns,
            stalled_ns: 0,
        }
    }

    #[test]
    fn percentiles_of_wakeups_need_twenty() {
        let mut wakes = Wakes::default();
        for ns in (2..=20).rev() {
            wakes.add(ns);
        }
        assert_eq!(wakes.percentile(50), None);
        wakes.add(1);
        let found = [0, 5, 50, 95, 100].map(|percent| wakes.percentile(percent));
        assert_eq!(found, [Some(1), Some(2), Some(11), Some(20), None]);
    }

    #[test]
    fn a_slice_of_a_task_that_goes_on_did_not_end() {
        let mut cpu = Cpu::default();
        // Due at 700, handled at 750, and the CPU went to another task at 760.
        cpu.slice_ends(750, 50, 0);
        cpu.next_slice(760);
        assert_eq!(cpu.late, [late(700, 60)]);
        // No other task was to run; the next slice timer is set as one wakes.
        cpu.slice_ends(1_500, 50, 0);
        cpu.goes_on();
        cpu.next_slice(1_900);
        assert_eq!(cpu.late, [late(700, 60)]);
    }

    #[test]
    fn a_tick_that_ends_a_slice_is_late_until_the_switch() {
        let mut cpu = Cpu::default();
        // Due at 4,000; its task is in the guest again before it loses the CPU by a wakeup.
        cpu.ticks(4_100, 100, 0);
        cpu.goes_on();
        cpu.preempts(6_000);
        // Due at 8,000, and the CPU goes to another task.
        cpu.ticks(8_050, 50, 0);
        cpu.preempts(8_900);
        // Due at 12,000, and it does by what comes later.
        cpu.ticks(12_010, 10, 0);
        cpu.preempts(2_000_000);
        let ticks = [late(4_000, 100), late(8_000, 900), late(12_000, 10)];
        assert_eq!(cpu.tick_late, ticks);
    }

    #[test]
    fn a_stall_explains_a_late_timer() {
        let mut cpu = Cpu {
            last: 1_000,
            ..Cpu::default()
        };
        cpu.acts(5_000_000);
        cpu.last = 5_000_000;
        // Events so soon after another make no stall.
        cpu.acts(5_100_000);
        let stall = cpu.stall(2_000_000).unwrap();
        assert_eq!((stall.start, stall.end), (1_000, 5_000_000));
        // This timer is hardly late: its CPU computed.
        assert!(cpu.stall(4_950_000).is_none());
        // Due at 2 ms, handled at 5.1 ms after a stall to 5 ms, and the CPU switches at 5.3 ms.
        cpu.slice_ends(5_100_000, 3_100_000, 3_000_000);
        cpu.next_slice(5_300_000);
        assert_eq!(cpu.late[0].late_ns, 3_300_000);
        assert_eq!(cpu.late[0].without_stall(), late(5_000_000, 300_000));
    }

    #[test]
    fn an_idle_cpu_is_late_from_the_first_call_on() {
        let mut cpu = Cpu {
            called: Some(1_000),
            ..Cpu::default()
        };
        // A timer of its own woke the task that it switches to.
        cpu.idle_woken(4_900, true, 5_000);
        assert_eq!(cpu.idle_late, [late(4_900, 100)]);
        assert_eq!(cpu.first_called, [late(1_000, 4_000)]);
    }

    #[test]
    fn no_more_wakeups_are_kept_than_the_limit() {
        let mut wakes = Wakes::default();
        (0..=Wakes::MOST as u64).for_each(|ns| wakes.add(ns));
        assert_eq!(wakes.samples.len(), Wakes::MOST);
    }
}
