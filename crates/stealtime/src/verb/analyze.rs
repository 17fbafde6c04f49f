//! `stealtime analyze`.

mod fleet;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use stealtime_analysis::{Answers, Longest, Selection, Skip};
use stealtime_doctor::Decision;
use stealtime_report::terminal::Style;
use stealtime_report::{Key, csv, html, json, terminal};
use stealtime_whatif::Remedy;

use super::pick;
use crate::args::{CpuRange, Form, Forms, Recording, Window};
use crate::call::Analysis;
use crate::error::CliError;
use crate::input::{Analyzed, Unwanted};
use crate::report::ReportTo;
use crate::when::When;
use crate::{input, output};

/// Show where guest time goes: exits, halts, steal, latencies, and what to look at
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  stealtime analyze trace.dat.zst
  stealtime analyze trace.dat --vm vm0 --vcpu 0 --from 200ms --until 0.5s
  stealtime analyze perf.data --key exit-totals,msr,ioport
  stealtime analyze trace.dat --longer-than 20ms --top 50 --key stalls,waits
  stealtime analyze trace.dat --json | jq '.vcpus[] | {vm, vcpu, preempted_ns}'
  stealtime analyze trace.dat --report trace.html
  stealtime analyze trace.dat --format csv --key ready > ready.csv
  stealtime analyze trace.dat perf.data -o fleet
  find /fleet -name '*.dat*' -print0 | stealtime analyze @- -o fleet --key time,ready,findings
  trace-cmd stream -e kvm -e sched | stealtime analyze -")]
pub(crate) struct Analyze {
    #[command(flatten)]
    recording: Recording,

    #[command(flatten)]
    many: fleet::Many,

    /// From this time on: 1.5s, 200ms, 30us after the first event, or @1580.515472 of the trace's clock
    #[arg(long, value_name = "TIME")]
    from: Option<When>,

    /// Up to this time, which is not included
    #[arg(long, visible_alias = "to", value_name = "TIME")]
    until: Option<When>,

    /// Only this VM (repeat for several)
    #[arg(long, value_name = "NAME")]
    vm: Vec<String>,

    /// Only vCPUs of this number (repeat, or separate by commas)
    #[arg(long, value_name = "N", value_delimiter = ',')]
    vcpu: Vec<u32>,

    /// Only events on these host CPUs, such as 0-3,8 (repeat for more)
    #[arg(long, value_name = "N", value_delimiter = ',')]
    cpu: Vec<CpuRange>,

    /// Count waits for a CPU longer than this (5ms, 1s), and list the longest of them
    #[arg(long, value_name = "TIME", value_parser = crate::when::length)]
    longer_than: Option<u64>,

    /// Rows of a table, and how many of the longest waits are found [default: 40 rows, 10 waits]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    top: Option<u16>,

    /// Tables to give (repeat, or separate by commas) [default for tables: findings, stalls, vm-states,
    /// time, ready, exits, latency, poll; for JSON: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    key: Vec<KeyArg>,

    #[command(flatten)]
    form: Form<Format>,

    #[command(flatten)]
    report: ReportTo,
}

/// Form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables for a terminal
    Table,
    /// One JSON object; docs/json.md describes its keys
    Json,
    /// One table as CSV; needs --key
    Csv,
}

impl Forms for Format {
    const TABLE: Self = Self::Table;
    const JSON: Self = Self::Json;
}

/// A table, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyArg {
    One(Key),
    All,
}

impl ValueEnum for KeyArg {
    fn value_variants<'a>() -> &'a [Self] {
        static VARIANTS: [KeyArg; Key::ALL.len() + 1] = {
            let mut variants = [KeyArg::All; Key::ALL.len() + 1];
            let mut i = 0;
            while i < Key::ALL.len() {
                variants[i] = KeyArg::One(Key::ALL[i]);
                i += 1;
            }
            variants
        };
        &VARIANTS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::One(key) => PossibleValue::new(key.name()).help(key.help()),
            Self::All => PossibleValue::new("all").help("All of these"),
        })
    }
}

