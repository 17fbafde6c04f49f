//! Protocols, their variants, and in which company each is explored.

use stealtime_hypervisor::lag_credit::CreditFault;
use stealtime_hypervisor::posted_interrupt::{Fault, Suppression};

use crate::clock::Clock;
use crate::clock_restore::{Change, ClockRestore, Fault as RestoreFault};
use crate::ipi_lifecycle::{Fault as LifecycleFault, IpiLifecycle};
use crate::ipi_tracking::IpiTracking;
use crate::model::{Choice, Model};
use crate::pi_notify::{Barrier, Config, PiNotify};
use crate::pi_timer::{Backend, Config as TimerConfig, Fault as TimerFault, PiTimer};
use crate::search::{Limits, Outcome, explore};
use crate::trace::{NoSuchStep, Trace, walk};
use crate::wakeup_batch::{Fault as BatchFault, WakeupBatch};
use crate::yields::{Config as YieldConfig, Yields};

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Its variants; those that are sound come first.
    pub variants: &'static [Variant],
    /// The properties checked, with what they say.
    pub properties: &'static [(&'static str, &'static str)],
}

/// A variant of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its name.
    pub name: &'static str,
    /// It must pass, and is explored by default.
    pub sound: bool,
    /// What it is.
    pub about: &'static str,
}

const fn sound(name: &'static str, about: &'static str) -> Variant {
    let sound = true;
    Variant { name, sound, about }
}

const fn faulty(name: &'static str, about: &'static str) -> Variant {
    let sound = false;
    Variant { name, sound, about }
}

/// All protocols.
pub const PROTOCOLS: &[Protocol] = &[
    Protocol {
        name: "pi-notify",
        about: "posted interrupts: post, synchronize, enter, leave, block, wake up, move",
        variants: PI_NOTIFY,
        properties: &[
            (
                "posted-not-lost",
                "a vector posted is in PIR, in the IRR, or was delivered",
            ),
            (
                "posted-not-twice",
                "a vector is delivered at most as often as it was posted",
            ),
            (
                "no-blocked-for-ever",
                "no vCPU sleeps with an interrupt that nobody will tell it of",
            ),
            (
                "noticed-in-guest",
                "in guest mode a posted vector has a notification on its way",
            ),
            ("sn-clear-in-guest", "in guest mode SN is clear"),
            (
                "sn-set-in-host",
                "quality: a runnable vCPU in the host has SN set (as-posted, corrected)",
            ),
            (
                "one-wakeup-list",
                "a vCPU is on one wakeup list at most, on none when it is loaded",
            ),
            ("request-seen", "no request is overlooked at guest entry"),
        ],
    },
    Protocol {
        name: "pi-timer",
        about: "a guest's timer: expiry elsewhere, entry, exit, blocking, moves, switched backends",
        variants: PI_TIMER,
        properties: &[
            ("timer-not-early", "no interrupt before its deadline"),
            ("timer-once", "no more interrupts than deadlines reached"),
            (
                "timer-fires",
                "in guest mode a deadline reached has an interrupt on its way",
            ),
            (
                "no-blocked-for-ever",
                "no vCPU sleeps with an expired timer that nobody will tell it of",
            ),
        ],
    },
    Protocol {
        name: "wakeup-batch",
        about: "batched softirqs: raise, nest, interrupts inside, CPUs that handle or monitor",
        variants: WAKEUP_BATCH,
        properties: &[
            (
                "softirq-seen",
                "no CPU idles with a raised softirq that nobody will tell it of",
            ),
            (
                "no-stray-ipi",
                "no IPI to a CPU for which no softirq was raised",
            ),
        ],
    },
    Protocol {
        name: "yield",
        about: "directed yield: credit, requeue, forced reschedules, ticks, a migration",
        variants: YIELD,
        properties: &[
            (
                "sums-agree",
                "each queue's sums are what its members add up to, after every operation",
            ),
            (
                "lag-in-bounds",
                "a credited target has a lag from 0 to the bound of any entity's",
            ),
            (
                "forced-once",
                "a run queue is forced to reschedule at most once per 6 ms",
            ),
            (
                "hint-exists",
                "a yield never names a vCPU that does not exist, nor the spinner",
            ),
        ],
    },
    Protocol {
        name: "clock",
        about: "kvmclock: readers during updates, restore and new master clock while vCPUs run",
        variants: CLOCK,
        properties: &[
            ("no-torn-read", "all fields of a reading are of one update"),
            (
                "no-time-travel",
                "no reading is older than one that any vCPU had before",
            ),
        ],
    },
    Protocol {
        name: "ipi-tracking",
        about: "who waits for whose IPI: record, EOI, hint, switching off, vCPUs that come and go",
        variants: IPI_TRACKING,
        properties: &[
            (
                "hint-exists",
                "a hint never names a vCPU that does not exist",
            ),
            (
                "hint-whole",
                "receiver, vector and time of a hint are of one record",
            ),
            (
                "eoi-own-record",
                "an EOI does not end a record made for another vector",
            ),
            (
                "disabled-at-once",
                "once tracking is switched off no question gets a hint",
            ),
        ],
    },
];

