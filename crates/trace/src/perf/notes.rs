//! What a user must know of the recording, once all of it was read.

use stealtime_events::Names;

use super::counted::Unwanted;
use super::{PerfSource, Sources};

/// Sums that become notes.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) samples: u64,
    pub(super) guest: u64,
    pub(super) lost: u64,
    pub(super) lost_samples: u64,
    pub(super) broken: u64,
    pub(super) untimed: u64,
}

impl PerfSource {
    /// Says what is known only once all was read.
    pub(super) fn finish(&mut self) {
        let Tally {
            samples,
            guest,
            lost,
            lost_samples,
            broken,
            untimed,
        } = self.tally;
        let info = &mut self.info;
        info.counted = self.unwanted.iter().flat_map(Unwanted::counted).collect();
        info.late = self.unwanted.as_ref().and_then(Unwanted::late);
        info.uname = self.features.uname();
        info.cpus = self.features.cpus;
        if let Sources::Pipe { damage, .. } = &self.progress
            && let Some(damage) = damage.get()
        {
            info.note(
                true,
                format!("{damage}; what was unpacked until there is read"),
            );
        }
        if guest > 0 {
            info.note(
                false,
                format!(
                    "{guest} of {samples} samples bear a guest's cpumode (interrupts taken out of \
                     a guest); they are events of the host and are counted; perf script and perf \
                     sched leave them out"
                ),
            );
        }
        info.lost.counted = lost.max(lost_samples);
        if lost_samples > lost {
            let late = lost_samples - lost;
            info.note(
                false,
                format!(
                    "{lost_samples} samples were lost; where {late} of them were lost the file \
                     does not say"
                ),
            );
        }
        if untimed > 0 {
            let text = format!("{untimed} samples have no time (perf record without --timestamp)");
            info.note(true, text);
        }
        if broken > 0 {
            info.note(
                true,
                format!("{broken} records are of no known event or too short for it: left out"),
            );
        }
        self.note_twins();
        self.note_without();
    }

    fn note_twins(&mut self) {
        let Some(twins) = self.twins.as_ref().filter(|twins| twins.repeated > 0) else {
            return;
        };
        let mut known = self.samples.as_mut();
        let names: Vec<String> = twins
            .tracepoints()
            .into_iter()
            .map(
                |id| match known.as_mut().and_then(|it| it.decoder().event_name(id)) {
                    Some(name) => self.names.name(name).to_owned(),
                    None => format!("tracepoint {id}"),
                },
            )
            .collect();
        let (names, repeated) = (names.join(", "), twins.repeated);
        self.info.note(
            false,
            format!(
                "{names}: recorded by two events of one perf record; {repeated} samples \
                 repeat another: they are counted, and tell nothing else"
            ),
        );
    }

    fn note_without(&mut self) {
        let Some(samples) = self.samples.as_ref().filter(|it| !it.without.is_empty()) else {
            return;
        };
        let sum: u64 = samples.without.values().sum();
        let kinds = samples.without.len();
        self.info.note(
            true,
            format!(
                "the formats of {kinds} tracepoints are missing: their {sum} samples are counted \
                 as unknown-ID and their fields are not read; with --formats-from give a perf.data \
                 or trace.dat of the same boot of the same kernel"
            ),
        );
    }
}
