//! The result of parsing an event's text.

use stealtime_events::{Kind, Tid};

/// A task and the name that an event prints for it.
pub(super) type Named<'a> = (Tid, &'a [u8]);

/// An event and the names of tasks in its text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decoded<'a> {
    pub(super) kind: Kind,
    pub(super) tasks: [Option<Named<'a>>; 2],
}

impl Decoded<'_> {
    /// An event that names no task.
    pub(super) const fn without_tasks(kind: Kind) -> Self {
        let tasks = [None; 2];
        Self { kind, tasks }
    }
}
