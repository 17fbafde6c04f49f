//! Limits: `FIGURE OP VALUE`, of one VM or of each.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::capacity::HostVm;
use crate::capacity::error::FitError;

/// What a limit is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Ready time of a VM's vCPUs, in percent of their time.
    Ready,
    /// Median of its wakeup latencies, in us.
    WakeupP50,
    /// 99th percentile of them, in us.
    WakeupP99,
    /// Its work per second, in percent of its work alone on the host.
    Work,
    /// CPU time of the host on exits, in percent of its CPUs' time.
    Overhead,
}

impl Figure {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Ready,
        Self::WakeupP50,
        Self::WakeupP99,
        Self::Work,
        Self::Overhead,
    ];

    /// As a limit names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::WakeupP50 => "wakeup.p50",
            Self::WakeupP99 => "wakeup.p99",
            Self::Work => "work",
            Self::Overhead => "overhead",
        }
    }

    /// Whether it is a time, in us; otherwise it is a share, in percent.
    #[must_use]
    pub const fn is_time(self) -> bool {
        matches!(self, Self::WakeupP50 | Self::WakeupP99)
    }

    /// Whether more VMs raise it; otherwise they lower it.
    #[must_use]
    pub const fn rises(self) -> bool {
        !matches!(self, Self::Work)
    }

    /// A value with its unit: `7.1 %`, `2.30 ms`.
    #[must_use]
    pub fn shown(self, value: f64) -> String {
        match (self.is_time(), value) {
            (false, _) => format!("{value:.1} %"),
            (true, us) if us >= 1_000.0 => format!("{:.2} ms", us / 1_000.0),
            (true, us) => format!("{us:.0} us"),
        }
    }
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// On which side of its value a limit holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `<`
    Below,
    /// `<=`
    AtMost,
    /// `>`
    Above,
    /// `>=`
    AtLeast,
}

impl Side {
    pub(crate) const fn sign(self) -> &'static str {
        match self {
            Self::Below => "<",
            Self::AtMost => "<=",
            Self::Above => ">",
            Self::AtLeast => ">=",
        }
    }

    const fn is_upper(self) -> bool {
        matches!(self, Self::Below | Self::AtMost)
    }

    /// Whether a value is on this side of a bound.
    pub(crate) fn holds(self, value: f64, bound: f64) -> bool {
        match self {
            Self::Below => value < bound,
            Self::AtMost => value <= bound,
            Self::Above => value > bound,
            Self::AtLeast => value >= bound,
        }
    }
}

/// A limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// The VM; `None` for each VM.
    pub vm: Option<String>,
    /// What it is of.
    pub figure: Figure,
    /// Where it holds.
    pub side: Side,
    /// Its value, in percent or us.
    pub value: f64,
}

/// Why a text is no limit. Columns count characters from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// No comparison.
    #[error(
        "--limit {0}: no comparison in it: expected FIGURE OP VALUE, such as 'ready<5%' (in quotes, \
         because < and > are the shell's)"
    )]
    NoComparison(String),
    /// An unknown figure.
    #[error(
        "--limit {text}: column {column}: {name:?} is no figure: ready, wakeup.p50, wakeup.p99, work or \
         overhead, behind the name of a VM and a dot if it is of one VM"
    )]
    NoFigure {
        /// The option.
        text: String,
        /// Where it is.
        column: usize,
        /// What stands there.
        name: String,
    },
    /// A limit of the host that names a VM.
    #[error("--limit {text}: column {column}: overhead is the host's, not that of VM {vm}")]
    OfHost {
        /// The option.
        text: String,
        /// Where the VM is.
        column: usize,
        /// The VM.
        vm: String,
    },
    /// No number.
    #[error("--limit {text}: column {column}: {value:?} is no number with a unit: {expected}")]
    NoValue {
        /// The option.
        text: String,
        /// Where it is.
        column: usize,
        /// What stands there.
        value: String,
        /// Examples.
        expected: &'static str,
    },
    /// A value that no replay can be on the right side of.
    #[error("--limit {text}: column {column}: {reason}")]
    NoRoom {
        /// The option.
        text: String,
        /// Where the value is.
        column: usize,
        /// Why it cannot hold.
        reason: &'static str,
    },
    /// A limit from the side on which every count holds.
    #[error(
        "--limit {text}: column {column}: more VMs {change} {figure}, so that it is limited from \
         {side}: {example}"
    )]
    WrongSide {
        /// The option.
        text: String,
        /// Where the comparison is.
        column: usize,
        /// `raise` or `lower`.
        change: &'static str,
        /// The figure.
        figure: &'static str,
        /// `above` or `below`.
        side: &'static str,
        /// The limit the other way round.
        example: String,
    },
    /// Two limits that exclude each other.
    #[error("--limit {first} and --limit {second} contradict: no value of {figure} meets both")]
    Contradiction {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// Their figure.
        figure: &'static str,
    },
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(vm) = &self.vm {
            write!(f, "{vm}.")?;
        }
        write!(f, "{}{}", self.figure.name(), self.side.sign())?;
        write_quantity(f, self.value, self.figure.is_time())
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A limit's or a condition's text, cut at its comparison.
pub(crate) struct Parts<'t> {
    text: &'t str,
    pub(crate) subject: &'t str,
    pub(crate) side: Side,
    side_begin: usize,
    pub(crate) value: &'t str,
    pub(crate) value_begin: usize,
}

