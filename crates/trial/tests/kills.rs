//! Sessions that are killed at random moments: the former values come back.
//!
//! Children are this test binary again, with the test that plays their part.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stealtime_trial::{
    Fate, Host, RunFolder, Session, Side, StoreError, Target, Wanted, prepare, recover, watch,
};

/// Names the folder of a child.
const FOLDER: &str = "STEALTIME_TRIAL_FOLDER";
const VALUES: [(&str, &str, &str); 4] = [
    ("sys/module/kvm/parameters/halt_poll_ns", "200000", "0"),
    ("sys/fs/cgroup/vms/web/cpu.weight", "100", "300"),
    ("proc/4242/nice", "0", "5"),
    ("proc/4242/affinity", "0-3", "1"),
];
const FEATURES: &str = "sys/kernel/debug/sched/features";

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("a file");
}

/// A host of files.
fn host(root: &Path) -> Host {
    for (path, former, _) in VALUES {
        write(root, path, former);
    }
    write(root, FEATURES, "NO_HRTICK WAKEUP_PREEMPTION UTIL_EST\n");
    write(root, "proc/sys/kernel/random/boot_id", "boot-1\n");
    let fields = ["0"; 18].join(" ");
    write(
        root,
        "proc/4242/stat",
        &format!("4242 (CPU 0/KVM) S {fields} 777 0 0"),
    );
    Host::new(root)
}

fn wanted() -> Vec<Wanted> {
    let file = |path: &str| Target::File {
        path: format!("/{path}"),
    };
    let targets = [
        file(VALUES[0].0),
        file(VALUES[1].0),
        Target::Nice { tid: 4242 },
        Target::Affinity { tid: 4242 },
    ];
    let values = targets.into_iter().zip(VALUES);
    let mut wanted: Vec<Wanted> = values
        .map(|(target, (path, _, tried))| Wanted {
            knob: path.to_owned(),
            target,
            value: tried.to_owned(),
        })
        .collect();
    wanted.push(Wanted {
        knob: "sched.features".to_owned(),
        target: Target::Feature {
            path: format!("/{FEATURES}"),
            feature: "WAKEUP_PREEMPTION".to_owned(),
        },
        value: "NO_WAKEUP_PREEMPTION".to_owned(),
    });
    wanted
}

/// The values that are not the former ones.
fn changed(root: &Path) -> Vec<String> {
    let mut changed = Vec::new();
    for (path, former, _) in VALUES {
        let text = fs::read_to_string(root.join(path)).expect(path);
        if text.trim_end() != former {
            changed.push(format!("{path}: {text}"));
        }
    }
    let features = fs::read_to_string(root.join(FEATURES)).expect("features");
    if features.trim_end() != "NO_HRTICK WAKEUP_PREEMPTION UTIL_EST" {
        changed.push(features);
    }
    changed
}

fn child(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(env::current_exe().expect("this binary"));
    command
        .args([test, "--exact", "--ignored", "--nocapture", "--quiet"])
        .env(FOLDER, folder);
    command
}

fn folder_of_child() -> PathBuf {
    PathBuf::from(env::var_os(FOLDER).expect("a child of a test"))
}

fn session(folder: &Path) -> Session {
    let host = Host::new(&folder.join("root"));
    let (entries, refusals) = prepare(&host, &wanted());
    assert_eq!((entries.len(), refusals.len()), (5, 0), "{refusals:?}");
    let run = RunFolder::open(&folder.join("run")).expect("the lock");
    let watchdog = child("child_that_watches", folder);
    Session::begin(host, run, entries, watchdog).expect("a session")
}

#[test]
#[ignore = "a child of other tests"]
fn child_that_turns() {
    let folder = folder_of_child();
    let mut session = session(&folder);
    fs::write(folder.join("turns"), "").expect("a mark");
    for turn in 0.. {
        let side = if turn % 2 == 0 { Side::B } else { Side::A };
        session.turn(side).expect("a turn");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "a child of other tests"]
fn child_that_watches() {
    let folder = folder_of_child();
    let host = Host::new(&folder.join("root"));
    let patience = Duration::from_secs(20);
    watch(&host, &folder.join("run"), patience).expect("a restore");
}

/// Numbers without order, the same in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn kill(child: &mut Child) {
    child.kill().expect("a process");
    let status = child.wait().expect("its status");
    assert_eq!(status.signal(), Some(9), "it ended by itself: {status}");
}

/// Waits for the lock, which the watchdog holds while it restores; then does what the next start does.
fn next_start(folder: &Path) -> bool {
    let begin = Instant::now();
    let run = loop {
        match RunFolder::open(&folder.join("run")) {
            // A loaded machine starts a watchdog slowly.
            Err(StoreError::Busy(_)) if begin.elapsed() < Duration::from_secs(120) => {}
            run => break run.expect("the lock"),
        }
    };
    let host = Host::new(&folder.join("root"));
    recover(&host, &run).expect("a ledger").is_some()
}

fn kill_sessions(number: u64) {
    let mut chance = Chance(0x5eed);
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    host(&folder.join("root"));
    let (mut by_watchdog, mut by_next_start) = (0, 0);
    for index in 0..number {
        let mut turner = child("child_that_turns", folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a session");
        // Every fourth kill may come before the first turn.
        let mark = folder.join("turns");
        let begin = Instant::now();
        while index % 4 != 0 && !mark.exists() && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(chance.below(20_000)));
        // Every third kill takes the watchdog along, while the session can do nothing about it.
        if index % 3 == 0 {
            signal(turner.id() as i32, libc::SIGSTOP);
            for watchdog in children(turner.id()) {
                signal(watchdog, libc::SIGKILL);
            }
        }
        kill(&mut turner);
        match next_start(folder) {
            true => by_next_start += 1,
            false => by_watchdog += 1,
        }
        assert_eq!(changed(&folder.join("root")), [""; 0], "kill {index}");
        let _ = fs::remove_file(mark);
    }
    eprintln!("{number} kills: {by_watchdog} by the watchdog, {by_next_start} at the next start");
    assert!(by_watchdog > 0 && by_next_start > 0);
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: the call has no effect on memory. The processes are children of this test, or theirs.
    unsafe { libc::kill(pid, signal) };
}

