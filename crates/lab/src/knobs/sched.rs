//! Knobs of the scheduler.

use stealtime_hypervisor::fair::{Feature, Features, PickMode, Preempt};
use stealtime_hypervisor::lag_credit::{Guard, LagCredit, Method, RateLimit};
use stealtime_simulator::config::{CfsKnobs, Knobs, SchedPolicy, ScxKnobs, Yields};

use super::Source::{Ours, Upstream};
use super::host_setting::{HostSetting, Location, scheduler};
use super::kvm::{SPINNING, Words};
use super::replay::{FairClass, Part, Replay};
use super::value::{Kind, Value, ValueError, time_or};
use super::{Knob, knob};
use crate::spelling::suggestion;

const PICKS: Words<PickMode> = Words(&[
    ("hierarchical", PickMode::Hierarchical),
    ("flat", PickMode::Flat),
]);
const PREEMPTS: Words<Preempt> = Words(&[("lazy", Preempt::Lazy), ("full", Preempt::Full)]);
const LAG_CREDIT: super::Source = Ours("details of YIELD_TO_LAG_CREDIT");

/// What differs from the defaults; all others stay.
fn features(features: Features) -> Value {
    let changed = Feature::ALL.into_iter().filter_map(|feature| {
        let is_on = features.has(feature);
        let prefix = if is_on { "" } else { "NO_" };
        (is_on != Features::default().has(feature)).then(|| format!("{prefix}{}", feature.name()))
    });
    Value::Words(changed.collect::<Vec<_>>().join(","))
}

fn with_features(mut features: Features, value: &Value) -> Result<Features, ValueError> {
    let split = value.words()?.split([',', ' ']).map(str::trim);
    for name in split.filter(|name| !name.is_empty()) {
        features.set(name).map_err(|_| {
            let names: Vec<&str> = Feature::ALL.iter().map(|f| f.name()).collect();
            let known = name.strip_prefix("NO_").unwrap_or(name);
            ValueError::NoFeature {
                name: name.to_owned(),
                help: suggestion(known, &names),
            }
        })?;
    }
    Ok(features)
}

fn method(credit: &LagCredit) -> &'static str {
    match credit.method {
        Method::Credit { .. } => "credit",
        Method::Debooster => "debooster",
    }
}

fn set_method(credit: &mut LagCredit, value: &Value) -> Result<(), ValueError> {
    match (value.words()?, credit.method) {
        ("credit", Method::Credit { .. }) => {}
        ("credit", Method::Debooster) => credit.method = LagCredit::SERIES_V3.method,
        _ => credit.method = Method::Debooster,
    }
    Ok(())
}

fn credit_parts(credit: &mut LagCredit) -> Result<(&mut u64, &mut bool), ValueError> {
    match &mut credit.method {
        Method::Credit {
            margin_ns,
            keep_request,
        } => Ok((margin_ns, keep_request)),
        Method::Debooster => Err(ValueError::Requires("sched.lag_credit.method=credit")),
    }
}

fn set_rate_limit(credit: &mut LagCredit, value: &Value) -> Result<(), ValueError> {
    let interval_ns = interval(credit);
    credit.rate_limit = match (value.words()?, credit.rate_limit) {
        ("adaptive", kept @ RateLimit::Adaptive { .. }) => kept,
        // Starts with the fixed interval at that gap, and may go up and down eightfold.
        ("adaptive", RateLimit::Fixed { .. } | RateLimit::Quiet { .. }) => RateLimit::Adaptive {
            interval_ns,
            gap_ns: 1_000_000,
            min_ns: interval_ns / 8,
            max_ns: interval_ns.saturating_mul(8),
        },
        ("quiet", _) => RateLimit::Quiet { interval_ns },
        _ => RateLimit::Fixed { interval_ns },
    };
    Ok(())
}

fn interval(credit: &LagCredit) -> u64 {
    match credit.rate_limit {
        RateLimit::Fixed { interval_ns }
        | RateLimit::Quiet { interval_ns }
        | RateLimit::Adaptive { interval_ns, .. } => interval_ns,
    }
}

/// Gap, least and most of an adaptive limit; those it would start with, for a fixed one.
fn adaptive(credit: &LagCredit) -> [u64; 3] {
    match credit.rate_limit {
        RateLimit::Adaptive {
            gap_ns,
            min_ns,
            max_ns,
            ..
        } => [gap_ns, min_ns, max_ns],
        RateLimit::Fixed { interval_ns } | RateLimit::Quiet { interval_ns } => {
            [1_000_000, interval_ns / 8, interval_ns.saturating_mul(8)]
        }
    }
}

