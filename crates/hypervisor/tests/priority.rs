//! `p->prio` and `static_prio` are two values: cases read from `__sched_setscheduler`,
//! `set_user_nice` (kernel/sched/syscalls.c), `sched_change_begin` (core.c) and `prio_changed_fair`
//! (fair.c) of Linux 7.2.13, and from the same functions of 6.1.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use stealtime_hypervisor::fair::{
    Attr, Block, Cfs, Config, Fair, PickMode, Policy, Preempt, Resched, RqId, TaskId,
};

/// One CPU and two tasks of nice 0, first the one that runs; nothing is requested.
fn host(config: Config) -> (Fair, RqId, [TaskId; 2]) {
    let mut fair = Fair::new(config).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    let mut tasks = [0; 2].map(|_| {
        let task = fair.create_task(Attr::default(), None).unwrap();
        fair.fork(task, rq, 0).unwrap();
        task
    });
    fair.pick(rq, 0).unwrap();
    if fair.running(rq).unwrap() == Some(tasks[1]) {
        tasks.reverse();
    }
    assert_eq!(resched(&fair, rq), Resched::None);
    (fair, rq, tasks)
}

/// With CFS as in 6.1 if `cfs`.
fn config(cfs: bool) -> Config {
    let mut config = Config::linux_7_2(2);
    if cfs {
        config.preempt = Preempt::Full;
        config.cfs = Some(Cfs::linux_6_1(2));
    }
    config
}

fn set_attr(fair: &mut Fair, task: TaskId, policy: Policy, nice: i8) {
    set_attr_at(fair, task, policy, nice, 0);
}

fn set_attr_at(fair: &mut Fair, task: TaskId, policy: Policy, nice: i8, now_ns: u64) {
    let attr = Attr {
        policy,
        nice,
        slice_ns: None,
    };
    assert!(fair.set_attr(task, attr, now_ns).unwrap());
}

fn resched(fair: &Fair, rq: RqId) -> Resched {
    fair.pending(rq).unwrap().resched
}

/// Idle policy with nice 5: `prio` is 125, `static_prio` stays 120. Back to normal with nice 5:
/// `prio` was 125 and is 125, so nothing is requested, although nice goes from 0 to 5.
#[test]
fn back_from_idle_with_the_same_priority_nothing_is_requested() {
    for cfs in [false, true] {
        let (mut fair, rq, [running, _]) = host(config(cfs));
        set_attr(&mut fair, running, Policy::Idle, 5);
        assert_eq!(resched(&fair, rq), Resched::Now, "CFS {cfs}: lowered");
        assert_eq!(fair.view(running).unwrap().attr.nice, 0, "CFS {cfs}");
        let mut now = 0;
        while fair.pick(rq, now).unwrap().task != Some(running) {
            now += 4_000_000;
            fair.tick(rq, now).unwrap();
        }
        set_attr_at(&mut fair, running, Policy::Normal, 5, now);
        assert_eq!(resched(&fair, rq), Resched::None, "CFS {cfs}: as it was");
        assert_eq!(fair.view(running).unwrap().attr.nice, 5, "CFS {cfs}");
    }
}

/// The other way round: nice stays 0, but the priority goes from that of nice -5 to that of nice 0.
#[test]
fn back_from_idle_to_its_nice_value_the_priority_may_fall() {
    let (mut fair, rq, [running, _]) = host(config(false));
    set_attr(&mut fair, running, Policy::Idle, -5);
    assert_eq!(resched(&fair, rq), Resched::None, "raised: it runs on");
    set_attr(&mut fair, running, Policy::Normal, 0);
    assert_eq!(resched(&fair, rq), Resched::Now);
}

/// `set_user_nice` compares with the remembered priority too, and sets both.
#[test]
fn nice_of_an_idle_task_is_compared_with_its_priority() {
    let (mut fair, rq, [running, _]) = host(config(false));
    set_attr(&mut fair, running, Policy::Idle, -5);
    fair.set_nice(running, -1, 0).unwrap();
    assert_eq!(resched(&fair, rq), Resched::Now, "-5 to -1");
}

/// 6.1 compares policy and nice: a slice alone is no change, and none is kept.
#[test]
fn cfs_has_no_slices_to_change() {
    let (mut fair, rq, tasks) = host(config(true));
    for task in tasks {
        for slice_ns in [None, Some(100_000), Some(3_000_000)] {
            let before = fair.view(task).unwrap();
            let attr = Attr {
                slice_ns,
                ..Attr::default()
            };
            assert!(!fair.set_attr(task, attr, 0).unwrap(), "{slice_ns:?}");
            assert_eq!(fair.view(task).unwrap(), before);
        }
        let attr = Attr {
            policy: Policy::Batch,
            nice: 0,
            slice_ns: Some(100_000),
        };
        assert!(fair.set_attr(task, attr, 0).unwrap());
        assert_eq!(fair.view(task).unwrap().attr.slice_ns, None);
    }
    assert_eq!(resched(&fair, rq), Resched::None);
}

