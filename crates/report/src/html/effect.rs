//! What something changes in a metric, as a chart.

use stealtime_lab::metric::{Better, Unit};
use stealtime_lab::stats::Difference;

use super::chart::cut_note;
use super::{Axis, Chart, Interval, Mark, Page, Scale};
use crate::terminal::compare::number::difference;

/// Rows of a chart: its bars stay readable. The tables have all.
const MOST_ROWS: usize = 60;

/// Changes of one metric against the first of what is compared.
pub(super) struct Effect<'e> {
    /// The metric and its subject.
    pub(super) what: String,
    /// What the others are compared with.
    pub(super) first: &'e str,
    pub(super) unit: Unit,
    pub(super) better: Better,
    /// By name, in the order of the rows; `None` where nothing was measured.
    pub(super) changes: Vec<(String, Option<&'e Difference>)>,
}

impl Effect<'_> {
    /// Adds the chart: in percent, or for a share in points. Where the first is zero, of which there are
    /// no percent, it is in the unit itself.
    pub(super) fn chart(&self, page: &mut Page) {
        let direction = match self.better {
            Better::Lower => "; lower is better",
            Better::Higher => "; higher is better",
            Better::Neither => "",
        };
        let has_percent =
            |change: &Option<&Difference>| change.is_none_or(|change| change.percent.is_some());
        let in_percent =
            self.unit != Unit::Percent && self.changes.iter().all(|(_, c)| has_percent(c));
        let shown = self.changes.iter().take(MOST_ROWS);
        let rows = shown.map(|(name, change)| self.row(name, *change, in_percent));
        let rows: Vec<Interval> = rows.collect();
        let cut = cut_note(rows.len(), self.changes.len());
        page.chart(
            format!("{}{direction}{cut}", self.what),
            format!(
                "{}: change against {} with 95 % intervals; the tables have the numbers.",
                self.what, self.first
            ),
            Chart::Intervals {
                axis: self.axis(in_percent),
                rows,
            },
        );
    }

    fn axis(&self, in_percent: bool) -> Axis {
        let against = format!("change against {}", self.first);
        match (in_percent, self.unit) {
            (true, _) => Axis::plain(format!("{against}, %"), " %"),
            (false, Unit::Percent) => Axis::plain(format!("{against}, percentage points"), ""),
            (false, Unit::Ns) => Axis::times(format!("{against}, time"), Scale::Ns),
            (false, Unit::PerSecond) => Axis::plain(format!("{against}, a second"), ""),
            (false, Unit::Count) => Axis::plain(against, ""),
        }
    }

    fn row(&self, name: &str, change: Option<&Difference>, in_percent: bool) -> Interval {
        let (number, half_width) = match change {
            Some(change) if in_percent => (change.percent, change.percent_half_width),
            Some(change) => (Some(change.estimate.mean), change.estimate.half_width),
            None => (None, None),
        };
        Interval {
            name: name.to_owned(),
            value: number.unwrap_or(f64::NAN),
            half_width,
            published: None,
            mark: change.map_or(Mark::Noise, |change| Mark::difference(change, self.unit)),
            says: match change {
                Some(change) => difference(self.unit, change),
                None => "not measured".to_owned(),
            },
        }
    }
}
