//! No sequence of calls, however wrong, makes the scheduler inconsistent.
//!
//! An operation that succeeds leaves every sum, counter and link right, which debug builds check
//! inside. An operation that is refused has a typed error and changes nothing that can be seen.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use proptest::prelude::*;
use stealtime_hypervisor::fair::{
    Attr, Block, CgroupMode, Config, Error, Fair, Feature, Features, GroupId, MAX_DEPTH, OtherLoad,
    PickMode, Policy, Preempt, RqId, TaskId, TaskView, WakeFlags,
};
use stealtime_hypervisor::lag_credit::{Guard, LagCredit, Method, RateLimit};

/// One call with arguments that may name anything.
#[derive(Clone, Copy, Debug)]
struct Call {
    what: u8,
    a: u8,
    b: u8,
    value: u64,
    dt: i64,
}

struct World {
    fair: Fair,
    rqs: Vec<RqId>,
    groups: Vec<GroupId>,
    tasks: Vec<TaskId>,
    now: u64,
}

type Seen = (Vec<Result<TaskView, Error>>, Vec<String>);

impl World {
    fn new(
        features: Features,
        credit: LagCredit,
        preempt: Preempt,
        loads: OtherLoad,
        now: u64,
    ) -> Self {
        let mut config = Config::linux_7_2(4);
        (config.features, config.lag_credit) = (features, credit);
        (config.preempt, config.other_load) = (preempt, loads);
        if loads == OtherLoad::Instantaneous {
            config.cgroup_mode = CgroupMode::Concur;
        }
        let mut fair = Fair::new(config).unwrap();
        let modes = [
            PickMode::Hierarchical,
            PickMode::Flat,
            PickMode::Hierarchical,
        ];
        let rqs = modes.map(|mode| fair.create_rq(mode).unwrap()).to_vec();
        let mut world = Self {
            fair,
            rqs,
            groups: Vec::new(),
            tasks: Vec::new(),
            now,
        };
        // Ids of another scheduler: unknown to this one.
        let mut other = Fair::new(Config::linux_7_2(1)).unwrap();
        for _ in 0..60 {
            world
                .tasks
                .push(other.create_task(Attr::default(), None).unwrap());
        }
        world.tasks.drain(..58);
        for _ in 0..30 {
            world.groups.push(other.create_group(None).unwrap());
        }
        world.groups.drain(..29);
        for _ in 0..9 {
            world.rqs.push(other.create_rq(PickMode::Flat).unwrap());
        }
        world.rqs.drain(3..11);
        world.populate();
        world
    }

    /// Groups on two of the CPUs, and tasks inside and outside of them.
    fn populate(&mut self) {
        for n in 0..4usize {
            let under = (n > 1).then(|| self.groups[n - 1]);
            let group = self.fair.create_group(under).unwrap();
            for rq in &self.rqs[..2] {
                self.fair.extend_group(group, *rq).unwrap();
            }
            self.groups.push(group);
        }
        for n in 0..12 {
            let group = (n % 3 != 0).then(|| self.groups[1 + n % 4]);
            let task = self.fair.create_task(Attr::default(), group).unwrap();
            self.fair.fork(task, self.rqs[n % 2], self.now).unwrap();
            self.tasks.push(task);
        }
    }

    fn seen(&self) -> Seen {
        let tasks = self.tasks.iter().map(|t| self.fair.view(*t)).collect();
        let mut queues = Vec::new();
        for rq in &self.rqs {
            let (running, clock) = (self.fair.running(*rq), self.fair.clock(*rq));
            let (pending, queue) = (self.fair.pending(*rq), self.fair.queue(*rq, None));
            queues.push(format!("{running:?} {clock:?} {pending:?} {queue:?}"));
            for g in &self.groups {
                let (queue, entity) = (
                    self.fair.queue(*rq, Some(*g)),
                    self.fair.group_entity(*rq, *g),
                );
                queues.push(format!("{queue:?} {entity:?}"));
            }
        }
        let groups = self.groups.iter().map(|g| self.fair.group_view(*g));
        queues.extend(groups.map(|view| format!("{view:?}")));
        (tasks, queues)
    }