fn adaptive_part(credit: &mut LagCredit, part: usize, value_ns: u64) -> Result<(), ValueError> {
    match (&mut credit.rate_limit, part) {
        (RateLimit::Adaptive { gap_ns, .. }, 0) => *gap_ns = value_ns,
        (RateLimit::Adaptive { min_ns, .. }, 1) => *min_ns = value_ns,
        (RateLimit::Adaptive { max_ns, .. }, _) => *max_ns = value_ns,
        _ => return Err(ValueError::Requires("sched.lag_credit.rate_limit=adaptive")),
    }
    Ok(())
}

fn guard(credit: &LagCredit) -> Guard {
    let disabled = Guard {
        per_mille: 0,
        burst_ns: 20_000_000,
    };
    credit
        .guard
        .or(LagCredit::GUARDED.guard.map(|guard| Guard {
            per_mille: 0,
            ..guard
        }))
        .unwrap_or(disabled)
}

const TIME: Kind = Kind::Time {
    min: 0,
    max: 1_000_000_000,
};

/// A tunable of CFS; without that none is set.
fn cfs_tunable(knobs: &Knobs, get: impl Fn(&CfsKnobs) -> Option<u64>) -> Value {
    time_or(knobs.sched.cfs.as_ref().and_then(get), "auto")
}

fn cfs(knobs: &mut Knobs) -> Result<&mut CfsKnobs, ValueError> {
    let cfs = knobs.sched.cfs.as_mut();
    cfs.ok_or(ValueError::Requires("sched.fair=cfs"))
}

/// Of a knob that is a time, as long as these allow.
const CFS_TIME: Kind = Kind::TimeOr {
    word: "auto",
    min: 100_000,
    max: 1_000_000_000,
};

const CREDIT_SERIES: &str =
    "of the series of patches with YIELD_TO_LAG_CREDIT, which is not merged";

fn fair_kernel(value: &Value) -> Option<String> {
    let text = match value.to_string().as_str() {
        "eevdf" => "Linux 6.6 or later",
        "cfs" => "Linux 6.5 or earlier",
        _ => return None,
    };
    Some(text.to_owned())
}

fn yield_kernel(value: &Value) -> Option<String> {
    let text = match value.to_string().as_str() {
        "true" => "Linux 6.19 or later",
        "false" => "Linux 6.6 to 6.18",
        _ => return None,
    };
    Some(text.to_owned())
}

fn pick_kernel(value: &Value) -> Option<String> {
    let text = match value.to_string().as_str() {
        "flat" => "Linux 7.3 or later",
        "hierarchical" => "Linux 7.2 or earlier",
        _ => return None,
    };
    Some(text.to_owned())
}

const YIELDS: Words<Yields> = Words(&[
    ("refuse", Yields::Refuse),
    ("nominee", Yields::Nominee),
    ("receiver", Yields::Receiver),
]);
const SCX_STEALTIME: &str = "scx-stealtime";

fn policy_step(value: &Value) -> Option<String> {
    let text = match value.to_string().as_str() {
        SCX_STEALTIME => "stealtime sched load",
        _ => "end `stealtime sched load`",
    };
    Some(text.to_owned())
}

fn scx(knobs: &mut Knobs) -> Result<&mut ScxKnobs, ValueError> {
    match &mut knobs.sched.policy {
        SchedPolicy::ScxStealtime(scx) => Ok(scx),
        SchedPolicy::Fair => Err(ValueError::Requires("sched.policy=scx-stealtime")),
    }
}

const fn scx_or_usual(knobs: &Knobs) -> Option<ScxKnobs> {
    match knobs.sched.policy {
        SchedPolicy::ScxStealtime(scx) => Some(scx),
        SchedPolicy::Fair => None,
    }
}

/// `--spin-us` takes whole microseconds.
fn whole_us(value: &Value) -> Option<String> {
    Some((value.ns().ok()? / 1_000).to_string())
}

