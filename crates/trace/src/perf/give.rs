//! Records to events.

use stealtime_events::{Context, Event, Kind, Names, Tid};

use super::attr::{self, Sample};
use super::attrs::Attrs;
use super::counted::Unwanted;
use super::decode::{self, Raw, Samples};
use super::notes::Tally;
use super::sort::Sorter;
use super::swift::Swift;
use super::twins::Twins;
use super::{kind, until_zero};
use crate::tracefs::{Endian, EventSink, Stamp};
use crate::{NameTable, SourceInfo};

/// What it takes to make events of records.
pub(super) struct Giver<'a> {
    pub(super) endian: Endian,
    pub(super) attrs: &'a Attrs,
    pub(super) samples: &'a mut Samples,
    pub(super) twins: &'a mut Twins,
    pub(super) out: &'a mut Sorter,
    pub(super) names: &'a mut NameTable,
    pub(super) info: &'a mut SourceInfo,
    pub(super) tally: &'a mut Tally,
    pub(super) unwanted: Option<&'a mut Unwanted>,
    pub(super) swift: Option<&'a Swift>,
}

/// Whether a record bears the cpumode of a guest.
#[inline]
const fn is_guest(misc: u16) -> bool {
    /// `PERF_RECORD_MISC_CPUMODE_MASK`, and the guest's kernel and user among its values.
    const CPUMODE: u16 = 7;
    matches!(misc & CPUMODE, 4 | 5)
}

impl Giver<'_> {
    /// Gives what a record tells that is no sample.
    pub(super) fn record(&mut self, kind: u32, bytes: &[u8]) {
        // What perf makes up itself ends in no sample_id.
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
        let at = Stamp {
            time_ns: sample.time.filter(|time| *time != u64::MAX).unwrap_or(0),
            cpu: decode::cpu(sample.cpu),
        };
        match kind {
            kind::LOST => self.lost(bytes, at.time_ns, sample),
            kind::COMM => self.task(bytes, at).unwrap_or(()),
            kind::THREAD_MAP => self.threads(bytes, at.time_ns),
            _ => {}
        }
    }

    /// Gives the events of the samples with which `bytes` begin, as far as they can be taken the
    /// short way; how many bytes they have.
    pub(super) fn swift_samples(&mut self, bytes: &[u8]) -> usize {
        let Some(swift) = self.swift else { return 0 };
        let (mut at, mut samples, mut guest) = (0, 0, 0);
        while let Some(rest) = bytes.get(at..)
            && let Some(found) = swift.find(rest)
        {
            let time_ns = found.time();
            if let Some(unwanted) = &mut self.unwanted
                && unwanted.counts_found(&found, time_ns)
            {
                unwanted.note_late(self.out.passes(time_ns));
                at += found.len;
                samples += 1;
                guest += u64::from(is_guest(found.misc));
                continue;
            }
            if self.out.is_full() {
                break;
            }
            if let Some(unwanted) = &mut self.unwanted {
                unwanted.note_late(self.out.is_late(time_ns));
            }
            at += found.len;
            samples += 1;
            guest += u64::from(is_guest(found.misc));
            self.wanted(Some(found.attr()), found.sample(), rest);
        }
        self.tally.samples += samples;
        self.tally.guest += guest;
        at
    }

    /// Gives the event of a sample.
    pub(super) fn sample(&mut self, bytes: &[u8], misc: u16) {
        let found = self.attrs.of_sample(bytes, self.endian);
        if let (Some(unwanted), Some((Some(index), attr))) = (&mut self.unwanted, found)
            && let Some(time_ns) = unwanted.counts((index, attr), bytes, self.endian)
        {
            unwanted.note_late(self.out.passes(time_ns));
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
            unwanted.note_late(self.out.is_late(time_ns));
        }
        self.wanted(index, sample, bytes);
    }

    /// Gives the event of a sample that is not only counted. `bytes` begin with it.
    #[inline(always)]
    fn wanted(&mut self, index: Option<usize>, sample: Sample, bytes: &[u8]) {
        let raw = sample
            .raw
            .and_then(|(start, len)| bytes.get(start..)?.get(..len));
        let cpu = sample.cpu.or_else(|| self.attrs.cpu_of(sample.id));
        let at = Stamp {
            time_ns: sample.time.unwrap_or(0),
            cpu: decode::cpu(cpu),
        };
        if let (Some(index), Some(raw)) = (index, raw)
            && let Some(tracepoint) = self.twins.repeats(index, at.cpu, raw)
            && self.repeated(tracepoint, at, sample.tid)
        {
            return;
        }
        let raw = Raw {
            at,
            pid: sample.pid,
            tid: sample.tid,
            bytes: raw,
        };
        let told = (&mut *self.names, &mut *self.info);
        self.samples
            .event((index, self.attrs.all()), raw, told, self.out);
    }

    /// A sample that repeats another counts, as perf counts it, but it tells nothing new: it is given
    /// by its name alone. Whether that was done: an access (MSR, port, MMIO) is given whole each
    /// time, because `perf kvm stat` times it from the last sample to the next entry.
    fn repeated(&mut self, tracepoint: u16, at: Stamp, tid: i32) -> bool {
        let name = self
            .samples
            .decoder()
            .event_name(tracepoint)
            .unwrap_or_default();
        if ["kvm_msr", "kvm_pio", "kvm_mmio"].contains(&self.names.name(name)) {
            return false;
        }
        self.out.push(Event {
            time_ns: at.time_ns,
            tid: Tid(tid),
            cpu: at.cpu,
            context: Context::UNKNOWN,
            kind: Kind::Other { name },
        });
        true
    }

    fn lost(&mut self, bytes: &[u8], time_ns: u64, sample: Sample) {
        let Some(count) = self.endian.u64(bytes, 16) else {
            return;
        };
        let cpu = sample
            .cpu
            .or_else(|| self.attrs.cpu_of(self.endian.u64(bytes, 8)));
        self.tally.lost = self.tally.lost.saturating_add(count);
        self.info.lost.counted = self.tally.lost;
        self.out.push(Event {
            time_ns,
            tid: Tid(sample.tid),
            cpu: decode::cpu(cpu),
            context: Context::UNKNOWN,
            kind: Kind::Lost { count },
        });
    }

    /// `PERF_RECORD_COMM`: process, thread, name.
    fn task(&mut self, bytes: &[u8], at: Stamp) -> Option<()> {
        let process = Tid(self.endian.u32(bytes, 8)?.cast_signed());
        let tid = Tid(self.endian.u32(bytes, 12)?.cast_signed());
        let comm = until_zero(bytes.get(16..)?);
        let decoder = self.samples.decoder();
        decoder.task_named(tid, Some(process), comm, at, self.names, self.out);
        Some(())
    }

    /// `PERF_RECORD_THREAD_MAP`: names of the threads that were asked for.
    fn threads(&mut self, bytes: &[u8], time_ns: u64) {
        const ENTRY: usize = 24;
        let at = Stamp {
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
                decoder.task_named(Tid(tid), None, comm, at, self.names, self.out);
            }
        }
    }
}
