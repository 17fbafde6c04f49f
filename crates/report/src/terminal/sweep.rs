//! What a sweep found, in few words.

use stealtime_lab::sweep::{Best, Effect, Summary};

use super::compare::number::{difference, value};
use super::grid::{Grid, number, text};
use super::{Screen, Style};
use crate::escape;
use crate::units::{counted, wrap};

/// Values of a knob that are shown one by one, so that each table is within one screen.
const MOST_LEVELS: usize = 16;
/// Of runs that depend on their seed.
const MEANS: &str = "Means over the rest of the grid; differences to the first value, of points that have both, \
     paired by seed, with 95% confidence intervals over the seeds.";

/// Of runs that do not depend on their seed.
const IDENTICAL: &str = "Means over the rest of the grid; differences to the first value, of points that have \
     both. All seeds give the same, for nothing in the runs is random: there are no confidence intervals.";

/// What means and differences of this sweep are.
pub(crate) const fn means(summary: &Summary) -> &'static str {
    match summary.identical_seeds {
        true => IDENTICAL,
        false => MEANS,
    }
}

/// The effects of what is varied, metric by metric, and the best points.
#[must_use]
pub fn render(summary: &Summary, style: Style) -> String {
    let mut screen = Screen::new(style);
    for effects in summary.effects.chunk_by(|a, b| a.metric == b.metric) {
        metric(effects, &mut screen);
    }
    for best in &summary.best {
        points(best, &mut screen);
    }
    if summary.effects.is_empty() && summary.finished > summary.failed {
        screen.line("Nothing is varied, or no run has throughput or latency: add --metric COLUMN.");
    } else if !summary.effects.is_empty() {
        screen.line("");
        screen.plain(0, means(summary));
    }
    if let Some(text) = failures(summary) {
        screen.warn(0, &text);
    }
    screen.text
}

/// That runs failed, and why.
pub(crate) fn failures(summary: &Summary) -> Option<String> {
    let reason = summary.first_failure.as_ref()?;
    let failed = counted(summary.failed, "run");
    let runs = summary.runs;
    Some(format!("{failed} of {runs} failed, the first by: {reason}"))
}

/// The effects on one metric.
fn metric(effects: &[Effect], screen: &mut Screen) {
    if let Some(first) = effects.first() {
        screen.heading(&escape::terminal(&first.metric));
    }
    let mut grid = Grid::new(&[
        text("varied"),
        text("value"),
        number("mean"),
        number("against the first"),
    ]);
    for effect in effects {
        for (index, level) in effect.levels.iter().take(MOST_LEVELS).enumerate() {
            let mean = level.estimate.map(|e| value(effect.unit, &e));
            let against = level.difference.map(|d| difference(effect.unit, &d));
            grid.row([
                if index == 0 {
                    effect.knob.clone()
                } else {
                    String::new()
                },
                level.value.clone(),
                mean.unwrap_or_else(|| "-".to_owned()),
                against.unwrap_or_default(),
            ]);
        }
        let omitted = effect.levels.len().saturating_sub(MOST_LEVELS);
        if omitted > 0 {
            let text = format!("… {omitted} more: --format json");
            grid.row([String::new(), text, String::new(), String::new()]);
        }
    }
    grid.render(screen);
}

fn points(best: &Best, screen: &mut Screen) {
    let title = format!("Best {}", best.metric);
    screen.heading(&escape::terminal(&title));
    for point in &best.points {
        let text = format!("{}: {point}", value(best.unit, &point.estimate));
        let lines = wrap(&escape::terminal(&text), screen.style.width - 4);
        for (line, indent) in lines
            .iter()
            .zip(std::iter::once(2).chain(std::iter::repeat(4)))
        {
            screen.line(&format!("{:indent$}{line}", ""));
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
            identical_seeds: false,
            effects: vec![effect],
            best: vec![Best {
                metric: "vm.web.throughput_per_s".into(),
                unit: Unit::PerSecond,
                points: vec![point; 3],
            }],
            times: Vec::new(),
        };
        let output = render(&summary, Style::new(false));
        assert!(output.contains("with 95% confidence intervals over the seeds"));
        let identical = Summary {
            identical_seeds: true,
            ..summary.clone()
        };
        let text = render(&identical, Style::new(false));
        assert!(text.contains("there are no confidence intervals"), "{text}");
        assert!(
            output.lines().all(|line| escape::width(line) <= 100),
            "{output}"
        );
        assert!(!output.contains('\u{1b}'));
        for part in [
            "24 more",
            "better",
            "1 run of 120 failed, the first by: deadlock",
            "Best vm",
        ] {
            assert!(output.contains(part), "{part}: {output}");
        }
        let rows = output.lines().filter(|line| line.contains("us ")).count();
        assert!(rows >= MOST_LEVELS, "{output}");
    }
}
