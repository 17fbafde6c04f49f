//! How easy a Rust tree is to enter, in numbers that can be put next to those of other trees.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::names::{is_function_word, local_names};
use crate::prose;
use crate::source::{Kind, Source, Token};
use crate::tree::{crate_of, is_test, text_files_of};

/// Columns of a commit's subject: what `git log --oneline` shows in a terminal of 80 columns.
pub const SUBJECT_COLUMNS: usize = 72;

/// A column of the table.
pub struct Tree {
    title: String,
    rows: Vec<Row>,
}

/// A measure and its value as the table has it.
struct Row {
    label: &'static str,
    value: String,
}

/// Sums over all files.
#[derive(Default)]
struct Sums {
    code_lines: usize,
    filled_lines: usize,
    unwraps: usize,
    assertions: usize,
    silent_returns: usize,
    unsafe_blocks: usize,
    unsafe_without_reason: usize,
    public_items: usize,
    undocumented: usize,
    inline_comments: usize,
    comment_words: usize,
    persons: usize,
    names: usize,
    function_words: usize,
    file_lines: Vec<usize>,
    function_lines: Vec<usize>,
    sentence_words: Vec<usize>,
    types: BTreeMap<String, TypeSize>,
}

/// What the impls of a type add up to.
#[derive(Clone, Default)]
pub struct TypeSize {
    /// Lines of all its own impls.
    pub lines: usize,
    /// Functions within.
    pub methods: usize,
    /// Files with an impl.
    pub files: BTreeSet<String>,
}

impl Tree {
    /// Measures the tree in a folder.
    pub fn measure(top: &Path, title: &str) -> Self {
        let mut sums = Sums::default();
        for file in text_files_of(top) {
            if is_test(&file.path) {
                continue;
            }
            if file.path.ends_with(".md") && !is_history(&file.path) {
                let pages = prose::paragraphs(&file.text);
                let sentences = pages.iter().flat_map(|p| prose::sentences(&p.text));
                sums.sentence_words
                    .extend(sentences.map(|s| prose::length(&s)));
            }
            if file.path.ends_with(".rs") {
                sums.add(&file.path, &file.text);
            }
        }
        let mut rows = sums.rows();
        rows.extend(commit_rows(&subjects(top, "HEAD").unwrap_or_default()));
        Self {
            title: title.into(),
            rows,
        }
    }
}

/// Trees next to each other as a Markdown table.
pub fn table(trees: &[Tree]) -> String {
    let titles: Vec<&str> = trees.iter().map(|tree| tree.title.as_str()).collect();
    let mut text = format!("| measure | {} |\n", titles.join(" | "));
    let _ = writeln!(text, "{}|", "|---".repeat(trees.len() + 1));
    let rows = trees.first().map_or(0, |tree| tree.rows.len());
    for index in 0..rows {
        let values: Vec<&str> = trees.iter().map(|t| t.rows[index].value.as_str()).collect();
        let _ = writeln!(
            text,
            "| {} | {} |",
            trees[0].rows[index].label,
            values.join(" | ")
        );
    }
    text
}

/// Whether a page reports changes or trials rather than what is.
fn is_history(path: &str) -> bool {
    let path = path.to_lowercase();
    ["changelog", "release", "notebook"]
        .iter()
        .any(|part| path.contains(part))
}

/// Adds the sizes of a source's own impls to those of their types.
pub fn add_types(source: &Source, path: &str, types: &mut BTreeMap<String, TypeSize>) {
    for found in source.inherent_impls() {
        let size = types
            .entry(format!("{}::{}", crate_of(path), found.name))
            .or_default();
        size.lines += found.lines;
        size.methods += found.methods;
        size.files.insert(path.to_owned());
    }
}

/// `let … else` that returns nothing: a state that cannot be, or one that is not counted.
pub fn silent_returns(code: &[Token]) -> Vec<usize> {
    let silent = |start: usize| {
        let part = &code[start..];
        let returns = part[0].is_word("else")
            && part.get(1).is_some_and(|t| t.is_sign('{'))
            && part.get(2).is_some_and(|t| t.is_word("return"));
        let end = if part.get(3).is_some_and(|t| t.is_sign(';')) {
            4
        } else {
            3
        };
        returns && part.get(end).is_some_and(|t| t.is_sign('}'))
    };
    (0..code.len())
        .filter(|&i| silent(i))
        .map(|i| code[i].line)
        .collect()
}

