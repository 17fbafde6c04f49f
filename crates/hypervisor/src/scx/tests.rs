use proptest::prelude::*;

use super::queues::LEAST_SLICE_NS;
use super::*;
use crate::fair::Block;

mod model;
mod plain;

const MS: u64 = 1_000_000;

struct Host {
    scx: Scx,
    cpu: RqId,
    now_ns: u64,
}

impl Host {
    fn new() -> Self {
        let mut scx = Scx::new(Config::default());
        let cpu = scx.create_cpu(0);
        Self {
            scx,
            cpu,
            now_ns: MS,
        }
    }

    fn awake(&mut self, nice: i8, group: Option<GroupId>) -> TaskId {
        let task = self.scx.create_task(nice, group).expect("a task");
        let is_idle = self.scx.running(self.cpu).expect("a CPU").is_none();
        self.scx
            .wake(task, self.cpu, is_idle, self.now_ns)
            .expect("it sleeps");
        if is_idle {
            self.pick();
        }
        task
    }

    fn pick(&mut self) -> Option<TaskId> {
        self.scx
            .pick(self.cpu, self.now_ns, &Anywhere)
            .expect("a CPU")
            .task
    }

    /// Runs until `end_ns` with a tick each 4 ms; run time of each task in ns.
    fn run_until(&mut self, end_ns: u64, times: &mut [u64]) {
        while self.now_ns < end_ns {
            let current = self.pick().expect("a task");
            self.now_ns += 4 * MS;
            times[current.slot()] += 4 * MS;
            self.scx.tick(self.cpu, self.now_ns).expect("a CPU");
        }
    }
}

#[test]
fn shares_follow_groups_and_nice_values() {
    let mut host = Host::new();
    let (gold, silver) = (host.scx.create_group(None), host.scx.create_group(None));
    let (gold, silver) = (gold.expect("a group"), silver.expect("a group"));
    host.scx.set_weight(gold, 300).expect("a group");
    for group in [gold, gold, silver] {
        host.awake(0, Some(group));
    }
    let mut times = [0; 3];
    host.run_until(4_000 * MS, &mut times);
    let total: u64 = times.iter().sum();
    let shares = times.map(|time| (1000 * time + total / 2) / total);
    // 300:100 between the groups, one to one within the first.
    assert!(
        shares[0].abs_diff(375) < 6 && shares[1].abs_diff(375) < 6,
        "{shares:?}"
    );
    assert!(host.scx.consistent());
}

#[test]
fn tasks_with_equal_deadlines_run_in_the_order_of_their_wakeups() {
    let mut host = Host::new();
    host.awake(0, None);
    let [first, second] = [(); 2].map(|()| host.scx.create_task(0, None).expect("a task"));
    for task in [second, first] {
        let woken = host.scx.wake(task, host.cpu, false, host.now_ns);
        woken.expect("it sleeps");
    }
    let blocked = host.scx.block(host.cpu, Block::Sleep, host.now_ns);
    blocked.expect("a task runs");
    assert_eq!(host.pick(), Some(second));
}

/// As each one has had its slice, both are due by the same deadline again.
#[test]
fn tasks_with_equal_deadlines_take_turns() {
    let mut host = Host::new();
    let [first, second] = [(); 2].map(|()| host.awake(0, None));
    for next in [second, first, second, first] {
        host.now_ns += Config::default().slice_ns;
        assert_eq!(host.pick(), Some(next));
    }
}

/// The request of a task of nice -5 ends earlier: it interrupts a task that has run for 700 us.
#[test]
fn a_woken_task_lets_the_current_one_run_for_a_while() {
    for (ran_ns, interrupts) in [(MIN_RUN_NS - 1, false), (MIN_RUN_NS, true)] {
        let mut host = Host::new();
        host.awake(0, None);
        let woken = host.scx.create_task(-5, None).expect("a task");
        let now_ns = host.now_ns + ran_ns;
        let answer = host.scx.wake(woken, host.cpu, false, now_ns);
        assert_eq!(answer, Ok(interrupts), "{ran_ns}");
    }
}

/// The current task lends its slice to the receiver of its IPI. A third task is ready.
fn lend(host: &mut Host) -> [TaskId; 2] {
    let receiver = host.awake(0, None);
    let [sender, third] = [(); 2].map(|()| host.awake(0, None));
    // The receiver has had more than its share.
    host.now_ns += 4 * MS;
    assert_eq!(host.pick(), Some(sender));
    host.now_ns += MS / 10;
    let awaits = Awaits::Receiver {
        task: receiver,
        sent_ns: host.now_ns,
        shows_eoi: true,
    };
    let yielded = host
        .scx
        .yield_to(host.cpu, third, awaits, host.now_ns, &Anywhere);
    let served = Yielded::Served {
        target: Served::Receiver,
        kicked: None,
    };
    assert_eq!(yielded, Ok(served));
    [sender, receiver]
}

