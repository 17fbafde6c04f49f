//! The occupant of the CPU that a runnable vCPU waits for.

use crate::ThreadIndex;

/// The occupant of a CPU: a task's number, or one of the constants. One word, because it is a key of
/// tables in the hot path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cause(u32);

/// First number that stands for a softirq, and for no task: far above the limit of tasks.
const SOFTIRQ: u32 = 0xffff_fe00;
/// Softirqs with numbers of their own: Linux has ten, and six more leave room.
const SOFTIRQS: u32 = 16;

/// `softirq_to_name` (kernel/softirq.c).
const SOFTIRQ_NAMES: [&str; 10] = [
    "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU",
];

impl Cause {
    /// Not known.
    pub const UNKNOWN: Self = Self(0xffff_fffe);
    /// A hard interrupt.
    pub const HARDIRQ: Self = Self(0xffff_fffd);
    /// None: the waiting thread's bandwidth is used up. Readers conclude this, not the tracker.
    pub const THROTTLED: Self = Self(0xffff_fffc);
    /// Tasks past the limit of a reader's table.
    pub const OTHERS: Self = Self(0xffff_fffb);
    /// The idle task.
    pub const IDLE: Self = Self::task(ThreadIndex::IDLE);

    /// A task.
    #[must_use]
    pub const fn task(thread: ThreadIndex) -> Self {
        Self(thread.0)
    }

    /// A softirq by its number.
    #[must_use]
    pub const fn softirq(vec: u32) -> Self {
        if vec < SOFTIRQS {
            Self(SOFTIRQ + vec)
        } else {
            Self(SOFTIRQ + SOFTIRQS)
        }
    }

    /// The task, if it is one.
    #[must_use]
    pub const fn thread(self) -> Option<ThreadIndex> {
        if self.0 < SOFTIRQ {
            Some(ThreadIndex(self.0))
        } else {
            None
        }
    }

    /// The softirq's name, if it is one.
    #[must_use]
    pub fn softirq_name(self) -> Option<&'static str> {
        let vec = self.0.checked_sub(SOFTIRQ)?;
        let name = SOFTIRQ_NAMES.get(vec as usize).copied();
        (vec <= SOFTIRQS).then(|| name.unwrap_or("softirq"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softirqs_have_their_names() {
        assert_eq!(Cause::softirq(3).softirq_name(), Some("NET_RX"));
        assert_eq!(Cause::softirq(99).softirq_name(), Some("softirq"));
        assert_eq!(Cause::HARDIRQ.softirq_name(), None);
        assert_eq!(Cause::task(ThreadIndex(5)).softirq_name(), None);
        assert_eq!(Cause::softirq(3).thread(), None);
    }
}
