//! `stealtime whatif`: a recording replayed as it was, and with knobs changed.

mod ask;
mod page;
mod result;
mod selftest;
mod show;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use stealtime_analysis::{Answers, Selection, Skip};
use stealtime_replay::host::{self, Assumed, Placement};
use stealtime_replay::predict::{self, Errors, Times};
use stealtime_replay::{Extractor, Recording as Replayable};
use stealtime_report::json;
use stealtime_simulator::config::Config;

use crate::args::{Form, Recording, VmOf};
use crate::error::CliError;
use crate::input::{self, Twice, Unwanted};
use crate::output;
use crate::report::ReportTo;
use result::{Both, Error, Shares, Variant, Waits};

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

    /// Let a vCPU, or all of a VM, run on these CPUs only (repeat for several)
    #[arg(long, value_name = "VM[/VCPU]=CPUS")]
    pin: Vec<String>,

    /// What the recorded host had: lines KEY = VALUE of knobs, `groups` (VMs in cgroups of their
    /// own: true, false) and `placement` (recorded, simulated)
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,

    /// Replays of each variant
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(2..=1000))]
    seeds: u64,

    /// Print how close replays are for each recording below this directory, and nothing else
    #[arg(long, value_name = "DIR", conflicts_with_all = ["trace", "set", "vary", "pin", "report"])]
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
        let report = self.report(path, &base)?;
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
        let tell = |config: &mut Config| ask::apply(config, &settings);
        let (assumed, config, replayed) = predict::nearest(&recording, &recorded, &assumed, tell)?;
        Ok(Base {
            answers,
            recording,
            assumed,
            config,
            recorded,
            replayed,
        })
    }

    fn report(&self, path: &Path, base: &Base) -> Result<Report, CliError> {
        let (asked, not_answerable) = self.asked(base)?;
        let span = base.recording.span_ns;
        let error = Error::of(&Errors::between(&base.recorded, &base.replayed, span));
        let variants = self.variants(base, &asked, error.is_close())?;
        let vm_name = |vm: usize| base.answers.vms.get(vm).map(|vm| vm.vm.clone());
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
        })
    }

    /// The variants that this recording can answer, and why it cannot answer others. It is an
    /// error if none is left.
    fn asked(&self, base: &Base) -> Result<(Vec<Vec<ask::Setting>>, Vec<String>), CliError> {
        let mut not = Vec::new();
        let mut asked = Vec::new();
        let all = ask::variants(&self.set, &self.vary)?;
        for variant in all {
            let mut trial = base.config.clone();
            let mut problem = None;
            for setting in &variant {
                match ask::answerable(&setting.0, &base.recording) {
                    Ok(()) => ask::apply(&mut trial, std::slice::from_ref(setting))?,
                    Err(why) => problem = Some(why),
                }
            }
            match problem {
                Some(why) if not.contains(&why) => {}
                Some(why) => not.push(why),
                None => asked.push(variant),
            }
        }
        if asked.is_empty() {
            return Err(CliError::WhatIf(format!(
                "not answerable: {}",
                not.join("; ")
            )));
        }
        asked.retain(|variant| !variant.is_empty() || !self.pin.is_empty());
        Ok((asked, not))
    }

    fn variants(
        &self,
        base: &Base,
        asked: &[Vec<ask::Setting>],
        close: bool,
    ) -> Result<Vec<Variant>, CliError> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let mut pinned = base.assumed.clone();
        for pin in &self.pin {
            pinned
                .pins
                .extend(ask::pins(pin, &base.answers, base.recording.cpus)?);
        }
        let before = self.replays(base, &base.assumed, &[])?;
        let vms: Vec<String> = base.answers.vms.iter().map(|vm| vm.vm.clone()).collect();
        let mut variants = Vec::new();
        for settings in asked {
            let after = self.replays(base, &pinned, settings)?;
            let span = base.recording.span_ns;
            let changes = result::changes(&vms, span, &base.recorded, &before, &after);
            let verdict = result::verdict(&changes, close);
            variants.push(Variant {
                name: self.name_of(settings),
                changes,
                verdict,
            });
        }
        Ok(variants)
    }

    fn name_of(&self, settings: &[ask::Setting]) -> String {
        let knobs = settings
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let pins = self.pin.iter().map(|pin| format!("pin {pin}"));
        knobs.chain(pins).collect::<Vec<_>>().join(" ")
    }

    fn replays(
        &self,
        base: &Base,
        assumed: &Assumed,
        settings: &[ask::Setting],
    ) -> Result<Vec<Times>, CliError> {
        let one = |seed| {
            let knobs = base.config.knobs.clone();
            let mut config = host::as_recorded(&base.recording, knobs, assumed, seed);
            ask::apply(&mut config, settings)?;
            replay(&base.recording, &config)
        };
        (1..=self.seeds).map(one).collect()
    }
}

fn replay(recording: &Replayable, config: &Config) -> Result<Times, CliError> {
    predict::replay(recording, config).map_err(|fault| CliError::WhatIf(fault.to_string()))
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
