//! `stealtime whatif`: a recording replayed as it was, and with knobs changed.

mod ask;
mod assumed;
mod auto;
mod before;
mod candidates;
mod class;
mod export;
mod facts;
mod gain;
mod guessed;
mod page;
mod page_gain;
mod plan;
mod replays;
mod result;
mod seen;
mod selftest;
mod show;
mod show_gain;
mod show_seen;
mod show_selftest;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use stealtime_analysis::{Answers, Selection, Skip};
use stealtime_replay::host::{self, Assumed};
use stealtime_replay::predict::{self, Errors, Times, VcpuTimes};
use stealtime_replay::{Extractor, Recording as Replayable};
use stealtime_report::json;
use stealtime_simulator::config::Config;

use crate::args::{self, Form, Recording, VmOf};
use crate::error::CliError;
use crate::input::{self, Twice, Unwanted};
use crate::output;
use crate::progress;
use crate::report::ReportTo;
use ask::PreemptFrom;
use auto::Auto;
use before::{Lack, Presence};
use plan::Plan;
use result::{Both, Error, Exits, Judged, Measured, Shares, Variant, Waits};
use seen::{Recordings, Seen};

/// Replays of each variant, unless `--seeds` says how many.
const SEEDS: u64 = 5;
/// More variants ask for `--yes`.
const MANY: usize = 1_000;
/// So few replays are not worth looking how long one takes.
const FEW: f64 = 200.0;

/// Replay a recording on a simulated host, as it was and with knobs changed.
///
/// What each vCPU and each other task did becomes its demand: computing, and waits for what others
/// do or for timers. First comes how close the replay is to the recording under the knobs that were
/// set; then what each variant changes, with 95% confidence intervals over replays in which what
/// the recording does not tell was moved by chance.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  stealtime whatif trace.dat.zst
  stealtime whatif trace.dat --set kvm.halt_poll_ns=0
  stealtime whatif trace.dat --set sched.features=NO_WAKEUP_PREEMPTION --json
  stealtime whatif trace.dat --vary kvm.halt_poll_ns=0,50000,200000,1000000
  stealtime whatif trace.dat --set sched.base_slice_ns=700us --report slice.html
  stealtime whatif trace.dat --pin vm0/0=0 --pin vm0/1=1
  stealtime whatif trace.dat --auto
  stealtime whatif trace.dat --auto --set host.hz=1000 --json
  stealtime whatif trace.dat --set kvm.halt_poll_ns=0 --export both.pftrace
  stealtime whatif before.dat --set kvm.halt_poll_ns=0 --seen after.dat
  stealtime whatif --self-test traces/")]
pub(crate) struct WhatIf {
    /// A recording with scheduler, KVM and timer events: trace.dat, perf.data or ftrace text
    #[arg(value_name = "TRACE", required_unless_present = "self_test")]
    trace: Option<PathBuf>,

    /// Set a knob (repeat for several at once)
    #[arg(long, value_name = "KNOB=VALUE")]
    set: Vec<String>,

    /// A variant for each value; repeat for a grid
    #[arg(long, value_name = "KNOB=A,B,C…")]
    vary: Vec<String>,

    /// Let a vCPU, all of a VM, or other tasks (task:NAME, task:TID) run on these CPUs only: 0,2-3;
    /// `VM=1:1 0-3` gives each vCPU one of them in turn (repeat for several)
    #[arg(long, value_name = "VM[/VCPU]=CPUS")]
    pin: Vec<String>,

    /// Try the changes that what `analyze` finds gives reason for, on top of --set and --pin, and rank
    /// them by guest time given back
    #[arg(long, conflicts_with = "vary")]
    auto: bool,

    /// What the recorded host had: lines KEY = VALUE of knobs, `groups` (VMs in cgroups of their
    /// own: true, false), `vcpu_cgroups` (in them each vCPU in one of its own, as libvirt lays them
    /// out: true, false), `balanced` (guests give idle vCPUs what others have to do: true, false) and
    /// `placement` (recorded, simulated)
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,

    /// Write the recording, its replay and each variant's as one Perfetto trace, under each other; into
    /// a folder (there already, or ending in `/`) also each replay as a trace.dat. Of --auto the best
    #[arg(long, value_name = "FILE|DIR")]
    export: Option<PathBuf>,

