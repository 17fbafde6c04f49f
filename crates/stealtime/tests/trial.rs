//! `stealtime try` on a host of files, with recordings instead of the host's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{run, stealtime};

const RECORDING: &str = "../../tests/data/traces/svm-cfs/trace.dat";
const POLL: &str = "sys/module/kvm/parameters/halt_poll_ns";
const WEIGHT: &str = "sys/fs/cgroup/vms/web/cpu.weight";
/// A name as its owner chose it.
const HOSTILE: &str = "d\u{1b}[31mb";

/// A host with two VMs, those of the recording.
struct FakeHost {
    folder: TempDir,
}

impl FakeHost {
    fn new() -> Self {
        let host = Self {
            folder: tempfile::tempdir().expect("a folder"),
        };
        host.write("proc/sys/kernel/random/boot_id", "boot-1");
        host.write("proc/sys/kernel/hostname", "node-7");
        let mount = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        host.write("proc/self/mountinfo", mount);
        host.write(POLL, "200000");
        host.write(
            "sys/kernel/debug/sched/features",
            "WAKEUP_PREEMPTION NO_HRTICK",
        );
        host.write("sys/devices/system/cpu/online", "0-1");
        host.vm("web", "web", 100, [119, 121]);
        host.vm(HOSTILE, "db", 101, [120, 122]);
        fs::create_dir(host.path("recordings")).expect("a folder");
        for name in ["a.dat", "b.dat"] {
            let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORDING);
            symlink(recording, host.path("recordings").join(name)).expect("a link");
        }
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path("root").join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, format!("{text}\n")).expect("a file");
    }

    fn read(&self, path: &str) -> String {
        let text = fs::read_to_string(self.path("root").join(path)).expect(path);
        text.trim_end().to_owned()
    }

    fn vm(&self, name: &str, group: &str, pid: i32, vcpus: [i32; 2]) {
        let group = format!("/vms/{group}");
        self.write(&format!("sys/fs/cgroup{group}/cpu.weight"), "100");
        self.write(&format!("sys/fs/cgroup{group}/cpu.max"), "max 100000");
        let option = format!("qemu-system-x86_64\0-enable-kvm\0-name\0guest={name}\0");
        self.write(&format!("proc/{pid}/cmdline"), &option);
        let fd = self.path("root").join(format!("proc/{pid}/fd"));
        fs::create_dir_all(&fd).expect("a folder");
        symlink("anon_inode:kvm-vm", fd.join("3")).expect("a link");
        let program = self.path("root").join(format!("proc/{pid}/exe"));
        symlink("/usr/bin/qemu-system-x86_64", program).expect("a link");
        let threads = [
            (pid, "qemu"),
            (vcpus[0], "CPU 0/KVM"),
            (vcpus[1], "CPU 1/KVM"),
        ];
        for (tid, name) in threads {
            let zeros = ["0"; 20].join(" ");
            let stat = format!(
                "{tid} ({name}) S 1 {tid} {tid} 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 777 {zeros} 0 0 0"
            );
            for folder in [format!("proc/{pid}/task/{tid}"), format!("proc/{tid}")] {
                self.write(&format!("{folder}/stat"), &stat);
                self.write(&format!("{folder}/cgroup"), &format!("0::{group}"));
                let status = format!("Name:\t{name}\nTgid:\t{pid}\nCpus_allowed_list:\t0-1");
                self.write(&format!("{folder}/status"), &status);
                self.write(&format!("{folder}/nice"), "0");
                self.write(&format!("{folder}/affinity"), "0-1");
            }
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = stealtime(&["try"]);
        command.arg("--root").arg(self.path("root"));
        command.arg("--run-folder").arg(self.path("run"));
        if !arguments.contains(&"--restore") {
            command.arg("--recordings").arg(self.path("recordings"));
        }
        command.args(arguments);
        command
    }

    /// What sched_ext says of its scheduler.
    fn schedules(&self, state: &str, name: &str) {
        self.write(STATE, state);
        self.write("sys/kernel/sched_ext/root/ops", name);
    }

    fn assert_as_before(&self) {
        assert_eq!(
            (self.read(POLL), self.read(WEIGHT)),
            ("200000".to_owned(), "100".to_owned())
        );
        for tid in [119, 121] {
            assert_eq!(self.read(&format!("proc/{tid}/affinity")), "0-1");
        }
    }
}

