//! Records whose time has come to events.

use stealtime_events::{Context, Event, Kind, Names, Tid};

use super::attr;
use super::attrs::Attrs;
use super::decode::{self, Raw, Samples};
use super::notes::Tally;
use super::twins::Twins;
use super::{kind, until_zero};
use crate::tracefs::{Endian, EventQueue, Stamp};
use crate::{NameTable, SourceInfo};

/// What it takes to make events of a record.
pub(super) struct Giver<'a> {
    pub(super) endian: Endian,
    pub(super) attrs: &'a mut Attrs,
    pub(super) samples: &'a mut Samples,
    pub(super) twins: &'a mut Twins,
    pub(super) queue: &'a mut EventQueue,
    pub(super) names: &'a mut NameTable,
    pub(super) info: &'a mut SourceInfo,
    pub(super) tally: &'a mut Tally,
}

impl Giver<'_> {
    /// Gives what a record tells; whether that is an event of the host.
    pub(super) fn record(&mut self, bytes: &[u8], attr: Option<usize>, time_ns: u64) -> bool {
        match self.endian.u32(bytes, 0) {
            Some(kind::SAMPLE) => return self.sample(bytes, attr, time_ns).is_some(),
            Some(kind::LOST) => self.lost(bytes, time_ns),
            Some(kind::COMM) => self.task(bytes, time_ns).unwrap_or(()),
            Some(kind::THREAD_MAP) => self.threads(bytes, time_ns),
            _ => {}
        }
        false
    }

    fn sample(&mut self, bytes: &[u8], index: Option<usize>, time_ns: u64) -> Option<()> {
        let all = self.attrs.all();
        let attr = index.map_or_else(|| all.first(), |index| all.get(index))?;
        let sample = attr::sample(bytes, attr, self.endian)?;
        let raw = sample
            .raw
            .and_then(|(start, len)| bytes.get(start..)?.get(..len));
        let cpu = sample.cpu.or_else(|| self.attrs.cpu_of(sample.id));
        let at = Stamp {
            time_ns,
            cpu: decode::cpu(cpu),
        };
        if let (Some(index), Some(raw)) = (index, raw)
            && let Some(tracepoint) = self.twins.repeats(index, at.cpu, raw)
            && self.repeated(tracepoint, at, sample.tid)
        {
            return Some(());
        }
        let raw = Raw {
            at,
            tid: sample.tid,
            bytes: raw,
        };
        let attr = index.and_then(|index| self.attrs.all().get(index));
        self.samples
            .event(attr, raw, self.names, self.info, self.queue);
        Some(())
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
        self.queue.push(Event {
            time_ns: at.time_ns,
            tid: Tid(tid),
            cpu: at.cpu,
            context: Context::default(),
            kind: Kind::Other { name },
        });
        true
    }

    fn lost(&mut self, bytes: &[u8], time_ns: u64) {
        let Some(count) = self.endian.u64(bytes, 16) else {
            return;
        };
        let sample = self.attrs.sample_id(bytes, self.endian).unwrap_or_default();
        let cpu = sample
            .cpu
            .or_else(|| self.attrs.cpu_of(self.endian.u64(bytes, 8)));
        self.tally.lost = self.tally.lost.saturating_add(count);
        self.info.lost.counted = self.tally.lost;
        self.queue.push(Event {
            time_ns,
            tid: Tid(sample.tid),
            cpu: decode::cpu(cpu),
            context: Context::default(),
            kind: Kind::Lost { count },
        });
    }

    /// `PERF_RECORD_COMM`: process, thread, name.
    fn task(&mut self, bytes: &[u8], time_ns: u64) -> Option<()> {
        let process = Tid(self.endian.u32(bytes, 8)?.cast_signed());
        let tid = Tid(self.endian.u32(bytes, 12)?.cast_signed());
        let comm = until_zero(bytes.get(16..)?);
        let cpu = self
            .attrs
            .sample_id(bytes, self.endian)
            .and_then(|sample| sample.cpu);
        let at = Stamp {
            time_ns,
            cpu: decode::cpu(cpu),
        };
        let decoder = self.samples.decoder();
        decoder.task_named(tid, Some(process), comm, at, self.names, self.queue);
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
                decoder.task_named(Tid(tid), None, comm, at, self.names, self.queue);
            }
        }
    }
}
