//! `stealtime snapshot`: what it prints, and its files.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common;

fn snapshot(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let arguments = [&["snapshot"], arguments].concat();
    common::run(common::stealtime(&arguments).current_dir(folder))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn tables_of_hosts() {
    let folder = folder();
    for name in ["libvirt", "plain"] {
        let tree = common::host_tree(folder.path(), name);
        let (status, out, error) = snapshot(folder.path(), &["--root", &tree]);
        assert_eq!((status, error.as_str()), (Some(0), ""), "{name}");
        assert!(out.chars().all(|c| c == '\n' || !c.is_control()), "{out:?}");
        let widest = out.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|width| width <= 100), "{out}");
        insta::assert_snapshot!(format!("snapshot_{name}"), out);
    }
}

#[test]
fn a_file_is_the_snapshot_again() {
    let folder = folder();
    let tree = common::host_tree(folder.path(), "libvirt");
    let (status, out, error) = snapshot(folder.path(), &["--root", &tree, "-o", "host.json"]);
    assert_eq!((status, out.as_str(), error.as_str()), (Some(0), "", ""));
    let (_, table, _) = snapshot(folder.path(), &["--root", &tree]);
    let (status, again, _) = snapshot(folder.path(), &["host.json"]);
    assert_eq!((status, again), (Some(0), table));
    let (_, json, _) = snapshot(folder.path(), &["host.json", "--json"]);
    assert_eq!(
        json,
        fs::read_to_string(folder.path().join("host.json")).expect("a file")
    );
    let value: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value["vms"][1]["name"], "db-1");
}

#[test]
fn copies_are_read_as_the_host() {
    let folder = folder();
    let tree = common::host_tree(folder.path(), "kubernetes");
    let (status, out, _) = snapshot(folder.path(), &["--root", &tree, "--copy", "copy.tree"]);
    assert_eq!((status, out.as_str()), (Some(0), ""));
    let (_, first, _) = snapshot(folder.path(), &["--root", &tree, "--json"]);
    let (_, second, _) = snapshot(folder.path(), &["--root", "copy.tree", "--json"]);
    assert_eq!(second, first);
}

#[test]
fn this_host_is_shown() {
    let folder = folder();
    let (status, out, error) = snapshot(folder.path(), &[]);
    assert_eq!((status, error.as_str()), (Some(0), ""));
    assert!(
        out.starts_with("Host ") && out.contains("\n  kernel      Linux "),
        "{out}"
    );
}

#[test]
fn other_files_are_refused() {
    let folder = folder();
    fs::write(folder.path().join("other.json"), "{\"version\": 77}").expect("a file");
    for (arguments, message) in [
        (&["missing.json"][..], "missing.json: No such file"),
        (&["other.json"], "version 77"),
        (&["--root", "other.json"], "no recorded tree"),
        (&["--root", "missing"], "missing: No such file"),
        (&["-o", "."], "directory"),
        (&["--copy", "-"], "--copy"),
    ] {
        let (status, out, error) = snapshot(folder.path(), arguments);
        assert_eq!(
            (status, out.as_str()),
            (Some(2), ""),
            "{arguments:?}: {error}"
        );
        assert!(error.contains(message), "{arguments:?}: {error}");
    }
}