/// Writes what [`quantity`] reads: us for a time, percent for a share.
pub(crate) fn write_quantity(f: &mut fmt::Formatter<'_>, value: f64, is_time: bool) -> fmt::Result {
    match (is_time, value) {
        (false, percent) => write!(f, "{percent}%"),
        (true, us) if us >= 1_000.0 => write!(f, "{}ms", us / 1_000.0),
        (true, us) => write!(f, "{us}us"),
    }
}

/// A number with a unit, in us for a time and in percent for a share.
pub(crate) fn quantity(text: &str, is_time: bool) -> Option<f64> {
    let units: &[(&str, f64)] = match is_time {
        true => &[("ns", 0.001), ("us", 1.0), ("ms", 1_000.0), ("s", 1e6)],
        false => &[("%", 1.0)],
    };
    units.iter().find_map(|(unit, scale)| {
        let number = text.strip_suffix(unit)?.trim();
        // `inf` and `nan` are numbers to the parser.
        let is_plain = number.chars().all(|c| c.is_ascii_digit() || c == '.');
        let number: f64 = number.parse().ok().filter(|_| is_plain)?;
        Some(number * scale)
    })
}

impl<'t> Parts<'t> {
    /// `None` without a comparison.
    pub(crate) fn new(text: &'t str) -> Option<Self> {
        // A VM's name may have any character, so that the last comparison counts.
        let begin = text.rfind(['<', '>'])?;
        let (subject, comparison) = text.split_at(begin);
        let sides = [Side::AtMost, Side::AtLeast, Side::Below, Side::Above];
        let mut found = sides.into_iter();
        let side = found.find(|side| comparison.starts_with(side.sign()))?;
        let value_begin = begin + side.sign().len();
        Some(Self {
            text,
            subject: subject.trim(),
            side,
            side_begin: begin,
            value: text[value_begin..].trim(),
            value_begin,
        })
    }

    /// The column of a byte.
    pub(crate) fn column(&self, byte: usize) -> usize {
        self.text[..byte].chars().count() + 1
    }

    /// The VM, if one is named, and the figure.
    fn subject(&self) -> Result<(Option<String>, Figure), LimitError> {
        for figure in Figure::ALL {
            let Some(prefix) = self.subject.strip_suffix(figure.name()) else {
                continue;
            };
            if prefix.is_empty() {
                return Ok((None, figure));
            }
            let Some(vm) = prefix.strip_suffix('.').filter(|vm| !vm.is_empty()) else {
                continue;
            };
            let quoted = vm.strip_prefix('"').and_then(|vm| vm.strip_suffix('"'));
            let vm = quoted.unwrap_or(vm).to_owned();
            if figure == Figure::Overhead {
                return Err(LimitError::OfHost {
                    text: self.text.to_owned(),
                    column: 1,
                    vm,
                });
            }
            return Ok(((vm != "*").then_some(vm), figure));
        }
        Err(LimitError::NoFigure {
            text: self.text.to_owned(),
            column: 1,
            name: self.subject.to_owned(),
        })
    }