    /// Replays of each variant [default: 5]
    #[arg(long = "seeds", value_name = "N", value_parser = clap::value_parser!(u64).range(2..=1000))]
    asked_seeds: Option<u64>,

    /// Begin even if it takes more than an hour, or has more than 1,000 variants
    #[arg(long)]
    yes: bool,

    /// How many replays at a time; without it, as many as there are CPUs
    #[arg(long, value_name = "N", visible_alias = "threads")]
    jobs: Option<NonZeroUsize>,

    /// A recording made after the change was really made: what was predicted beside what was seen (repeat
    /// for several; how far they differ is the spread)
    #[arg(long, value_name = "TRACE", conflicts_with_all = ["vary", "auto", "self_test"])]
    seen: Vec<PathBuf>,

    /// Another recording without the change, for the spread of --seen
    #[arg(long, value_name = "TRACE", requires = "seen")]
    again: Vec<PathBuf>,

    /// Print how close replays are for each recording below this directory, and nothing else
    #[arg(long, value_name = "DIR",
        conflicts_with_all = ["trace", "set", "vary", "pin", "auto", "export", "report", "asked_seeds", "jobs",
            "yes"])]
    self_test: Option<PathBuf>,

    /// The TSC's frequency in kHz, for a recording whose clock is x86-tsc
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    tsc_khz: Option<u64>,

    /// A recording of the same boot of the same kernel, for a perf.data file that has lost the formats
    /// of its events
    #[arg(long, value_name = "FILE")]
    formats_from: Option<PathBuf>,

    /// These threads are the vCPUs of this VM (repeat for each VM)
    #[arg(long, value_name = "NAME=TID,TID…")]
    vm_of: Vec<VmOf>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    report: ReportTo,
}

/// A recording made ready, and its replay under the recorded knobs.
#[derive(Debug)]
struct Base {
    answers: Answers,
    recording: Replayable,
    assumed: Assumed,
    /// Why it is taken to preempt as it is, if not because that fits best.
    preempt: Option<PreemptFrom>,
    /// VMs are taken to have cgroups because a weight is asked for.
    groups_asked: bool,
    /// What a file about the host says of it.
    told: Vec<ask::Setting>,
    /// The host as recorded; its knobs are the recorded ones.
    config: Config,
    recorded: Times,
    replayed: Times,
    /// Names of VMs, in the order of the answers.
    vms: Vec<String>,
}

/// A recording that was read.
#[derive(Debug)]
struct Read {
    answers: Answers,
    recording: Replayable,
    recorded: Times,
}

impl Read {
    /// Names of VMs, in the order of the answers.
    fn vms(&self) -> Vec<String> {
        self.answers.vms.iter().map(|vm| vm.vm.clone()).collect()
    }
}

impl Base {
    /// Whether which threads are of a VM is a guess.
    fn guessed(&self, vm: usize) -> bool {
        self.answers.vms.get(vm).is_some_and(|vm| vm.guessed)
    }

    /// The recording as replays are measured.
    fn measured(&self) -> Measured {
        Measured::of(&self.recorded, self.vms.len(), self.recording.span_ns)
    }
}

/// All that is printed.
#[derive(Debug, Clone, Serialize)]
struct Report {
    path: String,
    /// Less of the recording was read than was recorded.
    recording_partial: bool,
    span_ns: u64,
    cpus: u32,
    events: u64,
    waits: Waits,
    /// What was taken for true, and where it is from.
    assumed: Vec<String>,
    /// What the recording lacks.
    lacks: Vec<Lack>,
    /// Who is not there all the time.
    presence: Presence,
    error: Error,
    vcpus: Vec<Both>,
    exits: Vec<Exits>,
    /// What to record where a verdict is `not answerable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    /// It was stopped: variants that are not here were not replayed.
    partial: bool,
    variants: Vec<Variant>,
    /// What came of the change that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    seen: Option<Seen>,
    /// Knobs that were asked and cannot be answered.
    not_answerable: Vec<String>,
    /// What `--auto` tried; its variants are in the order of the ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    auto: Option<Auto>,
    /// Files that `--export` wrote.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    exported: Vec<String>,
}

