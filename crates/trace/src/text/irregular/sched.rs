//! The scheduler's tracepoints that print letters for states or the names of two tasks. The sched
//! plugin of trace-cmd prints tasks as `comm:tid [prio]`.

use stealtime_events::{Kind, Tid};

use crate::text::decoded::Decoded;
use crate::text::fields::{int, int_last, number};

/// Task states as the kernel prints them; several may be joined by `|`. Plugins of older trace-cmd
/// have letters of older kernels: `W` for an idle kthread, `x` for a parked one. They print `X` for
/// `Z` and `Z` for `X`.
const STATES: &[(u8, u32)] = &[
    (b'R', 0),
    (b'S', 1),
    (b'D', 2),
    (b'T', 4),
    (b't', 8),
    (b'X', 0x10),
    (b'Z', 0x20),
    (b'P', 0x40),
    (b'x', 0x40),
    (b'I', 0x80),
    (b'W', 0x80),
];

/// What the kernel prints as `+`: runnable, but switched out (`TASK_REPORT_MAX` since 4.14).
const PREEMPTED: u32 = 0x100;

/// A task as the text of an event names it.
struct Task<'a> {
    comm: &'a [u8],
    tid: Tid,
    prio: Option<i32>,
    /// The text behind the task.
    rest: &'a [u8],
}

/// `prev_comm=a prev_pid=5 … ==> next_comm=b next_pid=6 …`, with letters for the state.
pub(super) fn switch(body: &[u8]) -> Option<Decoded<'_>> {
    let Some(split) = memchr::memmem::rfind(body, b"next_comm=") else {
        return plugin_switch(body);
    };
    let (prev, next) = body.split_at_checked(split)?;
    let state_key = b"prev_state=";
    let state_text = prev.get(memchr::memmem::rfind(prev, state_key)? + state_key.len()..)?;
    let prev_state = state(state_text)?;
    let prev = Task {
        comm: comm(prev, b"prev_comm=", b" prev_pid=")?,
        tid: Tid(int_last(prev, "prev_pid")?),
        prio: int_last(prev, "prev_prio"),
        rest: &[],
    };
    let next = Task {
        comm: comm(next, b"next_comm=", b" next_pid=")?,
        tid: Tid(int_last(next, "next_pid")?),
        prio: int_last(next, "next_prio"),
        rest: &[],
    };
    switched(&prev, prev_state, &next)
}

/// `trace-cmd:513 [105] R ==> migration/0:18 [0]`.
fn plugin_switch(body: &[u8]) -> Option<Decoded<'_>> {
    let arrow = memchr::memmem::rfind(body, b" ==> ")?;
    let prev = plugin_task(body.get(..arrow)?)?;
    let next = plugin_task(body.get(arrow + 5..)?)?;
    switched(&prev, state(prev.rest)?, &next)
}

fn switched<'a>(prev: &Task<'a>, prev_state: u32, next: &Task<'a>) -> Option<Decoded<'a>> {
    let kind = Kind::SchedSwitch {
        prev: prev.tid,
        next: next.tid,
        prev_prio: prev.prio?.try_into().ok()?,
        next_prio: next.prio?.try_into().ok()?,
        prev_state,
    };
    let tasks = [Some((prev.tid, prev.comm)), Some((next.tid, next.comm))];
    Some(Decoded { kind, tasks })
}

/// The name between the `start` of the text and the last `end`: a name may hold anything.
fn comm<'a>(text: &'a [u8], start: &[u8], end: &[u8]) -> Option<&'a [u8]> {
    let rest = text.strip_prefix(start)?;
    rest.get(..memchr::memmem::rfind(rest, end)?)
}

/// `migration/0:18 [0] R`.
fn plugin_task(text: &[u8]) -> Option<Task<'_>> {
    let bracket = memchr::memmem::rfind(text, b" [")?;
    let name = text.get(..bracket)?;
    let colon = memchr::memrchr(b':', name)?;
    let inner = text.get(bracket + 2..)?;
    let close = memchr::memchr(b']', inner)?;
    Some(Task {
        comm: name.get(..colon)?,
        tid: Tid(number(name.get(colon + 1..)?)?.try_into().ok()?),
        prio: number(inner.get(..close)?).and_then(|prio| prio.try_into().ok()),
        rest: inner.get(close + 1..)?.trim_ascii(),
    })
}

/// `S`, `R+`, `D|K`, or the number.
fn state(text: &[u8]) -> Option<u32> {
    let text = text.split(|byte| *byte == b' ').next()?;
    if text.first()?.is_ascii_digit() {
        return u32::try_from(number(text)?).ok();
    }
    let mut letters = text.iter().filter(|letter| **letter != b'|');
    letters.try_fold(0, |bits, letter| {
        let known = STATES.iter().find(|(state, _)| state == letter);
        match (known, letter) {
            (Some((_, bit)), _) => Some(bits | bit),
            (None, b'+') => Some(bits | PREEMPTED),
            _ => None,
        }
    })
}

/// `migration/0:18 [0] CPU:000`, with `success=1` before the CPU in older versions. What the kernel
/// prints is read by the table.
pub(super) fn plugin_wakeup<'a>(event: &[u8], body: &'a [u8]) -> Option<Decoded<'a>> {
    if body.starts_with(b"comm=") {
        return None;
    }
    let Task {
        comm,
        tid,
        prio,
        rest,
    } = plugin_task(body)?;
    let (prio, target_cpu) = (prio?, int(rest, "CPU")?);
    let kind = match event {
        b"sched_waking" => Kind::SchedWaking {
            tid,
            prio,
            target_cpu,
        },
        b"sched_wakeup" => Kind::SchedWakeup {
            tid,
            prio,
            target_cpu,
        },
        _ => Kind::SchedWakeupNew {
            tid,
            prio,
            target_cpu,
        },
    };
    let tasks = [Some((tid, comm)), None];
    Some(Decoded { kind, tasks })
}

/// `comm=a pid=5 child_comm=b child_pid=6`, or with the fields' own names `parent_comm=a
/// parent_pid=5 …`.
pub(super) fn fork(body: &[u8]) -> Option<Decoded<'_>> {
    let split = memchr::memmem::rfind(body, b" child_comm=")?;
    let (parent, child) = (body.get(..split)?, body.get(split + 1..)?);
    let parent_comm = comm(parent, b"comm=", b" pid=");
    let (parent_comm, key) = match parent_comm {
        Some(parent_comm) => (parent_comm, "pid"),
        None => (
            comm(parent, b"parent_comm=", b" parent_pid=")?,
            "parent_pid",
        ),
    };
    let child_comm = comm(child, b"child_comm=", b" child_pid=")?;
    let (parent, child) = (
        Tid(int_last(parent, key)?),
        Tid(int_last(child, "child_pid")?),
    );
    let kind = Kind::SchedProcessFork { parent, child };
    let tasks = [Some((parent, parent_comm)), Some((child, child_comm))];
    Some(Decoded { kind, tasks })
}
