//! A quota that runs out and comes back: cases read from `throttle_cfs_rq_work`,
//! `dequeue_entities`, `tg_unthrottle_up` and `unthrottle_cfs_rq` of kernel/sched/fair.c in Linux
//! 7.2.13.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use stealtime_hypervisor::fair::{
    Attr, Block, Config, Error, Fair, GroupId, PickMode, Resched, RqId, TaskId, TaskState,
};

/// A CPU with a task alone two groups deep, which runs, and one in the root group.
fn host() -> (Fair, RqId, [GroupId; 2], [TaskId; 2]) {
    let mut fair = Fair::new(Config::linux_7_2(8)).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    let outer = fair.create_group(None).unwrap();
    let inner = fair.create_group(Some(outer)).unwrap();
    fair.extend_group(inner, rq).unwrap();
    let limited = fair.create_task(Attr::default(), Some(inner)).unwrap();
    let other = fair.create_task(Attr::default(), None).unwrap();
    fair.fork(limited, rq, 0).unwrap();
    assert_eq!(fair.pick(rq, 0).unwrap().task, Some(limited));
    fair.fork(other, rq, 0).unwrap();
    (fair, rq, [outer, inner], [limited, other])
}

/// `DEQUEUE_THROTTLE` stays set on the way up, unlike `DEQUEUE_SPECIAL`: an entity in debt is
/// delayed by neither a task's level nor a group's.
#[test]
fn nothing_is_delayed_on_any_level_and_groups_leave_with_their_lag() {
    let mut lags = Vec::new();
    for how in [Block::Special, Block::Throttle] {
        let (mut fair, rq, [outer, inner], [limited, _]) = host();
        // The group has had 2 ms more than its share.
        fair.block(rq, how, 2_000_000).unwrap();
        let of = |fair: &Fair, group| fair.group_entity(rq, group).unwrap();
        let delayed = of(&fair, outer).delayed;
        assert_eq!(delayed, how == Block::Special, "{how:?}: the outer group");
        assert!(
            !of(&fair, inner).delayed,
            "alone in its queue, without debt"
        );
        assert_eq!(of(&fair, outer).on_rq, delayed);
        let root = fair.queue(rq, None).unwrap();
        assert_eq!(root.nr_queued, if delayed { 2 } else { 1 }, "{how:?}");
        lags.push(of(&fair, outer).vlag);
        let state = fair.view(limited).unwrap().state;
        assert_eq!(state == TaskState::Throttled, how == Block::Throttle);
    }
    assert_eq!(lags, [-1_000_000; 2], "half of what it had");
}

/// What a delayed group's lag comes to depends on how long it waits; a throttled one keeps it.
#[test]
fn a_group_comes_back_with_the_lag_it_left_with() {
    let (mut fair, rq, [outer, _], [limited, other]) = host();
    fair.block(rq, Block::Throttle, 2_000_000).unwrap();
    assert_eq!(fair.pick(rq, 2_000_000).unwrap().task, Some(other));
    fair.tick(rq, 90_000_000).unwrap();
    fair.unthrottle(limited, 90_000_000).unwrap();
    let v = fair.queue(rq, None).unwrap().avg_vruntime;
    let back = fair.group_entity(rq, outer).unwrap();
    assert_eq!(v.wrapping_sub(back.vruntime) as i64, -1_000_000);
    assert_eq!(back.deadline.wrapping_sub(back.vruntime), 2_800_000);
}

/// `tg_unthrottle_up` enqueues without `wakeup_preempt`; `unthrottle_cfs_rq` asks an idle CPU.
#[test]
fn only_an_idle_cpu_reschedules_for_what_comes_back() {
    let mut seen = Vec::new();
    for wakes in [true, false] {
        let (mut fair, rq, _, [limited, other]) = host();
        let how = if wakes {
            Block::Special
        } else {
            Block::Throttle
        };
        fair.block(rq, how, 100_000).unwrap();
        fair.pick(rq, 100_000).unwrap();
        // The other one has run for long, has left its protection behind and is not eligible.
        fair.account(rq, 8_000_000).unwrap();
        fair.pick(rq, 8_000_000).unwrap();
        let actions = match wakes {
            true => fair.wake(limited, rq, 8_000_000),
            false => fair.unthrottle(limited, 8_000_000),
        };
        seen.push(actions.unwrap().resched);
        assert_eq!(fair.running(rq).unwrap(), Some(other));
    }
    assert_eq!(seen, [Resched::Lazy, Resched::None]);
    let (mut fair, rq, _, [limited, _]) = host();
    fair.block(rq, Block::Throttle, 0).unwrap();
    fair.pick(rq, 0).unwrap();
    fair.block(rq, Block::Sleep, 0).unwrap();
    assert_eq!(fair.pick(rq, 0).unwrap().task, None);
    let actions = fair.unthrottle(limited, 1_000).unwrap();
    assert_eq!(actions.resched, Resched::Now);
    assert_eq!(fair.pick(rq, 1_000).unwrap().task, Some(limited));
}

#[test]
fn a_throttled_task_is_neither_asleep_nor_queued() {
    let (mut fair, rq, _, [limited, other]) = host();
    assert_eq!(fair.unthrottle(other, 0), Err(Error::NotThrottled(other)));
    fair.block(rq, Block::Throttle, 0).unwrap();
    assert_eq!(fair.unthrottle(limited, 0), Err(Error::PickDue(rq)));
    fair.pick(rq, 0).unwrap();
    assert_eq!(fair.wake(limited, rq, 0), Err(Error::NotAsleep(limited)));
    assert_eq!(fair.detach(limited, 0), Err(Error::NotQueued(limited)));
    fair.set_nice(limited, 5, 0).unwrap();
    assert_eq!(fair.pending(rq).unwrap().resched, Resched::None);
    fair.unthrottle(limited, 0).unwrap();
    assert_eq!(fair.view(limited).unwrap().state, TaskState::Runnable);
    assert_eq!(fair.view(limited).unwrap().attr.nice, 5);
}
