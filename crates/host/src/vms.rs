//! Finds the VMs of a host and reads them.

use std::collections::{BTreeMap, BTreeSet};

use crate::cgroup::{self, Hierarchies};
use crate::name::{self, Clues, Named};
use crate::process::{self, Stat};
use crate::qemu;
use crate::tree::{Tree, in_parallel, is_absent};
use crate::vm::{Evidence, FoundBy, Process, Thread, ThreadKind, Vm};

const DEBUG_KVM: &str = "/sys/kernel/debug/kvm";
/// What `/proc/PID/fd/N` of a virtual machine links to.
const VM_FILE: &str = "anon_inode:kvm-vm";
/// Open files of a process that are looked at. A VMM opens its machine early.
const MAX_FILES: usize = 4096;
/// How programs that run VMs are called, where their open files cannot be read.
const VMMS: [&str; 7] = [
    "qemu",
    "kvm",
    "firecracker",
    "cloud-hyperv",
    "crosvm",
    "lkvm",
    "vmm",
];
/// Options of a mounted `/proc` that hide processes of other users.
const HIDING: [&str; 4] = [
    "hidepid=1",
    "hidepid=2",
    "hidepid=invisible",
    "hidepid=noaccess",
];
/// What stands before the number in the name of a vCPU's thread: QEMU, Firecracker, Cloud Hypervisor,
/// crosvm, kvmtool.
const VCPU_NAMES: [&str; 5] = ["CPU ", "fc_vcpu ", "vcpu", "crosvm_vcpu", "kvm-vcpu-"];
/// Counters of a VM that are read, of those in virt/kvm and arch/x86/kvm/x86.c.
const STATS: [&str; 20] = [
    "exits",
    "halt_exits",
    "halt_wakeup",
    "halt_attempted_poll",
    "halt_successful_poll",
    "halt_poll_invalid",
    "halt_poll_success_ns",
    "halt_poll_fail_ns",
    "halt_wait_ns",
    "io_exits",
    "mmio_exits",
    "irq_exits",
    "irq_window_exits",
    "signal_exits",
    "hypercalls",
    "l1d_flush",
    "directed_yield_attempted",
    "directed_yield_successful",
    "preemption_reported",
    "preemption_other",
];

/// A process that has a VM.
struct Found {
    pid: i32,
    by: FoundBy,
    /// Directories of debugfs.
    directories: Vec<String>,
}

/// What a process of the host is.
enum Seen {
    /// It has a VM.
    Vm(FoundBy),
    /// A thread of the kernel that works for the process of this id.
    WorksFor(i32),
    /// Nothing of interest, or it has ended.
    Other,
}

pub(crate) fn read(tree: &Tree, hierarchies: &Hierarchies) -> Vec<Vm> {
    let pids = match tree.list("/proc") {
        Ok(names) => names.iter().filter_map(|name| name.parse().ok()).collect(),
        Err(error) => {
            tree.note("vms", "/proc", &error);
            BTreeSet::new()
        }
    };
    note_hidden(tree);
    let debugfs = Debugfs::read(tree, &pids);
    let pids: Vec<i32> = pids.into_iter().collect();
    let looks = in_parallel(&pids, |pid| look_at(tree, *pid, &debugfs));
    let mut found = Vec::new();
    let mut kernel_threads: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (pid, look) in pids.iter().zip(looks) {
        match look {
            Seen::Vm(by) => found.push(Found {
                pid: *pid,
                by,
                directories: debugfs.directories.get(pid).cloned().unwrap_or_default(),
            }),
            Seen::WorksFor(vmm) => kernel_threads.entry(vmm).or_default().push(*pid),
            Seen::Other => {}
        }
    }
    let parts = in_parallel(&found, |found| {
        let kernel_threads = kernel_threads.get(&found.pid);
        part(
            tree,
            hierarchies,
            found,
            kernel_threads.map_or(&[], Vec::as_slice),
        )
    });
    let parts: Vec<Part> = parts.into_iter().flatten().collect();
    name_all(tree, parts)
}

/// Lists that other users' processes are invisible.
fn note_hidden(tree: &Tree) {
    let mounts = cgroup::mounts(tree);
    let mut proc = mounts.lines().filter(|line| line.contains(" - proc "));
    let hides = |line: &str| {
        let mut options = line.split([' ', ',']);
        options.any(|option| HIDING.contains(&option))
    };
    if proc.any(hides) {
        let reason =
            "/proc is mounted with hidepid: processes of other users may be hidden; run as root";
        tree.note_reason("vms", reason, reason);
    }
}

