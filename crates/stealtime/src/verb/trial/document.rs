//! What a trial was and what it showed: the JSON of `try`.

use serde::Serialize;
use stealtime_doctor as doctor;
use stealtime_trial::{Entry, Outcome, Side, Turns};
use stealtime_whatif::{Condition, Document, RecordedTurns, SeenTurns, Shown, Variant};

use super::plan::Plan;

/// A trial.
#[derive(Debug, Serialize)]
pub(super) struct TryDocument {
    /// The host's name.
    pub(super) host: Option<String>,
    /// Knobs with their values, as given.
    pub(super) set: Vec<String>,
    /// What gets which value.
    pub(super) turned: Vec<Turned>,
    /// What else changes with it.
    pub(super) notes: Vec<String>,
    /// Conditions that stop it.
    pub(super) guards: Vec<Condition>,
    /// The number of turns asked for.
    pub(super) planned_turns: usize,
    /// Seconds of the baseline, of a turn and of a slice.
    pub(super) baseline_s: f64,
    pub(super) turn_s: f64,
    pub(super) slice_s: f64,
    /// What the replay of the baseline says.
    pub(super) prediction: Prediction,
    /// Turns that began.
    pub(super) turns: Vec<Turn>,
    /// Why it ended early.
    pub(super) stopped: Option<String>,
    /// The turns next to the prediction; `None` without a pair of turns.
    pub(super) seen: Option<SeenTurns>,
    /// Whether to keep the change.
    pub(super) keep: bool,
    /// The reason, as a sentence.
    pub(super) verdict: String,
    /// Commands that make the change, whether it is to be kept or not.
    pub(super) commands: Vec<doctor::Change>,
    /// What became of each value at the end.
    pub(super) restored: Vec<Outcome>,
    /// Whether a guard stopped it while the change was made.
    #[serde(skip)]
    is_refused: bool,
}

/// A value that is turned.
#[derive(Debug, Serialize)]
pub(super) struct Turned {
    pub(super) knob: String,
    pub(super) target: String,
    pub(super) former: String,
    pub(super) tried: String,
}

/// A turn.
#[derive(Debug, Serialize)]
pub(super) struct Turn {
    pub(super) side: Side,
}

impl Turn {
    pub(super) const fn new(side: Side) -> Self {
        Self { side }
    }
}

/// What `whatif` says of the change.
#[derive(Debug, Default, Serialize)]
pub(super) struct Prediction {
    /// How far the replay under the recorded knobs is off, in percent of vCPUs' time, median.
    pub(super) error_percent: Option<f64>,
    /// Whether that is close enough to rely on.
    pub(super) is_close: Option<bool>,
    /// The change; `None` if it cannot be predicted.
    pub(super) variant: Option<Variant>,
    /// Why not.
    pub(super) not_answerable: Vec<String>,
}

impl Prediction {
    fn new(document: Option<Document>) -> Self {
        let Some(document) = document else {
            return Self {
                not_answerable: vec!["left out by --no-prediction".to_owned()],
                ..Self::default()
            };
        };
        let mut reasons = document.not_answerable;
        let variant = document.variants.into_iter().next();
        if variant.is_none() && reasons.is_empty() {
            reasons.push("the replay of the baseline has no part that the knob changes".to_owned());
        }
        Self {
            error_percent: Some(document.error.median_percent),
            is_close: Some(document.error.is_close()),
            variant,
            not_answerable: reasons,
        }
    }
}

impl TryDocument {
    pub(super) fn new(
        plan: &Plan,
        prediction: Option<Document>,
        guards: &[Condition],
        turns: &Turns,
        [baseline_s, turn_s, slice_s]: [f64; 3],
    ) -> Self {
        let turned = |entry: &Entry| Turned {
            knob: entry.knob.clone(),
            target: entry.target.to_string(),
            former: entry.former.clone(),
            tried: entry.tried.clone(),
        };
        Self {
            host: plan.host.clone(),
            set: plan.texts.clone(),
            turned: plan.entries.iter().map(turned).collect(),
            notes: plan.notes.clone(),
            guards: guards.to_vec(),
            planned_turns: turns.turns(),
            baseline_s,
            turn_s,
            slice_s,
            prediction: Prediction::new(prediction),
            turns: Vec::new(),
            stopped: None,
            seen: None,
            keep: false,
            verdict: String::new(),
            commands: Vec::new(),
            restored: Vec::new(),
            is_refused: false,
        }
    }

    /// A guard has stopped it; `is_changed`: in a turn with the change.
    pub(super) fn stop_by_guard(&mut self, guard: &str, is_changed: bool) {
        self.stopped = Some(format!("by a guard: {guard}"));
        self.is_refused = is_changed;
    }

    /// Adds what the turns show, and whether to keep the change.
    pub(super) fn add_turns(
        &mut self,
        recorded: &RecordedTurns<'_>,
        commands: impl FnOnce() -> Vec<doctor::Change>,
    ) {
        self.seen = recorded.compare(self.prediction.variant.as_ref());
        self.commands = commands();
        let (keep, verdict) = self.judge();
        self.keep = keep;
        verdict.clone_into(&mut self.verdict);
    }

    /// Whether the turns speak for the change, or leave it to the user.
    pub(super) fn is_an_option(&self) -> bool {
        let shown = self.seen.as_ref().map(|turns| turns.shown);
        self.keep || self.stopped.is_none() && shown == Some(Shown::Mixed)
    }

    fn judge(&self) -> (bool, &'static str) {
        let shown = self.seen.as_ref().map(|turns| turns.shown);
        match (&self.stopped, shown) {
            (Some(_), _) if self.is_refused => (
                false,
                "do not keep it: a guard stopped it while the change was made",
            ),
            (Some(_), _) => (false, "undecided: it was stopped before its time"),
            (None, Some(Shown::Better)) => {
                (true, "keep it: some gain, and nothing loses beyond chance")
            }
            (None, Some(Shown::Mixed)) => (false, "your choice: what some gain, others lose"),
            (None, Some(Shown::Worse)) => (
                false,
                "do not keep it: some lose, and nothing gains beyond chance",
            ),
            (None, Some(Shown::WithinNoise)) => {
                (false, "do not keep it: no difference is larger than chance")
            }
            (None, None) => (false, "undecided: no pair of turns was recorded"),
        }
    }
}
