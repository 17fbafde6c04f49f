//! What values knobs take.

use std::fmt;

use crate::nearest::suggestion;
use crate::units::{Plain, cpus, show_cpus, show_time, time};

/// What values a knob takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `Y` or `N`, `1` or `0`, `true` or `false`.
    Switch,
    /// A whole number.
    Number {
        /// The least.
        min: i64,
        /// The most.
        max: i64,
        /// Of what.
        unit: &'static str,
    },
    /// A time; a number without a unit is in ns.
    Time {
        /// The least, in ns.
        min: u64,
        /// The most, in ns.
        max: u64,
    },
    /// A time, or a word that stands for none.
    TimeOr {
        /// The word.
        word: &'static str,
        /// The least, in ns.
        min: u64,
        /// The most, in ns.
        max: u64,
    },
    /// CPUs, as the kernel lists them: `0-3,8`; empty for none.
    Cpus,
    /// One of these words.
    Choice(fn() -> Vec<&'static str>),
    /// Words that the setter understands.
    Words(&'static str),
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// On or off.
    Switch(bool),
    /// A whole number.
    Number(i64),
    /// A time in ns.
    Ns(u64),
    /// CPUs.
    Cpus(Vec<u32>),
    /// A word or several.
    Words(String),
}

/// `N` in ns, or `N` as text for `None`.
pub(crate) fn time_or(ns: Option<u64>, word: &str) -> Value {
    ns.map_or_else(|| Value::Words(word.to_owned()), Value::Ns)
}

impl Kind {
    /// Reads a value.
    ///
    /// # Errors
    ///
    /// What is wrong with the text, as a clause.
    pub fn read(&self, text: &str) -> Result<Value, String> {
        let text = text.trim();
        match *self {
            Self::Switch => match text {
                "Y" | "y" | "1" | "true" | "on" => Ok(Value::Switch(true)),
                "N" | "n" | "0" | "false" | "off" => Ok(Value::Switch(false)),
                _ => Err(format!("{text:?} is no switch: give true or false")),
            },
            Self::Number { min, max, unit } => match text.parse::<i64>() {
                Ok(number) if (min..=max).contains(&number) => Ok(Value::Number(number)),
                Ok(number) => Err(format!("{number} is not within {min} to {max}")),
                Err(_) if unit.is_empty() => Err(format!("{text:?} is no whole number")),
                Err(_) => Err(format!("{text:?} is no whole number (of {unit})")),
            },
            Self::Time { min, max } => within(time(text, Plain::Ns)?, min, max),
            Self::TimeOr { word, .. } if text == word => Ok(Value::Words(word.to_owned())),
            Self::TimeOr { min, max, word } => {
                let or = |problem| format!("{problem}, or {word:?}");
                within(time(text, Plain::Ns).map_err(or)?, min, max)
            }
            Self::Cpus => {
                let mut cpus = cpus(text)?;
                cpus.sort_unstable();
                cpus.dedup();
                Ok(Value::Cpus(cpus))
            }
            Self::Choice(words) => {
                let words = words();
                match words.contains(&text) {
                    true => Ok(Value::Words(text.to_owned())),
                    false => {
                        let help = suggestion(text, &words);
                        Err(format!("{text:?} is none of {}; {help}", words.join(", ")))
                    }
                }
            }
            Self::Words(_) => Ok(Value::Words(text.to_owned())),
        }
    }

    /// What a value looks like, for the reference.
    #[must_use]
    pub fn syntax(&self) -> String {
        match *self {
            Self::Switch => "true or false".to_owned(),
            Self::Number { min, max, unit } => {
                let unit = if unit.is_empty() {
                    String::new()
                } else {
                    format!(" {unit}")
                };
                format!("{min} to {max}{unit}")
            }
            Self::Time { min: 0, max } => format!("a time up to {}", show_time(max)),
            Self::Time { min, max } => format!("{} to {}", show_time(min), show_time(max)),
            Self::TimeOr { word, min, max } => {
                format!("{word}, or {} to {}", show_time(min), show_time(max))
            }
            Self::Cpus => "CPUs: 0-3,8".to_owned(),
            Self::Choice(words) => words().join(", "),
            Self::Words(syntax) => syntax.to_owned(),
        }
    }

    /// The kind as one word, for programs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Number { .. } => "number",
            Self::Time { .. } | Self::TimeOr { .. } => "time",
            Self::Cpus => "cpus",
            Self::Choice(_) => "choice",
            Self::Words(_) => "text",
        }
    }
}

fn within(ns: u64, min: u64, max: u64) -> Result<Value, String> {
    if (min..=max).contains(&ns) {
        return Ok(Value::Ns(ns));
    }
    let (ns, min, max) = (show_time(ns), show_time(min), show_time(max));
    Err(format!("{ns} is not within {min} to {max}"))
}

impl Value {
    fn not(&self, what: &str) -> String {
        format!("{self} is no {what}")
    }

    pub(crate) fn switch(&self) -> Result<bool, String> {
        match self {
            Self::Switch(on) => Ok(*on),
            _ => Err(self.not("switch")),
        }
    }

    /// The number as the field's type.
    pub(crate) fn number<T: TryFrom<i64>>(&self) -> Result<T, String> {
        match self {
            Self::Number(number) => T::try_from(*number).ok(),
            Self::Ns(ns) => i64::try_from(*ns).ok().and_then(|ns| T::try_from(ns).ok()),
            _ => None,
        }
        .ok_or_else(|| self.not("number of this size"))
    }

    pub(crate) fn cpus(&self) -> Result<Vec<u32>, String> {
        match self {
            Self::Cpus(cpus) => Ok(cpus.clone()),
            _ => Err(self.not("set of CPUs")),
        }
    }

    pub(crate) fn words(&self) -> Result<&str, String> {
        match self {
            Self::Words(words) => Ok(words),
            _ => Err(self.not("word")),
        }
    }

    /// The time, or `None` for the word of [`Kind::TimeOr`].
    pub(crate) fn ns_or(&self) -> Result<Option<u64>, String> {
        match self {
            Self::Ns(ns) => Ok(Some(*ns)),
            Self::Words(_) => Ok(None),
            _ => Err(self.not("time")),
        }
    }

    pub(crate) fn ns(&self) -> Result<u64, String> {
        match self {
            Self::Ns(ns) => Ok(*ns),
            _ => Err(self.not("time")),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(on) => on.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Ns(ns) => f.write_str(&show_time(*ns)),
            Self::Cpus(cpus) => f.write_str(&show_cpus(cpus)),
            Self::Words(words) => f.write_str(words),
        }
    }
}
