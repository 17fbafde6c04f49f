//! Machine profiles: data files with value, source and confidence of each figure.
//!
//! ```
//! use stealtime_lab::profile;
//! let machine = profile::builtin("skylake-sp").expect("it is one of NAMES");
//! assert_eq!(machine.profile.costs.tsc_khz, 2_500_000);
//! assert!(machine.figures.iter().all(|figure| !figure.source.is_empty()));
//! ```

mod figures;
mod read;

use std::path::Path;

use serde::Serialize;
use stealtime_simulator::config::Profile;

use crate::document::{Notes, Table, parse, read_text};
use crate::error::LoadError;

pub(crate) use read::{Origin, machine as machine_in, named};

/// The files that come along: name and text.
const FILES: [(&str, &str); 5] = [
    ("nehalem-ep", include_str!("../../profiles/nehalem-ep.toml")),
    (
        "ivybridge-ep",
        include_str!("../../profiles/ivybridge-ep.toml"),
    ),
    ("skylake-sp", include_str!("../../profiles/skylake-sp.toml")),
    ("altra", include_str!("../../profiles/altra.toml")),
    (
        "sapphire-rapids",
        include_str!("../../profiles/sapphire-rapids.toml"),
    ),
];

/// Names of the profiles that come along, oldest machine first.
pub const NAMES: [&str; FILES.len()] = {
    let mut names = [""; FILES.len()];
    let mut n = 0;
    while n < FILES.len() {
        names[n] = FILES[n].0;
        n += 1;
    }
    names
};

/// How well a figure is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Confidence {
    /// Measured and cited.
    #[serde(rename = "H")]
    High,
    /// Cited for a close relative.
    #[serde(rename = "M")]
    Medium,
    /// An estimate.
    #[serde(rename = "L")]
    Low,
}

/// One figure and how it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// Its key (`costs.irq_ns`, `features.apicv`, `cstate.C6`).
    pub key: String,
    /// Its value as text; of an idle state, exit latency and target residency in ns.
    pub value: String,
    /// Where it comes from.
    pub source: String,
    /// How well it is known.
    pub confidence: Confidence,
}

/// A machine with the origin of what is said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// What the simulator needs.
    pub profile: Profile,
    /// What it is, a few words.
    pub about: String,
    /// Its figures in the order of the file; those that it inherits come where its base has them.
    pub figures: Vec<Figure>,
}

impl Machine {
    /// Values of the file at `path`, or of what comes along under a name.
    ///
    /// # Errors
    ///
    /// [`LoadError`] with the figure and the line.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let text = read_text(path)?;
        from_text(&path.display().to_string(), &text, &Origin::File(path, 0))
    }
}

/// A profile that comes along; `None` for a name that is not in [`NAMES`].
#[must_use]
pub fn builtin(name: &str) -> Option<Machine> {
    let (_, text) = FILES.iter().find(|(known, _)| *known == name)?;
    // Tests read every file: there is nothing wrong with one that comes along.
    from_text(&format!("{name}.toml"), text, &Origin::Inside).ok()
}

/// Reads a profile from text.
pub(crate) fn from_text(file: &str, text: &str, origin: &Origin<'_>) -> Result<Machine, LoadError> {
    let parsed = parse(file, text)?;
    let mut notes = Notes::default();
    let table = Table::new("", 0..0, parsed.get_ref(), &mut notes);
    match read::machine(table, None, file, origin, &mut notes)? {
        Some(machine) if notes.is_fine() => Ok(machine),
        _ => Err(LoadError::Wrong(notes.diagnostics(file, text))),
    }
}

#[cfg(test)]
mod tests;
