//! Properties of the credit over long random runs.

extern crate std;
use super::*;
use crate::fair::{
    Attr, Block, Config, Ent, Fair, Feature, GroupId, PickMode, Que, RqId, TaskId, TaskState,
    YieldTo, lag_bound,
};
use std::vec::Vec;

/// A small generator (xorshift64*): the seed is all that a failing run depends on.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % sides
    }
}

/// One CPU with groups and tasks, driven at random.
struct Run {
    seed: u64,
    dice: Dice,
    fair: Fair,
    rq: RqId,
    tasks: Vec<TaskId>,
    now: u64,
    credits: u64,
    running_levels: u64,
}

impl Run {
    fn new(seed: u64, mode: PickMode, credit: LagCredit) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut config = Config::linux_7_2(16);
        config.features = config.features.with(Feature::YieldToLagCredit);
        config.lag_credit = credit;
        let mut fair = Fair::new(config).unwrap();
        let rq = fair.create_rq(mode).unwrap();
        let mut groups: Vec<Option<GroupId>> = std::vec![None];
        for _ in 0..dice.roll(5) {
            let under = groups[dice.roll(groups.len() as u64) as usize];
            let group = fair.create_group(under).unwrap();
            fair.extend_group(group, rq).unwrap();
            fair.set_shares(group, 1 << (12 + dice.roll(14)), 0)
                .unwrap();
            groups.push(Some(group));
        }
        let mut tasks = Vec::new();
        for _ in 0..3 + dice.roll(14) {
            let group = groups[dice.roll(groups.len() as u64) as usize];
            let slice_ns = (dice.roll(4) == 0).then(|| 100_000 + dice.roll(20_000_000));
            let nice = dice.roll(40) as i8 - 20;
            let attr = Attr {
                nice,
                slice_ns,
                ..Attr::default()
            };
            let task = fair.create_task(attr, group).unwrap();
            fair.fork(task, rq, 0).unwrap();
            tasks.push(task);
        }
        fair.pick(rq, 0).unwrap();
        fair.set_self_check(false);
        Self {
            seed,
            dice,
            fair,
            rq,
            tasks,
            now: 0,
            credits: 0,
            running_levels: 0,
        }
    }

    fn any_task(&mut self) -> TaskId {
        self.tasks[self.dice.roll(self.tasks.len() as u64) as usize]
    }

    fn step(&mut self, n: u64) {
        let (fair, rq) = (&mut self.fair, self.rq);
        self.now += self.dice.roll(if n.is_multiple_of(9) {
            6_000_000
        } else {
            60_000
        });
        let idle = fair.running(rq).unwrap().is_none();
        match self.dice.roll(16) {
            _ if idle => self.wake_one(),
            0..=1 => drop(fair.tick(rq, self.now).unwrap()),
            2 => {
                fair.block(rq, Block::Sleep, self.now).unwrap();
                fair.pick(rq, self.now).unwrap();
            }
            3..=5 => self.wake_one(),
            6 => drop(fair.pick(rq, self.now).unwrap()),
            7 => {
                let (task, nice) = (self.any_task(), self.dice.roll(40) as i8 - 20);
                self.fair.set_nice(task, nice, self.now).unwrap();
            }
            _ => self.directed_yield(),
        }
        if n.is_multiple_of(256) {
            assert!(
                self.fair.consistent(self.rq),
                "seed {}, step {n}",
                self.seed
            );
        }
    }

    fn wake_one(&mut self) {
        let task = self.any_task();
        if self.fair.view(task).unwrap().state == TaskState::Asleep {
            self.fair.wake(task, self.rq, self.now).unwrap();
        }
        if self.fair.running(self.rq).unwrap().is_none() {
            self.fair.pick(self.rq, self.now).unwrap();
        }
    }

    /// Credits by hand first, looks, and then yields: the yield finds nothing left to credit.
    fn directed_yield(&mut self) {
        let target = self.any_task();
        let view = self.fair.view(target).unwrap();
        if !view.entity.on_rq || view.running || view.state != TaskState::Runnable {
            let answer = self.fair.yield_to(self.rq, target, self.now).unwrap();
            assert!(matches!(answer, YieldTo::Refused | YieldTo::OnlyOne));
            return;
        }
        let p = self.fair.sched().tree.task(target).unwrap();
        self.fair.account(self.rq, self.now).unwrap();
        self.fair.sched_mut().nominate(p);
        self.credit_and_check(p);
        let answer = self.fair.yield_to(self.rq, target, self.now).unwrap();
        let YieldTo::Yielded { credit, .. } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(credit.levels, 0, "seed {}: credited twice", self.seed);
        self.fair.pick(self.rq, self.now).unwrap();
    }

    fn credit_and_check(&mut self, p: Ent) {
        let flat = self.fair.sched().is_flat(self.rq);
        let mut e = p;
        while e.is_some() {
            let q = self.fair.sched().tree.pick_queue(e);
            self.running_levels += u64::from(self.fair.sched().tree[q].curr() == e);
            self.fair.sched_mut().update_curr(q);
            let before = self.state_of(q, e);
            let was = lag(&self.fair, q, e);
            let credited = credit::credit_one(self.fair.sched_mut(), q, e);
            let after = lag(&self.fair, q, e);
            if credited {
                self.credits += 1;
                let bound = lag_bound(self.fair.sched(), q, e);
                assert!(
                    (0..=bound).contains(&after),
                    "seed {}: lag {after}",
                    self.seed
                );
                assert!(after >= was, "seed {}: a credit took lag", self.seed);
                let Method::Credit { margin_ns, .. } = self.fair.config().lag_credit.method else {
                    panic!("no credit")
                };
                let aim = credit::credit_target(self.fair.sched(), q, e, margin_ns).unwrap();
                assert!(aim - after <= 1, "seed {}: {after} of {aim}", self.seed);
            } else {
                assert_eq!(before, self.state_of(q, e), "seed {}", self.seed);
            }
            self.check_sums(q);
            // Once more changes nothing.
            let once = self.state_of(q, e);
            assert!(
                !credit::credit_one(self.fair.sched_mut(), q, e),
                "seed {}",
                self.seed
            );
            assert_eq!(once, self.state_of(q, e), "seed {}", self.seed);
            e = if flat {
                Ent::NONE
            } else {
                self.fair.sched().tree.parent(e)
            };
        }
    }

    fn state_of(&self, q: Que, e: Ent) -> (u64, u64, u64, u64) {
        let ent = &self.fair.sched().tree[e];
        (
            ent.vruntime(),
            ent.deadline(),
            ent.vprot(),
            self.fair.sched().tree[q].sum_weight(),
        )
    }

    /// Average and eligibility from scratch, and the sum of weighted lags.
    fn check_sums(&self, q: Que) {
        let fair = &self.fair;
        let tree = &fair.sched().tree;
        let mut members = Vec::new();
        tree.for_each_waiting(q, &mut |e| members.push(e));
        members.extend(tree.curr_on(q));
        let base = fair.sched().tree[members[0]].vruntime();
        let key = |v: u64| i128::from(v.wrapping_sub(base) as i64);
        let weight: i128 = members
            .iter()
            .map(|e| i128::from(fair.sched().tree[*e].weight()))
            .sum();
        let sum: i128 = members
            .iter()
            .map(|e| {
                key(fair.sched().tree[*e].vruntime()) * i128::from(fair.sched().tree[*e].weight())
            })
            .sum();
        assert_eq!(
            key(fair.sched().tree.average(q)),
            sum.div_euclid(weight),
            "seed {}",
            self.seed
        );
        let lags: i128 = members
            .iter()
            .map(|e| i128::from(lag(fair, q, *e)) * i128::from(fair.sched().tree[*e].weight()))
            .sum();
        // Zero but for the floor of the average, which is less than one unit of each weight.
        assert!(
            lags <= 0 && lags > -weight,
            "seed {}: lags sum to {lags}",
            self.seed
        );
    }
}

