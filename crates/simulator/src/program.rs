//! Programs of guest threads and host tasks: they read like programs.
//!
//! A program is an `async` function over a [`Thread`]; each step that takes time or waits is an
//! `.await`. Nothing runs in parallel: the simulator resumes a program when its step is over.
//!
//! ```
//! use stealtime_simulator::program::Thread;
//!
//! async fn ticker(mut thread: Thread) {
//!     loop {
//!         let work = thread.random.exponential(20_000);
//!         thread.compute(work).await;
//!         thread.sleep(1_000_000).await;
//!         thread.done(1);
//!     }
//! }
//! ```

use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::rc::Rc;

use crate::engine::Random;

/// A spinlock of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpinId(pub u32);
/// A sleeping lock with optimistic spinning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MutexId(pub u32);
/// A counting wait queue: pipes, futexes and queues are made of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);
/// A device with a latency, and an interrupt to one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId(pub u32);
/// Clients beyond the guest's network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId(pub u32);

/// What a program asks for next. Times are in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Runs in user mode.
    Compute(u64),
    /// Runs in the kernel: preemptible, at CPL 0.
    Kernel(u64),
    /// Runs in the kernel with interrupts off.
    IrqsOff(u64),
    /// Sleeps for at least so long.
    Sleep(u64),
    /// Sleeps until that time of the run.
    SleepUntil(u64),
    /// Takes one count from a queue, or waits for it.
    Wait(QueueId),
    /// Gives counts to a queue and wakes as many waiters.
    Wake(QueueId, u32),
    /// System calls in a row that each pass a count on.
    Passes(Passes),
    /// Takes a spinlock.
    Lock(SpinId),
    /// Releases it.
    Unlock(SpinId),
    /// A critical section: takes a spinlock, works in the kernel with it held, releases it, works on.
    Section {
        /// The spinlock.
        lock: SpinId,
        /// Work with it held, in ns.
        held_ns: u64,
        /// Work afterwards, in ns.
        then_ns: u64,
    },
    /// Takes a mutex.
    LockMutex(MutexId),
    /// Releases it.
    UnlockMutex(MutexId),
    /// Runs a function on other vCPUs and waits for each (`smp_call_function_many`).
    CallOthers {
        /// A TLB shootdown: only vCPUs that run a thread of the same process are asked, and the
        /// paravirtual flush spares those that do not run. Else all vCPUs are asked.
        flush: bool,
    },
    /// Runs a function on one vCPU and waits for it (`smp_call_function_single`).
    CallOne(u32),
    /// Sends an interrupt to one vCPU and goes on.
    Kick(u32),
    /// Sends an interrupt to all other vCPUs and goes on. Interrupts are off meanwhile, as in the
    /// handler of a timer that broadcasts.
    KickOthers,
    /// Submits I/O and waits for its end.
    Io(DeviceId),
    /// Takes the next request of clients, or waits for one. The answer is when it arrived at the
    /// card, in ns of the run.
    Receive(SourceId),
    /// Answers a request: the client may send its next one.
    Respond(SourceId),
    /// Touches a page that the hypervisor must bring in (an EPT violation).
    PageFault,
    /// Yields the CPU (`sched_yield`).
    Yield,
    /// Executes CPUID.
    Cpuid,
    /// Reads the clock; the answer is guest time in ns.
    ReadClock,
    /// arm64: reads the physical counter between barriers, which takes so many ns where it does not
    /// trap; the answer is the count.
    ReadCounter(u64),
    /// Ends.
    Exit,
}

/// System calls in a row: each takes a count of a queue or waits for it, does kernel work, and gives
/// another queue a count. The queues are several pairs, one after the other and again from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    /// From where the first call takes a count.
    pub take: QueueId,
    /// Where it gives one.
    pub give: QueueId,
    /// Pairs of queues.
    pub width: u32,
    /// By how much the numbers of a pair's queues are above those of the pair before.
    pub stride: u32,
    /// How many calls.
    pub passes: u32,
    /// Kernel work of a call beyond the system call itself.
    pub ns: u64,
    /// Each call is an operation done.
    pub counts: bool,
}

