//! The scenarios that come along, and the references that are written from code.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use stealtime_lab::knobs::reference;
use stealtime_lab::run::run;
use stealtime_lab::scenario::{Scenario, Variant};
use stealtime_lab::simulate::Simulator;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn scenarios() -> Vec<(PathBuf, String)> {
    let folder = std::fs::read_dir(top().join("scenarios")).expect("a folder");
    let mut paths: Vec<PathBuf> = folder
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_file())
        .collect();
    paths.sort();
    let with_text = paths.into_iter().map(|path| {
        let text = std::fs::read_to_string(&path).expect("a file");
        (path, text)
    });
    with_text.collect()
}

#[test]
fn every_scenario_can_be_read_and_says_what_it_shows() {
    let all = scenarios();
    assert!(all.len() >= 10);
    for (path, text) in all {
        let scenario = Scenario::load(&path).unwrap_or_else(|error| panic!("{error}"));
        assert!(
            text.starts_with("# "),
            "{}: begins with what it shows",
            path.display()
        );
        assert!(text.contains("What to look at:"), "{}", path.display());
        assert!(
            !scenario.about.is_empty() && scenario.variants.len() > 1,
            "{}",
            path.display()
        );
        assert!(
            scenario.seeds.len() > 1,
            "{}: one seed gives no interval",
            path.display()
        );
    }
}

#[test]
fn every_scenario_runs() {
    for (path, text) in scenarios() {
        let mut scenario = Scenario::load(&path).unwrap_or_else(|error| panic!("{error}"));
        // The guests of a few scenarios are moved 200 ms after the beginning.
        let ms = if text.contains("migration") { 200 } else { 2 };
        scenario.set_duration_ns(ms * 1_000_000);
        scenario.set_seeds(1);
        let variants: Vec<&Variant> = scenario.variants.iter().collect();
        let go = AtomicBool::new(false);
        let threads = NonZeroUsize::new(2).expect("not 0");
        let runs = run(&Simulator, &scenario, &variants, threads, &go, &|_, _| {});
        for variant in runs.unwrap_or_else(|error| panic!("{error}")).variants {
            for result in variant.runs {
                let events = result.map(|output| output.events);
                let ran = matches!(events, Ok(1..));
                assert!(ran, "{}, {}: {events:?}", path.display(), variant.name);
            }
        }
    }
}

/// Compares a page with its text. `STEALTIME_BLESS=1` writes it instead.
fn hold(page: &str, text: &str) {
    let path = top().join("docs").join(page);
    if std::env::var_os("STEALTIME_BLESS").is_some() {
        std::fs::write(path, text).expect("a tree that can be written");
        return;
    }
    let written = std::fs::read_to_string(path).expect("a page");
    let command = "STEALTIME_BLESS=1 cargo test -p stealtime-lab --test library";
    assert!(written == text, "docs/{page} is old: {command}");
}

#[test]
fn the_reference_of_knobs_is_what_the_code_says() {
    hold("knobs.md", &reference::markdown(&reference::entries()));
}

#[test]
fn the_reference_of_workloads_is_what_the_code_says() {
    let text = reference::workloads_markdown(&reference::workloads());
    hold("workloads.md", &text);
}
