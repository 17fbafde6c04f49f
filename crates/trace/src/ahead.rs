//! Reading on a thread of its own, ahead of the consumer of the events.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use stealtime_events::Event;

use crate::{EventSource, NameTable, ReadError, SourceInfo};

/// Events of a batch: 80 KiB, which take some hundred microseconds to read. Smaller ones spend more time on
/// handing over.
const BATCH: usize = 1 << 11;
/// Batches that may wait, 2.5 MiB. A reader of `perf.data` gives a round at once, and reads the next one
/// meanwhile.
const WAITING: usize = 32;
/// Events and state that the thread hands over.
struct Batch {
    events: Vec<Event>,
    /// Names that are new since the last batch, in the order of their ids.
    names: Vec<Box<str>>,
    progress: (u64, Option<u64>),
    /// At the end: the complete information, and the error if there is one.
    end: Option<(SourceInfo, Option<ReadError>)>,
}

/// What reader and consumer share.
#[derive(Default)]
struct Shared {
    waiting: VecDeque<Batch>,
    /// Consumed vectors, back to the reader.
    emptied: Vec<Vec<Event>>,
    /// The reader has ended, after its last batch or by a panic.
    is_read: bool,
    /// The consumer takes no more.
    is_abandoned: bool,
}

/// Hands batches from one thread to another. The consumer takes all at once, so that neither waits often.
#[derive(Default)]
struct Belt {
    shared: Mutex<Shared>,
    /// To the consumer: batches wait.
    filled: Condvar,
    /// To the reader: there is room.
    taken: Condvar,
}

impl Belt {
    /// A panic of the other side leaves no half-made state.
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a batch, as soon as there is room. Returns whether a consumer is left.
    fn put(&self, batch: Batch) -> bool {
        let mut shared = self.shared();
        while shared.waiting.len() >= WAITING && !shared.is_abandoned {
            shared = self
                .taken
                .wait(shared)
                .unwrap_or_else(PoisonError::into_inner);
        }
        shared.waiting.push_back(batch);
        let goes_on = !shared.is_abandoned;
        self.filled.notify_one();
        goes_on
    }

    /// All batches that wait, in exchange for consumed vectors. None at the end.
    fn take(&self, emptied: &mut Vec<Vec<Event>>) -> VecDeque<Batch> {
        let mut shared = self.shared();
        shared.emptied.append(emptied);
        while shared.waiting.is_empty() && !shared.is_read {
            shared = self
                .filled
                .wait(shared)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.taken.notify_one();
        std::mem::take(&mut shared.waiting)
    }

    /// A consumed vector, or a new one.
    fn empty(&self) -> Vec<Event> {
        let mut events = self.shared().emptied.pop().unwrap_or_default();
        events.clear();
        events.reserve(BATCH);
        events
    }
}

/// Ends a side of the belt, also if it panics.
struct Reader(Arc<Belt>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.shared().is_read = true;
        self.0.filled.notify_one();
    }
}

/// The same for the other side.
struct Consumer(Arc<Belt>);

impl Drop for Consumer {
    fn drop(&mut self) {
        self.0.shared().is_abandoned = true;
        self.0.taken.notify_one();
    }
}

/// The events of another source, read by a thread of its own, in the same order. Until the last event is
/// consumed, [`EventSource::info`] is that of the beginning.
pub struct Ahead {
    belt: Consumer,
    reader: Option<JoinHandle<()>>,
    /// Batches that are taken and not begun.
    batches: VecDeque<Batch>,
    emptied: Vec<Vec<Event>>,
    events: Vec<Event>,
    consumed: usize,
    names: NameTable,
    info: SourceInfo,
    progress: (u64, Option<u64>),
    /// An error to return after the events of the last batch.
    failed: Option<ReadError>,
    ended: bool,
}