impl Sums {
    fn add(&mut self, path: &str, text: &str) {
        let source = Source::new(text);
        if source.code.is_empty() && source.comments.is_empty() {
            return;
        }
        let code_lines: BTreeSet<usize> = source
            .code
            .iter()
            .flat_map(|t| t.line..=t.last_line)
            .collect();
        let counted = source.lines.iter().flatten();
        self.code_lines += code_lines.len();
        self.filled_lines += counted
            .clone()
            .filter(|line| !line.trim().is_empty())
            .count();
        self.file_lines.push(counted.count());
        self.function_lines
            .extend(source.functions().map(|f| f.lines()));
        let names = local_names(&source);
        self.names += names.len();
        self.function_words += names
            .iter()
            .filter(|name| is_function_word(name.text))
            .count();
        self.silent_returns += silent_returns(&source.code).len();
        add_types(&source, path, &mut self.types);
        self.add_calls(&source.code);
        self.add_comments(&source.comments);
        self.add_unsafe(&source);
        self.add_public(&source);
    }

    fn add_calls(&mut self, code: &[Token]) {
        for part in code.windows(3) {
            let call = part[0].is_sign('.') && part[2].is_sign('(');
            let name = part[1].text;
            self.unwraps += usize::from(call && ["unwrap", "expect"].contains(&name));
            let name = part[0].text;
            let name = name.strip_prefix("debug_").unwrap_or(name);
            let asserts = ["assert", "assert_eq", "assert_ne", "assert_matches"];
            self.assertions += usize::from(part[1].is_sign('!') && asserts.contains(&name));
        }
    }

    fn add_comments(&mut self, comments: &[Token]) {
        for comment in comments {
            let text = prose::comment_text(comment.text);
            for word in prose::words(&text) {
                let word = word.to_lowercase();
                self.comment_words += 1;
                self.persons +=
                    usize::from(["who", "whom", "whose", "nobody"].contains(&word.as_str()));
            }
            let lower = comment.text.to_lowercase();
            let licence = ["copyright", "spdx-", "license", "licence", "mozilla"];
            if !is_doc(comment.text) && !licence.iter().any(|word| lower.contains(word)) {
                self.inline_comments += comment.last_line - comment.line + 1;
            }
        }
    }

    fn add_unsafe(&mut self, source: &Source) {
        for pair in source.code.windows(2) {
            if pair[0].is_word("unsafe") && (pair[1].is_sign('{') || pair[1].is_word("impl")) {
                self.unsafe_blocks += 1;
                let above = above(source, pair[0].line).to_lowercase();
                self.unsafe_without_reason += usize::from(!above.contains("safety"));
            }
        }
    }

    fn add_public(&mut self, source: &Source) {
        let code = &source.code;
        for (index, token) in code.iter().enumerate() {
            let first = index == 0 || code[index - 1].line < token.line;
            if !token.is_word("pub") || !first {
                continue;
            }
            let qualifier = |t: &&Token| {
                ["const", "async", "unsafe", "extern"].contains(&t.text) || t.kind == Kind::Text
            };
            let skipped = code[index + 1..].iter().take_while(qualifier).count();
            let item = code.get(index + 1 + skipped).map_or("", |t| t.text);
            let items = ["fn", "struct", "enum", "trait", "type", "static", "union"];
            // `pub const NAME` has no item word after its qualifier.
            let constant = skipped == 1 && code[index + 1].is_word("const");
            let module = item == "mod" && code.get(index + 3).is_some_and(|t| t.is_sign('{'));
            if items.contains(&item) || constant || module {
                self.public_items += 1;
                let above = above(source, token.line);
                let documented = ["///", "/**", "#[doc"]
                    .iter()
                    .any(|mark| above.contains(mark));
                self.undocumented += usize::from(!documented);
            }
        }
    }

    fn rows(mut self) -> Vec<Row> {
        let (code, filled) = (self.code_lines, self.filled_lines);
        let big = self.types.iter().max_by_key(|(_, size)| size.lines);
        let big = big.map_or_else(
            || "-".to_owned(),
            |(name, size)| {
                let name = name.rsplit("::").next().unwrap_or_default();
                let lines = grouped(size.lines);
                format!("{name}: {lines}, {}, {}", size.methods, size.files.len())
            },
        );
        let persons = 1000.0 * ratio(self.persons, self.comment_words);
        let row = |label, value| Row { label, value };
        vec![
            row("lines of code", grouped(code)),
            row(
                "files: lines, median / p90 / max",
                spread(&mut self.file_lines, &[50, 90, 100]),
            ),
            row(
                "functions: lines, median / p90 / p99 / max",
                spread(&mut self.function_lines, &[50, 90, 99, 100]),
            ),
            row(
                "unwrap and expect per 1,000 lines",
                per_thousand(self.unwraps, filled),
            ),
            row(
                "`unsafe` without reason",
                format!("{} of {}", self.unsafe_without_reason, self.unsafe_blocks),
            ),
            row(
                "undocumented public items",
                share(self.undocumented, self.public_items, 1),
            ),
            row(
                "comment lines within code, per 1,000",
                per_thousand(self.inline_comments, filled),
            ),
            row(
                "assertions per 1,000 lines",
                per_thousand(self.assertions, filled),
            ),
            row(
                "`let … else` that leaves silently",
                self.silent_returns.to_string(),
            ),
            row(
                "local names that are function words",
                share(self.function_words, self.names, 1),
            ),
            row("largest type: lines, methods, files", big),
            row(
                "pronouns of persons per 1,000 words of comments",
                format!("{persons:.1}"),
            ),
            row(
                "words a sentence in docs, median / p90",
                spread(&mut self.sentence_words, &[50, 90]),
            ),
        ]
    }
}

