//! The posters, the kicker, and the CPUs' interrupt handlers.

use std::cell::Cell;

use stealtime_hypervisor::posted_interrupt::{
    Delivery, Fault, Kick, PostedVcpu, Requests, VcpuMode, deliver, deliver_nested, kick, vtd,
    wake_up, wakeup_handler,
};

use super::thread::destination;
use super::{APIC_IDS, Barrier, Local, PiNotify, VECTORS, agent, pending};
use crate::model::{Op, State};
use crate::word::{self, ListWords};

/// Operations of these agents.
pub(crate) mod op {
    pub(crate) const POST: u8 = 1;
    pub(crate) const TRANSMIT: u8 = 2;
    pub(crate) const WAKE: u8 = 3;
    pub(crate) const ASSIGN: u8 = 4;
    pub(crate) const TELL: u8 = 5;
    pub(crate) const TAKE_NOTIFICATION: u8 = 6;
    pub(crate) const TAKE_WAKEUP: u8 = 7;
    pub(crate) const TAKE_RESCHEDULE: u8 = 8;
    pub(crate) const HANDLER: u8 = 9;
    pub(crate) const KICK: u8 = 10;
}

impl Local {
    /// The interrupt that `sender` is about to send arrives at its CPU.
    pub(crate) fn transmit(&mut self, sender: usize) {
        if let Some((cpu, kind)) = self.sending[sender].take() {
            self.cpus[usize::from(cpu)].pending |= kind;
        }
    }
}

const DEVICE: usize = 0;
const POSTER: usize = 1;
const KICKER: usize = 2;

impl PiNotify {
    pub(crate) fn poster_choices(&self, state: &State<Local>, agent: u8, ops: &mut Vec<Op>) {
        let local = &state.local;
        match agent {
            agent::DEVICE => {
                if local.sending[DEVICE].is_some() {
                    ops.push(op::TRANSMIT);
                } else if !local.assigned {
                    ops.push(op::ASSIGN);
                } else if !local.assignment_told {
                    ops.push(op::TELL);
                } else if local.device_left > 0 {
                    ops.push(op::POST);
                }
            }
            agent::POSTER => {
                if local.sending[POSTER].is_some() {
                    ops.push(op::TRANSMIT);
                } else if local.wake_due {
                    ops.push(op::WAKE);
                } else if local.poster_left > 0 {
                    ops.push(op::POST);
                }
            }
            agent::KICKER => {
                if local.sending[KICKER].is_some() {
                    ops.push(op::TRANSMIT);
                } else if local.kicks_left > 0 {
                    ops.push(op::POST);
                }
            }
            _ => self.irq_choices(state, agent - agent::IRQ0, ops),
        }
    }

    fn irq_choices(&self, state: &State<Local>, cpu: u8, ops: &mut Vec<Op>) {
        let cpu_state = &state.local.cpus[usize::from(cpu)];
        if cpu_state.in_handler {
            ops.push(op::HANDLER);
            return;
        }
        // One that is under way on the other CPU counts when it ends.
        let kicking = (0..2).filter(|&n| state.agents[usize::from(agent::IRQ0) + n].op == op::KICK);
        // The handler sees what the thread that it interrupts has stored: it comes when all do.
        let drained = Self::occupant(state, cpu).is_none_or(|v| state.agents[v].is_drained());
        let kicks = drained && usize::from(state.local.irq_kicks_left) > kicking.count();
        if cpu_state.pending == 0 && !kicks {
            return;
        }
        let r7_missing = self.config.without == Some(Barrier::R7);
        let open = Self::occupant(state, cpu)
            .is_none_or(|v| state.local.vcpus[v].irqs_on(state.agents[v].op, r7_missing));
        if !open {
            return;
        }
        for (kind, op) in [
            (pending::NOTIFICATION, op::TAKE_NOTIFICATION),
            (pending::WAKEUP, op::TAKE_WAKEUP),
            (pending::RESCHEDULE, op::TAKE_RESCHEDULE),
        ] {
            if cpu_state.pending & kind != 0 {
                ops.push(op);
            }
        }
        if kicks {
            ops.push(op::KICK);
        }
    }

    pub(crate) fn poster_execute(&self, local: &mut Local, agent: u8, op: Op) {
        match agent {
            agent::DEVICE => self.device(local, op),
            agent::POSTER => self.poster(local, op),
            agent::KICKER => {
                if op == op::TRANSMIT {
                    local.transmit(KICKER);
                    return;
                }
                let action = kick(&self.vcpus[0], Requests::EVENT, false);
                local.sending[KICKER] = reschedule(action);
                local.kicks_left -= 1;
            }
            _ if op == op::KICK => self.irq_kick(local, agent - agent::IRQ0),
            _ => self.irq(local, agent - agent::IRQ0, op),
        }
    }

