//! IPI virtualization: an ICR write that the processor itself posts.

use stealtime_hypervisor::lapic::Interrupt;
use stealtime_hypervisor::posted_interrupt::ipi_virtualization::{PidPointerTable, Route, post};
use stealtime_hypervisor::posted_interrupt::vtd::NotificationIpi;

use super::exit::IpiTo;
use super::{Kvm, halt};
use crate::fault::Sim;
use crate::guest::Guests;
use crate::host::{Host, Irq, irq};
use crate::ids::{CpuNr, VcpuNr};

/// Whether an ICR write leaves the guest; if not, its interrupt is posted here.
pub(crate) fn needs_icr_exit(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    vector: u8,
    destination: IpiTo,
) -> Sim<bool> {
    let hw = host.cfg().host.profile.features.ipiv && host.cfg().knobs.kvm.enable_ipiv;
    let (vm, x2apic) = {
        let v = &kvm.vcpus[vcpu];
        (v.vm, guests.vm(v.vm).cfg.guest.x2apic)
    };
    if !hw || !kvm.vcpus[vcpu].shared.apicv() {
        return Ok(true);
    }
    let (low, dest) = destination.icr(vector);
    let high = if x2apic { dest } else { dest << 24 };
    let ipi = Interrupt::from_icr(low, high, x2apic);
    let table = PidPointerTable {
        entries: &kvm.vms[vm].pid_table,
    };
    let Route::Post { apic_id, .. } = table.route(&ipi, x2apic, host.out().mechanisms()) else {
        return Ok(true);
    };
    let target = guests.vcpu_of(vm, apic_id);
    host.stats_mut().guest_ipis += 1;
    let now = host.now();
    let books = &mut kvm.vcpus[target].books;
    books.accepted(now, vector);
    books.was_sent(now, vector);
    let posted = post(
        &kvm.vcpus[target].shared.desc,
        vector,
        host.out().mechanisms(),
    );
    // The processor's operations on the target's descriptor: the target had the line.
    host.charge(
        cpu,
        host.costs().locked_shared_ns + host.costs().locked_own_ns,
    );
    halt::notice_post(kvm, host, target, cpu)?;
    if let Some(notification) = posted {
        host.charge(cpu, host.costs().icr_x2apic_ns);
        notify(host, cpu, notification);
    }
    Ok(false)
}

/// Hardware sends a notification.
pub(crate) fn notify(host: &mut Host<'_>, sender: CpuNr, notification: NotificationIpi) {
    host.stats_mut().notifications += 1;
    let x2apic = host.cfg().host.profile.features.x2apic;
    let apic_id = if x2apic {
        notification.ndst
    } else {
        notification.ndst >> 8
    };
    let irq = if notification.vector == Irq::PostedWakeup.vector() {
        Irq::PostedWakeup
    } else {
        Irq::PostedIntr
    };
    irq::fly(host, sender, CpuNr(apic_id), irq);
}
