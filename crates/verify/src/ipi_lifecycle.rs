//! `ipi-tracking` while a vCPU is destroyed and created again, and while tracking is switched off.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use stealtime_hypervisor::ipi_tracking::{
    IpiContext, IpiKnobs, Unicast, confirmed_receiver, eoi, forget, record,
};
use stealtime_hypervisor::word::AtomicWord;

use crate::ipi_tracking::{CONTEXT_WORDS, VCPUS};
use crate::model::{IDLE, Model, Op, State, Violation, at_rest};
use crate::word::{self, Class, Layout, Word, WordInfo};

/// The vCPU that is destroyed and created.
const GONE: u32 = 1;
/// vCPU 0 sends to these, in this order: receiver, vector, time.
const RECORDS: [(u32, u8, u64); 3] = [(1, 0x41, 100), (2, 0x52, 200), (1, 0x41, 250)];
const NOW_NS: u64 = 300;
const QUESTIONS: u8 = 2;

const SENDER: u8 = 0;
const RECEIVER: u8 = 1;
const SPINNER: u8 = 2;
const VM: u8 = 3;
const ADMIN: u8 = 4;

/// What is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Upstream: a destroyed vCPU is cleared from its own context only.
    OwnContextOnly,
    /// Deliveries under way are not awaited.
    NoGracePeriod,
    /// The knob is read as an IPI is sent, not as a vCPU spins.
    KnobAtRecord,
}

/// What becomes of the vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Life {
    There,
    /// Nothing is delivered to it any more.
    Unlinked,
    Gone,
    Back,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wrong {
    Named,
    Disabled,
}

/// All that is not in shared words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Local {
    sent: u8,
    ended: bool,
    asked: u8,
    life: Life,
    disabled: bool,
    wrong: Option<Wrong>,
}

/// The model.
#[derive(Debug)]
pub(crate) struct IpiLifecycle {
    contexts: Vec<IpiContext<Word>>,
    /// `kvm.ipi_tracking_enabled`.
    knob: Word,
    layout: Layout,
    fault: Fault,
}

impl IpiLifecycle {
    pub(crate) fn new(fault: Fault) -> Self {
        let create = || {
            let contexts = (0..VCPUS).map(|_| IpiContext::new()).collect();
            (contexts, Word::new(1))
        };
        let ((contexts, knob), layout) = word::allocate(create, |n| WordInfo {
            name: CONTEXT_WORDS.get(n).copied().unwrap_or("enabled"),
            class: Class::Shared,
        });
        Self {
            contexts,
            knob,
            layout,
            fault,
        }
    }

    fn knobs(&self) -> IpiKnobs {
        IpiKnobs {
            ipi_tracking_enabled: self.knob.load(Relaxed) != 0,
            ..IpiKnobs::default()
        }
    }

    fn send(&self, local: &mut Local) {
        let (receiver, vector, time_ns) = RECORDS[usize::from(local.sent) % RECORDS.len()];
        // The destination is looked up under the lock that its removal waits for.
        let reachable = word::call(|| u64::from(local.reachable(receiver)));
        if reachable != 0 {
            let knobs = self.knobs();
            let ipi = Unicast {
                sender: 0,
                receiver,
                vector,
            };
            // The contexts of all vCPUs exist.
            let _ = record(&self.contexts, &knobs, &ipi, time_ns, &());
        }
        if !word::stopped() {
            local.sent += 1;
        }
    }

    fn ask(&self, local: &mut Local) {
        // The changes that are complete before the hint is read.
        let settled = word::call(|| {
            let destroyed = u64::from(local.life == Life::Gone);
            destroyed | u64::from(local.disabled) << 1
        });
        let knobs = if self.fault == Fault::KnobAtRecord {
            IpiKnobs::default()
        } else {
            self.knobs()
        };
        let hint = confirmed_receiver(&self.contexts, &knobs, 0, NOW_NS);
        if word::stopped() {
            return;
        }
        local.asked += 1;
        // Without a hint the spinner names no vCPU, which is never wrong.
        if let Some(hint) = hint {
            if settled & 1 != 0 && hint.receiver == GONE && local.life == Life::Gone {
                local.wrong = Some(Wrong::Named);
            } else if settled & 2 != 0 {
                local.wrong = Some(Wrong::Disabled);
            }
        }
    }

