//! The reference: the fair class as a list of entities, written from its description.
//!
//! Nothing is kept that can be computed: sums, averages, counters and loads are found by looking
//! at all entities, in 128 bits. It shares no code with the crate but the names of its switches.

use std::cell::RefCell;
use std::collections::BTreeMap;

use stealtime_hypervisor::fair::{Feature, PickMode, Policy, Preempt};

use crate::op::{Answer, Op, Scheduler, Setup, Step};
use crate::walk::{ASLEEP, SPECIAL, THROTTLE};

/// Weight of nice 0.
pub(crate) const N0: u64 = 1 << 20;

/// Requests to reschedule.
pub(crate) const LAZY: u8 = 1;
pub(crate) const NOW: u8 = 2;

const NICE_WEIGHT: [u64; 40] = [
    88_761, 71_755, 56_483, 46_273, 36_291, 29_154, 23_254, 18_705, 14_949, 11_916, 9_548, 7_620,
    6_100, 4_904, 3_906, 3_121, 2_501, 1_991, 1_586, 1_277, 1_024, 820, 655, 526, 423, 335, 272,
    215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15,
];

/// What a task does; groups have none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Runnable,
    Asleep,
    Throttled,
    Exiting,
    Gone,
}

#[derive(Clone, Debug)]
pub(crate) struct Entity {
    pub(crate) id: i64,
    pub(crate) cpu: usize,
    /// Group of the queue that it is in, 0 for the root.
    pub(crate) group: usize,
    /// Group that it stands for; `None` for a task.
    pub(crate) own: Option<usize>,
    /// Weight on its level.
    pub(crate) load: u64,
    /// Weight at which it competes: the same, but under flat picking.
    pub(crate) weight: u64,
    pub(crate) vruntime: u64,
    pub(crate) deadline: u64,
    pub(crate) vlag: i64,
    pub(crate) vprot: u64,
    pub(crate) slice: u64,
    pub(crate) exec: u64,
    pub(crate) on_rq: bool,
    pub(crate) delayed: bool,
    pub(crate) rel: bool,
    pub(crate) custom: bool,
    pub(crate) policy: Policy,
    /// `static_prio`, as a nice value.
    pub(crate) nice: i8,
    /// `prio`, as a nice value: what the last change asked for, under any policy.
    pub(crate) prio: i8,
    pub(crate) state: State,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// Competing entities but the running one, in the order in which they came.
    pub(crate) tree: Vec<usize>,
    pub(crate) curr: Option<usize>,
    pub(crate) next: Option<usize>,
    pub(crate) zero: u64,
    pub(crate) ext_load: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Cpu {
    pub(crate) curr: Option<usize>,
    pub(crate) resched: u8,
    pub(crate) announced: bool,
    pub(crate) hrtick: u64,
    /// When a lag credit last forced a reschedule.
    pub(crate) forced: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) parent: usize,
    pub(crate) shares: u64,
    pub(crate) idle: bool,
}

pub(crate) struct Model {
    pub(crate) setup: Setup,
    pub(crate) now: u64,
    pub(crate) entities: Vec<Entity>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) cpus: Vec<Cpu>,
    /// The root group is 0.
    pub(crate) groups: Vec<Group>,
    pub(crate) tasks: BTreeMap<i64, usize>,
    /// How often each case that is worth reaching was reached.
    pub(crate) marks: RefCell<BTreeMap<&'static str, u64>>,
}

/// Weight of a task.
pub(crate) fn weight_of(policy: Policy, nice: i8) -> u64 {
    match policy {
        Policy::Idle => 3 << 10,
        _ => NICE_WEIGHT[(nice + 20) as usize] << 10,
    }
}

