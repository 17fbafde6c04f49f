//! Promises of `docs/mechanisms.md` and `docs/described.md`: their tests, scenarios, protocols, code
//! and counts exist.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::LazyLock;

use stealtime_tidy::tree::{self, SourceFile, report};
use stealtime_verify::{PROTOCOLS, cases};

/// The page with what each mechanism must do.
const PAGE: &str = "docs/mechanisms.md";
/// The page with the behaviours that the documents describe.
const DESCRIBED: &str = "docs/described.md";
/// Headings of the tables with one row for each behaviour begin with this.
const DOCUMENT: &str = "## What the documents describe: ";
const COLUMNS: [&str; 6] = ["behaviour", "code", "scenario", "checker", "test", "state"];
/// States, and whether a reason follows.
const STATES: [&str; 3] = ["full", "in part", "different on purpose"];

/// A row of a table, with what stands above it.
struct Row {
    line: usize,
    section: String,
    columns: Vec<String>,
    cells: Vec<String>,
}

/// All rows of all tables of a page.
fn rows(page: &SourceFile) -> Vec<Row> {
    let (mut rows, mut section, mut columns) = (Vec::new(), String::new(), Vec::new());
    for (line, text) in page.numbered() {
        if text.starts_with('#') {
            text.clone_into(&mut section);
        }
        let Some(inner) = text.strip_prefix("| ").and_then(|t| t.strip_suffix('|')) else {
            if !text.starts_with('|') {
                columns = Vec::new();
            }
            continue;
        };
        let cells: Vec<String> = inner.split('|').map(|c| c.trim().to_owned()).collect();
        if columns.is_empty() {
            columns = cells;
            continue;
        }
        rows.push(Row {
            line,
            section: section.clone(),
            columns: columns.clone(),
            cells,
        });
    }
    rows
}

impl Row {
    fn cell(&self, column: &str) -> &str {
        let at = self.columns.iter().position(|c| c == column);
        at.and_then(|at| self.cells.get(at)).map_or("", |c| c)
    }

    fn document(&self) -> Option<&str> {
        self.section.strip_prefix(DOCUMENT)
    }
}

/// What stands in backticks.
fn code(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// What the names in the tables may be.
struct Known {
    tests: Vec<String>,
    families: Vec<String>,
    /// Paths of the sources.
    paths: Vec<String>,
    /// Their identifiers and other words.
    words: HashSet<String>,
    /// Their text.
    texts: String,
    /// The reference of the knobs.
    knobs: String,
}

static KNOWN: LazyLock<Known> = LazyLock::new(Known::read);

impl Known {
    fn read() -> Self {
        let files: Vec<SourceFile> = tree::rust_files().collect();
        let families = tree::paths_below("crates/hypervisor/tests/data/golden");
        let stem = |p: String| Some(p.rsplit('/').next()?.split('.').next()?.to_owned());
        let own = |file: &&SourceFile| !file.path.starts_with("crates/tidy/");
        let sources: Vec<&SourceFile> = files.iter().filter(own).collect();
        let knobs = tree::text_files().find(|file| file.path == "docs/knobs.md");
        let knobs = knobs.expect("the reference of the knobs").text;
        Self {
            tests: files.iter().flat_map(|file| tests(&file.text)).collect(),
            families: families.into_iter().filter_map(stem).collect(),
            paths: sources.iter().map(|file| file.path.clone()).collect(),
            words: sources.iter().flat_map(|file| words(&file.text)).collect(),
            texts: sources.iter().map(|file| file.text.as_str()).collect(),
            knobs,
        }
    }

    /// What is wrong with a name in a column of tests: a test, the beginning of a numbered one, a
    /// golden family, a file, or an experiment of `stealtime reproduce`.
    fn test(&self, name: &str) -> Result<(), String> {
        let numbered = name.ends_with(|c: char| c.is_ascii_digit());
        let begins = |test: &&String| numbered && test.starts_with(&format!("{name}_"));
        let known = self.tests.iter().any(|test| test == name)
            || self.tests.iter().any(|test| begins(&test))
            || self.families.iter().any(|family| family == name)
            || name.contains('/') && tree::top().join(name).is_file();
        if let Some(experiment) = name.strip_prefix("reproduce ") {
            let results = tree::top().join("research/published/results.toml");
            let results = std::fs::read_to_string(results).unwrap_or_default();
            if results.contains(&format!("\n[[result]]\nname = \"{experiment}\"\n")) {
                return Ok(());
            }
        }
        found(known, || {
            format!("{name}: no test, golden family, file or experiment")
        })
    }

    /// What is wrong with a name of code: a word of the sources, words with `::` between them, a
    /// module with its folder, a knob or a metric.
    fn code(&self, name: &str) -> Result<(), String> {
        let known = if name.contains('/') {
            let module = [format!("/{name}.rs"), format!("/{name}/mod.rs")];
            let ends = |path: &String| module.iter().any(|m| path.ends_with(m));
            self.paths.iter().any(ends)
        } else if name.contains(['.', ' ', '-']) {
            self.texts.contains(name) || self.knobs.contains(name)
        } else {
            name.split("::").all(|word| self.words.contains(word))
        };
        found(known, || format!("{name}: not in the sources"))
    }
}

fn found(known: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if known { Ok(()) } else { Err(what()) }
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .map(str::to_owned)
}

/// The functions of a file that are tests.
fn tests(text: &str) -> Vec<String> {
    let mut marked = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line == "#[test]" {
            marked = true;
        } else if let Some(rest) = line.strip_prefix("fn ").filter(|_| marked) {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            found.push(name.to_owned());
            marked = false;
        }
    }
    found
}

