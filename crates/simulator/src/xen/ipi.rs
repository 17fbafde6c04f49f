//! `vlapic_ipi`: the loop over a guest's vCPUs, and the batch around it.

use stealtime_hypervisor::posted_interrupt::{Requests, SharedVcpu, wake_up};
use stealtime_hypervisor::wakeup_batch::multicast::{GuestIpi, KickTarget, vcpu_kick};
use stealtime_hypervisor::wakeup_batch::policy::BroadcastCost;

use crate::fault::Sim;
use crate::guest::Guests;
use crate::host::Host;
use crate::ids::{CpuNr, VcpuNr};
use crate::kvm::{IpiTo, Kvm, VcpuRun, Word, deliver, halt};
use crate::xen;

/// A guest's IPI that is being sent, one vCPU after the other. Each takes its time: CPUs that were
/// notified first react before the last ones are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sending {
    vector: u8,
    to: IpiTo,
    /// The next vCPU to look at.
    next: u32,
    /// Beyond the last one.
    end: u32,
    batched: bool,
    /// Its batch is finished: what is left are the ICR writes.
    finished: bool,
    began_ns: u64,
    targets: u32,
    /// Of each target so far, in order: from its pending bit until its CPU was notified, in ns.
    delays_ns: Vec<u64>,
    /// From the start until each target's turn, all together, in ns.
    turns_ns: u64,
    /// CPUs of the batch that no IPI went to yet: the target's place, and when its bit was set.
    unnotified: Vec<(CpuNr, usize, u64)>,
}

impl Sending {
    /// The target at hand has its bit since `set_ns` and is in the batch.
    pub(super) fn noted(&mut self, cpu: CpuNr, set_ns: u64) {
        if let Some(place) = self.delays_ns.len().checked_sub(1) {
            self.unnotified.push((cpu, place, set_ns));
        }
    }

    /// The target at hand was notified by an IPI at once.
    pub(super) fn notified(&mut self, delay_ns: u64) {
        if let Some(delay) = self.delays_ns.last_mut() {
            *delay += delay_ns;
        }
    }

    /// An IPI of the batch goes to these CPUs. One that has noticed by itself gets none.
    fn flushed(&mut self, cpus: &[CpuNr], at_ns: u64) {
        let delays = &mut self.delays_ns;
        self.unnotified.retain(|&(cpu, place, set_ns)| {
            let hit = cpus.contains(&cpu);
            if hit && let Some(delay) = delays.get_mut(place) {
                *delay += at_ns - set_ns;
            }
            !hit
        });
    }
}

/// A vCPU as `vcpu_kick` sees it.
struct Kicked<'a> {
    shared: &'a SharedVcpu<Word>,
    running: bool,
    woken: bool,
}

impl KickTarget for Kicked<'_> {
    fn is_running(&self) -> bool {
        self.running
    }

    fn unblock(&mut self) {
        self.woken = wake_up(self.shared);
    }
}

/// Xen's delivery without APICv (`vlapic_set_irq`): a vector that was pending already needs no
/// kick. A vCPU that blocks is woken; one that runs, in guest mode or not, gets the softirq.
pub(crate) fn deliver(
    kvm: &mut Kvm,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    vector: u8,
) -> Sim {
    let (v, in_irq) = (kvm.vcpu(vcpu), xen::context(host, cpu).in_irq);
    if !v.shared.irr.set(vector) {
        return Ok(());
    }
    v.shared.request(Requests::EVENT);
    let (task, processor) = (v.task, host.tasks()[v.task].cpu);
    let polls = v.run == VcpuRun::Polling;
    let mut target = Kicked {
        shared: &v.shared,
        running: host.cpus()[processor].current == Some(task),
        woken: false,
    };
    let current = host.cpus()[cpu].current == Some(task);
    let kick = vcpu_kick(&mut target, in_irq, current);
    let woken = target.woken;
    halt::woken(kvm, host, vcpu, woken, cpu)?;
    if polls {
        return halt::wake(kvm, host, vcpu, cpu);
    }
    if kick && !woken {
        return xen::raise(host, processor, super::VCPU_KICK, cpu);
    }
    Ok(())
}

