//! Flat picking: effective weights, and what groups get for them.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use stealtime_hypervisor::fair::weights::NICE_0_LOAD;
use stealtime_hypervisor::fair::{
    Attr, Block, CgroupMode, Config, Fair, GroupId, OtherLoad, PickMode, Policy, Resched, RqId,
    TaskId, TaskState,
};

struct Cpu {
    fair: Fair,
    rq: RqId,
}

impl Cpu {
    fn new(mode: PickMode) -> Self {
        let mut fair = Fair::new(Config::linux_7_2(16)).unwrap();
        let rq = fair.create_rq(mode).unwrap();
        Self { fair, rq }
    }

    fn group(&mut self, under: Option<GroupId>, shares: u64) -> GroupId {
        let group = self.fair.create_group(under).unwrap();
        self.fair.extend_group(group, self.rq).unwrap();
        self.fair.set_shares(group, shares, 0).unwrap();
        group
    }

    fn fork(&mut self, group: Option<GroupId>, attr: Attr) -> TaskId {
        let task = self.fair.create_task(attr, group).unwrap();
        self.fair.fork(task, self.rq, 0).unwrap();
        task
    }

    fn weight(&self, task: TaskId) -> u64 {
        self.fair.view(task).unwrap().entity.weight
    }

    /// Runs all tasks as hogs until `end`; CPU time of each in `tasks`, in ns.
    fn run(&mut self, end: u64, tasks: &[TaskId]) -> Vec<u64> {
        let mut ran = vec![0; tasks.len()];
        let mut running = self.fair.pick(self.rq, 0).unwrap().task;
        let (mut now, mut tick) = (0, 4_000_000);
        while now < end {
            let timer = self
                .fair
                .pending(self.rq)
                .unwrap()
                .hrtick
                .unwrap_or(u64::MAX);
            let until = tick.min(timer.max(now));
            if let Some(i) = tasks.iter().position(|t| Some(*t) == running) {
                ran[i] += until - now;
            }
            now = until;
            let actions = if now == tick {
                tick += 4_000_000;
                self.fair.tick(self.rq, now).unwrap()
            } else {
                self.fair.hrtick(self.rq, now).unwrap()
            };
            if actions.resched == Resched::Now {
                running = self.fair.pick(self.rq, now).unwrap().task;
            }
        }
        ran
    }
}

/// The group's second task halves what each of the two is worth; the first learns of it when it
/// is next picked or ticked, not before.
#[test]
fn weight_is_the_share_of_the_tree_and_waits_to_be_refreshed() {
    let mut cpu = Cpu::new(PickMode::Flat);
    let group = cpu.group(None, NICE_0_LOAD);
    let first = cpu.fork(Some(group), Attr::default());
    let root = cpu.fork(None, Attr::default());
    let second = cpu.fork(Some(group), Attr::default());
    assert_eq!(
        [first, root, second].map(|t| cpu.weight(t)),
        [NICE_0_LOAD, NICE_0_LOAD, NICE_0_LOAD / 2]
    );
    cpu.run(100_000_000, &[]);
    assert_eq!(
        [first, root, second].map(|t| cpu.weight(t)),
        [NICE_0_LOAD / 2, NICE_0_LOAD, NICE_0_LOAD / 2]
    );
    // A new weight of the group waits for the next refresh too.
    cpu.fair
        .set_shares(group, NICE_0_LOAD / 2, 100_000_000)
        .unwrap();
    assert_eq!(cpu.weight(first), NICE_0_LOAD / 2);
    let running = cpu.fair.running(cpu.rq).unwrap().unwrap();
    cpu.fair.tick(cpu.rq, 101_000_000).unwrap();
    let expected = if running == root {
        NICE_0_LOAD
    } else {
        NICE_0_LOAD / 4
    };
    assert_eq!(cpu.weight(running), expected);
}

