//! Published results next to simulated ones, for a terminal.

use stealtime_report::terminal::Style;
use stealtime_report::wrap;

use crate::{Bound, ClaimRow, FigureRow, OrderRow, OrderVerdict, Reproduced, Side, Sign};

/// Columns of a figure's name.
const NAME: usize = 41;
/// Columns that explanations are indented by.
const INDENT: usize = 4;

/// The results, one after the other; `tolerance` in percent.
#[must_use]
pub fn render(results: &[Reproduced], tolerance: f64, style: Style) -> String {
    let mut output = String::new();
    for result in results {
        one(result, style, &mut output);
        output.push('\n');
    }
    let figures: usize = results.iter().map(|result| result.figures.len()).sum();
    let claims: usize = results.iter().map(|result| result.claims.len()).sum();
    let misses: usize = results.iter().map(Reproduced::misses).sum();
    let total = figures + claims;
    let summary = format!(
        "{} of {total} published figures and claims come out, figures within {tolerance} % of what was \
         published; fitted ones among them are marked.",
        total - misses
    );
    text(&summary, 0, style, &mut output);
    output
}

/// Where a result is from, and what was fitted in its simulation, a line each.
pub(crate) fn origin(result: &Reproduced) -> Vec<String> {
    let source = format!("{}: {}; {}.", result.document, result.workload, result.host);
    let fitted = result.fitted.iter().map(|fitted| {
        let slope = fitted.slope.map_or_else(String::new, |slope| {
            format!("; 1 % more changes it by {slope:+.2} %")
        });
        format!(
            "Fitted to \"{}\": {} = {} ({}{slope}).",
            fitted.to, fitted.parameter, fitted.value, fitted.scenario
        )
    });
    std::iter::once(source).chain(fitted).collect()
}

fn one(result: &Reproduced, style: Style, output: &mut String) {
    output.push_str(&style.bold(&result.name));
    output.push('\n');
    for line in origin(result) {
        text(&line, 2, style, output);
    }
    if !result.figures.is_empty() {
        let head = format!(
            "  {:<NAME$} {:>11} {:>19} {:>8}  is",
            "figure", "published", "simulated", "error"
        );
        output.push_str(&style.dim(&head));
        output.push('\n');
    }
    for row in &result.figures {
        figure(row, style, output);
    }
    for row in &result.orders {
        text(&order(row), 2, style, output);
    }
    for row in &result.claims {
        claim(row, style, output);
    }
    for left_out in &result.left_out {
        text(
            &format!("Not simulated: {}.", left_out.what),
            2,
            style,
            output,
        );
        text(&left_out.why, INDENT, style, output);
    }
}

/// What was published: `≤ 310 us`.
pub(crate) fn published(row: &FigureRow) -> String {
    let limit = match row.bound {
        Bound::Value => "",
        Bound::AtMost => "≤ ",
        Bound::AtLeast => "≥ ",
    };
    format!("{limit}{}", number(row.published, &row.unit))
}

/// What the simulation gives: `490 us ±55.7`.
pub(crate) fn simulated(row: &FigureRow) -> String {
    match row.half_width {
        Some(half) => format!("{} ±{}", number(row.simulated, &row.unit), bare(half)),
        None => number(row.simulated, &row.unit),
    }
}

/// Whether it comes out: `off, wrong sign`.
pub(crate) fn what(row: &FigureRow) -> String {
    let verdict = match (row.fitted, row.within, row.side) {
        (true, true, _) => "fitted",
        (true, false, _) => "fitted, off",
        (_, true, Side::With) => "predicted",
        (_, true, Side::Without) => "as it is",
        (_, false, _) => "off",
    };
    let sign = match row.sign {
        Some(Sign::Wrong) => ", wrong sign",
        Some(Sign::Unclear) => ", sign unclear",
        Some(Sign::Right) | None => "",
    };
    format!("{verdict}{sign}")
}

fn figure(row: &FigureRow, style: Style, output: &mut String) {
    let line = format!(
        "  {:<NAME$} {:>11} {:>19} {:>8}  {}",
        row.name,
        published(row),
        simulated(row),
        error(row.error_percent),
        what(row)
    );
    output.push_str(&if row.within { line } else { style.warn(&line) });
    output.push('\n');
    if let Some(miss) = &row.miss {
        text(miss, INDENT, style, output);
    }
}

/// Whether figures stand in the published order.
pub(crate) fn order(row: &OrderRow) -> String {
    let published = row.published.join(" < ");
    let simulated = row.simulated.join(" < ");
    match row.verdict {
        OrderVerdict::Same => format!("Order of {}: as published.", row.group),
        OrderVerdict::WithinNoise => format!(
            "Order of {}: nothing against the published {published}; means are {simulated}, with \
             overlapping intervals where that differs.",
            row.group
        ),
        OrderVerdict::Otherwise => format!(
            "Order of {}: published {published}; simulated otherwise: {simulated}.",
            row.group
        ),
    }
}

/// Whether a claim came out.
pub(crate) fn verdict(row: &ClaimRow) -> &'static str {
    match (row.holds, row.is_open()) {
        (true, _) => "holds",
        (false, true) => "not shown",
        (false, false) => "does not hold",
    }
}

/// What a claim that nothing changes was held against.
fn of_none(row: &ClaimRow) -> String {
    let (Some(margin), Some(change)) = (row.within_percent, row.change_percent) else {
        return String::new();
    };
    let half = row.change_half_width;
    let half = half.map_or_else(String::new, |half| format!(" ±{half:.2}"));
    format!("; {change:+.2} %{half}, of which up to {margin} % is none")
}

fn claim(row: &ClaimRow, style: Style, output: &mut String) {
    let known = |mean, half: Option<f64>| match half {
        Some(half) => format!("{} ±{}", bare(mean), bare(half)),
        None => bare(mean),
    };
    let base = known(row.base, row.base_half_width);
    let simulated = known(row.simulated, row.half_width);
    let line = format!(
        "In words: {}: {} ({base}, then {simulated}{}).",
        row.says,
        verdict(row),
        of_none(row)
    );
    text(&line, 2, style, output);
    if let Some(miss) = &row.miss {
        text(miss, INDENT, style, output);
    }
}

fn text(text: &str, indent: usize, style: Style, output: &mut String) {
    for line in wrap(text, style.width.saturating_sub(indent)) {
        output.push_str(&" ".repeat(indent));
        let dim = indent >= INDENT;
        output.push_str(&if dim { style.dim(&line) } else { line });
        output.push('\n');
    }
}

pub(crate) fn number(value: f64, unit: &str) -> String {
    match unit {
        "percent" => format!("{} %", bare(value)),
        "per second" => format!("{} /s", bare(value)),
        unit => format!("{} {unit}", bare(value)),
    }
}

/// Three digits that say something.
pub(crate) fn bare(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub(crate) fn error(percent: f64) -> String {
    match percent.abs() {
        size if size < 0.05 => "0 %".to_owned(),
        size if size >= 10.0 => format!("{percent:+.0} %"),
        _ => format!("{percent:+.1} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_say_enough() {
        let shown: Vec<String> = [8.123, 81.23, 812.3, -0.004].map(bare).into();
        assert_eq!(shown, ["8.12", "81.2", "812", "-0.00"]);
        assert_eq!(
            [error(0.01), error(-3.25), error(250.4)].join(" "),
            "0 % -3.2 % +250 %"
        );
    }
}
