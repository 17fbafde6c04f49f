//! Halts: polling, sleeping, waking (`kvm_vcpu_halt`, `kvm_vcpu_block`).

use stealtime_events::{Kind, VcpuId};
use stealtime_hypervisor::fair::Resched;
use stealtime_hypervisor::halt_poll::{Adaptation, HaltEnd, PollTurn};
use stealtime_hypervisor::posted_interrupt::{Requests, wake_up};

use super::{HaltState, Kvm, VcpuRun, timer};
use crate::fault::Sim;
use crate::guest::Guests;
use crate::host::{Flow, Host, Phase, Resume, poll};
use crate::ids::{CpuNr, VcpuNr};

/// The guest has executed HLT. Whether it halts: nothing waits for it. What does has been seen:
/// a kick of a paravirtual spinlock ends one HLT and no other (`__kvm_emulate_halt`).
pub(crate) fn halt(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim<Option<Flow>> {
    if wanted(kvm, host, vcpu) {
        kvm.vcpus[vcpu].pv_unhalted = false;
        return Ok(None);
    }
    timer::begin_blocking(kvm, guests, host, cpu, vcpu)?;
    let now = host.now();
    // `kvm_vcpu_halt` polls only while no other task wants the CPU.
    let alone = poll::single_task_running(host, cpu)?;
    let resched = host.cpus()[cpu].resched != Resched::None;
    let v = &mut kvm.vcpus[vcpu];
    // A guest that polls itself forbids it here (MSR_KVM_POLL_CONTROL).
    let allowed = guests.vm(v.vm).cfg.guest.guest_halt_poll_ns == 0;
    let halt = v.halt_poll.begin(&host.cfg().knobs.kvm.halt_poll, allowed);
    let turn = PollTurn {
        elapsed_ns: 0,
        alone,
        need_resched: resched,
    };
    v.halt = Some(HaltState {
        halt,
        since_ns: now,
        poll_ns: 0,
        waited: false,
    });
    if halt.keeps_polling(&turn) {
        v.run = VcpuRun::Polling;
        v.books.polling(now, true);
        let task = v.task;
        host.set_left(task, u64::from(halt.poll_ns()));
        poll::begin_poll(host, task);
        return Ok(Some(Flow::Run));
    }
    begin_block(kvm, guests, host, cpu, vcpu).map(Some)
}

/// Whether a halted vCPU has something to do (`kvm_vcpu_check_block`).
fn wanted(kvm: &mut Kvm, host: &mut Host<'_>, vcpu: VcpuNr) -> bool {
    let v = &mut kvm.vcpus[vcpu];
    let source = v.posted.source(&v.shared, host.out().mechanisms());
    kvm.vms[v.vm].paused_by.is_some()
        || v.shared.requests().0 & Requests::UNBLOCK.0 != 0
        || v.timer.pending() > 0
        || v.lapic.has_interrupt(&source).is_some()
        || v.pv_unhalted
}

/// Polling is over: by its time, by what was waited for, or since the CPU is wanted.
pub(crate) fn poll_over(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim<Flow> {
    let now = host.now();
    let v = &mut kvm.vcpus[vcpu];
    if let Some(halt) = &mut v.halt {
        halt.poll_ns = now - halt.since_ns;
    }
    v.books.polling(now, false);
    v.run = VcpuRun::Blocked;
    let task = v.task;
    poll::end_poll(host, task);
    if wanted(kvm, host, vcpu) {
        return end_halt(kvm, guests, host, cpu, vcpu);
    }
    begin_block(kvm, guests, host, cpu, vcpu)
}

fn begin_block(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim<Flow> {
    let v = &mut kvm.vcpus[vcpu];
    v.run = VcpuRun::Blocked;
    v.posted.begin_blocking(&v.shared, host.out().mechanisms());
    block_turn(kvm, guests, host, cpu, vcpu)
}

/// A turn of the wait loop: looks once more, then sleeps. The thread comes back here when it
/// was woken.
pub(crate) fn block_turn(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim<Flow> {
    // `kvm_vcpu_block` looks once more after the task state is set: a wakeup in between is not
    // lost.
    let pending = kvm.vcpus[vcpu].timer.pending() > 0 || kvm.vcpus[vcpu].pv_unhalted;
    let v = &mut kvm.vcpus[vcpu];
    let sleeps = v
        .posted
        .wait(&v.shared, &mut v.lapic, true, host.out().mechanisms());
    if !sleeps || pending {
        v.posted.end_blocking(&v.shared, host.out().mechanisms());
        return end_halt(kvm, guests, host, cpu, vcpu);
    }
    // Adaptation tells a halt that slept from one that polling ended.
    if let Some(halt) = &mut v.halt {
        halt.waited = true;
    }
    Ok(Flow::Block)
}

/// The halt is over: polling adapts, the guest is entered.
fn end_halt(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim<Flow> {
    let now = host.now();
    let v = &mut kvm.vcpus[vcpu];
    v.run = VcpuRun::Ready;
    v.pv_unhalted = false;
    if let Some(state) = v.halt.take() {
        let end = HaltEnd {
            waited: state.waited,
            halt_ns: now - state.since_ns,
            poll_ns: state.poll_ns,
            valid_wakeup: true,
        };
        let old = v.halt_poll.own_ns();
        let knobs = &host.cfg().knobs.kvm.halt_poll;
        let adaptation = v
            .halt_poll
            .end(knobs, &state.halt, &end, host.out().mechanisms());
        let (new, index) = (v.halt_poll.own_ns(), v.index);
        v.books.halted();
        if matches!(adaptation, Adaptation::Grown | Adaptation::Shrunk) {
            let grow = adaptation == Adaptation::Grown;
            host.emit(
                cpu,
                Kind::KvmHaltPollNs {
                    vcpu: VcpuId(index),
                    grow,
                    new,
                    old,
                },
            );
        }
        host.emit(
            cpu,
            Kind::KvmVcpuWakeup {
                ns: end.halt_ns,
                waited: end.waited,
                valid: true,
            },
        );
    }
    timer::end_blocking(kvm, guests, host, cpu, vcpu)?;
    // KVM's way back to where the entry turns interrupts off. Xen has none: it switches to the vCPU.
    if !host.is_xen() {
        let task = kvm.vcpus[vcpu].task;
        host.set_left(task, u64::from(host.costs().handle_wake_ns));
    }
    Ok(Flow::Continue)
}

/// Makes a vCPU look: wakes its thread if it sleeps, and ends its poll if it polls.
pub(crate) fn wake(kvm: &mut Kvm, host: &mut Host<'_>, vcpu: VcpuNr, waker: CpuNr) -> Sim {
    let v = &kvm.vcpus[vcpu];
    if v.run == VcpuRun::Polling {
        poll::notify(host, v.task, waker);
        return Ok(());
    }
    let has_slept = wake_up(&v.shared);
    woken(kvm, host, vcpu, has_slept, waker)
}

/// After `wake_up` said whether there was a sleeper.
pub(crate) fn woken(
    kvm: &mut Kvm,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    woken: bool,
    waker: CpuNr,
) -> Sim {
    if kvm.vcpus[vcpu].yields.wake_up(woken) {
        let task = kvm.vcpus[vcpu].task;
        host.wake(task, waker)?;
    }
    Ok(())
}

/// The processor or the IOMMU has posted to a vCPU: one that polls sees it without an interrupt.
pub(crate) fn notice_post(kvm: &mut Kvm, host: &mut Host<'_>, vcpu: VcpuNr, waker: CpuNr) -> Sim {
    if kvm.vcpus[vcpu].run == VcpuRun::Polling {
        return wake(kvm, host, vcpu, waker);
    }
    Ok(())
}

pub(crate) fn poll_noticed(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    turn: u32,
) -> Sim<Option<Resume>> {
    let task = kvm.vcpus[vcpu].task;
    if !poll::polls_in(host, task, turn) {
        return Ok(None);
    }
    let cpu = host.tasks()[task].cpu;
    if host.cpus()[cpu].current == Some(task) && host.cpus()[cpu].phase == Phase::Run {
        host.interrupted(cpu);
        host.set_left(task, 0);
        let flow = poll_over(kvm, guests, host, cpu, vcpu)?;
        return Ok(Some(Resume { cpu, flow }));
    }
    // An interrupt's handler or another task is in between: it looks when it comes back.
    host.set_left(task, 0);
    Ok(None)
}
