//! The tasks of the host, numbered densely; reuse of thread ids.

use stealtime_events::{NameId, Tid};

use crate::{IntMap, VcpuIndex};

/// A task's number in the table. A thread id that is given out again can get another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadIndex(pub u32);

impl ThreadIndex {
    /// The idle task of every CPU.
    pub const IDLE: Self = Self(0);
    /// Stands for all tasks past the limit of the table.
    pub const OVERFLOW: Self = Self(1);

    /// Whether it stands for one task alone.
    #[must_use]
    pub const fn is_single(self) -> bool {
        self.0 > Self::OVERFLOW.0
    }
}

/// Most tasks kept apart. Linux reuses thread ids below `pid_max`, at most 4,194,304; a quarter of
/// them is more than any host has alive.
const MAX_THREADS: usize = 1 << 20;

/// What is known of a task. Only [`Threads`] changes it.
#[derive(Debug, Clone, Copy)]
pub struct Thread {
    /// Its id.
    pub tid: Tid,
    /// The process it belongs to, 0 if not known.
    pub process: Tid,
    /// The task that forked it, 0 if not seen.
    pub parent: Tid,
    /// Its name.
    pub name: NameId,
    /// Its number as a vCPU.
    pub vcpu: Option<VcpuIndex>,
    /// It began while the trace ran.
    pub born: bool,
    /// It has exited, so the kernel can give its id to another task.
    pub dead: bool,
}

impl Thread {
    const fn new(tid: Tid) -> Self {
        Self {
            tid,
            process: Tid(0),
            parent: Tid(0),
            name: NameId::NONE,
            vcpu: None,
            born: false,
            dead: false,
        }
    }

    const fn is_free(&self) -> bool {
        self.dead && self.vcpu.is_none()
    }
}

/// All tasks.
#[derive(Debug)]
pub struct Threads {
    list: Vec<Thread>,
    by_tid: IntMap<i32, ThreadIndex>,
    limit: usize,
    recycles: bool,
    /// Number of dead tasks that can give up their numbers.
    dead: usize,
    /// Index at which the search for the next dead task begins.
    next_dead: usize,
}

impl Threads {
    /// The idle task and the placeholder only. `recycles`: past the limit, numbers of dead tasks go to
    /// new ones.
    pub(crate) fn new(recycles: bool) -> Self {
        Self {
            list: vec![Thread::new(Tid::IDLE), Thread::new(Tid(i32::MIN))],
            by_tid: IntMap::from_iter([(0, ThreadIndex::IDLE)]),
            limit: MAX_THREADS,
            recycles,
            dead: 0,
            next_dead: 0,
        }
    }

    /// Keeps at most so many tasks apart.
    pub(crate) fn limited(mut self, limit: usize) -> Self {
        self.limit = self.limit.min(limit);
        self
    }

    /// The number of the task with this id, new or known.
    #[inline]
    pub fn find(&mut self, tid: Tid) -> ThreadIndex {
        match self.by_tid.get(&tid.0) {
            Some(&index) => index,
            None => self.add(tid),
        }
    }

    /// The task with this id, if one was seen.
    #[must_use]
    pub fn with_tid(&self, tid: Tid) -> Option<&Thread> {
        self.by_tid.get(&tid.0).map(|&index| self.get(index))
    }

    #[cold]
    fn add(&mut self, tid: Tid) -> ThreadIndex {
        let index = if self.list.len() < self.limit {
            // The limit is far below 2^32.
            let index = ThreadIndex(self.list.len() as u32);
            self.list.push(Thread::new(tid));
            index
        } else if let Some(index) = self.take_dead() {
            let old = std::mem::replace(&mut self.list[index.0 as usize], Thread::new(tid));
            if self.by_tid.get(&old.tid.0) == Some(&index) {
                self.by_tid.remove(&old.tid.0);
            }
            index
        } else {
            return ThreadIndex::OVERFLOW;
        };
        self.by_tid.insert(tid.0, index);
        index
    }

    /// The number of a dead task that is no vCPU. The search goes round the table, so that the task died
    /// long ago and no reader still refers to it.
    fn take_dead(&mut self) -> Option<ThreadIndex> {
        if !self.recycles || self.dead == 0 {
            return None;
        }
        let len = self.list.len();
        let is_free = |index: &usize| self.list[*index].is_free();
        let mut round = (self.next_dead..len).chain(0..self.next_dead);
        let index = round.find(is_free)?;
        self.next_dead = index + 1;
        self.dead -= 1;
        u32::try_from(index).ok().map(ThreadIndex)
    }

    /// The task with this number.
    #[must_use]
    pub fn get(&self, index: ThreadIndex) -> &Thread {
        debug_assert!((index.0 as usize) < self.list.len(), "{index:?}");
        // Numbers come from this table alone; the idle task stands in for any other.
        self.list.get(index.0 as usize).unwrap_or(&self.list[0])
    }

