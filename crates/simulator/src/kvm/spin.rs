//! Pause-loop exits and directed yield (`handle_pause`, `kvm_vcpu_on_spin`).

use stealtime_events::hypercall::KVM_HC_SCHED_YIELD;
use stealtime_events::{Kind, VcpuId};
use stealtime_hypervisor::directed_yield::ple::spins_in_kernel;
use stealtime_hypervisor::directed_yield::{YieldFlags, YieldHost, YieldState, YieldTo};
use stealtime_hypervisor::fair;
use stealtime_hypervisor::ipi_tracking::IpiContext;
use stealtime_hypervisor::posted_interrupt::Requests;
use stealtime_hypervisor::scx::Awaits;

use super::{Eois, Kvm, VcpuRun, Word, tracking};
use crate::fault::Sim;
use crate::guest::{Guests, spin};
use crate::host::{Body, Flow, Host, TaskState, class, poll};
use crate::ids::{CpuNr, VcpuNr, VmNr};

/// What the scheduler has been asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Yields {
    None,
    Refused,
    /// The CPU is given away.
    Served,
}

/// What the search for a vCPU asks.
struct Asked<'m, 'a> {
    kvm: &'m Kvm,
    guests: &'m Guests,
    host: &'m mut Host<'a>,
    cpu: CpuNr,
    vm: VmNr,
    yields: Yields,
    failed: Option<fair::Error>,
}

impl Asked<'_, '_> {
    fn vcpu(&self, index: u32) -> Option<&super::Vcpu> {
        let vm = self.guests.vm(self.vm);
        (index < vm.vcpus).then(|| &self.kvm.vcpus[VcpuNr(vm.first_vcpu.0 + index)])
    }
}

impl YieldHost for Asked<'_, '_> {
    type Word = Word;

    fn online_vcpus(&self) -> u32 {
        self.guests.vm(self.vm).vcpus
    }

    fn state(&self, vcpu: u32) -> Option<&YieldState<Word>> {
        self.vcpu(vcpu).map(|v| &v.yields)
    }

    fn ipi_contexts(&self) -> &[IpiContext<Word>] {
        &self.kvm.vms[self.vm].ipi_contexts
    }

    fn blocking(&self, vcpu: u32) -> bool {
        self.vcpu(vcpu).is_some_and(|v| v.run == VcpuRun::Blocked)
    }

    fn dy_runnable(&self, vcpu: u32) -> bool {
        self.vcpu(vcpu).is_some_and(|v| {
            v.pv_unhalted
                || v.shared.requests().0 & Requests::EVENT.0 != 0
                || self.pending_interrupt(vcpu)
        })
    }

    fn pending_interrupt(&self, vcpu: u32) -> bool {
        self.vcpu(vcpu)
            .is_some_and(|v| v.shared.apicv() && v.shared.desc.has_pending())
    }

    fn yield_to(&mut self, vcpu: u32) -> YieldTo {
        let Some(task) = self.vcpu(vcpu).map(|v| v.task) else {
            return YieldTo::Declined;
        };
        let awaits = awaits(self.kvm, self.host, self.cpu, self.vm);
        match self.host.yield_to(self.cpu, task, awaits) {
            Ok(answer) => {
                if answer == YieldTo::Yielded {
                    self.yields = Yields::Served;
                } else if self.yields == Yields::None {
                    self.yields = Yields::Refused;
                }
                answer
            }
            Err(error) => {
                self.failed = Some(error);
                YieldTo::Declined
            }
        }
    }
}

/// What `scx_stealtime` knows of the vCPU that runs on `cpu`.
fn awaits(kvm: &Kvm, host: &Host<'_>, cpu: CpuNr, vm: VmNr) -> Awaits {
    let current = host.cpus()[cpu]
        .current
        .map(|task| &host.tasks()[task].body);
    let Some(&Body::Vcpu(yielder)) = current else {
        return Awaits::NoIpi;
    };
    let v = &kvm.vcpus[yielder];
    if v.answered {
        return Awaits::Answered { at_ns: host.now() };
    }
    let Some(answers) = kvm.vms[vm].answers_due.get(v.index as usize) else {
        return Awaits::NoIpi;
    };
    let window_ns = host.cfg().knobs.kvm.directed_yield.ipi.ipi_window_ns;
    let vcpu_of = |index| &kvm.vcpus[VcpuNr(yielder.0 - v.index + index)];
    let waits = |index: &u32| host.tasks()[vcpu_of(*index).task].state == TaskState::Runnable;
    let due = || answers.due(window_ns, host.now());
    // One that waits for a CPU comes before those that run.
    match due().find(waits).or_else(|| due().next()) {
        Some(index) => {
            let receiver = vcpu_of(index);
            Awaits::Receiver {
                task: host.tasks()[receiver.task].fair,
                sent_ns: answers.sent_ns(),
                shows_eoi: receiver.eois == Eois::Shown,
            }
        }
        None if answers.has_sent(window_ns, host.now()) => {
            match kvm.vms[vm].answered_ns[v.index as usize] {
                0 => Awaits::Nothing,
                at_ns => Awaits::Answered { at_ns },
            }
        }
        None => Awaits::NoIpi,
    }
}

