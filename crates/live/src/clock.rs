//! The trace clock.

use std::path::Path;

use stealtime_trace::write::raw::TscToNs;

use crate::{RecordError, perf};

/// The clock of which times are ticks of the TSC.
const TSC: &str = "x86-tsc";

/// A clock and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Its name in `trace_clock`.
    pub name: String,
    /// Why this one.
    pub reason: &'static str,
    /// What to know about it.
    pub warning: Option<String>,
    /// How its ticks become ns, where they do.
    pub tsc: Option<TscToNs>,
}

impl Choice {
    /// Adds the conversion of ticks, or a warning that there is none.
    pub(crate) fn with_conversion(mut self) -> Self {
        if self.name == TSC {
            let missing = match perf::tsc_to_ns() {
                Ok(tsc) => {
                    self.tsc = tsc;
                    "the kernel's clock is not the TSC".to_owned()
                }
                Err(error) => format!("perf_event_open: {error}"),
            };
            self.warning = self.tsc.is_none().then(|| {
                format!(
                    "the file has no conversion of TSC ticks to ns ({missing}); give the TSC's frequency to \
                     readers (--tsc-khz)"
                )
            });
        }
        self
    }
}

/// Clock sources that count ticks: `CLOCK_MONOTONIC` is as coarse as they are.
const COARSE: [&str; 2] = ["jiffies", "refined-jiffies"];
/// Clock sources that are read from a device, at about 1 us each time.
const SLOW: [&str; 3] = ["hpet", "acpi_pm", "pit"];

/// Clocks by preference. All CPUs share the first three, and time is in ns.
const ORDER: [(&str, &str); 4] = [
    (
        "mono",
        "CLOCK_MONOTONIC: shared by all CPUs, and the time of `perf record -k mono`, VMMs and logs",
    ),
    ("boot", "CLOCK_BOOTTIME: shared by all CPUs"),
    ("global", "ordered across CPUs"),
    ("local", "the only clock that this kernel offers"),
];

/// Chooses a clock among those of `trace_clock`, or takes the one asked for. `source` is the host's clock
/// source.
///
/// # Errors
/// The kernel has no clock of the name asked for.
pub fn choose(
    trace_clock: &str,
    source: Option<&str>,
    requested: Option<&str>,
) -> Result<Choice, RecordError> {
    let words = trace_clock.split_whitespace();
    let available: Vec<&str> = words.map(|word| word.trim_matches(['[', ']'])).collect();
    if let Some(name) = requested {
        return match available.contains(&name) {
            true => Ok(Choice {
                name: name.to_owned(),
                reason: "asked for",
                warning: None,
                tsc: None,
            }),
            false => Err(RecordError::NoClock {
                asked: name.to_owned(),
                available: available.into_iter().map(str::to_owned).collect(),
            }),
        };
    }
    let is_coarse = source.is_some_and(|source| COARSE.contains(&source));
    let usable = |name: &str| available.contains(&name) && !(is_coarse && name != "global");
    let found = ORDER.into_iter().find(|(name, _)| usable(name));
    let (name, reason) = found.unwrap_or(("local", "the only usable clock of this kernel"));
    let slow = source.filter(|source| SLOW.contains(source) && name != "local");
    let warning = slow.map(|source| {
        format!(
            "the host's clock source is {source}: each event takes about 1 us longer; see `dmesg | grep -i \
             tsc` for the reason"
        )
    });
    Ok(Choice {
        name: name.to_owned(),
        reason,
        warning,
        tsc: None,
    })
}

/// The host's clock source; `sys` is /sys.
pub(crate) fn source(sys: &Path) -> Option<String> {
    let file = "devices/system/clocksource/clocksource0/current_clocksource";
    let text = std::fs::read_to_string(sys.join(file)).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "[local] global counter uptime perf mono mono_raw boot tai x86-tsc\n";

    fn chosen(clocks: &str, source: &str) -> String {
        choose(clocks, Some(source), None).expect("a clock").name
    }

    #[test]
    fn the_order_is_that_of_the_page() {
        assert_eq!(chosen(ALL, "tsc"), "mono");
        assert_eq!(chosen(ALL, "jiffies"), "global");
        assert_eq!(chosen("[local] global counter", "tsc"), "global");
        assert_eq!(chosen("[local]", "tsc"), "local");
        let slow = choose(ALL, Some("hpet"), None).expect("a clock");
        assert!(slow.name == "mono" && slow.warning.is_some());
    }

    #[test]
    fn a_clock_that_is_asked_for_must_be_there() {
        let choice = choose(ALL, None, Some("boot")).expect("it is there");
        assert_eq!(choice.name, "boot");
        let error = choose("[local] mono", None, Some("tai")).expect_err("it is not");
        assert!(error.to_string().ends_with("it has local, mono"), "{error}");
    }
}
