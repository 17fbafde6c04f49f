//! `[[calibrate]]`: parameters that no publication gives, and the figure that each is fitted to.

use std::ops::Range;

use stealtime_lab::LoadError;
use stealtime_lab::document::{Item, Notes, Table, parse};
use stealtime_lab::scenario::MOST_SEEDS;
use stealtime_lab::units::{Plain, TimeError, show_time, time};
use toml::de::{DeTable, DeValue};

/// The longest run of a fit, in ns.
const LONGEST_NS: u64 = 1_000_000_000_000;
/// The most values of a range: bisection of more would say no more.
const MOST_VALUES: u64 = 1 << 32;
/// The most characters of a name.
const LONGEST_NAME: usize = 200;

/// How a parameter's values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Whole numbers.
    Number,
    /// Times, in ns; texts with a unit in the file.
    Time,
}

impl ValueKind {
    /// A value as it stands in a file.
    #[must_use]
    pub fn show(self, value: u64) -> String {
        match self {
            Self::Number => value.to_string(),
            Self::Time => show_time(value),
        }
    }

    fn read(self, value: &DeValue<'_>) -> Result<u64, ValueError> {
        match (self, value) {
            (Self::Time, DeValue::String(text)) => time(text, Plain::Ns).map_err(ValueError::Time),
            (_, DeValue::Integer(number)) => {
                let value = u64::from_str_radix(number.as_str(), number.radix());
                value.map_err(|_| ValueError::Number(number.to_string()))
            }
            (Self::Time, _) => Err(ValueError::NoTime),
            (Self::Number, _) => Err(ValueError::NoNumber),
        }
    }
}

/// Why a value of a scenario cannot be fitted.
#[derive(Debug, thiserror::Error)]
enum ValueError {
    /// A text that is no time.
    #[error(transparent)]
    Time(TimeError),
    /// A number that is negative or too large.
    #[error("{0} is no whole number from 0 on")]
    Number(String),
    /// Another kind of value than a time.
    #[error("a time such as \"50us\" must stand here")]
    NoTime,
    /// Another kind of value than a whole number.
    #[error("a whole number must stand here")]
    NoNumber,
}

/// What is known of the value that stands in the file; `stealtime calibrate` writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct FitRecord {
    /// When the value was found, as `YYYY-MM-DD`.
    pub date: String,
    /// The version that found it.
    pub version: String,
    /// How far the simulated figure is from the published one, in percent of that.
    pub residual_percent: f64,
    /// By how many percent the figure changes if the parameter grows by one.
    pub slope: f64,
}

/// A parameter to be fitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Where it stands in the file: tables by name, elements of lists by their `name`.
    pub parameter: String,
    /// How its values are written.
    pub kind: ValueKind,
    /// The value that stands there.
    pub value: u64,
    /// The lowest value and the highest one.
    pub range: (u64, u64),
    /// Values are tried in steps of this from the lowest on.
    pub step: u64,
    /// The published figure of a machine *without* the mechanism that it is fitted to.
    pub to: String,
    /// Seeds of each run of the search; `None`: those of the scenario.
    pub seeds: Option<usize>,
    /// How long each is measured, in ns; `None`: as long as the scenario says.
    pub duration_ns: Option<u64>,
    /// What the last fit said.
    pub fitted: Option<FitRecord>,
}

impl Parameter {
    /// Reads all `[[calibrate]]` of a scenario's text; `file` is the name that messages use.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: all that is wrong, with its lines.
    pub fn all(file: &str, text: &str) -> Result<Vec<Self>, LoadError> {
        let parsed = parse(file, text)?;
        let root = parsed.get_ref();
        let mut notes = Notes::default();
        let tables = Table::new("", 0..0, root, &mut notes).tables("calibrate", &mut notes);
        let parameters = parameters(tables, root, &mut notes);
        if !notes.is_fine() {
            return Err(LoadError::Wrong(notes.diagnostics(file, text)));
        }
        Ok(parameters)
    }
}

fn parameters(tables: Vec<Table<'_, '_>>, root: &DeTable<'_>, notes: &mut Notes) -> Vec<Parameter> {
    let mut found: Vec<Parameter> = Vec::new();
    for table in tables {
        let place = notes.place(&table.key);
        let key = table.key.clone();
        let Some(new) = parameter(table, root, notes) else {
            continue;
        };
        if found.iter().any(|known| known.parameter == new.parameter) {
            let problem = format!("{} is fitted twice", new.parameter);
            notes.problem(&key, place, problem);
            continue;
        }
        found.push(new);
    }
    found
}

