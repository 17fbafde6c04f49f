//! The same sequence of operations on this crate's scheduler and on the peer.

use stealtime_hypervisor::fair::{Attr, Config, Fair, Feature, PickMode, RqId, TaskId, weights};

use super::peer::{FEATURES, FORK, LOAD_TRACKING, Rq};
use super::rbtree::Node;

/// Something that has run queues with tasks, numbered.
pub(crate) trait World {
    fn dequeue(&mut self, queue: usize, task: usize, now: u64);
    fn enqueue(&mut self, queue: usize, task: usize, now: u64);
    /// Number of the task that runs now.
    fn pick(&mut self, queue: usize, now: u64) -> usize;
}

/// Nice values in use: the weights of a host with a few tuned machines.
pub(crate) fn nice(task: usize) -> i8 {
    [0, 0, 0, 0, -5, 5, 0, 1][task % 8]
}

pub(crate) struct Ours {
    fair: Fair,
    rqs: Vec<RqId>,
    tasks: Vec<Vec<TaskId>>,
    numbers: Vec<usize>,
}

impl Ours {
    pub(crate) fn new(queues: usize, tasks: usize) -> Self {
        let mut config = Config::linux_7_2(16);
        config.features = config.features.without(Feature::Hrtick);
        let mut fair = Fair::new(config).unwrap();
        fair.set_self_check(false);
        let mut all = Self {
            rqs: Vec::new(),
            tasks: Vec::new(),
            numbers: Vec::new(),
            fair: fair.clone(),
        };
        for _ in 0..queues {
            let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
            let mut here = Vec::new();
            for n in 0..tasks {
                let attr = Attr {
                    nice: nice(n),
                    ..Attr::default()
                };
                let task = fair.create_task(attr, None).unwrap();
                fair.fork(task, rq, 0).unwrap();
                here.push(task);
                all.numbers.push(n);
            }
            all.rqs.push(rq);
            all.tasks.push(here);
        }
        all.fair = fair;
        all
    }
}

impl World for Ours {
    fn dequeue(&mut self, queue: usize, task: usize, now: u64) {
        self.fair.detach(self.tasks[queue][task], now).unwrap();
    }

    fn enqueue(&mut self, queue: usize, task: usize, now: u64) {
        self.fair
            .attach(self.tasks[queue][task], self.rqs[queue], now)
            .unwrap();
    }

    fn pick(&mut self, queue: usize, now: u64) -> usize {
        let task = self.fair.pick(self.rqs[queue], now).unwrap().task.unwrap();
        self.numbers[task.slot()]
    }
}

pub(crate) struct Peer {
    rqs: Vec<*mut Rq>,
    nodes: Vec<Vec<*mut Node>>,
}

// SAFETY of the blocks below: run queues and nodes come from `Box::into_raw` in `new`, are freed
// in `drop` only, and no two references to one live at a time.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all, above"
)]
mod links {
    use super::*;

    impl Peer {
        pub(crate) fn new(queues: usize, tasks: usize, tracking: bool) -> Self {
            let features = FEATURES | if tracking { LOAD_TRACKING } else { 0 };
            let mut all = Self {
                rqs: Vec::new(),
                nodes: Vec::new(),
            };
            for _ in 0..queues {
                let rq = Rq::boxed(features);
                let mut here = Vec::new();
                for n in 0..tasks {
                    let weight = weights::weight_of_nice(nice(n));
                    let mut node = Box::new(Node::new(n, weight, 2_800_000));
                    node.cfs = unsafe { (*rq).root };
                    let node = Box::into_raw(node);
                    unsafe { &mut *rq }.enqueue(node, 0, FORK);
                    here.push(node);
                }
                all.rqs.push(rq);
                all.nodes.push(here);
            }
            all
        }
    }

    impl Drop for Peer {
        fn drop(&mut self) {
            for rq in &self.rqs {
                let rq = unsafe { Box::from_raw(*rq) };
                drop(unsafe { Box::from_raw(rq.root) });
            }
            for node in self.nodes.iter().flatten() {
                drop(unsafe { Box::from_raw(*node) });
            }
        }
    }

    impl World for Peer {
        fn dequeue(&mut self, queue: usize, task: usize, now: u64) {
            unsafe { &mut *self.rqs[queue] }.dequeue(self.nodes[queue][task], now, 0);
        }

        fn enqueue(&mut self, queue: usize, task: usize, now: u64) {
            unsafe { &mut *self.rqs[queue] }.enqueue(self.nodes[queue][task], now, 0);
        }

        fn pick(&mut self, queue: usize, now: u64) -> usize {
            unsafe { &mut *self.rqs[queue] }.pick(now)
        }
    }
}

/// A small generator (xorshift64*).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % sides
    }
}

/// Operations in the order of [`Times`].
pub(crate) const OPS: [&str; 3] = ["enqueue", "dequeue", "pick"];

/// One round: on each queue some tasks leave, a pick follows, and they join again.
pub(crate) struct Rounds {
    dice: Dice,
    pub(crate) now: u64,
    running: Vec<usize>,
    queues: usize,
    tasks: usize,
    leave: usize,
}

impl Rounds {
    pub(crate) fn new(world: &mut impl World, queues: usize, tasks: usize) -> Self {
        let running = (0..queues).map(|q| world.pick(q, 0)).collect();
        let leave = (tasks / 2).clamp(1, 8);
        Self {
            dice: Dice(7),
            now: 0,
            running,
            queues,
            tasks,
            leave,
        }
    }

    /// Operations of each kind in a round.
    pub(crate) fn len(&self) -> [usize; 3] {
        [
            self.queues * self.leave,
            self.queues * self.leave,
            self.queues,
        ]
    }

    /// `timed(op, what)` runs one batch. Returns a hash of the picks.
    pub(crate) fn round<W: World>(
        &mut self,
        world: &mut W,
        timed: &mut impl FnMut(usize, &mut W, &mut dyn FnMut(&mut W)),
    ) -> usize {
        let mut plan = Vec::with_capacity(self.queues * self.leave);
        for q in 0..self.queues {
            let start = self.dice.roll(self.tasks);
            let others = (0..self.tasks).map(|i| (start + i * 7) % self.tasks);
            let mut chosen: Vec<usize> = Vec::new();
            for t in others {
                if t != self.running[q] && !chosen.contains(&t) && chosen.len() < self.leave {
                    chosen.push(t);
                }
            }
            if chosen.is_empty() {
                chosen.extend((0..self.tasks).find(|t| *t != self.running[q]));
            }
            plan.extend(chosen.into_iter().map(|t| (q, t)));
        }
        self.now += 700_000 + self.dice.roll(1_500_000) as u64;
        let now = self.now;
        timed(1, world, &mut |w: &mut W| {
            plan.iter().for_each(|(q, t)| w.dequeue(*q, *t, now))
        });
        timed(0, world, &mut |w: &mut W| {
            plan.iter().for_each(|(q, t)| w.enqueue(*q, *t, now))
        });
        self.now += 900_000;
        let (now, running) = (self.now, &mut self.running);
        timed(2, world, &mut |w: &mut W| {
            running
                .iter_mut()
                .enumerate()
                .for_each(|(q, r)| *r = w.pick(q, now));
        });
        self.running.iter().fold(0usize, |hash, picked| {
            hash.wrapping_mul(31).wrapping_add(*picked)
        })
    }
}
