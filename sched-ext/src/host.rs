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

/// Whether a thread has one of the policies that the kernel's fair class runs.
pub(crate) fn is_fair(tid: i32) -> bool {
    // SAFETY: no memory is passed.
    let policy = unsafe { libc::sched_getscheduler(tid) };
    matches!(policy, libc::SCHED_OTHER | libc::SCHED_BATCH | SCHED_EXT)
}

/// A thread with a cookie of core scheduling.
pub(crate) fn tid_with_cookie() -> Option<i32> {
    numbers(Path::new("/proc")).find(|pid| {
        let mut cookie = 0_u64;
        // SAFETY: the kernel writes 8 bytes to `cookie`, for one thread (scope 0).
        let result = unsafe {
            libc::prctl(
                PR_SCHED_CORE,
                PR_SCHED_CORE_GET,
                *pid,
                0,
                &raw mut cookie as usize,
            )
        };
        result == 0 && cookie != 0
    })
}

/// Control groups with a limit in `cpu.max`.
pub(crate) fn limited_groups() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(path) = next.pop() {
        if fs::read_to_string(path.join("cpu.max")).is_ok_and(|text| !text.starts_with("max")) {
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
}
