//! Exits and what `perf kvm stat` counts.

use stealtime_analysis::Answers;
use stealtime_analysis::answers::KeyRow;

use super::grid::{Grid, number, text};
use super::{Section, nothing};
use crate::units::{Times, count, percent};

const EXPLAIN: &str = "From the exit to the next entry, sleep and waiting for a CPU included, as \
                       `perf kvm stat` counts. Shares are of all rows.";

/// By VM and reason.
pub(super) fn by_vm(answers: &Answers, times: Times) -> Section {
    Section::new(
        "Exits",
        grid(&answers.exits, "exit reason", times),
        nothing(answers, "exit", &["kvm:kvm_exit", "kvm:kvm_entry"]),
    )
    .explained(EXPLAIN)
    .summed("of exits")
}

/// By reason.
pub(super) fn totals(answers: &Answers, times: Times) -> Section {
    Section::new(
        "Exits of all VMs",
        grid(&answers.exit_totals, "exit reason", times),
        nothing(answers, "exit", &["kvm:kvm_exit", "kvm:kvm_entry"]),
    )
    .explained(EXPLAIN)
    .summed("of exits")
}

/// MSR accesses.
pub(super) fn msr(answers: &Answers, times: Times) -> Section {
    Section::new(
        "MSR accesses",
        grid(&answers.msr, "MSR", times),
        nothing(answers, "MSR access", &["kvm:kvm_msr"]),
    )
    .explained("Number and R (read) or W (write); times as `perf kvm stat --event=msr`.")
}

/// Port I/O.
pub(super) fn ioport(answers: &Answers, times: Times) -> Section {
    Section::new(
        "Port I/O",
        grid(&answers.ioport, "port", times),
        nothing(answers, "port I/O", &["kvm:kvm_pio"]),
    )
    .explained("Port and direction; times as `perf kvm stat --event=ioport`.")
}

/// MMIO.
pub(super) fn mmio(answers: &Answers, times: Times) -> Section {
    Section::new(
        "MMIO",
        grid(&answers.mmio, "address", times),
        nothing(answers, "MMIO", &["kvm:kvm_mmio"]),
    )
    .explained("Guest physical address and direction; times as `perf kvm stat --event=mmio`.")
}

/// Rows of one VM together, VMs by name; within a VM the order stays.
fn by_vm_in_order(rows: &[KeyRow]) -> Vec<&KeyRow> {
    let mut rows: Vec<&KeyRow> = rows.iter().filter(|row| row.samples > 0).collect();
    // A stable sort.
    rows.sort_by_key(|row| &row.vm);
    rows
}

fn grid(rows: &[KeyRow], key: &'static str, times: Times) -> Grid {
    let one_vm = rows.iter().all(|row| row.vm == "*");
    let mut columns = vec![
        text(key),
        number("samples"),
        number("%"),
        number("time"),
        number("%"),
        number("mean"),
        number("+-"),
        number("p50"),
        number("p99"),
        number("max"),
    ];
    if !one_vm {
        columns.insert(0, text("VM"));
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
        grid.weigh(row.time_ns);
    }
    grid
}
