//! Processes of the host: VMs, their threads, and what of their settings the scheduler must know.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Policy of threads that a partial scheduler runs (`include/uapi/linux/sched.h`).
const SCHED_EXT: i32 = 7;
const PR_SCHED_CORE: i32 = 62;
const PR_SCHED_CORE_GET: i32 = 0;

fn numbers(path: &Path) -> impl Iterator<Item = i32> {
    fs::read_dir(path)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Threads of a process.
pub(crate) fn threads(pid: i32) -> Vec<i32> {
    numbers(&PathBuf::from(format!("/proc/{pid}/task"))).collect()
}

/// The name of a guest in a VMM's command line: `-name web` or `-name guest=web,...`.
fn guest_name(arguments: &[String]) -> Option<&str> {
    let position = arguments
        .iter()
        .position(|word| word == "-name" || word == "--name")?;
    let value = arguments.get(position + 1)?;
    let first = value.split(',').next()?;
    Some(first.strip_prefix("guest=").unwrap_or(first))
}

fn arguments(pid: i32) -> Vec<String> {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    text.split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// Processes of a canary: a process id, or all with that guest's name.
pub(crate) fn processes_of(canary: &str) -> Vec<i32> {
    if let Ok(pid) = canary.parse::<i32>() {
        return if Path::new(&format!("/proc/{pid}")).exists() {
            vec![pid]
        } else {
            Vec::new()
        };
    }
    numbers(Path::new("/proc"))
        .filter(|pid| guest_name(&arguments(*pid)) == Some(canary))
        .collect()
}

/// Changes a thread's policy to SCHED_EXT, or back to SCHED_OTHER. Its nice value stays.
///
/// # Errors
/// As `sched_setscheduler`: the thread may have ended.
pub(crate) fn set_extended(tid: i32, extended: bool) -> io::Result<()> {
    let policy = if extended {
        SCHED_EXT
    } else {
        libc::SCHED_OTHER
    };
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads `param` only.
    match unsafe { libc::sched_setscheduler(tid, policy, &raw const param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a thread has the policy SCHED_EXT.
pub(crate) fn is_extended(tid: i32) -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::sched_getscheduler(tid) == SCHED_EXT }
}

/// Whether a thread has one of the policies that the kernel's fair class runs.
pub(crate) fn is_fair(tid: i32) -> bool {
    // SAFETY: no memory is passed.
    let policy = unsafe { libc::sched_getscheduler(tid) };
    matches!(policy, libc::SCHED_OTHER | libc::SCHED_BATCH | SCHED_EXT)
}

/// A thread with a cookie of core scheduling. Each thread has its own.
pub(crate) fn tid_with_cookie() -> Option<i32> {
    numbers(Path::new("/proc")).flat_map(threads).find(|tid| {
        let mut cookie = 0_u64;
        // SAFETY: the kernel writes 8 bytes to `cookie`, for one thread (scope 0).
        let result = unsafe {
            libc::prctl(
                PR_SCHED_CORE,
                PR_SCHED_CORE_GET,
                *tid,
                0,
                &raw mut cookie as usize,
            )
        };
        result == 0 && cookie != 0
    })
}

/// Control groups below `root` with tasks and a limit in `cpu.max`.
pub(crate) fn limited_groups(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![root.join("sys/fs/cgroup")];
    while let Some(path) = next.pop() {
        if is_limited(&path) && has_tasks(&path) {
            found.push(path.clone());
        }
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                next.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

fn is_limited(group: &Path) -> bool {
    fs::read_to_string(group.join("cpu.max")).is_ok_and(|text| !text.starts_with("max"))
}

/// Whether the group or one below it has tasks.
fn has_tasks(group: &Path) -> bool {
    fs::read_to_string(group.join("cgroup.events"))
        .is_ok_and(|text| text.lines().any(|line| line == "populated 1"))
}

/// The control group of a thread that has a limit, its own or one above it.
pub(crate) fn limit_of(root: &Path, tid: i32) -> Option<PathBuf> {
    let text = fs::read_to_string(root.join(format!("proc/{tid}/cgroup"))).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let groups = root.join("sys/fs/cgroup");
    let group = groups.join(path);
    group
        .ancestors()
        .take_while(|group| group.starts_with(&groups))
        .find(|group| is_limited(group))
        .map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn guests_are_named_as_by_libvirt_and_by_hand() {
        assert_eq!(
            guest_name(&words("qemu -name guest=web,debug-threads=on -smp 2")),
            Some("web")
        );
        assert_eq!(guest_name(&words("qemu -name web")), Some("web"));
        assert_eq!(guest_name(&words("qemu -smp 2")), None);
        assert_eq!(guest_name(&words("qemu -name")), None);
    }

    #[test]
    fn a_process_id_is_a_canary() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert_eq!(processes_of(&own.to_string()), [own]);
        assert!(processes_of("2147483647").is_empty());
    }

    #[test]
    fn limits_are_those_of_groups_with_tasks() {
        let root =
            std::env::temp_dir().join(format!("scx_stealtime-limits-{}", std::process::id()));
        let groups = root.join("sys/fs/cgroup");
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().expect("a directory")).expect("created");
            fs::write(path, text).expect("written");
        };
        for (group, limit, populated) in [
            ("vms", "50000 100000\n", "populated 1\nfrozen 0\n"),
            ("vms/web", "max 100000\n", "populated 1\nfrozen 0\n"),
            ("empty", "50000 100000\n", "populated 0\nfrozen 0\n"),
        ] {
            write(groups.join(group).join("cpu.max"), limit);
            write(groups.join(group).join("cgroup.events"), populated);
        }
        assert_eq!(limited_groups(&root), [groups.join("vms")]);
        write(root.join("proc/7/cgroup"), "0::/vms/web\n");
        write(root.join("proc/8/cgroup"), "0::/\n");
        assert_eq!(limit_of(&root, 7), Some(groups.join("vms")));
        assert_eq!(limit_of(&root, 8), None);
        assert_eq!(limit_of(&root, 9), None);
    }
}
