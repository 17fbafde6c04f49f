//! Why a host cannot be recorded, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a recording does not begin, or ends without a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// tracefs is not mounted where the kernel has it.
    #[error(
        "the tracing file system is not mounted: `mount -t tracefs nodev {}`, then try again",
        path.display()
    )]
    NotMounted {
        /// The usual mount point.
        path: PathBuf,
    },
    /// The kernel is built without tracepoints.
    #[error(
        "this kernel has no ftrace: {} does not exist; boot a kernel with CONFIG_FTRACE, as distributions have",
        path.display()
    )]
    NoTracing {
        /// The folder that is missing.
        path: PathBuf,
    },
    /// The user has no right to record.
    #[error(
        "{}: permission denied: recording needs root: `sudo stealtime record`",
        path.display()
    )]
    NoRights {
        /// The file or folder that cannot be used.
        path: PathBuf,
    },
    /// The kernel refuses what root asks for.
    #[error(
        "{}: the kernel refuses to {doing}, although the user is root{}; a container or kernel lockdown \
         may forbid it: record on the host itself; `stealtime record --perf` may still be allowed",
        path.display(), lockdown.as_ref().map(|mode| format!(" (lockdown: {mode})")).unwrap_or_default()
    )]
    Refused {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The mode of `/sys/kernel/security/lockdown`, unless `none`.
        lockdown: Option<String>,
    },
    /// The kernel is locked down in the mode that leaves tracefs without files.
    #[error(
        "{}: the kernel is locked down ({CONFIDENTIALITY}), which forbids to {doing}: \
         `stealtime record --perf` is still allowed; or boot it with lockdown=integrity",
        path.display()
    )]
    LockedDown {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
    },
    /// tracefs is mounted read-only, as container runtimes mount /sys.
    #[error(
        "{}: tracefs is mounted read-only here, as in a container: record on the host itself, or by \
         `stealtime record --perf`, which only reads it",
        path.display()
    )]
    ReadOnly {
        /// The file or folder that cannot be written.
        path: PathBuf,
    },
    /// The kernel is older than 3.10, or built without instances.
    #[error("{}: the kernel has no tracing instances; use `stealtime record --print`", path.display())]
    NoInstances {
        /// The folder that is missing.
        path: PathBuf,
    },
    /// Ids of tracepoints cannot be read.
    #[error("{0}; perf_event_open takes tracepoints by their ids, and only tracefs has these")]
    NoIds(Box<RecordError>),
    /// perf_event_open is refused.
    #[error(
        "perf_event_open refuses sched:sched_switch: {source}; it needs root, CAP_PERFMON or \
         kernel.perf_event_paranoid below 0{}",
        if paranoid.is_empty() { String::new() } else { format!(" (it is {paranoid})") }
    )]
    NoPerf {
        /// The operating system's error.
        source: io::Error,
        /// `kernel.perf_event_paranoid`.
        paranoid: String,
    },
    /// Without switches there is no answer.
    #[error(
        "the kernel has no event sched:sched_switch, without which no question can be answered: boot a kernel \
         with CONFIG_EVENT_TRACING, as distributions have"
    )]
    NoSwitches,
    /// A clock that the kernel does not offer.
    #[error("--clock {asked}: this kernel has no such trace clock; it has {}", available.join(", "))]
    NoClock {
        /// The name given.
        asked: String,
        /// The kernel's clocks.
        available: Vec<String>,
    },
    /// A file of tracefs or /proc cannot be read or written.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Control {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The output cannot be written.
    #[error("{}: {source}{}", path.display(), advice(source))]
    Output {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The process may not map enough for its threads.
    #[error(
        "address space is limited to {limit_mib} MiB, and the threads need {needed_mib} MiB: raise `ulimit -v`"
    )]
    AddressSpace {
        /// The limit.
        limit_mib: u64,
        /// The need on this host.
        needed_mib: u64,
    },
    /// The process may not have another thread.
    #[error("no thread for the ring buffers: {source}; raise the limit of threads (pids)")]
    NoThread {
        /// The operating system's error.
        source: io::Error,
    },
    /// Pages of the ring buffer cannot be read.
    #[error("{0}")]
    Pages(stealtime_trace::ReadError),
    /// Descriptions cannot be compressed.
    #[error("{0}")]
    Head(stealtime_trace::write::WriteError),
}

impl RecordError {
    /// The error of an access to a file of tracefs: rights and refusals have sentences of their own.
    pub(crate) fn control(path: &Path, doing: &'static str, source: io::Error) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self::classify(path, doing, source, is_root, lockdown)
    }

    /// The same for root, and for other users; `lockdown` gives the mode of kernel lockdown.
    fn classify(
        path: &Path,
        doing: &'static str,
        source: io::Error,
        is_root: bool,
        lockdown: impl FnOnce() -> Option<String>,
    ) -> Self {
        let path = path.to_owned();
        let lockdown = is_root.then(lockdown).flatten();
        match source.kind() {
            // A folder of tracefs that cannot have its files is not made: EINVAL.
            io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput
                if lockdown.as_deref() == Some(CONFIDENTIALITY) =>
            {
                Self::LockedDown { path, doing }
            }
            // EACCES and EPERM: for root only lockdown, a security module or a container is left.
            io::ErrorKind::PermissionDenied if is_root => Self::Refused {
                path,
                doing,
                lockdown,
            },
            io::ErrorKind::PermissionDenied => Self::NoRights { path },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path },
            _ => Self::Control {
                path,
                doing,
                source,
            },
        }
    }
}

