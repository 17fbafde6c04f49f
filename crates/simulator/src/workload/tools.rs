//! What programs of the library share: barriers and bounded channels made of counting queues, and
//! how many threads there are.

use core::cell::Cell;
use std::rc::Rc;

use super::params::{ParamDoc, Params};
use crate::guest::GuestBuilder;
use crate::program::{Passes, QueueId, Thread};

/// The number of threads, as most workloads take it.
pub(super) const THREADS: ParamDoc = ParamDoc {
    name: "threads",
    default: 0,
    min: 0,
    max: 65_536,
    unit: "",
    about: "threads; 0 for one a vCPU",
};

/// The threads that were asked for: 0 is one a vCPU.
pub(super) fn threads(params: &Params, guest: &GuestBuilder) -> u32 {
    match params.count("threads") {
        0 => guest.vcpus(),
        threads => threads,
    }
}

/// A barrier of a fixed number of threads (`pthread_barrier_t`).
#[derive(Clone, Debug)]
pub(super) struct Barrier {
    parties: u32,
    arrived: Rc<Cell<u32>>,
    round: Rc<Cell<u32>>,
    /// Threads of odd and even rounds wait apart, so that a fast one cannot take a slow one's
    /// count.
    gates: [QueueId; 2],
}

impl Barrier {
    pub(super) fn new(guest: &mut GuestBuilder, name: &str, parties: u32) -> Self {
        let gates = [0, 1].map(|n| guest.queue(&format!("{name}/{n}"), 0));
        Self {
            parties,
            arrived: Rc::default(),
            round: Rc::default(),
            gates,
        }
    }

    /// All but one have arrived: the next to wait is the last.
    pub(super) fn others_are_here(&self) -> bool {
        self.arrived.get() + 1 == self.parties
    }

    /// Waits for all others. The last one wakes them; for it alone this is `true`.
    pub(super) async fn wait(&self, thread: &Thread) -> bool {
        let [even, odd] = self.gates;
        let gate = if self.round.get().is_multiple_of(2) {
            even
        } else {
            odd
        };
        self.arrived.set(self.arrived.get() + 1);
        if self.arrived.get() < self.parties {
            thread.wait(gate).await;
            return false;
        }
        self.arrived.set(0);
        self.round.set(self.round.get().wrapping_add(1));
        if self.parties > 1 {
            thread.wake(gate, self.parties - 1).await;
        }
        true
    }
}

/// A queue between threads that holds a bounded number of items.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    items: QueueId,
    room: QueueId,
}

impl Channel {
    pub(super) fn new(guest: &mut GuestBuilder, name: &str, capacity: u32) -> Self {
        Self {
            items: guest.queue(&format!("{name} (items)"), 0),
            room: guest.queue(&format!("{name} (room)"), u64::from(capacity)),
        }
    }

    /// Puts an item in, when there is room.
    pub(super) async fn send(&self, thread: &Thread) {
        thread.wait(self.room).await;
        thread.wake(self.items, 1).await;
    }

    /// Items that are put in when there is room, one after the other: a system call each, with
    /// `work` ns of kernel work.
    pub(super) fn sends(self, items: u32, work: u64) -> Passes {
        Passes {
            take: self.room,
            give: self.items,
            width: 1,
            stride: 0,
            passes: items,
            ns: work,
            counts: false,
        }
    }

    /// Items that are taken out when there are any: the same, and each is an operation.
    pub(super) fn receives(self, items: u32, work: u64) -> Passes {
        Passes {
            take: self.items,
            give: self.room,
            counts: true,
            ..self.sends(items, work)
        }
    }

    /// The same number for each of several channels that were made in a row, in turns.
    pub(super) fn sends_in_turns(channels: &[Self], rounds: u32, work: u64) -> Option<Passes> {
        let (first, second) = (channels.first()?, channels.get(1));
        let sends = first.sends(rounds * channels.len() as u32, work);
        Some(Passes {
            width: channels.len() as u32,
            stride: second.map_or(0, |second| second.room.0 - first.room.0),
            ..sends
        })
    }

    /// Takes an item out, when there is one.
    pub(super) async fn receive(&self, thread: &Thread) {
        thread.wait(self.items).await;
        thread.wake(self.room, 1).await;
    }
}

/// Whole runs of a workload: the thread that ends one last reports how long it took.
#[derive(Clone, Debug)]
pub(super) struct Runs {
    all: Barrier,
    began_ns: Rc<Cell<u64>>,
}

impl Runs {
    pub(super) fn new(guest: &mut GuestBuilder, threads: u32) -> Self {
        Self {
            all: Barrier::new(guest, "run", threads),
            began_ns: Rc::default(),
        }
    }

    /// This thread's part of the run is over; the next run begins when all are here.
    pub(super) async fn end(&self, thread: &Thread) {
        // The last one sets the beginning before it wakes the others.
        if self.all.others_are_here() {
            thread.lasted(thread.now() - self.began_ns.get());
            self.began_ns.set(thread.now());
        }
        self.all.wait(thread).await;
    }
}