impl Passes {
    /// Where the pass of this number, from 0, takes a count, and where it gives one.
    #[must_use]
    pub fn pass(&self, number: u32) -> (QueueId, QueueId) {
        let distance = number % self.width.max(1) * self.stride;
        (
            QueueId(self.take.0 + distance),
            QueueId(self.give.0 + distance),
        )
    }

    /// The same for all passes from a number on.
    pub(crate) fn passes_from(&self, number: u32) -> impl Iterator<Item = (QueueId, QueueId)> {
        let (take, give) = (self.take.0, self.give.0);
        self.places_from(number)
            .map(move |distance| (QueueId(take + distance), QueueId(give + distance)))
    }

    /// By how much the queues of passes from a number on are above those of the first pair.
    pub(crate) fn places_from(&self, number: u32) -> impl Iterator<Item = u32> {
        let (width, stride) = (self.width.max(1), self.stride);
        let end = width * stride;
        let mut next = number % width * stride;
        core::iter::repeat_with(move || {
            let distance = next;
            next = if distance + stride == end {
                0
            } else {
                distance + stride
            };
            distance
        })
    }

    /// Whether one of the `n` passes before the one of number `end` takes from a queue or gives to it.
    pub(crate) fn touch(&self, n: u32, end: u32, queue: QueueId) -> bool {
        let width = self.width.max(1);
        [self.take, self.give].into_iter().any(|first| {
            let Some(distance) = queue.0.checked_sub(first.0) else {
                return false;
            };
            let place = match self.stride {
                0 if distance == 0 => 0,
                stride if stride > 0 && distance % stride == 0 && distance / stride < width => {
                    distance / stride
                }
                _ => return false,
            };
            let before_end = (end % width + width - 1 - place) % width;
            before_end < n
        })
    }
}

/// What the simulator asks of a program.
pub trait Program {
    /// The next step. `reply` is what the last one gave (0 for most), `now_ns` the time.
    fn next(&mut self, reply: u64, now_ns: u64, record: &mut dyn FnMut(Record)) -> Op;
}

/// What a program reports of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// So many operations are done.
    Done(u64),
    /// An operation took so many ns, and is done.
    Latency(u64),
    /// A whole run of operations, counted for themselves, took so many ns.
    Lasted(u64),
}

#[derive(Debug)]
struct Port {
    asked: Cell<Option<Op>>,
    reply: Cell<u64>,
    now_ns: Cell<u64>,
    done: Cell<u64>,
    /// What was reported since the step before, first: mostly that is all.
    record: Cell<Option<Record>>,
    records: RefCell<Vec<Record>>,
}

impl Port {
    fn report(&self, record: Record) {
        match self.record.get() {
            None => self.record.set(Some(record)),
            Some(_) => self.records.borrow_mut().push(record),
        }
    }
}

/// A thread, as its program sees it.
#[derive(Debug)]
pub struct Thread {
    port: Rc<Port>,
    /// Its own stream of random numbers.
    pub random: Random,
    /// Its number within its group, from 0.
    pub number: u32,
}

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) => $op:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(&self $(, $arg: $type)*) -> Step {
            self.step($op)
        }
    )*};
}

