//! The run loop (`vcpu_run`, `vcpu_enter_guest`, `vmx_handle_exit`).

use stealtime_events::{Kind, VcpuId};
use stealtime_hypervisor::eevdf::Resched;
use stealtime_hypervisor::posted_interrupt::{Entry, Requests, Suppression};

use super::{Exit, VcpuRun};
use crate::config::L1dFlush;
use crate::fault::Sim;
use crate::ids::{CpuNr, VcpuNr};
use crate::machine::{Irq, Machine};

impl Machine<'_> {
    /// What the vCPU's thread was doing is over: the next thing.
    pub(crate) fn vcpu_step(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let v = &self.vcpus[vcpu];
        match v.run {
            VcpuRun::Ready => self.vcpu_enter(cpu, vcpu),
            VcpuRun::Entering => self.vcpu_entered(cpu, vcpu),
            VcpuRun::Guest => self.guest_step(cpu, vcpu),
            VcpuRun::Exiting => self.vcpu_exited(cpu, vcpu, v.exit),
            VcpuRun::Fast => {
                self.handle_exit(cpu, vcpu, v.exit)?;
                self.reenter(cpu, vcpu)
            }
            VcpuRun::Handling => {
                let exit = v.exit;
                self.vcpus[vcpu].run = VcpuRun::Ready;
                if self.handle_exit(cpu, vcpu, exit)? {
                    return Ok(());
                }
                self.next(cpu)
            }
            VcpuRun::Sending => self.xen_send(cpu, vcpu),
            VcpuRun::Polling => self.poll_over(cpu, vcpu),
            VcpuRun::Blocked => self.block_again(cpu, vcpu),
        }
    }

    /// `vcpu_enter_guest`, up to the VM entry.
    fn vcpu_enter(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        self.vcpus[vcpu].yields.end_spin();
        self.inject_timer(cpu, vcpu)?;
        let v = &mut self.vcpus[vcpu];
        v.shared.take(Requests(u64::MAX));
        v.lapic.take_event();
        if self.cpus[cpu].resched != Resched::None {
            // xfer_to_guest_mode_work: a lazy request counts here too.
            return self.schedule(cpu);
        }
        if self.throttle(cpu)? {
            return Ok(());
        }
        if self.park(cpu, vcpu)? {
            return Ok(());
        }
        self.cpus[cpu].irqs_off = true;
        self.charge_suppression(cpu, entering(self.suppression()));
        let v = &mut self.vcpus[vcpu];
        let entry = v
            .posted
            .enter(&v.shared, &mut v.lapic, &self.stats.mechanisms);
        if entry == Entry::Cancelled {
            self.cpus[cpu].irqs_off = false;
            self.stats.entries_cancelled += 1;
            self.charge(cpu, self.costs.vmentry_ns / 2);
            return self.next(cpu);
        }
        self.begin_entry(cpu, vcpu)
    }

    /// After a fast handler: enters again unless something came up.
    fn reenter(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let resched = self.cpus[cpu].resched != Resched::None || self.xen_pending(cpu);
        if self.suppression().suppresses_at_exit() {
            self.charge_suppression(cpu, entering(self.suppression()));
        }
        let v = &mut self.vcpus[vcpu];
        let entry = v
            .posted
            .reenter(&v.shared, &mut v.lapic, &self.stats.mechanisms);
        if entry == Entry::Cancelled || resched || v.timer.pending() > 0 {
            self.leave_guest_mode(cpu, vcpu);
            self.vcpus[vcpu].run = VcpuRun::Ready;
            return self.next(cpu);
        }
        self.begin_entry(cpu, vcpu)
    }

    fn begin_entry(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        self.prepare_injection(vcpu);
        let wait = self.prepare_timer(vcpu);
        let index = self.vcpus[vcpu].index;
        self.emit(
            cpu,
            Kind::KvmEntry {
                vcpu: VcpuId(index),
            },
        );
        let v = &mut self.vcpus[vcpu];
        v.run = VcpuRun::Entering;
        if let Some(took) = v.books.entered(self.now) {
            self.stats.exit_took(v.exit.reason().code, took);
        }
        let ns = u64::from(self.costs.vmentry_ns + self.flush_l1d(cpu)) + wait;
        self.stay(cpu, ns);
        Ok(())
    }

    /// `vmx_l1d_flush`, behind the entry's tracepoint: what it costs now.
    fn flush_l1d(&mut self, cpu: CpuNr) -> u32 {
        let was_unsafe = core::mem::take(&mut self.cpus[cpu].l1d_unsafe);
        match self.cfg.knobs.kvm.vmentry_l1d_flush {
            L1dFlush::Always => self.costs.l1d_flush_ns,
            L1dFlush::Cond if was_unsafe => self.costs.l1d_flush_ns,
            L1dFlush::Never | L1dFlush::Cond => 0,
        }
    }

    /// Without APICv: the vector for the VM-entry interruption field, or an exit when the guest
    /// can take one.
    fn prepare_injection(&mut self, vcpu: VcpuNr) {
        let v = &mut self.vcpus[vcpu];
        if v.shared.apicv() || v.inject.is_some() {
            return;
        }
        let source = v.posted.source(&v.shared, &self.stats.mechanisms);
        if v.guest.takes_interrupts() {
            v.inject = v.lapic.inject(&source);
            v.window = false;
        } else {
            v.window = v.lapic.has_interrupt(&source).is_some();
        }
        if let Some(vector) = self.vcpus[vcpu].inject {
            let cpu = self.tasks[self.vcpus[vcpu].task].cpu;
            self.emit(
                cpu,
                Kind::KvmInjVirq {
                    vector: u32::from(vector),
                    soft: false,
                    reinjected: false,
                },
            );
        }
    }

    /// The guest runs.
    fn vcpu_entered(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        self.cpus[cpu].irqs_off = false;
        self.vcpus[vcpu].run = VcpuRun::Guest;
        self.stats.entries += 1;
        if self.vcpus[vcpu].shared.apicv() && self.cpus[cpu].pending.remove(Irq::PostedIntr) {
            // It came in the window with interrupts off: guest mode consumes it, no exit.
            self.process_notification(vcpu);
            self.charge(cpu, self.costs.posted_interrupt_ns);
        }
        if !self.cpus[cpu].pending.is_empty() {
            return self.vm_exit(cpu, vcpu, Exit::ExternalInterrupt);
        }
        self.guest_resume(cpu, vcpu)
    }

    /// The guest is left, for `exit`. What it was doing has been stopped.
    pub(crate) fn vm_exit(&mut self, cpu: CpuNr, vcpu: VcpuNr, exit: Exit) -> Sim {
        let v = &mut self.vcpus[vcpu];
        (v.run, v.exit) = (VcpuRun::Exiting, exit);
        self.cpus[cpu].irqs_off = true;
        self.stay(cpu, u64::from(self.costs.vmexit_ns));
        Ok(())
    }

    pub(crate) fn vcpu_exited(&mut self, cpu: CpuNr, vcpu: VcpuNr, exit: Exit) -> Sim {
        self.stats.exits += 1;
        if self.suppression().suppresses_at_exit() {
            self.charge_suppression(cpu, (1, 0));
        }
        let v = &mut self.vcpus[vcpu];
        v.books.exited(self.now, exit.reason().code);
        v.posted.vm_exit(&v.shared, &self.stats.mechanisms);
        let index = v.index;
        self.emit(
            cpu,
            Kind::KvmExit {
                reason: exit.reason(),
                vcpu: VcpuId(index),
                intr_vector: self.exit_vector(cpu, exit),
                info1: 0,
            },
        );
        self.trace_exit(cpu, exit);
        let handler = u64::from(exit.handler_ns(&self.costs));
        if exit.is_fast() && self.xen.is_none() {
            self.vcpus[vcpu].run = VcpuRun::Fast;
            self.stay(cpu, handler);
            return Ok(());
        }
        self.leave_guest_mode(cpu, vcpu);
        self.vcpus[vcpu].run = VcpuRun::Handling;
        let task = self.vcpus[vcpu].task;
        self.tasks[task].left_ns = handler.max(1);
        self.next(cpu)
    }

    /// Which host interrupt it is that waits.
    fn exit_vector(&self, cpu: CpuNr, exit: Exit) -> Option<u8> {
        let pending = self.cpus[cpu].pending;
        let all = [
            Irq::LocalTimer,
            Irq::Reschedule,
            Irq::PostedIntr,
            Irq::PostedWakeup,
            Irq::Device,
        ];
        let first = all.into_iter().find(|&irq| pending.has(irq))?;
        (exit == Exit::ExternalInterrupt).then(|| first.vector())
    }

    fn leave_guest_mode(&mut self, cpu: CpuNr, vcpu: VcpuNr) {
        self.cpus[cpu].irqs_off = false;
        if self.suppression().follows_mode() {
            self.charge_suppression(cpu, (1, 0));
        }
        let v = &self.vcpus[vcpu];
        v.posted.leave(&v.shared, &self.stats.mechanisms);
    }

    /// When notifications are kept away.
    const fn suppression(&self) -> Suppression {
        self.cfg.knobs.kvm.suppress_notification
    }

    /// Locked operations on the descriptor, and looks at PIR, that suppression adds.
    fn charge_suppression(&mut self, cpu: CpuNr, (locked, scans): (u32, u32)) {
        let ns = locked * self.costs.locked_own_ns + scans * self.costs.pir_scan_ns;
        if ns > 0 {
            self.charge(cpu, ns);
        }
    }

    fn trace_exit(&mut self, cpu: CpuNr, exit: Exit) {
        if !self.tracing {
            return;
        }
        match exit {
            Exit::TscDeadline { at_ns } => {
                self.emit(
                    cpu,
                    Kind::KvmMsr {
                        write: true,
                        exception: false,
                        ecx: 0x6e0,
                        data: at_ns,
                    },
                );
            }
            Exit::Cpuid => self.emit(
                cpu,
                Kind::KvmCpuid {
                    function: 0,
                    index: 0,
                },
            ),
            _ => {}
        }
    }

    /// The handler's effect, at its end. Whether the CPU has gone on to something else: the vCPU
    /// halts, sends for a while, or has given its CPU away.
    fn handle_exit(&mut self, cpu: CpuNr, vcpu: VcpuNr, exit: Exit) -> Sim<bool> {
        match exit {
            Exit::ExternalInterrupt | Exit::InterruptWindow | Exit::Cpuid => {}
            Exit::EptViolation => self.cpus[cpu].l1d_unsafe = true,
            Exit::Hlt => return self.vcpu_halt(cpu, vcpu),
            Exit::Icr { vector, to } => return self.guest_ipi(cpu, vcpu, vector, to),
            Exit::SendIpi { vector, to } => return self.pv_send_ipi(cpu, vcpu, vector, to),
            Exit::Notify { source } => self.source_answered(vcpu, source),
            Exit::Pause => return self.vcpu_on_spin(cpu, vcpu),
            Exit::SchedYield { vcpu: target } => return self.pv_yield(cpu, vcpu, target),
            Exit::TscDeadline { at_ns } => self.write_tsc_deadline(cpu, vcpu, at_ns)?,
            Exit::PreemptionTimer => self.hv_timer_fired(cpu, vcpu)?,
            Exit::Eoi => self.emulate_eoi(cpu, vcpu)?,
            Exit::Io { device, thread } => {
                // ioeventfd
                self.request_io(self.vcpus[vcpu].vm, device, thread, cpu)?;
            }
            Exit::KickCpu { vcpu: target } => return self.pv_kick(cpu, vcpu, target),
        }
        Ok(false)
    }
}

/// Locked operations and looks at PIR that suppression adds to an entry. As posted first and second,
/// the synchronization finds SN set: it clears ON and looks at PIR each time. Then SN is cleared, and
/// in all but the first PIR looked at for what was posted unnoticed.
const fn entering(policy: Suppression) -> (u32, u32) {
    match policy {
        Suppression::Off | Suppression::Put => (0, 0),
        Suppression::AsPostedV1 => (2, 1),
        Suppression::AsPostedV2 => (2, 2),
        Suppression::AsPostedV3 | Suppression::Corrected => (1, 1),
    }
}
