//! Emits the events of records into the sorter.

use stealtime_events::{Context, Event, Kind, Names, Tid};

use super::attr::{self, Sample};
use super::attrs::Attrs;
use super::counted::Unwanted;
use super::decode::{self, Raw, Samples};
use super::fast_path::FastPath;
use super::kind;
use super::records::until_zero;
use super::sort::Sorter;
use super::tally::Tally;
use super::twins::Twins;
use crate::tracefs::{Endian, EventSink, Stamp};
use crate::tracepoint::{self, Point};
use crate::{NameTable, SourceInfo};

/// Emits the events of records. Borrows the parts of a [`super::PerfSource`] other than its records.
pub(super) struct Emitter<'a> {
    pub(super) endian: Endian,
    pub(super) attrs: &'a Attrs,
    pub(super) samples: &'a mut Samples,
    pub(super) twins: &'a mut Twins,
    pub(super) sink: &'a mut Sorter,
    pub(super) names: &'a mut NameTable,
    pub(super) info: &'a mut SourceInfo,
    pub(super) tally: &'a mut Tally,
    pub(super) unwanted: Option<&'a mut Unwanted>,
    pub(super) fast_path: Option<&'a FastPath>,
}

/// Whether a record bears the cpumode of a guest.
#[inline]
const fn is_guest(misc: u16) -> bool {
    /// `PERF_RECORD_MISC_CPUMODE_MASK`, and the guest's kernel and user among its values.
    const CPUMODE: u16 = 7;
    matches!(misc & CPUMODE, 4 | 5)
}