impl WhatIf {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        self.outputs()?;
        if let Some(folder) = &self.self_test {
            let rows = selftest::rows(self, folder)?;
            return match self.form.is_json() {
                true => output::to_stdout(|out| json::write_any(&rows, out)),
                false => print(&show_selftest::table(&rows)),
            };
        }
        let Some(path) = &self.trace else {
            return Err(CliError::WhatIf("no recording was given".to_owned()));
        };
        seen::check(self)?;
        let twice = Twice::new(path)?;
        let base = self.base(twice.path())?;
        let (asked, not_answerable) = self.asked(&base)?;
        let recordings = Recordings::read(self, &base)?;
        self.ask(&base, asked.len())?;
        input::tell(&self.unused(asked.len()));
        let mut report = report(path, &base, not_answerable);
        // What is known before the run is said before it.
        let tables = !self.form.is_json() && !self.report.is_stdout();
        if tables {
            self.go_on(print(&show::before(&guessed::shown(&report))))?;
        }
        let stop = output::stop_by_interrupt();
        self.replay(&base, &asked, &mut report, stop)?;
        if let (Some(recordings), Some(variant)) = (recordings, report.variants.first()) {
            report.seen = recordings.beside(self, variant);
        }
        if !report.partial {
            self.export(&base, twice.path(), &asked, &mut report)?;
        }
        if self.form.is_json() {
            self.go_on(output::to_stdout(|out| json::write_any(&report, out)))?;
        }
        if tables {
            self.go_on(print(&show::after(&guessed::shown(&report))))?;
        }
        self.report
            .write(|command| page::page(&guessed::shown(&report), command))?;
        match report.partial {
            true => Err(CliError::Stopped),
            false => Ok(()),
        }
    }

    /// Refuses, before anything takes its time, outputs that could not be written or would take the place of
    /// what is read, or of each other.
    fn outputs(&self) -> Result<(), CliError> {
        let several = self.seen.iter().chain(&self.again);
        let one = self
            .trace
            .iter()
            .chain(&self.host)
            .chain(&self.formats_from);
        let inputs: Vec<&Path> = one.chain(several).map(PathBuf::as_path).collect();
        self.report.check(self.form.is_json(), &inputs)?;
        let Some(to) = &self.export else {
            return Ok(());
        };
        output::check_named("--export", to, "a file or a folder")?;
        for file in export::files(to, export::MOST) {
            for input in &inputs {
                output::check_apart(&file, input)?;
            }
            output::check_two(("--export", Some(&file)), ("--report", self.report.file()))?;
        }
        export::check(to)
    }

    /// What was printed, and whether to go on though nobody reads it.
    fn go_on(&self, printed: Result<(), CliError>) -> Result<(), CliError> {
        output::go_on(printed, self.report.is_file() || self.export.is_some())
    }

    fn source(&self, path: &Path) -> Recording {
        Recording {
            trace: path.to_owned(),
            tsc_khz: self.tsc_khz,
            formats_from: self.formats_from.clone(),
            vm_of: self.vm_of.clone(),
        }
    }

    /// Reads twice: which threads are which VM's vCPUs, then what they did.
    fn read(&self, path: &Path) -> Result<Read, CliError> {
        let from = self.source(path);
        let unwanted = Unwanted {
            skip: Skip {
                keys: true,
                ..Skip::default()
            },
            only: None,
        };
        let analyzed = input::analyze(path, &from, None, Selection::default(), unwanted)?;
        if self.self_test.is_none() {
            input::tell(&analyzed.unused);
        }
        let answers = analyzed.answers;
        before::replayable(&answers)?;
        let mut extractor = Extractor::new(&answers);
        let mut source = input::open(path, &from, None)?;
        input::drive("reading again", &mut *source, |event, source| {
            extractor.event(event, source.names());
            Ok(())
        })?;
        let recording = extractor.finish();
        let recorded = predict::recorded(&recording, &answers);
        Ok(Read {
            answers,
            recording,
            recorded,
        })
    }

    /// A recording, and the replay that is nearest to it.
    fn base(&self, path: &Path) -> Result<Base, CliError> {
        let read = self.read(path)?;
        let vms = read.vms();
        let Read {
            answers,
            recording,
            recorded,
        } = read;
        let mut assumed = Assumed::default();
        let mut trial = host::as_recorded(&recording, host::knobs(&recording), &assumed, 0);
        let told = match &self.host {
            Some(file) => ask::host_file(file, &ask::trial(&trial, &vms), &mut assumed)?,
            None => Vec::new(),
        };
        let preempt = PreemptFrom::of(&told, &recording, self, &mut trial);
        assumed.preempt = preempt.map(PreemptFrom::preempt);
        let tell = |config: &mut Config| ask::apply(config, &told, &vms);
        let nearest = |assumed: &Assumed| predict::nearest(&recording, &recorded, assumed, tell);
        // A weight is one of cgroups: hosts without need not be tried.
        ask::apply(&mut trial, &told, &vms)?;
        let groups_asked = assumed.groups.is_none() && ask::weighs_ungrouped(self, &trial, &vms);
        if groups_asked {
            assumed.groups = Some(true);
        }
        let (assumed, config, replayed) = nearest(&assumed)?;
        Ok(Base {
            answers,
            recording,
            assumed,
            preempt,
            groups_asked,
            told,
            config,
            recorded,
            replayed,
            vms,
        })
    }

    /// Replays what is asked, or what `--auto` chooses.
    fn replay(
        &self,
        base: &Base,
        asked: &[Plan],
        report: &mut Report,
        stop: &AtomicBool,
    ) -> Result<(), CliError> {
        let close = report.error.is_close();
        if self.auto {
            let first = asked.first().cloned().unwrap_or_default();
            let (auto, variants, partial) = auto::run(self, base, &first, close, stop)?;
            report.auto = Some(auto);
            (report.variants, report.partial) = (variants, partial);
        } else {
            (report.variants, report.partial) = self.variants(base, asked, close, stop)?;
        }
        let unanswered = report.variants.iter().any(Variant::is_unanswered);
        report.advice = unanswered.then(|| before::advice(&report.lacks));
        Ok(())
    }

    fn export(
        &self,
        base: &Base,
        file: &Path,
        asked: &[Plan],
        report: &mut Report,
    ) -> Result<(), CliError> {
        let Some(to) = &self.export else {
            return Ok(());
        };
        let best = report
            .auto
            .as_ref()
            .map(|auto| auto.best(asked, export::BEST));
        let plans = best.unwrap_or_else(|| asked.to_vec());
        let written = export::write(self, base, file, &plans, to)?;
        report.exported = written
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        Ok(())
    }

    /// A large grid begins when the user knows that it is one.
    fn ask(&self, base: &Base, variants: usize) -> Result<(), CliError> {
        let replays = (variants as f64 + 1.0) * self.seeds() as f64;
        if self.yes || replays < FEW {
            return Ok(());
        }
        let begin = Instant::now();
        predict::replay(&base.recording, &base.config)?;
        let seconds = replays * begin.elapsed().as_secs_f64() / self.threads().get() as f64;
        if seconds < progress::LONG_SECONDS && variants <= MANY {
            return Ok(());
        }
        Err(CliError::WhatIf(format!(
            "{variants} variants, {} replays of each, take about {} with {} at a time: add --yes to \
             begin, or vary less",
            self.seeds(),
            progress::long(seconds),
            self.threads()
        )))
    }

    /// The variants that this recording can answer, and why it cannot answer others. It is an
    /// error if none is left.
    fn asked(&self, base: &Base) -> Result<(Vec<Plan>, Vec<String>), CliError> {
        let mut not = Vec::new();
        let mut asked = Vec::new();
        let variants = ask::variants(&self.set, &self.vary)?;
        let trial = ask::trial(&base.config, &base.vms);
        for settings in &variants {
            ask::known(settings, trial.clone())?;
        }
        ask::pinned_once(&self.pin, base)?;
        for settings in variants {
            let asks = settings.iter();
            let problems = asks.filter_map(|setting| ask::answerable(setting, base).err());
            match class::lacks(&settings, base)
                .into_iter()
                .chain(problems)
                .next()
            {
                Some(why) if not.contains(&why) => {}
                Some(why) => not.push(why),
                None => asked.push(Plan {
                    settings,
                    pins: self.pin.clone(),
                }),
            }
        }
        if asked.is_empty() {
            return Err(CliError::WhatIf(format!(
                "not answerable: {}",
                not.join("; ")
            )));
        }
        for plan in &asked {
            plan.prepare(base)?;
        }
        asked.retain(|plan| !plan.is_empty());
        if self.export.is_some() && asked.len() > export::MOST {
            let (have, most) = (asked.len(), export::MOST);
            let problem = format!("--export is for up to {most} variants, not {have}");
            return Err(CliError::WhatIf(problem));
        }
        Ok((asked, not))
    }

    /// Replays of each variant.
    fn seeds(&self) -> u64 {
        self.asked_seeds.unwrap_or(SEEDS)
    }

    /// Options about replays of variants where there are none: what they are for, and that they do nothing.
    fn unused(&self, variants: usize) -> Vec<String> {
        let options = [
            ("--seeds", self.asked_seeds.is_some()),
            ("--jobs", self.jobs.is_some()),
            ("--yes", self.yes),
        ];
        let given = options
            .iter()
            .filter(|(_, given)| *given && variants == 0 && !self.auto);
        let text = |(name, _): &(&str, bool)| {
            format!(
                "{name} is not used: nothing is changed, so that the recording is replayed once as it \
                 was; add --set, --vary, --pin or --auto"
            )
        };
        given.map(text).collect()
    }

    /// How many replays run at a time.
    fn threads(&self) -> NonZeroUsize {
        args::threads(self.jobs)
    }

    /// Replays variants; whether it was stopped.
    fn variants(
        &self,
        base: &Base,
        asked: &[Plan],
        close: bool,
        stop: &AtomicBool,
    ) -> Result<(Vec<Variant>, bool), CliError> {
        if asked.is_empty() {
            return Ok((Vec::new(), false));
        }
        let zero = Plan::default();
        let plans = std::iter::once(&zero).chain(asked);
        let plans: Vec<_> = plans
            .map(|plan| plan.prepare(base))
            .collect::<Result<_, _>>()?;
        let replays = replays::all(base, &plans, self.seeds(), self.threads(), stop)?;
        let is_same_host = |at: usize| match (plans.first(), plans.get(at)) {
            (Some(zero), Some(plan)) => plan.changes_nothing(base, zero),
            _ => Ok(false),
        };
        let recorded = base.measured();
        let Some(before) = replays.of_plan(0) else {
            return Ok((Vec::new(), true));
        };
        let variant = |(at, plan): (usize, &Plan)| {
            let judged = Judged {
                recorded: &recorded,
                base: before,
                before,
                after: replays.of_plan(at)?,
            };
            let variant = result::variant(base, plan.name(), judged, close)?;
            Some((at, variant))
        };
        let mut variants = Vec::new();
        for (at, mut variant) in (1..).zip(asked).filter_map(variant) {
            // The same host has the same replays: few variants need that comparison.
            if variant.gain.outcome == gain::Outcome::Same && is_same_host(at)? {
                variant.verdict = result::SAME_HOST.to_owned();
            }
            variants.push(variant);
        }
        Ok((variants, replays.is_stopped()))
    }
}

