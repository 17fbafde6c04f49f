//! Names of local values.

use crate::source::{Kind, Source, Token, closing};

/// Words of grammar that say nothing as the name of a value. Left out: now, next, rest and last,
/// which are nouns of schedulers and iterators.
#[rustfmt::skip]
pub const FUNCTION_WORDS: [&str; 137] = [
    "all", "also", "and", "another", "any", "anything", "are", "as", "asked", "at", "away",
    "back", "be", "been", "before", "behind", "being", "beside", "between", "both", "but", "by",
    "can", "come", "done", "during", "each", "either", "else", "ever", "every", "everything",
    "few", "for", "from", "gave", "given", "gives", "go", "goes", "gone", "got", "had", "has",
    "have", "here", "how", "if", "in", "into", "is", "it", "its", "just", "kept", "left", "less",
    "made", "make", "many", "may", "might", "more", "most", "much", "must", "neither", "never",
    "no", "none", "nor", "not", "nothing", "of", "off", "on", "one", "ones", "only", "onto", "or",
    "other", "others", "out", "over", "own", "same", "seen", "shall", "should", "since", "so",
    "some", "something", "such", "taken", "than", "that", "the", "their", "them", "then", "there",
    "these", "they", "this", "those", "though", "to", "told", "too", "under", "until", "up",
    "upon", "us", "was", "way", "well", "went", "were", "what", "when", "where", "whether",
    "which", "while", "who", "whom", "whose", "why", "will", "with", "within", "without", "would",
    "yet",
];

/// Whether a name is a function word.
pub fn is_function_word(name: &str) -> bool {
    FUNCTION_WORDS.contains(&name)
}

/// Names that `let`, `for` and closures bind, and parameters; those with a leading `_` are left out.
pub fn local_names<'a>(source: &Source<'a>) -> Vec<Token<'a>> {
    let code = &source.code;
    let mut names = Vec::new();
    for (index, token) in code.iter().enumerate() {
        let pattern = &code[index + 1..];
        let end = match (token.kind, token.text) {
            (Kind::Word, "let") => pattern_end(pattern, |t, next| {
                t.is_sign(';') || t.is_sign('=') && !next.is_some_and(|n| n.is_sign('='))
            }),
            (Kind::Word, "for") => pattern_end(pattern, |t, _| t.is_word("in")),
            (Kind::Sign('|'), _) if index > 0 && opens_closure(&code[index - 1]) => {
                pattern_end(pattern, |t, _| t.is_sign('|'))
            }
            _ => None,
        };
        bound(&pattern[..end.unwrap_or(0)], false, &mut names);
    }
    for function in source.functions() {
        for parameter in function.parameters() {
            bound(parameter, false, &mut names);
        }
    }
    names.retain(|name| !name.text.starts_with('_'));
    names
}

/// Whether a `|` after this token begins the parameters of a closure.
fn opens_closure(previous: &Token) -> bool {
    matches!(previous.kind, Kind::Sign('(' | ',' | '='))
        || previous.is_word("move")
        || previous.is_word("return")
}

/// Where a pattern ends: at a token outside of brackets. `None` where another bracket comes first,
/// as in `impl A for B {`.
fn pattern_end(tokens: &[Token], ends: impl Fn(&Token, Option<&Token>) -> bool) -> Option<usize> {
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        if ends(token, tokens.get(index + 1)) {
            return Some(index);
        }
        match token.kind {
            Kind::Sign('(' | '[' | '{') => index = closing(tokens, index),
            Kind::Sign(')' | ']' | '}' | ';') => return None,
            _ => index += 1,
        }
    }
    None
}

/// Adds the names that a pattern binds. Within the braces of a struct `field: pattern` binds what
/// is right of the colon; elsewhere a type stands there.
fn bound<'a>(pattern: &[Token<'a>], in_braces: bool, names: &mut Vec<Token<'a>>) {
    let mut index = 0;
    while let Some(token) = pattern.get(index) {
        let next = pattern.get(index + 1).map(|t| t.kind);
        match token.kind {
            Kind::Sign('(' | '[' | '{') => {
                let end = closing(pattern, index);
                let inner = &pattern[index + 1..(end - 1).max(index + 1)];
                bound(inner, token.is_sign('{'), names);
                index = end;
                continue;
            }
            Kind::Sign(':') if next == Some(Kind::Sign(':')) => index += 1,
            Kind::Sign(':') if !in_braces => index = type_end(pattern, index),
            Kind::Word if binds(pattern, index, in_braces) => names.push(*token),
            _ => {}
        }
        index += 1;
    }
}

/// Whether the word at a position is a name, not a keyword, a path, a constructor or a field.
fn binds(pattern: &[Token], index: usize, in_braces: bool) -> bool {
    let lower = pattern[index]
        .text
        .starts_with(|c: char| c.is_lowercase() || c == '_');
    let keyword = ["mut", "ref", "box", "true", "false", "self", "_", "if"];
    let kind = |index: usize| pattern.get(index).map(|t| t.kind);
    let path = kind(index + 1) == Some(Kind::Sign(':')) && kind(index + 2) == Some(Kind::Sign(':'));
    let field = in_braces && kind(index + 1) == Some(Kind::Sign(':'));
    let call = matches!(kind(index + 1), Some(Kind::Sign('(' | '{' | '!')));
    let after_path = index > 0
        && matches!(pattern[index - 1].kind, Kind::Sign(':' | '.'))
        && !(in_braces && index > 1 && !pattern[index - 2].is_sign(':'));
    lower && !keyword.contains(&pattern[index].text) && !path && !field && !call && !after_path
}

/// The last token of the type that follows a colon.
fn type_end(pattern: &[Token], colon: usize) -> usize {
    let mut depth = 0_usize;
    let mut index = colon + 1;
    while let Some(token) = pattern.get(index) {
        match token.kind {
            Kind::Sign('<') => depth += 1,
            Kind::Sign('>') => depth = depth.saturating_sub(1),
            Kind::Sign('(' | '[' | '{') => index = closing(pattern, index) - 1,
            Kind::Sign(',' | '|') if depth == 0 => return index,
            _ => {}
        }
        index += 1;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_patterns_bind() {
        let source = Source::new(
            "fn f(&self, first: Map<u8, u8>, (mut second, third): (u8, u8)) -> u8 {
                let Some(Point { x, y: fourth, .. }) = a::b(c) else { return };
                for (fifth, _) in 0..1 { let sixth: Vec<u8>; }
                call(|seventh, &eighth: &u8| seventh | eighth);
                if ninth == 1 { let None = x; let path::NAME = y; }
            }
            impl From<u8> for Host { }",
        );
        let names = local_names(&source);
        let mut names: Vec<&str> = names.iter().map(|name| name.text).collect();
        names.sort_unstable();
        let expected = "eighth fifth first fourth second seventh sixth third x";
        assert_eq!(names.join(" "), expected);
    }
}
