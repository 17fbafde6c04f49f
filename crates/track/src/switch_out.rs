//! How a task leaves its CPU: the one reading of `prev_state`.

/// `TASK_REPORT_MAX` since Linux 4.14 (`__trace_sched_switch_state`): the task was preempted.
const PREEMPTED: u32 = 0x100;
/// `TASK_STATE_MAX` of older kernels, with the same meaning.
const PREEMPTED_OLD: u32 = 0x1000;
/// The states that `sched_switch` reports: `TASK_REPORT | TASK_REPORT_IDLE`.
const REPORTED: u32 = 0xff;
/// `EXIT_DEAD | EXIT_ZOMBIE`: the task does not come back.
const EXITED: u32 = 0x30;
/// `TASK_INTERRUPTIBLE | TASK_UNINTERRUPTIBLE`.
const ASLEEP: u32 = 0x3;

/// How a task leaves its CPU, by `prev_state` of `sched_switch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchOut {
    /// It is still runnable: preempted, or it yielded.
    Runnable,
    /// It sleeps.
    Asleep,
    /// It has exited.
    Exited,
    /// Stopped, traced, parked or idle; kernels before 4.14 numbered their states otherwise, so that
    /// a task that is exiting may have ended.
    Other,
}

impl SwitchOut {
    /// Reads `prev_state`.
    #[must_use]
    #[inline]
    pub const fn from_prev_state(prev_state: u32) -> Self {
        // The preempted bit goes first: a task that is preempted on its way to sleep has both.
        if prev_state & REPORTED == 0 || prev_state & (PREEMPTED | PREEMPTED_OLD) != 0 {
            Self::Runnable
        } else if prev_state & EXITED != 0 {
            Self::Exited
        } else if prev_state & ASLEEP != 0 {
            Self::Asleep
        } else {
            Self::Other
        }
    }

    /// Whether the task waits for a CPU from here on.
    #[must_use]
    #[inline]
    pub const fn is_runnable(self) -> bool {
        matches!(self, Self::Runnable)
    }

    /// Whether the task has ended.
    #[must_use]
    #[inline]
    pub const fn is_exited(self) -> bool {
        matches!(self, Self::Exited)
    }
}

#[cfg(test)]
mod tests {
    use super::SwitchOut;

    #[test]
    fn prev_state_of_old_and_new_kernels() {
        for (state, expected) in [
            (0, SwitchOut::Runnable),
            (0x100, SwitchOut::Runnable),
            (0x1000, SwitchOut::Runnable),
            // Preempted on the way to sleep.
            (0x101, SwitchOut::Runnable),
            (1, SwitchOut::Asleep),
            (2, SwitchOut::Asleep),
            (0x10, SwitchOut::Exited),
            (0x20, SwitchOut::Exited),
            // TASK_REPORT_IDLE, and a stopped task.
            (0x80, SwitchOut::Other),
            (4, SwitchOut::Other),
        ] {
            assert_eq!(SwitchOut::from_prev_state(state), expected, "{state:#x}");
        }
    }
}
