//! Random schedulers, and random operations that fit their state.

use stealtime_hypervisor::fair::{
    CgroupMode, Feature, Features, OtherLoad, PickMode, Policy, Preempt, WakeFlags,
};

use crate::model::{Model, State};
use crate::op::{GroupSetup, Op, Setup, Step};

/// A small generator (xorshift64*): the seed is all that a run depends on.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 20) % sides.max(1)
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len() as u64) as usize]
    }

    /// A number of any magnitude up to `2^bits`.
    fn scale(&mut self, bits: u64) -> u64 {
        let bits = self.roll(bits + 1);
        self.roll(1 << bits)
    }
}

/// Kinds of operations; each run has its own mix.
const KINDS: usize = 22;

pub(crate) struct Generator {
    dice: Dice,
    pub(crate) setup: Setup,
    mix: [u64; KINDS],
    /// All tasks are alike and time passes in even steps: many deadlines are equal.
    even: bool,
    max_tasks: usize,
    pub(crate) steps: usize,
    now: u64,
    next_id: i64,
    /// A CPU with a pick due, since its task has blocked or yielded.
    due: Option<usize>,
    detached: Vec<i64>,
}

fn features(dice: &mut Dice) -> Features {
    let every = Features::LINUX_7_2.with(Feature::YieldToLagCredit);
    let mut set = every.with(Feature::NextBuddy);
    let plain = dice.one_in(2);
    for feature in Feature::ALL {
        let off = match feature {
            Feature::Hrtick | Feature::NextBuddy => dice.one_in(2),
            _ => !plain && dice.one_in(3),
        };
        if off {
            set = set.without(feature);
        }
    }
    if dice.one_in(3) {
        return set;
    }
    set.without(Feature::YieldToLagCredit)
}

fn groups(dice: &mut Dice) -> Vec<GroupSetup> {
    let (count, deep) = (dice.roll(8) as usize, dice.one_in(3));
    let mut groups = Vec::new();
    for g in 0..count {
        let parent = if deep {
            g
        } else {
            dice.roll(g as u64 + 1) as usize
        };
        groups.push(GroupSetup {
            parent,
            shares: shares(dice),
            ext_load: vec![if dice.one_in(2) { 0 } else { dice.scale(24) }],
        });
    }
    groups
}

fn shares(dice: &mut Dice) -> u64 {
    match dice.roll(4) {
        0 => 1 << 20,
        1 => dice.of(&[1, 2048, 2049, 3072, 1 << 28, u64::MAX >> 1]),
        _ => 1 + dice.scale(28),
    }
}

fn nice(dice: &mut Dice) -> i8 {
    match dice.roll(3) {
        0 => 0,
        1 => dice.of(&[-20, 19, -1, 1]),
        _ => dice.roll(40) as i8 - 20,
    }
}

fn slice(dice: &mut Dice) -> u64 {
    match dice.roll(4) {
        0 => dice.of(&[1, 100_000, 100_000_000, 700_000, 2_800_000, u64::MAX >> 1]),
        1 => 100_000 + dice.roll(5_000_000),
        _ => 0,
    }
}

fn policy(dice: &mut Dice) -> Policy {
    let normal = Policy::Normal;
    dice.of(&[normal, normal, normal, normal, Policy::Batch, Policy::Idle])
}

impl Generator {
    pub(crate) fn new(seed: u64, steps: usize) -> Self {
        let mut dice = Dice::new(seed);
        let kernel_loads = dice.roll(3) > 0;
        let setup = Setup {
            features: features(&mut dice),
            preempt: dice.of(&[Preempt::Lazy, Preempt::Full]),
            tick_ns: dice.of(&[1_000_000, 4_000_000, 3_333_333, 10_000_000, 100_000]),
            migration_cost_ns: dice.of(&[500_000, 0, 3]),
            base_slice_ns: dice.of(&[2_800_000, 2_800_000, 700_000, 2_100_000, 100_000]),
            other_load: match kernel_loads {
                true => OtherLoad::External,
                false => dice.of(&[OtherLoad::External, OtherLoad::Instantaneous]),
            },
            cgroup_mode: if kernel_loads {
                CgroupMode::Smp
            } else {
                dice.of(&CgroupMode::ALL)
            },
            keep_request: dice.one_in(2),
            mode: dice.of(&[PickMode::Hierarchical, PickMode::Flat]),
            cpus: dice.of(&[1, 1, 1, 2, 3]),
            groups: groups(&mut dice),
        };
        let mut mix = [0; KINDS];
        for weight in &mut mix {
            // Some kinds are common in a run, some are not there at all.
            *weight = dice.of(&[0, 1, 2, 4, 12]);
        }
        // Something has to come, run and go.
        mix[0] += 1;
        mix[1] += 2;
        mix[5] += 2;
        if mix[19] > 0 {
            mix[20] += 2;
        }
        let even = dice.one_in(4);
        if even {
            // Changes of nice and attributes would make tasks unlike.
            (mix[13], mix[14]) = (0, 0);
        }
        let max_tasks = dice.of(&[2, 3, 5, 8, 14, 20, 70]);
        Self {
            now: dice.scale(50),
            dice,
            setup,
            mix,
            even,
            max_tasks,
            // All is compared with all: large queues take their time.
            steps: if max_tasks > 20 { steps / 8 } else { steps },
            next_id: 0,
            due: None,
            detached: Vec::new(),
        }
    }

