//! The errors of the fair class.

use core::fmt;

use super::ids::{GroupId, RqId, TaskId};

/// Why an operation was refused. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The task does not exist: it was never created, or has exited.
    NoSuchTask(TaskId),
    /// The group does not exist.
    NoSuchGroup(GroupId),
    /// The run queue does not exist.
    NoSuchRq(RqId),
    /// The task is queued already.
    AlreadyQueued {
        /// The task.
        task: TaskId,
        /// Its run queue.
        rq: RqId,
    },
    /// The task is not queued.
    NotQueued(TaskId),
    /// The task is on no CPU: fork or attach it first.
    NotAttached(TaskId),
    /// The task has been forked: wake or attach it.
    AlreadyForked(TaskId),
    /// The task is awake.
    NotAsleep(TaskId),
    /// The task is not throttled.
    NotThrottled(TaskId),
    /// The task is still queued on another run queue, because its dequeue is delayed: wake it
    /// there.
    DelayedElsewhere {
        /// The sleeper.
        task: TaskId,
        /// The run queue that it is still on.
        queued_on: RqId,
        /// The run queue of the call.
        requested: RqId,
    },
    /// The task is the current task of its run queue.
    Running(TaskId),
    /// The idle task is the current task of the run queue.
    Idle(RqId),
    /// The task is not the current task of the run queue.
    NotRunning {
        /// The task.
        task: TaskId,
        /// The run queue.
        rq: RqId,
    },
    /// The current task of the run queue has blocked: pick first.
    PickDue(RqId),
    /// The group has no part on the run queue: extend the group to it first
    /// ([`super::Fair::extend_group`]).
    GroupNotOnCpu {
        /// The group.
        group: GroupId,
        /// The run queue.
        rq: RqId,
    },
    /// The group would be under itself.
    GroupUnderItself(GroupId),
    /// The group is not empty.
    GroupBusy(GroupId),
    /// Groups nest deeper than the limit.
    TooDeep {
        /// Levels of the call.
        depth: u32,
        /// Largest number of levels.
        max: u32,
    },
    /// The group is idle: its shares are fixed (`-EINVAL` of `sched_group_set_shares`).
    IdleGroupShares(GroupId),
    /// Shares of 0: the group would never run.
    ZeroWeight,
    /// The load is above the limit of the arithmetic of shares.
    LoadOutOfRange {
        /// The load of the call.
        load: u64,
        /// The largest load.
        max: u64,
    },
    /// The nice value is not in [-20, 19].
    NiceOutOfRange(i8),
    /// The slice is not in [0.1 ms, 100 ms]. The kernel clamps it
    /// ([`super::Fair::sched_setattr`] does, too).
    SliceOutOfRange {
        /// The slice of the call, in ns.
        slice_ns: u64,
        /// The shortest slice, in ns.
        min_ns: u64,
        /// The longest slice, in ns.
        max_ns: u64,
    },
    /// The time is before the clock of the run queue.
    ClockBack {
        /// The run queue.
        rq: RqId,
        /// Its clock, in ns.
        clock_ns: u64,
        /// The time of the operation, in ns.
        now_ns: u64,
    },
    /// The current task ran longer without accounting than the arithmetic holds: tick more often.
    TooLongUnaccounted {
        /// The run queue.
        rq: RqId,
        /// Time since the last account, in ns.
        ran_ns: u64,
        /// Longest time between accounts, in ns.
        max_ns: u64,
    },
    /// A constant of the configuration is out of its range.
    BadConfig {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// CFS has no such feature: it belongs to EEVDF.
    NotWithCfs(&'static str),
    /// The table of these is full: ids have 32 bits.
    Full(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoSuchTask(t) => write!(f, "{t} does not exist"),
            Self::NoSuchGroup(g) => write!(f, "{g} does not exist"),
            Self::NoSuchRq(r) => write!(f, "{r} does not exist"),
            Self::AlreadyQueued { task, rq } => write!(f, "{task} is queued on {rq} already"),
            Self::NotQueued(t) => write!(f, "{t} is not queued"),
            Self::NotAttached(t) => write!(f, "{t} is on no CPU: fork or attach it first"),
            Self::AlreadyForked(t) => write!(f, "{t} has been forked: wake or attach it"),
            Self::NotAsleep(t) => write!(f, "{t} is awake"),
            Self::NotThrottled(t) => write!(f, "{t} is not throttled"),
            Self::DelayedElsewhere {
                task,
                queued_on,
                requested,
            } => {
                write!(
                    f,
                    "{task} is still queued on {queued_on}: wake it there, not on {requested}"
                )
            }
            Self::Running(t) => write!(f, "{t} is the current task of its run queue"),
            Self::Idle(r) => write!(f, "the idle task is the current task of {r}"),
            Self::NotRunning { task, rq } => write!(f, "{task} is not the current task of {rq}"),
            Self::PickDue(r) => write!(f, "the current task of {r} has blocked: pick first"),
            Self::GroupNotOnCpu { group, rq } => {
                write!(
                    f,
                    "{group} has no part on {rq}: extend the group to it first"
                )
            }
            Self::GroupUnderItself(g) => write!(f, "{g} would be under itself"),
            Self::GroupBusy(g) => write!(f, "{g} is not empty"),
            Self::TooDeep { depth, max } => write!(f, "{depth} levels of groups, at most {max}"),
            Self::IdleGroupShares(g) => write!(f, "{g} is idle: its shares are fixed"),
            Self::ZeroWeight => f.write_str("shares of 0: give at least 1"),
            Self::LoadOutOfRange { load, max } => write!(f, "load {load} is above {max}"),
            Self::NiceOutOfRange(n) => write!(f, "nice {n} is not in [-20, 19]"),
            Self::SliceOutOfRange {
                slice_ns,
                min_ns,
                max_ns,
            } => {
                write!(f, "slice {slice_ns} ns is not in [{min_ns}, {max_ns}] ns")
            }
            Self::ClockBack {
                rq,
                clock_ns,
                now_ns,
            } => {
                write!(
                    f,
                    "time {now_ns} ns is before the clock of {rq}, {clock_ns} ns"
                )
            }
            Self::TooLongUnaccounted { rq, ran_ns, max_ns } => write!(
                f,
                "{rq} ran {ran_ns} ns without accounting: tick at least every {max_ns} ns"
            ),
            Self::BadConfig {
                field,
                value,
                min,
                max,
            } => {
                write!(f, "{field} = {value} is not in [{min}, {max}]")
            }
            Self::NotWithCfs(feature) => write!(f, "CFS has no {feature}"),
            Self::Full(table) => write!(f, "the table of {table} is full"),
        }
    }
}

impl core::error::Error for Error {}