/// All that is known before variants are replayed.
fn report(path: &Path, base: &Base, not_answerable: Vec<String>) -> Report {
    let span = base.recording.span_ns;
    let vm_name = |vm: usize| base.vms.get(vm).cloned().unwrap_or_default();
    let task_of = |vm: usize, vcpu: u32| {
        let mut tasks = base.recording.tasks.iter();
        tasks.find(|task| task.vcpu == Some((vm, vcpu)))
    };
    let pairs = base.recorded.vcpus.iter().zip(&base.replayed.vcpus);
    let both = |(was, is): (&VcpuTimes, &VcpuTimes)| {
        let task = task_of(was.vm, was.vcpu);
        Both {
            vm: vm_name(was.vm),
            vm_guessed: base.guessed(was.vm),
            vcpu: was.vcpu,
            from_ns: task.and_then(|task| task.begins).map(|begins| begins.at_ns),
            to_ns: task.and_then(|task| task.ends_ns),
            recorded: Shares::of(was, span),
            replayed: Shares::of(is, span),
            done_percent: is.done_permille as f64 / 10.0,
        }
    };
    Report {
        path: path.display().to_string(),
        recording_partial: base.answers.source.partial,
        span_ns: span,
        cpus: base.recording.cpus,
        events: base.answers.source.events,
        waits: Waits::of(base.recording.resolved),
        assumed: assumed::lines(base),
        lacks: before::lacks(base),
        presence: Presence::of(base),
        error: Error::of(&Errors::between(&base.recorded, &base.replayed, span)),
        vcpus: pairs.map(both).collect(),
        exits: Exits::of(&base.recorded, &base.replayed),
        advice: None,
        partial: false,
        variants: Vec::new(),
        seen: None,
        not_answerable,
        auto: None,
        exported: Vec::new(),
    }
}

fn print(text: &str) -> Result<(), CliError> {
    output::to_stdout(|out| out.write_all(text.as_bytes()))
}
