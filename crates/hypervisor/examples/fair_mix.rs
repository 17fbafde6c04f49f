//! A mix of operations on nested groups without clocks, for counting instructions.
//!
//! `fair_mix eevdf|flat|cfs ROUNDS`: tasks in groups two levels deep sleep, wake, tick, migrate and
//! yield to each other. Prints a checksum of all picks, so that two builds can be compared under
//! `valgrind --tool=callgrind`.
#![allow(clippy::unwrap_used, reason = "a driver may fail")]

use stealtime_hypervisor::fair::{
    Attr, Block, Cfs, Config, Fair, GroupId, PickMode, RqId, TaskId, TaskState,
};

const CPUS: usize = 4;
const GROUPS: usize = 6;
const TASKS: usize = 40;

struct Mix {
    fair: Fair,
    rqs: Vec<RqId>,
    tasks: Vec<TaskId>,
    now: u64,
    seed: u64,
    sum: u64,
}

impl Mix {
    fn new(config: Config, mode: PickMode) -> Self {
        let mut fair = Fair::new(config).unwrap();
        fair.set_self_check(false);
        let rqs: Vec<RqId> = (0..CPUS).map(|_| fair.create_rq(mode).unwrap()).collect();
        let mut groups: Vec<GroupId> = Vec::new();
        for n in 0..GROUPS {
            let parent = (n >= GROUPS / 2).then(|| groups[n - GROUPS / 2]);
            let group = fair.create_group(parent).unwrap();
            for rq in &rqs {
                fair.extend_group(group, *rq).unwrap();
            }
            groups.push(group);
        }
        let mut tasks = Vec::new();
        for n in 0..TASKS {
            let attr = Attr {
                nice: [0, 0, 0, -5, 5][n % 5],
                ..Attr::default()
            };
            let group = groups.get(n % (GROUPS + 2)).copied();
            let task = fair.create_task(attr, group).unwrap();
            fair.fork(task, rqs[n % CPUS], 0).unwrap();
            tasks.push(task);
        }
        for rq in &rqs {
            fair.pick(*rq, 0).unwrap();
        }
        Self {
            fair,
            rqs,
            tasks,
            now: 0,
            seed: 7,
            sum: 0,
        }
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        (self.seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % sides
    }

    fn any_task(&mut self) -> TaskId {
        let n = self.roll(TASKS);
        self.tasks[n]
    }

    fn any_rq(&mut self) -> RqId {
        let n = self.roll(CPUS);
        self.rqs[n]
    }

    fn pick(&mut self, rq: RqId) {
        let picked = self.fair.pick(rq, self.now).unwrap().task;
        let slot = picked.map_or(0, |task| task.slot() as u64 + 1);
        self.sum = self.sum.wrapping_mul(31).wrapping_add(slot);
    }

    fn step(&mut self) {
        self.now += 20_000 + self.roll(400_000) as u64;
        let rq = self.any_rq();
        let running = self.fair.running(rq).unwrap();
        match self.roll(16) {
            0..=3 if running.is_some() => {
                self.fair.block(rq, Block::Sleep, self.now).unwrap();
                self.pick(rq);
            }
            4 if running.is_some() => {
                let target = self.any_task();
                self.fair.yield_to(rq, target, self.now).unwrap();
                self.pick(rq);
            }
            5..=7 => {
                self.fair.tick(rq, self.now).unwrap();
                self.pick(rq);
            }
            8..=9 => self.migrate(rq),
            10 => self.pick(rq),
            _ => self.wake(rq),
        }
    }

    fn wake(&mut self, rq: RqId) {
        let task = self.any_task();
        let view = self.fair.view(task).unwrap();
        if view.state == TaskState::Asleep {
            let rq = if view.delayed { view.rq.unwrap() } else { rq };
            self.fair.wake(task, rq, self.now).unwrap();
            self.pick(rq);
        }
    }

    fn migrate(&mut self, rq: RqId) {
        let task = self.any_task();
        let view = self.fair.view(task).unwrap();
        if view.entity.on_rq && !view.running {
            self.fair.detach(task, self.now).unwrap();
            self.fair.attach(task, rq, self.now).unwrap();
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let rounds = args.get(2).and_then(|a| a.parse::<usize>().ok());
    let (Some(class), Some(rounds)) = (args.get(1), rounds) else {
        eprintln!("use: fair_mix eevdf|flat|cfs ROUNDS");
        std::process::exit(2);
    };
    let mut config = Config::linux_7_2(16);
    let mut mode = PickMode::Hierarchical;
    match class.as_str() {
        "flat" => mode = PickMode::Flat,
        "cfs" => config.cfs = Some(Cfs::linux_6_1(16)),
        _ => {}
    }
    let mut mix = Mix::new(config, mode);
    for _ in 0..rounds {
        mix.step();
    }
    println!("picks sum to {:x}", mix.sum);
}
