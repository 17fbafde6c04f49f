//! Interrupts on their way to a vCPU.

use stealtime_events::Kind;
use stealtime_events::hypercall::{KVM_HC_KICK_CPU, KVM_HC_SEND_IPI};
use stealtime_hypervisor::ipi_tracking::Delivery as Tracked;
use stealtime_hypervisor::lapic::PvIpi;
use stealtime_hypervisor::posted_interrupt::{
    Delivery, HostInterrupt, Kick, Notification, deliver, deliver_through_irr, hardware, vtd,
    wakeup_handler,
};

use super::VcpuRun;
use super::exit::IpiTo;
use crate::fault::Sim;
use crate::ids::{CpuNr, VcpuNr, VmNr};
use crate::machine::{Irq, Machine};

impl Machine<'_> {
    /// The guest's vCPU `from` sends an interrupt (`kvm_apic_send_ipi`).
    pub(crate) fn guest_ipi(
        &mut self,
        cpu: CpuNr,
        from: VcpuNr,
        vector: u8,
        to: IpiTo,
    ) -> Sim<bool> {
        let (icr_low, dest_id) = to.icr(vector);
        self.emit(cpu, Kind::KvmApicIpi { icr_low, dest_id });
        self.deliver_ipi(cpu, from, vector, to)
    }

    /// `kvm_pv_send_ipi`: the same by hypercall, which a trace shows as that alone.
    pub(crate) fn pv_send_ipi(
        &mut self,
        cpu: CpuNr,
        from: VcpuNr,
        vector: u8,
        to: IpiTo,
    ) -> Sim<bool> {
        let bits = match to {
            IpiTo::One(_) => 1,
            IpiTo::Others => !(1u128 << (self.vcpus[from].index % 128)) as u64,
            IpiTo::Some(mask) => mask.bits() as u64,
        };
        self.emit(
            cpu,
            Kind::KvmHypercall {
                nr: KVM_HC_SEND_IPI,
                a0: bits,
                a1: 0,
            },
        );
        self.deliver_pv_ipi(cpu, from, vector, to)
    }

    fn deliver_ipi(&mut self, cpu: CpuNr, from: VcpuNr, vector: u8, to: IpiTo) -> Sim<bool> {
        self.stats.guest_ipis += 1;
        if self.xen.is_some() {
            return self.xen_ipi(cpu, from, vector, to).map(|()| true);
        }
        let v = &self.vcpus[from];
        let (vm, own, x2apic) = (v.vm, v.index, self.vms[v.vm].cfg.guest.x2apic);
        let (low, dest) = to.icr(vector);
        let high = if x2apic { dest } else { dest << 24 };
        let mut delivery = Tracked::new(Some(own), low);
        let mut reached = self.take_reached(vm);
        let count = &self.stats.mechanisms;
        let sent =
            self.vms[vm]
                .apics()
                .bus
                .write_icr(own as usize, low, high, count, |to, taken| {
                    delivery.destination(to as u32, i32::from(taken));
                    if taken {
                        reached.push(to as u32);
                    }
                });
        if let Err(error) = sent {
            return self.broken(error.to_string());
        }
        self.accept_at(cpu, from, vector, reached)?;
        self.track_ipi(vm, &delivery)?;
        Ok(false)
    }

    /// `kvm_pv_send_ipi` delivers by the map and calls no hook of IPI tracking: it leaves no record.
    fn deliver_pv_ipi(&mut self, cpu: CpuNr, from: VcpuNr, vector: u8, to: IpiTo) -> Sim<bool> {
        self.stats.guest_ipis += 1;
        if self.xen.is_some() {
            return self.xen_ipi(cpu, from, vector, to).map(|()| true);
        }
        let (vm, own) = (self.vcpus[from].vm, self.vcpus[from].index);
        let (min, bits) = match to {
            IpiTo::One(index) => (index, 1),
            IpiTo::Others => (0, others(own, self.vms[vm].vcpus)),
            IpiTo::Some(mask) => (mask.first(), mask.bits()),
        };
        let ipi = PvIpi {
            low: bits as u64,
            high: (bits >> 64) as u64,
            min,
            icr: u64::from(vector),
            op_64bit: true,
        };
        let mut reached = self.take_reached(vm);
        let count = &self.stats.mechanisms;
        let sent = self.vms[vm].apics().bus.pv_ipi(&ipi, count, |to, taken| {
            if taken {
                reached.push(to as u32);
            }
        });
        if let Err(error) = sent {
            return self.broken(error.to_string());
        }
        self.accept_at(cpu, from, vector, reached)?;
        Ok(false)
    }

    /// A list for those that an IPI reaches, empty; [`accept_at`](Self::accept_at) brings it back.
    fn take_reached(&mut self, vm: VmNr) -> Vec<u32> {
        core::mem::take(&mut self.vms[vm].apics().reached)
    }

    /// These vCPUs take the vector.
    fn accept_at(&mut self, cpu: CpuNr, from: VcpuNr, vector: u8, mut reached: Vec<u32>) -> Sim {
        let vm = self.vcpus[from].vm;
        for &index in &reached {
            self.accept_ipi(cpu, from, self.vcpu_of(vm, index), vector)?;
        }
        reached.clear();
        self.vms[vm].apics().reached = reached;
        Ok(())
    }

    pub(crate) fn vcpu_of(&self, vm: VmNr, index: u32) -> VcpuNr {
        VcpuNr(self.vms[vm].first_vcpu.0 + index)
    }

    /// Hands a vCPU a vector that another sends it.
    pub(crate) fn accept_ipi(&mut self, cpu: CpuNr, from: VcpuNr, to: VcpuNr, vector: u8) -> Sim {
        let at = self.vcpus[from].books.sends_ns();
        self.vcpus[to].books.was_sent(at, vector);
        self.accept(cpu, to, vector)
    }

    /// Hands a vector to a vCPU, as `cpu` does it (`vmx_deliver_interrupt`).
    pub(crate) fn accept(&mut self, cpu: CpuNr, vcpu: VcpuNr, vector: u8) -> Sim {
        let v = &self.vcpus[vcpu];
        let apicid = v.index;
        let own = self.cpus[cpu].current == Some(v.task);
        let policy = self.cfg.knobs.kvm.suppress_notification;
        self.vcpus[vcpu].books.accepted(self.now, vector);
        let v = &self.vcpus[vcpu];
        let delivery = deliver(&v.shared, vector, own, policy, &self.stats.mechanisms);
        let (dm, tm, vec) = (0, 0, vector);
        let kind = if delivery == Delivery::ApicvInactive {
            Kind::KvmApicAcceptIrq {
                apicid,
                dm,
                tm,
                vec,
            }
        } else {
            Kind::KvmApicvAcceptIrq {
                apicid,
                dm,
                tm,
                vec,
            }
        };
        self.emit(cpu, kind);
        match delivery {
            Delivery::ApicvInactive if self.xen.is_some() => self.xen_deliver(cpu, vcpu, vector),
            Delivery::ApicvInactive => {
                let kick = deliver_through_irr(&self.vcpus[vcpu].shared, vector);
                self.kicked(cpu, vcpu, kick)
            }
            Delivery::Ipi {
                cpu: Some(target), ..
            } => {
                self.stats.notifications += 1;
                self.send_ipi(cpu, CpuNr(target), Irq::PostedIntr);
                Ok(())
            }
            Delivery::Wake => self.wake_vcpu(vcpu, cpu),
            _ => Ok(()),
        }
    }

    /// Does what a kick asks for.
    pub(crate) fn kicked(&mut self, cpu: CpuNr, vcpu: VcpuNr, kick: Kick) -> Sim {
        match kick {
            Kick::Wake => self.woken(vcpu, true, cpu),
            Kick::Ipi(Some(target)) if target != cpu.0 => {
                self.send_ipi(cpu, CpuNr(target), Irq::Reschedule);
                Ok(())
            }
            _ if self.vcpus[vcpu].run == VcpuRun::Polling => self.wake_vcpu(vcpu, cpu),
            _ => Ok(()),
        }
    }

    /// A notification reaches the CPU in guest mode: microcode takes it, without an exit.
    pub(crate) fn notified_in_guest(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        self.stop_guest(cpu, vcpu);
        self.process_notification(vcpu);
        self.charge(cpu, self.costs.posted_interrupt_ns);
        self.guest_resume(cpu, vcpu)
    }

    /// PIR to IRR in guest mode.
    pub(crate) fn process_notification(&mut self, vcpu: VcpuNr) {
        let v = &mut self.vcpus[vcpu];
        let nv = Irq::PostedIntr.vector();
        let done =
            hardware::interrupt_in_guest(&v.shared, &mut v.lapic, nv, nv, &self.stats.mechanisms);
        debug_assert_ne!(done, Notification::ExternalInterruptExit);
    }

    /// `pi_wakeup_handler`.
    pub(crate) fn posted_wakeup(&mut self, cpu: CpuNr) -> Sim {
        let vector = Irq::PostedWakeup.vector();
        let what = hardware::interrupt_in_host(vector, &self.stats.mechanisms);
        debug_assert_eq!(what, HostInterrupt::Wakeup);
        let mut woken = Vec::new();
        let vcpus = &self.vcpus;
        wakeup_handler(
            cpu.0,
            &self.stats.lists,
            |id| vcpus.as_slice().get(id as usize).map(|v| &v.shared),
            &self.stats.mechanisms,
            |id| woken.push(VcpuNr(id)),
        );
        for vcpu in woken {
            self.wake_vcpu(vcpu, cpu)?;
        }
        Ok(())
    }

    /// The guest ends an interrupt and leaves for it.
    pub(crate) fn emulate_eoi(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let v = &mut self.vcpus[vcpu];
        let source = v.posted.source(&v.shared, &self.stats.mechanisms);
        let vector = v.lapic.eoi(&source);
        let apicid = v.index;
        if let Some(vector) = vector {
            self.emit(
                cpu,
                Kind::KvmEoi {
                    apicid,
                    vector: i32::from(vector),
                },
            );
        }
        self.track_eoi(vcpu, vector)
    }

    /// A device of the guest has finished: its interrupt reaches a host CPU first, unless the
    /// IOMMU posts it.
    pub(crate) fn device_done(
        &mut self,
        vm: VmNr,
        device: u32,
        thread: crate::ids::ThreadNr,
    ) -> Sim {
        let (index, vector) = self.vms[vm].kernel.device_done(device, thread);
        self.device_raises(vm, index, vector)
    }

    /// A device of the guest interrupts one of its vCPUs.
    pub(crate) fn device_raises(&mut self, vm: VmNr, index: u32, vector: u8) -> Sim {
        let vcpu = self.vcpu_of(vm, index);
        let cpu = self.device_cpu(vm);
        let posts = self.vms[vm].cfg.assigned_device && self.cfg.host.profile.features.vtd_posting;
        if posts && self.vcpus[vcpu].shared.apicv() {
            let now = self.now;
            self.vcpus[vcpu].books.accepted(now, vector);
            let shared = &self.vcpus[vcpu].shared;
            if let Some(notification) =
                vtd::post(&shared.desc, vector, false, &self.stats.mechanisms)
            {
                self.notify(cpu, notification);
            }
            return self.seen_by_poll(vcpu, cpu);
        }
        self.cpus[cpu]
            .devices
            .push(crate::machine::DeviceIrq { vm, vcpu, vector });
        self.raise(cpu, Irq::Device)
    }

    /// The handler of a device's interrupt: the irqfd makes it pending at the vCPU.
    pub(crate) fn device_irq(&mut self, cpu: CpuNr) -> Sim {
        let waiting = core::mem::take(&mut self.cpus[cpu].devices);
        for irq in waiting {
            debug_assert_eq!(self.vcpus[irq.vcpu].vm, irq.vm);
            self.accept(cpu, irq.vcpu, irq.vector)?;
        }
        Ok(())
    }

    /// The CPU that takes the interrupts of a VM's devices.
    fn device_cpu(&self, vm: VmNr) -> CpuNr {
        let start = CpuNr(vm.0 % self.cpus.len().max(1) as u32);
        self.housekeeper(start).unwrap_or(start)
    }

    /// `KVM_HC_KICK_CPU`. Whether the CPU was given away.
    pub(crate) fn pv_kick(&mut self, cpu: CpuNr, from: VcpuNr, target: u32) -> Sim<bool> {
        let vm = self.vcpus[from].vm;
        let vcpu = self.vcpu_of(vm, target);
        let kind = Kind::KvmHypercall {
            nr: KVM_HC_KICK_CPU,
            a0: 0,
            a1: target,
        };
        self.emit(cpu, kind);
        self.vcpus[vcpu].guest.pv_unhalted = true;
        self.wake_vcpu(vcpu, cpu)?;
        self.sched_yield(cpu, from, target)
    }
}

/// A bit for each vCPU of a guest of up to 128 but one.
const fn others(own: u32, vcpus: u32) -> u128 {
    let all = if vcpus >= 128 {
        u128::MAX
    } else {
        (1 << vcpus) - 1
    };
    all & !(1 << (own % 128))
}
