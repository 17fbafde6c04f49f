//! Counting wait queues: what is asked of them for each message that a thread passes on lies
//! together, apart from the rest.

use std::collections::VecDeque;

use crate::ids::ThreadNr;
use crate::program::{Passes, QueueId};

/// A queue's counts, or [`WAITED`].
type Level = u64;

/// A thread waits for the queue, which has no counts then.
const WAITED: Level = u64::MAX;

/// What of a queue is asked for less often.
#[derive(Clone, Debug, Default)]
struct Queue {
    name: String,
    waiters: VecDeque<ThreadNr>,
    /// Its counts come from clients.
    from_outside: bool,
}

/// All queues of a guest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues {
    levels: Vec<Level>,
    queues: Vec<Queue>,
}

impl Queues {
    /// A queue that starts with `counts`.
    pub(crate) fn add(&mut self, name: &str, counts: u64) -> QueueId {
        self.levels.push(counts);
        self.queues.push(Queue {
            name: name.to_owned(),
            ..Queue::default()
        });
        QueueId(self.levels.len() as u32 - 1)
    }

    /// All queues, in order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = QueueId> + use<> {
        (0..self.levels.len() as u32).map(QueueId)
    }

    pub(crate) fn name(&self, queue: QueueId) -> &str {
        &self.queues[queue.0 as usize].name
    }

    /// The queue's counts come from clients.
    pub(crate) fn fill_from_outside(&mut self, queue: QueueId) {
        self.queues[queue.0 as usize].from_outside = true;
    }

    pub(crate) fn is_from_outside(&self, queue: QueueId) -> bool {
        self.queues[queue.0 as usize].from_outside
    }

    /// Whether there is a count to take.
    pub(crate) fn has_counts(&self, queue: QueueId) -> bool {
        !matches!(self.levels[queue.0 as usize], 0 | WAITED)
    }

    /// Whether a thread waits.
    pub(crate) fn is_waited(&self, queue: QueueId) -> bool {
        self.levels[queue.0 as usize] == WAITED
    }

    /// Takes a count. Whether there was one.
    pub(crate) fn take(&mut self, queue: QueueId) -> bool {
        let counted = self.has_counts(queue);
        self.levels[queue.0 as usize] -= u64::from(counted);
        counted
    }

    /// Adds a count to a queue without waiters.
    pub(crate) fn add_count(&mut self, queue: QueueId) {
        debug_assert!(!self.is_waited(queue));
        self.levels[queue.0 as usize] += 1;
    }

    /// The thread waits, behind those that do already: there are no counts.
    pub(crate) fn wait(&mut self, queue: QueueId, thread: ThreadNr) {
        debug_assert!(!self.has_counts(queue));
        self.levels[queue.0 as usize] = WAITED;
        self.queues[queue.0 as usize].waiters.push_back(thread);
    }

    /// Gives a count: to the thread that has waited longest, which is to be woken, or to the next
    /// one that asks.
    pub(crate) fn give(&mut self, queue: QueueId) -> Option<ThreadNr> {
        if !self.is_waited(queue) {
            self.add_count(queue);
            return None;
        }
        let waiters = &mut self.queues[queue.0 as usize].waiters;
        let first = waiters.pop_front();
        if waiters.is_empty() {
            self.levels[queue.0 as usize] = 0;
        }
        first
    }
}

/// Counts on their way through passes of a series.
impl Queues {
    /// Takes what up to `maximum` passes take, from number `first` on. It ends where counts do, or
    /// where a thread waits for what a pass will give. How many.
    pub(crate) fn take_passes(&mut self, series: &Passes, first: u32, maximum: u32) -> u32 {
        if series.width <= 1 {
            if self.is_waited(series.give) || !self.has_counts(series.take) {
                return 0;
            }
            let level = &mut self.levels[series.take.0 as usize];
            let n = u64::from(maximum).min(*level);
            *level -= n;
            return n as u32;
        }
        let levels = &mut *self.levels;
        let passes = series.passes_from(first).take(maximum as usize);
        let accepted = passes.take_while(|&(take, give)| {
            let waited = levels[give.0 as usize] == WAITED;
            let level = &mut levels[take.0 as usize];
            let takes = !waited && !matches!(*level, 0 | WAITED);
            *level -= u64::from(takes);
            takes
        });
        accepted.count() as u32
    }