/// Puts a question to the vCPUs of `vm`: the answer, and what the scheduler of `cpu` has been asked.
fn ask<T>(
    kvm: &Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vm: VmNr,
    question: impl FnOnce(&mut Asked<'_, '_>) -> T,
) -> Sim<(T, Yields)> {
    let mut query = Asked {
        kvm,
        guests,
        host,
        cpu,
        vm,
        yields: Yields::None,
        failed: None,
    };
    let answer = question(&mut query);
    match query.failed {
        Some(error) => Err(error.into()),
        None => Ok((answer, query.yields)),
    }
}

/// The guest spun longer than its window. Whether the CPU was given away.
pub(crate) fn on_spin(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim<Option<Flow>> {
    let v = &mut kvm.vcpus[vcpu];
    let old = v.ple.window();
    // Grown first: the longer window holds from the next entry on, whatever the yield finds
    // (`handle_pause`).
    v.ple.grow(&host.cfg().knobs.kvm.ple);
    let (new, index, vm) = (v.ple.window(), v.index, v.vm);
    host.stats_mut().pause_exits += 1;
    if new != old {
        host.emit(
            cpu,
            Kind::KvmPleWindowUpdate {
                vcpu: VcpuId(index),
                new,
                old,
            },
        );
    }
    tracking::read_yield_hint(kvm, guests, host, vcpu)?;
    let knobs = host.cfg().knobs.kvm.directed_yield;
    let now = host.now();
    let cpl = if guests.cpu(vcpu).in_kernel() { 0 } else { 3 };
    // No guest's registers are encrypted here.
    let in_kernel = spins_in_kernel(host.cfg().knobs.kvm.ple.vendor, cpl, false);
    // The outcome says all that the events would.
    let query = ask(kvm, guests, host, cpu, vm, |vcpus| {
        kvm.vms[vm]
            .directed_yield
            .on_spin(vcpus, &knobs, index, in_kernel, now, &())
    });
    let (outcome, yields) = query?;
    let Ok(outcome) = outcome else {
        return host.broken("a spinning vCPU is not of its VM");
    };
    let per = u64::from(host.costs().yield_candidate_ns);
    host.charge(cpu, per * u64::from(outcome.looked_at));
    if let Some(boost) = outcome.boosted {
        host.stats_mut().directed_yields += 1;
        let awaited = spin::awaited_vcpu(guests, vcpu) == Some(boost.vcpu);
        host.stats_mut().yields_to_awaited += u64::from(awaited);
    }
    let gives_way = match yields {
        Yields::None => {
            let awaits = awaits(kvm, host, cpu, vm);
            let picks = class::pause(host, cpu, awaits)?;
            if picks {
                // An entry that an interrupt ends at once: the program acts where interrupts are off.
                let costs = host.costs();
                host.charge(cpu, u64::from(costs.vmentry_ns + costs.vmexit_ns));
            }
            picks
        }
        Yields::Refused => false,
        Yields::Served => true,
    };
    if yields == Yields::Served {
        // The thread is switched out within `kvm_vcpu_on_spin`: until it is back, on its way
        // into the guest, others see that it spins.
        kvm.vcpus[vcpu].yields.begin_spin();
    }
    Ok(gives_way.then_some(Flow::Schedule))
}

/// `KVM_HC_SCHED_YIELD`; and DIAGNOSE 9c of s390, which asks and does the same
/// (`__diag_time_slice_end_directed`).
pub(crate) fn pv_yield(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    sender: VcpuNr,
    target: u32,
) -> Sim<Option<Flow>> {
    host.stats_mut().yield_hypercalls += 1;
    let kind = Kind::KvmHypercall {
        nr: KVM_HC_SCHED_YIELD,
        a0: u64::from(target),
        a1: 0,
    };
    host.emit(cpu, kind);
    sched_yield(kvm, guests, host, cpu, sender, target)
}

/// `kvm_sched_yield`. Whether the CPU was given away.
pub(super) fn sched_yield(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    sender: VcpuNr,
    target: u32,
) -> Sim<Option<Flow>> {
    let vm = kvm.vcpus[sender].vm;
    // s390's does not ask that.
    let is_s390 = guests.vm(vm).cfg.guest.spin_yield;
    if !is_s390 && poll::single_task_running(host, cpu)? {
        return Ok(None);
    }
    let ((), yields) = ask(kvm, guests, host, cpu, vm, |vcpus| {
        let state = vcpus.state(target);
        if state.is_some_and(|state| state.flags().has(YieldFlags::READY)) {
            vcpus.yield_to(target);
        }
    })?;
    Ok((yields == Yields::Served).then_some(Flow::Schedule))
}
