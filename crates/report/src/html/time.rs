//! Where the time of vCPUs went, as bars.

use super::{Axis, Chart, Color, Page, Part};

/// States of vCPUs that add up to all of their time: the metric, in words, the color.
const STATES: [(&str, &str, Color); 6] = [
    ("in guest", "in the guest", Color::Guest),
    ("spinning", "spinning in the guest", Color::Spin),
    ("in exits", "handling exits", Color::Exits),
    ("halt polling", "polling in halts", Color::Poll),
    ("steal", "waiting for a CPU (steal)", Color::Preempted),
    ("asleep", "asleep", Color::Halted),
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
    let part = |(metric, name, color): (&str, &str, Color)| Part {
        name: name.to_owned(),
        color,
        values: (0..rows.len())
            .map(|at| match metric {
                // Spinning is a part of it, and has one of its own here.
                "in guest" => (mean("in guest", at) - mean("spinning", at)).max(0.0),
                metric => mean(metric, at),
            })
            .collect(),
    };
    let parts = STATES.map(part).into_iter();
    let parts: Vec<Part> = parts
        .filter(|part| part.values.iter().any(|value| *value > 0.0))
        .collect();
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
