//! `scx-yield`: IPI tracking and directed yields of `scx_stealtime`, where maps change step by step.
//!
//! CPU 0 runs vCPU 0, which sends to vCPU 1 and spins. CPU 1 runs vCPU 2 on a loan of vCPU 3;
//! vCPUs 1 and 3 wait there. A yield of vCPU 0 wants vCPU 1 on CPU 1, under the run queue's lock.
//! Meanwhile vCPU 2 ends the interrupt of vCPU 3, and its next entry wants vCPU 3 there, without
//! that lock.

use core::sync::atomic::Ordering::Relaxed;

use stealtime_hypervisor::ipi_tracking::{
    IpiContext, IpiKnobs, Unicast, confirmed_receiver, eoi, record, settle,
};
use stealtime_hypervisor::scx::{WantWord, Wanted};
use stealtime_hypervisor::word::AtomicWord as _;

use crate::model::{Model, Op, State, Violation, at_rest, run_free};
use crate::word::{self, Class, Layout, Word, WordInfo};

const VCPUS: usize = 4;
const WORDS: [&str; 3 * VCPUS + 4] = [
    "outgoing.0",
    "time.0",
    "sender.0",
    "outgoing.1",
    "time.1",
    "sender.1",
    "outgoing.2",
    "time.2",
    "sender.2",
    "outgoing.3",
    "time.3",
    "sender.3",
    "want",
    "want",
    "lender",
    "answered.0",
];
/// The words of [`WORDS`] that other agents see: two records, and what follows the contexts.
const OUTGOING_0: usize = 0;
const TIME_0: usize = 1;
const SENDER_1: usize = 5;
const SENDER_2: usize = 8;
const OUTGOING_3: usize = 9;
const TIME_3: usize = 10;
const WANT: usize = 3 * VCPUS;
const APART: usize = WANT + 1;
const LENDER: usize = WANT + 2;
const ANSWERED: usize = WANT + 3;
/// Vectors of vCPU 0's IPIs to vCPU 1, and of the IPI of vCPU 3 to vCPU 2.
const VECTORS: [u8; 2] = [0x41, 0x52];
const VECTOR_OF_LOAN: u8 = 0x63;
const NOW_NS: u64 = 300;
const SPINS: u8 = 2;

const SPINNER: u8 = 0;
const BORROWER: u8 = 1;
const CPU1: u8 = 2;

mod op {
    pub(super) const SEND: u8 = 1;
    pub(super) const SPIN: u8 = 2;
    pub(super) const SERVE: u8 = 3;
    pub(super) const END: u8 = 4;
    pub(super) const ENTER: u8 = 5;
    pub(super) const PICK: u8 = 6;
    pub(super) const ANSWER: u8 = 7;
}

/// What is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Target and lender are words of their own.
    SplitWords,
    /// A pick reads the word and clears it later, without the run queue's lock.
    ClearedAfter,
    /// An EOI clears the sender's name after the record.
    SenderCleared,
}

impl Fault {
    /// Target and lender are not the one word of the library.
    const fn is_apart(self) -> bool {
        matches!(self, Self::SplitWords | Self::ClearedAfter)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wrong {
    /// A pick's vCPU, and the vCPU that pays.
    Payer(u32, Option<u32>),
    /// The vCPU that was wanted.
    Lost(u32),
    /// The answer has come, and the yield names its vCPU.
    Awaited,
}

/// All that is not in shared words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Local {
    sent: u8,
    answered: u8,
    spun: u8,
    /// The spinner's exit has found a receiver.
    found: bool,
    /// The run queue's lock of CPU 1 is held.
    is_locked: bool,
    ended: bool,
    /// vCPU 2's next entry gives its loan back.
    returns: bool,
    entered: bool,
    current: u32,
    wrong: Option<Wrong>,
}

/// The model.
#[derive(Debug)]
pub(crate) struct ScxYield {
    contexts: Vec<IpiContext<Word>>,
    want: WantWord<Word>,
    /// Words of the faults: want and lender.
    apart: [Word; 2],
    answered: Word,
    knobs: IpiKnobs,
    layout: Layout,
    fault: Fault,
}

/// A vCPU's thread: its number is not 0.
const fn thread_of(vcpu: u32) -> u32 {
    vcpu + 1
}

const fn vcpu_of(thread: u32) -> Option<u32> {
    thread.checked_sub(1)
}

const RECEIVER_ON_LOAN: Wanted = Wanted {
    thread: thread_of(1),
    lender: thread_of(0),
    slice_us: 100,
    is_timed: false,
};
const LENDER_AGAIN: Wanted = Wanted {
    thread: thread_of(3),
    lender: 0,
    slice_us: 0,
    is_timed: false,
};

fn info(n: usize, fault: Fault) -> WordInfo {
    let is_apart = fault.is_apart();
    let class = match n {
        OUTGOING_0 | SENDER_1 | ANSWERED => Class::Shared,
        TIME_0 => Class::Private(SPINNER),
        SENDER_2 | OUTGOING_3 | TIME_3 => Class::Private(BORROWER),
        WANT if !is_apart => Class::Shared,
        APART if is_apart => Class::Shared,
        LENDER if fault == Fault::SplitWords => Class::Shared,
        _ => Class::Constant,
    };
    let name = WORDS[n % WORDS.len()];
    WordInfo { name, class }
}

impl ScxYield {
    pub(crate) fn new(fault: Fault) -> Self {
        let create = || {
            let contexts = (0..VCPUS).map(|_| IpiContext::new()).collect();
            let want = WantWord::new();
            (contexts, want, [Word::new(0), Word::new(0)], Word::new(0))
        };
        let ((contexts, want, apart, answered), layout) =
            word::allocate(create, |n| info(n, fault));
        Self {
            contexts,
            want,
            apart,
            answered,
            knobs: IpiKnobs::default(),
            layout,
            fault,
        }
    }

