//! Files below a root, live or recorded, with a list of what could not be read.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use crate::archive::{Archive, Entry};
use crate::snapshot::Missing;

/// Bytes of a file that are read at most. No file of interest has more, and a guest's owner must not
/// make a host read without end.
const MAX_BYTES: usize = 4 << 20;
/// Threads that read at a time. More would compete with the VMs for the locks of /proc.
const MAX_READERS: usize = 8;

/// `EACCES`, `EPERM`: the reader lacks a right.
const DENIED: [i32; 2] = [13, 1];
/// `ENOENT`, `ESRCH`: no such file, or its process has ended.
const ABSENT: [i32; 2] = [2, 3];

/// Where files come from.
#[derive(Debug)]
enum Source {
    /// A directory: `/`, or a copy of a part of it.
    Directory(PathBuf),
    /// A recorded tree.
    Recorded(Archive),
}

/// The files of a host.
#[derive(Debug)]
pub(crate) struct Tree {
    source: Source,
    /// What was read, to be read again elsewhere.
    record: Option<Mutex<Archive>>,
    missing: Mutex<BTreeMap<MissingKey, Missing>>,
}

/// One entry of the list for each value and reason: 500 VMs give no list of 500 lines.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MissingKey {
    what: &'static str,
    reason: String,
}

impl Tree {
    /// The files below a directory, or those of a recorded tree.
    pub(crate) fn open(root: &Path, is_recording: bool) -> io::Result<Self> {
        let source = match root.is_file() {
            true => Source::Recorded(Archive::parse(&fs::read(root)?)?),
            false => {
                fs::read_dir(root)?;
                Source::Directory(root.to_owned())
            }
        };
        Ok(Self {
            source,
            record: is_recording.then(Mutex::default),
            missing: Mutex::default(),
        })
    }

