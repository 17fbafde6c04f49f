//! Sequences of scheduler operations recorded from the functions of Linux 7.2.
//!
//! After each operation every entity and every queue is compared with what was last listed for
//! it, so that what should not change is checked as well.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use stealtime_hypervisor::eevdf::{
    Actions, Attr, Block, Config, Error, Fair, Feature, Features, GroupId, Member, PickMode,
    Policy, Preempt, Resched, RqId, TaskId, YieldTo,
};

use crate::files;

const ENTITY: [&str; 9] = [
    "vruntime",
    "deadline",
    "vlag",
    "on_rq",
    "sched_delayed",
    "vprot",
    "slice",
    "weight",
    "rel_deadline",
];
const QUEUE: [&str; 11] = [
    "nr_queued",
    "h_nr_queued",
    "h_nr_runnable",
    "h_nr_idle",
    "load_weight",
    "avg_vruntime",
    "zero_vruntime",
    "sum_weight",
    "sum_w_vruntime",
    "curr",
    "next",
];

macro_rules! family {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            replay($name);
        })*
    };
}

family! {
    flat_queue_with_mixed_nice: "a-flat",
    sleep_and_delayed_dequeue: "b-sleep",
    yield_and_yield_to: "c-yield",
    group_hierarchy: "d-hier",
    slices_and_protection: "e-slice",
    wakeup_preemption: "f-preempt",
    migration_between_queues_and_groups: "g-migrate",
}

fn replay(family: &str) {
    let mut sequences = 0;
    for file in files::of(family) {
        for sequence in file.sequences() {
            World::new(family, &file.header, &sequence).run(&sequence);
            sequences += 1;
        }
    }
    assert!(sequences > 0, "{family}: no sequences");
}

/// One sequence's run queue, and what the recording says that it looks like.
struct World {
    family: String,
    seed: i64,
    fair: Fair,
    rq: RqId,
    tasks: BTreeMap<i64, TaskId>,
    ids: BTreeMap<TaskId, i64>,
    groups: BTreeMap<i64, GroupId>,
    entities: BTreeMap<i64, [i64; 9]>,
    queues: BTreeMap<i64, [i64; 11]>,
    hrtick: i64,
}

/// What an operation gave that the recording has under its own name.
struct Outcome {
    actions: Actions,
    named: Option<(&'static str, i64)>,
}

fn int(value: &Value, key: &str) -> i64 {
    value[key]
        .as_i64()
        .unwrap_or_else(|| panic!("no integer {key:?} in {value}"))
}

fn policy(value: i64) -> Policy {
    match value {
        0 => Policy::Normal,
        3 => Policy::Batch,
        5 => Policy::Idle,
        other => panic!("policy {other}"),
    }
}

fn features(header: &Value, hrtick: bool) -> Features {
    let mut set = Features::NONE;
    let listed = header["feats"].as_object().unwrap();
    for feature in Feature::ALL {
        let on = match listed.get(feature.name()) {
            Some(Value::Bool(on)) => *on,
            _ => feature == Feature::Hrtick && hrtick,
        };
        if on {
            set = set.with(feature);
        }
    }
    set
}

impl World {
    fn new(family: &str, header: &Value, sequence: &Value) -> Self {
        let cpus = u32::try_from(int(header, "cpus")).unwrap();
        let mut config = Config::linux_7_2(cpus);
        assert_eq!(config.base_slice_ns as i64, int(header, "base_slice_ns"));
        config.features = features(header, int(sequence, "hrtick") == 1);
        config.tick_ns = 1_000_000_000 / int(sequence, "hz") as u64;
        config.preempt = match sequence["preempt"].as_str() {
            Some("lazy") => Preempt::Lazy,
            Some("full") => Preempt::Full,
            other => panic!("preempt {other:?}"),
        };
        let mut fair = Fair::new(config).unwrap();
        let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
        let mut world = Self {
            family: family.to_owned(),
            seed: int(sequence, "seed"),
            fair,
            rq,
            tasks: BTreeMap::new(),
            ids: BTreeMap::new(),
            groups: BTreeMap::new(),
            entities: BTreeMap::new(),
            queues: BTreeMap::new(),
            hrtick: 0,
        };
        for group in sequence["groups"].as_array().unwrap() {
            world.add_group(group);
        }
        world
    }

    fn add_group(&mut self, group: &Value) {
        let parent = self.group(int(group, "parent"));
        let id = self.fair.create_group(parent).unwrap();
        self.fair.extend_group(id, self.rq).unwrap();
        self.fair
            .set_shares(id, int(group, "shares") as u64, 0)
            .unwrap();
        self.fair
            .set_ext_load(id, self.rq, int(group, "ext_load") as u64)
            .unwrap();
        self.groups.insert(int(group, "id"), id);
    }

