//! Charts of what an operator looks at first: VMs and CPUs over time, and the states of whole VMs.

use stealtime_analysis::Answers;
use stealtime_analysis::answers::VmState;

use super::chart::{cut_note, visible};
use super::{Axis, Chart, Color, Page, Part, Scale};
use crate::units::Times;

/// Rows of a chart, as many as are readable.
const MOST_ROWS: usize = 64;

/// Adds the section.
pub(super) fn charts(answers: &Answers, page: &mut Page) {
    if answers.vm_states.is_empty() {
        return;
    }
    page.section("Over time");
    steal(answers, page);
    cpus(answers, page);
    page.section("Whole VMs");
    states(answers, page);
}

fn axis(answers: &Answers) -> Axis {
    match Times::of(&answers.source.clock_unit) {
        Times::Ns => Axis::times("time since the first event", Scale::Ns),
        Times::Ticks => Axis::plain("ticks since the first event", " tk"),
    }
}

/// Shares of a bucket's time in percent; `parallel` vCPUs or CPUs have that time each.
fn shares(values: &[u64], width: u64, parallel: u32) -> Vec<f64> {
    let whole = width as f64 * f64::from(parallel.max(1));
    let share = |ns: &u64| (*ns as f64 / whole * 1000.0).round() / 10.0;
    values.iter().map(share).collect()
}

/// Average numbers of things that last, over a bucket's time.
fn means(values: &[u64], width: u64) -> Vec<f64> {
    let mean = |ns: &u64| (*ns as f64 / width as f64 * 1000.0).round() / 1000.0;
    values.iter().map(mean).collect()
}

/// The VMs with the most steal, in their order.
fn worst(answers: &Answers) -> Vec<usize> {
    let vms = &answers.over_time.vms;
    let stolen = |index: usize| {
        vms[index]
            .steal_ns
            .iter()
            .fold(0_u64, |a, b| a.saturating_add(*b))
    };
    let mut order: Vec<usize> = (0..vms.len()).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(stolen(index)), index));
    order.truncate(MOST_ROWS);
    order.sort_unstable();
    order
}

fn steal(answers: &Answers, page: &mut Page) {
    let over_time = &answers.over_time;
    let rows = worst(answers);
    let vms = rows.iter().map(|&index| &over_time.vms[index]);
    let cells = vms
        .clone()
        .map(|vm| shares(&vm.steal_ns, over_time.width_ns, vm.vcpus));
    page.chart(
        format!(
            "Steal of each VM{}",
            cut_note(rows.len(), over_time.vms.len())
        ),
        "A row for each VM, darker where its vCPUs wait for a CPU for a larger share of the time; the table \
         \"Over time\" has averages.",
        Chart::Heat {
            axis: axis(answers),
            width: over_time.width_ns as f64,
            color: Color::Preempted,
            what: "waiting for a CPU",
            unit: " %",
            rows: vms.map(|vm| vm.vm.clone()).collect(),
            cells: cells.collect(),
        },
    );
}

fn cpus(answers: &Answers, page: &mut Page) {
    let over_time = &answers.over_time;
    let shown = over_time.cpus.len().min(MOST_ROWS);
    let cpus = over_time.cpus.iter().take(MOST_ROWS);
    let note = cut_note(shown, over_time.cpus.len());
    let rows: Vec<String> = cpus.clone().map(|cpu| format!("CPU {}", cpu.cpu)).collect();
    let busy = cpus
        .clone()
        .map(|cpu| shares(&cpu.busy_ns, over_time.width_ns, 1));
    page.chart(
        format!("Use of each CPU{note}"),
        "A row for each CPU of the host, darker where it runs tasks for a larger share of the time; the \
         table \"CPUs of the host\" has the numbers.",
        Chart::Heat {
            axis: axis(answers),
            width: over_time.width_ns as f64,
            color: Color::Guest,
            what: "busy",
            unit: " %",
            rows: rows.clone(),
            cells: busy.collect(),
        },
    );
    let waiting = cpus.map(|cpu| means(&cpu.waiting_ns, over_time.width_ns));
    let waiting: Vec<Vec<f64>> = waiting.collect();
    if waiting.iter().flatten().any(|mean| *mean > 0.0) {
        page.chart(
            format!("vCPUs that wait for each CPU{note}"),
            "A row for each CPU of the host, darker where more vCPUs wait for it on average.",
            Chart::Heat {
                axis: axis(answers),
                width: over_time.width_ns as f64,
                color: Color::Preempted,
                what: "waiting",
                unit: " vCPUs",
                rows,
                cells: waiting,
            },
        );
    }
}

/// A state of a VM: its name, its color, and how often it was seen.
type State = (&'static str, Color, fn(&VmState) -> u64);

const STATES: [State; 6] = [
    ("all vCPUs run", Color::Guest, |vm| vm.full_run),
    ("some run, others sleep", Color::Poll, |vm| vm.partial_run),
    (
        "some run while others wait (hazard)",
        Color::Preempted,
        |vm| vm.concurrency_hazard,
    ),
    ("all wait", Color::Spin, |vm| vm.full_contention),
    ("some wait, others sleep", Color::Waking, |vm| {
        vm.partial_contention
    }),
    ("all sleep", Color::Halted, |vm| vm.blocked),
];

fn states(answers: &Answers, page: &mut Page) {
    let rows = worst(answers);
    let vms: Vec<&VmState> = rows
        .iter()
        .filter_map(|&index| answers.vm_states.get(index))
        .collect();
    let share = |vm: &VmState, count: u64| {
        let known = vm.instants.saturating_sub(vm.unknown);
        count as f64 / known.max(1) as f64 * 100.0
    };
    let parts = STATES.iter().map(|(name, color, count)| Part {
        name: (*name).to_owned(),
        color: *color,
        values: vms.iter().map(|vm| share(vm, count(vm))).collect(),
    });
    page.chart(
        format!(
            "vCPUs of each VM together{}",
            cut_note(vms.len(), answers.vm_states.len())
        ),
        "Bars of the share of time in which all, some or none of a VM's vCPUs run, wait or sleep; the table \
         \"Whole VMs\" has the numbers.",
        Chart::Stacked {
            axis: Axis::plain("share of the time, %", " %"),
            rows: vms.iter().map(|vm| vm.vm.clone()).collect(),
            parts: visible(parts),
            most: Some(100.0),
        },
    );
}