const PI_NOTIFY: &[Variant] = &[
    sound("put", "SN at put unless it blocks: Linux 7.2"),
    sound("corrected", "SN with the mode, every flaw mended"),
    sound("off", "SN only while preempted: before 2022"),
    faulty("as-posted-v1", "the first posting: flaws 1, 3, 5"),
    faulty(
        "as-posted-v1-half-repair",
        "the same with the PIR test of its review: flaw 2",
    ),
    faulty("as-posted-v3", "the third posting: flaws 1, 8, 9"),
    faulty(
        "put-plain-apicv",
        "Linux 7.2 where no wakeup vector is used: preempted, moved blocker",
    ),
    faulty("on-not-recomputed", "Linux before c112b5f50232"),
    faulty("blocked-not-told", "Linux before a2486020a82e"),
    faulty("not-unlinked", "Linux before 8b306e2f3c41"),
    faulty("self-ipi-lost", "ACRN 4978"),
    faulty(
        "without-r1",
        "entry without the barrier between mode and ON",
    ),
    faulty(
        "without-r2",
        "ON cleared by an instruction that is no barrier",
    ),
    faulty(
        "without-r3",
        "SN cleared by an instruction that is no barrier",
    ),
    faulty("without-r4", "wait without the barrier before ON is read"),
    faulty(
        "without-r5",
        "no test of ON after the switch to the wakeup vector",
    ),
    faulty(
        "without-r6",
        "entry without the barrier between mode and requests",
    ),
    faulty("without-r7", "interrupts on between mode and VM entry"),
    faulty(
        "without-r8",
        "a nested post without the barrier before the mode is read",
    ),
    faulty("without-r10", "load takes the list of the new CPU"),
];

const PI_TIMER: &[Variant] = &[
    sound("preemption-timer", "an hrtimer only while the vCPU blocks"),
    sound("hrtimer", "no preemption timer, nothing is posted"),
    sound("posted", "expiries are posted to a vCPU in guest mode"),
    sound(
        "switching",
        "posted on the isolated CPU, the preemption timer on the other",
    ),
    faulty(
        "cancel-not-awaited",
        "arming anew does not wait for a callback that runs",
    ),
    faulty(
        "looks-too-early",
        "pending expiries are looked for before requests are taken",
    ),
    faulty("both-ways", "a posted expiry is injected as well"),
    faulty(
        "no-request",
        "an expiry kicks the vCPU, but requests nothing",
    ),
    faulty(
        "hv-while-blocking",
        "the preemption timer keeps the deadline of a blocked vCPU",
    ),
    faulty("no-spin", "the poster does not wait for the deadline"),
    faulty(
        "entry-wait",
        "Linux 7.2: the wait at entry is cut to the advance just made smaller",
    ),
];

const YIELD: &[Variant] = &[
    sound(
        "lag-credit",
        "version 3 of the series, with credits of four slices",
    ),
    faulty(
        "in-place",
        "a queued target is edited where it is in the tree",
    ),
    faulty("unbounded", "a credit is not cut to the bound of any lag"),
    faulty("unlimited", "every yield forces a reschedule"),
];

const WAKEUP_BATCH: &[Variant] = &[
    sound("in-word", "MWAIT promise in the softirq word: Xen 4.20.1"),
    faulty(
        "softirq-number",
        "the patch of 2014: notes the softirq's number, not the CPU",
    ),
    faulty(
        "no-second-look",
        "MWAIT without looking again after MONITOR",
    ),
];

const CLOCK: &[Variant] = &[
    sound("odd-version", "the version is odd during an update"),
    faulty(
        "version-after",
        "the version is raised only after an update",
    ),
    faulty(
        "entry-not-blocked",
        "vCPUs may enter while the clock changes",
    ),
    faulty(
        "exits-not-awaited",
        "vCPUs in guest mode are kicked, but not awaited",
    ),
    faulty(
        "unblocked-too-early",
        "vCPUs may enter before they know that their page is old",
    ),
];