    fn group(&self, id: i64) -> Option<GroupId> {
        if id == 0 {
            None
        } else {
            Some(self.groups[&id])
        }
    }

    fn run(&mut self, sequence: &Value) {
        for (step, op) in sequence["ops"].as_array().unwrap().iter().enumerate() {
            let outcome = match self.apply(op) {
                Ok(outcome) => outcome,
                Err(e) => panic!("{} {op}: refused: {e}", self.place(step)),
            };
            let wrong = self.differences(&op["out"], &outcome);
            assert!(
                wrong.is_empty(),
                "{}\nin {}\n{}\nagain: cargo test -p stealtime-hypervisor --test golden eevdf",
                self.place(step),
                without_out(op),
                wrong.join("\n")
            );
        }
    }

    fn place(&self, step: usize) -> String {
        format!("family {}, seed {}, step {step}:", self.family, self.seed)
    }

    fn task(&self, op: &Value, key: &str) -> TaskId {
        self.tasks[&int(op, key)]
    }

    /// The recorded operation names the running task: it must be ours as well.
    fn must_run(&self, op: &Value) {
        assert_eq!(
            self.fair.running(self.rq),
            Ok(Some(self.task(op, "id"))),
            "{op}"
        );
    }

    fn apply(&mut self, op: &Value) -> Result<Outcome, Error> {
        let now = int(op, "t") as u64;
        let name = op["op"].as_str().unwrap();
        let mut named = None;
        match name {
            "fork" => self.fork(op, now)?,
            "sleep" => self.block(op, Block::Sleep, now)?,
            "sleep_special" => self.block(op, Block::Special, now)?,
            "exit" => self.block(op, Block::Exit, now)?,
            "wake" => drop(self.fair.wake(self.task(op, "id"), self.rq, now)?),
            "pick" => {
                let picked = self.fair.pick(self.rq, now)?.task;
                named = Some(("picked", picked.map_or(0, |t| self.ids[&t])));
            }
            "tick" => drop(self.fair.tick(self.rq, now)?),
            "hrtick" => drop(self.fair.hrtick(self.rq, now)?),
            "account" => drop(self.fair.account(self.rq, now)?),
            "yield" => {
                self.must_run(op);
                self.fair.yield_task(self.rq, now)?;
            }
            "yield_to" => {
                self.must_run(op);
                let ret = match self.fair.yield_to(self.rq, self.task(op, "to"), now)? {
                    YieldTo::OnlyOne => -3,
                    YieldTo::Refused => 0,
                    YieldTo::Yielded { .. } => 1,
                };
                named = Some(("ret", ret));
            }
            "detach" => drop(self.fair.detach(self.task(op, "id"), now)?),
            "attach" => drop(self.fair.attach(self.task(op, "id"), self.rq, now)?),
            _ => named = self.change(name, op, now)?,
        }
        Ok(Outcome {
            actions: self.fair.pending(self.rq)?,
            named,
        })
    }

    fn change(
        &mut self,
        name: &str,
        op: &Value,
        now: u64,
    ) -> Result<Option<(&'static str, i64)>, Error> {
        match name {
            "set_nice" => {
                let nice = i8::try_from(int(op, "nice")).unwrap();
                self.fair.set_nice(self.task(op, "id"), nice, now)?;
            }
            "setattr" => {
                let nice = i8::try_from(int(op, "nice")).unwrap();
                let (policy, slice) = (policy(int(op, "policy")), int(op, "slice") as u64);
                let task = self.task(op, "id");
                let changed = self.fair.sched_setattr(task, policy, nice, slice, now)?;
                return Ok(Some(("changed", i64::from(changed))));
            }
            "move" => {
                let group = self.group(int(op, "group"));
                self.fair.move_task(self.task(op, "id"), group, now)?;
            }
            "set_shares" => {
                let group = self.groups[&int(op, "group")];
                let ret = match self.fair.set_shares(group, int(op, "shares") as u64, now) {
                    Err(Error::IdleGroupShares(_)) => -22,
                    other => other.map(|()| 0)?,
                };
                return Ok(Some(("ret", ret)));
            }
            "ext_load" => {
                let group = self.groups[&int(op, "group")];
                self.fair
                    .set_ext_load(group, self.rq, int(op, "load") as u64)?;
            }
            "set_idle" => {
                let group = self.groups[&int(op, "group")];
                self.fair.set_idle(group, int(op, "idle") == 1, now)?;
            }
            other => panic!("unknown operation {other:?}"),
        }
        Ok(None)
    }

