//! Protocols, their variants, and in which company each is explored.

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

/// One exploration: a variant in some company.
#[derive(Clone, Debug)]
pub struct Case {
    /// The protocol.
    pub protocol: &'static str,
    /// The variant.
    pub variant: &'static str,
    /// It must pass.
    pub sound: bool,
    /// The company: a set of agents, with the counts that were chosen.
    pub scene: String,
    kind: Kind,
}

/// Something was asked for that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// A name.
    Name {
        /// What kind of thing.
        what: &'static str,
        /// What was asked for.
        asked: String,
        /// What there is.
        there: Vec<String>,
    },
    /// A count out of its range, or no number.
    Count {
        /// What was asked for.
        asked: String,
        /// The largest that it may be; the smallest is 0.
        most: u8,
    },
}

impl core::fmt::Display for Unknown {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Name { what, asked, there } => {
                let there_are = match nearest(asked, there) {
                    Some(near) => format!("did you mean {near:?}? There are"),
                    None => "there are".to_owned(),
                };
                write!(f, "no {what} {asked:?}; {there_are} {}", there.join(", "))
            }
            Self::Count { asked, most } => {
                write!(f, "{asked:?}: give a number from 0 to {most}")
            }
        }
    }
}

impl core::error::Error for Unknown {}

/// The name that most resembles `asked`, if any does.
fn nearest<'a>(asked: &str, there: &'a [String]) -> Option<&'a String> {
    let far = asked.chars().count() / 3 + 1;
    let near = there.iter().map(|name| (levenshtein(asked, name), name));
    near.filter(|(d, _)| *d <= far)
        .min_by_key(|(d, _)| *d)
        .map(|(_, name)| name)
}

/// The cases asked for: of all protocols or one, of the sound variants or one, with all sets of
/// agents or some.
///
/// `agents` is a list, with commas: names of sets, and counts as `NAME=NUMBER` that each set
/// chosen gets.
///
/// # Errors
/// [`Unknown`], with what there is.
pub fn cases(
    protocol: Option<&str>,
    variant: Option<&str>,
    agents: Option<&str>,
) -> Result<Vec<Case>, Unknown> {
    let named = |p: &&Protocol| protocol.is_none_or(|asked| asked == p.name);
    let chosen: Vec<&Protocol> = PROTOCOLS.iter().filter(named).collect();
    if chosen.is_empty() {
        let there = PROTOCOLS.iter().map(|p| p.name.to_owned()).collect();
        return Err(unknown("protocol", protocol.unwrap_or_default(), there));
    }
    let of = |p: &&'static Protocol| p.variants.iter().map(|v| (p.name, v)).collect::<Vec<_>>();
    let all: Vec<(&'static str, &Variant)> = chosen.iter().flat_map(of).collect();
    let wanted = |v: &Variant| variant.map_or(v.sound, |asked| asked == v.name);
    let some: Vec<_> = all.iter().filter(|(_, v)| wanted(v)).collect();
    if some.is_empty() {
        let there = all.iter().map(|(_, v)| v.name.to_owned()).collect();
        return Err(unknown("variant", variant.unwrap_or_default(), there));
    }
    let every = some
        .into_iter()
        .flat_map(|(protocol, v)| scenes(protocol, v));
    pick_agents(every.collect(), agents.unwrap_or_default())
}

fn pick_agents(mut cases: Vec<Case>, agents: &str) -> Result<Vec<Case>, Unknown> {
    let items = agents.split(',').map(str::trim).filter(|i| !i.is_empty());
    let (counts, sets): (Vec<&str>, Vec<&str>) = items.partition(|item| item.contains('='));
    let mut there: Vec<String> = cases.iter().map(|case| case.scene.clone()).collect();
    there.sort();
    there.dedup();
    if let Some(asked) = sets.iter().find(|set| !there.iter().any(|t| t == *set)) {
        return Err(unknown("set of agents", asked, there));
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

fn unknown(what: &'static str, asked: &str, there: Vec<String>) -> Unknown {
    let asked = asked.to_owned();
    Unknown::Name { what, asked, there }
}

impl Case {
    /// Explores it.
    #[must_use]
    pub fn explore(&self, limits: Limits) -> Outcome {
        self.kind.explore(limits)
    }

    /// Walks a path again and says what it shows.
    ///
    /// # Errors
    /// [`NoSuchStep`] for a path that the model does not allow.
    pub fn walk(&self, path: &[Choice]) -> Result<Trace, NoSuchStep> {
        self.kind.walk(path)
    }

    /// How many of what it has, where that may be chosen: names and numbers.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u8)> {
        let mut kind = self.kind;
        let counts = kind.counts();
        counts.iter().map(|(name, c)| (*name, c.get())).collect()
    }

    /// What the protocol's bounds leave out.
    #[must_use]
    pub fn left_out(&self) -> &'static str {
        let mut all = PROTOCOLS.iter();
        all.find(|p| p.name == self.protocol)
            .map_or("", |p| p.left_out)
    }

    fn choose(&mut self, item: &str) -> Result<(), Unknown> {
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        let mut counts = self.kind.counts();
        let there = counts.iter().map(|(n, _)| (*n).to_owned()).collect();
        let found = counts.iter_mut().find(|(n, _)| *n == name);
        let Some((_, count)) = found else {
            return Err(unknown("count of agents", name, there));
        };
        let most = count.most();
        let value = value.parse().ok().filter(|value| *value <= most);
        let Some(value) = value else {
            let asked = item.to_owned();
            return Err(Unknown::Count { asked, most });
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
