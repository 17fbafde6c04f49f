//! The crate's scheduler behind the same operations.

use std::collections::BTreeMap;

use stealtime_hypervisor::fair::{
    Attr, Block, EntityView, Error, Fair, GroupId, Member, Resched, RqId, TaskId, YieldTo,
};

use crate::op::{Answer, Op, Scheduler, Setup, Step};

pub(crate) struct Ours {
    pub(crate) fair: Fair,
    rqs: Vec<RqId>,
    groups: Vec<GroupId>,
    tasks: BTreeMap<i64, TaskId>,
    ids: BTreeMap<TaskId, i64>,
}

impl Ours {
    pub(crate) fn new(setup: &Setup) -> Self {
        let mut fair = Fair::new(setup.config()).unwrap();
        // The comparison looks at more.
        fair.set_self_check(false);
        let rqs: Vec<_> = (0..setup.cpus)
            .map(|_| fair.create_rq(setup.mode).unwrap())
            .collect();
        let mut groups: Vec<GroupId> = Vec::new();
        for g in &setup.groups {
            let parent = (g.parent > 0).then(|| groups[g.parent - 1]);
            let id = fair.create_group(parent).unwrap();
            for (cpu, rq) in rqs.iter().enumerate() {
                fair.extend_group(id, *rq).unwrap();
                fair.set_ext_load(id, *rq, g.ext_load(cpu)).unwrap();
            }
            fair.set_shares(id, g.shares, 0).unwrap();
            groups.push(id);
        }
        Self {
            fair,
            rqs,
            groups,
            tasks: BTreeMap::new(),
            ids: BTreeMap::new(),
        }
    }

    /// With all invariants checked after each operation, in debug builds.
    #[allow(dead_code, reason = "where nothing else is compared")]
    pub(crate) fn checking_itself(mut self) -> Self {
        self.fair.set_self_check(true);
        self
    }

    fn group(&self, g: usize) -> Option<GroupId> {
        (g > 0).then(|| self.groups[g - 1])
    }

    fn number(&self, member: Option<Member>) -> i64 {
        match member {
            None => 0,
            Some(Member::Task(t)) => self.ids[&t],
            Some(Member::Group(g)) => -(1 + g.slot() as i64),
        }
    }

    fn view(&self, cpu: usize, id: i64) -> Option<EntityView> {
        if id < 0 {
            let group = self.groups[-id as usize - 1];
            self.fair.group_entity(self.rqs[cpu], group).ok()
        } else {
            Some(self.fair.view(self.tasks[&id]).ok()?.entity)
        }
    }

    fn fork(&mut self, rq: RqId, now: u64, op: Op) -> Result<(), Error> {
        let Op::Fork {
            id,
            nice,
            policy,
            slice,
            group,
        } = op
        else {
            return Ok(());
        };
        // Slices are requests: the kernel clamps them.
        let attr = Attr {
            policy,
            nice,
            slice_ns: (slice != 0).then(|| slice.clamp(100_000, 100_000_000)),
        };
        let task = self.fair.create_task(attr, self.group(group))?;
        self.tasks.insert(id, task);
        self.ids.insert(task, id);
        self.fair.fork(task, rq, now).map(drop)
    }

    fn act(&mut self, step: &Step) -> Result<Answer, Error> {
        let (rq, now) = (self.rqs[step.cpu], step.t);
        let mut answer = None;
        let fair = &mut self.fair;
        match step.op {
            Op::Fork { .. } => self.fork(rq, now, step.op)?,
            Op::Wake { id, flags } => drop(fair.wake_with(self.tasks[&id], rq, flags, now)?),
            Op::Sleep => drop(fair.block(rq, Block::Sleep, now)?),
            Op::SleepSpecial => drop(fair.block(rq, Block::Special, now)?),
            Op::Throttle => drop(fair.block(rq, Block::Throttle, now)?),
            Op::Unthrottle { id } => drop(fair.unthrottle(self.tasks[&id], now)?),
            Op::Exit => drop(fair.block(rq, Block::Exit, now)?),
            Op::Pick => {
                let picked = fair.pick(rq, now)?.task;
                answer = Some(picked.map_or(0, |t| self.ids[&t]));
            }
            Op::Tick => drop(fair.tick(rq, now)?),
            Op::Hrtick => drop(fair.hrtick(rq, now)?),
            Op::Account => drop(fair.account(rq, now)?),
            Op::Yield => drop(fair.yield_task(rq, now)?),
            Op::YieldTo { to } => {
                answer = Some(match fair.yield_to(rq, self.tasks[&to], now)? {
                    YieldTo::OnlyOne => -3,
                    YieldTo::Refused => 0,
                    YieldTo::Yielded { .. } => 1,
                });
            }
            Op::SetAffinity { id } => fair.set_cpus_allowed(self.tasks[&id], now)?,
            Op::SetNice { id, nice } => fair.set_nice(self.tasks[&id], nice, now)?,
            Op::SetAttr {
                id,
                policy,
                nice,
                slice,
            } => {
                let changed = fair.sched_setattr(self.tasks[&id], policy, nice, slice, now)?;
                answer = Some(i64::from(changed));
            }
            Op::Move { id, group } => {
                let group = (group > 0).then(|| self.groups[group - 1]);
                fair.move_task(self.tasks[&id], group, now)?;
            }
            Op::SetShares { group, shares } => {
                answer = Some(match fair.set_shares(self.groups[group - 1], shares, now) {
                    Err(Error::IdleGroupShares(_)) => -22,
                    other => other.map(|()| 0)?,
                });
            }
            Op::ExtLoad { group, load } => fair.set_ext_load(self.groups[group - 1], rq, load)?,
            Op::SetIdle { group, idle } => fair.set_idle(self.groups[group - 1], idle, now)?,
            Op::Detach { id } => drop(fair.detach(self.tasks[&id], now)?),
            Op::Attach { id } => drop(fair.attach(self.tasks[&id], rq, now)?),
        }
        Ok(answer)
    }
}

impl Scheduler for Ours {
    fn apply(&mut self, step: &Step) -> Answer {
        self.act(step)
            .unwrap_or_else(|e| panic!("{step:?} refused: {e}"))
    }

    fn entity(&self, cpu: usize, id: i64) -> Option<[i64; 9]> {
        let e = self.view(cpu, id)?;
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

    fn weight(&self, cpu: usize, id: i64) -> Option<u64> {
        Some(self.view(cpu, id)?.weight)
    }

    fn queue(&self, cpu: usize, group: usize) -> [i64; 11] {
        let q = self.fair.queue(self.rqs[cpu], self.group(group)).unwrap();
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
            self.number(q.curr),
            self.number(q.next),
        ]
    }

    fn pending(&self, cpu: usize) -> [i64; 2] {
        let pending = self.fair.pending(self.rqs[cpu]).unwrap();
        let resched = match pending.resched {
            Resched::None => 0,
            Resched::Lazy => 1,
            Resched::Now => 2,
        };
        [resched, pending.hrtick.unwrap_or(0) as i64]
    }

    fn running(&self, cpu: usize) -> i64 {
        let running = self.fair.running(self.rqs[cpu]).unwrap();
        running.map_or(0, |t| self.ids[&t])
    }
}
