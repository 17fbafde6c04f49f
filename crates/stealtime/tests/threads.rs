//! Commands where no second thread can be had, as in a container at its limit of pids.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common;
use crate::simulate::SMALL;

/// The option is of bash, then of dash.
const LIMITED: &str =
    "{ ulimit -u 1 || ulimit -p 1; } 2>/dev/null || exit 99; exec ./stealtime \"$@\"";

/// A folder with the command, which other users may read.
fn folder() -> tempfile::TempDir {
    // TMPDIR may be root's alone; the command runs as another user.
    let folder = tempfile::tempdir_in("/tmp").or_else(|_| tempfile::tempdir());
    let folder = folder.expect("a folder");
    let program = folder.path().join("stealtime");
    fs::copy(env!("CARGO_BIN_EXE_stealtime"), &program).expect("a copy");
    for path in [folder.path(), program.as_path()] {
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(path, all).expect("its mode");
    }
    folder
}

/// Standard output of the command in this folder with one thread; `None` where that cannot be arranged.
fn alone(folder: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("sh");
    command
        .args(["-c", LIMITED, "sh"])
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null());
    // Root has no limit of threads.
    let own = fs::metadata("/proc/self").expect("/proc");
    if own.uid() == 0 {
        command.uid(65534).gid(65534);
    }
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            println!("skipped: another user may not run what lies in {folder:?}");
            return None;
        }
        output => output.expect("sh"),
    };
    if output.status.code() == Some(99) {
        println!("skipped: this shell sets no limit of threads");
        return None;
    }
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    Some(String::from_utf8(output.stdout).expect("UTF-8"))
}

/// The same with as many threads as it likes.
fn together(folder: &Path, arguments: &[&str]) -> String {
    let (status, out, error) = common::run(common::stealtime(arguments).current_dir(folder));
    assert_eq!(status, Some(0), "{arguments:?}: {error}");
    out
}

fn without_times(out: &str) -> Vec<&str> {
    let line = |line| str::split(line, "\"seconds\"").next();
    out.lines().filter_map(line).collect()
}

/// Each panicked there, as the threads of its work were assumed to start.
#[test]
fn the_first_thread_does_the_work_of_those_that_cannot_start() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("small.toml"), SMALL).expect("a file");
    common::host_tree(path, "libvirt");
    for arguments in [
        ["simulate", "small.toml", "--jobs", "4", "--json"].as_slice(),
        &["snapshot", "--root", "libvirt.tree"],
        &["check", "ipi-tracking", "--format", "json"],
    ] {
        let Some(out) = alone(path, arguments) else {
            return;
        };
        let others = together(path, arguments);
        assert_eq!(without_times(&out), without_times(&others), "{arguments:?}");
    }
}
