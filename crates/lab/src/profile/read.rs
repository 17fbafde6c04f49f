//! Reading a profile, its base first.

use std::path::Path;

use stealtime_simulator::config::{CState, Profile};

use super::figures::{Ability, COSTS, FEATURES, costs, features};
use super::{Confidence, Figure, Machine, NAMES, builtin, from_text};
use crate::document::{Item, Notes, Table, read_text};
use crate::error::LoadError;
use crate::spelling::suggestion;
use crate::units::{Plain, TimeError, time};

/// The most a profile may build on another that builds on another.
const DEEPEST: u32 = 8;
/// The most idle states.
const MOST_CSTATES: usize = 16;
/// Missing figures that are named before the rest is counted.
const SHOWN: usize = 6;
/// The largest cost, in ns.
const MOST_NS: u64 = 1_000_000_000;
/// The largest TSC frequency, in kHz.
const MOST_KHZ: u64 = 10_000_000;
/// Shifts of the preemption timer are five bits wide.
const MOST_SHIFT: u64 = 31;

/// Where a text comes from: other profiles by path are found from there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin<'p> {
    /// It comes along.
    Inside,
    /// A file, and how many others have led to it.
    File(&'p Path, u32),
}

/// The machine that a name or a path stands for. Problems are noted at `item`.
pub(crate) fn named(
    item: &Item<'_, '_>,
    name: &str,
    origin: &Origin<'_>,
    notes: &mut Notes,
) -> Result<Option<Machine>, LoadError> {
    if let Some(machine) = builtin(name) {
        return Ok(Some(machine));
    }
    let is_path = name.contains('/')
        || Path::new(name)
            .extension()
            .is_some_and(|e| e.eq_ignore_ascii_case("toml"));
    let Origin::File(parent, depth) = origin else {
        item.wrong(format!("no machine profile {name:?} comes along"), notes);
        return Ok(None);
    };
    if !is_path {
        let help = format!("{}; or give the path of a file", suggestion(name, &NAMES));
        let problem = format!("no machine profile {name:?} comes along");
        notes.push(&item.key, item.span.clone(), problem, Some(help));
        return Ok(None);
    }
    if *depth >= DEEPEST {
        item.wrong(
            format!("more than {DEEPEST} profiles build on each other"),
            notes,
        );
        return Ok(None);
    }
    let path = parent.parent().unwrap_or(Path::new("")).join(name);
    let text = match read_text(&path) {
        Ok(text) => text,
        Err(error) => {
            item.wrong(error.to_string(), notes);
            return Ok(None);
        }
    };
    let file = path.display().to_string();
    from_text(&file, &text, &Origin::File(&path, depth + 1)).map(Some)
}

/// Reads a profile out of a table.
///
/// # Errors
///
/// Those of its base's own file; what is wrong in this one is noted.
pub(crate) fn machine(
    mut table: Table<'_, '_>,
    other_base: Option<&str>,
    file: &str,
    origin: &Origin<'_>,
    notes: &mut Notes,
) -> Result<Option<Machine>, LoadError> {
    let mut base = None;
    if let Some(item) = table.take("base")
        && let Some(name) = other_base.or_else(|| item.text(notes))
    {
        base = named(&item, name, origin, notes)?;
        if base.is_none() {
            return Ok(None);
        }
    } else if other_base.is_some() {
        let problem = "the machine stands here in full: no other can take its place".to_owned();
        let place = notes.place(&table.key);
        notes.problem(&table.key, place, problem);
    }
    let name = table.text("name", notes).map(str::to_owned);
    let about = table.text("about", notes).map(str::to_owned);
    let mut reader = Reader {
        file,
        outer: table.key.clone(),
        base: base.as_ref(),
        figures: Vec::new(),
        missing: Vec::new(),
        notes,
    };
    let costs = reader.costs(&mut table);
    let features = reader.features(&mut table);
    let cstates = reader.cstates(&mut table);
    let smt_percent = reader.smt_percent(&mut table);
    if let Some(first) = reader.missing.first().cloned() {
        reader.report_missing(&first);
    }
    let figures = reader.figures;
    table.finish(&[], notes);
    let (Some(costs), Some(features), Some(cstates), Some(smt_percent)) =
        (costs, features, cstates, smt_percent)
    else {
        return Ok(None);
    };
    let of_base = |field: fn(&Machine) -> &String| base.as_ref().map(|base| field(base).clone());
    Ok(Some(Machine {
        profile: Profile {
            name: name
                .or_else(|| of_base(|b| &b.profile.name))
                .unwrap_or_else(|| file.to_owned()),
            costs,
            features,
            cstates,
            smt_percent,
        },
        about: about.or_else(|| of_base(|b| &b.about)).unwrap_or_default(),
        figures,
    }))
}

