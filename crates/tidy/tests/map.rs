//! The table of crates in ARCHITECTURE.md, against the manifests, and the paths that the page names.

use std::collections::BTreeSet;

use stealtime_tidy::tree::{self, SourceFile, report};

const MAP: &str = "ARCHITECTURE.md";

/// A row of the table of crates.
struct Crate {
    line: usize,
    name: String,
    folder: String,
    uses: String,
}

fn map() -> SourceFile {
    let map = tree::text_files().find(|file| file.path == MAP);
    map.expect("ARCHITECTURE.md")
}

/// The rows that begin with a link to a folder.
fn crates(map: &SourceFile) -> Vec<Crate> {
    let rows = map.numbered().filter_map(|(line, text)| {
        let (name, rest) = text.strip_prefix("| [`")?.split_once("`](")?;
        let (folder, rest) = rest.split_once(')')?;
        let uses = rest.trim_end_matches([' ', '|']).rsplit('|').next()?;
        Some(Crate {
            line,
            name: name.to_owned(),
            folder: folder.to_owned(),
            uses: uses.trim().to_owned(),
        })
    });
    rows.collect()
}

/// The crates of the tree that a manifest's `[dependencies]` name, without the prefix of packages.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut section = "";
    let mut names = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let normal = section.ends_with("dependencies]") && !section.contains("dev-");
        let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
        if normal && line.contains("workspace") && !line.starts_with('[') {
            let own = name.strip_prefix("stealtime-");
            let own = own.or_else(|| ["guest-clock", "stealtime"].contains(&name).then_some(name));
            names.extend(own.map(str::to_owned));
        }
    }
    names
}

/// The text between pairs of backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn crates_use_those_above_them_as_the_map_says() {
    let map = map();
    let mut errors = Vec::new();
    let mut above = BTreeSet::new();
    for row in crates(&map) {
        let manifest = tree::top().join(&row.folder).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap_or_default();
        let used = dependencies(&manifest);
        let mut listed: BTreeSet<String> = code(&row.uses).map(str::to_owned).collect();
        if row.uses.starts_with("all but ") {
            listed = above.difference(&listed).cloned().collect();
        }
        if used != listed {
            errors.push(map.error(row.line, format!("{} uses {used:?}", row.name)));
        }
        for below in used.difference(&above) {
            errors.push(map.error(row.line, format!("{below} is not above {}", row.name)));
        }
        above.insert(row.name);
    }
    report(&errors);
}

#[test]
fn every_crate_is_on_the_map() {
    let map = map();
    let folders: BTreeSet<String> = crates(&map).into_iter().map(|row| row.folder).collect();
    let manifests = tree::text_files().filter_map(|file| {
        let folder = file.path.strip_suffix("/Cargo.toml")?;
        let ours = folder.starts_with("crates/") || folder.starts_with("research/");
        ours.then(|| folder.to_owned())
    });
    let missing = manifests.filter(|folder| !folders.contains(folder));
    let errors: Vec<String> = missing
        .map(|f| map.error(1, format!("lacks {f}")))
        .collect();
    report(&errors);
}

#[test]
fn paths_on_the_map_are_there() {
    let map = map();
    let mut errors = Vec::new();
    for (line, text) in map.numbered() {
        for path in code(text) {
            let path = path.trim_end_matches('/');
            let top = path.split('/').next().unwrap_or_default();
            let names_path = ["crates", "research", "scripts", "fuzz"].contains(&top);
            if names_path && path != "crates/NAME" && !tree::top().join(path).exists() {
                errors.push(map.error(line, format!("{path}: no such file")));
            }
        }
    }
    report(&errors);
}

#[test]
fn manifests_are_read() {
    let manifest = "[dependencies]\nstealtime-events.workspace = true\nserde.workspace = true\n\
                    stealtime-track = { workspace = true }\n[dev-dependencies]\n\
                    stealtime-lab.workspace = true\n";
    let names: Vec<String> = dependencies(manifest).into_iter().collect();
    assert_eq!(names, ["events", "track"]);
}
