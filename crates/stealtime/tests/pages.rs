//! Numbers and output that README.md and docs/ quote: from code, or from one page that has them.

use std::fs;
use std::path::Path;

use serde_json::Value;
use stealtime_published::chosen;
use stealtime_verify::{PROTOCOLS, cases};

use crate::common;

const README: &str = include_str!("../../../README.md");
const MECHANISMS: &str = include_str!("../../../docs/mechanisms.md");
const SCENARIOS: &str = include_str!("../../../docs/scenarios.md");
const VERIFICATION: &str = include_str!("../../../docs/verification.md");
const REPRODUCTION: &str = include_str!("../../../docs/reproduction.md");

/// Text without line breaks, as it is read.
fn flow(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn assert_says(page: &str, sentence: &str) {
    assert!(flow(page).contains(sentence), "not there: {sentence}");
}

fn word(number: usize) -> &'static str {
    const WORDS: [&str; 11] = [
        "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    ];
    WORDS[number]
}

/// The values of a knob.
fn values(knob: &str) -> Vec<String> {
    let (_, out, _) = common::run(&mut common::stealtime(&["knobs", knob, "--json"]));
    let knobs: Value = serde_json::from_str(&out).expect("JSON");
    let text = knobs[0]["values"].as_str().expect("values");
    text.split(", ").map(str::to_owned).collect()
}

#[test]
fn counts_are_those_of_the_code() {
    let protocols = word(PROTOCOLS.len());
    assert_says(README, &format!("around it, in {protocols} protocols,"));
    let explored = cases(None, None, None).expect("all").len();
    assert_says(
        VERIFICATION,
        &format!("explores by default, {explored} explorations with"),
    );
    for case in cases(None, None, None).expect("all") {
        for name in [case.protocol, case.scene.as_str()] {
            assert!(VERIFICATION.contains(&format!("`{name}`")), "{name}");
        }
    }
    for knob in ["kvm.suppress_notification", "kvm.timer_policy"] {
        for value in values(knob) {
            assert!(MECHANISMS.contains(&format!("`{value}`")), "{knob}={value}");
        }
    }
}

/// The output of a full run, as docs/reproduction.md has it.
fn reproduced() -> &'static str {
    let table = REPRODUCTION.split_once("```text\n").expect("the output").1;
    table.split_once("```").expect("its end").0
}

#[test]
fn published_results_are_reported_as_they_came_out() {
    let results = chosen(&[]).expect("all");
    let count = word(results.len());
    assert_says(README, &format!("puts {count} published results"));
    assert_says(
        REPRODUCTION,
        &format!("experiments of {count} publications"),
    );
    let all: usize = results.iter().map(|r| r.figure.len() + r.claim.len()).sum();
    let last = "published figures and claims come out";
    let come_out =
        (0..=all).find(|n| flow(reproduced()).contains(&format!(" {n} of {all} {last}")));
    let come_out = come_out.expect("a last line with all figures and claims");
    let said = format!("{come_out} of the {all} figures and claims come out.");
    assert_says(REPRODUCTION, &said);
    let off = all - come_out;
    let said = format!("{off} of the {all} figures and claims do not come out");
    assert_says(README, &said);
    for figure in results.iter().flat_map(|result| &result.figure) {
        assert!(reproduced().contains(&figure.name), "{}", figure.name);
    }
}

#[test]
fn wrong_signs_are_counted_alike() {
    let rows = reproduced().lines();
    let wrong = rows.filter(|row| row.ends_with(", wrong sign")).count();
    let said = match wrong {
        0 => "No figure has the wrong sign".to_owned(),
        1 => "One figure has the wrong sign".to_owned(),
        more => format!("{more} figures have the wrong sign"),
    };
    assert_says(README, &said);
    assert_says(REPRODUCTION, &said);
}

/// The first code block of a page after `text`.
fn block(page: &'static str, text: &str) -> &'static str {
    let after = page.split_once(text).expect(text).1;
    let inside = after.split_once("```\n").expect("a block").1;
    inside.split_once("```").expect("its end").0
}

/// Lines of an excerpt are lines of the text, in their order; `…` stands for any.
fn assert_excerpt(excerpt: &str, text: &str) {
    let mut lines = text.lines();
    for line in excerpt.lines().filter(|line| line.trim() != "…") {
        assert!(
            lines.any(|other| other == line),
            "no output: {line}\n{text}"
        );
    }
}

fn from_top(arguments: &[&str]) -> String {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (status, out, error) = common::run(common::stealtime(arguments).current_dir(top));
    assert_eq!(status, Some(0), "{error}");
    out
}

/// The recording of the quick start.
const RECORDING: &str = "tests/data/traces/svm-cfs/trace.dat";

#[test]
fn what_analyze_prints_is_what_is_quoted() {
    let quoted = block(README, "accounts for every nanosecond");
    assert_excerpt(quoted, &from_top(&["analyze", RECORDING]));
}

#[test]
fn the_command_line_page_is_what_the_command_prints() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/command-line.md");
    let printed = from_top(&["help-markdown"]);
    if std::env::var_os("STEALTIME_BLESS").is_some() {
        fs::write(path, printed).expect("a tree that can be written");
        return;
    }
    let page = fs::read_to_string(path).expect("a page");
    let command = "STEALTIME_BLESS=1 cargo test -p stealtime pages::";
    assert!(page == printed, "docs/command-line.md is old: {command}");
}

#[test]
fn what_the_tutorial_quotes_is_what_is_printed() {
    let page = include_str!("../../../docs/tutorial.md");
    let blocks = page.split("```").skip(1).step_by(2);
    let quoted: Vec<(&str, &str)> = blocks
        .filter_map(|block| block.split_once("$ stealtime ")?.1.split_once('\n'))
        .collect();
    assert!(quoted.len() >= 5, "{} commands", quoted.len());
    for (command, excerpt) in quoted {
        let arguments: Vec<&str> = command.split(' ').collect();
        assert_excerpt(excerpt, &from_top(&arguments));
    }
}

#[test]
fn what_whatif_prints_is_what_is_quoted() {
    let quoted = block(README, "## What would help");
    assert_excerpt(quoted, &from_top(&["whatif", RECORDING, "--auto"]));
}

#[test]
fn what_simulate_prints_is_what_is_quoted() {
    let quoted = block(SCENARIOS, "## The result");
    let (command, excerpt) = quoted.split_once('\n').expect("a command");
    let arguments = command.strip_prefix("$ stealtime ").expect("a command");
    let arguments: Vec<&str> = arguments.split(' ').collect();
    assert_excerpt(excerpt, &from_top(&arguments));
}
