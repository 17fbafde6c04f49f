//! Links between documents, and the book that they make.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use stealtime_tidy::tree::{self, SourceFile, report};

/// Links that lead nowhere, or to a heading that is not there.
fn broken(files: &[SourceFile]) -> Vec<String> {
    let pages: BTreeMap<PathBuf, Vec<String>> = files
        .iter()
        .map(|file| (PathBuf::from(&file.path), anchors(file)))
        .collect();
    let mut errors = Vec::new();
    for file in files {
        for (n, target) in links(file) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let page = Path::new(&file.path);
            let page = match path {
                "" => page.to_path_buf(),
                _ => resolve(&page.with_file_name(path)),
            };
            if page.starts_with("..")
                || !tree::top().join(&page).exists() && !pages.contains_key(&page)
            {
                errors.push(file.error(n, format!("link to {path}, which is not there")));
            } else if !anchor.is_empty()
                && pages
                    .get(&page)
                    .is_none_or(|all| !all.contains(&anchor.to_owned()))
            {
                let page = page.display();
                errors.push(file.error(n, format!("link to #{anchor}: no such heading in {page}")));
            }
        }
    }
    errors
}

/// Without `..`: the path within the tree.
fn resolve(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if resolved.pop() => {}
            Component::CurDir => {}
            other => resolved.push(other),
        }
    }
    resolved
}

/// Lines outside of code blocks, with their numbers.
fn prose(file: &SourceFile) -> impl Iterator<Item = (usize, &str)> {
    let mut fence = None;
    file.numbered().filter(move |(_, line)| {
        let line = line.trim_start();
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| line.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            _ => return fence.is_none(),
        }
        false
    })
}

/// What a file's links and images name, inline (`[text](target "title")`) or by reference
/// (`[label]: target`), with line numbers.
fn links(file: &SourceFile) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (n, line) in prose(file) {
        let line = without_code(line, &mut in_code);
        let inline = line
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        let definition = line
            .trim_start()
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("]: "))
            .filter(|(label, _)| !label.contains(']'))
            .map(|(_, target)| target);
        for target in inline.chain(definition) {
            let target = target.split_whitespace().next().unwrap_or_default();
            found.push((n, target.trim_matches(['<', '>']).to_owned()));
        }
    }
    found
}

/// A line without its code spans, which may go on from the line before.
fn without_code(line: &str, in_code: &mut bool) -> String {
    // A paragraph ends all of them.
    *in_code &= !line.trim().is_empty();
    line.chars()
        .filter(|&c| {
            *in_code ^= c == '`';
            !*in_code && c != '`'
        })
        .collect()
}

/// HTML tags in prose: a browser shows nothing of them.
fn tags(file: &SourceFile) -> Vec<String> {
    let mut errors = Vec::new();
    let mut in_code = false;
    for (n, line) in prose(file) {
        let line = without_code(line, &mut in_code).replace("\\<", "");
        for rest in line.split('<').skip(1) {
            let link = rest.starts_with("http");
            if !link && rest.starts_with(|c: char| c.is_ascii_alphabetic() || "/!".contains(c)) {
                errors.push(file.error(n, format!("tag <{rest}: write `<` within backticks")));
            }
        }
    }
    errors
}

/// The anchors of a file's headings, as GitHub and mdBook make them: letters and digits in lower
/// case, `-` and `_`, blanks as `-`; headings of the same text are counted.
fn anchors(file: &SourceFile) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (_, line) in prose(file) {
        let text = line.trim_start_matches('#');
        let level = line.len() - text.len();
        if !(1..=6).contains(&level) || !text.starts_with(' ') {
            continue;
        }
        let base: String = link_text(text.trim())
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let mut anchor = base.clone();
        for count in 1.. {
            if !found.contains(&anchor) {
                break;
            }
            anchor = format!("{base}-{count}");
        }
        found.push(anchor);
    }
    found
}

/// A heading without the targets of its links.
fn link_text(heading: &str) -> String {
    let mut parts = heading.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    text
}

/// Every document of the tree.
fn documents() -> Vec<SourceFile> {
    tree::text_files()
        .filter(|file| file.path.ends_with(".md"))
        .collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let files = documents();
    assert!(files.iter().any(|file| file.path == "docs/SUMMARY.md"));
    report(&broken(&files));
}

#[test]
fn documents_have_no_html() {
    let errors: Vec<String> = documents().iter().flat_map(tags).collect();
    report(&errors);
}

#[test]
fn every_page_is_in_the_book_once() {
    let files = documents();
    let summary = files.iter().find(|file| file.path == "docs/SUMMARY.md");
    let summary = summary.expect("docs/SUMMARY.md");
    let chapters: Vec<String> = links(summary).into_iter().map(|(_, path)| path).collect();
    let mut errors = Vec::new();
    for file in &files {
        let Some(page) = file.path.strip_prefix("docs/") else {
            continue;
        };
        let count = chapters.iter().filter(|chapter| *chapter == page).count();
        if page != "SUMMARY.md" && count != 1 {
            errors.push(file.error(1, format!("{count} times in docs/SUMMARY.md")));
        }
    }
    report(&errors);
}

#[test]
fn tags_are_found() {
    let page = file(
        "a.md",
        "a < b `<c>` \\<d> <https://example.org>\n```\n<e>\n```\nx <f> y\n",
    );
    let expected = "a.md:5: error: tag <f> y: write `<` within backticks";
    assert_eq!(tags(&page), [expected]);
}

fn file(path: &str, text: &str) -> SourceFile {
    SourceFile {
        path: path.into(),
        text: text.into(),
    }
}

#[test]
fn broken_links_are_found() {
    let files = [
        file(
            "docs/a.md",
            "# A `b_c`: d?\n\n## Twice\n## Twice\n```\n# no heading [x](no/link)\n```\n\
             [b](b.md) [up](../README.md#top) [here](#a-b_c-d) [second](#twice-1)\n\
             [net](https://example.org/x.md#y) `[code](gone.md)\n[code](gone.md)`\n",
        ),
        file("docs/b.md", "# `--json`\n[a](a.md#twice \"title\")\n"),
        file(
            "README.md",
            "# Top\n[a](docs/b.md#--json)\n[b]: docs/a.md\n",
        ),
    ];
    assert_eq!(broken(&files), [""; 0]);

    let files = [
        file(
            "docs/a.md",
            "# A\n[b](gone.md)\n[a](#no)\n`code\ncode` ![c](../c.png)\n[d](../../d)\n",
        ),
        file("README.md", "[a](docs/a.md#twice)\n\n[b]: docs/gone.md\n"),
    ];
    assert_eq!(
        broken(&files),
        [
            "docs/a.md:2: error: link to gone.md, which is not there",
            "docs/a.md:3: error: link to #no: no such heading in docs/a.md",
            "docs/a.md:5: error: link to ../c.png, which is not there",
            "docs/a.md:6: error: link to ../../d, which is not there",
            "README.md:1: error: link to #twice: no such heading in docs/a.md",
            "README.md:3: error: link to docs/gone.md, which is not there",
        ]
    );
}
