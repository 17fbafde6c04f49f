//! A tracing instance of its own, and instances that killed recorders left behind.
//!
//! The name says which process owns it: `stealtime-PID-START-NAMESPACE-NUMBER`. START is the start time of
//! `/proc/PID/stat` in clock ticks. NAMESPACE is the namespace of process ids.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::RecordError;
use crate::tracefs::Folder;

/// First part of the names.
const PREFIX: &str = "stealtime-";
/// The kernel frees an instance once the last reader of its files is gone.
const PATIENCE: Duration = Duration::from_millis(500);

/// The process that owns an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pid: u32,
    /// Clock ticks since boot: a later process with the same id has another one.
    start_ticks: u64,
    /// Inode of the process namespace; 0 where /proc does not say.
    namespace: u64,
}

impl Owner {
    /// A running process.
    fn running(proc_root: &Path, pid: u32) -> Option<Self> {
        let folder = proc_root.join(pid.to_string());
        let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
        Some(Self {
            pid,
            start_ticks: start_ticks(&stat)?,
            namespace: namespace(&folder),
        })
    }

    /// The owner in an instance's name.
    fn named(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.split('-');
        Some(Self {
            pid: parts.next()?.parse().ok()?,
            start_ticks: parts.next()?.parse().ok()?,
            namespace: parts.next()?.parse().ok()?,
        })
    }
}

/// Field 22 of /proc/PID/stat; `None` for a zombie, which holds no files any more. The name in field 2 may
/// hold blanks and brackets.
fn start_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let is_dead = matches!(state, "Z" | "X");
    // The state is field 3.
    fields.nth(18).filter(|_| !is_dead)?.parse().ok()
}

/// The inode of a process's namespace of process ids: `pid:[4026531836]`.
fn namespace(folder: &Path) -> u64 {
    let link = std::fs::read_link(folder.join("ns/pid")).unwrap_or_default();
    let link = link.to_string_lossy();
    let number = link
        .split_once('[')
        .and_then(|(_, rest)| rest.strip_suffix(']'));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// A tracing instance, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Instance {
    folder: Folder,
    /// Open while this process lives: the kernel stops tracing and frees the buffer once it is closed.
    guard: Option<File>,
    is_removed: bool,
}

impl Instance {
    /// Makes an instance. Nothing is recorded yet.
    pub(crate) fn create(tracefs: &Folder) -> Result<Self, RecordError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let instances = tracefs.join("instances");
        if !instances.is_dir() {
            return Err(RecordError::NoInstances { path: instances });
        }
        let owner = Owner::running(Path::new("/proc"), std::process::id());
        let (start_ticks, namespace) =
            owner.map_or((0, 0), |owner| (owner.start_ticks, owner.namespace));
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let path = instances.join(format!("{PREFIX}{pid}-{start_ticks}-{namespace}-{number}"));
        std::fs::create_dir(&path)
            .map_err(|error| RecordError::control(&path, "make a tracing instance", error))?;
        let mut instance = Self {
            folder: Folder::new(path),
            guard: None,
            is_removed: false,
        };
        let folder = &instance.folder;
        folder.write("tracing_on", "0", "stop tracing")?;
        // A kernel without the option has no guard; the next start removes the instance there.
        if folder
            .write("options/disable_on_free", "1", "set an option")
            .is_ok()
        {
            let mut options = File::options();
            instance.guard = options.write(true).open(folder.join("free_buffer")).ok();
        }
        Ok(instance)
    }

    /// Its control files.
    pub(crate) const fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Removes it. Its files are closed.
    pub(crate) fn remove(mut self) -> Result<(), RecordError> {
        self.guard = None;
        self.is_removed = true;
        remove(&self.folder)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if !self.is_removed {
            self.guard = None;
            // The error that ended the recording is shown; the next start tries again.
            let _ = remove(&self.folder);
        }
    }
}

/// Stops tracing in an instance and removes it.
fn remove(folder: &Folder) -> Result<(), RecordError> {
    // Both may fail on an instance that is half made; what counts is that it goes.
    let _ = folder.write("tracing_on", "0", "stop tracing");
    let _ = folder.write("events/enable", "0", "switch events off");
    let began = Instant::now();
    loop {
        match std::fs::remove_dir(folder.path()) {
            Err(error) if is_busy(&error) && began.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            removed => {
                let doing = "remove the tracing instance";
                return removed.map_err(|error| RecordError::control(folder.path(), doing, error));
            }
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}

/// Instances of recorders that are gone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// Those that were removed.
    pub(crate) removed: Vec<String>,
    /// Those that could not be removed.
    pub(crate) stuck: Vec<PathBuf>,
}

/// Removes instances of processes that are gone. Instances of other process namespaces stay, because
/// their owners' ids mean nothing in this one.
pub(crate) fn remove_leftovers(tracefs: &Folder, proc_root: &Path) -> Leftovers {
    let mut leftovers = Leftovers::default();
    let current = namespace(&proc_root.join("self"));
    for name in tracefs.names("instances") {
        let Some(owner) = Owner::named(&name).filter(|owner| owner.namespace == current) else {
            continue;
        };
        if Owner::running(proc_root, owner.pid).is_some_and(|running| running == owner) {
            continue;
        }
        let folder = Folder::new(tracefs.join("instances").join(&name));
        match remove(&folder) {
            Ok(()) => leftovers.removed.push(name),
            Err(_) => leftovers.stuck.push(folder.path().to_owned()),
        }
    }
    leftovers
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const STAT: &str = "181 (CPU 0/KVM) (x)) S 1 181 181 0 -1 4194560 100 0 0 0 5 6 0 0 20 0 1 0 \
                        987654 1000 200";

    /// A /proc with process 181 and this process in namespace 7.
    fn proc_root() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for process in ["181", "self"] {
            let folder = root.path().join(process);
            std::fs::create_dir_all(folder.join("ns")).expect("a folder");
            symlink("pid:[7]", folder.join("ns/pid")).expect("a link");
            std::fs::write(folder.join("stat"), STAT).expect("a file");
        }
        root
    }

    #[test]
    fn a_name_says_which_process_owns_the_instance() {
        assert_eq!(start_ticks(STAT), Some(987_654));
        assert_eq!(start_ticks(&STAT.replace(") S 1", ") Z 1")), None);
        let owner = Owner::named("stealtime-181-987654-7-0").expect("a name");
        let root = proc_root();
        assert_eq!(Owner::running(root.path(), 181), Some(owner));
        for name in [
            "trace-cmd",
            "stealtime-",
            "stealtime-1",
            "stealtime-x-1-2-3",
        ] {
            assert_eq!(Owner::named(name), None, "{name}");
        }
    }

    #[test]
    fn only_instances_of_dead_owners_are_removed() {
        let root = proc_root();
        let traced = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(traced.path());
        let names = [
            "foo",
            "stealtime-181-987654-7-0",
            "stealtime-181-1-7-0",
            "stealtime-4000-1-7-0",
            "stealtime-4000-1-8-0",
        ];
        for name in names {
            std::fs::create_dir_all(folder.join("instances").join(name)).expect("a folder");
        }
        let leftovers = remove_leftovers(&folder, root.path());
        assert_eq!(leftovers.removed, [names[2], names[3]]);
        assert!(leftovers.stuck.is_empty());
        // Alive, of another namespace, and none of ours.
        let mut kept = vec![names[0], names[1], names[4]];
        kept.sort_unstable();
        assert_eq!(folder.names("instances"), kept);
    }
}
