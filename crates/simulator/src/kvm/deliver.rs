//! Interrupts on their way to a vCPU.

use stealtime_events::Kind;
use stealtime_events::hypercall::{KVM_HC_KICK_CPU, KVM_HC_SEND_IPI};
use stealtime_hypervisor::ipi_tracking::Delivery as Tracked;
use stealtime_hypervisor::lapic::PvIpi;
use stealtime_hypervisor::posted_interrupt::{
    Delivery, HostInterrupt, Kick, Notification, deliver, deliver_through_irr, hardware, vtd,
    wakeup_handler,
};

use super::exit::{Exit, IpiTo};
use super::{Eois, Kvm, VcpuRun, guest_mode, halt, ipiv, run, spin, tracking};
use crate::fault::Sim;
use crate::guest::{DeviceInterrupt, Guests};
use crate::host::{Body, Flow, Host, Irq, Phase, idle, irq, tick};
use crate::ids::{CpuNr, VcpuNr, VmNr};
use crate::xen::ipi as xen_ipi;

/// The guest's vCPU `sender` sends an interrupt (`kvm_apic_send_ipi`).
pub(crate) fn guest_ipi(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    sender: VcpuNr,
    vector: u8,
    destination: IpiTo,
) -> Sim<Option<Flow>> {
    let (icr_low, dest_id) = destination.icr(vector);
    host.emit(cpu, Kind::KvmApicIpi { icr_low, dest_id });
    deliver_ipi(kvm, guests, host, cpu, sender, vector, destination)
}

/// `kvm_pv_send_ipi`: the same by hypercall, which a trace shows as that alone.
pub(crate) fn pv_send_ipi(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    sender: VcpuNr,
    vector: u8,
    destination: IpiTo,
) -> Sim<Option<Flow>> {
    let bits = match destination {
        IpiTo::One(_) => 1,
        // The trace shows the low word alone: vCPUs 0 to 63 of the mask.
        IpiTo::Others => !(1u128 << (kvm.vcpus[sender].index % 128)) as u64,
        IpiTo::Some(mask) => mask.bits() as u64,
    };
    host.emit(
        cpu,
        Kind::KvmHypercall {
            nr: KVM_HC_SEND_IPI,
            a0: bits,
            a1: 0,
        },
    );
    deliver_pv_ipi(kvm, guests, host, cpu, sender, vector, destination)
}

fn deliver_ipi(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    sender: VcpuNr,
    vector: u8,
    destination: IpiTo,
) -> Sim<Option<Flow>> {
    host.stats_mut().guest_ipis += 1;
    if host.is_xen() {
        xen_ipi::send(kvm, guests, host, cpu, sender, vector, destination)?;
        return Ok(Some(Flow::Wait));
    }
    let v = &kvm.vcpus[sender];
    let (vm, own_index, x2apic) = (v.vm, v.index, guests.vm(v.vm).cfg.guest.x2apic);
    let (low, dest) = destination.icr(vector);
    let high = if x2apic { dest } else { dest << 24 };
    let mut delivery = Tracked::new(Some(own_index), low);
    let mut reached = take_reached(kvm, guests, vm);
    let count = host.out().mechanisms();
    let sent = kvm.vms[vm]
        .apics(guests.vm(vm).vcpus, guests.vm(vm).cfg.guest.x2apic)
        .bus
        .write_icr(own_index as usize, low, high, count, |target, accepted| {
            delivery.destination(target as u32, i32::from(accepted));
            if accepted {
                reached.push(target as u32);
            }
        });
    if let Err(error) = sent {
        return host.broken(error.to_string());
    }
    tracking::track_receivers(kvm, host, vm, own_index, vector, &reached);
    accept_at(kvm, guests, host, cpu, sender, vector, reached)?;
    tracking::track_ipi(kvm, host, vm, &delivery)?;
    Ok(None)
}

