//! What a model is: shared words, agents with operations under way, and a state of its own.

use std::hash::Hash;

use crate::word::{self, Buffered, Layout, Made, Run, SLOTS};

/// Most agents of a model.
pub(crate) const AGENTS: usize = 7;

/// An operation of an agent: a model's own number, above 0.
pub(crate) type Op = u8;

/// No operation.
pub(crate) const IDLE: Op = 0;

/// One agent's part of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Agent {
    /// What it does, [`IDLE`] between operations.
    pub(crate) op: Op,
    /// What it has read since the operation's start.
    log: Vec<u64>,
    /// What it did when it was preempted.
    pub(crate) suspended: Op,
    suspended_log: Vec<u64>,
    /// Stores that nobody else sees yet.
    buffer: Vec<Buffered>,
}

impl Agent {
    /// Between operations, with nothing under way and all stores visible.
    pub(crate) fn is_idle(&self) -> bool {
        self.op == IDLE && self.suspended == IDLE && self.buffer.is_empty()
    }
}

/// A state of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State<L> {
    pub(crate) mem: [u64; SLOTS],
    pub(crate) agents: [Agent; AGENTS],
    pub(crate) local: L,
}

/// What goes wrong in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The property, by its name.
    pub property: &'static str,
    /// The flaw of the specification's list that this is, if it is one.
    pub flaw: Option<u8>,
    /// What was lost, as a sentence.
    pub sentence: String,
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
    /// Whether a suspended operation goes on.
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
    /// The operation under way goes on.
    pub const CONTINUE: u8 = 0;
    /// The oldest store in the buffer becomes visible.
    pub const FLUSH: u8 = u8::MAX;
}

/// A step and where it leads.
pub(crate) struct Successor<L> {
    pub(crate) choice: Choice,
    pub(crate) state: State<L>,
    pub(crate) made: Option<Made>,
}

/// All steps that may come next, in a fixed order.
pub(crate) fn successors<M: Model>(
    model: &M,
    state: &State<M::Local>,
    ops: &mut Vec<Op>,
    out: &mut Vec<Successor<M::Local>>,
) -> bool {
    let mut sound = true;
    for agent in 0..AGENTS as u8 {
        let own = &state.agents[usize::from(agent)];
        if !own.buffer.is_empty() {
            out.push(flush(state, agent));
        }
        if !model.runs(state, agent) {
            continue;
        }
        let mut begin = |op, from: &State<M::Local>| {
            let choice = Choice { agent, op };
            let (next, misuse) = take(model, from, choice);
            sound &= !misuse;
            out.push(next);
        };
        if own.op != IDLE {
            begin(Choice::CONTINUE, state);
            if own.suspended == IDLE
                && let Some(op) = model.preempts(state, agent)
            {
                begin(op, state);
            }
        } else if own.suspended != IDLE && model.resumes(&state.local, agent) {
            begin(Choice::CONTINUE, state);
        } else {
            ops.clear();
            model.choices(state, agent, ops);
            for &op in ops.iter() {
                begin(op, state);
            }
        }
    }
    sound
}

fn flush<L: Clone>(state: &State<L>, agent: u8) -> Successor<L> {
    let mut next = state.clone();
    let (slot, value) = next.agents[usize::from(agent)].buffer.remove(0);
    next.mem[usize::from(slot)] = value;
    let op = Choice::FLUSH;
    Successor {
        choice: Choice { agent, op },
        state: next,
        made: None,
    }
}

/// Takes one step; also whether a word was used against its class.
fn take<M: Model>(
    model: &M,
    state: &State<M::Local>,
    choice: Choice,
) -> (Successor<M::Local>, bool) {
    let mut next = state.clone();
    let own = &mut next.agents[usize::from(choice.agent)];
    if choice.op != Choice::CONTINUE {
        if own.op != IDLE {
            own.suspended = own.op;
            own.suspended_log = core::mem::take(&mut own.log);
        }
        own.op = choice.op;
    } else if own.op == IDLE {
        own.op = core::mem::replace(&mut own.suspended, IDLE);
        own.log = core::mem::take(&mut own.suspended_log);
    }
    let op = own.op;
    let mut run = Run {
        mem: next.mem,
        log: core::mem::take(&mut own.log),
        buffer: core::mem::take(&mut own.buffer),
        ended: false,
        misuse: false,
        made: None,
    };
    let local = &mut next.local;
    word::step(&mut run, choice.agent, false, || {
        model.execute(local, choice.agent, op);
    });
    next.mem = run.mem;
    let own = &mut next.agents[usize::from(choice.agent)];
    own.buffer = run.buffer;
    own.log = run.log;
    if run.ended {
        own.op = IDLE;
    } else if !model.keeps_each_step() {
        next.local = state.local.clone();
    }
    let made = run.made;
    let state = next;
    (
        Successor {
            choice,
            state,
            made,
        },
        run.misuse,
    )
}

/// A state with nothing under way.
pub(crate) fn at_rest<L>(mem: [u64; SLOTS], local: L) -> State<L> {
    State {
        mem,
        agents: Default::default(),
        local,
    }
}

/// Runs `body` to its end, as `agent` alone on the machine.
pub(crate) fn run_free<L, R>(state: &mut State<L>, agent: u8, body: impl FnOnce(&mut L) -> R) -> R {
    let mut run = Run {
        mem: state.mem,
        log: Vec::new(),
        buffer: Vec::new(),
        ended: false,
        misuse: false,
        made: None,
    };
    let local = &mut state.local;
    let result = word::step(&mut run, agent, true, || body(local));
    state.mem = run.mem;
    result
}
