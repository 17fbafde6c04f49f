//! Samples that are only counted, because nobody wants their fields.

use stealtime_events::Names;

use super::attr::Attr;
use super::decode::Samples;
use crate::tracefs::Endian;
use crate::{Counted, NameTable};

/// Counts the samples of tracepoints that nobody wants.
#[derive(Debug, Default)]
pub(super) struct Unwanted {
    /// For each attribute the place of its tracepoint in `counted`.
    places: Vec<Option<u16>>,
    counted: Vec<Counted>,
}

impl Unwanted {
    /// All tracepoints of these attributes but for the wanted ones; none where samples do not name
    /// processes, because then it takes other events to tell VMs apart.
    pub(super) fn new(
        attrs: &[Attr],
        wanted: &[&str],
        samples: &mut Samples,
        names: &NameTable,
    ) -> Self {
        let mut unwanted = Self::default();
        if !attrs.iter().all(Attr::has_tid) {
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

    /// Counts a sample, if that is all that is wanted of it; `given_ns` is the latest time of what
    /// was given before.
    #[inline]
    pub(super) fn counts(
        &mut self,
        (index, attr): (usize, &Attr),
        record: &[u8],
        endian: Endian,
        given_ns: u64,
    ) -> bool {
        let place = self.places.get(index).copied().flatten();
        let Some(counted) = place.and_then(|place| self.counted.get_mut(usize::from(place))) else {
            return false;
        };
        match attr.time_and_cpu(record, endian) {
            Some((time_ns, cpu)) if time_ns > 0 => {
                counted.add(time_ns, super::decode::cpu(cpu), given_ns);
                true
            }
            _ => false,
        }
    }

    /// What was counted.
    pub(super) fn counted(&self) -> impl Iterator<Item = Counted> {
        self.counted.iter().filter(|it| it.events > 0).cloned()
    }
}
