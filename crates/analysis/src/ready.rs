//! Who had the CPU while a runnable vCPU waited for it.

use crate::hash::IntMap;

/// Most different tasks told apart per waiting vCPU; the rest is [`Cause::OTHERS`].
const MAX_CAUSES: usize = 512;

/// Why a runnable vCPU did not run: a task's number, or one of the constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cause(u32);

/// First number that stands for a softirq.
const SOFTIRQ: u32 = 0xffff_fe00;
/// Softirqs told apart (Linux has ten).
const SOFTIRQS: u32 = 16;
/// First number that is no task's.
const SPECIAL: u32 = SOFTIRQ;

impl Cause {
    /// It is not known who ran.
    pub(crate) const UNKNOWN: Self = Self(0xffff_fffe);
    /// A hard interrupt.
    pub(crate) const HARDIRQ: Self = Self(0xffff_fffd);
    /// The thread was held back by its bandwidth limit.
    pub(crate) const THROTTLED: Self = Self(0xffff_fffc);
    /// Tasks beyond the limit of the table.
    pub(crate) const OTHERS: Self = Self(0xffff_fffb);

    /// A task's number.
    pub(crate) const fn of(thread: u32) -> Self {
        Self(thread)
    }

    /// A softirq by its number.
    pub(crate) const fn softirq(vec: u32) -> Self {
        if vec < SOFTIRQS {
            Self(SOFTIRQ + vec)
        } else {
            Self(SOFTIRQ + SOFTIRQS)
        }
    }

    /// The number under which it is kept.
    pub(crate) const fn key(self) -> u32 {
        self.0
    }

    /// From the number under which it was kept.
    pub(crate) const fn from_key(key: u32) -> Self {
        Self(key)
    }

    /// The task, if it is one.
    pub(crate) const fn thread(self) -> Option<u32> {
        if self.0 < SPECIAL { Some(self.0) } else { None }
    }

    /// The softirq, if it is one.
    pub(crate) fn softirq_name(self) -> Option<&'static str> {
        const NAMES: [&str; 10] = [
            "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER",
            "RCU",
        ];
        let vec = self.0.checked_sub(SOFTIRQ)?;
        (vec <= SOFTIRQS).then(|| NAMES.get(vec as usize).copied().unwrap_or("softirq"))
    }
}

/// Adds time to a cause.
pub(crate) fn add(table: &mut IntMap<u32, u64>, cause: Cause, ns: u64) {
    if let Some(sum) = table.get_mut(&cause.key()) {
        *sum += ns;
    } else if table.len() < MAX_CAUSES || cause.thread().is_none() {
        table.insert(cause.key(), ns);
    } else {
        *table.entry(Cause::OTHERS.key()).or_default() += ns;
    }
}

/// Takes time back that was added to a cause.
pub(crate) fn take_back(table: &mut IntMap<u32, u64>, cause: Cause, ns: u64) {
    let key = match table.contains_key(&cause.key()) {
        true => cause.key(),
        false => Cause::OTHERS.key(),
    };
    if let Some(sum) = table.get_mut(&key) {
        *sum = sum.saturating_sub(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_too_many_tasks_is_kept_under_others() {
        let mut table = IntMap::default();
        for task in 0..2000 {
            add(&mut table, Cause::of(task), 3);
        }
        assert_eq!(table.values().sum::<u64>(), 6000);
        assert!(table.len() <= MAX_CAUSES + 1);
        assert!(table.contains_key(&Cause::OTHERS.key()));
    }

    #[test]
    fn softirqs_have_their_names() {
        assert_eq!(Cause::softirq(3).softirq_name(), Some("NET_RX"));
        assert_eq!(Cause::softirq(99).softirq_name(), Some("softirq"));
        assert_eq!(Cause::HARDIRQ.softirq_name(), None);
        assert_eq!(Cause::of(5).softirq_name(), None);
        assert_eq!(Cause::softirq(3).thread(), None);
    }
}
