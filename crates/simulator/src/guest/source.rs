//! Requests from clients beyond the guest's network card.

use crate::engine::Random;
use crate::fault::Sim;
use crate::ids::{VcpuNr, VmNr};
use crate::machine::{Machine, Message};
use crate::program::{QueueId, SourceId};

use super::build::Arrivals;

/// Clients, and the queue of the card that their requests come to.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) arrivals: Arrivals,
    /// Counts requests that the driver has taken from the card.
    pub(crate) queue: QueueId,
    /// The vCPU that the card interrupts.
    pub(crate) vcpu: u32,
    pub(crate) vector: u8,
    pub(crate) random: Random,
    /// When the requests at the card arrived that no thread has taken, oldest first.
    pub(crate) arrived: std::collections::VecDeque<u64>,
    /// Requests whose interrupt has not been handled.
    pub(crate) pending: u32,
}

impl Machine<'_> {
    /// The guest has started: clients send.
    pub(crate) fn start_sources(&mut self, vm: VmNr) {
        for number in 0..self.vms[vm].kernel.sources.len() as u32 {
            let clients = match self.vms[vm].kernel.sources[number as usize].arrivals {
                Arrivals::Open { .. } => 1,
                Arrivals::Closed { clients, .. } => clients,
            };
            for _ in 0..clients {
                self.next_request(vm, number);
            }
        }
    }

    /// The next request comes after the clients' time to think, or after the open stream's gap.
    fn next_request(&mut self, vm: VmNr, number: u32) {
        let source = &mut self.vms[vm].kernel.sources[number as usize];
        let mean = match source.arrivals {
            Arrivals::Open { mean_gap_ns } => mean_gap_ns,
            Arrivals::Closed { think_ns, .. } => think_ns,
        };
        let at = self.now + source.random.exponential(mean).max(1);
        self.post(at, Message::Request { vm, source: number });
    }

    /// A request reaches the card: it interrupts unless an interrupt is already pending.
    pub(crate) fn request_arrived(&mut self, vm: VmNr, number: u32) -> Sim {
        let now = self.now;
        let source = &mut self.vms[vm].kernel.sources[number as usize];
        source.arrived.push_back(now);
        source.pending += 1;
        let (first, vcpu, vector) = (source.pending == 1, source.vcpu, source.vector);
        if matches!(source.arrivals, Arrivals::Open { .. }) {
            self.next_request(vm, number);
        }
        if first {
            return self.device_raises(vm, vcpu, vector);
        }
        Ok(())
    }

    /// The driver takes all that has come (`napi_poll`).
    pub(crate) fn guest_polls_cards(&mut self, vcpu: VcpuNr, vector: u8) -> Sim {
        let vm = self.vcpus[vcpu].vm;
        for number in 0..self.vms[vm].kernel.sources.len() {
            let source = &mut self.vms[vm].kernel.sources[number];
            if source.vector != vector || source.pending == 0 {
                continue;
            }
            let (queue, requests) = (source.queue, core::mem::take(&mut source.pending));
            self.guest_give(vcpu, queue, requests)?;
        }
        Ok(())
    }

    /// A thread takes the oldest request; the answer is when it came.
    pub(crate) fn guest_take_request(&mut self, vcpu: VcpuNr, source: SourceId) -> Sim<u64> {
        let vm = self.vcpus[vcpu].vm;
        match self.vms[vm].kernel.sources[source.0 as usize]
            .arrived
            .pop_front()
        {
            Some(at) => Ok(at),
            None => self.broken("a request was taken twice"),
        }
    }

    /// The host has the answer: its client thinks, then asks again.
    pub(crate) fn source_answered(&mut self, vcpu: VcpuNr, source: SourceId) {
        let vm = self.vcpus[vcpu].vm;
        let arrivals = self.vms[vm].kernel.sources[source.0 as usize].arrivals;
        if matches!(arrivals, Arrivals::Closed { .. }) {
            self.next_request(vm, source.0);
        }
    }
}
