//! CFS by its public face; that it decides as the kernel's functions do is in `golden/cfs.rs`.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use stealtime_hypervisor::fair::{
    Attr, Block, Cfs, Config, Error, Fair, Feature, GroupId, PickMode, Policy, Preempt, Resched,
    RqId, TaskId,
};

fn config(cpus: u32) -> Config {
    let mut config = Config::linux_7_2(cpus);
    config.preempt = Preempt::Full;
    config.cfs = Some(Cfs::linux_6_1(cpus));
    config
}

#[test]
fn tunables_scale_with_the_logarithm_of_the_cpus() {
    let of = |cpus| {
        let cfs = Cfs::linux_6_1(cpus);
        (
            cfs.latency_ns,
            cfs.min_granularity_ns,
            cfs.wakeup_granularity_ns,
        )
    };
    assert_eq!(of(0), of(1));
    assert_eq!(of(1), (6_000_000, 750_000, 1_000_000));
    assert_eq!(of(3), (12_000_000, 1_500_000, 2_000_000));
    assert_eq!(of(64), (24_000_000, 3_000_000, 4_000_000));
}

#[test]
fn what_is_of_eevdf_is_refused() {
    let mut fair = Fair::new(config(2)).unwrap();
    let flat = fair.create_rq(PickMode::Flat);
    assert_eq!(flat, Err(Error::NotWithCfs("flat picking")));
    let mut credits = config(2);
    credits.features = credits.features.with(Feature::YieldToLagCredit);
    let refused = Fair::new(credits).err();
    assert_eq!(refused, Some(Error::NotWithCfs("YIELD_TO_LAG_CREDIT")));
    let mut short = config(2);
    short.cfs = Some(Cfs {
        min_granularity_ns: 99_999,
        ..Cfs::linux_6_1(2)
    });
    let said = Fair::new(short).err().map(|error| format!("{error}"));
    let said = said.unwrap_or_default();
    assert!(said.starts_with("min_granularity_ns = 99999"), "{said}");
}

/// With three at work on one CPU each runs for a third of the latency, to the next tick.
#[test]
fn ticks_end_a_task_that_has_had_its_part_of_the_latency() {
    let mut fair = Fair::new(config(1)).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    for _ in 0..3 {
        let task = fair.create_task(Attr::default(), None).unwrap();
        fair.fork(task, rq, 0).unwrap();
    }
    let mut now = 0;
    let mut last = fair.pick(rq, now).unwrap().task;
    let mut runs = Vec::new();
    let mut since = now;
    for _ in 0..300 {
        now += 1_000_000;
        if fair.tick(rq, now).unwrap().resched == Resched::Now {
            let picked = fair.pick(rq, now).unwrap().task;
            if picked != last {
                runs.push(now - since);
                (last, since) = (picked, now);
            }
        }
    }
    // 2 ms of 6, which at a tick of 1 ms have passed at the third.
    assert!(runs.len() > 80, "{runs:?}");
    assert!(
        runs.iter()
            .skip(3)
            .all(|&ns| ns == 3_000_000 || ns == 2_000_000),
        "{runs:?}"
    );
}

/// `sched_slice`: idle tasks alone on a queue have the granularity of others, here 3 ms. Of two in a group
/// next to nine tasks, each has a twentieth of the period of 33 ms.
#[test]
fn idle_tasks_alone_on_a_queue_run_for_the_granularity_of_others() {
    let mut fair = Fair::new(config(8)).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    let group = fair.create_group(None).unwrap();
    fair.extend_group(group, rq).unwrap();
    let idle = Attr {
        policy: Policy::Idle,
        ..Attr::default()
    };
    let mut fork = |attr, group| {
        let task = fair.create_task(attr, group).unwrap();
        fair.fork(task, rq, 0).unwrap();
        task
    };
    let first = fork(idle, Some(group));
    fork(idle, Some(group));
    for _ in 0..9 {
        fork(Attr::default(), None);
    }
    let mut last = fair.pick(rq, 0).unwrap().task;
    let (mut since, mut runs) = (0, Vec::new());
    for now in (1..2_000).map(|ms| ms * 1_000_000) {
        if fair.tick(rq, now).unwrap().resched == Resched::Now {
            let picked = fair.pick(rq, now).unwrap().task;
            if picked != last {
                runs.extend((last == Some(first)).then_some(now - since));
                (last, since) = (picked, now);
            }
        }
    }
    assert_eq!(runs.iter().min(), Some(&3_000_000), "{runs:?}");
}