fn children(pid: u32) -> Vec<i32> {
    let mut found = Vec::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return found;
    };
    for task in tasks.flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(
            text.split(' ')
                .filter_map(|pid| pid.trim().parse::<i32>().ok()),
        );
    }
    found
}

#[test]
fn killed_sessions_leave_the_former_values() {
    kill_sessions(8);
}

#[test]
#[ignore = "the long form of the one above: cargo test -p stealtime-trial --test kills -- --ignored a_hundred"]
fn a_hundred_kills() {
    kill_sessions(100);
}

#[test]
fn a_session_turns_and_takes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    host(&root);
    let mut session = session(folder.path());
    session.turn(Side::A).expect("a turn");
    assert_eq!(changed(&root), [""; 0]);
    session.turn(Side::B).expect("a turn");
    assert_eq!(changed(&root).len(), 5);
    session.turn(Side::A).expect("a turn");
    assert_eq!(changed(&root), [""; 0]);
    session.turn(Side::B).expect("a turn");
    let outcomes = session.finish().expect("a restore");
    assert!(
        outcomes.iter().all(|outcome| outcome.fate == Fate::Back),
        "{outcomes:?}"
    );
    assert_eq!(changed(&root), [""; 0]);
    assert!(!next_start(folder.path()));
}

#[test]
fn what_others_change_or_remove_meanwhile_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    host(&root);
    let mut session = session(folder.path());
    session.turn(Side::B).expect("a turn");
    // An administrator sets another value, a VM ends, and a thread gets the id of one that has ended.
    write(&root, VALUES[0].0, "77");
    fs::remove_dir_all(root.join("sys/fs/cgroup/vms/web")).expect("a group");
    let stat = fs::read_to_string(root.join("proc/4242/stat")).expect("a stat");
    write(&root, "proc/4242/stat", &stat.replace("777", "888"));
    let error = session.turn(Side::A).expect_err("another value");
    assert!(
        error.to_string().contains("another program has set it"),
        "{error}"
    );
    let outcomes = session.finish().expect("a restore");
    let fates: Vec<&Fate> = outcomes.iter().map(|outcome| &outcome.fate).collect();
    assert!(
        matches!(
            fates[..],
            [
                Fate::Back,
                Fate::Gone { .. },
                Fate::Gone { .. },
                Fate::Gone { .. },
                Fate::Foreign { .. }
            ]
        ),
        "{fates:?}"
    );
    assert_eq!(
        fs::read_to_string(root.join(VALUES[0].0)).expect("a value"),
        "77"
    );
    assert_eq!(
        fs::read_to_string(root.join(VALUES[2].0))
            .expect("a value")
            .trim(),
        "5"
    );
}

#[test]
fn what_cannot_be_set_back_is_refused_before_it_is_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    let host = host(&root);
    let read_only = root.join(VALUES[0].0);
    fs::set_permissions(&read_only, fs::Permissions::from_mode(0o444)).expect("a mode");
    fs::remove_file(root.join(VALUES[1].0)).expect("a file");
    let (entries, refusals) = prepare(&host, &wanted());
    assert_eq!(entries.len(), 3);
    let reasons: Vec<&str> = refusals
        .iter()
        .map(|refusal| refusal.reason.as_str())
        .collect();
    assert!(
        reasons[0].ends_with("halt_poll_ns: it is read-only"),
        "{reasons:?}"
    );
    assert!(
        reasons[1].ends_with("cpu.weight: there is none"),
        "{reasons:?}"
    );
    // A file that keeps nothing of what is written.
    std::os::unix::fs::symlink("/dev/null", root.join(VALUES[1].0)).expect("a link");
    let (entries, _) = prepare(&host, &wanted());
    let run = RunFolder::open(&folder.path().join("run")).expect("the lock");
    let watchdog = child("child_that_watches", folder.path());
    let mut session = Session::begin(host, run, entries, watchdog).expect("a session");
    let error = session.turn(Side::B).expect_err("no value");
    let text = error.to_string();
    assert!(
        text.contains("cpu.weight reads \"\" after \"300\" was written"),
        "{text}"
    );
    session.finish().expect("a restore");
}

#[test]
fn a_value_that_changes_before_the_answer_is_not_touched() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    let host = host(&root);
    let (entries, _) = prepare(&host, &wanted());
    write(&root, VALUES[0].0, "77");
    let run = RunFolder::open(&folder.path().join("run")).expect("the lock");
    let watchdog = child("child_that_watches", folder.path());
    let error = Session::begin(host, run, entries, watchdog).expect_err("another value");
    assert!(
        error.to_string().contains("another program has set it"),
        "{error}"
    );
    let value = fs::read_to_string(root.join(VALUES[0].0)).expect("a value");
    assert_eq!(value, "77");
    assert!(!folder.path().join("run/try.json").exists());
}

#[test]
fn a_trial_has_the_host_for_itself() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run");
    fs::create_dir(&path).expect("a folder");
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(&path, open).expect("a mode");
    let error = RunFolder::open(&path).expect_err("others may write");
    assert!(error.to_string().contains("others may write"), "{error}");
}
