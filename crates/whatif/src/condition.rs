//! Conditions on a recorded host: `[vm.NAME.]FIGURE OP VALUE`, in the grammar of `fit --limit`.

use std::fmt;

use serde::{Serialize, Serializer};
use stealtime_lab::knobs::{quoted, unquote};

use crate::capacity::{Parts, Side, quantity, write_quantity};
use crate::recorded::Recorded;
use crate::result::quantile;

/// What a condition is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// Ready time of a VM's vCPUs, in percent of their time.
    Ready,
    /// Of it, time for which the bandwidth of their control group is used up.
    Throttled,
    /// Median of the VM's wakeup latencies, in us.
    WakeupP50,
    /// 99th percentile of them, in us.
    WakeupP99,
    /// The longest single wait of a vCPU for a CPU, in us.
    Stall,
}

impl Watched {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Ready,
        Self::Throttled,
        Self::WakeupP50,
        Self::WakeupP99,
        Self::Stall,
    ];

    /// As a condition names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Throttled => "throttled",
            Self::WakeupP50 => "wakeup.p50",
            Self::WakeupP99 => "wakeup.p99",
            Self::Stall => "stall",
        }
    }

    /// Whether it is a time, in us; otherwise it is a share, in percent.
    #[must_use]
    pub const fn is_time(self) -> bool {
        !matches!(self, Self::Ready | Self::Throttled)
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

    /// Of a VM of a recording; `None` without a vCPU of it, or a sample.
    fn value(self, recorded: &Recorded, vm: usize) -> Option<f64> {
        let name = recorded.vms.get(vm)?;
        let answers = &recorded.answers;
        let vcpus = answers.vcpus.iter().filter(|time| time.vm == *name);
        let span: u64 = vcpus.clone().map(|time| time.span_ns).sum();
        let share = |ns: u64| (span > 0).then(|| ns as f64 / span as f64 * 100.0);
        match self {
            Self::Ready => share(
                vcpus
                    .map(|time| time.preempted_ns + time.wake_wait_ns)
                    .sum(),
            ),
            Self::Throttled => {
                let rows = answers.ready.iter().filter(|row| row.vm == *name);
                let throttled = rows.filter(|row| row.cause == "throttled");
                share(throttled.map(|row| row.ns).sum())
            }
            Self::WakeupP50 => wakeup(recorded, vm, 50),
            Self::WakeupP99 => wakeup(recorded, vm, 99),
            Self::Stall => {
                let mut rows = answers.waits.iter().filter(|row| row.vm == *name);
                rows.next().map(|row| row.max_ns as f64 / 1_000.0)
            }
        }
    }
}

fn wakeup(recorded: &Recorded, vm: usize, percent: usize) -> Option<f64> {
    let vcpus = recorded.times.vcpus.iter().filter(|time| time.vm == vm);
    let mut latencies: Vec<u64> = vcpus
        .flat_map(|time| time.wakeups.iter().copied())
        .collect();
    latencies.sort_unstable();
    Some(quantile(&latencies, percent)? as f64 / 1_000.0)
}

/// A condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// The VM; `None` for any VM.
    pub vm: Option<String>,
    /// What it is of.
    pub figure: Watched,
    /// On which side of its value it is met.
    pub side: Side,
    /// Its value, in percent or us.
    pub value: f64,
}

/// Why a text is no condition. Columns count characters from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// No comparison.
    #[error(
        "{0}: no comparison in it: expected FIGURE OP VALUE, such as 'vm.db.ready>10%' (in quotes, \
         because < and > are the shell's)"
    )]
    NoComparison(String),
    /// An unknown figure.
    #[error(
        "{text}: column 1: {name:?} is no figure: ready, throttled, wakeup.p50, wakeup.p99 or stall, \
         behind vm.NAME. if it is of one VM"
    )]
    NoFigure {
        /// The condition.
        text: String,
        /// What stands there.
        name: String,
    },
    /// No number.
    #[error("{text}: column {column}: {value:?} is no number with a unit: {expected}")]
    NoValue {
        /// The condition.
        text: String,
        /// Where it is.
        column: usize,
        /// What stands there.
        value: String,
        /// Examples.
        expected: &'static str,
    },
    /// A VM that does not run.
    #[error("{text}: there is no VM {vm:?}; there are: {known}")]
    NoVm {
        /// The condition.
        text: String,
        /// The name.
        vm: String,
        /// The VMs of the recording.
        known: String,
    },
}

