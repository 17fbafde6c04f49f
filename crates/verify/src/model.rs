//! What a model is: shared words, agents with operations under way, and a state of its own.

use std::hash::{Hash, Hasher};

use crate::word::{self, Accessed, Layout, SLOTS};

/// Most agents of a model.
pub(crate) const AGENTS: usize = 7;

/// An operation of an agent: a model's own number, above 0.
pub(crate) type Op = u8;

/// No operation.
pub(crate) const IDLE: Op = 0;

/// One agent's part of the state; its words lie in the state's [`Tail`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Agent {
    /// What it does, [`IDLE`] between operations.
    pub(crate) op: Op,
    /// The operation that a preemption interrupted.
    pub(crate) suspended: Op,
    /// How many words it has read since the operation's start.
    log: u8,
    suspended_log: u8,
    /// Stores that other agents cannot see yet.
    buffer: u8,
}

impl Hash for Agent {
    /// All in one number, which is 0 for most agents.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self {
            op,
            suspended,
            log,
            suspended_log,
            buffer,
        } = *self;
        let packed = u32::from_le_bytes([op, suspended, log, suspended_log]);
        state.write_u64(u64::from(packed) | u64::from(buffer) << 32);
    }
}

impl Agent {
    /// Between operations, with nothing under way and all stores visible.
    pub(crate) fn is_idle(&self) -> bool {
        self.op == IDLE && self.suspended == IDLE && self.buffer == 0
    }

    /// Whether all of its stores are visible.
    pub(crate) const fn is_drained(&self) -> bool {
        self.buffer == 0
    }

    fn words(&self) -> usize {
        usize::from(self.log) + usize::from(self.suspended_log) + 2 * usize::from(self.buffer)
    }
}

/// Words of a tail that need no memory of their own.
const INLINE: usize = 14;

/// What agents have read and not yet made visible. For each agent: the words of its log and of its
/// suspended log, and the slot and value of each buffered store.
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    len: u8,
    inline: [u64; INLINE],
    /// All of them, if they are more than fit.
    more: Vec<u64>,
}

impl Tail {
    const EMPTY: Self = Self {
        len: 0,
        inline: [0; INLINE],
        more: Vec::new(),
    };

    fn words(&self) -> &[u64] {
        if self.more.is_empty() {
            &self.inline[..usize::from(self.len)]
        } else {
            &self.more
        }
    }

    fn set(&mut self, words: &[u64]) {
        self.more.clear();
        if let Some(inline) = self.inline.get_mut(..words.len()) {
            inline.copy_from_slice(words);
            self.len = words.len() as u8;
        } else {
            self.more.extend_from_slice(words);
        }
    }
}

impl PartialEq for Tail {
    fn eq(&self, rhs: &Self) -> bool {
        self.words() == rhs.words()
    }
}

impl Eq for Tail {}

impl Hash for Tail {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for &word in self.words() {
            state.write_u64(word);
        }
    }
}

/// A state of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State<L> {
    pub(crate) mem: [u64; SLOTS],
    pub(crate) agents: [Agent; AGENTS],
    tail: Tail,
    pub(crate) local: L,
}

impl<L: Clone> State<L> {
    fn copy_but_tail(&mut self, source: &Self) {
        self.mem = source.mem;
        self.agents = source.agents;
        self.local.clone_from(&source.local);
    }
}

impl<L> State<L> {
    /// Where the agent's words begin.
    fn start(&self, agent: u8) -> usize {
        let preceding = self.agents.iter().take(usize::from(agent));
        preceding.map(Agent::words).sum()
    }
}

/// The violation of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The property, by its name.
    pub property: &'static str,
    /// The flaw of the specification's list that this is, if it is one.
    pub flaw: Option<u8>,
    /// What was lost, as a sentence.
    pub sentence: String,
}

impl Violation {
    /// One that is no flaw of the specification's list.
    pub(crate) const fn new(property: &'static str, sentence: String) -> Self {
        Self {
            property,
            flaw: None,
            sentence,
        }
    }
}

