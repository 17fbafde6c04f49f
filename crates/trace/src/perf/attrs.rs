//! Which attribute a record belongs to.

use std::collections::HashMap;

use super::attr::{self, Attr, Sample};
use crate::tracefs::Endian;

/// Ids that are kept: one for each attribute and CPU. Bounds the memory for a damaged file.
const MAX_IDS: usize = 1 << 20;

/// Ids from the first on that are found without the map: the kernel numbers counters in a row
/// (`primary_event_id`, kernel/events/core.c).
const DENSE: u64 = 1 << 16;

/// The attributes of a recording and their ids.
#[derive(Debug, Default)]
pub(super) struct Attrs {
    all: Vec<Attr>,
    /// Offset of the id in a sample, in bytes from the start of the record.
    id_offset: Option<usize>,
    /// The first id, and from it on, for each, one more than the index of its attribute, or 0.
    first_id: u64,
    dense: Vec<u32>,
    /// All ids.
    by_id: HashMap<u64, u32>,
    cpus: HashMap<u64, u32>,
}

impl Attrs {
    /// Adds an attribute with the ids of its counters.
    pub(super) fn add(&mut self, attr: Attr, ids: impl IntoIterator<Item = u64>) {
        let Ok(index) = u32::try_from(self.all.len()) else {
            debug_assert!(
                false,
                "MAX_ATTRS of a header, MAX_IDS of a pipe are far below 2^32"
            );
            return;
        };
        if index == 0 {
            self.id_offset = attr::id_offset(&attr);
        }
        self.all.push(attr);
        for id in ids {
            if self.by_id.len() >= MAX_IDS {
                break;
            }
            if self.by_id.is_empty() {
                self.first_id = id;
            }
            self.by_id.insert(id, index);
            if let Some(place) = self.place(id) {
                if self.dense.len() <= place {
                    self.dense.resize(place + 1, 0);
                }
                if let Some(known) = self.dense.get_mut(place) {
                    *known = index + 1;
                }
            }
        }
    }

    /// Where an id stands in `dense`, if it does.
    #[inline]
    fn place(&self, id: u64) -> Option<usize> {
        let place = id.wrapping_sub(self.first_id);
        (place < DENSE).then_some(place as usize)
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
            .and_then(|index| self.all.get_mut(*index as usize));
        if let (Some(attr), false) = (attr, name.is_empty()) {
            attr.name.get_or_insert_with(|| name.to_owned());
        }
    }

    /// The index of the attribute that an id is of.
    #[inline]
    pub(super) fn index(&self, id: u64) -> Option<usize> {
        match self.place(id) {
            Some(place) => (*self.dense.get(place)? as usize).checked_sub(1),
            None => self.by_id.get(&id).map(|index| *index as usize),
        }
    }

    /// The attribute of a sample and its index. A sample without a known id gets the first attribute and
    /// no index, if all attributes have one layout.
    #[inline]
    pub(super) fn of_sample(
        &self,
        record: &[u8],
        endian: Endian,
    ) -> Option<(Option<usize>, &Attr)> {
        if self.all.len() == 1 {
            return self.all.first().map(|attr| (Some(0), attr));
        }
        let id = self.id_offset.and_then(|offset| endian.u64(record, offset));
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

    /// The first id, and for it and those that follow the index of the attribute, where there is one.
    pub(super) fn dense(&self) -> (u64, impl Iterator<Item = Option<usize>>) {
        let index = |known: &u32| (*known as usize).checked_sub(1);
        (self.first_id, self.dense.iter().map(index))
    }

    /// Offset of the id in a sample, in bytes from the start of the record.
    pub(super) fn id_offset(&self) -> Option<usize> {
        self.id_offset
    }

    /// What the end of a record that is no sample says.
    pub(super) fn sample_id(&self, record: &[u8], endian: Endian) -> Option<Sample> {
        let first = self.all.first()?;
        // The identifier is the last word of the record, whatever else its attribute puts there.
        let identified = attr::has_identifier(first) && first.sample_id_all();
        let id = record
            .len()
            .checked_sub(8)
            .filter(|offset| identified && *offset >= 8);
        let id = id.and_then(|offset| endian.u64(record, offset));
        let index = id.and_then(|id| self.index(id)).unwrap_or(0);
        attr::sample_id(record, self.all.get(index)?, endian)
    }
}