    fn live(&self, local: &mut Local) {
        let next = match local.life {
            Life::There | Life::Back => Life::Unlinked,
            Life::Unlinked if self.fault == Fault::OwnContextOnly => {
                self.contexts[GONE as usize].reset();
                Life::Gone
            }
            Life::Unlinked => {
                // Its context exists.
                let _ = forget(&self.contexts, GONE);
                Life::Gone
            }
            Life::Gone => {
                self.contexts[GONE as usize].reset();
                Life::Back
            }
        };
        // The lists of vCPUs change under a lock.
        word::call(|| {
            local.life = next;
            0
        });
    }
}

impl Local {
    fn reachable(&self, vcpu: u32) -> bool {
        vcpu != GONE || matches!(self.life, Life::There | Life::Back)
    }
}

impl Model for IpiLifecycle {
    type Local = Local;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn keeps_each_step(&self) -> bool {
        true
    }

    fn agents(&self) -> Vec<&'static str> {
        vec!["vCPU 0 sends", "vCPU 1 ends", "vCPU 0 spins", "VM", "admin"]
    }

    fn initial(&self) -> State<Local> {
        let local = Local {
            sent: 0,
            ended: false,
            asked: 0,
            life: Life::There,
            disabled: false,
            wrong: None,
        };
        at_rest(self.layout.initial, local)
    }

    fn choices(&self, state: &State<Local>, agent: u8, ops: &mut Vec<Op>) {
        let local = &state.local;
        // A grace period ends with a barrier on every CPU: what was recorded is visible then.
        let sending = !state.agents[usize::from(SENDER)].is_idle();
        let ready = match agent {
            SENDER => usize::from(local.sent) < RECORDS.len(),
            RECEIVER => local.sent > 0 && !local.ended && local.life == Life::There,
            SPINNER => local.asked < QUESTIONS,
            VM => match local.life {
                // Its thread has ended.
                Life::There => state.agents[usize::from(RECEIVER)].op == IDLE,
                Life::Unlinked => self.fault == Fault::NoGracePeriod || !sending,
                Life::Gone => true,
                Life::Back => false,
            },
            ADMIN => !local.disabled,
            _ => false,
        };
        if ready {
            ops.push(1 + if agent == VM { local.life as u8 } else { 0 });
        }
    }

    fn execute(&self, local: &mut Local, agent: u8, _op: Op) {
        match agent {
            SENDER => self.send(local),
            RECEIVER => {
                let (receiver, vector, time_ns) = RECORDS[0];
                let _ = eoi(
                    &self.contexts,
                    &self.knobs(),
                    receiver,
                    Some(vector),
                    time_ns,
                    &(),
                );
                if !word::stopped() {
                    local.ended = true;
                }
            }
            SPINNER => self.ask(local),
            VM => self.live(local),
            _ => {
                self.knob.store(0, SeqCst);
                if !word::stopped() {
                    local.disabled = true;
                }
            }
        }
    }

    fn check(&self, state: &State<Local>) -> Option<Violation> {
        let (property, sentence) = match state.local.wrong? {
            Wrong::Named => (
                "hint-exists",
                format!(
                    "a hint names vCPU {GONE}, which had been destroyed before the hint was read"
                ),
            ),
            Wrong::Disabled => (
                "disabled-at-once",
                "a hint was given after tracking had been switched off".to_owned(),
            ),
        };
        Some(Violation::new(property, sentence))
    }

    fn describe(&self, agent: u8, op: Op) -> &'static str {
        match (agent, op) {
            (SENDER, _) => "send IPI",
            (RECEIVER, _) => "EOI of 0x41",
            (SPINNER, _) => "read the hint",
            (VM, 1) => "unlink vCPU 1",
            (VM, 2) => "destroy vCPU 1",
            (VM, _) => "create vCPU 1",
            _ => "switch tracking off",
        }
    }
}
