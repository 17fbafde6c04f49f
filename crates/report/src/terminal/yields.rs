//! Spinning and directed yield.

use stealtime_analysis::Answers;
use stealtime_analysis::answers::Yields;

use super::Section;
use super::grid::{Grid, number, text};
use crate::units::count_or_dash;

pub(super) fn section(answers: &Answers) -> Section {
    let mut grid = Grid::new(&[
        text("VM"),
        number("PAUSE exits"),
        number("to own VM"),
        number("elsewhere"),
        number("no switch"),
        number("window up"),
        number("down"),
        number("largest"),
    ]);
    let spun = |row: &&Yields| {
        row.pause_exits | row.ple_grow | row.ple_shrink | u64::from(row.ple_window_max) != 0
    };
    for row in answers.yields.iter().filter(spun) {
        let switched = row
            .switched_to_same_vm
            .saturating_add(row.switched_elsewhere);
        grid.row([
            row.vm.clone(),
            count_or_dash(row.pause_exits),
            count_or_dash(row.switched_to_same_vm),
            count_or_dash(row.switched_elsewhere),
            count_or_dash(row.pause_exits.saturating_sub(switched)),
            count_or_dash(row.ple_grow),
            count_or_dash(row.ple_shrink),
            count_or_dash(row.ple_window_max.into()),
        ]);
    }
    Section::new(
        "Spinning and directed yield",
        grid,
        "No vCPU left its guest by a PAUSE exit, and no PLE window changed.",
    )
    .explained(
        "What the CPU ran after a PAUSE exit and before the next entry; changes of the \
         PLE window and its largest value.",
    )
}
