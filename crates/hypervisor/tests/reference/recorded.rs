//! Replaying recorded sequences of scheduler operations on anything that can do them.
//!
//! After each operation every entity and every queue is compared with what was last listed for
//! it, so that what should not change is checked as well.

use std::collections::BTreeMap;

use serde_json::Value;
use stealtime_hypervisor::fair::{
    CgroupMode, Config, Feature, Features, OtherLoad, PickMode, Policy, Preempt, WakeFlags,
};

use crate::files::VectorFile;
use crate::op::{Answer, ENTITY, GroupSetup, Op, QUEUE, Scheduler, Setup, Step, differences};

fn int(value: &Value, key: &str) -> i64 {
    value[key]
        .as_i64()
        .unwrap_or_else(|| panic!("no integer {key:?} in {value}"))
}

fn policy(op: &Value) -> Policy {
    match int(op, "policy") {
        0 => Policy::Normal,
        3 => Policy::Batch,
        5 => Policy::Idle,
        other => panic!("policy {other}"),
    }
}

/// Features that change nothing here when they are on: load balancing, wake placement, bounds on
/// other classes, or only warnings.
const WITHOUT_EFFECT: [&str; 14] = [
    "CACHE_HOT_BUDDY",
    "NONTASK_CAPACITY",
    "TTWU_QUEUE",
    "SIS_UTIL",
    "WARN_DOUBLE_CLOCK",
    "RT_PUSH_IPI",
    "RT_RUNTIME_SHARE",
    "LB_MIN",
    "ATTACH_AGE_LOAD",
    "WA_IDLE",
    "WA_WEIGHT",
    "WA_BIAS",
    "UTIL_EST",
    "LATENCY_WARN",
];

fn features(header: &Value, sequence: &Value, hrtick: bool) -> Features {
    let own = sequence.get("feats").unwrap_or(&header["feats"]);
    let listed = own.as_object().unwrap();
    let mut features = if hrtick {
        Features::NONE.with(Feature::Hrtick)
    } else {
        Features::NONE
    };
    for (name, value) in listed {
        if *value != Value::Bool(true) {
            continue;
        }
        let balancing = name.starts_with("NI_") || WITHOUT_EFFECT.contains(&name.as_str());
        match Feature::ALL.into_iter().find(|f| f.name() == name) {
            Some(feature) => features = features.with(feature),
            None => assert!(balancing, "recorded with {name}, which is not modelled"),
        }
    }
    features
}

/// Number of run queues that were watched.
fn cpus(sequence: &Value) -> usize {
    sequence
        .get("cpus")
        .map_or(1, |n| n.as_u64().unwrap() as usize)
}

fn setup(header: &Value, sequence: &Value) -> Setup {
    let features = features(header, sequence, int(sequence, "hrtick") == 1);
    let config = Config::linux_7_2(int(header, "cpus") as u32);
    let base_slice_ns = int(header, "base_slice_ns") as u64;
    assert_eq!(config.base_slice_ns, base_slice_ns, "the scaled slice");
    let groups = sequence["groups"].as_array().unwrap().iter();
    let groups = groups.enumerate().map(|(i, g)| {
        assert_eq!(int(g, "id"), i as i64 + 1);
        GroupSetup {
            parent: int(g, "parent") as usize,
            shares: int(g, "shares") as u64,
            ext_load: match &g["ext_load"] {
                Value::Array(by_cpu) => by_cpu.iter().map(|l| l.as_u64().unwrap()).collect(),
                _ => vec![int(g, "ext_load") as u64],
            },
        }
    });
    let cost = sequence.get("migration_cost_ns");
    Setup {
        features,
        preempt: match sequence["preempt"].as_str() {
            Some("lazy") => Preempt::Lazy,
            Some("full") => Preempt::Full,
            other => panic!("preempt {other:?}"),
        },
        tick_ns: 1_000_000_000 / int(sequence, "hz") as u64,
        base_slice_ns,
        migration_cost_ns: cost.map_or(config.migration_cost_ns, |ns| ns.as_u64().unwrap()),
        other_load: OtherLoad::External,
        cgroup_mode: CgroupMode::Smp,
        keep_request: false,
        mode: PickMode::Hierarchical,
        cpus: cpus(sequence),
        groups: groups.collect(),
    }
}

