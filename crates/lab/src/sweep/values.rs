//! What `--vary KNOB=VALUES` says.

use crate::document::{Notes, Table, parse};
use crate::knobs::split_setting;
use crate::units::{Plain, show_time, time};

/// The most values of a dimension.
const MOST: usize = 1_000_000;

/// A knob or a size, and its values as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Varied {
    /// The name.
    pub knob: String,
    /// At least one.
    pub values: Vec<String>,
}

/// Reads `KNOB=VALUES`: values separated by commas (in quotes where they hold commas themselves), a
/// TOML list, or ranges with both ends: `1..8`, `0..100+20`, `10us..640us*2`.
///
/// ```
/// use stealtime_lab::sweep::vary;
/// let varied = vary("kvm.halt_poll_ns=0,10us..80us*2").expect("five values");
/// assert_eq!(varied.knob, "kvm.halt_poll_ns");
/// assert_eq!(varied.values, ["0", "10us", "20us", "40us", "80us"]);
/// let varied = vary("host.nohz_full=[\"0-1,4\", \"none\"]").expect("a list");
/// assert_eq!(varied.values, ["0-1,4", "none"]);
/// ```
///
/// # Errors
///
/// [`VaryError`]
pub fn vary(text: &str) -> Result<Varied, VaryError> {
    let (knob, values) = split_setting(text).ok_or(VaryError::Syntax)?;
    let (knob, values) = (knob.trim(), values.trim());
    if knob.is_empty() {
        return Err(VaryError::NoKnob);
    }
    let mut expanded = Vec::new();
    if values.starts_with('[') {
        expanded = list(values)?;
    } else {
        for (value, is_quoted) in split(values)? {
            match is_quoted {
                false if value.contains("..") => range(&value, &mut expanded)?,
                _ => expanded.push(value),
            }
        }
    }
    match expanded.len() {
        0 => Err(VaryError::NoValues),
        count if count > MOST => Err(VaryError::TooMany),
        _ => Ok(Varied {
            knob: knob.to_owned(),
            values: expanded,
        }),
    }
}

/// Why a text does not vary a knob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VaryError {
    /// No `=`.
    #[error("expected KNOB=VALUE,VALUE…")]
    Syntax,
    /// Nothing before the `=`.
    #[error("the knob's name is missing before `=`")]
    NoKnob,
    /// An empty list.
    #[error("no values")]
    NoValues,
    /// More values than a sweep takes.
    #[error("more than {MOST} values")]
    TooMany,
    /// Brackets around something else.
    #[error("not a TOML list of values, such as [\"0-3,8\", \"none\"]")]
    NoList,
    /// A quote without an end.
    #[error("{0}: the quote does not end")]
    OpenQuote(String),
    /// Text after a value in quotes.
    #[error("{0:?} stands behind a value in quotes")]
    AfterQuote(String),
    /// Nothing between two commas.
    #[error("a value is missing (an empty one is \"\")")]
    EmptyValue,
    /// A range that is none.
    #[error("{range:?}{problem}")]
    Range {
        /// The range.
        range: String,
        /// What is wrong with it.
        problem: RangeProblem,
    },
}

/// What is wrong with a range of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeProblem {
    /// Its parts are no numbers or times.
    #[error(" is no range: give 1..8, 0..100+20 or 10us..640us*2")]
    Syntax,
    /// Times without a distance.
    #[error(": how far apart? add +STEP or *FACTOR")]
    NoStep,
    /// From a larger to a smaller value.
    #[error(" ends before it begins")]
    Reversed,
    /// A step of 0 or less.
    #[error(": the step must be above 0")]
    Step,
    /// A factor that does not grow.
    #[error(": from 1 on, and a factor of 2 or more")]
    Factor,
    /// More values than a sweep takes.
    #[error(": more than {MOST} values")]
    TooMany,
}

/// A TOML list of values.
fn list(text: &str) -> Result<Vec<String>, VaryError> {
    let document = format!("values = {text}\n");
    let parsed = parse("", &document).map_err(|_| VaryError::NoList)?;
    let mut notes = Notes::default();
    let mut table = Table::new("", 0..0, parsed.get_ref(), &mut notes);
    let item = table.take("values").ok_or(VaryError::NoList)?;
    let values = item.value.as_array().ok_or(VaryError::NoList)?.iter();
    let words = values.map(|value| crate::document::words(value.get_ref(), true));
    let words: Option<Vec<String>> = words.collect();
    match table.rest().is_empty() {
        true => words.ok_or(VaryError::NoList),
        false => Err(VaryError::NoList),
    }
}

