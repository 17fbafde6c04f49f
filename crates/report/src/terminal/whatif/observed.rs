//! Predictions next to observations, as a table.

use std::fmt::Write as _;

use stealtime_whatif::Observed;

use super::paragraph;
use crate::escape;
use crate::whatif_text::{FIGURES, refuted, seen_word, spread, summary, word_of, yes};

/// For a terminal.
pub(super) fn table(output: &mut String, observed: &Observed) {
    let _ = writeln!(output, "\nSeen, of {}", escape::terminal(&observed.variant));
    paragraph(
        output,
        "  ",
        "In ms per second of all vCPUs of a VM: recorded with the change less recorded without.",
    );
    output.push_str("  VM            quantity        predicted        seen   spread  right\n");
    for row in &observed.rows {
        let _ = writeln!(
            output,
            "  {:<13} {:<10} {:>+9.1} ±{:<8.1} {:>+7.1} {:>8}  {}",
            escape::short(&row.vm, 13),
            row.quantity,
            row.predicted.mean,
            row.predicted.half_width.unwrap_or(0.0),
            row.seen,
            spread(row.spread),
            yes(row),
        );
    }
    paragraph(output, "  ", &summary(observed));
    output.push('\n');
    paragraph(output, "  ", FIGURES);
    output.push_str(
        "  of            figure                   predicted          seen   spread  means        seen\n",
    );
    for figure in &observed.figures {
        let _ = writeln!(
            output,
            "  {:<13} {:<18} {:<4} {:>+9.1} ±{:<8.1} {:>+7.1} {:>8}  {:<12} {}",
            escape::short(&figure.who, 13),
            figure.quantity,
            figure.unit,
            figure.predicted.mean,
            figure.predicted.half_width.unwrap_or(0.0),
            figure.seen,
            spread(figure.spread),
            word_of(figure.word),
            seen_word(figure),
        );
    }
    paragraph(output, "  ", &refuted(observed));
}