fn lag(fair: &Fair, q: Que, e: Ent) -> i64 {
    fair.sched()
        .tree
        .average(q)
        .wrapping_sub(fair.sched().tree[e].vruntime()) as i64
}

const SEEDS: u64 = if cfg!(miri) { 2 } else { 25 };
const STEPS: u64 = if cfg!(miri) { 300 } else { 20_000 };

fn long_run(mode: PickMode, credit: LagCredit) {
    let (mut credits, mut running) = (0, 0);
    for seed in 1..=SEEDS {
        let mut run = Run::new(seed, mode, credit);
        for n in 0..STEPS {
            run.step(n);
        }
        credits += run.credits;
        running += run.running_levels;
    }
    assert!(credits > SEEDS * STEPS / 100, "only {credits} credits");
    assert!(
        mode == PickMode::Flat || cfg!(miri) || running > 1_000,
        "{running} shared levels"
    );
}

/// Half a million steps; with the next, a million.
#[test]
fn credits_stay_within_their_bounds_level_by_level() {
    long_run(PickMode::Hierarchical, LagCredit::SERIES_V3);
}

#[test]
fn credits_stay_within_their_bounds_in_one_queue() {
    let method = Method::Credit {
        margin_ns: 2_800_000,
        keep_request: true,
    };
    long_run(
        PickMode::Flat,
        LagCredit {
            method,
            ..LagCredit::SERIES_V3
        },
    );
}

