//! What a CPU-bound third party keeps against a pair that yields to each other without pause.
//!
//! Shared by the test that holds the stated bound and by the example that prints the table.

use stealtime_hypervisor::fair::{
    Attr, Config, Error, Fair, Feature, PickMode, Resched, RqId, TaskId, YieldTo,
};
use stealtime_hypervisor::lag_credit::LagCredit;

/// How the tasks are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// All in the root group.
    OneQueue,
    /// The pair in one group, each third party in a group of its own: virtual machines.
    Machines,
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Tasks on the CPU: the pair and `tasks - 2` that compute.
    pub(crate) tasks: u32,
    /// How long one of the pair spins before it yields, in ns.
    pub(crate) spin_ns: u64,
    pub(crate) layout: Layout,
    pub(crate) mode: PickMode,
    /// `None` for Linux 7.2 as it is.
    pub(crate) credit: Option<LagCredit>,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Least CPU time of a third party, in parts of a million of all time.
    pub(crate) least_ppm: u64,
    /// What it would have if the pair only computed.
    pub(crate) fair_ppm: u64,
    /// Directed yields that were done.
    pub(crate) yields: u64,
    /// Those after which the target ran at once.
    pub(crate) honoured: u64,
}

struct Cpu {
    fair: Fair,
    rq: RqId,
    pair: [TaskId; 2],
    others: Vec<TaskId>,
}

fn cpu(case: &Case) -> Result<Cpu, Error> {
    let mut config = Config::linux_7_2(16);
    if let Some(credit) = case.credit {
        config.features = config.features.with(Feature::YieldToLagCredit);
        config.lag_credit = credit;
    }
    let mut fair = Fair::new(config)?;
    fair.set_self_check(false);
    let rq = fair.create_rq(case.mode)?;
    let mut home = None;
    let mut tasks = Vec::new();
    for n in 0..case.tasks {
        if case.layout == Layout::Machines && n != 1 {
            let group = fair.create_group(None)?;
            fair.extend_group(group, rq)?;
            home = Some(group);
        }
        let task = fair.create_task(Attr::default(), home)?;
        fair.fork(task, rq, 0)?;
        tasks.push(task);
    }
    let others = tasks.split_off(2);
    Ok(Cpu {
        fair,
        rq,
        pair: [tasks[0], tasks[1]],
        others,
    })
}

/// Runs a case for `total_ns` of simulated time.
pub(crate) fn measure(case: &Case, total_ns: u64) -> Result<Outcome, Error> {
    let Cpu {
        mut fair,
        rq,
        pair,
        others,
    } = cpu(case)?;
    let tick_ns = fair.config().tick_ns;
    let mut ran = vec![0u64; others.len()];
    let (mut yields, mut honoured) = (0, 0);
    let (mut now, mut next_tick) = (0, tick_ns);
    let mut running = fair.pick(rq, 0)?.task;
    while now < total_ns {
        let spins = running.filter(|t| pair.contains(t));
        let mut until = next_tick;
        if let Some(expiry) = fair.pending(rq)?.hrtick {
            until = until.min(expiry.max(now));
        }
        let spin_end = now + case.spin_ns;
        let yields_now = spins.is_some() && spin_end < until;
        if yields_now {
            until = spin_end;
        }
        if let Some(i) = others.iter().position(|t| Some(*t) == running) {
            ran[i] += until - now;
        }
        now = until;
        if yields_now {
            let target = if running == Some(pair[0]) {
                pair[1]
            } else {
                pair[0]
            };
            if let YieldTo::Yielded { .. } = fair.yield_to(rq, target, now)? {
                yields += 1;
                running = fair.pick(rq, now)?.task;
                honoured += u64::from(running == Some(target));
            }
            continue;
        }
        let actions = if now == next_tick {
            next_tick += tick_ns;
            fair.tick(rq, now)?
        } else {
            fair.hrtick(rq, now)?
        };
        if actions.resched == Resched::Now {
            running = fair.pick(rq, now)?.task;
        }
    }
    let least = ran.iter().copied().min().unwrap_or(0);
    let rivals = match case.layout {
        Layout::OneQueue => case.tasks,
        Layout::Machines => case.tasks - 1,
    };
    Ok(Outcome {
        least_ppm: least * 1_000_000 / now,
        fair_ppm: 1_000_000 / u64::from(rivals),
        yields,
        honoured,
    })
}
