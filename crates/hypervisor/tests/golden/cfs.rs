//! Sequences of operations recorded from the functions of Linux 6.1, with CFS.

use serde_json::Value;
use stealtime_hypervisor::fair::{
    Attr, Block, Cfs, Config, Fair, GroupId, PickMode, Policy, Preempt, Resched, RqId, TaskId,
    YieldTo,
};

use crate::files;

/// A recorded host with two CPUs, and what it is as ours.
struct Host {
    fair: Fair,
    rqs: Vec<RqId>,
    groups: Vec<GroupId>,
    tasks: Vec<TaskId>,
    forked: Vec<bool>,
}

fn policy(number: u64) -> Policy {
    match number {
        0 => Policy::Normal,
        3 => Policy::Batch,
        5 => Policy::Idle,
        other => panic!("policy {other}"),
    }
}

impl Host {
    fn new(cfs: &Value, sequence: &Value) -> Self {
        let ns = |name: &str| cfs[name].as_u64().unwrap();
        let mut config = Config::linux_7_2(2);
        config.preempt = Preempt::Full;
        config.cfs = Some(Cfs {
            latency_ns: ns("latency_ns"),
            min_granularity_ns: ns("min_granularity_ns"),
            wakeup_granularity_ns: ns("wakeup_granularity_ns"),
        });
        let mut fair = Fair::new(config).unwrap();
        let rqs: Vec<RqId> = (0..2)
            .map(|_| fair.create_rq(PickMode::Hierarchical).unwrap())
            .collect();
        let mut groups: Vec<GroupId> = Vec::new();
        for group in sequence["groups"].as_array().unwrap() {
            let parent = group[0].as_u64().map(|at| groups[at as usize]);
            let id = fair.create_group(parent).unwrap();
            for &rq in &rqs {
                fair.extend_group(id, rq).unwrap();
            }
            fair.set_shares(id, group[1].as_u64().unwrap(), 0).unwrap();
            groups.push(id);
        }
        let mut tasks = Vec::new();
        for task in sequence["tasks"].as_array().unwrap() {
            let attr = Attr {
                policy: policy(task[0].as_u64().unwrap()),
                nice: i8::try_from(task[1].as_i64().unwrap()).unwrap(),
                slice_ns: None,
            };
            let group = task[2].as_u64().map(|at| groups[at as usize]);
            tasks.push(fair.create_task(attr, group).unwrap());
        }
        let forked = vec![false; tasks.len()];
        Self {
            fair,
            rqs,
            groups,
            tasks,
            forked,
        }
    }

    fn step(&mut self, what: &str, args: &[i64], now: u64) {
        let at = |n: usize| args[n] as usize;
        let fair = &mut self.fair;
        match what {
            "fork" => {
                self.forked[at(0)] = true;
                fair.fork(self.tasks[at(0)], self.rqs[at(1)], now).unwrap();
            }
            "wake" => {
                fair.wake(self.tasks[at(0)], self.rqs[at(1)], now).unwrap();
            }
            "move" => {
                fair.detach(self.tasks[at(0)], now).unwrap();
                let (task, rq) = (self.tasks[at(0)], self.rqs[at(1)]);
                fair.attach(task, rq, now).unwrap();
            }
            "nice" => {
                let nice = i8::try_from(args[1]).unwrap();
                fair.set_nice(self.tasks[at(0)], nice, now).unwrap();
            }
            "shares" => {
                let shares = args[1] as u64;
                fair.set_shares(self.groups[at(0)], shares, now).unwrap();
            }
            "tick" => {
                fair.tick(self.rqs[at(0)], now).unwrap();
            }
            "pick" => {
                fair.pick(self.rqs[at(0)], now).unwrap();
            }
            "block" => {
                fair.block(self.rqs[at(0)], Block::Sleep, now).unwrap();
                fair.pick(self.rqs[at(0)], now).unwrap();
            }
            "yield" => {
                fair.yield_task(self.rqs[at(0)], now).unwrap();
                fair.pick(self.rqs[at(0)], now).unwrap();
            }
            "yield_to" => {
                let yielded = fair
                    .yield_to(self.rqs[at(0)], self.tasks[at(1)], now)
                    .unwrap();
                assert!(matches!(yielded, YieldTo::Yielded { .. }), "{yielded:?}");
                fair.pick(self.rqs[at(0)], now).unwrap();
            }
            other => panic!("step {other}"),
        }
    }

    /// What the kernel had after the step, as far as it is not so here.
    fn differs(&self, cpus: &Value, vruntimes: &Value) -> Option<String> {
        for (cpu, &rq) in self.rqs.iter().enumerate() {
            let theirs = &cpus[cpu];
            let runs = theirs[0].as_u64().map(|at| self.tasks[at as usize]);
            let ours = self.fair.running(rq).unwrap();
            if ours != runs {
                return Some(format!("CPU {cpu} runs {ours:?}, recorded {runs:?}"));
            }
            let resched = self.fair.pending(rq).unwrap().resched == Resched::Now;
            if runs.is_some() && Some(resched) != theirs[1].as_bool() {
                return Some(format!("CPU {cpu}: to reschedule {resched}"));
            }
            let queues = [None]
                .into_iter()
                .chain(self.groups.iter().copied().map(Some));
            for (at, group) in queues.enumerate() {
                let ours = self.fair.queue(rq, group).unwrap().zero_vruntime;
                let recorded = theirs[2][at].as_u64().unwrap();
                if ours != recorded {
                    let off = ours.wrapping_sub(recorded) as i64;
                    return Some(format!("CPU {cpu}, {group:?}: min_vruntime off by {off}"));
                }
            }
        }
        for (at, &task) in self.tasks.iter().enumerate() {
            let recorded = vruntimes[at].as_u64();
            let ours = self.fair.view(task).unwrap().entity.vruntime;
            if let Some(recorded) = recorded.filter(|_| self.forked[at])
                && ours != recorded
            {
                let off = ours.wrapping_sub(recorded) as i64;
                return Some(format!("task {at}: vruntime off by {off}"));
            }
        }
        None
    }
}

#[test]
fn cfs_as_in_6_1() {
    for file in files::of("cfs") {
        let mut steps = 0;
        for (n, sequence) in file.sequences().enumerate() {
            let mut host = Host::new(&file.header["cfs"], &sequence);
            for (at, step) in sequence["steps"].as_array().unwrap().iter().enumerate() {
                let what = step[0].as_str().unwrap();
                let args = step[1].as_array().unwrap().iter();
                let args: Vec<i64> = args.map(|arg| arg.as_i64().unwrap()).collect();
                let now = step[2].as_u64().unwrap();
                host.step(what, &args, now);
                if let Some(differs) = host.differs(&step[3], &step[4]) {
                    let path = file.path.display();
                    panic!("{path}: sequence {n}, step {at}, {what} {args:?} at {now}: {differs}");
                }
                steps += 1;
            }
        }
        assert!(steps > 1_000, "{}: {steps} steps", file.path.display());
    }
}