#[test]
fn the_receiver_runs_on_a_loan_until_its_answer() {
    let mut host = Host::new();
    let [sender, receiver] = lend(&mut host);
    assert_eq!(host.pick(), Some(receiver));
    host.now_ns += MS / 5;
    let lag = host.scx.lag_ns(receiver).expect("a task");
    // Its handler may follow the EOI: it runs on for a little.
    let end_ns = host.now_ns + Config::default().answer_ns;
    let answered = host.scx.answered(sender, receiver, host.now_ns);
    assert_eq!(answered, Ok(Some((host.cpu, end_ns))));
    let picked = host.scx.pick(host.cpu, host.now_ns, &Anywhere);
    let picked = picked.map(|picked| (picked.task, picked.loan_end_ns));
    assert_eq!(picked, Ok((Some(receiver), Some(end_ns))));
    host.now_ns = end_ns;
    assert_eq!(host.scx.end_loan(host.cpu, host.now_ns), Ok(true));
    assert_eq!(host.pick(), Some(sender));
    // The sender paid: the receiver has lost nothing against the average but what moved the average.
    assert!(host.scx.lag_ns(receiver).expect("a task") >= lag);
    let counts: Vec<u64> = host.scx.outcomes().map(|(_, count)| count).collect();
    let lent_ns = MS / 5 + Config::default().answer_ns;
    assert_eq!(counts, [1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, lent_ns, 2, 0]);
}

/// KVM nominates no vCPU: the PAUSE exit is a yield to the receiver, and to no one else.
#[test]
fn a_pause_exit_without_a_nominee_runs_the_receiver() {
    let mut host = Host::new();
    let [sender, receiver, third] = [(); 3].map(|()| host.awake(0, None));
    host.now_ns += MS / 10;
    assert_eq!(host.scx.running(host.cpu), Ok(Some(sender)));
    let awaits = |task| Awaits::Receiver {
        task,
        sent_ns: host.now_ns,
        shows_eoi: true,
    };
    let others = [
        Awaits::NoIpi,
        Awaits::Nothing,
        Awaits::Answered { at_ns: host.now_ns },
        awaits(sender),
    ];
    let mut scx = host.scx.clone();
    for other in others {
        let paused = scx.pause(host.cpu, other, host.now_ns, &Anywhere);
        assert_eq!(paused, Ok(None), "{other:?}");
    }
    let paused = scx.pause(host.cpu, awaits(third), host.now_ns, &Anywhere);
    let served = Yielded::Served {
        target: Served::Receiver,
        kicked: None,
    };
    assert_eq!(paused, Ok(Some(served)));
    let count = |scx: &Scx, asked| {
        let mut counts = scx.outcomes();
        counts
            .find(|(outcome, _)| *outcome == asked)
            .map(|(_, n)| n)
    };
    assert_eq!(count(&scx, Outcome::PauseReceiver), Some(1));
    assert_eq!(count(&scx, Outcome::Served(Served::Receiver)), Some(0));
    let picked = scx.pick(host.cpu, host.now_ns, &Anywhere).expect("a CPU");
    assert_eq!(picked.task, Some(third));
    // Only the default mode follows IPIs.
    let config = Config {
        yields: Yields::Nominee,
        ..Config::default()
    };
    host.scx.config = config;
    let paused = host
        .scx
        .pause(host.cpu, awaits(receiver), host.now_ns, &Anywhere);
    assert_eq!(paused, Ok(None));
}

