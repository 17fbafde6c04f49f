//! The table of names.

use std::collections::HashMap;

use stealtime_events::{NameId, Names};

/// Names of tasks, functions and events, each kept once.
///
/// Bounded: a hostile file cannot fill memory with names. Past [`NameTable::MAX`] entries every new
/// name is [`NameId::NONE`].
#[derive(Debug)]
pub struct NameTable {
    names: Vec<Box<str>>,
    ids: HashMap<Box<str>, NameId>,
}

impl Default for NameTable {
    fn default() -> Self {
        Self {
            names: vec!["".into()],
            ids: HashMap::from([("".into(), NameId::NONE)]),
        }
    }
}

impl NameTable {
    /// Names that are kept, at most.
    pub const MAX: usize = 1 << 18;

    /// Number of names, the empty one included.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// The names behind the first `count`, in the order of their ids.
    pub(crate) fn since(&self, count: usize) -> &[Box<str>] {
        self.names.get(count..).unwrap_or_default()
    }

    /// The id of a name, if it is known.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<NameId> {
        self.ids.get(name).copied()
    }

    /// The id of a name, new or known.
    pub fn intern(&mut self, name: &str) -> NameId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        if self.names.len() >= Self::MAX {
            return NameId::NONE;
        }
        let id = NameId(u32::try_from(self.names.len()).unwrap_or(0));
        self.names.push(name.into());
        self.ids.insert(name.into(), id);
        id
    }

    /// The id of a name in bytes; bytes that are not UTF-8 are replaced.
    pub fn intern_bytes(&mut self, name: &[u8]) -> NameId {
        match std::str::from_utf8(name) {
            Ok(name) => self.intern(name),
            Err(_) => self.intern(&String::from_utf8_lossy(name)),
        }
    }
}

impl Names for NameTable {
    fn name(&self, id: NameId) -> &str {
        self.names.get(id.0 as usize).map_or("", |name| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_id() {
        let mut table = NameTable::default();
        let first = table.intern("CPU 0/KVM");
        assert_eq!(table.intern_bytes(b"CPU 0/KVM"), first);
        assert_eq!(table.name(first), "CPU 0/KVM");
        assert_eq!(table.name(NameId(77)), "");
        assert_eq!(table.intern(""), NameId::NONE);
    }
}
