//! What a chart shows, as data; `assets/page.js` draws it.

use serde::Serialize;
use stealtime_lab::metric::Unit;
use stealtime_lab::stats::{Difference, Verdict};

/// What a number means to whoever reads it. Shown as a color, a shape and in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// It went the right way.
    Better,
    /// It went the wrong way.
    Worse,
    /// It may be chance.
    Noise,
    /// Neither good nor bad, or too little to matter.
    Plain,
}

impl Mark {
    /// What a difference of a metric means; one that is too small to matter is plain.
    #[must_use]
    pub fn difference(difference: &Difference, unit: Unit) -> Self {
        Self::of(difference.verdict, difference.is_relevant(unit))
    }

    /// The same of a verdict, and whether the difference is large enough to matter.
    #[must_use]
    pub const fn of(verdict: Verdict, is_relevant: bool) -> Self {
        match verdict {
            Verdict::Better | Verdict::Worse if !is_relevant => Self::Plain,
            Verdict::Better => Self::Better,
            Verdict::Worse => Self::Worse,
            Verdict::Same | Verdict::WithinNoise | Verdict::Unknown => Self::Noise,
            Verdict::Different => Self::Plain,
        }
    }
}

/// How numbers along an axis are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// As they are, with a unit behind them.
    Plain,
    /// Times in ns, in the unit that fits.
    Ns,
    /// Times in ns on a logarithmic axis.
    LogNs,
    /// Ticks of a clock without a known rate, on a logarithmic axis.
    LogTicks,
}

/// An axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Axis {
    /// What it measures, with the unit.
    pub title: String,
    /// The unit behind a number, if it is plain (` %`).
    pub unit: String,
    /// How numbers are written.
    pub scale: Scale,
}

impl Axis {
    /// An axis of plain numbers.
    #[must_use]
    pub fn plain(title: impl Into<String>, unit: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            unit: unit.into(),
            scale: Scale::Plain,
        }
    }

    /// An axis of times in ns.
    #[must_use]
    pub fn times(title: impl Into<String>, scale: Scale) -> Self {
        Self {
            title: title.into(),
            unit: String::new(),
            scale,
        }
    }
}

/// A color of the page's palette, which has one of each for light and dark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Color {
    /// Work in the guest.
    Guest,
    /// Spinning.
    Spin,
    /// Handling exits.
    Exits,
    /// Polling.
    Poll,
    /// Runnable, but taken off the CPU.
    Preempted,
    /// Woken, but not yet running.
    Waking,
    /// Asleep by a halt.
    Halted,
    /// Asleep otherwise.
    Blocked,
    /// The n-th of the palette for things without a color of their own, which repeats after the eighth.
    Nth(usize),
}

/// A value with its 95 % interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The variant, VM or value that it describes.
    pub name: String,
    /// The value; not a number if there is none.
    pub value: f64,
    /// Half the width of the interval; `None` of a single run.
    pub half_width: Option<f64>,
    /// What it is to be held against, of a published figure.
    pub published: Option<f64>,
    /// What it means.
    pub mark: Mark,
    /// Value and meaning in words.
    pub says: String,
}

/// A part of stacked bars.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// What it is.
    pub name: String,
    /// Its color.
    pub color: Color,
    /// Its size in each bar.
    pub values: Vec<f64>,
}

/// The parts that show in a bar.
pub(super) fn visible(parts: impl IntoIterator<Item = Part>) -> Vec<Part> {
    let parts = parts.into_iter();
    parts
        .filter(|part| part.values.iter().any(|value| *value > 0.0))
        .collect()
}

/// A distribution by some of its percentiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Range {
    /// Of what.
    pub name: String,
    /// The percentiles, lowest first, as many as the chart names.
    pub points: Vec<f64>,
    /// The same in words.
    pub says: String,
}

/// A kind of dots, one in each row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dots {
    /// What they are.
    pub name: String,
    /// Their color.
    pub color: Color,
    /// By row; `None` where there is none.
    pub values: Vec<Option<f64>>,
}

/// ` (the first 12 of 30)` for the title of a chart that leaves rows out, otherwise nothing.
pub(super) fn cut_note(shown: usize, total: usize) -> String {
    match shown < total {
        true => format!(" (the first {shown} of {total})"),
        false => String::new(),
    }
}

/// A chart. Rows go from top to bottom.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Chart {
    /// Values with their intervals; 0 is always on the axis.
    Intervals {
        /// The values' axis.
        axis: Axis,
        /// Top to bottom.
        rows: Vec<Interval>,
    },
    /// Values with their intervals, and the limit that they are held against.
    Limited {
        /// The values' axis.
        axis: Axis,
        /// The limit: a line through all rows.
        limit: f64,
        /// Top to bottom.
        rows: Vec<Interval>,
    },
    /// Bars of parts.
    Stacked {
        /// The parts' axis.
        axis: Axis,
        /// Names of the bars.
        rows: Vec<String>,
        /// Parts, from the left.
        parts: Vec<Part>,
        /// Where the axis ends; without it where the longest bar does.
        most: Option<f64>,
    },
    /// Distributions.
    Ranges {
        /// The percentiles' axis.
        axis: Axis,
        /// Names of the percentiles.
        points: Vec<&'static str>,
        /// Top to bottom.
        rows: Vec<Range>,
    },
    /// Dots, several a row; 0 is always on the axis.
    Dots {
        /// The dots' axis.
        axis: Axis,
        /// Names of the rows.
        rows: Vec<String>,
        /// Dots of each kind.
        dots: Vec<Dots>,
    },
    /// Shares over time: a row of cells for each thing.
    Heat {
        /// The axis of time.
        axis: Axis,
        /// Width of a cell, as the axis counts.
        width: f64,
        /// Color of a full cell.
        color: Color,
        /// What the shares are of.
        what: &'static str,
        /// The unit behind a value (` %`).
        unit: &'static str,
        /// Names of the rows.
        rows: Vec<String>,
        /// Values of each row, from the first event on.
        cells: Vec<Vec<f64>>,
    },
}

impl Chart {
    /// How many rows it has.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Intervals { rows, .. } | Self::Limited { rows, .. } => rows.len(),
            Self::Stacked { rows, .. } | Self::Dots { rows, .. } | Self::Heat { rows, .. } => {
                rows.len()
            }
            Self::Ranges { rows, .. } => rows.len(),
        }
    }
}