/// A nominee answers no one: where it runs on a loan, no EOI ends that. It ends with the yielder's request.
#[test]
fn a_timer_ends_the_loan_of_a_nominee() {
    let mut host = Host::new();
    let nominee = host.awake(0, None);
    let sender = host.awake(0, None);
    // The nominee has had more than its share.
    host.now_ns += 4 * MS;
    assert_eq!(host.pick(), Some(sender));
    host.now_ns += MS / 10;
    let yielded = host
        .scx
        .yield_to(host.cpu, nominee, Awaits::Nothing, host.now_ns, &Anywhere);
    let served = Yielded::Served {
        target: Served::Nominee,
        kicked: None,
    };
    assert_eq!(yielded, Ok(served));
    let picked = host.scx.pick(host.cpu, host.now_ns, &Anywhere);
    let picked = picked.expect("a CPU");
    assert_eq!(picked.task, Some(nominee));
    let end_ns = picked.loan_end_ns.expect("a timer");
    let slice_ns = Config::default().slice_ns;
    assert_eq!(end_ns - host.now_ns, slice_ns - MS / 10);
    // Until then it goes on; then the lender has its CPU back.
    host.now_ns = end_ns - 1;
    assert_eq!(host.scx.end_loan(host.cpu, host.now_ns), Ok(false));
    assert_eq!(host.pick(), Some(nominee));
    host.now_ns = end_ns;
    assert_eq!(host.scx.end_loan(host.cpu, host.now_ns), Ok(true));
    assert_eq!(host.pick(), Some(sender));
    let lent = host
        .scx
        .outcomes()
        .find(|(outcome, _)| *outcome == Outcome::LentNs);
    assert_eq!(lent, Some((Outcome::LentNs, slice_ns - MS / 10)));
}

/// Without an answer the loan ends with its slice. The lender is next, though another task is due earlier.
#[test]
fn a_loan_without_an_answer_goes_back_as_it_is_used_up() {
    let mut host = Host::new();
    let [sender, receiver] = lend(&mut host);
    let picked = host.scx.pick(host.cpu, host.now_ns, &Anywhere);
    let picked = picked.map(|picked| (picked.task, picked.loan_end_ns));
    assert_eq!(picked, Ok((Some(receiver), None)), "its EOI ends the loan");
    host.now_ns += Config::default().slice_ns - MS / 10;
    assert_eq!(host.scx.tick(host.cpu, host.now_ns), Ok(true));
    assert_eq!(host.pick(), Some(sender));
}

/// The yielder's CPU takes the target from the queue in which it waits.
#[test]
fn a_target_of_another_domain_runs() {
    let mut host = Host::new();
    let far = host.scx.create_cpu(1);
    let yielder = host.awake(0, None);
    let [current, target] = [(); 2].map(|()| {
        let task = host.scx.create_task(0, None).expect("a task");
        let woken = host.scx.wake(task, far, false, host.now_ns);
        woken.expect("it sleeps");
        task
    });
    let picked = host.scx.pick(far, host.now_ns, &Anywhere).expect("a CPU");
    assert_eq!(picked.task, Some(current));
    host.now_ns += MS / 10;
    let yielded = host
        .scx
        .yield_to(host.cpu, target, Awaits::Nothing, host.now_ns, &Anywhere);
    assert!(matches!(yielded, Ok(Yielded::Served { .. })), "{yielded:?}");
    let picked = host.scx.pick(host.cpu, host.now_ns, &Anywhere);
    let picked = picked.expect("a CPU");
    assert_eq!((picked.task, picked.from), (Some(target), Some(far)));
    assert_eq!(picked.requeued, Some(yielder));
    assert!(host.scx.consistent());
}

/// A task on a CPU's own list runs there at once: no yield moves it.
#[test]
fn a_task_on_an_idle_cpus_list_is_no_target() {
    let mut host = Host::new();
    host.awake(0, None);
    let idle = host.scx.create_cpu(0);
    let woken = host.scx.create_task(0, None).expect("a task");
    let is_idle = host.scx.wake(woken, idle, true, host.now_ns);
    assert_eq!(is_idle, Ok(true));
    let receiver = Awaits::Receiver {
        task: woken,
        sent_ns: host.now_ns,
        shows_eoi: true,
    };
    for awaits in [Awaits::Nothing, receiver] {
        let yielded = host
            .scx
            .yield_to(host.cpu, woken, awaits, host.now_ns, &Anywhere);
        assert_eq!(yielded, Ok(Yielded::Refused(Refusal::NotQueued)));
    }
    let paused = host.scx.pause(host.cpu, receiver, host.now_ns, &Anywhere);
    assert_eq!(paused, Ok(None));
}

/// The waiter of a lock has no use of its request. A nominee that is due by it runs at its own cost.
#[test]
fn a_spinner_without_an_ipi_gives_its_request() {
    let mut host = Host::new();
    let [nominee, spinner] = [(); 2].map(|()| host.awake(0, None));
    let lag_ns = |host: &Host, task| host.scx.lag_ns(task).expect("a task");
    host.now_ns += 2 * MS;
    assert_eq!(host.pick(), Some(spinner));
    let awaits = Awaits::NoIpi;
    let yielded = host
        .scx
        .yield_to(host.cpu, nominee, awaits, host.now_ns, &Anywhere);
    let served = Yielded::Served {
        target: Served::Nominee,
        kicked: None,
    };
    assert_eq!(yielded, Ok(served));
    // It was a millisecond beyond its share, and has a whole request of the other one.
    let lag = Config::default().slice_ns as i64 - MS as i64;
    assert_eq!(
        [nominee, spinner].map(|task| lag_ns(&host, task)),
        [lag, -lag]
    );
    let picked = host.scx.pick(host.cpu, host.now_ns, &Anywhere);
    let picked = picked.expect("a CPU");
    assert_eq!((picked.task, picked.loan_end_ns), (Some(nominee), None));
    assert!(host.scx.consistent());
}

