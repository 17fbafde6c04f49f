//! For how many decisions of the scheduler a credited target stays the one to run.
//!
//! Shared by the test that holds the numbers and by the example that prints the table.

use stealtime_hypervisor::fair::{Attr, Config, Error, Fair, Feature, PickMode, YieldTo};
use stealtime_hypervisor::lag_credit::{LagCredit, Method};

/// One case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Lag aimed at for each other entity, in ns of virtual time; `None` without the series.
    pub(crate) margin_ns: Option<u64>,
    /// Tasks of one queue.
    pub(crate) depth: u32,
    /// Time between two decisions, in ns.
    pub(crate) gap_ns: u64,
}

/// Picks in a row that take the target, from the one right after a directed yield to it on: it has
/// just had a slice, more than its share, and another task yields to it.
///
/// Each pick is a decision that is free to take another: the running task keeps its CPU only while
/// it is eligible.
///
/// # Errors
///
/// A margin out of range.
pub(crate) fn picks_in_a_row(case: Case) -> Result<u32, Error> {
    const MOST: u32 = 100_000;
    let mut config = Config::linux_7_2(16);
    if let Some(margin_ns) = case.margin_ns {
        config.features = config.features.with(Feature::YieldToLagCredit);
        config.lag_credit.method = Method::Credit {
            margin_ns,
            keep_request: false,
        };
    }
    let mut fair = Fair::new(config)?;
    let rq = fair.create_rq(PickMode::Hierarchical)?;
    for _ in 0..case.depth {
        let task = fair.create_task(Attr::default(), None)?;
        fair.fork(task, rq, 0)?;
    }
    let target = fair.pick(rq, 0)?.task.ok_or(Error::Idle(rq))?;
    let mut now = config.tick_ns;
    fair.tick(rq, now)?;
    fair.pick(rq, now)?;
    now += case.gap_ns;
    let answer = fair.yield_to(rq, target, now)?;
    debug_assert!(matches!(answer, YieldTo::Yielded { .. }), "{answer:?}");
    for picks in 0..MOST {
        if fair.pick(rq, now)?.task != Some(target) {
            return Ok(picks);
        }
        now += case.gap_ns;
    }
    Ok(MOST)
}

/// The series' margin as it is by default.
pub(crate) fn default_margin_ns() -> u64 {
    match LagCredit::SERIES_V3.method {
        Method::Credit { margin_ns, .. } => margin_ns,
        Method::Debooster => 0,
    }
}
