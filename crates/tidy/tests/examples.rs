//! Public modules of the published crates: each is in an example that is compiled.

use std::collections::BTreeMap;

use stealtime_tidy::tree::{self, SourceFile, report};

/// Crates that programs outside link: an example for each module at any depth. The others' are for each
/// module below the root.
const LIBRARIES: [&str; 4] = [
    "crates/events/",
    "crates/hypervisor/",
    "crates/trace/",
    "crates/guest-clock/",
];
/// Folders of published crates, without `crates/tidy`.
const PUBLISHED: [&str; 2] = ["crates/", "research/published/"];

/// The code of doc examples in a text, by the mark of its comments; without one, of a page.
fn examples(text: &str, marks: &[&str]) -> String {
    let (mut code, mut kept) = (String::new(), None);
    for line in text.lines() {
        let comment = marks
            .iter()
            .find_map(|mark| line.trim_start().strip_prefix(mark));
        let Some(line) = comment.or_else(|| marks.is_empty().then_some(line)) else {
            kept = None;
            continue;
        };
        match (line.trim_start().strip_prefix("```"), kept) {
            (Some(info), None) => kept = Some(["", "no_run", "rust"].contains(&info.trim())),
            (Some(_), Some(_)) => kept = None,
            (None, Some(true)) => {
                code.push_str(line);
                code.push('\n');
            }
            (None, _) => {}
        }
    }
    code
}

/// Comments that are documentation.
const DOCS: [&str; 2] = ["//!", "///"];

/// A public module: its name, where it is declared, and the path of its file without `.rs`.
struct Module {
    name: String,
    file: String,
    line: usize,
    /// `None`: it is in the file that declares it.
    stem: Option<String>,
}

impl Module {
    /// The modules that a file declares.
    fn of(file: &SourceFile) -> Vec<Self> {
        let folder = file
            .path
            .strip_suffix("mod.rs")
            .or_else(|| file.path.strip_suffix("lib.rs"));
        let folder = folder.map_or_else(
            || format!("{}/", file.path.trim_end_matches(".rs")),
            str::to_owned,
        );
        let declared = file.numbered().filter_map(|(line, text)| {
            let declaration = text.strip_prefix("pub mod ")?;
            let name = declaration.split([';', ' ']).next()?;
            Some(Self {
                name: name.to_owned(),
                file: file.path.clone(),
                line,
                stem: declaration
                    .ends_with(';')
                    .then(|| format!("{folder}{name}")),
            })
        });
        declared.collect()
    }

    /// Whether a file is the module's, or of one below it.
    fn has(&self, path: &str) -> bool {
        self.stem.as_ref().is_some_and(|stem| {
            let rest = path.strip_prefix(stem.as_str());
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    }

    /// Whether code names it, as a path does.
    fn is_named_in(&self, code: &str) -> bool {
        code.match_indices(&self.name).any(|(start, name)| {
            let (before, after) = (&code[..start], &code[start + name.len()..]);
            ["::", "{", ", ", "    "]
                .iter()
                .any(|mark| before.ends_with(mark))
                && ["::", ",", "}", ";"]
                    .iter()
                    .any(|mark| after.starts_with(mark))
        })
    }
}

/// The modules of a crate that need an example.
fn modules(sources: &[&SourceFile], root: &str) -> Vec<Module> {
    let is_library = LIBRARIES.contains(&root);
    let lib = format!("{root}src/lib.rs");
    let mut found = Vec::new();
    let mut next: Vec<String> = vec![lib];
    while let Some(path) = next.pop() {
        let declared = sources.iter().filter(|file| file.path == path);
        for module in declared.flat_map(|file| Module::of(file)) {
            if let (true, Some(stem)) = (is_library, &module.stem) {
                next.push(format!("{stem}.rs"));
                next.push(format!("{stem}/mod.rs"));
            }
            found.push(module);
        }
    }
    found
}

#[test]
fn each_public_module_is_in_an_example() {
    let files: Vec<SourceFile> = tree::text_files().collect();
    let mut crates: BTreeMap<&str, Vec<&SourceFile>> = BTreeMap::new();
    for file in &files {
        let root = file.path.split_inclusive("/src/").next();
        if let Some(root) = root.and_then(|root| root.strip_suffix("src/")) {
            let is_published = PUBLISHED.iter().any(|folder| root.starts_with(folder));
            if is_published && root != "crates/tidy/" {
                crates.entry(root).or_default().push(file);
            }
        }
    }
    let mut errors = Vec::new();
    let mut modules_seen = 0;
    for (root, sources) in &crates {
        let mut code: String = sources
            .iter()
            .map(|file| examples(&file.text, &DOCS))
            .collect();
        for file in &files {
            if file.path == format!("{root}README.md") {
                code += &examples(&file.text, &[]);
            } else if file.path.starts_with(&format!("{root}examples/")) {
                code += &file.text;
            }
        }
        for module in modules(sources, root) {
            modules_seen += 1;
            let mut own = sources.iter().filter(|file| module.has(&file.path));
            let has_example = own.any(|file| !examples(&file.text, &DOCS).is_empty());
            if !has_example && !module.is_named_in(&code) {
                errors.push(format!(
                    "{}:{}: error: no example of the module {}: add one to its docs, or to an example",
                    module.file, module.line, module.name
                ));
            }
        }
    }
    assert!(modules_seen > 90, "{modules_seen} modules");
    report(&errors);
}
