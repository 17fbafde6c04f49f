//! `stealtime sched`: what it says of a host's schedulers, and where its program is looked for.

use std::fs;
use std::path::Path;

use crate::common;

/// A host with these files in `/sys/kernel/sched_ext`.
fn status_of(files: &[(&str, &str)]) -> (Option<i32>, String, String) {
    status_with(files, &[])
}

fn status_with(files: &[(&str, &str)], options: &[&str]) -> (Option<i32>, String, String) {
    let root = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = root.path().join("sys/kernel/sched_ext").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(path, text).expect("written");
    }
    let root = root.path().to_string_lossy();
    let arguments = [&["sched", "status", "--root", &root], options].concat();
    common::run(&mut common::stealtime(&arguments))
}

#[test]
fn status_names_the_loaded_scheduler() {
    let (status, out, _) = status_of(&[("state", "disabled\n"), ("enable_seq", "3\n")]);
    assert_eq!(status, Some(0));
    assert!(out.starts_with("no sched_ext scheduler is loaded"), "{out}");
    assert!(out.contains("since the start of the kernel: 3"), "{out}");
    let files = [
        ("state", "enabled\n"),
        ("root/ops", "stealtime\n"),
        ("switch_all", "0\n"),
    ];
    let (_, out, _) = status_of(&files);
    assert!(out.starts_with("stealtime is loaded (enabled)"), "{out}");
    assert!(out.contains("policy SCHED_EXT only"), "{out}");
}

#[test]
fn status_as_json_has_all_keys() {
    let files = [
        ("state", "enabled\n"),
        ("root/ops", "stealtime\n"),
        ("switch_all", "1\n"),
        ("enable_seq", "3\n"),
    ];
    let (status, out, _) = status_with(&files, &["--format", "json"]);
    assert_eq!(status, Some(0));
    let expected = serde_json::json!({
        "state": "enabled", "scheduler": "stealtime", "all_tasks": true, "loads": 3,
    });
    let printed: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(printed, expected);
    let (_, out, _) = status_with(&[("state", "disabled\n")], &["--json"]);
    let expected = serde_json::json!({
        "state": "disabled", "scheduler": null, "all_tasks": null, "loads": null,
    });
    let printed: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(printed, expected);
}

#[test]
fn a_kernel_without_sched_ext_is_said_to_be_one() {
    let (status, _, error) = status_of(&[]);
    assert_eq!(status, Some(2));
    assert!(
        error.contains("this kernel has no sched_ext: use Linux 6.12"),
        "{error}"
    );
}

#[test]
fn the_program_is_named_where_it_is_missing() {
    let mut command = common::stealtime(&["sched", "load", "--for", "5"]);
    let (status, _, error) =
        common::run(command.env("PATH", "/nowhere").env_remove("SCX_STEALTIME"));
    assert_eq!(status, Some(2));
    assert!(
        error.contains("neither next to this command nor in PATH"),
        "{error}"
    );
}

/// Options go to the program as they are, and its exit status comes back.
#[test]
fn options_are_the_program_s_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    write_script(&program, "#!/bin/sh\necho \"$@\"\nexit 3\n");
    let mut command = common::stealtime(&["sched", "load", "--canary", "VM=web", "--help"]);
    let (status, out, _) = common::run(command.env("SCX_STEALTIME", &program));
    assert_eq!(
        (status, out.as_str()),
        (Some(3), "--canary VM=web --help\n")
    );
}

fn write_script(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
}
