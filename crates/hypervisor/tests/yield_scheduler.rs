//! Directed yield, the scheduler's half: what a sloppy implementation gets wrong, by the numbers of
//! the list that `docs/mechanisms.md` goes through. The KVM half is in `directed_yield`.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use stealtime_hypervisor::fair::{
    Attr, Block, Config, Fair, Feature, GroupId, Member, PickMode, RqId, TaskId, YieldTo,
};

fn config(credit: bool) -> Config {
    let config = Config::linux_7_2(16);
    let features = config.features;
    let with = features.with(Feature::YieldToLagCredit);
    Config {
        features: if credit { with } else { features },
        ..config
    }
}

/// One run queue with a task in each of `groups`; the first runs.
fn host(config: Config, groups: &[Option<GroupIndex>]) -> (Fair, RqId, Vec<TaskId>) {
    let mut fair = Fair::new(config).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    let count = groups.iter().flatten().map(|g| g + 1).max().unwrap_or(0);
    let ids: Vec<GroupId> = (0..count)
        .map(|_| {
            let group = fair.create_group(None).unwrap();
            fair.extend_group(group, rq).unwrap();
            group
        })
        .collect();
    let mut tasks = Vec::new();
    for group in groups {
        let task = fair
            .create_task(Attr::default(), group.map(|g| ids[g]))
            .unwrap();
        fair.fork(task, rq, 0).unwrap();
        if tasks.is_empty() {
            fair.pick(rq, 0).unwrap();
        }
        tasks.push(task);
    }
    (fair, rq, tasks)
}

type GroupIndex = usize;

/// Eligibility of a task and of its groups, lowest level first.
fn levels(fair: &Fair, task: TaskId) -> Vec<bool> {
    let mut levels = Vec::new();
    fair.eligibility(task, &mut |level| levels.push(level.eligible))
        .unwrap();
    levels
}

#[test]
fn yield_sloppy_05_to_a_running_task_nothing_happens() {
    let mut fair = Fair::new(config(true)).unwrap();
    let rqs = [0; 2].map(|_| fair.create_rq(PickMode::Hierarchical).unwrap());
    let mut tasks = Vec::new();
    for rq in [rqs[0], rqs[0], rqs[1], rqs[1]] {
        let task = fair.create_task(Attr::default(), None).unwrap();
        fair.fork(task, rq, 0).unwrap();
        tasks.push(task);
    }
    for rq in rqs {
        fair.pick(rq, 0).unwrap();
    }
    let running = fair.running(rqs[1]).unwrap().unwrap();
    let before: Vec<_> = tasks.iter().map(|t| fair.view(*t).unwrap()).collect();
    assert_eq!(
        fair.yield_to(rqs[0], running, 1_000_000),
        Ok(YieldTo::Refused)
    );
    let after: Vec<_> = tasks.iter().map(|t| fair.view(*t).unwrap()).collect();
    assert_eq!(before, after, "no forfeit, no buddy, no reschedule");
}

/// A target on no run queue is refused, whatever the time is on its last one.
#[test]
fn a_yield_to_a_sleeper_reads_no_other_clock() {
    let mut fair = Fair::new(config(true)).unwrap();
    let rqs = [0; 2].map(|_| fair.create_rq(PickMode::Hierarchical).unwrap());
    let [yielder, other, sleeper, new] =
        [0; 4].map(|_| fair.create_task(Attr::default(), None).unwrap());
    for (task, rq) in [(yielder, rqs[0]), (other, rqs[0]), (sleeper, rqs[1])] {
        fair.fork(task, rq, 0).unwrap();
    }
    for rq in rqs {
        fair.pick(rq, 0).unwrap();
    }
    fair.block(rqs[1], Block::Sleep, 5_000_000).unwrap();
    fair.pick(rqs[1], 5_000_000).unwrap();
    for target in [sleeper, new] {
        assert_eq!(
            fair.yield_to(rqs[0], target, 1_000_000),
            Ok(YieldTo::Refused)
        );
    }
    assert_eq!(fair.clock(rqs[1]), Ok(5_000_000));
}

