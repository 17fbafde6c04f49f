//! Counts of tracepoints.

use stealtime_analysis::Answers;

use super::Section;
use super::grid::{Grid, number, text};
use crate::units::count;

pub(super) fn section(answers: &Answers) -> Section {
    let mut grid = Grid::new(&[text("tracepoint"), number("count")]);
    for event in &answers.events {
        let name = match &event.today {
            Some(today) => format!("{} (today {today})", event.name),
            None => event.name.clone(),
        };
        grid.row([name, count(event.count)]);
    }
    Section::new("Events", grid, "No event in this selection.")
}