/// A sleeper keeps its lag. The queue passes a debt meanwhile, which is then none.
#[test]
fn lag_outlasts_a_sleep_and_a_debt_does_not() {
    let mut host = Host::new();
    let [debtor, creditor] = [(); 2].map(|()| host.awake(0, None));
    let lag_ns = |host: &Host, task| host.scx.lag_ns(task).expect("a task");
    host.now_ns += 2 * MS;
    // Each one is 1 ms off its share.
    assert_eq!(host.pick(), Some(creditor));
    for (sleeper, other) in [(creditor, debtor), (debtor, creditor)] {
        let slept = host.scx.block(host.cpu, Block::Sleep, host.now_ns);
        slept.expect("it runs");
        assert_eq!(host.pick(), Some(other));
        if sleeper == debtor {
            host.now_ns += 100 * MS;
            host.scx.tick(host.cpu, host.now_ns).expect("a CPU");
        }
        let woken = host.scx.wake(sleeper, host.cpu, false, host.now_ns);
        woken.expect("it sleeps");
        let kept_ns = if sleeper == debtor { 0 } else { MS };
        let lag_ns = lag_ns(&host, sleeper);
        assert!(
            (lag_ns - kept_ns as i64).abs() < 10,
            "{lag_ns} of {kept_ns}"
        );
    }
}

#[test]
fn a_spinner_beyond_its_share_gives_its_cpu_to_a_task_that_is_due() {
    let mut host = Host::new();
    let [former, spinner, due] = [(); 3].map(|()| host.awake(0, None));
    // One has had a slice, one most of it, and the third one nothing.
    let slice_ns = Config::default().slice_ns;
    host.now_ns += slice_ns;
    assert_eq!(host.pick(), Some(spinner));
    host.now_ns += slice_ns - MS / 10;
    assert_eq!(host.scx.tick(host.cpu, host.now_ns), Ok(false));
    let yielded = host
        .scx
        .yield_to(host.cpu, former, Awaits::Nothing, host.now_ns, &Anywhere);
    assert_eq!(yielded, Ok(Yielded::Refused(Refusal::Guard)));
    assert_eq!(host.scx.tick(host.cpu, host.now_ns), Ok(true));
    assert_eq!(host.pick(), Some(due));
}

#[test]
fn yields_are_refused_with_their_reason() {
    let mut host = Host::new();
    let sender = host.awake(0, None);
    let sleeper = host.scx.create_task(0, None).expect("a task");
    let mut yield_to = |awaits, now_ns| {
        host.scx
            .yield_to(host.cpu, sleeper, awaits, now_ns, &Anywhere)
    };
    let refused = |refusal| Ok(Yielded::Refused(refusal));
    let answered = Awaits::Answered { at_ns: MS };
    assert_eq!(yield_to(answered, MS + 49_999), refused(Refusal::Answered));
    assert_eq!(yield_to(answered, MS + 50_000), refused(Refusal::NotQueued));
    assert_eq!(yield_to(Awaits::Nothing, MS), refused(Refusal::NotQueued));
    let near = Awaits::Receiver {
        task: sender,
        sent_ns: MS,
        shows_eoi: true,
    };
    assert_eq!(yield_to(near, MS + 49_999), refused(Refusal::ReceiverRuns));
    assert_eq!(yield_to(near, MS + 50_000), refused(Refusal::NotQueued));
}