/// What is wrong with a scenario, `name` or `name: variant`.
fn scenario(name: &str) -> Result<(), String> {
    let (file, variant) = name.split_once(": ").unwrap_or((name, ""));
    let path = tree::top().join(format!("scenarios/{file}.toml"));
    let text = std::fs::read_to_string(path).map_err(|_| format!("{file}: no such scenario"))?;
    let known = variant.is_empty() || text.contains(&format!("[variants.{variant}]"));
    found(known, || format!("{file}: no variant {variant}"))
}

/// What is wrong with a checker, `protocol` or `protocol: what`: a variant, a property or a set of
/// agents.
fn checker(name: &str) -> Result<(), String> {
    let (protocol, part) = name.split_once(": ").unwrap_or((name, ""));
    let Some(known) = PROTOCOLS.iter().find(|p| p.name == protocol) else {
        return Err(format!("{protocol}: no such protocol"));
    };
    let agents = || cases(Some(protocol), None, Some(part)).is_ok();
    let there = part.is_empty()
        || known.variants.iter().any(|v| v.name == part)
        || known.properties.iter().any(|(p, _)| *p == part)
        || agents();
    found(there, || {
        format!("{protocol}: no variant, property or agents {part}")
    })
}

/// What is wrong with the knobs of a row: those of a scenario are in the reference of the knobs.
fn knobs(row: &Row, reference: &str) -> Result<(), String> {
    let spaces = [
        "host.",
        "kernel.",
        "kvm.",
        "kvm_arm.",
        "kvm_intel.",
        "sched.",
        "vm.",
        "xen.",
    ];
    let names = row.cells.iter().flat_map(|cell| code(cell));
    let knobs = names.filter(|name| spaces.iter().any(|space| name.starts_with(space)));
    let name = |knob: &str| knob.split(['=', '*']).next().map(str::to_owned);
    let mut unknown = knobs.filter_map(name);
    let unknown = unknown.find(|knob| !reference.contains(&format!("| `{knob}")));
    found(unknown.is_none(), || {
        format!("{}: no knob of docs/knobs.md", unknown.unwrap_or_default())
    })
}

/// What is wrong with the files of tests that a cell names in square brackets.
fn files(cell: &str, known: &Known) -> Result<(), String> {
    for part in cell.split('[').skip(1) {
        let (name, rest) = part.split_once(']').unwrap_or((part, ""));
        let file = [format!("/{name}.rs"), format!("/{name}/main.rs")];
        let there = |path: &String| file.iter().any(|file| path.ends_with(file));
        if !rest.starts_with('(') && !known.paths.iter().any(there) {
            return Err(format!("[{name}]: no such file of tests"));
        }
    }
    Ok(())
}

/// What is wrong with a state.
fn state(cell: &str) -> Result<(), String> {
    let (state, reason) = cell.split_once(": ").unwrap_or((cell, ""));
    let known = STATES.contains(&state) && (state == "full" || !reason.is_empty());
    found(known, || {
        format!("state {cell:?}: full, or one of {STATES:?} with a reason")
    })
}

fn page(path: &str) -> SourceFile {
    let page = tree::text_files().find(|file| file.path == path);
    page.unwrap_or_else(|| panic!("no {path}"))
}

/// Every finding in the tables of `page`.
fn findings(page: &SourceFile, known: &Known) -> Vec<String> {
    let mut errors = Vec::new();
    for row in rows(page) {
        let mut hold = |held: Result<(), String>| {
            if let Err(what) = held {
                errors.push(page.error(row.line, what));
            }
        };
        hold(found(row.cells.len() == row.columns.len(), || {
            format!("{} cells, {} columns", row.cells.len(), row.columns.len())
        }));
        let column = |name: &'static str| code(row.cell(name));
        for name in column("test").chain(column("held by")) {
            hold(known.test(name));
        }
        hold(knobs(&row, &known.knobs));
        hold(files(row.cell("test"), known));
        if row.document().is_none() {
            continue;
        }
        hold(found(row.columns == COLUMNS, || {
            format!("columns {:?}, not {COLUMNS:?}", row.columns)
        }));
        column("code").for_each(|name| hold(known.code(name)));
        column("scenario").for_each(|name| hold(scenario(name)));
        column("checker").for_each(|name| hold(checker(name)));
        hold(state(row.cell("state")));
        for empty in ["code", "scenario", "checker", "test"] {
            let cell = row.cell(empty);
            let named = cell == "–" || code(cell).next().is_some();
            hold(found(named, || format!("{empty}: a name, or –")));
        }
    }
    errors
}

