//! Which attribute a record belongs to.

use std::collections::HashMap;

use super::attr::{self, Attr, Sample};
use crate::tracefs::Endian;

/// How many ids are kept: one an attribute and CPU.
const MAX_IDS: usize = 1 << 20;

/// Entries of the direct-mapped cache in front of the map: as many ids as a small host has.
const RECENT: usize = 256;

/// The attributes of a recording and their ids.
#[derive(Debug)]
pub(super) struct Attrs {
    all: Vec<Attr>,
    by_id: HashMap<u64, usize>,
    /// Ids that were looked for last, and what they belong to.
    recent: [(u64, usize); RECENT],
    cpus: HashMap<u64, u32>,
}

/// No counter has this id.
const NO_ID: (u64, usize) = (u64::MAX, 0);

impl Default for Attrs {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            by_id: HashMap::new(),
            recent: [NO_ID; RECENT],
            cpus: HashMap::new(),
        }
    }
}

impl Attrs {
    /// Adds an attribute with the ids of its counters.
    pub(super) fn add(&mut self, attr: Attr, ids: impl IntoIterator<Item = u64>) {
        let index = self.all.len();
        self.all.push(attr);
        for id in ids {
            if self.by_id.len() < MAX_IDS {
                self.by_id.insert(id, index);
            }
        }
        self.recent = [NO_ID; RECENT];
    }

    /// An id's CPU, from `PERF_RECORD_ID_INDEX`.
    pub(super) fn set_cpu(&mut self, id: u64, cpu: u64) {
        if let (Ok(cpu), true) = (u32::try_from(cpu), self.cpus.len() < MAX_IDS) {
            self.cpus.insert(id, cpu);
        }
    }

    pub(super) fn cpu_of(&self, id: Option<u64>) -> Option<u32> {
        self.cpus.get(&id?).copied()
    }

    /// All, in the order of the file.
    pub(super) fn all(&self) -> &[Attr] {
        &self.all
    }

    /// Gives an attribute its name.
    pub(super) fn name(&mut self, id: u64, name: &str) {
        let attr = self
            .by_id
            .get(&id)
            .and_then(|index| self.all.get_mut(*index));
        if let (Some(attr), false) = (attr, name.is_empty()) {
            attr.name.get_or_insert_with(|| name.to_owned());
        }
    }

    fn index(&mut self, id: u64) -> Option<usize> {
        let slot = (id % RECENT as u64) as usize;
        match self.recent.get(slot) {
            Some((known, index)) if *known == id && id != NO_ID.0 => Some(*index),
            _ => {
                let index = *self.by_id.get(&id)?;
                if let Some(recent) = self.recent.get_mut(slot) {
                    *recent = (id, index);
                }
                Some(index)
            }
        }
    }

    /// The attribute of a sample. Where all samples are laid out alike it need not be known which
    /// of them it is: then its index is `None`.
    pub(super) fn of_sample(
        &mut self,
        record: &[u8],
        endian: Endian,
    ) -> Option<(Option<usize>, &Attr)> {
        let first = self.all.first()?;
        let offset = attr::id_offset(first);
        if self.all.len() == 1 {
            return self.all.first().map(|only| (Some(0), only));
        }
        let id = offset.and_then(|at| endian.u64(record, at));
        let index = id.and_then(|id| self.index(id));
        match index {
            Some(index) => self.all.get(index).map(|attr| (Some(index), attr)),
            None if self.alike() => self.all.first().map(|attr| (None, attr)),
            None => None,
        }
    }

    fn alike(&self) -> bool {
        self.all
            .first()
            .is_some_and(|first| self.all.iter().all(|attr| attr.same_layout(first)))
    }

    /// What the end of a record that is no sample says.
    pub(super) fn sample_id(&mut self, record: &[u8], endian: Endian) -> Option<Sample> {
        let first = self.all.first()?;
        // The identifier is the last word of the record, whatever else its attribute puts there.
        let identified = attr::has_identifier(first) && first.sample_id_all();
        let id = record
            .len()
            .checked_sub(8)
            .filter(|at| identified && *at >= 8);
        let id = id.and_then(|at| endian.u64(record, at));
        let index = id.and_then(|id| self.index(id)).unwrap_or(0);
        attr::sample_id(record, self.all.get(index)?, endian)
    }
}