    fn elapse(&mut self) {
        if self.even {
            self.now += 350_000 * self.dice.of(&[0, 0, 0, 1, 2, 8]);
            return;
        }
        self.now += match self.dice.roll(32) {
            0..8 => 0,
            8..12 => self.dice.roll(16),
            12..24 => self.dice.roll(1_000_000),
            24..30 => self.dice.roll(5_000_000),
            30 => self.dice.scale(27),
            _ => self.dice.scale(34),
        };
    }

    /// A CPU on which something has run unaccounted for too long to let more time pass.
    fn overdue(&self, model: &Model) -> Option<usize> {
        let stale = |q: usize| {
            let curr = model.queues[q].curr;
            curr.is_some_and(|c| self.now - model.entities[c].exec > 1 << 35)
        };
        (0..self.setup.cpus).find(|cpu| (0..model.groups.len()).any(|g| stale(model.q(*cpu, g))))
    }

    fn any_task(&mut self, model: &Model, fits: impl Fn(&Model, usize) -> bool) -> Option<usize> {
        let lives = |e: usize| !matches!(model.entities[e].state, State::Exiting | State::Gone);
        let fit = |e: &&usize| lives(**e) && fits(model, **e);
        let all: Vec<usize> = model.tasks.values().filter(fit).copied().collect();
        (!all.is_empty()).then(|| self.dice.of(&all))
    }

    /// The next operation that is allowed as things are.
    pub(crate) fn step(&mut self, model: &Model) -> Step {
        if let Some(cpu) = self.due.take() {
            if !self.detached.is_empty() && self.dice.one_in(4) {
                // Newly idle balancing comes before the pick.
                self.due = Some(cpu);
                let i = self.dice.roll(self.detached.len() as u64) as usize;
                let id = self.detached.swap_remove(i);
                return self.at(cpu, Op::Attach { id });
            }
            if self.dice.one_in(16) {
                // What happens between the halves of one schedule().
                self.now += self.dice.roll(100_000);
            }
            return self.at(cpu, Op::Pick);
        }
        if let Some(cpu) = self.overdue(model) {
            return self.at(cpu, Op::Tick);
        }
        self.elapse();
        if let Some(cpu) = self.overdue(model) {
            return self.at(cpu, Op::Tick);
        }
        loop {
            let cpu = self.dice.roll(self.setup.cpus as u64) as usize;
            let total = self.mix.iter().sum();
            let mut at = self.dice.roll(total);
            let kind = self.mix.iter().position(|w| {
                let here = at < *w;
                at = at.saturating_sub(*w);
                here
            });
            let op = self.own(model, cpu, kind.unwrap_or(0));
            if let Some((cpu, op)) = op {
                return self.at(cpu, op);
            }
        }
    }

    fn at(&self, cpu: usize, op: Op) -> Step {
        Step {
            cpu,
            t: self.now,
            op,
        }
    }

