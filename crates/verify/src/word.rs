//! The instrumented word: hypervisor code executes on it one shared access at a time.
//!
//! There are no threads. Each step executes an agent's operation from its start. Earlier accesses
//! return values of a log, the next one takes effect, and all later ones are stopped. A stopped
//! access returns 0 and changes nothing, and the result of the operation is discarded. The state
//! of a pending operation is therefore its log, a list of numbers that can be hashed and replayed.
//!
//! The memory is that of x86: plain stores wait in a buffer of their CPU, which its own loads see.
//! Locked instructions and full fences wait until the buffer is empty.

use core::sync::atomic::Ordering;
use std::cell::RefCell;

use stealtime_hypervisor::posted_interrupt::{CpuId, CpuList, VcpuId, WakeupLists};
use stealtime_hypervisor::word::AtomicWord;

/// Largest number of words of a model, constant ones included.
pub(crate) const MAX_WORDS: usize = 64;
/// Largest number of words with content that is part of the state.
pub(crate) const SLOTS: usize = 16;
/// Largest number of stores in a buffer; a further one makes the oldest visible first.
pub(crate) const BUFFER: usize = 3;

/// The agents that access a word. Other agents may interleave at accesses of shared words only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// No agent changes it.
    Constant,
    /// Only this agent accesses it.
    Private(u8),
    /// All agents access it.
    Shared,
}

/// A model's description of one of its words.
#[derive(Clone, Debug)]
pub(crate) struct WordInfo {
    pub(crate) name: &'static str,
    pub(crate) class: Class,
}

/// All words of a model.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) words: Vec<WordInfo>,
    slot: [u8; MAX_WORDS],
    constant: [u64; MAX_WORDS],
    /// Initial content of the slots.
    pub(crate) initial: [u64; SLOTS],
    pub(crate) slot_names: Vec<&'static str>,
}

const NO_SLOT: u8 = u8::MAX;

/// Creates the words of a model: `create` makes all shared memory, and `info` describes each word
/// in the order of creation.
pub(crate) fn allocate<T>(
    create: impl FnOnce() -> T,
    info: impl Fn(usize) -> WordInfo,
) -> (T, Layout) {
    CONTEXT.with(|c| c.borrow_mut().allocated = Some(Vec::new()));
    let created = create();
    let values = CONTEXT.with(|c| c.borrow_mut().allocated.take().unwrap_or_default());
    assert!(
        values.len() <= MAX_WORDS,
        "a model of {} words",
        values.len()
    );
    let mut layout = Layout {
        words: (0..values.len()).map(info).collect(),
        slot: [NO_SLOT; MAX_WORDS],
        constant: [0; MAX_WORDS],
        initial: [0; SLOTS],
        slot_names: Vec::new(),
    };
    for (id, &value) in values.iter().enumerate() {
        layout.constant[id] = value;
        if layout.words[id].class != Class::Constant {
            let slot = layout.slot_names.len();
            assert!(slot < SLOTS, "a model of more than {SLOTS} changing words");
            layout.slot[id] = slot as u8;
            layout.initial[slot] = value;
            layout.slot_names.push(layout.words[id].name);
        }
    }
    (created, layout)
}

/// A store that is not visible yet: slot and value.
pub(crate) type Buffered = (u8, u64);

/// The access of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Load,
    Store,
    Rmw,
    Fence,
    LineOwned,
    Ahead,
    List,
    /// A call under a lock: see [`call`].
    Call,
}

/// One access, for the table of a counterexample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessed {
    pub(crate) access: Access,
    pub(crate) word: u16,
}

#[derive(Debug)]
struct Context {
    allocated: Option<Vec<u64>>,
    slot: [u8; MAX_WORDS],
    constant: [u64; MAX_WORDS],
    private: [u8; MAX_WORDS],
    mem: [u64; SLOTS],
    log: Vec<u64>,
    position: usize,
    buffer: Vec<Buffered>,
    agent: u8,
    left: u8,
    atomic: bool,
    stopped: bool,
    free: bool,
    tso: bool,
    fences: u32,
    without_fence: Option<u32>,
    rmws: u32,
    weak_rmw: Option<u32>,
    ahead: Option<[u64; SLOTS]>,
    misuse: bool,
    accessed: Option<Accessed>,
}

const SHARED: u8 = u8::MAX;

thread_local! {
    static CONTEXT: RefCell<Context> = const { RefCell::new(Context {
        allocated: None,
        slot: [NO_SLOT; MAX_WORDS],
        constant: [0; MAX_WORDS],
        private: [SHARED; MAX_WORDS],
        mem: [0; SLOTS],
        log: Vec::new(),
        position: 0,
        buffer: Vec::new(),
        agent: 0,
        left: 0,
        atomic: false,
        stopped: false,
        free: false,
        tso: false,
        fences: 0,
        without_fence: None,
        rmws: 0,
        weak_rmw: None,
        ahead: None,
        misuse: false,
        accessed: None,
    }) };
}

