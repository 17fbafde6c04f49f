//! What an injected fault does to a run.

use stealtime_hypervisor::posted_interrupt::{Kick, Requests, kick};

use super::Machine;
use crate::config::ConfigError;
use crate::engine::Streams;
use crate::fault::{Fault, Sim};
use crate::host::{Body, Host, Irq, Message, TaskState, injected, irq};
use crate::ids::{CpuNr, TaskNr, VmNr};
use crate::inject::{Incident, Injection, InjectionState};
use crate::kvm::deliver;

/// Injects these faults into the run.
pub(super) fn begin(machine: &mut Machine<'_>, injection: &Injection) -> Result<(), Fault> {
    for (n, (_, incident)) in injection.incidents.iter().enumerate() {
        if !exists(machine, *incident) {
            return Err(Fault::Config(ConfigError {
                key: format!("incident.{n}"),
                problem: format!("{incident:?}: no such CPU, VM or vCPU"),
            }));
        }
    }
    let host = &mut machine.host;
    for (number, (at_ns, _)) in (0..).zip(&injection.incidents) {
        let at_ns = (*at_ns).max(host.now());
        host.post(at_ns, Message::Incident { number });
    }
    let is_lossy = injection.lost_of_1000 > 0;
    host.checks_mut()
        .expect_faults(injection.slack_ns(), is_lossy);
    let random = Streams::new(injection.seed).named("injection");
    let state = InjectionState::new(injection.clone(), random, host.cpus().len());
    injected::begin(host, state);
    Ok(())
}

fn exists(machine: &Machine<'_>, incident: Incident) -> bool {
    let guests = &machine.guests;
    let vcpus = |vm: u32| {
        let number = guests.vms().find(|number| number.0 == vm);
        number.map_or(0, |number| guests.vm(number).vcpus)
    };
    match incident {
        Incident::Stall { cpu, .. } => (cpu as usize) < machine.host.cpus().len(),
        Incident::Kill { vm } | Incident::ClockStep { vm, .. } => vcpus(vm) > 0,
        Incident::Hang { vm, vcpu } => vcpu < vcpus(vm),
    }
}

/// An incident happens.
pub(super) fn happens(machine: &mut Machine<'_>, number: u32) -> Sim {
    let now = machine.host.now();
    let Some(state) = injected::state_mut(&mut machine.host) else {
        return machine.host.broken("an incident without an injection");
    };
    match state.incident(number) {
        Some(Incident::Stall { cpu, ns }) => {
            let cpu = CpuNr(cpu);
            state.stall(cpu, ns);
            let (kvm, guests) = (&mut machine.kvm, &mut machine.guests);
            deliver::raise(kvm, guests, &mut machine.host, cpu, Irq::Stall)
        }
        Some(Incident::Kill { vm }) => match state.kill(VmNr(vm), now) {
            true => kill(machine, VmNr(vm)),
            false => Ok(()),
        },
        Some(Incident::Hang { vm, vcpu }) => {
            state.hang(machine.guests.vcpu_of(VmNr(vm), vcpu));
            Ok(())
        }
        Some(Incident::ClockStep { vm, ns }) => {
            let steps = machine.guests.step_wall_clock(VmNr(vm), ns);
            state.counts.clock_steps += u64::from(steps);
            Ok(())
        }
        None => machine
            .host
            .broken("an incident that the injection does not have"),
    }
}

/// SIGKILL to the process of a VM: each thread sees it on its way to user mode or into the guest.
fn kill(machine: &mut Machine<'_>, vm: VmNr) -> Sim {
    for task in threads_other_than_vcpus(machine, vm) {
        if let Some(state) = injected::state_mut(&mut machine.host) {
            state.doom(task);
        }
        rouse(&mut machine.host, task)?;
    }
    let Machine {
        host, kvm, guests, ..
    } = machine;
    for index in 0..guests.vm(vm).vcpus {
        let vcpu = guests.vcpu_of(vm, index);
        if !guests.cpu(vcpu).started {
            continue;
        }
        let v = kvm.vcpu(vcpu);
        let (task, cpu) = (v.task, host.tasks()[v.task].cpu);
        match kick(&v.shared, Requests::UNBLOCK, false) {
            // The killer may be on any CPU.
            Kick::Ipi(Some(target)) => irq::fly(host, cpu, CpuNr(target), Irq::Reschedule),
            action => deliver::kicked(kvm, host, cpu, vcpu, action)?,
        }
        if kvm.vcpu(vcpu).parked {
            rouse(host, task)?;
        }
    }
    Ok(())
}

/// The threads of a VM's process that are no vCPUs.
fn threads_other_than_vcpus(machine: &Machine<'_>, vm: VmNr) -> Vec<TaskNr> {
    let workers = machine.host.workers(vm).into_iter();
    let mut threads: Vec<TaskNr> = workers.flat_map(|w| [w.main_loop, w.io]).collect();
    let tasks = machine.host.tasks();
    let moves =
        |task: &TaskNr| matches!(&tasks[*task].body, Body::Vmm(Some(thread)) if thread.vm() == vm);
    threads.extend(tasks.numbers().filter(moves));
    threads
}

/// A thread that sleeps goes on; one that has not begun never does.
fn rouse(host: &mut Host<'_>, task: TaskNr) -> Sim {
    let t = &host.tasks()[task];
    match t.state {
        TaskState::Blocked => host.wake(task, t.cpu).map(|_| ()),
        TaskState::New => {
            host.end(task);
            Ok(())
        }
        _ => Ok(()),
    }
}