/// A task that wakes is placed up to half a latency ahead of the others. It preempts if that is more than
/// the granularity.
#[test]
fn sleepers_preempt_but_not_after_a_short_sleep() {
    let preempts = |slept_ns: u64| {
        let mut fair = Fair::new(config(2)).unwrap();
        let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
        let new = |fair: &mut Fair| fair.create_task(Attr::default(), None).unwrap();
        let (sleeper, busy) = (new(&mut fair), new(&mut fair));
        fair.fork(sleeper, rq, 0).unwrap();
        fair.pick(rq, 0).unwrap();
        fair.fork(busy, rq, 0).unwrap();
        // It runs until it has caught up with the task that starts a slice later.
        fair.block(rq, Block::Sleep, 6_000_000).unwrap();
        fair.pick(rq, 6_000_000).unwrap();
        let at = 6_000_000 + slept_ns;
        fair.wake(sleeper, rq, at).unwrap().resched == Resched::Now
    };
    assert!(!preempts(1_000_000));
    assert!(preempts(20_000_000));
}

/// `check_preempt_tick`: a task is preempted once it has run for more than its part. That is half of 6 ms by
/// the inverse weight `(2^32 - 1) / 2048`: `6000000 * 1024 * 2097151 >> 32`.
#[test]
fn a_part_of_the_latency_may_be_used_up() {
    for (ran_ns, resched) in [(2_999_998, Resched::None), (2_999_999, Resched::Now)] {
        let mut fair = Fair::new(config(1)).unwrap();
        let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
        let tasks = [(); 2].map(|()| fair.create_task(Attr::default(), None).unwrap());
        fair.fork(tasks[0], rq, 0).unwrap();
        fair.pick(rq, 0).unwrap();
        fair.fork(tasks[1], rq, 0).unwrap();
        assert_eq!(fair.pending(rq).unwrap().resched, Resched::None);
        assert_eq!(fair.tick(rq, ran_ns).unwrap().resched, resched, "{ran_ns}");
    }
}

/// `__sched_period`: a latency of 10 ms holds for up to 4 tasks of 3 ms each, beyond which the period grows.
/// A task of nice -5 next to others has 3121 parts of 6193 in it, or of 7217: by the inverse weights 693519
/// and 595118, `period * 3121 * inverse >> 32`.
#[test]
fn the_latency_holds_for_the_tasks_that_begin_within_it() {
    for (others, part_ns) in [(3, 5_039_555), (4, 6_486_766)] {
        for (ran_ns, resched) in [(part_ns, Resched::None), (part_ns + 1, Resched::Now)] {
            let mut config = config(1);
            config.cfs = Some(Cfs {
                latency_ns: 10_000_000,
                min_granularity_ns: 3_000_000,
                ..Cfs::linux_6_1(1)
            });
            let mut fair = Fair::new(config).unwrap();
            let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
            let mut fork = |nice| {
                let attr = Attr {
                    nice,
                    ..Attr::default()
                };
                let task = fair.create_task(attr, None).unwrap();
                fair.fork(task, rq, 0).unwrap();
                if nice != 0 {
                    fair.pick(rq, 0).unwrap();
                }
            };
            fork(-5);
            (0..others).for_each(|_| fork(0));
            assert_eq!(fair.tick(rq, ran_ns).unwrap().resched, resched, "{ran_ns}");
        }
    }
}

/// Without `NEXT_BUDDY` a new task that preempts nothing is no buddy, however many there are.
#[test]
fn forks_nominate_no_buddy() {
    let mut fair = Fair::new(config(1)).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    for n in 0..20 {
        let task = fair.create_task(Attr::default(), None).unwrap();
        fair.fork(task, rq, 0).unwrap();
        if n == 0 {
            fair.pick(rq, 0).unwrap();
        }
        assert_eq!(fair.queue(rq, None).unwrap().next, None, "{n}");
    }
}

