//! Function calls on other vCPUs: TLB shootdowns and the like.

use super::{CALL_FUNCTION_VECTOR, Micro, SpinOn};
use crate::fault::Sim;
use crate::ids::{CpuNr, VcpuNr};
use crate::kvm::{Exit, IpiTo};
use crate::machine::Machine;

impl Machine<'_> {
    /// `smp_call_function_many`: sends to each vCPU that runs a thread, then spins for their
    /// answers.
    pub(crate) fn guest_call(&mut self, vcpu: VcpuNr, flush: bool) {
        let v = &self.vcpus[vcpu];
        let (vm, own) = (v.vm, v.index);
        let spares = flush && self.vms[vm].cfg.guest.pv_tlb_flush;
        let mut to = Vec::new();
        for index in (0..self.vms[vm].vcpus).filter(|&index| index != own) {
            let other = self.vcpu_of(vm, index);
            let g = &self.vcpus[other].guest;
            if g.current.is_none() {
                continue;
            }
            // KVM flushes for a preempted vCPU when it runs again.
            if spares && self.is_preempted(other) {
                self.stats.flushes_spared += 1;
                continue;
            }
            to.push(index);
        }
        if to.is_empty() {
            return;
        }
        self.stats.function_calls += 1;
        self.vcpus[vcpu].guest.awaited_calls = to.len() as u32;
        let all = to.len() as u32 + 1 == self.vms[vm].vcpus;
        let pv = self.vms[vm].cfg.guest.pv_send_ipi;
        let yields = self.vms[vm].cfg.guest.pv_sched_yield;
        let awaited = to
            .iter()
            .copied()
            .find(|&i| self.is_preempted(self.vcpu_of(vm, i)));
        for &index in &to {
            let other = self.vcpu_of(vm, index);
            self.vcpus[other].guest.calls.push(own);
        }
        let g = &mut self.vcpus[vcpu].guest;
        g.push_next(Micro::Spin(SpinOn::Call));
        if let (true, Some(target)) = (yields, awaited) {
            g.push_next(Micro::Exit(Exit::SchedYield { vcpu: target }));
        }
        let vector = CALL_FUNCTION_VECTOR;
        if all {
            let to = IpiTo::Others;
            let exit = if pv {
                Exit::SendIpi { vector, to }
            } else {
                Exit::Icr { vector, to }
            };
            g.push_next(Micro::Exit(exit));
            return;
        }
        for &index in to.iter().rev() {
            g.push_next(Micro::Exit(Exit::Icr {
                vector,
                to: IpiTo::One(index),
            }));
        }
    }

    /// `vcpu->arch.st.preempted`, as the guest reads it.
    fn is_preempted(&self, vcpu: VcpuNr) -> bool {
        let v = &self.vcpus[vcpu];
        v.yields
            .flags()
            .has(stealtime_hypervisor::directed_yield::YieldFlags::PREEMPTED)
    }

    /// The functions that others have asked for are called here.
    pub(crate) fn guest_answer_calls(&mut self, _cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let vm = self.vcpus[vcpu].vm;
        for index in core::mem::take(&mut self.vcpus[vcpu].guest.calls) {
            let caller = self.vcpu_of(vm, index);
            let g = &mut self.vcpus[caller].guest;
            g.awaited_calls = g.awaited_calls.saturating_sub(1);
            if g.awaited_calls == 0 {
                self.end_spin(caller);
            }
        }
        Ok(())
    }
}
