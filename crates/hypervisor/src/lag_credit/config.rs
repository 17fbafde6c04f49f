//! What can be chosen about the credit.

use crate::eevdf::Error;

/// What a directed yield does to make its hint hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Version 3: the target is credited.
    Credit {
        /// Lag aimed at for each other entity of the queue, in ns of virtual time, [1000, 100 000 000].
        margin_ns: u64,
        /// A queued target keeps the distance to its deadline; otherwise a new request starts, as
        /// when a delayed entity is queued again.
        keep_request: bool,
    },
    /// Versions 1 and 2, for comparison: the yielder pays ("debooster"). Its virtual runtime is
    /// moved beyond the target's where both are in one queue. The rate limit covers all of it, and
    /// a yield to another run queue counts as one that was let through.
    Debooster,
}

/// How often a directed yield may end slice protection and force its CPU to reschedule, or with
/// [`Method::Debooster`] move the yielder back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimit {
    /// Once per this many ns and run queue; 0 for no limit.
    Fixed {
        /// Shortest time between two, in ns.
        interval_ns: u64,
    },
    /// After this many ns without a directed yield of the run queue: version 1 renews its time stamp
    /// with each, let through or not, so that a queue that yields all the time is left alone.
    Quiet {
        /// Time without a yield before one is let through, in ns.
        interval_ns: u64,
    },
    /// By the run queue's own rate of directed yields: the more there are, the longer apart.
    ///
    /// The time between two is `interval_ns * gap_ns / gap`, within `[min_ns, max_ns]`, where `gap`
    /// is the run queue's average time between yields (each counts for an eighth).
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

/// A limit on what credits may take from the other entities of a queue.
///
/// Without one, two tasks that yield to each other without pause are credited without end and
/// starve all others of their queue: `docs/eevdf.md` has the measurement. The series has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Thousandths of the time that credits may move from others to targets, [1, 1000].
    pub per_mille: u32,
    /// Most that may be saved up, in ns of nice-0 service. At least what one credit takes, or
    /// there is never one.
    pub burst_ns: u64,
}

/// A fault that a checker puts into the credit, to see that it is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CreditFault {
    /// As it should be.
    #[default]
    None,
    /// A queued target is edited where it is in the tree, without taking it out: the queue's
    /// sums no longer say what its members do.
    InPlace,
    /// The lag aimed at is not kept within the bound of any entity's lag.
    Unbounded,
    /// Forcing is limited by each yield's own time, not by the last forced one: each is forced.
    Unlimited,
}

/// Options of the lag credit. They matter with `YIELD_TO_LAG_CREDIT` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LagCredit {
    /// What is done for the hint.
    pub method: Method,
    /// How often a reschedule is forced.
    pub rate_limit: RateLimit,
    /// A target on another run queue is pulled to the yielder's, if the caller says that it may
    /// run there: see [`crate::eevdf::Fair::yield_to_pulling`]. The series leaves this to the
    /// future.
    pub across_run_queues: bool,
    /// Limit on what all credits of a queue take from its other entities; the series has none.
    pub guard: Option<Guard>,
}

impl LagCredit {
    /// Version 3 of the series: a small margin, a new request, 6 ms, one run queue only.
    ///
    /// The margin is not published. 50 us is what five pause loops take, one after the other, that
    /// exit at the default window of 4096 cycles and at twice the last each time: 127 000 cycles.
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

    /// Version 1 of the series. (It takes the cap of what is paid from the entities of one level;
    /// here it is that of version 2, from the tasks below, which differs where groups have several.)
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
