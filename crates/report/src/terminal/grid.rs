//! Aligned columns that fit the width.

use crate::escape;

use super::Screen;

/// Blanks between columns.
const GAP: usize = 2;
/// Columns of a terminal below which no text is cut: fewer leave no part of a name to recognize.
const NARROWEST: usize = 6;

/// On which side a column is ragged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Text: starts at the left, may be cut.
    Text,
    /// Numbers: end at the right, never cut.
    Number,
}

/// The head of a column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) side: Side,
}

/// A column of text.
pub(super) const fn text(title: &'static str) -> Column {
    let side = Side::Text;
    Column { title, side }
}

/// A column of numbers.
pub(super) const fn number(title: &'static str) -> Column {
    let side = Side::Number;
    Column { title, side }
}

/// A table being filled.
#[derive(Debug)]
pub(super) struct Grid {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    /// Of rows that have one, in ns: which rows stay where there are too many.
    weights: Vec<u64>,
}

impl Grid {
    /// A table with these columns.
    pub(super) fn new(columns: &[Column]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Adds a row, as many cells as columns. Text out of a trace is escaped here.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let escaped = |cell: String| escape::terminal(&cell).into_owned();
        self.rows.push(cells.into_iter().map(escaped).collect());
    }

    /// The weight of the row that was added last, in ns.
    pub(super) fn weigh(&mut self, ns: u64) {
        self.weights.push(ns);
    }

    /// Keeps at most so many rows: the heaviest, or the first if rows have no weight. Returns how many
    /// are left out, and the sum of their weights.
    pub(super) fn keep(&mut self, limit: usize) -> (usize, u64) {
        let omitted = self.rows.len().saturating_sub(limit);
        if omitted == 0 {
            return (0, 0);
        }
        if self.weights.len() != self.rows.len() {
            self.rows.truncate(limit);
            return (omitted, 0);
        }
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_by_key(|&row| (std::cmp::Reverse(self.weights[row]), row));
        let mut is_kept = vec![false; self.rows.len()];
        order
            .iter()
            .take(limit)
            .for_each(|&row| is_kept[row] = true);
        let lost = order.iter().skip(limit).map(|&row| self.weights[row]);
        let sum = lost.fold(0, u64::saturating_add);
        let mut marks = is_kept.iter();
        self.rows.retain(|_| marks.next().copied().unwrap_or(false));
        (omitted, sum)
    }

    pub(super) fn columns(&self) -> &[Column] {
        &self.columns
    }

    pub(super) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Whether there is no row.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Appends the table, indented by two.
    pub(super) fn render(&self, screen: &mut Screen) {
        let widths = self.widths(screen.style.width.saturating_sub(GAP));
        let titles: Vec<_> = self.columns.iter().map(|column| column.title).collect();
        let head = self.line(&titles, &widths);
        screen.line(&format!("  {}", screen.style.dim(&head)));
        for row in &self.rows {
            let cells: Vec<_> = row.iter().map(String::as_str).collect();
            screen.line(&format!("  {}", self.line(&cells, &widths)));
        }
    }

    /// The widths: what the cells need, and less for the widest text until the line fits. A name that is
    /// cut is still of use, a number is not.
    fn widths(&self, width: usize) -> Vec<usize> {
        let mut widths: Vec<_> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, column)| {
                let cells = self.rows.iter().filter_map(|row| row.get(i));
                cells
                    .map(|cell| escape::width(cell))
                    .chain([escape::width(column.title)])
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
                .filter(|(column, width)| column.side == Side::Text && **width > NARROWEST)
                .max_by_key(|(_, width)| **width);
            match widest {
                Some((_, widest)) if total > width => *widest -= 1,
                _ => return widths,
            }
        }
    }

    fn line(&self, cells: &[&str], widths: &[usize]) -> String {
        let mut line = String::new();
        for ((column, cell), &width) in self.columns.iter().zip(cells).zip(widths) {
            let cell = match column.side {
                Side::Text => escape::fit(cell, width),
                Side::Number => (*cell).into(),
            };
            let blanks = width.saturating_sub(escape::width(&cell));
            if column.side == Side::Number {
                line.extend(std::iter::repeat_n(' ', blanks));
            }
            line.push_str(&cell);
            if column.side == Side::Text {
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
    use super::super::Style;
    use super::*;

    const PLAIN: Style = Style {
        color: false,
        width: 30,
    };

    #[test]
    fn text_is_cut_and_numbers_are_not() {
        let mut grid = Grid::new(&[text("VM"), number("time")]);
        grid.row([
            "a-virtual-machine-with-a-long-name".into(),
            "1.23 us".into(),
        ]);
        grid.row(["b".into(), "147 us".into()]);
        let mut screen = Screen::new(PLAIN);
        grid.render(&mut screen);
        let output = screen.text;
        let expected = "  \
            VM                      time\n  \
            a-virtual-machine…   1.23 us\n  \
            b                     147 us\n";
        // The narrowest of both: 28 columns behind the indent.
        assert_eq!(output.lines().count(), 3);
        assert!(
            output.lines().all(|line| escape::width(line) <= 30),
            "{output}"
        );
        assert_eq!(
            output.replace(' ', ""),
            expected.replace("e…", "e-…").replace(' ', "")
        );
    }

    #[test]
    fn what_a_name_holds_does_not_reach_the_terminal() {
        let mut grid = Grid::new(&[text("task")]);
        grid.row(["\u{1b}[2J".into()]);
        let mut screen = Screen::new(PLAIN);
        grid.render(&mut screen);
        let output = screen.text;
        assert_eq!(output, "  task\n  \\u{1b}[2J\n");
    }
}
