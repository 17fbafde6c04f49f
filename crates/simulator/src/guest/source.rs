//! Requests from clients beyond the guest's network card.

use super::{DeviceInterrupt, Guests};
use crate::engine::Random;
use crate::fault::Sim;
use crate::host::{Host, Message};
use crate::ids::{ThreadNr, VcpuNr, VmNr};
use crate::program::{DeviceId, QueueId, SourceId};

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
    /// Requests that no interrupt's handler has seen.
    pub(crate) pending: u32,
}

/// The device works on the request for as long as it takes.
pub(crate) fn start_device(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vm: VmNr,
    device: DeviceId,
    thread: ThreadNr,
) {
    let time = host.now() + guests.vms[vm].kernel.device_latency(device.0);
    let device = device.0;
    host.post(time, Message::Device { vm, device, thread });
}

/// A device has finished a thread's request: the interrupt that says so.
pub(crate) fn device_done(
    guests: &mut Guests,
    vm: VmNr,
    device: u32,
    thread: ThreadNr,
) -> DeviceInterrupt {
    guests.vms[vm].kernel.device_done(device, thread)
}

/// The guest has started: clients send.
pub(crate) fn start(guests: &mut Guests, host: &mut Host<'_>, vm: VmNr) {
    for number in 0..guests.vms[vm].kernel.sources.len() as u32 {
        let clients = match guests.vms[vm].kernel.sources[number as usize].arrivals {
            Arrivals::Open { .. } => 1,
            Arrivals::Closed { clients, .. } => clients,
        };
        for _ in 0..clients {
            next_request(guests, host, vm, number);
        }
    }
}

/// The next request comes after the clients' time to think, or after the open stream's gap.
fn next_request(guests: &mut Guests, host: &mut Host<'_>, vm: VmNr, number: u32) {
    let source = &mut guests.vms[vm].kernel.sources[number as usize];
    let mean = match source.arrivals {
        Arrivals::Open { mean_gap_ns } => mean_gap_ns,
        Arrivals::Closed { think_ns, .. } => think_ns,
    };
    let time = host.now() + source.random.exponential(mean).max(1);
    host.post(time, Message::Request { vm, source: number });
}

/// A request reaches the card: it interrupts unless an interrupt is already pending.
pub(crate) fn request_arrived(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vm: VmNr,
    number: u32,
) -> Option<DeviceInterrupt> {
    let now = host.now();
    let source = &mut guests.vms[vm].kernel.sources[number as usize];
    source.arrived.push_back(now);
    source.pending += 1;
    let (first, vcpu, vector) = (source.pending == 1, source.vcpu, source.vector);
    if matches!(source.arrivals, Arrivals::Open { .. }) {
        next_request(guests, host, vm, number);
    }
    first.then_some(DeviceInterrupt { vcpu, vector })
}

/// The driver takes all that has come (`napi_poll`).
pub(crate) fn poll_cards(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    vector: u8,
) -> Sim {
    let vm = guests.cpus[vcpu].vm;
    for number in 0..guests.vms[vm].kernel.sources.len() {
        let source = &mut guests.vms[vm].kernel.sources[number];
        if source.vector != vector || source.pending == 0 {
            continue;
        }
        let (queue, requests) = (source.queue, core::mem::take(&mut source.pending));
        guests.give_counts(host, vcpu, queue, requests)?;
    }
    Ok(())
}

/// A thread takes the oldest request; the answer is when it came.
pub(crate) fn take_request(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    source: SourceId,
) -> Sim<u64> {
    let vm = guests.cpus[vcpu].vm;
    match guests.vms[vm].kernel.sources[source.0 as usize]
        .arrived
        .pop_front()
    {
        Some(time) => Ok(time),
        None => host.broken("a request was taken twice"),
    }
}

/// The host has the answer: its client thinks, then asks again.
pub(crate) fn answered(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, source: SourceId) {
    let vm = guests.cpus[vcpu].vm;
    let arrivals = guests.vms[vm].kernel.sources[source.0 as usize].arrivals;
    if matches!(arrivals, Arrivals::Closed { .. }) {
        next_request(guests, host, vm, source.0);
    }
}
