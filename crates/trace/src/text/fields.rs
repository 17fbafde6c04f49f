//! Values in the text of an event, by their keys.
//!
//! The kernel and trace-cmd print a field as `key value`, `key=value` or `key: value`; the same key
//! serves for all of them.

use memchr::memmem::Finder;
use stealtime_events::VcpuId;

/// The text behind the word `key` and its separator.
pub(super) fn after<'a>(body: &'a [u8], key: &str) -> Option<&'a [u8]> {
    after_word(body, &Finder::new(key))
}

/// [`after`] of a compiled word.
pub(super) fn after_word<'a>(body: &'a [u8], word: &Finder<'_>) -> Option<&'a [u8]> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut searched = 0;
    loop {
        let start = searched + word.find(body.get(searched..)?)?;
        let rest = body.get(start + word.needle().len()..)?;
        let previous = start.checked_sub(1).and_then(|index| body.get(index));
        if !previous.is_some_and(|byte| is_word(*byte))
            && let Some((b' ' | b'=' | b':', value)) = rest.split_first()
        {
            return Some(value.trim_ascii_start());
        }
        searched = start + 1;
    }
}

/// Like [`after`], for the last such word: the name of a task may hold anything, and stands before the
/// numbers.
pub(super) fn after_last<'a>(body: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let mut found = after(body, key)?;
    while let Some(later) = after(found, key) {
        found = later;
    }
    Some(found)
}

/// Whether a field is printed as `key=value`: so trace-cmd prints events that it does not format.
pub(super) fn is_raw(body: &[u8], key: &str) -> bool {
    let Some(value) = after(body, key) else {
        return false;
    };
    let separator = body.len().checked_sub(value.len() + 1);
    separator.and_then(|index| body.get(index)) == Some(&b'=')
}

/// The number that these bytes begin with: decimal, perhaps negative, or hexadecimal after `0x`.
/// A number that goes on with letters is none.
pub(super) fn number(bytes: &[u8]) -> Option<i128> {
    let (negative, bytes) = match bytes.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, bytes),
    };
    let value = match bytes.strip_prefix(b"0x") {
        Some(digits) => radix(digits, 16)?,
        None => radix(bytes, 10)?,
    };
    Some(if negative { -value } else { value })
}

/// The hexadecimal number that these bytes begin with, with or without `0x`.
pub(super) fn bare_hex(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.strip_prefix(b"0x").unwrap_or(bytes);
    u64::try_from(radix(digits, 16)?).ok()
}

fn radix(bytes: &[u8], radix: u32) -> Option<i128> {
    let len = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_alphanumeric())
        .count();
    if !(1..=20).contains(&len) {
        return None;
    }
    bytes.get(..len)?.iter().try_fold(0_i128, |value, byte| {
        let digit = char::from(*byte).to_digit(radix)?;
        Some(value * i128::from(radix) + i128::from(digit))
    })
}

/// The number behind `key`, where it fits.
pub(super) fn int<T: TryFrom<i128>>(body: &[u8], key: &str) -> Option<T> {
    T::try_from(number(after(body, key)?)?).ok()
}

/// The number behind the last `key`, where it fits.
pub(super) fn int_last<T: TryFrom<i128>>(body: &[u8], key: &str) -> Option<T> {
    T::try_from(number(after_last(body, key)?)?).ok()
}

/// A number that the kernel prints in hexadecimal without `0x`. So does trace-cmd, unless it fails to
/// parse the event's `print fmt`.
pub(super) fn hex<T: TryFrom<u64>>(body: &[u8], key: &str) -> Option<T> {
    let value = after(body, key)?;
    let value = if body.starts_with(b"[FAILED TO PARSE]") {
        u64::try_from(number(value)?).ok()?
    } else {
        bare_hex(value)?
    };
    T::try_from(value).ok()
}

/// The word behind `key`, up to a space or comma.
pub(super) fn word<'a>(body: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let value = after(body, key)?;
    let ends = |byte: &u8| matches!(byte, b' ' | b',');
    value.get(..value.iter().position(ends).unwrap_or(value.len()))
}

/// The number that these bytes begin with; `true` is 1, `false` 0.
pub(super) fn number_or_bool(bytes: &[u8]) -> Option<i128> {
    match bytes {
        [b't', b'r', b'u', b'e', ..] => Some(1),
        [b'f', b'a', b'l', b's', b'e', ..] => Some(0),
        _ => number(bytes),
    }
}

/// The number in a table of names, where a name (or a number) begins `value`.
pub(super) fn named(value: &[u8], table: &[(u32, &str)]) -> Option<u32> {
    let ends = |byte: &u8| matches!(byte, b'|' | b')' | b' ' | b',');
    let value = value.get(..value.iter().position(ends).unwrap_or(value.len()))?;
    let known = table.iter().find(|(_, name)| name.as_bytes() == value);
    match known {
        Some((number, _)) => Some(*number),
        None => u32::try_from(number(value)?).ok(),
    }
}

/// The parts of `(a|b|c)`, the first pair of parentheses of the body.
pub(super) fn parts<'a>(body: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let open = memchr::memchr(b'(', body).map_or(body.len(), |open| open + 1);
    let inner = body.get(open..).unwrap_or_default();
    let close = memchr::memchr(b')', inner).unwrap_or(inner.len());
    inner
        .get(..close)
        .unwrap_or_default()
        .split(|byte| *byte == b'|')
}

/// A function's name without its offset (`f+0x0/0x10`, `f/0x0`); nothing for a null pointer.
pub(super) fn symbol(value: &[u8]) -> &[u8] {
    let ends = |byte: &u8| matches!(byte, b'+' | b'/' | b' ' | b',');
    let name = value.get(..value.iter().position(ends).unwrap_or(value.len()));
    let name = name.unwrap_or_default();
    let null = name == b"(nil)" || name == b"(null)" || number(name) == Some(0);
    if null { &[] } else { name }
}

/// The vCPU, [`VcpuId::UNKNOWN`] where the text lacks it; `None` for a number out of range.
pub(super) fn vcpu_if_printed(body: &[u8]) -> Option<VcpuId> {
    match after(body, "vcpu") {
        Some(value) => Some(VcpuId(number(value)?.try_into().ok()?)),
        None => Some(VcpuId::UNKNOWN),
    }
}
