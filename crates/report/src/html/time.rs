//! Where the time of vCPUs went, as bars.

use stealtime_lab::metric::VCPU_TIME;

use super::chart::visible;
use super::{Axis, Chart, Color, Page, Part};

/// How the metrics of [`VCPU_TIME`] are shown: in words, and the color.
const SHOWN: [(&str, Color); VCPU_TIME.len()] = [
    ("in the guest", Color::Guest),
    ("spinning in the guest", Color::Spin),
    ("handling exits", Color::Exits),
    ("polling in halts", Color::Poll),
    ("waiting for a CPU (steal)", Color::Preempted),
    ("asleep", Color::Halted),
];

/// A bar for each row; `mean` gives a metric's mean of a row, in percent. Nothing is added if no state
/// has any time.
pub(super) fn chart(
    title: String,
    describes: &str,
    rows: Vec<String>,
    mean: impl Fn(&str, usize) -> f64,
    page: &mut Page,
) {
    let part = |(metric, (name, color)): (&str, (&str, Color))| Part {
        name: name.to_owned(),
        color,
        values: (0..rows.len())
            .map(|row| match metric {
                // Spinning is a part of it, and has one of its own here.
                "in guest" => (mean("in guest", row) - mean("spinning", row)).max(0.0),
                metric => mean(metric, row),
            })
            .collect(),
    };
    let parts = visible(VCPU_TIME.into_iter().zip(SHOWN).map(part));
    if parts.is_empty() {
        return;
    }
    page.chart(
        title,
        describes,
        Chart::Stacked {
            axis: Axis::plain("share of the vCPUs' time, %", " %"),
            rows,
            parts,
            most: Some(100.0),
        },
    );
}
