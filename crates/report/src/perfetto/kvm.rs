//! What KVM's events other than entry and exit draw on a vCPU's track.

use std::io;

use stealtime_events::hypercall::KVM_HC_SEND_IPI;
use stealtime_events::{Event, Kind};

use super::drawing::Drawing;
use super::ipi::Request;
use super::packet::{Category, Mark, TrackKind};
use super::track::Track;

/// A counter of a vCPU.
#[derive(Debug, Clone, Copy)]
enum Counter {
    HaltPoll,
    PleWindow,
}

/// Draws an event of the vCPU in this row of the roster.
pub(super) fn draw(
    drawing: &mut Drawing<'_>,
    time: u64,
    event: &Event,
    row: u32,
) -> io::Result<()> {
    match event.kind {
        Kind::KvmUserspaceExit { reason, errno } => {
            drawing.draw_row(row, |vcpu, sink| vcpu.userspace(sink, time, reason, errno))
        }
        Kind::KvmInjVirq {
            vector,
            soft: false,
            ..
        } => drawing.inject(time, row, vector),
        Kind::KvmInjException { exception, .. } => {
            let name = drawing.sink.packets.name(&format!("exception {exception}"));
            let mark = Mark::plain(name, Category::Exit);
            drawing.draw_row(row, |vcpu, sink| vcpu.instant(sink, time, &mark))
        }
        Kind::KvmApicIpi { icr_low, dest_id } => {
            let request = Request {
                time_ns: time,
                vector: Some(icr_low.to_le_bytes()[0]),
                icr: Some((icr_low, dest_id)),
                flows: Vec::new(),
            };
            drawing.draw_row(row, |vcpu, sink| vcpu.request(sink, request))
        }
        Kind::KvmHypercall {
            nr: KVM_HC_SEND_IPI,
            ..
        } => {
            let request = Request {
                time_ns: time,
                ..Request::default()
            };
            drawing.draw_row(row, |vcpu, sink| vcpu.request(sink, request))
        }
        Kind::KvmApicAcceptIrq { apicid, vec, .. } => {
            drawing.accept(row, apicid, vec);
            Ok(())
        }
        Kind::KvmHaltPollNs { new, old, .. } => {
            drawing.draw_row(row, |vcpu, _| {
                vcpu.poll_changes(old, new);
                Ok(())
            })?;
            drawing.count(time, row, Counter::HaltPoll, new)
        }
        Kind::KvmPleWindowUpdate { new, .. } => drawing.count(time, row, Counter::PleWindow, new),
        _ => Ok(()),
    }
}

impl<'w> Drawing<'w> {
    /// The vCPU in the row `sender` sets a vector in an IRR: a target of its IPI, if it sends one.
    fn accept(&mut self, sender: u32, apicid: u32, vector: u8) {
        let target = self.roster.by_apic(sender, apicid);
        let sender = self.vcpus.get_mut(sender as usize);
        if let Some(target) = target
            && let Some(request) = sender.and_then(|vcpu| vcpu.request.as_mut())
            && request.vector.is_none_or(|sent| sent == vector)
        {
            request.flows.extend(self.flows.accept(target, vector));
        }
    }

    fn inject(&mut self, time: u64, row: u32, vector: u32) -> io::Result<()> {
        let flow = u8::try_from(vector)
            .ok()
            .and_then(|vector| self.flows.inject(row, vector));
        let ends: Vec<_> = flow.into_iter().collect();
        let name = self.sink.packets.name(&format!("inject {vector:#04x}"));
        let mark = Mark {
            ends: &ends,
            ..Mark::plain(name, Category::Ipi)
        };
        self.draw_row(row, |vcpu, sink| vcpu.instant(sink, time, &mark))
    }

    /// A counter of a vCPU changes.
    fn count(&mut self, time: u64, row: u32, counter: Counter, value: u32) -> io::Result<()> {
        let Some(vcpu) = self.vcpus.get_mut(row as usize) else {
            return Ok(());
        };
        if !vcpu.is_shown() || !self.sink.is_open() {
            return Ok(());
        }
        let time = vcpu.clamp(time);
        let (track, name, is_ns) = match counter {
            Counter::HaltPoll => (Track::HaltPoll(row), "halt_poll_ns", true),
            Counter::PleWindow => (Track::PleWindow(row), "ple_window", false),
        };
        let described = self.counters.get_mut(row as usize);
        let described = described.and_then(|described| described.get_mut(counter as usize));
        if let Some(described @ false) = described {
            *described = true;
            let kind = TrackKind::Counter { name, is_ns };
            self.sink
                .track(track, Some(Track::Vcpu(row)), counter as u32, kind)?;
        }
        self.sink.packets.counter(time, track.uuid(), value)
    }
}