const IPI_TRACKING: &[Variant] = &[
    sound(
        "vector-matched",
        "version 3: an EOI ends the record of its vector",
    ),
    faulty("any-vector", "version 2: an EOI ends whatever is recorded"),
    faulty(
        "own-context-only",
        "a vCPU destroyed is forgotten by its own context alone",
    ),
    faulty(
        "no-grace-period",
        "a vCPU is destroyed while an IPI to it is being recorded",
    ),
    faulty(
        "knob-at-record",
        "whether tracking is on is asked at the IPI, not at the spin",
    ),
];

/// One exploration: a variant in some company.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The protocol.
    pub protocol: &'static str,
    /// The variant.
    pub variant: &'static str,
    /// It must pass.
    pub sound: bool,
    /// The company.
    pub scene: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Pi(Config),
    Timer(TimerConfig),
    Yield(YieldConfig),
    Batch(BatchFault),
    Clock(bool),
    Restore(Change, RestoreFault),
    Lifecycle(LifecycleFault),
    Tracking(bool),
}

/// Something was asked for that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// What kind of thing.
    pub what: &'static str,
    /// What was asked for.
    pub asked: String,
    /// What there is.
    pub there: Vec<&'static str>,
}

impl core::fmt::Display for Unknown {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { what, asked, there } = self;
        write!(f, "no {what} {asked:?}; there are {}", there.join(", "))
    }
}

impl core::error::Error for Unknown {}