/// Two tasks of a group and a rival at the root; the first of the group runs.
fn shared_group(config: Config) -> (Fair, RqId, [TaskId; 3]) {
    let mut fair = Fair::new(config).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    let group = fair.create_group(None).unwrap();
    fair.extend_group(group, rq).unwrap();
    let tasks = [Some(group), Some(group), None].map(|group| {
        let task = fair.create_task(Attr::default(), group).unwrap();
        fair.fork(task, rq, 0).unwrap();
        if fair.running(rq).unwrap().is_none() {
            fair.pick(rq, 0).unwrap();
        }
        task
    });
    (fair, rq, tasks)
}

fn with_credit() -> Config {
    let mut config = Config::linux_7_2(16);
    config.features = config.features.with(Feature::YieldToLagCredit);
    config
}

#[test]
fn shared_ancestor_is_shifted_in_place_with_its_protection() {
    let (mut fair, rq, [a, b, _]) = shared_group(with_credit());
    assert_eq!(fair.running(rq), Ok(Some(a)));
    // The group overruns: at the root it is not eligible, while the target below it is.
    fair.tick(rq, 2_000_000).unwrap();
    let p = fair.sched().tree.task(b).unwrap();
    let group = fair.sched().tree.parent(p);
    let root = fair.sched().tree.pick_queue(group);
    assert!(!fair.sched().tree.eligible(root, group));
    let before = fair.sched().tree[group].clone();
    assert!(before.protected());
    let YieldTo::Yielded { credit, .. } = fair.yield_to(rq, b, 2_000_000).unwrap() else {
        panic!("refused")
    };
    assert_eq!(
        credit,
        Credited {
            levels: 1,
            deboosted: false,
            forced: true
        }
    );
    let after = &fair.sched().tree[group];
    let shift = before.vruntime().wrapping_sub(after.vruntime());
    assert!(shift > 0);
    assert_eq!(before.deadline().wrapping_sub(after.deadline()), shift);
    assert_eq!(before.vprot().wrapping_sub(after.vprot()), shift);
    assert_eq!(fair.sched().tree[root].next(), group);
    assert_eq!(fair.pick(rq, 2_000_000).unwrap().task, Some(b));
}

#[test]
fn ineligible_group_drops_the_hint_without_credit_and_honours_it_with() {
    for on in [false, true] {
        let config = if on {
            with_credit()
        } else {
            Config::linux_7_2(16)
        };
        let (mut fair, rq, [a, b, rival]) = shared_group(config);
        assert_eq!(fair.running(rq), Ok(Some(a)));
        // The group has used the CPU up to the end of its slice; the rival runs then.
        fair.tick(rq, 4_000_000).unwrap();
        assert_eq!(fair.pick(rq, 4_000_000).unwrap().task, Some(rival));
        fair.yield_to(rq, b, 4_100_000).unwrap();
        let next = fair.pick(rq, 4_100_000).unwrap().task;
        assert_eq!(next == Some(b), on, "credit {on}: {next:?}");
    }
}