/// The entity of a group begins with the weight of nice 0 (`init_tg_cfs_entry`), whatever there is before it.
#[test]
fn a_group_begins_with_a_weight_of_its_own() {
    for mode in [PickMode::Flat, PickMode::Hierarchical] {
        let mut cpu = Cpu::new(mode);
        let attr = Attr {
            nice: -20,
            ..Attr::default()
        };
        cpu.fork(None, attr);
        let group = cpu.fair.create_group(None).unwrap();
        cpu.fair.extend_group(group, cpu.rq).unwrap();
        let entity = cpu.fair.group_entity(cpu.rq, group).unwrap();
        assert_eq!((entity.load, entity.weight), (NICE_0_LOAD, NICE_0_LOAD));
    }
}

/// Levels multiply, and floor at 2.
#[test]
fn levels_multiply_down_to_the_smallest_weight() {
    let mut cpu = Cpu::new(PickMode::Flat);
    let outer = cpu.group(None, NICE_0_LOAD);
    let inner = cpu.group(Some(outer), NICE_0_LOAD);
    let lone = cpu.fork(
        Some(inner),
        Attr {
            nice: -20,
            ..Attr::default()
        },
    );
    assert_eq!(cpu.weight(lone), NICE_0_LOAD);
    let other = cpu.fork(Some(outer), Attr::default());
    assert_eq!(cpu.weight(other), NICE_0_LOAD / 2);
    let weak = cpu.fork(
        Some(inner),
        Attr {
            policy: Policy::Idle,
            ..Attr::default()
        },
    );
    // 2^20, times 3072 of 90 894 336, times a half: floored on each level.
    assert_eq!(
        cpu.weight(weak),
        NICE_0_LOAD * 3072 / (90_891_264 + 3072) / 2
    );
    let tiny = cpu.group(None, 2048);
    let small = cpu.group(Some(tiny), 2048);
    for _ in 0..3 {
        cpu.fork(
            Some(tiny),
            Attr {
                nice: -20,
                ..Attr::default()
            },
        );
    }
    let floor = cpu.fork(Some(small), Attr::default());
    assert_eq!(cpu.weight(floor), 2);
}

/// Groups of different sizes get what their shares say, flat as level by level.
#[test]
fn groups_get_their_shares_in_both_modes() {
    for mode in [PickMode::Flat, PickMode::Hierarchical] {
        let mut cpu = Cpu::new(mode);
        let big = cpu.group(None, 2 * NICE_0_LOAD);
        let deep = cpu.group(Some(big), NICE_0_LOAD);
        let small = cpu.group(None, NICE_0_LOAD);
        let tasks = [
            Some(deep),
            Some(deep),
            Some(big),
            Some(small),
            Some(small),
            Some(small),
            None,
        ]
        .map(|group| cpu.fork(group, Attr::default()));
        let total = 8_000_000_000;
        let ran = cpu.run(total, &tasks);
        // Quarters of the CPU: two for `big`, half of them for `deep`; one each for the others.
        let expected = [125, 125, 250, 84, 83, 83, 250];
        for ((ran, per_mille), task) in ran.iter().zip(expected).zip(tasks) {
            let got = ran * 1000 / total;
            assert!(
                got.abs_diff(per_mille) <= 6,
                "{mode:?}: {task}: {got}, not {per_mille}"
            );
        }
    }
}

