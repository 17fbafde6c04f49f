//! Why a host cannot be recorded, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a recording does not begin, or ends without a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// tracefs is not mounted where the kernel has it.
    #[error(
        "the tracing file system is not mounted: `mount -t tracefs nodev {}`, then record again",
        path.display()
    )]
    NotMounted {
        /// The usual mount point.
        path: PathBuf,
    },
    /// The kernel is built without tracepoints.
    #[error("this kernel has no ftrace (CONFIG_FTRACE): {} does not exist", path.display())]
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
    #[error("the kernel has no event sched:sched_switch: without it no question can be answered")]
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
    #[error("{}: {source}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Descriptions cannot be compressed.
    #[error("{0}")]
    Head(stealtime_trace::write::WriteError),
}

impl RecordError {
    /// The error of an access to a file of tracefs: rights and refusals have sentences of their own.
    pub(crate) fn control(path: &Path, doing: &'static str, source: io::Error) -> Self {
        let path = path.to_owned();
        if source.kind() != io::ErrorKind::PermissionDenied {
            return Self::Control {
                path,
                doing,
                source,
            };
        }
        // EACCES and EPERM: for root only lockdown, a security module or a container is left.
        match rustix::process::geteuid().is_root() {
            true => Self::Refused {
                path,
                doing,
                lockdown: lockdown(),
            },
            false => Self::NoRights { path },
        }
    }
}

/// The active mode of kernel lockdown, unless there is none.
fn lockdown() -> Option<String> {
    let text = std::fs::read_to_string("/sys/kernel/security/lockdown").ok()?;
    let mode = text.split_once('[')?.1.split_once(']')?.0;
    (mode != "none").then(|| mode.to_owned())
}
