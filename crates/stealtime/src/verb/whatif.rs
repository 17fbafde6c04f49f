//! `stealtime whatif`: a recording replayed as it was, and with knobs changed.

mod ask;
mod auto;
mod candidates;
mod export;
mod facts;
mod page;
mod plan;
mod replays;
mod result;
mod selftest;
mod show;
mod show_auto;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use stealtime_analysis::{Answers, Selection, Skip};
use stealtime_replay::host::{self, Assumed, Placement};
use stealtime_replay::predict::{self, Errors, Times};
use stealtime_replay::{Extractor, Recording as Replayable};
use stealtime_report::json;
use stealtime_simulator::config::Config;

use crate::args::{self, Form, Recording, VmOf};
use crate::error::CliError;
use crate::input::{self, Twice, Unwanted};
use crate::output;
use crate::report::ReportTo;
use auto::Auto;
use plan::Plan;
use result::{Both, Error, Judged, Measured, Shares, Variant, Waits};

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
    /// own: true, false) and `placement` (recorded, simulated)
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,

    /// Write the recording, its replay and each variant's as one Perfetto trace, under each other; into
    /// a folder (there already, or ending in `/`) also each replay as a trace.dat. Of --auto the best
    #[arg(long, value_name = "FILE|DIR")]
    export: Option<PathBuf>,

    /// Replays of each variant
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(2..=1000))]
    seeds: u64,

    /// How many replays at a time; without it, as many as there are CPUs
    #[arg(long, value_name = "N", visible_alias = "threads")]
    jobs: Option<NonZeroUsize>,

    /// Print how close replays are for each recording below this directory, and nothing else
    #[arg(long, value_name = "DIR",
        conflicts_with_all = ["trace", "set", "vary", "pin", "auto", "export", "report"])]
    self_test: Option<PathBuf>,

    /// The TSC's frequency in kHz, for a recording whose clock is x86-tsc
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    tsc_khz: Option<u64>,

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
    /// The host as recorded; its knobs are the recorded ones.
    config: Config,
    recorded: Times,
    replayed: Times,
    /// Names of VMs, in the order of the answers.
    vms: Vec<String>,
}

impl Base {
    /// The recording as replays are measured.
    fn measured(&self) -> Measured {
        Measured::of(&self.recorded, self.vms.len(), self.recording.span_ns)
    }
}