/// Installs a model's words for this thread.
pub(crate) fn install(layout: &Layout, tso: bool) {
    CONTEXT.with(|c| {
        let mut c = c.borrow_mut();
        c.slot = layout.slot;
        c.constant = layout.constant;
        c.private = [SHARED; MAX_WORDS];
        for (private, word) in c.private.iter_mut().zip(&layout.words) {
            if let Class::Private(agent) = word.class {
                *private = agent;
            }
        }
        c.tso = tso;
    });
}

/// The log and the buffered stores of an operation, and the outcome of a step.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) log: Vec<u64>,
    pub(crate) buffer: Vec<Buffered>,
    /// The operation has ended.
    pub(crate) ended: bool,
    /// A word was used against its class: a fault of the model, not of the protocol.
    pub(crate) misuse: bool,
    pub(crate) accessed: Option<Accessed>,
}

impl Run {
    /// Takes the buffered stores, as slot and value of each.
    pub(crate) fn set_buffer(&mut self, words: &[u64]) {
        let pairs = words.chunks_exact(2);
        self.buffer.clear();
        self.buffer
            .extend(pairs.map(|pair| (pair[0] as u8, pair[1])));
    }
}

/// Runs `body` as `agent` up to and including its next shared access after those in `run.log`;
/// `free`: to its end.
pub(crate) fn step<R>(
    mem: &mut [u64; SLOTS],
    run: &mut Run,
    agent: u8,
    free: bool,
    body: impl FnOnce() -> R,
) -> R {
    CONTEXT.with(|c| {
        let c = &mut *c.borrow_mut();
        c.mem = *mem;
        core::mem::swap(&mut c.log, &mut run.log);
        core::mem::swap(&mut c.buffer, &mut run.buffer);
        c.position = 0;
        c.agent = agent;
        c.left = 1;
        c.atomic = false;
        c.stopped = false;
        c.free = free;
        c.fences = 0;
        c.without_fence = None;
        c.rmws = 0;
        c.weak_rmw = None;
        c.ahead = None;
        c.misuse = false;
        c.accessed = None;
    });
    let result = body();
    CONTEXT.with(|c| {
        let c = &mut *c.borrow_mut();
        *mem = c.mem;
        core::mem::swap(&mut c.log, &mut run.log);
        core::mem::swap(&mut c.buffer, &mut run.buffer);
        run.ended = !c.stopped;
        run.misuse = c.misuse;
        run.accessed = c.accessed;
        if run.ended {
            run.log.clear();
        }
    });
    result
}

/// Removes the `n`th full fence, from 0, of the current operation.
pub(crate) fn without_fence(n: u32) {
    CONTEXT.with(|c| c.borrow_mut().without_fence = Some(n));
}

/// Makes the `n`th locked instruction of the current operation no barrier, as on a machine weaker
/// than x86: later loads take effect before it.
pub(crate) fn weak_rmw(n: u32) {
    CONTEXT.with(|c| c.borrow_mut().weak_rmw = Some(n));
}

/// Whether the current operation is stopped: its results are discarded.
pub(crate) fn stopped() -> bool {
    CONTEXT.with(|c| c.borrow().stopped)
}

/// The content of a slot at the end of an operation, as the operation's CPU sees it.
pub(crate) fn peek(slot: usize) -> u64 {
    CONTEXT.with(|c| {
        let c = c.borrow();
        c.waiting(slot as u8).unwrap_or(c.mem[slot])
    })
}

/// A call under a lock, as one step: `body` executes once, and later executions of the operation
/// reuse its result. It may change the model's local state, in a model that keeps this with each
/// step.
pub(crate) fn call(body: impl FnOnce() -> u64) -> u64 {
    let gate = CONTEXT.with(|c| c.borrow_mut().gate(true));
    match gate {
        Gate::Stop => 0,
        Gate::Replay(value) => value,
        Gate::Live => {
            let value = body();
            CONTEXT.with(|c| {
                let c = &mut *c.borrow_mut();
                // Taking a lock is a locked instruction.
                c.drain();
                c.done(Access::Call, 0, value, true);
            });
            value
        }
    }
}

enum Gate {
    Replay(u64),
    Live,
    Stop,
}

impl Context {
    fn gate(&mut self, shared: bool) -> Gate {
        if self.stopped {
            return Gate::Stop;
        }
        if let Some(&value) = self.log.get(self.position) {
            self.position += 1;
            return Gate::Replay(value);
        }
        if shared && !self.free && !self.atomic {
            if self.left == 0 {
                self.stopped = true;
                return Gate::Stop;
            }
            self.left = 0;
        }
        Gate::Live
    }

