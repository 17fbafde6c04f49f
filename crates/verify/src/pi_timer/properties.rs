//! What must hold of a timer.

use super::{Callback, Local, Pc, PiTimer, agent};
use crate::model::{IDLE, State, Violation};
use crate::pi_notify::slot;

/// Names of the properties.
pub(crate) mod name {
    pub(crate) const EARLY: &str = "timer-not-early";
    pub(crate) const ONCE: &str = "timer-once";
    pub(crate) const LOST: &str = "timer-fires";
    pub(crate) const BLOCKED: &str = "no-blocked-for-ever";
}

impl PiTimer {
    pub(crate) fn violation(&self, state: &State<Local>) -> Option<Violation> {
        let local = &state.local;
        let say = |property, sentence| Some(Violation::new(property, sentence));
        if let Some((now, early)) = local.wrong {
            return match early {
                Some(deadline) => say(
                    name::EARLY,
                    format!("the interrupt came at {now} ns, the deadline is {deadline} ns"),
                ),
                None => say(
                    name::ONCE,
                    format!(
                        "{} interrupts were delivered, one more than deadlines were reached",
                        local.delivered
                    ),
                ),
            };
        }
        if !local.due || !self.no_vcpu_notifies(state) {
            return None;
        }
        let deadline = Self::deadline(local).unwrap_or_default();
        let pending = local.timer.pending();
        match local.pc {
            Pc::Guest if local.timer.hv().is_none() => say(
                name::LOST,
                format!(
                    "the vCPU runs in guest mode, the deadline {deadline} ns was reached ({pending} \
                     expiries pending), and nothing will inject the interrupt"
                ),
            ),
            Pc::Asleep if state.mem[slot::WAIT] != 0 => say(
                name::BLOCKED,
                format!(
                    "the vCPU sleeps, the deadline {deadline} ns was reached ({pending} expiries \
                     pending), and nothing will wake it"
                ),
            ),
            _ => None,
        }
    }

    /// No callback runs or will run, and no interrupt is on its way to the vCPU.
    fn no_vcpu_notifies(&self, state: &State<Local>) -> bool {
        let local = &state.local;
        let idle = |agent: u8| state.agents[usize::from(agent)].op == IDLE;
        idle(agent::VCPU)
            && idle(agent::CALLBACK)
            && local.callback == Callback::Idle
            && local.queue.is_none()
            && local.pending == [0; 2]
            && local.inject == 0
    }
}
