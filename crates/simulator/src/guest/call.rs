//! Function calls on other vCPUs: TLB shootdowns and the like (`kernel/smp.c`,
//! `arch/x86/mm/tlb.c`, `arch/x86/kernel/kvm.c`).

use super::{CALL_FUNCTION_VECTOR, Guests, Micro, SpinOn, clock, idle, spin, stretch};
use crate::fault::Sim;
use crate::host::Host;
use crate::ids::{VcpuNr, VmNr};
use crate::kvm::{Exit, IpiMask, IpiTo};

/// vCPUs that one `KVM_HC_SEND_IPI` reaches on a 64-bit guest.
const PV_IPI_SPAN: u32 = 128;
/// vCPUs of an x2APIC cluster.
const CLUSTER: u32 = 16;

/// `smp_call_function_many_cond`: asks, then spins for the answers. Preemption is off
/// meanwhile.
pub(crate) fn call_others(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, flush: bool) {
    let targets = call_targets(guests, host, vcpu, flush);
    if !targets.is_empty() {
        call(guests, host, vcpu, &targets);
    }
}

/// `smp_call_function_single`, with a wait. A vCPU that asks itself needs no IPI.
pub(crate) fn call_one(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, target: u32) {
    let v = &guests.cpus[vcpu];
    if target != v.index && target < guests.vms[v.vm].vcpus {
        call(guests, host, vcpu, &[target]);
    }
}

fn call(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, targets: &[u32]) {
    let v = &guests.cpus[vcpu];
    let (vm, own_index) = (v.vm, v.index);
    host.stats_mut().function_calls += 1;
    let target = yield_target(guests, host, vm, targets);
    // `smp_call_function_many_cond` sends no IPI to a single target that polls in its idle loop.
    let single = targets.len() == 1;
    let mut notified = Vec::with_capacity(targets.len());
    for &index in targets {
        let peer = guests.vcpu_of(vm, index);
        // A queue that is not empty has its interrupt on the way.
        let first = guests.cpus[peer].calls.is_empty();
        guests.cpus[peer].calls.push(own_index);
        stretch::cut(guests, host, peer);
        if first && single && idle::is_polling(guests, peer) {
            host.stats_mut().guest_ipis_spared += 1;
            spin::poke(guests, host, peer);
        } else if first {
            notified.push(index);
        }
    }
    let g = &mut guests.cpus[vcpu];
    g.preempt_off += 1;
    g.awaited_calls = targets.len() as u32;
    g.push_next(Micro::CallOver);
    g.push_next(Micro::Spin(SpinOn::Call));
    if let Some(target) = target {
        g.push_next(Micro::Exit(Exit::SchedYield { vcpu: target }));
    }
    send_ipis(guests, host, vcpu, CALL_FUNCTION_VECTOR, &notified);
}

/// A flush goes to the vCPUs that run threads of the same process. An idle vCPU is lazy about its
/// TLB. For a preempted one KVM flushes at the next entry (`kvm_flush_tlb_multi`).
fn call_targets(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, flush: bool) -> Vec<u32> {
    let v = &guests.cpus[vcpu];
    let (vm, own_index) = (v.vm, v.index);
    let process = v.current.map(|t| guests.vms[vm].kernel.threads[t].process);
    let spares = flush && guests.vms[vm].cfg.guest.pv_tlb_flush;
    let mut targets = Vec::new();
    for index in (0..guests.vms[vm].vcpus).filter(|&index| index != own_index) {
        let peer = guests.vcpu_of(vm, index);
        let runs = guests.cpus[peer].current;
        let runs = runs.map(|t| guests.vms[vm].kernel.threads[t].process);
        if flush && (runs.is_none() || runs != process) {
            continue;
        }
        if spares && clock::is_preempted(guests, host, peer) {
            host.stats_mut().flushes_spared += 1;
            continue;
        }
        targets.push(index);
    }
    targets
}

/// `kvm_smp_send_call_func_ipi`: the first that is not idle and does not run.
fn yield_target(guests: &Guests, host: &Host<'_>, vm: VmNr, targets: &[u32]) -> Option<u32> {
    if !guests.vms[vm].cfg.guest.pv_sched_yield {
        return None;
    }
    targets.iter().copied().find(|&index| {
        let peer = guests.vcpu_of(vm, index);
        guests.cpus[peer].current.is_some() && clock::is_preempted(guests, host, peer)
    })
}

/// Sends a vector to several vCPUs, in ascending order. All others are reached by shorthand; else a
/// hypercall reaches 128 at a time, or one write each. Without interrupt remapping, which guests
/// seldom have, Linux addresses x2APICs physically (`try_to_enable_x2apic`); Windows on Xen
/// addresses clusters.
pub(crate) fn send_ipis(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    vector: u8,
    targets: &[u32],
) {
    let v = &guests.cpus[vcpu];
    let (vm, own_index) = (&guests.vms[v.vm], v.index);
    let pv = vm.cfg.guest.pv_send_ipi && !host.is_xen();
    let broadcast = !targets.is_empty()
        && targets.len() as u32 + 1 == vm.vcpus
        && !targets.contains(&own_index);
    let exit = |targets: IpiTo| match pv {
        true => Exit::SendIpi {
            vector,
            to: targets,
        },
        false => Exit::Icr {
            vector,
            to: targets,
        },
    };
    let groups = if broadcast && (!pv || vm.vcpus <= PV_IPI_SPAN) {
        vec![IpiTo::Others]
    } else if pv {
        masks(targets, |index| index, PV_IPI_SPAN)
    } else if vm.cfg.guest.x2apic && host.is_xen() {
        masks(targets, |index| index / CLUSTER * CLUSTER, CLUSTER)
    } else {
        targets.iter().copied().map(IpiTo::One).collect()
    };
    let g = &mut guests.cpus[vcpu];
    // Each step goes in front of the others, so that the first group is pushed last.
    for group in groups.into_iter().rev() {
        g.push_next(Micro::Exit(exit(group)));
    }
}

/// The functions that others have asked for are called here.
pub(crate) fn answer(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) -> Sim {
    let vm = guests.cpus[vcpu].vm;
    for index in core::mem::take(&mut guests.cpus[vcpu].calls) {
        let caller = guests.vcpu_of(vm, index);
        let g = &mut guests.cpus[caller];
        let Some(remaining) = g.awaited_calls.checked_sub(1) else {
            return host.broken("an answer that no vCPU waits for");
        };
        g.awaited_calls = remaining;
        if remaining == 0 {
            spin::poke(guests, host, caller);
        }
    }
    Ok(())
}

/// Groups ascending vCPUs into masks of up to `span` from where `start` says for the first one. A
/// group of one is addressed by itself.
fn masks(targets: &[u32], start: impl Fn(u32) -> u32, span: u32) -> Vec<IpiTo> {
    let mut groups: Vec<(u32, u128)> = Vec::new();
    for &index in targets {
        match groups.last_mut() {
            Some((first, bits)) if index - *first < span => *bits |= 1 << (index - *first),
            _ => {
                let first = start(index);
                groups.push((first, 1 << (index - first)));
            }
        }
    }
    let item = |(first, bits): (u32, u128)| match bits.count_ones() {
        1 => IpiTo::One(first + bits.trailing_zeros()),
        _ => IpiTo::Some(IpiMask::new(first, bits)),
    };
    groups.into_iter().map(item).collect()
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
