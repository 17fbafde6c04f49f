//! The occupant of the CPU that a runnable vCPU waits for.

use crate::{Run, ThreadIndex};

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

/// A shorter wait for an idle CPU is no throttling, in ns. The shortest period of a limit is 1 ms
/// (`min_cfs_quota_period`), and a throttled thread waits for a good part of it. A CPU that leaves
/// idle late takes microseconds.
const THROTTLED_NS: u64 = 500_000;

impl Cause {
    /// Not known.
    pub const UNKNOWN: Self = Self(0xffff_fffe);
    /// A hard interrupt.
    pub const HARDIRQ: Self = Self(0xffff_fffd);
    /// None: the waiting thread's bandwidth is used up. Readers conclude this, not the tracker:
    /// [`Cause::of_idle`].
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

    /// What it means that a thread waits in the state `run` while its CPU is idle, for `ns` in all.
    /// `has_limit` says that a timer of a bandwidth limit expired meanwhile.
    ///
    /// A limit takes the CPU from a thread that runs (`throttle_cfs_rq`), so it does not cause a wait that
    /// begins with a wakeup. Nor does it slow a CPU that leaves idle while another VM's timer expires.
    #[must_use]
    pub fn of_idle(run: Run, ns: u64, has_limit: bool) -> Self {
        if run == Run::Preempted && has_limit && ns >= THROTTLED_NS {
            Self::THROTTLED
        } else {
            Self::IDLE
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

    #[test]
    fn a_limit_shows_by_a_long_wait_and_its_timer() {
        let of_idle = Cause::of_idle;
        assert_eq!(of_idle(Run::Preempted, 500_000, true), Cause::THROTTLED);
        assert_eq!(of_idle(Run::Preempted, 499_999, true), Cause::IDLE);
        assert_eq!(of_idle(Run::Preempted, 500_000, false), Cause::IDLE);
        assert_eq!(of_idle(Run::Waking, 500_000, true), Cause::IDLE);
    }
}