fn parameter(mut table: Table<'_, '_>, root: &DeTable<'_>, notes: &mut Notes) -> Option<Parameter> {
    let place = required(&mut table, "parameter", "\"vm.NAME.workload.KEY\"", notes);
    let figure = required(&mut table, "to", "the name of a published figure", notes);
    let range_place = notes.place(&format!("{}.range", table.key));
    let range = table.take("range");
    let step = table.take("step");
    let limit = MOST_SEEDS as u64 + 1;
    let seeds = table.number("seeds", 1..limit, notes);
    let duration = table.take("duration");
    let duration_ns = duration.and_then(|item| item.time(1_000..LONGEST_NS + 1, notes));
    let fitted = table.table("fitted", notes);
    let fitted = fitted.and_then(|table| record(table, notes));
    let key = table.key.clone();
    table.finish(&[], notes);
    let (place, figure) = (place?, figure?);
    let words = place.value.as_str()?.to_owned();
    let Some(current) = find(root, &words) else {
        place.wrong(
            format!("the scenario has no {words}: name tables by their key, elements of lists by their name"),
            notes,
        );
        return None;
    };
    let kind = match current {
        DeValue::String(_) => ValueKind::Time,
        _ => ValueKind::Number,
    };
    let value = match kind.read(current) {
        Ok(value) => value,
        Err(problem) => {
            place.wrong(format!("{words} cannot be fitted: {problem}"), notes);
            return None;
        }
    };
    let Some(range) = range else {
        let problem = "between which values? Give range = [LOWEST, HIGHEST]".to_owned();
        notes.problem(&key, range_place, problem);
        return None;
    };
    let step = match step {
        Some(step) => read(kind, &step, 1..u64::MAX, notes)?,
        None => 1,
    };
    let range = ends(kind, &range, step, notes)?;
    Some(Parameter {
        parameter: words,
        kind,
        value,
        range,
        step,
        to: figure.value.as_str()?.to_owned(),
        seeds: seeds.and_then(|seeds| usize::try_from(seeds).ok()),
        duration_ns,
        fitted,
    })
}

/// A text that must be there.
fn required<'t, 'a>(
    table: &mut Table<'t, 'a>,
    name: &str,
    example: &str,
    notes: &mut Notes,
) -> Option<Item<'t, 'a>> {
    let place = notes.place(&table.key);
    let Some(item) = table.take(name) else {
        let key = format!("{}.{name}", table.key);
        notes.problem(&key, place, format!("must be there: {example}"));
        return None;
    };
    let text = item.text(notes)?;
    if text.is_empty() || text.len() > LONGEST_NAME {
        item.wrong(format!("must have 1 to {LONGEST_NAME} bytes"), notes);
        return None;
    }
    Some(item)
}

/// The value at a path; what has no `name` is called like its list.
fn find<'t, 'a>(root: &'t DeTable<'a>, path: &str) -> Option<&'t DeValue<'a>> {
    let mut keys = path.split('.');
    let mut list = keys.next()?;
    let mut value = root.get(list)?.get_ref();
    for key in keys {
        value = match value {
            DeValue::Table(table) => {
                list = key;
                table.get(key)?.get_ref()
            }
            DeValue::Array(elements) => {
                let is_it = |element: &&DeValue<'_>| {
                    let name = element.get("name").map(|name| name.get_ref().as_str());
                    name.unwrap_or(Some(list)) == Some(key)
                };
                elements.iter().map(|e| e.get_ref()).find(is_it)?
            }
            _ => return None,
        };
    }
    Some(value)
}

/// A value within a range (its end excluded).
fn read(kind: ValueKind, item: &Item<'_, '_>, range: Range<u64>, notes: &mut Notes) -> Option<u64> {
    match kind.read(item.value) {
        Ok(value) if range.contains(&value) => return Some(value),
        Ok(value) => {
            let lowest = kind.show(range.start);
            item.wrong(format!("{} is below {lowest}", kind.show(value)), notes);
        }
        Err(problem) => item.wrong(problem.to_string(), notes),
    }
    None
}

/// The lowest value and the highest one that whole steps reach.
fn ends(kind: ValueKind, item: &Item<'_, '_>, step: u64, notes: &mut Notes) -> Option<(u64, u64)> {
    let Some([low, high]) = item.value.as_array().map(AsRef::as_ref) else {
        item.wrong("must be [LOWEST, HIGHEST]".to_owned(), notes);
        return None;
    };
    match (kind.read(low.get_ref()), kind.read(high.get_ref())) {
        (Ok(low), Ok(high)) => match high.checked_sub(low).map(|width| width / step) {
            Some(0) | None => {
                let step = kind.show(step);
                item.wrong(
                    format!("the highest value is not a step of {step} above the lowest"),
                    notes,
                );
            }
            Some(steps) if steps > MOST_VALUES => {
                item.wrong(
                    format!("more than {MOST_VALUES} values: give a larger step"),
                    notes,
                );
            }
            Some(steps) => return Some((low, low + steps * step)),
        },
        (Err(problem), _) | (_, Err(problem)) => item.wrong(problem.to_string(), notes),
    }
    None
}

fn record(mut table: Table<'_, '_>, notes: &mut Notes) -> Option<FitRecord> {
    let date = table.take("date");
    let version = table.text("version", notes).map(str::to_owned);
    let residual_percent = float(&mut table, "residual_percent", notes);
    let slope = float(&mut table, "slope", notes);
    table.finish(&[], notes);
    let date = date?;
    let date = match date.value {
        DeValue::Datetime(date) => date.to_string(),
        _ => {
            date.wrong("must be a date such as 2026-11-20".to_owned(), notes);
            return None;
        }
    };
    Some(FitRecord {
        date,
        version: version?,
        residual_percent: residual_percent?,
        slope: slope?,
    })
}

fn float(table: &mut Table<'_, '_>, name: &str, notes: &mut Notes) -> Option<f64> {
    let item = table.take(name)?;
    let number = item.words(notes)?.parse::<f64>().ok();
    let number = number.filter(|number| number.is_finite());
    if number.is_none() {
        item.wrong("must be a number".to_owned(), notes);
    }
    number
}