impl Ahead {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system gives no thread; the source comes back with its reason.
    pub fn new(source: Box<dyn EventSource>) -> Result<Self, (Box<dyn EventSource>, io::Error)> {
        let belt = Arc::new(Belt::default());
        let (hand_over, source_there) = mpsc::sync_channel::<Box<dyn EventSource>>(1);
        let (info, progress) = (source.info().clone(), source.progress());
        let belt_of_reader = Reader(Arc::clone(&belt));
        let reading = move || {
            if let Ok(mut source) = source_there.recv() {
                read(&mut *source, &belt_of_reader.0);
            }
        };
        let reader = match thread::Builder::new()
            .name("reader".to_owned())
            .spawn(reading)
        {
            Ok(reader) => reader,
            Err(error) => return Err((source, error)),
        };
        if let Err(mpsc::SendError(source)) = hand_over.send(source) {
            return Err((source, io::Error::other("the thread ended at once")));
        }
        Ok(Self {
            belt: Consumer(belt),
            reader: Some(reader),
            batches: VecDeque::new(),
            emptied: Vec::new(),
            events: Vec::new(),
            consumed: 0,
            names: NameTable::default(),
            info,
            progress,
            failed: None,
            ended: false,
        })
    }

    /// Takes the next batch.
    fn next_batch(&mut self) {
        let empty = std::mem::take(&mut self.events);
        self.consumed = 0;
        if empty.capacity() > 0 {
            self.emptied.push(empty);
        }
        if self.batches.is_empty() {
            self.batches = self.belt.0.take(&mut self.emptied);
        }
        let Some(batch) = self.batches.pop_front() else {
            // A thread that ends without the last batch has panicked: its panic goes on here.
            self.ended = true;
            if let Some(Err(panic)) = self.reader.take().map(JoinHandle::join) {
                std::panic::resume_unwind(panic);
            }
            return;
        };
        self.events = batch.events;
        for name in batch.names {
            self.names.intern(&name);
        }
        self.progress = batch.progress;
        if let Some((info, failed)) = batch.end {
            (self.info, self.failed, self.ended) = (info, failed, true);
        }
    }
}

/// Reads to the end, or until the consumer is gone.
fn read(source: &mut dyn EventSource, belt: &Belt) {
    let mut names = NameTable::default().len();
    loop {
        let mut events = belt.empty();
        let end = match source.next_events(BATCH, &mut events) {
            Ok(true) => None,
            Ok(false) => Some(None),
            Err(error) => Some(Some(error)),
        };
        let table = source.names();
        let new = table.since(names).to_vec();
        names = table.len();
        let is_last = end.is_some();
        let batch = Batch {
            events,
            names: new,
            progress: source.progress(),
            end: end.map(|failed| (source.info().clone(), failed)),
        };
        if !belt.put(batch) || is_last {
            return;
        }
    }
}

impl EventSource for Ahead {
    #[inline]
    fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        loop {
            if let Some(event) = self.events.get(self.consumed) {
                self.consumed += 1;
                return Ok(Some(*event));
            }
            if self.ended {
                return self.failed.take().map_or(Ok(None), Err);
            }
            self.next_batch();
        }
    }

    fn next_events(&mut self, limit: usize, batch: &mut Vec<Event>) -> Result<bool, ReadError> {
        loop {
            let waiting = self.events.get(self.consumed..).unwrap_or_default();
            if !waiting.is_empty()
                && batch.is_empty()
                && self.consumed == 0
                && waiting.len() <= limit
            {
                // The whole batch, without a copy.
                std::mem::swap(batch, &mut self.events);
                return Ok(true);
            }
            if !waiting.is_empty() {
                let part = waiting.get(..limit).unwrap_or(waiting);
                batch.extend_from_slice(part);
                self.consumed += part.len();
                return Ok(true);
            }
            if self.ended {
                return self.failed.take().map_or(Ok(false), Err);
            }
            self.next_batch();
        }
    }

    fn names(&self) -> &NameTable {
        &self.names
    }

    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn progress(&self) -> (u64, Option<u64>) {
        self.progress
    }
}

#[cfg(test)]
mod tests {
    use stealtime_events::{Context, CpuId, Kind, NameId, Names, Tid};