/// The guest wrote the ICR.
pub(crate) fn send(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    vector: u8,
    destination: IpiTo,
) -> Sim {
    let vm = kvm.vcpu(vcpu).vm;
    let n = guests.vm(vm).vcpus;
    let x2apic = guests.vm(vm).cfg.guest.x2apic;
    let (low, dest) = destination.icr(vector);
    let (next, end) = match destination {
        IpiTo::One(index) => (index, index + 1),
        IpiTo::Others => (0, n),
        IpiTo::Some(mask) => (mask.first(), mask.end().min(n)),
    };
    let high = if x2apic { dest } else { dest << 24 };
    let ipi = GuestIpi::from_icr(low, high, x2apic, u32::MAX);
    let (multicast, targets) = (ipi.is_multicast(n), ipi.likely_targets(n));
    let began_ns = host.now();
    let Some(xen) = host.xen_mut() else {
        return host.broken("an IPI of Xen on another hypervisor");
    };
    let batched = xen.decider.decide(multicast, targets);
    if batched && xen.batches[cpu.0 as usize].begin().is_err() {
        return host.broken("batches nest without end");
    }
    xen.sending[cpu.0 as usize] = Some(Sending {
        vector,
        to: destination,
        next,
        end,
        batched,
        finished: false,
        began_ns,
        targets,
        delays_ns: Vec::with_capacity(targets as usize),
        turns_ns: 0,
        unnotified: Vec::new(),
    });
    kvm.begin_sending(vcpu);
    // Xen is not preemptible here.
    host.disable_preemption(cpu);
    send_next(kvm, guests, host, cpu, vcpu)
}

fn keep_sending(host: &mut Host<'_>, cpu: CpuNr, sending: Sending) {
    if let Some(xen) = host.xen_mut() {
        xen.sending[cpu.0 as usize] = Some(sending);
    }
}

/// Notifies one more vCPU; after the last one the batch is finished.
pub(crate) fn send_next(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim {
    let own_index = kvm.vcpu(vcpu).index;
    let sends = host.xen_mut();
    let Some(mut sending) = sends.and_then(|xen| xen.sending[cpu.0 as usize].take()) else {
        return host.broken("a vCPU sends nothing");
    };
    while sending.next < sending.end && !sending.to.has(sending.next, own_index) {
        sending.next += 1;
    }
    if sending.next < sending.end {
        let target = guests.vcpu_of(kvm.vcpu(vcpu).vm, sending.next);
        sending.next += 1;
        let vector = sending.vector;
        sending.delays_ns.push(0);
        sending.turns_ns += host.now() + host.cpus()[cpu].debt_ns - sending.began_ns;
        keep_sending(host, cpu, sending);
        deliver::accept_ipi(kvm, host, cpu, vcpu, target, vector)?;
        // What that cost passes before the next one.
        host.stay(cpu, 0);
        return Ok(());
    }
    if sending.batched && !sending.finished {
        sending.finished = true;
        finish(host, cpu)?;
    }
    let flush = host.xen_mut();
    let write = flush.and_then(|xen| xen.flushes[cpu.0 as usize].pop());
    if let Some(write) = write {
        // The wait for the last target passes before the next one is written to.
        let reached = xen::write_one(host, cpu, write);
        sending.flushed(&reached, host.now() + host.cpus()[cpu].debt_ns);
        keep_sending(host, cpu, sending);
        host.stay(cpu, 0);
        return Ok(());
    }
    host.enable_preemption(cpu);
    kvm.end_sending(vcpu);
    if sending.targets > 1 {
        let spent = host.now() + host.cpus()[cpu].debt_ns - sending.began_ns;
        host.stats_mut().broadcasts += 1;
        host.stats_mut().broadcast_ns.add(spent);
        host.stats_mut().targets_notified(&sending.delays_ns);
        if let Some(xen) = host.xen_mut() {
            xen.decider.learn(&BroadcastCost {
                batched: sending.batched,
                targets: sending.delays_ns.len() as u32,
                sender_ns: spent,
                targets_ns: sending.turns_ns + sending.delays_ns.iter().sum::<u64>(),
            });
        }
    }
    host.stay(cpu, 0);
    Ok(())
}

fn finish(host: &mut Host<'_>, cpu: CpuNr) -> Sim {
    let finish = xen::on_batch(host, cpu, |batch, cpus, context, writes, events| {
        batch.finish(cpus, context, &mut |w| writes.push(w), events)
    });
    let Some(xen::Acted { outcome, writes }) = finish else {
        return Ok(());
    };
    match outcome {
        Ok(finished) => {
            host.stats_mut().wakeups_noticed += u64::from(finished.noticed);
            if let Some(xen) = host.xen_mut() {
                let flush = &mut xen.flushes[cpu.0 as usize];
                flush.extend(writes.into_iter().rev());
            }
            Ok(())
        }
        Err(error) => host.broken(format!("batch: {error}")),
    }
}
