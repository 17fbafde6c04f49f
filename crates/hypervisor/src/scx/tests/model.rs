//! Whatever is called, the scheduler answers as the plain one does.

use super::plain::{Allowed, Plain, Spot, Thread, domain_of};
use super::*;

/// Nice values and their weights in `struct sched_ext_ops` (`sched_prio_to_weight` by 10.24).
const NICE: [(i8, u64); 6] = [(0, 100), (-5, 305), (5, 33), (-20, 8668), (10, 11), (19, 1)];
const CONFIG: Config = Config {
    slice_ns: 1_500_000,
    tick_ns: 1_000_000,
    yields: Yields::Receiver,
    spin_ns: 60_000,
    loan_ns: 300_000,
    answer_ns: 25_000,
    force_interval_ns: 3_000_000,
};

/// Both, and what they must agree on.
struct Pair {
    ours: Scx,
    plain: Plain,
    now_ns: u64,
}

impl Pair {
    fn new(yields: Yields, masks: &[u8]) -> Self {
        let config = Config { yields, ..CONFIG };
        let mut ours = Scx::new(config);
        for cpu in 0..3 {
            assert_eq!(ours.create_cpu(domain_of(cpu)), RqId(cpu as u32));
        }
        let parents = [None, Some(0), None];
        let mut groups = Vec::new();
        for parent in parents {
            let above = parent.map(|slot: usize| GroupId(slot as u32));
            assert_eq!(
                ours.create_group(above).map(GroupId::slot),
                Ok(groups.len())
            );
            groups.push((parent, 100));
        }
        let plain = Plain {
            config,
            threads: Vec::new(),
            groups,
            cores: Default::default(),
            last_average: [1 << 40; 2],
            inserted: 0,
            allowed: Allowed(masks.to_vec()),
            counts: ours.outcomes().collect(),
        };
        let mut pair = Self {
            ours,
            plain,
            now_ns: 1_000_000,
        };
        for slot in 0..masks.len() {
            let thread = pair.create(slot);
            pair.plain.threads.push(thread);
        }
        pair
    }