    use super::*;
    use crate::Format;

    /// Gives so many events, each with a name of its own, and then fails or panics.
    struct Counting {
        consumed: u64,
        events: u64,
        panics: bool,
        names: NameTable,
        info: SourceInfo,
    }

    impl EventSource for Counting {
        fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
            assert!(
                !self.panics || self.consumed < self.events,
                "the source panics"
            );
            if self.consumed == self.events {
                self.info.note(true, "cut");
                return Err(ReadError::Empty {
                    input: "counting".to_owned(),
                });
            }
            self.consumed += 1;
            let name = self.names.intern(&format!("name {}", self.consumed % 5000));
            Ok(Some(Event {
                time_ns: self.consumed,
                tid: Tid(1),
                cpu: CpuId(0),
                context: Context::default(),
                kind: Kind::Other { name },
            }))
        }

        fn names(&self) -> &NameTable {
            &self.names
        }

        fn info(&self) -> &SourceInfo {
            &self.info
        }

        fn progress(&self) -> (u64, Option<u64>) {
            (self.consumed, Some(self.events))
        }
    }

    fn ahead(events: u64, panics: bool) -> Ahead {
        let source = Counting {
            consumed: 0,
            events,
            panics,
            names: NameTable::default(),
            info: SourceInfo::new(Format::Text),
        };
        Ahead::new(Box::new(source))
            .map_err(|(_, error)| error)
            .expect("a thread")
    }

    #[test]
    fn events_names_and_errors_come_as_they_are() {
        for events in [0, 1, BATCH as u64, 3 * BATCH as u64 + 1, 20_000] {
            let mut ahead = ahead(events, false);
            for at in 1..=events {
                let event = ahead.next_event().expect("no error yet").expect("an event");
                assert_eq!(event.time_ns, at);
                let Kind::Other { name } = event.kind else {
                    panic!("{event:?}");
                };
                assert_eq!(ahead.names().name(name), format!("name {}", at % 5000));
            }
            let error = ahead.next_event().expect_err("the source's error");
            assert!(matches!(error, ReadError::Empty { .. }), "{error}");
            assert!(ahead.next_event().expect("an error once").is_none());
            assert!(ahead.info().is_partial());
            assert_eq!(ahead.progress(), (events, Some(events)));
            assert_eq!(ahead.names().name(NameId(0)), "");
        }
    }

    #[test]
    fn several_events_are_those_that_come_one_by_one() {
        for limit in [1, 7, BATCH, 3 * BATCH] {
            let (mut ahead, mut consumed) = (ahead(10_000, false), 0);
            let error = loop {
                let mut events = Vec::new();
                // Now and then one by itself, so that batches are also taken from their middle.
                events.extend(ahead.next_event().expect("no error yet"));
                let more = ahead.next_events(limit, &mut events);
                assert!(events.len() <= limit + 1);
                let mut whole = Vec::new();
                let rest = more.and_then(|_| ahead.next_events(limit, &mut whole));
                for event in events.into_iter().chain(whole) {
                    consumed += 1;
                    assert_eq!(event.time_ns, consumed);
                }
                match rest {
                    Ok(more) => assert!(more),
                    Err(error) => break error,
                }
            };
            assert_eq!(consumed, 10_000);
            assert!(matches!(error, ReadError::Empty { .. }), "{error}");
            assert!(matches!(ahead.next_events(1, &mut Vec::new()), Ok(false)));
        }
    }

    #[test]
    fn whoever_stops_early_stops_the_thread() {
        let mut ahead = ahead(u64::MAX, false);
        assert!(ahead.next_event().expect("no error").is_some());
        let reader = ahead.reader.take().expect("a thread");
        drop(ahead);
        reader.join().expect("it ended by itself");
    }

    #[test]
    #[should_panic(expected = "the source panics")]
    fn a_panic_is_not_an_end() {
        let mut ahead = ahead(10, true);
        while let Ok(Some(_)) = ahead.next_event() {}
    }
}