/// Tests, scenarios, protocols and code that the tables name are there.
#[test]
fn what_the_tables_name_is_there() {
    for path in [PAGE, DESCRIBED] {
        report(&findings(&page(path), &KNOWN));
    }
}

/// The first table's counts are those of the tables below.
#[test]
fn the_counts_are_those_of_the_rows() {
    let page = page(DESCRIBED);
    let (mut counted, mut written) = (BTreeMap::new(), BTreeMap::new());
    let mut sums = [0_usize; STATES.len()];
    for row in rows(&page) {
        if let Some(document) = row.document() {
            let state = row.cell("state").split(": ").next().unwrap_or_default();
            let counts = counted.entry(document.to_owned());
            let counts: &mut [usize; STATES.len()] = counts.or_default();
            for (at, known) in STATES.iter().enumerate() {
                counts[at] += usize::from(*known == state);
                sums[at] += usize::from(*known == state);
            }
        } else if row.columns.first().is_some_and(|c| c == "document") {
            let name = row.cells[0].trim_start_matches('[');
            let name = name.split(']').next().unwrap_or_default().to_owned();
            let number = |at: usize| row.cells.get(at + 1)?.parse().ok();
            let counts: Vec<usize> = (0..=STATES.len()).filter_map(number).collect();
            written.insert(name, counts);
        }
    }
    counted.insert("all".to_owned(), sums);
    let with_sums = |counts: [usize; STATES.len()]| {
        let all = counts.iter().sum();
        counts.into_iter().chain([all]).collect::<Vec<_>>()
    };
    let counted: BTreeMap<_, _> = counted
        .into_iter()
        .map(|(name, counts)| (name, with_sums(counts)))
        .collect();
    assert_eq!(
        written, counted,
        "{DESCRIBED}: full, in part, different, all"
    );
}

/// The page names every numbered test of what a sloppy implementation gets wrong.
#[test]
fn every_numbered_test_is_on_the_page() {
    let page = page(PAGE);
    let named: BTreeSet<&str> = code(&page.text).collect();
    let mut errors = Vec::new();
    for test in &KNOWN.tests {
        let Some((family, rest)) = test.split_once("_sloppy_") else {
            continue;
        };
        let number = rest.split('_').next().unwrap_or_default();
        if !named.contains(format!("{family}_sloppy_{number}").as_str()) {
            errors.push(format!("{PAGE}: error: {test}: not in the tables"));
        }
    }
    report(&errors);
}

#[test]
fn wrong_names_are_found() {
    let known = Known {
        tests: tests("#[test]\nfn a_01_b() {\n}\nfn helper() {}"),
        families: vec!["spin".into()],
        paths: vec!["crates/a/src/x.rs".into()],
        words: words("mod x; pub fn there").collect(),
        texts: String::new(),
        knobs: "| `kvm.knob` |".into(),
    };
    let wrong = |row: &str| {
        let path = PAGE.into();
        let head = COLUMNS.join(" | ");
        let text = format!("{DOCUMENT}x\n| {head} |\n|---|---|---|---|---|---|\n{row}\n");
        findings(&SourceFile { path, text }, &known).len()
    };
    let right = "| b | `x::there`, `src/x`, `kvm.knob` | `lock-holder: linux` | `yield: unlimited` | `a_01` [x], `spin` | full |";
    assert_eq!(wrong(right), 0);
    for (from, to) in [
        ("x::there", "x::here"),
        ("x::there", "y::there"),
        ("src/x", "src/y"),
        ("| b |", "| `xen.knob` |"),
        ("[x]", "[y]"),
        ("`x::there`, `src/x`, `kvm.knob`", "there"),
        ("lock-holder", "lock-folder"),
        ("linux", "xenix"),
        ("yield", "wield"),
        ("unlimited", "all"),
        ("a_01", "a_02"),
        ("a_01", "a_0"),
        ("a_01", "helper"),
        ("| full", "| missing"),
        ("| full", "| in part"),
    ] {
        assert_eq!(wrong(&right.replace(from, to)), 1, "{from} {to}");
    }
    assert_eq!(wrong(&right.replace("| full ", "")), 2);
}
