//! What must hold, and what is said when it does not.

use stealtime_hypervisor::posted_interrupt::{Control, Requests, Suppression};

use super::posters::op as poster;
use super::thread::{Pc, op};
use super::{Local, PiNotify, agent, pending, slot};
use crate::model::{IDLE, State, Violation};
use crate::word::listed;

/// Names of the properties.
pub(crate) mod name {
    pub(crate) const LOST: &str = "posted-not-lost";
    pub(crate) const TWICE: &str = "posted-not-twice";
    pub(crate) const BLOCKED: &str = "no-blocked-for-ever";
    pub(crate) const UNNOTICED: &str = "noticed-in-guest";
    pub(crate) const SN_IN_GUEST: &str = "sn-clear-in-guest";
    pub(crate) const SN_IN_HOST: &str = "sn-set-in-host";
    pub(crate) const LISTED: &str = "one-wakeup-list";
    pub(crate) const REQUEST: &str = "request-seen";
}

fn violation(property: &'static str, flaw: Option<u8>, sentence: String) -> Option<Violation> {
    Some(Violation {
        property,
        flaw,
        sentence,
    })
}

impl PiNotify {
    pub(crate) fn violation(&self, state: &State<Local>) -> Option<Violation> {
        self.delivered_twice(state)
            .or_else(|| (0..2).find_map(|v| self.of_vcpu(state, v)))
            .or_else(|| self.lost(state))
    }

    fn delivered_twice(&self, state: &State<Local>) -> Option<Violation> {
        let config = &self.config;
        let limits = [config.device + config.ipi, config.poster];
        let local = &state.local;
        let twice = (0..2).find(|&n| local.delivered[n] > limits[n])?;
        let sentence = format!(
            "vector {:#x} was posted {} times and delivered {} times",
            super::VECTORS[twice],
            limits[twice],
            local.delivered[twice]
        );
        violation(name::TWICE, None, sentence)
    }

    /// No poster is in the middle of something, no interrupt is on its way.
    fn posters_quiet(&self, state: &State<Local>) -> bool {
        let local = &state.local;
        let idle = |agent: u8| state.agents[usize::from(agent)].op == IDLE;
        idle(agent::DEVICE)
            && idle(agent::POSTER)
            && idle(agent::KICKER)
            && (0..2).all(|n| state.agents[usize::from(agent::IRQ0) + n].op != poster::KICK)
            && state.agents[1].op != op::SEND_IPI
            && local.sending.iter().all(Option::is_none)
            && !local.wake_due
            && local.assignment_told
    }

    /// No CPU will run the wakeup handler.
    fn handlers_quiet(&self, state: &State<Local>) -> bool {
        (0..2usize).all(|cpu| {
            let cpu_state = &state.local.cpus[cpu];
            cpu_state.pending & pending::WAKEUP == 0
                && !cpu_state.in_handler
                && state.agents[usize::from(agent::IRQ0) + cpu].op == IDLE
        })
    }

    fn of_vcpu(&self, state: &State<Local>, vcpu: usize) -> Option<Violation> {
        let vcpu_state = &state.local.vcpus[vcpu];
        let agent = &state.agents[vcpu];
        // The stores of a thread that left its CPU or entered the guest are visible. A buffered
        // store of a thread in the host becomes visible.
        if agent.op != IDLE || vcpu_state.pc == Pc::Absent {
            return None;
        }
        let word = |n: usize| state.mem[vcpu * slot::PER_VCPU + n];
        let control = Control(word(slot::CONTROL));
        if let Some(found) = self.listed_wrongly(state, vcpu) {
            return Some(found);
        }
        match vcpu_state.pc {
            Pc::Guest => {
                if control.sn() {
                    let sentence = format!(
                        "vCPU {vcpu} is in guest mode with SN set: hardware sends no notification"
                    );
                    return violation(name::SN_IN_GUEST, None, sentence);
                }
                self.unnoticed(state, vcpu)
            }
            Pc::Host if agent.suspended == IDLE && !vcpu_state.blocking => {
                let flaw = match self.config.policy {
                    Suppression::AsPostedV1 => Some(3),
                    Suppression::AsPostedV3 => Some(9),
                    Suppression::AsPostedV2 | Suppression::Corrected => None,
                    _ => return None,
                };
                let sentence = format!(
                    "vCPU {vcpu} is back in the host and runnable with SN clear: the cancelled \
                     entry did not set it again"
                );
                let wrong = !control.sn();
                wrong
                    .then(|| violation(name::SN_IN_HOST, flaw, sentence))
                    .flatten()
            }
            Pc::Asleep => self.blocked(state, vcpu),
            _ => None,
        }
    }

