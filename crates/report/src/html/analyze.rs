//! The answers about a recording as a page.

use std::collections::BTreeMap;

use stealtime_analysis::Answers;
use stealtime_analysis::answers::{VcpuTime, cause_in_words};
use stealtime_doctor::Decision;
use stealtime_whatif::Remedy;

use super::chart::{cut_note, visible};
use super::page::Step;
use super::{
    Axis, Cell, Chart, Color, Lead, Mark, Page, Part, Range, Scale, Table, decision, overview,
};
use crate::Key;
use crate::terminal::time::{by_vm, vcpu_number};
use crate::terminal::{self, header, latencies};
use crate::units::{Times, count, counted};

/// Bars for single vCPUs, as many as are readable; of more vCPUs there are bars of VMs.
const MOST_VCPUS: usize = 64;
/// Rows of a table: a page stays small enough for a browser with hundreds of VMs.
const MOST_TABLE_ROWS: usize = 500;
/// Rows of the charts of exits: few reasons take nearly all of the time.
const MOST_REASONS: usize = 12;
/// Rows of the chart of latencies.
const MOST_LATENCIES: usize = 24;
/// VMs that have a color each in a chart, as many as the palette has; the others are one.
const MOST_COLORS: usize = 8;

/// The page of a recording; `command` makes the answers again.
#[must_use]
pub fn page(
    answers: &Answers,
    remedies: &[Remedy],
    decision: Option<&Decision>,
    command: &str,
) -> Page {
    let answers = &*answers.with_guesses_shown();
    let mut page = Page::new("analyze", answers.source.path.clone()).made_by(command);
    if answers.source.partial {
        page.first(header::PARTIAL);
    }
    header::facts(answers)
        .into_iter()
        .for_each(|fact| page.fact(fact));
    for note in &answers.source.notes {
        page.warning(note.clone());
    }
    if let Some(decision) = decision {
        page.lead(decision::lead(decision));
    }
    leads(answers, remedies, &mut page);
    overview::charts(answers, &mut page);
    page.section("Where vCPU time went");
    split(answers, &mut page);
    page.section("Why ready vCPUs did not run");
    waiting(answers, &mut page);
    page.section("Exits");
    handling(answers, &mut page);
    durations(answers, &mut page);
    page.section("Latencies");
    latencies(answers, &mut page);
    page.section("Tables");
    let times = Times::of(&answers.source.clock_unit);
    for key in Key::ALL {
        if key == Key::Scheduler && answers.scheduler.is_empty() {
            continue;
        }
        if let Some(section) = terminal::section(answers, key, usize::MAX) {
            page.table(Table::of_terminal(&section.bounded(MOST_TABLE_ROWS, times)));
        }
    }
    page.section("The recording");
    page.table(source(answers));
    page
}

fn leads(answers: &Answers, remedies: &[Remedy], page: &mut Page) {
    let vcpus = &answers.vcpus;
    let sum = |time: fn(&VcpuTime) -> u64| {
        vcpus
            .iter()
            .map(|vcpu| u128::from(time(vcpu)))
            .sum::<u128>()
    };
    let span = sum(|vcpu| vcpu.span_ns);
    if span > 0 {
        let share = |time: fn(&VcpuTime) -> u64| sum(time) as f64 / span as f64 * 100.0;
        let waiting = share(|v| v.preempted_ns.saturating_add(v.wake_wait_ns));
        let (on_cpu, asleep) = (share(|v| v.on_cpu_ns), share(|v| v.halt_ns));
        let mut says = format!(
            "{waiting:.1} % waiting for a CPU, {on_cpu:.1} % on a CPU, {asleep:.1} % asleep."
        );
        if vcpus.iter().all(|vcpu| vcpu.guest_ns.is_some()) {
            let guest = share(|v| v.guest_ns.unwrap_or(0));
            says = format!(
                "{waiting:.1} % waiting for a CPU, {guest:.1} % in the guest, {:.1} % in exits and \
                 polling, {asleep:.1} % asleep.",
                on_cpu - guest
            );
        }
        page.lead(Lead {
            about: "Of all vCPUs' time:".to_owned(),
            says,
            more: Vec::new(),
            steps: Vec::new(),
            mark: Mark::Plain,
        });
    }
    let (shown, hidden) = header::shown_findings(answers, usize::MAX);
    for (index, finding) in shown.iter().enumerate() {
        let next = (!finding.next.is_empty()).then(|| format!("Next: {}", finding.next));
        let remedy = remedies.iter().find(|remedy| remedy.finding == index);
        let set = remedy.map(|remedy| format!("Set: {}", header::settings(remedy).join(", ")));
        let commands = remedy.map_or_else(Vec::new, header::commands);
        let steps = commands.into_iter().map(|(label, command)| Step {
            label,
            command: command.to_owned(),
        });
        page.lead(Lead {
            about: format!("{}{}", header::about(finding), finding.what),
            says: String::new(),
            more: std::iter::once(finding.evidence.clone())
                .chain(next)
                .chain(set)
                .collect(),
            steps: steps.collect(),
            mark: if finding.vm.is_empty() {
                Mark::Plain
            } else {
                Mark::Worse
            },
        });
    }
    if let Some(text) = header::more_findings(hidden) {
        page.lead(Lead {
            about: String::new(),
            says: text,
            more: Vec::new(),
            steps: Vec::new(),
            mark: Mark::Plain,
        });
    }
    if answers.findings.is_empty() {
        page.lead(Lead {
            about: String::new(),
            says: header::no_finding(answers).to_owned(),
            more: Vec::new(),
            steps: Vec::new(),
            mark: Mark::Plain,
        });
    }
}

