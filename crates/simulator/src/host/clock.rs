//! The time of a run, and everything that is to happen: the engine's timers and the messages in
//! flight.

use super::message::Message;
use crate::engine::{Queue, Slot};
use crate::fault::{Fault, Sim};
use crate::ids::CpuNr;

/// How many events may be handled at one time of the run. All CPUs of a host make far fewer: beyond
/// it events cause each other.
pub(crate) const MOST_AT_ONCE: u64 = 10_000_000;

/// A message in flight, by the timer that delivers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageNr(u32);

/// What a timer of the engine stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EngineEvent {
    /// The phase of a CPU is over.
    Phase(CpuNr),
    /// A CPU's clock event device fires.
    ClockEvent(CpuNr),
    /// A message arrives.
    Message(MessageNr),
    /// The warm-up is over.
    Measure,
}

/// A message's timer, which is used again for later messages: a run has as many as were ever in
/// flight at once.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    slot: Slot,
    message: Option<Message>,
}

/// The clock of a run and its queue of events.
///
/// Time never goes back, and only [`Clock::advance`] moves it. A message is in flight as long as
/// its timer is armed.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    now_ns: u64,
    queue: Queue,
    /// By slot of the queue.
    events: Vec<EngineEvent>,
    messages: Vec<InFlight>,
    /// Messages that have arrived.
    free: Vec<MessageNr>,
    /// Events handled since time last passed.
    at_once: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            now_ns: 0,
            queue: Queue::new(),
            events: Vec::new(),
            messages: Vec::new(),
            free: Vec::new(),
            at_once: 0,
        }
    }

    /// The time of the run, in ns.
    #[inline(always)]
    pub(crate) const fn now(&self) -> u64 {
        self.now_ns
    }

    /// A timer of the engine that stands for `event`, not armed.
    pub(crate) fn slot(&mut self, event: EngineEvent) -> Slot {
        let slot = self.queue.slot();
        self.events.push(event);
        slot
    }

    /// Arms a timer, or moves it.
    #[inline]
    pub(crate) fn arm(&mut self, slot: Slot, at_ns: u64) {
        self.queue.arm(slot, at_ns);
    }

    /// Disarms a timer, if it is armed.
    #[inline]
    pub(crate) fn cancel(&mut self, slot: Slot) {
        self.queue.cancel(slot);
    }

    /// When a timer fires, if it is armed.
    #[inline]
    pub(crate) fn when(&self, slot: Slot) -> Option<u64> {
        self.queue.when(slot)
    }

    /// Lets a message arrive at a time of the run.
    pub(crate) fn post(&mut self, at_ns: u64, message: Message) {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let number = MessageNr(self.messages.len() as u32);
                let slot = self.slot(EngineEvent::Message(number));
                self.messages.push(InFlight {
                    slot,
                    message: None,
                });
                number
            }
        };
        let entry = &mut self.messages[number.0 as usize];
        entry.message = Some(message);
        self.queue.arm(entry.slot, at_ns);
    }

    /// Takes a message that has arrived; its timer is free for another one. `None` if it was taken
    /// already.
    pub(crate) fn take(&mut self, number: MessageNr) -> Option<Message> {
        let message = self.messages[number.0 as usize].message.take()?;
        self.free.push(number);
        Some(message)
    }

    /// The next event, if one happens at `until_ns` or before. Time passes to it.
    ///
    /// # Errors
    ///
    /// [`Fault::NoProgress`] after too many events at one time.
    #[inline]
    pub(crate) fn advance(&mut self, until_ns: u64) -> Sim<Option<EngineEvent>> {
        let Some((at_ns, slot)) = self.queue.pop(until_ns) else {
            return Ok(None);
        };
        if at_ns > self.now_ns {
            self.at_once = 0;
            self.now_ns = at_ns;
        } else {
            self.at_once += 1;
            if self.at_once > MOST_AT_ONCE {
                return Err(self.no_progress("events that cause each other").into());
            }
        }
        Ok(Some(self.events[slot.index()]))
    }

    /// The run is over: time passes to its end, without further events.
    pub(crate) fn finish(&mut self, end_ns: u64) {
        debug_assert!(end_ns >= self.now_ns, "a run ends after its last event");
        self.now_ns = end_ns;
    }

    /// The fault of a run in which time no longer passes.
    #[cold]
    pub(crate) fn no_progress(&self, message: &str) -> Fault {
        Fault::NoProgress {
            at_ns: self.now_ns,
            what: message.to_owned(),
        }
    }
}