/// Why a text is no value of a figure.
#[derive(Debug, thiserror::Error)]
enum FigureError {
    #[error("{0:?} is no number of kHz")]
    NoFrequency(String),
    #[error(transparent)]
    Time(#[from] TimeError),
    #[error("{number} is not within {min} to {max}")]
    OutOfRange { number: u64, min: u64, max: u64 },
    #[error("{0:?} is not within 0 to {MOST_SHIFT}, nor \"none\"")]
    NoShift(String),
    #[error("{0:?} is neither true nor false")]
    NoSwitch(String),
    #[error("{0:?} is not within 1 to 100")]
    NoPercent(String),
}

struct Reader<'r> {
    file: &'r str,
    /// Key of the profile's table; empty in a file of its own.
    outer: String,
    base: Option<&'r Machine>,
    figures: Vec<Figure>,
    missing: Vec<String>,
    notes: &'r mut Notes,
}

impl Reader<'_> {
    fn costs(&mut self, table: &mut Table<'_, '_>) -> Option<stealtime_simulator::config::Costs> {
        let mut part = self.part(table, "costs");
        let built = costs(|name| {
            let range = if name == "tsc_khz" {
                1..MOST_KHZ + 1
            } else {
                0..MOST_NS + 1
            };
            let value = self.figure(part.as_mut(), "costs", name, |text| {
                let number = match name {
                    "tsc_khz" => text
                        .parse()
                        .map_err(|_| FigureError::NoFrequency(text.to_owned()))?,
                    _ => time(text, Plain::Ns)?,
                };
                match range.contains(&number) {
                    true => Ok(number.to_string()),
                    false => Err(FigureError::OutOfRange {
                        number,
                        min: range.start,
                        max: range.end - 1,
                    }),
                }
            })?;
            value.parse().ok()
        });
        self.end(part, COSTS);
        built
    }

    fn features(
        &mut self,
        table: &mut Table<'_, '_>,
    ) -> Option<stealtime_simulator::config::Features> {
        let mut part = self.part(table, "features");
        let built = features(|name| {
            let value =
                self.figure(part.as_mut(), "features", name, |text| match (name, text) {
                    ("hv_timer_shift", "none") => Ok("none".to_owned()),
                    ("hv_timer_shift", text) => match text.parse::<u64>() {
                        Ok(shift) if shift <= MOST_SHIFT => Ok(shift.to_string()),
                        _ => Err(FigureError::NoShift(text.to_owned())),
                    },
                    (_, "true" | "false") => Ok(text.to_owned()),
                    _ => Err(FigureError::NoSwitch(text.to_owned())),
                })?;
            Some(Ability(match value.as_str() {
                "true" => Some(1),
                "false" | "none" => None,
                number => Some(number.parse().ok()?),
            }))
        });
        self.end(part, FEATURES);
        built
    }

    fn smt_percent(&mut self, table: &mut Table<'_, '_>) -> Option<u32> {
        let value = self.figure(Some(table), "", "smt_percent", |text| {
            match text.parse::<u32>() {
                Ok(percent @ 1..=100) => Ok(percent.to_string()),
                _ => Err(FigureError::NoPercent(text.to_owned())),
            }
        })?;
        value.parse().ok()
    }

    /// The table of a group of figures; it may be missing where a base has them.
    fn part<'t, 'a>(&mut self, table: &mut Table<'t, 'a>, name: &str) -> Option<Table<'t, 'a>> {
        table.table(name, self.notes)
    }

    fn end(&mut self, part: Option<Table<'_, '_>>, known: &[&str]) {
        if let Some(part) = part {
            part.finish(known, self.notes);
        }
    }

    /// A figure of this file or, where it has none, of its base.
    fn figure(
        &mut self,
        part: Option<&mut Table<'_, '_>>,
        group: &str,
        name: &str,
        check: impl FnOnce(&str) -> Result<String, FigureError>,
    ) -> Option<String> {
        let key = match group {
            "" => name.to_owned(),
            group => format!("{group}.{name}"),
        };
        let Some(item) = part.and_then(|part| part.take(name)) else {
            let inherited = self
                .base
                .and_then(|b| b.figures.iter().find(|f| f.key == key));
            let Some(figure) = inherited else {
                self.missing.push(key);
                return None;
            };
            self.figures.push(figure.clone());
            return Some(figure.value.clone());
        };
        let (value, confidence, source) = self.cited(&item)?;
        match check(&value) {
            Ok(value) => {
                self.figures.push(Figure {
                    key,
                    value: value.clone(),
                    source,
                    confidence,
                });
                Some(value)
            }
            Err(problem) => {
                item.wrong(problem.to_string(), self.notes);
                None
            }
        }
    }

    /// One problem for all missing figures: that of the first of them.
    fn report_missing(&mut self, first: &str) {
        let names: Vec<&str> = self
            .missing
            .iter()
            .take(SHOWN)
            .map(String::as_str)
            .collect();
        let rest = self.missing.len() - names.len();
        let rest = if rest > 0 {
            format!(" and {rest} more")
        } else {
            String::new()
        };
        let (file, names) = (self.file, names.join(", "));
        let problem = format!("the machine profile {file} lacks {names}{rest}");
        let help = "add what is missing, or take it from a profile that has it: \
                    base = \"skylake-sp\"";
        let key = match self.outer.as_str() {
            "" => first.to_owned(),
            outer => format!("{outer}.{first}"),
        };
        let place = self.notes.place(&key);
        self.notes.push(&key, place, problem, Some(help.into()));
    }

    /// Value, confidence and source: a table of the three, or the value alone.
    fn cited(&mut self, item: &Item<'_, '_>) -> Option<(String, Confidence, String)> {
        if !item.value.is_table() {
            let source = format!("{}, without a source", self.file);
            return Some((item.words(self.notes)?, Confidence::Low, source));
        }
        let mut table = item.table(self.notes)?;
        let value = table.take("value");
        if value.is_none() {
            item.wrong("this figure has no `value`".into(), self.notes);
        }
        let value = value.and_then(|value| value.words(self.notes));
        let (confidence, source) = self.origin(&mut table);
        table.finish(&[], self.notes);
        Some((value?, confidence, source))
    }

    fn origin(&mut self, table: &mut Table<'_, '_>) -> (Confidence, String) {
        let source = table
            .text("source", self.notes)
            .unwrap_or_default()
            .to_owned();
        let mut confidence = Confidence::Low;
        if let Some(item) = table.take("confidence")
            && let Some(letter) = item.text(self.notes)
        {
            match letter {
                "H" => confidence = Confidence::High,
                "M" => confidence = Confidence::Medium,
                "L" => {}
                _ => item.wrong(format!("{letter:?} is none of H, M and L"), self.notes),
            }
        }
        (confidence, source)
    }

    fn cstates(&mut self, table: &mut Table<'_, '_>) -> Option<Vec<CState>> {
        let states = table.tables("cstate", self.notes);
        if states.is_empty() {
            let inherited = self.base.map(|base| base.profile.cstates.clone());
            if inherited.is_none() {
                self.missing.push("cstate".to_owned());
            }
            let figures = self.base.into_iter().flat_map(|base| &base.figures);
            self.figures
                .extend(figures.filter(|f| f.key.starts_with("cstate.")).cloned());
            return inherited;
        }
        let mut read = Vec::new();
        for state in states.into_iter().take(MOST_CSTATES) {
            read.push(self.cstate(state));
        }
        let states: Option<Vec<CState>> = read.into_iter().collect();
        let rising = states
            .iter()
            .flatten()
            .map(|s| s.exit_latency_ns)
            .is_sorted();
        if !rising {
            let problem = "idle states must go from shallow to deep: exit latencies rise";
            let place = self.notes.place(&self.outer);
            self.notes.push("cstate", place, problem.into(), None);
        }
        states
    }

    fn cstate(&mut self, mut table: Table<'_, '_>) -> Option<CState> {
        let name = table.text("name", self.notes).map(str::to_owned);
        let key = table.key.clone();
        let mut ns = |name: &str| {
            let item = table.take(name);
            if item.is_none() {
                let problem = format!("this idle state has no {name}");
                let place = self.notes.place(&key);
                self.notes.push(&key, place, problem, None);
            }
            item?.number(0..MOST_NS + 1, self.notes)
        };
        let (exit, residency) = (ns("exit_latency_ns"), ns("target_residency_ns"));
        let (confidence, source) = self.origin(&mut table);
        table.finish(&[], self.notes);
        let (name, exit, residency) = (name?, exit?, residency?);
        self.figures.push(Figure {
            key: format!("cstate.{name}"),
            value: format!("{exit} {residency}"),
            source,
            confidence,
        });
        Some(CState {
            name,
            exit_latency_ns: u32::try_from(exit).ok()?,
            target_residency_ns: u32::try_from(residency).ok()?,
        })
    }
}
