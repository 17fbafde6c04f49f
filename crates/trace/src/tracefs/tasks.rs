//! Names and processes of tasks, so that only a change makes an event.

use stealtime_events::{Kind, Tid};

use super::tid_table::TidTable;
use crate::NameTable;

/// A task's name as the kernel keeps it (`TASK_COMM_LEN`), zeros behind its end.
pub(crate) type Comm = [u8; 16];

#[derive(Clone, Copy, Default)]
struct Known {
    comm: Comm,
    process: i32,
}

impl Known {
    fn event(self, tid: i32, names: &mut NameTable) -> Kind {
        let end = self.comm.iter().position(|byte| *byte == 0);
        let comm = self.comm.get(..end.unwrap_or(self.comm.len()));
        Kind::Task {
            tid: Tid(tid),
            process: Tid(self.process),
            name: names.intern_bytes(comm.unwrap_or_default()),
        }
    }
}

/// Names and processes by tid: 80 MiB at worst, some hundred KiB in practice.
#[derive(Default)]
pub(super) struct Tasks {
    known: TidTable<Known>,
}

impl Tasks {
    /// Sets the name of `tid`. Returns the event of a change. `None` if the name was known, for the
    /// idle tasks (their one tid has a name on each CPU), and for an empty name.
    #[inline]
    pub(super) fn named(
        &mut self,
        tid: i32,
        process: Option<i32>,
        comm: Comm,
        names: &mut NameTable,
    ) -> Option<Kind> {
        if let Some(known) = self.known.get(tid)
            && known.comm == comm
            && process.is_none_or(|process| process == known.process)
        {
            return None;
        }
        self.learn(tid, process, comm, names)
    }

    /// Sets the process of `tid`. Returns the event of a change; `None` if the process was known, or is
    /// 0.
    #[inline]
    pub(super) fn of_process(
        &mut self,
        tid: i32,
        process: i32,
        names: &mut NameTable,
    ) -> Option<Kind> {
        let known = self.known.get(tid).copied().unwrap_or_default();
        if process <= 0 || known.process == process {
            return None;
        }
        self.learn_process(tid, process, names)
    }

    #[cold]
    fn learn_process(&mut self, tid: i32, process: i32, names: &mut NameTable) -> Option<Kind> {
        let known = self.known.entry(tid)?;
        known.process = process;
        Some(known.event(tid, names))
    }

    #[cold]
    fn learn(
        &mut self,
        tid: i32,
        process: Option<i32>,
        comm: Comm,
        names: &mut NameTable,
    ) -> Option<Kind> {
        if comm == Comm::default() {
            return None;
        }
        let known = self.known.entry(tid)?;
        known.comm = comm;
        known.process = process.unwrap_or(known.process);
        Some(known.event(tid, names))
    }

    /// Forgets a task that has ended: its tid may be given to another one.
    pub(super) fn ended(&mut self, tid: i32) {
        // A tid without an entry has no process to forget.
        if let Some(known) = self.known.get_mut(tid) {
            // The name stays: the task's last switch follows, and its name is no change.
            known.process = 0;
        }
    }
}

/// A name of any length as the kernel keeps it (`__set_task_comm`): up to the first zero, at most 15
/// bytes.
pub(crate) fn comm_of(bytes: &[u8]) -> Comm {
    let mut comm = Comm::default();
    for (byte, value) in comm.iter_mut().take(15).zip(bytes) {
        if *value == 0 {
            break;
        }
        *byte = *value;
    }
    comm
}

#[cfg(test)]
mod tests {
    use stealtime_events::Names;

    use super::*;

    #[test]
    fn a_process_is_reported_once() {
        let mut names = NameTable::default();
        let mut tasks = Tasks::default();
        let mut of = |tid, process| match tasks.of_process(tid, process, &mut names)? {
            Kind::Task { process, .. } => Some(process.0),
            other => panic!("{other:?}"),
        };
        assert_eq!(of(77, 70), Some(70));
        assert_eq!([of(77, 70), of(77, 0), of(77, -1), of(0, 1)], [None; 4]);
        assert_eq!(of(77, 71), Some(71));
        let named = tasks.named(77, None, comm_of(b"CPU 0/KVM"), &mut names);
        assert!(
            matches!(
                named,
                Some(Kind::Task {
                    process: Tid(71),
                    ..
                })
            ),
            "{named:?}"
        );
    }

    #[test]
    fn only_a_change_is_reported() {
        let mut names = NameTable::default();
        let mut tasks = Tasks::default();
        let mut named = |tid, process, name: &[u8]| {
            let event = tasks.named(tid, process, comm_of(name), &mut names)?;
            match event {
                Kind::Task { process, name, .. } => Some((process.0, names.name(name).to_owned())),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(named(77, None, b"qemu\0junk"), Some((0, "qemu".into())));
        assert_eq!(named(77, None, b"qemu\0other"), None);
        assert_eq!(named(77, Some(70), b"qemu"), Some((70, "qemu".into())));
        assert_eq!(
            named(77, None, b"CPU 0/KVM"),
            Some((70, "CPU 0/KVM".into()))
        );
        assert_eq!(named(0, None, b"swapper/0"), None);
        assert_eq!(named(-1, None, b"x"), None);
        assert_eq!(named(i32::MAX, None, b"x"), None);
        assert_eq!(named(5, None, b""), None);
        assert_eq!(
            named(5, None, b"sixteen_bytes_no_end"),
            Some((0, "sixteen_bytes_n".into()))
        );
    }
}