impl Model {
    pub(crate) fn new(setup: &Setup) -> Self {
        let mut groups = vec![Group {
            parent: 0,
            shares: N0,
            idle: false,
        }];
        groups.extend(setup.groups.iter().map(|g| Group {
            parent: g.parent,
            shares: g.shares.clamp(2 << 10, 1 << 28),
            idle: false,
        }));
        let mut model = Self {
            setup: setup.clone(),
            now: 0,
            entities: Vec::new(),
            queues: Vec::new(),
            cpus: Vec::new(),
            groups,
            tasks: BTreeMap::new(),
            marks: RefCell::default(),
        };
        for cpu in 0..setup.cpus {
            model.cpus.push(Cpu {
                curr: None,
                resched: 0,
                announced: false,
                hrtick: 0,
                forced: None,
            });
            for g in 0..model.groups.len() {
                let ext_load = if g == 0 {
                    0
                } else {
                    setup.groups[g - 1].ext_load(cpu)
                };
                model.queues.push(Queue {
                    tree: Vec::new(),
                    curr: None,
                    next: None,
                    zero: 0u64.wrapping_sub(N0),
                    ext_load,
                });
                if g > 0 {
                    let mut e = Entity::blank(-(g as i64), cpu, model.groups[g].parent);
                    e.own = Some(g);
                    model.entities.push(e);
                }
            }
        }
        model
    }

    /// Notes that a case was reached, if it was.
    pub(crate) fn mark(&self, what: &'static str, reached: bool) {
        if reached {
            *self.marks.borrow_mut().entry(what).or_default() += 1;
        }
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.setup.features.has(feature)
    }

    pub(crate) fn flat(&self) -> bool {
        self.setup.mode == PickMode::Flat
    }

    /// The queue of a group on a CPU.
    pub(crate) fn q(&self, cpu: usize, group: usize) -> usize {
        cpu * self.groups.len() + group
    }

    pub(crate) fn group_entity(&self, cpu: usize, group: usize) -> usize {
        cpu * (self.groups.len() - 1) + group - 1
    }

    /// Queue of an entity's own level.
    pub(crate) fn level(&self, e: usize) -> usize {
        self.q(self.entities[e].cpu, self.entities[e].group)
    }

    /// Queue in which an entity competes.
    pub(crate) fn arena(&self, e: usize) -> usize {
        if self.flat() {
            self.q(self.entities[e].cpu, 0)
        } else {
            self.level(e)
        }
    }

    pub(crate) fn parent(&self, e: usize) -> Option<usize> {
        let e = &self.entities[e];
        (e.group != 0).then(|| self.group_entity(e.cpu, e.group))
    }

    pub(crate) fn is_task(&self, e: usize) -> bool {
        self.entities[e].own.is_none()
    }

    pub(crate) fn own_queue(&self, e: usize) -> usize {
        self.q(self.entities[e].cpu, self.entities[e].own.unwrap())
    }

    pub(crate) fn is_idle(&self, e: usize) -> bool {
        match self.entities[e].own {
            Some(g) => self.groups[g].idle,
            None => self.entities[e].policy == Policy::Idle,
        }
    }

    /// Entities of a level that are on it.
    fn on_level(&self, q: usize) -> impl Iterator<Item = usize> {
        (0..self.entities.len()).filter(move |e| self.entities[*e].on_rq && self.level(*e) == q)
    }

    /// Weight of all entities of a level.
    pub(crate) fn load(&self, q: usize) -> u64 {
        self.on_level(q).map(|e| self.entities[e].load).sum()
    }

    /// Tasks at and below a queue: all, those not delayed, and the idle ones.
    pub(crate) fn counts(&self, q: usize) -> [i64; 3] {
        let mut sum = [0; 3];
        for e in self.on_level(q) {
            let one = if self.is_task(e) {
                let (delayed, idle) = (self.entities[e].delayed, self.is_idle(e));
                [1, i64::from(!delayed), i64::from(idle)]
            } else {
                let [all, runnable, idle] = self.counts(self.own_queue(e));
                [all, runnable, if self.is_idle(e) { all } else { idle }]
            };
            for (sum, one) in sum.iter_mut().zip(one) {
                *sum += one;
            }
        }
        sum
    }

    /// Tasks on a CPU, delayed ones counted.
    pub(crate) fn nr_running(&self, cpu: usize) -> i64 {
        self.counts(self.q(cpu, 0))[0]
    }

    pub(crate) fn request(&mut self, cpu: usize, level: u8) {
        let full = self.setup.preempt == Preempt::Full;
        let cpu = &mut self.cpus[cpu];
        let level = if full || cpu.curr.is_none() {
            NOW
        } else {
            level
        };
        cpu.resched = cpu.resched.max(level);
    }