/// All that is printed.
#[derive(Debug, Serialize)]
struct Report {
    path: String,
    span_ns: u64,
    cpus: u32,
    events: u64,
    waits: Waits,
    /// What was taken for true, and where it is from.
    assumed: Vec<String>,
    /// What the recording lacks.
    lacks: Vec<String>,
    error: Error,
    vcpus: Vec<Both>,
    variants: Vec<Variant>,
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
        self.report.check(self.form.is_json())?;
        if let Some(folder) = &self.self_test {
            let rows = selftest::rows(self, folder)?;
            return match self.form.is_json() {
                true => output::to_stdout(|out| json::write_any(&rows, out)),
                false => print(&show::self_test(&rows)),
            };
        }
        let Some(path) = &self.trace else {
            return Err(CliError::WhatIf("no recording was given".to_owned()));
        };
        let twice = Twice::new(path)?;
        let base = self.base(twice.path())?;
        let report = self.report(path, twice.path(), &base)?;
        match self.form.is_json() {
            _ if self.report.is_stdout() => {}
            true => output::to_stdout(|out| json::write_any(&report, out))?,
            false => print(&show::report(&report))?,
        }
        self.report.write(|command| page::page(&report, command))
    }

    fn source(&self, path: &Path) -> Recording {
        Recording {
            trace: path.to_owned(),
            tsc_khz: self.tsc_khz,
            formats_from: None,
            vm_of: self.vm_of.clone(),
        }
    }

    /// Reads twice: which threads are which VM's vCPUs, then what they did.
    fn base(&self, path: &Path) -> Result<Base, CliError> {
        let from = self.source(path);
        let unwanted = Unwanted {
            skip: Skip {
                keys: true,
                ..Skip::default()
            },
            only: None,
        };
        let analyzed = input::analyze(path, &from, None, Selection::default(), unwanted)?;
        let answers = analyzed.answers;
        ask::replayable(&answers)?;
        let mut extractor = Extractor::new(&answers);
        let mut source = input::open(path, &from, None)?;
        input::drive("reading again", &mut *source, |event, source| {
            extractor.event(event, source.names());
            Ok(())
        })?;
        let recording = extractor.finish();
        let mut assumed = Assumed::default();
        let settings = match &self.host {
            Some(file) => ask::host_file(file, &mut assumed)?,
            None => Vec::new(),
        };
        let recorded = predict::recorded(&recording, &answers);
        let vms: Vec<String> = answers.vms.iter().map(|vm| vm.vm.clone()).collect();
        let tell = |config: &mut Config| ask::apply(config, &settings, &vms);
        let (assumed, config, replayed) = predict::nearest(&recording, &recorded, &assumed, tell)?;
        Ok(Base {
            answers,
            recording,
            assumed,
            config,
            recorded,
            replayed,
            vms,
        })
    }

    fn report(&self, path: &Path, file: &Path, base: &Base) -> Result<Report, CliError> {
        let (asked, not_answerable) = self.asked(base)?;
        let span = base.recording.span_ns;
        let error = Error::of(&Errors::between(&base.recorded, &base.replayed, span));
        let (auto, variants) = match self.auto {
            true => {
                let first = asked.first().cloned().unwrap_or_default();
                let (auto, variants) = auto::run(self, base, &first, error.is_close())?;
                (Some(auto), variants)
            }
            false => (None, self.variants(base, &asked, error.is_close())?),
        };
        let exported = match &self.export {
            Some(to) => {
                let best = auto.iter().flat_map(|auto| auto.best(&asked, export::BEST));
                let plans: Vec<Plan> = match self.auto {
                    true => best.collect(),
                    false => asked,
                };
                export::write(self, base, file, &plans, to)?
            }
            None => Vec::new(),
        };
        let vm_name = |vm: usize| base.vms.get(vm).cloned();
        let pairs = base.recorded.vcpus.iter().zip(&base.replayed.vcpus);
        Ok(Report {
            path: path.display().to_string(),
            span_ns: span,
            cpus: base.recording.cpus,
            events: base.answers.source.events,
            waits: Waits::of(base.recording.resolved),
            assumed: assumptions(base),
            lacks: ask::lacks(&base.answers),
            error,
            vcpus: pairs
                .map(|(was, is)| Both {
                    vm: vm_name(was.vm).unwrap_or_default(),
                    vcpu: was.vcpu,
                    recorded: Shares::of(was, span),
                    replayed: Shares::of(is, span),
                    done_percent: is.done_permille as f64 / 10.0,
                })
                .collect(),
            variants,
            not_answerable,
            auto,
            exported: exported
                .iter()
                .map(|path| path.display().to_string())
                .collect(),
        })
    }

    /// The variants that this recording can answer, and why it cannot answer others. It is an
    /// error if none is left.
    fn asked(&self, base: &Base) -> Result<(Vec<Plan>, Vec<String>), CliError> {
        let mut not = Vec::new();
        let mut asked = Vec::new();
        for settings in ask::variants(&self.set, &self.vary)? {
            let names = settings.iter().map(|setting| &setting.0);
            let mut problems = names
                .filter_map(|name| ask::answerable(name, &base.recording, &base.assumed).err());
            match problems.next() {
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

    /// How many replays run at a time.
    fn threads(&self) -> NonZeroUsize {
        args::threads(self.jobs)
    }

    fn variants(&self, base: &Base, asked: &[Plan], close: bool) -> Result<Vec<Variant>, CliError> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let zero = Plan::default();
        let plans = std::iter::once(&zero).chain(asked);
        let plans: Vec<_> = plans
            .map(|plan| plan.prepare(base))
            .collect::<Result<_, _>>()?;
        let replays = replays::all(base, &plans, self.seeds, self.threads())?;
        let recorded = base.measured();
        let Some((before, after)) = replays.split_first() else {
            return Ok(Vec::new());
        };
        let variant = |(plan, after): (&Plan, &Vec<Measured>)| {
            let judged = Judged {
                recorded: &recorded,
                base: before,
                before,
                after,
            };
            let changes = result::changes(&base.vms, judged);
            Variant {
                name: plan.name(),
                verdict: result::verdict(&changes, close),
                changes,
            }
        };
        Ok(asked.iter().zip(after).map(variant).collect())
    }
}

/// What the replay takes for true, and where it is from.
fn assumptions(base: &Base) -> Vec<String> {
    let knobs = &base.config.knobs;
    let (recording, assumed) = (&base.recording, &base.assumed);
    let from = |told: bool, how: &str| match told {
        true => format!("as {how} shows"),
        false => "the default; --host FILE tells".to_owned(),
    };
    let placed = assumed
        .placement
        .unwrap_or_else(|| host::placement(recording));
    let placement = match placed {
        Placement::Recorded => "tasks move between CPUs as recorded",
        Placement::Simulated => "tasks are placed by the simulated scheduler",
    };
    vec![
        format!(
            "kvm.halt_poll_ns={} ({})",
            knobs.kvm.halt_poll.halt_poll_ns,
            from(recording.halt_poll_ns.is_some(), "its polling")
        ),
        format!(
            "host.hz={} ({})",
            knobs.sched.hz,
            from(recording.hz.is_some(), "its tick")
        ),
        format!(
            "sched.preempt={} (fits best, unless told)",
            preempt_name(base)
        ),
        format!("sched.features={}", knobs.sched.features),
        groups(base),
        format!(
            "{placement} (fits best, unless told; {} moves in {} switches)",
            recording.migrations, recording.switches
        ),
        match recording.idle_wake_ns {
            Some(ns) => format!("an idle CPU wakes in {} us (median)", ns / 1_000),
            None => "an idle CPU wakes in 2 us (none was idle)".to_owned(),
        },
    ]
}

fn groups(base: &Base) -> String {
    if base.assumed.groups == Some(true) {
        return "each VM in a cgroup of its own (fits best, unless told)".to_owned();
    }
    let groups = base.config.scripts.groups.iter();
    let own = groups.zip(&base.answers.vms).filter_map(|(group, vm)| {
        let limit = group.as_ref()?.cpu_max_ns;
        Some(match limit {
            Some((quota, period)) => {
                let (quota, period) = (quota / 1_000, period / 1_000);
                format!(
                    "{} with cpu.max {quota} {period} (as its stops show)",
                    vm.vm
                )
            }
            None => vm.vm.clone(),
        })
    });
    let own: Vec<String> = own.collect();
    match own.is_empty() {
        true => "no cgroups (fits best, unless told)".to_owned(),
        false => format!(
            "in cgroups of their own (fits best, unless told): {}",
            own.join(", ")
        ),
    }
}

fn preempt_name(base: &Base) -> String {
    stealtime_lab::knobs::get(&base.config, "sched.preempt").unwrap_or_default()
}

fn print(text: &str) -> Result<(), CliError> {
    output::to_stdout(|out| out.write_all(text.as_bytes()))
}