    /// The task has this name, and belongs to this process (0: not known).
    pub(crate) fn introduce(&mut self, index: ThreadIndex, process: Tid, name: NameId) {
        if let Some(thread) = self.single(index) {
            thread.name = name;
            if process.0 > 0 {
                thread.process = process;
            }
        }
    }

    /// The task runs the vCPU with this number.
    pub(crate) fn set_vcpu(&mut self, index: ThreadIndex, vcpu: VcpuIndex) {
        if let Some(thread) = self.single(index) {
            thread.vcpu = Some(vcpu);
        }
    }

    /// The task's number as a vCPU goes to another one.
    pub(crate) fn release_vcpu(&mut self, index: ThreadIndex) {
        self.change(index, |thread| thread.vcpu = None);
    }

    /// The task has exited.
    pub(crate) fn exited(&mut self, index: ThreadIndex) {
        self.change(index, |thread| thread.dead = true);
    }

    /// Changes a task, and counts whether its number is free.
    fn change(&mut self, index: ThreadIndex, change: impl FnOnce(&mut Thread)) {
        // The idle task and the placeholder stay as they are: they stand for several tasks.
        if let Some(thread) = self.single(index) {
            let was_free = thread.is_free();
            change(thread);
            let is_free = thread.is_free();
            self.dead = self.dead + usize::from(is_free) - usize::from(was_free);
        }
    }

    /// A task is born with this id. If an earlier one of the same id was a vCPU, that one keeps its
    /// number, because readers still hold sums under it.
    pub(crate) fn born(&mut self, tid: Tid, parent: Tid) -> ThreadIndex {
        let mut index = self.find(tid);
        let old = *self.get(index);
        if old.dead && old.vcpu.is_some() {
            self.by_tid.remove(&tid.0);
            index = self.find(tid);
        }
        let is_known = !old.dead && (old.vcpu.is_some() || old.born);
        if !is_known {
            self.change(index, |thread| {
                let (name, process) = (thread.name, thread.process);
                *thread = Thread::new(tid);
                thread.parent = parent;
                thread.born = true;
                if !old.dead {
                    // A reader names tasks before the first event that needs the name.
                    thread.name = name;
                    thread.process = process;
                }
            });
        }
        index
    }

    fn single(&mut self, index: ThreadIndex) -> Option<&mut Thread> {
        self.list
            .get_mut(index.0 as usize)
            .filter(|_| index.is_single())
    }

    /// All tasks but the idle task and the placeholder, by number.
    pub fn iter(&self) -> impl Iterator<Item = (ThreadIndex, &Thread)> {
        (0..).map(ThreadIndex).zip(&self.list).skip(2)
    }

    /// Whether tasks past the limit were seen.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.list.len() >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_given_out_again_is_another_task() {
        let mut threads = Threads::new(false);
        let first = threads.find(Tid(7));
        threads.set_vcpu(first, VcpuIndex(0));
        threads.exited(first);
        let second = threads.born(Tid(7), Tid(1));
        assert_ne!(first, second);
        assert_eq!(threads.find(Tid(7)), second);
        assert_eq!(threads.get(first).vcpu, Some(VcpuIndex(0)));
        assert_eq!(threads.get(second).parent, Tid(1));
    }

    #[test]
    fn a_task_that_is_no_vcpu_leaves_its_number_to_the_next_with_its_id() {
        let mut threads = Threads::new(false);
        let first = threads.born(Tid(7), Tid(1));
        threads.introduce(first, Tid(5), NameId(3));
        threads.exited(first);
        let second = threads.born(Tid(7), Tid(2));
        assert_eq!(first, second);
        assert_eq!(threads.get(second).name, NameId::NONE);
        assert!(!threads.get(second).dead);
    }

    #[test]
    fn idle_has_a_number_of_its_own() {
        let mut threads = Threads::new(false);
        assert_eq!(threads.find(Tid::IDLE), ThreadIndex::IDLE);
        assert!(threads.find(Tid(1)).is_single());
    }

    #[test]
    fn past_the_limit_the_dead_make_room() {
        let mut threads = Threads {
            limit: 4,
            ..Threads::new(true)
        };
        let (first, second) = (threads.find(Tid(10)), threads.find(Tid(11)));
        assert_eq!(threads.find(Tid(12)), ThreadIndex::OVERFLOW);
        threads.exited(second);
        assert_eq!(threads.find(Tid(12)), second);
        assert_eq!(threads.find(Tid(11)), ThreadIndex::OVERFLOW);
        // A dead vCPU keeps its number until another vCPU gets the vCPU's.
        threads.set_vcpu(first, VcpuIndex(0));
        threads.exited(first);
        assert_eq!(threads.find(Tid(13)), ThreadIndex::OVERFLOW);
        threads.release_vcpu(first);
        assert_eq!(threads.find(Tid(13)), first);
    }
}