#[test]
fn yield_sloppy_06_with_one_task_on_both_cpus_even_a_valid_target_is_refused() {
    let mut fair = Fair::new(config(true)).unwrap();
    let rqs = [0; 2].map(|_| fair.create_rq(PickMode::Hierarchical).unwrap());
    let tasks = rqs.map(|rq| {
        let task = fair.create_task(Attr::default(), None).unwrap();
        fair.fork(task, rq, 0).unwrap();
        task
    });
    // The target waits: its CPU has not picked yet.
    fair.pick(rqs[0], 0).unwrap();
    assert_eq!(
        fair.yield_to(rqs[0], tasks[1], 1_000_000),
        Ok(YieldTo::OnlyOne)
    );
}

#[test]
fn yield_sloppy_07_only_an_eligible_leaf_forfeits() {
    let mut seen = Vec::new();
    for runs_ns in [0, 2_000_000] {
        let (mut fair, rq, tasks) = host(config(false), &[Some(0), Some(0), None]);
        let yielder = fair.running(rq).unwrap().unwrap();
        let target = tasks[if yielder == tasks[0] { 1 } else { 0 }];
        fair.account(rq, runs_ns).unwrap();
        let eligible = levels(&fair, yielder)[0];
        seen.push(eligible);
        let group = fair.view(yielder).unwrap().group.unwrap();
        let (leaf, above) = (
            fair.view(yielder).unwrap().entity,
            fair.group_entity(rq, group).unwrap(),
        );
        fair.yield_to(rq, target, runs_ns).unwrap();
        let after = fair.view(yielder).unwrap().entity;
        let forfeited = if eligible {
            leaf.deadline
        } else {
            leaf.vruntime
        };
        assert_eq!(
            after.vruntime, forfeited,
            "after {runs_ns} ns, eligible: {eligible}"
        );
        assert_eq!(
            fair.group_entity(rq, group).unwrap().vruntime,
            above.vruntime,
            "not the group"
        );
    }
    assert_eq!(seen, [true, false], "both cases");
}

/// Before commit 79104becf42b: eligible or not, the deadline is put off, and nothing is given up.
#[test]
fn a_yielder_of_6_18_only_puts_its_deadline_off() {
    for runs_ns in [0, 2_000_000] {
        let old = Config {
            yield_forfeits: false,
            ..config(false)
        };
        let (mut fair, rq, tasks) = host(old, &[Some(0), Some(0), None]);
        let yielder = fair.running(rq).unwrap().unwrap();
        let target = tasks[if yielder == tasks[0] { 1 } else { 0 }];
        fair.account(rq, runs_ns).unwrap();
        let before = fair.view(yielder).unwrap().entity;
        fair.yield_to(rq, target, runs_ns).unwrap();
        let after = fair.view(yielder).unwrap().entity;
        assert_eq!(after.vruntime, before.vruntime);
        assert_eq!(after.deadline, before.deadline + 2_800_000);
    }
}

#[test]
fn yield_sloppy_08_an_ineligible_groups_buddy_is_dropped_without_credit_and_honoured_with_it() {
    for credit in [false, true] {
        let (mut fair, rq, tasks) = host(config(credit), &[Some(0), Some(0), None]);
        // The group uses the CPU up to the end of its slice. Then the task outside of it runs.
        fair.tick(rq, 4_000_000).unwrap();
        assert_eq!(fair.pick(rq, 4_000_000).unwrap().task, Some(tasks[2]));
        let target = tasks[1];
        assert_eq!(
            levels(&fair, target),
            [true, false],
            "the group is what is in the way"
        );
        fair.yield_to(rq, target, 4_100_000).unwrap();
        let root = fair.queue(rq, None).unwrap();
        let group = fair.view(target).unwrap().group.unwrap();
        assert_eq!(
            root.next,
            Some(Member::Group(group)),
            "it is the buddy in either case"
        );
        let picked = fair.pick(rq, 4_100_000).unwrap().task;
        assert_eq!(
            picked == Some(target),
            credit,
            "credit {credit}: {picked:?}"
        );
    }
}

