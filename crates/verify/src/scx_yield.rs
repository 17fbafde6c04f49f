//! `scx-yield`: IPI tracking and directed yields of `scx_stealtime`, where maps change step by step.
//!
//! CPU 0 runs vCPU 0, which sends to vCPU 1, then to vCPUs 3 and 1 at once, and spins. CPU 1 runs
//! vCPU 2 on a loan of vCPU 3; vCPUs 1 and 3 wait there. A yield of vCPU 0 wants vCPU 1 on CPU 1,
//! under the run queue's lock. Meanwhile vCPU 2 ends the interrupt of vCPU 3, and its next entry wants
//! vCPU 3 there, without that lock.

use core::sync::atomic::Ordering::Relaxed;

use stealtime_hypervisor::ipi_tracking::{
    IpiContext, IpiKnobs, Unicast, confirmed_receiver, eoi, record,
};
use stealtime_hypervisor::scx::{Answers, Receiver, WantWord, Wanted};
use stealtime_hypervisor::word::AtomicWord as _;

use crate::model::{Model, Op, State, Violation, at_rest, run_free};
use crate::word::{self, Class, Layout, Word, WordInfo};

const VCPUS: usize = 4;
/// Receivers of an IPI of the model.
const RECEIVERS: usize = 2;
/// Words of a vCPU's answers, and of its record in the series.
const ANSWERS: [[&str; 3 + RECEIVERS]; VCPUS] = [
    [
        "due.0",
        "time.0",
        "received.0",
        "receiver.0.0",
        "receiver.0.1",
    ],
    [
        "due.1",
        "time.1",
        "received.1",
        "receiver.1.0",
        "receiver.1.1",
    ],
    [
        "due.2",
        "time.2",
        "received.2",
        "receiver.2.0",
        "receiver.2.1",
    ],
    [
        "due.3",
        "time.3",
        "received.3",
        "receiver.3.0",
        "receiver.3.1",
    ],
];
const SERIES: [[&str; 3]; VCPUS] = [
    ["outgoing.0", "time.0", "sender.0"],
    ["outgoing.1", "time.1", "sender.1"],
    ["outgoing.2", "time.2", "sender.2"],
    ["outgoing.3", "time.3", "sender.3"],
];
/// vCPU 0's IPIs: vectors, and receivers in the order of acceptance.
const VECTORS: [u8; 2] = [0x41, 0x52];
const SENT_TO: [&[u32]; 2] = [&[1], &[3, 1]];
/// The vector of the IPI of vCPU 3 to vCPU 2.
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
    /// Records of the series: an EOI clears the sender's name after the record.
    SenderCleared,
    /// An answer clears its bit whatever IPI the bit is of.
    Unnumbered,
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
    /// The vCPU has not answered, and no yield names it.
    Forgotten(u32),
}

/// All that is not in shared words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Local {
    sent: u8,
    /// EOIs of vCPU 1 that have begun, and those that are over.
    ending: u8,
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
    contexts: Vec<Answers<Word, RECEIVERS>>,
    /// Words of the faults: records of the series, want, lender, bits of vCPU 0's IPI.
    series: Vec<IpiContext<Word>>,
    want: WantWord<Word>,
    apart: [Word; 3],
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

/// The words in the order of [`ScxYield::new`].
fn infos(fault: Fault) -> Vec<WordInfo> {
    use Class::{Constant, Private, Shared};
    let is_series = fault == Fault::SenderCleared;
    let is_apart = fault.is_apart();
    let mut infos = Vec::new();
    let mut add = |name, class, exists: bool| {
        let class = if exists { class } else { Constant };
        infos.push(WordInfo { name, class });
    };
    for (vcpu, names) in ANSWERS.into_iter().enumerate() {
        let [due, time, received, receivers @ ..] = names;
        let classes = match vcpu {
            0 => [Shared, Private(SPINNER), Constant, Private(SPINNER)],
            1 => [Constant, Constant, Shared, Constant],
            2 => [Constant, Constant, Private(BORROWER), Constant],
            _ => [
                Private(BORROWER),
                Private(BORROWER),
                Private(SPINNER),
                Private(BORROWER),
            ],
        };
        let [
            class_of_due,
            class_of_time,
            class_of_received,
            class_of_receivers,
        ] = classes;
        add(due, class_of_due, !is_series);
        add(time, class_of_time, !is_series);
        add(received, class_of_received, !is_series);
        for receiver in receivers {
            add(receiver, class_of_receivers, !is_series);
        }
    }
    for (vcpu, [outgoing, time, sender]) in SERIES.into_iter().enumerate() {
        let classes = match vcpu {
            0 => [Shared, Private(SPINNER), Constant],
            1 => [Constant, Constant, Shared],
            2 => [Constant, Constant, Private(BORROWER)],
            _ => [Private(BORROWER), Private(BORROWER), Private(SPINNER)],
        };
        for (name, class) in [outgoing, time, sender].into_iter().zip(classes) {
            add(name, class, is_series);
        }
    }
    add("want", Shared, !is_apart);
    add("want", Shared, is_apart);
    add("lender", Shared, fault == Fault::SplitWords);
    add("bits.0", Shared, fault == Fault::Unnumbered);
    add("answered.0", Shared, true);
    infos
}

