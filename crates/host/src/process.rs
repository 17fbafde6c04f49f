//! What `/proc` has of a process and of its threads.

use std::io;

use crate::cgroup::{Hierarchies, Paths};
use crate::tree::Tree;
use crate::vm::{Policy, Thread};

/// `PF_KTHREAD` of include/linux/sched.h.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// `/proc/PID/stat` counts in `USER_HZ`, 100 on all architectures of KVM.
const MS_PER_TICK: u64 = 10;

/// A line of `/proc/PID/stat`.
#[derive(Debug, Default)]
pub(crate) struct Stat<'t> {
    /// Name of the task.
    pub(crate) name: &'t str,
    /// The fields after the name, from the state on.
    fields: Vec<&'t str>,
}

impl<'t> Stat<'t> {
    /// Reads a line. A name may hold anything, so that the last bracket ends it.
    pub(crate) fn parse(text: &'t str) -> Option<Self> {
        let (head, fields) = text.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        Some(Self {
            name,
            fields: fields.split_ascii_whitespace().collect(),
        })
    }

    /// A field by its number in proc_pid_stat(5).
    fn field<T: std::str::FromStr>(&self, number: usize) -> Option<T> {
        self.fields.get(number - 3)?.parse().ok()
    }

    pub(crate) fn is_kernel_thread(&self) -> bool {
        self.field::<u64>(9)
            .is_some_and(|flags| flags & KERNEL_THREAD != 0)
    }

    pub(crate) fn start_ms(&self) -> Option<u64> {
        self.field::<u64>(22)?.checked_mul(MS_PER_TICK)
    }
}

/// A thread at a path such as `/proc/4321/task/4322`, without what it does.
///
/// # Errors
///
/// It has ended.
pub(crate) fn thread(
    tree: &Tree,
    hierarchies: &Hierarchies,
    path: &str,
    tid: i32,
) -> io::Result<Thread> {
    let text = tree.text(&format!("{path}/stat"))?;
    let stat = Stat::parse(&text).unwrap_or_default();
    let key = "vms.threads";
    let schedstat = tree.optional(key, &format!("{path}/schedstat"));
    let schedstat = schedstat.unwrap_or_default();
    let mut schedstat = schedstat.split(' ').map(|field| field.parse::<u64>().ok());
    let status = tree.optional("vms.threads.affinity", &format!("{path}/status"));
    let Paths { cpu, cpuset } = paths(tree, hierarchies, path);
    Ok(Thread {
        tid,
        name: stat.name.to_owned(),
        policy: stat.field(41).and_then(Policy::from_number),
        nice: stat.field(19),
        rt_priority: stat.field(40),
        priority: stat.field(18),
        affinity: status
            .as_deref()
            .and_then(|status| field(status, "Cpus_allowed_list")),
        last_cpu: stat.field(39),
        guest_ms: stat
            .field::<u64>(43)
            .and_then(|ticks| ticks.checked_mul(MS_PER_TICK)),
        run_ns: schedstat.next().flatten(),
        wait_ns: schedstat.next().flatten(),
        timeslices: schedstat.next().flatten(),
        cgroup: cpu,
        cpuset_cgroup: cpuset,
        ..Thread::default()
    })
}

/// The groups of a process or thread.
pub(crate) fn paths(tree: &Tree, hierarchies: &Hierarchies, path: &str) -> Paths {
    let text = tree.optional("vms.cgroup", &format!("{path}/cgroup"));
    hierarchies.paths(text.as_deref().unwrap_or_default())
}

/// A field of `/proc/PID/status`.
pub(crate) fn field(status: &str, name: &str) -> Option<String> {
    let mut lines = status.lines();
    lines.find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        Some(value.trim().to_owned())
    })
}

/// Memory that a process occupies.
pub(crate) fn resident_bytes(tree: &Tree, directory: &str) -> Option<u64> {
    let status = tree.optional("vms.process.resident_bytes", &format!("{directory}/status"))?;
    let kib = field(&status, "VmRSS")?;
    kib.strip_suffix(" kB")?
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tasks_may_hold_brackets_and_lines() {
        let text = "7 (a) R (\n) S 1 2 3 4 5 2097152 0";
        let stat = Stat::parse(text).expect("a line");
        assert_eq!(stat.name, "a) R (\n");
        assert!(stat.is_kernel_thread());
        assert_eq!(stat.field::<i32>(4), Some(1));
        assert_eq!(stat.start_ms(), None);
        assert!(Stat::parse("7 a S").is_none());
    }
}