/// A protocol with the world around it.
pub(crate) trait Model: Sync {
    /// Hardware, scheduler and what the properties need to remember.
    type Local: Clone + Eq + Hash + Send + Sync;

    /// The shared words.
    fn layout(&self) -> &Layout;
    /// Stores are buffered as on x86.
    fn tso(&self) -> bool {
        true
    }
    /// Changes of the model's own state count with each step, not at an operation's end: all
    /// of them are made in [`word::call`]s.
    fn keeps_each_step(&self) -> bool {
        false
    }
    /// Approximate heap memory of a state, in bytes.
    fn heap_bytes(&self) -> usize {
        0
    }
    /// Names of the agents.
    fn agents(&self) -> Vec<&'static str>;
    /// The state before anything has happened.
    fn initial(&self) -> State<Self::Local>;
    /// Operations that an idle agent may start.
    fn choices(&self, state: &State<Self::Local>, agent: u8, ops: &mut Vec<Op>);
    /// Whether the agent may take a step at all: its CPU runs it.
    fn runs(&self, _state: &State<Self::Local>, _agent: u8) -> bool {
        true
    }
    /// An operation that may start in the middle of the one under way.
    fn preempts(&self, _state: &State<Self::Local>, _agent: u8) -> Option<Op> {
        None
    }
    /// Whether a suspended operation continues.
    fn resumes(&self, _local: &Self::Local, _agent: u8) -> bool {
        false
    }
    /// Runs an operation; what it changes in `local` counts if it came to its end.
    fn execute(&self, local: &mut Self::Local, agent: u8, op: Op);
    /// What is wrong with a state.
    fn check(&self, state: &State<Self::Local>) -> Option<Violation>;
    /// An operation in words.
    fn describe(&self, agent: u8, op: Op) -> &'static str;
    /// What is to be shown of the model's own state, as name and value.
    fn shown(&self, _state: &State<Self::Local>) -> Vec<(&'static str, String)> {
        Vec::new()
    }
    /// A slot's value in words.
    fn value(&self, _slot: usize, value: u64) -> String {
        format!("{value:#x}")
    }
}

/// One step: which agent does what. A path is a list of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The agent's number.
    pub agent: u8,
    /// The operation it starts, or one of the two below.
    pub op: u8,
}

impl Choice {
    /// The pending operation continues.
    pub const CONTINUE: u8 = 0;
    /// The oldest store in the buffer becomes visible.
    pub const FLUSH: u8 = u8::MAX;
}

/// Buffers of a step, reused so that steps do not allocate.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    ops: Vec<Op>,
    step: word::Run,
    /// The tail as it becomes.
    tail: Vec<u64>,
    suspended: Vec<u64>,
}

/// Visits all steps that may come next, in a fixed order; whether all words were used as their
/// classes say. Each is made in `next`, which a visitor may exchange for any other state.
pub(crate) fn successors<M: Model>(
    model: &M,
    state: &State<M::Local>,
    next: &mut Box<State<M::Local>>,
    scratch: &mut Scratch,
    visit: &mut impl FnMut(Choice, &mut Box<State<M::Local>>, Option<Accessed>),
) -> bool {
    let mut sound = true;
    for agent in 0..AGENTS as u8 {
        let actor = state.agents[usize::from(agent)];
        if actor.buffer > 0 {
            let op = Choice::FLUSH;
            flush(state, agent, scratch, next);
            visit(Choice { agent, op }, next, None);
        }
        if !model.runs(state, agent) {
            continue;
        }
        let mut begin = |op, scratch: &mut Scratch| {
            let choice = Choice { agent, op };
            let (accessed, misuse) = take(model, state, choice, scratch, next);
            sound &= !misuse;
            visit(choice, next, accessed);
        };
        if actor.op != IDLE {
            begin(Choice::CONTINUE, scratch);
            if actor.suspended == IDLE
                && let Some(op) = model.preempts(state, agent)
            {
                begin(op, scratch);
            }
        } else if actor.suspended != IDLE && model.resumes(&state.local, agent) {
            begin(Choice::CONTINUE, scratch);
        } else {
            let mut ops = core::mem::take(&mut scratch.ops);
            ops.clear();
            model.choices(state, agent, &mut ops);
            for &op in &ops {
                begin(op, scratch);
            }
            scratch.ops = ops;
        }
    }
    sound
}