    fn fork(&mut self, op: &Value, now: u64) -> Result<(), Error> {
        // Recorded slices are requests: the kernel clamps them.
        let slice_ns = match int(op, "slice") {
            0 => None,
            ns => Some((ns as u64).clamp(100_000, 100_000_000)),
        };
        let nice = i8::try_from(int(op, "nice")).unwrap();
        let attr = Attr {
            policy: policy(int(op, "policy")),
            nice,
            slice_ns,
        };
        let task = self.fair.create_task(attr, self.group(int(op, "group")))?;
        self.fair.fork(task, self.rq, now)?;
        let id = int(op, "id");
        assert!(
            self.tasks.insert(id, task).is_none(),
            "task {id} forked twice"
        );
        self.ids.insert(task, id);
        Ok(())
    }

    fn block(&mut self, op: &Value, how: Block, now: u64) -> Result<(), Error> {
        self.must_run(op);
        self.fair.block(self.rq, how, now).map(drop)
    }

    fn differences(&mut self, out: &Value, outcome: &Outcome) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut compare = |what: &str, expected: i64, got: i64| {
            if expected != got {
                wrong.push(format!("  {what}: expected {expected}, got {got}"));
            }
        };
        let resched = match outcome.actions.resched {
            Resched::None => 0,
            Resched::Lazy => 1,
            Resched::Now => 2,
        };
        compare("resched", int(out, "resched"), resched);
        for key in ["picked", "ret", "changed"] {
            if let Some(expected) = out.get(key) {
                let got = outcome.named.filter(|(k, _)| *k == key);
                let got = got.unwrap_or_else(|| panic!("no {key} to compare in {out}"));
                compare(key, expected.as_i64().unwrap(), got.1);
            }
        }
        if let Some(expiry) = out.get("hrtick") {
            self.hrtick = expiry.as_i64().unwrap();
        }
        compare(
            "hrtick",
            self.hrtick,
            outcome.actions.hrtick.unwrap_or(0) as i64,
        );
        take_listed(&mut self.entities, out.get("e"));
        take_listed(&mut self.queues, out.get("q"));
        for (id, expected) in &self.entities {
            if let Some(got) = self.entity(*id) {
                compare_fields(&format!("entity {id}"), &ENTITY, expected, &got, &mut wrong);
            }
        }
        for (id, expected) in &self.queues {
            let got = self.queue(*id);
            compare_fields(&format!("queue {id}"), &QUEUE, expected, &got, &mut wrong);
        }
        wrong
    }

    /// The tuple of an entity; none of a task that is gone.
    fn entity(&self, id: i64) -> Option<[i64; 9]> {
        let e = if id < 0 {
            self.fair.group_entity(self.rq, self.groups[&-id]).unwrap()
        } else {
            self.fair.view(self.tasks[&id]).ok()?.entity
        };
        Some([
            e.vruntime as i64,
            e.deadline as i64,
            e.vlag,
            i64::from(e.on_rq),
            i64::from(e.delayed),
            e.vprot as i64,
            e.slice_ns as i64,
            e.load as i64,
            i64::from(e.rel_deadline),
        ])
    }

    fn queue(&self, id: i64) -> [i64; 11] {
        let q = self.fair.queue(self.rq, self.group(id)).unwrap();
        [
            i64::from(q.nr_queued),
            i64::from(q.h_nr_queued),
            i64::from(q.h_nr_runnable),
            i64::from(q.h_nr_idle),
            q.load as i64,
            q.avg_vruntime as i64,
            q.zero_vruntime as i64,
            q.sum_weight as i64,
            q.sum_w_vruntime,
            self.member(q.curr),
            self.member(q.next),
        ]
    }

    fn member(&self, member: Option<Member>) -> i64 {
        match member {
            None => 0,
            Some(Member::Task(t)) => self.ids[&t],
            Some(Member::Group(g)) => -self.groups.iter().find(|(_, id)| **id == g).unwrap().0,
        }
    }
}

fn take_listed<const N: usize>(known: &mut BTreeMap<i64, [i64; N]>, listed: Option<&Value>) {
    let none = Map::new();
    let listed = listed.map_or(&none, |l| l.as_object().unwrap());
    for (id, tuple) in listed {
        let numbers: Vec<i64> = tuple
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n.as_i64().unwrap())
            .collect();
        known.insert(id.parse().unwrap(), numbers.try_into().unwrap());
    }
}

fn compare_fields<const N: usize>(
    what: &str,
    names: &[&str; N],
    expected: &[i64; N],
    got: &[i64; N],
    wrong: &mut Vec<String>,
) {
    for ((name, expected), got) in names.iter().zip(expected).zip(got) {
        if expected != got {
            wrong.push(format!("  {what}: {name}: expected {expected}, got {got}"));
        }
    }
}

fn without_out(op: &Value) -> Value {
    let mut op = op.clone();
    op.as_object_mut().unwrap().remove("out");
    op
}
