//! Style of sources and texts.

use stealtime_tidy::tree::{self, SourceFile, report};

/// Lines a source file may have. Files above this hide things.
const MAX_FILE_LINES: usize = 800;
/// Lines a function may have, signature and closing brace included.
const MAX_FUNCTION_LINES: usize = 100;
/// Columns a line may have: rustfmt holds code to 100, comments may end a word later.
const MAX_COLUMNS: usize = 110;

#[test]
fn files_are_short_enough_to_hold_in_the_head() {
    let mut errors = Vec::new();
    for file in tree::rust_files() {
        let lines = file.text.lines().count();
        if lines > MAX_FILE_LINES {
            errors.push(file.error(
                lines,
                format!("{lines} lines, at most {MAX_FILE_LINES}: split"),
            ));
        }
    }
    report(&errors);
}

/// `autotests = false` makes a test file that no binary names vanish without a word.
#[test]
fn every_test_file_is_part_of_a_binary() {
    let files: Vec<SourceFile> = tree::rust_files().collect();
    let mut errors = Vec::new();
    for main in files.iter().filter(|f| f.path.ends_with("/tests/main.rs")) {
        let folder = main.path.trim_end_matches("main.rs");
        let manifest = tree::top().join(folder).join("../Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).expect("a crate's manifest");
        for file in &files {
            let module = match file
                .path
                .strip_prefix(folder)
                .map(|path| path.split_once('/'))
            {
                Some(None) if file.path != main.path => {
                    &file.path[folder.len()..file.path.len() - 3]
                }
                Some(Some((module, "mod.rs"))) => module,
                _ => continue,
            };
            let declared = format!("mod {module};\n");
            let named = files
                .iter()
                .any(|f| f.path.starts_with(folder) && f.text.contains(&declared))
                || manifest.contains(&format!("[[test]]\nname = \"{module}\"\n"));
            if !named {
                errors.push(file.error(1, format!("no `mod {module};` in {}", main.path)));
            }
        }
    }
    report(&errors);
}

#[test]
fn functions_fit_a_screen_or_two() {
    let mut errors = Vec::new();
    for file in tree::rust_files() {
        for (start, length) in functions(&file.text) {
            if length > MAX_FUNCTION_LINES {
                let what =
                    format!("function of {length} lines, at most {MAX_FUNCTION_LINES}: split");
                errors.push(file.error(start, what));
            }
        }
    }
    report(&errors);
}

/// First line and length of each function, by indentation: rustfmt closes a function's body in the
/// column in which its signature starts.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        let words = [
            "fn ",
            "pub fn ",
            "const fn ",
            "pub const fn ",
            "unsafe fn ",
            "pub unsafe fn ",
        ];
        let scoped = body.starts_with("pub(") && body.contains(") fn ");
        if !scoped && !words.iter().any(|w| body.starts_with(w)) {
            continue;
        }
        let close = format!("{}}}", " ".repeat(indent));
        let end = lines[at..].iter().position(|l| {
            *l == close || l.ends_with(';') && l.len() > indent && at_indent(l, indent)
        });
        if let Some(length) = end {
            found.push((at + 1, length + 1));
        }
    }
    found
}

fn at_indent(line: &str, indent: usize) -> bool {
    line.len() - line.trim_start().len() == indent && !line.trim_start().starts_with("let ")
}

#[test]
fn lines_are_not_wider_than_the_page() {
    let mut errors = Vec::new();
    for file in tree::rust_files() {
        for (n, line) in file.numbered() {
            let columns = line.chars().count();
            let literal = line.contains('"') || line.contains("://") || line.contains("| ");
            if columns > MAX_COLUMNS && !literal && !file.text.contains("rustfmt::skip") {
                errors.push(file.error(n, format!("{columns} columns, at most {MAX_COLUMNS}")));
            }
        }
    }
    report(&errors);
}