impl ScxYield {
    pub(crate) fn new(fault: Fault) -> Self {
        let create = || {
            let contexts = (0..VCPUS).map(|_| Answers::new()).collect();
            let series = (0..VCPUS).map(|_| IpiContext::new()).collect();
            let want = WantWord::new();
            let apart = [(); 3].map(|()| Word::new(0));
            (contexts, series, want, apart, Word::new(0))
        };
        let infos = infos(fault);
        let ((contexts, series, want, apart, answered), layout) =
            word::allocate(create, |n| infos[n % infos.len()].clone());
        Self {
            contexts,
            series,
            want,
            apart,
            answered,
            knobs: IpiKnobs::default(),
            layout,
            fault,
        }
    }

    fn write(&self, wanted: Wanted) {
        let [word, lender, _] = &self.apart;
        match self.fault {
            Fault::None | Fault::SenderCleared | Fault::Unnumbered => self.want.write(wanted),
            Fault::ClearedAfter => word.store(wanted.to_word(), Relaxed),
            Fault::SplitWords => {
                lender.store(u64::from(wanted.lender), Relaxed);
                word.store(u64::from(wanted.thread), Relaxed);
            }
        }
    }

    /// What a pick finds, and the vCPU that it clears without having found it.
    fn take(&self) -> (Option<Wanted>, Option<u32>) {
        let [word, lender, _] = &self.apart;
        match self.fault {
            Fault::None | Fault::SenderCleared | Fault::Unnumbered => (self.want.take(), None),
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

    /// vCPU 0 sends its next IPI.
    fn send(&self, local: &mut Local) {
        let ipi = usize::from(local.sent) % VECTORS.len();
        let vector = VECTORS[ipi];
        if self.fault == Fault::SenderCleared {
            let ipi = Unicast {
                sender: 0,
                receiver: 1,
                vector,
            };
            // Both vCPUs exist.
            let _ = record(&self.series, &self.knobs, &ipi, NOW_NS, &());
        } else {
            self.contexts[0].send(NOW_NS);
            let [.., bits] = &self.apart;
            if self.fault == Fault::Unnumbered {
                bits.store(0, Relaxed);
            }
            for (index, &vcpu) in SENT_TO[ipi].iter().enumerate() {
                let receiver = Receiver {
                    vcpu,
                    index,
                    vector,
                };
                self.contexts[0].accept(0, &self.contexts[vcpu as usize], receiver);
                if self.fault == Fault::Unnumbered {
                    bits.fetch_or(1 << vcpu, Relaxed);
                }
            }
        }
        word::call(|| {
            local.sent += 1;
            0
        });
    }

    /// Whether vCPU 0 waits for each of its receivers, by number of the vCPU.
    fn due(&self) -> [bool; VCPUS] {
        let mut due = [false; VCPUS];
        match self.fault {
            Fault::SenderCleared => {
                let hint = confirmed_receiver(&self.series, &self.knobs, 0, NOW_NS);
                due[1] = hint.is_some_and(|hint| hint.receiver == 1);
            }
            Fault::Unnumbered => {
                let bits = self.apart[2].load(Relaxed);
                due = core::array::from_fn(|vcpu| bits >> vcpu & 1 != 0);
            }
            Fault::None | Fault::SplitWords | Fault::ClearedAfter => {
                for vcpu in self.contexts[0].due(self.knobs.ipi_window_ns, NOW_NS) {
                    due[vcpu as usize % VCPUS] = true;
                }
            }
        }
        due
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
        let [_, awaits_1, _, awaits_3] = self.due();
        word::call(|| {
            local.found = awaits_1;
            if awaits_1 && has_answer != 0 {
                local.wrong = Some(Wrong::Awaited);
            }
            // Of the series' records, the first IPI has one receiver, and so has the second.
            if !awaits_1 && local.ending < local.sent {
                local.wrong = Some(Wrong::Forgotten(1));
            } else if !awaits_3 && local.sent == 2 && self.fault != Fault::SenderCleared {
                local.wrong = Some(Wrong::Forgotten(3));
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

    /// Whether it is the last answer to an IPI.
    fn eoi(&self, vcpu: u32, vector: u8) -> bool {
        if self.fault == Fault::SenderCleared {
            let settled = eoi(&self.series, &self.knobs, vcpu, Some(vector), NOW_NS, &());
            // The vCPU exists.
            return settled.unwrap_or(false);
        }
        if self.fault == Fault::Unnumbered && vcpu == 1 {
            self.apart[2].fetch_and(!(1 << vcpu), Relaxed);
        }
        Answers::eoi(&self.contexts, vcpu, vector).is_some_and(|answered| answered.is_last)
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
            ending: 0,
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
            if self.fault == Fault::SenderCleared {
                let ipi = Unicast {
                    sender: 3,
                    receiver: 2,
                    vector: VECTOR_OF_LOAN,
                };
                let _ = record(&self.series, &self.knobs, &ipi, NOW_NS, &());
                return;
            }
            let receiver = Receiver {
                vcpu: 2,
                index: 0,
                vector: VECTOR_OF_LOAN,
            };
            self.contexts[3].send(NOW_NS);
            self.contexts[3].accept(3, &self.contexts[2], receiver);
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
            op::SEND => self.send(local),
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
                word::call(|| {
                    local.ending += 1;
                    0
                });
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
            Wrong::Forgotten(vcpu) => (
                "answer-due",
                format!("vCPU {vcpu} has not answered, and vCPU 0 does not wait for it"),
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
            op::SEND => "send the next IPI",
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