/// `kvm_pv_send_ipi` delivers by the map and calls no hook of the series' IPI tracking: no record is left.
fn deliver_pv_ipi(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    sender: VcpuNr,
    vector: u8,
    destination: IpiTo,
) -> Sim<Option<Flow>> {
    host.stats_mut().guest_ipis += 1;
    if host.is_xen() {
        xen_ipi::send(kvm, guests, host, cpu, sender, vector, destination)?;
        return Ok(Some(Flow::Wait));
    }
    let (vm, own_index) = (kvm.vcpus[sender].vm, kvm.vcpus[sender].index);
    let (min, bits) = match destination {
        IpiTo::One(index) => (index, 1),
        IpiTo::Others => (0, others(own_index, guests.vm(vm).vcpus)),
        IpiTo::Some(mask) => (mask.first(), mask.bits()),
    };
    let ipi = PvIpi {
        low: bits as u64,
        high: (bits >> 64) as u64,
        min,
        icr: u64::from(vector),
        op_64bit: true,
    };
    let mut reached = take_reached(kvm, guests, vm);
    let count = host.out().mechanisms();
    let sent = kvm.vms[vm]
        .apics(guests.vm(vm).vcpus, guests.vm(vm).cfg.guest.x2apic)
        .bus
        .pv_ipi(&ipi, count, |destination, accepted| {
            if accepted {
                reached.push(destination as u32);
            }
        });
    if let Err(error) = sent {
        return host.broken(error.to_string());
    }
    tracking::track_receivers(kvm, host, vm, own_index, vector, &reached);
    accept_at(kvm, guests, host, cpu, sender, vector, reached)?;
    Ok(None)
}

/// A list for those that an IPI reaches, empty; [`accept_at`] brings it back.
fn take_reached(kvm: &mut Kvm, guests: &Guests, vm: VmNr) -> Vec<u32> {
    core::mem::take(
        &mut kvm.vms[vm]
            .apics(guests.vm(vm).vcpus, guests.vm(vm).cfg.guest.x2apic)
            .reached,
    )
}

/// These vCPUs take the vector.
fn accept_at(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    sender: VcpuNr,
    vector: u8,
    mut reached: Vec<u32>,
) -> Sim {
    let vm = kvm.vcpus[sender].vm;
    for &index in &reached {
        accept_ipi(kvm, host, cpu, sender, guests.vcpu_of(vm, index), vector)?;
    }
    reached.clear();
    kvm.vms[vm]
        .apics(guests.vm(vm).vcpus, guests.vm(vm).cfg.guest.x2apic)
        .reached = reached;
    Ok(())
}

/// Hands a vCPU a vector that another sends it.
pub(crate) fn accept_ipi(
    kvm: &mut Kvm,
    host: &mut Host<'_>,
    cpu: CpuNr,
    sender: VcpuNr,
    target: VcpuNr,
    vector: u8,
) -> Sim {
    let time = kvm.vcpus[sender].books.sends_ns();
    kvm.vcpus[target].books.was_sent(time, vector);
    accept(kvm, host, cpu, target, vector)
}

/// Hands a vector to a vCPU, as `cpu` does it (`vmx_deliver_interrupt`).
pub(crate) fn accept(
    kvm: &mut Kvm,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    vector: u8,
) -> Sim {
    let v = &kvm.vcpus[vcpu];
    let apicid = v.index;
    let is_current = host.cpus()[cpu].current == Some(v.task);
    let policy = host.cfg().knobs.kvm.suppress_notification;
    kvm.vcpus[vcpu].books.accepted(host.now(), vector);
    let v = &kvm.vcpus[vcpu];
    let delivery = deliver(
        &v.shared,
        vector,
        is_current,
        policy,
        host.out().mechanisms(),
    );
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
    host.emit(cpu, kind);
    match delivery {
        Delivery::ApicvInactive if host.is_xen() => xen_ipi::deliver(kvm, host, cpu, vcpu, vector),
        Delivery::ApicvInactive => {
            let kick = deliver_through_irr(&kvm.vcpus[vcpu].shared, vector);
            kicked(kvm, host, cpu, vcpu, kick)
        }
        Delivery::Ipi {
            cpu: Some(target), ..
        } => {
            host.stats_mut().notifications += 1;
            irq::send_ipi(host, cpu, CpuNr(target), Irq::PostedIntr);
            Ok(())
        }
        Delivery::Wake => halt::wake(kvm, host, vcpu, cpu),
        _ => Ok(()),
    }
}

