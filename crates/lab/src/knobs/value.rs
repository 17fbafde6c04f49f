//! What values knobs take.

use std::fmt;

use crate::spelling::suggestion;
use crate::units::{CpuListError, Plain, TimeError, cpus, show_cpus, show_time, time};

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

/// Why a value is none of a knob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Neither on nor off.
    #[error("{0:?} is no switch: give true or false")]
    NoSwitch(String),
    /// A number or a time that is too small or too large.
    #[error("{value} is not within {min} to {max}")]
    OutOfRange {
        /// The value.
        value: String,
        /// The least.
        min: String,
        /// The greatest.
        max: String,
    },
    /// No whole number; the second is its unit in brackets, if it has one.
    #[error("{0:?} is no whole number{1}")]
    NoNumber(String, String),
    /// No time.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// Neither a time nor the word for none.
    #[error("{error}, or {word:?}")]
    TimeOr {
        /// Why it is no time.
        error: TimeError,
        /// The word.
        word: &'static str,
    },
    /// No CPUs.
    #[error(transparent)]
    Cpus(#[from] CpuListError),
    /// An empty list of CPUs where one is needed.
    #[error("no CPUs: give 0-3, 1:1 0-3, or none")]
    NoCpus,
    /// None of the words.
    #[error("{word:?} is none of {known}; {help}")]
    NoChoice {
        /// The word.
        word: String,
        /// All words.
        known: String,
        /// The closest one, or where they are listed.
        help: String,
    },
    /// A word without a meaning.
    #[error("{0:?} is not known")]
    UnknownWord(String),
    /// No feature of the scheduler.
    #[error("no feature {name}; {help}")]
    NoFeature {
        /// The name.
        name: String,
        /// The closest one.
        help: String,
    },
    /// No quota with a period.
    #[error("{0:?}: give a quota and a period, such as 50ms 100ms")]
    NoQuota(String),
    /// Beyond 64 bits of ns.
    #[error("{0} us is too long")]
    TooLong(String),
    /// A value of another kind.
    #[error("{value} is no {kind}")]
    WrongKind {
        /// The value.
        value: String,
        /// What the knob takes.
        kind: &'static str,
    },
    /// A detail of what is off.
    #[error("only with {0}")]
    Requires(&'static str),
    /// No knob of a task.
    #[error("a task has no knob {key:?}; {help}")]
    NoTaskKnob {
        /// What follows the task's name.
        key: String,
        /// The closest one.
        help: String,
    },
    /// No value of a workload's parameter.
    #[error("{0}")]
    Parameter(String),
}

impl ValueError {
    /// The text with quotes: it need not be a number.
    pub(crate) fn out_of_range(text: &str, min: impl ToString, max: impl ToString) -> Self {
        Self::OutOfRange {
            value: format!("{text:?}"),
            min: min.to_string(),
            max: max.to_string(),
        }
    }
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
    /// [`ValueError`]
    pub fn read(&self, text: &str) -> Result<Value, ValueError> {
        let text = text.trim();
        match *self {
            Self::Switch => match text {
                "Y" | "y" | "1" | "true" | "on" => Ok(Value::Switch(true)),
                "N" | "n" | "0" | "false" | "off" => Ok(Value::Switch(false)),
                _ => Err(ValueError::NoSwitch(text.to_owned())),
            },
            Self::Number { min, max, unit } => match text.parse::<i64>() {
                Ok(number) if (min..=max).contains(&number) => Ok(Value::Number(number)),
                Ok(number) => Err(ValueError::OutOfRange {
                    value: number.to_string(),
                    min: min.to_string(),
                    max: max.to_string(),
                }),
                Err(_) => {
                    let unit = match unit.is_empty() {
                        true => String::new(),
                        false => format!(" (of {unit})"),
                    };
                    Err(ValueError::NoNumber(text.to_owned(), unit))
                }
            },
            Self::Time { min, max } => within(time(text, Plain::Ns)?, min, max),
            Self::TimeOr { word, .. } if text == word => Ok(Value::Words(word.to_owned())),
            Self::TimeOr { min, max, word } => {
                let time_or = |error| ValueError::TimeOr { error, word };
                within(time(text, Plain::Ns).map_err(time_or)?, min, max)
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
                        Err(ValueError::NoChoice {
                            word: text.to_owned(),
                            known: words.join(", "),
                            help,
                        })
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

fn within(ns: u64, min: u64, max: u64) -> Result<Value, ValueError> {
    if (min..=max).contains(&ns) {
        return Ok(Value::Ns(ns));
    }
    Err(ValueError::OutOfRange {
        value: show_time(ns),
        min: show_time(min),
        max: show_time(max),
    })
}

impl Value {
    fn not(&self, kind: &'static str) -> ValueError {
        ValueError::WrongKind {
            value: self.to_string(),
            kind,
        }
    }

    pub(crate) fn switch(&self) -> Result<bool, ValueError> {
        match self {
            Self::Switch(on) => Ok(*on),
            _ => Err(self.not("switch")),
        }
    }

    /// The number as the field's type.
    pub(crate) fn number<T: TryFrom<i64>>(&self) -> Result<T, ValueError> {
        match self {
            Self::Number(number) => T::try_from(*number).ok(),
            Self::Ns(ns) => i64::try_from(*ns).ok().and_then(|ns| T::try_from(ns).ok()),
            _ => None,
        }
        .ok_or_else(|| self.not("number of this size"))
    }

    pub(crate) fn cpus(&self) -> Result<Vec<u32>, ValueError> {
        match self {
            Self::Cpus(cpus) => Ok(cpus.clone()),
            _ => Err(self.not("set of CPUs")),
        }
    }

    pub(crate) fn words(&self) -> Result<&str, ValueError> {
        match self {
            Self::Words(words) => Ok(words),
            _ => Err(self.not("word")),
        }
    }

    /// The time, or `None` for the word of [`Kind::TimeOr`].
    pub(crate) fn ns_or(&self) -> Result<Option<u64>, ValueError> {
        match self {
            Self::Ns(ns) => Ok(Some(*ns)),
            Self::Words(_) => Ok(None),
            _ => Err(self.not("time")),
        }
    }

    pub(crate) fn ns(&self) -> Result<u64, ValueError> {
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