    fn numbered(&self, cpu: usize, id: i64) -> Option<&Entity> {
        let e = if id < 0 {
            self.group_entity(cpu, -id as usize)
        } else {
            *self.tasks.get(&id)?
        };
        let e = &self.entities[e];
        (e.state != State::Gone).then_some(e)
    }

    fn known(&self, e: Option<usize>) -> i64 {
        e.map_or(0, |e| self.entities[e].id)
    }
}

impl Entity {
    pub(crate) fn blank(id: i64, cpu: usize, group: usize) -> Self {
        Self {
            id,
            cpu,
            group,
            own: None,
            load: N0,
            weight: N0,
            vruntime: 0,
            deadline: 0,
            vlag: 0,
            vprot: 0,
            slice: 0,
            exec: 0,
            on_rq: false,
            delayed: false,
            rel: false,
            custom: false,
            policy: Policy::Normal,
            nice: 0,
            prio: 0,
            state: State::Runnable,
        }
    }
}

impl Scheduler for Model {
    fn apply(&mut self, step: &Step) -> Answer {
        self.now = step.t;
        let cpu = step.cpu;
        match step.op {
            Op::Fork { .. } => self.fork(cpu, step.op),
            Op::Wake { id, flags } => self.wake(cpu, id, flags),
            Op::Sleep => self.block(cpu, ASLEEP, State::Asleep),
            Op::SleepSpecial => self.block(cpu, SPECIAL, State::Asleep),
            Op::Throttle => self.block(cpu, THROTTLE, State::Throttled),
            Op::Unthrottle { id } => self.unthrottle(id),
            Op::Exit => self.block(cpu, SPECIAL, State::Exiting),
            Op::Pick => return Some(self.schedule(cpu)),
            Op::Tick => self.tick(cpu),
            Op::Hrtick => self.hrtick(cpu),
            Op::Account => self.account(cpu),
            Op::Yield => self.yield_step(cpu),
            Op::YieldTo { to } => return Some(self.yield_to(cpu, to)),
            Op::SetAffinity { id } => self.set_affinity(id),
            Op::SetNice { id, nice } => self.set_nice(id, nice),
            Op::SetAttr {
                id,
                policy,
                nice,
                slice,
            } => return Some(i64::from(self.set_attr(id, policy, nice, slice))),
            Op::Move { id, group } => self.move_task(id, group),
            Op::SetShares { group, shares } => return Some(self.set_shares(group, shares)),
            Op::ExtLoad { group, load } => {
                let q = self.q(cpu, group);
                self.queues[q].ext_load = load;
            }
            Op::SetIdle { group, idle } => self.set_idle(group, idle),
            Op::Detach { id } => self.detach(id),
            Op::Attach { id } => self.attach(cpu, id),
        }
        None
    }

    fn entity(&self, cpu: usize, id: i64) -> Option<[i64; 9]> {
        let e = self.numbered(cpu, id)?;
        Some([
            e.vruntime as i64,
            e.deadline as i64,
            e.vlag,
            i64::from(e.on_rq),
            i64::from(e.delayed),
            e.vprot as i64,
            e.slice as i64,
            e.load as i64,
            i64::from(e.rel),
        ])
    }

    fn weight(&self, cpu: usize, id: i64) -> Option<u64> {
        Some(self.numbered(cpu, id)?.weight)
    }

    fn queue(&self, cpu: usize, group: usize) -> [i64; 11] {
        let q = self.q(cpu, group);
        let [all, runnable, idle] = self.counts(q);
        let (sum, weight) = self.sums(q, None);
        let queue = &self.queues[q];
        [
            self.on_level(q).count() as i64,
            all,
            runnable,
            idle,
            self.load(q) as i64,
            self.average(q) as i64,
            queue.zero as i64,
            weight as i64,
            sum as i64,
            self.known(queue.curr),
            self.known(queue.next),
        ]
    }

    fn pending(&self, cpu: usize) -> [i64; 2] {
        let cpu = &self.cpus[cpu];
        [i64::from(cpu.resched), cpu.hrtick as i64]
    }

    fn running(&self, cpu: usize) -> i64 {
        self.known(self.cpus[cpu].curr)
    }
}
