//! Names of VMs in names of knobs: `vm.web.cpu_weight`, `vm."a.b".cpu_weight`.
//!
//! Managers allow any text as a name. In double quotes it is written as a basic string of TOML.

use std::borrow::Cow;
use std::fmt::Write;

/// The name of a VM's knob. A name with other signs than letters, digits, `_`, `-` and `/` is quoted.
///
/// ```
/// use stealtime_lab::knobs::vm_knob;
/// assert_eq!(vm_knob("db-1", "cpu_weight"), "vm.db-1.cpu_weight");
/// assert_eq!(vm_knob("a.b", "cpu_weight"), r#"vm."a.b".cpu_weight"#);
/// ```
#[must_use]
pub fn vm_knob(vm: &str, knob: &str) -> String {
    format!("vm.{}.{knob}", quoted(vm))
}

/// A VM's name as names of knobs have it.
#[must_use]
pub fn quoted(vm: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '/');
    if !vm.is_empty() && vm.chars().all(is_plain) {
        return Cow::Borrowed(vm);
    }
    let mut text = String::from("\"");
    for c in vm.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\r' => text.push_str("\\r"),
            // Writing to a String cannot fail.
            c if c.is_control() => {
                let _ = write!(text, "\\u{:04x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push('"');
    Cow::Owned(text)
}

/// The name at the begin of a text in quotes, and the text behind them. `None` where it is none.
#[must_use]
pub fn unquote(text: &str) -> Option<(String, &str)> {
    let mut chars = text.strip_prefix('"')?.char_indices();
    let mut name = String::new();
    while let Some((index, c)) = chars.next() {
        match c {
            // Behind the first quote, which is one byte.
            '"' => return Some((name, &text[index + 2..])),
            '\\' => name.push(match chars.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'u' => code(&mut chars, 4)?,
                'U' => code(&mut chars, 8)?,
                c @ ('"' | '\\') => c,
                _ => return None,
            }),
            c => name.push(c),
        }
    }
    None
}

/// The character of so many hexadecimal digits.
fn code(chars: &mut std::str::CharIndices<'_>, digits: u32) -> Option<char> {
    let mut value = 0;
    for _ in 0..digits {
        value = value * 16 + chars.next()?.1.to_digit(16)?;
    }
    char::from_u32(value)
}

/// Where a sign is outside of quotes.
fn position(text: &str, sign: char) -> Option<usize> {
    let (mut in_quotes, mut is_escaped) = (false, false);
    for (index, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if in_quotes => is_escaped = true,
            '"' => in_quotes = !in_quotes,
            c if c == sign && !in_quotes => return Some(index),
            _ => {}
        }
    }
    None
}

/// Splits `KNOB=VALUE` at the first `=` outside of quotes.
///
/// ```
/// use stealtime_lab::knobs::split_setting;
/// let (knob, value) = split_setting(r#"vm."a=b".nice=5"#).expect("a setting");
/// assert_eq!((knob, value), (r#"vm."a=b".nice"#, "5"));
/// ```
#[must_use]
pub fn split_setting(text: &str) -> Option<(&str, &str)> {
    let index = position(text, '=').or_else(|| text.find('='))?;
    Some((&text[..index], &text[index + 1..]))
}

/// A line without its comment, which begins with a `#` outside of quotes.
#[must_use]
pub fn without_comment(line: &str) -> &str {
    &line[..position(line, '#').unwrap_or(line.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_comes_back() {
        let names = [
            "web",
            "a.b",
            "",
            "a\"b\\c",
            "x\ny\t\u{1b}[31m}",
            "ü/1",
            "a=b#c",
            "*",
            "\u{202e}",
        ];
        for name in names {
            let knob = vm_knob(name, "nice");
            let rest = knob.strip_prefix("vm.").expect("a VM's");
            match rest.starts_with('"') {
                true => assert_eq!(unquote(rest), Some((name.to_owned(), ".nice"))),
                false => assert_eq!(rest, format!("{name}.nice")),
            }
            assert!(!knob.contains(char::is_control), "{knob}");
            let setting = format!("{knob}=5");
            assert_eq!(split_setting(&setting), Some((&*knob, "5")));
        }
    }

    #[test]
    fn quotes_that_do_not_end_are_none() {
        for text in [
            "web",
            "\"",
            "\"a",
            "\"a\\\"",
            "\"\\x\"",
            "\"\\u00g0\"",
            "\"\\ud800\"",
        ] {
            assert_eq!(unquote(text), None, "{text}");
        }
        assert_eq!(split_setting("a\"=b"), Some(("a\"", "b")));
        assert_eq!(without_comment("a = 1 # b"), "a = 1 ");
    }
}
