//! The search: breadth first, so that the first counterexample is the shortest.
//!
//! All cores expand pieces of a level, and their results are merged in the order of the pieces.
//! The outcome therefore does not depend on the number of cores or on their timing.

use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use crate::fingerprint::{Fingerprint, Visited};
use crate::model::{Choice, Model, Scratch, State, Violation, successors};
use crate::word;

/// The limits of a search.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest number of steps of a path; `None` for no limit.
    pub steps: Option<u32>,
    /// Largest memory for states, in MiB.
    pub memory_mib: u64,
    /// Number of threads.
    pub threads: usize,
    /// Stop at the first finding.
    pub first_only: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            steps: None,
            memory_mib: 3072,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            first_only: false,
        }
    }
}

/// The end of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All states were visited.
    Exhausted,
    /// All paths up to this many steps were visited.
    Bound {
        /// Steps.
        steps: u32,
    },
    /// The memory limit was reached; all paths up to this many steps were visited.
    Memory {
        /// Steps.
        steps: u32,
        /// The limit, in MiB.
        limit_mib: u64,
    },
    /// The search stopped at the first finding.
    FirstFinding,
}

/// A violation and the shortest path to it.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The violation.
    pub violation: Violation,
    /// The steps from the initial state.
    pub path: Vec<Choice>,
}

/// The outcome of a search.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Distinct states.
    pub states: u64,
    /// Steps, including those to known states.
    pub transitions: u64,
    /// Length of the longest shortest path.
    pub depth: u32,
    /// One finding for each property and flaw, in the order of their lengths.
    pub findings: Vec<Finding>,
    /// The end of the search.
    pub end: End,
}

/// States in one piece of a level.
const PIECE: usize = 256;
/// States expanded between two merges.
const BATCH: usize = 32 * 1024;

/// States of one level, with their nodes.
struct Level<L> {
    nodes: Vec<u32>,
    states: Vec<State<L>>,
}

impl<L> Level<L> {
    const fn new() -> Self {
        Self {
            nodes: Vec::new(),
            states: Vec::new(),
        }
    }
    fn clear(&mut self) {
        self.nodes.clear();
        self.states.clear();
    }
}

/// Steps that are looked up together: the table of all states is larger than caches, and its loads overlap.
const TOGETHER: usize = 16;

/// Steps that have been taken and not yet looked up, with their states.
struct Bunch<L> {
    steps: Vec<Step>,
    states: Vec<Box<State<L>>>,
}

struct Step {
    print: [u64; 2],
    parent: u32,
    choice: Choice,
    /// By the first place of the table alone.
    is_known: bool,
}

impl<L: Clone + Hash> Bunch<L> {
    fn new(state: &State<L>) -> Self {
        Self {
            steps: Vec::with_capacity(TOGETHER),
            states: vec![Box::new(state.clone()); TOGETHER],
        }
    }

    /// Takes a state in exchange for another one. Returns whether it is time to look up.
    fn push(&mut self, parent: u32, choice: Choice, state: &mut Box<State<L>>) -> bool {
        let print = Fingerprint::of(&**state);
        core::mem::swap(&mut self.states[self.steps.len()], state);
        self.steps.push(Step {
            print,
            parent,
            choice,
            is_known: false,
        });
        self.steps.len() >= TOGETHER
    }

    /// The steps and states that may be new ones.
    fn look_up<'t>(
        &'t mut self,
        visited: &Visited,
    ) -> impl Iterator<Item = (&'t Step, &'t State<L>)> + use<'t, L> {
        for step in &mut self.steps {
            step.is_known = visited.is_first(step.print);
        }
        let states = self.states.iter().map(|state| &**state);
        let steps = self.steps.iter().zip(states);
        steps.filter(|(step, _)| !step.is_known)
    }
}

/// Takes all steps from some states, and gives them to `settle` in bunches. Returns how many steps, and
/// whether all words were used as their classes say.
fn take_all<M: Model>(
    model: &M,
    nodes: &[u32],
    states: &[State<M::Local>],
    mut settle: impl FnMut(&mut Bunch<M::Local>),
) -> (u64, bool) {
    let mut scratch = Scratch::default();
    let mut successor = Box::new(model.initial());
    let mut bunch = Bunch::new(&successor);
    let (mut transitions, mut sound) = (0, true);
    for (&parent, state) in nodes.iter().zip(states) {
        let mut visit = |choice, state: &mut Box<State<M::Local>>, _| {
            transitions += 1;
            if bunch.push(parent, choice, state) {
                settle(&mut bunch);
                bunch.steps.clear();
            }
        };
        sound &= successors(model, state, &mut successor, &mut scratch, &mut visit);
    }
    settle(&mut bunch);
    (transitions, sound)
}

struct Candidate<L> {
    print: [u64; 2],
    parent: u32,
    choice: Choice,
    state: State<L>,
}

/// The successors of one piece of a level.
struct Expanded<L> {
    new: Vec<Candidate<L>>,
    transitions: u64,
    sound: bool,
}

struct Search<'m, M: Model> {
    model: &'m M,
    limits: Limits,
    visited: Visited,
    /// By the node of each state: its parent's node, and the step from there.
    nodes: Vec<(u32, Choice)>,
    transitions: u64,
    sound: bool,
    findings: Vec<Finding>,
}

/// Explores a model.
pub(crate) fn explore<M: Model>(model: &M, limits: Limits) -> Outcome {
    word::install(model.layout(), model.tso());
    let mut search = Search {
        model,
        limits,
        visited: Visited::new(),
        nodes: Vec::new(),
        transitions: 0,
        sound: true,
        findings: Vec::new(),
    };
    let initial = model.initial();
    let mut level = Level::new();
    let print = Fingerprint::of(&initial);
    let (agent, op) = (0, 0);
    search.add(print, 0, Choice { agent, op }, &initial, &mut level);
    let (depth, end) = search.run(level);
    Outcome {
        states: search.nodes.len() as u64,
        transitions: search.transitions,
        depth,
        findings: search.findings,
        end,
    }
}

