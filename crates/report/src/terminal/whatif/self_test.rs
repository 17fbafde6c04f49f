//! The table of `--self-test`.

use std::fmt::Write as _;

use stealtime_whatif::SelfTestRow;

use super::paragraph;
use crate::escape;

/// Columns of the names: what the figures leave of 100.
const NAME: usize = 53;

/// A row for each recording.
#[must_use]
pub fn table(rows: &[SelfTestRow]) -> String {
    let mut output = format!(
        "  {:<NAME$} {:>5} {:>5} {:>6} {:>6} {:>5} {:>5} {:>5}\n",
        "recording", "span", "vCPUs", "waits", "median", "p90", "worst", "exits"
    );
    for row in rows {
        line(&mut output, row);
    }
    let replayed = rows.iter().filter_map(|row| row.error.as_ref());
    let good = replayed.clone().filter(|error| error.is_close()).count();
    output.push('\n');
    if rows.iter().any(|row| row.lost > 0) {
        output.push_str("  * events lost\n");
    }
    let all = replayed.count();
    if good < all {
        output.push_str("  ! beyond the bounds\n");
    }
    let bounds = format!(
        "{good} of {all} within bounds (median 3%, p90 8% of the span over running, ready and halted time of \
         each vCPU; exits 5%)"
    );
    paragraph(&mut output, "  ", &bounds);
    output
}

fn line(output: &mut String, row: &SelfTestRow) {
    let mark = if row.lost > 0 { " *" } else { "" };
    let name = format!("{}{mark}", escape::terminal(&row.path));
    let (Some(error), Some(waits)) = (&row.error, &row.waits) else {
        let _ = writeln!(output, "  {name}");
        paragraph(output, "    ", row.problem.as_deref().unwrap_or_default());
        return;
    };
    let far = if error.is_close() { ' ' } else { '!' };
    // A name that is too long has a line of its own.
    let name = if name.chars().count() > NAME {
        let _ = writeln!(output, "  {name}");
        String::new()
    } else {
        name
    };
    let _ = writeln!(
        output,
        "{far} {name:<NAME$} {:>4.1}s {:>5} {:>5.1}% {:>5.1}% {:>4.1}% {:>4.1}% {:>4.1}%",
        row.span_ns as f64 / 1e9,
        row.vcpus,
        waits.resolved_percent,
        error.median_percent,
        error.p90_percent,
        error.worst_percent,
        error.exits_worst_percent,
    );
}
