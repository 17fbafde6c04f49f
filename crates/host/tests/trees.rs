//! Snapshots of recorded and composed trees: `tests/data/README.md`.

use std::fs;
use std::path::{Path, PathBuf};

use stealtime_host::{
    Cgroup, Evidence, FoundBy, Manager, Policy, Snapshot, SnapshotError, Thread, ThreadKind,
    VERSION, Vm,
};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// The tree that all share, with another one on top.
fn text(name: &str) -> String {
    let read = |name: &str| fs::read_to_string(data(name)).expect(name);
    read("base.tree") + &read(name)
}

fn snapshot_of(text: &str) -> Snapshot {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("host.tree");
    fs::write(&path, text).expect("a file");
    Snapshot::read(&path).expect("a snapshot")
}

fn snapshot(name: &str) -> Snapshot {
    snapshot_of(&text(name))
}

fn vm<'t>(snapshot: &'t Snapshot, name: &str) -> &'t Vm {
    let names: Vec<&str> = snapshot.vms.iter().map(|vm| vm.name.as_str()).collect();
    let vm = snapshot.vms.iter().find(|vm| vm.name == name);
    vm.unwrap_or_else(|| panic!("no {name:?} in {names:?}"))
}

fn vcpu(vm: &Vm, number: u32) -> &Thread {
    let mut vcpus = vm.vcpus();
    vcpus
        .find(|thread| thread.vcpu == Some(number))
        .expect("a vCPU")
}

fn group<'t>(snapshot: &'t Snapshot, path: &str) -> &'t Cgroup {
    let paths: Vec<&str> = snapshot
        .cgroups
        .iter()
        .map(|group| group.path.as_str())
        .collect();
    let group = snapshot.cgroups.iter().find(|group| group.path == path);
    group.unwrap_or_else(|| panic!("no {path:?} in {paths:#?}"))
}

fn is_missing(snapshot: &Snapshot, what: &str, why: &str) -> bool {
    let mut missing = snapshot.missing.iter();
    missing.any(|missing| missing.what == what && missing.why.contains(why))
}

#[test]
fn the_host_of_the_shared_tree() {
    let host = snapshot("libvirt.tree");
    assert_eq!(host.version, VERSION);
    assert!(host.missing.is_empty(), "{:#?}", host.missing);
    let identity = &host.identity;
    assert_eq!(identity.hostname.as_deref(), Some("node-7"));
    let hash = identity.machine_id_hash.as_deref().expect("a hash");
    assert!(
        hash.len() == 64 && !hash.contains("0123456789abcdef"),
        "{hash}"
    );
    assert_eq!(host.time.uptime_ns, Some(86_400_250_000_000));
    assert_eq!(host.time.boot_s, Some(1_760_000_000));
    let kernel = &host.kernel;
    assert_eq!(kernel.hz, Some(250));
    assert_eq!(
        kernel.hz_source.as_deref(),
        Some("/boot/config-6.12.57-host")
    );
    assert_eq!(kernel.preempt.mode.as_deref(), Some("voluntary"));
    assert_eq!(kernel.preempt.choices, ["none", "voluntary", "full"]);
    assert!(kernel.config.contains_key("CONFIG_KVM"));
    assert!(!kernel.config.contains_key("CONFIG_EXT4_FS"));
    assert!(host.sched.features.contains(&"NO_HRTICK".to_owned()));
    assert_eq!(host.sched.values["base_slice_ns"], "2800000");
    assert_eq!(host.sched.values["tunable_scaling"], "logarithmic");
    assert_eq!(host.sched.sysctl["sched_autogroup_enabled"], "0");
    assert!(!host.sched.sysctl.contains_key("panic"));
    assert!(host.kvm.device);
    assert_eq!(host.kvm.modules["kvm"]["pi_inject_timer"], "1");
    assert_eq!(host.kvm.modules["kvm_intel"]["enable_ipiv"], "Y");
    assert!(!host.kvm.modules.contains_key("kvm_amd"));
    assert_eq!(host.clocksource.current.as_deref(), Some("tsc"));
    assert_eq!(host.clocksource.available, ["tsc", "hpet", "acpi_pm"]);
    assert_eq!(host.mitigations["mds"], "Not affected");
    assert_eq!(
        host.memory.transparent_hugepages.as_deref(),
        Some("madvise")
    );
    assert_eq!(host.memory.total_bytes, Some(65_806_236 * 1024));
    assert_eq!(host.memory.available_bytes, Some(40 << 30));
    let mut processes = host.vms.iter().map(|vm| &vm.process);
    let process = processes.find(|process| process.pid == 4300);
    assert_eq!(
        process.and_then(|process| process.resident_bytes),
        Some(4 << 30)
    );
    assert_eq!(host.cpu_time.steal_ms, 560);
}