fn await_value(begin: Instant, is_so: impl Fn() -> bool) {
    while !is_so() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "it does not come"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

const SHORT: [&str; 5] = ["--turn", "20ms", "--for", "80ms", "--yes"];

#[test]
fn knobs_are_turned_predicted_and_taken_back() {
    let host = FakeHost::new();
    let settings = [
        "--set",
        "kvm.halt_poll_ns=0",
        "--set",
        "vm.web.pinning=1",
        "--json",
    ];
    let arguments = [&settings[..], &SHORT, &["--seeds", "2"]].concat();
    let (status, output, error) = run(&mut host.command(&arguments));
    assert_eq!(status, Some(0), "{error}");
    let document: Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!(document["turned"].as_array().map(Vec::len), Some(3));
    assert_eq!(document["turns"].as_array().map(Vec::len), Some(4));
    // Equal recordings of both sides: the replay of the baseline predicts something, the turns show nothing.
    assert_eq!(document["seen"]["shown"], "within_noise");
    assert_eq!(document["keep"], false);
    let figure = &document["seen"]["figures"][0];
    assert_eq!(
        (&figure["who"], &figure["quantity"]),
        (&"web".into(), &"waiting".into())
    );
    assert!(figure["predicted"]["half_width"].is_number(), "{figure}");
    assert_eq!(figure["seen"]["mean"], 0.0);
    assert_eq!(document["restored"][0]["fate"], "back");
    host.assert_as_before();
    assert!(!host.path("run/try.json").exists());
}

#[test]
fn a_guard_stops_the_trial() {
    let host = FakeHost::new();
    let settings = [
        "--set",
        "vm.web.cpu_weight=300",
        "--no-prediction",
        "--stop-if",
        "ready>40%",
    ];
    let (status, output, error) = run(&mut host.command(&[&settings[..], &SHORT].concat()));
    assert_eq!(status, Some(1), "{error}");
    assert!(
        error.contains("stopped: ready of web is 47.6 % (ready>40%)"),
        "{error}"
    );
    assert!(output.contains("cpu.weight: 100 -> 300"), "{output}");
    assert!(
        output.contains("Stopped in turn 1 of 4 (A) by a guard"),
        "{output}"
    );
    host.assert_as_before();
}

#[test]
fn an_error_stops_the_trial() {
    let host = FakeHost::new();
    fs::remove_file(host.path("recordings/b.dat")).expect("a link");
    let settings = ["--set", "vm.web.cpu_weight=300", "--no-prediction"];
    let (status, output, error) = run(&mut host.command(&[&settings[..], &SHORT].concat()));
    assert_eq!(status, Some(2), "{error}");
    let line = output.lines().find(|line| line.starts_with("Stopped in"));
    let line = line.expect(&output);
    assert!(
        line.starts_with("Stopped in turn 2 of 4 (B) by an error: "),
        "{line}"
    );
    assert!(output.contains("cpu.weight: 100 again"), "{output}");
    host.assert_as_before();
}

#[test]
fn what_cannot_be_tried_is_refused_with_reasons() {
    let host = FakeHost::new();
    fs::remove_file(host.path("root").join(POLL)).expect("a file");
    let settings = [
        "kvm.halt_poll_ns=0",
        "kvm.ple_gap=0",
        "vm.web.cpu_pm=on",
        "host.hz=250",
    ];
    let mut arguments = vec!["--yes"];
    arguments.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
    let (status, _, error) = run(&mut host.command(&arguments));
    assert_eq!(status, Some(2));
    for reason in [
        "halt_poll_ns: there is none",
        "kvm.ple_gap: it acts at once, but all VMs must be stopped for it",
        "vm.web.cpu_pm: it acts after a restart of the VM",
        "host.hz: it acts after a reboot of the host",
    ] {
        assert!(error.contains(reason), "{reason}: {error}");
    }
    for (arguments, reason) in [
        (
            &["--set", "vm.web.cpu_weight=300"][..],
            "there is no terminal to ask on",
        ),
        (
            &["--set", "vm.web.cpu_weight=100", "--yes"],
            "has these values already",
        ),
        (
            &["--set", "vm.wbe.nice=5", "--yes"],
            "no such VM; known are d\\u{1b}[31mb, web",
        ),
        (
            &["--set", "vm.web.nice=5", "--yes", "--stop-if", "steal>5%"],
            "is no figure: ready, throttled",
        ),
        (
            &[
                "--set",
                "vm.web.nice=5",
                "--yes",
                "--stop-if",
                "vm.x.ready>5%",
            ],
            "there is no VM \"x\"; there are: web",
        ),
        (
            &["--set", "vm.web.nice=5", "--yes", "--for", "5s"],
            "gives 0 pairs of turns",
        ),
    ] {
        let (status, _, error) = run(&mut host.command(arguments));
        assert_eq!(status, Some(2), "{error}");
        assert!(error.contains(reason), "{reason}: {error}");
        assert!(!error.contains('\u{1b}'), "{error}");
    }
    assert_eq!(host.read("proc/119/nice"), "0");
}

/// A trial of a minute.
fn spawn(host: &FakeHost) -> std::process::Child {
    let arguments = ["--set", "vm.web.cpu_weight=300", "--no-prediction", "--yes"];
    let times = ["--turn", "100ms", "--for", "60s"];
    let mut command = host.command(&[&arguments[..], &times].concat());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

/// The same, when it has turned its knob.
fn turned(host: &FakeHost) -> std::process::Child {
    let child = spawn(host);
    await_value(Instant::now(), || host.read(WEIGHT) == "300");
    child
}

/// Kills a trial, waits until a file has its former value, and checks that nothing is left to do.
fn kill_and_await(host: &FakeHost, child: &mut std::process::Child, former: (&str, &str)) {
    child.kill().expect("a process");
    child.wait().expect("its status");
    await_value(Instant::now(), || host.read(former.0) == former.1);
    let (status, output, _) = run(&mut host.command(&["--restore"]));
    assert_eq!(status, Some(0));
    assert_eq!(output, "  nothing: no trial was left unfinished\n");
}

#[test]
fn a_killed_trial_is_taken_back_by_its_watchdog() {
    let host = FakeHost::new();
    let mut child = turned(&host);
    kill_and_await(&host, &mut child, (WEIGHT, "100"));
    host.assert_as_before();
}

#[test]
fn a_signal_ends_the_trial_and_takes_back() {
    let host = FakeHost::new();
    let child = turned(&host);
    let pid = child.id().to_string();
    let signal = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(signal.expect("kill runs").success());
    let output = child.wait_with_output().expect("its output");
    assert_eq!(output.status.code(), Some(130));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("cpu.weight: 100 again") || text.contains("100, as before"),
        "{text}"
    );
    assert!(text.contains("by a signal"), "{text}");
    host.assert_as_before();
}

/// A scheduler of sched_ext that loads as the kernel shows it, and ends with its input.
const SCHEDULER: &str = "#!/bin/sh
cd \"${0%/*}/root/sys/kernel/sched_ext\"
echo stealtime_1 >root/ops
echo enabled >state
cat
echo disabled >state
";
const STATE: &str = "sys/kernel/sched_ext/state";

fn tries_scheduler(host: &FakeHost, times: &[&str]) -> Command {
    let program = host.path("scx");
    fs::write(host.path("text"), SCHEDULER).expect("a file");
    // A process that another test starts meanwhile may hold what this one has open to write: ETXTBSY.
    let copied = Command::new("cp")
        .arg(host.path("text"))
        .arg(&program)
        .status();
    assert!(copied.expect("cp runs").success());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it can run");
    let settings = [
        "--set",
        "sched.policy=scx-stealtime",
        "--no-prediction",
        "--json",
    ];
    let mut command = host.command(&[&settings, times].concat());
    command.env("SCX_STEALTIME", program);
    command
}

#[test]
fn a_scheduler_is_loaded_in_turns() {
    let host = FakeHost::new();
    host.schedules("disabled", "");
    let (status, output, error) = run(&mut tries_scheduler(&host, &SHORT));
    assert_eq!(status, Some(0), "{error}");
    let document: Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!(document["turned"][0]["former"], "fair", "{output}");
    assert_eq!(document["turned"][0]["tried"], "scx-stealtime");
    assert_eq!(host.read(STATE), "disabled");
    host.schedules("enabled", "rusty");
    let (status, _, error) = run(&mut tries_scheduler(&host, &SHORT));
    assert_eq!(status, Some(2));
    assert!(error.contains("rusty is loaded: end it first"), "{error}");
}

#[test]
fn a_killed_trial_ends_its_scheduler() {
    let host = FakeHost::new();
    host.schedules("disabled", "");
    let times = ["--turn", "100ms", "--for", "60s", "--yes"];
    let mut command = tries_scheduler(&host, &times);
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    await_value(Instant::now(), || host.read(STATE) == "enabled");
    kill_and_await(&host, &mut child, (STATE, "disabled"));
}

/// Children of a process.
fn children(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let lists = tasks
        .flatten()
        .map(|task| fs::read_to_string(task.path().join("children")));
    let found = lists.flat_map(|list| {
        let list = list.unwrap_or_default();
        list.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    found.collect()
}

fn signal(signal: &str, pid: &str) {
    let sent = Command::new("kill")
        .args([signal, pid])
        .stderr(Stdio::null())
        .status();
    sent.expect("kill runs");
}

/// Kills so many trials at moments spread over their first turns, each third one with its watchdog.
/// `--restore` is the next start.
fn kill_trials(number: u64) {
    let host = FakeHost::new();
    let mut by_start = 0;
    for index in 0..number {
        let mut child = match index % 4 {
            // It may be killed before anything is turned.
            0 => spawn(&host),
            _ => turned(&host),
        };
        std::thread::sleep(Duration::from_millis(index * 37 % 211));
        if index % 3 == 1 {
            signal("-STOP", &child.id().to_string());
            children(child.id())
                .iter()
                .for_each(|watchdog| signal("-KILL", watchdog));
        }
        child.kill().expect("a process");
        child.wait().expect("its status");
        let begin = Instant::now();
        loop {
            let (status, output, error) = run(&mut host.command(&["--restore"]));
            by_start += u64::from(output.contains("again"));
            if status == Some(0) {
                break;
            }
            // The watchdog holds the lock while it restores.
            assert!(error.contains("runs on this host"), "{error}");
            assert!(begin.elapsed() < Duration::from_secs(60), "{error}");
            std::thread::sleep(Duration::from_millis(5));
        }
        host.assert_as_before();
    }
    eprintln!("{number} kills, after {by_start} the next start restored");
    assert!(by_start > 0 && by_start < number);
}

#[test]
fn trials_that_are_killed_leave_the_former_values() {
    kill_trials(6);
}

#[test]
#[ignore = "the long form of the one above: cargo test -p stealtime --test all -- --ignored a_hundred_trials"]
fn a_hundred_trials_that_are_killed() {
    kill_trials(100);
}
