//! The interfaces of the published crates: what breaks a user needs another version.
//!
//! `STEALTIME_BLESS=1 cargo test -p stealtime-tidy --test interface` lists the interfaces of this version.
//! Once it is published it refuses to drop an entry. `STEALTIME_BLESS=reworded` does not: it is for entries
//! that only spell a type otherwise.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use stealtime_tidy::interface::{Interface, features, may_break};
use stealtime_tidy::tree::{self, SourceFile, report};

/// A published crate: its name, its folder, and its entries.
struct Library {
    name: String,
    version: String,
    entries: BTreeSet<String>,
}

/// The value of a key of a manifest.
fn value<'t>(manifest: &'t str, key: &str) -> Option<&'t str> {
    let mut lines = manifest.lines();
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
    value.split('"').next()
}

fn libraries(files: &[SourceFile]) -> Vec<Library> {
    let workspace = files.iter().find(|file| file.path == "Cargo.toml");
    let version = workspace.and_then(|file| value(&file.text, "version"));
    let version = version.expect("the workspace has a version");
    let published = files.iter().filter_map(|file| {
        let folder = file.path.strip_suffix("Cargo.toml")?;
        let is_member = ["crates/", "research/"]
            .iter()
            .any(|top| folder.starts_with(top));
        let lib = format!("{folder}src/lib.rs");
        let is_library = files.iter().any(|file| file.path == lib);
        if !is_member || !is_library || file.text.contains("publish = false") {
            return None;
        }
        let mut entries = Interface::of(folder, files).lines();
        entries.extend(features(&file.text));
        Some(Library {
            name: value(&file.text, "name")?.to_owned(),
            version: version.to_owned(),
            entries,
        })
    });
    published.collect()
}

/// The file that lists an interface. Its first line is the version.
fn listing(name: &str) -> PathBuf {
    tree::top().join(format!("crates/tidy/tests/data/interface/{name}.txt"))
}

/// Whether a version has its tag. Where Git is missing it has none.
fn is_published(version: &str) -> bool {
    let tag = format!("refs/tags/v{version}");
    let found = Command::new("git")
        .args(["rev-parse", "--quiet", "--verify", &tag])
        .current_dir(tree::top())
        .output();
    found.is_ok_and(|output| output.status.success())
}

/// The entries that a version must keep and does not have.
fn broken<'l>(listed: &'l str, library: &Library) -> Vec<&'l str> {
    let mut lines = listed.lines();
    let version = lines.next().unwrap_or_default();
    if may_break(version, &library.version) {
        return Vec::new();
    }
    lines
        .filter(|line| !library.entries.contains(*line))
        .collect()
}

#[test]
fn no_version_breaks_users_of_its_interface() {
    let is_read =
        |file: &SourceFile| file.path.ends_with(".rs") || file.path.ends_with("Cargo.toml");
    let files: Vec<SourceFile> = tree::text_files().filter(is_read).collect();
    let bless = std::env::var("STEALTIME_BLESS").unwrap_or_default();
    let libraries = libraries(&files);
    assert!(libraries.len() >= 20, "{} libraries", libraries.len());
    let mut errors = Vec::new();
    for library in &libraries {
        let path = listing(&library.name);
        let listed = fs::read_to_string(&path).unwrap_or_default();
        let gone = broken(&listed, library);
        let is_kept = gone.is_empty() || bless == "reworded" || !is_published(&library.version);
        if !bless.is_empty() && is_kept {
            let entries: String = library
                .entries
                .iter()
                .map(|entry| format!("{entry}\n"))
                .collect();
            let text = format!("{}\n{entries}", library.version);
            fs::write(&path, text).expect("the listing can be written");
            continue;
        }
        if listed.is_empty() {
            errors.push(format!(
                "{}:1: error: no such file: STEALTIME_BLESS=1 writes it",
                path.display()
            ));
        }
        errors.extend(gone.iter().map(|entry| {
            format!(
                "{} {}: error: users lose `{entry}`: raise the version, or before its publication \
                 STEALTIME_BLESS=1 cargo test -p stealtime-tidy --test interface",
                library.name, library.version
            )
        }));
    }
    report(&errors);
}