    /// Four kinds of tasks: of the root group, and of one of three others.
    fn create(&mut self, slot: usize) -> Thread {
        let (nice, own_weight) = NICE[slot / 4 % NICE.len()];
        let group = (slot % 4).checked_sub(1);
        let id = self
            .ours
            .create_task(nice, group.map(|g| GroupId(g as u32)));
        let id = id.expect("a group");
        assert_eq!(id.slot(), slot);
        Thread {
            id,
            own_weight,
            group,
            spot: Spot::Asleep,
            cpu: 0,
            domain: 0,
            has_run: false,
            weight: 0,
            vruntime: 0,
            deadline: 0,
            vlag: 0,
            charged_ns: 0,
            slice_ns: 0,
            loan: None,
            returns_ns: None,
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.now_ns += step.gap_ns;
        let (cpu, rq, now_ns) = (step.cpu, RqId(step.cpu as u32), self.now_ns);
        let (ours, plain) = (&mut self.ours, &mut self.plain);
        let [index, other] = step.tasks.map(|n| n % plain.threads.len());
        let (task, spot) = (plain.threads[index].id, plain.threads[index].spot);
        let runs = plain.cores[cpu].current.is_some();
        match step.kind {
            0..4 => {
                let is_idle = step.kind > 0;
                let woken = ours.wake(task, rq, is_idle, now_ns);
                if spot != Spot::Asleep {
                    prop_assert_eq!(woken, Err(Error::NotAsleep(task)));
                } else {
                    prop_assert_eq!(woken, Ok(plain.wake(index, cpu, is_idle, now_ns)));
                }
            }
            4 | 5 => prop_assert_eq!(ours.tick(rq, now_ns), Ok(plain.tick(cpu, now_ns))),
            6 if runs => {
                prop_assert_eq!(ours.block(rq, Block::Sleep, now_ns), Ok(()));
                plain.block(cpu, now_ns);
            }
            7 if runs => {
                let slot = plain.cores[cpu].current.expect("it runs");
                prop_assert_eq!(ours.block(rq, Block::Exit, now_ns), Ok(()));
                plain.block(cpu, now_ns);
                let ended = plain.threads[slot].id;
                prop_assert_eq!(ours.lag_ns(ended), Err(Error::NoSuchTask(ended)));
                let thread = self.create(slot);
                prop_assert_eq!(self.ours.lag_ns(ended), Err(Error::NoSuchTask(ended)));
                self.plain.threads[slot] = thread;
            }
            8 => {
                let detached = match spot {
                    Spot::Asleep => Err(Error::NotQueued(task)),
                    Spot::Running => Err(Error::Running(task)),
                    Spot::Queue(..) | Spot::Local(_) => {
                        plain.sleep(index);
                        Ok(())
                    }
                };
                prop_assert_eq!(ours.detach(task), detached);
            }
            9 if runs => {
                prop_assert_eq!(ours.yield_task(rq, now_ns), Ok(()));
                plain.yield_task(cpu, now_ns);
            }
            10..15 if runs => {
                let receiver = step.receiver(plain.threads[other].id, now_ns);
                let awaits = match step.kind {
                    10 => Awaits::Answered {
                        at_ns: now_ns.saturating_sub(step.sent_ns),
                    },
                    11 => Awaits::NoIpi,
                    12 => Awaits::Nothing,
                    _ => receiver,
                };
                let allowed = plain.allowed.clone();
                let yielded = ours.yield_to(rq, task, awaits, now_ns, &allowed);
                prop_assert_eq!(yielded, Ok(plain.yield_to(cpu, index, awaits, now_ns)));
            }
            15 => {
                let lender = |t: &Thread| t.loan.map(|loan| loan.lender);
                let borrower = plain.threads.iter().position(|t| lender(t).is_some());
                let receiver = borrower.unwrap_or(other);
                let sender =
                    lender(&plain.threads[receiver]).filter(|_| !step.sent_ns.is_multiple_of(4));
                let sender = sender.filter(|id| plain.threads.iter().any(|t| t.id == *id));
                let sender = sender.unwrap_or(task);
                let answered = ours.answered(sender, plain.threads[receiver].id, now_ns);
                prop_assert_eq!(answered, Ok(plain.answered(sender, receiver, now_ns)));
            }
            16 => prop_assert_eq!(ours.end_loan(rq, now_ns), Ok(plain.end_loan(cpu, now_ns))),
            18 if runs => {
                let awaits = step.receiver(plain.threads[other].id, now_ns);
                let allowed = plain.allowed.clone();
                let paused = ours.pause(rq, awaits, now_ns, &allowed);
                prop_assert_eq!(paused, Ok(plain.pause(cpu, awaits, now_ns)));
            }
            17 => {
                let (group, weight) = (index % 3, 1 + step.sent_ns % 400);
                prop_assert!(
                    ours.set_weight(GroupId(group as u32), weight as u32)
                        .is_ok()
                );
                plain.groups[group].1 = weight;
            }
            _ => {
                let allowed = plain.allowed.clone();
                let picked = ours.pick(rq, now_ns, &allowed);
                prop_assert_eq!(picked, Ok(plain.pick(cpu, now_ns)));
            }
        }
        self.compare()
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let (ours, plain) = (&self.ours, &self.plain);
        prop_assert!(ours.consistent());
        for (cpu, core) in plain.cores.iter().enumerate() {
            let current = core.current.map(|i| plain.threads[i].id);
            prop_assert_eq!(ours.running(RqId(cpu as u32)), Ok(current));
        }
        for (index, thread) in plain.threads.iter().enumerate() {
            let is_awake = thread.spot != Spot::Asleep;
            let cpu = is_awake.then_some(RqId(thread.cpu as u32));
            prop_assert_eq!(ours.runnable_on(thread.id), Ok(cpu));
            prop_assert_eq!(ours.lag_ns(thread.id).map(i128::from), Ok(plain.lag(index)));
            if is_awake {
                prop_assert_eq!(ours.tasks[index].slice_ns, thread.slice_ns);
            }
        }
        prop_assert!(ours.outcomes().eq(plain.counts.iter().copied()));
        Ok(())
    }
}

#[derive(Clone, Debug)]
struct Step {
    kind: u8,
    cpu: usize,
    tasks: [usize; 2],
    gap_ns: u64,
    sent_ns: u64,
}

impl Step {
    /// The yielder waits for this task.
    fn receiver(&self, task: TaskId, now_ns: u64) -> Awaits {
        Awaits::Receiver {
            task,
            sent_ns: now_ns.saturating_sub(self.sent_ns),
            shows_eoi: self.kind == 13 || self.sent_ns.is_multiple_of(2),
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let gap_ns = prop_oneof![Just(0), 0..200_000u64, 0..3_000_000u64, Just(30_000_000)];
    (
        0..24u8,
        0..3usize,
        [0..24usize, 0..24usize],
        gap_ns,
        0..100_000u64,
    )
        .prop_map(|(kind, cpu, tasks, gap_ns, sent_ns)| Step {
            kind,
            cpu,
            tasks,
            gap_ns,
            sent_ns,
        })
}

fn yields() -> impl Strategy<Value = Yields> {
    use Yields::{Nominee, Receiver, Refuse};
    prop_oneof![Just(Refuse), Just(Nominee), Just(Receiver), Just(Receiver)]
}

proptest! {
    /// Whatever is called, the answers, lags, slices and counts are those of the plain scheduler.
    #[test]
    fn decisions_equal_those_of_a_plain_scheduler(
        yields in yields(),
        masks in prop::collection::vec(1..8u8, 24),
        count in prop_oneof![2..5usize, 5..9usize, Just(24)],
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut pair = Pair::new(yields, &masks[..count]);
        for step in &steps {
            pair.step(step)?;
        }
    }
}

#[test]
fn wrong_sums_are_inconsistent() {
    let mut host = Host::new();
    host.awake(0, None);
    assert!(host.scx.consistent());
    let mut shifted = host.scx.clone();
    shifted.domains[0].shift_member(1, 1);
    assert!(!shifted.consistent(), "another sum");
    let mut heavier = host.scx.clone();
    let zero = heavier.domains[0].rebase();
    heavier.domains[0].add_member(zero, 5);
    assert!(!heavier.consistent(), "another weight");
    let group = GroupId(0);
    let refused = Err(Error::NoSuchGroup(group));
    assert_eq!(host.scx.create_group(Some(group)), refused);
    let beyond = RqId(1);
    assert_eq!(host.scx.running(beyond), Err(Error::NoSuchRq(beyond)));
}

/// Heavy tasks have run a slice each, and wait with early deadlines. The light one behind them is the only
/// one that is due, and is found if it is among the first sixteen.
#[test]
fn the_search_ends_after_sixteen_tasks() {
    for (heavy, is_found) in [(16, true), (17, false)] {
        let mut host = Host::new();
        let mut wake = |nice| {
            let task = host.scx.create_task(nice, None).expect("a nice value");
            let woken = host.scx.wake(task, host.cpu, false, host.now_ns);
            assert_eq!(woken, Ok(true), "the CPU idles");
            task
        };
        let light = wake(19);
        for _ in 0..heavy {
            wake(-20);
        }
        for _ in 0..heavy {
            assert_ne!(host.pick(), Some(light));
            host.now_ns += Config::default().slice_ns;
        }
        assert_eq!(host.pick() == Some(light), is_found);
    }
}