    /// What could not be read, and all that was.
    pub(crate) fn finish(self) -> Finished {
        let missing = self.missing.into_inner();
        let missing = missing.unwrap_or_else(PoisonError::into_inner);
        let record = self.record.map(Mutex::into_inner);
        Finished {
            missing: missing.into_values().collect(),
            record: record.map(|record| record.unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// The content of a file.
    pub(crate) fn bytes(&self, path: &str) -> io::Result<Vec<u8>> {
        self.head(path, MAX_BYTES)
    }

    /// The first bytes of a file.
    pub(crate) fn head(&self, path: &str, limit: usize) -> io::Result<Vec<u8>> {
        let read = self.read(path, limit);
        self.keep(path, &read, |bytes| Entry::File(bytes.clone()));
        read
    }

    /// The part of a file that `part` takes. The record has this part alone: a file with secrets, such
    /// as a command line, is not copied.
    pub(crate) fn part(
        &self,
        path: &str,
        part: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> io::Result<Vec<u8>> {
        let read = self.read(path, MAX_BYTES).map(|bytes| part(&bytes));
        self.keep(path, &read, |bytes| Entry::File(bytes.clone()));
        read
    }

    fn read(&self, path: &str, limit: usize) -> io::Result<Vec<u8>> {
        match &self.source {
            Source::Directory(root) => read_up_to(&below(root, path), limit),
            Source::Recorded(archive) => archive.file(path).map(<[u8]>::to_vec),
        }
    }

    /// The content of a file as text. What is not UTF-8 becomes U+FFFD.
    pub(crate) fn text(&self, path: &str) -> io::Result<String> {
        self.bytes(path).map(text)
    }

    /// Some lines of a file; see [`Tree::part`].
    pub(crate) fn lines(&self, path: &str, wanted: impl Fn(&str) -> bool) -> io::Result<String> {
        let lines = self.part(path, |bytes| {
            let text = text(bytes.to_vec());
            let lines = text.split_inclusive('\n').filter(|line| wanted(line));
            lines.collect::<String>().into_bytes()
        });
        lines.map(text)
    }

    /// A value that every host has: without it, its absence is listed.
    pub(crate) fn value(&self, key: &'static str, path: &str) -> Option<String> {
        let text = self.text(path);
        let text = text.map_err(|error| self.note(key, path, &error));
        Some(text.ok()?.trim_end().to_owned())
    }

    /// A value that some hosts have not: only a refusal is listed.
    pub(crate) fn optional(&self, key: &'static str, path: &str) -> Option<String> {
        let text = self.text(path);
        let text = text.map_err(|error| self.note_refusal(key, path, &error));
        Some(text.ok()?.trim_end().to_owned())
    }

    /// A number, as [`Tree::optional`].
    pub(crate) fn number<T: std::str::FromStr>(&self, key: &'static str, path: &str) -> Option<T> {
        self.optional(key, path)?.trim().parse().ok()
    }

    /// The target of a symbolic link.
    pub(crate) fn link(&self, path: &str) -> io::Result<String> {
        let target = match &self.source {
            Source::Directory(root) => {
                let target = fs::read_link(below(root, path));
                target.map(|target| target.to_string_lossy().into_owned())
            }
            Source::Recorded(archive) => archive.link(path).map(str::to_owned),
        };
        self.keep(path, &target, |target| Entry::Link(target.clone()));
        target
    }

    /// The names in a directory, sorted.
    pub(crate) fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let names = match &self.source {
            Source::Directory(root) => {
                let entries = fs::read_dir(below(root, path));
                entries.map(|entries| {
                    let names = entries.flatten().map(|entry| entry.file_name());
                    let names = names.map(|name| name.to_string_lossy().into_owned());
                    let mut names: Vec<String> = names.collect();
                    names.sort_unstable();
                    names
                })
            }
            Source::Recorded(archive) => archive.list(path),
        };
        self.keep(path, &names, |_| Entry::Directory);
        names
    }

    /// The names in a directory that some hosts have not.
    pub(crate) fn optional_list(&self, key: &'static str, path: &str) -> Vec<String> {
        let names = self.list(path);
        let names = names.map_err(|error| self.note_refusal(key, path, &error));
        names.unwrap_or_default()
    }

    /// Whether a path exists.
    pub(crate) fn exists(&self, path: &str) -> bool {
        let exists = match &self.source {
            Source::Directory(root) => fs::symlink_metadata(below(root, path)).is_ok(),
            Source::Recorded(archive) => archive.exists(path),
        };
        if exists {
            // No content: a device must not be opened.
            self.keep(path, &Ok(()), |()| Entry::File(Vec::new()));
        }
        exists
    }

    /// Lists a value as missing, for an error at a path.
    pub(crate) fn note(&self, key: &'static str, path: &str, error: &io::Error) {
        let reason = reason(error);
        self.note_reason(
            key,
            &reason,
            &format!("/{}: {reason}", path.trim_start_matches('/')),
        );
    }

    /// The same, unless the file is absent.
    pub(crate) fn note_refusal(&self, key: &'static str, path: &str, error: &io::Error) {
        if !is_absent(error) {
            self.note(key, path, error);
        }
    }

    /// Lists a value as missing, for a reason. Only the first sentence of a reason is kept.
    pub(crate) fn note_reason(&self, key: &'static str, reason: &str, detail: &str) {
        let id = MissingKey {
            what: key,
            reason: reason.to_owned(),
        };
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = missing.entry(id).or_insert_with(|| Missing {
            what: key.to_owned(),
            why: detail.to_owned(),
            times: 0,
        });
        entry.times += 1;
        // Readers run in parallel: the smallest path makes a snapshot independent of their order.
        if detail < entry.why.as_str() {
            detail.clone_into(&mut entry.why);
        }
    }

    fn keep<T>(&self, path: &str, read: &io::Result<T>, entry: impl FnOnce(&T) -> Entry) {
        if let Some(record) = &self.record {
            let entry = match read {
                Ok(value) => entry(value),
                Err(error) if is_absent(error) => return,
                Err(error) => Entry::Refused(error.raw_os_error().unwrap_or(DENIED[0])),
            };
            let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
            record.add(path, entry);
        }
    }
}

/// What remains of a tree when all is read.
pub(crate) struct Finished {
    pub(crate) missing: Vec<Missing>,
    pub(crate) record: Option<Archive>,
}

/// Whether an error says that there is no such file or process.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    error.kind() == io::ErrorKind::NotFound || code.is_some_and(|code| ABSENT.contains(&code))
}

/// Whether an error says that the reader lacks a right.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    code.is_some_and(|code| DENIED.contains(&code))
}

/// The reason of an error for users.
fn reason(error: &io::Error) -> String {
    match error {
        _ if is_absent(error) => "no such file on this host".to_owned(),
        _ if error.raw_os_error() == Some(DENIED[1]) => {
            "operation not permitted: locked down, or a right is missing; run as root".to_owned()
        }
        _ if is_refusal(error) => "permission denied: run as root".to_owned(),
        _ => error.to_string(),
    }
}

/// Results for each item, by some readers at a time, in the order of the items.
pub(crate) fn in_parallel<T: Sync, R: Send>(items: &[T], read: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let readers = available.min(MAX_READERS);
    if readers < 2 || items.len() < 2 * readers {
        return items.iter().map(read).collect();
    }
    let part = items.len().div_ceil(readers);
    let read_all = |part: &[T]| part.iter().map(&read).collect::<Vec<R>>();
    std::thread::scope(|scope| {
        let read_all = &read_all;
        let start = |part| Builder::new().spawn_scoped(scope, move || read_all(part));
        let parts = items.chunks(part).map(|part| (part, start(part)));
        // All are started before the first is joined.
        let parts: Vec<_> = parts.collect();
        let results = parts.into_iter().map(|(part, thread)| match thread {
            Ok(thread) => match thread.join() {
                Ok(results) => results,
                Err(panic) => std::panic::resume_unwind(panic),
            },
            // At a limit of threads.
            Err(_) => read_all(part),
        });
        results.flatten().collect()
    })
}

/// Bytes as text.
fn text(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Reads without asking for the size first: files of /proc and /sys have none.
fn read_up_to(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    const BLOCK: usize = 4096;
    let mut file = fs::File::open(path)?;
    let mut bytes = Vec::new();
    let mut length = 0;
    while length < limit {
        bytes.resize((length + BLOCK).max(2 * length).min(limit), 0);
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}
