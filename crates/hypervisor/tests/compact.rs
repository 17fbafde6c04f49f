//! A group's part that is folded up when its task has moved away, and unfolded when it comes back,
//! is as one that stayed.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use stealtime_hypervisor::fair::{
    Attr, Block, Cfs, CgroupMode, Config, Fair, Feature, GroupId, PickMode, Preempt, RqId, TaskId,
    TaskState, weights::SHARES_MAX,
};

const CPUS: usize = 4;

fn roll(state: &mut u64, sides: usize) -> usize {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % sides
}

struct Host {
    fair: Fair,
    rqs: Vec<RqId>,
    tasks: Vec<(TaskId, GroupId)>,
}

fn config(cgroups: CgroupMode) -> Config {
    let mut config = Config::linux_7_2(16);
    config.features = config.features.with(Feature::Hrtick);
    config.cgroup_mode = cgroups;
    config
}

/// Threads in groups of their own under a group each for two VMs.
fn host(mode: PickMode, config: Config, lean: bool) -> Host {
    let mut fair = Fair::new(config).unwrap();
    if lean {
        fair.set_lean();
    }
    let rqs: Vec<RqId> = (0..CPUS).map(|_| fair.create_rq(mode).unwrap()).collect();
    let mut tasks = Vec::new();
    let slice = fair.create_group(None).unwrap();
    for _ in 0..2 {
        let scope = fair.create_group(Some(slice)).unwrap();
        let vm = fair.create_group(Some(scope)).unwrap();
        // Fewer than there are CPUs: whole VMs leave one.
        for n in 0..3 {
            let own = fair.create_group(Some(vm)).unwrap();
            let task = fair.create_task(Attr::default(), Some(own)).unwrap();
            fair.extend_group(own, rqs[n % CPUS]).unwrap();
            fair.fork(task, rqs[n % CPUS], 0).unwrap();
            tasks.push((task, own));
        }
    }
    for &rq in &rqs {
        fair.pick(rq, 0).unwrap();
    }
    Host { fair, rqs, tasks }
}

impl Host {
    /// One random step at `now`; what can be seen of it.
    fn step(&mut self, dice: &mut u64, now: u64) -> String {
        let fair = &mut self.fair;
        let (task, own) = self.tasks[roll(dice, self.tasks.len())];
        let rq = self.rqs[roll(dice, CPUS)];
        let view = fair.view(task).unwrap();
        let idle = fair.running(rq).unwrap().is_none();
        match roll(dice, 8) {
            0 => format!("{:?}", fair.tick(rq, now)),
            1 | 2 if !idle => {
                let block = fair.block(rq, Block::Sleep, now);
                format!("{block:?} {:?}", fair.pick(rq, now))
            }
            3 if view.entity.on_rq && !view.running => {
                fair.detach(task, now).unwrap();
                fair.extend_group(own, rq).unwrap();
                format!("{:?}", fair.attach(task, rq, now))
            }
            4 | 5 if view.state == TaskState::Asleep => {
                let there = fair.delayed_on(task).unwrap().unwrap_or(rq);
                fair.extend_group(own, there).unwrap();
                format!("{:?}", fair.wake(task, there, now))
            }
            6 if roll(dice, 4) == 0 => {
                let shares = 1024 * (512 + roll(dice, 1024) as u64);
                format!("{:?}", fair.set_shares(own, shares, now))
            }
            _ => format!("{:?}", fair.pick(rq, now)),
        }
    }

    fn seen(&self) -> String {
        let views = self.tasks.iter().map(|t| self.fair.view(t.0).unwrap());
        format!("{:?}", views.collect::<Vec<_>>())
    }
}

/// Random steps on two hosts, of which one folds what it can after each step.
fn folds_unseen(mode: PickMode, config: Config) {
    let steps = if cfg!(miri) { 500 } else { 8_000 };
    let [mut kept, mut folds] = [false, true].map(|lean| host(mode, config, lean));
    let (mut dice, mut now, mut folded) = (7, 0, 0);
    for n in 0..steps {
        now += roll(&mut dice, 3_000_000) as u64;
        let mut same = dice;
        let was = kept.step(&mut dice, now);
        let is = folds.step(&mut same, now);
        assert_eq!(was, is, "step {n}, {mode:?}");
        for i in 0..folds.tasks.len() {
            let (task, own) = folds.tasks[i];
            let parts = |h: &Host| {
                let rqs = h.rqs.iter();
                rqs.filter(|&&rq| h.fair.queue(rq, Some(own)).is_ok())
                    .count()
            };
            let before = parts(&folds);
            folds.fair.compact_group(task).unwrap();
            folded += before - parts(&folds);
        }
        assert_eq!(kept.seen(), folds.seen(), "step {n}, {mode:?}");
    }
    assert!(folds.rqs.iter().all(|&rq| folds.fair.consistent(rq)));
    assert!(folded > steps / 50, "{mode:?}: {folded}");
}

