//! Credits recorded from the kernel's C, repeated bit by bit.
//!
//! `kernel/patches` has the credit as patches for Linux 7.2. Its tracepoints give each entity of a queue
//! before a credit, and the target's virtual times after it: `KINDS=credits scripts/test-live series`.

extern crate std;
use super::arithmetic::Tokens;
use super::{Guard, LagCredit, Method, credit};
use crate::fair::{Attr, Config, Ent, Fair, Feature, PickMode};
use std::vec::Vec;

const RECORDED: &str = include_str!("../../tests/data/yield-credits.txt");

/// Time of a credit. Only the time since the last fill of the tokens matters.
const NOW_NS: u64 = 1 << 50;

/// An entity: whether current, target, with a slice of its own; weight, slice, vruntime, deadline, vprot.
#[derive(Clone, Copy)]
struct Entity([u64; 8]);

/// The decision: credited, margin, thousandths (0 without the guard), burst, time since the last fill (-1 for
/// none), tokens before and after, vruntime, deadline, vprot.
struct Decision([i64; 10]);

fn numbers<T: std::str::FromStr, const N: usize>(words: std::str::SplitWhitespace<'_>) -> [T; N]
where
    T::Err: std::fmt::Debug,
{
    let numbers: Vec<T> = words.map(|word| word.parse().unwrap()).collect();
    numbers.try_into().ok().unwrap()
}

/// A queue with the recorded entities, and the target.
fn queue_of(entities: &[Entity], config: Config) -> (Fair, Ent) {
    let mut fair = Fair::new(config).unwrap();
    fair.set_self_check(false);
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    for _ in entities {
        let task = fair.create_task(Attr::default(), None).unwrap();
        fair.fork(task, rq, NOW_NS).unwrap();
    }
    fair.pick(rq, NOW_NS).unwrap();
    let sched = fair.sched_mut();
    let curr = sched.rqs[rq].curr();
    let tree = &mut sched.tree;
    let root = tree.pick_queue(curr);
    let mut waiting = Vec::new();
    tree.for_each_waiting(root, &mut |e| waiting.push(e));
    let mut level = tree.level(root);
    level.put_curr(curr);
    let members = std::iter::once(curr).chain(waiting);
    let members: Vec<Ent> = members.collect();
    for e in &members {
        level.unlink(*e);
    }
    level.pair(curr).0.set_zero(entities[0].0[5]);
    let mut target = Ent::NONE;
    for (e, Entity(recorded)) in members.into_iter().zip(entities) {
        let [is_curr, is_target, custom, weight, slice, times @ ..] = *recorded;
        let (queue, ent) = level.pair(e);
        ent.set_recorded(weight, (custom == 1).then_some(slice as u32), times);
        if is_curr == 1 {
            queue.set_curr(e);
        }
        level.link(e);
        if is_target == 1 {
            target = e;
        }
    }
    (fair, target)
}

fn repeat(line: usize, entities: &[Entity], decision: &Decision) {
    let [
        credited,
        margin,
        per_mille,
        burst,
        idle,
        tokens,
        tokens_after,
        after @ ..,
    ] = decision.0;
    let mut config = Config::linux_7_2(2);
    config.features = config.features.with(Feature::YieldToLagCredit);
    config.lag_credit = LagCredit {
        method: Method::Credit {
            margin_ns: margin as u64,
            keep_request: false,
        },
        guard: (per_mille > 0).then_some(Guard {
            per_mille: per_mille as u32,
            burst_ns: burst as u64,
        }),
        ..LagCredit::SERIES_V3
    };
    let (mut fair, target) = queue_of(entities, config);
    let sched = fair.sched_mut();
    let root = sched.tree.pick_queue(target);
    if per_mille > 0 && idle >= 0 {
        *sched.credits.bucket(root) = Tokens::filled_at(tokens as u64, NOW_NS - idle as u64);
    }
    let is_credited = credit::credit_one(sched, root, target);
    assert_eq!(is_credited, credited == 1, "line {line}");
    let ent = &sched.tree[target];
    let is_current = sched.tree[root].curr() == target;
    let mut times = [ent.vruntime(), ent.deadline(), 0];
    if is_current {
        times[2] = ent.vprot();
    }
    assert_eq!(times.map(|time| time as i64), after, "line {line}");
    if per_mille > 0 && tokens != tokens_after {
        let tokens_left = sched.credits.bucket(root).left_ns();
        assert_eq!(tokens_left, tokens_after as u64, "line {line}");
    }
}

/// For Miri the first ones.
const LINES: usize = if cfg!(miri) { 60 } else { usize::MAX };

#[test]
fn recorded_credits_of_the_kernel_are_repeated_bit_by_bit() {
    let (mut entities, mut credits, mut in_place, mut guarded) = (Vec::new(), 0, 0, 0);
    for (n, line) in RECORDED.lines().enumerate().take(LINES) {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("entity") => entities.push(Entity(numbers(words))),
            Some("credit") => {
                let decision = Decision(numbers(words));
                repeat(n + 1, &entities, &decision);
                credits += decision.0[0];
                in_place += decision.0[0] & i64::from(decision.0[9] != 0);
                guarded += decision.0[0] & i64::from(decision.0[2] > 0);
                entities.clear();
            }
            _ => assert!(line.starts_with('#'), "line {}: {line}", n + 1),
        }
    }
    if cfg!(miri) {
        return assert!(credits > 0);
    }
    assert!(credits >= 100, "{credits} credits");
    assert!(guarded >= 30, "{guarded} with the guard");
    assert!(in_place >= 5, "{in_place} of the current entity");
}
