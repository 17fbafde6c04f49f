//! A wait of a runnable thread for a CPU.

use crate::{Cause, Run};

/// Occupants that a wait keeps apart. Of more, those with the least time are forgotten.
const OCCUPANTS: usize = 6;

/// A wait for a CPU, over all CPUs in the run queues of which the thread stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Begin, in ns of the trace's clock.
    pub start: u64,
    /// Its length, in ns.
    pub ns: u64,
    /// [`Run::Preempted`] or [`Run::Waking`].
    pub run: Run,
    /// The last CPU that it waited for.
    pub cpu: u16,
    /// The occupant of the CPU for the largest part of it.
    pub cause: Cause,
    /// That part, in ns; at least.
    pub cause_ns: u64,
}

/// The wait under way: its length so far, and the occupants of the CPU.
#[derive(Debug, Clone, Copy)]
pub struct OpenWait {
    start: u64,
    ns: u64,
    cpu: u16,
    occupants: [(Cause, u64); OCCUPANTS],
    /// Occupants behind it are not read.
    used: usize,
}

impl OpenWait {
    /// No wait.
    pub const NONE: Self = Self {
        start: 0,
        ns: 0,
        cpu: 0,
        occupants: [(Cause::UNKNOWN, 0); OCCUPANTS],
        used: 0,
    };

    /// Adds a part of it, `[start, end)` in ns of the trace's clock, and the occupant of the CPU.
    pub fn add(&mut self, start: u64, end: u64, cpu: u16, cause: Cause) {
        let ns = end - start;
        if self.ns == 0 {
            self.start = start;
        }
        self.ns += ns;
        self.cpu = cpu;
        let used = self.used;
        let mut known = self.occupants.iter_mut().take(used);
        if let Some(known) = known.find(|known| known.0 == cause) {
            known.1 += ns;
        } else if let Some(free) = self.occupants.get_mut(used) {
            *free = (cause, ns);
            self.used += 1;
        } else if let Some(least) = self.occupants.iter_mut().min_by_key(|known| known.1)
            && least.1 < ns
        {
            *least = (cause, ns);
        }
    }

    /// The wait as it is so far, if there is one. `run` is the thread's state, and `idle` what idle time of
    /// the CPU means: [`Cause::of_idle`].
    #[must_use]
    pub fn wait(&self, run: Run, idle: Cause) -> Option<Wait> {
        let occupants = self.occupants.iter().take(self.used);
        // The first of several with the same time, as they came.
        let &(cause, cause_ns) = occupants.rev().max_by_key(|known| known.1)?;
        (self.ns > 0).then_some(Wait {
            start: self.start,
            ns: self.ns,
            run,
            cpu: self.cpu,
            cause: if cause == Cause::IDLE { idle } else { cause },
            cause_ns,
        })
    }

    /// It is over.
    pub const fn clear(&mut self) {
        (self.ns, self.used) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait with parts of so many ns, each of the softirq of that number.
    fn with(parts: &[(u32, u64)]) -> Wait {
        let mut open = OpenWait::NONE;
        for (index, &(softirq, ns)) in parts.iter().enumerate() {
            let start = 100 * index as u64;
            open.add(start, start + ns, 0, Cause::softirq(softirq));
        }
        open.wait(Run::Waking, Cause::IDLE).expect("a wait")
    }

    #[test]
    fn a_wait_has_the_occupant_with_the_most_time() {
        let lengths = [3, 9, 4, 1, 5, 6, 20, 2];
        let wait = with(&std::array::from_fn::<_, 8, _>(|index| {
            (index as u32, lengths[index])
        }));
        assert_eq!((wait.cause, wait.cause_ns), (Cause::softirq(6), 20));
        assert_eq!((wait.start, wait.ns), (0, 50));
        let equal = with(&[(3, 5), (1, 5)]);
        assert_eq!(equal.cause, Cause::softirq(3), "the first");
    }

    /// More occupants than are kept: a new one takes the place of a shorter one, whenever it comes.
    #[test]
    fn a_short_occupant_takes_no_longer_ones_place() {
        let parts = [
            (0, 30),
            (1, 31),
            (2, 32),
            (3, 33),
            (4, 34),
            (5, 35),
            (6, 29),
            (0, 6),
        ];
        let wait = with(&parts);
        assert_eq!((wait.cause, wait.cause_ns), (Cause::softirq(0), 36));
    }

    #[test]
    fn what_is_over_leaves_nothing() {
        let mut open = OpenWait::NONE;
        assert_eq!(open.wait(Run::Waking, Cause::IDLE), None);
        open.add(10, 40, 1, Cause::HARDIRQ);
        open.clear();
        assert_eq!(open.wait(Run::Waking, Cause::IDLE), None);
        open.add(50, 55, 2, Cause::IDLE);
        let wait = open.wait(Run::Preempted, Cause::THROTTLED).expect("a wait");
        let expected = Wait {
            start: 50,
            ns: 5,
            run: Run::Preempted,
            cpu: 2,
            cause: Cause::THROTTLED,
            cause_ns: 5,
        };
        assert_eq!(wait, expected);
    }
}