    fn listed_wrongly(&self, state: &State<Local>, vcpu: usize) -> Option<Violation> {
        let vcpu_state = &state.local.vcpus[vcpu];
        let listed_on = |cpu: usize| {
            let list = listed(state.mem[slot::LISTS + cpu]);
            list.filter(|id| *id as usize == vcpu).count()
        };
        let times = listed_on(0) + listed_on(1);
        // A vCPU that was put without arming may wait for its list until the next load.
        let allowed = usize::from(vcpu_state.on_cpu.is_none());
        if times <= allowed {
            return None;
        }
        let sentence = format!(
            "vCPU {vcpu} is on wakeup lists {times} times, {}",
            if vcpu_state.on_cpu.is_some() {
                "although it was loaded"
            } else {
                "although it blocks once"
            }
        );
        violation(name::LISTED, None, sentence)
    }

    fn unnoticed(&self, state: &State<Local>, vcpu: usize) -> Option<Violation> {
        let vcpu_state = &state.local.vcpus[vcpu];
        let cpu = vcpu_state.on_cpu.map(usize::from)?;
        if state.local.cpus[cpu].pending != 0 || vcpu != 0 || !self.posters_quiet(state) {
            return None;
        }
        let pir = state.mem[slot::PIR];
        if pir != 0 {
            let on_bit = Control(state.mem[slot::CONTROL]).on();
            let sentence = format!(
                "vCPU 0 runs in guest mode, vector {:#x} stays in PIR with ON = {}, and no \
                 notification is on its way",
                lowest(pir),
                u8::from(on_bit)
            );
            return violation(name::UNNOTICED, None, sentence);
        }
        let requests = state.mem[slot::REQUESTS];
        if requests != 0 {
            let sentence = format!(
                "vCPU 0 runs in guest mode with requests {requests:#x}, and no IPI is on its way"
            );
            return violation(name::REQUEST, None, sentence);
        }
        None
    }

    fn blocked(&self, state: &State<Local>, vcpu: usize) -> Option<Violation> {
        let word = |n: usize| state.mem[vcpu * slot::PER_VCPU + n];
        let asleep =
            word(slot::WAIT) != 0 && self.posters_quiet(state) && self.handlers_quiet(state);
        if !asleep {
            return None;
        }
        if word(slot::REQUESTS) & Requests::UNBLOCK.0 != 0 {
            let sentence =
                format!("vCPU {vcpu} sleeps with the request to unblock, and no wakeup is pending");
            return violation(name::REQUEST, None, sentence);
        }
        let posted = word(slot::PIR) | word(slot::IRR);
        if posted == 0 {
            return None;
        }
        let vcpu_state = &state.local.vcpus[vcpu];
        let control = Control(word(slot::CONTROL));
        let sentence = format!(
            "vCPU {vcpu} sleeps with vector {:#x} posted (ON = {}, SN = {}, {}), and no \
             wakeup is pending",
            lowest(posted),
            u8::from(control.on()),
            u8::from(control.sn()),
            if vcpu_state.armed {
                "on the wakeup list"
            } else {
                "on no wakeup list"
            },
        );
        let flaw = match self.config.policy {
            Suppression::AsPostedV1 | Suppression::AsPostedV3 if vcpu_state.missed_at_arming => {
                Some(if self.config.half_repair { 2 } else { 1 })
            }
            Suppression::AsPostedV1 | Suppression::AsPostedV2 if control.sn() => Some(5),
            Suppression::AsPostedV3 if control.sn() => Some(8),
            _ => None,
        };
        violation(name::BLOCKED, flaw, sentence)
    }

    /// A posted vector that is lost.
    fn lost(&self, state: &State<Local>) -> Option<Violation> {
        let agent = &state.agents[0];
        if agent.op != IDLE || agent.suspended != IDLE || !self.posters_quiet(state) {
            return None;
        }
        let held = state.mem[slot::PIR] | state.mem[slot::IRR];
        let local = &state.local;
        for (n, vector) in super::VECTORS.into_iter().enumerate() {
            let present = held >> (vector % 64) & 1 != 0;
            if local.posted[n] > 0 && local.delivered[n] == 0 && !present {
                let sentence =
                    format!("vector {vector:#x} was posted, and is neither in PIR nor in the IRR");
                return violation(name::LOST, None, sentence);
            }
        }
        None
    }
}

/// The lowest vector of a word of PIR or IRR: all of the model lie in the second.
fn lowest(word: u64) -> u32 {
    64 + word.trailing_zeros()
}
