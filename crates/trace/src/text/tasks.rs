//! Names of tasks: an event for each, once, before the first event that needs it.

use std::collections::HashMap;

use stealtime_events::{Kind, NameId, Names, Tid};

use crate::NameTable;

/// Names and processes of the tasks so far.
///
/// Bounded: past [`Tasks::MAX`] tasks it forgets them all, and their events come again.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    known: HashMap<Tid, Known>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    name: NameId,
    process: Tid,
    /// The name comes from an event that carries it, not from a table made after the recording.
    sure: bool,
}

impl Tasks {
    /// Tasks that are remembered, in some 18 MiB.
    const MAX: usize = 1 << 19;

    /// Sets a name that an event itself carries. Returns the event of a change.
    pub(super) fn named(&mut self, names: &mut NameTable, tid: Tid, comm: &[u8]) -> Option<Kind> {
        self.learn(names, tid, comm, None, true)
    }

    /// Sets a name from the column of the line, and the process if the line has it. A name that an event
    /// carries stays.
    pub(super) fn guessed(
        &mut self,
        names: &mut NameTable,
        tid: Tid,
        comm: &[u8],
        process: Option<Tid>,
    ) -> Option<Kind> {
        self.learn(names, tid, comm, process, false)
    }

    fn learn(
        &mut self,
        names: &mut NameTable,
        tid: Tid,
        comm: &[u8],
        process: Option<Tid>,
        sure: bool,
    ) -> Option<Kind> {
        if tid.0 <= 0 {
            return None;
        }
        if self.known.len() >= Self::MAX && !self.known.contains_key(&tid) {
            self.known.clear();
        }
        let fresh = Known {
            name: NameId::NONE,
            process: Tid(0),
            sure: false,
        };
        let known = self.known.entry(tid).or_insert(fresh);
        let previous = (known.name, known.process);
        let renames = !comm.is_empty() && (sure || !known.sure);
        if renames && names.name(known.name).as_bytes() != comm {
            known.name = names.intern_bytes(comm);
        }
        known.sure |= renames && sure;
        known.process = process.unwrap_or(known.process);
        let current = (known.name, known.process);
        (current != previous).then_some(Kind::Task {
            tid,
            process: current.1,
            name: current.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_a_name_once_and_trusts_events_more_than_tables() {
        let (mut tasks, mut names) = (Tasks::default(), NameTable::default());
        let tid = Tid(7);
        assert!(tasks.guessed(&mut names, tid, b"sleep", None).is_some());
        assert!(tasks.guessed(&mut names, tid, b"sleep", None).is_none());
        let event = tasks.named(&mut names, tid, b"trace-cmd");
        let name = names.intern("trace-cmd");
        assert_eq!(
            event,
            Some(Kind::Task {
                tid,
                process: Tid(0),
                name
            })
        );
        assert!(tasks.guessed(&mut names, tid, b"sleep", None).is_none());
        let event = tasks.guessed(&mut names, tid, b"sleep", Some(Tid(5)));
        assert_eq!(
            event,
            Some(Kind::Task {
                tid,
                process: Tid(5),
                name
            })
        );
    }

    #[test]
    fn the_idle_task_needs_no_name() {
        let (mut tasks, mut names) = (Tasks::default(), NameTable::default());
        assert!(tasks.named(&mut names, Tid::IDLE, b"swapper/0").is_none());
    }
}