impl Emitter<'_> {
    /// Emits the events of a record that is no sample.
    pub(super) fn record(&mut self, kind: u32, bytes: &[u8]) {
        // Records that perf synthesizes end in no sample_id.
        let of_kernel = kind < kind::HEADER_ATTR;
        let sample = if of_kernel {
            self.attrs.sample_id(bytes, self.endian)
        } else {
            Some(Sample::default())
        };
        let Some(sample) = sample else {
            self.tally.broken += 1;
            return;
        };
        let stamp = Stamp {
            time_ns: sample.time.filter(|time| *time != u64::MAX).unwrap_or(0),
            cpu: decode::cpu(sample.cpu),
        };
        let emitted = match kind {
            kind::LOST => self.lost(bytes, stamp.time_ns, sample),
            kind::COMM => self.task(bytes, stamp),
            kind::THREAD_MAP => {
                self.threads(bytes, stamp.time_ns);
                Some(())
            }
            _ => Some(()),
        };
        self.tally.broken += u64::from(emitted.is_none());
    }

    /// Emits the events of the samples with which `bytes` begin, as far as they can take the fast path.
    /// Returns the length of these samples in bytes.
    pub(super) fn fast_samples(&mut self, bytes: &[u8]) -> usize {
        let Some(fast_path) = self.fast_path else {
            return 0;
        };
        let (mut offset, mut samples, mut guest) = (0, 0, 0);
        while let Some(rest) = bytes.get(offset..)
            && let Some(found) = fast_path.find(rest)
        {
            let time_ns = found.time();
            if let Some(unwanted) = &mut self.unwanted
                && unwanted.counts_at(found.place(), time_ns, found.cpu())
            {
                unwanted.note_late(self.sink.passes(time_ns));
                offset += found.len;
                samples += 1;
                guest += u64::from(is_guest(found.misc));
                continue;
            }
            if self.sink.is_full() {
                break;
            }
            if let Some(unwanted) = &mut self.unwanted {
                unwanted.note_late(self.sink.is_late(time_ns));
            }
            offset += found.len;
            samples += 1;
            guest += u64::from(is_guest(found.misc));
            self.wanted(Some(found.attr()), found.sample(), rest);
        }
        self.tally.samples += samples;
        self.tally.guest += guest;
        offset
    }

    /// Emits the event of a sample.
    pub(super) fn sample(&mut self, bytes: &[u8], misc: u16) {
        let found = self.attrs.of_sample(bytes, self.endian);
        if let (Some(unwanted), Some((Some(index), attr))) = (&mut self.unwanted, found)
            && let Some(time_ns) = unwanted.counts(index, attr, bytes, self.endian)
        {
            unwanted.note_late(self.sink.passes(time_ns));
            self.tally.samples += 1;
            self.tally.guest += u64::from(is_guest(misc));
            return;
        }
        let Some((index, sample)) =
            found.and_then(|(index, attr)| Some((index, attr::sample(bytes, attr, self.endian)?)))
        else {
            self.tally.broken += 1;
            return;
        };
        self.tally.samples += 1;
        self.tally.untimed += u64::from(sample.time.is_none());
        self.tally.guest += u64::from(is_guest(misc));
        if let (Some(unwanted), Some(time_ns)) = (&mut self.unwanted, sample.time) {
            unwanted.note_late(self.sink.is_late(time_ns));
        }
        self.wanted(index, sample, bytes);
    }

    /// Emits the event of a sample that is not only counted. `bytes` begin with it.
    #[inline(always)]
    fn wanted(&mut self, index: Option<usize>, sample: Sample, bytes: &[u8]) {
        let raw = sample
            .raw
            .and_then(|(start, len)| bytes.get(start..)?.get(..len));
        let cpu = sample.cpu.or_else(|| self.attrs.cpu_of(sample.id));
        let stamp = Stamp {
            time_ns: sample.time.unwrap_or(0),
            cpu: decode::cpu(cpu),
        };
        if let (Some(index), Some(raw)) = (index, raw)
            && let Some(tracepoint) = self.twins.repeats(index, stamp.cpu, raw)
            && self.repeated(tracepoint, stamp, sample.tid)
        {
            return;
        }
        let raw = Raw {
            stamp,
            pid: sample.pid,
            tid: sample.tid,
            bytes: raw,
        };
        self.samples.event(
            index,
            self.attrs.all(),
            raw,
            self.names,
            self.info,
            self.sink,
        );
    }

    /// Emits a sample that repeats another by its name alone: it counts, as perf counts it, and adds
    /// nothing else. Returns whether it did. An access (MSR, port, MMIO) is emitted whole each time,
    /// because `perf kvm stat` times it from the last sample to the next entry
    /// (`mmio_event_end`, tools/perf/arch/x86/util/kvm-stat.c).
    fn repeated(&mut self, tracepoint: u16, stamp: Stamp, tid: i32) -> bool {
        let name = self
            .samples
            .decoder()
            .event_name(tracepoint)
            .unwrap_or_default();
        let accesses = [Point::KvmMsr, Point::KvmPio, Point::KvmMmio].map(tracepoint::name);
        if accesses.contains(&self.names.name(name)) {
            return false;
        }
        self.sink.push(Event {
            time_ns: stamp.time_ns,
            tid: Tid(tid),
            cpu: stamp.cpu,
            context: Context::UNKNOWN,
            kind: Kind::Other { name },
        });
        true
    }

    /// `PERF_RECORD_LOST`: id, number of lost records. `None` where it is too short.
    fn lost(&mut self, bytes: &[u8], time_ns: u64, sample: Sample) -> Option<()> {
        let count = self.endian.u64(bytes, 16)?;
        let cpu = sample
            .cpu
            .or_else(|| self.attrs.cpu_of(self.endian.u64(bytes, 8)));
        self.tally.lost = self.tally.lost.saturating_add(count);
        self.info.lost.counted = self.tally.lost;
        self.sink.push(Event {
            time_ns,
            tid: Tid(sample.tid),
            cpu: decode::cpu(cpu),
            context: Context::UNKNOWN,
            kind: Kind::Lost { count },
        });
        Some(())
    }

    /// `PERF_RECORD_COMM`: process, thread, name. `None` where it is too short.
    fn task(&mut self, bytes: &[u8], stamp: Stamp) -> Option<()> {
        let process = Tid(self.endian.u32(bytes, 8)?.cast_signed());
        let tid = Tid(self.endian.u32(bytes, 12)?.cast_signed());
        let comm = until_zero(bytes.get(16..)?);
        let decoder = self.samples.decoder();
        decoder.task_named(tid, Some(process), comm, stamp, self.names, self.sink);
        Some(())
    }

    /// `PERF_RECORD_THREAD_MAP`: names of the threads that perf was to record.
    fn threads(&mut self, bytes: &[u8], time_ns: u64) {
        const ENTRY: usize = 24;
        let stamp = Stamp {
            time_ns,
            cpu: decode::cpu(None),
        };
        for entry in bytes.get(16..).unwrap_or_default().chunks_exact(ENTRY) {
            let tid = self
                .endian
                .u64(entry, 0)
                .and_then(|tid| i32::try_from(tid).ok());
            if let (Some(tid), Some(comm)) = (tid.filter(|tid| *tid > 0), entry.get(8..)) {
                let (comm, decoder) = (until_zero(comm), self.samples.decoder());
                decoder.task_named(Tid(tid), None, comm, stamp, self.names, self.sink);
            }
        }
    }
}
