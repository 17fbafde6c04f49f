//! The tasks of the host, numbered densely.

use stealtime_events::{NameId, Names, Tid, VcpuId};

use crate::hash::IntMap;

/// A task's number in the table; [`IDLE`] is every CPU's idle task.
pub(crate) type ThreadId = u32;

/// The idle task's number.
pub(crate) const IDLE: ThreadId = 0;
/// Most tasks kept apart. Thread ids of Linux are reused below `pid_max`, at most 4,194,304; past
/// the limit further tasks are one, [`OVERFLOW`].
const MAX_THREADS: usize = 1 << 20;
/// The task that stands for all tasks past the limit.
pub(crate) const OVERFLOW: ThreadId = 1;

/// What is known of a task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Thread {
    /// Its id.
    pub(crate) tid: Tid,
    /// The process it belongs to, 0 if not known.
    pub(crate) process: Tid,
    /// The task that made it, 0 if not seen.
    pub(crate) parent: Tid,
    /// Its name.
    pub(crate) name: NameId,
    /// Its number as a vCPU.
    pub(crate) vcpu: Option<u32>,
    /// It was made while the trace ran.
    pub(crate) born: bool,
    /// It has exited, so its id may be given out again.
    pub(crate) dead: bool,
}

impl Thread {
    const fn new(tid: Tid) -> Self {
        Self {
            tid,
            process: Tid(0),
            parent: Tid(0),
            name: NameId::NONE,
            vcpu: None,
            born: false,
            dead: false,
        }
    }
}

/// All tasks.
#[derive(Debug)]
pub(crate) struct Threads {
    list: Vec<Thread>,
    by_tid: IntMap<i32, ThreadId>,
}

impl Default for Threads {
    fn default() -> Self {
        Self {
            list: vec![Thread::new(Tid::IDLE), Thread::new(Tid(i32::MIN))],
            by_tid: IntMap::from_iter([(0, IDLE)]),
        }
    }
}

impl Threads {
    /// The number of the task with this id, new or known.
    pub(crate) fn find(&mut self, tid: Tid) -> ThreadId {
        if let Some(&id) = self.by_tid.get(&tid.0) {
            return id;
        }
        let Ok(id) = ThreadId::try_from(self.list.len()) else {
            return OVERFLOW;
        };
        if self.list.len() >= MAX_THREADS {
            return OVERFLOW;
        }
        self.list.push(Thread::new(tid));
        self.by_tid.insert(tid.0, id);
        id
    }

    /// The task with this number.
    pub(crate) fn get(&self, id: ThreadId) -> &Thread {
        // Numbers come from this table alone; the idle task stands in for none.
        self.list.get(id as usize).unwrap_or(&self.list[0])
    }

    /// The task with this number, to change it.
    pub(crate) fn get_mut(&mut self, id: ThreadId) -> Option<&mut Thread> {
        self.list.get_mut(id as usize)
    }

    /// A task is born with this id: if an earlier one of the same id was a vCPU, it stays in the
    /// table under its old number.
    pub(crate) fn born(&mut self, tid: Tid, parent: Tid) -> ThreadId {
        let mut id = self.find(tid);
        let old = *self.get(id);
        if old.dead && old.vcpu.is_some() {
            self.by_tid.remove(&tid.0);
            id = self.find(tid);
        }
        let is_known = !old.dead && (old.vcpu.is_some() || old.born);
        if id > OVERFLOW
            && !is_known
            && let Some(thread) = self.get_mut(id)
        {
            let name = thread.name;
            let process = thread.process;
            *thread = Thread::new(tid);
            thread.parent = parent;
            thread.born = true;
            if !old.dead {
                // A reader names tasks before the first event that needs the name.
                thread.name = name;
                thread.process = process;
            }
        }
        id
    }

    /// All tasks but those that stand for others, in the order in which they were seen.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ThreadId, &Thread)> {
        (0..).zip(&self.list).skip(2)
    }

    /// Whether tasks past the limit were seen.
    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= MAX_THREADS
    }
}

