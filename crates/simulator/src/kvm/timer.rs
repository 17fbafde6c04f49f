//! The LAPIC timer's backends: preemption timer, hrtimer, posting.

use stealtime_events::{Kind, VcpuId};
use stealtime_hypervisor::lapic_timer::advance::Spin;
use stealtime_hypervisor::lapic_timer::{Action, Actions, Now, TimerEnvironment};
use stealtime_hypervisor::posted_interrupt::{Requests, kick};

use super::{Kvm, VcpuRun, deliver, halt};
use crate::at::At;
use crate::fault::Sim;
use crate::guest::{Guests, LOCAL_TIMER_VECTOR};
use crate::host::{Host, hrtimer};
use crate::ids::{CpuNr, VcpuNr};

fn now(host: &Host<'_>) -> Now {
    let now = host.now();
    Now {
        ns: now as i64,
        host_tsc: host.costs().tsc(now),
    }
}

fn environment(kvm: &Kvm, guests: &Guests, host: &Host<'_>, vcpu: VcpuNr) -> TimerEnvironment {
    let v = &kvm.vcpus[vcpu];
    let guest = &guests.vm(v.vm).cfg.guest;
    let knobs = &host.cfg().knobs;
    let hv = host.cfg().host.profile.features.hv_timer_shift;
    TimerEnvironment {
        pi_inject_timer: match knobs.kvm.pi_inject_timer {
            0 => false,
            1 => true,
            _ => !knobs.host.nohz_full.is_empty(),
        },
        apicv: v.shared.apicv(),
        mwait_in_guest: guest.mwait_in_guest,
        hlt_in_guest: guest.hlt_in_guest,
        hv_shift: hv.filter(|_| knobs.kvm.preemption_timer),
        // The vCPU's CPU: a posted timer fires on another.
        on_housekeeping_cpu: host.cpus()[host.tasks()[v.task].cpu].housekeeping,
        wants_to_run: true,
    }
}

/// The guest writes IA32_TSC_DEADLINE.
pub(crate) fn write_tsc_deadline(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    at_ns: u64,
) -> Sim {
    let (now, env) = (now(host), environment(kvm, guests, host, vcpu));
    // The first cycle that is not before the deadline.
    let deadline = if at_ns == 0 {
        0
    } else {
        host.costs().tsc(at_ns) + 1
    };
    let events = host.out().mechanisms();
    let actions = kvm.vcpus[vcpu]
        .timer
        .write_tscdeadline(deadline, now, &env, events);
    act(kvm, guests, host, cpu, vcpu, actions)
}