impl Analyze {
    /// Reads, analyzes, prints.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let format = self.form.get();
        self.report
            .check(format != Format::Table, &self.recording.inputs())?;
        if self.report.is_stdout() && !self.key.is_empty() {
            return Err(CliError::OfNoUse {
                option: "--key",
                why: "chooses tables, and with --report - there are none",
            });
        }
        let keys = self.keys();
        if let Some(folder) = self.many.out() {
            return self.run_many(folder, format, &keys);
        }
        let csv_key = match (format, keys.as_slice()) {
            (Format::Csv, [key]) => Some(*key),
            (Format::Csv, _) => return Err(CliError::CsvKey(Key::ALL.map(Key::name).join(", "))),
            _ => None,
        };
        let analyzed = self.analyzed(self.unwanted(format, &keys))?;
        let snapshot = analyzed.host.snapshot.as_ref();
        let remedies = stealtime_whatif::remedies(&analyzed.answers, snapshot);
        if !self.report.is_stdout() {
            let shown = Shown {
                top: self.top.map_or(terminal::TOP, usize::from),
                decision: self.decision(&analyzed, &keys),
                remedies: &remedies,
            };
            let printed = print(&analyzed.answers, format, &keys, csv_key, &shown);
            output::go_on(printed, self.report.is_file())?;
        }
        // The other forms have notes.
        if format == Format::Csv {
            analyzed.tell();
        }
        let decision = self.decision(&analyzed, &[]);
        self.report.write(|command| {
            html::analyze::page(&analyzed.answers, &remedies, decision.as_ref(), command)
        })?;
        analyzed
            .cut
            .map_or(Ok(()), |error| Err(CliError::Cut(error)))
    }

    fn analyzed(&self, unwanted: Unwanted) -> Result<Analyzed, CliError> {
        let path = &self.recording.trace;
        let (window, selection) = (Some(self.window()), self.selection());
        let mut analyzed = input::analyze(path, &self.recording, window, selection, unwanted)?;
        self.check(&analyzed)?;
        analyzed.answers.source.notes.extend(self.selected());
        Self::name_exports(&self.recording, &mut analyzed.answers);
        Ok(analyzed)
    }

    /// Everything that the options ask for, for a program: the answers, and `--format json` of them.
    pub(crate) fn call(&self) -> Result<Analysis, CliError> {
        let unwanted = Unwanted {
            longest: self.longest(),
            has_histograms: true,
            ..Unwanted::default()
        };
        let mut analyzed = self.analyzed(unwanted)?;
        let snapshot = analyzed.host.snapshot.as_ref();
        let remedies = stealtime_whatif::remedies(&analyzed.answers, snapshot);
        let decision = self.decision(&analyzed, &[]);
        // A table of its own: the command's JSON has none of it.
        let histograms = std::mem::take(&mut analyzed.answers.histograms);
        let mut document = Vec::new();
        json::write(
            &analyzed.answers,
            &[],
            decision.as_ref(),
            &remedies,
            &mut document,
        )
        .map_err(CliError::Stdout)?;
        analyzed.answers.histograms = histograms;
        Ok(Analysis {
            document,
            cut: match analyzed.cut {
                Some(error) => Some(CliError::Cut(error).to_string()),
                None => analyzed.partial,
            },
            answers: analyzed.answers,
        })
    }

    fn selection(&self) -> Selection {
        Selection {
            vms: self.vm.clone(),
            vcpus: self.vcpu.clone(),
            cpus: CpuRange::numbers(&self.cpu),
            ..Selection::default()
        }
    }

    /// The single waits that are wanted.
    fn longest(&self) -> Longest {
        Longest {
            kept: self.top.map_or(Longest::default().kept, usize::from),
            longer_than_ns: self.longer_than,
        }
    }

    /// Gives each long wait the command that exports it.
    fn name_exports(recording: &Recording, answers: &mut Answers) {
        /// Shown before and after a wait, in ns: what led to it, and what it led to.
        const AROUND_NS: u64 = 1_000_000;
        if recording.trace.as_os_str() == "-" {
            return;
        }
        let first = answers.source.first_ns;
        for (number, stall) in (1..).zip(&mut answers.stalls) {
            let begin = stall.start_ns.saturating_sub(AROUND_NS).max(first);
            let end = stall.start_ns.saturating_add(stall.ns);
            let close = end.saturating_add(AROUND_NS);
            stall.export = Some(format!(
                "stealtime export{} --to perfetto --from {} --until {} -o stall-{number}.pftrace",
                recording.as_arguments(),
                When::At(begin),
                When::At(close)
            ));
        }
    }

    /// Whether what was picked is there.
    fn check(&self, analyzed: &Analyzed) -> Result<(), CliError> {
        pick::cpus(&CpuRange::numbers(&self.cpu), &analyzed.answers)?;
        pick::window(self.window(), analyzed)?;
        let answers = &analyzed.answers;
        let vms = pick::vms(&self.vm, &pick::names(answers));
        let vcpus = pick::vcpus(&self.vcpu, &pick::numbers(answers));
        if vms.is_ok() && vcpus.is_ok() {
            return Ok(());
        }
        // Answers to a selection know nothing else: what there is takes another reading.
        if self.recording.trace.as_os_str() == "-" {
            return vms.and(vcpus);
        }
        let whole = Selection {
            vms: if vms.is_ok() {
                self.vm.clone()
            } else {
                Vec::new()
            },
            ..Selection::default()
        };
        let skip = Skip {
            keys: true,
            latencies: true,
        };
        let unwanted = Unwanted {
            skip,
            ..Unwanted::default()
        };
        let path = &self.recording.trace;
        let whole = input::analyze(path, &self.recording, None, whole, unwanted)?.answers;
        pick::vms(&self.vm, &pick::names(&whole))?;
        pick::vcpus(&self.vcpu, &pick::numbers(&whole))
    }

    /// The one thing to do, where the findings are shown.
    fn decision(&self, analyzed: &Analyzed, keys: &[Key]) -> Option<Decision> {
        let is_shown = keys.is_empty() || keys.contains(&Key::Findings);
        let snapshot = analyzed.host.snapshot.as_ref();
        let path = self.recording.trace.display().to_string();
        is_shown.then(|| stealtime_whatif::of_answers(&analyzed.answers, snapshot, &path))
    }

    /// What need not be found out, because no table of `keys` shows it.
    fn unwanted(&self, format: Format, keys: &[Key]) -> Unwanted {
        let longest = self.longest();
        if self.report.is_wanted() {
            return Unwanted {
                longest,
                ..Unwanted::default()
            };
        }
        let everything_shown = keys.is_empty() && format == Format::Json;
        let shown =
            |tables: &[Key]| everything_shown || tables.iter().any(|key| keys.contains(key));
        let keys_of_perf = [Key::Msr, Key::Ioport, Key::Mmio];
        let skip = Skip {
            keys: !shown(&keys_of_perf),
            latencies: !(shown(&[Key::Latency, Key::Findings]) || keys.is_empty()),
        };
        // A selection names VMs, vCPUs or CPUs that some other event may tell of.
        let whole = self.selected().is_none();
        let of_exits = |key: &Key| {
            matches!(key, Key::Exits | Key::ExitTotals | Key::Events) || keys_of_perf.contains(key)
        };
        let narrow = whole && !keys.is_empty() && keys.iter().all(of_exits);
        let wanted = narrow.then(|| {
            let exits = ["kvm_entry", "kvm_exit"];
            let accesses = ["kvm_msr", "kvm_pio", "kvm_mmio"];
            let accesses = accesses.into_iter().filter(|_| !skip.keys);
            exits.into_iter().chain(accesses).collect()
        });
        Unwanted {
            skip,
            only: wanted,
            longest,
            has_histograms: false,
        }
    }

    fn window(&self) -> Window {
        Window {
            from: self.from,
            until: self.until,
        }
    }

    /// What was selected, for whoever reads the numbers later.
    fn selected(&self) -> Option<String> {
        let list = |option: &str, values: Vec<String>| {
            (!values.is_empty()).then(|| format!("{option} {}", values.join(",")))
        };
        let numbers = |values: &[u32]| values.iter().map(u32::to_string).collect();
        let cpus = CpuRange::numbers(&self.cpu).into_iter().map(u32::from);
        let cpus: Vec<_> = cpus.collect();
        let parts = [
            list("--vm", self.vm.clone()),
            list("--vcpu", numbers(&self.vcpu)),
            list("--cpu", numbers(&cpus)),
            list("--from", self.from.iter().map(When::to_string).collect()),
            list("--until", self.until.iter().map(When::to_string).collect()),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| format!("of a part only: {}", parts.join(" ")))
    }

    fn keys(&self) -> Vec<Key> {
        if self.key.contains(&KeyArg::All) {
            return Key::ALL.to_vec();
        }
        let requested = |key: &Key| self.key.contains(&KeyArg::One(*key));
        Key::ALL.into_iter().filter(requested).collect()
    }
}

/// What tables show, apart from the answers.
struct Shown<'r> {
    /// Rows of a VM, or VMs, at most.
    top: usize,
    /// The one thing to do.
    decision: Option<Decision>,
    /// What to set for findings.
    remedies: &'r [Remedy],
}

fn print(
    answers: &Answers,
    format: Format,
    keys: &[Key],
    csv_key: Option<Key>,
    shown: &Shown<'_>,
) -> Result<(), CliError> {
    match (format, csv_key) {
        (Format::Csv, Some(key)) => output::to_stdout(|writer| csv::write(answers, key, writer)),
        (Format::Json, _) => output::to_stdout(|writer| {
            json::write(
                answers,
                keys,
                shown.decision.as_ref(),
                shown.remedies,
                writer,
            )
        }),
        _ => {
            let keys = if keys.is_empty() { &Key::DEFAULT } else { keys };
            let style = Style::new(output::color());
            let mut text = terminal::render(answers, shown.remedies, keys, style, shown.top);
            if let Some(decision) = &shown.decision {
                text.push_str(&terminal::decision::render(decision, style));
            }
            output::to_stdout(|writer| writer.write_all(text.as_bytes()))
        }
    }
}
