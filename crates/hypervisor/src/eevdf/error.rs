//! What the fair class refuses, and why.

use core::fmt;

use super::ids::{GroupId, RqId, TaskId};

/// A refused operation. Nothing has been changed when one is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The task was never created, or has exited.
    NoSuchTask(TaskId),
    /// The group was never created.
    NoSuchGroup(GroupId),
    /// The run queue was never created.
    NoSuchRq(RqId),
    /// The task is on a run queue already: it would be queued twice.
    AlreadyQueued {
        /// The task.
        task: TaskId,
        /// Where it is queued.
        rq: RqId,
    },
    /// The task is not on a run queue.
    NotQueued(TaskId),
    /// The task has not been forked yet, or has left as a migration source and not arrived.
    NotAttached(TaskId),
    /// The task was forked before: it can only be woken or attached.
    AlreadyForked(TaskId),
    /// The task is awake: there is nothing to wake it from.
    NotAsleep(TaskId),
    /// The task is not throttled: it has nothing to come back from.
    NotThrottled(TaskId),
    /// A sleeper whose dequeue is delayed is still queued elsewhere and can only be woken there.
    DelayedElsewhere {
        /// The sleeper.
        task: TaskId,
        /// Where it is still queued.
        queued_on: RqId,
        /// Where it was to be woken.
        asked: RqId,
    },
    /// The operation needs a task that is not running.
    Running(TaskId),
    /// The operation acts on the running task, and the idle task runs.
    Idle(RqId),
    /// The task running is another than the caller says.
    NotRunning {
        /// The task named.
        task: TaskId,
        /// The run queue asked.
        rq: RqId,
    },
    /// The running task has blocked: the next operation on this run queue must be a pick.
    PickDue(RqId),
    /// The group has no part on this CPU: [`super::Fair::extend_group`] makes one.
    GroupNotOnCpu {
        /// The group.
        group: GroupId,
        /// The run queue on which it has no part.
        rq: RqId,
    },
    /// The group may not be created or moved there: it would be under itself.
    GroupUnderItself(GroupId),
    /// The group still has tasks or groups in it.
    GroupBusy(GroupId),
    /// Groups nest deeper than the limit.
    TooDeep {
        /// Levels asked for.
        depth: u32,
        /// Levels allowed.
        max: u32,
    },
    /// An idle group's shares are fixed (`-EINVAL` of `sched_group_set_shares`).
    IdleGroupShares(GroupId),
    /// Shares or weight 0.
    ZeroWeight,
    /// A load beyond what the arithmetic of shares holds.
    LoadOutOfRange {
        /// The load asked for.
        load: u64,
        /// The largest allowed.
        max: u64,
    },
    /// Nice outside [-20, 19].
    NiceOutOfRange(i8),
    /// A slice outside [0.1 ms, 100 ms]. The kernel clamps such a request; a caller that wants
    /// that clamps before.
    SliceOutOfRange {
        /// The slice asked for, in ns.
        slice_ns: u64,
        /// The shortest allowed, in ns.
        min_ns: u64,
        /// The longest allowed, in ns.
        max_ns: u64,
    },
    /// The clock of a run queue would go back.
    ClockBack {
        /// The run queue.
        rq: RqId,
        /// Its clock, in ns.
        clock_ns: u64,
        /// The time of the operation, in ns.
        now_ns: u64,
    },
    /// The running task has run for longer without being accounted for than the arithmetic holds:
    /// tick at least once in the time allowed.
    TooLongUnaccounted {
        /// The run queue.
        rq: RqId,
        /// Time since the running entity's last account, in ns.
        ran_ns: u64,
        /// The longest allowed, in ns.
        max_ns: u64,
    },
    /// A constant of the configuration is out of its range.
    BadConfig {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The smallest allowed.
        min: u64,
        /// The largest allowed.
        max: u64,
    },
    /// What is asked for is of EEVDF, and CFS is configured.
    NotWithCfs(&'static str),
    /// No more of these can be made: ids are 32 bit.
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
            Self::AlreadyForked(t) => write!(f, "{t} was forked before: wake or attach it"),
            Self::NotAsleep(t) => write!(f, "{t} is awake"),
            Self::NotThrottled(t) => write!(f, "{t} is not throttled"),
            Self::DelayedElsewhere {
                task,
                queued_on,
                asked,
            } => {
                write!(
                    f,
                    "{task} is still queued on {queued_on}: wake it there, not on {asked}"
                )
            }
            Self::Running(t) => write!(f, "{t} is running"),
            Self::Idle(r) => write!(f, "{r} runs the idle task"),
            Self::NotRunning { task, rq } => write!(f, "{task} is not what runs on {rq}"),
            Self::PickDue(r) => write!(f, "the task running on {r} has blocked: pick first"),
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
            Self::ZeroWeight => f.write_str("a weight of 0 would run never and divide by 0"),
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
            Self::NotWithCfs(what) => write!(f, "CFS has no {what}"),
            Self::Full(what) => write!(f, "no more {what} can be made"),
        }
    }
}

impl core::error::Error for Error {}