/// Two tasks of nice 0 on one CPU with a latency of 6 ms. One runs for 5 ms and sleeps, the other one until
/// it leads by `lead_ns`. It sleeps too, is woken and picked at once. Then the first one wakes, at
/// [`WOKEN_NS`] and the lead.
fn woken_behind(policy: Policy, lead_ns: u64) -> (Fair, RqId, Resched) {
    let mut fair = Fair::new(config(1)).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    let attr = Attr {
        policy,
        ..Attr::default()
    };
    let sleeper = fair.create_task(attr, None).unwrap();
    let leader = fair.create_task(Attr::default(), None).unwrap();
    fair.fork(sleeper, rq, 0).unwrap();
    fair.pick(rq, 0).unwrap();
    // It begins with the virtual runtime of the current task.
    fair.fork(leader, rq, 0).unwrap();
    fair.block(rq, Block::Sleep, 5_000_000).unwrap();
    assert_eq!(fair.pick(rq, 5_000_000).unwrap().task, Some(leader));
    let now_ns = WOKEN_NS + lead_ns;
    fair.block(rq, Block::Sleep, now_ns).unwrap();
    fair.pick(rq, now_ns).unwrap();
    fair.wake(leader, rq, now_ns).unwrap();
    assert_eq!(fair.pick(rq, now_ns).unwrap().task, Some(leader));
    let woken = fair.wake(sleeper, rq, now_ns).unwrap();
    (fair, rq, woken.resched)
}

/// When both tasks have run for 5 ms.
const WOKEN_NS: u64 = 10_000_000;

/// `check_preempt_tick`: a lead over the first one that waits preempts once it exceeds the slice. That is
/// half of 6 ms by an inverse weight that is rounded down: 2,999,998 ns.
#[test]
fn a_lead_of_more_than_a_slice_preempts_at_a_tick() {
    for (ran_ns, resched) in [(1_000_000, Resched::None), (1_000_001, Resched::Now)] {
        let (mut fair, rq, woken) = woken_behind(Policy::Batch, 1_999_998);
        assert_eq!(woken, Resched::None, "batch tasks preempt none");
        let tick = fair.tick(rq, WOKEN_NS + 1_999_998 + ran_ns).unwrap();
        assert_eq!(tick.resched, resched, "{ran_ns}");
    }
}

/// It does not before the task has run for `min_granularity_ns`. The sleeper is placed half a latency behind.
#[test]
fn a_lead_does_not_preempt_before_the_granularity() {
    for (ran_ns, resched) in [(749_999, Resched::None), (750_000, Resched::Now)] {
        let (mut fair, rq, _) = woken_behind(Policy::Batch, 8_000_000);
        let tick = fair.tick(rq, WOKEN_NS + 8_000_000 + ran_ns).unwrap();
        assert_eq!(tick.resched, resched, "{ran_ns}");
    }
}

/// `wakeup_preempt_entity`: a waking task preempts if it is behind by more than the granularity, 1 ms.
#[test]
fn a_waking_task_preempts_beyond_the_wakeup_granularity() {
    for (lead_ns, resched) in [(1_000_000, Resched::None), (1_000_001, Resched::Now)] {
        assert_eq!(
            woken_behind(Policy::Normal, lead_ns).2,
            resched,
            "{lead_ns}"
        );
    }
}

/// Eight tasks take turns on one CPU, in a group or in none, and another one preempts the current task.
/// The result is that task, and the one that is picked when the other one sleeps again.
fn picked_after_preemption(is_grouped: bool) -> (Option<TaskId>, Option<TaskId>) {
    let mut fair = Fair::new(config(1)).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    let group = is_grouped.then(|| {
        let group = fair.create_group(None).unwrap();
        fair.extend_group(group, rq).unwrap();
        group
    });
    let short = fair.create_task(Attr::default(), None).unwrap();
    fair.fork(short, rq, 0).unwrap();
    fair.pick(rq, 0).unwrap();
    fair.block(rq, Block::Sleep, 10_000).unwrap();
    assert_eq!(fair.pick(rq, 10_000).unwrap().task, None);
    for _ in 0..8 {
        let task = fair.create_task(Attr::default(), group).unwrap();
        fair.fork(task, rq, 10_000).unwrap();
    }
    for ms in 1..=100 {
        fair.pick(rq, ms * 1_000_000).unwrap();
        let tick = fair.tick(rq, (ms + 1) * 1_000_000).unwrap();
        assert_eq!(tick.resched, Resched::Now, "each has more than its 750 us");
    }
    let preempted = fair.pick(rq, 101_000_000).unwrap().task;
    // It leads the next one, by less than the granularity.
    let woken = fair.wake(short, rq, 101_500_000).unwrap();
    assert_eq!(woken.resched, Resched::Now);
    assert_eq!(fair.pick(rq, 101_500_000).unwrap().task, Some(short));
    fair.block(rq, Block::Sleep, 101_510_000).unwrap();
    (preempted, fair.pick(rq, 101_510_000).unwrap().task)
}

