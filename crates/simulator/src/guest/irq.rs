//! Interrupts of the guest.

use stealtime_hypervisor::fair::Resched;

use super::{
    CALL_FUNCTION_VECTOR, DEVICE_VECTOR, Guests, LOCAL_TIMER_VECTOR, Micro, SOURCE_VECTOR, call,
    source, timer,
};
use crate::fault::Sim;
use crate::host::Host;
use crate::ids::VcpuNr;
use crate::kvm::Exit;

/// The vCPU takes an interrupt.
pub(crate) fn interrupt(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, vector: u8) {
    let g = &mut guests.cpus[vcpu];
    if let Some(Micro::Exit(Exit::Hlt)) = g.base.front() {
        // HLT in the guest ends.
        g.base.pop_front();
    }
    g.in_irq = Some(vector);
    let half = Micro::Run {
        ns: u64::from(host.costs().guest_irq_ns / 2),
        kernel: true,
    };
    let handler = [half, Micro::Exit(Exit::Eoi), Micro::Handle(vector), half];
    g.irq.replace(handler);
    host.stats_mut().guest_irqs += 1;
}

/// What a vector is for.
pub(crate) fn handle(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, vector: u8) -> Sim {
    match vector {
        LOCAL_TIMER_VECTOR => timer::expire(guests, host, vcpu),
        CALL_FUNCTION_VECTOR => call::answer(guests, host, vcpu),
        DEVICE_VECTOR..SOURCE_VECTOR => complete_io(guests, host, vcpu, vector),
        SOURCE_VECTOR..0x70 => source::poll_cards(guests, host, vcpu, vector),
        // The reschedule vector has done its work by coming.
        _ => Ok(()),
    }
}

/// The handler is over.
pub(crate) fn iret(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) -> Sim {
    let g = &mut guests.cpus[vcpu];
    g.in_irq = None;
    if g.resched != Resched::None && g.preempt_off == 0 && g.spin.is_none() && g.current.is_some() {
        return guests.schedule(host, vcpu);
    }
    Ok(())
}

fn complete_io(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, vector: u8) -> Sim {
    let vm = guests.cpus[vcpu].vm;
    let kernel = &mut guests.vms[vm].kernel;
    let mut ready = Vec::new();
    kernel.finished.retain(|&(v, thread)| {
        if v == vector {
            ready.push(thread);
        }
        v != vector
    });
    for thread in ready {
        guests.wake(host, vcpu, thread)?;
    }
    Ok(())
}
