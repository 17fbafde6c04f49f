//! The scheduler of the model: the fair class as it is, with what a CPU has to remember.

use core::hash::{Hash, Hasher};

use stealtime_hypervisor::directed_yield::YieldTo;
use stealtime_hypervisor::fair::{
    Actions, Attr, Config, Error, Fair, Feature, PickMode, Resched, RqId, TaskId, YieldTo as Answer,
};
use stealtime_hypervisor::lag_credit::{CreditFault, LagCredit, Method};

use super::{STEP_NS, Switch, THIRD, VCPUS};
use crate::fingerprint::Fingerprint;

/// Lag aimed at for each other entity: it must be cut to the bound of any lag.
const MARGIN_NS: u64 = 11_200_000;
const TICK_NS: u64 = 1_000_000;

/// Run queues of two CPUs.
#[derive(Clone, Debug)]
pub(crate) struct Sched {
    fair: Fair,
    rqs: [RqId; 2],
    /// vCPUs 0 to 2, and the third party.
    tasks: [TaskId; VCPUS + 1],
    resched: [bool; 2],
    /// When the scenario begins.
    pub(super) started_ns: u64,
    bound: i64,
    digest: [u64; 2],
}

impl PartialEq for Sched {
    fn eq(&self, peer: &Self) -> bool {
        self.digest == peer.digest && self.resched == peer.resched
    }
}

impl Eq for Sched {}

impl Hash for Sched {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.digest, self.resched).hash(state);
    }
}

/// What a directed yield did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) answer: YieldTo,
    pub(super) forced: bool,
    /// A lag of the target that a credit must not leave, and the bound.
    pub(super) lag_out_of_bounds: Option<(i64, i64)>,
}

impl Sched {
    /// vCPU 1 has run for so long that it is not eligible, vCPU 0 runs and is to spin.
    pub(super) fn new(fault: CreditFault) -> Self {
        let sched = Self::create(fault);
        sched.unwrap_or_else(|error| unreachable!("a scheduler of two CPUs: {error}"))
    }

    fn create(fault: CreditFault) -> Result<Self, Error> {
        let config = Config::linux_7_2(8);
        let config = Config {
            features: config.features.with(Feature::YieldToLagCredit),
            tick_ns: TICK_NS,
            lag_credit: LagCredit {
                method: Method::Credit {
                    margin_ns: MARGIN_NS,
                    keep_request: false,
                },
                ..LagCredit::SERIES_V3
            },
            ..config
        };
        let mut fair = Fair::new(config)?;
        fair.set_self_check(false);
        fair.set_credit_fault(fault);
        let rqs = [
            fair.create_rq(PickMode::Hierarchical)?,
            fair.create_rq(PickMode::Hierarchical)?,
        ];
        let (vm, outsiders) = (fair.create_group(None)?, fair.create_group(None)?);
        for rq in rqs {
            fair.extend_group(vm, rq)?;
            fair.extend_group(outsiders, rq)?;
        }
        let mut task = |group| fair.create_task(Attr::default(), Some(group));
        let tasks = [task(vm)?, task(vm)?, task(vm)?, task(outsiders)?];
        fair.fork(tasks[1], rqs[0], 0)?;
        fair.pick(rqs[0], 0)?;
        fair.fork(tasks[0], rqs[0], 0)?;
        fair.fork(tasks[THIRD], rqs[0], 0)?;
        fair.fork(tasks[2], rqs[1], 0)?;
        fair.pick(rqs[1], 0)?;
        let mut now = 0;
        while fair.running(rqs[0])? != Some(tasks[0]) && now < 10 * STEP_NS {
            now += STEP_NS;
            fair.tick(rqs[0], now)?;
            fair.pick(rqs[0], now)?;
        }
        let bound = i64::try_from(config.base_slice_ns + TICK_NS).unwrap_or(i64::MAX);
        let mut sched = Self {
            fair,
            rqs,
            tasks,
            resched: [false; 2],
            started_ns: now,
            bound,
            digest: [0; 2],
        };
        sched.remember();
        Ok(sched)
    }

