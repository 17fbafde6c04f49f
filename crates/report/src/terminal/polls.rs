//! Halt polling.

use stealtime_analysis::Answers;

use super::grid::{Grid, number, text};
use super::{Section, nothing};
use crate::units::{Times, count, count_or_dash};

pub(super) fn section(answers: &Answers, times: Times) -> Section {
    let mut grid = Grid::new(&[
        text("VM"),
        number("halts"),
        number("woken while polling"),
        number("time"),
        number("polled in vain"),
        number("time"),
        number("grown"),
        number("shrunk"),
    ]);
    for row in answers.halt_polls.iter().filter(|row| row.halts > 0) {
        grid.row([
            row.vm.clone(),
            count(row.halts),
            count_or_dash(row.poll_success),
            times.show_or_dash(row.poll_success_ns),
            count_or_dash(row.poll_fail),
            times.show_or_dash(row.poll_fail_ns),
            count_or_dash(row.grow),
            count_or_dash(row.shrink),
        ]);
    }
    Section::new(
        "Halt polling",
        grid,
        nothing(answers, "halt", &["kvm:kvm_vcpu_wakeup"]),
    )
}
