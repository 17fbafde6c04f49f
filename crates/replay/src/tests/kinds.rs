//! What events of the scheduler say, as tests have them.

use stealtime_events::{Kind, Tid};

const PRIO: i16 = 120;

/// A switch to a task that has the usual priority.
pub(crate) fn switch(prev: i32, next: i32, prev_state: u32) -> Kind {
    switch_at(prev, next, prev_state, PRIO)
}

/// A switch to a task of this priority.
pub(crate) fn switch_at(prev: i32, next: i32, prev_state: u32, next_prio: i16) -> Kind {
    Kind::SchedSwitch {
        prev: Tid(prev),
        next: Tid(next),
        prev_prio: PRIO,
        next_prio,
        prev_state,
    }
}

/// A task is about to be woken for a CPU.
pub(crate) fn waking(tid: i32, target_cpu: u32) -> Kind {
    let (tid, prio) = (Tid(tid), PRIO.into());
    Kind::SchedWaking {
        tid,
        prio,
        target_cpu,
    }
}

/// It is woken.
pub(crate) fn wakeup(tid: i32, target_cpu: u32) -> Kind {
    let (tid, prio) = (Tid(tid), PRIO.into());
    Kind::SchedWakeup {
        tid,
        prio,
        target_cpu,
    }
}