#[test]
fn simulated_time_touches_no_clock_no_float_and_no_hash_order() {
    let banned: &[(&str, &str)] = &[
        ("Instant::now", "time comes in as a parameter"),
        ("SystemTime", "time comes in as a parameter"),
        ("f32", "no floats in simulated time"),
        ("f64", "no floats in simulated time"),
        (
            "HashMap",
            "iteration order is not determined: use BTreeMap or an index",
        ),
        (
            "HashSet",
            "iteration order is not determined: use BTreeSet or an index",
        ),
        ("thread_rng", "chance comes in as a parameter"),
    ];
    let mut errors = Vec::new();
    for file in tree::rust_files() {
        let core = [
            "crates/events/src",
            "crates/hypervisor/src",
            "crates/simulator/src",
        ];
        if !core.iter().any(|c| file.path.starts_with(c)) {
            continue;
        }
        for (n, line) in file.code_lines() {
            for (word, why) in banned {
                if has_word(line, word) {
                    errors.push(file.error(n, format!("{word}: {why}")));
                }
            }
        }
    }
    report(&errors);
}

#[test]
fn libraries_print_nothing_and_never_end_the_process() {
    let mut errors = Vec::new();
    for file in tree::rust_files() {
        let library = file.path.starts_with("crates/")
            && file.path.contains("/src/")
            && !file.path.ends_with("/src/main.rs")
            && !file.path.starts_with("crates/stealtime/");
        if !library {
            continue;
        }
        for (n, line) in file.code_lines() {
            for word in ["println!", "eprintln!", "print!(", "process::exit"] {
                if line.contains(word) {
                    errors.push(file.error(n, format!("{word} in a library: return it")));
                }
            }
        }
    }
    report(&errors);
}

#[test]
fn the_tree_speaks_of_the_project_alone() {
    // Written in two halves, so that this file does not name what it looks for.
    let banned = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("pypi", ".org"),
        concat!("crates", ".io/api"),
        concat!("static.crates", ".io"),
        concat!("index.crates", ".io"),
        concat!("registry.npm", "js"),
        concat!("deb.deb", "ian"),
        concat!("proxy.go", "lang"),
        concat!("art", "ifactory"),
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
    ];
    let mut errors = Vec::new();
    for file in tree::text_files() {
        for (n, line) in file.numbered() {
            for word in banned {
                // The kernel has folders of the same names: /proc/PID/…, sched_ext/….
                let is_below = |at: usize| {
                    let above = line[..at].chars().next_back();
                    word.starts_with('/')
                        && above.is_some_and(|c| c.is_alphanumeric() || "_}".contains(c))
                };
                if line.match_indices(word).any(|(at, _)| !is_below(at)) {
                    errors.push(file.error(n, format!("must not say {word}")));
                }
            }
        }
    }
    report(&errors);
}

#[test]
fn texts_end_their_lines_cleanly() {
    let mut errors = Vec::new();
    for file in tree::text_files() {
        for (n, line) in file.numbered() {
            if line.ends_with([' ', '\t', '\r']) {
                errors.push(file.error(n, "white space at the end of the line".into()));
            }
        }
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            errors.push(file.error(file.text.lines().count(), "no line end at the end".into()));
        }
    }
    report(&errors);
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let letter = |c: char| c.is_alphanumeric() || c == '_';
        !line[..at].ends_with(letter) && !line[at + word.len()..].starts_with(letter)
    })
}

#[test]
fn the_checks_see_what_they_look_for() {
    let long = format!("fn f() {{\n{}}}\nfn g() {{}}\n", "    x();\n".repeat(200));
    assert_eq!(functions(&long).first(), Some(&(1, 202)));
    assert!(has_word("let x: f64 = 0;", "f64"));
    assert!(!has_word("let xf64x = 0;", "f64"));
    let file = SourceFile {
        path: "a.rs".into(),
        text: "// f64\ncode f64\n#[cfg(test)]\nf64".into(),
    };
    assert_eq!(file.code_lines().map(|(n, _)| n).collect::<Vec<_>>(), [2]);
}
