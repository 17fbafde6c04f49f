//! Fitted parameters, for a terminal.

use stealtime_report::terminal::Style;
use stealtime_report::wrap;

use super::Fit;
use crate::terminal::{bare, number};

/// The fits, one below the other.
#[must_use]
pub fn render(fits: &[Fit], style: Style) -> String {
    let mut output = String::new();
    if fits.is_empty() {
        output.push_str("No scenario of these results lists a parameter to be fitted.\n");
    }
    for fit in fits {
        let head = match fit.changed {
            true => format!("{} = {}, was {}", fit.parameter, fit.value, fit.before),
            false => format!("{} = {}, as it stands", fit.parameter, fit.value),
        };
        let head = format!("{}: {head}", fit.scenario);
        output.push_str(&if fit.changed { style.warn(&head) } else { head });
        output.push('\n');
        let half = fit.half_width.map(|half| format!(" ±{}", bare(half)));
        let text = format!(
            "Fitted to \"{}\": {} published, {}{} reached, {:+.2} %. 1 % more of the parameter changes it \
             by {:+.2} %. {} values tried.",
            fit.to,
            number(fit.published, &fit.unit),
            number(fit.reached, &fit.unit),
            half.unwrap_or_default(),
            fit.residual_percent,
            fit.slope,
            fit.tried
        );
        for line in wrap(&text, style.width.saturating_sub(2)) {
            output.push_str("  ");
            output.push_str(&line);
            output.push('\n');
        }
    }
    output
}
