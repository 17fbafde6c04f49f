//! Messages in C's words: what the library's texts call by Rust's names has others in the header.

/// Names in texts of this crate, and in `guest_clock.h`.
const WORDS: [(&str, &str); 14] = [
    ("Policy::Stopped", "GUEST_CLOCK_STOPPED"),
    ("Policy::Elapsed", "GUEST_CLOCK_ELAPSED"),
    ("Policy::AtMost", "GUEST_CLOCK_AT_MOST"),
    ("Unequal::Highest", "GUEST_CLOCK_UNEQUAL_HIGHEST"),
    ("Unequal::Keep", "GUEST_CLOCK_UNEQUAL_KEEP"),
    ("Unequal::First", "GUEST_CLOCK_UNEQUAL_FIRST"),
    ("Inexact::Accept", "accept_inexact"),
    ("Options::accept_inexact", "accept_inexact"),
    ("Options::uncertainty", "master_clock_age_ns"),
    ("say so with Stopping::Done", "pass a patience_ms of 0"),
    ("allow more", "raise limit_ns"),
    ("trust more", "raise wall_clocks_at_most_ns"),
    ("Equalize::within", "at_most_ns"),
    ("taken_realtime_ns", "realtime_ns"),
];

/// A text of the library, for C.
pub(super) fn in_c(text: &str) -> String {
    let replace = |text: String, (rust, c): &(&str, &str)| text.replace(rust, c);
    WORDS.iter().fold(text.to_owned(), replace)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of all string literals of a source file, without comments.
    fn literals(source: &str) -> String {
        let lines = source
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let code: String = lines.flat_map(|line| [line, "\n"]).collect();
        code.split('"').skip(1).step_by(2).collect()
    }

    #[test]
    fn no_message_has_a_path_of_rust_in_it() {
        let sources = [
            include_str!("../error.rs"),
            include_str!("../explanation.rs"),
            include_str!("../arm64.rs"),
        ];
        let text: String = sources.into_iter().map(literals).collect();
        assert!(text.contains("Inexact::Accept"), "{text}");
        let text = in_c(&text);
        let place = text.find("::");
        assert_eq!(place, None, "{}", &text[place.unwrap_or(0)..]);
    }
}
