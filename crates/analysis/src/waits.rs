//! Single waits of a vCPU for a CPU: the longest, and how many there are of each length.

use stealtime_track::{Cause, OpenWait, Run, Wait};

use crate::stats::Histogram;

/// Edges of the classes of waits, in ns. A wait below 10 us is a switch. The guest's timers show one
/// above 100 ms.
pub(crate) const EDGES: [u64; 5] = [10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// The wait under way.
#[derive(Debug, Clone, Copy)]
struct Open {
    wait: OpenWait,
    /// A part of it lies in the selection.
    counts: bool,
    /// It left a run queue, so a loss can still show that the thread ran meanwhile.
    is_doubted: bool,
    /// A part of it was not seen.
    is_broken: bool,
}

const NOTHING: Open = Open {
    wait: OpenWait::NONE,
    counts: false,
    is_doubted: false,
    is_broken: false,
};

/// Waits of one vCPU.
#[derive(Debug, Clone)]
pub(crate) struct Waits {
    open: Open,
    /// A wait that has ended elsewhere, and counts once it is no longer doubted.
    held: Option<Wait>,
    pub(crate) lengths: Histogram,
    /// By class: below the first of [`EDGES`], …, from the last on.
    pub(crate) classes: [u64; EDGES.len() + 1],
    /// Sum of all, in ns.
    pub(crate) ns: u64,
    /// Waits above the limit that was asked for, and their sum in ns.
    pub(crate) longer: (u64, u64),
    /// The longest, in no order.
    longest: Vec<Wait>,
    /// The shortest of these, in ns, once there are as many as are kept.
    floor: u64,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            open: NOTHING,
            held: None,
            lengths: Histogram::default(),
            classes: [0; EDGES.len() + 1],
            ns: 0,
            longer: (0, 0),
            longest: Vec::new(),
            floor: 0,
        }
    }
}

/// What of single waits is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Longest {
    /// How many of the longest waits are kept, of each vCPU and in the answer.
    pub kept: usize,
    /// Waits longer than this are counted, in ns.
    pub longer_than_ns: Option<u64>,
}

impl Default for Longest {
    fn default() -> Self {
        Self {
            kept: 10,
            longer_than_ns: None,
        }
    }
}

impl Waits {
    /// Adds a part of the wait under way: its time in ns, how much of it is selected, and the occupant of
    /// the CPU.
    pub(crate) fn add(&mut self, start: u64, end: u64, cpu: u16, cause: Cause, selected: u64) {
        self.open.wait.add(start, end, cpu, cause);
        self.open.counts |= selected > 0;
    }

    /// It leaves a run queue. To be called after [`Waits::trust`].
    pub(crate) const fn doubt(&mut self) {
        self.open.is_doubted = true;
    }

    /// The latest wait that ended elsewhere is not doubted any more.
    pub(crate) fn trust(&mut self, wanted: Longest) {
        if let Some(wait) = self.held.take() {
            self.count(wait, wanted);
        }
    }

    /// Part of the latest doubted wait was not seen.
    pub(crate) fn retract(&mut self) {
        if self.held.take().is_none() {
            self.open.is_broken = true;
        }
    }

    /// The wait is over; `idle` is what idle time of its CPU means.
    pub(crate) fn end(&mut self, run: Run, idle: Cause, wanted: Longest) {
        let open = std::mem::replace(&mut self.open, NOTHING);
        let is_wanted = open.counts && !open.is_broken;
        if let Some(wait) = open.wait.wait(run, idle).filter(|_| is_wanted) {
            if open.is_doubted {
                self.held = Some(wait);
            } else {
                self.count(wait, wanted);
            }
        }
    }

    fn count(&mut self, wait: Wait, wanted: Longest) {
        self.lengths.record(wait.ns);
        self.ns = self.ns.saturating_add(wait.ns);
        let class = EDGES.iter().take_while(|edge| wait.ns >= **edge).count();
        self.classes[class] += 1;
        if wanted.longer_than_ns.is_some_and(|limit| wait.ns > limit) {
            self.longer.0 += 1;
            self.longer.1 = self.longer.1.saturating_add(wait.ns);
        }
        if self.longest.len() < wanted.kept || wait.ns > self.floor {
            self.keep(wait, wanted.kept);
        }
    }

    /// Puts a wait among the longest, in the place of the shortest if there are `limit`.
    fn keep(&mut self, wait: Wait, limit: usize) {
        if self.longest.len() < limit {
            self.longest.push(wait);
        } else if let Some(shortest) = self.longest.iter_mut().min_by_key(|wait| wait.ns) {
            *shortest = wait;
        }
        if self.longest.len() >= limit {
            self.floor = self.longest.iter().map(|wait| wait.ns).min().unwrap_or(0);
        }
    }

    /// The longest, in no order.
    pub(crate) fn longest(&self) -> &[Wait] {
        &self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Longest = Longest {
        kept: 2,
        longer_than_ns: Some(25),
    };

    fn wait(waits: &mut Waits, start: u64, ns: u64) {
        waits.add(start, start + ns, 0, Cause::HARDIRQ, ns);
        waits.end(Run::Preempted, Cause::IDLE, WANTED);
    }

    #[test]
    fn the_longest_stay() {
        let mut waits = Waits::default();
        for (start, ns) in [(0, 30), (100, 10), (200, 20), (300, 40), (400, 5)] {
            wait(&mut waits, start, ns);
        }
        let mut kept: Vec<u64> = waits.longest().iter().map(|wait| wait.ns).collect();
        kept.sort_unstable();
        assert_eq!(kept, [30, 40]);
        assert_eq!(waits.longer, (2, 70));
        assert_eq!(
            (waits.lengths.count(), waits.ns, waits.classes[0]),
            (5, 105, 5)
        );
    }

    #[test]
    fn a_doubted_wait_counts_once_it_is_trusted() {
        let mut waits = Waits::default();
        waits.add(0, 30, 0, Cause::IDLE, 30);
        waits.doubt();
        waits.end(Run::Preempted, Cause::THROTTLED, WANTED);
        assert_eq!(waits.lengths.count(), 0);
        waits.trust(WANTED);
        assert_eq!(waits.longest()[0].cause, Cause::THROTTLED);
        waits.add(100, 130, 0, Cause::IDLE, 30);
        waits.doubt();
        waits.end(Run::Preempted, Cause::IDLE, WANTED);
        waits.retract();
        waits.trust(WANTED);
        // One that goes on is dropped at its end.
        waits.add(200, 230, 0, Cause::IDLE, 30);
        waits.doubt();
        waits.retract();
        waits.end(Run::Preempted, Cause::IDLE, WANTED);
        assert_eq!(waits.lengths.count(), 1);
    }
}