/// Parts between commas; what is within quotes is a part as it is.
fn split(text: &str) -> Result<Vec<(String, bool)>, VaryError> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''));
        let part = if let Some(quote) = quote {
            let inner = rest.get(1..).unwrap_or_default();
            let (inner, after) = inner
                .split_once(quote)
                .ok_or_else(|| VaryError::OpenQuote(rest.to_owned()))?;
            rest = after.trim_start();
            if !rest.is_empty() && !rest.starts_with(',') {
                return Err(VaryError::AfterQuote(rest.to_owned()));
            }
            parts.push((inner.to_owned(), true));
            rest.strip_prefix(',')
        } else {
            let (part, after) = match rest.split_once(',') {
                Some((part, after)) => (part, Some(after)),
                None => (rest, None),
            };
            if part.trim().is_empty() {
                return Err(VaryError::EmptyValue);
            }
            parts.push((part.trim().to_owned(), false));
            after
        };
        match part {
            Some(after) => rest = after,
            None => return Ok(parts),
        }
    }
}

/// How a range goes on.
#[derive(Clone, Copy)]
enum Step {
    Add(i64),
    Times(i64),
}

/// Adds the values of `FROM..TO`, `FROM..TO+STEP` or `FROM..TO*FACTOR`, both ends included.
fn range(text: &str, values: &mut Vec<String>) -> Result<(), VaryError> {
    let wrong = |problem| VaryError::Range {
        range: text.to_owned(),
        problem,
    };
    let help = || wrong(RangeProblem::Syntax);
    let (first, rest) = text.split_once("..").ok_or_else(help)?;
    let (last, step) = match rest.find(['+', '*']) {
        Some(next) => rest.split_at(next),
        None => (rest, ""),
    };
    let is_time = last.trim().parse::<i64>().is_err();
    let number = |text: &str| -> Result<i64, VaryError> {
        let text = text.trim();
        // `0..100us+20us`: nothing has no unit.
        if let Ok(number) = text.parse::<i64>()
            && (!is_time || number == 0)
        {
            return Ok(number);
        }
        let ns = time(text, Plain::Refused).ok().filter(|_| is_time);
        ns.and_then(|ns| i64::try_from(ns).ok()).ok_or_else(help)
    };
    let (first, last) = (number(first)?, number(last)?);
    let step = match (step.get(..1), step.get(1..)) {
        (Some("+"), Some(by)) => Step::Add(number(by)?),
        (Some("*"), Some(by)) => Step::Times(by.trim().parse().map_err(|_| help())?),
        _ if is_time => return Err(wrong(RangeProblem::NoStep)),
        _ => Step::Add(1),
    };
    match step {
        _ if last < first => return Err(wrong(RangeProblem::Reversed)),
        Step::Add(by) if by < 1 => return Err(wrong(RangeProblem::Step)),
        Step::Times(by) if by < 2 || first < 1 => {
            return Err(wrong(RangeProblem::Factor));
        }
        _ => {}
    }
    let mut next = Some(first);
    while let Some(value) = next.filter(|next| *next <= last) {
        if values.len() > MOST {
            return Err(wrong(RangeProblem::TooMany));
        }
        values.push(match u64::try_from(value) {
            Ok(ns) if is_time => show_time(ns),
            _ => value.to_string(),
        });
        next = match step {
            Step::Add(by) => value.checked_add(by),
            Step::Times(by) => value.checked_mul(by),
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_split_and_counted_out() {
        for (text, values) in [
            ("k=1", &["1"][..]),
            ("k= a , b", &["a", "b"]),
            ("k=\"0-3,8\",none", &["0-3,8", "none"]),
            ("k='a,b' , \"\"", &["a,b", ""]),
            ("k=[1, true, 'x,y', [0, 2]]", &["1", "true", "x,y", "0,2"]),
            ("k=1..4", &["1", "2", "3", "4"]),
            ("k=-2..1", &["-2", "-1", "0", "1"]),
            ("k=0..100+40", &["0", "40", "80"]),
            ("k=1..8*2,100", &["1", "2", "4", "8", "100"]),
            ("k=100us..1ms*3", &["100us", "300us", "900us"]),
            ("k=1ms..2ms+500us", &["1ms", "1500us", "2ms"]),
            ("k=0..20us+10us", &["0ns", "10us", "20us"]),
            ("k=\"1..4\"", &["1..4"]),
        ] {
            let found = vary(text).expect(text);
            assert_eq!(found.knob, "k", "{text}");
            assert_eq!(found.values, values, "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, says) in [
            ("k", "expected KNOB"),
            ("=1", "name is missing"),
            ("k=", "a value is missing"),
            ("k=1,,2", "a value is missing"),
            ("k=\"1", "does not end"),
            ("k=\"1\"2", "behind a value"),
            ("k=8..1", "ends before"),
            ("k=1us..8us", "how far apart"),
            ("k=0..8*2", "from 1 on"),
            ("k=1..8*1", "factor of 2"),
            ("k=1..8+0", "above 0"),
            ("k=1..x", "is no range"),
            ("k=..", "is no range"),
            ("k=1us..5", "is no range"),
            ("k=0..9223372036854775807", "more than"),
            ("k=[1", "TOML list"),
            ("k=[]", "no values"),
            ("k=[1]\nx=2", "TOML list"),
            ("k=[{a=1}]", "TOML list"),
        ] {
            let error = vary(text).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z0-9.,*+\\[\\]\"'= -]{0,24}") {
            let _ = vary(&text);
            let _ = vary(&format!("k={text}"));
        }
    }
}