#[test]
fn forcing_is_limited_per_run_queue_and_crediting_is_not() {
    let (mut fair, rq, [a, b, _]) = shared_group(with_credit());
    let mut forced = Vec::new();
    let mut now = 0;
    while now < 30_000_000 {
        now += 500_000;
        let target = if fair.running(rq) == Ok(Some(b)) {
            a
        } else {
            b
        };
        if let YieldTo::Yielded { credit, .. } = fair.yield_to(rq, target, now).unwrap()
            && credit.forced
        {
            forced.push(now);
        }
        fair.pick(rq, now).unwrap();
    }
    assert_eq!(forced.len(), 5, "{forced:?}");
    assert!(
        forced.windows(2).all(|w| w[1] - w[0] == 6_000_000),
        "{forced:?}"
    );
}

#[test]
fn credit_is_inert_across_run_queues() {
    let run = |config: Config| {
        let mut fair = Fair::new(config).unwrap();
        let here = fair.create_rq(PickMode::Hierarchical).unwrap();
        let there = fair.create_rq(PickMode::Hierarchical).unwrap();
        let mut tasks = Vec::new();
        for rq in [here, here, there, there] {
            let task = fair.create_task(Attr::default(), None).unwrap();
            fair.fork(task, rq, 0).unwrap();
            tasks.push(task);
        }
        fair.pick(here, 0).unwrap();
        fair.pick(there, 0).unwrap();
        let target = tasks[3];
        let answer = fair
            .yield_to_pulling(here, target, true, 1_000_000)
            .unwrap();
        let YieldTo::Yielded {
            kicked,
            pulled,
            credit,
            ..
        } = answer
        else {
            panic!("{answer:?}")
        };
        let entities: Vec<_> = tasks.iter().map(|t| fair.view(*t).unwrap()).collect();
        (kicked, pulled, credit, entities)
    };
    let (plain, credited) = (run(Config::linux_7_2(16)), run(with_credit()));
    assert_eq!(plain, credited);
    assert!(plain.0.is_some() && plain.1.is_none());
    let mut config = with_credit();
    config.lag_credit.across_run_queues = true;
    let (kicked, pulled, _, entities) = run(config);
    assert!(kicked.is_none() && pulled.is_some());
    assert_eq!(entities[3].rq, entities[0].rq);
}

#[test]
fn idle_group_stops_nomination_and_credit() {
    let (mut fair, rq, [_, b, _]) = shared_group(with_credit());
    let group = fair.view(b).unwrap().group.unwrap();
    fair.set_idle(group, true, 0).unwrap();
    let p = fair.sched().tree.task(b).unwrap();
    let above = fair.sched().tree.parent(p);
    let root = fair.sched().tree.pick_queue(above);
    let vruntime = fair.sched().tree[above].vruntime();
    fair.yield_to(rq, b, 0).unwrap();
    assert_eq!(fair.sched().tree[root].next(), Ent::NONE);
    assert_eq!(fair.sched().tree[above].vruntime(), vruntime);
}

/// Two run queues with two tasks each. The yielder yields at these times, in us, to a task of its own
/// or of the other run queue. Returns which yields made it pay.
fn paid(credit: LagCredit, yields: &[(u64, bool)]) -> Vec<bool> {
    let mut config = with_credit();
    config.lag_credit = credit;
    let mut fair = Fair::new(config).unwrap();
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
    let waits = |fair: &Fair, rq: usize| {
        let running = fair.running(rqs[rq]).unwrap();
        *tasks[2 * rq..][..2]
            .iter()
            .find(|task| Some(**task) != running)
            .unwrap()
    };
    let mut paid = Vec::new();
    for &(us, here) in yields {
        let now = us * 1_000;
        let target = waits(&fair, usize::from(!here));
        let YieldTo::Yielded { credit, .. } = fair.yield_to(rqs[0], target, now).unwrap() else {
            panic!("refused")
        };
        assert_eq!((credit.levels, credit.forced), (0, false));
        fair.pick(rqs[0], now).unwrap();
        paid.push(credit.deboosted);
    }
    paid
}

