//! Samples that are counted and not decoded, because no analysis needs their fields.

use stealtime_events::Names;

use super::attr::Attr;
use super::decode::{self, Samples};
use crate::tracefs::Endian;
use crate::tracepoint::{self, Point};
use crate::{Counted, NameTable};

/// Counts the samples of tracepoints that are not in [`crate::Options::only`].
#[derive(Debug, Default)]
pub(super) struct Unwanted {
    /// For each attribute the place of its tracepoint in `counted`.
    places: Vec<Option<u16>>,
    counted: Vec<Counted>,
    /// Samples, counted here or not, that were earlier than one before them.
    late: u64,
}

impl Unwanted {
    /// All tracepoints of these attributes except for the wanted ones. None where samples do not name
    /// processes, or entries are not recorded: then other events are needed to tell VMs apart.
    pub(super) fn new(
        attrs: &[Attr],
        wanted: &[&str],
        samples: &mut Samples,
        names: &NameTable,
    ) -> Self {
        let mut unwanted = Self::default();
        let recorded = attrs.iter().filter_map(Attr::tracepoint);
        let recorded: Vec<_> = recorded
            .filter_map(|id| samples.decoder().event_name(id))
            .map(|name| names.name(name))
            .collect();
        let has_entries = [Point::KvmEntry, Point::KvmExit]
            .map(tracepoint::name)
            .iter()
            .all(|name| recorded.contains(name));
        if !has_entries || !attrs.iter().all(Attr::has_tid) {
            return unwanted;
        }
        for attr in attrs {
            let id = attr.tracepoint();
            let name = id.and_then(|id| samples.decoder().event_name(id));
            let name = name.filter(|name| !wanted.contains(&names.name(*name)));
            let place = name.and_then(|name| {
                let name = names.name(name);
                let known = unwanted
                    .counted
                    .iter()
                    .position(|counted| counted.name == name);
                let place = known.unwrap_or_else(|| {
                    unwanted.counted.push(Counted::new(name));
                    unwanted.counted.len() - 1
                });
                u16::try_from(place).ok()
            });
            unwanted.places.push(place);
        }
        unwanted
    }

    /// Counts a sample that is not to be decoded; returns its time in ns. `None` for one to decode.
    #[inline]
    pub(super) fn counts(
        &mut self,
        index: usize,
        attr: &Attr,
        record: &[u8],
        endian: Endian,
    ) -> Option<u64> {
        let place = self.places.get(index).copied().flatten()?;
        let counted = self.counted.get_mut(usize::from(place))?;
        let (time_ns, cpu) = attr.time_and_cpu(record, endian)?;
        if time_ns == 0 {
            return None;
        }
        counted.add(time_ns, decode::cpu(cpu));
        Some(time_ns)
    }

    /// The index in the counts for the samples of an attribute, if these are only counted.
    pub(super) fn place(&self, attr: usize) -> Option<u16> {
        self.places.get(attr).copied().flatten()
    }

    /// Counts a sample at its attribute's [`Unwanted::place`], if it has a time. An index that is too
    /// large stands for no place. Returns whether the sample was counted.
    #[inline]
    pub(super) fn counts_at(&mut self, place: usize, time_ns: u64, cpu: u32) -> bool {
        match self.counted.get_mut(place) {
            Some(counted) if time_ns > 0 => {
                counted.add(time_ns, decode::cpu(Some(cpu)));
                true
            }
            _ => false,
        }
    }

    /// Notes of each sample, counted here or not, whether it is earlier than one before it.
    #[inline]
    pub(super) fn note_late(&mut self, is_late: bool) {
        self.late += u64::from(is_late);
    }

    /// Number of late samples; `None` where none is only counted.
    pub(super) fn late(&self) -> Option<u64> {
        (!self.counted.is_empty()).then_some(self.late)
    }

    /// What was counted.
    pub(super) fn counted(&self) -> impl Iterator<Item = Counted> {
        self.counted
            .iter()
            .filter(|counted| counted.events > 0)
            .cloned()
    }
}