/// What users of a library lose between two versions of its source.
fn lost(before: &str, after: &str) -> Vec<String> {
    let lines = |text: &str| {
        let file = |path: &str, text: &str| SourceFile {
            path: format!("crates/some/src/{path}"),
            text: text.to_owned(),
        };
        let files = [file("lib.rs", LIB), file("inner.rs", text)];
        Interface::of("crates/some/", &files).lines()
    };
    lines(before).difference(&lines(after)).cloned().collect()
}

const LIB: &str = "mod inner; pub mod open { pub use crate::inner::Open; } pub use inner::{Point, Shape, Area, scale};";

const INNER: &str = "
    #[derive(Clone, Copy)] pub struct Point { pub x: u32, pub y: u32 }
    impl Point { pub const fn length(&self) -> u32 { 1 } fn hidden(&self) {} }
    impl fmt::Display for Point { fn fmt(&self) {} }
    #[non_exhaustive] pub enum Open { First, Second(u8) }
    pub enum Shape { Round { radius: u32 }, Flat }
    pub trait Area { fn area(&self) -> u64; fn half(&self) -> u64 { self.area() / 2 } }
    pub fn scale<T: Into<u64>>(point: &Point, by: T) -> Result<Point, std::fmt::Error> { todo!() }
    pub struct Private { pub field: u8 }
";

#[test]
fn what_breaks_users_is_lost() {
    for (text, instead, entry) in [
        (
            "pub const fn length",
            "pub(crate) const fn length",
            "crate: impl Point { const fn length(&self) -> u32 }",
        ),
        (
            "pub y: u32",
            "pub y: u64",
            "crate: struct Point { x: u32, y: u32 }",
        ),
        (
            "pub y: u32",
            "pub y: u32, pub z: u32",
            "crate: struct Point { x: u32, y: u32 }",
        ),
        ("Clone, Copy", "Clone", "crate: impl Copy for Point"),
        (
            "fmt::Display for",
            "fmt::Debug for",
            "crate: impl fmt::Display for Point",
        ),
        ("Second(u8)", "Second(u16)", "open: Open::Second(u8)"),
        (
            "Flat",
            "Flat, Sharp",
            "crate: enum Shape { Round { radius: u32 }, Flat }",
        ),
        (
            "{ fn area",
            "{ fn sides(&self) -> u8; fn area",
            "crate: trait Area { fn area(&self) -> u64 }",
        ),
        (
            "fn half",
            "fn third",
            "crate: trait Area { fn half(&self) -> u64; .. }",
        ),
        (
            "by: T",
            "by: Option<T>",
            "crate: fn scale<T: Into<u64>>(&Point, T) -> Result<Point, std::fmt::Error>",
        ),
    ] {
        assert!(INNER.contains(text), "{text}");
        assert_eq!(
            lost(INNER, &INNER.replacen(text, instead, 1)),
            [entry],
            "{instead}"
        );
    }
}

#[test]
fn what_users_do_not_name_is_free() {
    for (text, instead) in [
        ("fn hidden", "pub fn shown"),
        ("field: u8", "field: u16"),
        ("Second(u8)", "Second(u8), Third"),
        ("{ fn area", "{ fn double(&self) -> u64 { 2 } fn area"),
        (
            "point: &Point, by: T",
            "\n        other: &Point,\n        times: T,\n    ",
        ),
        ("self.area() / 2", "0"),
    ] {
        assert!(INNER.contains(text), "{text}");
        assert_eq!(
            lost(INNER, &INNER.replacen(text, instead, 1)),
            [""; 0],
            "{instead}"
        );
    }
}

#[test]
fn a_higher_version_may_drop_entries() {
    let library = Library {
        name: "some".to_owned(),
        version: "0.2.1".to_owned(),
        entries: BTreeSet::from(["crate: fn kept()".to_owned()]),
    };
    let entries = "crate: fn gone()\ncrate: fn kept()\n";
    assert_eq!(broken(&format!("0.1.7\n{entries}"), &library), [""; 0]);
    assert_eq!(
        broken(&format!("0.2.0\n{entries}"), &library),
        ["crate: fn gone()"]
    );
    for (earlier, version, breaks) in [
        ("1.2.3", "1.3.0", false),
        ("1.2.3", "2.0.0", true),
        ("0.9.0", "1.0.0", true),
    ] {
        assert_eq!(may_break(earlier, version), breaks, "{earlier} {version}");
    }
}