#[test]
fn a_folded_part_is_as_one_that_stayed() {
    for mode in [PickMode::Hierarchical, PickMode::Flat] {
        for cgroups in [CgroupMode::Smp, CgroupMode::Max, CgroupMode::Concur] {
            folds_unseen(mode, config(cgroups));
        }
    }
}

/// The entity of a group keeps its virtual runtime, where EEVDF keeps a lag.
#[test]
fn a_folded_part_of_cfs_is_as_one_that_stayed() {
    let mut config = config(CgroupMode::Smp);
    config.preempt = Preempt::Full;
    config.cfs = Some(Cfs::linux_6_1(16));
    folds_unseen(PickMode::Hierarchical, config);
}

/// The part of a group with a delayed dequeue is folded as that takes place, and only where parts may be
/// folded (`set_lean`).
#[test]
fn a_delayed_part_is_folded_as_it_leaves() {
    for lean in [false, true] {
        let mut host = host(PickMode::Hierarchical, config(CgroupMode::Smp), lean);
        let (mut dice, mut now, mut folded) = (7, 0, 0);
        for _ in 0..if cfg!(miri) { 200 } else { 2_000 } {
            now += roll(&mut dice, 3_000_000) as u64;
            let parts = |h: &Host| {
                let groups = h.tasks.iter().map(|task| task.1);
                let all = groups.flat_map(|group| h.rqs.iter().map(move |&rq| (rq, group)));
                all.filter(|&(rq, group)| h.fair.queue(rq, Some(group)).is_ok())
                    .count()
            };
            let before = parts(&host);
            host.step(&mut dice, now);
            folded += before.saturating_sub(parts(&host));
        }
        assert!(host.rqs.iter().all(|&rq| host.fair.consistent(rq)));
        assert_eq!(folded > 0, lean, "{folded}");
    }
}

/// A group that moves under another one no longer uses its former parent, which can be folded then.
#[test]
fn a_parent_that_a_group_has_left_is_folded() {
    let mut fair = Fair::new(Config::linux_7_2(16)).unwrap();
    fair.set_lean();
    let rqs = [(); 2].map(|()| fair.create_rq(PickMode::Hierarchical).unwrap());
    let [left, entered] = [(); 2].map(|()| fair.create_group(None).unwrap());
    let moved = fair.create_group(Some(left)).unwrap();
    fair.extend_group(moved, rqs[0]).unwrap();
    fair.extend_group(left, rqs[1]).unwrap();
    let task = fair.create_task(Attr::default(), Some(left)).unwrap();
    fair.fork(task, rqs[1], 0).unwrap();
    fair.compact_group(task).unwrap();
    assert!(
        fair.queue(rqs[0], Some(left)).is_ok(),
        "its child has a part"
    );
    fair.extend_group(entered, rqs[0]).unwrap();
    fair.reparent_group(moved, Some(entered)).unwrap();
    fair.compact_group(task).unwrap();
    assert!(fair.queue(rqs[0], Some(left)).is_err());
    assert!(fair.queue(rqs[1], Some(left)).is_ok(), "a task runs there");
    assert!(rqs.iter().all(|&rq| fair.consistent(rq)));
}

/// What a folded part keeps is a lag behind others of the same parent: it is void under another one.
#[test]
fn a_group_that_moves_has_no_lag_in_its_folded_parts() {
    let mut config = Config::linux_7_2(16);
    config.features = config.features.without(Feature::DelayDequeue);
    let mut fair = Fair::new(config).unwrap();
    let [there, here] = [(); 2].map(|()| fair.create_rq(PickMode::Hierarchical).unwrap());
    let [former, later] = [(); 2].map(|()| fair.create_group(None).unwrap());
    let moved = fair.create_group(Some(former)).unwrap();
    for group in [moved, later] {
        fair.extend_group(group, there).unwrap();
        fair.extend_group(group, here).unwrap();
    }
    let [task, other] =
        [moved, former].map(|group| fair.create_task(Attr::default(), Some(group)).unwrap());
    fair.fork(task, there, 0).unwrap();
    fair.pick(there, 0).unwrap();
    fair.fork(other, there, 0).unwrap();
    // It leaves with a debt of half its run time.
    fair.tick(there, 4_000_000).unwrap();
    assert_eq!(fair.pick(there, 4_000_000).unwrap().task, Some(other));
    fair.detach(task, 4_000_000).unwrap();
    fair.attach(task, here, 4_000_000).unwrap();
    let lag = |fair: &mut Fair| {
        fair.compact_group(task).unwrap();
        assert!(fair.queue(there, Some(moved)).is_err());
        fair.extend_group(moved, there).unwrap();
        fair.group_entity(there, moved).unwrap().vlag
    };
    assert_eq!(lag(&mut fair), -2_000_000);
    fair.compact_group(task).unwrap();
    fair.move_task(task, Some(former), 4_000_000).unwrap();
    fair.reparent_group(moved, Some(later)).unwrap();
    fair.move_task(task, Some(moved), 4_000_000).unwrap();
    assert_eq!(lag(&mut fair), 0);
    assert!(fair.consistent(there) && fair.consistent(here));
}

