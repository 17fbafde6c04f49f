//! Predicted next to true counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use stealtime_whatif::capacity::Curve;

use super::drawn::DrawnHost;
use super::truth::{MOST, Truth};

/// Fewer looks of CPUs that run out of tasks do not show how often they look.
const FEW_LOOKS: u64 = 10;

/// Truth and prediction of a host.
pub struct Row {
    pub seed: u64,
    cpus: u32,
    vms: String,
    counted: &'static str,
    limits: String,
    truth: u32,
    predicted: u32,
    least: u32,
    greatest: u32,
    /// How often the recording shows whether a CPU that runs out of tasks looks for others.
    looks: u64,
    /// True and predicted figures by count.
    figures: Vec<String>,
}

impl Row {
    pub fn new(host: &DrawnHost, truth: &Truth, largest: u32, curve: &Curve, looks: u64) -> Self {
        let figures = truth.figures.iter().zip(1..).map(|(shown, count)| {
            let values = truth.values[count as usize - 1].iter();
            let values: Vec<String> = values.map(|value| format!("{value:.1}")).collect();
            let checks = curve.point(count).map(|point| {
                let checks = point.checks.iter().map(|check| {
                    let half = check.value.half_width.unwrap_or(0.0);
                    format!("{:.1} ±{half:.1}", check.value.mean)
                });
                checks.collect::<Vec<_>>().join(", ")
            });
            let checks = checks.unwrap_or_default();
            format!(
                "  {count}: {shown}; true {}; predicted {checks}",
                values.join(", ")
            )
        });
        Self {
            least: curve.least,
            greatest: curve.greatest,
            looks,
            figures: figures.collect(),
            // No more than are asked for.
            ..Self::of_count(host, largest, curve.largest.unwrap_or(0).min(MOST + 1))
        }
    }

    /// The count that other runs of the host give.
    pub fn of_runs(host: &DrawnHost, largest: u32, again: &Truth) -> Self {
        Self::of_count(host, largest, again.largest.unwrap_or(0))
    }

    /// A count without interval and figures.
    fn of_count(host: &DrawnHost, largest: u32, predicted: u32) -> Self {
        Self {
            seed: host.seed,
            cpus: host.cpus(),
            vms: host.shown(),
            counted: host.counted().name(),
            limits: host.limits.join(" "),
            truth: largest,
            predicted,
            least: predicted,
            greatest: predicted,
            looks: 0,
            figures: Vec::new(),
        }
    }

    const fn is_exact(&self) -> bool {
        self.truth == self.predicted
    }

    const fn is_within_one(&self) -> bool {
        self.truth.abs_diff(self.predicted) <= 1
    }

    const fn is_in_interval(&self) -> bool {
        self.least <= self.truth && self.truth <= self.greatest
    }

    pub fn line(&self) -> String {
        let word = match (self.is_exact(), self.is_within_one()) {
            (true, _) => "exact",
            (_, true) => "one off",
            _ => "off",
        };
        let outside = if self.is_in_interval() {
            ""
        } else {
            ", outside"
        };
        format!(
            "seed {:4}: {:2} CPUs, {}; {}: true {}, predicted {} ({} to {}): {word}{outside}",
            self.seed,
            self.cpus,
            self.vms,
            self.limits,
            self.truth,
            self.predicted,
            self.least,
            self.greatest
        )
    }
}

/// Hosts of a class.
#[derive(Default)]
struct Sum {
    hosts: usize,
    exact: usize,
    within_one: usize,
    in_interval: usize,
    width: u32,
}

impl Sum {
    fn add(&mut self, row: &Row) {
        self.hosts += 1;
        self.exact += usize::from(row.is_exact());
        self.within_one += usize::from(row.is_within_one());
        self.in_interval += usize::from(row.is_in_interval());
        self.width += row.greatest.min(MOST + 1) - row.least.min(MOST + 1);
    }

    fn line(&self, name: &str) -> String {
        let percent = |part: usize| part as f64 / self.hosts.max(1) as f64 * 100.0;
        format!(
            "| {name} | {} | {:.0} % | {:.0} % | {:.0} % | {:.1} |",
            self.hosts,
            percent(self.exact),
            percent(self.within_one),
            percent(self.in_interval),
            f64::from(self.width) / self.hosts.max(1) as f64
        )
    }
}

/// All rows, and how many are exact by class.
pub fn render(rows: &[Row], shows_figures: bool) -> String {
    let mut text = String::new();
    let mut classes: BTreeMap<(u8, String), Sum> = BTreeMap::new();
    for row in rows {
        let _ = writeln!(text, "{}", row.line());
        if shows_figures && !(row.is_exact() && row.is_in_interval()) {
            for figure in &row.figures {
                let _ = writeln!(text, "{figure}");
            }
        }
        let cpus = match row.cpus {
            0..6 => "2 to 5 CPUs",
            6..11 => "6 to 10 CPUs",
            _ => "11 to 16 CPUs",
        };
        let figure = row.limits.split(['<', '>']).next().unwrap_or_default();
        let looks = match row.looks {
            0..FEW_LOOKS => "looks of CPUs not recorded",
            _ => "looks of CPUs recorded",
        };
        let names = [
            "all".to_owned(),
            looks.to_owned(),
            row.counted.to_owned(),
            format!("`{figure}`"),
            cpus.to_owned(),
            format!("{} fit", row.truth),
        ];
        for (order, name) in (0..).zip(names) {
            classes.entry((order, name)).or_default().add(row);
        }
    }
    text.push_str("\n| hosts | number | exact | within one | in the interval | its width |\n");
    text.push_str("|---|---|---|---|---|---|\n");
    for ((_, name), sum) in &classes {
        let _ = writeln!(text, "{}", sum.line(name));
    }
    text
}
