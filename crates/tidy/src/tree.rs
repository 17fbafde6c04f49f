//! The files of a tree.

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
    pub fn error(&self, line: usize, message: String) -> String {
        format!("{}:{line}: error: {message}", self.path)
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
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
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
    text_files_of(&top())
}

/// The text files of any tree. Folders and files that cannot be read are left out.
pub fn text_files_of(top: &Path) -> impl Iterator<Item = SourceFile> + use<> {
    let mut paths = Vec::new();
    let top = top.to_owned();
    walk(&top, &mut paths);
    paths.sort();
    paths.into_iter().filter_map(move |path| {
        let text = String::from_utf8(fs::read(&path).ok()?).ok()?;
        let path = path
            .strip_prefix(&top)
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

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
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

/// The folder of the crate that a source belongs to.
pub fn crate_of(path: &str) -> &str {
    path.split("/src/").next().unwrap_or_default()
}

/// Folders that hold tests, benchmarks, examples and fuzz targets, here and in other projects.
const TEST_FOLDERS: &str = "tests test benches bench examples example fuzz target .git node_modules \
    vendor testdata test-data corpus test_utils test-utils test-programs phd-tests openssl-tests \
    rustls-test";

/// Whether a file is a test, a benchmark, an example or a fuzz target.
pub fn is_test(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let name = parts.next().unwrap_or_default();
    let Some(stem) = name.strip_suffix(".rs") else {
        return parts.any(is_test_folder);
    };
    let begins = ["test_", "bench"]
        .iter()
        .any(|begin| stem.starts_with(begin));
    let ends = ["_test", "_tests"].iter().any(|end| stem.ends_with(end));
    begins || ends || ["test", "tests", "testing"].contains(&stem) || parts.any(is_test_folder)
}

fn is_test_folder(folder: &str) -> bool {
    TEST_FOLDERS.split_whitespace().any(|f| f == folder)
}

/// Fails with every finding, one a line.
///
/// # Panics
///
/// Where there is a finding.
pub fn report(errors: &[String]) {
    assert!(
        errors.is_empty(),
        "{} findings\n{}",
        errors.len(),
        errors.join("\n")
    );
}
