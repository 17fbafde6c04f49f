//! How far a replay is from its recording, and which of two replays fits better.
//!
//! | term | unit | is | from |
//! |---|---|---|---|
//! | times | ns | differing running, ready and halted time, and work, summed over vCPUs | all recordings |
//! | decisions | permille | wakeups on busy CPUs that preempt in one of the two only | flags of events |
//! | slice timers | permille | slice timers that are set for another time | hrtimer events |
//! | exits | ppm | largest error of an exit reason's count | exits of 100 or more |
//!
//! [`Scale::compare`] reads the terms in this order:
//!
//! 1. *Weights.* A hypothesis with fitted weights competes with one without. Weights are a free number for
//!    each VM, so they fit noise too. They must explain half of the misfit and 6 % of vCPUs' time.
//! 2. *Decisions*, where both have 50 wakeups of a sort. A difference of 8 % of wakeups decides, unless
//!    times or exits contradict.
//! 3. *Times.* A difference of a tenth decides, if it is more than 0.1 % of vCPUs' time.
//! 4. *Slice timers*, where times are as near.
//! 5. *Order.* Of two that fit as well, the first one tried is kept.
//!
//! The relation is not transitive: three hypotheses may each be within a tenth of the next one. The order
//! of trials is therefore part of the answer.

use crate::fit::hypothesis::Hypothesis;
use crate::predict::{Errors, Times, VcpuTimes, time_errors};

/// How far a replay is from its recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misfit {
    /// Differences of running, ready and halted time and of the work done, summed over vCPUs, in ns.
    pub times_ns: u64,
    /// Wakeups on busy CPUs that the replay decides differently, of 1000; `None` with too few, or if the
    /// recording has no flags.
    pub decisions_permille: Option<u64>,
    /// Slice timers that are set for another time, of 1000; `None` with too few.
    pub slices_permille: Option<u64>,
    /// The largest error of an exit reason's count, in ppm of the recorded count.
    pub exits_ppm: u64,
}

impl Misfit {
    /// Compares a replay with its recording of `span_ns`.
    #[must_use]
    pub fn between(recorded: &Times, replayed: &Times, span_ns: u64) -> Self {
        Self {
            times_ns: times_ns(recorded, replayed),
            decisions_permille: recorded.decisions.apart_permille(&replayed.decisions),
            slices_permille: recorded.slices.apart_permille(&replayed.slices),
            exits_ppm: Errors::between(recorded, replayed, span_ns).worst_exits(),
        }
    }
}

/// The first term. Work counts in addition to time: a guest that wakes for timers may run as long and get
/// less done.
fn times_ns(recorded: &Times, replayed: &Times) -> u64 {
    let vcpu_ns = |(recorded, replayed): (&VcpuTimes, &VcpuTimes)| {
        let work_ns = u128::from(recorded.run_ns.saturating_sub(recorded.poll_ns));
        let permille = replayed.done_permille.abs_diff(recorded.done_permille);
        let undone_ns = work_ns * u128::from(permille) / 1000;
        let undone_ns = u64::try_from(undone_ns).unwrap_or(u64::MAX);
        time_errors(recorded, replayed).iter().sum::<u64>() + undone_ns
    };
    let pairs = recorded.vcpus.iter().zip(&replayed.vcpus);
    pairs.map(vcpu_ns).sum()
}

/// A hypothesis that was replayed.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The host.
    pub hypothesis: Hypothesis,
    /// How far its replay is from the recording.
    pub misfit: Misfit,
}

/// What decides between two hypotheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// The threshold for weights.
    Weights,
    /// Decisions at wakeups.
    Decisions,
    /// Times of vCPUs.
    Times,
    /// Slice timers.
    SliceTimers,
    /// No term: the first one tried is kept.
    Order,
}

impl Term {
    /// As JSON has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Decisions => "decisions",
            Self::Times => "times",
            Self::SliceTimers => "slice_timers",
            Self::Order => "order",
        }
    }
}

/// A comparison of a hypothesis with one that was tried before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The later one fits better.
    pub(crate) is_nearer: bool,
    /// By this term.
    pub(crate) term: Term,
}

/// Times differ if one is less by more than one in so many: a replay's own vary by so much with the seed.
const ONE_IN_NEAR: u64 = 10;
/// Times that differ by less than one in so many of all vCPUs' time are equal. In a replay that is nearly
/// exact a tenth is chance.
const ONE_IN_SMALL: u64 = 1_000;
/// Slice timers differ if fewer are apart by more than one in so many, and by more than the second, in
/// permille. Their counts vary with the seed as times do.
const ONE_IN_APART: u64 = 4;
const SLICES_PERMILLE: u64 = 20;

/// Decisions differ by so much more, in permille of wakeups. Replays of the recorded host are apart by 10 to
/// 90, because slices that end late in the recording end with wakeups too. Replays with other cgroups are
/// apart by 100 to 350.
const DECISIONS_PERMILLE: u64 = 80;
/// Another kernel may decide differently. So decisions do not count for a hypothesis with times of more than
/// so many percent of the other's. Nor do they if its exits are off by more than the second, in ppm, and by
/// more than the other's.
const DECISIONS_PERCENT: u64 = 150;
const EXITS_PPM: u64 = 50_000;

/// Without work stealing a replay reproduces the recording trivially, so its fit says little about changed
/// knobs. Against one with work stealing its times count as so many percent.
const OWN_WORK_PERCENT: u64 = 125;

/// Weights are tried where times are off by so many permille of vCPUs' time. They are taken where they reduce
/// times by as much, and to less than the second, in percent. VMs without cgroups, or with equal weights,
/// gain less.
const WEIGHTS_PERMILLE: u64 = 60;
const WEIGHTS_PERCENT: u64 = 50;
/// For a VM alone in a cgroup CFS decides at wakeups as for one with another weight. So decisions do not
/// separate these. A weight is likelier, so less gain is enough, in percent.
const WEIGHTS_FOR_SINGLE_PERCENT: u64 = 95;