    /// The value, in percent or us.
    fn value(&self, figure: Figure) -> Result<f64, LimitError> {
        quantity(self.value, figure.is_time()).ok_or_else(|| LimitError::NoValue {
            text: self.text.to_owned(),
            column: self.column(self.value_begin),
            value: self.value.to_owned(),
            expected: match figure.is_time() {
                true => "give 500us, 2ms or 0.1s",
                false => "give 5% or 0.5%",
            },
        })
    }
}

impl Limit {
    /// Parses `[VM.]FIGURE OP VALUE`.
    ///
    /// # Errors
    ///
    /// [`LimitError`] with the column.
    pub fn parse(text: &str) -> Result<Self, LimitError> {
        let parts = Parts::new(text).ok_or_else(|| LimitError::NoComparison(text.to_owned()))?;
        let (vm, figure) = parts.subject()?;
        let value = parts.value(figure)?;
        let limit = Self {
            vm,
            figure,
            side: parts.side,
            value,
        };
        let no_room = |reason| LimitError::NoRoom {
            text: text.to_owned(),
            column: parts.column(parts.value_begin),
            reason,
        };
        match (limit.side, limit.figure.is_time()) {
            (Side::Below, _) if value <= 0.0 => Err(no_room("nothing is less than 0")),
            (Side::Above, false) if value >= 100.0 => Err(no_room("no share is more than 100 %")),
            (Side::AtLeast, false) if value > 100.0 => Err(no_room("no share is more than 100 %")),
            _ => Ok(limit),
        }
    }

    /// Parses all, and looks at them together.
    ///
    /// # Errors
    ///
    /// [`LimitError`]: of one limit, or of two that contradict.
    pub fn parse_all(texts: &[String]) -> Result<Vec<Self>, LimitError> {
        let limits = texts.iter().map(|text| Self::parse(text));
        let limits: Vec<Self> = limits.collect::<Result<_, _>>()?;
        for (index, limit) in limits.iter().enumerate() {
            let mut earlier = limits.iter().take(index);
            if let Some(first) = earlier.find(|first| first.contradicts(limit)) {
                return Err(LimitError::Contradiction {
                    first: first.to_string(),
                    second: limit.to_string(),
                    figure: limit.figure.name(),
                });
            }
        }
        for (limit, text) in limits.iter().zip(texts) {
            limit.check_side(text)?;
        }
        Ok(limits)
    }

    /// Whether no value of a figure of some VM meets both.
    fn contradicts(&self, limit: &Self) -> bool {
        let same_vm = match (&self.vm, &limit.vm) {
            (Some(vm), Some(name)) => vm == name,
            _ => true,
        };
        if self.figure != limit.figure || !same_vm || self.side.is_upper() == limit.side.is_upper()
        {
            return false;
        }
        let (upper, lower) = match self.side.is_upper() {
            true => (self, limit),
            false => (limit, self),
        };
        let touch = upper.side == Side::AtMost && lower.side == Side::AtLeast;
        upper.value < lower.value || upper.value == lower.value && !touch
    }

    /// A limit on the side where more VMs never cross it bounds no count.
    fn check_side(&self, text: &str) -> Result<(), LimitError> {
        if self.figure.rises() == self.side.is_upper() {
            return Ok(());
        }
        let turned = Self {
            side: match self.side {
                Side::Below => Side::Above,
                Side::AtMost => Side::AtLeast,
                Side::Above => Side::Below,
                Side::AtLeast => Side::AtMost,
            },
            ..self.clone()
        };
        let parts = Parts::new(text).ok_or_else(|| LimitError::NoComparison(text.to_owned()))?;
        Err(LimitError::WrongSide {
            text: text.to_owned(),
            column: parts.column(parts.side_begin),
            change: if self.figure.rises() {
                "raise"
            } else {
                "lower"
            },
            figure: self.figure.name(),
            side: if self.figure.rises() {
                "above"
            } else {
                "below"
            },
            example: turned.to_string(),
        })
    }

    /// Whether it is of a VM of this name.
    #[must_use]
    pub fn is_for(&self, vm: &str) -> bool {
        self.figure != Figure::Overhead && self.vm.as_deref().is_none_or(|named| named == vm)
    }

    /// Whether it is held against a VM that it is for. An elastic one is always ready: it is judged only
    /// if it is named.
    pub(crate) const fn judges(&self, is_elastic: bool) -> bool {
        self.vm.is_some() || !is_elastic
    }

