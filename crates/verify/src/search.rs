//! The search: breadth first, so that the first counterexample is the shortest.
//!
//! Levels are cut into pieces that all cores expand; what they find is merged in the order of the
//! pieces. The result therefore does not depend on the number of cores or on their timing.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::model::{Choice, Model, State, Successor, Violation, successors};
use crate::word;

/// How far a search may go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most steps of a path; `None`: as many as there are.
    pub steps: Option<u32>,
    /// Most memory for states, in MiB.
    pub memory_mib: u64,
    /// How many threads.
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

/// What ended a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All states were seen.
    Exhausted,
    /// Only paths up to this many steps were seen.
    Bound {
        /// Steps.
        steps: u32,
    },
    /// Memory ran out; all paths up to this many steps were seen.
    Memory {
        /// Steps.
        steps: u32,
        /// The limit, in MiB.
        limit_mib: u64,
    },
    /// The first finding was enough.
    FirstFinding,
}

/// A violation and the shortest way to it.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What is wrong.
    pub violation: Violation,
    /// How to get there.
    pub path: Vec<Choice>,
}

/// What a search saw.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Distinct states.
    pub states: u64,
    /// Steps taken, those to states already seen included.
    pub transitions: u64,
    /// Steps of the longest shortest path.
    pub depth: u32,
    /// One finding for each property and flaw, in the order of their lengths.
    pub findings: Vec<Finding>,
    /// Why it ended.
    pub end: End,
}

/// States in one piece of a level.
const PIECE: usize = 256;
/// States expanded between two merges.
const BATCH: usize = 32 * 1024;

/// 128 bits of a state: two of the states ever explored are confused with a chance below 1e-20.
#[derive(Debug, Default)]
pub(crate) struct Fingerprint(u64, u64);

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xd6e8_feb8_6659_fd93;

fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Fingerprint {
    pub(crate) fn of(value: &impl Hash) -> [u64; 2] {
        let mut hasher = Self(K0, K1);
        value.hash(&mut hasher);
        let Self(a, b) = hasher;
        // Zero marks an empty place of the table.
        [mix(a ^ K1, K0 ^ b.rotate_left(32)) | 1, mix(b ^ K0, K1 ^ a)]
    }
    #[inline]
    fn word(&mut self, word: u64) {
        self.0 = mix(self.0 ^ word, K1);
        self.1 = mix(self.1.rotate_left(23) ^ word, K0).wrapping_add(word);
    }
}

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0 ^ self.1
    }
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            let mut raw = [0; 8];
            raw.copy_from_slice(word);
            self.word(u64::from_le_bytes(raw));
        }
        let rest = words.remainder();
        if !rest.is_empty() {
            let mut raw = [0; 8];
            raw[..rest.len()].copy_from_slice(rest);
            self.word(u64::from_le_bytes(raw) ^ (rest.len() as u64) << 56);
        }
    }
    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.word(u64::from(n));
    }
    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }
    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }
}

/// A set of fingerprints.
#[derive(Debug)]
struct Visited {
    places: Vec<[u64; 2]>,
    used: usize,
}

impl Visited {
    fn new() -> Self {
        Self {
            places: vec![[0; 2]; 1 << 16],
            used: 0,
        }
    }
    fn place(&self, print: [u64; 2]) -> (usize, bool) {
        let mask = self.places.len() - 1;
        let mut at = (print[1] as usize) & mask;
        loop {
            let there = self.places[at];
            if there == print {
                return (at, true);
            }
            if there == [0; 2] {
                return (at, false);
            }
            at = (at + 1) & mask;
        }
    }
    fn contains(&self, print: [u64; 2]) -> bool {
        self.place(print).1
    }
    fn insert(&mut self, print: [u64; 2]) -> bool {
        let (at, known) = self.place(print);
        if known {
            return false;
        }
        self.places[at] = print;
        self.used += 1;
        if self.used * 3 > self.places.len() * 2 {
            let larger = vec![[0; 2]; self.places.len() * 2];
            let old = core::mem::replace(&mut self.places, larger);
            for print in old.into_iter().filter(|p| *p != [0; 2]) {
                let (at, _) = self.place(print);
                self.places[at] = print;
            }
        }
        true
    }
    fn bytes(&self) -> u64 {
        (self.places.len() * 16) as u64
    }
}

struct Candidate<L> {
    print: [u64; 2],
    parent: u32,
    choice: Choice,
    state: State<L>,
    violation: Option<Violation>,
}

/// What one piece of a level led to.
struct Expanded<L> {
    new: Vec<Candidate<L>>,
    transitions: u64,
    sound: bool,
}

struct Search<'m, M: Model> {
    model: &'m M,
    limits: Limits,
    visited: Visited,
    nodes: Vec<(u32, Choice)>,
    outcome: Outcome,
}

