//! Names and processes of threads.

use std::collections::BTreeMap;
use std::path::Path;

/// Threads by id: the process and the name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Threads(BTreeMap<i32, (i32, Vec<u8>)>);

impl Threads {
    /// Adds the threads of a /proc; those that are known keep their names.
    pub(crate) fn scan(&mut self, proc_root: &Path) {
        for process in numbers(proc_root) {
            let tasks = proc_root.join(process.to_string()).join("task");
            for tid in numbers(&tasks) {
                if self.0.contains_key(&tid) {
                    continue;
                }
                // A thread that has ended meanwhile.
                let Ok(comm) = std::fs::read(tasks.join(tid.to_string()).join("comm")) else {
                    continue;
                };
                self.0.insert(tid, (process, comm));
            }
        }
    }

    /// Lines of ids and names, with those of `saved_cmdlines` for threads that had ended before a scan.
    pub(crate) fn cmdlines(&self, saved: &[u8]) -> Vec<u8> {
        let mut lines = Vec::new();
        for line in saved.split(|byte| *byte == b'\n') {
            let tid = line.split(|byte| *byte == b' ').next().unwrap_or_default();
            let tid = std::str::from_utf8(tid)
                .ok()
                .and_then(|tid| tid.parse().ok());
            if tid.is_some_and(|tid| !self.0.contains_key(&tid)) {
                lines.extend_from_slice(line);
                lines.push(b'\n');
            }
        }
        for (tid, (_, comm)) in &self.0 {
            lines.extend_from_slice(format!("{tid} ").as_bytes());
            let comm = comm.strip_suffix(b"\n").unwrap_or(comm);
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
            .0
            .iter()
            .map(|(tid, (process, _))| format!("{tid} {process}\n"));
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
