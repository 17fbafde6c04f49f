//! Compiles a tracepoint's `print fmt` into the positions of its fields in the text.
//!
//! A field is found by the word before its conversion: `gsi: 0x%x` puts `gsi` behind the word `gsi`.
//! The text between such words differs between kernels, so it is not compared.

use crate::tracepoint::Tracepoint;

/// The notation of a field's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Notation {
    /// Decimal, or hexadecimal after `0x`.
    Number,
    /// `%x` and `%p`: hexadecimal, with or without `0x`.
    Hex,
    /// `%ps`: the name of a function.
    Symbol,
    /// `REC->field ? "a" : "b"`: the words for true and for false.
    Choice([&'static str; 2]),
    /// `__print_symbolic(REC->field, { 0, "a" }, …)`.
    Symbolic(Vec<(u32, &'static str)>),
}

/// The position and notation of a field in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Printed {
    /// `None` for a value without a word before it.
    pub(super) position: Option<Position>,
    pub(super) notation: Notation,
}

/// The text before a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    /// This word, and a space, `=` or `:`.
    Key(&'static str),
    /// The text begins with these letters, and the value follows them at once.
    Start(&'static str),
}

/// The position and notation of the field of this name in C. `None` for a field that is not printed, or
/// only as a part of an expression.
pub(super) fn printed(tracepoint: &Tracepoint, field: &str) -> Option<Printed> {
    let (format, arguments) = split(tracepoint.print)?;
    let mut rest = format;
    for argument in arguments {
        let (literal, conversion) = rest.split_once('%')?;
        let (conversion, following) = conversion_of(conversion)?;
        if let Some(notation) = notation(argument, field, literal, conversion) {
            let at_start = rest.len() == format.len();
            let position = position(literal, at_start);
            return Some(Printed { position, notation });
        }
        rest = following;
    }
    None
}

/// The format and its arguments, of `"format", argument, …`.
fn split(print: &'static str) -> Option<(&'static str, Vec<&'static str>)> {
    let (format, rest) = print.strip_prefix('"')?.split_once('"')?;
    let mut arguments = Vec::new();
    let (mut depth, mut quoted, mut start) = (0_u32, false, 0);
    for (offset, letter) in rest.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '{' => depth += 1,
            ')' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                arguments.push(rest.get(start..offset)?.trim());
                start = offset + 1;
            }
            _ => {}
        }
    }
    arguments.push(rest.get(start..)?.trim());
    // The first part is the end of the format.
    Some((format, arguments.split_off(1)))
}

/// The letters of a conversion, of the text behind its `%`, and what follows.
fn conversion_of(text: &'static str) -> Option<(&'static str, &'static str)> {
    let flags = |letter: char| letter.is_ascii_digit() || letter == 'l';
    let letters = text.trim_start_matches(flags);
    let pointers = letters.starts_with("ps") || letters.starts_with("pS");
    letters.split_at_checked(if pointers { 2 } else { 1 })
}

/// The notation of a field by its argument; `None` if that is another field or an expression.
fn notation(
    argument: &'static str,
    field: &str,
    literal: &str,
    conversion: &str,
) -> Option<Notation> {
    let argument = argument.trim_start_matches("(unsigned long long) ");
    if let Some(symbolic) = argument.strip_prefix("__print_symbolic(") {
        let (value, names) = symbolic.strip_suffix(')')?.split_once(", ")?;
        return is_field(value, field).then(|| symbols(names));
    }
    if let Some((value, words)) = argument.split_once(" ? ") {
        let (truth, falsehood) = words.split_once(" : ")?;
        let words = [truth.trim_matches('"'), falsehood.trim_matches('"')];
        return is_field(value, field).then_some(Notation::Choice(words));
    }
    if !is_field(argument, field) {
        return None;
    }
    Some(match conversion {
        "ps" | "pS" => Notation::Symbol,
        "p" => Notation::Hex,
        "x" if !literal.ends_with("0x") => Notation::Hex,
        _ => Notation::Number,
    })
}

fn is_field(value: &str, field: &str) -> bool {
    value.strip_prefix("REC->") == Some(field)
}

/// The table of `{ 0, "a" }, { 1, "b" }`.
fn symbols(names: &'static str) -> Notation {
    let pairs = names.split('{').filter_map(|pair| {
        let (number, name) = pair.split_once(", ")?;
        let name = name.strip_prefix('"')?.split_once('"')?.0;
        Some((number.trim().parse().ok()?, name))
    });
    Notation::Symbolic(pairs.collect())
}

/// The position of a value, by the literal before its conversion.
fn position(literal: &'static str, at_start: bool) -> Option<Position> {
    let literal = literal.strip_suffix("0x").unwrap_or(literal);
    let separated = literal.trim_end().trim_end_matches(['=', ':']);
    if separated.len() == literal.len() {
        return at_start.then_some(Position::Start(literal));
    }
    let word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let key = separated.rsplit(|letter| !word(letter)).next()?;
    (!key.is_empty()).then_some(Position::Key(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracepoint;

    fn field(tracepoint: &str, field: &str) -> Option<Printed> {
        let mut rows = tracepoint::all();
        printed(&rows.find(|row| row.name == tracepoint)?, field)
    }

    fn key(key: &'static str, notation: Notation) -> Option<Printed> {
        let position = Some(Position::Key(key));
        Some(Printed { position, notation })
    }

    #[test]
    fn each_conversion_has_an_argument() {
        for row in tracepoint::all().filter(|row| !row.is_read_only()) {
            let (format, arguments) = split(row.print).expect("a format");
            assert_eq!(format.matches('%').count(), arguments.len(), "{}", row.name);
        }
    }

    #[test]
    fn fields_are_behind_words() {
        let irte = |name| field("kvm_pi_irte_update", name);
        assert_eq!(irte("gsi"), key("gsi", Notation::Number));
        assert_eq!(irte("host_irq"), key("irq", Notation::Number));
        let words = ["enabled", "disabled"];
        assert_eq!(irte("set"), key("is", Notation::Choice(words)));
        let clock = vec![(0, "none"), (1, "tsc")];
        assert_eq!(
            field("kvm_track_tsc", "host_clock"),
            key("hostclock", Notation::Symbolic(clock))
        );
        let hex = key("apicid", Notation::Hex);
        assert_eq!(field("kvm_eoi", "apicid"), hex);
        let info = key("intr_info", Notation::Number);
        assert_eq!(field("kvm_exit", "intr_info"), info);
        let function = key("function", Notation::Symbol);
        assert_eq!(field("hrtimer_start", "function"), function);
        let expires = key("expires", Notation::Number);
        assert_eq!(field("hrtimer_start", "expires"), expires);
        let time = key("tsc_timestamp", Notation::Number);
        assert_eq!(field("kvm_pvclock_update", "tsc_timestamp"), time);
    }

    #[test]
    fn words_begin_a_text() {
        let start = |prefix, words| {
            let position = Some(Position::Start(prefix));
            let notation = Notation::Choice(words);
            Some(Printed { position, notation })
        };
        assert_eq!(field("kvm_pio", "rw"), start("pio_", ["write", "read"]));
        let waited = start("", ["wait", "poll"]);
        assert_eq!(field("kvm_vcpu_wakeup", "waited"), waited);
    }

    #[test]
    fn parts_of_a_field_are_left_to_functions() {
        assert_eq!(field("kvm_apic_ipi", "icr_low"), None);
        let ecx = field("kvm_msr", "ecx").map(|it| (it.position, it.notation));
        assert_eq!(ecx, Some((None, Notation::Hex)));
        assert_eq!(field("kvm_entry", "immediate_exit"), None);
    }
}