impl Thread {
    steps! {
        /// Runs in user mode for so many ns.
        compute(ns: u64) => Op::Compute(ns);
        /// Runs in the kernel for so many ns.
        kernel(ns: u64) => Op::Kernel(ns);
        /// Runs in the kernel with interrupts off.
        irqs_off(ns: u64) => Op::IrqsOff(ns);
        /// Sleeps.
        sleep(ns: u64) => Op::Sleep(ns);
        /// Sleeps until a time of the run.
        sleep_until(at_ns: u64) => Op::SleepUntil(at_ns);
        /// Passes counts on, a system call each. What it takes to enter and leave the kernel counts
        /// behind the wait.
        passes(passes: Passes) => Op::Passes(passes);
        /// Waits for a count of a queue.
        wait(queue: QueueId) => Op::Wait(queue);
        /// Gives a queue counts.
        wake(queue: QueueId, n: u32) => Op::Wake(queue, n);
        /// Takes a spinlock.
        lock(lock: SpinId) => Op::Lock(lock);
        /// Releases it.
        unlock(lock: SpinId) => Op::Unlock(lock);
        /// Takes a spinlock, works with it held, releases it and works on in the kernel.
        section(lock: SpinId, held_ns: u64, then_ns: u64) => Op::Section { lock, held_ns, then_ns };
        /// Takes a mutex.
        lock_mutex(mutex: MutexId) => Op::LockMutex(mutex);
        /// Releases it.
        unlock_mutex(mutex: MutexId) => Op::UnlockMutex(mutex);
        /// Calls a function on all other vCPUs and waits.
        call_others() => Op::CallOthers { flush: false };
        /// Calls a function on one vCPU and waits.
        call_one(vcpu: u32) => Op::CallOne(vcpu);
        /// Flushes the TLBs of all other vCPUs.
        flush_tlbs() => Op::CallOthers { flush: true };
        /// Sends an interrupt to a vCPU.
        kick(vcpu: u32) => Op::Kick(vcpu);
        /// Sends an interrupt to all other vCPUs, with interrupts off.
        kick_others() => Op::KickOthers;
        /// Does I/O.
        io(device: DeviceId) => Op::Io(device);
        /// Takes a request of clients; the answer is when it arrived.
        receive(source: SourceId) => Op::Receive(source);
        /// Answers a request.
        respond(source: SourceId) => Op::Respond(source);
        /// Touches a page that is not there.
        page_fault() => Op::PageFault;
        /// Yields.
        yield_now() => Op::Yield;
        /// Executes CPUID.
        cpuid() => Op::Cpuid;
        /// Reads the clock.
        read_clock() => Op::ReadClock;
        /// Reads the physical counter of an arm64 machine.
        read_counter(ns: u64) => Op::ReadCounter(ns);
    }

    fn step(&self, op: Op) -> Step {
        Step {
            port: Rc::clone(&self.port),
            op: Some(op),
        }
    }

    /// The time, in ns since the start of the run.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.port.now_ns.get()
    }

    /// Reports finished operations.
    pub fn done(&self, operations: u64) {
        self.port.done.set(self.port.done.get() + operations);
    }

    /// Reports how long an operation took, which counts as one done.
    pub fn took(&self, ns: u64) {
        self.port.report(Record::Latency(ns));
    }

    /// Reports the length of a whole run, of which [`Self::done`] counted the operations.
    pub fn lasted(&self, ns: u64) {
        self.port.report(Record::Lasted(ns));
    }
}

/// A step that is being taken.
#[derive(Debug)]
pub struct Step {
    port: Rc<Port>,
    op: Option<Op>,
}

impl Future for Step {
    type Output = u64;

    fn poll(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<u64> {
        match self.op.take() {
            Some(op) => {
                self.port.asked.set(Some(op));
                Poll::Pending
            }
            None => Poll::Ready(self.port.reply.get()),
        }
    }
}

/// An `async` function as a program.
pub struct AsyncProgram {
    future: Pin<Box<dyn Future<Output = ()>>>,
    port: Rc<Port>,
}

impl core::fmt::Debug for AsyncProgram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AsyncProgram").finish_non_exhaustive()
    }
}

impl AsyncProgram {
    /// Makes a program of `body`, which gets its thread.
    pub fn new<F>(random: Random, number: u32, body: impl FnOnce(Thread) -> F) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        let port = Rc::new(Port {
            asked: Cell::new(None),
            reply: Cell::new(0),
            now_ns: Cell::new(0),
            done: Cell::new(0),
            record: Cell::new(None),
            records: RefCell::new(Vec::new()),
        });
        let thread = Thread {
            port: Rc::clone(&port),
            random,
            number,
        };
        Self {
            future: Box::pin(body(thread)),
            port,
        }
    }
}

impl Program for AsyncProgram {
    fn next(&mut self, reply: u64, now_ns: u64, record: &mut dyn FnMut(Record)) -> Op {
        self.port.reply.set(reply);
        self.port.now_ns.set(now_ns);
        let mut context = Context::from_waker(Waker::noop());
        let ended = self.future.as_mut().poll(&mut context).is_ready();
        let result = self.port.done.take();
        if result > 0 {
            record(Record::Done(result));
        }
        if let Some(first) = self.port.record.take() {
            record(first);
            for next in self.port.records.borrow_mut().drain(..) {
                record(next);
            }
        }
        match self.port.asked.take() {
            Some(op) if !ended => op,
            _ => Op::Exit,
        }
    }
}