/// The advice after an error of the output; none where the error says enough.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": free some space, or record to another disk with -o"
        }
        _ => "",
    }
}

/// The mode of lockdown that forbids to read the kernel's memory, as tracefs and BPF do.
pub(crate) const CONFIDENTIALITY: &str = "confidentiality";

/// The active mode of kernel lockdown, unless there is none.
pub(crate) fn lockdown() -> Option<String> {
    let text = std::fs::read_to_string("/sys/kernel/security/lockdown");
    lockdown_mode(&text.ok()?)
}

/// The active mode in the text of `lockdown`, unless there is none: `none [integrity] confidentiality`.
fn lockdown_mode(text: &str) -> Option<String> {
    let mode = text.split_once('[')?.1.split_once(']')?.0;
    (mode != "none").then(|| mode.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(errno: i32, is_root: bool, lockdown: &str) -> String {
        let source = io::Error::from_raw_os_error(errno);
        let path = Path::new("/sys/kernel/tracing/instances/a/tracing_on");
        let lockdown = || lockdown_mode(lockdown);
        RecordError::classify(path, "start tracing", source, is_root, lockdown).to_string()
    }

    #[test]
    fn refusals_say_what_to_do() {
        const FILE: &str = "/sys/kernel/tracing/instances/a/tracing_on";
        const ELSEWHERE: &str = "a container or kernel lockdown may forbid it: record on the host itself; \
                                 `stealtime record --perf` may still be allowed";
        let is_root = true;
        assert_eq!(
            message(libc::EPERM, is_root, "none [integrity] confidentiality\n"),
            format!(
                "{FILE}: the kernel refuses to start tracing, although the user is root (lockdown: integrity); \
                 {ELSEWHERE}"
            )
        );
        assert_eq!(
            message(libc::EACCES, is_root, "[none] integrity confidentiality\n"),
            format!(
                "{FILE}: the kernel refuses to start tracing, although the user is root; {ELSEWHERE}"
            )
        );
        assert_eq!(
            message(libc::EINVAL, is_root, "none integrity [confidentiality]\n"),
            format!(
                "{FILE}: the kernel is locked down (confidentiality), which forbids to start tracing: \
                 `stealtime record --perf` is still allowed; or boot it with lockdown=integrity"
            )
        );
        assert_eq!(
            message(libc::EACCES, false, ""),
            format!("{FILE}: permission denied: recording needs root: `sudo stealtime record`")
        );
        assert_eq!(
            message(libc::EROFS, is_root, ""),
            format!(
                "{FILE}: tracefs is mounted read-only here, as in a container: record on the host itself, or by \
                 `stealtime record --perf`, which only reads it"
            )
        );
        assert_eq!(
            message(libc::EBUSY, is_root, ""),
            format!("{FILE}: cannot start tracing: Device or resource busy (os error 16)")
        );
    }

    #[test]
    fn kernels_without_a_part_are_named_with_a_way_out() {
        let path = PathBuf::from("/sys/kernel/tracing");
        let messages = [
            RecordError::NotMounted { path: path.clone() },
            RecordError::NoTracing { path: path.clone() },
            RecordError::NoInstances {
                path: path.join("instances"),
            },
            RecordError::NoIds(Box::new(RecordError::NotMounted { path })),
            RecordError::NoPerf {
                source: io::Error::from_raw_os_error(libc::EACCES),
                paranoid: "2".to_owned(),
            },
            RecordError::NoSwitches,
            RecordError::NoClock {
                asked: "tai".to_owned(),
                available: vec!["local".to_owned(), "mono".to_owned()],
            },
            RecordError::Output {
                path: PathBuf::from("trace.dat"),
                source: io::Error::from_raw_os_error(libc::ENOSPC),
            },
        ];
        assert_eq!(
            messages.map(|error| error.to_string()),
            [
                "the tracing file system is not mounted: `mount -t tracefs nodev /sys/kernel/tracing`, then \
                 try again",
                "this kernel has no ftrace: /sys/kernel/tracing does not exist; boot a kernel with CONFIG_FTRACE, \
                 as distributions have",
                "/sys/kernel/tracing/instances: the kernel has no tracing instances; use `stealtime record \
                 --print`",
                "the tracing file system is not mounted: `mount -t tracefs nodev /sys/kernel/tracing`, then \
                 try again; perf_event_open takes tracepoints by their ids, and only tracefs has these",
                "perf_event_open refuses sched:sched_switch: Permission denied (os error 13); it needs root, \
                 CAP_PERFMON or kernel.perf_event_paranoid below 0 (it is 2)",
                "the kernel has no event sched:sched_switch, without which no question can be answered: boot a \
                 kernel with CONFIG_EVENT_TRACING, as distributions have",
                "--clock tai: this kernel has no such trace clock; it has local, mono",
                "trace.dat: No space left on device (os error 28): free some space, or record to another disk \
                 with -o",
            ]
        );
    }
}
