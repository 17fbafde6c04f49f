//! The hrtimer's callback on another CPU, the CPUs' interrupts, and time.

use stealtime_hypervisor::lapic_timer::Action;
use stealtime_hypervisor::lapic_timer::advance::Spin;
use stealtime_hypervisor::posted_interrupt::{Delivery, Kick, Requests, deliver, kick, wake_up};

use super::thread::op as thread;
use super::{Callback, Fault, Local, POLICY, Pc, PiTimer, agent};
use crate::model::{IDLE, Op, State};
use crate::pi_notify::{APIC_IDS, destination, pending};
use crate::word;

/// Operations of the callback.
pub(crate) mod op {
    pub(crate) const TAKE: u8 = 1;
    pub(crate) const LOOK: u8 = 2;
    pub(crate) const FIRE: u8 = 3;
    pub(crate) const ACT: u8 = 4;
    pub(crate) const TRANSMIT: u8 = 5;
    pub(crate) const WAKE: u8 = 6;
    pub(crate) const SPUN: u8 = 7;
    pub(crate) const DONE: u8 = 8;
}

impl PiTimer {
    pub(crate) fn callback_choices(&self, local: &Local, ops: &mut Vec<Op>) {
        let now = self.ns(local);
        let next = match local.callback {
            Callback::Idle if local.queue.is_some_and(|time| time <= now) => op::TAKE,
            Callback::Idle => return,
            Callback::Runs => op::LOOK,
            Callback::Looked(_) => op::FIRE,
            Callback::Acts if local.sending.is_some() => op::TRANSMIT,
            Callback::Acts if local.wake_due => op::WAKE,
            Callback::Acts => match (local.spins[0], local.todo[0]) {
                (Some(end), _) if end > now => return,
                (Some(_), _) => op::SPUN,
                (None, Some(_)) => op::ACT,
                (None, None) => op::DONE,
            },
        };
        ops.push(next);
    }

    pub(crate) fn callback_execute(&self, local: &mut Local, op: Op) {
        match op {
            op::TAKE => {
                local.queue = None;
                local.callback = Callback::Runs;
            }
            op::LOOK => local.callback = Callback::Looked(self.vcpu.mode()),
            op::FIRE => self.fire(local),
            op::ACT => self.act(local),
            op::TRANSMIT => {
                if let Some((cpu, kind)) = local.sending.take() {
                    local.pending[usize::from(cpu)] |= kind;
                }
            }
            op::WAKE => {
                wake_up(&self.vcpu);
                local.wake_due = false;
            }
            op::SPUN => local.spins[0] = None,
            _ => local.callback = Callback::Idle,
        }
    }

    fn fire(&self, local: &mut Local) {
        let Callback::Looked(mode) = local.callback else {
            debug_assert!(false, "the callback fires after it has looked at the mode");
            return;
        };
        let (now, env) = (self.now(local), self.environment(local));
        let actions = local.timer.hrtimer_fired(now, mode, &env, &());
        local.callback = Callback::Acts;
        for action in actions.iter() {
            match action {
                // A deadline timer does not start itself anew.
                Action::StartHrtimer { at_ns } => local.queue = Some(at_ns),
                Action::Spin(spin) => {
                    let end = now.ns.saturating_add(self.length(spin));
                    local.spins[0] = (self.config.fault != Fault::NoSpin).then_some(end);
                }
                action => {
                    if let Some(free) = local.todo.iter_mut().find(|place| place.is_none()) {
                        *free = Some(action);
                    }
                }
            }
        }
    }

    /// A busy wait in ns: the guest's TSC runs at 1 GHz.
    pub(crate) fn length(&self, spin: Spin) -> i64 {
        match spin {
            Spin::None => 0,
            Spin::Cycles(cycles) => i64::try_from(cycles).unwrap_or(i64::MAX),
            Spin::Ns(ns) => i64::from(ns),
        }
    }

    fn act(&self, local: &mut Local) {
        match local.todo[0] {
            Some(Action::Post { vector }) => {
                match deliver(&self.vcpu, vector, false, POLICY, &()) {
                    Delivery::Ipi { cpu, vector } => {
                        let apic = cpu.and_then(|cpu| APIC_IDS.get(cpu as usize));
                        local.sending = apic.and_then(|apic| destination(*apic, vector));
                    }
                    Delivery::Wake => local.wake_due = true,
                    _ => {}
                }
                if self.config.fault == Fault::BothWays {
                    local.inject = 1;
                }
            }
            Some(Action::Unblock) if self.config.fault != Fault::NoRequest => {
                self.vcpu.request(Requests::UNBLOCK);
            }
            Some(Action::Kick) => {
                if let Kick::Ipi(Some(cpu)) = kick(&self.vcpu, Requests(0), false) {
                    local.sending = Some((cpu as u8, pending::RESCHEDULE));
                }
            }
            _ => {}
        }
        if !word::stopped() {
            local.todo.rotate_left(1);
            if let Some(last) = local.todo.last_mut() {
                *last = None;
            }
        }
    }

    pub(crate) fn irq_choices(&self, state: &State<Local>, cpu: u8, ops: &mut Vec<Op>) {
        let local = &state.local;
        let waiting = local.pending[usize::from(cpu)];
        let op = state.agents[usize::from(agent::VCPU)].op;
        let vcpu_cpu = match op {
            thread::LOAD0 => Some(0),
            thread::LOAD1 => Some(1),
            _ => local.on_cpu,
        };
        // With the thread elsewhere the CPU takes its interrupts; with it, in the host.
        if vcpu_cpu == Some(cpu) && !irqs_on(local.pc, op) {
            return;
        }
        for kind in [pending::NOTIFICATION, pending::RESCHEDULE] {
            if waiting & kind != 0 {
                ops.push(kind);
            }
        }
    }

    /// Advances the time. A deadline that it reaches allows one delivery.
    pub(crate) fn tick(&self, local: &mut Local) {
        local.at += 1;
        self.reach(local);
    }

    /// Notes that the armed deadline has been reached, if it has just been.
    pub(crate) fn reach(&self, local: &mut Local) {
        let now = self.now(local).host_tsc;
        let previous = local.at.checked_sub(1);
        let previous = previous.and_then(|index| self.instants().get(usize::from(index)));
        let reached = Self::deadline(local)
            .is_some_and(|d| d <= now && previous.is_none_or(|b| d > b.unsigned_abs()));
        if reached && !core::mem::take(&mut local.early) {
            local.due = true;
            local.allowed += 1;
        }
    }
}

/// Whether a CPU in this state of its thread accepts interrupts.
fn irqs_on(pc: Pc, op: Op) -> bool {
    match op {
        IDLE => !matches!(
            pc,
            Pc::Guest
                | Pc::EntryWait
                | Pc::Notifying
                | Pc::Programming
                | Pc::FastExit
                | Pc::Leaving
                | Pc::SwitchingOut
        ),
        thread::REQUESTS
        | thread::INJECT
        | thread::BEGIN
        | thread::WAIT
        | thread::CHECK
        | thread::END => true,
        _ => false,
    }
}
