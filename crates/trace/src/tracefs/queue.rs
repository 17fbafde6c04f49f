//! Events of one record that wait for the reader's caller.

use stealtime_events::Event;

/// Accepts events in the order of the file.
pub trait EventSink {
    /// Adds an event behind the others, and gives it in its place.
    fn push(&mut self, event: Event) -> &mut Event;
}

impl EventSink for EventQueue {
    #[inline]
    fn push(&mut self, event: Event) -> &mut Event {
        EventSink::push(&mut self.events, event)
    }
}

impl EventSink for Vec<Event> {
    #[inline]
    fn push(&mut self, event: Event) -> &mut Event {
        let place = self.len();
        self.push(event);
        &mut self[place]
    }
}

/// A short queue: a record gives one event and, now and then, names of tasks before it.
#[derive(Debug, Default)]
pub struct EventQueue {
    events: Vec<Event>,
    head: usize,
}

impl EventQueue {
    /// Takes the first event.
    #[inline]
    pub fn pop(&mut self) -> Option<Event> {
        let event = *self.events.get(self.head)?;
        self.head += 1;
        if self.head == self.events.len() {
            self.events.clear();
            self.head = 0;
        }
        Some(event)
    }

    /// Takes the first events, until `batch` has `wanted`.
    pub fn pop_into(&mut self, batch: &mut Vec<Event>, wanted: usize) {
        let room = wanted.saturating_sub(batch.len());
        batch.extend(std::iter::from_fn(|| self.pop()).take(room));
    }

    /// Exchanges what waits for the events of `batch`. The first of these is the next one.
    pub fn swap(&mut self, batch: &mut Vec<Event>) {
        debug_assert_eq!(self.head, 0, "an event was taken");
        std::mem::swap(&mut self.events, batch);
    }

    /// Number of events that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len() - self.head
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}