    fn done(&mut self, access: Access, word: u16, value: u64, shared: bool) {
        if !self.free {
            self.log.push(value);
            self.position += 1;
        }
        if shared && !(self.atomic && access != Access::LineOwned) {
            self.accessed = Some(Accessed { access, word });
        }
    }

    fn is_shared(&mut self, id: u16) -> bool {
        let id = usize::from(id);
        if self.slot[id] == NO_SLOT {
            return false;
        }
        let private = self.private[id];
        self.misuse |= private != SHARED && private != self.agent;
        private == SHARED
    }

    fn waiting(&self, slot: u8) -> Option<u64> {
        let newest = self.buffer.iter().rev().find(|(s, _)| *s == slot);
        newest.map(|(_, value)| *value)
    }

    fn drain(&mut self) {
        for (slot, value) in self.buffer.drain(..) {
            self.mem[usize::from(slot)] = value;
        }
    }

    fn load(&mut self, id: u16) -> u64 {
        let slot = self.slot[usize::from(id)];
        if slot == NO_SLOT {
            return self.constant[usize::from(id)];
        }
        let waiting = self.waiting(slot);
        let open = self.is_shared(id);
        let ahead = self.ahead.filter(|_| open);
        let shared = open && waiting.is_none() && ahead.is_none();
        match self.gate(shared) {
            Gate::Stop => 0,
            Gate::Replay(value) => value,
            Gate::Live => {
                let index = usize::from(slot);
                let visible = ahead.map_or(self.mem[index], |view| view[index]);
                let value = waiting.unwrap_or(visible);
                self.done(Access::Load, id, value, shared);
                value
            }
        }
    }

    fn store(&mut self, id: u16, value: u64, order: Ordering) {
        let slot = self.slot[usize::from(id)];
        if slot == NO_SLOT {
            self.misuse |= !self.stopped && self.constant[usize::from(id)] != value;
            return;
        }
        if order == Ordering::SeqCst {
            self.rmw(id, |_| value);
            return;
        }
        let shared = self.is_shared(id);
        let buffered = self.tso && shared && !self.free;
        if let Gate::Live = self.gate(shared && !buffered) {
            if buffered {
                if self.buffer.len() == BUFFER {
                    let (oldest, value) = self.buffer.remove(0);
                    self.mem[usize::from(oldest)] = value;
                }
                self.buffer.push((slot, value));
            } else {
                self.mem[usize::from(slot)] = value;
            }
            self.done(Access::Store, id, value, shared && !buffered);
        }
    }

    /// The old value of the word; `None` if stopped.
    fn rmw(&mut self, id: u16, change: impl FnOnce(u64) -> u64) -> Option<u64> {
        let slot = self.slot[usize::from(id)];
        if slot == NO_SLOT {
            let value = self.constant[usize::from(id)];
            self.misuse |= !self.stopped && change(value) != value;
            return Some(value);
        }
        let number = self.rmws;
        self.rmws += 1;
        self.ahead = None;
        if self.weak_rmw == Some(number) {
            self.look_ahead(id);
        }
        let shared = self.is_shared(id) || !self.buffer.is_empty();
        let index = usize::from(slot);
        match self.gate(shared) {
            Gate::Stop => None,
            Gate::Replay(old) => {
                self.see_write(index, change(old));
                Some(old)
            }
            Gate::Live => {
                self.drain();
                let old = self.mem[index];
                self.mem[index] = change(old);
                self.see_write(index, self.mem[index]);
                self.done(Access::Rmw, id, old, shared);
                Some(old)
            }
        }
    }

    /// Reads all words, for the loads after the locked instruction that follows.
    fn look_ahead(&mut self, id: u16) {
        let mut view = [0; SLOTS];
        for (n, entry) in view.iter_mut().enumerate() {
            let gate = if n == 0 {
                self.gate(true)
            } else if self.stopped {
                Gate::Stop
            } else {
                self.gate(false)
            };
            match gate {
                Gate::Stop => return,
                Gate::Replay(value) => *entry = value,
                Gate::Live => {
                    *entry = self.mem[n];
                    self.done(Access::Ahead, id, *entry, n == 0);
                }
            }
        }
        self.ahead = Some(view);
    }

    /// No load of the written word takes effect before the write.
    fn see_write(&mut self, index: usize, value: u64) {
        if let Some(view) = &mut self.ahead {
            view[index] = value;
        }
    }

    fn fence(&mut self, id: u16) {
        let number = self.fences;
        self.fences += 1;
        if self.without_fence == Some(number) {
            return;
        }
        self.ahead = None;
        let shared = !self.buffer.is_empty();
        if let Gate::Live = self.gate(shared) {
            self.drain();
            self.done(Access::Fence, id, 0, shared);
        }
    }
}

