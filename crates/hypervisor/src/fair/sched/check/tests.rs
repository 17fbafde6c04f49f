//! Each fault that the checks are for, alone in a state that is sound otherwise.

extern crate std;

use core::hash::{BuildHasher, BuildHasherDefault};
use std::collections::BTreeSet;
use std::hash::DefaultHasher;

use super::super::Count;
use crate::fair::hierarchy::Hierarchy;
use crate::fair::ids::{Ent, GroupId, Que, RqId};
use crate::fair::sched_entity::SchedEntity;
use crate::fair::{Attr, Config, Fair, PickMode, Policy, Sched, TaskId};

/// A run queue in which a group's task is current. A task of the root group and three more groups wait, one
/// of them idle. Two groups are alike.
struct Parts {
    rq: RqId,
    root: Que,
    running: Ent,
    /// A waiting task of the root group.
    waiting: Ent,
    /// A waiting task of the current task's group, and its queue.
    inner: Ent,
    inner_q: Que,
    /// Two groups with a waiting task of nice 0 each.
    twins: [GroupId; 2],
    twin_tasks: [Ent; 2],
    /// A task on no run queue.
    new: Ent,
}

fn task(fair: &mut Fair, rq: RqId, policy: Policy, group: Option<GroupId>) -> TaskId {
    let attr = Attr {
        policy,
        ..Attr::default()
    };
    let task = fair.create_task(attr, group).unwrap();
    fair.fork(task, rq, 0).unwrap();
    task
}

fn host(mode: PickMode) -> (Fair, Parts) {
    let mut fair = Fair::new(Config::linux_7_2(2)).unwrap();
    fair.set_self_check(false);
    let rq = fair.create_rq(mode).unwrap();
    // One that picks flat: each entity then has a pick queue and a load of its own.
    let flat = fair.create_rq(PickMode::Flat).unwrap();
    let groups = [(); 4].map(|()| fair.create_group(None).unwrap());
    for rq in [rq, flat] {
        for group in groups {
            fair.extend_group(group, rq).unwrap();
        }
    }
    let [inner, first, second, idle] = groups;
    fair.set_idle(idle, true, 0).unwrap();
    let running = task(&mut fair, rq, Policy::Normal, Some(inner));
    assert_eq!(fair.pick(rq, 0).unwrap().task, Some(running));
    let waiting = task(&mut fair, rq, Policy::Normal, None);
    task(&mut fair, rq, Policy::Idle, None);
    let in_group = task(&mut fair, rq, Policy::Normal, Some(inner));
    let twins = [first, second].map(|group| task(&mut fair, rq, Policy::Normal, Some(group)));
    task(&mut fair, rq, Policy::Normal, Some(idle));
    let new = fair.create_task(Attr::default(), None).unwrap();
    let sched = fair.sched();
    let tree = &sched.tree;
    let ent = |id| tree.task(id).unwrap();
    let parts = Parts {
        rq,
        root: sched.rqs[rq].root(),
        running: ent(running),
        waiting: ent(waiting),
        inner: ent(in_group),
        inner_q: tree[ent(in_group)].queue(),
        twins: [first, second],
        twin_tasks: twins.map(ent),
        new: ent(new),
    };
    assert!(fair.consistent(rq) && fair.consistent(flat));
    (fair, parts)
}

/// Changes an entity as if it were off its queue.
fn off_queue(tree: &mut Hierarchy, e: Ent, change: impl FnOnce(&mut SchedEntity)) {
    tree[e].set_on_rq(false);
    change(&mut tree[e]);
    tree[e].set_on_rq(true);
}

/// An entity claims to compete in another queue on its level.
fn misplace(tree: &mut Hierarchy, e: Ent, queue: Que) {
    let depth = tree[e].depth();
    off_queue(tree, e, |ent| ent.move_to(queue, depth));
}

