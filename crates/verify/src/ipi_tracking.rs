//! `ipi-tracking`: senders record, receivers end, a vCPU is reset, a spinner reads the hint.

use stealtime_hypervisor::ipi_tracking::{
    EoiRule, HintSource, IpiContext, IpiKnobs, Unicast, confirmed_receiver, eoi, record,
};

use crate::model::{Model, Op, State, Violation, at_rest};
use crate::word::{self, Class, Layout, Word, WordInfo};

pub(crate) const VCPUS: usize = 3;
/// The words of the vCPUs' contexts, in the order of their creation.
pub(crate) const CONTEXT_WORDS: [&str; 3 * VCPUS] = [
    "outgoing.0",
    "time.0",
    "sender.0",
    "outgoing.1",
    "time.1",
    "sender.1",
    "outgoing.2",
    "time.2",
    "sender.2",
];
/// The two records of vCPU 0: receiver, vector, time.
const RECORDS: [(u32, u8, u64); 2] = [(1, 0x41, 100), (1, 0x52, 200)];
/// The time of every question: both records are recent.
const NOW_NS: u64 = 300;

const SENDER: u8 = 0;
const RECEIVER: u8 = 1;
const SPINNER: u8 = 2;
const RESETTER: u8 = 3;

/// How far each agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Local {
    recorded: u8,
    ended: u8,
    asked: u8,
    reset: u8,
    wrong: Option<Wrong>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wrong {
    NoVcpu(u32),
    Mixed(u8, u64),
}

/// The model.
#[derive(Debug)]
pub(crate) struct IpiTracking {
    contexts: Vec<IpiContext<Word>>,
    layout: Layout,
    knobs: IpiKnobs,
}

impl IpiTracking {
    pub(crate) fn new(vector_matched: bool) -> Self {
        let create = || (0..VCPUS).map(|_| IpiContext::new()).collect();
        let (contexts, layout) = word::allocate(create, |n| WordInfo {
            name: CONTEXT_WORDS[n % CONTEXT_WORDS.len()],
            class: Class::Shared,
        });
        let eoi_rule = if vector_matched {
            EoiRule::VectorMatched
        } else {
            EoiRule::AnyVector
        };
        let knobs = IpiKnobs {
            eoi_rule,
            ..IpiKnobs::default()
        };
        Self {
            contexts,
            layout,
            knobs,
        }
    }
}

impl Model for IpiTracking {
    type Local = Local;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn agents(&self) -> Vec<&'static str> {
        vec!["vCPU 0 sends", "vCPU 1 ends", "vCPU 0 spins", "VM resets"]
    }

    fn initial(&self) -> State<Local> {
        let local = Local {
            recorded: 0,
            ended: 0,
            asked: 0,
            reset: 0,
            wrong: None,
        };
        at_rest(self.layout.initial, local)
    }

    fn choices(&self, state: &State<Local>, agent: u8, ops: &mut Vec<Op>) {
        let local = &state.local;
        let ready = match agent {
            SENDER => usize::from(local.recorded) < RECORDS.len(),
            // It ends the first IPI, after it was sent.
            RECEIVER => local.recorded > 0 && local.ended == 0,
            SPINNER => local.asked < 2,
            RESETTER => local.reset < 2,
            _ => false,
        };
        if ready {
            ops.push(1);
        }
    }

    fn execute(&self, local: &mut Local, agent: u8, _op: Op) {
        let (contexts, knobs) = (&self.contexts, &self.knobs);
        match agent {
            SENDER => {
                let (receiver, vector, time_ns) = RECORDS[usize::from(local.recorded) % 2];
                let ipi = Unicast {
                    sender: 0,
                    receiver,
                    vector,
                };
                // Both vCPUs exist.
                let _ = record(contexts, knobs, &ipi, time_ns, &());
                local.recorded += 1;
            }
            RECEIVER => {
                let (receiver, vector, time_ns) = RECORDS[0];
                let _ = eoi(contexts, knobs, receiver, Some(vector), time_ns, &());
                local.ended += 1;
            }
            SPINNER => {
                if let Some(hint) = confirmed_receiver(contexts, knobs, 0, NOW_NS) {
                    let vector = match hint.source {
                        HintSource::Ipi { vector } => vector,
                        HintSource::Guest => 0,
                    };
                    let known = RECORDS.contains(&(hint.receiver, vector, hint.time_ns));
                    if hint.receiver as usize >= VCPUS {
                        local.wrong = Some(Wrong::NoVcpu(hint.receiver));
                    } else if !known {
                        local.wrong = Some(Wrong::Mixed(vector, hint.time_ns));
                    }
                }
                local.asked += 1;
            }
            _ => {
                self.contexts[usize::from(local.reset) % VCPUS].reset();
                local.reset += 1;
            }
        }
    }

    fn check(&self, state: &State<Local>) -> Option<Violation> {
        let local = &state.local;
        let say = |property, sentence| Some(Violation::new(property, sentence));
        match local.wrong {
            Some(Wrong::NoVcpu(vcpu)) => {
                return say(
                    "hint-exists",
                    format!("a hint names vCPU {vcpu} of {VCPUS}"),
                );
            }
            Some(Wrong::Mixed(vector, ns)) => {
                let text =
                    format!("a hint has vector {vector:#x} with the time {ns} ns of another");
                return say("hint-whole", text);
            }
            None => {}
        }
        let rest = (0..4).all(|agent| state.agents[agent].is_idle());
        // Only the first IPI was ended, nothing was reset: the second must still be known.
        const PENDING: u64 = 1 << 32;
        let outgoing = state.mem[0];
        let settled = local.recorded == 2 && local.reset == 0 && outgoing & PENDING == 0;
        if rest && settled && local.ended == 1 {
            return say(
                "eoi-own-record",
                "the EOI of vector 0x41 ended the record of vector 0x52".to_owned(),
            );
        }
        None
    }

    fn describe(&self, agent: u8, _op: Op) -> &'static str {
        match agent {
            SENDER => "record IPI",
            RECEIVER => "EOI of 0x41",
            SPINNER => "read the hint",
            _ => "reset vCPU",
        }
    }
}
