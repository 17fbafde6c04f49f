//! Habits that are counted for each crate, and may only become fewer: [`BASELINE`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::measures::{TypeSize, add_types, silent_returns};
use crate::names::{is_function_word, local_names};
use crate::prose;
use crate::source::{Kind, Source, Token, closing};
use crate::tree::{SourceFile, is_test};

/// The file with the accepted number of findings for each check and crate.
pub const BASELINE: &str = "crates/tidy/tests/baseline.toml";
/// The page with the list of words to avoid, its last table.
pub const GLOSSARY: &str = "docs/glossary.md";
/// The heading above that table.
const AVOIDED: &str = "## Words that the project avoids";

/// Files that may have an impl of a type: more, and no reader knows the whole of it.
const MAX_FILES_OF_TYPE: usize = 3;
/// Lines of all impls of a type. The largest of six admired projects have about 1,000.
const MAX_LINES_OF_TYPE: usize = 800;
/// Words of a sentence. The median of the admired projects is 14, the 90th percentile 27.
const MAX_SENTENCE: usize = 25;
/// Words that tell of former states on pages for users, which describe the present one.
const HISTORY: &str = "now was were previously formerly nowadays";

/// Findings by check and crate.
pub type Findings = BTreeMap<&'static str, BTreeMap<String, Vec<String>>>;
/// Their numbers.
pub type Counts = BTreeMap<String, BTreeMap<String, usize>>;

/// Looks for every counted habit in a tree's files.
pub fn findings(files: &[SourceFile]) -> Findings {
    let glossary = files.iter().find(|file| file.path == GLOSSARY);
    let mut search = Search {
        avoided: glossary.map(|file| avoided(&file.text)).unwrap_or_default(),
        findings: Findings::new(),
        types: BTreeMap::new(),
    };
    for file in files {
        match file.path.rsplit_once('.') {
            Some((_, "rs")) if is_test(&file.path) => {}
            Some((_, "rs")) => search.rust(file),
            Some((_, "md")) => search.page(file),
            _ => search.script(file),
        }
    }
    search.large_types();
    search.findings
}

/// Number of findings by check and crate.
pub fn counts(findings: &Findings) -> Counts {
    let count = |(name, found): (&String, &Vec<String>)| (name.clone(), found.len());
    let counts = findings.iter().map(|(check, crates)| {
        let crates = crates.iter().map(count).collect();
        ((*check).to_owned(), crates)
    });
    counts.collect()
}

/// Reads a baseline: a `[check]` line, then lines `crate = count`.
pub fn parse(text: &str) -> Counts {
    let (mut counts, mut check) = (Counts::new(), String::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("[\"").and_then(|l| l.strip_suffix("\"]")) {
            name.clone_into(&mut check);
            counts.entry(check.clone()).or_default();
        } else if let Some((name, count)) = line.split_once(" = ") {
            let crates = counts.entry(check.clone()).or_default();
            crates.insert(name.into(), count.parse().unwrap_or(0));
        }
    }
    counts
}

/// Writes a baseline.
pub fn baseline_text(counts: &Counts) -> String {
    let mut text = "# Findings of each check by crate. They may fall, not rise:\n\
                    # STEALTIME_BLESS=1 cargo test -p stealtime-tidy --test counts\n"
        .to_owned();
    for (check, crates) in counts {
        let _ = writeln!(text, "\n[\"{check}\"]");
        for (name, count) in crates {
            let _ = writeln!(text, "{name} = {count}");
        }
    }
    text
}

/// The phrases in the first column of the glossary's table of words to avoid.
fn avoided(glossary: &str) -> Vec<String> {
    let section = glossary.split(AVOIDED).nth(1).unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let phrases = cells.flat_map(|cell| cell.split(','));
    phrases.map(|phrase| phrase.trim().to_lowercase()).collect()
}

/// The phrases to look for, and the findings.
struct Search {
    avoided: Vec<String>,
    findings: Findings,
    types: BTreeMap<String, TypeSize>,
}

impl Search {
    fn add(&mut self, check: &'static str, file: &SourceFile, line: usize, message: String) {
        let crates = self.findings.entry(check).or_default();
        let found = crates.entry(group(&file.path)).or_default();
        found.push(file.error(line, message));
    }