#[test]
fn cpus_caches_and_idle_states() {
    let host = snapshot("libvirt.tree");
    let cpu = &host.cpu;
    assert_eq!(cpu.model.as_deref(), Some("Intel(R) Xeon(R) Gold 6430"));
    assert_eq!(cpu.is_guest, Some(false));
    assert!(cpu.vmx_flags.contains(&"ipi_virt".to_owned()));
    let lists = [
        &cpu.nohz_full,
        &cpu.isolated,
        &cpu.cpuset_isolated,
        &cpu.housekeeping,
    ];
    let lists = lists.map(|list| list.as_deref().unwrap_or_default());
    assert_eq!(lists, ["6-7", "6-7", "6-7", "0-5"]);
    assert_eq!((cpu.cpus.len(), cpu.smt_active), (8, Some(true)));
    let five = &cpu.cpus[5];
    assert_eq!(five.siblings.as_deref(), Some("1,5"));
    assert_eq!(five.llc.as_deref(), Some("0-7"));
    assert_eq!(
        (five.package, five.core, five.node),
        (Some(0), Some(1), Some(0))
    );
    assert_eq!(five.governor.as_deref(), Some("powersave"));
    assert_eq!(five.time.as_ref().map(|time| time.steal_ms), Some(70));
    // Three levels of four cores, and the one that all share.
    assert_eq!(cpu.caches.len(), 4 * 3 + 1);
    let largest = cpu
        .caches
        .iter()
        .find(|cache| cache.level == 3)
        .expect("an LLC");
    assert_eq!(largest.size_bytes, Some(60 << 20));
    assert_eq!(cpu.idle.states.len(), 4);
    let deepest = &cpu.idle.states[3];
    assert_eq!(
        (deepest.exit_latency_us, deepest.target_residency_us),
        (Some(290), Some(800))
    );
    assert_eq!(
        (deepest.cpus.as_str(), deepest.disabled_cpus.as_str()),
        ("0-7", "7")
    );
    assert_eq!(five.idle[2].time_us, Some(3000));
    assert_eq!(cpu.nodes[0].cpus.as_deref(), Some("0-7"));
}

#[test]
fn libvirt_and_openstack() {
    let host = snapshot("libvirt.tree");
    let db = vm(&host, "db-1");
    assert_eq!(
        (db.manager, db.found_by),
        (Manager::Libvirt, FoundBy::Debugfs)
    );
    assert_eq!(db.process.pid, 4300);
    assert_eq!(db.vcpus().count(), 2);
    let first = vcpu(db, 0);
    assert_eq!((first.tid, first.evidence), (4308, Some(Evidence::Debugfs)));
    assert_eq!(first.affinity.as_deref(), Some("2"));
    assert_eq!(
        (first.policy, first.nice, first.rt_priority),
        (Some(Policy::Other), Some(0), Some(0))
    );
    assert_eq!(
        (first.run_ns, first.wait_ns),
        (Some(600_000_000_000), Some(30_000_000_000))
    );
    assert_eq!((first.guest_ms, first.last_cpu), (Some(550_000), Some(2)));
    assert_eq!(
        (first.tsc_offset, first.timer_advance_ns),
        (Some(-1000), Some(1000))
    );
    let kinds: Vec<ThreadKind> = db.threads.iter().map(|thread| thread.kind).collect();
    let count = |kind: ThreadKind| kinds.iter().filter(|k| **k == kind).count();
    assert_eq!(count(ThreadKind::Emulator), 2);
    assert_eq!(count(ThreadKind::Iothread), 1);
    assert_eq!(
        (count(ThreadKind::Vhost), count(ThreadKind::Kernel)),
        (1, 1)
    );
    assert_eq!(db.kvm_stats["halt_successful_poll"], 1200);
    let scope = "/machine.slice/machine-qemu\\x2d1\\x2ddb\\x2d1.scope";
    let limits = group(&host, scope);
    assert_eq!((limits.weight, limits.weight_nice), (Some(200), Some(-3)));
    assert_eq!(
        (limits.quota_us, limits.period_us),
        (Some(150_000), Some(100_000))
    );
    let throttled = (
        limits.periods,
        limits.throttled_periods,
        limits.throttled_us,
    );
    assert_eq!(throttled, (Some(4000), Some(120), Some(3_500_000)));
    let of_vcpu = group(&host, &format!("{scope}/libvirt/vcpu0"));
    assert_eq!(first.cgroup.as_deref(), Some(of_vcpu.path.as_str()));
    assert_eq!(of_vcpu.effective_cpus.as_deref(), Some("2"));
    assert_eq!(of_vcpu.kind.as_deref(), Some("threaded"));
    assert_eq!(group(&host, "/").weight, None);
    assert_eq!(group(&host, "/system.slice").usage_us, Some(77_000_000));
    assert_eq!(host.cgroup.version, "v2");
    let nova = vm(&host, "Tom & \"Jerry\"");
    assert_eq!(nova.manager, Manager::Openstack);
    assert_eq!(nova.id.as_deref(), Some("instance-00000001"));
    assert_eq!(nova.name_source, "/run/libvirt/qemu/instance-00000001.xml");
    assert_eq!(
        (nova.kvmclock, nova.steal_clock),
        (Some(false), Some(false))
    );
    assert_eq!((db.kvmclock, db.steal_clock, db.cpu_pm), (None, None, None));
}

