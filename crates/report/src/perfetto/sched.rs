//! What Perfetto itself knows of scheduling: `sched_switch` and `sched_waking` as ftrace bundles, for
//! its CPU tracks, thread states and wakers.

use std::collections::BTreeMap;
use std::io;

use stealtime_events::{CpuId, Event, Kind, Tid};

use super::packet::LATEST;
use super::proto::Encoder;
use super::track::Sink;

/// A bundle is written when it has grown to this many bytes: the head of its packet does not count then,
/// and memory is bounded by the number of CPUs.
const BUNDLE: usize = 16 << 10;

/// Bundles being filled, one for each CPU.
#[derive(Debug, Default)]
pub(super) struct Sched {
    bundles: BTreeMap<CpuId, Encoder>,
}

impl Sched {
    /// Adds a `sched_switch` or `sched_waking`; `name` gives tasks' names.
    pub(super) fn event<'a>(
        &mut self,
        sink: &mut Sink<'_>,
        event: &Event,
        name: impl Fn(Tid) -> &'a str,
    ) -> io::Result<()> {
        if !sink.is_open() {
            return Ok(());
        }
        let bundle = self.bundle(event.cpu);
        bundle.message(2, |entry| {
            entry.uint(1, event.time_ns.min(LATEST));
            entry.uint(2, u64::from(event.tid.0.cast_unsigned()));
            match event.kind {
                Kind::SchedSwitch {
                    prev,
                    next,
                    prev_prio,
                    next_prio,
                    prev_state,
                } => entry.message(4, |switch| {
                    switch.text(1, name(prev));
                    switch.int(2, prev.0.into());
                    switch.int(3, prev_prio.into());
                    switch.int(4, prev_state.into());
                    switch.text(5, name(next));
                    switch.int(6, next.0.into());
                    switch.int(7, next_prio.into());
                }),
                Kind::SchedWaking {
                    tid,
                    prio,
                    target_cpu,
                } => entry.message(20, |waking| {
                    waking.text(1, name(tid));
                    waking.int(2, tid.0.into());
                    waking.int(3, prio.into());
                    waking.int(4, 1);
                    waking.int(5, target_cpu.into());
                }),
                _ => {}
            }
        });
        if bundle.bytes().len() >= BUNDLE {
            self.flush(sink, event.cpu)?;
        }
        Ok(())
    }

    /// Events of this CPU were lost before what comes now: `FtraceEventBundle.lost_events`.
    pub(super) fn lost(&mut self, sink: &mut Sink<'_>, cpu: u16) -> io::Result<()> {
        let cpu = CpuId(cpu);
        if !sink.is_open() {
            return Ok(());
        }
        self.flush(sink, cpu)?;
        self.bundle(cpu).uint(3, 1);
        Ok(())
    }

    /// Writes what has been gathered.
    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) -> io::Result<()> {
        let cpus: Vec<_> = self.bundles.keys().copied().collect();
        cpus.into_iter().try_for_each(|cpu| self.flush(sink, cpu))
    }

    fn bundle(&mut self, cpu: CpuId) -> &mut Encoder {
        let bundle = self.bundles.entry(cpu).or_default();
        if bundle.bytes().is_empty() {
            bundle.uint(1, cpu.0.into());
        }
        bundle
    }

    fn flush(&mut self, sink: &mut Sink<'_>, cpu: CpuId) -> io::Result<()> {
        match self.bundles.get_mut(&cpu) {
            Some(bundle) if !bundle.bytes().is_empty() => {
                sink.packets.ftrace(bundle.bytes())?;
                bundle.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