    fn write(&self, wanted: Wanted) {
        let [word, lender] = &self.apart;
        match self.fault {
            Fault::None | Fault::SenderCleared => self.want.write(wanted),
            Fault::ClearedAfter => word.store(wanted.to_word(), Relaxed),
            Fault::SplitWords => {
                lender.store(u64::from(wanted.lender), Relaxed);
                word.store(u64::from(wanted.thread), Relaxed);
            }
        }
    }

    /// What a pick finds, and the vCPU that it clears without having found it.
    fn take(&self) -> (Option<Wanted>, Option<u32>) {
        let [word, lender] = &self.apart;
        match self.fault {
            Fault::None | Fault::SenderCleared => (self.want.take(), None),
            Fault::SplitWords => {
                let wanted = Wanted {
                    lender: lender.load(Relaxed) as u32,
                    thread: word.swap(0, Relaxed) as u32,
                    ..LENDER_AGAIN
                };
                ((wanted.thread != 0).then_some(wanted), None)
            }
            Fault::ClearedAfter => {
                let found = word.load(Relaxed);
                let cleared = word.swap(0, Relaxed);
                let lost = Wanted::from_word(cleared).filter(|_| cleared != found);
                (
                    Wanted::from_word(found),
                    lost.and_then(|wanted| vcpu_of(wanted.thread)),
                )
            }
        }
    }

    /// vCPU 0 enters its guest, spins there, and its exit asks for a receiver.
    fn spin(&self, local: &mut Local) {
        let has_answer = word::call(|| {
            local.spun += 1;
            u64::from(local.answered == local.sent)
        });
        self.answered.store(0, Relaxed);
        if self.answered.load(Relaxed) != 0 {
            return;
        }
        let hint = confirmed_receiver(&self.contexts, &self.knobs, 0, NOW_NS);
        word::call(|| {
            local.found = hint.is_some_and(|hint| hint.receiver == 1);
            if local.found && has_answer != 0 {
                local.wrong = Some(Wrong::Awaited);
            }
            0
        });
    }

    /// `ops.yield`, with the run queues' locks.
    fn serve(&self, local: &mut Local) {
        let waits = word::call(|| {
            local.found = false;
            local.is_locked = true;
            u64::from(local.current != 1)
        });
        if waits != 0 {
            self.write(RECEIVER_ON_LOAN);
        }
        word::call(|| {
            local.is_locked = false;
            0
        });
    }

    /// vCPU 2 ends the interrupt of its lender.
    fn end(&self, local: &mut Local) {
        let settled = self.eoi(2, VECTOR_OF_LOAN);
        word::call(|| {
            local.ended = true;
            local.returns = settled;
            0
        });
    }

    fn eoi(&self, vcpu: u32, vector: u8) -> bool {
        let (contexts, knobs) = (&self.contexts, &self.knobs);
        let settled = match self.fault {
            Fault::SenderCleared => eoi(contexts, knobs, vcpu, Some(vector), NOW_NS, &()),
            _ => settle(contexts, vcpu, vector),
        };
        // The vCPU exists.
        settled.unwrap_or(false)
    }

    /// `ops.dispatch` of CPU 1.
    fn pick(&self, local: &mut Local) {
        word::call(|| {
            local.is_locked |= self.fault != Fault::ClearedAfter;
            0
        });
        let (wanted, lost) = self.take();
        word::call(|| {
            local.is_locked &= self.fault == Fault::ClearedAfter;
            local.wrong = lost.map(Wrong::Lost);
            if let Some(wanted) = wanted {
                let lender = vcpu_of(wanted.lender);
                let expected = [RECEIVER_ON_LOAN, LENDER_AGAIN];
                let is_whole = expected
                    .iter()
                    .any(|known| (known.thread, known.lender) == (wanted.thread, wanted.lender));
                let vcpu = vcpu_of(wanted.thread).unwrap_or(0);
                local.current = vcpu;
                if !is_whole {
                    local.wrong = Some(Wrong::Payer(vcpu, lender));
                }
            }
            0
        });
    }
}

impl Model for ScxYield {
    type Local = Local;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn keeps_each_step(&self) -> bool {
        true
    }

