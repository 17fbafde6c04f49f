//! The public interface of a library, from its sources: what a release promises to those that link it.
//!
//! Each entry is a line. An entry that changes or goes breaks users, and one that comes does not. So what
//! breaks users by a further part is one line with all of its parts. That is an enumeration without
//! `#[non_exhaustive]`, a structure without private fields, and the required items of a trait.
//!
//! Types are compared as they are spelled. Items that a macro makes are its invocation, and an exported
//! macro has an entry for each row of its body. The listing
//! holds for all features and platforms; the `cfg` of an item is part of its line.

mod parse;
mod resolve;
mod spell;

use std::collections::BTreeSet;

use crate::tree::SourceFile;

/// A module of a crate.
#[derive(Default)]
struct Module {
    /// From the crate's root, which is empty.
    path: Vec<String>,
    parent: usize,
    items: Vec<Item>,
    uses: Vec<Use>,
    impls: Vec<Impl>,
}

/// What a module declares.
struct Item {
    name: String,
    is_public: bool,
    kind: Kind,
    /// Its entries.
    lines: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Module(usize),
    /// An invocation, which may make any item.
    Macro,
    Other,
}

/// One name of a `use`.
struct Use {
    is_public: bool,
    path: Vec<String>,
    /// `*` for all names.
    name: String,
}

/// An `impl` block.
struct Impl {
    of: Vec<String>,
    of_trait: Option<Vec<String>>,
    /// Its entries: itself where it is of a trait, and else its public items.
    lines: Vec<String>,
}

/// The modules of a crate. The first one is its root.
pub struct Interface {
    modules: Vec<Module>,
    macros: Vec<String>,
}

impl Interface {
    /// Reads the crate in a folder, which ends with `/`, among the files of the tree. Without a library
    /// nothing is public.
    pub fn of(folder: &str, files: &[SourceFile]) -> Self {
        let mut parser = parse::Parser::new(files);
        parser.file(&format!("{folder}src/lib.rs"), Module::default());
        let (modules, macros) = parser.finish();
        Self { modules, macros }
    }

    /// All entries, sorted, each with the path of its module.
    pub fn lines(&self) -> BTreeSet<String> {
        let public = resolve::Public::of(&self.modules);
        let mut lines: BTreeSet<String> = self.macros.iter().cloned().collect();
        for (path, line) in public.entries() {
            let path = if path.is_empty() { "crate" } else { path };
            lines.insert(format!("{path}: {line}"));
        }
        lines
    }
}

/// Features of a manifest: one that goes breaks users.
pub fn features(manifest: &str) -> impl Iterator<Item = String> {
    let below = manifest.split("\n[features]\n").nth(1).unwrap_or_default();
    let keys = below.lines().take_while(|line| !line.starts_with('['));
    let keys = keys.filter_map(|line| line.split_once(" = "));
    keys.filter(|(key, _)| !key.starts_with(['#', ' ']))
        .map(|(key, _)| format!("feature {key}"))
}

/// Whether a version of a library may break users of an earlier one: another major version, or another minor
/// one before 1.0.
pub fn may_break(earlier: &str, version: &str) -> bool {
    let parts = |version: &str| -> Vec<u64> {
        version
            .split('.')
            .map_while(|part| part.parse().ok())
            .collect()
    };
    let (earlier, version) = (parts(earlier), parts(version));
    let fixed = if version.first() == Some(&0) { 2 } else { 1 };
    earlier.iter().take(fixed).ne(version.iter().take(fixed))
}