/// What the terms are measured against in one recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Times that differ by less are equal, in ns: 0.1 % of vCPUs' time.
    small_ns: u64,
    /// The recorded host has CFS.
    is_cfs: bool,
}

impl Scale {
    pub(crate) fn new(recorded: &Times, is_cfs: bool) -> Self {
        let known_ns: u64 = recorded.vcpus.iter().map(VcpuTimes::known_ns).sum();
        Self {
            small_ns: known_ns / ONE_IN_SMALL,
            is_cfs,
        }
    }

    /// Whether a hypothesis fits better than one that was tried before, and by which term.
    pub(crate) fn compare(&self, later: &Trial, earlier: &Trial) -> Verdict {
        if !later.hypothesis.weights.is_empty() && earlier.hypothesis.weights.is_empty() {
            return Verdict {
                is_nearer: self.weights_explain(later, earlier),
                term: Term::Weights,
            };
        }
        if let Some(is_nearer) = by_decisions(later, earlier) {
            let term = Term::Decisions;
            return Verdict { is_nearer, term };
        }
        let (later_ns, earlier_ns) = weighed_times(later, earlier);
        let is_nearer = is_less(later_ns, earlier_ns);
        let differ = is_nearer || is_less(earlier_ns, later_ns);
        let by_times = Verdict {
            is_nearer,
            term: match differ {
                true => Term::Times,
                false => Term::Order,
            },
        };
        if later_ns.abs_diff(earlier_ns) > self.small_ns && differ {
            return by_times;
        }
        match by_slice_timers(&later.misfit, &earlier.misfit) {
            Some(is_nearer) => Verdict {
                is_nearer,
                term: Term::SliceTimers,
            },
            None => by_times,
        }
    }

    /// Whether times are off by so much that a hypothesis of its own is worth its replays.
    pub(crate) fn is_far_off(&self, trial: &Trial) -> bool {
        trial.misfit.times_ns > self.small_ns.saturating_mul(WEIGHTS_PERMILLE)
    }

    /// Whether times are off by enough that unequal weights may explain it.
    pub(crate) fn needs_weights(&self, trial: &Trial) -> bool {
        self.is_far_off(trial) || self.has_single_vm_of_cfs(trial)
    }

    fn has_single_vm_of_cfs(&self, trial: &Trial) -> bool {
        self.is_cfs && !trial.hypothesis.cgroups.single_vms.is_empty()
    }

    /// Whether weights explain enough of the times of a hypothesis without, and decisions do not contradict.
    /// Decisions do not count for weights: where VMs have no cgroups, weights may imitate their decisions.
    fn weights_explain(&self, weighted: &Trial, equal: &Trial) -> bool {
        let (percent, permille) = match self.has_single_vm_of_cfs(equal) {
            true => (WEIGHTS_FOR_SINGLE_PERCENT, 0),
            false => (WEIGHTS_PERCENT, WEIGHTS_PERMILLE),
        };
        let (weighted_ns, equal_ns) = (weighted.misfit.times_ns, equal.misfit.times_ns);
        let gain_ns = equal_ns.saturating_sub(weighted_ns);
        gain_ns > self.small_ns.saturating_mul(permille)
            && weighted_ns < equal_ns.saturating_mul(percent) / 100
            && (self.is_cfs || by_decisions(weighted, equal) != Some(false))
    }
}

/// Less by more than a tenth.
const fn is_less(one_ns: u64, other_ns: u64) -> bool {
    one_ns < other_ns - other_ns / ONE_IN_NEAR
}

/// Whether decisions are for the later hypothesis; `None` if they do not separate the two.
fn by_decisions(later: &Trial, earlier: &Trial) -> Option<bool> {
    let later_permille = later.misfit.decisions_permille?;
    let earlier_permille = earlier.misfit.decisions_permille?;
    let is_nearer = later_permille < earlier_permille;
    let (near, far) = match is_nearer {
        true => (&later.misfit, &earlier.misfit),
        false => (&earlier.misfit, &later.misfit),
    };
    let differ = later_permille.abs_diff(earlier_permille) > DECISIONS_PERMILLE;
    let times_agree = near.times_ns <= far.times_ns.saturating_mul(DECISIONS_PERCENT) / 100;
    let exits_agree = near.exits_ppm <= far.exits_ppm.max(EXITS_PPM);
    (differ && times_agree && exits_agree).then_some(is_nearer)
}

/// Times of two hypotheses, with the factor of [`OWN_WORK_PERCENT`] if only one has work stealing.
fn weighed_times(later: &Trial, earlier: &Trial) -> (u64, u64) {
    let is_mixed = later.hypothesis.balanced != earlier.hypothesis.balanced;
    let times_ns = |trial: &Trial| match is_mixed && !trial.hypothesis.balanced {
        true => trial.misfit.times_ns.saturating_mul(OWN_WORK_PERCENT) / 100,
        false => trial.misfit.times_ns,
    };
    (times_ns(later), times_ns(earlier))
}

/// Whether slice timers are for the later hypothesis; `None` if they do not separate the two.
fn by_slice_timers(later: &Misfit, earlier: &Misfit) -> Option<bool> {
    let (later, earlier) = (later.slices_permille?, earlier.slices_permille?);
    let is_clear = |near: u64, far: u64| near + SLICES_PERMILLE.max(far / ONE_IN_APART) < far;
    match (is_clear(later, earlier), is_clear(earlier, later)) {
        (true, _) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
    }
}
