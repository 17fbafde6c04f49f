//! Predictions next to recordings made with the change.

use stealtime_whatif::Observed;

use crate::html::{Page, Table};
use crate::whatif_text::{FIGURES, refuted, seen_word, spread, summary, word_of, yes};

/// For a page.
pub(super) fn table(page: &mut Page, observed: &Observed) {
    page.section(format!("Seen, of {}", observed.variant));
    page.text(summary(observed));
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
    )
    .ending_in_words(1);
    for row in &observed.rows {
        table.row([
            row.vm.as_str().into(),
            row.quantity.into(),
            format!("{:+.1}", row.predicted.mean).into(),
            format!("{:.1}", row.predicted.half_width.unwrap_or(0.0)).into(),
            format!("{:+.1}", row.seen).into(),
            spread(row.spread).into(),
            yes(row).into(),
        ]);
    }
    page.table(table);
    page.text(FIGURES);
    page.text(refuted(observed));
    let mut table = Table::new(
        "The figures of the verdict, predicted and seen",
        &[
            "of",
            "figure",
            "unit",
            "predicted",
            "±",
            "seen",
            "spread",
            "means",
            "seen",
        ],
        3,
    )
    .ending_in_words(2);
    for figure in &observed.figures {
        table.row([
            figure.who.as_str().into(),
            figure.quantity.into(),
            figure.unit.into(),
            format!("{:+.1}", figure.predicted.mean).into(),
            format!("{:.1}", figure.predicted.half_width.unwrap_or(0.0)).into(),
            format!("{:+.1}", figure.seen).into(),
            spread(figure.spread).into(),
            word_of(figure.word).into(),
            seen_word(figure).into(),
        ]);
    }
    page.table(table);
}