type Fault = (&'static str, fn(&mut Sched, &Parts));

/// What is wrong in either mode.
const FAULTS: [Fault; 14] = [
    ("a member that is not queued", |s, p| {
        s.tree[p.waiting].set_on_rq(false);
    }),
    ("a member of another queue", |s, p| {
        s.tree.set_pick_queue(p.waiting, p.inner_q);
    }),
    ("deadlines out of order", |s, p| {
        let mut last = Ent::NONE;
        s.tree.for_each_waiting(p.root, &mut |e| last = e);
        let ent = &mut s.tree[last];
        let early = ent.deadline().wrapping_sub(1 << 40);
        ent.set_recorded(ent.weight(), None, [ent.vruntime(), early, ent.vprot()]);
    }),
    ("a relative deadline in the timeline", |s, p| {
        let mut last = Ent::NONE;
        s.tree.for_each_waiting(p.root, &mut |e| last = e);
        s.tree[last].make_deadline_relative();
    }),
    ("a buddy that is not queued", |s, p| {
        s.tree.set_pick_queue(p.new, p.root);
        s.tree[p.root].set_next(p.new);
    }),
    ("a buddy in another queue", |s, p| {
        s.tree.set_pick_queue(p.inner, p.inner_q);
        s.tree[p.root].set_next(p.inner);
    }),
    ("another weight", |s, p| {
        let zero = s.tree[p.root].zero_vruntime();
        s.tree[p.root].add_weight(zero, 5);
    }),
    ("another sum of virtual times", |s, p| {
        let zero = s.tree[p.root].zero_vruntime();
        s.tree[p.root].add_weight(zero.wrapping_add(1), 1);
        s.tree[p.root].add_weight(zero, -1);
    }),
    ("another number of members", |s, p| {
        let current = s.tree[p.root].curr();
        s.tree.level(p.root).link(current);
    }),
    ("a current task of another run queue", |s, p| {
        let (queue, depth) = (s.tree[p.running].queue(), s.tree[p.running].depth());
        let other = RqId(p.rq.0 + 1);
        off_queue(&mut s.tree, p.running, |ent| {
            ent.attach(other, queue, depth)
        });
    }),
    ("a current task while idle", |s, p| {
        s.rqs[p.rq].picked(Ent::NONE);
    }),
    ("a current task that waits", |s, p| {
        s.rqs[p.rq].picked(p.waiting);
    }),
    ("another load of a group", |s, p| {
        s.groups.add_totals(p.twins[0], 1, 0);
    }),
    ("another number of a group's tasks", |s, p| {
        s.groups.add_totals(p.twins[0], 0, 1);
    }),
];

/// What is wrong level by level.
const LEVEL_FAULTS: [Fault; 15] = [
    ("a waiting task on another level", |s, p| {
        misplace(&mut s.tree, p.waiting, p.inner_q);
    }),
    ("a current task on another level", |s, p| {
        misplace(&mut s.tree, p.running, p.root);
    }),
    ("a group on another level", |s, p| {
        let e = s.tree.parent(p.twin_tasks[0]);
        misplace(&mut s.tree, e, p.inner_q);
    }),
    ("a task that has ended", |s, p| {
        off_queue(&mut s.tree, p.waiting, |ent| {
            ent.end_task();
        });
    }),
    ("a task with another load", |s, p| {
        let load = s.tree.load(p.waiting);
        s.tree.set_load(p.waiting, load + 1);
        s.tree.count_level(p.root, 1, 0);
    }),
    ("a delayed group that is not empty", |s, p| {
        let e = s.tree.parent(p.twin_tasks[0]);
        s.tree[e].set_delayed(true);
    }),
    ("another group's queue", |s, p| {
        let [e, other] = p.twin_tasks.map(|task| s.tree.parent(task));
        let (my_q, depth) = (s.tree[other].my_q(), s.tree[e].depth());
        off_queue(&mut s.tree, e, |ent| {
            ent.init_group(p.twins[0], p.rq, my_q, p.root, depth);
        });
    }),
    ("a fault below a waiting group", |s, p| {
        s.tree[p.twin_tasks[1]].set_on_rq(false);
    }),
    ("a fault below the current group", |s, p| {
        s.tree[p.inner].set_on_rq(false);
    }),
    ("another load of a level", |s, p| {
        s.tree.count_level(p.root, 1, 0);
    }),
    ("another number on a level", |s, p| {
        s.tree.count_level(p.root, 0, 1);
    }),
    ("another number of tasks", |s, p| {
        let mut count = Count {
            queued: 1,
            runnable: 0,
            idle: 0,
        };
        s.tree[p.root].count_up(&mut count);
    }),
    ("another number of runnable tasks", |s, p| {
        s.tree[p.root].add_runnable(-1);
    }),
    ("another number of idle tasks", |s, p| {
        s.tree[p.root].add_idle(-1);
    }),
    ("another number of a group's idle tasks", |s, p| {
        s.tree[p.inner_q].add_idle(1);
    }),
];

fn digest(fair: &Fair) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(fair)
}

#[test]
fn each_fault_is_found_and_has_a_hash_of_its_own() {
    for mode in [PickMode::Hierarchical, PickMode::Flat] {
        let (fair, parts) = host(mode);
        let by_level: &[Fault] = match mode {
            PickMode::Hierarchical => &LEVEL_FAULTS,
            PickMode::Flat => &[],
        };
        let mut digests = BTreeSet::from([digest(&fair)]);
        for (name, inject) in FAULTS.iter().chain(by_level) {
            let mut faulty = fair.clone();
            inject(faulty.sched_mut(), &parts);
            assert!(!faulty.consistent(parts.rq), "{mode:?}: {name}");
            assert!(digests.insert(digest(&faulty)), "{mode:?}: {name}");
        }
    }
}

#[test]
fn an_unknown_run_queue_is_not_consistent() {
    let (fair, _) = host(PickMode::Flat);
    assert!(!fair.consistent(RqId::nth(2)));
}

/// From a base that is 2^62 behind, two tasks of weight 2^20 have a sum of 2^83: in 64 bits it is next to
/// nothing, and neither task is eligible. A CPU with tasks is not left idle then.
#[test]
fn sums_that_have_wrapped_leave_the_first_task() {
    let mut fair = Fair::new(Config::linux_7_2(2)).unwrap();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    let [first, _] = [(); 2].map(|()| task(&mut fair, rq, Policy::Normal, None));
    let sched = fair.sched_mut();
    let root = sched.rqs[rq].root();
    let zero = sched.tree[root].zero_vruntime();
    sched.tree[root].set_zero(zero.wrapping_sub(1 << 62));
    assert!(fair.consistent(rq));
    assert_eq!(fair.pick(rq, 0).unwrap().task, Some(first));
}
