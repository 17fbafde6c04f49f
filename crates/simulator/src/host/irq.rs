//! Host interrupts.

use stealtime_events::{HostVector, Kind, vector};
use stealtime_hypervisor::fair::Resched;

use super::{Host, Message, Phase, idle, poll};
use crate::fault::Sim;
use crate::ids::CpuNr;
use crate::xen;

/// Interrupts of the host, as a set of one or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Irq(u16);

#[allow(non_upper_case_globals, reason = "used as the variants of an enum are")]
impl Irq {
    /// The LAPIC's timer.
    pub(crate) const LocalTimer: Self = Self(1);
    /// `RESCHEDULE_VECTOR`.
    pub(crate) const Reschedule: Self = Self(1 << 1);
    /// `POSTED_INTR_VECTOR`: a notification.
    pub(crate) const PostedIntr: Self = Self(1 << 2);
    /// `POSTED_INTR_WAKEUP_VECTOR`.
    pub(crate) const PostedWakeup: Self = Self(1 << 3);
    /// A device's interrupt.
    pub(crate) const Device: Self = Self(1 << 4);
    /// Xen's `EVENT_CHECK_VECTOR`.
    pub(crate) const EventCheck: Self = Self(1 << 5);
    /// Firmware or an NMI keeps the CPU (injected).
    pub(crate) const Stall: Self = Self(1 << 6);

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn has(self, irq: Self) -> bool {
        self.0 & irq.0 != 0
    }

    pub(crate) fn insert(&mut self, irq: Self) {
        self.0 |= irq.0;
    }

    pub(crate) fn remove(&mut self, irq: Self) -> bool {
        let was_pending = self.has(irq);
        self.0 &= !irq.0;
        was_pending
    }

    /// Takes one: the lowest bit.
    fn take(&mut self) -> Option<Self> {
        if self.0 == 0 {
            return None;
        }
        let lowest = self.0 & self.0.wrapping_neg();
        self.0 &= !lowest;
        Some(Self(lowest))
    }

    /// How a trace shows it: class and vector.
    pub(crate) const fn traced(self) -> Option<(HostVector, u8)> {
        match self {
            Self::LocalTimer => Some((HostVector::LocalTimer, vector::linux::LOCAL_TIMER)),
            Self::Reschedule => Some((HostVector::Reschedule, vector::linux::RESCHEDULE)),
            _ => None,
        }
    }

    /// The host vector.
    pub(crate) const fn vector(self) -> u8 {
        match self {
            Self::LocalTimer => vector::linux::LOCAL_TIMER,
            Self::Reschedule => vector::linux::RESCHEDULE,
            Self::PostedIntr => vector::linux::POSTED_INTR,
            Self::PostedWakeup => vector::linux::POSTED_INTR_WAKEUP,
            Self::EventCheck => stealtime_hypervisor::wakeup_batch::EVENT_CHECK_VECTOR,
            _ => 0x21,
        }
    }
}

/// `sender` sends an interrupt to `target`: charges the sender and lets it fly.
pub(crate) fn send_ipi(host: &mut Host<'_>, sender: CpuNr, target: CpuNr, irq: Irq) {
    if host.cfg.host.profile.features.x2apic {
        host.charge(sender, host.costs.icr_x2apic_ns);
    } else {
        wait_icr_idle(host, sender, target);
    }
    fly(host, sender, target, irq);
}

