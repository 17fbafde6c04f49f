//! `docs/workloads.md` says what the library has.

use std::fmt::Write;

use stealtime_simulator::workload::LIBRARY;

const INTRODUCTION: &str = "# Workloads

What a guest of the simulated host can run, by name, as `workload` of a `[[vm]]`; its parameters are
keys beside it. Times are in ns. The programs are async functions in
`crates/simulator/src/workload`; what they lock, wait for and send goes through a kernel in small
with the mechanisms that matter to a hypervisor. Where a parameter's default is an *estimate*, no
public source gives a figure for it.

This page is made from the library, and a test keeps it so
(`STEALTIME_BLESS=1 cargo test -p stealtime-simulator --test guests reference` writes it anew).
";

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for workload in LIBRARY {
        let _ = write!(
            page,
            "\n## {}\n\n{}.\n",
            workload.name,
            capital(workload.about)
        );
        if workload.params.is_empty() {
            continue;
        }
        page.push_str("\n| parameter | default | range | meaning |\n|---|---|---|---|\n");
        for param in workload.params {
            let unit = if param.unit.is_empty() {
                String::new()
            } else {
                format!(" {}", param.unit)
            };
            let _ = writeln!(
                page,
                "| `{}` | {}{unit} | {} to {} | {} |",
                param.name, param.default, param.min, param.max, param.about
            );
        }
    }
    page
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

#[test]
fn page_says_what_the_library_has() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/workloads.md");
    if std::env::var_os("STEALTIME_BLESS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), page());
}

#[test]
fn names_are_sorted_and_parameters_documented() {
    let names: Vec<&str> = LIBRARY.iter().map(|workload| workload.name).collect();
    assert!(names.is_sorted(), "{names:?}");
    for param in LIBRARY.iter().flat_map(|workload| workload.params) {
        assert!(
            (param.min..=param.max).contains(&param.default),
            "{}",
            param.name
        );
        assert!(!param.about.is_empty());
    }
}