#[test]
fn proxmox_without_debugfs() {
    let host = snapshot("proxmox.tree");
    let web = vm(&host, "web (2100)");
    assert_eq!(
        (web.manager, web.found_by),
        (Manager::Proxmox, FoundBy::File)
    );
    assert_eq!(web.id.as_deref(), Some("100"));
    assert_eq!(vm(&host, "web (2200)").id.as_deref(), Some("101"));
    assert_eq!(vcpu(web, 1).evidence, Some(Evidence::Name));
    assert_eq!(vcpu(web, 1).nice, Some(-5));
    let kernel = |kind| web.threads.iter().find(|t| t.kind == kind).map(|t| t.tid);
    assert_eq!(kernel(ThreadKind::Vhost), Some(2111));
    assert_eq!(kernel(ThreadKind::Kernel), Some(2112));
    assert!(host.sched.features.is_empty());
    assert!(is_missing(&host, "sched.features", "not permitted"));
    assert!(is_missing(&host, "vms.kvm_stats", "not permitted"));
    // The mode of preemption is left as the kernel was built.
    assert_eq!(host.kernel.preempt.source.as_deref(), Some("config"));
}

#[test]
fn pods_of_kubevirt_and_kata() {
    let host = snapshot("kubernetes.tree");
    let names: Vec<&str> = host.vms.iter().map(|vm| vm.name.as_str()).collect();
    let without_pod = format!("sandbox-{}", "b8".repeat(32));
    assert_eq!(names, ["checkout-5b7", "db", without_pod.as_str()]);
    let db = vm(&host, "db");
    assert_eq!(
        (db.manager, db.namespace.as_deref()),
        (Manager::Kubevirt, Some("shop"))
    );
    assert_eq!(db.pod.as_deref(), Some("virt-launcher-db-x7k2p"));
    let kata = vm(&host, "checkout-5b7");
    assert_eq!(
        (kata.manager, kata.namespace.as_deref()),
        (Manager::Kata, Some("shop"))
    );
    assert_eq!(vcpu(kata, 0).evidence, Some(Evidence::Name));
    // Cloud Hypervisor makes its machine in a thread, after which debugfs names it.
    let hypervisor = vm(&host, &without_pod);
    assert_eq!(
        (hypervisor.process.pid, hypervisor.found_by),
        (7200, FoundBy::Debugfs)
    );
    assert_eq!(vcpu(hypervisor, 0).tid, 7207);
    assert!(is_missing(&host, "vms.pod", "no config.json"));
    assert_eq!(group(&host, "/kubepods.slice").weight_nice, Some(-10));
}

#[test]
fn firecracker_on_version_1() {
    let host = snapshot("firecracker-v1.tree");
    let vm = vm(&host, "fn-551e7604");
    assert_eq!(vm.manager, Manager::Firecracker);
    assert_eq!(vcpu(vm, 1).tid, 3004);
    assert_eq!(host.cgroup.version, "v1");
    let group = |hierarchy: &str| {
        let path = vm.cgroup.as_deref().expect("a group");
        let mut groups = host.cgroups.iter();
        groups
            .find(|group| group.path == path && group.hierarchy == hierarchy)
            .expect("a group")
    };
    assert_eq!(group("cpu").shares, Some(512));
    assert_eq!(
        (group("cpu").quota_us, group("cpu").period_us),
        (Some(20_000), Some(100_000))
    );
    assert_eq!(group("cpu").throttled_us, Some(2_500_000));
    assert_eq!(group("cpuset").cpus.as_deref(), Some("4-5"));
    let root = host
        .cgroups
        .iter()
        .find(|group| group.path == "/")
        .expect("the root");
    assert_eq!(root.quota_us, None);
}