/// A state of a vCPU: its name, its color, and its time.
type State = (&'static str, Color, fn(&VcpuTime) -> u64);

const STATES: [State; 8] = [
    ("in the guest", Color::Guest, |v| v.guest_ns.unwrap_or(0)),
    (
        "on a CPU (guest, exits, polling)",
        Color::Guest,
        |v| match v.guest_ns {
            Some(_) => 0,
            None => v.on_cpu_ns,
        },
    ),
    ("handling exits", Color::Exits, |v| {
        // Without a split all of it is in the part above.
        v.guest_ns.and(v.exit_ns).unwrap_or(0)
    }),
    ("polling in halts", Color::Poll, |v| {
        v.guest_ns.and(v.poll_ns).unwrap_or(0)
    }),
    ("preempted (steal)", Color::Preempted, |v| v.preempted_ns),
    ("woken, waiting (steal)", Color::Waking, |v| v.wake_wait_ns),
    ("halted", Color::Halted, |v| {
        v.halt_ns.saturating_sub(v.blocked_ns)
    }),
    ("asleep in the VMM", Color::Blocked, |v| v.blocked_ns),
];

/// Bars: names, and the vCPUs of each.
fn bars(answers: &Answers) -> Vec<(String, Vec<&VcpuTime>)> {
    let vcpus = &answers.vcpus;
    if vcpus.len() <= MOST_VCPUS {
        let name = |vcpu: &VcpuTime| format!("{} vCPU {}", vcpu.vm, vcpu_number(vcpu.vcpu));
        return vcpus.iter().map(|vcpu| (name(vcpu), vec![vcpu])).collect();
    }
    let mut bars: Vec<(String, Vec<&VcpuTime>)> = Vec::new();
    for vcpu in vcpus {
        match bars.iter_mut().find(|(vm, _)| *vm == vcpu.vm) {
            Some((_, members)) => members.push(vcpu),
            None => bars.push((vcpu.vm.clone(), vec![vcpu])),
        }
    }
    bars
}

fn percent(part: u128, whole: u128) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64 * 100.0
}

fn split(answers: &Answers, page: &mut Page) {
    let bars = bars(answers);
    let share = |vcpus: &[&VcpuTime], time: fn(&VcpuTime) -> u64| {
        let sum = |time: fn(&VcpuTime) -> u64| vcpus.iter().map(|v| u128::from(time(v))).sum();
        percent(sum(time), sum(|v| v.span_ns))
    };
    let parts = STATES.iter().map(|(name, color, time)| Part {
        name: (*name).to_owned(),
        color: *color,
        values: bars.iter().map(|(_, vcpus)| share(vcpus, *time)).collect(),
    });
    let parts = visible(parts);
    let rows: Vec<String> = bars.iter().map(|(name, _)| name.clone()).collect();
    let unit = match answers.vcpus.len() > MOST_VCPUS {
        true => "VM, all its vCPUs together",
        false => "vCPU",
    };
    page.text(if rows.is_empty() {
        "No vCPU was seen."
    } else {
        ""
    });
    page.chart(
        format!("Time of each {unit}"),
        "Bars of the shares of time in the guest, in exits, polling, waiting for a CPU and asleep; \
         the table \"Where vCPU time went\" has the numbers.",
        Chart::Stacked {
            axis: Axis::plain("share of its time, %", " %"),
            rows: rows.clone(),
            parts,
            most: Some(100.0),
        },
    );
    let spinning: Vec<f64> = bars
        .iter()
        .map(|(_, vcpus)| share(vcpus, |v| v.spin_ns.unwrap_or(0)))
        .collect();
    if spinning.iter().any(|share| *share > 0.0) {
        page.chart(
            "Of it: spinning that ended in a PAUSE exit, and handling that",
            "Bars of the share of time that went into spinning.",
            Chart::Stacked {
                axis: Axis::plain("share of its time, %", " %"),
                rows,
                parts: vec![Part {
                    name: "spinning".to_owned(),
                    color: Color::Spin,
                    values: spinning,
                }],
                most: None,
            },
        );
    }
}

