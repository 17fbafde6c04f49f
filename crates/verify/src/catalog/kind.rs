//! What kinds of model there are, and how many of each agent a model may have.

use crate::clock::Clock;
use crate::clock_restore::{Change, ClockRestore, Fault as RestoreFault};
use crate::ipi_lifecycle::{Fault as LifecycleFault, IpiLifecycle};
use crate::ipi_tracking::IpiTracking;
use crate::model::{Choice, Model};
use crate::pi_notify::{Config, PiNotify};
use crate::pi_timer::{Config as TimerConfig, PiTimer};
use crate::scx_yield::{Fault as ScxFault, ScxYield};
use crate::search::{Limits, Outcome, explore};
use crate::trace::{NoSuchStep, Trace, walk};
use crate::wakeup_batch::{Fault as BatchFault, WakeupBatch};
use crate::yields::{Config as YieldConfig, Yields};

/// A model, by what it is made of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Pi(Config),
    Timer(TimerConfig),
    Yield(YieldConfig),
    Batch(BatchFault),
    Clock(bool),
    Restore(Change, RestoreFault),
    Lifecycle(LifecycleFault),
    Tracking(bool),
    Scx(ScxFault),
}

/// What a caller does with a model.
trait Visit {
    type Seen;
    fn model(self, model: &impl Model) -> Self::Seen;
}

struct Explore(Limits);

impl Visit for Explore {
    type Seen = Outcome;
    fn model(self, model: &impl Model) -> Outcome {
        explore(model, self.0)
    }
}

struct Walk<'a>(&'a [Choice]);

impl Visit for Walk<'_> {
    type Seen = Result<Trace, NoSuchStep>;
    fn model(self, model: &impl Model) -> Self::Seen {
        walk(model, self.0)
    }
}

/// A number of a model that may be chosen.
pub(super) enum Count<'a> {
    Number(&'a mut u8),
    Switch(&'a mut bool),
}

impl Count<'_> {
    pub(super) fn get(&self) -> u8 {
        match self {
            Self::Number(n) => **n,
            Self::Switch(on) => u8::from(**on),
        }
    }
    pub(super) fn most(&self) -> u8 {
        match self {
            Self::Number(_) => 4,
            Self::Switch(_) => 1,
        }
    }
    pub(super) fn set(&mut self, value: u8) {
        match self {
            Self::Number(n) => **n = value,
            Self::Switch(on) => **on = value != 0,
        }
    }
}

impl Kind {
    fn visit<V: Visit>(&self, visitor: V) -> V::Seen {
        match *self {
            Self::Pi(config) => visitor.model(&PiNotify::new(config)),
            Self::Timer(config) => visitor.model(&PiTimer::new(config)),
            Self::Yield(config) => visitor.model(&Yields::new(config)),
            Self::Batch(fault) => visitor.model(&WakeupBatch::new(fault)),
            Self::Clock(sound) => visitor.model(&Clock::new(sound)),
            Self::Restore(change, fault) => visitor.model(&ClockRestore::new(change, fault)),
            Self::Lifecycle(fault) => visitor.model(&IpiLifecycle::new(fault)),
            Self::Tracking(sound) => visitor.model(&IpiTracking::new(sound)),
            Self::Scx(fault) => visitor.model(&ScxYield::new(fault)),
        }
    }

    pub(super) fn explore(&self, limits: Limits) -> Outcome {
        self.visit(Explore(limits))
    }

    pub(super) fn walk(&self, path: &[Choice]) -> Result<Trace, NoSuchStep> {
        self.visit(Walk(path))
    }

    /// What may be chosen, by name.
    pub(super) fn counts(&mut self) -> Vec<(&'static str, Count<'_>)> {
        use Count::{Number, Switch};
        match self {
            Self::Pi(c) => vec![
                ("device", Number(&mut c.device)),
                ("poster", Number(&mut c.poster)),
                ("ipi", Number(&mut c.ipi)),
                ("kicks", Number(&mut c.kicks)),
                ("irq-kicks", Number(&mut c.irq_kicks)),
                ("migrations", Number(&mut c.migrations)),
                ("preempt", Switch(&mut c.preempt)),
                ("second-vcpu", Switch(&mut c.second_vcpu)),
            ],
            Self::Timer(c) => vec![
                ("deadlines", Number(&mut c.deadlines)),
                ("migrations", Number(&mut c.migrations)),
                ("preempt", Switch(&mut c.preempt)),
                ("blocks", Switch(&mut c.blocks)),
            ],
            Self::Yield(c) => {
                let [spins0, spins2] = &mut c.spins;
                let [ticks0, ticks1] = &mut c.ticks;
                vec![
                    ("spins-vcpu0", Number(spins0)),
                    ("spins-vcpu2", Number(spins2)),
                    ("ticks-cpu0", Number(ticks0)),
                    ("ticks-cpu1", Number(ticks1)),
                    ("time-steps", Number(&mut c.steps)),
                    ("migrations", Number(&mut c.migrations)),
                    ("ipis", Number(&mut c.ipis)),
                ]
            }
            Self::Batch(_)
            | Self::Clock(_)
            | Self::Restore(..)
            | Self::Lifecycle(_)
            | Self::Tracking(_)
            | Self::Scx(_) => Vec::new(),
        }
    }
}
