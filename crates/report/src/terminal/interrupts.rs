//! Host interrupts that hit a running guest.

use stealtime_analysis::Answers;

use super::grid::{Grid, number, text};
use super::{Section, nothing};
use crate::units::count;

pub(super) fn section(answers: &Answers) -> Section {
    let mut grid = Grid::new(&[
        text("VM"),
        number("vector"),
        text("interrupt"),
        number("count"),
    ]);
    for row in answers.interrupts.iter().filter(|row| row.count > 0) {
        let vector = row.vector.map(|vector| format!("{vector:#04x}"));
        grid.row([
            row.vm.clone(),
            vector.unwrap_or_else(|| "?".to_owned()),
            row.name.clone(),
            count(row.count),
        ]);
    }
    Section::new(
        "Host interrupts that hit a running guest",
        grid,
        nothing(answers, "such interrupt", &["kvm:kvm_exit"]),
    )
}