/// The order of causes in bars: first what other settings of the host may change.
const CAUSES: [&str; 9] = [
    "vcpu_other_vm",
    "vcpu_same_vm",
    "vmm_thread",
    "host_task",
    "kernel_thread",
    "irq",
    "throttled",
    "idle",
    "unknown",
];

fn waiting(answers: &Answers, page: &mut Page) {
    let mut vms: Vec<(&str, u128)> = Vec::new();
    let vm_count = answers.vms.len();
    for vcpu in &answers.vcpus {
        let span = u128::from(vcpu.span_ns);
        match vms.iter_mut().find(|(vm, _)| *vm == vcpu.vm) {
            Some((_, sum)) => *sum += span,
            None => vms.push((&vcpu.vm, span)),
        }
    }
    vms.truncate(MOST_VCPUS);
    let waited = |vm: &str, cause: &str| -> u128 {
        let rows = answers.ready.iter();
        rows.filter(|row| row.vm == vm && row.cause == cause)
            .map(|row| u128::from(row.ns))
            .sum()
    };
    let parts = CAUSES.iter().enumerate().map(|(index, cause)| Part {
        name: cause_in_words(cause).to_owned(),
        color: match *cause {
            "idle" => Color::Halted,
            "unknown" => Color::Blocked,
            _ => Color::Nth(index),
        },
        values: vms
            .iter()
            .map(|(vm, span)| percent(waited(vm, cause), *span))
            .collect(),
    });
    let parts = visible(parts);
    if parts.is_empty() {
        let section = terminal::section(answers, Key::Ready, usize::MAX);
        page.text(section.map_or_else(String::new, |section| section.empty().to_owned()));
        return;
    }
    page.chart(
        format!(
            "What the CPU ran while a vCPU of the VM was ready{}",
            cut_note(vms.len(), vm_count)
        ),
        "Bars of the share of each VM's time in which its vCPUs waited for a CPU, by what it ran; the \
         table \"Why ready vCPUs did not run\" has the numbers and names.",
        Chart::Stacked {
            axis: Axis::plain("share of the time of the VM's vCPUs, %", " %"),
            rows: vms.iter().map(|(vm, _)| (*vm).to_owned()).collect(),
            parts,
            most: None,
        },
    );
}

/// On-CPU time outside the guest by reason, a part for each VM.
fn handling(answers: &Answers, page: &mut Page) {
    let of_vms = by_vm(&answers.vcpus);
    let mut totals: BTreeMap<&str, u128> = BTreeMap::new();
    for (_, _, reasons) in &of_vms {
        for (reason, _, ns) in reasons {
            *totals.entry(reason).or_default() += u128::from(*ns);
        }
    }
    let mut order: Vec<(&str, u128)> = totals.into_iter().filter(|row| row.1 > 0).collect();
    order.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let reason_count = order.len();
    order.truncate(MOST_REASONS);
    let span: u128 = answers.vcpus.iter().map(|v| u128::from(v.span_ns)).sum();
    let mut parts: Vec<Part> = Vec::new();
    for (index, (vm, _, reasons)) in of_vms.iter().enumerate() {
        let time = |reason: &str| {
            reasons
                .iter()
                .find(|row| row.0 == reason)
                .map_or(0, |row| row.2)
        };
        let values = order
            .iter()
            .map(|(reason, _)| percent(u128::from(time(reason)), span));
        let last = of_vms.len() > MOST_COLORS && index >= MOST_COLORS - 1;
        match parts.get_mut(MOST_COLORS - 1) {
            Some(others) if last => {
                (others.values.iter_mut().zip(values)).for_each(|(sum, value)| *sum += value);
            }
            _ => parts.push(Part {
                name: if last { "other VMs" } else { vm }.to_owned(),
                color: Color::Nth(index),
                values: values.collect(),
            }),
        }
    }
    page.chart(
        format!("Time on a CPU outside the guest, by exit reason{}", cut_note(order.len(), reason_count)),
        "Bars of the time that handling exits took, by reason, in percent of the time of all vCPUs; \
         the table \"Handling exits\" has the numbers.",
        Chart::Stacked {
            axis: Axis::plain("share of the time of all vCPUs, %", " %"),
            rows: order.iter().map(|(reason, _)| (*reason).to_owned()).collect(),
            parts,
            most: None,
        },
    );
}