/// `DEQUEUE_SAVE` alone leaves `min_vruntime`; with another priority `DEQUEUE_MOVE` comes with it,
/// and `update_min_vruntime` runs while the task is off.
#[test]
fn cfs_moves_min_vruntime_only_with_another_priority() {
    let least = |policy, nice| {
        let (mut fair, rq, [running, waiting]) = host(config(true));
        // The waiting one is what holds the base back.
        fair.account(rq, 40_000_000).unwrap();
        let before = fair.queue(rq, None).unwrap().zero_vruntime;
        let ahead = fair.view(running).unwrap().entity.vruntime;
        assert_eq!(before, fair.view(waiting).unwrap().entity.vruntime);
        let attr = Attr {
            policy,
            nice,
            slice_ns: None,
        };
        assert!(fair.set_attr(waiting, attr, 40_000_000).unwrap());
        let after = fair.queue(rq, None).unwrap().zero_vruntime;
        (after.wrapping_sub(before), ahead.wrapping_sub(before))
    };
    assert_eq!(least(Policy::Batch, 0).0, 0, "the same priority");
    let (moved, ahead) = least(Policy::Normal, 1);
    assert!(ahead > 0);
    assert_eq!(moved, ahead, "as far as the one that still is there");
}

/// In 6.1 `sched_move_task` asks the running task to reschedule, but checks no preemption by a
/// task that waits; 7.2 checks both.
#[test]
fn a_waiting_task_that_moves_checks_preemption_in_7_2_only() {
    for cfs in [false, true] {
        let (mut fair, rq, [running, waiting]) = host(config(cfs));
        let group = fair.create_group(None).unwrap();
        fair.extend_group(group, rq).unwrap();
        set_attr(&mut fair, running, Policy::Idle, 0);
        assert_eq!(resched(&fair, rq), Resched::None);
        fair.move_task(waiting, Some(group), 0).unwrap();
        assert_eq!(resched(&fair, rq) == Resched::None, cfs, "CFS {cfs}");
    }
}

/// A sleeper of 6.1 that changes its group takes the new queue's base at that moment
/// (`detach_task_cfs_rq`, `attach_task_cfs_rq`): what passes there until it wakes counts.
#[test]
fn a_sleeper_of_cfs_changes_its_base_as_it_moves() {
    let (mut fair, rq, [sleeper, other]) = host(config(true));
    let group = fair.create_group(None).unwrap();
    fair.extend_group(group, rq).unwrap();
    fair.block(rq, Block::Sleep, 1_000_000).unwrap();
    assert_eq!(fair.pick(rq, 1_000_000).unwrap().task, Some(other));
    fair.account(rq, 50_000_000).unwrap();
    let of = |fair: &Fair, group| fair.queue(rq, group).unwrap().zero_vruntime;
    fair.move_task(sleeper, Some(group), 50_000_000).unwrap();
    // Half a latency of 12 ms before the base of the old queue, and so of the new one.
    let placed = of(&fair, Some(group)).wrapping_sub(6_000_000);
    assert_eq!(fair.view(sleeper).unwrap().entity.vruntime, placed);
    assert_ne!(of(&fair, None), of(&fair, Some(group)));
}

/// `set_user_nice` of 6.1 checks after every change. A running task with an unchanged priority runs on: the
/// idle policy had lowered it to that of nice 5 already.
#[test]
fn cfs_asks_for_nothing_if_nice_catches_up_with_the_priority() {
    let (mut fair, rq, [running, _]) = host(config(true));
    set_attr(&mut fair, running, Policy::Idle, 5);
    let mut now = 0;
    while fair.pick(rq, now).unwrap().task != Some(running) {
        now += 4_000_000;
        fair.tick(rq, now).unwrap();
    }
    assert_eq!(resched(&fair, rq), Resched::None);
    fair.set_nice(running, 5, now).unwrap();
    assert_eq!(resched(&fair, rq), Resched::None, "5 to 5");
    fair.set_nice(running, 6, now).unwrap();
    assert_eq!(resched(&fair, rq), Resched::Now, "5 to 6");
}

/// The lag of the two is what one got too much and the other too little, and one alone has none.
#[test]
fn lag_is_time_due_less_time_received() {
    let (mut fair, rq, [running, waiting]) = host(config(false));
    fair.tick(rq, 1_000_000).unwrap();
    let lags = [running, waiting].map(|task| fair.lag_ns(task).unwrap());
    assert_eq!(lags, [-500_000, 500_000]);
    fair.block(rq, Block::Special, 1_000_000).unwrap();
    fair.pick(rq, 1_000_000).unwrap();
    fair.tick(rq, 2_000_000).unwrap();
    let lags = [running, waiting].map(|task| fair.lag_ns(task).unwrap());
    assert_eq!(lags, [0, 0]);
}

/// A task that is alone in its group has the lag of the group.
#[test]
fn lag_of_a_single_task_is_that_of_its_group() {
    let mut fair = Fair::new(config(false)).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    let group = fair.create_group(None).unwrap();
    fair.extend_group(group, rq).unwrap();
    let [alone, other] = [Some(group), None].map(|group| {
        let task = fair.create_task(Attr::default(), group).unwrap();
        fair.fork(task, rq, 0).unwrap();
        fair.pick(rq, 0).unwrap();
        task
    });
    assert_eq!(fair.running(rq), Ok(Some(alone)));
    fair.tick(rq, 1_000_000).unwrap();
    let lags = [alone, other].map(|task| fair.lag_ns(task).unwrap());
    assert_eq!(lags, [-500_000, 500_000]);
}
