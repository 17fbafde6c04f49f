//! The public interface as text: a line that changes or goes breaks somebody.
//!
//! `STEALTIME_BLESS=1 cargo test -p guest-clock interface::` writes it anew.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::fs;
use std::path::{Path, PathBuf};

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        match path.is_dir() {
            true => sources(&path, found),
            false => found.push(path),
        }
    }
}

/// A declaration up to its body, on one line; all of a list of names that are given on.
fn declaration(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        let line = line.trim();
        text.push_str(if text.is_empty() { "" } else { " " });
        text.push_str(line);
        if text.starts_with("pub use ") && !text.ends_with(';') {
            continue;
        }
        if line.ends_with(['{', ';', '}', ',']) && !text.ends_with("(,") {
            let open = text.matches('(').count() > text.matches(')').count();
            if !open {
                break;
            }
        }
    }
    text.trim_end_matches(['{', ';', ',']).trim_end().to_owned()
}

/// Public items, fields, variants and methods of public traits of one file, in its order.
fn interface(source: &str) -> Vec<String> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    // In the body of a public enumeration or trait everything is public.
    let mut all_public = false;
    for (at, line) in lines.iter().enumerate() {
        let item = line.trim_start();
        // Tests in the file are its end; a module of its own may be named anywhere.
        let mut below = lines[at + 1..].iter();
        let of = below.find(|line| !line.starts_with("#["));
        if line.starts_with("#[cfg(test)]") && of.is_some_and(|line| line.ends_with('{')) {
            break;
        }
        if *line == "}" {
            all_public = false;
        }
        let public = item.starts_with("pub ");
        let inside = all_public
            && line.starts_with("    ")
            && !line.starts_with("     ")
            && item.starts_with(|c: char| c.is_ascii_uppercase() || c == 'f');
        let implements = line.starts_with("impl") && line.contains(" for ");
        if public || inside || implements {
            let indent = if line.starts_with(' ') { "    " } else { "" };
            found.push(format!("{indent}{}", declaration(&lines[at..])));
        }
        all_public |= line.starts_with("pub enum ") || line.starts_with("pub trait ");
    }
    found
}

#[test]
fn the_public_interface_is_as_it_was() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    let mut text = String::new();
    for file in files {
        let items = interface(&fs::read_to_string(&file).unwrap());
        if items.is_empty() {
            continue;
        }
        let name = file.strip_prefix(root).unwrap().display().to_string();
        text.push_str(&format!("{name}\n  {}\n\n", items.join("\n  ")));
    }
    assert!(text.contains("pub fn restore<V: Vm, C: Vcpu>("), "{text}");
    let path = root.join("tests/data/interface.txt");
    if std::env::var_os("STEALTIME_BLESS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    for (now, before) in text.lines().zip(expected.lines()) {
        assert_eq!(now, before, "the public interface changed");
    }
    assert_eq!(text.lines().count(), expected.lines().count());
}
