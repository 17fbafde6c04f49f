//! The options of the lag credit.

use crate::fair::Error;

/// The effect of a directed yield beyond the nomination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Version 3: the target is credited.
    Credit {
        /// Lag after the credit, for each other entity of the queue, in ns of virtual time,
        /// [1000, 100 000 000].
        margin_ns: u64,
        /// A queued target keeps the distance to its deadline. Otherwise a new request starts, as
        /// in `requeue_delayed_entity`.
        keep_request: bool,
    },
    /// Versions 1 and 2, for comparison: the yielder pays ("debooster"). Its virtual runtime is
    /// moved beyond the target's where both are in one queue. The rate limit covers all of it, and
    /// also counts a yield to another run queue.
    Debooster,
}

/// Rate limit of forced reschedules, or with [`Method::Debooster`] of yielders moved back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimit {
    /// Once per this many ns and run queue; 0 for no limit.
    Fixed {
        /// Shortest time between two, in ns.
        interval_ns: u64,
    },
    /// After this many ns without a directed yield of the run queue. Version 1 renews its time
    /// stamp with each yield, so that a queue with frequent yields is never forced.
    Quiet {
        /// Shortest time without a yield, in ns.
        interval_ns: u64,
    },
    /// By the run queue's rate of directed yields: the higher the rate, the longer the interval.
    ///
    /// The interval is `interval_ns * gap_ns / gap`, within `[min_ns, max_ns]`, where `gap` is the
    /// run queue's average time between yields (each counts for an eighth).
    Adaptive {
        /// Time between two at a gap of `gap_ns`, in ns.
        interval_ns: u64,
        /// The gap between yields, in ns, at which `interval_ns` holds. Not 0.
        gap_ns: u64,
        /// Shortest time between two, in ns.
        min_ns: u64,
        /// Longest time between two, in ns.
        max_ns: u64,
    },
}

/// A limit on the service that credits move away from other entities of a queue.
///
/// Without a limit, two tasks that yield to each other without pause starve all others of their
/// queue: `docs/eevdf.md` has the measurement. The series has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Thousandths of the time that credits may move from others to targets, [1, 1000].
    pub per_mille: u32,
    /// Largest saving, in ns of nice-0 service. Below the cost of one credit there is none.
    pub burst_ns: u64,
}

/// A fault injected into the credit, to test that a checker finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CreditFault {
    /// No fault.
    #[default]
    None,
    /// A queued target is changed inside the tree: the queue's sums disagree with its members.
    InPlace,
    /// The lag after a credit exceeds the bound of any lag.
    Unbounded,
    /// The rate limit ignores the last forced reschedule: each yield forces one.
    Unlimited,
}

/// Options of the lag credit. They matter with `YIELD_TO_LAG_CREDIT` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LagCredit {
    /// Effect of a yield beyond the nomination.
    pub method: Method,
    /// Rate limit of forced reschedules.
    pub rate_limit: RateLimit,
    /// Pull a target on another run queue to the yielder's, if its affinity allows that: see
    /// [`crate::fair::Fair::yield_to_pulling`]. Not part of the series.
    pub across_run_queues: bool,
    /// Limit on the service that all credits of a queue move; the series has none.
    pub guard: Option<Guard>,
}

impl LagCredit {
    /// Version 3 of the series: a small margin, a new request, 6 ms, one run queue only.
    ///
    /// The margin is not published. 50 us is five pause-loop exits in a row: the first window is
    /// 4096 cycles, the default, and each doubles. That is 127 000 cycles together.
    pub const SERIES_V3: Self = Self {
        method: Method::Credit {
            margin_ns: 50_000,
            keep_request: false,
        },
        rate_limit: RateLimit::Fixed {
            interval_ns: 6_000_000,
        },
        across_run_queues: false,
        guard: None,
    };

    /// Version 3 with a limit: an eighth of the time, saved up for 20 ms of service.
    pub const GUARDED: Self = Self {
        guard: Some(Guard {
            per_mille: 125,
            burst_ns: 20_000_000,
        }),
        ..Self::SERIES_V3
    };

    /// Version 1 of the series, with the cap of version 2. The cap counts the tasks below, not the
    /// entities of one level. They differ for groups of several tasks.
    pub const SERIES_V1: Self = Self {
        rate_limit: RateLimit::Quiet {
            interval_ns: 6_000_000,
        },
        ..Self::SERIES_V2
    };

    /// Version 2 of the series.
    pub const SERIES_V2: Self = Self {
        method: Method::Debooster,
        ..Self::SERIES_V3
    };

    /// # Errors
    ///
    /// [`Error::BadConfig`] for a margin out of range, a gap of 0, or an empty range of intervals.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |field, value, min, max| {
            Err(Error::BadConfig {
                field,
                value,
                min,
                max,
            })
        };
        if let Method::Credit { margin_ns, .. } = self.method
            && !(1_000..=100_000_000).contains(&margin_ns)
        {
            return bad("lag_credit margin_ns", margin_ns, 1_000, 100_000_000);
        }
        if let Some(Guard { per_mille, .. }) = self.guard
            && !(1..=1000).contains(&per_mille)
        {
            return bad("lag_credit per_mille", u64::from(per_mille), 1, 1000);
        }
        match self.rate_limit {
            RateLimit::Adaptive { gap_ns: 0, .. } => bad("lag_credit gap_ns", 0, 1, u64::MAX),
            RateLimit::Adaptive { min_ns, max_ns, .. } if min_ns > max_ns => {
                bad("lag_credit min_ns", min_ns, 0, max_ns)
            }
            _ => Ok(()),
        }
    }
}

impl Default for LagCredit {
    fn default() -> Self {
        Self::SERIES_V3
    }
}