/// A sleeper with debt stays queued as a task, and its group with it; a pick lets both go.
#[test]
fn only_tasks_are_delayed_and_they_keep_their_group_counted() {
    let mut cpu = Cpu::new(PickMode::Flat);
    let group = cpu.group(None, NICE_0_LOAD);
    let sleeper = cpu.fork(Some(group), Attr::default());
    assert_eq!(cpu.fair.pick(cpu.rq, 0).unwrap().task, Some(sleeper));
    let other = cpu.fork(None, Attr::default());
    cpu.fair.block(cpu.rq, Block::Sleep, 2_000_000).unwrap();
    assert_eq!(cpu.fair.pick(cpu.rq, 2_000_000).unwrap().task, Some(other));
    let view = cpu.fair.view(sleeper).unwrap();
    assert!(view.delayed && view.state == TaskState::Asleep);
    let queue = cpu.fair.queue(cpu.rq, Some(group)).unwrap();
    assert_eq!(
        (queue.h_nr_queued, queue.h_nr_runnable, queue.load),
        (1, 0, NICE_0_LOAD)
    );
    assert!(!cpu.fair.group_entity(cpu.rq, group).unwrap().delayed);
    // The other runs until the sleeper is eligible: then it leaves, and the group with it.
    let mut now = 2_000_000;
    while cpu.fair.view(sleeper).unwrap().delayed {
        now += 1_000_000;
        assert!(now < 20_000_000, "the debt is never paid");
        cpu.fair.tick(cpu.rq, now).unwrap();
        assert_eq!(cpu.fair.pick(cpu.rq, now).unwrap().task, Some(other));
    }
    let queue = cpu.fair.queue(cpu.rq, Some(group)).unwrap();
    assert_eq!((queue.h_nr_queued, queue.load), (0, 0));
    assert!(!cpu.fair.group_entity(cpu.rq, group).unwrap().on_rq);
    assert_eq!(cpu.fair.view(sleeper).unwrap().entity.vlag, 0);
}

/// A group with a task on each of two CPUs, on a host with two further CPUs.
#[test]
fn cgroup_modes_weigh_a_group_on_two_of_four_cpus() {
    let expected = [
        (CgroupMode::Up, NICE_0_LOAD),
        (CgroupMode::Smp, NICE_0_LOAD / 2),
        (CgroupMode::Concur, NICE_0_LOAD),
        (CgroupMode::Max, 2 * NICE_0_LOAD),
        (CgroupMode::Tasks, NICE_0_LOAD),
    ];
    assert!(expected.map(|(mode, _)| mode) == CgroupMode::ALL);
    for mode in [PickMode::Flat, PickMode::Hierarchical] {
        for (cgroup_mode, weight) in expected {
            let mut config = Config::linux_7_2(16);
            (config.cgroup_mode, config.other_load) = (cgroup_mode, OtherLoad::Instantaneous);
            let mut fair = Fair::new(config).unwrap();
            let rqs = [0; 4].map(|_| fair.create_rq(mode).unwrap());
            let group = fair.create_group(None).unwrap();
            for rq in rqs {
                fair.extend_group(group, rq).unwrap();
            }
            for rq in &rqs[..2] {
                let task = fair.create_task(Attr::default(), Some(group)).unwrap();
                fair.fork(task, *rq, 0).unwrap();
                fair.pick(*rq, 0).unwrap();
            }
            for rq in &rqs[..2] {
                fair.tick(*rq, 4_000_000).unwrap();
                let got = fair.group_entity(*rq, group).unwrap().load;
                assert_eq!(got, weight, "{mode:?}, {}", cgroup_mode.name());
            }
        }
    }
}

#[test]
fn waiting_tasks_are_found_below_the_running_group_too() {
    for mode in [PickMode::Flat, PickMode::Hierarchical] {
        let mut cpu = Cpu::new(mode);
        let group = cpu.group(None, NICE_0_LOAD);
        let first = cpu.fork(Some(group), Attr::default());
        assert_eq!(cpu.fair.pick(cpu.rq, 7).unwrap().task, Some(first));
        let rest = [Some(group), None].map(|group| {
            let task = cpu.fair.create_task(Attr::default(), group).unwrap();
            cpu.fair.fork(task, cpu.rq, 7).unwrap();
            task
        });
        let mut waiting = Vec::new();
        let mut see = |task| waiting.push(task);
        cpu.fair.for_each_waiting(cpu.rq, &mut see).unwrap();
        waiting.sort();
        assert_eq!(waiting, rest, "{mode:?}");
        assert_eq!(cpu.fair.clock(cpu.rq), Ok(7));
    }
}
