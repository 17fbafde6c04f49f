//! The verbs, a file each.

mod analyze;
mod calibrate;
mod check;
mod clock;
mod completions;
mod diff;
mod doctor;
mod export;
mod fit;
mod help_markdown;
mod import;
mod knobs;
mod man;
mod metrics;
pub(crate) mod pick;
mod record;
mod reproduce;
mod run_args;
mod sched;
mod simulate;
mod snapshot;
mod sweep;
mod top;
mod trial;
mod watch;
mod whatif;

use clap::Subcommand;

use crate::error::CliError;

pub(crate) use analyze::Analyze;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Record(record::Record),
    Top(top::Top),
    Metrics(metrics::Metrics),
    Watch(Box<watch::Watch>),
    Analyze(Box<analyze::Analyze>),
    Diff(diff::Diff),
    Export(Box<export::Export>),
    Import(import::Import),
    #[command(name = "whatif")]
    WhatIf(Box<whatif::WhatIf>),
    Fit(Box<fit::Fit>),
    Simulate(Box<simulate::Simulate>),
    Sweep(Box<sweep::Sweep>),
    Reproduce(reproduce::Reproduce),
    Calibrate(calibrate::Calibrate),
    Knobs(knobs::Knobs),
    Check(Box<check::Check>),
    Clock(clock::Clock),
    Snapshot(snapshot::Snapshot),
    Sched(sched::Sched),
    Doctor(doctor::Doctor),
    Try(Box<trial::Try>),
    TryWatchdog(trial::TryWatchdog),
    Completions(completions::Completions),
    HelpMarkdown(help_markdown::HelpMarkdown),
    Man(man::Man),
}

impl Verb {
    /// Does it.
    pub(crate) fn run(self) -> Result<(), CliError> {
        match self {
            Self::Record(verb) => verb.run(),
            Self::Top(verb) => verb.run(),
            Self::Metrics(verb) => verb.run(),
            Self::Watch(verb) => verb.run(),
            Self::Analyze(verb) => verb.run(),
            Self::Diff(verb) => verb.run(),
            Self::Export(verb) => verb.run(),
            Self::Import(verb) => verb.run(),
            Self::WhatIf(verb) => verb.run(),
            Self::Fit(verb) => verb.run(),
            Self::Simulate(verb) => verb.run(),
            Self::Sweep(verb) => verb.run(),
            Self::Reproduce(verb) => verb.run(),
            Self::Calibrate(verb) => verb.run(),
            Self::Knobs(verb) => verb.run(),
            Self::Check(verb) => verb.run(),
            Self::Clock(verb) => verb.run(),
            Self::Snapshot(verb) => verb.run(),
            Self::Sched(verb) => verb.run(),
            Self::Doctor(verb) => verb.run(),
            Self::Try(verb) => verb.run(),
            Self::TryWatchdog(verb) => verb.run(),
            Self::Completions(verb) => verb.run(),
            Self::Man(verb) => verb.run(),
            Self::HelpMarkdown(_) => help_markdown::HelpMarkdown::run(),
        }
    }
}