/// In xAPIC mode the ICR may be written again only when the last target has accepted
/// (`safe_apic_wait_icr_idle`). A target in a deep state accepts when it wakes. A target that was
/// woken before by a store to the line that it monitors is on its way already.
fn wait_icr_idle(host: &mut Host<'_>, sender: CpuNr, receiver: CpuNr) {
    let (now, flight) = (host.clock.now(), flight_ns(host, sender, receiver));
    let cost = u64::from(host.costs.icr_xapic_ns);
    let c = &mut host.cpus[sender];
    // The sender's debt passes before it writes, so only the rest of the wait is paid.
    let wait = c.icr_idle_at.saturating_sub(now + c.debt_ns);
    c.debt_ns += wait + cost;
    let arrives = now + c.debt_ns + flight;
    host.out.stats.icr_wait_ns += wait;
    let target = &host.cpus[receiver];
    let awake = match target.phase {
        Phase::Idle => {
            let flag_at = target
                .idle
                .notified_at
                .map_or(arrives, |time| time.min(arrives));
            flag_at + idle::exit_ns(host, receiver)
        }
        Phase::IdleExit => host.clock.when(target.timer).unwrap_or(arrives),
        _ => arrives,
    };
    host.cpus[sender].icr_idle_at = awake.max(arrives);
}

fn flight_ns(host: &Host<'_>, sender: CpuNr, target: CpuNr) -> u64 {
    let topology = &host.cfg.host.topology;
    let mut flight = u64::from(host.costs.ipi_flight_ns);
    // On one socket without the divisions, as each interrupt comes here.
    if topology.sockets > 1 && topology.socket_of(sender.0) != topology.socket_of(target.0) {
        flight += u64::from(host.costs.ipi_cross_socket_ns);
    }
    flight
}

/// An interrupt is on its way.
pub(crate) fn fly(host: &mut Host<'_>, sender: CpuNr, target: CpuNr, irq: Irq) {
    host.out.stats.ipis_sent += 1;
    let flight = flight_ns(host, sender, target);
    let time = host.clock.now() + host.cpus[sender].debt_ns + flight;
    let message = Message::Irq { cpu: target, irq };
    let Some(injection) = &mut host.injection else {
        return host.clock.post(time, message);
    };
    for late_ns in injection.arrivals().into_iter().flatten() {
        host.clock.post(time + late_ns, message);
    }
}

/// Begins the handler of a pending interrupt, if there is one.
pub(crate) fn take_irq(host: &mut Host<'_>, cpu: CpuNr) -> bool {
    let Some(irq) = host.cpus[cpu].pending.take() else {
        return false;
    };
    host.cpus[cpu].phase = Phase::Irq(irq);
    host.out.books.irq(cpu, host.clock.now(), true);
    if let Some((class, vector)) = irq.traced() {
        host.emit(cpu, Kind::VectorEntry { class, vector });
    }
    let mut ns = u64::from(host.costs.irq_ns);
    // Expiry is charged once for an interrupt, however many timers are due.
    if irq == Irq::LocalTimer {
        ns += u64::from(host.costs.hrtimer_expiry_ns);
    }
    if irq == Irq::Stall
        && let Some(injection) = &mut host.injection
    {
        ns += injection.take_stall(cpu);
    }
    host.stay(cpu, ns);
    true
}

/// A request to reschedule `cpu`, made by `sender`.
pub(crate) fn request_resched(
    host: &mut Host<'_>,
    cpu: CpuNr,
    resched: Resched,
    sender: CpuNr,
) -> Sim {
    if resched != Resched::None {
        poll::disturb(host, cpu, sender);
    }
    // Xen has no lazy requests; its tickle chooses the CPU itself.
    if host.xen.is_some() && resched != Resched::None {
        return xen::tickle(host, cpu, sender);
    }
    let c = &mut host.cpus[cpu];
    if resched == Resched::None || (c.resched == Resched::Now && c.phase != Phase::Idle) {
        return Ok(());
    }
    if c.resched != Resched::Now {
        c.resched = resched;
    }
    // The idle task has no slice to finish: a lazy request counts at once.
    if c.phase == Phase::Idle {
        c.resched = Resched::Now;
        return idle::kick(host, cpu, sender);
    }
    if resched == Resched::Now && cpu != sender {
        send_ipi(host, sender, cpu, Irq::Reschedule);
    }
    Ok(())
}
