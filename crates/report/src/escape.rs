//! Text out of a trace, made safe to show.
//!
//! A user of the host or of a guest chooses the names of tasks. On a terminal a name must not move the
//! cursor, set colours or turn the direction of writing. In a spreadsheet it must not be a formula.

use std::borrow::Cow;
use std::fmt::Write;

use unicode_width::UnicodeWidthChar;

/// Text for a terminal. Control characters (C0, DEL, C1), separators of lines, invisible characters and
/// marks of the direction of writing become `\n`, `\t` or `\u{…}`.
///
/// ```
/// use stealtime_report::escape::terminal;
/// assert_eq!(terminal("CPU 0/KVM"), "CPU 0/KVM");
/// assert_eq!(terminal("a\u{1b}[31m\n"), "a\\u{1b}[31m\\n");
/// assert_eq!(terminal("\u{202e}mv"), "\\u{202e}mv");
/// ```
#[must_use]
pub fn terminal(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => safe.push_str("\\n"),
            '\t' => safe.push_str("\\t"),
            '\r' => safe.push_str("\\r"),
            c if is_unsafe(c) => {
                // Writing to a String cannot fail.
                let _ = write!(safe, "\\u{{{:x}}}", u32::from(c));
            }
            c => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// Whether a character does something other than to show itself.
pub(crate) fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}'
            | '\u{61c}'                    // Arabic letter mark
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'      // zero width, left-to-right and right-to-left mark
            | '\u{2028}'..='\u{202e}'      // separators, embeddings, overrides
            | '\u{2060}'..='\u{206f}'      // word joiner, isolates, deprecated format characters
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'    // tags
        )
}

/// A CSV cell with text, escaped as by [`terminal`]. A spreadsheet takes a text that begins with `=`,
/// `+`, `-` or `@` for a formula: it gets a `'` before it. Numbers keep their sign.
///
/// ```
/// use stealtime_report::escape::csv_text;
/// assert_eq!(csv_text("kworker/0:1"), "kworker/0:1");
/// assert_eq!(csv_text("=HYPERLINK(1)"), "'=HYPERLINK(1)");
/// assert_eq!(csv_text("\u{1b}[31m"), "\\u{1b}[31m");
/// ```
#[must_use]
pub fn csv_text(text: &str) -> Cow<'_, str> {
    let safe = terminal(text);
    if safe.starts_with(['=', '+', '-', '@']) {
        Cow::Owned(format!("'{safe}"))
    } else {
        safe
    }
}

/// Columns that a text takes on a terminal.
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

/// The text cut to at most `max` columns; a cut shows as `…`.
pub(crate) fn fit(text: &str, max: usize) -> Cow<'_, str> {
    if width(text) <= max {
        return Cow::Borrowed(text);
    }
    let mut cut = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += char_width(c);
        if used >= max {
            break;
        }
        cut.push(c);
    }
    cut.push('…');
    Cow::Owned(cut)
}

/// The text safe to show and cut in the middle to at most `max` columns, as names differ at their
/// ends.
///
/// ```
/// use stealtime_report::escape::short;
/// assert_eq!(short("vm0", 13), "vm0");
/// assert_eq!(short("production-web-12", 13), "produc…web-12");
/// ```
#[must_use]
pub fn short(text: &str, max: usize) -> String {
    let text = terminal(text);
    if width(&text) <= max {
        return text.into_owned();
    }
    let take = |chars: &mut dyn Iterator<Item = char>, columns: usize| {
        let mut used = 0;
        let fits = |c: &char| {
            used += char_width(*c);
            used <= columns
        };
        chars.take_while(fits).collect::<Vec<char>>()
    };
    let room = max.saturating_sub(1);
    let begin = take(&mut text.chars(), room.div_ceil(2));
    let end = take(&mut text.chars().rev(), room / 2);
    begin
        .into_iter()
        .chain(['…'])
        .chain(end.into_iter().rev())
        .collect()
}

/// Columns that a character takes on a terminal.
pub(crate) fn char_width(c: char) -> usize {
    c.width().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cut_text_says_so() {
        assert_eq!(fit("vm-hackbench", 12), "vm-hackbench");
        assert_eq!(fit("vm-hackbench", 6), "vm-ha…");
        assert_eq!(fit("日本語の名前", 5), "日本…");
    }

    proptest! {
        #[test]
        fn nothing_unsafe_is_left(text in ".*") {
            prop_assert!(!terminal(&text).contains(is_unsafe));
        }

        #[test]
        fn a_cut_text_is_no_wider_than_asked(text in "\\PC*", max in 1_usize..40) {
            prop_assert!(width(&fit(&text, max)) <= max);
        }

        #[test]
        fn no_cell_starts_a_formula(text in "[=+@\\-\\t\\r a]{0,4}") {
            prop_assert!(!csv_text(&text).starts_with(['=', '+', '-', '@', '\t', '\r']));
        }
    }
}
