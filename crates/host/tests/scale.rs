//! Time of a snapshot of a large host, and VMs with many threads.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Instant;

use stealtime_host::Snapshot;

const VMS: usize = 500;
const VCPUS: usize = 4;
/// Threads of a VM that are no vCPUs.
const WORKERS: usize = 4;

/// A line of `/proc/PID/stat` with 52 fields.
fn stat(tid: usize, name: &str) -> String {
    format!("{tid} ({name}) S 1 1 1 0 -1 4194624 0 0 0 0 9 9 0 0 20 0 1 0 100")
        + &" 0".repeat(16)
        + " 3 0 0 0 50"
        + &" 0".repeat(9)
        + "\n"
}

/// A recorded tree: a file system takes minutes to make as many files.
#[derive(Default)]
struct Tree(RefCell<String>);

impl Tree {
    fn file(&self, path: &str, text: &str) {
        let text = text.replace('\0', "\\0");
        // Writing to a String cannot fail.
        let _ = writeln!(self.0.borrow_mut(), "== {path}\n{}", text.trim_end());
    }

    fn thread(&self, pid: usize, tid: usize, name: &str, group: &str) {
        let path = format!("proc/{pid}/task/{tid}");
        self.file(&format!("{path}/stat"), &stat(tid, name));
        self.file(&format!("{path}/schedstat"), "1000000 2000 30\n");
        self.file(
            &format!("{path}/status"),
            "Name:\tx\nCpus_allowed_list:\t0-63\n",
        );
        self.file(&format!("{path}/cgroup"), group);
    }

    fn vm(&self, number: usize, workers: usize) {
        let pid = 100_000 + 10_000 * number;
        let scope = format!("machine.slice/machine-qemu\\x2d{number}\\x2dvm{number}.scope");
        let group = format!("0::/{scope}/libvirt/emulator\n");
        let process = format!("proc/{pid}");
        self.file(&format!("{process}/stat"), &stat(pid, "qemu-system-x86"));
        let line = format!("qemu\0-name\0guest=vm{number}\0-k\0/libvirt/qemu/x\0");
        self.file(&format!("{process}/cmdline"), &line);
        self.file(&format!("{process}/cgroup"), &group);
        let _ = writeln!(self.0.borrow_mut(), "== {process}/exe -> /usr/bin/qemu");
        for vcpu in 0..VCPUS {
            let group = format!("0::/{scope}/libvirt/vcpu{vcpu}\n");
            self.thread(pid, pid + 10 + vcpu, &format!("CPU {vcpu}/KVM"), &group);
            self.group(&format!("{scope}/libvirt/vcpu{vcpu}"));
            let debug = format!("sys/kernel/debug/kvm/{pid}-9/vcpu{vcpu}");
            self.file(&format!("{debug}/pid"), &format!("{}\n", pid + 10 + vcpu));
            self.file(&format!("{debug}/tsc-offset"), "-1\n");
        }
        for worker in 0..workers {
            self.thread(pid, pid + 100 + worker, "worker", &group);
        }
        for stat in ["exits", "halt_exits", "halt_attempted_poll", "halt_wait_ns"] {
            self.file(&format!("sys/kernel/debug/kvm/{pid}-9/{stat}"), "7\n");
        }
        for part in ["", "/libvirt", "/libvirt/emulator"] {
            self.group(&format!("{scope}{part}"));
        }
    }

    fn group(&self, path: &str) {
        let path = format!("sys/fs/cgroup/{path}");
        for (file, text) in [
            ("cpu.weight", "100\n"),
            ("cpu.max", "max 100000\n"),
            (
                "cpu.stat",
                "usage_usec 1\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
            ),
            ("cpuset.cpus.effective", "0-63\n"),
        ] {
            self.file(&format!("{path}/{file}"), text);
        }
    }
}

/// A host of 64 CPUs with VMs.
fn host(path: &Path, vms: usize, workers: usize) {
    let tree = Tree::default();
    let mount = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    tree.file("proc/self/mountinfo", mount);
    tree.file("sys/devices/system/cpu/online", "0-63\n");
    for cpu in 0..64 {
        let directory = format!("sys/devices/system/cpu/cpu{cpu}");
        for state in 0..4 {
            for file in ["name", "latency", "residency", "usage", "time"] {
                tree.file(&format!("{directory}/cpuidle/state{state}/{file}"), "1\n");
            }
        }
    }
    for number in 0..vms {
        tree.vm(number, workers);
    }
    fs::write(path, tree.0.into_inner()).expect("a file");
}

#[test]
fn five_hundred_vms_are_read_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("host.tree");
    host(&path, VMS, WORKERS);
    let start = Instant::now();
    let snapshot = Snapshot::read(&path).expect("a snapshot");
    let elapsed = start.elapsed();
    let json = snapshot.to_json();
    println!(
        "{VMS} VMs, {} threads, {} groups: {elapsed:?}, {} bytes of JSON in {:?}",
        snapshot
            .vms
            .iter()
            .map(|vm| vm.threads.len())
            .sum::<usize>(),
        snapshot.cgroups.len(),
        json.len(),
        start.elapsed() - elapsed,
    );
    assert_eq!(snapshot.vms.len(), VMS);
    assert!(snapshot.vms.iter().all(|vm| vm.vcpus().count() == VCPUS));
    // The list of what is missing does not grow with the VMs.
    assert!(snapshot.missing.len() < 40, "{:#?}", snapshot.missing);
}

#[test]
fn a_vm_may_have_4096_threads() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("host.tree");
    host(&path, 1, 4096);
    let snapshot = Snapshot::read(&path).expect("a snapshot");
    assert_eq!(snapshot.vms[0].threads.len(), 4096 + VCPUS);
}