/// The cases asked for: of all protocols or one, of the sound variants or one, in all scenes or one.
///
/// # Errors
/// [`Unknown`], with what there is.
pub fn cases(
    protocol: Option<&str>,
    variant: Option<&str>,
    scene: Option<&str>,
) -> Result<Vec<Case>, Unknown> {
    let named = |p: &&Protocol| protocol.is_none_or(|asked| asked == p.name);
    let chosen: Vec<&Protocol> = PROTOCOLS.iter().filter(named).collect();
    if chosen.is_empty() {
        let there = PROTOCOLS.iter().map(|p| p.name).collect();
        return Err(unknown("protocol", protocol, there));
    }
    let of = |p: &&'static Protocol| p.variants.iter().map(|v| (p.name, v)).collect::<Vec<_>>();
    let all: Vec<(&'static str, &Variant)> = chosen.iter().flat_map(of).collect();
    let wanted = |v: &Variant| variant.map_or(v.sound, |asked| asked == v.name);
    let some: Vec<_> = all.iter().filter(|(_, v)| wanted(v)).collect();
    if some.is_empty() {
        let there = all.iter().map(|(_, v)| v.name).collect();
        return Err(unknown("variant", variant, there));
    }
    let every = some
        .into_iter()
        .flat_map(|(protocol, v)| scenes(protocol, v));
    let every: Vec<Case> = every.collect();
    let there: Vec<&'static str> = every.iter().map(|case| case.scene).collect();
    let kept = |case: &Case| scene.is_none_or(|asked| asked == case.scene);
    let some: Vec<Case> = every.into_iter().filter(kept).collect();
    if some.is_empty() {
        return Err(unknown("set of agents", scene, there));
    }
    Ok(some)
}

fn unknown(what: &'static str, asked: Option<&str>, there: Vec<&'static str>) -> Unknown {
    let asked = asked.unwrap_or_default().to_owned();
    Unknown { what, asked, there }
}

fn scenes(protocol: &'static str, variant: &Variant) -> Vec<Case> {
    let kinds: Vec<(&'static str, Kind)> = match protocol {
        "pi-notify" => pi_scenes(variant.name),
        "pi-timer" => timer_scenes(variant.name),
        "yield" => {
            let fault = match variant.name {
                "in-place" => CreditFault::InPlace,
                "unbounded" => CreditFault::Unbounded,
                "unlimited" => CreditFault::Unlimited,
                _ => CreditFault::None,
            };
            let with = |config| Kind::Yield(YieldConfig { fault, ..config });
            let mut scenes = vec![("one-cpu", with(YieldConfig::ONE_CPU))];
            if variant.sound {
                scenes.push(("migration", with(YieldConfig::MIGRATION)));
                scenes.push(("two-spinners", with(YieldConfig::TWO_SPINNERS)));
            }
            scenes
        }
        "wakeup-batch" => {
            let fault = match variant.name {
                "softirq-number" => BatchFault::SoftirqNumber,
                "no-second-look" => BatchFault::NoSecondLook,
                _ => BatchFault::None,
            };
            vec![("four-cpus", Kind::Batch(fault))]
        }
        "clock" => clock_scenes(variant.name),
        _ => tracking_scenes(variant.name),
    };
    let case = |(scene, kind)| Case {
        protocol,
        variant: variant.name,
        sound: variant.sound,
        scene,
        kind,
    };
    kinds.into_iter().map(case).collect()
}

fn pi_scenes(variant: &str) -> Vec<(&'static str, Kind)> {
    if let Ok(policy) = variant.parse::<Suppression>() {
        let mut scenes = vec![
            ("plain-apicv", Config::plain(policy)),
            ("device+poster", Config::alone(policy)),
        ];
        let kicked = Config {
            migrations: 0,
            preempt: false,
            ..Config::kicked(policy)
        };
        scenes.push(("device+poster+kicker", kicked));
        if matches!(policy, Suppression::Put | Suppression::Corrected) {
            scenes.push(("two-vcpus", Config::full(policy)));
            if policy == Suppression::Put {
                scenes.push(("two-vcpus+ipi", Config::with_ipi(policy)));
            }
        }
        match policy {
            Suppression::Off => {
                for (_, config) in &mut scenes {
                    config.migrations = 0;
                    config.preempt = false;
                }
            }
            // With a migration it fails: see the variant `put-plain-apicv`.
            Suppression::Put => scenes[0].1.migrations = 0,
            _ => {}
        }
        return scenes
            .into_iter()
            .map(|(name, c)| (name, Kind::Pi(c)))
            .collect();
    }
    let alone = Config::alone(Suppression::Put);
    let without = |barrier| Config {
        without: Some(barrier),
        ..alone
    };
    let fault = |fault| Config { fault, ..alone };
    let (name, config) = match variant {
        "as-posted-v1-half-repair" => (
            "device+poster",
            Config {
                half_repair: true,
                ..Config::alone(Suppression::AsPostedV1)
            },
        ),
        "on-not-recomputed" => ("device+poster", fault(Fault::OnNotRecomputed)),
        "not-unlinked" => ("device+poster", fault(Fault::NotUnlinked)),
        "self-ipi-lost" | "without-r5" => ("device+poster", fault(Fault::SelfIpiLost)),
        "blocked-not-told" => {
            let mut late = fault(Fault::BlockedNotTold);
            late.late_assignment = true;
            late.capabilities.ipiv = false;
            ("late-device", late)
        }
        "put-plain-apicv" => ("plain-apicv", Config::plain(Suppression::Put)),
        "without-r2" => {
            // ON must be set while PIR is empty, which takes a third post.
            let mut three = without(Barrier::R2);
            (three.device, three.migrations, three.preempt) = (2, 0, false);
            ("device+poster", three)
        }
        "without-r4" => {
            // Where the wakeup vector is armed, its test of ON makes up for the barrier.
            let mut plain = Config::plain(Suppression::Put);
            plain.without = Some(Barrier::R4);
            ("plain-apicv", plain)
        }
        "without-r6" => {
            let mut kicked = without(Barrier::R6);
            (kicked.device, kicked.poster, kicked.kicks) = (0, 0, 1);
            ("kicker", kicked)
        }
        "without-r8" => {
            let mut nested = without(Barrier::R8);
            (nested.device, nested.nested) = (0, true);
            ("nested-poster", nested)
        }
        _ => {
            let found = Barrier::ALL.into_iter().find(|(name, _)| *name == variant);
            let barrier = found.map_or(Barrier::R1, |(_, barrier)| barrier);
            ("device+poster", without(barrier))
        }
    };
    vec![(name, Kind::Pi(config))]
}

fn clock_scenes(variant: &str) -> Vec<(&'static str, Kind)> {
    let restore = |fault| vec![("restore", Kind::Restore(Change::Restore, fault))];
    match variant {
        "version-after" => vec![("two-updates", Kind::Clock(false))],
        "entry-not-blocked" => restore(RestoreFault::EntryNotBlocked),
        "exits-not-awaited" => restore(RestoreFault::ExitsNotAwaited),
        "unblocked-too-early" => restore(RestoreFault::UnblockedTooEarly),
        _ => vec![
            ("two-updates", Kind::Clock(true)),
            (
                "restore",
                Kind::Restore(Change::Restore, RestoreFault::None),
            ),
            (
                "master-clock",
                Kind::Restore(Change::Update, RestoreFault::None),
            ),
        ],
    }
}

fn tracking_scenes(variant: &str) -> Vec<(&'static str, Kind)> {
    let life = |fault| ("life-and-death", Kind::Lifecycle(fault));
    match variant {
        "any-vector" => vec![("three-vcpus", Kind::Tracking(false))],
        "own-context-only" => vec![life(LifecycleFault::OwnContextOnly)],
        "no-grace-period" => vec![life(LifecycleFault::NoGracePeriod)],
        "knob-at-record" => vec![life(LifecycleFault::KnobAtRecord)],
        _ => vec![
            ("three-vcpus", Kind::Tracking(true)),
            life(LifecycleFault::None),
        ],
    }
}

fn timer_scenes(variant: &str) -> Vec<(&'static str, Kind)> {
    let of = TimerConfig::of;
    let advance = |backend| TimerConfig {
        advance: true,
        deadlines: 1,
        ..of(backend)
    };
    let fault = |backend, fault| TimerConfig {
        fault,
        ..of(backend)
    };
    let scenes = match variant {
        "preemption-timer" => vec![("deadlines", of(Backend::Hv))],
        "hrtimer" => vec![("deadlines", of(Backend::Hrtimer))],
        "posted" => {
            let stays = TimerConfig {
                blocks: false,
                entry_may_cut: true,
                ..advance(Backend::Posted)
            };
            vec![("deadlines", of(Backend::Posted)), ("advance", stays)]
        }
        "switching" => vec![("deadlines", of(Backend::Switching))],
        "cancel-not-awaited" => {
            vec![(
                "deadlines",
                fault(Backend::Posted, TimerFault::CancelNotAwaited),
            )]
        }
        "looks-too-early" => {
            vec![(
                "deadlines",
                fault(Backend::Hrtimer, TimerFault::LooksTooEarly),
            )]
        }
        "both-ways" => vec![("deadlines", fault(Backend::Posted, TimerFault::BothWays))],
        "no-request" => vec![("deadlines", fault(Backend::Hrtimer, TimerFault::NoRequest))],
        "hv-while-blocking" => {
            vec![("deadlines", fault(Backend::Hv, TimerFault::HvWhileBlocking))]
        }
        "no-spin" => {
            let early = TimerConfig {
                fault: TimerFault::NoSpin,
                blocks: false,
                entry_may_cut: true,
                ..advance(Backend::Posted)
            };
            vec![("advance", early)]
        }
        _ => vec![("advance", advance(Backend::Hv))],
    };
    let kinds = scenes.into_iter();
    kinds
        .map(|(name, config)| (name, Kind::Timer(config)))
        .collect()
}

impl Case {
    /// Explores it.
    #[must_use]
    pub fn explore(&self, limits: Limits) -> Outcome {
        match self.kind {
            Kind::Pi(config) => explore(&PiNotify::new(config), limits),
            Kind::Timer(config) => explore(&PiTimer::new(config), limits),
            Kind::Yield(config) => explore(&Yields::new(config), limits),
            Kind::Batch(fault) => explore(&WakeupBatch::new(fault), limits),
            Kind::Restore(change, fault) => explore(&ClockRestore::new(change, fault), limits),
            Kind::Lifecycle(fault) => explore(&IpiLifecycle::new(fault), limits),
            Kind::Clock(sound) => explore(&Clock::new(sound), limits),
            Kind::Tracking(sound) => explore(&IpiTracking::new(sound), limits),
        }
    }

    /// Walks a path again and says what it shows.
    ///
    /// # Errors
    /// [`NoSuchStep`] for a path that the model does not allow.
    pub fn walk(&self, path: &[Choice]) -> Result<Trace, NoSuchStep> {
        fn on(model: &impl Model, path: &[Choice]) -> Result<Trace, NoSuchStep> {
            walk(model, path)
        }
        match self.kind {
            Kind::Pi(config) => on(&PiNotify::new(config), path),
            Kind::Timer(config) => on(&PiTimer::new(config), path),
            Kind::Yield(config) => on(&Yields::new(config), path),
            Kind::Batch(fault) => on(&WakeupBatch::new(fault), path),
            Kind::Restore(change, fault) => on(&ClockRestore::new(change, fault), path),
            Kind::Lifecycle(fault) => on(&IpiLifecycle::new(fault), path),
            Kind::Clock(sound) => on(&Clock::new(sound), path),
            Kind::Tracking(sound) => on(&IpiTracking::new(sound), path),
        }
    }
}