    /// The handler of a device's or a timer's interrupt kicks vCPU 0, which may be the one that it
    /// interrupted.
    fn irq_kick(&self, local: &mut Local, cpu: u8) {
        let vcpu = &self.vcpus[0];
        let loaded = local.vcpus[0].on_cpu == Some(cpu);
        let action = if loaded && self.config.kick_compares_first {
            vcpu.request(Requests::UNBLOCK);
            if vcpu.mode() == VcpuMode::InGuest {
                vcpu.set_mode(VcpuMode::ExitingGuest);
            }
            Kick::Nothing
        } else {
            kick(vcpu, Requests::UNBLOCK, loaded)
        };
        if let Some((target, kind)) = reschedule(action) {
            local.cpus[usize::from(target)].pending |= kind;
        }
        local.irq_kicks_left -= 1;
    }

    fn device(&self, local: &mut Local, op: Op) {
        match op {
            op::TRANSMIT => local.transmit(DEVICE),
            op::ASSIGN => local.assigned = true,
            op::TELL => {
                // The fault is in the caller of this function: no vCPU is kicked.
                let action = PostedVcpu::device_assigned(&self.vcpus[0], self.config.fault);
                local.sending[DEVICE] = reschedule(action);
                local.assignment_told = true;
                debug_assert!(
                    self.config.fault != Fault::BlockedNotKicked || action == Kick::Nothing
                );
            }
            _ => {
                let sent = vtd::post(&self.vcpus[0].desc, VECTORS[0], false, &());
                local.sending[DEVICE] = sent.and_then(|ipi| destination(ipi.ndst, ipi.vector));
                local.posted[0] += 1;
                local.device_left -= 1;
            }
        }
    }

    fn poster(&self, local: &mut Local, op: Op) {
        let target = &self.vcpus[0];
        match op {
            op::TRANSMIT => local.transmit(POSTER),
            op::WAKE => {
                wake_up(target);
                local.wake_due = false;
            }
            _ => {
                let action = if self.config.nested {
                    if self.config.without == Some(Barrier::R8) {
                        word::weak_rmw(0);
                        word::without_fence(0);
                    }
                    deliver_nested(target, VECTORS[1], false, &())
                } else {
                    local.posted[1] += 1;
                    deliver(target, VECTORS[1], false, self.config.policy, &())
                };
                match action {
                    Delivery::Ipi { cpu, vector } => {
                        let apic = cpu.and_then(|cpu| APIC_IDS.get(cpu as usize));
                        let mut notifies = apic.and_then(|apic| destination(*apic, vector));
                        if let Some((_, kind)) = &mut notifies
                            && self.config.nested
                        {
                            // The nested guest's hypervisor is to look: it leaves.
                            *kind = pending::RESCHEDULE;
                        }
                        local.sending[POSTER] = notifies;
                    }
                    Delivery::Wake => local.wake_due = true,
                    _ => {}
                }
                local.poster_left -= 1;
            }
        }
    }

    fn irq(&self, local: &mut Local, cpu: u8, op: Op) {
        let cpu_state = &mut local.cpus[usize::from(cpu)];
        match op {
            op::TAKE_NOTIFICATION => cpu_state.pending &= !pending::NOTIFICATION,
            op::TAKE_RESCHEDULE => cpu_state.pending &= !pending::RESCHEDULE,
            op::TAKE_WAKEUP => {
                cpu_state.pending &= !pending::WAKEUP;
                cpu_state.in_handler = true;
            }
            _ => {
                let lists = ListWords {
                    lists: &self.lists,
                    wrong: None,
                };
                let woken = Cell::new(0);
                let vcpu_of = |id| self.vcpus.get(id as usize);
                let wake = |id: u32| {
                    if let Some(vcpu) = vcpu_of(id) {
                        woken.set(woken.get() + u32::from(wake_up(vcpu)));
                    }
                };
                let _ = wakeup_handler(u32::from(cpu), &lists, vcpu_of, &(), wake);
                local.cpus[usize::from(cpu)].in_handler = false;
            }
        }
    }
}

fn reschedule(action: Kick) -> Option<(u8, u8)> {
    match action {
        Kick::Ipi(Some(cpu)) => Some((cpu as u8, pending::RESCHEDULE)),
        _ => None,
    }
}