    /// Checks that it bounds the count of some VM; `vms` are those that it is for.
    pub(crate) fn check_bounds(&self, vms: &[&HostVm]) -> Result<(), FitError> {
        if self.figure == Figure::Overhead {
            return Ok(());
        }
        let mut judged = vms
            .iter()
            .filter(|vm| self.judges(vm.is_elastic))
            .peekable();
        if let (None, Some(elastic)) = (judged.peek(), vms.first()) {
            return Err(FitError::AllElastic(Self {
                vm: Some(elastic.name.clone()),
                figure: Figure::Work,
                side: Side::Above,
                value: 50.0,
            }));
        }
        if judged.any(|vm| vm.has(self.figure)) {
            return Ok(());
        }
        let lack = match (&self.vm, self.figure) {
            (Some(vm), Figure::Work) => format!("VM {vm:?} does no work"),
            (Some(vm), _) => format!("VM {vm:?} never wakes up"),
            (None, Figure::Work) => "no VM does work".to_owned(),
            (None, _) => "no VM wakes up".to_owned(),
        };
        Err(FitError::NoFigure {
            limit: self.clone(),
            lack,
        })
    }

    /// Whether a value meets it.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        self.side.holds(value, self.value)
    }

    /// The value moved by `band` towards breaking the limit.
    #[must_use]
    pub fn at_worst(&self, value: f64, band: f64) -> f64 {
        match self.figure.rises() {
            true => value + band,
            false => value - band,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(text: &str) -> Limit {
        Limit::parse(text).expect(text)
    }

    fn refused(texts: &[&str]) -> String {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let limits = Limit::parse_all(&texts);
        limits.map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn a_limit_is_a_figure_a_comparison_and_a_value() {
        let ready = limit("ready<5%");
        assert_eq!(ready.figure, Figure::Ready);
        assert_eq!((ready.vm.as_deref(), ready.value), (None, 5.0));
        let p99 = limit("db.wakeup.p99 <= 2ms");
        assert_eq!(p99.figure, Figure::WakeupP99);
        assert_eq!((p99.vm.as_deref(), p99.value), (Some("db"), 2_000.0));
        assert_eq!(limit("work>=98%").side, Side::AtLeast);
        assert_eq!(limit("*.ready<5%").vm, None);
        assert_eq!(limit("\"a<b.c\".ready<5%").vm.as_deref(), Some("a<b.c"));
        for text in [
            "ready<5%",
            "db.wakeup.p99<=2ms",
            "work>98%",
            "overhead<0.5%",
        ] {
            assert_eq!(limit(text).to_string(), text);
        }
    }

    #[test]
    fn errors_say_where_and_what() {
        for (text, part) in [
            ("ready", "no comparison"),
            ("", "no comparison"),
            ("steal<5%", "column 1: \"steal\" is no figure"),
            (".ready<5%", "column 1: \".ready\" is no figure"),
            ("<5%", "column 1: \"\" is no figure"),
            (
                "ready<5",
                "column 7: \"5\" is no number with a unit: give 5%",
            ),
            ("ready<nan%", "column 7: \"nan%\" is no number"),
            ("ready<-1%", "column 7: \"-1%\" is no number"),
            ("ready<", "column 7: \"\" is no number"),
            (
                "é.wakeup.p99<5%",
                "column 14: \"5%\" is no number with a unit: give 500us",
            ),
            ("ready<0%", "column 7: nothing is less than 0"),
            ("work>100%", "column 6: no share is more than 100 %"),
            ("db.overhead<1%", "the host's, not that of VM db"),
            (
                "ready>5%",
                "column 6: more VMs raise ready, so that it is limited from above: ready<5%",
            ),
            (
                "work<=50%",
                "column 5: more VMs lower work, so that it is limited from below: work>=50%",
            ),
        ] {
            let error = refused(&[text]);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn limits_that_exclude_each_other_are_refused_together() {
        let error = refused(&["work>98%", "db.work<50%"]);
        assert!(
            error.contains("--limit work>98% and --limit db.work<50% contradict"),
            "{error}"
        );
        assert!(refused(&["ready<5%", "ready>=5%"]).contains("contradict"));
        // Both of one side: the stricter one decides.
        assert_eq!(refused(&["ready<5%", "db.ready<3%"]), "");
        assert!(!refused(&["a.ready<5%", "b.ready>9%"]).contains("contradict"));
    }
}
