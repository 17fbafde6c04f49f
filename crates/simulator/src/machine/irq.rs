//! Host interrupts.

use stealtime_events::{HostVector, Kind, vector};
use stealtime_hypervisor::eevdf::Resched;

use super::{Body, Machine, Message, Phase};
use crate::fault::Sim;
use crate::ids::CpuNr;
use crate::kvm::Exit;

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

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn has(self, irq: Self) -> bool {
        self.0 & irq.0 != 0
    }

    fn insert(&mut self, irq: Self) {
        self.0 |= irq.0;
    }

    pub(crate) fn remove(&mut self, irq: Self) -> bool {
        let had = self.has(irq);
        self.0 &= !irq.0;
        had
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

impl Machine<'_> {
    /// `from` sends an interrupt to `to`: charges the sender and lets it fly.
    pub(crate) fn send_ipi(&mut self, from: CpuNr, to: CpuNr, irq: Irq) {
        if self.cfg.host.profile.features.x2apic {
            self.charge(from, self.costs.icr_x2apic_ns);
        } else {
            self.wait_icr_idle(from, to);
        }
        self.fly(from, to, irq);
    }

    /// In xAPIC mode the ICR may be written again only when the last target has accepted
    /// (`safe_apic_wait_icr_idle`), which one in a deep state does when it wakes. A target that was
    /// told before by a store to the line it monitors is on its way already.
    fn wait_icr_idle(&mut self, from: CpuNr, to: CpuNr) {
        let (now, flight) = (self.now, self.flight_ns(from, to));
        let cost = u64::from(self.costs.icr_xapic_ns);
        let c = &mut self.cpus[from];
        let wait = c.icr_idle_at.saturating_sub(now + c.debt_ns);
        c.debt_ns += wait + cost;
        let arrives = now + c.debt_ns + flight;
        self.stats.icr_wait_ns += wait;
        let target = &self.cpus[to];
        let awake = match target.phase {
            Phase::Idle => {
                let told = target.idle.told_at.map_or(arrives, |at| at.min(arrives));
                told + self.idle_exit_ns(to)
            }
            Phase::IdleExit => self.queue.when(target.timer).unwrap_or(arrives),
            _ => arrives,
        };
        self.cpus[from].icr_idle_at = awake.max(arrives);
    }

    fn flight_ns(&self, from: CpuNr, to: CpuNr) -> u64 {
        let topology = &self.cfg.host.topology;
        let mut flight = u64::from(self.costs.ipi_flight_ns);
        if topology.socket_of(from.0) != topology.socket_of(to.0) {
            flight += u64::from(self.costs.ipi_cross_socket_ns);
        }
        flight
    }

    /// An interrupt is on its way.
    pub(crate) fn fly(&mut self, from: CpuNr, to: CpuNr, irq: Irq) {
        self.stats.ipis_sent += 1;
        let flight = self.flight_ns(from, to);
        let at = self.now + self.cpus[from].debt_ns + flight;
        self.post(at, Message::Irq { cpu: to, irq });
    }

    /// An interrupt reaches a CPU.
    pub(crate) fn raise(&mut self, cpu: CpuNr, irq: Irq) -> Sim {
        self.cpus[cpu].pending.insert(irq);
        if let Some(vcpu) = self.guest_on(cpu) {
            self.spin_left(cpu, vcpu);
        }
        match self.cpus[cpu].phase {
            Phase::Idle => self.leave_idle(cpu),
            Phase::Run if !self.cpus[cpu].irqs_off => match self.guest_on(cpu) {
                Some(vcpu) => {
                    if irq == Irq::PostedIntr && self.vcpus[vcpu].shared.apicv() {
                        self.cpus[cpu].pending.remove(irq);
                        return self.notified_in_guest(cpu, vcpu);
                    }
                    self.stop_guest(cpu, vcpu);
                    self.vm_exit(cpu, vcpu, Exit::ExternalInterrupt)
                }
                None => {
                    let left = self.interrupted(cpu);
                    if let Some(task) = self.cpus[cpu].current {
                        let computes = !matches!(self.tasks[task].body, Body::Vcpu(_));
                        let left = if computes {
                            self.work_in(cpu, left)
                        } else {
                            left
                        };
                        self.tasks[task].left_ns = left;
                    }
                    self.take_irq(cpu).map(|_| ())
                }
            },
            _ => Ok(()),
        }
    }

    /// Begins the handler of a pending interrupt, if there is one.
    pub(crate) fn take_irq(&mut self, cpu: CpuNr) -> Sim<bool> {
        let Some(irq) = self.cpus[cpu].pending.take() else {
            return Ok(false);
        };
        self.cpus[cpu].phase = Phase::Irq(irq);
        self.books.irq(cpu, self.now, true);
        if let Some((class, vector)) = irq.traced() {
            self.emit(cpu, Kind::VectorEntry { class, vector });
        }
        let mut ns = u64::from(self.costs.irq_ns);
        if irq == Irq::LocalTimer {
            ns += u64::from(self.costs.hrtimer_expiry_ns);
        }
        self.stay(cpu, ns);
        Ok(true)
    }

    /// The handler's end: does what it is for.
    pub(crate) fn irq_over(&mut self, cpu: CpuNr, irq: Irq) -> Sim {
        self.stats.host_irqs += 1;
        self.cpus[cpu].l1d_unsafe = true;
        match irq {
            Irq::LocalTimer => self.expire_hrtimers(cpu)?,
            Irq::PostedIntr => self.stats.spurious_notifications += 1,
            Irq::PostedWakeup => self.posted_wakeup(cpu)?,
            Irq::Device => self.device_irq(cpu)?,
            // The reschedule interrupt has done its work by coming.
            _ => {}
        }
        if let Some((class, vector)) = irq.traced() {
            self.emit(cpu, Kind::VectorExit { class, vector });
        }
        self.books.irq(cpu, self.now, false);
        debug_assert!(!self.cpus[cpu].irqs_off);
        self.next(cpu)
    }

    /// A request to reschedule `cpu`, made by `from`.
    pub(crate) fn request_resched(&mut self, cpu: CpuNr, resched: Resched, from: CpuNr) -> Sim {
        if resched != Resched::None {
            self.disturb_poll(cpu, from)?;
        }
        if self.xen.is_some() && resched != Resched::None {
            return self.xen_tickle(cpu, from);
        }
        let c = &mut self.cpus[cpu];
        if resched == Resched::None || (c.resched == Resched::Now && c.phase != Phase::Idle) {
            return Ok(());
        }
        if c.resched != Resched::Now {
            c.resched = resched;
        }
        if c.phase == Phase::Idle {
            c.resched = Resched::Now;
            return self.kick_idle(cpu, from);
        }
        if resched == Resched::Now && cpu != from {
            self.send_ipi(from, cpu, Irq::Reschedule);
        }
        Ok(())
    }
}
