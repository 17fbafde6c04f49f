//! Aligned columns that fit the width.

use crate::escape;

use super::Style;

/// Two blanks between columns.
const GAP: usize = 2;
/// No column of text is cut below this.
const NARROWEST: usize = 6;

/// On which side a column is ragged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Text: starts at the left, may be cut.
    Text,
    /// Numbers: end at the right, never cut.
    Number,
}

/// A table being filled.
#[derive(Debug)]
pub(super) struct Grid {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// A table with these columns.
    pub(super) fn new(columns: &[(&'static str, Side)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, as many cells as columns. Text out of a trace is escaped here.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let escaped = |cell: String| escape::terminal(&cell).into_owned();
        self.rows.push(cells.into_iter().map(escaped).collect());
    }

    pub(super) fn columns(&self) -> &[(&'static str, Side)] {
        &self.columns
    }

    pub(super) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Whether there is no row.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Appends the table to `out`, indented by two.
    pub(super) fn render(&self, style: Style, out: &mut String) {
        let widths = self.widths(style.width.saturating_sub(GAP));
        let titles: Vec<_> = self.columns.iter().map(|(title, _)| *title).collect();
        let head = self.line(&titles, &widths);
        out.push_str("  ");
        out.push_str(&style.dim(&head));
        out.push('\n');
        for row in &self.rows {
            let cells: Vec<_> = row.iter().map(String::as_str).collect();
            out.push_str("  ");
            out.push_str(&self.line(&cells, &widths));
            out.push('\n');
        }
    }

    /// The widths: what the cells need, and less for the widest text until the line fits.
    fn widths(&self, width: usize) -> Vec<usize> {
        let mut widths: Vec<_> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, (title, _))| {
                let cells = self.rows.iter().filter_map(|row| row.get(i));
                cells
                    .map(|cell| escape::width(cell))
                    .chain([escape::width(title)])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        loop {
            let total = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
            let widest = self
                .columns
                .iter()
                .zip(&mut widths)
                .filter(|((_, side), width)| *side == Side::Text && **width > NARROWEST)
                .max_by_key(|(_, width)| **width);
            match widest {
                Some((_, widest)) if total > width => *widest -= 1,
                _ => return widths,
            }
        }
    }

    fn line(&self, cells: &[&str], widths: &[usize]) -> String {
        let mut line = String::new();
        for (((_, side), cell), &width) in self.columns.iter().zip(cells).zip(widths) {
            let cell = match side {
                Side::Text => escape::fit(cell, width),
                Side::Number => (*cell).into(),
            };
            let blanks = width.saturating_sub(escape::width(&cell));
            if *side == Side::Number {
                line.extend(std::iter::repeat_n(' ', blanks));
            }
            line.push_str(&cell);
            if *side == Side::Text {
                line.extend(std::iter::repeat_n(' ', blanks));
            }
            line.extend(std::iter::repeat_n(' ', GAP));
        }
        line.truncate(line.trim_end().len());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style {
        color: false,
        width: 30,
    };

    #[test]
    fn text_is_cut_and_numbers_are_not() {
        let mut grid = Grid::new(&[("VM", Side::Text), ("time", Side::Number)]);
        grid.row([
            "a-virtual-machine-with-a-long-name".into(),
            "1.23 us".into(),
        ]);
        grid.row(["b".into(), "147 us".into()]);
        let mut out = String::new();
        grid.render(PLAIN, &mut out);
        let expected = "  \
            VM                      time\n  \
            a-virtual-machine…   1.23 us\n  \
            b                     147 us\n";
        // The narrowest of both: 28 columns behind the indent.
        assert_eq!(out.lines().count(), 3);
        assert!(out.lines().all(|line| escape::width(line) <= 30), "{out}");
        assert_eq!(
            out.replace(' ', ""),
            expected.replace("e…", "e-…").replace(' ', "")
        );
    }

    #[test]
    fn what_a_name_holds_does_not_reach_the_terminal() {
        let mut grid = Grid::new(&[("task", Side::Text)]);
        grid.row(["\u{1b}[2J".into()]);
        let mut out = String::new();
        grid.render(PLAIN, &mut out);
        assert_eq!(out, "  task\n  \\u{1b}[2J\n");
    }
}