/// `LAST_BUDDY`: the preempted task goes on if it is the entity that was compared with the waking one. For
/// a task in a group, that entity is its group's.
#[test]
fn a_preempted_task_goes_on_unless_its_group_was_preempted() {
    let (preempted, picked) = picked_after_preemption(false);
    assert_eq!(picked, preempted);
    let (preempted, picked) = picked_after_preemption(true);
    assert!(picked.is_some());
    assert_ne!(picked, preempted);
}

/// `NEXT_BUDDY`: a waking task that preempts nothing becomes the buddy of a queue with as many tasks as the
/// latency holds for, 8. A new task does not.
#[test]
fn waking_tasks_are_nominated_in_a_long_queue() {
    let attr = Attr {
        policy: Policy::Batch,
        ..Attr::default()
    };
    for (others, is_long) in [(6, false), (7, true)] {
        let mut config = config(1);
        config.features = config.features.with(Feature::NextBuddy);
        let mut fair = Fair::new(config).unwrap();
        let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
        let new = |fair: &mut Fair| {
            let task = fair.create_task(attr, None).unwrap();
            fair.fork(task, rq, 0).unwrap();
            task
        };
        let sleeper = new(&mut fair);
        fair.pick(rq, 0).unwrap();
        fair.block(rq, Block::Sleep, 0).unwrap();
        assert_eq!(fair.pick(rq, 0).unwrap().task, None);
        for _ in 0..others {
            new(&mut fair);
            fair.pick(rq, 0).unwrap();
        }
        assert_eq!(fair.queue(rq, None).unwrap().next, None);
        fair.wake(sleeper, rq, 0).unwrap();
        let nominated = fair.queue(rq, None).unwrap().next;
        assert_eq!(nominated.is_some(), is_long, "{others}");
        for _ in 0..3 {
            new(&mut fair);
            assert_eq!(fair.queue(rq, None).unwrap().next, nominated, "{others}");
        }
    }
}

/// A CPU with a group that is idle or not.
fn with_group(is_idle: bool) -> (Fair, RqId, GroupId) {
    let mut fair = Fair::new(config(1)).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    let group = fair.create_group(None).unwrap();
    fair.extend_group(group, rq).unwrap();
    fair.set_idle(group, is_idle, 0).unwrap();
    (fair, rq, group)
}

/// `check_preempt_wakeup`: an idle group does not preempt a task of another group, however far it is behind.
#[test]
fn an_idle_group_preempts_no_other_one() {
    for is_idle in [false, true] {
        let (mut fair, rq, group) = with_group(is_idle);
        let batch = Attr {
            policy: Policy::Batch,
            ..Attr::default()
        };
        let sleeper = fair.create_task(Attr::default(), Some(group)).unwrap();
        let running = fair.create_task(Attr::default(), None).unwrap();
        // A group that stays on the queue keeps its virtual time as its sleeper wakes.
        let waiting = fair.create_task(batch, Some(group)).unwrap();
        fair.fork(sleeper, rq, 0).unwrap();
        fair.pick(rq, 0).unwrap();
        fair.block(rq, Block::Sleep, 10_000).unwrap();
        fair.pick(rq, 10_000).unwrap();
        fair.fork(running, rq, 10_000).unwrap();
        assert_eq!(fair.pick(rq, 10_000).unwrap().task, Some(running));
        fair.fork(waiting, rq, 10_000).unwrap();
        assert_eq!(fair.pending(rq).unwrap().resched, Resched::None);
        // By the weight of an idle group, 3, the granularity of 1 ms is 341 ms of virtual time.
        let woken = fair.wake(sleeper, rq, 500_000_000).unwrap();
        assert_eq!(woken.resched == Resched::Now, !is_idle);
    }
}