fn op(op: &Value) -> Op {
    let number = |key| int(op, key);
    let (nice, group) = (|| number("nice") as i8, || number("group") as usize);
    match op["op"].as_str().unwrap() {
        "fork" => Op::Fork {
            id: number("id"),
            nice: nice(),
            policy: policy(op),
            slice: number("slice") as u64,
            group: group(),
        },
        "wake" => Op::Wake {
            id: number("id"),
            flags: WakeFlags {
                sync: op["sync"] == 1,
                rq_selected: op["rq_selected"] == 1,
            },
        },
        "sleep" => Op::Sleep,
        "sleep_special" => Op::SleepSpecial,
        "throttle" => Op::Throttle,
        "affinity" => Op::SetAffinity { id: number("id") },
        "exit" => Op::Exit,
        "pick" => Op::Pick,
        "tick" => Op::Tick,
        "hrtick" => Op::Hrtick,
        "account" => Op::Account,
        "yield" => Op::Yield,
        "yield_to" => Op::YieldTo { to: number("to") },
        "set_nice" => Op::SetNice {
            id: number("id"),
            nice: nice(),
        },
        "setattr" => Op::SetAttr {
            id: number("id"),
            policy: policy(op),
            nice: nice(),
            slice: number("slice") as u64,
        },
        "move" => Op::Move {
            id: number("id"),
            group: group(),
        },
        "set_shares" => Op::SetShares {
            group: group(),
            shares: number("shares") as u64,
        },
        "ext_load" => Op::ExtLoad {
            group: group(),
            load: number("load") as u64,
        },
        "set_idle" => Op::SetIdle {
            group: group(),
            idle: number("idle") == 1,
        },
        "detach" => Op::Detach { id: number("id") },
        "attach" => Op::Attach { id: number("id") },
        other => panic!("operation {other:?}"),
    }
}

/// Where the replay is, for messages of failures, also of recordings that cannot be read.
struct Place<'a> {
    file: &'a VectorFile,
    seed: i64,
    step: usize,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (path, family) = (self.file.path.display(), &self.file.family);
            eprintln!(
                "{path}: family {family}, seed {}, step {}",
                self.seed, self.step
            );
        }
    }
}

/// Columns of `names` in the recording's tuples, which its header lists by name.
fn columns<const N: usize>(header: &Value, key: &str, names: &[&str; N]) -> [usize; N] {
    let listed: Vec<_> = header[key].as_array().unwrap().iter().collect();
    names.map(|name| {
        let found = listed.iter().position(|l| l.as_str() == Some(name));
        found.unwrap_or_else(|| panic!("the header lists no {name:?} in {key:?}"))
    })
}

fn listed<const N: usize>(
    known: &mut BTreeMap<i64, [i64; N]>,
    out: Option<&Value>,
    columns: &[usize; N],
) {
    for (id, tuple) in out.iter().flat_map(|o| o.as_object().unwrap()) {
        let numbers = columns.map(|c| tuple[c].as_i64().unwrap());
        known.insert(id.parse().unwrap(), numbers);
    }
}

/// The operations that a recorded one is: each task that comes back with a quota is one.
fn ops(recorded: &Value) -> impl Iterator<Item = Op> {
    let back = recorded.get("ids").map(|ids| ids.as_array().unwrap());
    let one = back.is_none().then(|| op(recorded));
    let back = back.into_iter().flatten();
    let back = back.map(|id| Op::Unthrottle {
        id: id.as_i64().unwrap(),
    });
    one.into_iter().chain(back)
}