impl<M: Model> Search<'_, M> {
    fn run(&mut self, mut level: Level<M::Local>) -> (u32, End) {
        let mut depth = 0;
        let mut next = Level::new();
        while !level.states.is_empty() {
            if self.limits.first_only && !self.findings.is_empty() {
                return (depth, End::FirstFinding);
            }
            let steps = depth;
            if self.limits.steps == Some(steps) {
                return (depth, End::Bound { steps });
            }
            let batches = level.nodes.chunks(BATCH).zip(level.states.chunks(BATCH));
            for (nodes, states) in batches {
                self.expand(nodes, states, &mut next);
                assert!(self.sound, "a word of the model is used against its class");
                if self.bytes(level.states.len() + next.states.len()) > self.limits.memory_mib << 20
                {
                    let limit_mib = self.limits.memory_mib;
                    return (depth, End::Memory { steps, limit_mib });
                }
            }
            core::mem::swap(&mut level, &mut next);
            next.clear();
            depth += u32::from(!level.states.is_empty());
        }
        (depth, End::Exhausted)
    }

    fn bytes(&self, live: usize) -> u64 {
        let state = size_of::<State<M::Local>>() + self.model.heap_bytes();
        let table = self.visited.bytes();
        // A growing table is in memory twice while it is copied, and so are the lists.
        table + table / 2 + (self.nodes.capacity() * 8 + live * state * 3 / 2) as u64
    }

    /// Adds a state unless it is known.
    fn add(
        &mut self,
        print: [u64; 2],
        parent: u32,
        choice: Choice,
        state: &State<M::Local>,
        next: &mut Level<M::Local>,
    ) {
        if !self.visited.insert(print) {
            return;
        }
        let node = self.nodes.len() as u32;
        self.nodes.push((parent, choice));
        match self.model.check(state) {
            None => {
                next.nodes.push(node);
                next.states.push(state.clone());
            }
            Some(violation) => self.found(violation, node),
        }
    }

    /// Records a violation, which ends its path. The first one of each kind is the shortest.
    fn found(&mut self, violation: Violation, node: u32) {
        let known = |f: &Finding| {
            f.violation.property == violation.property && f.violation.flaw == violation.flaw
        };
        if !self.findings.iter().any(known) {
            let path = self.path(node);
            self.findings.push(Finding { violation, path });
        }
    }

    fn path(&self, mut node: u32) -> Vec<Choice> {
        let mut path = Vec::new();
        while node != 0 {
            let (parent, choice) = self.nodes[node as usize];
            path.push(choice);
            node = parent;
        }
        path.reverse();
        path
    }

    /// Takes all steps from some states of a level.
    fn expand(&mut self, nodes: &[u32], states: &[State<M::Local>], next: &mut Level<M::Local>) {
        if states.len() <= PIECE || self.limits.threads < 2 {
            self.expand_alone(nodes, states, next);
            return;
        }
        for expanded in self.expand_together(nodes, states) {
            self.transitions += expanded.transitions;
            self.sound &= expanded.sound;
            for new in expanded.new {
                self.add(new.print, new.parent, new.choice, &new.state, next);
            }
        }
    }

    fn expand_alone(
        &mut self,
        nodes: &[u32],
        states: &[State<M::Local>],
        next: &mut Level<M::Local>,
    ) {
        let (transitions, sound) = take_all(self.model, nodes, states, |bunch| {
            for (step, state) in bunch.look_up(&self.visited) {
                self.add(step.print, step.parent, step.choice, state, next);
            }
        });
        self.transitions += transitions;
        self.sound &= sound;
    }

    fn expand_together(
        &self,
        nodes: &[u32],
        states: &[State<M::Local>],
    ) -> Vec<Expanded<M::Local>> {
        let pieces: Vec<_> = nodes.chunks(PIECE).zip(states.chunks(PIECE)).collect();
        let results: Vec<Mutex<Option<Expanded<M::Local>>>> =
            pieces.iter().map(|_| Mutex::new(None)).collect();
        let turn = AtomicUsize::new(0);
        let next = || turn.fetch_add(1, Ordering::Relaxed);
        let work = || {
            let mut n = next();
            while let (Some((nodes, states)), Some(slot)) = (pieces.get(n), results.get(n)) {
                let expanded = self.piece(nodes, states);
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(expanded);
                n = next();
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.limits.threads.min(pieces.len()) {
                let helper = || {
                    word::install(self.model.layout(), self.model.tso());
                    work();
                };
                // At a limit of threads, those that run expand all pieces.
                if Builder::new().spawn_scoped(scope, helper).is_err() {
                    break;
                }
            }
            work();
        });
        let expanded: Vec<Expanded<M::Local>> = results
            .into_iter()
            .filter_map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect();
        // A missing piece would hide states, and with them violations.
        assert_eq!(expanded.len(), pieces.len(), "a piece was not expanded");
        expanded
    }

    fn piece(&self, nodes: &[u32], states: &[State<M::Local>]) -> Expanded<M::Local> {
        let mut new = Vec::new();
        let (transitions, sound) = take_all(self.model, nodes, states, |bunch| {
            for (step, state) in bunch.look_up(&self.visited) {
                if !self.visited.contains(step.print) {
                    new.push(Candidate {
                        print: step.print,
                        parent: step.parent,
                        choice: step.choice,
                        state: state.clone(),
                    });
                }
            }
        });
        Expanded {
            new,
            transitions,
            sound,
        }
    }
}
