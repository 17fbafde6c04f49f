//! What the project may depend on: licences, versions, sources and numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use stealtime_tidy::tree;

/// Licences that suit `Apache-2.0 OR MIT` users.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that may be there in two versions, and why.
const DUPLICATES: &[(&str, &str)] = &[
    (
        "bitflags",
        "vmm-sys-util, which kvm-ioctls needs, has not moved to version 2",
    ),
    (
        "getrandom",
        "ahash, which parquet needs, has not moved to what tempfile uses",
    ),
    (
        "syn",
        "zerocopy-derive, which ahash and half need under parquet, has not moved to version 3",
    ),
];

/// How many crates each of ours may bring along (normal dependencies, itself not counted).
const BUDGET: &[(&str, usize)] = &[
    ("stealtime-events", 0),
    ("stealtime-hypervisor", 0),
    ("stealtime", 186),
];

struct Graph {
    /// Package id to (name, version, licence expression, source).
    packages: BTreeMap<String, (String, String, String, Option<String>)>,
    /// Package id to the ids of its normal and build dependencies on this platform.
    edges: BTreeMap<String, Vec<String>>,
}

fn graph() -> Graph {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--filter-platform",
        ])
        .arg("x86_64-unknown-linux-gnu")
        .current_dir(tree::top())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let meta: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let packages = list(&meta["packages"]).into_iter().map(|p| {
        let source = p["source"].as_str().map(str::to_owned);
        (
            text(&p["id"]),
            (
                text(&p["name"]),
                text(&p["version"]),
                text(&p["license"]),
                source,
            ),
        )
    });
    let edges = list(&meta["resolve"]["nodes"]).into_iter().map(|node| {
        let deps = list(&node["deps"]);
        let used = deps
            .iter()
            .filter(|d| list(&d["dep_kinds"]).iter().any(|k| k["kind"] != "dev"));
        (text(&node["id"]), used.map(|d| text(&d["pkg"])).collect())
    });
    Graph {
        packages: packages.collect(),
        edges: edges.collect(),
    }
}

impl Graph {
    fn below(&self, id: &str) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let mut open = vec![id.to_owned()];
        while let Some(id) = open.pop() {
            for next in self.edges.get(&id).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    }

    fn shipped(&self) -> BTreeSet<String> {
        self.packages
            .iter()
            .filter(|(_, package)| package.3.is_none())
            .flat_map(|(id, _)| self.below(id))
            .collect()
    }
}

/// Whether an SPDX expression leaves a choice that is allowed. `AND` binds closer than `OR`.
fn licence_is_allowed(expression: &str) -> bool {
    let flat = expression.replace('/', " OR ").replace(['(', ')'], " ");
    // With brackets the two operators could mix either way: then every licence must be allowed.
    if expression.contains('(') && flat.contains(" AND ") {
        let parts = flat.replace(" OR ", " AND ");
        let (choices, rest): (Vec<_>, Vec<_>) = parts
            .split(" AND ")
            .map(str::trim)
            .partition(|l| ALLOWED.contains(l));
        return !choices.is_empty() && rest.is_empty();
    }
    flat.split(" OR ")
        .any(|all| all.split(" AND ").all(|one| ALLOWED.contains(&one.trim())))
}

#[test]
fn licences_are_allowed() {
    let graph = graph();
    let errors: Vec<String> = graph
        .packages
        .values()
        .filter(|(_, _, licence, _)| !licence_is_allowed(licence))
        .map(|(name, version, licence, _)| {
            format!("Cargo.lock:1: error: {name} {version}: licence {licence:?} is not allowed")
        })
        .collect();
    tree::report(&errors);
}

#[test]
fn no_crate_is_there_twice() {
    let graph = graph();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let shipped = graph.shipped();
    for (name, version, ..) in shipped.iter().filter_map(|id| graph.packages.get(id)) {
        versions.entry(name).or_default().insert(version);
    }
    let excused = |name: &str| DUPLICATES.iter().any(|row| row.0 == name);
    let mut errors: Vec<String> = versions
        .iter()
        .filter(|(name, set)| set.len() > 1 && !excused(name))
        .map(|(name, set)| format!("Cargo.lock:1: error: {name} is there as {set:?}"))
        .collect();
    for (name, _) in DUPLICATES {
        if versions.get(name).is_none_or(|set| set.len() < 2) {
            errors.push(format!(
                "dependencies.rs:1: error: {name} needs no excuse any more"
            ));
        }
    }
    tree::report(&errors);
}

#[test]
fn everything_comes_from_the_registry_or_from_here() {
    let errors: Vec<String> = graph()
        .packages
        .values()
        .filter_map(|(name, _, _, source)| Some((name, source.as_ref()?)))
        .filter(|(_, source)| !source.starts_with("registry+"))
        .map(|(name, source)| format!("Cargo.lock:1: error: {name} comes from {source}"))
        .collect();
    tree::report(&errors);
}

#[test]
fn dependencies_stay_within_their_budget() {
    let graph = graph();
    let mut errors = Vec::new();
    for (ours, budget) in BUDGET {
        let Some((id, _)) = graph
            .packages
            .iter()
            .find(|(_, p)| p.0 == *ours && p.3.is_none())
        else {
            errors.push(format!("dependencies.rs:1: error: no package {ours}"));
            continue;
        };
        let count = graph.below(id).len();
        if count > *budget {
            errors.push(format!(
                "Cargo.lock:1: error: {ours} brings {count}, at most {budget}"
            ));
        }
    }
    tree::report(&errors);
}

#[test]
fn licence_expressions_are_read_right() {
    assert!(licence_is_allowed("MIT OR Apache-2.0"));
    assert!(licence_is_allowed("MIT/Apache-2.0"));
    assert!(licence_is_allowed("GPL-3.0 OR MIT"));
    assert!(licence_is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(!licence_is_allowed("GPL-2.0-only"));
    assert!(!licence_is_allowed("MIT AND GPL-2.0-only"));
    assert!(!licence_is_allowed("(MIT OR GPL-2.0-only) AND GPL-3.0"));
    assert!(!licence_is_allowed(""));
}

/// What a registry shows of a crate, and what its users must get with it.
#[test]
fn published_crates_have_readme_licences_and_keywords() {
    let mut errors = Vec::new();
    let manifests = tree::text_files().filter(|file| {
        let member = file.path.starts_with("crates/") || file.path.starts_with("research/");
        member && file.path.ends_with("/Cargo.toml") && !file.text.contains("publish = false")
    });
    for manifest in manifests {
        let folder = tree::top().join(manifest.path.trim_end_matches("Cargo.toml"));
        for name in ["README.md", "LICENSE-APACHE", "LICENSE-MIT"] {
            if !folder.join(name).exists() {
                errors.push(manifest.error(1, format!("no {name} next to it")));
            }
        }
        for key in ["keywords = [", "categories = [", "description = "] {
            if !manifest.text.contains(key) {
                errors.push(manifest.error(1, format!("lacks `{key}`")));
            }
        }
    }
    tree::report(&errors);
}