/// As the part of a group is folded, that of its parent is no longer used by it.
#[test]
fn parents_are_folded_with_their_last_child() {
    let mut fair = Fair::new(Config::linux_7_2(16)).unwrap();
    fair.set_lean();
    let rqs = [(); 2].map(|()| fair.create_rq(PickMode::Hierarchical).unwrap());
    let above = fair.create_group(None).unwrap();
    let own = fair.create_group(Some(above)).unwrap();
    let parts =
        |fair: &Fair| [above, own].map(|group| rqs.map(|rq| fair.queue(rq, Some(group)).is_ok()));
    for rq in rqs {
        fair.extend_group(own, rq).unwrap();
    }
    let task = fair.create_task(Attr::default(), Some(own)).unwrap();
    fair.fork(task, rqs[0], 0).unwrap();
    assert_eq!(parts(&fair), [[true, true], [true, true]]);
    fair.compact_group(task).unwrap();
    assert_eq!(parts(&fair), [[true, false], [true, false]]);
}

/// A task that sleeps is on no queue, so that the part of a group that it moves to can be folded.
#[test]
fn a_part_is_not_kept_for_a_task_that_sleeps() {
    let mut config = Config::linux_7_2(16);
    config.features = config.features.without(Feature::DelayDequeue);
    let mut fair = Fair::new(config).unwrap();
    fair.set_lean();
    let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
    let [left, entered] = [(); 2].map(|()| fair.create_group(None).unwrap());
    for group in [left, entered] {
        fair.extend_group(group, rq).unwrap();
    }
    let task = fair.create_task(Attr::default(), Some(left)).unwrap();
    fair.fork(task, rq, 0).unwrap();
    fair.pick(rq, 0).unwrap();
    fair.block(rq, Block::Sleep, 1_000).unwrap();
    fair.pick(rq, 1_000).unwrap();
    fair.move_task(task, Some(entered), 2_000).unwrap();
    fair.compact_group(task).unwrap();
    assert!(fair.queue(rq, Some(entered)).is_err());
}

/// What is kept of a folded part has 32 bits for its load, which each of 17 CPUs brings beyond that.
#[test]
fn a_part_with_a_larger_load_is_not_folded() {
    for (cpus, folds) in [(3, true), (17, false)] {
        let mut config = Config::linux_7_2(16);
        config.cgroup_mode = CgroupMode::Concur;
        let mut fair = Fair::new(config).unwrap();
        let group = fair.create_group(None).unwrap();
        let mut rqs = Vec::new();
        for _ in 0..cpus {
            let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
            fair.extend_group(group, rq).unwrap();
            rqs.push(rq);
        }
        fair.set_shares(group, SHARES_MAX, 0).unwrap();
        let tasks: Vec<TaskId> = rqs
            .iter()
            .map(|rq| {
                let task = fair.create_task(Attr::default(), Some(group)).unwrap();
                fair.fork(task, *rq, 0).unwrap();
                task
            })
            .collect();
        let (task, rq) = (tasks[cpus - 1], rqs[cpus - 1]);
        fair.detach(task, 0).unwrap();
        fair.attach(task, rqs[0], 0).unwrap();
        fair.compact_group(task).unwrap();
        assert_eq!(fair.queue(rq, Some(group)).is_err(), folds, "{cpus} CPUs");
    }
}

/// [`Fair::extend_for`] makes a part on the CPU that a task moves to, while the task is still on another one.
#[test]
fn a_part_is_made_where_a_task_moves_to() {
    let mut fair = Fair::new(Config::linux_7_2(16)).unwrap();
    let rqs = [(); 2].map(|()| fair.create_rq(PickMode::Hierarchical).unwrap());
    let group = fair.create_group(None).unwrap();
    fair.extend_group(group, rqs[0]).unwrap();
    let task = fair.create_task(Attr::default(), Some(group)).unwrap();
    fair.fork(task, rqs[0], 0).unwrap();
    for (rq, has_part) in [(rqs[0], false), (rqs[1], true)] {
        fair.extend_for(task, rq).unwrap();
        assert_eq!(fair.queue(rqs[1], Some(group)).is_ok(), has_part);
    }
}