/// A condition that is met.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Met {
    /// The condition.
    pub condition: Condition,
    /// The VM.
    pub vm: String,
    /// The value, in percent or us.
    pub value: f64,
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figure = self.condition.figure;
        let (name, value) = (figure.name(), figure.shown(self.value));
        write!(f, "{name} of {} is {value} ({})", self.vm, self.condition)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(vm) = &self.vm {
            write!(f, "vm.{}.", quoted(vm))?;
        }
        write!(f, "{}{}", self.figure.name(), self.side.sign())?;
        write_quantity(f, self.value, self.figure.is_time())
    }
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The VM before a figure's name: `vm.db.`, or as limits have it `db.`; quotes as in names of knobs.
fn vm_name(prefix: &str) -> Option<Option<String>> {
    if prefix.is_empty() {
        return Some(None);
    }
    let prefix = prefix.strip_suffix('.')?;
    let name = prefix.strip_prefix("vm.").unwrap_or(prefix);
    let name = match unquote(name) {
        Some((name, "")) => name,
        _ => name.to_owned(),
    };
    match name.as_str() {
        "" => None,
        "*" => Some(None),
        _ => Some(Some(name)),
    }
}

impl Condition {
    /// Parses `[vm.NAME.]FIGURE OP VALUE`.
    ///
    /// # Errors
    ///
    /// [`ConditionError`]
    pub fn parse(text: &str) -> Result<Self, ConditionError> {
        let missing = || ConditionError::NoComparison(text.to_owned());
        let parts = Parts::new(text).ok_or_else(missing)?;
        let found = Watched::ALL.into_iter().find_map(|figure| {
            let prefix = parts.subject.strip_suffix(figure.name())?;
            Some((figure, vm_name(prefix)?))
        });
        let (figure, vm) = found.ok_or_else(|| ConditionError::NoFigure {
            text: text.to_owned(),
            name: parts.subject.to_owned(),
        })?;
        let value = quantity(parts.value, figure.is_time());
        let value = value.ok_or_else(|| ConditionError::NoValue {
            text: text.to_owned(),
            column: parts.column(parts.value_begin),
            value: parts.value.to_owned(),
            expected: match figure.is_time() {
                true => "give 500us, 2ms or 0.1s",
                false => "give 5% or 0.5%",
            },
        })?;
        Ok(Self {
            vm,
            figure,
            side: parts.side,
            value,
        })
    }

    /// Refuses a condition on a VM that a recording has not: it could never be met.
    ///
    /// # Errors
    ///
    /// [`ConditionError::NoVm`]
    pub fn check_vm(&self, recorded: &Recorded) -> Result<(), ConditionError> {
        match &self.vm {
            Some(vm) if !recorded.vms.contains(vm) => Err(ConditionError::NoVm {
                text: self.to_string(),
                vm: vm.clone(),
                known: recorded.vms.join(", "),
            }),
            _ => Ok(()),
        }
    }

    /// The VMs of a recording that meet it.
    #[must_use]
    pub fn met(&self, recorded: &Recorded) -> Vec<Met> {
        let vms = recorded.vms.iter().enumerate();
        let met =
            vms.filter_map(|(vm, name)| self.met_by(name, |figure| figure.value(recorded, vm)));
        met.collect()
    }

    /// Whether a VM meets it. `value` has the VM's figures, in percent or us.
    pub fn met_by(&self, name: &str, value: impl Fn(Watched) -> Option<f64>) -> Option<Met> {
        let is_named = self.vm.as_ref().is_none_or(|vm| vm == name);
        let value = is_named.then(|| value(self.figure)).flatten()?;
        self.side.holds(value, self.value).then(|| Met {
            condition: self.clone(),
            vm: name.to_owned(),
            value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_as_limits_are() {
        let parse = |text: &str| Condition::parse(text).expect(text);
        let stall = parse("vm.db.stall > 20ms");
        assert_eq!((stall.vm.as_deref(), stall.value), (Some("db"), 20_000.0));
        assert_eq!(stall.figure, Watched::Stall);
        assert_eq!(parse("db.ready>10%"), parse("vm.db.ready>10%"));
        assert_eq!(parse("*.ready>10%"), parse("ready>10%"));
        let named = parse("vm.\"a.b>c\".wakeup.p99>=2ms");
        assert_eq!(named.vm.as_deref(), Some("a.b>c"));
        for text in [
            "ready>10%",
            "vm.db.wakeup.p99>=2ms",
            "vm.\"a.b\".throttled>0.5%",
            "stall>500us",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
        for (text, part) in [
            ("ready", "no comparison"),
            ("vm.db.steal>5%", "\"vm.db.steal\" is no figure"),
            (".ready>5%", "is no figure"),
            ("vm.ready>5", "no number with a unit: give 5%"),
            ("stall>20%", "column 7: \"20%\" is no number"),
            ("stall>nanms", "no number"),
        ] {
            let error = Condition::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