/// The axis of a distribution.
fn log_axis(title: &str, times: Times) -> Axis {
    match times {
        Times::Ns => Axis::times(format!("{title}, logarithmic"), Scale::LogNs),
        Times::Ticks => Axis::times(format!("{title}, ticks, logarithmic"), Scale::LogTicks),
    }
}

/// How long exits took, by reason.
fn durations(answers: &Answers, page: &mut Page) {
    let rows = answers.exit_totals.iter().filter(|row| row.samples > 0);
    let rows = rows.map(|row| Distribution {
        name: row.reason.clone(),
        points: [row.p50_ns, row.p90_ns, row.p99_ns, row.p999_ns],
        count: (row.samples, "exit"),
    });
    Distributions {
        key: Key::ExitTotals,
        title: "From an exit to the next entry, sleep included, by reason, most time first",
        describes: "Percentiles of the time from an exit to the next entry by reason; the table \"Exits \
                    of all VMs\" has the numbers.",
        axis: "time of an exit",
        points: ["p50", "p90", "p99", "p99.9"],
        most: MOST_REASONS,
        rows: rows.collect(),
    }
    .chart(answers, page);
}

fn latencies(answers: &Answers, page: &mut Page) {
    let rows = answers.latencies.iter().filter(|row| row.count > 0);
    let rows = rows.map(|row| {
        let detail = match row.detail.as_str() {
            "" => String::new(),
            detail => format!(" ({detail})"),
        };
        Distribution {
            name: format!("{} {}{detail}", row.vm, latencies::say(&row.kind)),
            points: [row.p50_ns, row.p90_ns, row.p99_ns, row.max_ns],
            count: (row.count, "time"),
        }
    });
    Distributions {
        key: Key::Latency,
        title: "Percentiles of latencies",
        describes: "Percentiles of wakeup, IPI, timer and injection latencies of each VM; the table \
                    \"Latencies\" has the numbers.",
        axis: "latency",
        points: ["p50", "p90", "p99", "longest"],
        most: MOST_LATENCIES,
        rows: rows.collect(),
    }
    .chart(answers, page);
}

/// Percentiles of something, and of how many of what they are.
struct Distribution {
    name: String,
    points: [u64; 4],
    count: (u64, &'static str),
}

/// Distributions that are one chart.
struct Distributions {
    /// The table that has the numbers, or says why there are none.
    key: Key,
    title: &'static str,
    describes: &'static str,
    axis: &'static str,
    points: [&'static str; 4],
    /// The chart's rows; the table has all.
    most: usize,
    rows: Vec<Distribution>,
}

impl Distributions {
    fn chart(self, answers: &Answers, page: &mut Page) {
        if self.rows.is_empty() {
            let section = terminal::section(answers, self.key, usize::MAX);
            page.text(section.map_or_else(String::new, |section| section.empty().to_owned()));
            return;
        }
        let times = Times::of(&answers.source.clock_unit);
        let shown = self.rows.len().min(self.most);
        let row = |row: &Distribution| {
            let [p50, _, p99, _] = row.points;
            Range {
                name: row.name.clone(),
                points: row.points.map(|ns| ns as f64).to_vec(),
                says: format!(
                    "{}, p50 {}, p99 {}",
                    counted(row.count.0, row.count.1),
                    shown_time(times, p50),
                    shown_time(times, p99)
                ),
            }
        };
        page.chart(
            format!("{}{}", self.title, cut_note(shown, self.rows.len())),
            self.describes,
            Chart::Ranges {
                axis: log_axis(self.axis, times),
                points: self.points.to_vec(),
                rows: self.rows.iter().take(self.most).map(row).collect(),
            },
        );
    }
}

fn shown_time(times: Times, ns: u64) -> String {
    times.show(ns).replace("  s", " s")
}

fn source(answers: &Answers) -> Table {
    let source = &answers.source;
    let mut table = Table::new("", &["", ""], 2);
    let mut row = |name: &str, value: String| table.row([Cell::from(name), Cell::from(value)]);
    row("file", source.path.clone());
    let compression = source.compression.as_ref();
    row(
        "format",
        match compression {
            Some(compression) => format!("{}, {compression}", source.format),
            None => source.format.clone(),
        },
    );
    row("clock", format!("{} ({})", source.clock, source.clock_unit));
    row(
        "host",
        source.uname.clone().unwrap_or_else(|| "?".to_owned()),
    );
    row("CPUs", source.cpus.to_string());
    row(
        "span",
        shown_time(Times::of(&source.clock_unit), source.span_ns),
    );
    row("events", count(source.events));
    row("events lost", count(source.lost));
    row("gaps of unknown loss", count(source.lost_gaps));
    row("events out of order", count(source.out_of_order));
    row(
        "read whole",
        if source.partial { "no" } else { "yes" }.to_owned(),
    );
    table
}