/// KVM's virtual machines in debugfs, by process.
#[derive(Default)]
struct Debugfs {
    directories: BTreeMap<i32, Vec<String>>,
    /// Whether each of them belongs to a process of the list, so that no other process has one.
    is_complete: bool,
}

impl Debugfs {
    /// Reads the names `TID-FD`, of the thread that made the machine and of its file.
    fn read(tree: &Tree, pids: &BTreeSet<i32>) -> Self {
        let names = match tree.list(DEBUG_KVM) {
            Ok(names) => names,
            Err(error) => {
                if !is_absent(&error) || tree.exists("/dev/kvm") {
                    tree.note("vms.kvm_stats", DEBUG_KVM, &error);
                }
                return Self::default();
            }
        };
        let mut debugfs = Self {
            is_complete: true,
            ..Self::default()
        };
        for name in names {
            let parts = name.split_once('-');
            let parts =
                parts.and_then(|(tid, file)| tid.parse().ok().zip(file.parse::<u32>().ok()));
            let Some((tid, _)) = parts else {
                continue;
            };
            // A recorded tree lists this thread as a process, so that its status decides first.
            let process = thread_group(tree, tid).or(Some(tid).filter(|tid| pids.contains(tid)));
            match process {
                Some(pid) => debugfs.directories.entry(pid).or_default().push(name),
                None => debugfs.is_complete = false,
            }
        }
        debugfs
    }
}

/// The process of a thread.
fn thread_group(tree: &Tree, tid: i32) -> Option<i32> {
    let status = tree.text(&format!("/proc/{tid}/status")).ok()?;
    process::field(&status, "Tgid")?.parse().ok()
}

fn look_at(tree: &Tree, pid: i32, debugfs: &Debugfs) -> Seen {
    // What cannot be read has ended: every process may read this file of all that it sees.
    let text = tree.text(&format!("/proc/{pid}/stat")).unwrap_or_default();
    let stat = Stat::parse(&text).unwrap_or_default();
    if stat.is_kernel_thread() {
        let vmm = ["vhost-", "kvm-pit/"]
            .iter()
            .find_map(|begin| stat.name.strip_prefix(begin));
        return match vmm.and_then(|pid| pid.parse().ok()) {
            Some(vmm) => Seen::WorksFor(vmm),
            None => Seen::Other,
        };
    }
    if debugfs.directories.contains_key(&pid) {
        return Seen::Vm(FoundBy::Debugfs);
    }
    if debugfs.is_complete {
        return Seen::Other;
    }
    let directory = format!("/proc/{pid}/fd");
    match tree.list(&directory) {
        Ok(files) => {
            let mut files = files.iter().take(MAX_FILES);
            let is_vm = |file: &String| {
                let target = tree.link(&format!("{directory}/{file}"));
                target.is_ok_and(|target| target == VM_FILE)
            };
            match files.any(is_vm) {
                true => Seen::Vm(FoundBy::File),
                false => Seen::Other,
            }
        }
        Err(error) if is_absent(&error) => Seen::Other,
        Err(error) => {
            tree.note("vms", &directory, &error);
            match is_vmm(tree, pid, stat.name) {
                true => Seen::Vm(FoundBy::Threads),
                false => Seen::Other,
            }
        }
    }
}

/// Whether a process looks as one with a VM: a VMM by its name, with a thread for a vCPU or an option
/// for KVM.
fn is_vmm(tree: &Tree, pid: i32, name: &str) -> bool {
    if !VMMS.iter().any(|vmm| name.starts_with(vmm)) {
        return false;
    }
    let threads = tree.list(&format!("/proc/{pid}/task")).unwrap_or_default();
    let mut names = threads
        .iter()
        .map(|tid| tree.text(&format!("/proc/{pid}/task/{tid}/comm")));
    if names.any(|name| name.is_ok_and(|name| vcpu_of_name(name.trim_end()).is_some())) {
        return true;
    }
    let arguments = tree
        .part(&format!("/proc/{pid}/cmdline"), qemu::of_interest)
        .unwrap_or_default();
    let arguments = qemu::arguments(&arguments);
    arguments
        .iter()
        .skip(1)
        .any(|argument| argument.contains("kvm"))
}

/// A VM without its name.
struct Part {
    vm: Vm,
    clues: Clues,
}

