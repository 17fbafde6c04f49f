//! Interrupts of the guest.

use stealtime_hypervisor::eevdf::Resched;

use super::{CALL_FUNCTION_VECTOR, DEVICE_VECTOR, LOCAL_TIMER_VECTOR, Micro, SOURCE_VECTOR};
use crate::fault::Sim;
use crate::ids::VcpuNr;
use crate::kvm::Exit;
use crate::machine::Machine;

impl Machine<'_> {
    /// Takes an interrupt that the virtual LAPIC delivers now, or that was injected.
    pub(crate) fn take_virtual_irq(&mut self, vcpu: VcpuNr) -> bool {
        let v = &mut self.vcpus[vcpu];
        let vector = if v.shared.apicv() {
            v.lapic.virtual_deliver(&v.shared.irr)
        } else {
            v.inject.take()
        };
        let Some(vector) = vector else {
            return false;
        };
        let again = v.shared.desc.test_pir(vector) || v.shared.irr.snapshot().contains(vector);
        match v.books.taken(self.now, vector, again) {
            Some(waited) => {
                let answers = &mut self.vms[v.vm].answers;
                answers.interrupts.add(waited);
                if let Some(response) = v.books.response(self.now, vector) {
                    answers.ipis.add(response);
                }
            }
            None => self.checks.fail("interrupt-once", || {
                format!("vector {vector} is taken and was not accepted")
            }),
        }
        let v = &mut self.vcpus[vcpu];
        let g = &mut v.guest;
        if let Some(Micro::Exit(Exit::Hlt)) = g.base.front() {
            // HLT in the guest ends.
            g.base.pop_front();
        }
        g.in_irq = Some(vector);
        let half = Micro::Run {
            ns: u64::from(self.costs.guest_irq_ns / 2),
            kernel: true,
        };
        let handler = [half, Micro::Exit(Exit::Eoi), Micro::Handle(vector), half];
        g.irq.replace(handler);
        self.stats.guest_irqs += 1;
        true
    }

    /// What a vector is for.
    pub(crate) fn guest_handle(&mut self, vcpu: VcpuNr, vector: u8) -> Sim {
        match vector {
            LOCAL_TIMER_VECTOR => self.guest_timer(vcpu),
            CALL_FUNCTION_VECTOR => self.guest_answer_calls(vcpu),
            DEVICE_VECTOR..SOURCE_VECTOR => self.guest_device(vcpu, vector),
            SOURCE_VECTOR..0x70 => self.guest_polls_cards(vcpu, vector),
            // The reschedule vector has done its work by coming.
            _ => Ok(()),
        }
    }

    /// The handler is over.
    pub(crate) fn guest_iret(&mut self, vcpu: VcpuNr) -> Sim {
        let g = &mut self.vcpus[vcpu].guest;
        g.in_irq = None;
        if g.resched != Resched::None
            && g.preempt_off == 0
            && g.spin.is_none()
            && g.current.is_some()
        {
            return self.guest_schedule(vcpu);
        }
        Ok(())
    }

    fn guest_device(&mut self, vcpu: VcpuNr, vector: u8) -> Sim {
        let vm = self.vcpus[vcpu].vm;
        let kernel = &mut self.vms[vm].kernel;
        let mut ready = Vec::new();
        kernel.finished.retain(|&(v, thread)| {
            if v == vector {
                ready.push(thread);
            }
            v != vector
        });
        for thread in ready {
            self.guest_wake(vcpu, thread)?;
        }
        Ok(())
    }
}