/// The preemption timer made the guest exit.
pub(crate) fn hv_expired(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim {
    let (now, env) = (now(host), environment(kvm, guests, host, vcpu));
    let actions = kvm.vcpus[vcpu]
        .timer
        .hv_expired(now, &env, host.out().mechanisms());
    act(kvm, guests, host, cpu, vcpu, actions)
}

/// The hrtimer fired, on whatever CPU.
pub(crate) fn hrtimer_fired(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim {
    let (now, env) = (now(host), environment(kvm, guests, host, vcpu));
    let v = &mut kvm.vcpus[vcpu];
    let mode = v.shared.mode();
    let actions = v
        .timer
        .hrtimer_fired(now, mode, &env, host.out().mechanisms());
    act(kvm, guests, host, cpu, vcpu, actions)
}

pub(crate) fn begin_blocking(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim {
    let (now, env) = (now(host), environment(kvm, guests, host, vcpu));
    let actions = kvm.vcpus[vcpu]
        .timer
        .begin_blocking(now, &env, host.out().mechanisms());
    act(kvm, guests, host, cpu, vcpu, actions)
}

pub(crate) fn end_blocking(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim {
    let (now, env) = (now(host), environment(kvm, guests, host, vcpu));
    let actions = kvm.vcpus[vcpu]
        .timer
        .end_blocking(now, &env, host.out().mechanisms());
    act(kvm, guests, host, cpu, vcpu, actions)
}

pub(crate) fn cpu_changed(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim {
    let (now, env) = (now(host), environment(kvm, guests, host, vcpu));
    let actions = kvm.vcpus[vcpu]
        .timer
        .cpu_changed(now, &env, host.out().mechanisms());
    act(kvm, guests, host, cpu, vcpu, actions)
}

/// Before an entry: injects what expired.
pub(crate) fn inject_pending(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim {
    if kvm.vcpus[vcpu].timer.pending() == 0 {
        return Ok(());
    }
    let actions = kvm.vcpus[vcpu].timer.inject_pending();
    act(kvm, guests, host, cpu, vcpu, actions)
}

/// The preemption timer's value for this entry, and how long to wait for an early expiry.
pub(crate) fn prepare_entry(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
) -> u64 {
    let tsc = host.costs().tsc(host.now());
    let v = &mut kvm.vcpus[vcpu];
    guests.set_preemption_timer(vcpu, At::NEVER);
    if let Some(shift) = host.cfg().host.profile.features.hv_timer_shift
        && let Some(armed) = v.timer.hv()
        && v.timer.hv_value_at_entry(tsc, shift, false).is_some()
    {
        let deadline = armed.host_deadline;
        let time = host.costs().ns_of_tsc(deadline).max(host.now());
        guests.set_preemption_timer(vcpu, At::ns(time));
    }
    let v = &mut kvm.vcpus[vcpu];
    // `lapic_timer_int_injected`: injection has moved the vector to the ISR; with APICv it stays
    // in the IRR.
    let requested = if v.shared.apicv() {
        v.shared.irr.snapshot().contains(LOCAL_TIMER_VECTOR)
    } else {
        v.lapic.isr().contains(LOCAL_TIMER_VECTOR)
    };
    let spin = v
        .timer
        .wait_at_entry(tsc, requested, host.out().mechanisms());
    spin_ns(host, spin)
}

fn spin_ns(host: &Host<'_>, spin: Spin) -> u64 {
    match spin {
        Spin::None => 0,
        Spin::Cycles(cycles) => host.costs().ns_of_tsc(cycles),
        Spin::Ns(ns) => u64::from(ns),
    }
}

/// Does what the timer wants done.
fn act(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    actions: Actions,
) -> Sim {
    for action in actions.iter() {
        match action {
            Action::StartHrtimer { at_ns } => {
                let timer = kvm.vcpus[vcpu].hrtimer;
                let time = (at_ns.max(0) as u64).max(host.now());
                let refused = hrtimer::start_unpinned(host, timer, cpu, time)?;
                let env = environment(kvm, guests, host, vcpu);
                kvm.vcpus[vcpu].timer.note_placement(refused, &env);
            }
            Action::CancelHrtimer => {
                let timer = kvm.vcpus[vcpu].hrtimer;
                hrtimer::cancel(host, timer, cpu);
            }
            Action::ArmHv { .. } => trace_hv(kvm, host, cpu, vcpu, true),
            Action::CancelHv => {
                guests.set_preemption_timer(vcpu, At::NEVER);
                trace_hv(kvm, host, cpu, vcpu, false);
            }
            Action::Inject { vector } | Action::Post { vector } => {
                deliver::accept(kvm, host, cpu, vcpu, vector)?
            }
            Action::Spin(spin) => {
                let ns = spin_ns(host, spin);
                host.charge(cpu, ns);
            }
            Action::Unblock => {
                kvm.vcpus[vcpu].shared.request(Requests::UNBLOCK);
                if matches!(kvm.vcpus[vcpu].run, VcpuRun::Polling | VcpuRun::Blocked) {
                    halt::wake(kvm, host, vcpu, cpu)?;
                }
            }
            Action::Kick => {
                let is_current = host.cpus()[cpu].current == Some(kvm.vcpus[vcpu].task);
                let kick = kick(&kvm.vcpus[vcpu].shared, Requests::UNBLOCK, is_current);
                deliver::kicked(kvm, host, cpu, vcpu, kick)?;
            }
        }
    }
    Ok(())
}

fn trace_hv(kvm: &mut Kvm, host: &mut Host<'_>, cpu: CpuNr, vcpu: VcpuNr, in_use: bool) {
    let index = kvm.vcpus[vcpu].index;
    host.emit(
        cpu,
        Kind::KvmHvTimerState {
            vcpu: VcpuId(index),
            hv_timer_in_use: in_use,
        },
    );
}
