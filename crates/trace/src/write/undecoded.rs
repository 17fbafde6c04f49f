//! Events that are known by name only: a description without fields for each.

use std::collections::HashMap;

use stealtime_events::{Kind, NameId, Names};

use super::error::WriteError;
use super::layout;

/// The system of their descriptions. Not the tracepoint's own: a reader would look for its fields.
pub(super) const SYSTEM: &str = "undecoded";

/// Names and their IDs.
#[derive(Debug)]
pub(super) struct Undecoded {
    first: u16,
    by_id: HashMap<NameId, u16>,
    /// Names in the file, the first with ID `first`.
    names: Vec<String>,
    by_name: HashMap<String, u16>,
    /// The last one asked for.
    last: Option<(NameId, u16)>,
}

impl Undecoded {
    pub(super) fn new(first: u16) -> Self {
        Self {
            first,
            by_id: HashMap::new(),
            names: Vec::new(),
            by_name: HashMap::new(),
            last: None,
        }
    }

    /// The ID of an event without fields: one known by name only, or a tracepoint that is not
    /// written here.
    pub(super) fn id(&mut self, kind: Kind, names: &dyn Names) -> Result<u16, WriteError> {
        let name = match kind {
            Kind::Other { name } => name,
            kind => return self.named(kind.tracepoint().unwrap_or_default()),
        };
        if let Some((last, id)) = self.last
            && last == name
        {
            return Ok(id);
        }
        let id = match self.by_id.get(&name) {
            Some(id) => *id,
            None => self.named(names.name(name))?,
        };
        self.by_id.insert(name, id);
        self.last = Some((name, id));
        Ok(id)
    }

    fn named(&mut self, name: &str) -> Result<u16, WriteError> {
        if let Some(id) = self.by_name.get(name) {
            return Ok(*id);
        }
        let limit = usize::from(u16::MAX - self.first) + 1;
        if self.names.len() >= limit {
            return Err(WriteError::TooManyNames {
                limit,
                name: name.to_owned(),
            });
        }
        let id = self.first + self.names.len() as u16;
        self.names.push(written(name));
        self.by_name.insert(name.to_owned(), id);
        Ok(id)
    }

    /// Descriptions of all names, and of recorded ones without events as far as IDs are left.
    pub(super) fn descriptions<'a>(
        &self,
        recorded: impl Iterator<Item = &'a String>,
    ) -> Vec<String> {
        let recorded = recorded.filter(|name| !self.by_name.contains_key(*name));
        let names = self
            .names
            .iter()
            .cloned()
            .chain(recorded.map(|name| written(name)));
        let ids = self.first..=u16::MAX;
        ids.zip(names)
            .map(|(id, name)| layout::named(&name, id))
            .collect()
    }
}

/// A name as a description can have it: one line, not empty.
fn written(name: &str) -> String {
    let name = name.trim().replace(|c: char| c.is_control(), "_");
    match name.as_str() {
        "" => "unnamed".to_owned(),
        _ => name,
    }
}
