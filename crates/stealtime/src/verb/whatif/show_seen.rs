//! Predictions beside what was seen, as a table.

use std::fmt::Write as _;

use stealtime_report::escape;
use stealtime_report::html::{Page, Table};

use super::seen::{Row, Seen};
use super::show_gain::paragraph;

/// For a terminal.
pub(super) fn table(out: &mut String, seen: &Seen) {
    let _ = writeln!(out, "\nSeen, of {}", escape::terminal(&seen.variant));
    paragraph(
        out,
        "  ",
        "In ms per second of all vCPUs of a VM: recorded with the change less recorded without.",
    );
    out.push_str("  VM            quantity        predicted        seen   spread  right\n");
    for row in &seen.rows {
        let _ = writeln!(
            out,
            "  {:<13} {:<10} {:>+9.1} ±{:<8.1} {:>+7.1} {:>8}  {}",
            escape::short(&row.vm, 13),
            row.quantity,
            row.predicted.mean,
            row.predicted.half_width.unwrap_or(0.0),
            row.seen,
            spread(row),
            yes(row),
        );
    }
    paragraph(out, "  ", &summary(seen));
}

/// For a page.
pub(super) fn page(page: &mut Page, seen: &Seen) {
    page.section(format!("Seen, of {}", seen.variant));
    page.text(summary(seen));
    let mut table = Table::new(
        "Predicted and seen, in ms per second of all vCPUs of a VM",
        &[
            "VM",
            "quantity",
            "predicted",
            "±",
            "seen",
            "spread",
            "right",
        ],
        2,
    );
    for row in &seen.rows {
        table.row([
            row.vm.as_str().into(),
            row.quantity.into(),
            format!("{:+.1}", row.predicted.mean).into(),
            format!("{:.1}", row.predicted.half_width.unwrap_or(0.0)).into(),
            format!("{:+.1}", row.seen).into(),
            spread(row).into(),
            yes(row).into(),
        ]);
    }
    page.table(table);
}

fn spread(row: &Row) -> String {
    row.spread
        .map_or_else(|| "-".to_owned(), |spread| format!("{spread:.1}"))
}

const fn yes(row: &Row) -> &'static str {
    if row.is_right { "yes" } else { "no" }
}

fn summary(seen: &Seen) -> String {
    let (right, rows) = (seen.right, seen.rows.len());
    let (beyond, signs) = (seen.beyond_spread, seen.right_signs);
    match seen.rows.iter().any(|row| row.spread.is_some()) {
        true => format!(
            "{right} of {rows} right: within 30% of what was seen, or within the spread, which is how \
             far recordings that should be alike are from each other. Of {beyond} changes beyond the \
             spread {signs} have the right sign."
        ),
        false => format!(
            "{right} of {rows} right: within 30% of what was seen. Of {beyond} that changed {signs} have \
             the right sign. How far recordings differ that should be alike is not known: give one more \
             of each, by --again and --seen."
        ),
    }
}
