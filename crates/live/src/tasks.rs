//! Names and processes of threads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// Scans of a new process: VMMs start their vCPUs, and name them, some time after the process.
const SCANS: u32 = 4;

/// Threads by id.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Threads {
    /// The process and the name.
    known: BTreeMap<i32, (i32, Vec<u8>)>,
    /// Scans that processes have had.
    scans: BTreeMap<i32, u32>,
    /// Processes that have ended, with the time when a scan no longer had them.
    ended: BTreeMap<i32, Instant>,
}

impl Threads {
    /// Adds the threads of a /proc; those that are known keep their names.
    pub(crate) fn scan(&mut self, proc_root: &Path) {
        for process in numbers(proc_root) {
            self.scans.insert(process, SCANS);
            self.scan_process(proc_root, process, false);
        }
    }

    /// Adds the threads of processes that began lately, with their latest names. A process that ends before
    /// the recording does is in none of the other scans. Takes some us for each process that is known.
    pub(crate) fn scan_new(&mut self, proc_root: &Path) {
        let processes = numbers(proc_root);
        for &process in &processes {
            let scans = self.scans.entry(process).or_insert(0);
            if *scans < SCANS {
                *scans += 1;
                self.scan_process(proc_root, process, true);
            }
        }
        // An id may come again.
        self.scans.retain(|process, _| processes.contains(process));
    }

    /// Forgets threads of processes that ended longer than `patience` ago: for a collector that runs without
    /// an end. Pages that are kept so long still name them.
    pub(crate) fn forget_ended(&mut self, now: Instant, patience: Duration) {
        let (scans, ended) = (&self.scans, &mut self.ended);
        self.known.retain(|_, (process, _)| {
            scans.contains_key(process)
                || now.duration_since(*ended.entry(*process).or_insert(now)) < patience
        });
        let known: BTreeSet<i32> = self.known.values().map(|(process, _)| *process).collect();
        ended.retain(|process, _| known.contains(process) && !scans.contains_key(process));
    }

    fn scan_process(&mut self, proc_root: &Path, process: i32, renames: bool) {
        let tasks = proc_root.join(process.to_string()).join("task");
        for tid in numbers(&tasks) {
            if !renames && self.known.contains_key(&tid) {
                continue;
            }
            // A thread that has ended meanwhile.
            let Ok(comm) = std::fs::read(tasks.join(tid.to_string()).join("comm")) else {
                continue;
            };
            self.known.insert(tid, (process, comm));
        }
    }

    /// Each thread: its id, its process, its name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (i32, i32, &[u8])> {
        self.known.iter().map(|(tid, (process, name))| {
            let name = name.strip_suffix(b"\n").unwrap_or(name);
            (*tid, *process, name)
        })
    }

    /// Lines of ids and names, with those of `saved_cmdlines` for threads that had ended before a scan.
    pub(crate) fn cmdlines(&self, saved: &[u8]) -> Vec<u8> {
        let mut lines = Vec::new();
        for line in saved.split(|byte| *byte == b'\n') {
            let tid = line.split(|byte| *byte == b' ').next().unwrap_or_default();
            let tid = std::str::from_utf8(tid)
                .ok()
                .and_then(|tid| tid.parse().ok());
            if tid.is_some_and(|tid| !self.known.contains_key(&tid)) {
                lines.extend_from_slice(line);
                lines.push(b'\n');
            }
        }
        for (tid, _, comm) in self.iter() {
            lines.extend_from_slice(format!("{tid} ").as_bytes());
            // A line break in a name would begin a line of its own.
            lines.extend(comm.iter().map(|byte| match byte {
                b'\n' => b'_',
                byte => *byte,
            }));
            lines.push(b'\n');
        }
        lines
    }

    /// Lines of the ids of thread and process, as in `saved_tgids`.
    pub(crate) fn tgids(&self) -> Vec<u8> {
        let lines = self
            .iter()
            .map(|(tid, process, _)| format!("{tid} {process}\n"));
        lines.collect::<String>().into_bytes()
    }
}

/// Entries of a folder that are numbers.
fn numbers(folder: &Path) -> Vec<i32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_thread(root: &Path, process: i32, tid: i32, name: &str) {
        let task = root.join(format!("{process}/task/{tid}"));
        std::fs::create_dir_all(&task).expect("a folder");
        std::fs::write(task.join("comm"), name).expect("a file");
    }

    /// Seen in a nested host: VMs that came and went within a recording were grouped by a guess.
    #[test]
    fn processes_that_come_and_go_are_known() {
        let root = tempfile::tempdir().expect("a folder");
        add_thread(root.path(), 1, 1, "init\n");
        let mut threads = Threads::default();
        threads.scan(root.path());
        add_thread(root.path(), 181, 181, "sh\n");
        threads.scan_new(root.path());
        add_thread(root.path(), 181, 181, "qemu\n");
        add_thread(root.path(), 181, 182, "CPU 0/KVM\n");
        // Of those that were there before, new threads are left to the last scan.
        add_thread(root.path(), 1, 2, "late\n");
        threads.scan_new(root.path());
        std::fs::remove_dir_all(root.path().join("181")).expect("it ends");
        threads.scan_new(root.path());
        assert_eq!(threads.tgids(), b"1 1\n181 181\n182 181\n");
        threads.scan(root.path());
        let lines = String::from_utf8(threads.cmdlines(b"")).expect("ASCII");
        assert_eq!(lines, "1 init\n2 late\n181 qemu\n182 CPU 0/KVM\n");
    }

    #[test]
    fn names_come_from_proc_first() {
        let root = tempfile::tempdir().expect("a folder");
        for (tid, comm) in [("181", "qemu\n"), ("182", "CPU 0/\nKVM\n")] {
            let task = root.path().join("181/task").join(tid);
            std::fs::create_dir_all(&task).expect("a folder");
            std::fs::write(task.join("comm"), comm).expect("a file");
        }
        std::fs::create_dir(root.path().join("irq")).expect("a folder");
        let mut threads = Threads::default();
        threads.scan(root.path());
        let saved = b"181 old name\n90 gone already\n";
        let lines = String::from_utf8(threads.cmdlines(saved)).expect("ASCII");
        assert_eq!(lines, "90 gone already\n181 qemu\n182 CPU 0/_KVM\n");
        assert_eq!(threads.tgids(), b"181 181\n182 181\n");
    }
}
