//! Changes to the attributes of a task: off its queue, and on it again (`sched_change_begin`,
//! `sched_change_end`).

use super::error::Error;
use super::ids::{Ent, GroupId, Que};
use super::rq::Resched;
use super::sched::{Dequeue, Enqueue, Sched};
use super::sched_entity::{Attr, Policy};
use super::task::Arrival;
use super::weights::{SLICE_MAX_NS, SLICE_MIN_NS};

/// `struct sched_change_ctx`: the state of a task before a change.
struct SchedChange {
    queued: bool,
    running: bool,
    prio: i8,
}

impl SchedChange {
    /// `sched_change_begin`: takes a task off its queue and its CPU. `moves`: its virtual runtime
    /// or priority may change (`DEQUEUE_MOVE`).
    fn begin(sched: &mut Sched, e: Ent, moves: bool) -> Self {
        let change = Self {
            queued: sched.tree[e].on_rq(),
            running: sched.is_running(e),
            prio: sched.tree[e].prio(),
        };
        if change.queued {
            let flags = Dequeue {
                saves: !moves,
                ..Dequeue::default()
            };
            sched.dequeue_task(e, flags);
        }
        if change.running {
            sched.put_prev(e, Que::NONE);
        }
        change
    }

    /// `sched_change_end`, without its check for a preemption.
    fn end(&self, sched: &mut Sched, e: Ent) {
        debug_assert!(!sched.tree[e].on_rq(), "the change has dequeued it");
        if self.queued {
            sched.enqueue_task(e, Enqueue::default());
        }
        if self.running {
            sched.set_next(e, false);
        }
    }

    /// `prio_changed_fair`.
    fn prio_changed(&self, sched: &mut Sched, e: Ent) {
        if !self.queued {
            return;
        }
        let (rq, prio) = (sched.tree[e].rq(), sched.tree[e].prio());
        let root = sched.rqs[rq].root();
        if sched.tree[root].members() == 1 {
            return;
        }
        if !self.running {
            sched.wakeup_preempt(rq, e, Arrival::PLAIN);
        } else if prio > self.prio {
            sched.resched_curr(rq, Resched::Now);
        }
    }
}

/// `set_load_weight`, of a task that is off its queue.
fn set_load_weight(sched: &mut Sched, e: Ent) {
    let attr = Attr {
        policy: sched.tree[e].policy(),
        nice: sched.tree[e].nice(),
        slice_ns: None,
    };
    sched.tree.set_load(e, attr.weight());
    // Under flat picking the enqueue that follows computes the share of the tree.
    let rq = sched.tree[e].rq();
    if sched.tree[e].is_new() || !sched.is_flat(rq) {
        sched.rescale_entity(e, attr.weight(), false);
    }
}

/// Checks a change to `e` and sets the clock of its run queue, if it is on one.
pub(super) fn check(sched: &mut Sched, e: Ent, now_ns: u64) -> Result<(), Error> {
    let rq = sched.tree[e].rq();
    if sched.tree[e].is_new() || !(sched.tree[e].on_rq() || sched.is_running(e)) {
        return Ok(());
    }
    sched.begin(rq, now_ns)
}

/// `set_user_nice`. Nothing happens if it is equal.
pub(super) fn set_user_nice(sched: &mut Sched, e: Ent, nice: i8) {
    if nice == sched.tree[e].nice() {
        return;
    }
    let change = SchedChange::begin(sched, e, false);
    let ent = &mut sched.tree[e];
    ent.set_nice(nice);
    set_load_weight(sched, e);
    change.end(sched, e);
    if sched.cfg.rules().set_nice_always_checks || nice != change.prio {
        change.prio_changed(sched, e);
    }
}

/// `__sched_setscheduler`, with a slice of 0 for the base slice. False if nothing differs.
pub(super) fn sched_setattr(
    sched: &mut Sched,
    e: Ent,
    policy: Policy,
    nice: i8,
    runtime_ns: u64,
) -> bool {
    let (ent, slices) = (&sched.tree[e], sched.cfg.rules().custom_slices);
    let same_slice = !slices || runtime_ns == u64::from(ent.slice());
    let same_rest = policy == Policy::Idle || (nice == ent.nice() && same_slice);
    if policy == ent.policy() && same_rest {
        return false;
    }
    // Without another priority nothing moves (`DEQUEUE_MOVE`).
    let moves = nice != ent.prio();
    let change = SchedChange::begin(sched, e, moves);
    let base = sched.cfg.base_slice_ns;
    let ent = &mut sched.tree[e];
    ent.set_policy(policy, nice);
    if policy != Policy::Idle {
        ent.set_nice(nice);
        let requested = (runtime_ns != 0 && slices).then_some(runtime_ns);
        let clamped = requested.map(|ns| ns.clamp(SLICE_MIN_NS, SLICE_MAX_NS));
        ent.request_slice(clamped, base);
    }
    set_load_weight(sched, e);
    change.end(sched, e);
    if nice != change.prio {
        change.prio_changed(sched, e);
    }
    true
}

/// `do_set_cpus_allowed`, of a task that stays on its CPU.
pub(super) fn set_cpus_allowed(sched: &mut Sched, e: Ent) {
    let change = SchedChange::begin(sched, e, false);
    change.end(sched, e);
}

/// `sched_move_task`.
pub(super) fn sched_move_task(
    sched: &mut Sched,
    e: Ent,
    group: Option<GroupId>,
    now_ns: u64,
) -> Result<(), Error> {
    let rq = sched.tree[e].rq();
    let on_cpu = sched.tree[e].on_rq() || sched.is_running(e);
    if on_cpu {
        sched.group_cfs_rq(group, rq)?;
    }
    check(sched, e, now_ns)?;
    let old = sched.tree[e].group();
    if group == old {
        return Ok(());
    }
    let change = SchedChange::begin(sched, e, true);
    sched.groups.remove_task(old);
    sched.groups.add_task(group);
    let sleeps = sched.detach_sleeper(e);
    sched.tree[e].set_group(group);
    sched.clear_task_rq(e);
    if on_cpu {
        sched.set_task_rq(e, rq)?;
    } else if sleeps && sched.group_cfs_rq(group, rq).is_ok() {
        sched.set_task_rq(e, rq)?;
        sched.attach_sleeper(e);
    }
    change.end(sched, e);
    if change.running {
        sched.resched_curr(rq, Resched::Now);
    } else if change.queued && sched.cfg.rules().move_checks_preempt {
        sched.wakeup_preempt(rq, e, Arrival::PLAIN);
    }
    Ok(())
}
