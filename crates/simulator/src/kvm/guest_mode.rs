//! A vCPU in guest mode: what the processor does there, and what leaves it.

use core::num::NonZeroU8;

use super::run::{exited, vm_exit};
use super::{Exit, Kvm, VcpuRun, ipiv};
use crate::fault::Sim;
use crate::guest::{Guests, Progress, SpinLimit, irq, spin};
use crate::host::{Flow, Host};
use crate::ids::{CpuNr, VcpuNr};

/// Steps of a guest at one instant, at most: more are a program that takes no time.
const MOST_STEPS: u32 = 1_000_000;

/// The guest runs on from where it was.
pub(crate) fn resume(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim {
    guests.resume(vcpu);
    let flow = run_steps(kvm, guests, host, cpu, vcpu, false)?;
    debug_assert_eq!(flow, Flow::Wait, "a step takes time or an exit begins");
    Ok(())
}

/// The guest's step in progress is over, or the preemption timer or the PLE window is.
#[inline]
pub(crate) fn step(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim<Flow> {
    run_steps(kvm, guests, host, cpu, vcpu, true)
}

/// Works off steps until one takes time or leaves the guest. First it ends the one in progress, if
/// that is due.
///
/// Most events of a run come here, so this is one function, with one frame.
fn run_steps(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    is_step_due: bool,
) -> Sim<Flow> {
    if is_step_due {
        if end_ple_window(kvm, guests, host, cpu, vcpu) {
            return exited(kvm, host, cpu, vcpu, Exit::Pause);
        }
        if guests.preemption_timer_fired(host, vcpu) {
            guests.stop(host, cpu, vcpu);
            vm_exit(kvm, host, cpu, vcpu, Exit::PreemptionTimer);
            return Ok(Flow::Wait);
        }
        match guests.step_over(host, cpu, vcpu) {
            Some(SpinLimit::Ple) => {
                vm_exit(kvm, host, cpu, vcpu, Exit::Pause);
                return Ok(Flow::Wait);
            }
            Some(_) => guests.resume(vcpu),
            None => {}
        }
    }
    let mut steps = 0u32;
    loop {
        steps += 1;
        if steps > MOST_STEPS {
            let fault = host.clock().no_progress("a guest's thread takes no time");
            return Err(fault.into());
        }
        if guests.cpu(vcpu).takes_interrupts() {
            if take_virtual_irq(kvm, guests, host, vcpu) {
                continue;
            }
            if kvm.vcpus[vcpu].window {
                vm_exit(kvm, host, cpu, vcpu, Exit::InterruptWindow);
                return Ok(Flow::Wait);
            }
        }
        let exit = match guests.advance(host, cpu, vcpu)? {
            Progress::More => continue,
            Progress::Waits => return Ok(Flow::Wait),
            Progress::Spin(awaited) => {
                let window = kvm.vcpus[vcpu].ple.window();
                if spin::spin(guests, host, cpu, vcpu, awaited, window)? {
                    return Ok(Flow::Wait);
                }
                continue;
            }
            Progress::Exit(exit) => exit,
        };
        // It may have passed in the host: then it ends guest mode ahead of any instruction (SDM, "VMX-Preemption
        // Timer"). A loop of CPUID has no step that takes time. Behind other exits there is one soon.
        if exit == Exit::Cpuid && guests.preemption_timer_fired(host, vcpu) {
            guests.take_back(vcpu, exit);
            vm_exit(kvm, host, cpu, vcpu, Exit::PreemptionTimer);
            return Ok(Flow::Wait);
        }
        if matches!(exit, Exit::Icr { .. } | Exit::SendIpi { .. }) {
            kvm.vcpus[vcpu].books.sends(host.now());
        }
        // An instruction without an exit has taken effect in the call, and the guest goes on.
        if leaves_guest(kvm, guests, host, cpu, vcpu, exit)? {
            vm_exit(kvm, host, cpu, vcpu, exit);
            return Ok(Flow::Wait);
        }
        if exit == Exit::Hlt {
            guests.halt(host, cpu, vcpu);
            return Ok(Flow::Wait);
        }
    }
}

/// Whether an instruction leaves the guest. If not, its effect is done here.
fn leaves_guest(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    exit: Exit,
) -> Sim<bool> {
    let v = &mut kvm.vcpus[vcpu];
    match exit {
        Exit::Eoi if v.shared.apicv() => {
            let eoi = v.lapic.virtual_eoi(host.out().mechanisms());
            Ok(eoi.exits)
        }
        Exit::Eoi if guests.vm(v.vm).cfg.guest.pv_eoi => {
            // More to come: the hypervisor has not offered to skip the exit.
            if v.shared.irr.highest().is_some() {
                return Ok(true);
            }
            let source = v.posted.source(&v.shared, host.out().mechanisms());
            v.pv_eoi = v.lapic.eoi(&source).and_then(NonZeroU8::new);
            Ok(false)
        }
        Exit::Hlt => {
            let guest = &guests.vm(v.vm).cfg.guest;
            Ok(!(guest.hlt_in_guest || guest.mwait_in_guest))
        }
        Exit::Icr { vector, to: target } => {
            ipiv::needs_icr_exit(kvm, guests, host, cpu, vcpu, vector, target)
        }
        _ => Ok(true),
    }
}

/// Takes an interrupt that the virtual LAPIC delivers now, or that was injected. Whether there is one.
#[inline(always)]
fn take_virtual_irq(kvm: &mut Kvm, guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) -> bool {
    let v = &kvm.vcpus[vcpu];
    let is_due = if v.shared.apicv() {
        v.lapic.virtual_interrupt_recognized()
    } else {
        v.inject.is_some()
    };
    is_due && deliver_virtual_irq(kvm, guests, host, vcpu)
}

/// Apart, as one step in twenty takes an interrupt.
#[inline(never)]
fn deliver_virtual_irq(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
) -> bool {
    let v = &mut kvm.vcpus[vcpu];
    let vector = if v.shared.apicv() {
        v.lapic.virtual_deliver(&v.shared.irr)
    } else {
        v.inject.take().map(NonZeroU8::get)
    };
    let Some(vector) = vector else {
        return false;
    };
    // The same vector may be posted again before the first one is taken: both then count.
    let again = v.shared.desc.test_pir(vector) || v.shared.irr.snapshot().contains(vector);
    match v.books.taken(host.now(), vector, again) {
        Some(waited) => {
            let answers = &mut kvm.vms[v.vm].answers;
            answers.interrupts.add(waited);
            if let Some(response) = v.books.response(host.now(), vector) {
                answers.ipis.add(response);
            }
        }
        None => host.fail_check("interrupt-once", || {
            format!("vector {vector} is taken and was not accepted")
        }),
    }
    irq::interrupt(guests, host, vcpu, vector);
    true
}

/// A spinner that has used up its window is on its way out of the guest. Whether it is.
#[inline(always)]
pub(crate) fn end_ple_window(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> bool {
    let ends = spin::is_ple_window_over(guests, host, vcpu);
    if ends {
        leave_spin(kvm, guests, host, cpu, vcpu);
    }
    ends
}

#[inline(never)]
fn leave_spin(kvm: &mut Kvm, guests: &mut Guests, host: &mut Host<'_>, cpu: CpuNr, vcpu: VcpuNr) {
    spin::end_ple_window(guests, vcpu);
    let v = &mut kvm.vcpus[vcpu];
    (v.run, v.exit) = (VcpuRun::Exiting, Exit::Pause);
    host.disable_irqs(cpu);
}

/// The line that a spinner reads has reached it.
pub(crate) fn noticed(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
) -> Sim {
    match spin::noticed(guests, host, vcpu) {
        Some(cpu) => resume(kvm, guests, host, cpu, vcpu),
        None => Ok(()),
    }
}
