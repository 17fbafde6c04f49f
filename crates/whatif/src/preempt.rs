//! How the recorded host preempts, where the fit need not find it.

use stealtime_lab::knobs::Setting;
use stealtime_replay::host::Preempt;
use stealtime_simulator::config::Config;

use crate::host_file::HostFacts;
use crate::question::Question;
use crate::recorded::Recorded;

/// The knob.
pub(crate) const PREEMPT: &str = "sched.preempt";

/// How the recorded host preempts, and the source of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreemptSource {
    /// A file about the host says it.
    Configured(Preempt),
    /// Wakeups of the recording show it.
    Shown(Preempt),
    /// Its kernel has no other mode.
    OnlyMode(Preempt),
    /// The opposite of the mode asked for: a question about the other mode implies this one.
    Implied(Preempt),
}

impl PreemptSource {
    /// `None` where the fit has to find it; `trial` is any host.
    pub(crate) fn find(
        facts: &HostFacts,
        question: &Question,
        recorded: &Recorded,
        trial: &Config,
    ) -> Option<Self> {
        let recording = &recorded.recording;
        if let Some(preempt) = last(facts.settings(), trial) {
            return Some(Self::Configured(preempt));
        }
        if let Some(preempt) = recording.decisions.preempt() {
            return Some(Self::Shown(preempt));
        }
        if let Some(preempt) = recording.preempt() {
            return Some(Self::OnlyMode(preempt));
        }
        // A varied mode asks about both and implies neither.
        Some(Self::Implied(match last(question.set(), trial)? {
            Preempt::Lazy => Preempt::Full,
            Preempt::Full => Preempt::Lazy,
        }))
    }

    /// The mode.
    pub(crate) const fn preempt(self) -> Preempt {
        match self {
            Self::Configured(preempt)
            | Self::Shown(preempt)
            | Self::OnlyMode(preempt)
            | Self::Implied(preempt) => preempt,
        }
    }
}

/// The mode that settings come to.
fn last(settings: &[Setting], trial: &Config) -> Option<Preempt> {
    let mut settings = settings.iter().rev();
    let setting = settings.find(|setting| setting.name() == PREEMPT)?;
    let mut trial = trial.clone();
    setting.apply(&mut trial).ok()?;
    Some(trial.knobs.sched.preempt)
}
