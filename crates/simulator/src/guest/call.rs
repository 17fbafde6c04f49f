//! Function calls on other vCPUs: TLB shootdowns and the like (`kernel/smp.c`,
//! `arch/x86/mm/tlb.c`, `arch/x86/kernel/kvm.c`).

use super::{CALL_FUNCTION_VECTOR, Micro, SpinOn};
use crate::fault::Sim;
use crate::ids::{VcpuNr, VmNr};
use crate::kvm::{Exit, IpiMask, IpiTo};
use crate::machine::Machine;

/// vCPUs that one `KVM_HC_SEND_IPI` reaches on a 64-bit guest.
const PV_IPI_SPAN: u32 = 128;
/// vCPUs of an x2APIC cluster.
const CLUSTER: u32 = 16;

impl Machine<'_> {
    /// `smp_call_function_many_cond`: asks, then spins for the answers. Preemption is off
    /// meanwhile.
    pub(crate) fn guest_call(&mut self, vcpu: VcpuNr, flush: bool) {
        let asked = self.vcpus_to_ask(vcpu, flush);
        if asked.is_empty() {
            return;
        }
        let v = &self.vcpus[vcpu];
        let (vm, own) = (v.vm, v.index);
        self.stats.function_calls += 1;
        let target = self.vcpu_to_yield_to(vm, &asked);
        let single = asked.len() == 1;
        let mut told = Vec::with_capacity(asked.len());
        for &index in &asked {
            let other = self.vcpu_of(vm, index);
            // A queue that is not empty has its interrupt on the way.
            let first = self.vcpus[other].guest.calls.is_empty();
            self.vcpus[other].guest.calls.push(own);
            self.cut(other);
            if first && single && self.guest_polls(other) {
                self.stats.guest_ipis_spared += 1;
                self.poke(other);
            } else if first {
                told.push(index);
            }
        }
        let g = &mut self.vcpus[vcpu].guest;
        g.preempt_off += 1;
        g.awaited_calls = asked.len() as u32;
        g.push_next(Micro::CallOver);
        g.push_next(Micro::Spin(SpinOn::Call));
        if let Some(target) = target {
            g.push_next(Micro::Exit(Exit::SchedYield { vcpu: target }));
        }
        self.guest_send_ipis(vcpu, CALL_FUNCTION_VECTOR, &told);
    }

    /// A flush goes to the vCPUs that run threads of the same process: an idle vCPU is lazy about
    /// its TLB, and KVM flushes for one that does not run when it enters again
    /// (`kvm_flush_tlb_multi`).
    fn vcpus_to_ask(&mut self, vcpu: VcpuNr, flush: bool) -> Vec<u32> {
        let v = &self.vcpus[vcpu];
        let (vm, own) = (v.vm, v.index);
        let process = v
            .guest
            .current
            .map(|t| self.vms[vm].kernel.threads[t].process);
        let spares = flush && self.vms[vm].cfg.guest.pv_tlb_flush;
        let mut asked = Vec::new();
        for index in (0..self.vms[vm].vcpus).filter(|&index| index != own) {
            let other = self.vcpu_of(vm, index);
            let runs = self.vcpus[other].guest.current;
            let runs = runs.map(|t| self.vms[vm].kernel.threads[t].process);
            if flush && (runs.is_none() || runs != process) {
                continue;
            }
            if spares && self.guest_sees_preempted(other) {
                self.stats.flushes_spared += 1;
                continue;
            }
            asked.push(index);
        }
        asked
    }

    /// `kvm_smp_send_call_func_ipi`: the first that is not idle and does not run.
    fn vcpu_to_yield_to(&self, vm: VmNr, asked: &[u32]) -> Option<u32> {
        if !self.vms[vm].cfg.guest.pv_sched_yield {
            return None;
        }
        asked.iter().copied().find(|&index| {
            let other = self.vcpu_of(vm, index);
            self.vcpus[other].guest.current.is_some() && self.guest_sees_preempted(other)
        })
    }

    /// Sends a vector to several vCPUs, in ascending order: all others by shorthand; else by
    /// hypercalls for 128 at a time, or by one write for each. Without interrupt remapping, which
    /// guests seldom have, Linux addresses x2APICs physically (`try_to_enable_x2apic`); Windows on
    /// Xen addresses clusters.
    pub(crate) fn guest_send_ipis(&mut self, vcpu: VcpuNr, vector: u8, to: &[u32]) {
        let v = &self.vcpus[vcpu];
        let (vm, own) = (&self.vms[v.vm], v.index);
        let pv = vm.cfg.guest.pv_send_ipi && self.xen.is_none();
        let all = !to.is_empty() && to.len() as u32 + 1 == vm.vcpus && !to.contains(&own);
        let exit = |to: IpiTo| match pv {
            true => Exit::SendIpi { vector, to },
            false => Exit::Icr { vector, to },
        };
        let groups = if all && (!pv || vm.vcpus <= PV_IPI_SPAN) {
            vec![IpiTo::Others]
        } else if pv {
            masks(to, |index| index, PV_IPI_SPAN)
        } else if vm.cfg.guest.x2apic && self.xen.is_some() {
            masks(to, |index| index / CLUSTER * CLUSTER, CLUSTER)
        } else {
            to.iter().copied().map(IpiTo::One).collect()
        };
        let g = &mut self.vcpus[vcpu].guest;
        for group in groups.into_iter().rev() {
            g.push_next(Micro::Exit(exit(group)));
        }
    }

    /// The functions that others have asked for are called here.
    pub(crate) fn guest_answer_calls(&mut self, vcpu: VcpuNr) -> Sim {
        let vm = self.vcpus[vcpu].vm;
        for index in core::mem::take(&mut self.vcpus[vcpu].guest.calls) {
            let caller = self.vcpu_of(vm, index);
            let g = &mut self.vcpus[caller].guest;
            let Some(left) = g.awaited_calls.checked_sub(1) else {
                return self.broken("an answer that nobody waits for");
            };
            g.awaited_calls = left;
            if left == 0 {
                self.poke(caller);
            }
        }
        Ok(())
    }
}

