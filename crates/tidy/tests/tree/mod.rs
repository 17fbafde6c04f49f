//! The files of the project's tree.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs;
use std::path::{Path, PathBuf};

/// A text file of the tree.
pub struct SourceFile {
    /// Path from the tree's top, with `/`.
    pub path: String,
    /// All of it.
    pub text: String,
}

impl SourceFile {
    /// A finding in the form that editors jump to.
    pub fn error(&self, line: usize, what: String) -> String {
        format!("{}:{line}: error: {what}", self.path)
    }

    /// Lines with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .split_inclusive('\n')
            .enumerate()
            .map(|(n, l)| (n + 1, l.trim_end_matches('\n')))
    }

    /// Lines of code with their numbers: no comments, and nothing after the tests' beginning.
    pub fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.numbered()
            .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

/// The tree's top folder.
pub fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Paths of all files below a folder of the tree, with `/`.
pub fn paths_below(folder: &str) -> Vec<String> {
    let mut folders = vec![top().join(folder)];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a readable tree") {
            let path = entry.expect("a readable tree").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    found.sort();
    found
}

/// Every Rust file.
pub fn rust_files() -> impl Iterator<Item = SourceFile> {
    text_files().filter(|file| file.path.ends_with(".rs"))
}

/// Every text file that the project writes itself: no recordings, no lock files.
pub fn text_files() -> impl Iterator<Item = SourceFile> {
    let mut paths = Vec::new();
    walk(&top(), &mut paths);
    paths.sort();
    paths.into_iter().filter_map(|path| {
        let text = String::from_utf8(fs::read(&path).ok()?).ok()?;
        let path = path
            .strip_prefix(top())
            .ok()?
            .to_string_lossy()
            .replace('\\', "/");
        Some(SourceFile { path, text })
    })
}

/// What is not the project's own text.
const OTHERS: [&str; 7] = [
    "target",
    ".git",
    "data",
    "corpus",
    "artifacts",
    "snapshots",
    "node_modules",
];

fn walk(dir: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a readable tree") {
        let path = entry.expect("a readable tree").path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        // In a second working tree .git is a file, with a path of this machine.
        if OTHERS.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            walk(&path, paths);
        } else {
            let ours = ["rs", "md", "toml", "sh", "py", "yml", "txt", ""];
            let extension = path
                .extension()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if ours.contains(&extension.as_str()) && !name.starts_with("LICENSE") {
                paths.push(path);
            }
        }
    }
}

/// Fails with every finding, one a line.
pub fn report(errors: &[String]) {
    assert!(
        errors.is_empty(),
        "{} findings\n{}",
        errors.len(),
        errors.join("\n")
    );
}
