//! Why the scheduler does not start here.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::host;

/// A reason, with what to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No right to load a scheduler.
    NotRoot,
    /// The kernel has no sched_ext.
    NoSchedExt,
    /// The kernel has no type information.
    NoBtf,
    /// Another scheduler is loaded.
    Busy(String),
    /// A control group with tasks has a limit in `cpu.max`, which a scheduler of all tasks ignores.
    Quota(PathBuf),
    /// Core scheduling is in use: sched_ext does not know cookies.
    CoreScheduling(i32),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRoot => f.write_str("loading a scheduler needs root: use sudo"),
            Self::NoSchedExt => f.write_str(
                "this kernel has no sched_ext: use Linux 6.12 or newer with CONFIG_SCHED_CLASS_EXT",
            ),
            Self::NoBtf => f.write_str(
                "this kernel has no type information (/sys/kernel/btf/vmlinux): use one with \
                 CONFIG_DEBUG_INFO_BTF",
            ),
            Self::Busy(name) => write!(
                f,
                "another sched_ext scheduler is loaded ({name}): end it first"
            ),
            Self::Quota(group) => write!(
                f,
                "{} has a limit in cpu.max: this scheduler has no quotas. Take the limit away, or \
                 load it for other VMs with --canary",
                group.display()
            ),
            Self::CoreScheduling(tid) => write!(
                f,
                "core scheduling is in use (thread {tid} has a cookie), and sched_ext ignores it: VMs \
                 that distrust each other would share a core"
            ),
        }
    }
}

/// The first reason below `root` (`/` but in tests), if there is one. `is_partial`: only the VMs of
/// --canary are scheduled.
pub(crate) fn refusal(root: &Path, is_root: bool, is_partial: bool) -> Option<Refusal> {
    let sched_ext = root.join("sys/kernel/sched_ext");
    if !sched_ext.exists() {
        return Some(Refusal::NoSchedExt);
    }
    if !root.join("sys/kernel/btf/vmlinux").exists() {
        return Some(Refusal::NoBtf);
    }
    if !is_root {
        return Some(Refusal::NotRoot);
    }
    let state = fs::read_to_string(sched_ext.join("state")).unwrap_or_default();
    if state.trim() != "disabled" && !state.is_empty() {
        let name = fs::read_to_string(sched_ext.join("root/ops")).unwrap_or_default();
        return Some(Refusal::Busy(match name.trim() {
            "" => state.trim().to_owned(),
            name => name.to_owned(),
        }));
    }
    if !is_partial && let Some(group) = host::limited_groups(root).into_iter().next() {
        return Some(Refusal::Quota(group));
    }
    host::tid_with_cookie().map(Refusal::CoreScheduling)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn tree(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root =
            std::env::temp_dir().join(format!("scx_stealtime-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("created");
            fs::write(path, text).expect("written");
        }
        fs::create_dir_all(&root).expect("created");
        root
    }

    #[test]
    fn each_reason_is_found() {
        let state = ("sys/kernel/sched_ext/state", "disabled\n");
        let btf = ("sys/kernel/btf/vmlinux", "");
        assert_eq!(
            refusal(&tree("none", &[]), true, false),
            Some(Refusal::NoSchedExt)
        );
        assert_eq!(
            refusal(&tree("nobtf", &[state]), true, false),
            Some(Refusal::NoBtf)
        );
        let good = tree("good", &[state, btf]);
        assert_eq!(refusal(&good, false, false), Some(Refusal::NotRoot));
        assert_eq!(refusal(&good, true, false), None);
        let busy = tree(
            "busy",
            &[
                ("sys/kernel/sched_ext/state", "enabled\n"),
                btf,
                ("sys/kernel/sched_ext/root/ops", "scx_other\n"),
            ],
        );
        assert_eq!(
            refusal(&busy, true, false),
            Some(Refusal::Busy("scx_other".to_owned()))
        );
        let limited = tree(
            "limited",
            &[
                state,
                btf,
                ("sys/fs/cgroup/vms/cpu.max", "50000 100000\n"),
                ("sys/fs/cgroup/vms/cgroup.events", "populated 1\n"),
            ],
        );
        let group = limited.join("sys/fs/cgroup/vms");
        assert_eq!(refusal(&limited, true, false), Some(Refusal::Quota(group)));
        assert_eq!(refusal(&limited, true, true), None);
    }

    /// Each message says what to do, or why not.
    #[test]
    fn messages_are_sentences() {
        for reason in [
            Refusal::NotRoot,
            Refusal::NoSchedExt,
            Refusal::NoBtf,
            Refusal::Busy("x".to_owned()),
            Refusal::Quota(PathBuf::from("/x")),
            Refusal::CoreScheduling(1),
        ] {
            assert!(reason.to_string().contains(':'), "{reason}");
        }
    }
}
