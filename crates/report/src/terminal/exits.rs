//! Exits and what `perf kvm stat` counts.

use stealtime_analysis::Answers;
use stealtime_analysis::answers::KeyRow;

use super::grid::{Grid, Side};
use super::{Section, nothing};
use crate::units::{Times, count, percent};

const EXPLAIN: &str = "From the exit to the next entry, sleep and waiting for a CPU included, as \
                       `perf kvm stat` counts. Shares are of all rows.";

/// By VM and reason.
pub(super) fn by_vm(answers: &Answers, times: Times) -> Section {
    Section {
        title: "Exits".to_owned(),
        explain: EXPLAIN,
        grid: grid(&answers.exits, "exit reason", times),
        empty: nothing(answers, "exit", &["kvm:kvm_exit", "kvm:kvm_entry"]),
        foot: String::new(),
    }
}

/// By reason.
pub(super) fn totals(answers: &Answers, times: Times) -> Section {
    Section {
        title: "Exits of all VMs".to_owned(),
        explain: EXPLAIN,
        grid: grid(&answers.exit_totals, "exit reason", times),
        empty: nothing(answers, "exit", &["kvm:kvm_exit", "kvm:kvm_entry"]),
        foot: String::new(),
    }
}

/// MSR accesses.
pub(super) fn msr(answers: &Answers, times: Times) -> Section {
    Section {
        title: "MSR accesses".to_owned(),
        explain: "Number and R (read) or W (write); times as `perf kvm stat --event=msr`.",
        grid: grid(&answers.msr, "MSR", times),
        empty: nothing(answers, "MSR access", &["kvm:kvm_msr"]),
        foot: String::new(),
    }
}

/// Port I/O.
pub(super) fn ioport(answers: &Answers, times: Times) -> Section {
    Section {
        title: "Port I/O".to_owned(),
        explain: "Port and direction; times as `perf kvm stat --event=ioport`.",
        grid: grid(&answers.ioport, "port", times),
        empty: nothing(answers, "port I/O", &["kvm:kvm_pio"]),
        foot: String::new(),
    }
}

/// MMIO.
pub(super) fn mmio(answers: &Answers, times: Times) -> Section {
    Section {
        title: "MMIO".to_owned(),
        explain: "Guest physical address and direction; times as `perf kvm stat --event=mmio`.",
        grid: grid(&answers.mmio, "address", times),
        empty: nothing(answers, "MMIO", &["kvm:kvm_mmio"]),
        foot: String::new(),
    }
}

/// Rows of one VM together, VMs by name; within a VM the order stays.
fn by_vm_in_order(rows: &[KeyRow]) -> Vec<&KeyRow> {
    let mut vms: Vec<&str> = Vec::new();
    for row in rows {
        if !vms.contains(&row.vm.as_str()) {
            vms.push(&row.vm);
        }
    }
    vms.sort_unstable();
    let of_vm = |vm| {
        rows.iter()
            .filter(move |row| row.vm == vm && row.samples > 0)
    };
    vms.into_iter().flat_map(of_vm).collect()
}

fn grid(rows: &[KeyRow], key: &'static str, times: Times) -> Grid {
    let one_vm = rows.iter().all(|row| row.vm == "*");
    let mut columns = vec![
        (key, Side::Text),
        ("samples", Side::Number),
        ("%", Side::Number),
        ("time", Side::Number),
        ("%", Side::Number),
        ("mean", Side::Number),
        ("+-", Side::Number),
        ("p50", Side::Number),
        ("p99", Side::Number),
        ("max", Side::Number),
    ];
    if !one_vm {
        columns.insert(0, ("VM", Side::Text));
    }
    let mut grid = Grid::new(&columns);
    for row in by_vm_in_order(rows) {
        let mut cells = vec![
            row.reason.clone(),
            count(row.samples),
            percent(row.samples_percent),
            times.show(row.time_ns),
            percent(row.time_percent),
            times.show_mean(row.avg_ns),
            percent(row.stddev_percent),
            times.show(row.p50_ns),
            times.show(row.p99_ns),
            times.show(row.max_ns),
        ];
        if !one_vm {
            cells.insert(0, row.vm.clone());
        }
        grid.row(cells);
    }
    grid
}