proptest! {
    /// Whatever happens, sums agree with the tasks and a busy CPU has a task.
    #[test]
    fn sums_agree(steps in proptest::collection::vec((0u8..6, 0usize..6, 1u64..6_000), 1..200)) {
        let mut scx = Scx::new(Config::default());
        let cpus = [scx.create_cpu(0), scx.create_cpu(0), scx.create_cpu(1)];
        let group = scx.create_group(None).expect("a group");
        let tasks: Vec<TaskId> = (0..6)
            .map(|n| scx.create_task(n as i8 * 3 - 9, (n % 2 == 0).then_some(group)).expect("a task"))
            .collect();
        let mut now_ns = 0;
        for (step, n, us) in steps {
            now_ns += us * 1_000;
            let (task, cpu) = (tasks[n], cpus[n % 3]);
            let current = scx.running(cpu).expect("a CPU");
            match step {
                0 | 1 => {
                    let _ = scx.wake(task, cpu, current.is_none(), now_ns);
                }
                2 if current.is_some() => scx.block(cpu, Block::Sleep, now_ns).expect("it runs"),
                3 => {
                    scx.tick(cpu, now_ns).expect("a CPU");
                }
                4 if current.is_some() => {
                    let receiver = tasks[(n + 1) % 6];
                    let shows_eoi = n % 2 == 0;
                    let awaits = Awaits::Receiver { task: receiver, sent_ns: now_ns, shows_eoi };
                    scx.yield_to(cpu, task, awaits, now_ns, &Anywhere).expect("a vCPU runs");
                }
                5 => {
                    let _ = scx.answered(task, tasks[(n + 1) % 6], now_ns);
                }
                _ => {}
            }
            for cpu in cpus {
                scx.pick(cpu, now_ns, &Anywhere).expect("a CPU");
            }
            prop_assert!(scx.consistent());
            let runnable = tasks.iter().filter(|task| scx.runnable_on(**task) != Ok(None)).count();
            let running = cpus.iter().filter(|cpu| scx.running(**cpu) != Ok(None)).count();
            prop_assert_eq!(running, runnable.min(3));
        }
    }

    /// The pick is that of a plain search: the earliest deadline of those that are due and may run there.
    #[test]
    fn the_earliest_due_task_is_picked(
        steps in proptest::collection::vec((0u8..4, 0usize..6, 1u64..6_000), 1..200),
        barred in 0usize..8,
    ) {
        let mut scx = Scx::new(Config::default());
        let cpu = scx.create_cpu(0);
        let tasks: Vec<TaskId> = (0..6)
            .map(|n| scx.create_task(n as i8 * 3 - 9, None).expect("a task"))
            .collect();
        let affinity = Barred(tasks.get(barred).copied());
        let mut now_ns = 0;
        for (step, n, us) in steps {
            now_ns += us * 1_000;
            let current = scx.running(cpu).expect("a CPU");
            match step {
                0 | 1 => {
                    let _ = scx.wake(tasks[n], cpu, false, now_ns);
                }
                2 if current.is_some() => scx.block(cpu, Block::Sleep, now_ns).expect("it runs"),
                _ => {}
            }
            let (expected, slice_ns) = scx.plain_pick(now_ns, &affinity);
            let picked = scx.pick(cpu, now_ns, &affinity).expect("a CPU").task;
            prop_assert_eq!(picked, expected.map(|index| scx.id_of(index)));
            if let Some(index) = expected {
                prop_assert_eq!(scx.tasks[index].slice_ns, slice_ns);
            }
        }
    }
}

/// One task may not run.
struct Barred(Option<TaskId>);

impl Affinity for Barred {
    fn may_run(&self, task: TaskId, _: RqId) -> bool {
        self.0 != Some(task)
    }

    fn is_pinned(&self, _: TaskId) -> bool {
        false
    }
}

impl Scx {
    /// The task that the only CPU runs next, and its slice. There are neither yields nor loans.
    fn plain_pick(&mut self, now_ns: u64, affinity: &Barred) -> (Option<usize>, u64) {
        let current = self.cpus[0].current;
        if let Some(index) = current {
            self.charge_running(index, now_ns);
            if self.tasks[index].slice_ns > 0 {
                return (current, self.tasks[index].slice_ns);
            }
        }
        let queued = (0..self.tasks.len()).filter(|index| {
            matches!(self.tasks[*index].place, Place::Queue { .. })
                && affinity.may_run(self.id_of(*index), RqId(0))
        });
        let deadline = |index: &usize| self.tasks[*index].time.deadline();
        let earliest = |tasks: Vec<usize>| tasks.into_iter().min_by_key(deadline);
        let queued: Vec<usize> = queued.collect();
        let due = queued
            .iter()
            .copied()
            .filter(|index| self.is_due(*index))
            .collect();
        let Some(first) = earliest(due) else {
            let last_resort = earliest(queued).or(current);
            return (last_resort, self.config.slice_ns);
        };
        match current.filter(|index| self.is_due(*index) && deadline(index) < deadline(&first)) {
            Some(index) => {
                let left_ns = self.tasks[index].time.request_left_ns();
                (Some(index), left_ns.max(LEAST_SLICE_NS))
            }
            None => (Some(first), self.config.slice_ns),
        }
    }
}