fn is_doc(comment: &str) -> bool {
    let docs = ["///", "//!", "/**", "/*!"]
        .iter()
        .any(|mark| comment.starts_with(mark));
    docs && !comment.starts_with("////") && !comment.starts_with("/***")
}

/// Comments and attributes on a line and on those directly above it. The statement may begin on an
/// earlier line than the block that it ends with.
fn above(source: &Source, line: usize) -> String {
    let comment = |line: usize| {
        let on_line = |c: &&Token| (c.line..=c.last_line).contains(&line);
        source.comments.iter().find(on_line).map(|c| c.text)
    };
    let mut text = comment(line).unwrap_or_default().to_owned();
    for row in (0..line).rev().take(40) {
        let content = source.lines[row].unwrap_or_default().trim();
        let attribute = content.starts_with("#[")
            || content.contains('#') && (content.ends_with(")]") || content.ends_with(']'));
        if let Some(comment) = comment(row) {
            text.push_str(comment);
        } else if attribute {
            text.push_str(content);
        } else if row + 1 < line && !text.is_empty()
            || content.is_empty()
            || content.ends_with([';', '}', '{'])
            || row + 3 < line
        {
            break;
        }
    }
    text
}

/// Subjects of a repository's commits, newest first, without merges. `None` where the folder is not
/// the top of a repository, or git is not installed.
pub fn subjects(top: &Path, range: &str) -> Option<Vec<String>> {
    if !top.join(".git").exists() {
        return None;
    }
    let git = Command::new("git")
        .arg("-C")
        .arg(top)
        .args(["log", "--no-merges", "--format=%s", range])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&git.stdout).into_owned();
    git.status
        .success()
        .then(|| text.lines().map(str::to_owned).collect())
}

fn commit_rows(subjects: &[String]) -> Vec<Row> {
    let long = |subjects: &[String]| {
        let long = subjects
            .iter()
            .filter(|s| s.chars().count() > SUBJECT_COLUMNS);
        share(long.count(), subjects.len(), 0)
    };
    let last = &subjects[..subjects.len().min(100)];
    vec![
        Row {
            label: "commit subjects above 72 columns",
            value: long(subjects),
        },
        Row {
            label: "of the last 100 commits",
            value: long(last),
        },
    ]
}

/// The value at a share of the sorted values, by nearest rank.
pub fn percentile(values: &mut [usize], percent: usize) -> usize {
    values.sort_unstable();
    let rank = (values.len() * percent).div_ceil(100).max(1);
    values.get(rank - 1).copied().unwrap_or(0)
}

fn spread(values: &mut [usize], percents: &[usize]) -> String {
    let parts = percents.iter().map(|&p| grouped(percentile(values, p)));
    parts.collect::<Vec<_>>().join(" / ")
}

fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn per_thousand(count: usize, lines: usize) -> String {
    let value = 1000.0 * ratio(count, lines);
    let digits = usize::from(value < 10.0);
    format!("{value:.digits$}")
}

fn share(part: usize, whole: usize, digits: usize) -> String {
    if whole == 0 {
        return "-".into();
    }
    format!("{:.digits$} %", 100.0 * ratio(part, whole))
}

/// A number with commas between thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_measured() {
        let mut sums = Sums::default();
        sums.add(
            "crates/a/src/b.rs",
            "/// Doc.\npub fn a(of: u8) {\n    // Whose?\n    let Some(x) = y else { return };\n    \
             debug_assert!(x.unwrap() > 0);\n    unsafe { z() }\n}\npub struct B;\n",
        );
        assert_eq!((sums.code_lines, sums.filled_lines), (6, 8));
        assert_eq!(
            (sums.unwraps, sums.assertions, sums.silent_returns),
            (1, 1, 1)
        );
        assert_eq!((sums.unsafe_blocks, sums.unsafe_without_reason), (1, 1));
        assert_eq!((sums.public_items, sums.undocumented), (2, 1));
        assert_eq!((sums.names, sums.function_words), (2, 1));
        assert_eq!(
            (sums.inline_comments, sums.persons, sums.comment_words),
            (1, 1, 2)
        );
    }

    #[test]
    fn numbers_are_shown() {
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(percentile(&mut [3, 1, 2], 50), 2);
        assert_eq!(percentile(&mut [], 50), 0);
        assert_eq!(share(1, 3, 1), "33.3 %");
        assert_eq!(per_thousand(86, 1000), "86");
    }
}