    fn remember(&mut self) {
        self.digest = Fingerprint::of(&self.fair);
    }

    fn note(&mut self, cpu: usize, actions: Result<Actions, Error>) -> bool {
        if let Ok(actions) = actions {
            self.resched[cpu] = actions.resched != Resched::None;
        }
        self.remember();
        actions.is_ok()
    }

    /// The task that runs on a CPU: a vCPU, or [`THIRD`].
    pub(super) fn running(&self, cpu: usize) -> Option<u8> {
        let task = self.fair.running(self.rqs[cpu]).ok()??;
        let found = self.tasks.iter().position(|t| *t == task);
        found.map(|n| n as u8)
    }

    pub(super) fn wants_pick(&self, cpu: usize) -> bool {
        self.resched[cpu]
    }

    pub(super) fn consistent(&self, cpu: usize) -> bool {
        self.fair.consistent(self.rqs[cpu])
    }

    pub(super) fn tick(&mut self, cpu: usize, now: u64) {
        let actions = self.fair.tick(self.rqs[cpu], now);
        self.note(cpu, actions);
    }

    /// Picks, and returns the switch if the current task changes.
    pub(super) fn pick(&mut self, cpu: usize, now: u64) -> Option<Switch> {
        let prev = self.running(cpu);
        let actions = self.fair.pick(self.rqs[cpu], now).map(|p| p.actions);
        self.note(cpu, actions);
        let next = self.running(cpu);
        (prev != next).then_some(Switch { prev, next })
    }

    pub(super) fn may_detach(&self, task: usize) -> bool {
        let view = self.fair.view(self.tasks[task]);
        view.is_ok_and(|v| v.entity.on_rq && !v.running && v.rq == Some(self.rqs[0]))
    }

    pub(super) fn detach(&mut self, task: usize, now: u64) -> bool {
        let actions = self.fair.detach(self.tasks[task], now);
        self.note(0, actions)
    }

    pub(super) fn attach(&mut self, task: usize, cpu: usize, now: u64) {
        let actions = self.fair.attach(self.tasks[task], self.rqs[cpu], now);
        self.note(cpu, actions);
    }

    pub(super) fn yield_to(&mut self, cpu: usize, vcpu: u8, now: u64) -> Done {
        let target = self.tasks[usize::from(vcpu) % self.tasks.len()];
        let answer = self.fair.yield_to(self.rqs[cpu], target, now);
        let mut yielded = Done {
            answer: YieldTo::Declined,
            forced: false,
            lag_out_of_bounds: None,
        };
        match answer {
            Ok(Answer::OnlyOne) => yielded.answer = YieldTo::BothAlone,
            Ok(Answer::Yielded {
                kicked,
                credit,
                actions,
                ..
            }) => {
                yielded.answer = YieldTo::Yielded;
                yielded.forced = credit.forced;
                if credit.levels > 0 {
                    yielded.lag_out_of_bounds = self.wrong_lag(target);
                }
                self.resched[cpu] = actions.resched != Resched::None;
                if let Some(cpu) = self.rqs.iter().position(|rq| Some(*rq) == kicked) {
                    self.resched[cpu] = true;
                }
            }
            _ => {}
        }
        self.remember();
        yielded
    }

    /// A lag of a credited task below 0 on some level, or beyond the bound on its own.
    fn wrong_lag(&self, task: TaskId) -> Option<(i64, i64)> {
        let mut wrong = None;
        // It is queued: it was credited.
        let _ = self.fair.eligibility(task, &mut |level| {
            if level.vlag < 0 {
                wrong = Some(level.vlag);
            }
        });
        let credited = self.fair.view(task).map_or(0, |view| view.entity.vlag);
        let beyond = (credited > self.bound).then_some(credited);
        wrong.or(beyond).map(|lag| (lag, self.bound))
    }
}