/// Reads a VM; `None` if it has ended meanwhile.
fn part(
    tree: &Tree,
    hierarchies: &Hierarchies,
    found: &Found,
    kernel_threads: &[i32],
) -> Option<Part> {
    let directory = format!("/proc/{}", found.pid);
    let note_end = |_| {
        let reason = "ended while it was read";
        tree.note_reason("vms", reason, &format!("process {}: {reason}", found.pid));
    };
    let text = tree
        .text(&format!("{directory}/stat"))
        .map_err(note_end)
        .ok()?;
    let stat = Stat::parse(&text)?;
    let arguments = tree
        .part(&format!("{directory}/cmdline"), qemu::of_interest)
        .map_err(note_end)
        .ok()?;
    let arguments = qemu::arguments(&arguments);
    let program = tree.link(&format!("{directory}/exe"));
    let program = program.map_err(|error| {
        tree.note_refusal("vms.process.program", &format!("{directory}/exe"), &error);
    });
    let cgroups = tree
        .text(&format!("{directory}/cgroup"))
        .unwrap_or_default();
    let paths = hierarchies.paths(&cgroups);
    let vcpus = debugfs_vcpus(tree, &found.directories);
    let tids = tree
        .list(&format!("{directory}/task"))
        .map_err(note_end)
        .ok()?;
    let tids = tids.iter().filter_map(|tid| tid.parse::<i32>().ok());
    let threads = tids.filter_map(|tid| {
        let path = format!("{directory}/task/{tid}");
        process::thread(tree, hierarchies, &path, tid).ok()
    });
    let mut threads: Vec<Thread> = threads.map(|thread| with_role(thread, &vcpus)).collect();
    threads.extend(kernel_threads.iter().filter_map(|&tid| {
        let thread = process::thread(tree, hierarchies, &format!("/proc/{tid}"), tid).ok()?;
        Some(with_role(thread, &BTreeMap::new()))
    }));
    by_guest_time(&mut threads);
    threads.sort_by_key(|thread| (thread.kind, thread.vcpu.is_none(), thread.vcpu, thread.tid));
    let cpu_option = qemu::option(&arguments, "cpu").map(str::to_owned);
    let feature = |name: &str| {
        let option = cpu_option.as_deref()?;
        // `kvm=off` hides KVM, and with it its clocks.
        let hidden = qemu::switch(option, "kvm").filter(|is_on| !is_on);
        qemu::switch(option, name).or(hidden)
    };
    let overcommit = qemu::option(&arguments, "overcommit");
    let cpu_pm = overcommit.and_then(|option| qemu::key(option, "cpu-pm", ""));
    let vm = Vm {
        found_by: found.by,
        process: Process {
            pid: found.pid,
            name: stat.name.to_owned(),
            program: program.ok(),
            start_ms: stat.start_ms(),
            resident_bytes: process::resident_bytes(tree, &directory),
        },
        threads,
        cgroup: paths.cpu,
        cpuset_cgroup: paths.cpuset,
        autogroup: tree.optional("vms.autogroup", &format!("{directory}/autogroup")),
        kvmclock: feature("kvmclock"),
        steal_clock: feature("kvm-steal-time"),
        cpu_pm: cpu_pm.map(|state| state == "on"),
        cpu_option,
        kvm_stats: stats(tree, &found.directories),
        kvm_directories: found.directories.clone(),
        ..Vm::default()
    };
    let clues = Clues {
        pid: found.pid,
        process: vm.process.name.clone(),
        program: vm.process.program.clone(),
        arguments,
        cgroups: cgroups
            .lines()
            .filter_map(|line| Some(line.splitn(3, ':').nth(2)?.to_owned()))
            .collect(),
    };
    Some(Part { vm, clues })
}

/// Names VMs, and sorts them by name.
fn name_all(tree: &Tree, parts: Vec<Part>) -> Vec<Vm> {
    let mut units: BTreeMap<&str, usize> = BTreeMap::new();
    for unit in parts.iter().filter_map(|part| part.clues.unit()) {
        *units.entry(unit).or_default() += 1;
    }
    let shared = units.into_iter().filter(|(_, count)| *count > 1);
    let shared: BTreeSet<String> = shared.map(|(unit, _)| unit.to_owned()).collect();
    let mut named: Vec<Named> =
        in_parallel(&parts, |part| name::identify(tree, &part.clues, &shared));
    let pids: Vec<i32> = parts.iter().map(|part| part.clues.pid).collect();
    name::make_unique(&mut named, &pids);
    let vms = parts.into_iter().zip(named).map(|(part, named)| Vm {
        name: named.name,
        manager: named.manager,
        id: named.id,
        namespace: named.namespace,
        pod: named.pod,
        uuid: named.uuid,
        name_source: named.source,
        ..part.vm
    });
    let mut vms: Vec<Vm> = vms.collect();
    vms.sort_by(|a, b| (&a.name, a.process.pid).cmp(&(&b.name, b.process.pid)));
    vms
}

/// What debugfs has of a vCPU.
#[derive(Debug, Default)]
struct DebugVcpu {
    tid: Option<i32>,
    tsc_offset: Option<i64>,
    timer_advance_ns: Option<u64>,
}