/// Explores a model.
pub(crate) fn explore<M: Model>(model: &M, limits: Limits) -> Outcome {
    word::install(model.layout(), model.tso());
    let initial = model.initial();
    let mut search = Search {
        model,
        limits,
        visited: Visited::new(),
        nodes: Vec::new(),
        outcome: Outcome {
            states: 0,
            transitions: 0,
            depth: 0,
            findings: Vec::new(),
            end: End::Exhausted,
        },
    };
    let (agent, op) = (0, 0);
    let first = Candidate {
        print: Fingerprint::of(&initial),
        parent: 0,
        choice: Choice { agent, op },
        violation: model.check(&initial),
        state: initial,
    };
    let mut level = Vec::new();
    search.add(first, &mut level);
    search.run(level);
    search.outcome.states = search.nodes.len() as u64;
    search.outcome
}

impl<M: Model> Search<'_, M> {
    fn run(&mut self, mut level: Vec<(u32, State<M::Local>)>) {
        while !level.is_empty() {
            if self.limits.first_only && !self.outcome.findings.is_empty() {
                self.outcome.end = End::FirstFinding;
                return;
            }
            let steps = self.outcome.depth;
            if self.limits.steps == Some(steps) {
                self.outcome.end = End::Bound { steps };
                return;
            }
            let mut next = Vec::new();
            for batch in level.chunks(BATCH) {
                for expanded in self.expand(batch) {
                    self.outcome.transitions += expanded.transitions;
                    assert!(
                        expanded.sound,
                        "a word of the model is used against its class"
                    );
                    for candidate in expanded.new {
                        self.add(candidate, &mut next);
                    }
                }
                if self.bytes(level.len() + next.len()) > self.limits.memory_mib << 20 {
                    let limit_mib = self.limits.memory_mib;
                    self.outcome.end = End::Memory { steps, limit_mib };
                    return;
                }
            }
            level = next;
            if !level.is_empty() {
                self.outcome.depth += 1;
            }
        }
    }

    fn bytes(&self, live: usize) -> u64 {
        let state = size_of::<State<M::Local>>() + 128;
        let table = self.visited.bytes();
        // A growing table exists twice for a moment.
        table + table / 2 + (self.nodes.capacity() * 8 + live * state) as u64
    }

    /// Adds a state unless it is known.
    fn add(&mut self, candidate: Candidate<M::Local>, next: &mut Vec<(u32, State<M::Local>)>) {
        if !self.visited.insert(candidate.print) {
            return;
        }
        let node = self.nodes.len() as u32;
        self.nodes.push((candidate.parent, candidate.choice));
        match candidate.violation {
            None => next.push((node, candidate.state)),
            Some(violation) => {
                let same = |f: &Finding| {
                    f.violation.property == violation.property && f.violation.flaw == violation.flaw
                };
                if !self.outcome.findings.iter().any(same) {
                    let path = self.path(node);
                    self.outcome.findings.push(Finding { violation, path });
                }
            }
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

    fn expand(&self, batch: &[(u32, State<M::Local>)]) -> Vec<Expanded<M::Local>> {
        let pieces: Vec<_> = batch.chunks(PIECE).collect();
        if pieces.len() < 2 || self.limits.threads < 2 {
            return pieces.into_iter().map(|piece| self.piece(piece)).collect();
        }
        let done: Vec<Mutex<Option<Expanded<M::Local>>>> =
            pieces.iter().map(|_| Mutex::new(None)).collect();
        let turn = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.limits.threads.min(pieces.len()) {
                scope.spawn(|| {
                    word::install(self.model.layout(), self.model.tso());
                    loop {
                        let n = turn.fetch_add(1, Ordering::Relaxed);
                        let (Some(piece), Some(place)) = (pieces.get(n), done.get(n)) else {
                            return;
                        };
                        let expanded = self.piece(piece);
                        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(expanded);
                    }
                });
            }
        });
        let taken = done.into_iter();
        taken
            .filter_map(|place| place.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }

    fn piece(&self, piece: &[(u32, State<M::Local>)]) -> Expanded<M::Local> {
        let mut expanded = Expanded {
            new: Vec::new(),
            transitions: 0,
            sound: true,
        };
        let (mut ops, mut out) = (Vec::new(), Vec::new());
        for (node, state) in piece {
            expanded.sound &= successors(self.model, state, &mut ops, &mut out);
            expanded.transitions += out.len() as u64;
            for Successor { choice, state, .. } in out.drain(..) {
                let print = Fingerprint::of(&state);
                if self.visited.contains(print) {
                    continue;
                }
                expanded.new.push(Candidate {
                    print,
                    parent: *node,
                    choice,
                    violation: self.model.check(&state),
                    state,
                });
            }
        }
        expanded
    }
}