#[test]
fn groups_name_the_vcpus_of_an_unnamed_qemu() {
    let host = snapshot("hybrid.tree");
    assert_eq!(host.cgroup.version, "hybrid");
    let old = vm(&host, "old");
    assert_eq!(
        (old.manager, old.found_by),
        (Manager::Libvirt, FoundBy::File)
    );
    let second = vcpu(old, 1);
    assert_eq!(
        (second.tid, second.evidence),
        (5004, Some(Evidence::Cgroup))
    );
    assert_eq!(
        (second.policy, second.rt_priority),
        (Some(Policy::Fifo), Some(1))
    );
    assert_eq!(second.priority, Some(-2));
    assert_eq!(
        second.cpuset_cgroup.as_deref(),
        Some("/machine/qemu-3-old.libvirt-qemu/vcpu1")
    );
    let iothread = old
        .threads
        .iter()
        .find(|thread| thread.tid == 5005)
        .expect("a thread");
    assert_eq!(iothread.kind, ThreadKind::Iothread);
}

#[test]
fn names_are_exact_and_rights_may_be_missing() {
    let host = snapshot("plain.tree");
    let evil = vm(&host, "a \"b\"\n} \u{1b}[31mred,c");
    assert_eq!(
        (evil.manager, evil.found_by),
        (Manager::Qemu, FoundBy::File)
    );
    assert_eq!(evil.autogroup.as_deref(), Some("/autogroup-77 nice -5"));
    // The one with guest time is a vCPU; its number is unknown.
    let vcpus: Vec<&Thread> = evil.vcpus().collect();
    assert_eq!((vcpus.len(), vcpus[0].tid, vcpus[0].vcpu), (1, 902, None));
    assert_eq!(vcpus[0].evidence, Some(Evidence::GuestTime));
    let names: Vec<&str> = evil
        .threads
        .iter()
        .map(|thread| thread.name.as_str())
        .collect();
    assert!(names.contains(&") S 1\n(\u{1b}[2J"), "{names:?}");
    let other = vm(&host, "qemu-system-x86-950");
    assert_eq!(other.found_by, FoundBy::Threads);
    assert_eq!(host.vms.len(), 2);
    assert!(is_missing(&host, "vms", "hidepid"));
    assert!(is_missing(&host, "vms", "/proc/950/fd: permission denied"));
    let fds = host
        .missing
        .iter()
        .find(|missing| missing.why.contains("/fd:"));
    assert_eq!(fds.map(|missing| missing.times), Some(2));
    assert_eq!(host.cgroup.version, "none");
    assert!(host.cgroups.is_empty() && evil.cgroup.is_none());
    assert!(host.sched.values.is_empty());
    let read = Snapshot::from_json(&host.to_json()).expect("a snapshot");
    assert_eq!(read, host);
}

#[test]
fn units_name_vms_that_have_them_alone() {
    let host = snapshot("units.tree");
    let names: Vec<(&str, Manager)> = host
        .vms
        .iter()
        .map(|vm| (vm.name.as_str(), vm.manager))
        .collect();
    let expected = [
        ("build-host", Manager::Systemd),
        ("c1", Manager::Qemu),
        ("c2", Manager::Qemu),
        ("myvmm-1600", Manager::Process),
        ("red", Manager::Firecracker),
        ("router", Manager::Systemd),
    ];
    assert_eq!(names, expected);
    assert_eq!(
        vm(&host, "router").id.as_deref(),
        Some("microvm@router.service")
    );
    assert_eq!(vcpu(vm(&host, "router"), 1).name, "crosvm_vcpu1");
    assert!(is_missing(
        &host,
        "vms",
        "process 1700: ended while it was read"
    ));
}

#[test]
fn a_host_without_kvm() {
    let text = text("units.tree").replace("== dev/kvm", "== dev/null");
    let (base, _) = text.split_once("== proc/self/").expect("the shared tree");
    let host = snapshot_of(&base.replace("sys/module/kvm", "sys/module/other"));
    assert!(host.vms.is_empty() && !host.kvm.device && host.kvm.modules.is_empty());
    assert!(!is_missing(&host, "vms.kvm_stats", ""));
}

