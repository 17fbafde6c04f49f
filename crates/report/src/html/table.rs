//! Tables of a page.

use serde::Serialize;
use stealtime_lab::metric::Unit;
use stealtime_lab::stats::Difference;

use super::Mark;
use crate::terminal;
use crate::terminal::compare::number::difference;

/// A cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cell {
    /// What it says.
    pub text: String,
    /// A second line.
    pub below: String,
    /// What that means.
    pub mark: Option<Mark>,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }
}

impl Cell {
    /// A text, and below it a difference.
    pub(super) fn compared(text: String, change: Option<&Difference>, unit: Unit) -> Self {
        Self {
            text,
            below: change.map_or_else(String::new, |change| difference(unit, change)),
            mark: change.map(|change| Mark::difference(change, unit)),
        }
    }
}

/// A column's head.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Head {
    title: String,
    /// Ends at the right.
    is_number: bool,
}

/// A table; a click on a head sorts it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Table {
    title: String,
    explain: String,
    heads: Vec<Head>,
    rows: Vec<Vec<Cell>>,
    /// What stands instead of no rows.
    empty: String,
    foot: String,
    /// Shown only when opened.
    closed: bool,
}

impl Table {
    /// A table with `texts` columns of text first; the others are numbers.
    #[must_use]
    pub fn new(title: impl Into<String>, heads: &[&str], texts: usize) -> Self {
        let head = |(index, title): (usize, &&str)| Head {
            title: (*title).to_owned(),
            is_number: index >= texts,
        };
        Self {
            title: title.into(),
            heads: heads.iter().enumerate().map(head).collect(),
            ..Self::default()
        }
    }

    /// Makes the last `count` columns text too.
    #[must_use]
    pub fn ending_in_words(mut self, count: usize) -> Self {
        for head in self.heads.iter_mut().rev().take(count) {
            head.is_number = false;
        }
        self
    }

    /// Says what the numbers are.
    #[must_use]
    pub fn explained(mut self, explain: impl Into<String>) -> Self {
        self.explain = explain.into();
        self
    }

    /// Says something below.
    #[must_use]
    pub fn with_foot(mut self, foot: impl Into<String>) -> Self {
        self.foot = foot.into();
        self
    }

    /// Adds a row, as many cells as heads.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The same table as on a terminal.
    pub(super) fn of_terminal(section: &terminal::Section) -> Self {
        let heads = section.heads().map(|(title, is_number)| Head {
            title: title.to_owned(),
            is_number,
        });
        let rows = section.rows().iter();
        Self {
            title: section.title().to_owned(),
            explain: section.explain().to_owned(),
            heads: heads.collect(),
            // Times have units of two columns there, so that they stand under one another.
            rows: rows
                .map(|row| {
                    row.iter()
                        .map(|cell| cell.replace("  s", " s").into())
                        .collect()
                })
                .collect(),
            empty: section.empty().to_owned(),
            foot: section.foot_with_command(),
            closed: false,
        }
    }
}
