//! What a virtualization host knows of itself: kernel, scheduler, KVM, CPUs and control groups; and
//! its VMs, by the names that people use.
//!
//! A [`Snapshot`] is read from `/proc`, `/sys`, control groups and debugfs below a root directory, or
//! from a recorded tree ([`Archive`]). It reads files alone: no command, no system call that changes
//! anything. What cannot be read is `None`, with a reason in [`Snapshot::missing`].
//!
//! ```no_run
//! use std::path::Path;
//! use stealtime_host::Snapshot;
//!
//! let snapshot = Snapshot::read(Path::new("/"))?;
//! for vm in &snapshot.vms {
//!     println!("{}: {} vCPUs", vm.name, vm.vcpus().count());
//! }
//! let json = snapshot.to_json();
//! assert_eq!(Snapshot::from_json(&json)?, snapshot);
//! # Ok::<(), stealtime_host::SnapshotError>(())
//! ```

mod archive;
mod cgroup;
pub mod cpulist;
mod cpus;
mod groups;
mod kernel;
mod name;
mod process;
mod qemu;
mod scheduler;
mod sha256;
mod snapshot;
mod tree;
mod vm;
mod vms;

use std::io;
use std::path::{Path, PathBuf};

pub use archive::Archive;
pub use scheduler::{Group, Scheduler, Share};
pub use snapshot::*;

use tree::Tree;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Neither a directory nor a recorded tree.
    #[error("{path}: {source}")]
    Root {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The text is no snapshot.
    #[error("no snapshot of a host: {0}; `stealtime snapshot -o FILE` writes one")]
    Json(serde_json::Error),
    /// A newer program wrote it.
    #[error(
        "this snapshot has version {0}, and this program reads versions up to {VERSION}: \
         use the program that wrote it, or a newer one"
    )]
    Version(u32),
}

/// The key that each snapshot begins with.
#[derive(serde::Deserialize)]
struct Versioned {
    version: u32,
}

impl Snapshot {
    /// Reads the host below a root: `/`, a copy of its files, or a recorded tree.
    ///
    /// # Errors
    ///
    /// The root itself cannot be read. Anything below it may be missing.
    pub fn read(root: &Path) -> Result<Self, SnapshotError> {
        Ok(Self::read_files(root, false)?.0)
    }

    /// The same, and all files that were read.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::read`].
    pub fn read_and_record(root: &Path) -> Result<(Self, Archive), SnapshotError> {
        let (snapshot, record) = Self::read_files(root, true)?;
        Ok((snapshot, record.unwrap_or_default()))
    }

    fn read_files(root: &Path, records: bool) -> Result<(Self, Option<Archive>), SnapshotError> {
        let tree = Tree::open(root, records).map_err(|source| SnapshotError::Root {
            path: root.to_owned(),
            source,
        })?;
        // Time first: all that follows is not older.
        let time = kernel::time(&tree);
        let kernel = kernel::kernel(&tree);
        let hierarchies = cgroup::Hierarchies::read(&tree);
        let vms = vms::read(&tree, &hierarchies);
        let mut snapshot = Self {
            version: VERSION,
            identity: kernel::identity(&tree),
            time,
            sched: kernel::sched(&tree),
            kvm: kernel::kvm(&tree),
            cpu: cpus::read(&tree, hierarchies.cpuset_mount()),
            clocksource: kernel::clocksource(&tree),
            mitigations: kernel::mitigations(&tree),
            cpu_time: cpus::host_time(&tree),
            memory: kernel::memory(&tree),
            cgroup: hierarchies.info(),
            cgroups: hierarchies.groups(&tree, &vms),
            kernel,
            vms,
            missing: Vec::new(),
            before: None,
        };
        let finished = tree.finish();
        snapshot.missing = finished.missing;
        Ok((snapshot, finished.record))
    }

    /// The snapshot as JSON, with an end of line.
    #[must_use]
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        // Maps have texts as keys, so that all values have a JSON form.
        debug_assert!(text.is_ok(), "{text:?}");
        text.unwrap_or_default() + "\n"
    }

    /// Reads JSON of this version or an older one. Unknown keys are skipped.
    ///
    /// # Errors
    ///
    /// No snapshot, or one of a newer version.
    pub fn from_json(text: &str) -> Result<Self, SnapshotError> {
        let begin: Versioned = serde_json::from_str(text).map_err(SnapshotError::Json)?;
        if begin.version > VERSION {
            return Err(SnapshotError::Version(begin.version));
        }
        serde_json::from_str(text).map_err(SnapshotError::Json)
    }
}