/// The number of a word of a model.
#[derive(Clone, Debug)]
pub(crate) struct Word(u16);

impl Word {
    fn rmw(&self, change: impl FnOnce(u64) -> u64) -> u64 {
        CONTEXT.with(|c| c.borrow_mut().rmw(self.0, change).unwrap_or(0))
    }
}

impl AtomicWord for Word {
    type Line = ();
    fn new(value: u64) -> Self {
        CONTEXT.with(|c| {
            let mut c = c.borrow_mut();
            let values = c.allocated.get_or_insert_default();
            values.push(value);
            Self((values.len() - 1) as u16)
        })
    }
    fn load(&self, _order: Ordering) -> u64 {
        CONTEXT.with(|c| c.borrow_mut().load(self.0))
    }
    fn store(&self, value: u64, order: Ordering) {
        CONTEXT.with(|c| c.borrow_mut().store(self.0, value, order));
    }
    fn swap(&self, value: u64, _order: Ordering) -> u64 {
        self.rmw(|_| value)
    }
    fn fetch_or(&self, bits: u64, _order: Ordering) -> u64 {
        self.rmw(|old| old | bits)
    }
    fn fetch_and(&self, bits: u64, _order: Ordering) -> u64 {
        self.rmw(|old| old & bits)
    }
    fn fetch_add(&self, value: u64, _order: Ordering) -> u64 {
        self.rmw(|old| old.wrapping_add(value))
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        _success: Ordering,
        _failure: Ordering,
    ) -> Result<u64, u64> {
        let change = |old| if old == current { new } else { old };
        // A stopped operation must end: a success ends its loops.
        let old = CONTEXT.with(|c| c.borrow_mut().rmw(self.0, change));
        match old {
            None => Ok(current),
            Some(old) if old == current => Ok(old),
            Some(old) => Err(old),
        }
    }
    fn fence(&self, order: Ordering) {
        // Of all fences x86 needs only the full one.
        if order == Ordering::SeqCst {
            CONTEXT.with(|c| c.borrow_mut().fence(self.0));
        }
    }
    fn fence_after_rmw(&self) {
        // A locked instruction is a full barrier on x86.
    }
    fn one_step<R>(&self, body: impl FnOnce() -> R) -> R {
        let entered = CONTEXT.with(|c| {
            let c = &mut *c.borrow_mut();
            match c.gate(true) {
                Gate::Stop => false,
                Gate::Replay(_) => true,
                Gate::Live => {
                    c.atomic = true;
                    c.done(Access::LineOwned, self.0, 0, true);
                    true
                }
            }
        });
        let result = body();
        if entered {
            CONTEXT.with(|c| c.borrow_mut().atomic = false);
        }
        result
    }
}

/// The wakeup lists, each in a word: a byte for each vCPU on it, its number plus one.
///
/// A change is one step, as under the list's lock. A walk reads the list in one step and holds no
/// lock afterwards, which allows more interleavings than the lock does.
#[derive(Debug)]
pub(crate) struct ListWords<'a> {
    pub(crate) lists: &'a [Word],
    /// A fault: `locked` takes the list of this CPU in place of the requested one.
    pub(crate) wrong: Option<CpuId>,
}

/// The vCPUs on a list word.
pub(crate) fn listed(word: u64) -> impl Iterator<Item = VcpuId> {
    let bytes = word.to_le_bytes().into_iter();
    bytes.take_while(|b| *b != 0).map(|b| VcpuId::from(b) - 1)
}

fn encode(list: &CpuList) -> u64 {
    let bytes = list.vcpus().iter().take(8).enumerate();
    bytes.fold(0, |word, (n, id)| word | u64::from(id + 1) << (8 * n))
}

impl WakeupLists for ListWords<'_> {
    type List = CpuList;

    fn locked<R>(&self, cpu: CpuId, body: impl FnOnce(&mut CpuList) -> R) -> Option<R> {
        let Word(id) = *self.lists.get(self.wrong.unwrap_or(cpu) as usize)?;
        let (word, live) = CONTEXT.with(|c| {
            let c = &mut *c.borrow_mut();
            match c.gate(true) {
                Gate::Stop => (0, false),
                Gate::Replay(word) => (word, false),
                Gate::Live => {
                    c.drain();
                    let word = c.mem[usize::from(c.slot[usize::from(id)])];
                    c.done(Access::List, id, word, true);
                    (word, true)
                }
            }
        });
        let mut list = CpuList::default();
        listed(word).for_each(|vcpu| list.append(vcpu));
        let result = body(&mut list);
        if live {
            CONTEXT.with(|c| {
                let c = &mut *c.borrow_mut();
                let now = encode(&list);
                if now != word {
                    c.mem[usize::from(c.slot[usize::from(id)])] = now;
                }
            });
        }
        Some(result)
    }
}