    fn call(&mut self, call: Call) -> Result<(), Error> {
        let Call {
            what,
            a,
            b,
            value,
            dt,
        } = call;
        let (a, b) = (usize::from(a), usize::from(b));
        self.now = self.now.saturating_add_signed(dt.max(0));
        let now = self.now.saturating_add_signed(dt.min(0));
        let rq = self.rqs[if b > 240 { b % self.rqs.len() } else { b % 3 }];
        let task = self.tasks[a % self.tasks.len()];
        let group = self.groups[b % self.groups.len()];
        let some = (value % 3 != 0).then_some(group);
        let attr = Attr {
            policy: [Policy::Normal, Policy::Batch, Policy::Idle][a % 3],
            nice: (value % 43) as i8 - 21,
            slice_ns: (b % 3 == 0).then_some(50_000 + value % 100_000_000),
        };
        let fair = &mut self.fair;
        match what {
            0 => {
                let id = fair.create_task(attr, some)?;
                self.tasks.push(id);
                fair.fork(id, rq, now).map(drop)
            }
            1 => {
                let id = fair.create_group((a % 2 == 0).then_some(group))?;
                self.groups.push(id);
                Ok(())
            }
            2 => fair.extend_group(group, rq),
            3 => fair.wake(task, rq, now).map(drop),
            4 => {
                let (sync, rq_selected) = (value % 2 == 0, value % 3 == 0);
                let flags = WakeFlags { sync, rq_selected };
                fair.wake_with(task, rq, flags, now).map(drop)
            }
            5 => {
                let how = [Block::Sleep, Block::Sleep, Block::Special, Block::Exit][a % 4];
                fair.block(rq, how, now).map(drop)
            }
            6..=9 => fair.pick(rq, now).map(drop),
            10 => fair.tick(rq, now).map(drop),
            11 => fair.hrtick(rq, now).map(drop),
            12 => fair.account(rq, now).map(drop),
            13 => fair.yield_task(rq, now).map(drop),
            14 | 15 => fair
                .yield_to_pulling(rq, task, value % 2 == 0, now)
                .map(drop),
            16 => fair.set_nice(task, attr.nice, now),
            17 => fair.set_attr(task, attr, now).map(drop),
            18 => fair.move_task(task, some, now),
            19 => fair.set_shares(group, value % 300_000_000 * (value % 5), now),
            20 => fair.set_ext_load(group, rq, (value % 3_000) << (a % 40)),
            21 => fair.set_idle(group, a % 2 == 0, now),
            22 => fair.detach(task, now).map(drop),
            23 => fair.attach(task, rq, now).map(drop),
            24 => fair.fork(task, rq, now).map(drop),
            25 => fair.reparent_group(self.groups[a % self.groups.len()], some),
            _ => fair.destroy_task(task),
        }
    }
}

fn call() -> impl Strategy<Value = Call> {
    let time = prop_oneof![
        50 => 0..5_000_000i64,
        4 => -5_000_000..0i64,
        12 => Just(0i64),
        2 => 0..1_000_000_000i64,
        // Beyond what may go unaccounted for, rarely: that run queue stays refused.
        1 => 0..75_000_000_000i64,
    ];
    (0..27u8, any::<u8>(), any::<u8>(), any::<u64>(), time).prop_map(|(what, a, b, value, dt)| {
        Call {
            what,
            a,
            b,
            value,
            dt,
        }
    })
}

