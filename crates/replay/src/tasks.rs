//! The tasks of a recording, by the tracker's numbers of threads.

use stealtime_track::ThreadIndex;

use crate::task::Task;

/// Tasks that have done something.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    /// By number; boxed, because most threads of a host are idle and have none.
    list: Vec<Option<Box<Task>>>,
}

impl Tasks {
    pub(crate) fn get(&self, index: ThreadIndex) -> Option<&Task> {
        self.list.get(index.0 as usize)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, index: ThreadIndex) -> Option<&mut Task> {
        self.list.get_mut(index.0 as usize)?.as_deref_mut()
    }

    /// The task with this number, which is made if there is none.
    pub(crate) fn get_or_insert_with(
        &mut self,
        index: ThreadIndex,
        new: impl FnOnce() -> Task,
    ) -> &mut Task {
        let slot = index.0 as usize;
        if self.list.len() <= slot {
            self.list.resize_with(slot + 1, || None);
        }
        self.list[slot].get_or_insert_with(|| Box::new(new()))
    }

    pub(crate) fn remove(&mut self, index: ThreadIndex) -> Option<Task> {
        let task = self.list.get_mut(index.0 as usize)?.take();
        task.map(|task| *task)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        self.list.iter_mut().filter_map(|task| task.as_deref_mut())
    }

    /// All of them.
    pub(crate) fn into_tasks(self) -> impl Iterator<Item = Task> {
        self.list.into_iter().flatten().map(|task| *task)
    }
}