    fn agents(&self) -> Vec<&'static str> {
        vec!["vCPU 0", "vCPU 2", "CPU 1"]
    }

    fn initial(&self) -> State<Local> {
        let local = Local {
            sent: 0,
            answered: 0,
            spun: 0,
            found: false,
            is_locked: false,
            ended: false,
            returns: false,
            entered: false,
            current: 2,
            wrong: None,
        };
        let mut state = at_rest(self.layout.initial, local);
        run_free(&mut state, BORROWER, |_| {
            let ipi = Unicast {
                sender: 3,
                receiver: 2,
                vector: VECTOR_OF_LOAN,
            };
            // Both vCPUs exist.
            let _ = record(&self.contexts, &self.knobs, &ipi, NOW_NS, &());
        });
        state
    }

    fn choices(&self, state: &State<Local>, agent: u8, ops: &mut Vec<Op>) {
        let local = &state.local;
        let idle = |agent: u8| state.agents[usize::from(agent)].is_idle();
        match agent {
            SPINNER if local.found && !local.is_locked => ops.push(op::SERVE),
            SPINNER if !local.found => {
                if usize::from(local.sent) < VECTORS.len() {
                    ops.push(op::SEND);
                }
                if local.spun < SPINS {
                    ops.push(op::SPIN);
                }
            }
            // A tracing program of the vCPU and the scheduler's dispatch are one CPU's.
            BORROWER if local.current == 2 && idle(CPU1) => {
                if !local.ended {
                    ops.push(op::END);
                } else if !local.entered {
                    ops.push(op::ENTER);
                }
            }
            CPU1 if idle(BORROWER) => {
                if !local.is_locked {
                    ops.push(op::PICK);
                }
                if local.current == 1 && local.answered < local.sent {
                    ops.push(op::ANSWER);
                }
            }
            _ => {}
        }
    }

    fn execute(&self, local: &mut Local, _agent: u8, op: Op) {
        match op {
            op::SEND => {
                let vector = VECTORS[usize::from(local.sent) % VECTORS.len()];
                let ipi = Unicast {
                    sender: 0,
                    receiver: 1,
                    vector,
                };
                let _ = record(&self.contexts, &self.knobs, &ipi, NOW_NS, &());
                word::call(|| {
                    local.sent += 1;
                    0
                });
            }
            op::SPIN => self.spin(local),
            op::SERVE => self.serve(local),
            op::END => self.end(local),
            op::ENTER => {
                let returns = word::call(|| {
                    local.entered = true;
                    u64::from(core::mem::take(&mut local.returns))
                });
                if returns != 0 {
                    self.write(LENDER_AGAIN);
                }
            }
            op::PICK => self.pick(local),
            _ => {
                let vector = VECTORS[usize::from(local.answered) % VECTORS.len()];
                if self.eoi(1, vector) {
                    self.answered.store(1, Relaxed);
                }
                word::call(|| {
                    local.answered += 1;
                    0
                });
            }
        }
    }

    fn check(&self, state: &State<Local>) -> Option<Violation> {
        let (property, sentence) = match state.local.wrong? {
            Wrong::Payer(vcpu, Some(lender)) => (
                "payer-whole",
                format!("vCPU {vcpu} runs at the cost of vCPU {lender}, which has not lent to it"),
            ),
            Wrong::Payer(vcpu, None) => (
                "payer-whole",
                format!("vCPU {vcpu} runs at its own cost; its lender's loan is lost"),
            ),
            Wrong::Lost(vcpu) => (
                "wanted-kept",
                format!("CPU 1 is to run vCPU {vcpu} next, and forgets it"),
            ),
            Wrong::Awaited => (
                "answer-seen",
                "vCPU 1 has answered, and a later exit of vCPU 0 yields to it".to_owned(),
            ),
        };
        Some(Violation::new(property, sentence))
    }

    fn describe(&self, _agent: u8, op: Op) -> &'static str {
        match op {
            op::SEND => "send IPI to vCPU 1",
            op::SPIN => "enter, spin, exit",
            op::SERVE => "yield to vCPU 1",
            op::END => "EOI of the loan's IPI",
            op::ENTER => "enter: return the loan",
            op::PICK => "pick",
            _ => "vCPU 1: EOI",
        }
    }

    fn shown(&self, state: &State<Local>) -> Vec<(&'static str, String)> {
        let local = &state.local;
        let locked = if local.is_locked { "held" } else { "free" };
        vec![
            ("CPU 1 runs", format!("vCPU {}", local.current)),
            ("its queue's lock", locked.to_owned()),
        ]
    }
}