#[test]
fn yield_sloppy_09_a_credit_is_idempotent_and_never_lowers_lag() {
    let (mut fair, rq, tasks) = host(config(true), &[Some(0), Some(1), None]);
    fair.tick(rq, 4_000_000).unwrap();
    fair.pick(rq, 4_000_000).unwrap();
    let yielder = fair.running(rq).unwrap().unwrap();
    let target = *tasks
        .iter()
        .find(|t| **t != yielder && levels(&fair, **t).contains(&false))
        .unwrap();
    let lag = |fair: &Fair| {
        let mut lags = Vec::new();
        fair.eligibility(target, &mut |level| lags.push(level.vlag))
            .unwrap();
        lags
    };
    let before = lag(&fair);
    let YieldTo::Yielded { credit, .. } = fair.yield_to(rq, target, 4_100_000).unwrap() else {
        panic!("refused")
    };
    assert!(credit.levels > 0);
    let first = lag(&fair);
    assert!(
        before.iter().zip(&first).all(|(b, f)| f >= b),
        "{before:?} {first:?}"
    );
    assert!(levels(&fair, target).iter().all(|eligible| *eligible));
    // Eligible everywhere now: a second hint at the same moment has nothing to give.
    let entity = fair.view(target).unwrap().entity;
    let YieldTo::Yielded { credit, .. } = fair.yield_to(rq, target, 4_100_000).unwrap() else {
        panic!("refused")
    };
    assert_eq!(credit.levels, 0);
    assert_eq!(fair.view(target).unwrap().entity, entity);
}

#[test]
fn yield_sloppy_10_the_6_ms_limit_is_per_run_queue_and_covers_only_the_forced_reschedule() {
    let mut fair = Fair::new(config(true)).unwrap();
    let rqs = [0; 2].map(|_| fair.create_rq(PickMode::Hierarchical).unwrap());
    let pairs = rqs.map(|rq| {
        let pair = [0; 2].map(|_| {
            let task = fair.create_task(Attr::default(), None).unwrap();
            fair.fork(task, rq, 0).unwrap();
            task
        });
        fair.pick(rq, 0).unwrap();
        pair
    });
    let mut hint = |which: usize, now: u64| {
        let rq = rqs[which];
        let running = fair.running(rq).unwrap().unwrap();
        let [a, b] = pairs[which];
        let before = fair.view(running).unwrap().entity.vruntime;
        let answer = fair
            .yield_to(rq, if running == a { b } else { a }, now)
            .unwrap();
        let YieldTo::Yielded { credit, .. } = answer else {
            panic!("{answer:?}")
        };
        let moved = fair.view(running).unwrap().entity.vruntime != before;
        fair.pick(rq, now).unwrap();
        (credit.forced, moved)
    };
    assert_eq!(hint(0, 1_000_000), (true, true));
    assert!(!hint(0, 6_999_999).0, "not yet");
    assert!(hint(1, 6_999_999).0, "another run queue");
    assert!(hint(0, 7_000_000).0, "6 ms after the last that was forced");
}

#[test]
fn a_sleeping_or_delayed_target_is_refused() {
    let (mut fair, rq, tasks) = host(config(true), &[None, None, None]);
    let running = fair.running(rq).unwrap().unwrap();
    fair.tick(rq, 2_000_000).unwrap();
    fair.block(rq, Block::Sleep, 2_000_000).unwrap();
    fair.pick(rq, 2_000_000).unwrap();
    assert!(tasks.contains(&running));
    assert_eq!(fair.yield_to(rq, running, 2_100_000), Ok(YieldTo::Refused));
}
