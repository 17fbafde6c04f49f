//! Sums over the records of a file, and the notes that they become at its end.

use crate::SourceInfo;

/// Numbers of samples and losses.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) samples: u64,
    /// Samples with the cpumode of a guest.
    pub(super) guest: u64,
    /// Sum of the `PERF_RECORD_LOST`.
    pub(super) lost: u64,
    /// Sum of the `PERF_RECORD_LOST_SAMPLES`.
    pub(super) lost_samples: u64,
    /// Records of no known attribute, or shorter than their fields.
    pub(super) broken: u64,
    /// Samples without a time.
    pub(super) untimed: u64,
}

impl Tally {
    /// Adds the sum of losses and the notes. Called once all records are read.
    pub(super) fn finish(&self, info: &mut SourceInfo) {
        let Self {
            samples,
            guest,
            lost,
            lost_samples,
            broken,
            untimed,
        } = *self;
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
        // Both kinds of records count the same losses, each with gaps: see the module `perf`.
        info.lost.counted = lost.max(lost_samples);
        if lost_samples > lost {
            let unplaced = lost_samples - lost;
            info.note(
                false,
                format!(
                    "{lost_samples} samples were lost; where {unplaced} of them were lost the file \
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
    }
}
