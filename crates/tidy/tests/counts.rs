//! Habits that may only become fewer, and the subjects of commits.

use std::fs;

use stealtime_tidy::counts::{BASELINE, baseline_text, counts, findings, parse};
use stealtime_tidy::measures::{SUBJECT_COLUMNS, subjects};
use stealtime_tidy::tree::{SourceFile, report, text_files, top};

/// The last commit from which on subjects are held to their length.
const SUBJECTS_SINCE: &str = "042f7d5";
/// Findings that are printed of a crate with more than its baseline.
const SHOWN: usize = 40;

#[test]
fn habits_only_become_fewer() {
    let files: Vec<SourceFile> = text_files().collect();
    let found = findings(&files);
    let current = counts(&found);
    let path = top().join(BASELINE);
    let baseline = parse(&fs::read_to_string(&path).unwrap_or_default());
    let bless = std::env::var_os("STEALTIME_BLESS").is_some();
    let mut errors = Vec::new();
    for (check, crates) in &current {
        // A check that the file lacks is a new one: its first counts are accepted.
        let Some(accepted) = baseline.get(check) else {
            if !bless {
                errors.push(format!("{BASELINE}:1: error: no \"{check}\""));
            }
            continue;
        };
        let (sum, limit): (usize, usize) = (crates.values().sum(), accepted.values().sum());
        if sum > limit {
            errors.push(format!(
                "{BASELINE}:1: error: {check}: {sum}, at most {limit}"
            ));
        }
        // Code that moves takes its findings along, so that blessing looks at the sum alone.
        for (name, &count) in crates.iter().filter(|_| sum > limit || !bless) {
            let limit = accepted.get(name).copied();
            if limit.map_or(sum > limit_of(accepted), |limit| count > limit) {
                let limit = limit.unwrap_or(0);
                errors.push(format!(
                    "{BASELINE}:1: error: {check}: {name} {count}, at most {limit}"
                ));
                errors.extend(found[check.as_str()][name].iter().take(SHOWN).cloned());
            }
        }
    }
    report(&errors);
    if bless {
        fs::write(path, baseline_text(&current)).expect("a tree that can be written");
    }
}

fn limit_of(crates: &std::collections::BTreeMap<String, usize>) -> usize {
    crates.values().sum()
}

/// Where git or the history is missing, as in an archive or a shallow clone, this checks nothing.
#[test]
fn subjects_of_commits_fit_a_terminal() {
    let subjects = subjects(&top(), &format!("{SUBJECTS_SINCE}..HEAD")).unwrap_or_default();
    let errors: Vec<String> = subjects
        .iter()
        .filter(|subject| subject.chars().count() > SUBJECT_COLUMNS)
        .map(|subject| format!("git:1: error: more than {SUBJECT_COLUMNS} columns: {subject}"))
        .collect();
    report(&errors);
}