/// The vCPU number in the name of a thread, as VMMs name them: QEMU `CPU 3/KVM`, Firecracker
/// `fc_vcpu 3`, Cloud Hypervisor `vcpu3`, crosvm `crosvm_vcpu3`.
#[must_use]
pub fn vcpu_in_name(name: &str) -> Option<VcpuId> {
    let digits = if let Some(rest) = name.strip_prefix("CPU ") {
        rest.strip_suffix("/KVM")
            .or_else(|| rest.strip_suffix("/TCG"))?
    } else {
        let rest = name
            .strip_prefix("fc_")
            .or_else(|| name.strip_prefix("crosvm_"))
            .unwrap_or(name);
        rest.strip_prefix("vcpu")?.trim_start_matches([' ', '_'])
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| digits.parse::<u32>().ok()).flatten()?;
    (number != VcpuId::UNKNOWN.0).then_some(VcpuId(number))
}

/// Names with which the kernel's own threads begin.
const KERNEL_NAMES: [&str; 22] = [
    "kworker/",
    "ksoftirqd/",
    "migration/",
    "rcu",
    "irq/",
    "kthreadd",
    "khugepaged",
    "ksmd",
    "kcompactd",
    "kswapd",
    "cpuhp/",
    "idle_inject/",
    "watchdog",
    "kauditd",
    "jbd2/",
    "kblockd",
    "kdevtmpfs",
    "khungtaskd",
    "oom_reaper",
    "pool_workqueue",
    "kdamond",
    "kvm-pit/",
];

/// Whether a name is that of a thread of the kernel.
pub(crate) fn is_kernel_name(name: &str) -> bool {
    KERNEL_NAMES.iter().any(|start| name.starts_with(start))
}

/// Names with which the threads of VMMs begin that are not vCPUs.
const VMM_NAMES: [&str; 12] = [
    "qemu-",
    "qemu:",
    "vhost-",
    "kvm-nx-lpage",
    "IO ",
    "call_rcu",
    "fc_api",
    "firecracker",
    "cloud-hyperv",
    "crosvm",
    "vmm",
    "virtiofsd",
];

/// Whether a name is that of a VMM's thread other than a vCPU.
pub(crate) fn is_vmm_name(name: &str) -> bool {
    VMM_NAMES.iter().any(|start| name.starts_with(start)) && vcpu_in_name(name).is_none()
}

/// The process id in the name of a kernel thread that serves one VMM (`vhost-1234`,
/// `kvm-pit/1234`).
pub(crate) fn served_process(name: &str) -> Option<Tid> {
    let digits = name
        .strip_prefix("vhost-")
        .or_else(|| name.strip_prefix("kvm-pit/"))?;
    digits.parse::<i32>().ok().filter(|&pid| pid > 0).map(Tid)
}

/// A task's name, or its id where it has none.
pub(crate) fn shown_name(thread: &Thread, names: &dyn Names) -> String {
    match names.name(thread.name) {
        "" => format!("tid {}", thread.tid.0),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_vmms_are_understood() {
        for (name, id) in [
            ("CPU 0/KVM", Some(0)),
            ("CPU 117/KVM", Some(117)),
            ("fc_vcpu 2", Some(2)),
            ("vcpu 3", Some(3)),
            ("vcpu7", Some(7)),
            ("crosvm_vcpu12", Some(12)),
            ("CPU x/KVM", None),
            ("vcpu", None),
            ("vcpu4294967295", None),
            ("qemu-system-x86", None),
        ] {
            assert_eq!(vcpu_in_name(name).map(|id| id.0), id, "{name}");
        }
    }

    #[test]
    fn an_id_given_out_again_is_another_task() {
        let mut threads = Threads::default();
        let first = threads.find(Tid(7));
        if let Some(thread) = threads.get_mut(first) {
            thread.vcpu = Some(0);
            thread.dead = true;
        }
        let second = threads.born(Tid(7), Tid(1));
        assert_ne!(first, second);
        assert_eq!(threads.find(Tid(7)), second);
        assert_eq!(threads.get(first).vcpu, Some(0));
        assert_eq!(threads.get(second).parent, Tid(1));
    }

    #[test]
    fn idle_has_a_number_of_its_own() {
        let mut threads = Threads::default();
        assert_eq!(threads.find(Tid::IDLE), IDLE);
        assert!(threads.find(Tid(1)) > OVERFLOW);
    }
}