/// Groups ascending vCPUs into masks of up to `span` from where `start` says for the first one. A
/// group of one is addressed by itself.
fn masks(to: &[u32], start: impl Fn(u32) -> u32, span: u32) -> Vec<IpiTo> {
    let mut groups: Vec<(u32, u128)> = Vec::new();
    for &index in to {
        match groups.last_mut() {
            Some((first, bits)) if index - *first < span => *bits |= 1 << (index - *first),
            _ => {
                let first = start(index);
                groups.push((first, 1 << (index - first)));
            }
        }
    }
    let one = |(first, bits): (u32, u128)| match bits.count_ones() {
        1 => IpiTo::One(first + bits.trailing_zeros()),
        _ => IpiTo::Some(IpiMask::new(first, bits)),
    };
    groups.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_of_sixteen_and_hypercalls_of_128() {
        let to = [1, 2, 17, 30, 33, 200];
        let mask = |first, bits| IpiTo::Some(IpiMask::new(first, bits));
        let clusters = masks(&to, |index| index / CLUSTER * CLUSTER, CLUSTER);
        let expected = [
            mask(0, 0b110),
            mask(16, 1 << 1 | 1 << 14),
            IpiTo::One(33),
            IpiTo::One(200),
        ];
        assert_eq!(clusters, expected);
        let calls = masks(&to, |index| index, PV_IPI_SPAN);
        let bits = 1 | 1 << 1 | 1 << 16 | 1 << 29 | 1 << 32;
        assert_eq!(calls, [mask(1, bits), IpiTo::One(200)]);
    }

    #[test]
    fn a_cluster_is_addressed_logically() {
        let mask = IpiMask::new(16, 1 << 1 | 1 << 14);
        assert_eq!(IpiTo::Some(mask).icr(0xfb), (0x8fb, 1 << 16 | 0x4002));
        assert_eq!(mask.end(), 31);
    }
}
