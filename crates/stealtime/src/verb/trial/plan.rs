//! What is turned, and what is predicted of it.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use stealtime_doctor as doctor;
use stealtime_host::Snapshot;
use stealtime_lab::knobs::{Setting, quoted, split_setting};
use stealtime_trial::{Entry, Host, prepare, resolve};
use stealtime_whatif::{Baseline, Document, HostFacts, Question, Run, host_changes};

use super::stopped;
use crate::error::CliError;
use crate::progress::RunProgress;
use crate::replayable::Replayable;

/// The knobs of a trial on this host.
pub(super) struct Plan {
    /// As given.
    pub(super) texts: Vec<String>,
    settings: Vec<Setting>,
    /// Values that differ from the present ones.
    pub(super) entries: Vec<Entry>,
    pub(super) notes: Vec<String>,
    pub(super) host: Option<String>,
}

impl Plan {
    /// Finds the knobs on the host, without writing.
    ///
    /// # Errors
    ///
    /// All knobs that cannot be turned, with the reasons.
    pub(super) fn new(root: &Path, host: &Host, texts: &[String]) -> Result<Self, CliError> {
        let snapshot = Snapshot::read(root).map_err(stopped)?;
        let vms: Vec<String> = snapshot.vms.iter().map(|vm| vm.name.clone()).collect();
        let mut settings = Vec::new();
        for text in texts {
            let (name, value) = split_setting(text)
                .ok_or_else(|| stopped(format!("{text:?}: expected KNOB=VALUE")))?;
            let setting = Setting::of_host(&vms, name.trim(), value.trim());
            settings.push(setting.map_err(stopped)?);
        }
        let resolved = resolve(&snapshot, &settings);
        let (entries, refusals) = prepare(host, &resolved.wanted);
        let refusals = resolved.refusals.iter().chain(&refusals);
        let refusals: Vec<String> = refusals
            .map(|refusal| format!("{}: {}", refusal.knob, refusal.reason))
            .collect();
        if !refusals.is_empty() {
            let lines = refusals.join("\n  ");
            return Err(stopped(format!("cannot be turned here:\n  {lines}")));
        }
        if entries.is_empty() {
            return Err(stopped(
                "nothing to turn: the host has these values already",
            ));
        }
        Ok(Self {
            texts: texts.to_vec(),
            settings,
            entries,
            notes: resolved.notes,
            host: snapshot.identity.hostname,
        })
    }

    /// The settings that replays take as such, and the pins, which they take apart.
    fn split(&self) -> (Vec<&Setting>, Vec<String>) {
        let is_pin = |setting: &&Setting| setting.knob().is_some_and(|knob| knob.name == "pinning");
        let pins = self.settings.iter().filter(is_pin);
        let pins = pins.map(|setting| {
            let vm = setting.vms().unwrap_or_default();
            format!("{}={}", quoted(vm), setting.text())
        });
        let settings = self.settings.iter().filter(|setting| !is_pin(setting));
        (settings.collect(), pins.collect())
    }

    /// The replay that fits a recording best, as `whatif` finds it for this change.
    pub(super) fn fit(&self, baseline: Replayable) -> Result<Fitted, CliError> {
        let Replayable { recorded, snapshot } = baseline;
        let (settings, pins) = self.split();
        let set: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let mut facts = HostFacts::default();
        if let Some(snapshot) = &snapshot {
            facts.add_snapshot(snapshot, &recorded);
        }
        // A knob that no replay has can be turned all the same.
        let question = Question::parse(&recorded, &facts, &set, &[], &pins);
        let (question, problem) = match question {
            Ok(question) => (question, None),
            Err(error) => (Question::default(), Some(error.to_string())),
        };
        Ok(Fitted {
            base: Baseline::fit(recorded, facts, &question)?,
            question,
            problem,
        })
    }

    /// The commands that keep the change.
    pub(super) fn changes(&self, base: &Baseline) -> Vec<doctor::Change> {
        let (settings, pins) = self.split();
        let settings: Vec<Setting> = settings.into_iter().cloned().collect();
        host_changes(base, &settings, &pins).unwrap_or_default()
    }
}

/// A replayed recording, and what is asked of it.
pub(super) struct Fitted {
    pub(super) base: Baseline,
    question: Question,
    problem: Option<String>,
}

impl Fitted {
    /// What `whatif` says of the change.
    pub(super) fn predict(
        &self,
        seeds: u64,
        jobs: NonZeroUsize,
        stop: &AtomicBool,
    ) -> Result<Document, CliError> {
        let base = &self.base;
        let path = base.recorded().answers().source.path.clone();
        let (plans, reasons) = match (&self.problem, self.question.plans(base)) {
            (Some(problem), _) => (Vec::new(), vec![problem.clone()]),
            (None, Ok(plans)) => plans,
            (None, Err(error)) => (Vec::new(), vec![error.to_string()]),
        };
        let mut document = Document::new(path, base, reasons);
        document.add_assumptions(base, &plans);
        let run = Run {
            seeds,
            jobs,
            stop,
            progress: &|total| {
                let progress = RunProgress::new("try", total);
                Box::new(move |finished| progress.done(finished))
            },
        };
        document.add_variants(base, &plans, &run)?;
        Ok(document)
    }
}
