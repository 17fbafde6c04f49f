//! In which company each variant is explored.

use stealtime_hypervisor::lag_credit::CreditFault;
use stealtime_hypervisor::posted_interrupt::{Fault, Suppression};

use super::Case;
use super::kind::Kind;
use super::list::Variant;
use crate::clock_restore::{Change, Fault as RestoreFault};
use crate::ipi_lifecycle::Fault as LifecycleFault;
use crate::pi_notify::{Barrier, Config};
use crate::pi_timer::{Backend, Config as TimerConfig, Fault as TimerFault};
use crate::scx_yield::Fault as ScxFault;
use crate::wakeup_batch::Fault as BatchFault;
use crate::yields::Config as YieldConfig;

/// All sets of agents that a variant is explored with.
pub(super) fn scenes(protocol: &'static str, variant: &Variant) -> Vec<Case> {
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
            let scene = |config| Kind::Yield(YieldConfig { fault, ..config });
            let mut scenes = vec![("one-cpu", scene(YieldConfig::ONE_CPU))];
            if variant.sound {
                scenes.push(("migration", scene(YieldConfig::MIGRATION)));
                scenes.push(("two-spinners", scene(YieldConfig::TWO_SPINNERS)));
            }
            scenes
        }
        "wakeup-batch" => {
            let fault = match variant.name {
                "softirq-number" => BatchFault::SoftirqNumber,
                "no-second-look" => BatchFault::NoSecondLook,
                "promise-read-before" => BatchFault::PromiseReadBefore,
                _ => BatchFault::None,
            };
            vec![("four-cpus", Kind::Batch(fault))]
        }
        "clock" => clock_scenes(variant.name),
        "scx-yield" => {
            let fault = match variant.name {
                "split-words" => ScxFault::SplitWords,
                "cleared-after" => ScxFault::ClearedAfter,
                "sender-cleared" => ScxFault::SenderCleared,
                "unnumbered" => ScxFault::Unnumbered,
                _ => ScxFault::None,
            };
            vec![("two-cpus", Kind::Scx(fault))]
        }
        _ => tracking_scenes(variant.name),
    };
    let case = |(scene, kind): (&str, Kind)| Case {
        protocol,
        variant: variant.name,
        sound: variant.sound,
        scene: String::from(scene),
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
            scenes.push(("two-vcpus+ipi", Config::with_ipi(policy)));
        }
        if matches!(policy, Suppression::Put | Suppression::Off) {
            // With a migration it fails: see the variant `put-plain-apicv`.
            scenes[0].1.migrations = 0;
        }
        if policy.flaws().is_empty() {
            scenes.push(("irq-kicker", irq_kicked(policy)));
        }
        return scenes
            .into_iter()
            .map(|(name, c)| (name, Kind::Pi(c)))
            .collect();
    }
    let alone = Config::alone(Suppression::Put);
    let missing = |barrier| Config {
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
        "blocked-not-kicked" => {
            let mut late = fault(Fault::BlockedNotKicked);
            late.late_assignment = true;
            late.capabilities.ipiv = false;
            ("late-device", late)
        }
        "kick-compares-first" => {
            let mut kicked = irq_kicked(Suppression::Put);
            kicked.kick_compares_first = true;
            ("irq-kicker", kicked)
        }
        "put-plain-apicv" => ("plain-apicv", Config::plain(Suppression::Put)),
        "without-r2" => {
            // ON must be set while PIR is empty, which takes a third post.
            let mut three = missing(Barrier::R2);
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
            let mut kicked = missing(Barrier::R6);
            (kicked.device, kicked.poster, kicked.kicks) = (0, 0, 1);
            ("kicker", kicked)
        }
        "without-r8" => {
            let mut nested = missing(Barrier::R8);
            (nested.device, nested.nested) = (0, true);
            ("nested-poster", nested)
        }
        _ => {
            let found = Barrier::ALL.into_iter().find(|(name, _)| *name == variant);
            let barrier = found.map_or(Barrier::R1, |(_, barrier)| barrier);
            ("device+poster", missing(barrier))
        }
    };
    vec![(name, Kind::Pi(config))]
}

/// Interrupts kick the vCPU, on the CPU that has it loaded and on the other one.
fn irq_kicked(policy: Suppression) -> Config {
    Config {
        device: 0,
        irq_kicks: 1,
        ..Config::alone(policy)
    }
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
    let config_of = TimerConfig::of;
    let advance = |backend| TimerConfig {
        advance: true,
        deadlines: 1,
        ..config_of(backend)
    };
    let fault = |backend, fault| TimerConfig {
        fault,
        ..config_of(backend)
    };
    let scenes = match variant {
        "preemption-timer" => vec![("deadlines", config_of(Backend::Hv))],
        "hrtimer" => vec![("deadlines", config_of(Backend::Hrtimer))],
        "posted" => {
            let stays = TimerConfig {
                blocks: false,
                entry_may_cut: true,
                ..advance(Backend::Posted)
            };
            vec![
                ("deadlines", config_of(Backend::Posted)),
                ("advance", stays),
            ]
        }
        "switching" => vec![("deadlines", config_of(Backend::Switching))],
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