/// The vCPUs of a VM by number.
fn debugfs_vcpus(tree: &Tree, directories: &[String]) -> BTreeMap<u32, DebugVcpu> {
    let mut vcpus = BTreeMap::new();
    for directory in directories {
        let directory = format!("{DEBUG_KVM}/{directory}");
        for name in tree.list(&directory).unwrap_or_default() {
            let Some(vcpu) = name.strip_prefix("vcpu").and_then(|n| n.parse().ok()) else {
                continue;
            };
            let path = |file: &str| format!("{directory}/{name}/{file}");
            let key = "vms.threads";
            vcpus.insert(
                vcpu,
                DebugVcpu {
                    tid: tree.number(key, &path("pid")),
                    tsc_offset: tree.number(key, &path("tsc-offset")),
                    timer_advance_ns: tree.number(key, &path("lapic_timer_advance_ns")),
                },
            );
        }
    }
    vcpus
}

/// Sums of the counters of a VM.
fn stats(tree: &Tree, directories: &[String]) -> BTreeMap<String, u64> {
    let mut stats = BTreeMap::new();
    for directory in directories {
        for name in STATS {
            let path = format!("{DEBUG_KVM}/{directory}/{name}");
            if let Some(value) = tree.number::<u64>("vms.kvm_stats", &path) {
                *stats.entry(name.to_owned()).or_default() += value;
            }
        }
    }
    stats
}

/// Adds what a thread does. Debugfs is the surest, then libvirt's groups, then names, which any
/// program may choose.
fn with_role(mut thread: Thread, vcpus: &BTreeMap<u32, DebugVcpu>) -> Thread {
    let by_debugfs = vcpus.iter().find(|(_, vcpu)| vcpu.tid == Some(thread.tid));
    let group = thread
        .cgroup
        .as_deref()
        .and_then(|path| path.rsplit('/').next());
    let group = group.unwrap_or_default();
    let by_group = group
        .strip_prefix("vcpu")
        .and_then(|number| number.parse().ok());
    let by_name = vcpu_of_name(&thread.name);
    let is_kernel_name = thread.name.starts_with("kvm-pit/") || thread.name.starts_with("kvm-nx-");
    let role = match () {
        () if by_debugfs.is_some() => Some(Evidence::Debugfs),
        () if by_group.is_some() => Some(Evidence::Cgroup),
        () if by_name.is_some() => Some(Evidence::Name),
        () => None,
    };
    if role.is_some() {
        thread.kind = ThreadKind::Vcpu;
        thread.vcpu = by_debugfs
            .map(|(number, _)| *number)
            .or(by_group)
            .or(by_name);
        thread.evidence = role;
        if let Some(vcpu) = thread.vcpu.and_then(|number| vcpus.get(&number)) {
            thread.tsc_offset = vcpu.tsc_offset;
            thread.timer_advance_ns = vcpu.timer_advance_ns;
        }
    } else if thread.name.starts_with("vhost-") {
        thread.kind = ThreadKind::Vhost;
    } else if is_kernel_name {
        thread.kind = ThreadKind::Kernel;
    } else if thread.name.starts_with("IO ") || group.starts_with("iothread") {
        thread.kind = ThreadKind::Iothread;
    }
    thread
}

/// Where no vCPU is known, as of a QEMU that names no threads, those with guest time are vCPUs.
fn by_guest_time(threads: &mut [Thread]) {
    if threads.iter().any(|thread| thread.kind == ThreadKind::Vcpu) {
        return;
    }
    for thread in threads {
        if thread.guest_ms.is_some_and(|time| time > 0) {
            thread.kind = ThreadKind::Vcpu;
            thread.evidence = Some(Evidence::GuestTime);
        }
    }
}

/// The number of a vCPU in the name of its thread.
fn vcpu_of_name(name: &str) -> Option<u32> {
    VCPU_NAMES.iter().find_map(|begin| {
        let number = name.strip_prefix(begin)?;
        number.strip_suffix("/KVM").unwrap_or(number).parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_vcpus_in_names() {
        let names = [
            "CPU 0/KVM",
            "CPU 127/KVM",
            "fc_vcpu 3",
            "vcpu4",
            "crosvm_vcpu1",
            "kvm-vcpu-2",
        ];
        let numbers = names.map(|name| vcpu_of_name(name).expect(name));
        assert_eq!(numbers, [0, 127, 3, 4, 1, 2]);
        for name in [
            "CPU /KVM",
            "vcpu",
            "vcpu-1",
            "worker",
            "CPU 0/TCG",
            "vcpu4294967296",
        ] {
            assert_eq!(vcpu_of_name(name), None, "{name}");
        }
    }
}