    /// So many passes from number `first` on give their counts: no thread waits for them.
    pub(crate) fn give_passes(&mut self, passes: &Passes, first: u32, n: u32) {
        self.add_counts(passes.give, passes, first, n);
    }

    /// They do not take place: what they have taken is there again.
    pub(crate) fn give_back(&mut self, passes: &Passes, first: u32, n: u32) {
        self.add_counts(passes.take, passes, first, n);
    }

    /// A count for each pass in its queue, of which `queue` is the first.
    fn add_counts(&mut self, queue: QueueId, passes: &Passes, first: u32, n: u32) {
        if passes.width <= 1 {
            debug_assert!(n == 0 || !self.is_waited(queue));
            self.levels[queue.0 as usize] += u64::from(n);
            return;
        }
        let levels = &mut *self.levels;
        for place in passes.places_from(first).take(n as usize) {
            let level = &mut levels[(queue.0 + place) as usize];
            debug_assert!(*level != WAITED);
            *level += 1;
        }
    }
}

/// Queues that a stretch may touch: from `first` on, and how many. None for no stretch.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    first: u32,
    len: u32,
}

/// Stretches of passes that go on, by vCPU; as long as there has been none, nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passing {
    spans: Vec<Span>,
    on: u32,
}

impl Passing {
    /// One of `vcpus` begins with passes of a series.
    pub(crate) fn begin(&mut self, vcpu: u32, vcpus: u32, passes: &Passes) {
        if self.spans.is_empty() {
            self.spans.resize(vcpus as usize, Span::default());
        }
        let (low, high) = (passes.take.min(passes.give), passes.take.max(passes.give));
        let last = high.0 + (passes.width.max(1) - 1) * passes.stride;
        self.spans[vcpu as usize] = Span {
            first: low.0,
            len: last - low.0 + 1,
        };
        self.on += 1;
    }

    /// It is through, or cut.
    pub(crate) fn end(&mut self, vcpu: u32) {
        self.spans[vcpu as usize] = Span::default();
        self.on -= 1;
    }

    /// The next vCPU from `first` on that may touch a queue in its stretch.
    pub(crate) fn next_near(&self, first: u32, queue: QueueId) -> Option<u32> {
        if self.on == 0 {
            return None;
        }
        let near = |span: &Span| queue.0.wrapping_sub(span.first) < span.len;
        let rest = self.spans.get(first as usize..)?;
        rest.iter()
            .position(near)
            .map(|offset| first + offset as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_gets_the_count_and_the_next_one_stays() {
        let mut queues = Queues::default();
        let queue = queues.add("q", 1);
        assert!(queues.take(queue) && !queues.take(queue));
        queues.wait(queue, ThreadNr(3));
        queues.wait(queue, ThreadNr(1));
        assert!(queues.is_waited(queue) && !queues.has_counts(queue) && !queues.take(queue));
        assert_eq!(queues.give(queue), Some(ThreadNr(3)));
        assert!(queues.is_waited(queue));
        assert_eq!(queues.give(queue), Some(ThreadNr(1)));
        assert!(!queues.is_waited(queue));
        assert_eq!(queues.give(queue), None);
        assert!(queues.take(queue) && !queues.take(queue));
    }

    #[test]
    fn stretches_are_near_the_queues_of_their_series() {
        let mut passing = Passing::default();
        assert_eq!(passing.next_near(0, QueueId(12)), None);
        let what = Passes {
            take: QueueId(11),
            give: QueueId(10),
            width: 3,
            stride: 2,
            passes: 100,
            ns: 1,
            counts: true,
        };
        passing.begin(2, 4, &what);
        passing.begin(3, 4, &what);
        let near = |passing: &Passing, queue| {
            let first = passing.next_near(0, QueueId(queue))?;
            Some((first, passing.next_near(first + 1, QueueId(queue))))
        };
        assert_eq!(near(&passing, 9), None);
        assert_eq!(near(&passing, 10), Some((2, Some(3))));
        assert_eq!(near(&passing, 15), Some((2, Some(3))));
        assert_eq!(near(&passing, 16), None);
        passing.end(2);
        assert_eq!(near(&passing, 12), Some((3, None)));
        passing.end(3);
        assert_eq!(near(&passing, 12), None);
    }
}