/// What is recorded under `key` of a CPU: in an array where several were watched.
fn by_cpu<'a>(out: &'a Value, key: &str, cpu: usize) -> Option<&'a Value> {
    match out.get(key)? {
        Value::Array(all) => all.get(cpu),
        one => Some(one),
    }
}

/// Does the steps of one recorded operation: the last one's answer.
fn act<S: Scheduler>(
    scheduler: &mut S,
    recorded: &Value,
    steps: &[Step],
    wrong: &mut Vec<String>,
) -> Answer {
    let mut answer = None;
    for step in steps {
        let blocks = [Op::Sleep, Op::SleepSpecial, Op::Throttle, Op::Exit].contains(&step.op);
        if blocks || matches!(step.op, Op::Yield | Op::YieldTo { .. }) {
            let got = [scheduler.running(step.cpu)];
            let expected = [int(recorded, "id")];
            differences("cpu", &["running"], &expected, &got, wrong);
        }
        answer = scheduler.apply(step);
    }
    answer
}

/// Replays one sequence on what `make` makes.
///
/// # Panics
///
/// At the first operation after which anything differs, with family, seed, step, and what was
/// expected and got, entity by entity.
pub(crate) fn replay<S: Scheduler>(
    file: &VectorFile,
    sequence: &Value,
    make: impl Fn(&Setup) -> S,
) {
    let mut place = Place {
        file,
        seed: int(sequence, "seed"),
        step: 0,
    };
    let mut scheduler = make(&setup(&file.header, sequence));
    let cpus = cpus(sequence);
    let of_entity = columns(&file.header, "entity", &ENTITY);
    let of_queue = columns(&file.header, "queue", &QUEUE);
    let (mut entities, mut queues) = (vec![BTreeMap::new(); cpus], vec![BTreeMap::new(); cpus]);
    let mut timer = 0;
    for (n, recorded) in sequence["ops"].as_array().unwrap().iter().enumerate() {
        place.step = n;
        let cpu = recorded
            .get("cpu")
            .map_or(0, |c| c.as_u64().unwrap() as usize);
        let t = int(recorded, "t") as u64;
        let steps = ops(recorded).map(|op| Step { cpu, t, op });
        let mut wrong = Vec::new();
        let answer = act(
            &mut scheduler,
            recorded,
            &steps.collect::<Vec<_>>(),
            &mut wrong,
        );
        let out = &recorded["out"];
        for key in ["picked", "ret", "changed"] {
            let expected = out.get(key).map(|v| v.as_i64().unwrap());
            if expected.is_some() && answer != expected {
                wrong.push(format!("  {key}: expected {expected:?}, got {answer:?}"));
            }
        }
        timer = out.get("hrtick").map_or(timer, |t| t.as_i64().unwrap());
        for cpu in 0..cpus {
            let expected = [
                by_cpu(out, "resched", cpu).unwrap().as_i64().unwrap(),
                timer,
            ];
            let (names, what) = (["resched", "hrtick"], format!("cpu {cpu}"));
            differences(
                &what,
                &names,
                &expected,
                &scheduler.pending(cpu),
                &mut wrong,
            );
            listed(&mut entities[cpu], by_cpu(out, "e", cpu), &of_entity);
            listed(&mut queues[cpu], by_cpu(out, "q", cpu), &of_queue);
            for (id, expected) in &entities[cpu] {
                if let Some(got) = scheduler.entity(cpu, *id) {
                    let what = format!("cpu {cpu} entity {id}");
                    differences(&what, &ENTITY, expected, &got, &mut wrong);
                }
            }
            for (id, expected) in &queues[cpu] {
                let got = scheduler.queue(cpu, *id as usize);
                let what = format!("cpu {cpu} queue {id}");
                differences(&what, &QUEUE, expected, &got, &mut wrong);
            }
        }
        assert!(
            wrong.is_empty(),
            "family {}, seed {}, step {n}: {} at {t}\n{}",
            file.family,
            place.seed,
            recorded["op"],
            wrong.join("\n")
        );
    }
}
