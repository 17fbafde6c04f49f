//! Many timers in order: a heap.

use super::queue::Slot;

/// The timer is not armed.
const OUT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    at_ns: u64,
    sequence: u64,
    slot: u32,
}

impl Entry {
    /// One number to compare: that takes no branch.
    const fn key(&self) -> u128 {
        (self.at_ns as u128) << 64 | self.sequence as u128
    }

    const fn before(&self, other: &Self) -> bool {
        self.key() < other.key()
    }
}

/// The lesser of two keys with what belongs to it. Which it is cannot be predicted.
fn lesser(a: (u128, usize), b: (u128, usize)) -> (u128, usize) {
    let first = a.0 < b.0;
    (
        core::hint::select_unpredictable(first, a.0, b.0),
        core::hint::select_unpredictable(first, a.1, b.1),
    )
}

/// A four-ary heap that knows where each timer is, so that arming again and cancelling cost a
/// path of the heap and leave nothing behind.
///
/// What fires mostly arms a timer, its own or another's. So the root stays a hole after [`pop`]:
/// the next timer to be armed goes there, which is one path instead of two.
///
/// [`pop`]: Self::pop
#[derive(Clone, Debug, Default)]
pub(super) struct Heap {
    heap: Vec<Entry>,
    /// Where each timer is, by slot; as far as timers were armed.
    place: Vec<u32>,
    sequence: u64,
    /// The entry at the root has fired. It is before all others as long as it lies there.
    hole: bool,
}

impl Heap {
    /// Arms a timer, or moves it if it is armed. Of two timers at one time the one that was armed
    /// first fires first.
    pub(super) fn arm(&mut self, slot: Slot, at_ns: u64) {
        self.sequence += 1;
        let entry = Entry {
            at_ns,
            sequence: self.sequence,
            slot: slot.0,
        };
        if slot.index() >= self.place.len() {
            self.place.resize(slot.index() + 1, OUT);
        }
        let place = self.place[slot.index()];
        if place == OUT {
            if self.hole {
                self.hole = false;
                return self.sink(0, entry);
            }
            let last = self.heap.len();
            self.heap.push(entry);
            self.rise(last, entry);
            return;
        }
        let place = place as usize;
        let earlier = entry.before(&self.heap[place]);
        if earlier {
            self.rise(place, entry);
        } else {
            self.sink(place, entry);
        }
    }

    /// Disarms a timer that is armed.
    pub(super) fn cancel(&mut self, slot: Slot) {
        let place = self.place[slot.index()];
        if place != OUT {
            self.place[slot.index()] = OUT;
            self.take_out(place as usize);
        }
    }

    /// When the next timer will fire.
    pub(super) fn next(&self) -> Option<u64> {
        if self.hole {
            let below = self.heap.iter().take(5).skip(1);
            return below.map(|entry| entry.at_ns).min();
        }
        self.heap.first().map(|entry| entry.at_ns)
    }

    /// Takes the next timer, if it fires at `until_ns` or before.
    pub(super) fn pop(&mut self, until_ns: u64) -> Option<(u64, Slot)> {
        if core::mem::take(&mut self.hole) {
            self.take_out(0);
        }
        let first = *self.heap.first()?;
        if first.at_ns > until_ns {
            return None;
        }
        self.place[first.slot as usize] = OUT;
        self.hole = true;
        Some((first.at_ns, Slot(first.slot)))
    }

    /// Armed timers.
    pub(super) fn armed(&self) -> usize {
        self.heap.len() - usize::from(self.hole)
    }

    /// Closes the gap at `place` with the last entry.
    fn take_out(&mut self, place: usize) {
        let Some(last) = self.heap.pop() else {
            return;
        };
        if place == self.heap.len() {
            return;
        }
        if place > 0 && last.before(&self.heap[(place - 1) / 4]) {
            self.rise(place, last);
        } else {
            self.sink(place, last);
        }
    }

    fn rise(&mut self, mut place: usize, entry: Entry) {
        while place > 0 {
            let above = (place - 1) / 4;
            let parent = self.heap[above];
            if !entry.before(&parent) {
                break;
            }
            self.put(place, parent);
            place = above;
        }
        self.put(place, entry);
    }

    fn sink(&mut self, mut place: usize, entry: Entry) {
        loop {
            let first = place * 4 + 1;
            let least = match self.heap.get(first..first + 4) {
                Some(&[a, b, c, d]) => {
                    let (left, one) = lesser((a.key(), 0), (b.key(), 1));
                    let (right, other) = lesser((c.key(), 2), (d.key(), 3));
                    first + lesser((left, one), (right, other)).1
                }
                _ => {
                    let some = self.heap.get(first..).unwrap_or_default();
                    let least = (first..).zip(some).min_by_key(|(_, child)| child.key());
                    match least {
                        Some((at, _)) => at,
                        None => break,
                    }
                }
            };
            let child = self.heap[least];
            if !child.before(&entry) {
                break;
            }
            self.put(place, child);
            place = least;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: Entry) {
        self.place[entry.slot as usize] = place as u32;
        self.heap[place] = entry;
    }
}