    fn rust(&mut self, file: &SourceFile) {
        let source = Source::new(&file.text);
        add_types(&source, &file.path, &mut self.types);
        for line in silent_returns(&source.code) {
            let message = "leaves silently: debug_assert and count, or return a typed error";
            self.add("silent returns", file, line + 1, message.into());
        }
        for name in local_names(&source) {
            if is_function_word(name.text) {
                let message = format!("local name `{}`", name.text);
                self.add("function words as names", file, name.line + 1, message);
            }
        }
        for function in source.functions() {
            for parameter in function.parameters().into_iter().filter(|p| has_tuple(p)) {
                let message = "tuple as a parameter: name its parts in a type".to_owned();
                self.add("tuple parameters", file, parameter[0].line + 1, message);
            }
        }
        for line in text_errors(&source.code) {
            let message = "an error that is a text: use one type for each operation".to_owned();
            self.add("texts as errors", file, line + 1, message);
        }
        for part in source
            .code
            .windows(5)
            .filter(|part| texts(part) == "( bool , bool )")
        {
            let message = "(bool, bool): use an enum or a struct".to_owned();
            self.add("pairs of bool", file, part[0].line + 1, message);
        }
        let message = |t: &&Token| t.kind == Kind::Text && t.text.trim().contains(' ');
        for message in source.code.iter().filter(message) {
            self.words(file, message.line + 1, message.text);
        }
        for (line, comment) in comment_blocks(&source) {
            self.prose(file, line, &comment);
        }
    }

    fn page(&mut self, file: &SourceFile) {
        let history = file.path.starts_with("research/") || file.path == "CHANGELOG.md";
        let text = if file.path == GLOSSARY {
            file.text.split(AVOIDED).next().unwrap_or_default()
        } else {
            &file.text
        };
        self.prose(file, 0, text);
        if file.path.starts_with("docs/") && !history {
            for paragraph in prose::paragraphs(text) {
                self.history(file, paragraph.line, &paragraph.text);
            }
        }
    }

    /// Comments of scripts and settings.
    fn script(&mut self, file: &SourceFile) {
        let comment = |line: &str| Some(line.trim_start().strip_prefix("# ")?.to_owned());
        let lines: Vec<_> = file
            .text
            .lines()
            .map(|l| comment(l).unwrap_or_default())
            .collect();
        self.prose(file, 0, &lines.join("\n"));
    }

    /// Words and sentences of a text that begins after a line.
    fn prose(&mut self, file: &SourceFile, above: usize, text: &str) {
        let mut fenced = false;
        for (index, line) in text.lines().enumerate() {
            let fence = line.trim_start().starts_with("```");
            fenced ^= fence;
            if !fenced && !fence {
                self.words(file, above + index + 1, &prose::without_code(line));
            }
        }
        for paragraph in prose::paragraphs(text) {
            for sentence in prose::sentences(&paragraph.text) {
                let length = prose::length(&sentence);
                if length > MAX_SENTENCE {
                    let begin: Vec<&str> = sentence.split_whitespace().take(8).collect();
                    let begin = begin.join(" ");
                    let message = format!("{length} words, at most {MAX_SENTENCE}: {begin} …");
                    self.add("long sentences", file, above + paragraph.line, message);
                }
            }
        }
    }

    fn words(&mut self, file: &SourceFile, line: usize, text: &str) {
        let text = flat(text);
        let found = |phrase: &&String| text.contains(&format!(" {phrase} "));
        let phrases: Vec<String> = self.avoided.iter().filter(found).cloned().collect();
        for phrase in phrases {
            self.add(
                "words to avoid",
                file,
                line,
                format!("“{phrase}”: {GLOSSARY}"),
            );
        }
    }

    /// Words for former states; "before" only as an adverb, with nothing after it.
    fn history(&mut self, file: &SourceFile, line: usize, text: &str) {
        let text = prose::without_code(text).to_lowercase();
        let words = flat(&text);
        let mut found: Vec<&str> = HISTORY
            .split_whitespace()
            .filter(|word| words.contains(&format!(" {word} ")))
            .collect();
        let adverb = [".", ",", ";", ")"]
            .iter()
            .any(|end| text.contains(&format!(" before{end}")));
        found.extend(adverb.then_some("before"));
        found.extend(words.contains(" no longer ").then_some("no longer"));
        for word in found {
            let message = format!("“{word}”: pages describe the present state");
            self.add("words of history", file, line, message);
        }
    }

    fn large_types(&mut self) {
        for (name, size) in std::mem::take(&mut self.types) {
            if size.lines <= MAX_LINES_OF_TYPE && size.files.len() <= MAX_FILES_OF_TYPE {
                continue;
            }
            let path = size.files.into_iter().collect::<Vec<_>>();
            let file = SourceFile {
                path: path[0].clone(),
                text: String::new(),
            };
            let (name, lines) = (name.rsplit("::").next().unwrap_or_default(), size.lines);
            let message = format!(
                "{name}: impls of {lines} lines in {} files, at most {MAX_LINES_OF_TYPE} in \
                 {MAX_FILES_OF_TYPE}",
                path.len()
            );
            self.add("large types", &file, 1, message);
        }
    }
}

/// The crate of a path, or its folder at the top of the tree.
fn group(path: &str) -> String {
    let mut parts = path.split('/');
    match (parts.next(), parts.next()) {
        (Some("crates"), Some(name)) => name.to_owned(),
        (Some(folder), Some(_)) => folder.trim_start_matches('.').to_owned(),
        _ => "top".to_owned(),
    }
}