/// As `yield_deboost_validate_tasks` asks: the limit first, and then whether the target is on this
/// run queue. The other way round yielders paid so often that dedup in simulated guests fell to a fourth.
#[test]
fn yields_to_other_queues_use_up_the_debooster_s_limit() {
    let here: Vec<_> = (1..=8).map(|n| (2_000 * n, true)).collect();
    let every_third = [true, false, false, true, false, false, true, false];
    assert_eq!(paid(LagCredit::SERIES_V2, &here), every_third);
    let mixed: Vec<_> = (1..=8).map(|n| (2_000 * n, n % 3 != 1)).collect();
    assert_eq!(paid(LagCredit::SERIES_V2, &mixed), [false; 8]);
}

/// Version 1 renews its time stamp with each yield.
#[test]
fn a_queue_that_yields_all_the_time_is_left_alone_by_version_1() {
    let often: Vec<_> = (1..=8).map(|n| (5_000 * n, true)).collect();
    let first = [true, false, false, false, false, false, false, false];
    assert_eq!(paid(LagCredit::SERIES_V1, &often), first);
    let seldom: Vec<_> = (1..=8).map(|n| (7_000 * n, true)).collect();
    assert_eq!(paid(LagCredit::SERIES_V1, &seldom), [true; 8]);
}

/// Tasks on a run queue without a limit on the rate of credits.
fn by_version_2<const N: usize>() -> (Fair, RqId, [TaskId; N]) {
    let mut config = with_credit();
    config.lag_credit = LagCredit {
        rate_limit: RateLimit::Fixed { interval_ns: 0 },
        ..LagCredit::SERIES_V2
    };
    let mut fair = Fair::new(config).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    let tasks = [0; N].map(|_| {
        let task = fair.create_task(Attr::default(), None).unwrap();
        fair.fork(task, rq, 0).unwrap();
        task
    });
    (fair, rq, tasks)
}

/// Its distance to the target instead of that and a slice, within 600 us.
#[test]
fn the_last_target_pays_less_if_it_yields_back_at_once() {
    for (after_ns, is_less) in [(600_000, true), (600_001, false)] {
        let (mut fair, rq, tasks) = by_version_2::<2>();
        let first = fair.pick(rq, 0).unwrap().task.unwrap();
        let second = if first == tasks[0] {
            tasks[1]
        } else {
            tasks[0]
        };
        fair.yield_to(rq, second, 1_000_000).unwrap();
        let next = fair.pick(rq, 1_000_000).unwrap().task;
        assert_eq!(next, Some(second));
        fair.yield_to(rq, first, 1_000_000 + after_ns).unwrap();
        let [paid, target] = [second, first].map(|task| fair.view(task).unwrap().entity.vruntime);
        // The yielder's run time comes on top.
        assert_eq!(paid - target == after_ns, is_less, "{paid} {target}");
    }
}

/// A yield back to the last yielder alone costs less. Another target costs the distance and a slice.
#[test]
fn a_yield_of_the_last_target_to_a_third_task_costs_the_whole_penalty() {
    let (mut fair, rq, tasks) = by_version_2::<3>();
    let ahead = fair.pick(rq, 0).unwrap().task.unwrap();
    fair.tick(rq, 5_000_000).unwrap();
    let yielder = fair.pick(rq, 5_000_000).unwrap().task.unwrap();
    let target = *tasks
        .iter()
        .find(|task| ![ahead, yielder].contains(task))
        .unwrap();
    fair.yield_to(rq, target, 5_100_000).unwrap();
    assert_eq!(fair.pick(rq, 5_100_000).unwrap().task, Some(target));
    fair.yield_to(rq, ahead, 5_200_000).unwrap();
    let [paid, reached] = [target, ahead].map(|task| fair.view(task).unwrap().entity.vruntime);
    let gran_ns = fair.config().base_slice_ns;
    assert!(paid - reached >= gran_ns, "{paid} {reached}");
}