pub(super) static KNOBS: &[Knob] = &[
    knob!(Knobs "sched.policy", Kind::Choice(|| vec!["fair", SCX_STEALTIME]),
    Ours("the fair class, or the sched_ext scheduler that stealtime sched loads"),
    "Which scheduler has the host's tasks",
    Replay::Shows(Part::Tasks),
    HostSetting::live_by("{value}", policy_step),
    |k| Value::Words(match k.sched.policy {
        SchedPolicy::Fair => "fair",
        SchedPolicy::ScxStealtime(_) => SCX_STEALTIME,
    }.to_owned()),
    |k, v| k.sched.policy = match v.words()? {
        SCX_STEALTIME => SchedPolicy::ScxStealtime(scx_or_usual(k).unwrap_or_default()),
        _ => SchedPolicy::Fair,
    }),
    knob!(Knobs "sched.scx.yield", Kind::Choice(|| YIELDS.all()),
        Ours("--yield of scx_stealtime"),
        "With scx-stealtime, what a directed yield runs: nothing, the vCPU that KVM nominates, or the receiver of the yielder's IPI",
        Replay::Shows(Part::DirectedYields),
        HostSetting::live_word("stealtime sched load --yield {value}"),
        |k| YIELDS.show(&scx_or_usual(k).unwrap_or_default().yields),
        |k, v| scx(k)?.yields = YIELDS.read(v)?),
    knob!(Knobs "sched.scx.spin_ns", Kind::Time { min: 0, max: 1_000_000_000 },
        Ours("--spin-us of scx_stealtime"),
        "With scx-stealtime, how long a vCPU spins on while the receiver of its IPI runs, before it yields to another",
        SPINNING,
        HostSetting::live_by("stealtime sched load --spin-us {value}", whole_us),
        |k| Value::Ns(scx_or_usual(k).unwrap_or_default().spin_ns),
        |k, v| scx(k)?.spin_ns = v.ns()?),
    knob!(Knobs "sched.scx.answer_ns", Kind::Time { min: 0, max: 1_000_000 },
        Ours("--answer-us of scx_stealtime"),
        "With scx-stealtime, how long the receiver of an IPI runs on after its EOI, before it gives a loan back",
        SPINNING,
        HostSetting::live_by("stealtime sched load --answer-us {value}", whole_us),
        |k| Value::Ns(scx_or_usual(k).unwrap_or_default().answer_ns),
        |k, v| scx(k)?.answer_ns = v.ns()?),
    knob!(Knobs "sched.fair", Kind::Choice(|| vec!["eevdf", "cfs"]),
    Ours("EEVDF, as from Linux 6.6 on, or CFS, as before"),
    "Which fair class schedules",
    Replay::Shows(Part::Tasks),
    HostSetting::kernel("boot {value}", fair_kernel),
    |k| Value::Words(if k.sched.cfs.is_some() { "cfs" } else { "eevdf" }.to_owned()),
    |k, v| k.sched.cfs = match v.words()? {
        "cfs" => Some(k.sched.cfs.unwrap_or_default()),
        _ => None,
    }),
    knob!(Knobs "sched.latency_ns", CFS_TIME,
        Upstream("/sys/kernel/debug/sched/latency_ns, before Linux 6.6"),
        "With CFS, the time in which each of a few tasks runs once; auto: 6 ms times 1 + log2 of the CPUs (8 at most)",
        Replay::Shows(Part::Tasks),
        HostSetting::file(scheduler!("latency_ns"))
            .with_note("before Linux 5.13: sysctl kernel.sched_latency_ns=VALUE"),
        |k| cfs_tunable(k, |cfs| cfs.latency_ns),
        |k, v| cfs(k)?.latency_ns = v.ns_or()?)
    .of_class(FairClass::Cfs),
    knob!(Knobs "sched.min_granularity_ns", CFS_TIME,
        Upstream("/sys/kernel/debug/sched/min_granularity_ns, before Linux 6.6"),
        "With CFS, the shortest slice; auto: 0.75 ms times 1 + log2 of the CPUs (8 at most)",
        Replay::Shows(Part::Tasks),
        HostSetting::file(scheduler!("min_granularity_ns"))
            .with_note("before Linux 5.13: sysctl kernel.sched_min_granularity_ns=VALUE"),
        |k| cfs_tunable(k, |cfs| cfs.min_granularity_ns),
        |k, v| cfs(k)?.min_granularity_ns = v.ns_or()?)
    .of_class(FairClass::Cfs),
    knob!(Knobs "sched.wakeup_granularity_ns",
        Kind::TimeOr { word: "auto", min: 0, max: 1_000_000_000 },
        Upstream("/sys/kernel/debug/sched/wakeup_granularity_ns, before Linux 6.6"),
        "With CFS, how far behind a waking task has to be to preempt; auto: 1 ms times 1 + log2 of the CPUs (8 at most)",
        Replay::Shows(Part::Tasks),
        HostSetting::file(scheduler!("wakeup_granularity_ns"))
            .with_note("before Linux 5.13: sysctl kernel.sched_wakeup_granularity_ns=VALUE"),
        |k| cfs_tunable(k, |cfs| cfs.wakeup_granularity_ns),
        |k, v| cfs(k)?.wakeup_granularity_ns = v.ns_or()?)
    .of_class(FairClass::Cfs),
    knob!(Knobs "sched.features", Kind::Words("NAME or NO_NAME, several with commas"),
        Upstream("/sys/kernel/debug/sched/features, and YIELD_TO_LAG_CREDIT of the series"),
        "Switch features of the fair class; those not named keep their defaults",
        Replay::Shows(Part::Tasks),
        HostSetting::features(scheduler!("features")),
        |k| features(k.sched.features),
        |k, v| k.sched.features = with_features(k.sched.features, v)?),
    knob!(Knobs "sched.yield_forfeits", Kind::Switch,
        Upstream("commit 79104becf42b, Linux 6.19"),
        "A task that yields gives up the rest of its request; off, as in 6.18: its deadline is put off",
        Replay::Shows(Part::DirectedYields),
        HostSetting::kernel("boot {value}", yield_kernel),
        |k| Value::Switch(k.sched.yield_forfeits),
        |k, v| k.sched.yield_forfeits = v.switch()?)
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.base_slice_ns",
        Kind::TimeOr { word: "auto", min: 100_000, max: 1_000_000_000 },
        Upstream("/sys/kernel/debug/sched/base_slice_ns"),
        "Slice of a task that has none of its own; auto: 0.7 ms times 1 + log2 of the CPUs (8 at most)",
        Replay::Shows(Part::Tasks),
        HostSetting::file(scheduler!("base_slice_ns")),
        |k| time_or(k.sched.base_slice_ns, "auto"),
        |k, v| k.sched.base_slice_ns = v.ns_or()?)
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.pick", Kind::Choice(|| PICKS.all()),
        Ours("7.2's way, and the one merged for 7.3"),
        "Pick the next task level by level of the cgroups, or from one queue",
        Replay::Shows(Part::Cgroups),
        HostSetting::kernel("boot {value}", pick_kernel),
        |k| PICKS.show(&k.sched.pick),
        |k, v| k.sched.pick = PICKS.read(v)?)
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.preempt", Kind::Choice(|| PREEMPTS.all()),
        Upstream("boot parameter preempt="),
        "Let the fair class's requests to reschedule wait for the tick, or not",
        Replay::Shows(Part::Tasks),
        HostSetting::word_file(scheduler!("preempt"))
            .with_note("with CONFIG_PREEMPT_DYNAMIC; kernel command line: preempt=VALUE"),
        |k| PREEMPTS.show(&k.sched.preempt),
        |k, v| k.sched.preempt = PREEMPTS.read(v)?)
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.lag_credit.method", Kind::Choice(|| vec!["credit", "debooster"]),
        LAG_CREDIT,
        "What a directed yield does: the target is credited (version 3), or the yielder pays (versions 1 and 2)",
        Replay::Shows(Part::DirectedYields),
        HostSetting::SimulationOnly(CREDIT_SERIES),
        |k| Value::Words(method(&k.sched.lag_credit).to_owned()),
        |k, v| set_method(&mut k.sched.lag_credit, v)?)
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.lag_credit.margin_ns", Kind::Time { min: 1_000, max: 100_000_000 },
        LAG_CREDIT,
        "The lag (virtual time) that a credited target has, for each other entity of its queue",
        Replay::Shows(Part::DirectedYields),
        HostSetting::SimulationOnly(CREDIT_SERIES),
        |k| match k.sched.lag_credit.method {
            Method::Credit { margin_ns, .. } => Value::Ns(margin_ns),
            Method::Debooster => Value::Words("-".to_owned()),
        },
        |k, v| *credit_parts(&mut k.sched.lag_credit)?.0 = v.ns()?)
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.lag_credit.keep_request", Kind::Switch,
        LAG_CREDIT,
        "A queued target keeps the distance to its deadline",
        Replay::Shows(Part::DirectedYields),
        HostSetting::SimulationOnly(CREDIT_SERIES),
        |k| match k.sched.lag_credit.method {
            Method::Credit { keep_request, .. } => Value::Switch(keep_request),
            Method::Debooster => Value::Words("-".to_owned()),
        },
        |k, v| *credit_parts(&mut k.sched.lag_credit)?.1 = v.switch()?)
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.lag_credit.rate_limit", Kind::Choice(|| vec!["fixed", "quiet", "adaptive"]),
        LAG_CREDIT,
        "How often a directed yield may force a reschedule, or make the yielder pay: at fixed intervals, after an interval without a directed yield (version 1), or by how many there are",
        Replay::Shows(Part::DirectedYields),
        HostSetting::SimulationOnly(CREDIT_SERIES),
        |k| Value::Words(match k.sched.lag_credit.rate_limit {
            RateLimit::Fixed { .. } => "fixed".to_owned(),
            RateLimit::Quiet { .. } => "quiet".to_owned(),
            RateLimit::Adaptive { .. } => "adaptive".to_owned(),
        }),
        |k, v| set_rate_limit(&mut k.sched.lag_credit, v)?)
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.lag_credit.interval_ns", TIME,
    LAG_CREDIT,
    "Shortest time between two forced reschedules of a run queue; 0 for no limit",
    Replay::Shows(Part::DirectedYields),
    HostSetting::SimulationOnly(CREDIT_SERIES),
    |k| Value::Ns(interval(&k.sched.lag_credit)),
    |k, v| match &mut k.sched.lag_credit.rate_limit {
        RateLimit::Fixed { interval_ns }
        | RateLimit::Quiet { interval_ns }
        | RateLimit::Adaptive { interval_ns, .. } => {
            *interval_ns = v.ns()?;
        }
    })
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.lag_credit.gap_ns", Kind::Time { min: 1, max: 1_000_000_000 },
        LAG_CREDIT,
        "With an adaptive limit, the gap between yields at which the interval holds",
        Replay::Shows(Part::DirectedYields),
        HostSetting::SimulationOnly(CREDIT_SERIES),
        |k| Value::Ns(adaptive(&k.sched.lag_credit)[0]),
        |k, v| adaptive_part(&mut k.sched.lag_credit, 0, v.ns()?)?)
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.lag_credit.min_ns", TIME,
        LAG_CREDIT,
        "With an adaptive limit, the shortest interval",
        Replay::Shows(Part::DirectedYields),
        HostSetting::SimulationOnly(CREDIT_SERIES),
        |k| Value::Ns(adaptive(&k.sched.lag_credit)[1]),
        |k, v| adaptive_part(&mut k.sched.lag_credit, 1, v.ns()?)?)
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.lag_credit.max_ns", TIME,
        LAG_CREDIT,
        "With an adaptive limit, the longest interval",
        Replay::Shows(Part::DirectedYields),
        HostSetting::SimulationOnly(CREDIT_SERIES),
        |k| Value::Ns(adaptive(&k.sched.lag_credit)[2]),
        |k, v| adaptive_part(&mut k.sched.lag_credit, 2, v.ns()?)?)
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.lag_credit.across_run_queues", Kind::Switch,
        LAG_CREDIT,
        "Pull a target on another run queue to the yielder's, where it may run there",
        Replay::Shows(Part::DirectedYields),
        HostSetting::SimulationOnly(CREDIT_SERIES),
        |k| Value::Switch(k.sched.lag_credit.across_run_queues),
        |k, v| k.sched.lag_credit.across_run_queues = v.switch()?)
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.lag_credit.guard_per_mille", Kind::Number { min: 0, max: 1000, unit: "‰" },
    LAG_CREDIT,
    "How much of the time credits may take from the others of a queue; 0 for no limit",
    Replay::Shows(Part::DirectedYields),
    HostSetting::SimulationOnly(CREDIT_SERIES),
    |k| Value::Number(guard(&k.sched.lag_credit).per_mille.into()),
    |k, v| k.sched.lag_credit.guard = match v.number()? {
        0 => None,
        per_mille => Some(Guard { per_mille, ..guard(&k.sched.lag_credit) }),
    })
    .of_class(FairClass::Eevdf),
    knob!(Knobs "sched.lag_credit.guard_burst_ns", TIME,
    LAG_CREDIT,
    "How much of that may be saved up",
    Replay::Shows(Part::DirectedYields),
    HostSetting::SimulationOnly(CREDIT_SERIES),
    |k| Value::Ns(guard(&k.sched.lag_credit).burst_ns),
    |k, v| {
        let burst_ns = v.ns()?;
        match &mut k.sched.lag_credit.guard {
            Some(guard) => guard.burst_ns = burst_ns,
            None => return Err(ValueError::Requires("sched.lag_credit.guard_per_mille above 0")),
        }
    })
    .of_class(FairClass::Eevdf),
    knob!(Knobs "kernel.timer_migration", Kind::Switch,
        Upstream("sysctl kernel.timer_migration"),
        "Move timers of idle CPUs to busy ones",
        Replay::simulate("timers fire on their recorded CPUs"),
        HostSetting::sysctl(&[Location::Sysctl("kernel.timer_migration")]),
        |k| Value::Switch(k.sched.timer_migration),
        |k, v| k.sched.timer_migration = v.switch()?),
];