/// A text in lower case with one blank between words and at both ends.
fn flat(text: &str) -> String {
    let mut flat = " ".to_owned();
    for word in text
        .to_lowercase()
        .split(|c: char| !c.is_alphanumeric() && c != '_')
    {
        if !word.is_empty() {
            flat.push_str(word);
            flat.push(' ');
        }
    }
    flat
}

fn texts(tokens: &[Token]) -> String {
    let texts: Vec<&str> = tokens.iter().map(|t| t.text).collect();
    texts.join(" ")
}

/// Comments of the same form in adjacent lines as one text, with the line above each.
fn comment_blocks(source: &Source) -> Vec<(usize, String)> {
    let mark = |comment: &Token| comment.text.chars().take(3).collect::<String>();
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut previous: Option<&Token> = None;
    for comment in &source.comments {
        let text = prose::comment_text(comment.text);
        let text = text.strip_prefix(' ').unwrap_or(&text);
        let joined = previous.is_some_and(|previous| {
            previous.last_line + 1 == comment.line && mark(previous) == mark(comment)
        });
        match blocks.last_mut() {
            Some((_, block)) if joined => {
                block.push('\n');
                block.push_str(text);
            }
            _ => blocks.push((comment.line, text.to_owned())),
        }
        previous = Some(comment);
    }
    blocks
}

/// Whether a parameter's type is or contains a tuple of two or more. `Fn(A, B)` is none.
fn has_tuple(parameter: &[Token]) -> bool {
    let Some(colon) = parameter.iter().position(|t| t.is_sign(':')) else {
        return false;
    };
    let kind = &parameter[colon + 1..];
    (0..kind.len()).any(|index| {
        let call =
            index > 0 && kind[index - 1].kind == Kind::Word && !kind[index - 1].is_word("mut");
        let end = closing(kind, index);
        let inner = &kind[(index + 1).min(end)..end.max(index + 2) - 1];
        kind[index].is_sign('(') && !call && has_comma(inner)
    })
}

/// Whether a comma separates parts, outside of brackets: `&(dyn Fn(A, B) + Sync)` has none.
fn has_comma(tokens: &[Token]) -> bool {
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        match token.kind {
            Kind::Sign(',') => return true,
            Kind::Sign('(' | '[' | '{') => index = closing(tokens, index),
            _ => index += 1,
        }
    }
    false
}

/// Lines with `Result<_, String>`.
fn text_errors(code: &[Token]) -> BTreeSet<usize> {
    let mut lines = BTreeSet::new();
    for (index, token) in code.iter().enumerate() {
        if !token.is_word("Result") || !code.get(index + 1).is_some_and(|t| t.is_sign('<')) {
            continue;
        }
        let mut depth = 0_usize;
        for inner in index + 1..code.len() {
            match code[inner].kind {
                Kind::Sign('<' | '(' | '[') => depth += 1,
                Kind::Sign('>' | ')' | ']') => depth = depth.saturating_sub(1),
                Kind::Sign(',') if depth == 1 => {
                    let error = &code[inner + 1..code.len().min(inner + 3)];
                    if texts(error) == "String >" {
                        lines.insert(token.line);
                    }
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile {
            path: path.into(),
            text: text.into(),
        }
    }

    #[test]
    fn habits_are_found() {
        let long = "// Word ".to_owned() + &"word ".repeat(25) + "\n";
        let code =
            "fn a(of: (u8, u8), f: impl Fn(u8, u8), s: &[(u8, u8)]) -> Result<(u8, u8), String> {
            let Some(x) = y else { return };
            say(\"nobody was told\"); // Gives\n// gives way, `told`\n}
            fn b() -> (bool, bool) { x }\n";
        let files = [
            file("crates/a/src/x.rs", &(long + code)),
            file("docs/a.md", "As before. Before the exit, it was `now`.\n"),
            file("scripts/a", "# Told.\n"),
            file(
                GLOSSARY,
                &format!(
                    "{AVOIDED}\n\n| not | but |\n|---|---|\n| told, nobody | x |\n| gives way | x |\n"
                ),
            ),
        ];
        let counts = counts(&findings(&files));
        let expected = "[\"function words as names\"]\na = 1\n\
            [\"long sentences\"]\na = 1\n[\"pairs of bool\"]\na = 1\n[\"silent returns\"]\na = 1\n\
            [\"texts as errors\"]\na = 1\n[\"tuple parameters\"]\na = 2\n\
            [\"words of history\"]\ndocs = 2\n[\"words to avoid\"]\na = 3\nscripts = 1\n";
        assert_eq!(counts, parse(expected));
        assert_eq!(parse(&baseline_text(&counts)), counts);
    }
}