    /// An operation of one kind; `None` if there is none that is allowed.
    fn own(&mut self, model: &Model, cpu: usize, kind: usize) -> Option<(usize, Op)> {
        let runs = model.cpus[cpu].curr;
        let id = |e: usize| model.entities[e].id;
        let op = match kind {
            0 => self.fork(model)?,
            1 => Op::Pick,
            2 => Op::Tick,
            3 if model.cpus[cpu].hrtick != 0 || self.dice.one_in(8) => Op::Hrtick,
            4 => Op::Account,
            5 | 6 => return self.wake(model, cpu),
            7..=9 => {
                runs?;
                self.due = Some(cpu);
                self.dice
                    .of(&[Op::Sleep, Op::Sleep, Op::Sleep, Op::SleepSpecial])
            }
            10 => {
                runs?;
                self.due = (!self.dice.one_in(10)).then_some(cpu);
                Op::Yield
            }
            11 | 12 => {
                runs?;
                let to = self.any_task(model, |_, _| true)?;
                self.due = (!self.dice.one_in(10)).then_some(cpu);
                Op::YieldTo { to: id(to) }
            }
            13 => Op::SetNice {
                id: id(self.any_task(model, |_, _| true)?),
                nice: nice(&mut self.dice),
            },
            14 => self.set_attr(model)?,
            15 => Op::Move {
                id: id(self.any_task(model, |_, _| true)?),
                group: self.dice.roll(model.groups.len() as u64) as usize,
            },
            16 => return self.migrate(model, cpu),
            17 => self.change_group(model)?,
            18 if runs.is_some() && self.dice.one_in(4) => {
                self.due = Some(cpu);
                Op::Exit
            }
            19 => {
                runs?;
                self.due = Some(cpu);
                Op::Throttle
            }
            20 => {
                let throttled = |m: &Model, e: usize| {
                    let ent = &m.entities[e];
                    ent.state == State::Throttled && m.cpus[ent.cpu].curr != Some(e)
                };
                let e = self.any_task(model, throttled)?;
                return Some((model.entities[e].cpu, Op::Unthrottle { id: id(e) }));
            }
            21 => Op::SetAffinity {
                id: id(self.any_task(model, |_, _| true)?),
            },
            _ => return None,
        };
        Some((cpu, op))
    }

    fn fork(&mut self, model: &Model) -> Option<Op> {
        if model.tasks.len() >= self.max_tasks {
            return None;
        }
        self.next_id += 1;
        if self.even {
            return Some(Op::Fork {
                id: self.next_id,
                nice: 0,
                policy: Policy::Normal,
                slice: 0,
                group: self.dice.roll(model.groups.len() as u64) as usize,
            });
        }
        Some(Op::Fork {
            id: self.next_id,
            nice: nice(&mut self.dice),
            policy: policy(&mut self.dice),
            slice: slice(&mut self.dice),
            group: self.dice.roll(model.groups.len() as u64) as usize,
        })
    }

    fn wake(&mut self, model: &Model, cpu: usize) -> Option<(usize, Op)> {
        let sleeps = |m: &Model, e: usize| {
            let ent = &m.entities[e];
            ent.state == State::Asleep && m.cpus[ent.cpu].curr != Some(e)
        };
        let e = self.any_task(model, sleeps)?;
        let flags = WakeFlags {
            sync: self.dice.one_in(3),
            rq_selected: self.dice.one_in(2),
        };
        let ent = &model.entities[e];
        if self.detached.contains(&ent.id) {
            return None;
        }
        Some((
            if ent.on_rq { ent.cpu } else { cpu },
            Op::Wake { id: ent.id, flags },
        ))
    }

    fn set_attr(&mut self, model: &Model) -> Option<Op> {
        let e = self.any_task(model, |_, _| true)?;
        let ent = &model.entities[e];
        let same = self.dice.one_in(3);
        Some(Op::SetAttr {
            id: ent.id,
            policy: if same {
                ent.policy
            } else {
                policy(&mut self.dice)
            },
            nice: if same { ent.nice } else { nice(&mut self.dice) },
            slice: if self.dice.one_in(4) {
                ent.slice
            } else {
                slice(&mut self.dice)
            },
        })
    }

    /// Off one CPU, or onto another.
    fn migrate(&mut self, model: &Model, cpu: usize) -> Option<(usize, Op)> {
        if !self.detached.is_empty() && self.dice.one_in(2) {
            let i = self.dice.roll(self.detached.len() as u64) as usize;
            let id = self.detached.swap_remove(i);
            return Some((cpu, Op::Attach { id }));
        }
        let waits = |m: &Model, e: usize| {
            let ent = &m.entities[e];
            ent.on_rq && m.cpus[ent.cpu].curr != Some(e)
        };
        let e = self.any_task(model, waits)?;
        let id = model.entities[e].id;
        self.detached.push(id);
        Some((model.entities[e].cpu, Op::Detach { id }))
    }

    fn change_group(&mut self, model: &Model) -> Option<Op> {
        let count = model.groups.len() as u64 - 1;
        if count == 0 {
            return None;
        }
        let group = 1 + self.dice.roll(count) as usize;
        Some(match self.dice.roll(4) {
            0 => Op::SetIdle {
                group,
                idle: self.dice.one_in(2),
            },
            1 => Op::ExtLoad {
                group,
                load: if self.dice.one_in(3) {
                    0
                } else {
                    self.dice.scale(30)
                },
            },
            _ => Op::SetShares {
                group,
                shares: shares(&mut self.dice),
            },
        })
    }
}
