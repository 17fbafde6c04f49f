//! Protocols, their variants, and the sets of agents with which each is explored.

mod kind;
mod list;
mod scenes;

use strsim::levenshtein;

use crate::model::Choice;
use crate::search::{Limits, Outcome};
use crate::trace::{NoSuchStep, Trace};
use kind::Kind;
pub use list::{PROTOCOLS, Protocol, Variant};
use scenes::scenes;

/// One exploration: a variant with a set of agents.
#[derive(Clone, Debug)]
pub struct Case {
    /// The protocol.
    pub protocol: &'static str,
    /// The variant.
    pub variant: &'static str,
    /// It must pass.
    pub sound: bool,
    /// The set of agents, with the chosen counts.
    pub scene: String,
    kind: Kind,
}

/// A name or a count of the call does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// No such name.
    Name {
        /// The kind of name: protocol, variant and so on.
        kind: &'static str,
        /// The name of the call.
        requested: String,
        /// The existing names.
        known: Vec<String>,
    },
    /// No number, or one out of range.
    Count {
        /// The item of the call.
        requested: String,
        /// The largest number; the smallest is 0.
        max: u8,
    },
}

impl core::fmt::Display for Unknown {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Name {
                kind,
                requested,
                known,
            } => {
                let list = match closest(requested, known) {
                    Some(name) => format!("did you mean {name:?}? There are"),
                    None => "there are".to_owned(),
                };
                write!(f, "no {kind} {requested:?}; {list} {}", known.join(", "))
            }
            Self::Count { requested, max } => {
                write!(f, "{requested:?}: give a number from 0 to {max}")
            }
        }
    }
}

impl core::error::Error for Unknown {}

/// The known name that is closest to `requested`, within a third of its letters and one more.
fn closest<'a>(requested: &str, known: &'a [String]) -> Option<&'a String> {
    let limit = requested.chars().count() / 3 + 1;
    let distances = known
        .iter()
        .map(|name| (levenshtein(requested, name), name));
    distances
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The cases of all protocols or one, of the sound variants or one, with all sets of agents or
/// some.
///
/// `agents` is a list with commas: names of sets, and counts as `NAME=NUMBER` for each chosen set.
///
/// # Errors
/// [`Unknown`], with the existing names.
pub fn cases(
    protocol: Option<&str>,
    variant: Option<&str>,
    agents: Option<&str>,
) -> Result<Vec<Case>, Unknown> {
    let named = |p: &&Protocol| protocol.is_none_or(|requested| requested == p.name);
    let chosen: Vec<&Protocol> = PROTOCOLS.iter().filter(named).collect();
    if chosen.is_empty() {
        let known = PROTOCOLS.iter().map(|p| p.name.to_owned()).collect();
        return Err(unknown("protocol", protocol.unwrap_or_default(), known));
    }
    let pairs = |p: &&'static Protocol| p.variants.iter().map(|v| (p.name, v)).collect::<Vec<_>>();
    let variants: Vec<(&'static str, &Variant)> = chosen.iter().flat_map(pairs).collect();
    let wanted = |v: &Variant| variant.map_or(v.sound, |requested| requested == v.name);
    let selected: Vec<_> = variants.iter().filter(|(_, v)| wanted(v)).collect();
    if selected.is_empty() {
        let known = variants.iter().map(|(_, v)| v.name.to_owned()).collect();
        return Err(unknown("variant", variant.unwrap_or_default(), known));
    }
    let cases = selected
        .into_iter()
        .flat_map(|(protocol, v)| scenes(protocol, v));
    pick_agents(cases.collect(), agents.unwrap_or_default())
}

fn pick_agents(mut cases: Vec<Case>, agents: &str) -> Result<Vec<Case>, Unknown> {
    let items = agents.split(',').map(str::trim).filter(|i| !i.is_empty());
    let (counts, sets): (Vec<&str>, Vec<&str>) = items.partition(|item| item.contains('='));
    let mut known: Vec<String> = cases.iter().map(|case| case.scene.clone()).collect();
    known.sort();
    known.dedup();
    let requested = sets.iter().find(|set| !known.iter().any(|k| k == *set));
    if let Some(requested) = requested {
        return Err(unknown("set of agents", requested, known));
    }
    if !sets.is_empty() {
        cases.retain(|case| sets.contains(&case.scene.as_str()));
    }
    for item in counts {
        for case in &mut cases {
            case.choose(item)?;
        }
    }
    Ok(cases)
}

fn unknown(kind: &'static str, requested: &str, known: Vec<String>) -> Unknown {
    Unknown::Name {
        kind,
        requested: requested.to_owned(),
        known,
    }
}

impl Case {
    /// Explores all states within the limits.
    #[must_use]
    pub fn explore(&self, limits: Limits) -> Outcome {
        self.kind.explore(limits)
    }

    /// Repeats the steps of a path.
    ///
    /// # Errors
    /// [`NoSuchStep`] for a path that the model does not allow.
    pub fn walk(&self, path: &[Choice]) -> Result<Trace, NoSuchStep> {
        self.kind.walk(path)
    }

    /// The counts that may be chosen: names and numbers.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u8)> {
        let mut kind = self.kind;
        let counts = kind.counts();
        counts.iter().map(|(name, c)| (*name, c.get())).collect()
    }

    /// The cases beyond the protocol's bounds.
    #[must_use]
    pub fn left_out(&self) -> &'static str {
        let mut protocols = PROTOCOLS.iter();
        protocols
            .find(|p| p.name == self.protocol)
            .map_or("", |p| p.left_out)
    }

    fn choose(&mut self, item: &str) -> Result<(), Unknown> {
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        let mut counts = self.kind.counts();
        let known = counts.iter().map(|(n, _)| (*n).to_owned()).collect();
        let found = counts.iter_mut().find(|(n, _)| *n == name);
        let Some((_, count)) = found else {
            return Err(unknown("count of agents", name, known));
        };
        let max = count.most();
        let value = value.parse().ok().filter(|value| *value <= max);
        let Some(value) = value else {
            let requested = item.to_owned();
            return Err(Unknown::Count { requested, max });
        };
        if count.get() != value {
            count.set(value);
            self.scene = format!("{},{item}", self.scene);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use strsim::levenshtein as distance;

    #[test]
    fn letters_in_out_and_changed() {
        assert_eq!(distance("pi-notify", "pi-notify"), 0);
        assert_eq!(distance("pi-notif", "pi-notify"), 1);
        assert_eq!(distance("clok", "clock"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
