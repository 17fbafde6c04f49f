//! IPI virtualization: an ICR write that the processor itself posts.

use stealtime_hypervisor::lapic::Interrupt;
use stealtime_hypervisor::posted_interrupt::ipi_virtualization::{PidPointerTable, Route, post};
use stealtime_hypervisor::posted_interrupt::vtd::NotificationIpi;

use super::exit::IpiTo;
use crate::fault::Sim;
use crate::ids::{CpuNr, VcpuNr};
use crate::machine::{Irq, Machine};

impl Machine<'_> {
    /// Whether an ICR write leaves the guest; if not, its interrupt is posted here.
    pub(crate) fn needs_icr_exit(
        &mut self,
        cpu: CpuNr,
        vcpu: VcpuNr,
        vector: u8,
        to: IpiTo,
    ) -> Sim<bool> {
        let hw = self.cfg.host.profile.features.ipiv && self.cfg.knobs.kvm.enable_ipiv;
        let (vm, x2apic) = {
            let v = &self.vcpus[vcpu];
            (v.vm, self.vms[v.vm].cfg.guest.x2apic)
        };
        if !hw || !self.vcpus[vcpu].shared.apicv() {
            return Ok(true);
        }
        let (low, dest) = to.icr(vector);
        let high = if x2apic { dest } else { dest << 24 };
        let ipi = Interrupt::from_icr(low, high, x2apic);
        let table = PidPointerTable {
            entries: &self.vms[vm].pid_table,
        };
        let Route::Post { apic_id, .. } = table.route(&ipi, x2apic, &self.stats.mechanisms) else {
            return Ok(true);
        };
        let target = self.vcpu_of(vm, apic_id);
        self.stats.guest_ipis += 1;
        let now = self.now;
        let books = &mut self.vcpus[target].books;
        books.accepted(now, vector);
        books.was_sent(now, vector);
        let notify = post(
            &self.vcpus[target].shared.desc,
            vector,
            &self.stats.mechanisms,
        );
        // The processor's operations on the target's descriptor, whose line the target had.
        self.charge(cpu, self.costs.locked_shared_ns + self.costs.locked_own_ns);
        self.seen_by_poll(target, cpu)?;
        if let Some(notification) = notify {
            self.charge(cpu, self.costs.icr_x2apic_ns);
            self.notify(cpu, notification);
        }
        Ok(false)
    }

    /// Hardware sends a notification.
    pub(crate) fn notify(&mut self, from: CpuNr, notification: NotificationIpi) {
        self.stats.notifications += 1;
        let x2apic = self.cfg.host.profile.features.x2apic;
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
        self.fly(from, CpuNr(apic_id), irq);
    }
}