/// Does what a kick asks for.
pub(crate) fn kicked(
    kvm: &mut Kvm,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    kick: Kick,
) -> Sim {
    match kick {
        Kick::Wake => halt::woken(kvm, host, vcpu, true, cpu),
        Kick::Ipi(Some(target)) if target != cpu.0 => {
            irq::send_ipi(host, cpu, CpuNr(target), Irq::Reschedule);
            Ok(())
        }
        _ if kvm.vcpus[vcpu].run == VcpuRun::Polling => halt::wake(kvm, host, vcpu, cpu),
        _ => Ok(()),
    }
}

/// A notification reaches the CPU in guest mode: microcode takes it, without an exit.
pub(crate) fn notified_in_guest(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim {
    guests.stop(host, cpu, vcpu);
    process_notification(kvm, host, vcpu);
    host.charge(cpu, host.costs().posted_interrupt_ns);
    guest_mode::resume(kvm, guests, host, cpu, vcpu)
}

/// PIR to IRR in guest mode.
pub(crate) fn process_notification(kvm: &mut Kvm, host: &mut Host<'_>, vcpu: VcpuNr) {
    let v = &mut kvm.vcpus[vcpu];
    let nv = Irq::PostedIntr.vector();
    let notification =
        hardware::interrupt_in_guest(&v.shared, &mut v.lapic, nv, nv, host.out().mechanisms());
    debug_assert_ne!(notification, Notification::ExternalInterruptExit);
}

/// `pi_wakeup_handler`.
pub(crate) fn posted_wakeup(kvm: &mut Kvm, host: &mut Host<'_>, cpu: CpuNr) -> Sim {
    let vector = Irq::PostedWakeup.vector();
    let interrupt = hardware::interrupt_in_host(vector, host.out().mechanisms());
    debug_assert_eq!(interrupt, HostInterrupt::Wakeup);
    let mut woken = Vec::new();
    let vcpus = &kvm.vcpus;
    wakeup_handler(
        cpu.0,
        host.out().wakeup_lists(),
        |id| vcpus.as_slice().get(id as usize).map(|v| &v.shared),
        host.out().mechanisms(),
        |id| woken.push(VcpuNr(id)),
    );
    for vcpu in woken {
        halt::wake(kvm, host, vcpu, cpu)?;
    }
    Ok(())
}

/// The guest ends an interrupt and leaves for it.
pub(crate) fn emulate_eoi(kvm: &mut Kvm, host: &mut Host<'_>, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
    let v = &mut kvm.vcpus[vcpu];
    let source = v.posted.source(&v.shared, host.out().mechanisms());
    let vector = v.lapic.eoi(&source);
    let apicid = v.index;
    if let Some(vector) = vector {
        let vector = i32::from(vector);
        host.emit(cpu, Kind::KvmEoi { apicid, vector });
    }
    tracking::track_eoi(kvm, host, vcpu, vector)
}

/// The guest has ended an interrupt by the flag in its memory (`apic_sync_pv_eoi_from_guest`).
pub(crate) fn sync_pv_eoi(
    kvm: &mut Kvm,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    ended: u8,
) -> Sim {
    let (apicid, vector) = (kvm.vcpus[vcpu].index, i32::from(ended));
    host.emit(cpu, Kind::KvmEoi { apicid, vector });
    host.emit(cpu, Kind::KvmPvEoi { apicid, vector });
    kvm.vcpus[vcpu].eois = Eois::Deferred;
    tracking::track_eoi(kvm, host, vcpu, Some(ended))
}

/// A device of the guest interrupts one of its vCPUs.
pub(crate) fn device_raises(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    vm: VmNr,
    irq: DeviceInterrupt,
) -> Sim {
    let vector = irq.vector;
    let vcpu = guests.vcpu_of(vm, irq.vcpu);
    let cpu = device_cpu(host, vm);
    // Only the vectors of an assigned device have entries in posted format.
    let posts = guests.vm(vm).cfg.assigned_device && host.cfg().host.profile.features.vtd_posting;
    if posts && kvm.vcpus[vcpu].shared.apicv() {
        let now = host.now();
        kvm.vcpus[vcpu].books.accepted(now, vector);
        let shared = &kvm.vcpus[vcpu].shared;
        if let Some(notification) = vtd::post(&shared.desc, vector, false, host.out().mechanisms())
        {
            ipiv::notify(host, cpu, notification);
        }
        return halt::notice_post(kvm, host, vcpu, cpu);
    }
    host.add_device_irq(cpu, crate::host::DeviceIrq { vm, vcpu, vector });
    raise(kvm, guests, host, cpu, Irq::Device)
}

/// An interrupt reaches a CPU.
pub(crate) fn raise(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    irq: Irq,
) -> Sim {
    host.set_pending(cpu, irq);
    // The window's end and the exit are one event: the interrupt may find the vCPU between both.
    if let Some(vcpu) = run::vcpu_in_guest(kvm, host, cpu) {
        guest_mode::end_ple_window(kvm, guests, host, cpu, vcpu);
    }
    match host.cpus()[cpu].phase {
        Phase::Idle => idle::leave(host, cpu),
        Phase::Run if !host.cpus()[cpu].irqs_off => match run::vcpu_in_guest(kvm, host, cpu) {
            Some(vcpu) => {
                if irq == Irq::PostedIntr && kvm.vcpus[vcpu].shared.apicv() {
                    host.clear_pending(cpu, irq);
                    return notified_in_guest(kvm, guests, host, cpu, vcpu);
                }
                guests.stop(host, cpu, vcpu);
                run::vm_exit(kvm, host, cpu, vcpu, Exit::ExternalInterrupt);
                Ok(())
            }
            None => {
                let remaining = host.interrupted(cpu);
                if let Some(task) = host.cpus()[cpu].current {
                    let computes = !matches!(host.tasks()[task].body, Body::Vcpu(_));
                    let remaining = if computes {
                        host.work_in(cpu, remaining)
                    } else {
                        remaining
                    };
                    host.set_left(task, remaining);
                }
                irq::take_irq(host, cpu);
                Ok(())
            }
        },
        _ => Ok(()),
    }
}

/// The handler of a device's interrupt: the irqfd makes it pending at the vCPU.
pub(crate) fn device_irq(kvm: &mut Kvm, host: &mut Host<'_>, cpu: CpuNr) -> Sim {
    let waiting = host.take_devices(cpu);
    for irq in waiting {
        debug_assert_eq!(kvm.vcpus[irq.vcpu].vm, irq.vm);
        accept(kvm, host, cpu, irq.vcpu, irq.vector)?;
    }
    Ok(())
}

/// The CPU that takes the interrupts of a VM's devices.
fn device_cpu(host: &Host<'_>, vm: VmNr) -> CpuNr {
    let start = CpuNr(vm.0 % host.cpus().len().max(1) as u32);
    tick::housekeeper(host, start).unwrap_or(start)
}

/// `KVM_HC_KICK_CPU`. Whether the CPU was given away.
pub(crate) fn pv_kick(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    sender: VcpuNr,
    target: u32,
) -> Sim<Option<Flow>> {
    let vm = kvm.vcpus[sender].vm;
    let vcpu = guests.vcpu_of(vm, target);
    let kind = Kind::KvmHypercall {
        nr: KVM_HC_KICK_CPU,
        a0: 0,
        a1: target,
    };
    host.emit(cpu, kind);
    kvm.vcpus[vcpu].pv_unhalted = true;
    halt::wake(kvm, host, vcpu, cpu)?;
    spin::sched_yield(kvm, guests, host, cpu, sender, target)
}

/// A bit for each vCPU of a guest of up to 128 but one.
const fn others(own_index: u32, vcpus: u32) -> u128 {
    let mask = if vcpus >= 128 {
        u128::MAX
    } else {
        (1 << vcpus) - 1
    };
    mask & !(1 << (own_index % 128))
}