/// The oldest buffered store becomes visible.
fn flush<L: Clone>(state: &State<L>, agent: u8, scratch: &mut Scratch, next: &mut State<L>) {
    next.copy_but_tail(state);
    let actor = &mut next.agents[usize::from(agent)];
    let logs = usize::from(actor.log) + usize::from(actor.suspended_log);
    actor.buffer -= 1;
    let index = state.start(agent) + logs;
    let words = state.tail.words();
    let (slot, value) = (words[index], words[index + 1]);
    scratch.tail.clear();
    scratch.tail.extend_from_slice(&words[..index]);
    scratch.tail.extend_from_slice(&words[index + 2..]);
    next.tail.set(&scratch.tail);
    next.mem[slot as usize] = value;
}

/// Takes one step; also whether a word was used against its class.
fn take<M: Model>(
    model: &M,
    state: &State<M::Local>,
    choice: Choice,
    scratch: &mut Scratch,
    next: &mut State<M::Local>,
) -> (Option<Accessed>, bool) {
    let Scratch {
        step,
        tail,
        suspended,
        ..
    } = scratch;
    let words = state.tail.words();
    let mut actor = state.agents[usize::from(choice.agent)];
    let start = state.start(choice.agent);
    let (log, rest) = words[start..].split_at(usize::from(actor.log));
    let (was_suspended, rest) = rest.split_at(usize::from(actor.suspended_log));
    let (buffer, after) = rest.split_at(2 * usize::from(actor.buffer));
    suspended.clear();
    suspended.extend_from_slice(was_suspended);
    step.log.clear();
    if choice.op != Choice::CONTINUE {
        if actor.op != IDLE {
            actor.suspended = actor.op;
            suspended.clear();
            suspended.extend_from_slice(log);
        }
        actor.op = choice.op;
    } else if actor.op == IDLE {
        actor.op = core::mem::replace(&mut actor.suspended, IDLE);
        step.log.append(suspended);
    } else {
        step.log.extend_from_slice(log);
    }
    step.set_buffer(buffer);
    next.copy_but_tail(state);
    let (local, op) = (&mut next.local, actor.op);
    word::step(&mut next.mem, step, choice.agent, false, || {
        model.execute(local, choice.agent, op);
    });
    if step.ended {
        actor.op = IDLE;
    } else if !model.keeps_each_step() {
        next.local = state.local.clone();
    }
    actor.log = step.log.len() as u8;
    actor.suspended_log = suspended.len() as u8;
    actor.buffer = step.buffer.len() as u8;
    next.agents[usize::from(choice.agent)] = actor;
    tail.clear();
    tail.extend_from_slice(&words[..start]);
    tail.extend_from_slice(&step.log);
    tail.extend_from_slice(suspended);
    step.buffer
        .iter()
        .for_each(|(slot, value)| tail.extend([u64::from(*slot), *value]));
    tail.extend_from_slice(after);
    next.tail.set(tail);
    (step.accessed, step.misuse)
}

/// A state with nothing under way.
pub(crate) fn at_rest<L>(mem: [u64; SLOTS], local: L) -> State<L> {
    State {
        mem,
        agents: Default::default(),
        tail: Tail::EMPTY,
        local,
    }
}

/// Runs `body` to its end, as `agent` alone on the machine.
pub(crate) fn run_free<L, R>(state: &mut State<L>, agent: u8, body: impl FnOnce(&mut L) -> R) -> R {
    let local = &mut state.local;
    let mut run = word::Run::default();
    word::step(&mut state.mem, &mut run, agent, true, || body(local))
}
