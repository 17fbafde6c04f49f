//! What a sweep found, in few words.

use std::fmt::Write as _;

use stealtime_lab::sweep::{Best, Effect, Summary};

use super::Style;
use super::compare::number::{difference, value};
use super::grid::{Grid, Side};
use crate::escape;
use crate::units::{counted, wrap};

/// Values of a knob that are shown one by one.
const MOST_LEVELS: usize = 16;
/// What means and differences of a sweep are.
pub(crate) const MEANS: &str = "Means over the rest of the grid; differences to the first value, of points that have both, \
     paired by seed, with 95% confidence intervals over the seeds.";

/// The effects of what is varied, metric by metric, and the best points.
#[must_use]
pub fn render(summary: &Summary, style: Style) -> String {
    let mut out = String::new();
    let mut rest = &summary.effects[..];
    while let Some(first) = rest.first() {
        let count = rest.iter().take_while(|e| e.metric == first.metric).count();
        let (effects, others) = rest.split_at(count);
        metric(effects, style, &mut out);
        rest = others;
    }
    for best in &summary.best {
        points(best, style, &mut out);
    }
    if summary.effects.is_empty() && summary.finished > summary.failed {
        out.push_str(
            "Nothing is varied, or no run has throughput or latency: add --metric COLUMN.\n",
        );
    } else if !summary.effects.is_empty() {
        out.push('\n');
        for line in wrap(MEANS, style.width) {
            let _ = writeln!(out, "{line}");
        }
    }
    if let Some(text) = failures(summary) {
        for line in wrap(&escape::terminal(&text), style.width) {
            let _ = writeln!(out, "{}", style.warn(&line));
        }
    }
    out
}

/// That runs failed, and why.
pub(crate) fn failures(summary: &Summary) -> Option<String> {
    let why = summary.first_failure.as_ref()?;
    let failed = counted(summary.failed, "run");
    let runs = summary.runs;
    Some(format!("{failed} of {runs} failed, the first by: {why}"))
}

/// A blank line, but not at the beginning.
fn gap(out: &mut String) {
    if !out.is_empty() {
        out.push('\n');
    }
}

fn metric(effects: &[Effect], style: Style, out: &mut String) {
    let Some(first) = effects.first() else {
        return;
    };
    gap(out);
    let title = escape::terminal(&first.metric).into_owned();
    let _ = writeln!(out, "{}", style.bold(&title));
    let mut grid = Grid::new(&[
        ("varied", Side::Text),
        ("value", Side::Text),
        ("mean", Side::Number),
        ("against the first", Side::Number),
    ]);
    for effect in effects {
        for (at, level) in effect.levels.iter().take(MOST_LEVELS).enumerate() {
            let mean = level.estimate.map(|e| value(effect.unit, &e));
            let against = level.difference.map(|d| difference(effect.unit, &d));
            grid.row([
                if at == 0 {
                    effect.knob.clone()
                } else {
                    String::new()
                },
                level.value.clone(),
                mean.unwrap_or_else(|| "-".to_owned()),
                against.unwrap_or_default(),
            ]);
        }
        let more = effect.levels.len().saturating_sub(MOST_LEVELS);
        if more > 0 {
            let text = format!("… {more} more: --format json");
            grid.row([String::new(), text, String::new(), String::new()]);
        }
    }
    grid.render(style, out);
}

fn points(best: &Best, style: Style, out: &mut String) {
    gap(out);
    let title = format!("Best {}", best.metric);
    let _ = writeln!(out, "{}", style.bold(&escape::terminal(&title)));
    for point in &best.points {
        let text = format!("{}: {point}", value(best.unit, &point.estimate));
        for (at, line) in wrap(&escape::terminal(&text), style.width - 4)
            .iter()
            .enumerate()
        {
            let indent = if at == 0 { "  " } else { "    " };
            let _ = writeln!(out, "{indent}{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stealtime_lab::metric::{Better, Unit};
    use stealtime_lab::scenario::Setting;
    use stealtime_lab::stats::{difference, estimate};
    use stealtime_lab::sweep::{BestPoint, Level};

    #[test]
    fn effects_and_best_points_fit_the_page() {
        let means = [100.0, 101.0, 102.0];
        let level = |n: u64| Level {
            value: format!("{n}us"),
            estimate: estimate(&means.map(|mean| mean + n as f64)),
            difference: (n > 0).then(|| {
                let seconds = means.map(|mean| mean + n as f64);
                difference(&means, &seconds, Better::Higher).expect("pairs")
            }),
        };
        let effect = Effect {
            metric: "vm.web.throughput_per_s".into(),
            unit: Unit::PerSecond,
            better: Better::Higher,
            knob: "kvm.halt_poll_ns".into(),
            levels: (0..40).map(level).collect(),
        };
        let point = BestPoint {
            variant: "\u{1b}[2J".into(),
            settings: vec![
                Setting {
                    knob: "kvm.halt_poll_ns".into(),
                    value: "5us".into()
                };
                8
            ],
            estimate: estimate(&means).expect("values"),
        };
        let summary = Summary {
            runs: 120,
            finished: 120,
            failed: 1,
            first_failure: Some("deadlock".into()),
            effects: vec![effect],
            best: vec![Best {
                metric: "vm.web.throughput_per_s".into(),
                unit: Unit::PerSecond,
                points: vec![point; 3],
            }],
            times: Vec::new(),
        };
        let out = render(&summary, Style::new(false));
        assert!(out.lines().all(|line| escape::width(line) <= 100), "{out}");
        assert!(!out.contains('\u{1b}'));
        for part in [
            "24 more",
            "better",
            "1 run of 120 failed, the first by: deadlock",
            "Best vm",
        ] {
            assert!(out.contains(part), "{part}: {out}");
        }
        let rows = out.lines().filter(|line| line.contains("us ")).count();
        assert!(rows >= MOST_LEVELS, "{out}");
    }
}