#[test]
fn a_recorded_guest_is_a_host_too() {
    let host = Snapshot::read(&data("container.tree")).expect("a snapshot");
    assert!(host.vms.is_empty() && host.kvm.device);
    assert_eq!(host.cgroup.version, "hybrid");
    assert!(is_missing(&host, "sched.features", "locked down"));
    assert_eq!(host.cpu.is_guest, Some(true));
    assert_eq!(host.kernel.hz_source.as_deref(), Some("/proc/config.gz"));
}

#[test]
fn ticks_are_counted_where_no_configuration_is() {
    let text = text("libvirt.tree").replace("boot/config-", "boot/other-");
    let debug = "== sys/kernel/debug/sched/debug\nSched Debug Version: v0.11, 6.18.44\n\
        ktime                                   : 12412241.889338\n\
        jiffies                                 : 4297995278\n";
    let host = snapshot_of(&(text + debug));
    assert_eq!(host.kernel.hz, Some(250));
    assert_eq!(host.kernel.hz_source.as_deref(), Some("jiffies"));
    assert!(is_missing(&host, "kernel.config", "/proc/config.gz"));
}

/// The file of a program that was killed stays: it counts while the kernel names its scheduler.
#[test]
fn counters_are_those_of_the_loaded_scheduler() {
    let published = r#"== run/stealtime/sched.json
{"version":1,"pid":7,"all_tasks":true,"yields":"receiver","counts":{"yield_directed":3},"yield_to_run_us":[],
"groups":[],"group_paths":[],"vcpus":0}
"#;
    let counters = |ops: &str| {
        let ops = format!("== sys/kernel/sched_ext/root/ops\n{ops}\n");
        snapshot_of(&(text("plain.tree") + &ops + published))
            .sched
            .counters
    };
    let counted = counters("stealtime").map(|counters| counters.count("yield_directed"));
    assert_eq!(counted, Some(3));
    assert_eq!(counters("flatcg"), None);
}

#[test]
fn a_record_gives_the_same_snapshot_and_no_secrets() {
    for name in [
        "libvirt",
        "proxmox",
        "kubernetes",
        "firecracker-v1",
        "plain",
        "units",
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("host.tree");
        fs::write(&path, text(&format!("{name}.tree"))).expect("a file");
        let (snapshot, record) = Snapshot::read_and_record(&path).expect("a snapshot");
        let record = record.to_text();
        for secret in [
            "secret",
            "PASSWORD",
            "master-key",
            "0123456789abcdef0123456789abcdef",
        ] {
            assert!(!record.contains(secret), "{name}: {secret}");
        }
        let again = snapshot_of(&record);
        assert_eq!(again, snapshot, "{name}");
    }
}

#[test]
fn this_host_can_be_read() {
    let (snapshot, record) = Snapshot::read_and_record(Path::new("/")).expect("a snapshot");
    assert!(!snapshot.cpu.cpus.is_empty(), "{:#?}", snapshot.missing);
    assert!(snapshot.identity.kernel_release.is_some());
    let again = snapshot_of(&record.to_text());
    assert_eq!(again.identity, snapshot.identity);
    assert_eq!(again.cpu.caches, snapshot.cpu.caches);
    assert_eq!(again.kernel, snapshot.kernel);
}

#[test]
fn snapshots_of_other_hosts_and_boots_differ() {
    let host = snapshot("libvirt.tree").identity;
    assert_eq!(host.mismatch(&host), None);
    let mut other = host.clone();
    other.boot_id = Some("another".into());
    assert_eq!(host.mismatch(&other).expect("a mismatch").what, "the boot");
    other.hostname = Some("node-8".into());
    let mismatch = host.mismatch(&other).expect("a mismatch").to_string();
    assert_eq!(mismatch, "the host's name differs: node-7 and node-8");
    other.hostname = None;
    other.boot_id = None;
    assert_eq!(host.mismatch(&other), None);
}

#[test]
fn other_files_are_refused() {
    for (text, message) in [
        ("", "no snapshot of a host"),
        ("{}", "no snapshot of a host"),
        ("{\"version\": 9999}", "version 9999"),
    ] {
        let error = Snapshot::from_json(text).expect_err(text);
        assert!(error.to_string().contains(message), "{error}");
    }
    let older = Snapshot::from_json("{\"version\": 1, \"unknown\": []}").expect("a snapshot");
    assert_eq!(older.version, 1);
    let error = Snapshot::read(Path::new("/nowhere")).expect_err("no such root");
    assert!(matches!(error, SnapshotError::Root { .. }));
}