/// A task that is not behind preempts an idle group, and no other one.
#[test]
fn an_idle_group_is_preempted_without_a_lead() {
    for is_idle in [false, true] {
        let (mut fair, rq, group) = with_group(is_idle);
        let sleeper = fair.create_task(Attr::default(), None).unwrap();
        fair.fork(sleeper, rq, 0).unwrap();
        fair.pick(rq, 0).unwrap();
        fair.block(rq, Block::Sleep, 1_000_000).unwrap();
        fair.pick(rq, 1_000_000).unwrap();
        // It is placed behind the virtual time of the sleeper.
        let running = fair.create_task(Attr::default(), Some(group)).unwrap();
        fair.fork(running, rq, 1_000_000).unwrap();
        assert_eq!(fair.pick(rq, 1_000_000).unwrap().task, Some(running));
        let woken = fair.wake(sleeper, rq, 1_000_000).unwrap();
        assert_eq!(woken.resched == Resched::Now, is_idle);
    }
}

/// `yield_task_fair` accounts the time of the yielder, except that of a batch task, which the pick accounts.
#[test]
fn a_yield_accounts_time_unless_by_a_batch_task() {
    for (policy, at_yield_ns) in [(Policy::Normal, 1_000_000), (Policy::Batch, 0)] {
        let mut fair = Fair::new(config(1)).unwrap();
        let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
        let attr = Attr {
            policy,
            ..Attr::default()
        };
        let [yielder, other] = [(); 2].map(|()| fair.create_task(attr, None).unwrap());
        fair.fork(yielder, rq, 0).unwrap();
        fair.pick(rq, 0).unwrap();
        fair.fork(other, rq, 0).unwrap();
        let vruntime = |fair: &Fair| fair.view(yielder).unwrap().entity.vruntime;
        let start = vruntime(&fair);
        let ran_ns = |fair: &Fair| vruntime(fair).wrapping_sub(start);
        fair.yield_task(rq, 1_000_000).unwrap();
        assert_eq!(ran_ns(&fair), at_yield_ns);
        fair.pick(rq, 1_000_000).unwrap();
        assert_eq!(ran_ns(&fair), 1_000_000);
    }
}

/// `set_last_buddy`: an idle task that was preempted does not go on before others, though it leads them by
/// less than the granularity.
#[test]
fn an_idle_task_that_was_preempted_is_no_buddy() {
    let mut fair = Fair::new(config(1)).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    let new = |fair: &mut Fair, policy, now_ns| {
        let attr = Attr {
            policy,
            ..Attr::default()
        };
        let task = fair.create_task(attr, None).unwrap();
        fair.fork(task, rq, now_ns).unwrap();
        task
    };
    let short = new(&mut fair, Policy::Normal, 0);
    fair.pick(rq, 0).unwrap();
    fair.block(rq, Block::Sleep, 10_000).unwrap();
    fair.pick(rq, 10_000).unwrap();
    let mut now_ns = 1_000_000;
    let idle = new(&mut fair, Policy::Idle, now_ns);
    fair.pick(rq, now_ns).unwrap();
    // They begin at its virtual time, and run for a tick each before it does.
    let others = [(); 8].map(|()| new(&mut fair, Policy::Normal, now_ns));
    for _ in others {
        let picked = fair.pick(rq, now_ns).unwrap().task;
        assert!(picked.is_some_and(|picked| others.contains(&picked)));
        now_ns += 1_000_000;
        fair.tick(rq, now_ns).unwrap();
    }
    assert_eq!(fair.pick(rq, now_ns).unwrap().task, Some(idle));
    // By its weight of 3, that is 1.37 ms of virtual time: 0.37 ms more than the others have had.
    now_ns += 4_000;
    let woken = fair.wake(short, rq, now_ns).unwrap();
    assert_eq!(woken.resched, Resched::Now);
    assert_eq!(fair.pick(rq, now_ns).unwrap().task, Some(short));
    fair.block(rq, Block::Sleep, now_ns).unwrap();
    let picked = fair.pick(rq, now_ns).unwrap().task;
    assert!(picked.is_some_and(|picked| others.contains(&picked)));
}
