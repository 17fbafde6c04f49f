//! The run loop (`vcpu_run`, `vcpu_enter_guest`, `vmx_handle_exit`).

use core::num::NonZeroU8;

use stealtime_events::{Kind, VcpuId};
use stealtime_hypervisor::fair::Resched;
use stealtime_hypervisor::posted_interrupt::{Entry, Requests, Suppression};

use super::{Exit, Kvm, VcpuRun, deliver, guest_mode, halt, spin, timer};
use crate::config::L1dFlush;
use crate::fault::Sim;
use crate::guest::{Guests, source};
use crate::host::{Body, Flow, Host, Irq, Phase, bandwidth, hrtimer, injected, worker};
use crate::ids::{CpuNr, VcpuNr};
use crate::migration::vmm;
use crate::xen;
use crate::xen::ipi as xen_ipi;

/// What the vCPU's thread was doing is over: the next thing. Most often that is a step of the guest.
#[inline]
pub(crate) fn step(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim<Flow> {
    if kvm.vcpus[vcpu].run == VcpuRun::Guest {
        return guest_mode::step(kvm, guests, host, cpu, vcpu);
    }
    step_outside(kvm, guests, host, cpu, vcpu)
}

/// The same, outside guest mode.
fn step_outside(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim<Flow> {
    let v = &kvm.vcpus[vcpu];
    match v.run {
        VcpuRun::Ready => enter(kvm, guests, host, cpu, vcpu),
        VcpuRun::Entering => entered(kvm, guests, host, cpu, vcpu),
        VcpuRun::Guest => guest_mode::step(kvm, guests, host, cpu, vcpu),
        VcpuRun::Exiting => exited(kvm, host, cpu, vcpu, v.exit),
        VcpuRun::Fast => {
            let elsewhere = handle_exit(kvm, guests, host, cpu, vcpu, v.exit)?;
            debug_assert_eq!(elsewhere, None, "a fast handler goes back to the guest");
            reenter(kvm, guests, host, cpu, vcpu)
        }
        VcpuRun::Handling => {
            let exit = v.exit;
            kvm.vcpus[vcpu].run = VcpuRun::Ready;
            let elsewhere = handle_exit(kvm, guests, host, cpu, vcpu, exit)?;
            Ok(elsewhere.unwrap_or(Flow::Continue))
        }
        VcpuRun::Sending => xen_ipi::send_next(kvm, guests, host, cpu, vcpu).map(|()| Flow::Wait),
        VcpuRun::Polling => halt::poll_over(kvm, guests, host, cpu, vcpu),
        VcpuRun::Blocked => halt::block_turn(kvm, guests, host, cpu, vcpu),
    }
}

/// Whether `cpu` runs a vCPU that is in guest mode.
pub(crate) fn vcpu_in_guest(kvm: &Kvm, host: &Host<'_>, cpu: CpuNr) -> Option<crate::ids::VcpuNr> {
    let c = &host.cpus()[cpu];
    if c.phase != Phase::Run {
        return None;
    }
    match host.tasks()[c.current?].body {
        Body::Vcpu(vcpu) if kvm.vcpus[vcpu].run == VcpuRun::Guest => Some(vcpu),
        _ => None,
    }
}

/// `vcpu_enter_guest`, up to the VM entry.
fn enter(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim<Flow> {
    // Upstream ends the spin in `kvm_vcpu_on_spin`, after the switch to the target. Here the vCPU
    // comes back only now.
    kvm.vcpus[vcpu].yields.end_spin();
    timer::inject_pending(kvm, guests, host, cpu, vcpu)?;
    let v = &mut kvm.vcpus[vcpu];
    // `vcpu_enter_guest` handles all requests while interrupts are still on.
    v.shared.take(Requests(u64::MAX));
    v.lapic.take_event();
    if host.cpus()[cpu].resched != Resched::None {
        // xfer_to_guest_mode_work: a lazy request counts here too.
        return Ok(Flow::Schedule);
    }
    // `vmx_asm_do_vmentry`. One may have come with an interrupt while the vCPU sent IPIs.
    if xen::is_pending(host, cpu) {
        return Ok(Flow::Continue);
    }
    // A task without runtime stops on its way to user mode or into the guest, not in the kernel.
    if bandwidth::throttle(host, cpu)? {
        return Ok(Flow::Schedule);
    }
    if injected::state(host).is_some() && leaves_for_good(kvm, host, cpu, vcpu) {
        return Ok(Flow::Block);
    }
    if vmm::park(kvm, host, cpu, vcpu)? {
        return Ok(Flow::Block);
    }
    // From here on a kick must be an interrupt: a request that comes later is seen only by the
    // check below.
    host.disable_irqs(cpu);
    charge_suppression(host, cpu, entering(suppression(host)));
    let v = &mut kvm.vcpus[vcpu];
    let entry = v
        .posted
        .enter(&v.shared, &mut v.lapic, host.out().mechanisms());
    if entry == Entry::Cancelled {
        host.enable_irqs(cpu);
        host.stats_mut().entries_cancelled += 1;
        // The entry is undone before VMRESUME: half of its cost (estimate).
        host.charge(cpu, host.costs().vmentry_ns / 2);
        return Ok(Flow::Continue);
    }
    begin_entry(kvm, guests, host, cpu, vcpu)
}

/// Whether an injected fault keeps the vCPU's thread out of the guest: its process was killed, or it hangs.
#[cold]
fn leaves_for_good(kvm: &mut Kvm, host: &mut Host<'_>, cpu: CpuNr, vcpu: VcpuNr) -> bool {
    let v = &mut kvm.vcpus[vcpu];
    let Some(injection) = injected::state(host) else {
        return false;
    };
    let (is_killed, hangs) = (injection.killed_at(v.vm).is_some(), injection.is_hung(vcpu));
    v.parked |= is_killed || hangs;
    if is_killed {
        // `kvm_free_lapic`.
        hrtimer::cancel(host, v.hrtimer, cpu);
        host.end(v.task);
    }
    is_killed || hangs
}

/// After a fast handler: enters again unless something came up.
fn reenter(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim<Flow> {
    let resched = host.cpus()[cpu].resched != Resched::None || xen::is_pending(host, cpu);
    // The fast path has set SN at the exit, so it pays for clearing it again.
    if suppression(host).suppresses_at_exit() {
        charge_suppression(host, cpu, entering(suppression(host)));
    }
    let v = &mut kvm.vcpus[vcpu];
    let entry = v
        .posted
        .reenter(&v.shared, &mut v.lapic, host.out().mechanisms());
    if entry == Entry::Cancelled || resched || v.timer.pending() > 0 {
        leave_guest_mode(kvm, host, cpu, vcpu);
        kvm.vcpus[vcpu].run = VcpuRun::Ready;
        return Ok(Flow::Continue);
    }
    begin_entry(kvm, guests, host, cpu, vcpu)
}

fn begin_entry(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim<Flow> {
    prepare_injection(kvm, guests, host, vcpu);
    let wait = timer::prepare_entry(kvm, guests, host, vcpu);
    let index = kvm.vcpus[vcpu].index;
    host.emit(
        cpu,
        Kind::KvmEntry {
            vcpu: VcpuId(index),
        },
    );
    let v = &mut kvm.vcpus[vcpu];
    v.run = VcpuRun::Entering;
    v.answered = false;
    if let Some(took) = v.books.entered(host.now()) {
        host.stats_mut().exit_took(v.exit.reason().code, took);
    }
    let ns = u64::from(host.costs().vmentry_ns + flush_l1d(host, cpu)) + wait;
    host.stay(cpu, ns);
    Ok(Flow::Wait)
}

/// `vmx_l1d_flush`, behind the entry's tracepoint: what it costs now.
fn flush_l1d(host: &mut Host<'_>, cpu: CpuNr) -> u32 {
    let was_unsafe = host.take_l1d_unsafe(cpu);
    match host.cfg().knobs.kvm.vmentry_l1d_flush {
        L1dFlush::Always => host.costs().l1d_flush_ns,
        L1dFlush::Cond if was_unsafe => host.costs().l1d_flush_ns,
        L1dFlush::Never | L1dFlush::Cond => 0,
    }
}

/// Without APICv: the vector for the VM-entry interruption field, or an exit when the guest
/// can take one.
fn prepare_injection(kvm: &mut Kvm, guests: &Guests, host: &mut Host<'_>, vcpu: VcpuNr) {
    let v = &mut kvm.vcpus[vcpu];
    if v.shared.apicv() || v.inject.is_some() {
        return;
    }
    let source = v.posted.source(&v.shared, host.out().mechanisms());
    if guests.cpu(vcpu).takes_interrupts() {
        v.inject = v.lapic.inject(&source).and_then(NonZeroU8::new);
        v.window = false;
    } else {
        v.window = v.lapic.has_interrupt(&source).is_some();
    }
    if let Some(vector) = kvm.vcpus[vcpu].inject {
        let cpu = host.tasks()[kvm.vcpus[vcpu].task].cpu;
        host.emit(
            cpu,
            Kind::KvmInjVirq {
                vector: u32::from(vector.get()),
                soft: false,
                reinjected: false,
            },
        );
    }
}

/// The guest runs.
fn entered(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim<Flow> {
    host.enable_irqs(cpu);
    kvm.vcpus[vcpu].run = VcpuRun::Guest;
    host.stats_mut().entries += 1;
    if kvm.vcpus[vcpu].shared.apicv() && host.clear_pending(cpu, Irq::PostedIntr) {
        // It came in the window with interrupts off: guest mode consumes it, no exit.
        deliver::process_notification(kvm, host, vcpu);
        host.charge(cpu, host.costs().posted_interrupt_ns);
    }
    // An interrupt that came with interrupts off ends guest mode at once (SDM, "External-interrupt
    // exiting").
    if !host.cpus()[cpu].pending.is_empty() {
        vm_exit(kvm, host, cpu, vcpu, Exit::ExternalInterrupt);
        return Ok(Flow::Wait);
    }
    guest_mode::resume(kvm, guests, host, cpu, vcpu)?;
    Ok(Flow::Wait)
}

/// The guest is left, for `exit`. What it was doing has been stopped.
pub(crate) fn vm_exit(kvm: &mut Kvm, host: &mut Host<'_>, cpu: CpuNr, vcpu: VcpuNr, exit: Exit) {
    let v = &mut kvm.vcpus[vcpu];
    // A VM exit clears the host's RFLAGS.IF; `vcpu_enter_guest` sets it again after the exit.
    (v.run, v.exit) = (VcpuRun::Exiting, exit);
    host.disable_irqs(cpu);
    host.stay(cpu, u64::from(host.costs().vmexit_ns));
}

pub(crate) fn exited(
    kvm: &mut Kvm,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    exit: Exit,
) -> Sim<Flow> {
    host.stats_mut().exits += 1;
    if suppression(host).suppresses_at_exit() {
        charge_suppression(host, cpu, SuppressionOps::SET_SN);
    }
    let v = &mut kvm.vcpus[vcpu];
    v.books.exited(host.now(), exit.reason().code);
    v.posted.vm_exit(&v.shared, host.out().mechanisms());
    let index = v.index;
    host.emit(
        cpu,
        Kind::KvmExit {
            reason: exit.reason(),
            vcpu: VcpuId(index),
            intr_vector: exit_vector(host, cpu, exit),
            info1: 0,
        },
    );
    trace_exit(host, cpu, exit);
    let handler = u64::from(exit.handler_ns(host.costs()));
    // `vmx_exit_handlers_fastpath` runs with interrupts off and enters again without the run
    // loop.
    if exit.is_fast() && !host.is_xen() {
        kvm.vcpus[vcpu].run = VcpuRun::Fast;
        host.stay(cpu, handler);
        return Ok(Flow::Wait);
    }
    leave_guest_mode(kvm, host, cpu, vcpu);
    if let Some(vector) = kvm.vcpus[vcpu].pv_eoi.take() {
        deliver::sync_pv_eoi(kvm, host, cpu, vcpu, vector.get())?;
    }
    kvm.vcpus[vcpu].run = VcpuRun::Handling;
    let task = kvm.vcpus[vcpu].task;
    // The handler is preemptible: it is work of the thread, which interrupts may stop. 0 would be
    // no work.
    host.set_left(task, handler.max(1));
    Ok(Flow::Continue)
}

/// Which host interrupt it is that waits.
fn exit_vector(host: &Host<'_>, cpu: CpuNr, exit: Exit) -> Option<u8> {
    let pending = host.cpus()[cpu].pending;
    let irqs = [
        Irq::LocalTimer,
        Irq::Reschedule,
        Irq::PostedIntr,
        Irq::PostedWakeup,
        Irq::Device,
    ];
    let first = irqs.into_iter().find(|&irq| pending.has(irq))?;
    (exit == Exit::ExternalInterrupt).then(|| first.vector())
}

fn leave_guest_mode(kvm: &mut Kvm, host: &mut Host<'_>, cpu: CpuNr, vcpu: VcpuNr) {
    host.enable_irqs(cpu);
    if suppression(host).follows_mode() {
        charge_suppression(host, cpu, SuppressionOps::SET_SN);
    }
    let v = &kvm.vcpus[vcpu];
    v.posted.leave(&v.shared, host.out().mechanisms());
}

/// When notifications are kept away.
const fn suppression(host: &Host<'_>) -> Suppression {
    host.cfg().knobs.kvm.suppress_notification
}

/// Operations that the suppression of notifications adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SuppressionOps {
    /// Locked operations on the descriptor.
    locked: u32,
    /// Looks at PIR.
    scans: u32,
}

impl SuppressionOps {
    /// SN is set.
    const SET_SN: Self = Self {
        locked: 1,
        scans: 0,
    };
}

/// Locked operations on the descriptor, and looks at PIR, that suppression adds.
fn charge_suppression(host: &mut Host<'_>, cpu: CpuNr, ops: SuppressionOps) {
    let ns = ops.locked * host.costs().locked_own_ns + ops.scans * host.costs().pir_scan_ns;
    if ns > 0 {
        host.charge(cpu, ns);
    }
}

fn trace_exit(host: &mut Host<'_>, cpu: CpuNr, exit: Exit) {
    if !host.out().tracing() {
        return;
    }
    match exit {
        Exit::TscDeadline { at_ns } => {
            host.emit(
                cpu,
                Kind::KvmMsr {
                    write: true,
                    exception: false,
                    ecx: 0x6e0,
                    data: at_ns,
                },
            );
        }
        Exit::Cpuid => host.emit(
            cpu,
            Kind::KvmCpuid {
                function: 0,
                index: 0,
            },
        ),
        _ => {}
    }
}

/// The handler's effect, at its end. What the CPU does, if it is not to go on with the vCPU: that
/// halts, sends for a while, or has yielded its CPU.
fn handle_exit(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    exit: Exit,
) -> Sim<Option<Flow>> {
    match exit {
        Exit::ExternalInterrupt | Exit::InterruptWindow | Exit::Cpuid => {}
        Exit::EptViolation => host.mark_l1d_unsafe(cpu),
        Exit::Hlt => return halt::halt(kvm, guests, host, cpu, vcpu),
        Exit::Icr { vector, to } => {
            return deliver::guest_ipi(kvm, guests, host, cpu, vcpu, vector, to);
        }
        Exit::SendIpi { vector, to } => {
            return deliver::pv_send_ipi(kvm, guests, host, cpu, vcpu, vector, to);
        }
        Exit::Notify { source } => source::answered(guests, host, vcpu, source),
        Exit::Pause => return spin::on_spin(kvm, guests, host, cpu, vcpu),
        Exit::SchedYield { vcpu: target } => {
            return spin::pv_yield(kvm, guests, host, cpu, vcpu, target);
        }
        Exit::TscDeadline { at_ns } => {
            timer::write_tsc_deadline(kvm, guests, host, cpu, vcpu, at_ns)?
        }
        Exit::PreemptionTimer => timer::hv_expired(kvm, guests, host, cpu, vcpu)?,
        Exit::Eoi => deliver::emulate_eoi(kvm, host, cpu, vcpu)?,
        Exit::Io { device, thread } => {
            // ioeventfd
            worker::request_io(host, kvm.vcpus[vcpu].vm, device, thread, cpu)?;
        }
        Exit::KickCpu { vcpu: target } => {
            return deliver::pv_kick(kvm, guests, host, cpu, vcpu, target);
        }
    }
    Ok(None)
}

/// Locked operations and looks at PIR that suppression adds to an entry. As posted first and second,
/// the synchronization finds SN set: it clears ON and looks at PIR each time. Then SN is cleared, and
/// in all but the first PIR looked at for what was posted unnoticed.
const fn entering(policy: Suppression) -> SuppressionOps {
    let (locked, scans) = match policy {
        Suppression::Off | Suppression::Put => (0, 0),
        Suppression::AsPostedV1 => (2, 1),
        Suppression::AsPostedV2 => (2, 2),
        Suppression::AsPostedV3 | Suppression::Corrected => (1, 1),
    };
    SuppressionOps { locked, scans }
}