fn features() -> impl Strategy<Value = Features> {
    prop_oneof![Just(None), any::<u16>().prop_map(Some)].prop_map(|off| {
        let mut set = Features::LINUX_7_2.with(Feature::YieldToLagCredit);
        set = set.with(Feature::NextBuddy);
        for (i, feature) in Feature::ALL.into_iter().enumerate() {
            if off.is_some_and(|bits| bits >> i & 1 == 1) {
                set = set.without(feature);
            }
        }
        set
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 96 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn refused_calls_change_nothing_and_the_rest_stays_consistent(
        features in features(),
        credit in prop_oneof![
            Just(LagCredit::SERIES_V3),
            Just(LagCredit::SERIES_V2),
            Just(LagCredit { across_run_queues: true, ..LagCredit::GUARDED }),
        ],
        preempt in prop_oneof![Just(Preempt::Lazy), Just(Preempt::Full)],
        loads in prop_oneof![Just(OtherLoad::External), Just(OtherLoad::Instantaneous)],
        // A clock may start anywhere, and come to the end of its 64 bits.
        start in prop_oneof![Just(0), any::<u64>(), Just(u64::MAX - 1_000_000_000)],
        calls in prop::collection::vec(call(), if cfg!(miri) { 100 } else { 600 }),
    ) {
        let mut world = World::new(features, credit, preempt, loads, start);
        for call in calls {
            let before = world.seen();
            let known = (world.tasks.len(), world.groups.len());
            if world.call(call).is_err() && known == (world.tasks.len(), world.groups.len()) {
                prop_assert_eq!(before, world.seen(), "{:?}", call);
            }
            for rq in &world.rqs[..3] {
                prop_assert!(world.fair.consistent(*rq), "{:?} after {:?}", rq, call);
            }
        }
    }
}

/// A CPU with two tasks in a group, the first running, and a third asleep.
fn small(mode: PickMode) -> (Fair, RqId, GroupId, [TaskId; 3]) {
    let mut fair = Fair::new(Config::linux_7_2(4)).unwrap();
    let rq = fair.create_rq(mode).unwrap();
    let group = fair.create_group(None).unwrap();
    fair.extend_group(group, rq).unwrap();
    let tasks = [0; 3].map(|_| fair.create_task(Attr::default(), Some(group)).unwrap());
    fair.fork(tasks[2], rq, 1_000).unwrap();
    fair.pick(rq, 1_000).unwrap();
    fair.block(rq, Block::Sleep, 1_000).unwrap();
    fair.pick(rq, 1_000).unwrap();
    fair.fork(tasks[0], rq, 1_000).unwrap();
    fair.pick(rq, 1_000).unwrap();
    fair.fork(tasks[1], rq, 1_000).unwrap();
    (fair, rq, group, tasks)
}

#[test]
fn wrong_tasks_and_times_have_their_errors() {
    for mode in [PickMode::Hierarchical, PickMode::Flat] {
        let (mut fair, rq, group, [runs, waits, sleeps]) = small(mode);
        let mut elsewhere = Fair::new(Config::linux_7_2(4)).unwrap();
        let strangers = [0; 9].map(|_| elsewhere.create_task(Attr::default(), None).unwrap());
        let stranger = strangers[8];
        assert_eq!(
            fair.wake(stranger, rq, 2_000),
            Err(Error::NoSuchTask(stranger))
        );
        // Queued twice, in each way that there is to queue.
        assert_eq!(
            fair.fork(waits, rq, 2_000),
            Err(Error::AlreadyForked(waits))
        );
        assert_eq!(fair.wake(waits, rq, 2_000), Err(Error::NotAsleep(waits)));
        assert_eq!(
            fair.attach(waits, rq, 2_000),
            Err(Error::NotAttached(waits))
        );
        // Taken off twice, or while it runs.
        assert_eq!(fair.detach(runs, 2_000), Err(Error::Running(runs)));
        assert_eq!(fair.detach(sleeps, 2_000), Err(Error::NotQueued(sleeps)));
        let queued = Error::AlreadyQueued { task: waits, rq };
        assert_eq!(fair.destroy_task(waits), Err(queued));
        // Time that goes back, and too long a time that is not accounted for.
        let back = Error::ClockBack {
            rq,
            clock_ns: 1_000,
            now_ns: 999,
        };
        assert_eq!(fair.tick(rq, 999), Err(back));
        assert_eq!(fair.pick(rq, 999), Err(back));
        assert_eq!(fair.set_shares(group, 2048, 999), Err(back));
        // A sleeping task is on no run queue: a change of it reads no clock and sets none.
        for now_ns in [999, 2_000] {
            assert_eq!(fair.set_nice(sleeps, 3, now_ns), Ok(()));
            assert_eq!(fair.clock(rq), Ok(1_000));
        }
        let (ran_ns, max_ns) = ((1 << 36) + 1, 1 << 36);
        let late = Error::TooLongUnaccounted { rq, ran_ns, max_ns };
        assert_eq!(fair.tick(rq, 1_000 + ran_ns), Err(late));
        fair.tick(rq, 1_000 + (1 << 36)).unwrap();
        assert!(fair.consistent(rq));
    }
}

#[test]
fn wrong_weights_and_groups_have_their_errors() {
    for mode in [PickMode::Hierarchical, PickMode::Flat] {
        let (mut fair, rq, group, [runs, ..]) = small(mode);
        assert_eq!(fair.set_shares(group, 0, 2_000), Err(Error::ZeroWeight));
        let load = (1 << 40) + 1;
        let refused = fair.set_ext_load(group, rq, load);
        assert_eq!(refused, Err(Error::LoadOutOfRange { load, max: 1 << 40 }));
        fair.set_ext_load(group, rq, 1 << 40).unwrap();
        let below = fair.create_group(Some(group)).unwrap();
        for (g, parent) in [(group, group), (group, below)] {
            let refused = fair.reparent_group(g, Some(parent));
            assert_eq!(refused, Err(Error::GroupUnderItself(g)));
        }
        assert_eq!(
            fair.reparent_group(group, None),
            Err(Error::GroupBusy(group))
        );
        let refused = fair.move_task(runs, Some(below), 2_000);
        assert_eq!(refused, Err(Error::GroupNotOnCpu { group: below, rq }));
        fair.extend_group(below, rq).unwrap();
        fair.move_task(runs, Some(below), 2_000).unwrap();
        assert!(fair.consistent(rq));
    }
}

#[test]
fn groups_nest_to_the_limit_and_no_deeper() {
    let mut fair = Fair::new(Config::linux_7_2(1)).unwrap();
    let mut parent = None;
    for _ in 0..MAX_DEPTH {
        parent = Some(fair.create_group(parent).unwrap());
    }
    let (depth, max) = (MAX_DEPTH + 1, MAX_DEPTH);
    assert_eq!(
        fair.create_group(parent),
        Err(Error::TooDeep { depth, max })
    );
}

#[test]
fn attributes_out_of_range_have_their_errors() {
    let (mut fair, _, _, [runs, ..]) = small(PickMode::Flat);
    for slice_ns in [0, 1, 99_999, 100_000_001, u64::MAX] {
        let attr = Attr {
            slice_ns: Some(slice_ns),
            ..Attr::default()
        };
        let (min_ns, max_ns) = (100_000, 100_000_000);
        let refused = Error::SliceOutOfRange {
            slice_ns,
            min_ns,
            max_ns,
        };
        assert_eq!(fair.create_task(attr, None), Err(refused));
        assert_eq!(fair.set_attr(runs, attr, 2_000), Err(refused));
    }
    for nice in [-128, -21, 20, 127] {
        let attr = Attr {
            nice,
            ..Attr::default()
        };
        assert_eq!(
            fair.create_task(attr, None),
            Err(Error::NiceOutOfRange(nice))
        );
        assert_eq!(
            fair.set_nice(runs, nice, 2_000),
            Err(Error::NiceOutOfRange(nice))
        );
    }
}

#[test]
fn nothing_but_a_pick_follows_a_block() {
    for mode in [PickMode::Hierarchical, PickMode::Flat] {
        let (mut fair, rq, _, [runs, waits, _]) = small(mode);
        fair.block(rq, Block::Exit, 2_000).unwrap();
        assert_eq!(fair.tick(rq, 2_000), Err(Error::PickDue(rq)));
        assert_eq!(fair.yield_task(rq, 2_000), Err(Error::PickDue(rq)));
        assert_eq!(fair.detach(waits, 2_000), Err(Error::PickDue(rq)));
        assert_eq!(fair.set_nice(waits, 3, 2_000), Err(Error::PickDue(rq)));
        assert_eq!(fair.pick(rq, 2_000).unwrap().task, Some(waits));
        // The id of a task that has ended stays invalid, also when its slot is used again.
        let next = fair.create_task(Attr::default(), None).unwrap();
        assert_eq!(next.slot(), runs.slot());
        assert_eq!(fair.view(runs), Err(Error::NoSuchTask(runs)));
        assert_eq!(fair.set_nice(runs, 1, 2_000), Err(Error::NoSuchTask(runs)));
    }
}

/// A time of its own that is long after the last account is looked at again: it is no step back.
#[test]
fn two_calls_at_a_time_are_no_step_back() {
    let (mut fair, rq, _, _) = small(PickMode::Hierarchical);
    // It is empty: its shares account no task.
    let group = fair.create_group(None).unwrap();
    fair.extend_group(group, rq).unwrap();
    let late_ns = 50_000_000_000;
    for shares in [2_048, 4_096, 8_192] {
        let set = fair.set_shares(group, shares << 10, late_ns);
        assert_eq!((set, fair.clock(rq)), (Ok(()), Ok(late_ns)));
    }
    let back = fair.set_shares(group, 1 << 20, late_ns - 1);
    let clock_ns = late_ns;
    let now_ns = late_ns - 1;
    assert_eq!(
        back,
        Err(Error::ClockBack {
            rq,
            clock_ns,
            now_ns
        })
    );
}

#[test]
fn a_group_with_a_task_or_a_group_does_not_move() {
    let mut fair = Fair::new(Config::linux_7_2(4)).unwrap();
    let [group, above, below] = [(); 3].map(|()| fair.create_group(None).unwrap());
    assert_eq!(fair.reparent_group(group, Some(above)), Ok(()));
    let busy = Err(Error::GroupBusy(above));
    assert_eq!(fair.reparent_group(above, Some(below)), busy);
    // Once its group has left, it may.
    assert_eq!(fair.reparent_group(group, None), Ok(()));
    assert_eq!(fair.reparent_group(above, Some(below)), Ok(()));
    assert_eq!(fair.reparent_group(above, None), Ok(()));
    let task = fair.create_task(Attr::default(), Some(group)).unwrap();
    assert_eq!(fair.group_view(group).unwrap().tasks, 1);
    let busy = Err(Error::GroupBusy(group));
    assert_eq!(fair.reparent_group(group, Some(below)), busy);
    assert_eq!(fair.reparent_group(below, Some(group)), Ok(()));
    fair.destroy_task(task).unwrap();
    assert_eq!(fair.group_view(group).unwrap().tasks, 0);
}

/// What a credit takes: its margin, its part of the time, and its rate limit.
#[test]
fn a_credit_out_of_range_is_refused_by_its_key() {
    let field = |lag_credit: LagCredit| {
        let mut config = Config::linux_7_2(4);
        config.lag_credit = lag_credit;
        match Fair::new(config).err() {
            Some(Error::BadConfig { field, .. }) => Some(field),
            error => {
                assert_eq!(error, None);
                None
            }
        }
    };
    let margin = |margin_ns| LagCredit {
        method: Method::Credit {
            margin_ns,
            keep_request: false,
        },
        ..LagCredit::SERIES_V3
    };
    for (margin_ns, valid) in [
        (999, false),
        (1_000, true),
        (100_000_000, true),
        (100_000_001, false),
    ] {
        let refused = field(margin(margin_ns));
        assert_eq!(
            refused,
            (!valid).then_some("lag_credit margin_ns"),
            "{margin_ns}"
        );
    }
    for (per_mille, valid) in [(0, false), (1, true), (1000, true), (1001, false)] {
        let guard = Some(Guard {
            per_mille,
            burst_ns: 1_000_000,
        });
        let refused = field(LagCredit {
            guard,
            ..LagCredit::SERIES_V3
        });
        assert_eq!(
            refused,
            (!valid).then_some("lag_credit per_mille"),
            "{per_mille}"
        );
    }
    let limits = [
        (0, 5, 6, Some("lag_credit gap_ns")),
        (1, 6, 5, Some("lag_credit min_ns")),
        (1, 5, 5, None),
    ];
    for (gap_ns, min_ns, max_ns, expected) in limits {
        let rate_limit = RateLimit::Adaptive {
            interval_ns: 1_000,
            gap_ns,
            min_ns,
            max_ns,
        };
        let refused = field(LagCredit {
            rate_limit,
            ..LagCredit::SERIES_V3
        });
        assert_eq!(refused, expected, "{min_ns} to {max_ns}");
    }
}
