//! Samples that are only counted, because nobody wants their fields.

use stealtime_events::Names;

use super::attr::Attr;
use super::decode::Samples;
use super::swift::Found;
use crate::tracefs::Endian;
use crate::{Counted, NameTable};

/// Counts the samples of tracepoints that nobody wants.
#[derive(Debug, Default)]
pub(super) struct Unwanted {
    /// For each attribute the place of its tracepoint in `counted`.
    places: Vec<Option<u16>>,
    counted: Vec<Counted>,
    /// Samples, counted here or not, that were earlier than one before them.
    late: u64,
}

impl Unwanted {
    /// All tracepoints of these attributes but for the wanted ones. None where samples do not name
    /// processes or entries are not recorded: then it takes other events to tell VMs apart.
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
        let has_entries = ["kvm_entry", "kvm_exit"]
            .iter()
            .all(|it| recorded.contains(it));
        if !has_entries || !attrs.iter().all(Attr::has_tid) {
            return unwanted;
        }
        for attr in attrs {
            let id = attr.tracepoint();
            let name = id.and_then(|id| samples.decoder().event_name(id));
            let name = name.filter(|name| !wanted.contains(&names.name(*name)));
            let place = name.and_then(|name| {
                let name = names.name(name);
                let known = unwanted.counted.iter().position(|it| it.name == name);
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

    /// Counts a sample, if that is all that is wanted of it: then this is its time.
    #[inline]
    pub(super) fn counts(
        &mut self,
        (index, attr): (usize, &Attr),
        record: &[u8],
        endian: Endian,
    ) -> Option<u64> {
        let place = self.places.get(index).copied().flatten()?;
        let counted = self.counted.get_mut(usize::from(place))?;
        let (time_ns, cpu) = attr.time_and_cpu(record, endian)?;
        if time_ns == 0 {
            return None;
        }
        counted.add(time_ns, super::decode::cpu(cpu));
        Some(time_ns)
    }

    /// Where the samples of an attribute are counted, if they are.
    pub(super) fn place(&self, attr: usize) -> Option<u16> {
        self.places.get(attr).copied().flatten()
    }

    /// The same for a sample that is known to hold all: whether it was counted.
    #[inline]
    pub(super) fn counts_found(&mut self, found: &Found<'_>, time_ns: u64) -> bool {
        match self.counted.get_mut(found.place()) {
            Some(counted) if time_ns > 0 => {
                counted.add(time_ns, super::decode::cpu(Some(found.cpu())));
                true
            }
            _ => false,
        }
    }

    /// A sample, counted here or not, is earlier than one before it, or not.
    #[inline]
    pub(super) fn note_late(&mut self, is_late: bool) {
        self.late += u64::from(is_late);
    }

    /// How many were; `None` where none is only counted.
    pub(super) fn late(&self) -> Option<u64> {
        (!self.counted.is_empty()).then_some(self.late)
    }

    /// What was counted.
    pub(super) fn counted(&self) -> impl Iterator<Item = Counted> {
        self.counted.iter().filter(|it| it.events > 0).cloned()
    }
}
