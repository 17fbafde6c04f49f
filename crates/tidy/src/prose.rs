//! Sentences and words of pages and comments.

/// Words of a text.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || "'’-_".contains(c)))
        .filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()))
}

/// A comment without its marks.
pub fn comment_text(comment: &str) -> String {
    let lines = comment.lines().map(|line| {
        let line = line.trim_start();
        let line = line.strip_suffix("*/").unwrap_or(line);
        let marks = ["///", "//!", "//", "/**", "/*!", "/*", "*"];
        let mark = marks.iter().find_map(|mark| line.strip_prefix(mark));
        mark.unwrap_or(line).to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A paragraph or an item of a list with the line where it begins, from 1.
pub struct Paragraph {
    /// Line in the page.
    pub line: usize,
    /// Its text on one line.
    pub text: String,
}

/// The paragraphs and items of a page; code, tables, headings and HTML are left out.
pub fn paragraphs(markdown: &str) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let mut fence: Option<&str> = None;
    let mut open = false;
    for (index, line) in markdown.lines().enumerate() {
        let text = line.trim();
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| text.starts_with(mark));
        if fence.is_some() || mark.is_some() {
            match fence {
                Some(open_mark) if mark == Some(open_mark) => fence = None,
                None => fence = mark,
                _ => {}
            }
            open = false;
            continue;
        }
        if !is_prose(line) {
            open = false;
            continue;
        }
        let item = item_text(text);
        match found.last_mut() {
            Some(paragraph) if open && item.is_none() => {
                paragraph.text.push(' ');
                paragraph.text.push_str(text);
            }
            _ => found.push(Paragraph {
                line: index + 1,
                text: item.unwrap_or(text).to_owned(),
            }),
        }
        open = true;
    }
    found
}

fn is_prose(line: &str) -> bool {
    let text = line.trim();
    let rule = |sign: char| text.chars().all(|c| c == sign);
    let definition = text.starts_with('[') && text.contains("]:");
    !text.is_empty()
        && !line.starts_with("    ")
        && !line.starts_with('\t')
        && !text.starts_with(['|', '#', '>', '<'])
        && !rule('-')
        && !rule('=')
        && !definition
}

/// The text of a list's item.
fn item_text(text: &str) -> Option<&str> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let after = if digits > 0 {
        text[digits..].strip_prefix(['.', ')'])?
    } else {
        text.strip_prefix(['-', '*', '+'])?
    };
    after.starts_with(' ').then(|| after.trim_start())
}

/// Sentences of a paragraph, of three words or more. Code counts as one word.
pub fn sentences(paragraph: &str) -> Vec<String> {
    let text = without_links(&without_code(paragraph));
    let mut found = Vec::new();
    let mut sentence = String::new();
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(word);
        let ends = word
            .trim_end_matches([')', '"', '\'', '*', '_'])
            .ends_with(['.', '!', '?']);
        let next_begins = |next: &&str| {
            let begin = next.trim_start_matches(['*', '_', '(', '"', '\'', '`']);
            begin.starts_with(|c: char| c.is_ascii_uppercase()) || begin.len() < next.len()
        };
        if words.peek().is_none() || ends && words.peek().is_some_and(next_begins) {
            found.push(std::mem::take(&mut sentence));
        }
    }
    found.retain(|sentence| length(sentence) > 2);
    found
}

/// Words of a sentence.
pub fn length(sentence: &str) -> usize {
    sentence.split_whitespace().count()
}

/// A text with a word in place of each code span.
pub fn without_code(text: &str) -> String {
    let mut parts = text.split('`').enumerate();
    let mut result = String::new();
    parts.by_ref().for_each(|(index, part)| {
        result.push_str(if index % 2 == 0 { part } else { "Code" });
    });
    result
}

/// A text without the targets of its links.
fn without_links(text: &str) -> String {
    let mut parts = text.split("](");
    let mut result = parts.next().unwrap_or_default().replace('[', "");
    for part in parts {
        let after = part.split_once(')').map_or("", |(_, after)| after);
        result.push_str(&after.replace('[', ""));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_of_a_page() {
        let page = "# Heading\n\nOne `a b` three. Four [five](x.md)\nsix!\n\n| no | no |\n\
                    - an item of five\n  words\n```\nno no no no\n```\n";
        let found: Vec<Vec<String>> = paragraphs(page)
            .iter()
            .map(|p| sentences(&p.text))
            .collect();
        assert_eq!(found[0], ["One Code three.", "Four five six!"]);
        assert_eq!(found[1], ["an item of five words"]);
        assert_eq!(found.len(), 2);
    }
}
